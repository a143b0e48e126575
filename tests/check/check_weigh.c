/* check_weigh.c: softmax weights by panels and their sums along lines, of every instruction set,
 * against one softmax over all keys in double.
 *
 * Tolerances: a weight is an f16, half a step of which is 2^-11 of it or 2^-25; exponentials err by
 * 3e-6, and what is 2^-25 of a panel's largest may be none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "ops/ops.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { ROWS = 37, WIDTH = 304, PANELS = 3, N = WIDTH * PANELS, STRIDE = N + 5 };

struct data {
    float score[ROWS * STRIDE];
    uint32_t seen[ROWS]; /* keys of a row */
    uint16_t weight[PANELS][ROWS * WIDTH];
    float top[PANELS][ROWS], max[ROWS], sum[ROWS];
    float column[N], down[2 * N];
};

static void make_data(struct data *d, uint64_t *seed)
{
    memset(d, 0, sizeof *d);
    for (uint32_t i = 0; i < ROWS; i++) {
        d->seen[i] = 1 + random_next(seed) % N;
        for (uint32_t c = 0; c < STRIDE; c++)
            d->score[i * STRIDE + c] =
                c < d->seen[i] ? 40 * random_unit(seed) * random_unit(seed) : NAN;
        d->max[i] = -INFINITY;
    }
    d->seen[0] = 1;
    d->seen[1] = d->seen[2] = d->seen[3] = N;
    for (uint32_t c = 0; c < N; c++) d->score[STRIDE + c] = (float)(c % 7) + 300;
    /* Later panels far above and far below the first one. */
    for (uint32_t c = 0; c < N; c++) d->score[2 * STRIDE + c] = (float)(c / WIDTH * 200 + c % 5);
    for (uint32_t c = 0; c < N; c++) d->score[3 * STRIDE + c] = -(float)(c / WIDTH * 200 + c % 5);
}

static bool weigh(struct data *d, const struct ops *o, uint32_t panel)
{
    uint32_t n[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint32_t at = panel * WIDTH;
        n[i] = d->seen[i] <= at ? 0 : d->seen[i] - at < WIDTH ? d->seen[i] - at : WIDTH;
    }
    return o->weigh(&(struct op_weigh){.score = d->score + panel * WIDTH,
                                       .score_stride = STRIDE,
                                       .n_row = ROWS,
                                       .width = WIDTH,
                                       .n = n,
                                       .weight = d->weight[panel],
                                       .top = d->top[panel],
                                       .max = d->max,
                                       .sum = d->sum});
}

static void sum_lines(struct data *d, const struct ops *o, bool keep)
{
    float lse[ROWS];
    for (uint32_t i = 0; i < ROWS; i++) lse[i] = d->max[i] + logf(d->sum[i]);
    for (uint32_t panel = 0; panel < PANELS; panel++) {
        uint32_t first[ROWS]; /* a row's last key is at N - 1 */
        for (uint32_t i = 0; i < ROWS; i++)
            first[i] = d->seen[i] <= panel * WIDTH ? UINT32_MAX : N - d->seen[i] + panel * WIDTH;
        o->lines(&(struct op_lines){.weight = d->weight[panel],
                                    .top = d->top[panel],
                                    .lse = lse,
                                    .n_row = ROWS,
                                    .width = WIDTH,
                                    .column = d->column + panel * WIDTH,
                                    .down = d->down,
                                    .first = first,
                                    .keep = keep});
    }
}

static void assert_near(float got, double want, double slack)
{
    if (!(fabs((double)got - want) <= slack)) fail_msg("%g, wanted %g", (double)got, want);
}

static void sums_are_those_of_one_softmax(void **state)
{
    (void)state;
    static struct data d;
    for (size_t k = 0; k < N_ISA; k++) {
        static double column[N], down[N];
        struct ops o;
        uint64_t seed = 1;
        if (ops_init_isa(&o, isa_names[k], NULL) != SAC_OK) continue;
        make_data(&d, &seed);
        for (uint32_t panel = 0; panel < PANELS; panel++) assert_true(weigh(&d, &o, panel));
        sum_lines(&d, &o, false);
        memset(column, 0, sizeof column);
        memset(down, 0, sizeof down);
        for (uint32_t i = 0; i < ROWS; i++) {
            const float *x = d.score + i * STRIDE;
            double max = -INFINITY, sum = 0;
            for (uint32_t c = 0; c < d.seen[i]; c++) max = fmax(max, (double)x[c]);
            for (uint32_t c = 0; c < d.seen[i]; c++) sum += exp((double)x[c] - max);
            for (uint32_t c = 0; c < d.seen[i]; c++) {
                const double share = exp((double)x[c] - max) / sum;
                column[c] += share;
                down[N - d.seen[i] + c] += share;
            }
        }
        for (uint32_t c = 0; c < N; c++) {
            assert_near(d.column[c], column[c], 0x1p-10 * column[c] + ROWS * 1e-7);
            assert_near(d.down[c], down[c], 0x1p-10 * down[c] + ROWS * 1e-7);
            assert_true(d.down[N + c] == 0);
        }
    }
}

