/* box.c: see the header. Boxes are f16, rounded so that they only grow. Their ids are those of the
 * lane's pages, so data follows a page through forks and cuts by itself. */
#include "methods/box.h"

#include "base/half.h"
#include "methods/pick.h"

#include <math.h>

/* A q8 page is its own box: unless a page has no codes, nothing is kept beside it. */
static bool in_page(const struct method_shape *s, enum box kind)
{
    return kind == BOX_BOUND && s->geom->type_k == SAC_KV_Q8;
}

size_t box_bytes(const struct method_shape *s, enum box kind)
{
    return in_page(s, kind) ? 0 : (size_t)s->geom->head_dim * 4;
}

uint16_t box_half(float x, bool up)
{
    uint16_t h = f32_to_f16(x);
    const float rounded = f16_to_f32(h);
    if (!(up ? rounded < x : rounded > x)) return h;
    /* One step: magnitudes grow with the bits; the smallest of the other sign follows a zero. */
    const bool grows = up == (x > 0);
    if ((h & 0x7fffu) == 0) return up ? 1 : 0x8001u;
    return (uint16_t)(grows ? h + 1 : h - 1);
}

void box_seal(uint8_t *side, const struct method_shape *s, enum box kind, const float *k)
{
    const uint32_t d = s->geom->head_dim;
    uint16_t *a = (uint16_t *)(void *)side, *b = a + d;
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c], off = 0;
        for (uint32_t t = 1; t < PAGE_TOK; t++) {
            const float x = k[(size_t)t * d + c];
            lo = x < lo ? x : lo; /* a NaN behind the first stays out here: see box_vote */
            hi = x > hi ? x : hi;
        }
        if (kind == BOX_BOUND) {
            a[c] = box_half(lo, false);
            b[c] = box_half(hi - f16_to_f32(a[c]), true);
            continue;
        }
        const float mid = (lo + hi) / 2;
        for (uint32_t t = 0; t < PAGE_TOK; t++) off += fabsf(k[(size_t)t * d + c] - mid);
        a[c] = f32_to_f16(mid);
        b[c] = f32_to_f16(off / PAGE_TOK);
    }
    /* One bad key makes the page's scores bad, so that they are noticed. */
    for (uint32_t i = 0; i < PAGE_TOK * d; i++)
        if (!isfinite(k[i])) a[0] = 0x7e00u;
}

/* Score = qa . a + qb . b for every kind of box. */
static void fill_queries(const struct room *r, const struct method_lane *l, enum box kind)
{
    const size_t n = (size_t)l->shape->group * l->shape->geom->head_dim;
    const float unit = in_page(l->shape, kind) ? 255.0f : 1.0f;
    for (size_t i = 0; i < n; i++) {
        const float q = l->q[i] * l->scale;
        r->qa[i] = q;
        r->qb[i] = kind == BOX_MEAN ? fabsf(q) : fmaxf(q, 0) * unit;
    }
}

size_t box_score(const struct room *r, const struct method_lane *l, enum box kind)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t n = l->pos / PAGE_TOK;
    const bool own = in_page(l->shape, kind);
    fill_queries(r, l, kind);
    l->ops->score_pages(&(struct op_score_pages){
        .base = own ? l->pool : l->side,
        .stride = own ? g->bytes : l->side_stride,
        .a_at = own ? g->k_min : 0,
        .b_at = own ? g->k_step : (size_t)g->head_dim * 2,
        .page = l->page,
        .n_page = n,
        .head_dim = g->head_dim,
        .group = l->shape->group,
        .qa = r->qa,
        .qb = r->qb,
        .out = r->score,
        .out_stride = r->stride,
    });
    return (size_t)n * g->head_dim * 4;
}

bool box_vote(const struct room *r, const struct method_lane *l)
{
    return l->ops->vote(&(struct op_vote){.score = r->score,
                                          .score_stride = r->stride,
                                          .n = l->pos / PAGE_TOK,
                                          .group = l->shape->group,
                                          .vote = r->vote,
                                          .lse = r->lse});
}

void box_choose(const struct method_lane *l, struct method_pick *out, const struct box_choice *want)
{
    const uint32_t n = pick_page_count(l);
    struct room r;
    if (want->budget > l->pos || l->layer < want->dense) {
        pick_dense(out);
        return;
    }
    room_make(&r, l->shape, false, l->scratch);
    out->side_bytes = box_score(&r, l, want->kind);
    if (!box_vote(&r, l)) {
        pick_not_finite(out);
        return;
    }
    for (uint32_t p = 0; p < n && want->raw; p++) {
        r.vote[p] = 0;
        for (uint32_t g = 0; g < l->shape->group; g++) r.vote[p] += r.score[g * r.stride + p];
    }
    pick_end_pages(out, l, want->sink, want->recent);
    for (uint32_t p = 0; p < n; p++)
        if (out->mask[p]) r.vote[p] = -INFINITY;
    struct pick_cut cut = pick_best(r.vote, n, pick_units(want->budget, PAGE_TOK));
    for (uint32_t p = 0; p < n; p++)
        if (pick_takes(&cut, r.vote[p])) pick_page(out, p);
}
