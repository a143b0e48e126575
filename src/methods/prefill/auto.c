/* auto.c: columns by sampled mass. Of each tile of rows a few are scored against every key, and the
 * single keys that hold most of their softmax are read by all rows of the tile.
 *
 * Step by step, for each KV head:
 *  1. `rows` rows of each tile, at equal distances, with all query heads of the group.
 *  2. Their softmax over all keys: the tile's own keys exactly, those before it by the mass slot.
 *  3. The mass of a key is the mean over these queries. Keys are taken, the heaviest first, until
 *     with the tile's own keys, which are read anyway, `mass` is reached. The first page and the
 *     `recent` pages before the tile are always taken.
 *  4. If that is more than `most` of the tokens before the tile, the tile is dense: it costs less.
 * The mean over the heads of a group makes one list for all of them: a key that matters to one head
 * only counts with its share, and what is gathered serves all. How many keys are read follows from
 * the text and the head; layers differ by a factor of ten in what they need. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#define TILE 128u

enum { MASS, ROWS, RECENT, MOST, DENSE };

static const sac_method_param params[] = {
    {"mass", SAC_PARAM_FLOAT, "0.95", 0, 1, NULL, "estimated share of the attention that is kept"},
    {"rows", SAC_PARAM_INT, "8", 1, 64, NULL, "rows of each 128 that are scored"},
    {"recent", SAC_PARAM_INT, "32", 0, 128, NULL,
     "pages before a tile of rows that are always read"},
    {"most", SAC_PARAM_FLOAT, "0.6", 0, 1, NULL, "a larger share than this is read whole"},
    {"dense", SAC_PARAM_INT, "0", 0, 1024, NULL, "first layers that read everything"},
};

struct work {
    uint32_t n_query; /* of a tile: sampled rows * group */
    size_t stride;    /* of a tile's masses */
    uint32_t *n_page; /* [tiles] pages before each tile */
    float *q;         /* [tiles, n_query, head_dim] scaled */
    float *top, *sum; /* [tiles, n_query] */
    float *mass;      /* [tiles, stride] */
    float *k;     /* [TILE + PAGE_TOK, head_dim] own keys of a tile; behind them the first page */
    float *logit; /* [n_query, TILE + PAGE_TOK] */
    uint32_t *spare; /* [stride] */
    void *op;
};

/* Measures with NULL, else hands out `scratch`; the result is its bytes. */
static size_t lay_out(struct work *w, const struct method_shape *s, const double *param,
                      void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t d = s->geom->head_dim, n_tile = s->n_row_max / TILE + 2;
    w->n_query = (uint32_t)param[ROWS] * s->group;
    w->stride = ((size_t)s->n_ctx + TILE - 1) / TILE * TILE;
    w->n_page = arena_take(&a, n_tile, sizeof *w->n_page);
    w->q = arena_take(&a, (size_t)n_tile * w->n_query * d, sizeof(float));
    w->top = arena_take(&a, (size_t)n_tile * w->n_query, sizeof(float));
    w->sum = arena_take(&a, (size_t)n_tile * w->n_query, sizeof(float));
    w->mass = arena_take(&a, n_tile * w->stride, sizeof(float));
    w->k = arena_take(&a, (TILE + PAGE_TOK) * (size_t)d, sizeof(float));
    w->logit = arena_take(&a, (size_t)w->n_query * (TILE + PAGE_TOK), sizeof(float));
    w->spare = arena_take(&a, w->stride, sizeof *w->spare);
    w->op = arena_take(&a, 1, ops_mass_scratch(n_tile, w->n_query, d));
    return a.used;
}

static size_t auto_scratch_bytes(const struct method_shape *s, const double *param)
{
    struct work w;
    return lay_out(&w, s, param, NULL);
}

/* Sampled row i of a tile, counted from the chunk's first: the last one of each equal part. */
static uint32_t sampled_row(const struct plan *p, uint32_t tile, uint32_t i, uint32_t n)
{
    const uint32_t row0 = plan_row0(p, tile), n_row = plan_row_end(p, tile) - row0;
    const uint32_t end = n_row * (i + 1) / n;
    return row0 + (end ? end - 1 : 0);
}

static void take_queries(const struct work *w, const struct method_lane *l, const struct plan *p)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    for (uint32_t t = 0; t < p->n_tile; t++)
        for (uint32_t i = 0; i < w->n_query; i++) {
            const uint32_t row = sampled_row(p, t, i / group, w->n_query / group);
            const float *q = l->q + row * l->q_stride + (size_t)(i % group) * d;
            float *out = w->q + ((size_t)t * w->n_query + i) * d;
            for (uint32_t c = 0; c < d; c++) out[c] = l->scale * q[c];
        }
}

/* Keys of a tile's own pages, then those of the first page; returns how many own ones. */
static uint32_t own_keys(const struct work *w, const struct method_lane *l, const struct plan *p,
                         uint32_t tile)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t first = plan_tile_tok(p, tile), end = p->pos + plan_row_end(p, tile);
    const uint32_t page0 = first / PAGE_TOK, n_full = pick_min(end / PAGE_TOK, l->n_sealed) - page0;
    const uint32_t left = end - first - n_full * PAGE_TOK;
    struct op_keys op = {
        .geom = g, .pool = l->pool, .page = l->page + page0, .n_page = n_full, .out = w->k};
    if (n_full) l->ops->keys(&op);
    if (left)
        page_read(w->k + (size_t)n_full * PAGE_TOK * g->head_dim, NULL, g, l->own, PAGE_TAIL, left);
    if (first == 0) return end - first;
    op = (struct op_keys){.geom = g,
                          .pool = l->pool,
                          .page = l->page,
                          .n_page = 1,
                          .out = w->k + (size_t)(end - first) * g->head_dim};
    l->ops->keys(&op);
    return end - first;
}

