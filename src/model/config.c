/* config.c: GGUF keys to `struct config`. The table `archs` is the one place that knows how the
 * architectures differ; nothing else in the tree asks for a model's name.
 *
 * Every number of the file has a range: products of these numbers become sizes of memory, and the
 * file is hostile. Formulas of the RoPE variants: linear (Chen et al. 2023), YaRN (Peng et al.
 * 2023, section 3.4, with the NTK-by-parts ramp between beta_fast and beta_slow rotations),
 * LongRoPE (Ding et al. 2024: a factor per frequency), Llama 3 (a factor per frequency, in the
 * file). */
#include "model/config.h"

#include "ops/page.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FF_MAX (1u << 18) /* width of a feed-forward network */

static const struct arch archs[] = {
    {.name = "llama",
     .rope_interleaved = true,
     .experts = CONFIG_EXPERTS_MAY, /* Mixtral */
     .expert_norm = true},
    {.name = "qwen2", .qkv_bias = true},
    {.name = "qwen2moe", .qkv_bias = true, .experts = CONFIG_EXPERTS_MUST, .shared_expert = true},
    {.name = "qwen3", .qk_norm = true},
    {.name = "qwen3moe", .qk_norm = true, .experts = CONFIG_EXPERTS_MUST, .expert_norm = true},
    {.name = "gemma2",
     .post_norm = true,
     .embed_scale = true,
     .glu = CONFIG_GLU_GELU,
     .swa_pattern = 2,
     .n_layer_wide = 46, /* 27B */
     .window = 4096,
     .attn_softcap = 50.0f,
     .final_softcap = 30.0f},
    {.name = "gemma3",
     .qk_norm = true,
     .post_norm = true,
     .embed_scale = true,
     .glu = CONFIG_GLU_GELU,
     .swa_pattern = 6,
     .rope_base_local = 10000.0f,
     .n_layer_wide = 62}, /* 27B */
    {.name = "phi3",
     .turns_strip = true,
     .fused_qkv = true,
     .fused_gate_up = true,
     .swa_pattern = CONFIG_SWA_ALL,
     .window = 2047, /* files from before 2024-07 do not state it */
     .window_ctx = 4096},
    {.name = "internlm2", .rope_interleaved = true},
    {.name = "glm4", .rope_interleaved = true, .post_norm = true, .fused_gate_up = true},
};

/* Reads keys `<arch>.<name>`; `status` keeps the first error. */
struct reader {
    const struct gguf *g;
    const char *arch;
    sac_error *err;
    sac_status status;
    char key[128];
};

static bool has(struct reader *r, const char *name)
{
    snprintf(r->key, sizeof r->key, "%s.%s", r->arch, name);
    return gguf_key_find(r->g, r->key) != NULL;
}

static void bad_value(struct reader *r, double value, double min, double max)
{
    r->status = error_set(r->err, SAC_ERR_FORMAT, "%s: key %s is %.9g, must be %.9g to %.9g",
                          gguf_path(r->g), r->key, value, min, max);
}

/* A scalar, or an array of n_layer equal values (some files give heads per layer). */
static uint32_t read_u32(struct reader *r, const char *name, uint32_t min, uint32_t max)
{
    uint32_t v = 0;
    if (r->status != SAC_OK) return min;
    has(r, name);
    const struct gguf_key *k = gguf_key_find(r->g, r->key);
    if (k && k->is_array && k->n > 0) {
        uint32_t other = 0;
        r->status = gguf_key_u32(k, 0, &v, r->err);
        for (uint64_t i = 1; i < k->n && r->status == SAC_OK; i++) {
            r->status = gguf_key_u32(k, i, &other, r->err);
            if (r->status == SAC_OK && other != v)
                r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                                      "%s: key %s differs between layers (%u and %u)",
                                      gguf_path(r->g), r->key, v, other);
        }
    } else {
        r->status = gguf_get_u32(r->g, r->key, &v, r->err);
    }
    if (r->status == SAC_OK && (v < min || v > max)) bad_value(r, v, min, max);
    return r->status == SAC_OK ? v : min;
}

static uint32_t read_u32_or(struct reader *r, const char *name, uint32_t absent, uint32_t min,
                            uint32_t max)
{
    return has(r, name) ? read_u32(r, name, min, max) : absent;
}

