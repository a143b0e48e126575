/* workers.h: a fixed pool of threads that spin between pieces of work and sleep when idle for long.
 *
 * The caller takes part as worker 0. Work is handed out by atomic counters, so the split over
 * workers varies from run to run: results must not depend on it (design D7: each item writes its
 * own outputs, and reductions over items run in item order afterwards). Contract: one `workers_*`
 * call at a time per pool, from one thread. */
#ifndef SAC_BASE_WORKERS_H
#define SAC_BASE_WORKERS_H

#include "base/status.h"

#include <stdint.h>

struct workers;

/* CPUs in this process's affinity mask, at least 1. */
uint32_t workers_default_count(void);

/* `n` threads including the caller; 0: the default. */
sac_status workers_create(struct workers **out, uint32_t n, sac_error *err);
void workers_destroy(struct workers *w);
uint32_t workers_count(const struct workers *w); /* NULL: 1, the caller alone */

/* Attaches the backend whose queue executes operations; NULL at first. Borrowed. */
void workers_use_queue(struct workers *w, const void *queue);
const void *workers_queue(const struct workers *w);

/* Calls `fn(arg, worker_i)` once on every worker and returns when all have returned. */
typedef void (*workers_fn)(void *arg, uint32_t worker_i);
void workers_run(struct workers *w, workers_fn fn, void *arg);

/* Calls `fn(arg, worker_i)` on the caller, and on every worker that arrives before the caller's
 * call returns: for work taken from a shared list until it is empty. Workers without a CPU are not
 * waited for. `w` NULL: the caller alone. */
void workers_share(struct workers *w, workers_fn fn, void *arg);

/* Calls `fn(arg, item_i, worker_i)` for items 0..n_item-1, handed out one at a time in ascending
 * order, so put the longest first. With one worker or item, or `w` NULL, it runs in the caller. */
typedef void (*workers_item_fn)(void *arg, uint32_t item_i, uint32_t worker_i);
void workers_for(struct workers *w, uint32_t n_item, workers_item_fn fn, void *arg);

/* Calls `fn(arg, begin, end, worker_i)` for spans of at most `step` items that cover 0..n_item-1.
 * Each worker walks an equal share in ascending order, for sequential memory access; when done it
 * steals spans from the ends of other shares. For items of equal cost: repeated calls with the same
 * number of items then give each worker the items that are in its caches. `w` NULL: the caller
 * alone. */
typedef void (*workers_span_fn)(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i);
void workers_for_span(struct workers *w, uint32_t n_item, uint32_t step, workers_span_fn fn,
                      void *arg);

/* Monotonic microseconds. */
uint64_t clock_us(void);

#endif
