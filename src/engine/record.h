/* record.h: the shadow computation behind sac_engine_set_recorder and sac_request.on_read: it
 * compares what attention read with exact dense attention over the same keys, values and queries.
 *
 * Contract: memory is planned at engine create if `params.record` or `params.watch` is set, and
 * never grows. If no records are wanted, a layer costs one check of its decode rows in attend.c. */
#ifndef SAC_ENGINE_RECORD_H
#define SAC_ENGINE_RECORD_H

#include "engine/attend.h"

struct record_job;
struct record_work;

struct record {
    sac_read_fn fn; /* for all rows; NULL: none. Readers of single sequences are separate */
    void *user;
    struct record_job *job; /* [n_job_max]; NULL if not planned */
    uint32_t n_job_max;
    struct record_work *work; /* [n_worker] */
    uint64_t spent_us;        /* time of all shadow computations, which stages do not count */
};

/* Part of the engine's plan_memory, after the pool and the batch. */
void record_plan(sac_engine *e, struct arena *a);

/* Whether records of the layer's reading are wanted. */
bool record_is_wanted(const sac_engine *e, const struct reading *r);

/* Computes and delivers the records of what a layer has read; between attention and `keep`, which
 * overwrites tails. `attend_us`: time of the stage without selection. */
void record_layer(sac_engine *e, const struct reading *r, uint64_t attend_us);

#endif
