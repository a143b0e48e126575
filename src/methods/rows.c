/* rows.c: scores of sampled rows, head by head and, within a head, panel by panel of keys. See the
 * header. */
#include "methods/rows.h"

#include "methods/pick.h"

#include <assert.h>
#include <string.h>

#define SCORE_TOK (ROWS_PANEL + 16) /* rows a power of two apart share cache sets */

void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a)
{
    const size_t d = s->geom->head_dim, n_panel = (s->n_ctx + ROWS_PANEL - 1) / ROWS_PANEL;
    r->n = 0;
    /* The slashes of a panel extend one panel beyond the last one. */
    r->stride = (n_panel + 1) * ROWS_PANEL;
    r->at = arena_take(a, n_max, sizeof *r->at);
    r->seen = arena_take(a, n_max, sizeof *r->seen);
    r->first = arena_take(a, n_max, sizeof *r->first);
    r->q = arena_take(a, (n_max + OP_DOTS_ROWS) * d, sizeof *r->q);
    r->key = arena_take(a, n_panel * ROWS_PANEL * d, sizeof *r->key);
    r->k = arena_take(a, PAGE_TOK * d, sizeof(float));
    r->centre = arena_take(a, d, sizeof(float));
    r->score = arena_take(a, OP_DOTS_ROWS * SCORE_TOK, sizeof(float));
    r->weight = arena_take(a, n_panel * n_max * ROWS_PANEL, sizeof *r->weight);
    r->top = arena_take(a, n_panel * n_max, sizeof(float));
    r->max = arena_take(a, n_max, sizeof(float));
    r->sum = arena_take(a, n_max, sizeof(float));
}

bool rows_read_keys(const struct rows *r, const struct method_lane *l)
{
    const uint32_t end = l->pos + l->n_row, d = l->shape->geom->head_dim;
    /* A softcap applies to the score itself, so keys must not be centred. */
    const bool centred = l->softcap <= 0 && pick_centre(r->centre, r->k, l);
    for (uint32_t tok = 0; tok < end; tok += PAGE_TOK) {
        const uint32_t n_tok = min_u32(PAGE_TOK, end - tok);
        pick_span(r->k, l, tok, tok + n_tok);
        if (!l->ops->pack(&(struct op_pack){.b = r->k,
                                            .b_stride = d,
                                            .n_b = n_tok,
                                            .width = d,
                                            .less = centred ? r->centre : NULL,
                                            .out = r->key + (size_t)tok * d}))
            return false;
    }
    return true;
}

static void fill_queries(const struct rows *r, const struct method_lane *l, uint32_t head)
{
    const uint32_t d = l->shape->geom->head_dim;
    for (uint32_t i = 0; i < r->n; i++) {
        const float *q = l->q + (r->at[i] - l->pos) * l->q_stride + (size_t)head * d;
        for (uint32_t c = 0; c < d; c++) r->q[(size_t)i * d + c] = f32_to_bf16(l->scale * q[c]);
    }
}

static uint16_t *panel_weights(const struct rows *r, uint32_t tok)
{
    return r->weight + (size_t)tok * r->n;
}

static float *panel_tops(const struct rows *r, uint32_t tok)
{
    return r->top + (size_t)(tok / ROWS_PANEL) * r->n;
}

/* Scores of n rows of a panel, from row i on: few enough to stay in L1. */
static void score_rows(const struct rows *r, const struct method_lane *l, uint32_t tok, uint32_t i,
                       uint32_t n)
{
    const uint32_t d = l->shape->geom->head_dim;
    const uint32_t n_tok = min_u32(ROWS_PANEL, l->pos + l->n_row - tok);
    assert(tok % ROWS_PANEL == 0 && n <= OP_DOTS_ROWS && i + n <= r->n);
    l->ops->dots_bf16(&(struct op_dots_bf16){.a = r->q + (size_t)i * d,
                                             .a_stride = d,
                                             .b = r->key + (size_t)tok * d,
                                             .n_a = n,
                                             .n_b = n_tok,
                                             .width = d,
                                             .out = r->score,
                                             .out_stride = SCORE_TOK});
    for (uint32_t k = 0; k < n && l->softcap > 0; k++)
        for (uint32_t c = 0; c < n_tok; c++) {
            float *x = &r->score[(size_t)k * SCORE_TOK + c];
            *x = l->softcap * tanhf(*x / l->softcap);
        }
}