/* The tile's own keys: what sums are relative to, and what these keys add to them. */
static void sum_own(const struct work *w, const struct method_lane *l, const struct plan *p,
                    uint32_t tile)
{
    const uint32_t group = l->shape->group, d = l->shape->geom->head_dim;
    const uint32_t n_own = own_keys(w, l, p, tile), first = plan_tile_tok(p, tile);
    const uint32_t n_key = n_own + (first ? PAGE_TOK : 0);
    l->ops->dots(&(struct op_dots){.a = w->q + (size_t)tile * w->n_query * d,
                                   .b = w->k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = w->n_query,
                                   .n_b = n_key,
                                   .width = d,
                                   .out = w->logit,
                                   .out_stride = n_key});
    for (uint32_t i = 0; i < w->n_query; i++) {
        const float *logit = w->logit + (size_t)i * n_key;
        const uint32_t row = sampled_row(p, tile, i / group, w->n_query / group);
        const uint32_t n_seen = p->pos + row - first + 1;
        float top = logit[0], sum = 0;
        for (uint32_t c = 0; c < n_seen; c++) top = logit[c] > top ? logit[c] : top;
        for (uint32_t c = n_own; c < n_key; c++) top = logit[c] > top ? logit[c] : top;
        for (uint32_t c = 0; c < n_seen; c++)
            if (!(logit[c] < top - OP_MASS_CUT)) sum += expf(logit[c] - top);
        w->top[(size_t)tile * w->n_query + i] = top;
        w->sum[(size_t)tile * w->n_query + i] = sum;
    }
}

/* ---- Choosing ---- */

static double sum_of(const float *x, uint32_t n)
{
    float part[PAGE_TOK] = {0};
    double sum = 0;
    for (uint32_t i = 0; i < n; i += PAGE_TOK)
        for (uint32_t t = 0; t < PAGE_TOK; t++) part[t] += x[i + t];
    for (uint32_t t = 0; t < PAGE_TOK; t++) sum += (double)part[t];
    return sum;
}

static double sum_marked(const float *x, uint32_t word)
{
    double sum = 0;
    for (; word; word &= word - 1) sum += (double)x[__builtin_ctz(word)];
    return sum;
}

/* Marks what is kept, and returns its mass. */
static double mark_tile(const struct work *w, const struct method_lane *l, struct plan *p,
                        uint32_t tile)
{
    const uint32_t n_page = w->n_page[tile], n = n_page * PAGE_TOK;
    const uint32_t recent = pick_min((uint32_t)l->param[RECENT], n_page);
    const float *mass = w->mass + tile * w->stride;
    const double before = sum_of(mass, n), target = before - (1 - l->param[MASS]);
    uint32_t *mask = plan_mask(p, tile, 0), n_kept = 0;
    double kept = 0;
    if (n == 0) return 1;
    if (target > 0) {
        const struct op_best best = {
            .value = mass, .n = n, .by_sum = true, .target = target, .spare = w->spare};
        l->ops->mark(&(struct op_mark){
            .value = mass, .cut = l->ops->best(&best), .n_page = n_page, .mask = mask});
    }
    for (uint32_t i = 0; i < n_page; i++) {
        if (i == 0 || i + recent >= n_page) mask[i] = UINT32_MAX;
        kept += sum_marked(mass + (size_t)i * PAGE_TOK, mask[i]);
        n_kept += (uint32_t)__builtin_popcount(mask[i]);
    }
    if (n_kept > l->param[MOST] * n) {
        plan_tile_dense(p, tile, 0, PLAN_NO_GAIN);
        return 1;
    }
    return 1 - before + kept;
}

static void auto_plan(const struct method_lane *l, struct plan *p)
{
    struct work w;
    lay_out(&w, l->shape, l->param, l->scratch);
    /* With a softcap a score is no product: the slot does not know it. */
    if (l->layer < (uint32_t)l->param[DENSE] || l->softcap > 0 || l->param[MASS] >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    take_queries(&w, l, p);
    for (uint32_t t = 0; t < p->n_tile; t++) {
        w.n_page[t] = plan_tile_tok(p, t) / PAGE_TOK;
        sum_own(&w, l, p, t);
    }
    const bool finite = l->ops->mass(&(struct op_mass){.ops = l->ops,
                                                       .geom = l->shape->geom,
                                                       .pool = l->pool,
                                                       .page = l->page,
                                                       .n_page = w.n_page,
                                                       .n_set = p->n_tile,
                                                       .n_query = w.n_query,
                                                       .q = w.q,
                                                       .top = w.top,
                                                       .sum = w.sum,
                                                       .mass = w.mass,
                                                       .mass_stride = w.stride,
                                                       .scratch = w.op});
    if (!finite) {
        plan_dense(p, PLAN_NAN);
        return;
    }
    for (uint32_t t = 0; t < p->n_tile; t++) plan_estimate(p, mark_tile(&w, l, p, t), 1);
}

static const struct method_prefill hooks = {
    .tile_tok = TILE, .any_chunk = true, .scratch_bytes = auto_scratch_bytes, .plan = auto_plan};

const struct method auto_prefill_method = {
    .kind = "prefill",
    .name = "auto",
    .summary = "single keys until the estimated mass is reached",
    .about =
        "A sample of each tile's rows is scored against every key, and all rows of the tile read "
        "the keys that hold most of the sample's attention. How many follows from the text, the "
        "layer and the head, not from a budget. What no sampled row looks at is not read: a "
        "smaller "
        "share of rows is cheaper and less sure.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .prefill = &hooks,
};
