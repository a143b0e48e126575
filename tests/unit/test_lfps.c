/* test_lfps.c: LFPS' tables by numbers worked out by hand: which entries become candidates, what a
 * step leaves of a table, when a head is bypassed. test_past.c follows whole answers. */
#include "logit_bench.h"
#include "methods/decode/lfps.c"

static struct lane_bench b;
static struct lfps_table t;

enum { POS = 95, SINK_TOK = 4 }; /* the last token of the third page */

/* A lane whose tables hold `ver` by position and `sla` by the token that a distance points at. */
static void open_tables(const char *spec, const float *ver, const float *sla)
{
    logit_open(&b, spec);
    lb_seal(&b);
    lb_point(&b, POS, false);
    const struct lfps_rule rule = lfps_rule_of(&b.shape, b.spec.param);
    lfps_table_open(&t, &b.lane[0], &rule, 0);
    t.p.memory.pair[0].unit = 1;
    for (uint32_t i = SINK_TOK; i <= POS; i++) {
        lfps_table_change(&lfps_table_row(&t.p, 0, false, POS)[i], &t.p.memory.pair[0].ver,
                          (double)ver[i]);
        lfps_table_change(&lfps_table_row(&t.p, 0, true, POS)[i], &t.p.memory.pair[0].sla,
                          (double)sla[i]);
    }
}

static void expect_candidates(const float *ver, const float *sla, const uint32_t *want, uint32_t n)
{
    uint32_t n_cand = 0;
    open_tables("lfps:heads=group,sink=4,a=2", ver, sla);
    assert_false(find_candidates(&t));
    for (uint32_t i = 0; i <= POS / 32; i++) n_cand += (uint32_t)__builtin_popcount(t.cand[i]);
    for (uint32_t i = 0; i < n; i++)
        if (!(t.cand[want[i] / 32] >> want[i] % 32 & 1)) fail_msg("%u is no candidate", want[i]);
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
        open_tables(i ? "lfps:heads=group,a=10" : "lfps:heads=group,a=0.2", ver, sla);
        find_candidates(&t);
        assert_true(t.cand[20 / 32] >> 20 % 32 & 1);
        assert_int_equal(t.cand[50 / 32] >> 50 % 32 & 1, !i);
        lb_close(&b);
    }
}

/* The specification's step: logits 1, 2, 0 of entries 1, 2, 4. */
static void a_step_leaves_the_worked_table(void **state)
{
    (void)state;
    static const float phi[] = {2, 1, 4, 0.5f, 1.5f, 1};
    static const double want[] = {1.9, 1.028062, 4.298574, 0.475, 1.348364, 0.95};
    float ver[POS + 1] = {0}, sla[POS + 1] = {0}, lse[LB_GROUP];
    for (uint32_t i = 0; i < 6; i++) {
        ver[40 + i] = phi[i];
        sla[70 - i] = phi[i];
    }
    open_tables("lfps:heads=group", ver, sla);
    struct op_pair *pair = &t.p.memory.pair[0];
    const double kappa_n = (double)find_threshold(&pair->ver, 6, 0.2).tau;
    assert_true(fabs(kappa_n - 0.641127) < 1e-6);
    t.n_tok = 3;
    t.n_voter = LB_GROUP;
    for (uint32_t i = 0; i < 3; i++) {
        static const uint32_t at[] = {1, 2, 4};
        static const float logit[] = {1, 2, 0};
        t.tok[i] = 40 + at[i];
        for (uint32_t g = 0; g < LB_GROUP; g++) t.score[g * t.w.o.stride + i] = logit[i];
    }
    assert_true(weigh(&t, lse));
    assert_true(fabs((double)t.weight[0] - 0.244728) < 5e-6);
    assert_true(fabs((double)t.weight[1] - 0.665241) < 5e-6);
    assert_true(fabs((double)t.weight[2] - 0.090031) < 5e-6);
    pair->unit *= 0.95f;
    update_tables(&t);
    double sum = 0;
    for (uint32_t i = 0; i < 6; i++) {
        const double now = (double)lfps_table_row(&t.p, 0, false, POS)[40 + i] * (double)pair->unit;
        assert_true(fabs(now - want[i]) < 1e-5);
        sum += now;
    }
    assert_true(fabs(sum - 9.5 - 0.5) < 1e-5);
    /* The other table by the same tokens: distances, which the next query finds one place on. */
    const float *by_distance = lfps_table_row(&t.p, 0, true, POS);
    assert_true(fabs((double)by_distance[42] * 0.95 - (0.665241 - 1.0 / 6)) < 1e-5);
    assert_true(lfps_table_row(&t.p, 0, true, POS + 1)[43] == by_distance[42]);
    lb_close(&b);
}

/* A row's weights fill both tables without the sinks, in the mean of the rows: 1 / (2 (1 - 0.95)).
 */