static float read_f32(struct reader *r, const char *name, float min, float max)
{
    float v = 0;
    if (r->status != SAC_OK) return min;
    has(r, name);
    r->status = gguf_get_f32(r->g, r->key, &v, r->err);
    if (r->status == SAC_OK && !(v >= min && v <= max))
        bad_value(r, (double)v, (double)min, (double)max);
    return r->status == SAC_OK ? v : min;
}

static float read_f32_or(struct reader *r, const char *name, float absent, float min, float max)
{
    return has(r, name) ? read_f32(r, name, min, max) : absent;
}

static bool read_bool_or(struct reader *r, const char *name, bool absent)
{
    bool v = absent;
    if (r->status == SAC_OK && has(r, name)) r->status = gguf_get_bool(r->g, r->key, &v, r->err);
    return v;
}

static void bad_width(struct reader *r, uint32_t n)
{
    r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                          "%s: key %s gives a width of %u, which must be a multiple of 32",
                          gguf_path(r->g), r->key, n);
}

static uint32_t read_width(struct reader *r, const char *name, uint32_t max)
{
    const uint32_t n = read_u32(r, name, 32, max);
    if (r->status == SAC_OK && n % 32 != 0) bad_width(r, n);
    return n;
}

static const struct arch *find_arch(struct gguf_str name)
{
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (strlen(archs[i].name) == name.n && memcmp(archs[i].name, name.s, name.n) == 0)
            return &archs[i];
    return NULL;
}

static sac_status unknown_arch(const struct gguf *g, struct gguf_str name, sac_error *err)
{
    char known[128] = "";
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%s", i ? ", " : "", archs[i].name);
    }
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "%s: general.architecture is '%.*s'; this build runs %s", gguf_path(g),
                     (int)(name.n > 64 ? 64 : name.n), name.s, known);
}

static void read_rope_kind(struct reader *r, struct rope_config *rope)
{
    static const struct {
        const char *name;
        enum rope_kind kind;
    } kinds[] = {{"none", ROPE_PLAIN},
                 {"linear", ROPE_LINEAR},
                 {"yarn", ROPE_YARN},
                 {"longrope", ROPE_LONG}};
    struct gguf_str name;
    if (r->status != SAC_OK) return;
    if (!has(r, "rope.scaling.type")) {
        /* Files of Phi-3 have the factors and do not name the scaling. */
        if (gguf_tensor_find(r->g, "rope_factors_long.weight")) rope->kind = ROPE_LONG;
        return;
    }
    r->status = gguf_get_str(r->g, r->key, &name, r->err);
    if (r->status != SAC_OK) return;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strlen(kinds[i].name) == name.n && memcmp(kinds[i].name, name.s, name.n) == 0) {
            rope->kind = kinds[i].kind;
            return;
        }
    r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                          "%s: key %s is '%.*s'; known are none, linear, yarn, longrope",
                          gguf_path(r->g), r->key, (int)(name.n > 64 ? 64 : name.n), name.s);
}

static void read_rope(struct reader *r, struct config *c)
{
    struct rope_config *rope = &c->rope;
    rope->n_rot = read_u32_or(r, "rope.dimension_count", c->head_dim, 2, c->head_dim);
    if (r->status == SAC_OK && rope->n_rot % 2 != 0)
        r->status = error_set(r->err, SAC_ERR_FORMAT, "%s: key %s is %u, must be even",
                              gguf_path(r->g), r->key, rope->n_rot);
    rope->base = read_f32_or(r, "rope.freq_base", 10000.0f, 1.0f, 1e12f);
    rope->factor = read_f32_or(r, "rope.scaling.factor", 1.0f, 1e-3f, 1e4f);
    /* Files from before 2023-10 name linear scaling in this way. */
    const float old_linear = read_f32_or(r, "rope.scale_linear", 1.0f, 1e-3f, 1e4f);
    if (rope->factor == 1.0f) rope->factor = old_linear;
    rope->kind = rope->factor != 1.0f ? ROPE_LINEAR : ROPE_PLAIN;
    read_rope_kind(r, rope);
    rope->orig_ctx =
        read_u32_or(r, "rope.scaling.original_context_length", c->n_ctx_train, 1, 1u << 30);
    rope->attn_factor = read_f32_or(r, "rope.scaling.attn_factor", 1.0f, 1e-3f, 1e3f);
    rope->beta_fast = read_f32_or(r, "rope.scaling.yarn_beta_fast", 32.0f, 1e-3f, 1e6f);
    rope->beta_slow = read_f32_or(r, "rope.scaling.yarn_beta_slow", 1.0f, 1e-3f, 1e6f);
    c->rope_base_local =
        read_f32_or(r, "rope.freq_base_swa", c->arch->rope_base_local, 1.0f, 1e12f);
}

