/* rows.c: scores of sampled rows, panel of keys by panel. See the header. */
#include "methods/rows.h"

#include "methods/pick.h"

#include <assert.h>
#include <string.h>

#define PANEL_PAGES 8u
#define PANEL_TOK   (PANEL_PAGES * PAGE_TOK)
#define SCORE_TOK   (PANEL_TOK + 16) /* rows a power of two apart share cache sets */

void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a)
{
    const size_t d = s->geom->head_dim, n_row = (size_t)s->group * n_max;
    const size_t n_panel = (s->n_ctx + PANEL_TOK - 1) / PANEL_TOK;
    r->n = 0;
    /* A panel's slashes reach a panel beyond the last one. */
    r->stride = (n_panel + 1) * PANEL_TOK;
    r->at = arena_take(a, n_max, sizeof *r->at);
    r->seen = arena_take(a, n_max, sizeof *r->seen);
    r->first = arena_take(a, n_max, sizeof *r->first);
    r->q = arena_take(a, (n_row + OP_DOTS_ROWS) * d, sizeof *r->q);
    r->k = arena_take(a, PANEL_TOK * d, sizeof(float));
    r->score = arena_take(a, n_row * SCORE_TOK, sizeof(float));
    r->weight = arena_take(a, n_panel * n_row * PANEL_TOK, sizeof *r->weight);
    r->top = arena_take(a, n_panel * n_row, sizeof(float));
    r->max = arena_take(a, n_row, sizeof(float));
    r->sum = arena_take(a, n_row, sizeof(float));
}

static void fill_queries(const struct rows *r, const struct method_lane *l, uint32_t head0,
                         uint32_t n_head)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t i = 0; i < n_head * r->n; i++) {
        const uint32_t row = r->at[i % r->n] - l->pos, head = head0 + i / r->n;
        const float *q = l->q + row * l->q_stride + (size_t)head * d;
        for (uint32_t c = 0; c < d; c++) r->q[(size_t)i * d + c] = f32_to_bf16(l->scale * q[c]);
    }
}

static void score_panel(const struct rows *r, const struct method_lane *l, uint32_t n_row,
                        uint32_t n_tok)
{
    const uint32_t d = l->shape->geom->head_dim;
    l->ops->dots(&(struct op_dots){.a_bf16 = r->q,
                                   .b = r->k,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n_row,
                                   .n_b = n_tok,
                                   .width = d,
                                   .out = r->score,
                                   .out_stride = SCORE_TOK});
    for (uint32_t i = 0; i < n_row && l->softcap > 0; i++)
        for (uint32_t c = 0; c < n_tok; c++) {
            float *x = &r->score[(size_t)i * SCORE_TOK + c];
            *x = l->softcap * tanhf(*x / l->softcap);
        }
}

static uint16_t *panel_weights(const struct rows *r, const struct method_lane *l, uint32_t tok)
{
    return r->weight + (size_t)tok * l->shape->group * r->n;
}

static float *panel_tops(const struct rows *r, const struct method_lane *l, uint32_t tok)
{
    return r->top + (size_t)(tok / PANEL_TOK) * l->shape->group * r->n;
}

static bool weigh_panel(const struct rows *r, const struct method_lane *l, uint32_t n_head,
                        uint32_t tok)
{
    bool finite = true;
    for (uint32_t i = 0; i < r->n; i++)
        r->seen[i] = r->at[i] < tok ? 0 : pick_min(r->at[i] + 1 - tok, PANEL_TOK);
    for (uint32_t row = 0; row < n_head * r->n; row += r->n)
        finite &= l->ops->weigh(
            &(struct op_weigh){.score = r->score + (size_t)row * SCORE_TOK,
                               .score_stride = SCORE_TOK,
                               .n_row = r->n,
                               .width = PANEL_TOK,
                               .n = r->seen,
                               .weight = panel_weights(r, l, tok) + (size_t)row * PANEL_TOK,
                               .top = panel_tops(r, l, tok) + row,
                               .max = r->max + row,
                               .sum = r->sum + row});
    return finite;
}

bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head0, uint32_t n_head)
{
    const uint32_t end = l->pos + l->n_row, n_row = n_head * r->n;
    bool finite = true;
    assert(r->n > 0 && r->at[0] >= l->pos && r->at[r->n - 1] < end);
    fill_queries(r, l, head0, n_head);
    for (uint32_t i = 0; i < n_row; i++) {
        r->max[i] = -INFINITY;
        r->sum[i] = 0;
    }
    for (uint32_t tok = 0; tok < end && finite; tok += PANEL_TOK) {
        const uint32_t n_tok = pick_min(PANEL_TOK, end - tok);
        pick_span(r->k, l, tok, tok + n_tok);
        score_panel(r, l, n_row, n_tok);
        finite = weigh_panel(r, l, n_head, tok);
    }
    /* From here on sum is its logarithm. */
    for (uint32_t i = 0; i < n_row && finite; i++) r->sum[i] = r->max[i] + logf(r->sum[i]);
    return finite;
}

void rows_sum(const struct rows *r, const struct method_lane *l, uint32_t i, float *column,
              float *down, float *share)
{
    const uint32_t end = l->pos + l->n_row, row = i * r->n;
    for (uint32_t tok = 0; tok < end; tok += PANEL_TOK) {
        for (uint32_t k = 0; k < r->n; k++) r->first[k] = end - 1 - r->at[k] + tok;
        l->ops->lines(&(struct op_lines){
            .weight = panel_weights(r, l, tok) + (size_t)row * PANEL_TOK,
            .top = panel_tops(r, l, tok) + row,
            .lse = r->sum + row,
            .n_row = r->n,
            .width = PANEL_TOK,
            .column = column + tok,
            .down = down,
            .first = r->first,
            .share = share ? share + tok : NULL,
            .share_stride = r->stride,
        });
    }
}

double rows_cross(const struct rows *r, const struct method_lane *l, uint32_t i,
                  const uint32_t *column, uint32_t n, const uint32_t *slash)
{
    double sum = 0;
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        const uint32_t tok = column[begin] / PANEL_TOK * PANEL_TOK;
        const uint16_t *weight = panel_weights(r, l, tok) + (size_t)i * r->n * PANEL_TOK;
        const float *top = panel_tops(r, l, tok) + (size_t)i * r->n;
        for (end = begin; end < n && column[end] - tok < PANEL_TOK;) end++;
        for (uint32_t k = 0; k < r->n; k++, weight += PANEL_TOK) {
            const uint32_t at = r->at[k];
            float part = 0;
            for (uint32_t j = begin; j < end && column[j] <= at; j++) {
                const uint32_t o = at - column[j];
                if (slash[o / 32] >> o % 32 & 1) part += f16_to_f32(weight[column[j] - tok]);
            }
            if (part > 0) sum += (double)(part * expf(top[k] - r->sum[i * r->n + k]));
        }
    }
    return sum;
}