static bool weigh_panel(const struct rows *r, const struct method_lane *l, uint32_t tok)
{
    bool finite = true;
    for (uint32_t i = 0; i < r->n; i++)
        r->seen[i] = r->at[i] < tok ? 0 : min_u32(r->at[i] + 1 - tok, ROWS_PANEL);
    for (uint32_t i = 0; i < r->n && finite; i += OP_DOTS_ROWS) {
        const uint32_t n = min_u32(OP_DOTS_ROWS, r->n - i);
        score_rows(r, l, tok, i, n);
        finite = l->ops->weigh(
            &(struct op_weigh){.score = r->score,
                               .score_stride = SCORE_TOK,
                               .n_row = n,
                               .width = ROWS_PANEL,
                               .n = r->seen + i,
                               .weight = panel_weights(r, tok) + (size_t)i * ROWS_PANEL,
                               .top = panel_tops(r, tok) + i,
                               .max = r->max + i,
                               .sum = r->sum + i});
    }
    return finite;
}

bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head)
{
    const uint32_t end = l->pos + l->n_row;
    bool finite = true;
    assert(r->n > 0 && r->at[0] >= l->pos && r->at[r->n - 1] < end);
    fill_queries(r, l, head);
    for (uint32_t i = 0; i < r->n; i++) {
        r->max[i] = -INFINITY;
        r->sum[i] = 0;
    }
    for (uint32_t tok = 0; tok < end && finite; tok += ROWS_PANEL) finite = weigh_panel(r, l, tok);
    /* From here on `sum` is its logarithm. */
    for (uint32_t i = 0; i < r->n && finite; i++) r->sum[i] = r->max[i] + logf(r->sum[i]);
    return finite;
}

void rows_sum(const struct rows *r, const struct method_lane *l, float *column, float *down,
              bool keep)
{
    const uint32_t end = l->pos + l->n_row;
    for (uint32_t tok = 0; tok < end; tok += ROWS_PANEL) {
        assert(tok + ROWS_PANEL <= r->stride); /* slashes extend one panel further */
        for (uint32_t k = 0; k < r->n; k++) r->first[k] = end - 1 - r->at[k] + tok;
        l->ops->lines(&(struct op_lines){
            .weight = panel_weights(r, tok),
            .top = panel_tops(r, tok),
            .lse = r->sum,
            .n_row = r->n,
            .width = ROWS_PANEL,
            .column = column + tok,
            .down = down,
            .first = r->first,
            .keep = keep,
        });
    }
}

double rows_cross(const struct rows *r, const uint32_t *column, uint32_t n, const uint32_t *slash,
                  bool kept)
{
    double sum = 0;
    for (uint32_t begin = 0, end; begin < n; begin = end) {
        const uint32_t tok = column[begin] / ROWS_PANEL * ROWS_PANEL;
        const uint16_t *weight = panel_weights(r, tok);
        const float *top = panel_tops(r, tok);
        for (end = begin; end < n && column[end] - tok < ROWS_PANEL;) end++;
        assert(end > begin); /* columns are ascending, so every panel takes at least one */
        for (uint32_t k = 0; k < r->n; k++, weight += ROWS_PANEL) {
            const uint32_t at = r->at[k];
            float part = 0;
            for (uint32_t j = begin; j < end && column[j] <= at; j++) {
                const uint32_t o = at - column[j];
                const uint16_t x = weight[column[j] - tok];
                if (slash[o / 32] >> o % 32 & 1) part += kept ? bf16_to_f32(x) : f16_to_f32(x);
            }
            if (part > 0) sum += (double)(kept ? part : part * expf(top[k] - r->sum[k]));
        }
    }
    return sum;
}
