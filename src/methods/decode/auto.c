/* auto.c: progressive keys. A key of eight bits a channel is read two bits first: they choose
 * tokens nearly as well as exact scores do, and only of the tokens chosen the rest is read.
 *
 * Step by step, for each KV head:
 *  1. Pages are scored by their box, q.middle + spread * |q|.radius, and the best `scan` of them
 * kept.
 *  2. All tokens of those are scored by the first plane of their keys (two bits a channel).
 *  3. Softmax shares, mean over the query heads, tell the mass of each token; tokens are taken, the
 *     best first, until `mass` of it is reached. First page and newest pages are always taken.
 *  4. If that is more than `most` of the context, everything is read: it costs less.
 * Every step chooses anew: on a real model a list that served two steps had 27 times the KL
 * (docs/performance.md).
 * In a q8 page the plane is a part of the key, so nothing is kept beside it. For 16-bit pages the
 * same bytes (min, step, plane) are side data. */
#include "methods/pick.h"
#include "methods/room.h"

#include "base/half.h"

#include <string.h>

enum { MASS, SCAN, SPREAD, MOST, DENSE, RECENT };

static const sac_method_param params[] = {
    {"mass", SAC_PARAM_FLOAT, "0.95", 0, 1, NULL, "estimated share of the attention that is kept"},
    {"scan", SAC_PARAM_FLOAT, "1", 0, 1, NULL, "share of the pages whose tokens are scored"},
    {"spread", SAC_PARAM_FLOAT, "0.25", 0, 1, NULL,
     "how much of its box counts when a page is scored"},
    {"most", SAC_PARAM_FLOAT, "0.5", 0, 1, NULL, "a larger share than this is read whole"},
    {"dense", SAC_PARAM_INT, "0", 0, 1024, NULL, "first layers that read everything"},
    {"recent", SAC_PARAM_INT, "2", 0, 128, NULL, "newest full pages that are always read"},
};

/* Where min, step and plane of a page lie. */
struct plane {
    const uint8_t *base;
    size_t stride, min_at, step_at, hi2_at;
};

static struct plane plane_of(const struct method_lane *l)
{
    const struct page_geom *g = l->shape->geom;
    const size_t d = g->head_dim;
    if (g->type_k == SAC_KV_Q8)
        return (struct plane){l->pool, g->bytes, g->k_min, g->k_step, g->k_hi2};
    return (struct plane){l->side, l->side_stride, 0, 2 * d, 4 * d};
}

static size_t auto_side_bytes(const struct method_shape *s, const double *param)
{
    const size_t d = s->geom->head_dim;
    (void)param;
    return s->geom->type_k == SAC_KV_Q8 ? 0 : 4 * d + PAGE_TOK * d / 4;
}

static void auto_seal(uint8_t *side, const struct method_shape *s, const double *param,
                      const float *k)
{
    const uint32_t d = s->geom->head_dim;
    uint16_t *min = (uint16_t *)(void *)side, *step = min + d;
    uint8_t *hi2 = side + 4 * (size_t)d;
    (void)param;
    memset(hi2, 0, PAGE_TOK * (size_t)d / 4);
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c], bad = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float x = k[(size_t)t * d + c];
            lo = fminf(lo, x);
            hi = fmaxf(hi, x);
            bad += x - x; /* NaN once a key is not finite */
        }
        min[c] = f32_to_f16(lo + bad);
        step[c] = f32_to_f16((hi - lo) / 255);
        const float from = f16_to_f32(min[c]), by = f16_to_f32(step[c]);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float code = by > 0 ? (k[(size_t)t * d + c] - from) / by : 0;
            const uint32_t two = code >= 192 ? 3 : code >= 128 ? 2 : code >= 64 ? 1 : 0;
            hi2[(size_t)t * (d / 4) + c % (d / 4)] |= (uint8_t)(two << 2 * (c / (d / 4)));
        }
    }
}

