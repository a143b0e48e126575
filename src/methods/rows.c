/* rows.c: scores of sampled rows, panel of keys by panel. See the header. */
#include "methods/rows.h"

#include "methods/pick.h"

#include <assert.h>
#include <string.h>

#define PANEL_PAGES 8u /* 64 KiB of keys of 64 channels: they stay in L2 for all rows */

void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a)
{
    const size_t d = s->geom->head_dim;
    r->n = 0;
    r->stride = ((size_t)s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK;
    r->at = arena_take(a, n_max, sizeof *r->at);
    r->p = arena_take(a, n_max * r->stride, sizeof(float));
    r->one = arena_take(a, r->stride, sizeof(float));
    r->q = arena_take(a, n_max * d, sizeof(float));
    r->k = arena_take(a, PANEL_PAGES * PAGE_TOK * d, sizeof(float));
}

static void score_panel(const struct rows *r, uint32_t d, uint32_t tok, uint32_t n_tok,
                        const struct ops *ops)
{
    ops->dots(&(struct op_dots){.a = r->q,
                                .b = r->k,
                                .a_stride = d,
                                .b_stride = d,
                                .n_a = r->n,
                                .n_b = n_tok,
                                .width = d,
                                .out = r->p + tok,
                                .out_stride = r->stride});
}

/* p = scores; those of tokens behind a row count as any others. */
static void score_rows(const struct rows *r, const struct method_lane *l, uint32_t head)
{
    const struct page_geom *g = l->shape->geom;
    const uint32_t d = g->head_dim, end = r->at[r->n - 1] + 1, n_full = end / PAGE_TOK;
    assert(r->n > 0 && r->at[0] >= l->pos && end <= l->pos + l->n_row);
    for (uint32_t i = 0; i < r->n; i++) {
        const float *q = l->q + (r->at[i] - l->pos) * l->q_stride + (size_t)head * d;
        for (uint32_t c = 0; c < d; c++) r->q[(size_t)i * d + c] = l->scale * q[c];
    }
    for (uint32_t p = 0; p < n_full; p += PANEL_PAGES) {
        const uint32_t n_page = pick_min(PANEL_PAGES, n_full - p);
        l->ops->keys(&(struct op_keys){
            .geom = g, .pool = l->pool, .page = l->page + p, .n_page = n_page, .out = r->k});
        score_panel(r, d, p * PAGE_TOK, n_page * PAGE_TOK, l->ops);
    }
    if (end % PAGE_TOK > 0) {
        if (n_full < l->n_sealed)
            pick_keys(r->k, l, n_full);
        else
            page_read(r->k, NULL, g, l->own, PAGE_TAIL, end % PAGE_TOK);
        score_panel(r, d, n_full * PAGE_TOK, end % PAGE_TOK, l->ops);
    }
    for (uint32_t i = 0; i < r->n && l->softcap > 0; i++)
        for (uint32_t c = 0; c <= r->at[i]; c++) {
            float *x = &r->p[i * r->stride + c];
            *x = l->softcap * tanhf(*x / l->softcap);
        }
}

bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head)
{
    const uint32_t end = l->pos + l->n_row;
    score_rows(r, l, head);
    for (uint32_t i = 0; i < r->n; i++) {
        float lse, *p = r->p + i * r->stride;
        const uint32_t n = r->at[i] + 1;
        if (!l->ops->vote(
                &(struct op_vote){.score = p, .n = n, .group = 1, .vote = r->one, .lse = &lse}))
            return false;
        memcpy(p, r->one, n * sizeof(float));
        memset(p + n, 0, (end - n) * sizeof(float));
    }
    return true;
}
