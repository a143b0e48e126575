/* test_lfps.c: LFPS' tables by numbers worked out by hand: which entries become candidates, what a
 * step leaves of a table, when a head is bypassed. test_past.c follows whole answers. */
#include "logit_bench.h"
#include "methods/decode/lfps.c"

static struct lane_bench b;

enum { POS = 95, SINK_TOK = 4 }; /* the last token of the third page */

/* A lane whose tables hold `ver` by position and `sla` by the token that a distance points at. */
static void open_tables(struct parts *p, struct step *w, const char *spec, const float *ver,
                        const float *sla)
{
    logit_open(&b, spec);
    lb_seal(&b);
    lb_point(&b, POS, false);
    cut_state(p, &b.shape, b.spec.param, lb_state(&b, b.layer, 0));
    make_step(w, &b.shape, p->n_table, b.scratch);
    p->state->unit = 1;
    for (uint32_t t = SINK_TOK; t <= POS; t++) {
        change(&row_of(p, 0, false, POS)[t], &p->moment[0], (double)ver[t]);
        change(&row_of(p, 0, true, POS)[t], &p->moment[1], (double)sla[t]);
    }
}

static void expect_candidates(const float *ver, const float *sla, const uint32_t *want, uint32_t n)
{
    struct parts p;
    struct step w;
    uint32_t cand[LB_PAGES] = {0}, n_cand = 0;
    bool flat = false;
    open_tables(&p, &w, "lfps:heads=group,sink=4,a=2", ver, sla);
    find_candidates(cand, &p, &w, &b.lane[0], 0, &flat);
    assert_false(flat);
    for (uint32_t i = 0; i <= POS / 32; i++) n_cand += (uint32_t)__builtin_popcount(cand[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!(cand[want[i] / 32] >> want[i] % 32 & 1)) fail_msg("%u is no candidate", want[i]);
    assert_int_equal(n_cand, n);
    lb_close(&b);
}

/* Hot entries, and of the places -1, 1 and 2 beside them those above the mean of either table, also
 * where a word of the mask ends. Of 92 entries the mean of `ver` is 0.102, its threshold 0.4. */
static void neighbours_join_hot_entries(void **state)
{
    (void)state;
    float ver[POS + 1] = {0}, sla[POS + 1] = {0};
    ver[20] = ver[63] = 4;
    ver[19] = ver[21] = 0.12f;          /* beside it, warm */
    ver[22] = 0.09f;                    /* beside it, colder than the mean */
    ver[18] = ver[23] = 0.12f;          /* warm, too far */
    ver[62] = ver[64] = ver[65] = 0.2f; /* over the words' border */
    ver[66] = 0.2f;
    expect_candidates(ver, sla, (const uint32_t[]){19, 20, 21, 62, 63, 64, 65}, 7);
    sla[22] =
        0.5f; /* a diagonal makes the cold one warm and is hot itself: 23 joins, 24 does not */
    expect_candidates(ver, sla, (const uint32_t[]){19, 20, 21, 22, 23, 62, 63, 64, 65}, 9);
}

/* Thresholds are a times the mean over the kurtosis: 0.0478 / 0.959 here, so that a peak of 0.4 is
 * a candidate at a = 0.2 and none at a = 10. */
static void a_larger_a_has_fewer_candidates(void **state)
{
    (void)state;
    float ver[POS + 1] = {0}, sla[POS + 1] = {0};
    ver[20] = 4;
    ver[50] = 0.4f;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t cand[LB_PAGES] = {0};
        struct parts p;
        struct step w;
        bool flat = false;
        open_tables(&p, &w, i ? "lfps:heads=group,a=10" : "lfps:heads=group,a=0.2", ver, sla);
        find_candidates(cand, &p, &w, &b.lane[0], 0, &flat);
        assert_true(cand[20 / 32] >> 20 % 32 & 1);
        assert_int_equal(cand[50 / 32] >> 50 % 32 & 1, !i);
        lb_close(&b);
    }
}