static void the_prompt_fills_both_tables(void **state)
{
    (void)state;
    logit_open(&b, "lfps:heads=group,past=4,budget=8");
    logit_both(&b, 1, 9); /* a sink */
    logit_both(&b, 30, 3);
    logit_both(&b, 50, 3);
    lb_seal(&b);
    for (uint32_t pos = POS - 4; pos < POS; pos++) lb_row(&b, pos, true);
    lb_point(&b, POS, false);
    const struct method_batch one = {.ops = &b.ops, .n = 1, .lane = b.lane};
    const struct call c = {.b = &one, .rule = lfps_rule_of(&b.shape, b.spec.param)};
    assert_true(open_lane(&c, &b.lane[0]));
    lfps_table_learn(&one, &c.rule);
    lfps_table_open(&t, &b.lane[0], &c.rule, 0);
    assert_int_equal(t.w.step->n_bad, 0);
    const float *ver = lfps_table_row(&t.p, 0, false, POS),
                *sla = lfps_table_row(&t.p, 0, true, POS);
    assert_true(ver[1] == 0 && fabsf(ver[30] - 5) < 1e-4f && fabsf(ver[50] - 5) < 1e-4f);
    /* Rows 91 to 94 looked 61 to 64 back at 30: from row 95 that is 31 to 34. */
    for (uint32_t i = 31; i <= 34; i++) assert_true(fabsf(sla[i] - 1.25f) < 1e-4f);
    for (uint32_t i = 51; i <= 54; i++) assert_true(fabsf(sla[i] - 1.25f) < 1e-4f);
    assert_true(fabsf(sla[30]) < 1e-4f && fabsf(sla[35]) < 1e-4f);
    lb_close(&b);
}

/* A device keeps what it has learnt, finite or not; a CPU that goes on from there learns anew. */
static void tables_of_no_use_are_learnt_anew(void **state)
{
    (void)state;
    logit_open(&b, "lfps:heads=group,past=4,budget=8");
    lb_seal(&b);
    for (uint32_t pos = POS - 4; pos < POS; pos++) lb_row(&b, pos, true);
    lb_row(&b, POS, false);
    lfps_table_open(&t, &b.lane[0], &(struct lfps_rule){.n_table = 1}, 0);
    t.p.memory.pair->unit = NAN;
    lb_row(&b, POS + 1, false);
    assert_false(b.pick[0].dense);
    assert_true(isfinite(t.p.memory.pair->ver.s[0]) && t.p.state->n_learnt == POS + 2);
    lb_close(&b);
}

/* ---- Workers ---- */

enum { N_STEP = 90, FIRST = 1000 };

/* Marks and states of a life of both lanes, asked together with scratch of their own. */
static void live(const char *spec, uint32_t n_worker, uint32_t (*mask)[LB_HEADS][LB_PAGES],
                 uint8_t *states)
{
    struct workers *workers;
    uint8_t *scratch[LB_HEADS];
    uint32_t n_chosen = 0;
    assert_int_equal(workers_create(&workers, n_worker, NULL), SAC_OK);
    lb_open(&b, SAC_KV_F16, spec, 5);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    for (uint32_t h = 0; h < LB_HEADS; h++) assert_non_null(scratch[h] = mem_map(b.scratch_bytes));
    for (uint32_t pos = FIRST - LB_PAST; pos < FIRST + N_STEP; pos++) {
        struct op_lane_result result[LB_HEADS] = {{0}};
        lb_random_query(&b, 3);
        if (pos < FIRST) {
            lb_row(&b, pos, true);
            continue;
        }
        lb_point(&b, pos, false);
        memset(b.mask, 0, sizeof b.mask);
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            b.lane[h].scratch = scratch[h];
            b.pick[h] = (struct method_pick){
                .mask = b.mask[h], .rest_log = b.rest_log[h], .rest_value = b.rest_value[h]};
        }
        batch_choose(b.spec.method->decode, &(struct method_batch){.ops = &b.ops,
                                                                   .workers = workers,
                                                                   .n = LB_HEADS,
                                                                   .lane = b.lane,
                                                                   .pick = b.pick,
                                                                   .result = result});
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            assert_false(b.pick[h].dense);
            n_chosen += b.pick[h].n_chosen;
            memcpy(b.past[h][pos % LB_PAST], b.q[h], sizeof b.q[h]);
        }
        memcpy(mask[pos - FIRST], b.mask, sizeof b.mask);
    }
    assert_true(n_chosen > N_STEP);
    memcpy(states, b.state, lb_state_bytes(&b));
    for (uint32_t h = 0; h < LB_HEADS; h++) mem_unmap(scratch[h], b.scratch_bytes);
    lb_close(&b);
    workers_destroy(workers);
}

static void any_number_of_workers_chooses_the_same(void **state)
{
    (void)state;
    static uint32_t mask[2][N_STEP][LB_HEADS][LB_PAGES];
    static uint8_t states[2][1 << 18];
    static const char *const specs[] = {"lfps:budget=40", "lfps:budget=40,heads=group",
                                        "lfps:budget=40,guard=on,bypass=0.3"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        live(specs[i], 1, mask[0], states[0]);
        for (uint32_t n = 3; n <= 8; n += 5) {
            live(specs[i], n, mask[1], states[1]);
            assert_memory_equal(mask[0], mask[1], sizeof mask[0]);
            assert_memory_equal(states[0], states[1], sizeof states[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_join_hot_entries),
        cmocka_unit_test(a_larger_a_has_fewer_candidates),
        cmocka_unit_test(a_step_leaves_the_worked_table),
        cmocka_unit_test(the_prompt_fills_both_tables),
        cmocka_unit_test(tables_of_no_use_are_learnt_anew),
        cmocka_unit_test(any_number_of_workers_chooses_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