static sac_status check_override(const struct config_override *o, sac_error *err)
{
    if ((unsigned)o->rope > SAC_ROPE_YARN)
        return error_set(err, SAC_ERR_ARG, "unknown scaling %d of positions", (int)o->rope);
    if (o->rope_freq_base != 0 && !(o->rope_freq_base >= 1.0f && o->rope_freq_base <= 1e12f))
        return error_set(err, SAC_ERR_ARG, "rope frequency base %g is out of range 1 to 1e12",
                         (double)o->rope_freq_base);
    if (o->rope_scale != 0 && !(o->rope_scale >= 1e-3f && o->rope_scale <= 1e4f))
        return error_set(err, SAC_ERR_ARG, "rope scale %g is out of range 0.001 to 10000",
                         (double)o->rope_scale);
    if (o->rope_scale != 0 && o->rope == SAC_ROPE_NONE)
        return error_set(err, SAC_ERR_ARG, "a rope scale of %g requires linear or yarn, not none",
                         (double)o->rope_scale);
    return SAC_OK;
}

static sac_status apply_override(struct config *c, const struct config_override *o, sac_error *err)
{
    struct rope_config *rope = &c->rope;
    TRY(check_override(o, err));
    if (o->rope_freq_base != 0) rope->base = o->rope_freq_base;
    if (o->rope == SAC_ROPE_NONE) {
        rope->kind = ROPE_PLAIN;
        rope->factor = 1.0f;
    } else if (o->rope != SAC_ROPE_MODEL) {
        rope->kind = o->rope == SAC_ROPE_YARN ? ROPE_YARN : ROPE_LINEAR;
    }
    if (o->rope_scale != 0) rope->factor = o->rope_scale;
    if ((o->rope == SAC_ROPE_LINEAR || o->rope == SAC_ROPE_YARN) && o->rope_scale == 0 &&
        rope->factor == 1.0f)
        return error_set(err, SAC_ERR_ARG,
                         "scaling positions by %s needs a rope scale: the file has none",
                         o->rope == SAC_ROPE_YARN ? "yarn" : "linear");
    if (o->rope_scale != 0 && rope->kind == ROPE_PLAIN) rope->kind = ROPE_LINEAR;
    if (o->yarn_orig_ctx) rope->orig_ctx = o->yarn_orig_ctx;
    if (o->rope == SAC_ROPE_LINEAR || o->rope == SAC_ROPE_YARN || o->rope_scale != 0) {
        const double ctx = (double)rope->orig_ctx * (double)rope->factor;
        if (ctx > c->n_ctx_train) c->n_ctx_train = ctx < 1 << 30 ? (uint32_t)ctx : 1u << 30;
    }
    return SAC_OK;
}

static void read_shape(struct reader *r, struct config *c)
{
    c->n_ctx_train = read_u32(r, "context_length", 1, 1u << 30);
    c->n_embd = read_width(r, "embedding_length", 1u << 16);
    c->n_layer = read_u32(r, "block_count", 1, CONFIG_LAYERS_MAX);
    c->n_head = read_u32(r, "attention.head_count", 1, 1024);
    c->n_kv_head = read_u32_or(r, "attention.head_count_kv", c->n_head, 1, 1024);
    if (r->status == SAC_OK && c->n_head % c->n_kv_head != 0)
        r->status = error_set(r->err, SAC_ERR_FORMAT,
                              "%s: %u query heads are no multiple of %u KV heads (key %s)",
                              gguf_path(r->g), c->n_head, c->n_kv_head, r->key);
    c->head_dim = read_u32_or(r, "attention.key_length", c->n_embd / c->n_head, 1, HEAD_DIM_MAX);
    const uint32_t v_dim = read_u32_or(r, "attention.value_length", c->head_dim, 1, HEAD_DIM_MAX);
    if (r->status == SAC_OK && (c->head_dim % 32 != 0 || v_dim != c->head_dim))
        r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                              "%s: head sizes %u (K) and %u (V): they must be equal and a multiple "
                              "of 32",
                              gguf_path(r->g), c->head_dim, v_dim);
}

