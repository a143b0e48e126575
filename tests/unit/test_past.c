/* test_past.c: decode methods that learn from rows of the past, against the definitions of their
 * papers written down here: observation, prompt compression, LFPS, LoopServe. */
#include "engine/attend.h"
#include "lane_bench.h"
#include "methods/decode/lfps.c"
#include "methods/observe.h"

static struct lane_bench b;
static double share[LB_TOK], votes[LB_HEADS][LB_TOK];

/* A prompt of n rows, of which the engine keeps the last queries. */
static void prompt(uint32_t n, float size)
{
    for (uint32_t pos = n - LB_PAST; pos < n; pos++) {
        lb_random_query(&b, size);
        lb_row(&b, pos, true);
    }
}

static void observation_is_the_sum_of_softmax_rows(void **state)
{
    (void)state;
    for (int type = 0; type < 2; type++) {
        struct observe o;
        lb_open(&b, type ? SAC_KV_Q8 : SAC_KV_F16, "snapkv:budget=100", 1);
        lb_random_keys(&b, 2);
        lb_seal(&b);
        prompt(700, 3);
        lb_point(&b, 700, false);
        observe_make(&o, &b.shape, b.scratch);
        assert_true(observe_rows(&o, &b.lane[1], 689, 701));
        memset(votes, 0, sizeof votes);
        for (uint32_t pos = 689; pos <= 700; pos++) {
            lb_shares(&b, pos == 700 ? b.q[1] : b.past[1][pos % LB_PAST], 1, pos, share);
            for (uint32_t t = 0; t <= 700; t++) votes[1][t] += LB_GROUP * share[t];
        }
        for (uint32_t t = 0; t <= 700; t++) /* the own page is not rounded to eight bits yet */
            assert_true(fabs(votes[1][t] - (double)o.sum[t]) < (type ? 2e-2 : 1e-4));
        lb_close(&b);
    }
}

/* What SnapKV keeps: votes of the last `window` rows, pooled over 5, best first. */
static void snapkv_keeps_what_the_window_votes_for(void **state)
{
    (void)state;
    enum { N = 900, WINDOW = 32, BUDGET_TOK = 200 };
    lb_open(&b, SAC_KV_F16, "snapkv:budget=200", 2);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    prompt(N, 3);
    memset(votes, 0, sizeof votes);
    for (uint32_t pos = N - WINDOW; pos < N; pos++) {
        lb_shares(&b, b.past[0][pos % LB_PAST], 0, pos, share);
        for (uint32_t t = 0; t < N; t++) votes[0][t] += share[t];
    }
    for (uint32_t t = 0; t < N - WINDOW; t++) {
        votes[1][t] = 0;
        for (int32_t i = (int32_t)t - 2; i <= (int32_t)t + 2; i++)
            if (i >= 0 && i < N - WINDOW) votes[1][t] += votes[0][i] / 5;
    }
    lb_random_query(&b, 3);
    lb_row(&b, N, false);
    double worst_in = INFINITY, best_out = 0;
    uint32_t n_kept = 0;
    for (uint32_t t = 0; t < N / 32 * 32; t++) { /* the own page is read besides */
        if (t >= N - WINDOW) {
            assert_true(lb_reads(&b, 0, t));
            continue;
        }
        n_kept += lb_reads(&b, 0, t);
        if (lb_reads(&b, 0, t))
            worst_in = fmin(worst_in, votes[1][t]);
        else
            best_out = fmax(best_out, votes[1][t]);
    }
    assert_int_equal(n_kept, BUDGET_TOK - WINDOW);
    assert_true(worst_in >= best_out * (1 - 1e-4));
    /* It stays so, whatever is asked, and all that comes is read. */
    uint32_t first[LB_PAGES];
    memcpy(first, b.mask[0], sizeof first);
    for (uint32_t pos = N + 1; pos < N + 70; pos++) {
        lb_random_query(&b, 6);
        lb_row(&b, pos, false);
        for (uint32_t p = 0; p < N / 32; p++) assert_int_equal(b.mask[0][p], first[p]);
        for (uint32_t t = N; t <= pos; t++) assert_true(lb_reads(&b, 0, t));
    }
    lb_close(&b);
}

