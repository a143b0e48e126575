/* desk.h: threads for long work that is not the engine's: converting files to text and long texts
 * to tokens. An HTTP thread serves many connections, which must not wait for such work of one of
 * them. Any thread may call any function. */
#ifndef SAC_SERVE_DESK_H
#define SAC_SERVE_DESK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct desk;

/* A job must not move or change until `work` is called. */
struct desk_job {
    struct desk_job *next;
    void (*sleep)(void *user); /* called under the desk's lock when the job is queued */
    void (*work)(void *user);  /* called on a desk thread; may free the job */
    void *user;
};

sac_status desk_create(struct desk **out, uint32_t n_thread, sac_error *err);
/* False: the desk is closed, and no callback was called. */
bool desk_submit(struct desk *d, struct desk_job *job);
/* Completes the queued jobs, then accepts no more. */
void desk_close(struct desk *d);
void desk_destroy(struct desk *d);

#endif
