/* config.h: what a model is, as plain numbers: GGUF keys checked and turned into one struct, with
 * all differences between architectures in one table (config.c). */
#ifndef SAC_MODEL_CONFIG_H
#define SAC_MODEL_CONFIG_H

#include "model/gguf.h"

#define CONFIG_LAYERS_MAX  1024u
#define CONFIG_ROT_MAX     512u
#define CONFIG_EXPERTS_MAX 1024u

#define CONFIG_SWA_ALL UINT32_MAX /* as swa_pattern: no layer is global */

enum config_glu { CONFIG_GLU_SILU, CONFIG_GLU_GELU };
enum config_experts { CONFIG_EXPERTS_NONE, CONFIG_EXPERTS_MAY, CONFIG_EXPERTS_MUST };

/* How an architecture differs from plain Llama; one row per architecture in config.c. */
struct arch {
    const char *name;
    bool rope_interleaved; /* pairs (2i, 2i+1); else NEOX halves */
    bool qkv_bias;         /* q, k and v must have biases; elsewhere they may */
    bool qk_norm;          /* RMS norm of each q and k head before RoPE */
    bool post_norm;        /* norms after attention and FFN, before the residual is added */
    bool embed_scale;      /* embeddings times sqrt(n_embd) */
    bool turns_strip;      /* of a `llama` vocabulary: see tokenizer_rules */
    bool fused_qkv;        /* attn_qkv.weight has the rows of q, then of k, then of v */
    bool fused_gate_up;    /* ffn_up.weight has the rows of gate, then of up */
    enum config_glu glu;
    enum config_experts experts; /* whether files may, or must, have expert_count */
    bool expert_norm;            /* the weights of a row's experts are divided by their sum */
    bool shared_expert;          /* an expert that all rows use, multiplied by a gate */
    /* Every n-th layer is global, the others have a window; 0: all are global */
    uint32_t swa_pattern;
    /* RoPE base of the window layers, unscaled; 0: the same as of the others */
    float rope_base_local;
    /* The size with this many layers divides scores by sqrt(n_embd / n_head), other sizes by
     * sqrt(head_dim); 0: none does */
    uint32_t n_layer_wide;
    /* Defaults where the file has no key. The window is only that of models trained for window_ctx
     * (0: of all). */
    uint32_t window, window_ctx;
    float attn_softcap, final_softcap;
};

enum rope_kind { ROPE_PLAIN, ROPE_LINEAR, ROPE_YARN, ROPE_LONG };

struct rope_config {
    enum rope_kind kind;
    uint32_t n_rot; /* rotated channels of a head, even */
    float base;
    float factor;               /* context factor of linear, YaRN and LongRoPE; 1: none */
    uint32_t orig_ctx;          /* context of training before scaling */
    float attn_factor;          /* factor of cos and sin */
    float beta_fast, beta_slow; /* YaRN: rotations at orig_ctx where blending ends and starts */
};

/* A mixture of experts in place of the feed-forward network. */
struct expert_config {
    uint32_t n, n_used; /* experts of a layer, and those that a row uses; 0: none */
    uint32_t n_ff;      /* width of an expert */
    bool norm;          /* of the arch, or the file's own */
    float scale;        /* factor of the sum of a row's experts */
};

struct config {
    const struct arch *arch;
    uint32_t n_layer, n_embd, n_head, n_kv_head, head_dim, n_vocab, n_ctx_train;
    /* Width of the network that all rows use: beside experts the shared expert's, or 0 */
    uint32_t n_ff;
    struct expert_config experts;
    float norm_eps;
    float attn_scale;                  /* factor of q.k */
    float attn_softcap, final_softcap; /* 0: none */
    uint32_t window;                   /* of local layers; 0: none */
    uint32_t swa_pattern;              /* of the arch, or the file's own */
    float embed_scale;                 /* 1: none */
    struct rope_config rope;
    float rope_base_local; /* of the arch, or the file's own */
};

/* Overrides requested by the caller of sac_model_load. */
struct config_override {
    sac_rope_scaling rope;
    float rope_scale, rope_freq_base;
    uint32_t yarn_orig_ctx;
};

/* Reads and checks every key. An unknown architecture, or a key that is missing or out of range, is
 * an error that names it. */
sac_status config_read(struct config *out, const struct gguf *g,
                       const struct config_override *override, sac_error *err);

static inline bool config_layer_is_local(const struct config *c, uint32_t layer)
{
    return c->window && c->swa_pattern && layer % c->swa_pattern != c->swa_pattern - 1;
}

/* Widths of a row: of its queries, of its keys (and of its values), of all three. */
static inline size_t config_q_width(const struct config *c)
{
    return (size_t)c->n_head * c->head_dim;
}

static inline size_t config_kv_width(const struct config *c)
{
    return (size_t)c->n_kv_head * c->head_dim;
}

static inline size_t config_qkv_width(const struct config *c)
{
    return config_q_width(c) + 2 * config_kv_width(c);
}

/* ---- RoPE tables ---- */

struct rope_table {
    uint32_t n_rot;
    float scale;                         /* factor of cos and sin */
    double inv_freq[CONFIG_ROT_MAX / 2]; /* [n_rot/2] radians per position */
};

/* `factors` [n_rot/2] divide the frequencies (Llama-3's rope_freqs, LongRoPE's), or NULL. */
void rope_table_init(struct rope_table *out, const struct rope_config *c, const float *factors);
/* cos, sin [n_row, n_rot/2] for positions `pos` [n_row]. */
void rope_table_fill(const struct rope_table *t, float *cos, float *sin, const uint32_t *pos,
                     uint32_t n_row);

#endif