/* Refuses routers other than a softmax over all experts. */
static void refuse_routers(struct reader *r)
{
    static const char *const names[] = {"expert_group_count", "expert_gating_func",
                                        "leading_dense_block_count"};
    static const uint32_t plain[] = {1, 1, 0}; /* one group, softmax, experts in all layers */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const uint32_t v = read_u32_or(r, names[i], plain[i], 0, UINT32_MAX);
        if (r->status == SAC_OK && v > 0 && v != plain[i])
            r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                                  "%s: key %s is %u: only a softmax over all experts, in all "
                                  "layers, is built in",
                                  gguf_path(r->g), r->key, v);
    }
}

/* If a file has no width for an expert, the dense width is the sum of the widths of a row's experts
 * or, in Mixtral's files, the width of one. */
static void read_expert_width(struct reader *r, struct config *c)
{
    struct expert_config *x = &c->experts;
    const bool must = c->arch->experts == CONFIG_EXPERTS_MUST;
    if (has(r, "expert_feed_forward_length")) {
        x->n_ff = read_width(r, "expert_feed_forward_length", FF_MAX);
        return;
    }
    const uint32_t n_ff = read_width(r, "feed_forward_length", FF_MAX);
    x->n_ff = must ? n_ff / x->n_used : n_ff;
    if (r->status == SAC_OK && (x->n_ff == 0 || x->n_ff % 32 != 0)) bad_width(r, x->n_ff);
}

static void read_experts(struct reader *r, struct config *c)
{
    struct expert_config *x = &c->experts;
    const bool must = c->arch->experts == CONFIG_EXPERTS_MUST;
    const uint32_t most = CONFIG_EXPERTS_MAX;
    x->n = must ? read_u32(r, "expert_count", 1, most) : read_u32_or(r, "expert_count", 0, 0, most);
    if (r->status == SAC_OK && x->n > 0 && c->arch->experts == CONFIG_EXPERTS_NONE)
        r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                              "%s: key %s is %u: mixtures of experts are not built in for %s",
                              gguf_path(r->g), r->key, x->n, c->arch->name);
    if (r->status != SAC_OK || x->n == 0) {
        c->n_ff = read_width(r, "feed_forward_length", FF_MAX);
        return;
    }
    x->n_used = read_u32(r, "expert_used_count", 1, x->n);
    read_expert_width(r, c);
    if (c->arch->shared_expert)
        c->n_ff = read_width(r,
                             has(r, "expert_shared_feed_forward_length")
                                 ? "expert_shared_feed_forward_length"
                                 : "feed_forward_length",
                             FF_MAX);
    x->norm = read_bool_or(r, "expert_weights_norm", c->arch->expert_norm);
    x->scale = read_f32_or(r, "expert_weights_scale", 1.0f, 0.0f, 1e6f);
    if (x->scale == 0) x->scale = 1; /* some files write 0 for no scale */
    refuse_routers(r);
}

/* Reads the size of the sliding window, and which layers have one. */
static void read_window(struct reader *r, struct config *c)
{
    const struct arch *a = c->arch;
    const uint32_t absent = a->window_ctx && a->window_ctx != c->n_ctx_train ? 0 : a->window;
    const uint32_t w = read_u32_or(r, "attention.sliding_window", absent, 0, 1u << 30);
    if (a->swa_pattern) {
        c->window = w;
        c->swa_pattern = has(r, "attention.sliding_window_pattern")
                             ? read_u32(r, "attention.sliding_window_pattern", 1, 1024)
                             : a->swa_pattern;
        return;
    }
    /* Mistral 7B v0.1, whose files say `llama`: every layer has a window, which the row of `archs`
     * does not know. */
    if (r->status == SAC_OK && w != 0 && w < c->n_ctx_train)
        r->status = error_set(r->err, SAC_ERR_UNSUPPORTED,
                              "%s: key %s is %u: windows are not built in for %s", gguf_path(r->g),
                              r->key, w, a->name);
}

