/* past_queries.h: the queries of a sequence's last rows, kept for decode methods that learn from
 * them. They are kept for all sequences of an engine that has such a method, so the method may be
 * selected later. */
#ifndef SAC_ENGINE_PAST_QUERIES_H
#define SAC_ENGINE_PAST_QUERIES_H

#include "engine/attend.h"
#include "methods/method.h"

/* A lane is layer * n_kv_head + KV head. Row p is in slot p % n_slot of its ring. */
struct past_queries {
    uint32_t n_slot; /* rows of a ring; 0: no method needs past queries */
    size_t floats;   /* of a row and lane: [group, head_dim] */
    float *q;        /* [n_seq_max][n_layer][n_kv_head][n_slot][floats] */
    uint32_t *begin; /* [n_seq_max] rows before it were overwritten by rows that are cut */
};

/* Part of plan_memory: rings of n_slot rows. */
void past_queries_plan(sac_engine *e, struct arena *a, uint32_t n_slot);

/* A new sequence; a copy; a cut. */
void past_queries_reset(sac_engine *e, uint32_t seq_i);
void past_queries_fork(sac_engine *e, uint32_t dst, uint32_t src);
void past_queries_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok);

/* The ring of a lane. */
float *past_queries_ring(const sac_engine *e, uint32_t seq_i, size_t lane_i);
/* For a sequence of n_tok tokens, the first row whose queries are kept. */
uint32_t past_queries_begin(const sac_engine *e, uint32_t seq_i, uint32_t n_tok);
/* Rows before `begin` are not kept. */
void past_queries_set_begin(sac_engine *e, uint32_t seq_i, uint32_t begin);
/* The past queries of a lane of a sequence, for the row at `end`. */
struct method_past past_queries_view(const sac_engine *e, uint32_t seq_i, size_t lane_i,
                                     uint32_t end);

/* Whether the reading's layer keeps queries. */
bool past_queries_keeps(const sac_engine *e, const struct reading *r);
/* Keeps the queries of each run's last rows; called after the layer's selections. */
void past_queries_keep(sac_engine *e, const struct reading *r);

#endif
