/* decode.h: decode methods at work: their memory and their choices.
 *
 * Memory is part of plan_memory. State belongs to a sequence, [n_layer][n_kv_head][lane_bytes], and
 * moves with it. */
#ifndef SAC_ENGINE_DECODE_H
#define SAC_ENGINE_DECODE_H

#include "base/mem.h"
#include "engine/side.h"
#include "methods/spec.h"

struct decode_lane; /* what one lane of a step has answered */

struct decode_method {
    const struct spec *spec;
    size_t state_bytes; /* of a lane */
    struct side_place side;
};

struct decode {
    struct spec_list specs; /* all dense: nothing here costs a step anything */
    struct decode_method method[SAC_METHODS_MAX];
    struct method_shape shape;
    bool has_see, evicts; /* some method wants to see rows, gives pages back */
    size_t lane_bytes, worker_bytes;
    uint32_t n_past;         /* rows whose queries are kept */
    size_t past_floats;      /* of a row and lane */
    float *past;             /* [n_seq_max][n_layer][n_kv_head][n_past][past_floats] */
    uint32_t *past_begin;    /* [n_seq_max] rows before it are gone, by a cut */
    uint8_t *state;          /* [n_seq_max][n_layer][n_kv_head][lane_bytes] */
    uint8_t *worker;         /* [n_worker][worker_bytes] scratch of methods */
    uint32_t *mask;          /* [n_seq_max][n_kv_head][max_page] */
    uint32_t *page;          /* [n_seq_max][n_kv_head * max_page] lists for the attention op */
    uint32_t *page_ptr;      /* [n_seq_max][n_kv_head + 1] */
    uint32_t *tok, *tok_ptr; /* the same for single tokens, [n_seq_max][n_kv_head * n_ctx] */
    /* Entries for what is not read: [n_seq_max][n_kv_head][group], [..][head_dim], and the logs of
     * the rows' sums [n_batch][n_head] that they are weighed against; NULL: no method has any. */
    float *rest_log, *rest_value, *lse;
    float *logw; /* of single tokens, as tok; NULL: none has any */
    /* What prompt rows of sequences with gaps read: [n_seq_max] plans of one tile and n_kv_head
     * lists. */
    struct attn_plan *plan;
    struct attn_range *range;            /* [n_seq_max][n_kv_head * (max_page / 2 + 1)] */
    uint32_t *range_ptr;                 /* [n_seq_max][n_kv_head + 1] */
    struct decode_lane *lane;            /* [n_seq_max * n_kv_head] of this layer */
    uint64_t layer_side_bytes, layer_us; /* of the last decode_select */
};

/* Reads the specifications in e->params and makes them the engine's own. */
sac_status decode_init(sac_engine *e, sac_error *err);
void decode_plan(sac_engine *e, struct arena *a);

/* A fresh sequence, a copy, a cut. */
void decode_reset(sac_engine *e, uint32_t seq_i);
void decode_fork(sac_engine *e, uint32_t dst, uint32_t src);
void decode_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok);

/* A lane of a sequence (layer * n_kv_head + KV head): its state, the ring of its kept queries. */
uint8_t *decode_state(const sac_engine *e, uint32_t seq_i, size_t lane_i);
float *decode_past(const sac_engine *e, uint32_t seq_i, size_t lane_i);
/* Of a sequence of n_tok tokens, the first row whose queries are kept. */
uint32_t decode_past_begin(const sac_engine *e, uint32_t seq_i, uint32_t n_tok);
/* Rows before it are not. */
void decode_set_past_begin(sac_engine *e, uint32_t seq_i, uint32_t begin);

/* Shows this layer's rows to the methods and sets what decode rows read; between seal and
 * attention. */
void decode_select(sac_engine *e, uint32_t layer, uint32_t window);
/* Adds the entries for what was not read to the rows that attention has written. */
void decode_add_rest(sac_engine *e, uint32_t window);

/* What is proved of what this layer's decode rows have read: how far at most their outputs are from
 * dense attention's, by the mass and the length of what was left out; between attention and the
 * next layer. */
void decode_certify(sac_engine *e, uint32_t window);

/* How far an output is from another relative to itself, sqrt(off / norm), of squares. One of zeros
 * lacks the other whole: 1, or 0 if nothing is off. */
double decode_relative(double off, double norm);

/* Of a decode row and KV head of this layer. */
struct decode_proof {
    float mass;      /* share of the softmax mass that was read for certain; 0: nothing is known */
    float rest_norm; /* no value that is not read is longer */
};
struct decode_proof decode_proof(const sac_engine *e, uint32_t run_i, uint32_t kv_head);

/* Softmax over more: out [d], the mean of values under weights whose sum has the log `lse`, becomes
 * that with one more entry. */
void decode_merge(float *out, float lse, const float *value, float value_log, uint32_t d);

#endif