static void read_attention(struct reader *r, struct config *c)
{
    const struct arch *a = c->arch;
    c->norm_eps = read_f32(r, "attention.layer_norm_rms_epsilon", 0.0f, 1.0f);
    c->attn_softcap = read_f32_or(r, "attn_logit_softcapping", a->attn_softcap, 0.0f, 1e6f);
    c->final_softcap = read_f32_or(r, "final_logit_softcapping", a->final_softcap, 0.0f, 1e6f);
    read_window(r, c);
    const bool is_wide = a->n_layer_wide && c->n_layer == a->n_layer_wide;
    const uint32_t scale_dim = is_wide ? c->n_embd / c->n_head : c->head_dim;
    c->attn_scale = 1.0f / sqrtf((float)(scale_dim ? scale_dim : 1));
    c->embed_scale = a->embed_scale ? sqrtf((float)c->n_embd) : 1.0f;
}

sac_status config_read(struct config *out, const struct gguf *g,
                       const struct config_override *override, sac_error *err)
{
    struct gguf_str name;
    TRY(gguf_get_str(g, "general.architecture", &name, err));
    const struct arch *arch = find_arch(name);
    if (!arch) return unknown_arch(g, name, err);
    struct config c = {.arch = arch};
    struct reader r = {.g = g, .arch = arch->name, .err = err};
    read_shape(&r, &c);
    if (r.status == SAC_OK) read_experts(&r, &c);
    if (r.status == SAC_OK) read_attention(&r, &c);
    if (r.status == SAC_OK) read_rope(&r, &c);
    TRY(r.status);
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    if (!embd || embd->n_dim != 2 || embd->ne[0] != c.n_embd || embd->ne[1] > 1u << 24)
        return error_set(err, SAC_ERR_FORMAT,
                         "%s: tensor token_embd.weight is missing or not [n_vocab, %u]",
                         gguf_path(g), c.n_embd);
    c.n_vocab = (uint32_t)embd->ne[1];
    TRY(apply_override(&c, override, err));
    /* A window as large as the context hides nothing: such layers are global, and methods may
     * select there. */
    if (c.window >= c.n_ctx_train) c.window = 0;
    *out = c;
    return SAC_OK;
}

/* The dimension pair whose wave makes `rotations` turns over the original context (YaRN, Eq. 17,
 * solved for the index). */
static double yarn_dim(const struct rope_config *c, double rotations)
{
    const double two_pi = 6.283185307179586;
    return c->n_rot * log(c->orig_ctx / (rotations * two_pi)) / (2.0 * log((double)c->base));
}

/* The share of its unscaled frequency that dimension pair i keeps: 1 for fast waves, 0 for slow
 * ones. */
static double yarn_keep(const struct rope_config *c, uint32_t i)
{
    const double low = fmax(floor(yarn_dim(c, (double)c->beta_fast)), 0.0);
    const double high = fmin(ceil(yarn_dim(c, (double)c->beta_slow)), c->n_rot - 1.0);
    const double x = (i - low) / fmax(0.001, high - low);
    return 1.0 - fmin(1.0, fmax(0.0, x));
}

void rope_table_init(struct rope_table *out, const struct rope_config *c, const float *factors)
{
    assert(c->n_rot <= CONFIG_ROT_MAX && c->n_rot % 2 == 0);
    out->n_rot = c->n_rot;
    const bool scaled = c->kind == ROPE_LINEAR || c->kind == ROPE_YARN;
    const double factor = scaled ? (double)c->factor : 1.0;
    double scale = (double)c->attn_factor;
    if (c->kind == ROPE_YARN && factor > 1.0) scale *= 1.0 + 0.1 * log(factor);
    out->scale = (float)scale;
    for (uint32_t i = 0; i < c->n_rot / 2; i++) {
        const double plain =
            pow((double)c->base, -2.0 * i / c->n_rot) / (factors ? (double)factors[i] : 1.0);
        const double keep = c->kind == ROPE_YARN ? yarn_keep(c, i) : 0.0;
        out->inv_freq[i] = plain * keep + plain / factor * (1.0 - keep);
    }
}

void rope_table_fill(const struct rope_table *t, float *cos_out, float *sin_out,
                     const uint32_t *pos, uint32_t n_row)
{
    const uint32_t n = t->n_rot / 2;
    for (uint32_t r = 0; r < n_row; r++)
        for (uint32_t i = 0; i < n; i++) {
            const double angle = pos[r] * t->inv_freq[i];
            cos_out[(size_t)r * n + i] = (float)cos(angle) * t->scale;
            sin_out[(size_t)r * n + i] = (float)sin(angle) * t->scale;
        }
}
