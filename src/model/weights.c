/* weights.c: assigns tensors to fields. One walk over the model's slots (`walk_model`) serves both
 * passes (check and measure, then pack), so the size of the block and its layout cannot disagree.
 *
 * A slot is a vector (converted to f32) or a matrix (repacked). A tensor of the file that belongs
 * to no slot is an error: silently ignoring a bias would give wrong answers. */
#include "model/weights.h"

#include "base/mem.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* bytes of the file that are in memory twice while they are packed */
#define PIECE_BYTES ((size_t)16 << 20)

enum need { OPTIONAL, REQUIRED };
enum pass { PASS_CHECK, PASS_PACK };

struct loader {
    const struct gguf *g;
    const struct config *c;
    struct workers *pool;
    const sac_model_params *params;
    sac_error *err;
    enum pass pass;
    struct arena arena;
    uint64_t bytes_done, bytes_all; /* bytes of the file, for the progress */
    bool *used;                     /* [n_tensor] whether a slot has taken it */
    char name[64];
};

static void mark_used(struct loader *l, const struct gguf_tensor *t)
{
    l->used[t - gguf_tensor_at(l->g, 0)] = true;
}

static sac_status find(struct loader *l, const struct gguf_tensor **out, enum need need)
{
    *out = gguf_tensor_find(l->g, l->name);
    if (!*out && need == REQUIRED)
        return error_set(l->err, SAC_ERR_FORMAT, "%s: tensor %s is missing", gguf_path(l->g),
                         l->name);
    if (*out) mark_used(l, *out);
    return SAC_OK;
}

/* A tensor's shape, slowest dimension first; a single matrix's without the first. */
static void print_shape(char buf[72], uint64_t n, uint64_t n_out, uint64_t n_in)
{
    const unsigned long long a = n, b = n_out, c = n_in;
    if (n == 1)
        snprintf(buf, 72, "[%llu, %llu]", b, c);
    else
        snprintf(buf, 72, "[%llu, %llu, %llu]", a, b, c);
}

static sac_status check_shape(struct loader *l, const struct gguf_tensor *t, uint64_t n,
                              uint64_t n_out, uint64_t n_in)
{
    char is[72], asked[72];
    if (t->ne[0] == n_in && t->ne[1] == n_out && t->ne[2] == n && t->ne[3] == 1) return SAC_OK;
    print_shape(is, t->ne[2] * t->ne[3], t->ne[1], t->ne[0]);
    print_shape(asked, n, n_out, n_in);
    return error_set(l->err, SAC_ERR_FORMAT, "%s: tensor %s is %s, the model's keys ask for %s",
                     gguf_path(l->g), l->name, is, asked);
}

static sac_status report(struct loader *l, size_t bytes)
{
    l->bytes_done += bytes;
    const double share = l->bytes_all ? (double)l->bytes_done / (double)l->bytes_all : 1.0;
    if (l->params->progress && l->params->progress(l->params->progress_user, share))
        return error_set(l->err, SAC_ERR_CANCELLED, "%s: loading was cancelled", gguf_path(l->g));
    return SAC_OK;
}

static sac_status take_vector(struct loader *l, const float **out, enum need need, uint32_t n)
{
    const struct gguf_tensor *t;
    *out = NULL;
    TRY(find(l, &t, need));
    if (!t) return SAC_OK;
    TRY(check_shape(l, t, 1, 1, n));
    float *v = arena_take(&l->arena, n, sizeof *v);
    *out = v;
    if (l->pass != PASS_PACK) return SAC_OK;
    quant_dequant_row(v, t->type, t->data, n);
    return report(l, t->bytes);
}

/* Bytes of a group's rows in file order. */
static size_t file_group_bytes(const struct weight *w)
{
    return WEIGHT_GROUP * quant_row_bytes(w->type, w->n_in);
}

static uint32_t piece_groups(const struct weight *w)
{
    return (uint32_t)(PIECE_BYTES / file_group_bytes(w)) + 1;
}

/* Packs in pieces and releases the file's pages after each: an embedding can be most of a file, and
 * need not be in memory twice. */
static void pack_matrix(const struct loader *l, const struct weight *w, const struct gguf_tensor *t,
                        const uint8_t *from)
{
    const size_t from_bytes = file_group_bytes(w);
    const uint32_t n_piece = piece_groups(w);
    for (uint32_t first = 0; first < w->n_group; first += n_piece) {
        const struct weight piece = weight_piece(w, first, n_piece);
        weight_pack(l->pool, &piece, from + first * from_bytes);
        gguf_tensor_release(l->g, t);
    }
}

