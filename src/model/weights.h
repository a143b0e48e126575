/* weights.h: the tensors of a model bound to named fields, shapes checked, matrices repacked for
 * the kernels (ops/weight.h). All memory is one huge-page block; the mapped pages of the file are
 * released. */
#ifndef SAC_MODEL_WEIGHTS_H
#define SAC_MODEL_WEIGHTS_H

#include "model/config.h"
#include "model/screen.h"
#include "ops/weight.h"

/* The matrices of all experts, one after another; each expert's rows are whole groups. */
struct expert_weights {
    struct weight router;   /* [n_expert, n_embd] */
    struct weight gate, up; /* [n_expert * n_ff, n_embd] */
    struct weight down;     /* [n_expert * n_embd, n_ff] */
    struct weight shared;   /* [1, n_embd] gate of the shared expert, or empty */
};

struct layer_weights {
    const float *attn_norm;       /* [n_embd] */
    struct weight wq, wk, wv;     /* [n_head * head_dim, n_embd], [n_kv_head * head_dim, n_embd] */
    const float *bq, *bk, *bv;    /* [n_out] or NULL */
    const float *q_norm, *k_norm; /* [head_dim] or NULL */
    struct weight wo;             /* [n_embd, n_head * head_dim] */
    const float *bo;              /* [n_embd] or NULL */
    const float *post_attn_norm;  /* [n_embd] or NULL */
    const float *ffn_norm;        /* [n_embd] */
    struct weight gate, up;       /* [n_ff, n_embd]; empty if n_ff is 0 */
    struct weight down;           /* [n_embd, n_ff] */
    struct expert_weights expert; /* empty without experts */
    const float *post_ffn_norm;   /* [n_embd] or NULL */
    size_t begin, end;            /* range of the block that the layer occupies */
};

struct weights {
    const struct gguf_tensor *embed; /* rows read from the file's mapping: [n_vocab, n_embd] */
    struct layer_weights *layer;     /* [n_layer] */
    const float *output_norm;        /* [n_embd] */
    struct weight output;            /* [n_vocab, n_embd]; packed from embed when tied */
    struct screen screen;            /* of the output, or empty */
    /* Divisors of the rotation frequencies [n_rot/2], or NULL. LongRoPE has two sets, the second
     * for contexts beyond the original. */
    const float *rope_factors, *rope_factors_long;
    uint8_t *block; /* owned, [block_bytes] */
    size_t block_bytes;
};

/* Binds, checks and packs. `g` must outlive the weights (embedding rows stay in the file). */
sac_status weights_load(struct weights *out, const struct gguf *g, const struct config *c,
                        struct workers *pool, const sac_model_params *params, sac_error *err);
void weights_deinit(struct weights *w);

/* dst [n_embd] = embedding of a token, scaled as the model wants it. tok is in range. */
void weights_embed(float *dst, const struct weights *w, const struct config *c, int32_t tok);

#endif
