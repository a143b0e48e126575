/* workers.h: a fixed pool of threads that spin between pieces of work and sleep when idle for long.
 *
 * The caller takes part as worker 0. Work is handed out by an atomic counter, so the split over
 * workers varies from run to run: results must not depend on it (design D7: each item writes its own
 * outputs, and reductions over items run in item order afterwards).
 * Contract: one `workers_*` call at a time per pool, from one thread. */
#ifndef SAC_BASE_WORKERS_H
#define SAC_BASE_WORKERS_H

#include "base/status.h"

#include <stdint.h>

struct workers;

/* CPUs that this process may use (affinity mask), at least 1. */
uint32_t workers_default_count(void);

/* `n` threads in all, the caller included; 0 takes the default. */
sac_status workers_create(struct workers **out, uint32_t n, sac_error *err);
void workers_destroy(struct workers *w);
uint32_t workers_count(const struct workers *w);

/* Calls `fn(arg, worker_i)` once on every worker and returns when all are done. */
typedef void (*workers_fn)(void *arg, uint32_t worker_i);
void workers_run(struct workers *w, workers_fn fn, void *arg);

/* Calls `fn(arg, item_i, worker_i)` for each item in 0..n_item-1, handed out in rising order, one
 * at a time. With one worker or one item it runs in the caller. Put the longest items first. */
typedef void (*workers_item_fn)(void *arg, uint32_t item_i, uint32_t worker_i);
void workers_for(struct workers *w, uint32_t n_item, workers_item_fn fn, void *arg);

/* Monotonic microseconds. */
uint64_t clock_us(void);

#endif
