/* check_draw.c: draws of every instruction set that this CPU has, against what they promise:
 * certain items, one cut for all others, how many of them in a lane up to any place, and how high
 * the cut is. Sums of f32 in another order differ by 1e-4 of them at most. And the pieces of a draw
 * are the same for any number of workers.
 *
 * Steady draws (ops/steady.h): every item weighs 1 in the mean over their numbers, each set takes
 * what the plain definition takes, and rows behind each other take mostly the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "ops/lanes.h"
#include "ops/steady.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_MAX = 3 * OP_DRAW_ITEMS, FIRST = 64 };

struct data {
    float value[N_MAX], logw[N_MAX];
    uint32_t item[N_MAX];
};

static struct op_draw how; /* whether draws are steady, and their numbers */

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
                                           .logw = d->logw,
                                           .steady = how.steady,
                                           .key = how.key,
                                           .pos = how.pos},
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
        for (int i = 0; i < 2; i++) {
            how = (struct op_draw){.steady = i};
            assert_int_equal(draw(&o, &d, 500, 0, NULL), 500);
            for (uint32_t k = 0; k < 500; k++)
                assert_true(d.item[k] == FIRST + k && d.logw[k] == 0);
        }
    }
    how = (struct op_draw){0};
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
            how = (struct op_draw){.steady = n_worker > 3, .key = n_worker, .pos = n};
            const double variance = n_worker % 2 ? 1e-3 : 1e-5;
            assert_int_equal(workers_create(&workers, n_worker, NULL), SAC_OK);
            const uint32_t n_taken = draw(&o, &one, n, variance, NULL);
            assert_int_equal(draw(&o, &some, n, variance, workers), n_taken);
            assert_memory_equal(some.item, one.item, n_taken * sizeof *one.item);
            assert_memory_equal(some.logw, one.logw, n_taken * sizeof *one.logw);
            workers_destroy(workers);
        }
    }
    how = (struct op_draw){0};
}

/* ---- Steady draws ---- */

enum { N_STEADY = 100 * PAGE_TOK, N_KEY = 3000 };

/* The chances that a cut gives items, in all; returns how many pages they make one expect. */
static double steady_chances(const struct data *d, double cut, double chance[N_STEADY])
{
    double pages = 0;
    for (uint32_t p = 0; p < N_STEADY; p += PAGE_TOK) {
        double most = 0;
        for (uint32_t i = p; i < p + PAGE_TOK; i++) most = fmax(most, (double)d->value[i]);
        const double page = fmin(1, most / cut);
        for (uint32_t i = p; i < p + PAGE_TOK; i++)
            chance[i] = fmin(page, (double)(STEADY_MORE * d->value[i]) / cut);
        pages += page;
    }
    return pages;
}

/* Each item weighs as much as it is rare, and over many keys that makes 1, but for the deviation of
 * as many draws as there were; pages are drawn as often as their largest chances say. */
static void steady_draws_stand_for_all(void **state)
{
    (void)state;
    static struct data d;
    static double mean[N_STEADY], chance[N_STEADY];
    struct ops o;
    uint64_t seed = 4;
    double off = 0, n_page = 0;
    assert_int_equal(ops_init(&o, NULL), SAC_OK);
    fill(&d, N_STEADY, 4, &seed);
    const double cut = cut_of(&d, draw(&o, &d, N_STEADY, 5e-3, NULL));
    const double want = steady_chances(&d, cut, chance);
    for (uint32_t key = 0; key < N_KEY; key++) {
        how = (struct op_draw){.steady = true, .key = key, .pos = 1000 + key % 7};
        const uint32_t n = draw(&o, &d, N_STEADY, 5e-3, NULL);
        for (uint32_t i = 0, page = 0; i < n; i++) {
            const double weight = exp((double)d.logw[i]), here = chance[d.item[i] - FIRST];
            assert_true((i == 0 || d.item[i] > d.item[i - 1]) && fabs(weight * here - 1) < 1e-4);
            mean[d.item[i] - FIRST] += weight / N_KEY;
            n_page += d.item[i] / PAGE_TOK != page;
            page = d.item[i] / PAGE_TOK;
        }
    }
    for (uint32_t i = 0; i < N_STEADY; i++) {
        const double n = chance[i] * N_KEY, deviation = sqrt((1 - chance[i]) / n);
        if (fabs(mean[i] - 1) > 6 * deviation + 6 / n + 1e-4)
            fail_msg("item %u, drawn %g times, weighs %g in the mean", i, n, mean[i]);
        off += (mean[i] - 1) * (double)d.value[i];
    }
    assert_true(fabs(off) < 0.005);
    assert_true(want < 0.7 * N_STEADY / PAGE_TOK && fabs(n_page / N_KEY / want - 1) < 0.01);
    how = (struct op_draw){0};
}

