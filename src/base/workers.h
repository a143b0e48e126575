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

/* CPUs that this process may use (affinity mask), at least 1. */
uint32_t workers_default_count(void);

/* `n` threads in all, the caller included; 0 takes the default. */
sac_status workers_create(struct workers **out, uint32_t n, sac_error *err);
void workers_destroy(struct workers *w);
uint32_t workers_count(const struct workers *w); /* NULL: the caller alone, 1 */

/* What operations find besides threads: the backend whose queue takes them; NULL at first.
 * Borrowed.
 */
void workers_use_queue(struct workers *w, const void *queue);
const void *workers_queue(const struct workers *w);

/* Calls `fn(arg, worker_i)` once on every worker and returns when all are done. */
typedef void (*workers_fn)(void *arg, uint32_t worker_i);
void workers_run(struct workers *w, workers_fn fn, void *arg);

/* Calls `fn(arg, worker_i)` on the caller, and once on every worker that comes before it has
 * returned there: for work that all take from a common list, until nothing is left. Who has no CPU
 * is not waited for. `w` NULL: on the caller alone. */
void workers_share(struct workers *w, workers_fn fn, void *arg);

/* Calls `fn(arg, item_i, worker_i)` for each item in 0..n_item-1, handed out in rising order, one
 * at a time. With one worker or one item, or where `w` is NULL, it runs in the caller. Put the
 * longest items first. */
typedef void (*workers_item_fn)(void *arg, uint32_t item_i, uint32_t worker_i);
void workers_for(struct workers *w, uint32_t n_item, workers_item_fn fn, void *arg);

/* Calls `fn(arg, begin, end, worker_i)` for spans of at most `step` items that cover 0..n_item-1.
 * Each worker walks an equal share of its own in rising order, so that what lies in memory behind
 * an item is read next by the same worker; whoever is done first takes spans from the ends of the
 * others' shares. For items of equal length; calls of as many items behind each other give each
 * worker what it has in its caches, if all come in time. `w` NULL: the caller does it all. */
typedef void (*workers_span_fn)(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i);
void workers_for_span(struct workers *w, uint32_t n_item, uint32_t step, workers_span_fn fn,
                      void *arg);

/* Monotonic microseconds. */
uint64_t clock_us(void);

#endif