/* A tensor of `n` matrices [n_out, n_in], one after another. */
struct stack {
    uint32_t n, n_out, n_in;
};

/* Rows [first, first + n_row) of a stack. */
static sac_status take_rows(struct loader *l, struct weight *out, uint32_t first, uint32_t n_row,
                            const struct stack *of)
{
    const struct gguf_tensor *t;
    TRY(find(l, &t, REQUIRED));
    TRY(check_shape(l, t, of->n, of->n_out, of->n_in));
    weight_init(out, (enum quant_type)t->type, n_row, of->n_in);
    out->data = arena_take(&l->arena, 1, weight_bytes(out));
    if (l->pass != PASS_PACK) return SAC_OK;
    const size_t row_bytes = quant_row_bytes(out->type, of->n_in);
    pack_matrix(l, out, t, t->data + first * row_bytes);
    return report(l, n_row * row_bytes);
}

static sac_status take_matrix(struct loader *l, struct weight *out, uint32_t n_out, uint32_t n_in)
{
    return take_rows(l, out, 0, n_out, &(struct stack){1, n_out, n_in});
}

static void set_name(struct loader *l, uint32_t layer, const char *what)
{
    snprintf(l->name, sizeof l->name, "blk.%u.%s", layer, what);
}

static sac_status layer_vector(struct loader *l, uint32_t layer, const char *what,
                               const float **out, enum need need, uint32_t n)
{
    set_name(l, layer, what);
    return take_vector(l, out, need, n);
}

static sac_status layer_matrix(struct loader *l, uint32_t layer, const char *what,
                               struct weight *out, uint32_t n_out, uint32_t n_in)
{
    set_name(l, layer, what);
    return take_matrix(l, out, n_out, n_in);
}

static sac_status layer_experts(struct loader *l, uint32_t layer, const char *what,
                                struct weight *out, uint32_t n_out, uint32_t n_in)
{
    set_name(l, layer, what);
    const struct stack of = {l->c->experts.n, n_out, n_in};
    return take_rows(l, out, 0, of.n * n_out, &of);
}

static sac_status walk_experts(struct loader *l, uint32_t i, struct layer_weights *w)
{
    const struct config *c = l->c;
    const struct expert_config *x = &c->experts;
    struct expert_weights *to = &w->expert;
    TRY(layer_matrix(l, i, "ffn_gate_inp.weight", &to->router, x->n, c->n_embd));
    TRY(layer_experts(l, i, "ffn_gate_exps.weight", &to->gate, x->n_ff, c->n_embd));
    TRY(layer_experts(l, i, "ffn_up_exps.weight", &to->up, x->n_ff, c->n_embd));
    TRY(layer_experts(l, i, "ffn_down_exps.weight", &to->down, c->n_embd, x->n_ff));
    if (!c->arch->shared_expert) return SAC_OK;
    TRY(layer_matrix(l, i, "ffn_gate_inp_shexp.weight", &to->shared, 1, c->n_embd));
    TRY(layer_matrix(l, i, "ffn_gate_shexp.weight", &w->gate, c->n_ff, c->n_embd));
    TRY(layer_matrix(l, i, "ffn_up_shexp.weight", &w->up, c->n_ff, c->n_embd));
    return layer_matrix(l, i, "ffn_down_shexp.weight", &w->down, c->n_embd, c->n_ff);
}

static sac_status walk_qkv(struct loader *l, uint32_t i, struct layer_weights *w)
{
    const struct config *c = l->c;
    const uint32_t n_q = c->n_head * c->head_dim, n_kv = c->n_kv_head * c->head_dim;
    const enum need bias = c->arch->qkv_bias ? REQUIRED : OPTIONAL;
    if (c->arch->fused_qkv) {
        const struct stack of = {1, n_q + 2 * n_kv, c->n_embd};
        set_name(l, i, "attn_qkv.weight");
        TRY(take_rows(l, &w->wq, 0, n_q, &of));
        TRY(take_rows(l, &w->wk, n_q, n_kv, &of));
        return take_rows(l, &w->wv, n_q + n_kv, n_kv, &of);
    }
    TRY(layer_matrix(l, i, "attn_q.weight", &w->wq, n_q, c->n_embd));
    TRY(layer_matrix(l, i, "attn_k.weight", &w->wk, n_kv, c->n_embd));
    TRY(layer_matrix(l, i, "attn_v.weight", &w->wv, n_kv, c->n_embd));
    TRY(layer_vector(l, i, "attn_q.bias", &w->bq, bias, n_q));
    TRY(layer_vector(l, i, "attn_k.bias", &w->bk, bias, n_kv));
    return layer_vector(l, i, "attn_v.bias", &w->bv, bias, n_kv);
}

