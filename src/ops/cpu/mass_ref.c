/* mass_ref.c: where the softmax of sampled queries lies, over the `keys` and `dots` slots of the
 * table: exact, but for the order of f32 sums. */
#include "ops/ops.h"

#include <math.h>
#include <string.h>

/* One page for all sets that see it: logits, then either sums or masses. */
struct mass_page {
    const struct op_mass *op;
    float *k, *logit; /* [PAGE_TOK, head_dim], [n_query, PAGE_TOK] */
    bool finite;
};

static void score_set(const struct mass_page *p, uint32_t s)
{
    const struct op_mass *op = p->op;
    const uint32_t d = op->geom->head_dim;
    op->ops->dots(&(struct op_dots){.a = op->q + (size_t)s * op->n_query * d,
                                    .b = p->k,
                                    .a_stride = d,
                                    .b_stride = d,
                                    .n_a = op->n_query,
                                    .n_b = PAGE_TOK,
                                    .width = d,
                                    .out = p->logit,
                                    .out_stride = PAGE_TOK});
}

static void sum_set(struct mass_page *p, uint32_t s)
{
    const struct op_mass *op = p->op;
    for (uint32_t i = 0; i < op->n_query; i++) {
        const size_t q = (size_t)s * op->n_query + i;
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            op->sum[q] += expf(p->logit[i * PAGE_TOK + t] - op->top[q]);
        p->finite = p->finite && isfinite(op->sum[q]);
    }
}

static void weigh_set(const struct mass_page *p, uint32_t s, uint32_t page)
{
    const struct op_mass *op = p->op;
    float *mass = op->mass + s * op->mass_stride + (size_t)page * PAGE_TOK;
    memset(mass, 0, PAGE_TOK * sizeof *mass);
    for (uint32_t i = 0; i < op->n_query; i++) {
        const size_t q = (size_t)s * op->n_query + i;
        const float share = 1.0f / (op->sum[q] * (float)op->n_query);
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            mass[t] += share * expf(p->logit[i * PAGE_TOK + t] - op->top[q]);
    }
}

static bool mass_ref(const struct op_mass *op)
{
    const size_t d = op->geom->head_dim;
    struct mass_page p = {.op = op, .k = op->scratch, .finite = true};
    p.logit = p.k + PAGE_TOK * d;
    for (int pass = 0; pass < 2 && p.finite; pass++)
        for (uint32_t i = 0; i < op->n_page[op->n_set - 1]; i++) {
            op->ops->keys(&(struct op_keys){
                .geom = op->geom, .pool = op->pool, .page = op->page + i, .n_page = 1, .out = p.k});
            for (uint32_t s = 0; s < op->n_set; s++) {
                if (i >= op->n_page[s]) continue;
                score_set(&p, s);
                if (pass == 0)
                    sum_set(&p, s);
                else
                    weigh_set(&p, s, i);
            }
        }
    return p.finite;
}

void ops_fill_ref_mass(struct ops *o)
{
    o->mass = mass_ref;
}
