/* check_mass.c: the mass slot of every instruction set against exact sums in double.
 *
 * Tolerance: a set may round queries and keys to 8-bit mantissas, which moves a logit by at most
 * 2^-8 sum |q k| (here below 0.1) and so a share by that factor; keys below the cut may be lost,
 * each less than e^-OP_MASS_CUT of the largest. Either way the masses and what the caller summed up
 * add up to 1. */
#include "base/half.h"
#include "check_attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};

enum { N_TOK = 640, N_SET = 3 };

struct problem {
    struct sequence s;
    uint32_t n_query, n_page[N_SET];
    float *q, *top, *own; /* [N_SET, n_query, ..]; own: a sum of other keys */
    double *mass;         /* [N_SET, N_TOK] exact */
};

static double logit(const struct problem *p, size_t q, const float *k)
{
    const uint32_t d = p->s.geom.head_dim;
    double sum = 0;
    for (uint32_t c = 0; c < d; c++) sum += (double)p->q[q * d + c] * (double)k[c];
    return sum;
}

static void exact(struct problem *p)
{
    const struct page_geom *g = &p->s.geom;
    const uint32_t d = g->head_dim;
    float *k = mem_alloc((size_t)N_TOK * d * sizeof *k);
    for (uint32_t i = 0; i < N_TOK / PAGE_TOK; i++)
        page_read(k + (size_t)i * PAGE_TOK * d, NULL, g,
                  p->s.pool + (size_t)p->s.table[i] * g->bytes, PAGE_SEALED, PAGE_TOK);
    for (uint32_t s = 0; s < N_SET; s++)
        for (uint32_t i = 0; i < p->n_query; i++) {
            const size_t q = (size_t)s * p->n_query + i;
            const uint32_t n = p->n_page[s] * PAGE_TOK;
            double sum = (double)p->own[q];
            for (uint32_t t = 0; t < n; t++)
                sum += exp(logit(p, q, k + (size_t)t * d) - (double)p->top[q]);
            for (uint32_t t = 0; t < n; t++)
                p->mass[s * N_TOK + t] +=
                    exp(logit(p, q, k + (size_t)t * d) - (double)p->top[q]) / sum / p->n_query;
        }
    mem_free(k);
}

static struct problem problem_make(sac_kv_type type, uint32_t d, uint32_t n_query, uint64_t seed)
{
    struct problem p = {.n_query = n_query, .n_page = {0, 9, N_TOK / PAGE_TOK}};
    struct workers *pool;
    struct ops ref;
    const size_t n = (size_t)N_SET * n_query;
    assert_int_equal(workers_create(&pool, 1, NULL), SAC_OK);
    assert_int_equal(ops_init_isa(&ref, "ref", NULL), SAC_OK);
    sequence_init(&p.s,
                  (struct page_geom){
                      .n_layer = 1, .n_kv_head = 1, .head_dim = d, .type_k = type, .type_v = type},
                  N_TOK);
    sequence_fill(&p.s, seed);
    sequence_store(&p.s, pool, &ref);
    workers_destroy(pool);
    p.q = mem_calloc(n * d, sizeof *p.q);
    p.top = mem_calloc(n, sizeof *p.top);
    p.own = mem_calloc(n, sizeof *p.own);
    p.mass = mem_calloc((size_t)N_SET * N_TOK, sizeof *p.mass);
    for (size_t i = 0; i < n * d; i++) p.q[i] = 2 * rng_normal(&seed) / sqrtf((float)d);
    for (size_t i = 0; i < n; i++) {
        p.top[i] = 3 + rng_float(&seed);
        p.own[i] = 2 + rng_float(&seed); /* at least 1, as if top were one of them */
    }
    exact(&p);
    return p;
}

static void problem_free(struct problem *p)
{
    mem_free(p->q);
    mem_free(p->top);
    mem_free(p->own);
    mem_free(p->mass);
    sequence_deinit(&p->s);
}

static bool run(const struct ops *ops, const struct problem *p, float *sum, float *mass)
{
    const size_t bytes = ops_mass_scratch(N_SET, p->n_query, p->s.geom.head_dim);
    void *scratch = mem_map(bytes);
    memset(scratch, 0xff, bytes);
    memcpy(sum, p->own, N_SET * p->n_query * sizeof *sum);
    memset(mass, 0xff, (size_t)N_SET * N_TOK * sizeof *mass);
    const bool finite = ops->mass(&(struct op_mass){.ops = ops,
                                                    .geom = &p->s.geom,
                                                    .pool = p->s.pool,
                                                    .page = p->s.table,
                                                    .n_page = p->n_page,
                                                    .n_set = N_SET,
                                                    .n_query = p->n_query,
                                                    .q = p->q,
                                                    .top = p->top,
                                                    .sum = sum,
                                                    .mass = mass,
                                                    .mass_stride = N_TOK,
                                                    .scratch = scratch});
    mem_unmap(scratch, bytes);
    return finite;
}

static void compare(const struct ops *ops, const struct problem *p)
{
    float *sum = mem_calloc((size_t)N_SET * p->n_query, sizeof *sum);
    float *mass = mem_calloc((size_t)N_SET * N_TOK, sizeof *mass);
    assert_true(run(ops, p, sum, mass));
    for (uint32_t s = 0; s < N_SET; s++) {
        double all = 0;
        for (uint32_t i = 0; i < p->n_query; i++) {
            const size_t q = (size_t)s * p->n_query + i;
            all += (double)(p->own[q] / sum[q]) / p->n_query;
        }
        for (uint32_t t = 0; t < p->n_page[s] * PAGE_TOK; t++) {
            const double want = p->mass[s * N_TOK + t], is = (double)mass[s * N_TOK + t];
            all += is;
            if (fabs(is - want) > 0.1 * want + 2 * exp(-(double)OP_MASS_CUT))
                fail_msg("%s: set %u, key %u has mass %g instead of %g", ops->isa, s, t, is, want);
        }
        if (fabs(all - 1) > 2e-3) fail_msg("%s: set %u holds %g in all", ops->isa, s, all);
    }
    mem_free(sum);
    mem_free(mass);
}

static void masses_are_those_of_the_softmax(void **state)
{
    (void)state;
    static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    static const uint32_t dims[] = {32, 64, 96, 128, 256}, queries[] = {1, 16, 56, 33};
    for (uint32_t i = 0; i < 15; i++) {
        struct problem p = problem_make(types[i % 3], dims[i % 5], queries[i % 4], i);
        for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
            struct ops ops;
            if (ops_init_isa(&ops, isa_names[j], NULL) == SAC_OK) compare(&ops, &p);
        }
        problem_free(&p);
    }
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
        struct ops ops;
        if (ops_init_isa(&ops, isa_names[j], NULL) != SAC_OK) continue;
        struct problem p = problem_make(SAC_KV_F16, 64, 7, 1);
        float *sum = mem_calloc((size_t)N_SET * p.n_query, sizeof *sum);
        float *mass = mem_calloc((size_t)N_SET * N_TOK, sizeof *mass);
        uint16_t *k = (uint16_t *)(void *)(p.s.pool + (size_t)p.s.table[3] * p.s.geom.bytes);
        k[64 * 5 + 2] = 0x7e00; /* NaN */
        assert_false(run(&ops, &p, sum, mass));
        mem_free(sum);
        mem_free(mass);
        problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masses_are_those_of_the_softmax),
        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
