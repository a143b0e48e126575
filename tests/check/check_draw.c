/* check_draw.c: the slot `draw` of every instruction set that this CPU has, against what it
 * promises: certain items, one cut for all others, how many of them in a lane up to any place, and
 * how high the cut is. Sums of f32 in another order differ by 1e-4 of them at most. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "ops/ops.h"
#include "random_rows.h"

#include <math.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_MAX = 1000, FIRST = 64 };

struct data {
    float value[N_MAX], logw[N_MAX];
    uint32_t item[N_MAX];
};

/* Shares of a softmax over scores of a deviation. */
static void fill(struct data *d, uint32_t n, float deviation, uint64_t *seed)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        d->value[i] = expf(deviation * (random_unit(seed) + random_unit(seed)));
        sum += (double)d->value[i];
    }
    for (uint32_t i = 0; i < n; i++) d->value[i] = (float)((double)d->value[i] / sum);
}

static double sum_below(const struct data *d, uint32_t n, double cut)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += (double)d->value[i] < cut ? (double)d->value[i] : 0;
    return sum;
}

/* The cut that the weights tell of: all that were not certain have the same. 0: all were. */
static double cut_of(const struct data *d, uint32_t n_taken)
{
    double cut = 0;
    for (uint32_t i = 0; i < n_taken; i++) {
        assert_true(d->logw[i] >= 0); /* who is drawn stands for others, too */
        if (d->logw[i] == 0) continue;
        const double own = (double)d->value[d->item[i] - FIRST] * exp((double)d->logw[i]);
        if (cut > 0) assert_true(fabs(own / cut - 1) < 1e-4);
        cut = own;
    }
    return cut;
}

static void check(const struct ops *o, struct data *d, uint32_t n, double variance)
{
    const struct op_draw op = {.value = d->value,
                               .n = n,
                               .first = FIRST,
                               .variance = variance,
                               .item = d->item,
                               .logw = d->logw};
    const uint32_t n_taken = o->draw(&op);
    const double cut = cut_of(d, n_taken);
    uint32_t at = 0;
    double sum[OP_DRAW_LANES]; /* of chances, less what is drawn */
    if (!(cut > 0)) {
        assert_int_equal(n_taken, n);
        return;
    }
    for (uint32_t i = 0; i < OP_DRAW_LANES; i++) sum[i] = op_draw_begin(i) * 0x1p-32;
    for (uint32_t i = 0; i < n; i++) {
        const bool taken = at < n_taken && d->item[at] == FIRST + i;
        const double value = (double)d->value[i];
        const bool is_low = value < cut * (1 - 1e-4); /* what lies at the cut has a chance of 1 */
        if (value > cut * (1 + 1e-4)) assert_true(taken && d->logw[at] == 0);
        if (is_low) sum[i % OP_DRAW_LANES] += value / cut - taken;
        at += taken;
        assert_true(fabs(sum[i % OP_DRAW_LANES] - 0.5) < 0.51);
    }
    assert_int_equal(at, n_taken);
    assert_true(cut * sum_below(d, n, cut) <= variance * 1.001);
    const double next = (double)bits_float(float_bits((float)cut) + 2 * OP_DRAW_STEP);
    assert_true(next * sum_below(d, n, next) > variance);
}

static void draws_are_even_and_the_cut_is_right(void **state)
{
    (void)state;
    static struct data d;
    struct ops o;
    uint64_t seed = 1;
    uint32_t n_checked = 0;
    for (size_t set = 0; set < N_ISA; set++) {
        if (ops_init_isa(&o, isa_names[set], NULL) != SAC_OK) continue;
        for (uint32_t round = 0; round < 60; round++, n_checked++) {
            const uint32_t n = 100 + 15 * round;
            fill(&d, n, 0.5f + 0.05f * (float)round, &seed);
            check(&o, &d, n, 1e-4 * (1 + round));
        }
    }
    assert_true(n_checked >= 60);
}

/* Nothing may be missed: everything is certain. */
static void without_variance_all_is_taken(void **state)
{
    (void)state;
    static struct data d;
    struct ops o;
    uint64_t seed = 2;
    for (size_t set = 0; set < N_ISA; set++) {
        if (ops_init_isa(&o, isa_names[set], NULL) != SAC_OK) continue;
        fill(&d, 500, 1, &seed);
        const struct op_draw op = {
            .value = d.value, .n = 500, .first = FIRST, .item = d.item, .logw = d.logw};
        assert_int_equal(o.draw(&op), 500);
        for (uint32_t i = 0; i < 500; i++) assert_true(d.item[i] == FIRST + i && d.logw[i] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_even_and_the_cut_is_right),
        cmocka_unit_test(without_variance_all_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
