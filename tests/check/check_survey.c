/* check_survey.c: the survey slot of every instruction set against exact masses in double.
 *
 * What a key's mass decides is arithmetic of integers, done again here from the exact mass. Masses
 * of a set may be off by 8-bit mantissas of queries and keys (a logit moves by 2^-8 sum |q k|, here
 * below 0.15) and by 6 % of each exponential: together less than half an octave, the tolerance
 * SLACK in steps. So a key is to be taken if it would be with SLACK steps more, not if it would not
 * with SLACK fewer, and its weight is right within SLACK. */
#include "base/half.h"
#include "check_attn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "ops/cpu/survey.h"

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};

enum { N_TOK = 1280, N_SET = 3, N_PART = 2, N_LIST = N_SET * N_PART, N_WORD = N_TOK / PAGE_TOK };
enum { SLACK = OP_SURVEY_OCTAVE / 2 };

struct problem {
    struct sequence s;
    uint32_t n_query, n_page[N_SET];
    float least, spread;
    float *q, *lse; /* [N_LIST, n_query, ..] */
    double *mass;   /* [N_LIST, N_TOK] exact, root of the mean square over the queries */
};

struct result {
    uint32_t mask[N_LIST][N_WORD], n_taken[N_LIST];
    uint8_t weight[N_LIST][N_TOK];
};

/* Squares of shares of one query, of the sum as it is defined, added to `mass`. */
static void add_query(struct problem *p, const double *logit, size_t list, double lse)
{
    const uint32_t n_page = p->n_page[list / N_PART];
    double sum = 1;
    for (uint32_t t = 0; t < n_page * PAGE_TOK; t++)
        sum += (double)survey_page_weight(n_page, t / PAGE_TOK) * exp(logit[t] - lse);
    for (uint32_t t = 0; t < n_page * PAGE_TOK; t++)
        p->mass[list * N_TOK + t] += pow(exp(logit[t] - lse) / sum, 2) / p->n_query;
}

static void spread_masses(struct problem *p)
{
    for (uint32_t i = 0; i < N_LIST * N_WORD; i++) {
        double *mass = p->mass + (size_t)i * PAGE_TOK, all = 0;
        for (uint32_t t = 0; t < PAGE_TOK; t++) all += mass[t];
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            mass[t] = sqrt(mass[t] + (double)p->spread * (all / PAGE_TOK - mass[t]));
    }
}

static void exact(struct problem *p)
{
    const struct page_geom *g = &p->s.geom;
    const uint32_t d = g->head_dim;
    float *k = mem_alloc((size_t)N_TOK * d * sizeof *k);
    double *logit = mem_alloc(N_TOK * sizeof *logit);
    for (uint32_t i = 0; i < N_WORD; i++)
        page_read(k + (size_t)i * PAGE_TOK * d, NULL, g,
                  p->s.pool + (size_t)p->s.table[i] * g->bytes, PAGE_SEALED, PAGE_TOK);
    for (size_t q = 0; q < N_LIST * p->n_query; q++) {
        for (uint32_t t = 0; t < N_TOK; t++) {
            logit[t] = 0;
            for (uint32_t c = 0; c < d; c++)
                logit[t] += (double)p->q[q * d + c] * (double)k[(size_t)t * d + c];
        }
        add_query(p, logit, q / p->n_query, (double)p->lse[q]);
    }
    spread_masses(p);
    mem_free(logit);
    mem_free(k);
}

static struct problem problem_make(sac_kv_type type, uint32_t d, uint32_t n_query, uint64_t seed)
{
    struct problem p = {.n_query = n_query,
                        .n_page = {0, 9, N_WORD},
                        .least = 0.002f,
                        .spread = seed % 2 ? 0.4f : 0};
    struct workers *pool;
    struct ops ref;
    const size_t n = (size_t)N_LIST * n_query;
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
    p.lse = mem_calloc(n, sizeof *p.lse);
    p.mass = mem_calloc((size_t)N_LIST * N_TOK, sizeof *p.mass);
    for (size_t i = 0; i < n * d; i++) p.q[i] = 2 * rng_normal(&seed) / sqrtf((float)d);
    for (size_t i = 0; i < n; i++) p.lse[i] = 3 + rng_float(&seed);
    exact(&p);
    return p;
}

static void problem_free(struct problem *p)
{
    mem_free(p->q);
    mem_free(p->lse);
    mem_free(p->mass);
    sequence_deinit(&p->s);
}

