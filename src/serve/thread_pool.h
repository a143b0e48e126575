/* thread_pool.h: threads for long work that is not the engine's: converting files to text and long
 * texts to tokens. An HTTP thread serves many connections, which must not wait for such work of one
 * of them. Any thread may call any function. */
#ifndef SAC_SERVE_THREAD_POOL_H
#define SAC_SERVE_THREAD_POOL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct thread_pool;

/* A job must not move or change until `work` is called. */
struct thread_pool_job {
    struct thread_pool_job *next;
    void (*sleep)(void *user); /* called under the pool's lock when the job is queued */
    void (*work)(void *user);  /* called on a thread of the pool; may free the job */
    void *user;
};

sac_status thread_pool_create(struct thread_pool **out, uint32_t n_thread, sac_error *err);
/* False: the pool is closed, and no callback was called. */
bool thread_pool_submit(struct thread_pool *p, struct thread_pool_job *job);
/* Completes the queued jobs, then accepts no more. */
void thread_pool_close(struct thread_pool *p);
void thread_pool_destroy(struct thread_pool *p);

#endif
