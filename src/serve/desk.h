/* desk.h: threads for long work that is not the engine's: converting files to text and long texts
 * to tokens. An HTTP thread serves many connections, which must not wait for such work of one of
 * them. Any thread may call any function. */
#ifndef SAC_SERVE_DESK_H
#define SAC_SERVE_DESK_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct desk;

/* Stays where it is, unchanged, until `work` was called. */
struct desk_job {
    struct desk_job *next;
    void (*sleep)(void *user); /* under the desk's lock, once the job is taken */
    void (*work)(void *user);  /* on a thread of the desk; the job may be gone when it returns */
    void *user;
};

sac_status desk_create(struct desk **out, uint32_t n_thread, sac_error *err);
/* False: the desk is closed, nothing was called. */
bool desk_submit(struct desk *d, struct desk_job *job);
/* Does what is queued, then takes nothing more. */
void desk_close(struct desk *d);
void desk_destroy(struct desk *d);

#endif