static struct op_survey op_of(const struct ops *ops, const struct problem *p, struct result *r)
{
    memset(r, 0xff, sizeof *r);
    return (struct op_survey){.ops = ops,
                              .geom = &p->s.geom,
                              .frames = {.base = p->s.pool},
                              .page = p->s.table,
                              .n_page = p->n_page,
                              .n_set = N_SET,
                              .n_part = N_PART,
                              .n_query = p->n_query,
                              .q = p->q,
                              .lse = p->lse,
                              .least = p->least,
                              .spread = p->spread,
                              .seed = 7,
                              .mask = r->mask[0],
                              .n_word = N_WORD,
                              .weight = r->weight[0],
                              .n_taken = r->n_taken};
}

static bool run(const struct ops *ops, const struct problem *p, struct result *r, uint32_t n_worker)
{
    const uint32_t d = p->s.geom.head_dim;
    const size_t bytes = ops_survey_scratch(N_SET, N_PART, p->n_query, d);
    const size_t room = (ops_survey_room(p->n_query, d) + 63) & ~(size_t)63;
    struct op_survey op = op_of(ops, p, r);
    struct workers *pool;
    assert_int_equal(workers_create(&pool, n_worker, NULL), SAC_OK);
    op.scratch = mem_map(bytes);
    op.room = mem_map(n_worker * room);
    op.room_stride = room;
    memset(op.scratch, 0xff, bytes);
    memset(op.room, 0xff, n_worker * room);
    const bool finite = ops->survey(pool, &op);
    mem_unmap(op.scratch, bytes);
    mem_unmap(op.room, n_worker * room);
    workers_destroy(pool);
    return finite;
}

static int32_t bits_of(double mass)
{
    const float f = (float)mass;
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* One key; returns whether it was taken. */
static bool check_key(const char *isa, const struct problem *p, const struct result *r,
                      uint32_t list, uint32_t t, int32_t limit)
{
    const double mass = p->mass[list * N_TOK + t], least = (double)p->least;
    const int32_t below =
        (bits_of(least * least * p->n_query) - bits_of(mass * mass * p->n_query)) >> SURVEY_SHIFT;
    const bool taken = r->mask[list][t / PAGE_TOK] >> t % PAGE_TOK & 1;
    const int32_t step = below > 0 ? below : 0, weight = r->weight[list][t];
    if (taken && below - SLACK >= limit)
        fail_msg("%s: list %u takes key %u, of mass %g", isa, list, t, mass);
    if (!taken && below + SLACK < limit)
        fail_msg("%s: list %u leaves key %u, of mass %g", isa, list, t, mass);
    if (taken && abs(weight - step) > SLACK)
        fail_msg("%s: list %u weighs key %u by %d, not %d", isa, list, t, weight, step);
    return taken;
}

static void compare(const struct ops *ops, const struct problem *p)
{
    static struct result r;
    int32_t limit[SURVEY_PERIOD + PAGE_TOK];
    struct op_survey op = op_of(ops, p, &r);
    assert_true(run(ops, p, &r, 1));
    survey_limits(limit);
    for (uint32_t list = 0; list < N_LIST; list++) {
        const uint32_t set = list / N_PART, seed = survey_seed(&op, set, list % N_PART);
        uint32_t n = 0;
        for (uint32_t t = 0; t < p->n_page[set] * PAGE_TOK; t++)
            n += check_key(ops->isa, p, &r, list, t,
                           limit[survey_place(seed, t / PAGE_TOK) + t % PAGE_TOK]);
        assert_int_equal(n, r.n_taken[list]);
        if (set == 0) assert_int_equal(n, 0);
        for (uint32_t i = p->n_page[set]; i < N_WORD; i++)
            assert_int_equal(r.mask[list][i], UINT32_MAX); /* not its business */
    }
}

static void masses_decide(void **state)
{
    (void)state;
    static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_BF16, SAC_KV_Q8};
    static const uint32_t dims[] = {32, 64, 96, 128, 256}, queries[] = {16, 32, 48};
    for (uint32_t i = 0; i < 15; i++) {
        struct problem p = problem_make(types[i % 3], dims[i % 5], queries[i % 3], i);
        for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
            struct ops ops;
            if (ops_init_isa(&ops, isa_names[j], NULL) == SAC_OK) compare(&ops, &p);
        }
        problem_free(&p);
    }
}

