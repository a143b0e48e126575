/* weights_shard.c: see the header. As in weights.c one walk serves both passes, measure and copy.
 */
#include "model/weights_shard.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- Division ---- */

/* The first item of shard i of n among `all`; if they cannot be equal, the first shards have one
 * more. */
static uint32_t shard_begin(uint32_t all, uint32_t i, uint32_t n)
{
    return i * (all / n) + (i < all % n ? i : all % n);
}

/* The first input of attention's output that shard i has. */
static uint32_t head_begin(const struct config *c, uint32_t i, uint32_t n)
{
    return shard_begin(c->n_kv_head, i, n) * (c->n_head / c->n_kv_head) * c->head_dim;
}

static bool cuts_at_blocks(const struct config *c, const struct weight *wo, uint32_t n)
{
    for (uint32_t i = 1; i < n; i++)
        if (head_begin(c, i, n) % weight_cut_unit(wo->type)) return false;
    return true;
}

/* Whether n shards of the heads cut no quantisation block of any layer; otherwise names the first
 * that would be cut. */
static bool heads_fit(const struct weights *w, const struct config *c, uint32_t n,
                      uint32_t *out_layer)
{
    if (n > c->n_kv_head) return false;
    for (uint32_t l = 0; l < c->n_layer; l++)
        if (!cuts_at_blocks(c, &w->layer[l].wo, n)) {
            *out_layer = l;
            return false;
        }
    return true;
}

static sac_status check_heads(const struct weights *w, const struct config *c, uint32_t n,
                              sac_error *err)
{
    uint32_t layer = 0, other, fits = n;
    if (heads_fit(w, c, n, &layer)) return SAC_OK;
    if (n > c->n_kv_head)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "%u GPUs for shares of %u KV heads (-sm row): each has one at least, so "
                         "name %u, or use -sm layer",
                         n, c->n_kv_head, c->n_kv_head);
    char what[48];
    while (!heads_fit(w, c, fits, &other)) fits--;
    snprintf(what, sizeof what, fits > 1 ? "%u GPUs fit" : "blocks of 32 (Q8_0) fit", fits);
    const struct weight *wo = &w->layer[layer].wo;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "blk.%u.attn_output.weight (%s) has blocks of %u inputs, and shares of its "
                     "%u heads for %u GPUs (-sm row) end inside one: %s, or use -sm layer",
                     layer, quant_name(wo->type), weight_cut_unit(wo->type), c->n_head, n, what);
}

/* The largest block size of any layer's `down`. */
static uint32_t ff_unit(const struct weights *w, const struct config *c)
{
    uint32_t unit = 0;
    for (uint32_t l = 0; l < c->n_layer; l++) {
        const uint32_t own = weight_cut_unit(w->layer[l].down.type);
        unit = own > unit ? own : unit;
    }
    return unit;
}

sac_status weights_shard_of(struct weights_shard *out, const struct weights *w,
                            const struct config *c, uint32_t i, uint32_t n, sac_error *err)
{
    const uint32_t unit = ff_unit(w, c), n_block = c->n_ff / unit;
    TRY(check_heads(w, c, n, err));
    if (n_block < n)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "ffn_down.weight has %u blocks of %u inputs, and %u GPUs (-sm row) each "
                         "want one: name fewer, or use -sm layer",
                         n_block, unit, n);
    const uint32_t ff0 = shard_begin(n_block, i, n) * unit;
    const uint32_t ff_end = i + 1 < n ? shard_begin(n_block, i + 1, n) * unit : c->n_ff;
    const uint32_t kv0 = shard_begin(c->n_kv_head, i, n);
    *out = (struct weights_shard){.i = i,
                                  .n = n,
                                  .kv0 = kv0,
                                  .n_kv = shard_begin(c->n_kv_head, i + 1, n) - kv0,
                                  .ff0 = ff0,
                                  .n_ff = ff_end - ff0};
    return SAC_OK;
}

struct config weights_shard_config(const struct config *c, const struct weights_shard *s)
{
    struct config cut = *c;
    cut.n_head = s->n_kv * (c->n_head / c->n_kv_head);
    cut.n_kv_head = s->n_kv;
    cut.n_ff = s->n_ff;
    return cut;
}

/* ---- Copies ---- */

