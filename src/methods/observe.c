/* observe.c: see the header. OBSERVE_ROWS rows at a time are scored against all keys. The keys are
 * converted to f32 again for each such block of rows: this costs little beside the products, and
 * needs no memory. */
#include "methods/observe.h"

#include "base/mem.h"
#include "methods/meter.h"
#include "methods/pick.h"

#include <assert.h>
#include <string.h>

size_t observe_make(struct observe *o, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK, d = s->geom->head_dim;
    const size_t n_q = OBSERVE_ROWS * (size_t)s->group;
    o->stride = n_page * PAGE_TOK;
    o->sum = arena_take(&a, o->stride, sizeof(float));
    o->vote = arena_take(&a, o->stride, sizeof(float));
    o->score = arena_take(&a, n_q * o->stride, sizeof(float));
    o->q = arena_take(&a, n_q * d, sizeof(float));
    o->k = arena_take(&a, PAGE_TOK * d, sizeof(float));
    o->lse = arena_take(&a, n_q, sizeof(float));
    o->rest = a.base ? a.base + a.used : NULL;
    return a.used;
}

static const float *row_query(const struct method_lane *l, uint32_t pos)
{
    const struct method_past *past = &l->past;
    const size_t width = (size_t)l->shape->group * l->shape->geom->head_dim;
    if (pos >= l->pos) return l->q;
    assert(pos >= past->begin && pos < past->end);
    return method_past_query(past, pos, width);
}

/* Logits of one page for the n_q queries in o->q; OBSERVE_NEVER if it is freed, or not is_seen. */
static void score_page(const struct observe *o, const struct method_lane *l, uint32_t page,
                       uint32_t n_q, bool is_seen, float *k)
{
    const uint32_t d = l->shape->geom->head_dim, own = pick_page_count(l);
    const uint32_t n_tok = page == own ? l->pos % PAGE_TOK + 1 : PAGE_TOK;
    assert(page <= own && n_q <= OBSERVE_ROWS * l->shape->group);
    float *score = o->score + (size_t)page * PAGE_TOK;
    if (!is_seen || (page < own && l->page[page] == PAGE_NONE)) {
        for (uint32_t i = 0; i < n_q; i++)
            for (uint32_t t = 0; t < n_tok; t++) score[i * o->stride + t] = OBSERVE_NEVER;
        return;
    }
    if (page == own)
        pick_own(k, NULL, l);
    else
        pick_keys(k, l, page);
    l->ops->dots(&(struct op_dots){.a = o->q,
                                   .b = k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n_q,
                                   .n_b = n_tok,
                                   .width = d,
                                   .out = score,
                                   .out_stride = o->stride});
    for (uint32_t i = 0; i < n_q && l->softcap > 0; i++)
        for (uint32_t t = 0; t < n_tok; t++) {
            float *x = &score[i * o->stride + t];
            *x = l->softcap * tanhf(*x / l->softcap);
        }
}

void observe_queries(const struct observe *o, const struct method_lane *l, uint32_t begin,
                     uint32_t n_row)
{
    const size_t width = (size_t)l->shape->group * l->shape->geom->head_dim;
    assert(n_row <= OBSERVE_ROWS);
    for (uint32_t r = 0; r < n_row; r++) {
        const float *q = row_query(l, begin + r);
        for (size_t i = 0; i < width; i++) o->q[r * width + i] = q[i] * l->scale;
    }
}

void observe_pages(const struct observe *o, const struct method_lane *l, uint32_t begin,
                   uint32_t n_row, struct attn_range pages, float *k)
{
    const uint32_t group = l->shape->group, n_q = n_row * group;
    const uint32_t first = pages.begin * PAGE_TOK, end = min_u32(pages.end * PAGE_TOK, l->pos + 1);
    for (uint32_t p = pages.begin; p < pages.end; p++)
        score_page(o, l, p, n_q, p * PAGE_TOK < begin + n_row, k);
    for (uint32_t i = 0; i < n_q; i++)
        for (uint32_t t = max_u32(begin + i / group + 1, first); t < end; t++)
            o->score[i * o->stride + t] = OBSERVE_NEVER;
}

void observe_scores(const struct observe *o, const struct method_lane *l, uint32_t begin,
                    uint32_t n_row)
{
    observe_queries(o, l, begin, n_row);
    observe_pages(o, l, begin, n_row, (struct attn_range){0, pick_page_count(l) + 1}, o->k);
}

bool observe_vote(const struct observe *o, const struct method_lane *l, uint32_t n_q, uint32_t n)
{
    return l->ops->vote(&(struct op_vote){.score = o->score,
                                          .score_stride = o->stride,
                                          .n = n,
                                          .group = n_q,
                                          .vote = o->vote,
                                          .lse = o->lse});
}

bool observe_rows(const struct observe *o, const struct method_lane *l, uint32_t begin,
                  uint32_t end)
{
    assert(begin <= end && end <= l->pos + 1 && l->pos < o->stride);
    memset(o->sum, 0, (l->pos + 1) * sizeof *o->sum);
    for (uint32_t r = begin, n_row; r < end; r += n_row) {
        n_row = min_u32(OBSERVE_ROWS, end - r);
        const uint32_t n_q = n_row * l->shape->group, n_tok = r + n_row; /* seen by the last row */
        observe_scores(o, l, r, n_row);
        if (!observe_vote(o, l, n_q, n_tok)) return false;
        for (uint32_t t = 0; t < n_tok; t++) o->sum[t] += (float)n_q * o->vote[t];
    }
    return true;
}

void observe_count(const struct method_lane *l, uint32_t begin, uint32_t end)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t n_page = pick_page_count(l), n_own = l->pos % PAGE_TOK + 1;
    uint32_t n_there = 0, p = 0; /* pages before p that are not freed */
    for (uint32_t row = begin, n_row; row < end; row += n_row) {
        n_row = min_u32(OBSERVE_ROWS, end - row);
        const uint32_t n_seen = min_u32(n_page, pick_whole_pages(row + n_row));
        for (; p < n_seen; p++) n_there += l->id[p] != PAGE_NONE;
        meter_bytes(l, n_there * page_all_keys(g));
        if (n_page * PAGE_TOK < row + n_row) meter_read(l, l->own, (size_t)n_own * g->head_dim * 2);
    }
}

uint32_t observe_tokens(const struct observe *o, const struct method_lane *l, const uint32_t *mask,
                        uint32_t *tok)
{
    const uint32_t own = pick_page_count(l);
    uint32_t n = 0;
    for (uint32_t p = 0; p <= own; p++) {
        float score[METHOD_GROUP_MAX * PAGE_TOK];
        if (!mask[p] || (p < own && l->page[p] == PAGE_NONE)) continue;
        uint32_t n_tok = PAGE_TOK;
        if (p == own)
            n_tok = pick_own(o->k, NULL, l);
        else
            pick_keys(o->k, l, p);
        pick_group_logits(score, PAGE_TOK, l, o->k, n_tok);
        /* Bits after the row, which the mask of its own page may have, do not count. */
        for (uint32_t left = mask[p] & UINT32_MAX >> (PAGE_TOK - n_tok); left;
             left &= left - 1, n++) {
            const uint32_t t = (uint32_t)__builtin_ctz(left);
            tok[n] = p * PAGE_TOK + t;
            assert(n <= tok[n] && tok[n] <= l->pos);
            for (uint32_t g = 0; g < l->shape->group; g++)
                o->score[g * o->stride + n] = score[g * PAGE_TOK + t];
        }
    }
    return n;
}