static float kept(const struct data *d, uint32_t i, uint32_t c)
{
    return bf16_to_f32(d->weight[c / WIDTH][i * WIDTH + c % WIDTH]);
}

/* Shares that are kept are those that were added: half a step of bf16 is 2^-8 of it, and sums are
 * in another order. */
static void shares_that_are_kept_are_added(void **state)
{
    (void)state;
    static struct data d, before;
    for (size_t k = 0; k < N_ISA; k++) {
        static double column[N], down[N];
        struct ops o;
        uint64_t seed = 2;
        if (ops_init_isa(&o, isa_names[k], NULL) != SAC_OK) continue;
        make_data(&d, &seed);
        for (uint32_t i = 0; i < N; i++) {
            d.column[i] = d.down[i] = 1;
            column[i] = down[i] = 1;
        }
        for (uint32_t panel = 0; panel < PANELS; panel++) assert_true(weigh(&d, &o, panel));
        before = d;
        sum_lines(&d, &o, true);
        for (uint32_t i = 0; i < ROWS; i++)
            for (uint32_t c = 0; c < N; c++) {
                const uint32_t panel = c / WIDTH;
                const float weight = f16_to_f32(before.weight[panel][i * WIDTH + c % WIDTH]);
                const double lse = (double)d.max[i] + log((double)d.sum[i]);
                const double share =
                    weight > 0 ? (double)weight * exp((double)d.top[panel][i] - lse) : 0;
                assert_near(kept(&d, i, c), share, 0x1.1p-8 * share + 1e-30);
                column[c] += (double)kept(&d, i, c);
                if (c < d.seen[i]) down[N - d.seen[i] + c] += (double)kept(&d, i, c);
            }
        for (uint32_t c = 0; c < N; c++) {
            assert_near(d.column[c], column[c], 0x1p-20 * column[c]);
            assert_near(d.down[c], down[c], 0x1p-20 * down[c]);
        }
    }
}

/* Of lines of all lengths, crossed by any number of others. */
static void keys_of_lines_are_quotients(void **state)
{
    (void)state;
    enum { MOST = 333 };
    static float left[MOST], key[MOST], top[MOST / OP_RATE_LINES + 1];
    static uint32_t before[MOST + 1];
    static const uint32_t sizes[][2] = {{333, 0}, {333, 200}, {320, 319}, {64, 3}, {7, 2}, {1, 0}};
    uint64_t seed = 4;
    for (size_t k = 0; k < 6 * N_ISA; k++) {
        struct ops o;
        const uint32_t n = sizes[k % 6][0], pos0 = sizes[k % 6][1];
        if (ops_init_isa(&o, isa_names[k / 6], NULL) != SAC_OK) continue;
        before[n] = 0;
        for (uint32_t i = n; i-- > 0;) {
            before[i] = before[i + 1] + random_next(&seed) % 2;
            left[i] = random_unit(&seed);
            if (i / OP_RATE_LINES == 1) left[i] = -fabsf(left[i]);
            key[i] = -77;
        }
        o.rate(&(struct op_rate){
            .left = left, .before = before, .n = n, .pos0 = pos0, .key = key, .top = top});
        for (uint32_t i = 0; i < n; i++) {
            uint32_t cell = 0;
            float most = 0;
            for (uint32_t row = pos0 > i ? pos0 : i; row < n; row++)
                cell += before[n - 1 - (row - i)] == before[n - (row - i)];
            const uint32_t first = i / OP_RATE_LINES * OP_RATE_LINES;
            for (uint32_t j = first; j < first + OP_RATE_LINES && j < n; j++)
                most = fmaxf(most, key[j]);
            assert_true(key[i] == left[i] / (float)(cell ? cell : 1));
            assert_true(top[i / OP_RATE_LINES] == most);
        }
    }
}

static void what_is_not_finite_is_told(void **state)
{
    (void)state;
    static struct data d;
    static const float bad[] = {NAN, INFINITY};
    for (size_t k = 0; k < 2 * N_ISA; k++) {
        struct ops o;
        uint64_t seed = 3;
        if (ops_init_isa(&o, isa_names[k / 2], NULL) != SAC_OK) continue;
        make_data(&d, &seed);
        d.score[STRIDE + WIDTH + 17] = bad[k % 2];
        assert_true(weigh(&d, &o, 0));
        assert_false(weigh(&d, &o, 1));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_one_softmax),
        cmocka_unit_test(shares_that_are_kept_are_added),
        cmocka_unit_test(keys_of_lines_are_quotients),
        cmocka_unit_test(what_is_not_finite_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