static const float *take_floats(struct arena *a, const float *from, uint32_t first, uint32_t n)
{
    if (!from) return NULL;
    float *to = arena_take(a, n, sizeof *to);
    if (a->base) memcpy(to, from + first, n * sizeof *to);
    return to;
}

/* Rows [first, first + n), which are whole groups unless they are the last ones. */
static struct weight take_rows(struct arena *a, const struct weight *from, uint32_t first,
                               uint32_t n)
{
    struct weight w;
    weight_init(&w, from->type, n, from->n_in);
    w.data = arena_take(a, 1, weight_bytes(&w));
    if (a->base)
        memcpy(w.data, from->data + first / WEIGHT_GROUP * from->group_bytes, weight_bytes(&w));
    return w;
}

static struct weight take_inputs(struct arena *a, const struct weight *from, uint32_t first,
                                 uint32_t n)
{
    struct weight w;
    weight_init(&w, from->type, from->n_out, n);
    w.data = arena_take(a, 1, weight_bytes(&w));
    if (a->base) weight_cut(&w, from, first);
    return w;
}

static void take_layer(struct arena *a, struct layer_weights *to, const struct layer_weights *from,
                       const struct config *c, const struct weights_shard *s)
{
    const uint32_t d = c->head_dim, group = c->n_head / c->n_kv_head, n_embd = c->n_embd;
    const uint32_t kv0 = s->kv0 * d, n_kv = s->n_kv * d, q0 = kv0 * group, n_q = n_kv * group;
    to->begin = a->used;
    to->attn_norm = take_floats(a, from->attn_norm, 0, n_embd);
    to->wq = take_rows(a, &from->wq, q0, n_q);
    to->wk = take_rows(a, &from->wk, kv0, n_kv);
    to->wv = take_rows(a, &from->wv, kv0, n_kv);
    to->bq = take_floats(a, from->bq, q0, n_q);
    to->bk = take_floats(a, from->bk, kv0, n_kv);
    to->bv = take_floats(a, from->bv, kv0, n_kv);
    to->q_norm = take_floats(a, from->q_norm, 0, d);
    to->k_norm = take_floats(a, from->k_norm, 0, d);
    to->wo = take_inputs(a, &from->wo, q0, n_q);
    to->bo = take_floats(a, s->i == 0 ? from->bo : NULL, 0, n_embd);
    to->post_attn_norm = take_floats(a, from->post_attn_norm, 0, n_embd);
    to->ffn_norm = take_floats(a, from->ffn_norm, 0, n_embd);
    to->gate = take_rows(a, &from->gate, s->ff0, s->n_ff);
    to->up = take_rows(a, &from->up, s->ff0, s->n_ff);
    to->down = take_inputs(a, &from->down, s->ff0, s->n_ff);
    to->post_ffn_norm = take_floats(a, from->post_ffn_norm, 0, n_embd);
    to->end = a->used;
}

static void take_model(struct arena *a, struct weights *to, const struct weights *from,
                       const struct config *c, const struct weights_shard *s)
{
    for (uint32_t l = 0; l < c->n_layer; l++) take_layer(a, &to->layer[l], &from->layer[l], c, s);
    if (s->i > 0) return;
    to->output_norm = take_floats(a, from->output_norm, 0, c->n_embd);
    to->output = take_rows(a, &from->output, 0, from->output.n_out);
}

sac_status weights_shard_copy(struct weights *out, const struct weights *from,
                              const struct config *c, const struct weights_shard *s, sac_error *err)
{
    struct weights w = {.embed = from->embed,
                        .rope_factors = from->rope_factors,
                        .rope_factors_long = from->rope_factors_long,
                        .layer = mem_calloc(c->n_layer, sizeof *w.layer)};
    struct arena a = {0};
    if (!w.layer) return error_set(err, SAC_ERR_MEMORY, "out of memory for %u layers", c->n_layer);
    take_model(&a, &w, from, c, s);
    w.block_bytes = a.used;
    w.block = mem_map(w.block_bytes);
    if (!w.block) {
        const size_t mib = w.block_bytes >> 20;
        weights_deinit(&w);
        return error_set(err, SAC_ERR_MEMORY, "no memory for %zu MiB of weights, a GPU's share",
                         mib);
    }
    a = (struct arena){.base = w.block, .capacity = w.block_bytes};
    take_model(&a, &w, from, c, s);
    *out = w;
    return SAC_OK;
}