/* Over many seeds the weights of what is taken add up to all the mass, key by key. */
static void a_sample_stands_for_all(void **state)
{
    (void)state;
    enum { N_SEED = 256, LIST = N_LIST - 1 };
    static struct result r;
    struct ops ops;
    struct problem p = problem_make(SAC_KV_F16, 64, 16, 2);
    const size_t bytes = ops_survey_scratch(N_SET, N_PART, p.n_query, 64);
    const size_t room_bytes = ops_survey_room(p.n_query, 64);
    void *scratch = mem_map(bytes), *room = mem_map(room_bytes);
    double all = 0, sampled = 0, square = 0;
    assert_int_equal(ops_init(&ops, NULL), SAC_OK);
    for (uint32_t t = 0; t < N_TOK; t++) all += p.mass[LIST * N_TOK + t];
    for (uint32_t seed = 0; seed < N_SEED; seed++) {
        double sum = 0;
        struct op_survey op = op_of(&ops, &p, &r);
        op.scratch = scratch;
        op.room = room;
        op.seed = seed;
        assert_true(ops.survey(NULL, &op));
        for (uint32_t t = 0; t < N_TOK; t++)
            if (r.mask[LIST][t / PAGE_TOK] >> t % PAGE_TOK & 1)
                sum +=
                    p.mass[LIST * N_TOK + t] * exp2((double)r.weight[LIST][t] / OP_SURVEY_OCTAVE);
        sampled += sum / N_SEED;
        square += (sum - all) * (sum - all) / N_SEED;
    }
    print_message("mass %.4f, sampled %.4f on average, with a deviation of %.4f\n", all, sampled,
                  sqrt(square));
    assert_true(fabs(sampled - all) < 0.01 * all);
    assert_true(square <= (double)p.least * all);
    mem_unmap(scratch, bytes);
    mem_unmap(room, room_bytes);
    problem_free(&p);
}

/* Query heads that ask the same draw apart: what one misses another may read. */
static void heads_draw_apart(void **state)
{
    (void)state;
    static struct result r;
    struct problem p = problem_make(SAC_KV_F16, 64, 16, 4);
    const size_t n = p.n_query, last = N_LIST - 1;
    memcpy(p.q + last * n * 64, p.q + (last - 1) * n * 64, n * 64 * sizeof *p.q);
    memcpy(p.lse + last * n, p.lse + (last - 1) * n, n * sizeof *p.lse);
    for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
        struct ops ops;
        if (ops_init_isa(&ops, isa_names[j], NULL) != SAC_OK) continue;
        assert_true(run(&ops, &p, &r, 1));
        assert_true(memcmp(r.mask[last], r.mask[last - 1], sizeof r.mask[0]) != 0);
    }
    problem_free(&p);
}

/* However many workers share it out. */
static void workers_change_no_bit(void **state)
{
    (void)state;
    static struct result one, many;
    static const uint32_t n_worker[] = {2, 3, 8};
    struct problem p = problem_make(SAC_KV_F16, 64, 32, 3);
    for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
        struct ops ops;
        if (ops_init_isa(&ops, isa_names[j], NULL) != SAC_OK) continue;
        assert_true(run(&ops, &p, &one, 1));
        for (size_t i = 0; i < sizeof n_worker / sizeof n_worker[0]; i++) {
            assert_true(run(&ops, &p, &many, n_worker[i]));
            assert_memory_equal(&one, &many, sizeof one);
        }
    }
    problem_free(&p);
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    static struct result r;
    for (size_t j = 0; j < sizeof isa_names / sizeof isa_names[0]; j++) {
        struct ops ops;
        if (ops_init_isa(&ops, isa_names[j], NULL) != SAC_OK) continue;
        struct problem p = problem_make(SAC_KV_F16, 64, 16, 1);
        uint16_t *k = (uint16_t *)(void *)(p.s.pool + (size_t)p.s.table[3] * p.s.geom.bytes);
        k[64 * 5 + 2] = 0x7e00; /* NaN */
        assert_false(run(&ops, &p, &r, 2));
        k[64 * 5 + 2] = 0x7c00; /* infinity */
        assert_false(run(&ops, &p, &r, 2));
        problem_free(&p);
    }
}

/* Pages that count in a sum count for all, also where they get rarer. */
static void weights_of_pages_add_up(void **state)
{
    static const uint32_t n_page[] = {0, 1, 9, 13, 40, 515, 516, 517, 4000};
    (void)state;
    for (size_t i = 0; i < sizeof n_page / sizeof *n_page; i++) {
        double sum = 0;
        for (uint32_t p = 0; p < n_page[i]; p++) sum += (double)survey_page_weight(n_page[i], p);
        assert_true(fabs(sum - n_page[i]) < 1e-3 * n_page[i] + 1e-9);
    }
    assert_true(survey_page_weight(515, OP_SURVEY_STRIDE / 2) > 1);
    assert_true(survey_page_weight(516, OP_SURVEY_STRIDE / 2) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_of_pages_add_up), cmocka_unit_test(masses_decide),
        cmocka_unit_test(a_sample_stands_for_all), cmocka_unit_test(workers_change_no_bit),
        cmocka_unit_test(heads_draw_apart),        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