static sac_status walk_gate_up(struct loader *l, uint32_t i, struct layer_weights *w)
{
    const struct config *c = l->c;
    if (c->arch->fused_gate_up) {
        const struct stack of = {1, 2 * c->n_ff, c->n_embd};
        set_name(l, i, "ffn_up.weight");
        TRY(take_rows(l, &w->gate, 0, c->n_ff, &of));
        return take_rows(l, &w->up, c->n_ff, c->n_ff, &of);
    }
    TRY(layer_matrix(l, i, "ffn_gate.weight", &w->gate, c->n_ff, c->n_embd));
    return layer_matrix(l, i, "ffn_up.weight", &w->up, c->n_ff, c->n_embd);
}

static sac_status walk_dense(struct loader *l, uint32_t i, struct layer_weights *w)
{
    const struct config *c = l->c;
    TRY(walk_gate_up(l, i, w));
    return layer_matrix(l, i, "ffn_down.weight", &w->down, c->n_embd, c->n_ff);
}

static sac_status walk_layer(struct loader *l, uint32_t i, struct layer_weights *w)
{
    const struct config *c = l->c;
    const struct arch *a = c->arch;
    TRY(layer_vector(l, i, "attn_norm.weight", &w->attn_norm, REQUIRED, c->n_embd));
    TRY(walk_qkv(l, i, w));
    if (a->qk_norm) {
        TRY(layer_vector(l, i, "attn_q_norm.weight", &w->q_norm, REQUIRED, c->head_dim));
        TRY(layer_vector(l, i, "attn_k_norm.weight", &w->k_norm, REQUIRED, c->head_dim));
    }
    TRY(layer_matrix(l, i, "attn_output.weight", &w->wo, c->n_embd, c->n_head * c->head_dim));
    TRY(layer_vector(l, i, "attn_output.bias", &w->bo, OPTIONAL, c->n_embd));
    TRY(layer_vector(l, i, "ffn_norm.weight", &w->ffn_norm, REQUIRED, c->n_embd));
    TRY(c->experts.n ? walk_experts(l, i, w) : walk_dense(l, i, w));
    if (a->post_norm) {
        TRY(layer_vector(l, i, "post_attention_norm.weight", &w->post_attn_norm, REQUIRED,
                         c->n_embd));
        TRY(layer_vector(l, i, "post_ffw_norm.weight", &w->post_ffn_norm, REQUIRED, c->n_embd));
    }
    return SAC_OK;
}

static sac_status take_rope_factors(struct loader *l, struct weights *w)
{
    const uint32_t n = l->c->rope.n_rot / 2;
    const bool is_long = l->c->rope.kind == ROPE_LONG;
    const char *const short_name = is_long ? "rope_factors_short.weight" : "rope_freqs.weight";
    snprintf(l->name, sizeof l->name, "%s", short_name);
    TRY(take_vector(l, &w->rope_factors, is_long ? REQUIRED : OPTIONAL, n));
    if (is_long) {
        snprintf(l->name, sizeof l->name, "rope_factors_long.weight");
        TRY(take_vector(l, &w->rope_factors_long, REQUIRED, n));
    }
    return SAC_OK;
}

/* The screen of the output matrix, packed in pieces as well. */
static sac_status take_screen(struct loader *l, struct weights *w)
{
    struct screen *s = &w->screen;
    if (!l->params->screen) return SAC_OK;
    screen_plan(s, &w->output, &l->arena);
    if (l->pass != PASS_PACK || s->w.n_group == 0) return SAC_OK;
    const struct gguf_tensor *t = gguf_tensor_find(l->g, l->name);
    const uint32_t n_piece = piece_groups(&w->output);
    screen_find_large(s, w->output_norm);
    for (uint32_t first = 0; first < s->w.n_group; first += n_piece) {
        const uint8_t *src = t->data + first * file_group_bytes(&w->output);
        TRY(screen_pack(s, l->pool, first, n_piece, w->output.type, src, l->err));
        gguf_tensor_release(l->g, t);
    }
    return SAC_OK;
}

