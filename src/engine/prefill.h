/* prefill.h: prefill methods at work: their memory and their plans.
 *
 * Memory is part of plan_memory. State belongs to a sequence, [n_kv_head][state_stride], and moves
 * with it; masks and lists are those of the layer and batch in work. */
#ifndef SAC_ENGINE_PREFILL_H
#define SAC_ENGINE_PREFILL_H

#include "engine/attend.h"
#include "engine/side.h"
#include "methods/plan.h"
#include "methods/spec.h"

struct seq;

struct prefill_method {
    const struct spec *spec;
    uint32_t tile_tok, n_part;
    size_t state_bytes; /* of a lane */
    struct side_place side;
    void *table; /* of struct method_table; NULL: none is in use */
};

struct prefill {
    struct spec_list specs; /* all dense: nothing here costs a step anything */
    struct prefill_method method[SAC_METHODS_MAX];
    struct method_shape shape;
    uint32_t chunk_tok; /* chunks end at its multiples, whatever else is in the batch */
    size_t state_stride, worker_bytes;
    uint8_t *state;      /* [n_seq_max][n_kv_head][state_stride] */
    uint8_t *worker;     /* [n_worker][worker_bytes] scratch of methods */
    size_t mask_words;   /* of one lane */
    uint32_t *mask;      /* [n_kv_head][mask_words] */
    bool weighs;         /* some method does */
    uint8_t *weight;     /* [n_kv_head][mask_words * PAGE_TOK] if so */
    uint8_t *list_dense; /* [n_kv_head][list_max of one lane] */
    size_t lane_list_max;
    struct plan *plan;             /* [n_kv_head] of the run in work */
    struct plan_lists *lists;      /* [n_seq_max] of the batch's runs with a plan */
    uint32_t tok_max, range_max;   /* of a list */
    struct attn_range *range;      /* [list_max * range_max] */
    uint32_t *tok;                 /* [list_max * tok_max] */
    float *tok_logw;               /* the same, if some method weighs */
    uint32_t *range_ptr, *tok_ptr; /* [list_max + n_seq_max] */
    uint64_t *n_skip;              /* [n_worker] of struct op_attn, since the beginning */
};

/* Reads the specifications in e->params and makes them the engine's own. */
sac_status prefill_init(sac_engine *e, sac_error *err);
void prefill_plan(sac_engine *e, struct arena *a);

/* A fresh sequence, a copy, a cut. */
void prefill_reset(sac_engine *e, uint32_t seq_i);
void prefill_fork(sac_engine *e, uint32_t dst, uint32_t src);
void prefill_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok);

/* State of a KV head of a sequence. */
uint8_t *prefill_state(const sac_engine *e, uint32_t seq_i, uint32_t kv_head);
/* Reads the tables of heads that specifications name. */
sac_status prefill_read_tables(sac_engine *e, sac_error *err);

/* Rows of a prompt chunk that begins at `pos` of a sequence and has n pending ones: for methods
 * that plan, chunks end at fixed positions. 0: as many as fit. */
uint32_t prefill_chunk(const sac_engine *e, const struct seq *s, uint32_t n);

/* Says what the layer's prompt rows read; between seal and attention. */
void prefill_choose(sac_engine *e, struct reading *r);

#endif
