/* check_best.c: the slots `best` and `mark` of every instruction set that this CPU has: against a
 * sorted list, and against `ref` where a choice has one answer. A sum of many f32 values has an
 * error of its own, so a choice by sum may differ by what lies within 1e-9 of the target. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "random_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_PAGE = 37, N_MAX = N_PAGE * PAGE_TOK };

struct data {
    float value[N_MAX];
    uint32_t order[N_MAX]; /* by the definition: higher value, then lower index; NaN last */
    uint32_t spare[N_MAX], mask[N_PAGE];
};

static const float *sorted_value;

static int better(const void *a, const void *b)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const uint32_t x = op_best_key(sorted_value[i]), y = op_best_key(sorted_value[j]);
    return x != y ? (x > y ? -1 : 1) : i < j ? -1 : i > j;
}

static void sort_values(struct data *d, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) d->order[i] = i;
    sorted_value = d->value;
    qsort(d->order, n, sizeof *d->order, better);
}

static void mark(struct data *d, const struct ops *o, struct op_cut cut, uint32_t n)
{
    memset(d->mask, 0, sizeof d->mask);
    o->mark(
        &(struct op_mark){.value = d->value, .cut = cut, .n_page = n / PAGE_TOK, .mask = d->mask});
}

/* The first n_best in order are marked and nothing else is. */
static void check_marks(const struct data *d, uint32_t n, uint32_t n_best)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t tok = d->order[i];
        assert_int_equal(d->mask[tok / PAGE_TOK] >> tok % PAGE_TOK & 1u, i < n_best);
    }
}

/* Few different values make ties; some are NaN, infinite, negative or zero of both signs. */
static void fill_any(struct data *d, uint64_t *seed)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY, 0.0f, -0.0f, -1.0f, 1e-42f, 3e38f};
    for (uint32_t i = 0; i < N_MAX; i++) {
        const uint64_t x = random_next(seed);
        d->value[i] = x % 5 == 0 ? odd[x / 5 % 8] : (float)(x / 5 % 50) - 20.0f;
    }
}

#define EACH_SET(o)                                                                                \
    struct ops o;                                                                                  \
    for (size_t set_ = 0; set_ < N_ISA; set_++)                                                    \
        if (ops_init_isa(&o, isa_names[set_], NULL) == SAC_OK)

static void the_best_by_number(void **state)
{
    (void)state;
    static struct data d;
    uint64_t seed = 1;
    EACH_SET(o)
    {
        for (uint32_t n = PAGE_TOK; n <= N_MAX; n += 3 * PAGE_TOK) {
            fill_any(&d, &seed);
            sort_values(&d, n);
            for (uint32_t k = 0; k <= n; k += 1 + k / 3) {
                const struct op_best op = {.value = d.value, .n = n, .target = k, .spare = d.spare};
                mark(&d, &o, o.best(&op), n);
                check_marks(&d, n, k);
            }
        }
    }
}

static void the_best_by_sum(void **state)
{
    (void)state;
    static struct data d;
    uint64_t seed = 2;
    EACH_SET(o)
    {
        for (int round = 0; round < 60; round++) {
            const uint32_t n = (1 + (uint32_t)round % N_PAGE) * PAGE_TOK;
            double sum = 0, best = 0;
            for (uint32_t i = 0; i < n; i++) {
                d.value[i] = round % 3 ? expf(12 * random_unit(&seed)) : (float)(i % 3);
                sum += (double)d.value[i];
            }
            sort_values(&d, n);
            const double target = sum * (0.05 + 0.0155 * round);
            const struct op_best op = {
                .value = d.value, .n = n, .by_sum = true, .target = target, .spare = d.spare};
            mark(&d, &o, o.best(&op), n);
            uint32_t n_best = 0;
            for (uint32_t p = 0; p < N_PAGE; p++) n_best += (uint32_t)__builtin_popcount(d.mask[p]);
            check_marks(&d, n, n_best);
            for (uint32_t i = 0; i + 1 < n_best; i++) best += (double)d.value[d.order[i]];
            assert_true(best < target * (1 + 1e-9)); /* one fewer would not do */
            if (n_best) best += (double)d.value[d.order[n_best - 1]];
            assert_true(best >= target * (1 - 1e-9) || n_best == n);
        }
    }
}

/* Nothing is wanted, more is wanted than there is, all values are nothing. */
static void edges_of_a_sum(void **state)
{
    (void)state;
    static struct data d;
    EACH_SET(o)
    {
        for (uint32_t i = 0; i < N_MAX; i++) d.value[i] = (float)(i % 2);
        struct op_best op = {.value = d.value, .n = N_MAX, .by_sum = true, .spare = d.spare};
        sort_values(&d, N_MAX);
        mark(&d, &o, o.best(&op), N_MAX);
        check_marks(&d, N_MAX, 0);
        op.target = N_MAX;
        mark(&d, &o, o.best(&op), N_MAX);
        check_marks(&d, N_MAX, N_MAX);
        op.target = 100;
        mark(&d, &o, o.best(&op), N_MAX);
        check_marks(&d, N_MAX, 100);
    }
}

static void marks_go_to_listed_words(void **state)
{
    (void)state;
    static struct data d;
    static const uint32_t page[3] = {5, 1, 36};
    EACH_SET(o)
    {
        memset(d.mask, 0, sizeof d.mask);
        for (uint32_t i = 0; i < 3 * PAGE_TOK; i++) d.value[i] = (float)i;
        d.mask[1] = 1u << 31;
        const struct op_cut cut = {.key = op_best_key(2 * PAGE_TOK - 2.0f), .n_tie = 1};
        o.mark(&(struct op_mark){
            .value = d.value, .cut = cut, .n_page = 3, .page = page, .mask = d.mask});
        for (uint32_t p = 0; p < N_PAGE; p++)
            assert_int_equal(d.mask[p], p == 36 ? UINT32_MAX : p == 1 ? 3u << 30 : 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_best_by_number),
        cmocka_unit_test(the_best_by_sum),
        cmocka_unit_test(edges_of_a_sum),
        cmocka_unit_test(marks_go_to_listed_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
