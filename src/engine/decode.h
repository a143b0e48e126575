/* decode.h: decode methods at work: their memory and their choices.
 *
 * Memory is part of plan_memory. State belongs to a sequence, [n_layer][n_kv_head][lane_bytes], and
 * moves with it. */
#ifndef SAC_ENGINE_DECODE_H
#define SAC_ENGINE_DECODE_H

#include "engine/attend.h"
#include "engine/side.h"
#include "methods/spec.h"

struct decode_method {
    const struct spec *spec;
    size_t state_bytes; /* of a lane */
    struct side_place side;
};

struct decode {
    struct spec_list specs; /* all dense: nothing here costs a step anything */
    struct decode_method method[SAC_METHODS_MAX];
    struct method_shape shape;
    bool has_see, evicts, has_rest; /* some method wants to see rows, gives pages back, guesses */
    size_t lane_bytes, worker_bytes;
    uint8_t *state;          /* [n_seq_max][n_layer][n_kv_head][lane_bytes] */
    uint8_t *worker;         /* [n_worker][worker_bytes] scratch of methods */
    uint32_t *mask;          /* [n_seq_max][n_kv_head][max_page] */
    uint32_t *page;          /* [n_seq_max][n_kv_head * max_page] lists for the attention op */
    uint32_t *page_ptr;      /* [n_seq_max][n_kv_head + 1] */
    uint32_t *tok, *tok_ptr; /* the same for single tokens, [n_seq_max][n_kv_head * n_ctx] */
    float *logw;             /* of single tokens, as tok; NULL: none has any */
};

/* Reads the specifications in e->params and makes them the engine's own. */
sac_status decode_init(sac_engine *e, sac_error *err);
void decode_plan(sac_engine *e, struct arena *a);

/* A fresh sequence, a copy, a cut. */
void decode_reset(sac_engine *e, uint32_t seq_i);
void decode_fork(sac_engine *e, uint32_t dst, uint32_t src);
void decode_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok);

/* State of a lane of a sequence, layer * n_kv_head + KV head. */
uint8_t *decode_state(const sac_engine *e, uint32_t seq_i, size_t lane_i);

/* Shows the layer's rows to the methods and says what decode rows read; between seal and attention.
 */
void decode_choose(sac_engine *e, struct reading *r);

#endif