/* While the context is too short for a method its rows are seen and nothing is asked: what came
 * between the vote and the first choice is the answer's own, and stays. */
static void a_late_choice_keeps_what_came_since_the_vote(void **state)
{
    (void)state;
    enum { N = 700, LATE = 770 };
    lb_open(&b, SAC_KV_F16, "snapkv:budget=200", 6);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    prompt(N, 3);
    for (uint32_t pos = N; pos < LATE; pos++) {
        lb_random_query(&b, 3);
        lb_point(&b, pos, false);
        for (uint32_t h = 0; h < LB_HEADS; h++) b.spec.method->decode->see(&b.lane[h]);
        for (uint32_t h = 0; h < LB_HEADS; h++)
            memcpy(b.past[h][pos % LB_PAST], b.q[h], sizeof b.q[h]);
    }
    lb_row(&b, LATE, false);
    uint32_t n_kept = 0;
    for (uint32_t t = 0; t < N; t++) n_kept += lb_reads(&b, 0, t);
    assert_int_equal(n_kept, 200);
    for (uint32_t t = N; t <= LATE; t++) assert_true(lb_reads(&b, 0, t));
    lb_close(&b);
}

/* A cut in the middle of a page leaves marks of tokens that are gone. */
static void marks_behind_the_row_are_not_read(void **state)
{
    (void)state;
    enum { POS = 700 };
    static uint32_t mask[LB_PAGES], tok[LB_TOK];
    struct observe o;
    lb_open(&b, SAC_KV_F16, "h2o:budget=200", 7);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    lb_random_query(&b, 3);
    lb_point(&b, POS, false);
    observe_make(&o, &b.shape, b.scratch);
    mask[3] = 1u << 5;
    mask[POS / PAGE_TOK] = UINT32_MAX;
    const uint32_t n = observe_tokens(&o, &b.lane[0], mask, tok);
    assert_int_equal(n, 1 + POS % PAGE_TOK + 1);
    assert_true(tok[0] == 3 * PAGE_TOK + 5 && tok[n - 1] == POS);
    lb_close(&b);
}

/* Tokens that the first decode row of a prompt of n rows keeps in a head's pages. */
static uint32_t kept(const char *spec, uint32_t layer, uint32_t h, uint32_t n)
{
    uint32_t sum = 0;
    lb_open(&b, SAC_KV_F16, spec, 3);
    b.layer = layer;
    lb_random_keys(&b, 2);
    for (uint32_t t = 100; t < 120; t++) /* head 1 has favourites, head 0 has none */
        for (uint32_t c = 0; c < LB_DIM; c++) b.k[1][t][c] = 3;
    lb_seal(&b);
    for (uint32_t pos = n - LB_PAST; pos < n; pos++) {
        lb_random_query(&b, 1);
        for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) b.q[1][i] += 1;
        lb_row(&b, pos, true);
    }
    lb_row(&b, n, false);
    assert_false(b.pick[h].dense);
    for (uint32_t t = 0; t < n; t++) sum += lb_reads(&b, h, t);
    lb_close(&b);
    return sum;
}

static void budgets_are_shared_out_to_the_last_token(void **state)
{
    (void)state;
    enum { N = 928 }; /* whole pages */
    const uint32_t even = kept("snapkv:budget=150", 0, 0, N);
    assert_int_equal(even, 150);
    assert_int_equal(kept("adakv:budget=150,alpha=1", 0, 0, N), even);
    const uint32_t flat = kept("adakv:budget=150", 0, 0, N),
                   sharp = kept("adakv:budget=150", 0, 1, N);
    assert_int_equal(flat + sharp, 2 * even);
    assert_true(flat != sharp);
    uint32_t sum = 0, before = N;
    for (uint32_t layer = 0; layer < 4; layer++) {
        const uint32_t now = kept("pyramidkv:budget=150", layer, 0, N);
        assert_true(now < before);
        sum += before = now;
    }
    assert_int_equal(sum, 4 * even);
    assert_int_equal(before, 32 + (150 - 32) / 20);
}

