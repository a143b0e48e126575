/* survey_ref.c: the survey slot over the `keys` and `dots` slots of the table: exact except for the
 * order of f32 sums. It is the definition against which other sets are compared (survey.h says how
 * a mass determines what is taken). */
#include "ops/cpu/survey.h"

#include <string.h>

struct page {
    const struct op_survey *op;
    float *k, *logit; /* [PAGE_TOK, head_dim], [n_query, PAGE_TOK] */
    float *total;   /* [n_set][n_part][n_query] sums of exp(logit - lse); the caller's keys are 1 */
    int32_t *limit; /* [SURVEY_PERIOD + PAGE_TOK] */
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

/* Selects keys of page i from the squares of their masses (survey.h). */
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

/* Sums and limits are shared by the workers; keys and logits are private. */
static struct page lay_out(const struct op_survey *op, void *room)
{
    struct page p = {.op = op, .total = op->scratch, .k = room, .finite = true};
    p.limit = (int32_t *)(void *)(p.total + (size_t)op->n_set * op->n_part * op->n_query);
    p.logit = p.k + PAGE_TOK * (size_t)op->geom->head_dim;
    return p;
}

static void begin_ref(const struct op_survey *op, void *room)
{
    const struct page p = lay_out(op, room);
    survey_limits(p.limit);
    for (size_t i = 0; i < (size_t)op->n_set * op->n_part * op->n_query; i++) p.total[i] = 1;
}

static bool sum_ref(const struct op_survey *op, struct attn_range lists, void *room)
{
    struct page p = lay_out(op, room);
    for (uint32_t i = 0; i < op->n_page[(lists.end - 1) / op->n_part] && p.finite; i++) {
        read_page(&p, i);
        for (uint32_t list = lists.begin; list < lists.end; list++) {
            const uint32_t n_page = op->n_page[list / op->n_part];
            const float weight = survey_page_weight(n_page, i);
            if (i >= n_page || weight == 0) continue;
            score(&p, list);
            add_sums(&p, list, weight);
        }
    }
    return p.finite;
}

static bool take_ref(const struct op_survey *op, struct attn_range pages, void *room)
{
    struct page p = lay_out(op, room);
    for (uint32_t i = pages.begin; i < pages.end && p.finite; i++) {
        read_page(&p, i);
        for (uint32_t list = 0; list < op->n_set * op->n_part; list++) {
            if (i >= op->n_page[list / op->n_part]) continue;
            score(&p, list);
            survey_page(&p, list, i);
        }
    }
    return p.finite;
}

static bool survey_ref(struct workers *pool, const struct op_survey *op)
{
    return survey_execute(pool, op, &(struct survey_kernel){begin_ref, sum_ref, take_ref});
}

void ops_fill_ref_survey(struct ops *o)
{
    o->survey = survey_ref;
}
