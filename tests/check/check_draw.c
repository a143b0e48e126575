/* check_draw.c: draws of every instruction set that this CPU has, against what they promise:
 * certain items, one cut for all others, how many of them in a lane up to any place, and how high
 * the cut is. Sums of f32 in another order differ by 1e-4 of them at most. And the pieces of a draw
 * are the same for any number of workers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "ops/lanes.h"
#include "random_rows.h"

#include <math.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_MAX = 3 * OP_DRAW_ITEMS, FIRST = 64 };

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

static uint32_t draw(const struct ops *o, struct data *d, uint32_t n, double variance,
                     struct workers *workers)
{
    struct op_draw_piece piece[OP_DRAW_PIECES(N_MAX)];
    struct op_draw_state state;
    struct op_lane_result result = {0};
    const struct op_lane_draw op = {.at = {.value = d->value,
                                           .n = n,
                                           .first = FIRST,
                                           .variance = variance,
                                           .item = d->item,
                                           .logw = d->logw},
                                    .n_more = 10,
                                    .most = n / 2,
                                    .piece = piece,
                                    .state = &state,
                                    .result = &result};
    o->lanes.draw(workers, o, &op, 1);
    assert_int_equal(result.n_chosen, result.n_tok);
    assert_int_equal(result.n_over, result.n_tok + 10 > n / 2);
    return result.n_tok;
}

static void check(const struct ops *o, struct data *d, uint32_t n, double variance)
{
    const uint32_t n_taken = draw(o, d, n, variance, NULL);
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
            const uint32_t n = round < 50 ? 100 + 15 * round : N_MAX - 777 * (59 - round);
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
        assert_int_equal(draw(&o, &d, 500, 0, NULL), 500);
        for (uint32_t i = 0; i < 500; i++) assert_true(d.item[i] == FIRST + i && d.logw[i] == 0);
    }
}

/* Many are taken and few; the last piece is short, or there are lanes of no item at all. */
static void workers_change_no_draw(void **state)
{
    (void)state;
    static struct data one, some;
    static const uint32_t n_item[] = {0, 5, OP_DRAW_ITEMS, OP_DRAW_ITEMS + 1, N_MAX - 40, N_MAX};
    struct ops o;
    struct workers *workers;
    uint64_t seed = 3;
    for (size_t i = 0; i < N_ISA * sizeof n_item / sizeof n_item[0]; i++) {
        const uint32_t n = n_item[i / N_ISA];
        if (ops_init_isa(&o, isa_names[i % N_ISA], NULL) != SAC_OK) continue;
        fill(&one, n, 2, &seed);
        some = one;
        for (uint32_t n_worker = 2; n_worker < 6; n_worker++) {
            const double variance = n_worker % 2 ? 1e-3 : 1e-5;
            assert_int_equal(workers_create(&workers, n_worker, NULL), SAC_OK);
            const uint32_t n_taken = draw(&o, &one, n, variance, NULL);
            assert_int_equal(draw(&o, &some, n, variance, workers), n_taken);
            assert_memory_equal(some.item, one.item, n_taken * sizeof *one.item);
            assert_memory_equal(some.logw, one.logw, n_taken * sizeof *one.logw);
            workers_destroy(workers);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_even_and_the_cut_is_right),
        cmocka_unit_test(workers_change_no_draw),
        cmocka_unit_test(without_variance_all_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