/* ---- LFPS ---- */

/* The kurtosis of one peak and of a line, worked out by hand. */
static void thresholds_follow_the_kurtosis(void **state)
{
    (void)state;
    static const float one[8] = {0, 0, 0, 0, 1}, line[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const float *const x[] = {one, line};
    const double kappa[] = {0.767857, 0.220238};
    for (int i = 0; i < 2; i++) {
        struct op_moments m = {0};
        double mean = 0;
        for (int t = 0; t < 8; t++) {
            float entry = 0;
            lfps_table_change(&entry, &m, (double)x[i][t]);
            mean += (double)x[i][t] / 8;
        }
        const struct threshold y = find_threshold(&m, 8, 0.2);
        assert_true(fabs((double)y.tau - 0.2 * mean / kappa[i]) < 1e-5);
        assert_true(fabs((double)y.mean - mean) < 1e-6 && !y.flat);
    }
    struct op_moments m = {0};
    for (int t = 0; t < 8; t++) {
        float entry = 0;
        lfps_table_change(&entry, &m, 2);
    }
    assert_true(find_threshold(&m, 8, 0.2).flat);
}

static double table_sum(uint32_t h, bool sla, uint32_t pos)
{
    struct parts p;
    double sum = 0;
    lfps_table_state(&p, &b.shape, lfps_rule_of(&b.shape, b.spec.param).n_table,
                     lb_state(&b, b.layer, h));
    for (uint32_t t = 0; t <= pos; t++) sum += (double)lfps_table_row(&p, 0, sla, pos)[t];
    return sum * (double)p.memory.pair[0].unit;
}

static void tables_keep_their_sum(void **state)
{
    (void)state;
    static const char *const specs[] = {"lfps:budget=40,bypass=1",
                                        "lfps:budget=40,bypass=1,heads=group"};
    for (int i = 0; i < 2; i++) {
        lb_open(&b, SAC_KV_F16, specs[i], 4);
        lb_random_keys(&b, 2);
        lb_seal(&b);
        prompt(700, 3);
        for (uint32_t pos = 700; pos < 1200; pos++) {
            lb_random_query(&b, 3);
            lb_row(&b, pos, false);
            assert_false(b.pick[0].dense);
            assert_true(fabs(table_sum(0, false, pos) - 10) < 1e-3);
            assert_true(fabs(table_sum(0, true, pos) - 10) < 1e-3);
        }
        lb_close(&b);
    }
}

/* Keys and queries whose attention lies on one token. */
static void make_code(float *x, uint64_t code, float size)
{
    for (uint32_t c = 0; c < LB_DIM; c++) {
        code = code * 6364136223846793005u + 1442695040888963407u;
        x[c] = code >> 63 ? size : -size;
    }
}

static void ask_for(uint32_t tok)
{
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t g = 0; g < LB_GROUP; g++)
            for (uint32_t c = 0; c < LB_DIM; c++) b.q[h][g * LB_DIM + c] = 2 * b.k[h][tok][c];
}

/* Every step asks for one token; returns how many of them were read. */
static uint32_t follow(const char *spec, bool slash)
{
    uint32_t n_found = 0;
    lb_open(&b, SAC_KV_F16, spec, 5);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++) make_code(b.k[h][t], 1000 + t, 1);
    lb_seal(&b);
    for (uint32_t pos = 800 - LB_PAST; pos < 900; pos++) {
        const uint32_t target = slash ? pos - 500 : 300;
        ask_for(target);
        lb_row(&b, pos, pos < 800);
        if (pos >= 800) n_found += lb_reads(&b, 0, target) && lb_reads(&b, 1, target);
    }
    lb_close(&b);
    return n_found;
}

static void patterns_are_followed(void **state)
{
    (void)state;
    static const char *const specs[] = {"lfps:budget=16", "lfps:budget=16,heads=group"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(follow(specs[i], false), 100);
        assert_int_equal(follow(specs[i], true), 100);
    }
}

