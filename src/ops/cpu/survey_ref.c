/* survey_ref.c: the survey slot over the `keys` and `dots` slots of the table: exact, but for the
 * order of f32 sums. It is the definition that other sets are compared with (survey.h says what a
 * mass decides). */
#include "ops/cpu/survey.h"

#include <string.h>

struct page {
    const struct op_survey *op;
    float *k, *logit; /* [PAGE_TOK, head_dim], [n_query, PAGE_TOK] */
    float *total;     /* [n_set][n_part][n_query] of exp(logit - lse), the caller's keys being 1 */
    int32_t *limit;   /* [SURVEY_PERIOD + PAGE_TOK] */
    bool finite;
};

static void read_page(struct page *p, uint32_t i)
{
    const struct op_survey *op = p->op;
    op->ops->keys(&(struct op_keys){
        .geom = op->geom, .frames = op->frames, .page = op->page + i, .n_page = 1, .out = p->k});
    for (size_t x = 0; x < PAGE_TOK * (size_t)op->geom->head_dim; x++)
        p->finite = p->finite && isfinite(p->k[x]);
}

static void score(const struct page *p, uint32_t list)
{
    const struct op_survey *op = p->op;
    const uint32_t d = op->geom->head_dim;
    op->ops->dots(&(struct op_dots){.a = op->q + (size_t)list * op->n_query * d,
                                    .b = p->k,
                                    .a_stride = d,
                                    .b_stride = d,
                                    .n_a = op->n_query,
                                    .n_b = PAGE_TOK,
                                    .width = d,
                                    .out = p->logit,
                                    .out_stride = PAGE_TOK});
}

static void add_sums(struct page *p, uint32_t list, float weight)
{
    const struct op_survey *op = p->op;
    for (uint32_t i = 0; i < op->n_query; i++) {
        const size_t q = (size_t)list * op->n_query + i;
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            p->total[q] += weight * expf(p->logit[i * PAGE_TOK + t] - op->lse[q]);
        p->finite = p->finite && isfinite(p->total[q]);
    }
}

static int32_t float_int(float f)
{
    int32_t i;
    memcpy(&i, &f, sizeof i);
    return i;
}

/* Takes keys of the page by the squares of their masses. */
static void take(const struct page *p, uint32_t list, uint32_t i, const float *square)
{
    const struct op_survey *op = p->op;
    const int32_t *limit =
        p->limit + survey_place(survey_seed(op, list / op->n_part, list % op->n_part), i);
    const int32_t least = float_int(survey_least(op));
    uint8_t *weight = op->weight + ((size_t)list * op->n_word + i) * PAGE_TOK;
    uint32_t word = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const int32_t below = (least - float_int(square[t])) >> SURVEY_SHIFT,
                      step = below > 0 ? below : 0;
        if (step >= limit[t]) continue;
        word |= 1u << t;
        weight[t] = (uint8_t)step;
    }
    op->mask[(size_t)list * op->n_word + i] = word;
    op->n_taken[list] += (uint32_t)__builtin_popcount(word);
}

static void survey_page(const struct page *p, uint32_t list, uint32_t i)
{
    const struct op_survey *op = p->op;
    float square[PAGE_TOK] = {0}, all = 0;
    for (uint32_t j = 0; j < op->n_query; j++) {
        const size_t q = (size_t)list * op->n_query + j;
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const float share = expf(p->logit[j * PAGE_TOK + t] - op->lse[q]) / p->total[q];
            square[t] += share * share;
        }
    }
    for (uint32_t t = 0; t < PAGE_TOK; t++) all += square[t];
    for (uint32_t t = 0; t < PAGE_TOK; t++) square[t] += op->spread * (all / PAGE_TOK - square[t]);
    take(p, list, i, square);
}

static bool survey_ref(const struct op_survey *op)
{
    const uint32_t n_list = op->n_set * op->n_part;
    const size_t n = (size_t)n_list * op->n_query;
    struct page p = {.op = op, .k = op->scratch, .finite = true};
    p.logit = p.k + PAGE_TOK * (size_t)op->geom->head_dim;
    p.total = p.logit + (size_t)op->n_query * PAGE_TOK;
    p.limit = (int32_t *)(void *)(p.total + n);
    for (size_t i = 0; i < n; i++) p.total[i] = 1;
    survey_limits(p.limit);
    memset(op->n_taken, 0, n_list * sizeof *op->n_taken);
    for (int pass = 0; pass < 2 && p.finite; pass++)
        for (uint32_t i = 0; i < op->n_page[op->n_set - 1] && p.finite; i++) {
            read_page(&p, i);
            for (uint32_t list = 0; list < n_list; list++) {
                const uint32_t n_page = op->n_page[list / op->n_part];
                const float weight = survey_page_weight(n_page, i);
                if (i >= n_page || (pass == 0 && weight == 0)) continue;
                score(&p, list);
                if (pass == 0)
                    add_sums(&p, list, weight);
                else
                    survey_page(&p, list, i);
            }
        }
    return p.finite;
}

void ops_fill_ref_survey(struct ops *o)
{
    o->survey = survey_ref;
}
