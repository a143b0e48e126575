/* record.h: the shadow computation behind sac_engine_set_recorder: what attention read, held
 * against exact dense attention of the same keys, values and queries.
 *
 * Contract: memory is planned at engine create when `params.record` is set and never grows; with no
 * recorder set, a layer costs one branch in forward.c. */
#ifndef SAC_ENGINE_RECORD_H
#define SAC_ENGINE_RECORD_H

#include "base/mem.h"

#include "saccade.h"

struct record_job;
struct record_work;

struct record {
    sac_read_fn fn; /* NULL: off */
    void *user;
    struct record_job *job; /* [n_job_max], NULL when not planned */
    uint32_t n_job_max;
    struct record_work *work; /* [n_worker] */
    uint64_t spent_us;        /* wall time of all shadow computations, to be left out of stages */
};

/* What a layer's attention did that its runs do not tell. */
struct record_layer {
    uint32_t layer;
    uint32_t window;     /* > 0: keys at distance >= window are not seen */
    uint64_t side_bytes; /* read to select pages, by all decode rows together */
    uint64_t select_us, attend_us;
};

/* Part of the engine's plan_memory, behind the pool and the batch. */
void record_plan(sac_engine *e, struct arena *a);

/* Computes and hands out the records of a layer: after attention, while the runs still point at the
 * layer's tails and fresh pages. */
void record_run(sac_engine *e, const struct record_layer *what);

#endif