/* The specification's step: logits 1, 2, 0 of entries 1, 2, 4. */
static void a_step_leaves_the_worked_table(void **state)
{
    (void)state;
    static const float phi[] = {2, 1, 4, 0.5f, 1.5f, 1};
    static const double want[] = {1.9, 1.028062, 4.298574, 0.475, 1.348364, 0.95};
    float ver[POS + 1] = {0}, sla[POS + 1] = {0};
    uint32_t mask[LB_PAGES] = {0};
    const struct sparsity all_vote = {.finite = true};
    struct parts p;
    struct step w;
    for (uint32_t i = 0; i < 6; i++) {
        ver[40 + i] = phi[i];
        sla[70 - i] = phi[i];
    }
    open_tables(&p, &w, "lfps:heads=group", ver, sla);
    const double kappa_n = (double)find_threshold(&p.moment[0], 6, 0.2).hot;
    assert_true(fabs(kappa_n - 0.641127) < 1e-6);
    w.n_tok = 3;
    for (uint32_t i = 0; i < 3; i++) {
        static const uint32_t at[] = {1, 2, 4};
        static const float logit[] = {1, 2, 0};
        w.tok[i] = 40 + at[i];
        mask[w.tok[i] / 32] |= 1u << w.tok[i] % 32;
        for (uint32_t g = 0; g < LB_GROUP; g++) w.o.score[g * w.o.stride + i] = logit[i];
    }
    weigh(&w, &all_vote, mask, 0, LB_GROUP);
    assert_true(fabs((double)w.o.vote[0] - 0.244728) < 1e-6);
    assert_true(fabs((double)w.o.vote[1] - 0.665241) < 1e-6);
    assert_true(fabs((double)w.o.vote[2] - 0.090031) < 1e-6);
    p.state->unit *= 0.95f;
    remember(&p, &w, &b.lane[0], mask, 0, 3);
    double sum = 0;
    for (uint32_t i = 0; i < 6; i++) {
        const double now = (double)row_of(&p, 0, false, POS)[40 + i] * (double)p.state->unit;
        assert_true(fabs(now - want[i]) < 1e-5);
        sum += now;
    }
    assert_true(fabs(sum - 9.5 - 0.5) < 1e-5);
    /* The other table by the same tokens: distances, which the next query finds one place on. */
    assert_true(fabs((double)row_of(&p, 0, true, POS)[42] * 0.95 - (0.665241 - 1.0 / 6)) < 1e-5);
    assert_true(row_of(&p, 0, true, POS + 1)[43] == row_of(&p, 0, true, POS)[42]);
    lb_close(&b);
}

/* A row's weights fill both tables without the sinks, in the mean of the rows: 1 / (2 (1 - 0.95)).
 */
static void the_prompt_fills_both_tables(void **state)
{
    (void)state;
    struct parts p;
    struct step w;
    logit_open(&b, "lfps:heads=group,past=4,budget=8");
    logit_both(&b, 1, 9); /* a sink */
    logit_both(&b, 30, 3);
    logit_both(&b, 50, 3);
    lb_seal(&b);
    for (uint32_t pos = POS - 4; pos < POS; pos++) lb_row(&b, pos, true);
    lb_point(&b, POS, false);
    cut_state(&p, &b.shape, b.spec.param, lb_state(&b, b.layer, 0));
    make_step(&w, &b.shape, p.n_table, b.scratch);
    assert_true(learn(&p, &b.lane[0], &w));
    const float *ver = row_of(&p, 0, false, POS), *sla = row_of(&p, 0, true, POS);
    assert_true(ver[1] == 0 && fabsf(ver[30] - 5) < 1e-4f && fabsf(ver[50] - 5) < 1e-4f);
    /* Rows 91 to 94 looked 61 to 64 back at 30: from row 95 that is 31 to 34. */
    for (uint32_t t = 31; t <= 34; t++) assert_true(fabsf(sla[t] - 1.25f) < 1e-4f);
    for (uint32_t t = 51; t <= 54; t++) assert_true(fabsf(sla[t] - 1.25f) < 1e-4f);
    assert_true(fabsf(sla[30]) < 1e-4f && fabsf(sla[35]) < 1e-4f);
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_join_hot_entries),
        cmocka_unit_test(a_larger_a_has_fewer_candidates),
        cmocka_unit_test(a_step_leaves_the_worked_table),
        cmocka_unit_test(the_prompt_fills_both_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