/* The best `n_scan` pages by their boxes, ascending, into r->list. False: a score is not finite. */
static bool choose_pages(const struct room *r, const struct method_lane *l, uint32_t n_scan)
{
    const uint32_t n = pick_page_count(l), d = l->shape->geom->head_dim;
    const struct plane p = plane_of(l);
    const float spread = 127.5f * (float)l->param[SPREAD];
    for (size_t i = 0; i < (size_t)l->shape->group * d; i++) {
        r->qa[i] = l->q[i] * l->scale;
        r->qb[i] = 127.5f * r->qa[i] + spread * fabsf(r->qa[i]);
    }
    l->ops->score_pages(&(struct op_score_pages){.base = p.base,
                                                 .stride = p.stride,
                                                 .a_at = p.min_at,
                                                 .b_at = p.step_at,
                                                 .page = l->page,
                                                 .n_page = n,
                                                 .head_dim = d,
                                                 .group = l->shape->group,
                                                 .qa = r->qa,
                                                 .qb = r->qb,
                                                 .out = r->score,
                                                 .out_stride = r->stride});
    if (!l->ops->vote(&(struct op_vote){.score = r->score,
                                        .score_stride = r->stride,
                                        .n = n,
                                        .group = l->shape->group,
                                        .vote = r->vote,
                                        .lse = r->lse}))
        return false;
    struct pick_cut cut = pick_best(r->vote, n, n_scan);
    uint32_t n_list = 0;
    for (uint32_t i = 0; i < n; i++)
        if (pick_takes(&cut, r->vote[i])) r->list[n_list++] = i;
    return true;
}

/* Shares of the tokens of the listed pages in r->vote. */
static bool score_tokens(const struct room *r, const struct method_lane *l, uint32_t n_scan)
{
    const struct plane p = plane_of(l);
    for (uint32_t i = 0; i < n_scan; i++) r->id[i] = l->page[r->list[i]];
    l->ops->score_planes(&(struct op_score_planes){.base = p.base,
                                                   .stride = p.stride,
                                                   .min_at = p.min_at,
                                                   .step_at = p.step_at,
                                                   .hi2_at = p.hi2_at,
                                                   .page = r->id,
                                                   .n_page = n_scan,
                                                   .head_dim = l->shape->geom->head_dim,
                                                   .group = l->shape->group,
                                                   .q = l->q,
                                                   .scale = l->scale,
                                                   .out = r->score,
                                                   .out_stride = r->stride});
    return l->ops->vote(&(struct op_vote){.score = r->score,
                                          .score_stride = r->stride,
                                          .n = n_scan * PAGE_TOK,
                                          .group = l->shape->group,
                                          .vote = r->vote,
                                          .lse = r->lse});
}

static void auto_select(const struct method_lane *l, struct method_pick *out)
{
    const uint32_t n = pick_page_count(l), d = l->shape->geom->head_dim;
    struct room r;
    if (l->param[MASS] >= 1 || l->layer < (uint32_t)l->param[DENSE]) {
        pick_dense(out);
        return;
    }
    room_make(&r, l->shape, true, l->scratch);
    const double share = ceil(l->param[SCAN] * n);
    const uint32_t n_scan = share < 1 ? 1 : (uint32_t)share;
    if (n_scan < n) out->side_bytes += (size_t)n * 4 * d;
    for (uint32_t i = 0; i < n; i++) r.list[i] = i;
    out->side_bytes += n_scan * (PAGE_TOK * (size_t)d / 4 + 4 * d);
    if ((n_scan < n && !choose_pages(&r, l, n_scan)) || !score_tokens(&r, l, n_scan)) {
        pick_not_finite(out);
        return;
    }
    pick_end_pages(out, l, 1, (uint32_t)l->param[RECENT], UINT32_MAX);
    /* The scores have served: their memory does for the search of the cut. */
    const struct op_cut cut = l->ops->best(&(struct op_best){.value = r.vote,
                                                             .n = n_scan * PAGE_TOK,
                                                             .by_sum = true,
                                                             .target = l->param[MASS],
                                                             .spare = (uint32_t *)r.score});
    l->ops->mark(&(struct op_mark){
        .value = r.vote, .cut = cut, .n_page = n_scan, .page = r.list, .mask = out->mask});
    uint32_t n_read = 0;
    for (uint32_t i = 0; i < n; i++) n_read += (uint32_t)__builtin_popcount(out->mask[i]);
    if (n_read > l->param[MOST] * n * PAGE_TOK) pick_dense(out);
}

static const struct method_decode hooks = {
    .side_bytes = auto_side_bytes,
    .scratch_bytes = room_token_bytes,
    .seal = auto_seal,
    .select = auto_select,
};

const struct method auto_method = {
    .kind = "decode",
    .name = "auto",
    .summary = "tokens by the first two bits of their keys, until the wanted mass is reached",
    .about =
        "Progressive keys: the first two bits of each channel tell which tokens matter nearly as "
        "well as whole keys, at a sixteenth of the bytes of dense attention (fewer where page "
        "boxes "
        "leave pages out), and only of the chosen tokens keys and values are read. --mass is its "
        "dial: flat heads read more, sharp ones less. It finds late what it is asked for late. "
        "With "
        "a q8 cache the two bits are a part of the key and cost no memory.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .token_grain = true,
    .decode = &hooks,
};