static sac_status walk_model(struct loader *l, struct weights *w)
{
    const struct config *c = l->c;
    for (uint32_t i = 0; i < c->n_layer; i++) {
        w->layer[i].begin = l->arena.used;
        TRY(walk_layer(l, i, &w->layer[i]));
        w->layer[i].end = l->arena.used;
    }
    snprintf(l->name, sizeof l->name, "output_norm.weight");
    TRY(take_vector(l, &w->output_norm, REQUIRED, c->n_embd));
    TRY(take_rope_factors(l, w));
    const bool tied = gguf_tensor_find(l->g, "output.weight") == NULL;
    mark_used(l, w->embed);
    snprintf(l->name, sizeof l->name, tied ? "token_embd.weight" : "output.weight");
    TRY(take_matrix(l, &w->output, c->n_vocab, c->n_embd));
    return take_screen(l, w);
}

static sac_status check_divisors(struct loader *l, const float *f, const char *name)
{
    for (uint32_t i = 0; f && i < l->c->rope.n_rot / 2; i++)
        if (!(f[i] > 1e-6f && f[i] < 1e6f))
            return error_set(l->err, SAC_ERR_FORMAT, "%s: tensor %s holds %g at %u",
                             gguf_path(l->g), name, (double)f[i], i);
    return SAC_OK;
}

static sac_status check_all_used(const struct loader *l)
{
    for (size_t i = 0; i < gguf_n_tensor(l->g); i++)
        if (!l->used[i])
            return error_set(l->err, SAC_ERR_UNSUPPORTED,
                             "%s: tensor %s has no place in architecture %s", gguf_path(l->g),
                             gguf_tensor_at(l->g, i)->name, l->c->arch->name);
    return SAC_OK;
}

sac_status weights_load(struct weights *out, const struct gguf *g, const struct config *c,
                        struct workers *pool, const sac_model_params *params, sac_error *err)
{
    struct weights w = {.embed = gguf_tensor_find(g, "token_embd.weight")};
    struct loader l = {.g = g, .c = c, .pool = pool, .params = params, .err = err};
    sac_status status = SAC_OK;
    for (size_t i = 0; i < gguf_n_tensor(g); i++) l.bytes_all += gguf_tensor_at(g, i)->bytes;
    w.layer = mem_calloc(c->n_layer, sizeof *w.layer);
    l.used = mem_calloc(gguf_n_tensor(g), sizeof *l.used);
    if (!w.layer || !l.used) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %u layers", c->n_layer);
        goto fail;
    }

    l.pass = PASS_CHECK;
    TRY_FAIL(walk_model(&l, &w));
    TRY_FAIL(check_all_used(&l));
    w.block_bytes = l.arena.used;
    w.block = mem_map(w.block_bytes);
    if (!w.block) {
        status = error_set(err, SAC_ERR_MEMORY, "%s: no memory for %zu MiB of weights",
                           gguf_path(g), w.block_bytes >> 20);
        goto fail;
    }
    l.pass = PASS_PACK;
    l.arena = (struct arena){.base = w.block, .capacity = w.block_bytes};
    TRY_FAIL(walk_model(&l, &w));
    TRY_FAIL(check_divisors(&l, w.rope_factors, "rope factors"));
    TRY_FAIL(check_divisors(&l, w.rope_factors_long, "rope_factors_long.weight"));
    mem_free(l.used);
    *out = w;
    return SAC_OK;
fail:
    mem_free(l.used);
    weights_deinit(&w);
    return status;
}

void weights_deinit(struct weights *w)
{
    mem_unmap(w->block, w->block_bytes);
    mem_free(w->layer);
    *w = (struct weights){0};
}

void weights_embed(float *dst, const struct weights *w, const struct config *c, int32_t tok)
{
    assert(tok >= 0 && (uint32_t)tok < c->n_vocab);
    const size_t row = quant_row_bytes(w->embed->type, c->n_embd);
    quant_dequant_row(dst, w->embed->type, w->embed->data + (size_t)tok * row, c->n_embd);
    if (c->embed_scale != 1.0f)
        for (uint32_t i = 0; i < c->n_embd; i++) dst[i] *= c->embed_scale;
}
