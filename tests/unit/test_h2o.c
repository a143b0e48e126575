/* test_h2o.c: the sums of H2O add up, and who is dropped had the least. */
#include "lane_bench.h"
#include "methods/decode/h2o.c"

static struct lane_bench b;

static void sums_add_up_and_the_least_goes(void **state)
{
    (void)state;
    enum { N = 800, BUDGET_TOK = 200, N_NEW = 100 };
    static uint32_t before[LB_PAGES];
    lb_open(&b, SAC_KV_F16, "h2o:budget=200", 50);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    for (uint32_t pos = N - LB_PAST; pos < N + 150; pos++) {
        struct evict_state v;
        lb_random_query(&b, 3);
        lb_row(&b, pos, pos < N);
        if (pos < N) continue;
        assert_false(b.pick[0].dense);
        const struct h2o_state *s = cut_state(&v, &b.shape, lb_state(&b, b.layer, 0));
        double sum = 0, least = INFINITY;
        uint32_t n_live = 0;
        for (uint32_t t = 0; t <= pos; t++) {
            sum += (double)v.value[t];
            n_live += evict_state_has(&v, s->n_known, t);
        }
        assert_int_equal(s->n_row, LB_PAST + pos - N + 1);
        assert_true(fabs(sum - (double)s->n_row * LB_GROUP) < 1e-2);
        assert_int_equal(n_live, BUDGET_TOK);
        /* One step drops at most one token that lived, of the old ones the least. */
        for (uint32_t t = 0; t + N_NEW <= pos; t++)
            if (evict_state_has(&v, s->n_known, t)) least = fmin(least, (double)v.value[t]);
        uint32_t n_gone = 0;
        for (uint32_t t = 0; t < pos && pos > N; t++) {
            const bool was = before[t / 32] >> t % 32 & 1;
            if (!was) assert_false(evict_state_has(&v, s->n_known, t)); /* nobody comes back */
            if (!was || evict_state_has(&v, s->n_known, t)) continue;
            n_gone++;
            assert_true((double)v.value[t] <= least + 1e-6 || t + N_NEW >= pos);
        }
        assert_true(n_gone == (pos > N));
        memcpy(before, v.mask, sizeof before);
    }
    lb_close(&b);
}

/* Without a window all rows of the prompt count: the causal column sums of their attention. */
static void every_row_of_the_prompt_counts(void **state)
{
    (void)state;
    enum { N = 61 };
    static float query[N][LB_HEADS][LB_GROUP * LB_DIM];
    static double share[LB_TOK], sum[2][N];
    static const char *const spec[] = {"h2o:budget=20", "h2o:budget=20,window=10"};
    for (uint32_t i = 0; i < 2; i++) {
        struct evict_state v;
        struct observe o;
        lb_open(&b, SAC_KV_F16, spec[i], 51);
        assert_int_equal(h2o_past_rows(&b.shape, b.spec.param), i ? 10 : LB_TOK);
        lb_random_keys(&b, 2);
        lb_seal(&b);
        for (uint32_t pos = 0; pos < N; pos++) {
            lb_random_query(&b, 3);
            memcpy(query[pos], b.q, sizeof query[pos]);
            lb_row(&b, pos, true);
        }
        lb_point(&b, N, false);
        const struct h2o_state *s = cut_state(&v, &b.shape, lb_state(&b, b.layer, 0));
        observe_make(&o, &b.shape, b.scratch);
        assert_true(sum_prompt(&v, &b.lane[0], &o));
        assert_int_equal(s->n_row, i ? 10 : N);
        memset(sum[i], 0, sizeof sum[i]);
        for (uint32_t row = i ? N - 10 : 0; row < N; row++) {
            lb_shares(&b, query[row][0], 0, row, share);
            for (uint32_t t = 0; t < N; t++) sum[i][t] += LB_GROUP * share[t];
        }
        for (uint32_t t = 0; t < N; t++)
            assert_true(fabs((double)v.value[t] - sum[i][t]) < 1e-3 * (1 + sum[i][t]));
        lb_close(&b);
    }
    assert_true(sum[0][0] > 1.5 * sum[1][0]); /* which is another thing than the last rows */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_add_up_and_the_least_goes),
                                       cmocka_unit_test(every_row_of_the_prompt_counts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
