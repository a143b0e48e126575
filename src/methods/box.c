/* box.c: see the header. Boxes are f16, rounded so that they only grow. Their ids are those of the
 * lane's pages, so data follows a page through forks and cuts by itself. */
#include "methods/box.h"

#include "base/half.h"
#include "methods/meter.h"
#include "methods/pick.h"
#include "methods/rule.h"

#include <math.h>

/* A q8 page is its own box: unless a page has no codes, nothing is kept beside it. */
static bool in_page(const struct method_shape *s, enum box kind)
{
    return kind == BOX_BOUND && s->geom->type_k == SAC_KV_Q8;
}

size_t box_bytes(const struct method_shape *s, enum box kind)
{
    const size_t one = (size_t)s->geom->head_dim * 4;
    return in_page(s, kind) ? 0 : kind == BOX_HALVES ? 2 * one : one;
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

/* The box of some keys. */
static void seal_box(uint16_t *a, uint32_t d, enum box kind, const float *k, uint32_t n_tok)
{
    uint16_t *b = a + d;
    for (uint32_t c = 0; c < d; c++) {
        float lo = k[c], hi = k[c], off = 0;
        for (uint32_t t = 1; t < n_tok; t++) {
            const float x = k[(size_t)t * d + c];
            lo = x < lo ? x : lo; /* a NaN behind the first stays out here: see box_vote */
            hi = x > hi ? x : hi;
        }
        if (kind != BOX_MEAN) {
            a[c] = box_half(lo, false);
            b[c] = box_half(hi - f16_to_f32(a[c]), true);
            continue;
        }
        const float mid = (lo + hi) / 2;
        for (uint32_t t = 0; t < n_tok; t++) off += fabsf(k[(size_t)t * d + c] - mid);
        a[c] = f32_to_f16(mid);
        b[c] = f32_to_f16(off / (float)n_tok);
    }
}

void box_seal(uint8_t *side, const struct method_shape *s, enum box kind, const float *k)
{
    const uint32_t d = s->geom->head_dim, n_tok = kind == BOX_HALVES ? BOX_HALF_TOK : PAGE_TOK;
    uint16_t *a = (uint16_t *)(void *)side;
    for (uint32_t t = 0; t < PAGE_TOK; t += n_tok)
        seal_box(a + (size_t)t / n_tok * 2 * d, d, kind, k + (size_t)t * d, n_tok);
    /* One bad key makes the page's scores bad, so that they are noticed. */
    for (uint32_t i = 0; i < PAGE_TOK * d; i++)
        if (!isfinite(k[i])) a[0] = 0x7e00u;
}

/* Score = qa . a + qb . b for every kind of box, for queries that may be r->qa. */
static void fill_queries(const struct room *r, const struct method_lane *l, enum box kind,
                         const float *from)
{
    const size_t n = (size_t)l->shape->group * l->shape->geom->head_dim;
    const float unit = in_page(l->shape, kind) ? 255.0f : 1.0f;
    for (size_t i = 0; i < n; i++) {
        const float q = from[i] * l->scale;
        r->qa[i] = q;
        r->qb[i] = kind == BOX_MEAN ? fabsf(q) : fmaxf(q, 0) * unit;
    }
}

void box_score(const struct room *r, const struct method_lane *l, enum box kind)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t n = l->pos / PAGE_TOK;
    const uint32_t n_box = kind == BOX_HALVES ? 2 : 1;
    const size_t one = (size_t)g->head_dim * 4;
    const bool own = in_page(l->shape, kind);
    meter_bytes(l, (uint64_t)n * n_box * meter_lines(0, one));
    for (uint32_t p = 0, end; p < n; p = end) {
        fill_queries(r, l, kind, pick_query(r->qa, l, p, &end));
        end = pick_min(end, n);
        assert(end > p);
        for (uint32_t i = 0; i < n_box; i++)
            l->ops->score_pages(&(struct op_score_pages){
                .base = own ? l->frames.base : l->side,
                .frame_of = own ? l->frames.of : NULL,
                .stride = own ? g->bytes : l->side_stride,
                .a_at = own ? g->k_min : i * one,
                .b_at = own ? g->k_step : i * one + one / 2,
                .page = l->page + p,
                .n_page = end - p,
                .head_dim = g->head_dim,
                .group = l->shape->group,
                .qa = r->qa,
                .qb = r->qb,
                .out = r->score + (size_t)i * n + p,
                .out_stride = r->stride,
            });
    }
}

bool box_vote(const struct room *r, const struct method_lane *l)
{
    return room_vote(r, l, l->pos / PAGE_TOK);
}

/* The best pages (or halves) by `value`, which loses those that are read in any case. */
static void choose(const struct method_lane *l, struct method_pick *out,
                   const struct box_choice *want, uint32_t budget, float *value)
{
    const uint32_t n_page = pick_page_count(l);
    const uint32_t sink = pick_whole_pages(want->sink), recent = pick_whole_pages(want->recent);
    const bool halves = want->kind == BOX_HALVES;
    const uint32_t n = halves ? 2 * n_page : n_page, low = UINT32_MAX >> BOX_HALF_TOK;
    assert(!out->dense && budget <= l->pos);
    for (uint32_t p = 0; p < n_page; p++) {
        if (p >= sink && p + recent < n_page) continue;
        value[p] = -INFINITY;
        if (halves) value[n_page + p] = -INFINITY;
    }
    struct pick_cut cut = pick_best(value, n, pick_units(budget, halves ? BOX_HALF_TOK : PAGE_TOK));
    for (uint32_t i = 0; i < n; i++) {
        if (!pick_takes(&cut, value[i])) continue;
        pick_bits(out, i % n_page, !halves ? UINT32_MAX : i < n_page ? low : ~low);
    }
}

void box_choose(const struct method_lane *l, struct method_pick *out, const struct box_choice *want)
{
    const bool halves = want->kind == BOX_HALVES;
    const uint32_t n = halves ? 2 * pick_page_count(l) : pick_page_count(l);
    const uint32_t budget = rule_budget(out, l, want->budget, want->dense);
    struct room r;
    if (budget == 0) return;
    room_make(&r, l->shape, halves, l->scratch);
    assert(n <= r.stride);
    box_score(&r, l, want->kind);
    if (!rule_shares(out, l, &r, n)) return;
    for (uint32_t p = 0; p < n && want->raw; p++) {
        r.vote[p] = 0;
        for (uint32_t g = 0; g < l->shape->group; g++) r.vote[p] += r.score[g * r.stride + p];
    }
    pick_end_pages(out, l, want->sink, want->recent);
    if (!want->by_head) choose(l, out, want, budget, r.vote);
    for (uint32_t g = 0; g < l->shape->group && want->by_head; g++)
        choose(l, out, want, budget, r.score + g * r.stride);
}
