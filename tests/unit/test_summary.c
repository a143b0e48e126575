/* test_summary.c: what a table says of samples: means over the right ones, differences of pairs,
 * and intervals, on numbers that can be added up by hand. */
#include "eval/samples.h"
#include "eval/summary.h"
#include "must.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct one {
    const char *method, *task;
    uint32_t ctx, index;
    double score, share;
};

static void add(struct samples *s, const struct one *x)
{
    struct strlist none = {0};
    struct task_sample sample = {.n_turn = 1};
    const struct sample_text text = {.sample = &sample, .answer = ""};
    struct sample_row row = {.score = x->score,
                             .share_read = x->share,
                             .mass_mean = (double)NAN,
                             .planned_share = 1,
                             .ttft_ms = 10 * x->share,
                             .prompt_per_s = 5,
                             .predicted_per_s = (double)NAN};
    sac_error err;
    sample.turn[0].expected = none;
    snprintf(row.method, sizeof row.method, "%s", x->method);
    snprintf(row.cell.task, sizeof row.cell.task, "%s", x->task);
    row.cell.ctx = x->ctx;
    row.cell.index = x->index;
    must(samples_add(s, &row, &text, &err), &err);
}

static const struct summary_row *find(const struct summary *s, const char *method, const char *task,
                                      uint32_t ctx)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->row[i].method, method) == 0 && strcmp(s->row[i].task, task) == 0 &&
            s->row[i].ctx == ctx)
            return &s->row[i];
    fail_msg("no row of %s, %s, %u", method, task, ctx);
    return NULL;
}

/* Means are of the samples of one method, task and context; a difference is of the samples that
 * both methods answered, and has the sign of what the method gains. */
static void rows_hold_their_own_samples(void **state)
{
    (void)state;
    struct samples *s;
    struct summary sum;
    sac_error err;
    must(samples_open(&s, NULL, 1, &err), &err);
    static const double full[4] = {1, 1, 0, 1}, sparse[3] = {1, 0, 0};
    add(s,
        &(struct one){"other", "needle", 2048, 0, 1, 1}); /* the first, not what is compared with */
    for (uint32_t i = 0; i < 4; i++) add(s, &(struct one){"full", "needle", 4096, i, full[i], 1});
    for (uint32_t i = 0; i < 3; i++)
        add(s, &(struct one){"quest", "needle", 4096, i, sparse[i], 0.1 * (i + 1)});
    add(s, &(struct one){"full", "needle", 8192, 0, 0.5, 1});
    add(s, &(struct one){"quest", "needle", 8192, 0, 0.75, (double)NAN});
    add(s, &(struct one){"full", "passkey", 4096, 0, 0.25, 1});
    must(summary_make(&sum, s, "full", 1, &err), &err);
    assert_int_equal(sum.n, 6);
    const struct summary_row *r = find(&sum, "quest", "needle", 4096);
    assert_true(fabs(r->score.mean - 1.0 / 3) < 1e-12 && r->score.n == 3);
    assert_true(fabs(r->diff.mean + 1.0 / 3) < 1e-12 && r->diff.n == 3); /* 1 0 0 less 1 1 0 */
    assert_string_equal(r->diff_to, "full");
    assert_true(fabs(r->share_read - 0.2) < 1e-12 && fabs(r->ttft_ms - 2) < 1e-12);
    assert_true(isnan(r->mass_mean) && isnan(r->predicted_per_s) && r->planned_share == 1);
    r = find(&sum, "full", "needle", 4096);
    assert_true(r->score.mean == 0.75 && r->score.n == 4 && r->diff_to[0] == 0);
    r = find(&sum, "quest", "needle", 8192);
    assert_true(r->diff.mean == 0.25 && isnan(r->diff.low) && isnan(r->share_read));
    assert_true(find(&sum, "full", "passkey", 4096)->score.mean == 0.25);
    summary_deinit(&sum);
    samples_close(s);
}

/* Means of 16 resampled coins: 95 % of the binomial distribution lie from 4 to 12 of 16, of which
 * the tails hold 1.1 % outside and 3.8 % with the ends. Of 64: from 24 to 40. */
static void an_interval_holds_95_of_100(void **state)
{
    (void)state;
    double coin[64];
    struct summary_mean m;
    for (uint32_t i = 0; i < 64; i++) coin[i] = i % 2;
    for (uint64_t seed = 1; seed < 6; seed++) {
        assert_int_equal(summary_bootstrap(&m, coin, 16, seed, NULL), SAC_OK);
        assert_true(m.mean == 0.5 && m.low == 4.0 / 16 && m.high == 12.0 / 16);
        assert_int_equal(summary_bootstrap(&m, coin, 64, seed, NULL), SAC_OK);
        assert_true(m.mean == 0.5 && fabs(m.low - 24.0 / 64) < 1.01 / 64);
        assert_true(fabs(m.high - 40.0 / 64) < 1.01 / 64);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_hold_their_own_samples),
        cmocka_unit_test(an_interval_holds_95_of_100),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