/* What each set takes by the same cut, of whole pages and of a part of one. */
static void steady_draws_are_those_of_ref(void **state)
{
    (void)state;
    static struct data want, got;
    struct ops ref, o;
    uint64_t seed = 5;
    assert_int_equal(ops_init_isa(&ref, "ref", NULL), SAC_OK);
    for (uint32_t round = 0; round < 200; round++) {
        const uint32_t n = round % 2 ? 64 * PAGE_TOK : 5 + 37 * round;
        const float cut = 0x1p-14f * (float)(1 + round % 9);
        fill(&want, n, 0.1f * (float)(round % 50), &seed);
        for (uint32_t i = 0; i < n && round % 3 == 0; i += 1 + round) want.value[i] = 0;
        memcpy(got.value, want.value, n * sizeof *got.value);
        struct op_draw op = {.value = want.value,
                             .n = n,
                             .first = FIRST,
                             .item = want.item,
                             .logw = want.logw,
                             .steady = true,
                             .key = round,
                             .pos = 77 * round};
        struct op_draw_piece p = {.begin = 0, .end = n};
        uint32_t sum[OP_DRAW_LANES] = {0};
        ref.draw.take(&op, &p, cut, sum, 0);
        const uint32_t n_want = p.n_taken;
        op.item = got.item;
        op.logw = got.logw;
        for (size_t set = 1; set < N_ISA; set++) {
            if (ops_init_isa(&o, isa_names[set], NULL) != SAC_OK) continue;
            o.draw.take(&op, &p, cut, sum, 0);
            assert_int_equal(p.n_taken, n_want);
            assert_memory_equal(got.item, want.item, n_want * sizeof *got.item);
            for (uint32_t i = 0; i < n_want; i++)
                assert_true(fabsf(got.logw[i] - want.logw[i]) <= 2e-6f * (1 + want.logw[i]));
        }
    }
}

static uint32_t mark_pages(const struct data *d, uint32_t n, bool *page)
{
    uint32_t n_page = 0;
    memset(page, 0, N_MAX / PAGE_TOK);
    for (uint32_t i = 0; i < n; i++) {
        bool *at = &page[(d->item[i] - FIRST) / PAGE_TOK];
        n_page += !*at;
        *at = true;
    }
    return n_page;
}

/* The share of the pages of row `pos` that row `before` has not read, where every value has changed
 * by up to `drift` of it. */
static double share_new(const struct ops *o, bool steady, uint32_t before, uint32_t pos,
                        float drift)
{
    static struct data d;
    static bool old[N_MAX / PAGE_TOK], now[N_MAX / PAGE_TOK];
    uint64_t seed = 6;
    uint32_t n_new = 0;
    fill(&d, N_MAX, 4, &seed);
    how = (struct op_draw){.steady = steady, .key = 3, .pos = before};
    mark_pages(&d, draw(o, &d, N_MAX, 5e-3, NULL), old);
    for (uint32_t i = 0; i < N_MAX; i++) d.value[i] *= 1 + drift * random_unit(&seed) - drift;
    how.pos = pos;
    const uint32_t n_page = mark_pages(&d, draw(o, &d, N_MAX, 5e-3, NULL), now);
    for (uint32_t p = 0; p < N_MAX / PAGE_TOK; p++) n_new += now[p] && !old[p];
    how = (struct op_draw){0};
    assert_in_range(n_page, 60, N_MAX / PAGE_TOK / 2);
    return (double)n_new / n_page;
}

/* Numbers stay, but for a 64th of the pages a row, and are others after 64 rows. */
static void steady_draws_stay(void **state)
{
    (void)state;
    struct ops o;
    assert_int_equal(ops_init(&o, NULL), SAC_OK);
    assert_true(share_new(&o, true, 5000, 5001, 0) < 0.04);
    assert_true(share_new(&o, true, 5000, 5001, 0.05f) < 0.1);
    assert_true(share_new(&o, false, 5000, 5001, 0.05f) > 0.3);
    assert_true(share_new(&o, true, 5000, 5000 + STEADY_ROWS, 0) > 0.5);
    double all = 0;
    for (uint32_t i = 0; i < STEADY_ROWS; i++) {
        const double now = share_new(&o, true, 5000 + i, 5001 + i, 0);
        assert_true(now < 0.06);
        all += now;
    }
    assert_true(all > 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_are_even_and_the_cut_is_right),
        cmocka_unit_test(workers_change_no_draw),
        cmocka_unit_test(without_variance_all_is_taken),
        cmocka_unit_test(steady_draws_stand_for_all),
        cmocka_unit_test(steady_draws_are_those_of_ref),
        cmocka_unit_test(steady_draws_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