/* A head whose mass lies on the first token reads little else. */
static void sinks_bypass(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "lfps:budget=100", 6);
    lb_random_keys(&b, 0.5f);
    for (uint32_t h = 0; h < LB_HEADS; h++) make_code(b.k[h][0], 77, 3);
    b.mean_value = 2;
    lb_seal(&b);
    for (uint32_t pos = 700 - LB_PAST; pos < 740; pos++) {
        ask_for(0);
        lb_row(&b, pos, pos < 700);
        if (pos < 700) continue;
        uint32_t n_far = 0;
        for (uint32_t t = 4; t + 6 < pos / 32 * 32; t++) n_far += lb_reads(&b, 0, t);
        assert_int_equal(n_far, 0);
        for (uint32_t t = 0; t < 4; t++) assert_true(lb_reads(&b, 0, t));
        /* The guess of the rest is near what the rest is, on keys that are nearly normal. */
        for (uint32_t g = 0; g < LB_GROUP; g++) {
            double sum = 0;
            for (uint32_t t = 4; t <= pos; t++) sum += exp(lb_logit(&b, b.q[0] + g * LB_DIM, 0, t));
            assert_true(fabs((double)b.rest_log[0][g] - log(sum)) < 0.5);
        }
        for (uint32_t c = 0; c < LB_DIM; c++) assert_true(fabsf(b.rest_value[0][c] - 2) < 0.2f);
    }
    lb_close(&b);
    lb_open(&b, SAC_KV_F16, "lfps:budget=40", 6);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    prompt(700, 3);
    lb_row(&b, 700, false);
    assert_true(b.rest_log[0][0] == -INFINITY); /* nothing is bypassed */
    lb_close(&b);
}

/* Attention over two sets of tokens is that over one, with the other as an entry. */
static void an_entry_is_as_good_as_its_tokens(void **state)
{
    (void)state;
    enum { N = 40, D = 32 };
    float v[N][D], score[N], out[D], rest[D];
    double sum[2] = {0}, mean[2][D] = {{0}};
    b.seed = 60;
    for (uint32_t t = 0; t < N; t++) {
        const int set = t % 3 == 0;
        score[t] = 4 * lb_unit(&b);
        sum[set] += exp((double)score[t]);
        for (uint32_t c = 0; c < D; c++) {
            v[t][c] = lb_unit(&b);
            mean[set][c] += exp((double)score[t]) * (double)v[t][c];
        }
    }
    for (uint32_t c = 0; c < D; c++) {
        out[c] = (float)(mean[0][c] / sum[0]);
        rest[c] = (float)(mean[1][c] / sum[1]);
    }
    attend_merge(out, (float)log(sum[0]), rest, -INFINITY, D);
    for (uint32_t c = 0; c < D; c++) assert_true(out[c] == (float)(mean[0][c] / sum[0]));
    attend_merge(out, (float)log(sum[0]), rest, (float)log(sum[1]), D);
    for (uint32_t c = 0; c < D; c++)
        assert_true(fabs((double)out[c] - (mean[0][c] + mean[1][c]) / (sum[0] + sum[1])) < 1e-6);
}

/* ---- LoopServe ---- */

static void choices_come_when_they_are_due(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "loopserve:budget=100,stagger=off", 7);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    prompt(600, 3);
    for (uint32_t n = 1; n < 100; n++) {
        lb_random_query(&b, 3);
        lb_row(&b, 600 + n - 1, false);
        assert_int_equal(b.pick[0].dense, n < 16);
        assert_int_equal(b.meter[0].bytes[METER_BUILD] > 0, n >= 16 && n % 16 == 0);
    }
    lb_restart(&b);
    b.layer = 3;
    /* Staggered: the last of four layers is twelve steps behind. */
    assert_int_equal(method_spec_parse(&b.spec, "decode", "loopserve:budget=100", NULL), SAC_OK);
    prompt(600, 3);
    for (uint32_t n = 1; n < 100; n++) {
        lb_random_query(&b, 3);
        lb_row(&b, 600 + n - 1, false);
        assert_int_equal(b.meter[0].bytes[METER_BUILD] > 0, n >= 28 && (n - 28) % 16 == 0);
    }
    lb_close(&b);
}

/* A token that only outputs 17 to 32 look at is read from 32 on, and dropped at 48. */
static void a_hot_token_comes_and_goes(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "loopserve:budget=20,stagger=off", 8);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++) make_code(b.k[h][t], 1000 + t, 1);
    lb_seal(&b);
    prompt(800, 1);
    for (uint32_t n = 1; n < 70; n++) {
        if (n > 16 && n <= 32)
            ask_for(333);
        else
            ask_for(400 + n % 16);
        lb_row(&b, 800 + n - 1, false);
        if (n >= 16) assert_int_equal(lb_reads(&b, 0, 333), n >= 32 && n < 48);
        if (n >= 16) assert_int_equal(lb_reads(&b, 0, 408), n < 32 || n >= 48);
    }
    lb_close(&b);
}

static void bad_keys_and_queries_are_noticed(void **state)
{
    (void)state;
    static const char *const specs[] = {"lfps:budget=40", "loopserve:budget=40,warm=snapkv",
                                        "snapkv:budget=40", "adakv:budget=40"};
    for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
        lb_open(&b, SAC_KV_F16, specs[i], 9);
        lb_random_keys(&b, 2);
        b.k[1][333][5] = INFINITY;
        lb_seal(&b);
        prompt(700, 3);
        lb_row(&b, 700, false);
        if (!b.pick[1].not_finite) fail_msg("%s reads the scores of an infinity", specs[i]);
        assert_false(b.pick[0].not_finite);
        lb_close(&b);
    }
}

/* Until its first choice loopserve reads what stood at a place, and what at a distance, of the
 * prompt's last rows. */
static void lines_follow_the_row(void **state)
{
    (void)state;
    enum { N = 700, PLACE = 300, DISTANCE = 150 };
    lb_open(&b, SAC_KV_F16, "loopserve:budget=8,warm=lines,sink=0,stagger=off", 9);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++) make_code(b.k[h][t], 3000 + t, 1);
    lb_seal(&b);
    for (uint32_t pos = N - LB_PAST; pos < N + 40; pos++) {
        for (uint32_t h = 0; h < LB_HEADS; h++)
            for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++)
                b.q[h][i] = 2 * (b.k[h][PLACE][i % LB_DIM] + b.k[h][pos - DISTANCE][i % LB_DIM]);
        if (pos >= N + 2 && pos < N + 15) memset(b.q, 0, sizeof b.q); /* it is not asked again */
        lb_row(&b, pos, pos < N);
        if (pos < N || pos >= N + 15) continue;
        for (uint32_t h = 0; h < LB_HEADS; h++) {
            assert_true(!b.pick[h].dense && (b.meter[h].bytes[METER_BUILD] > 0) == (pos == N));
            assert_true(lb_reads(&b, h, PLACE) && lb_reads(&b, h, pos - DISTANCE));
            uint32_t n_far = 0; /* beside window and own page */
            for (uint32_t t = 0; t < N - 2 * PAGE_TOK; t++) n_far += lb_reads(&b, h, t);
            assert_true(n_far >= 2 && n_far <= 8);
        }
    }
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(observation_is_the_sum_of_softmax_rows),
        cmocka_unit_test(snapkv_keeps_what_the_window_votes_for),
        cmocka_unit_test(a_late_choice_keeps_what_came_since_the_vote),
        cmocka_unit_test(marks_behind_the_row_are_not_read),
        cmocka_unit_test(budgets_are_shared_out_to_the_last_token),
        cmocka_unit_test(thresholds_follow_the_kurtosis),
        cmocka_unit_test(tables_keep_their_sum),
        cmocka_unit_test(patterns_are_followed),
        cmocka_unit_test(sinks_bypass),
        cmocka_unit_test(an_entry_is_as_good_as_its_tokens),
        cmocka_unit_test(choices_come_when_they_are_due),
        cmocka_unit_test(a_hot_token_comes_and_goes),
        cmocka_unit_test(bad_keys_and_queries_are_noticed),
        cmocka_unit_test(lines_follow_the_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
