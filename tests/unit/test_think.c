/* test_think.c: which channels of its keys think drops, of which keys, and that attention is then
 * the exact one over what is left. */
#include "lane_bench.h"
#include "methods/decode/think.c"

static struct lane_bench b;

enum { N_PROMPT = 700, ROWS = 8 };

static struct think state_of(uint32_t h)
{
    struct think x;
    cut_state(&x, &b.shape, b.spec.param, lb_state(&b, b.layer, h));
    return x;
}

static bool is_kept(const struct think *x, uint32_t channel)
{
    for (uint32_t i = 0; i < x->n_kept; i++)
        if (x->channel[i] == channel) return true;
    return false;
}

/* Rows before `end` from as many as the bench keeps, prompt rows. */
static void prompt_until(uint32_t begin, uint32_t end)
{
    for (uint32_t pos = begin; pos < end; pos++) {
        lb_random_query(&b, 3);
        lb_row(&b, pos, true);
    }
}

static void open_random(sac_kv_type type, const char *spec)
{
    lb_open(&b, type, spec, 21);
    lb_random_keys(&b, 2);
    lb_seal(&b);
    prompt_until(N_PROMPT - LB_PAST, N_PROMPT);
    lb_random_query(&b, 3);
    lb_row(&b, N_PROMPT, false);
}

/* Attention over all tokens before the own page, those before n_cut by the channels of x alone. */
static void expect_attention(uint32_t h, const struct think *x, uint32_t n_cut, double most)
{
    const uint32_t n = b.lane[h].pos / PAGE_TOK * PAGE_TOK;
    assert_true(b.pick[h].attended && !b.pick[h].dense);
    for (uint32_t p = 0; p < n / PAGE_TOK; p++) assert_int_equal(b.mask[h][p], UINT32_MAX);
    for (uint32_t g = 0; g < LB_GROUP; g++) {
        double sum = 0, value[LB_DIM] = {0};
        for (uint32_t t = 0; t < n; t++) {
            double logit = 0;
            for (uint32_t c = 0; c < LB_DIM; c++)
                if (t >= n_cut || is_kept(x, c))
                    logit += (double)b.q[h][g * LB_DIM + c] * (double)b.k[h][t][c];
            const double share = exp(logit * 0.125);
            sum += share;
            for (uint32_t c = 0; c < LB_DIM; c++) value[c] += share * (double)b.v[h][t][c];
        }
        assert_true(fabs((double)b.rest_log[h][g] - log(sum)) < most);
        for (uint32_t c = 0; c < LB_DIM; c++)
            assert_true(fabs((double)b.rest_value[h][g * LB_DIM + c] - value[c] / sum) < most);
    }
}

/* 25 of 64 channels go, of all pages but those that hold the prompt's newest tokens and what comes
 * behind them. */
static void attention_is_exact_over_what_is_left(void **state)
{
    (void)state;
    static const sac_kv_type types[] = {SAC_KV_F16, SAC_KV_Q8};
    static const struct {
        const char *spec;
        uint32_t n_kept, n_cut;
    } cases[] = {
        {"think", 39, 640},                     /* 669 tokens are old: 20 pages */
        {"think:ratio=0.5,recent=61", 32, 640}, /* 640 */
        {"think:ratio=0.5,recent=62", 32, 608}, /* 639: 19 pages */
        {"think:ratio=0.98,recent=0", 2, 672},  /* all before the own page */
        {"think:ratio=1", 1, 640},              /* one is left */
    };
    for (size_t t = 0; t < 2; t++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            open_random(types[t], cases[i].spec);
            for (uint32_t pos = N_PROMPT; pos < N_PROMPT + ROWS; pos++) {
                for (uint32_t h = 0; h < LB_HEADS; h++) {
                    const struct think x = state_of(h);
                    assert_int_equal(x.n_kept, cases[i].n_kept);
                    assert_int_equal(x.own->n_cut, cases[i].n_cut);
                    expect_attention(h, &x, cases[i].n_cut, types[t] == SAC_KV_F16 ? 1e-4 : 2e-2);
                    assert_int_equal(b.pick[h].n_chosen, 0);
                }
                lb_random_query(&b, 3);
                if (pos + 1 < N_PROMPT + ROWS) lb_row(&b, pos + 1, false);
            }
            lb_close(&b);
        }
}

/* Channel c of keys has the size of k_size, of queries that of q_size: products decide. */
static void channels_go_by_the_product_of_both(void **state)
{
    (void)state;
    static const float k_size[] = {8, 1, 4, 0.5f}, q_size[] = {0.5f, 8, 4, 8};
    static const bool kept[] = {false, true, true, false}; /* 4, 8, 16, 4 */
    lb_open(&b, SAC_KV_F16, "think:ratio=0.5,window=16", 5);
    for (uint32_t h = 0; h < LB_HEADS; h++)
        for (uint32_t t = 0; t < LB_TOK; t++)
            for (uint32_t c = 0; c < LB_DIM; c++)
                b.k[h][t][c] = k_size[c % 4] * (t % 2 ? -1.0f : 1.0f);
    lb_seal(&b);
    for (uint32_t pos = N_PROMPT - LB_PAST; pos <= N_PROMPT; pos++) {
        for (uint32_t h = 0; h < LB_HEADS; h++)
            for (uint32_t i = 0; i < LB_GROUP * LB_DIM; i++) /* rows before the window mislead */
                b.q[h][i] = pos + 16 > N_PROMPT ? q_size[i % 4] : 1000 * (float)(i % 4 == 0);
        lb_row(&b, pos, pos < N_PROMPT);
    }
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        const struct think x = state_of(h);
        for (uint32_t c = 0; c < LB_DIM; c++) assert_int_equal(is_kept(&x, c), kept[c % 4]);
    }
    lb_close(&b);
}

/* Every query head of a KV head has a say. */
static void all_heads_of_a_group_weigh(void **state)
{
    (void)state;
    lb_open(&b, SAC_KV_F16, "think:ratio=0.97,window=4", 6);
    lb_random_keys(&b, 1);
    lb_seal(&b);
    for (uint32_t pos = N_PROMPT - LB_PAST; pos <= N_PROMPT; pos++) {
        lb_random_query(&b, 0.1f);
        for (uint32_t h = 0; h < LB_HEADS && pos < N_PROMPT; h++)
            b.q[h][7] = b.q[h][LB_DIM + 3] = 3;
        lb_row(&b, pos, pos < N_PROMPT);
    }
    const struct think x = state_of(0);
    assert_int_equal(x.n_kept, 2);
    assert_true(is_kept(&x, 7) && is_kept(&x, 3));
    lb_close(&b);
}

/* Keys of the answer stay whole; those of a further prompt lose the channels that were chosen. */
static void answers_stay_whole_and_prompts_do_not(void **state)
{
    (void)state;
    uint32_t channel[LB_DIM];
    open_random(SAC_KV_F16, "think:ratio=0.5,recent=16");
    const struct think x = state_of(1);
    memcpy(channel, x.channel, x.n_kept * sizeof *channel);
    for (uint32_t pos = N_PROMPT + 1; pos < N_PROMPT + 100; pos++) lb_row(&b, pos, false);
    assert_int_equal(x.own->n_cut, 672);
    expect_attention(1, &x, 672, 1e-4);
    prompt_until(N_PROMPT + 100, N_PROMPT + 164);
    lb_row(&b, N_PROMPT + 164, false);
    assert_int_equal(x.own->n_cut, 832); /* of 849 old tokens */
    assert_memory_equal(channel, x.channel, x.n_kept * sizeof *channel);
    expect_attention(1, &x, 832, 1e-4);
    lb_close(&b);
}

static void a_cut_takes_back_what_it_must(void **state)
{
    (void)state;
    open_random(SAC_KV_F16, "think:ratio=0.5");
    const struct think x = state_of(0);
    think_cut(x.own, &b.shape, b.spec.param, N_PROMPT + 1);
    assert_true(x.own->n_cut == 640 && x.own->n_seen == N_PROMPT + 1);
    think_cut(x.own, &b.shape, b.spec.param, N_PROMPT);
    assert_true(x.own->n_cut == 0 && x.own->n_seen == 0);
    lb_close(&b);
}

/* What is left of the keys, values, and whole pages: for attention, which reads nothing else. */
static void bytes_are_those_of_the_packed_keys(void **state)
{
    (void)state;
    const size_t page = 2 * 32 * LB_DIM * 2, packed = 32 * 39 * 2 + 32 * LB_DIM * 2;
    open_random(SAC_KV_F16, "think");
    for (uint32_t h = 0; h < LB_HEADS; h++) {
        /* Twenty pages are packed, one and the own one are not. Weighed, and packed. */
        assert_int_equal(b.meter[h].bytes[METER_ATTEND], 20 * packed + page);
        assert_int_equal(b.meter[h].bytes[METER_CHOOSE], 0);
        assert_int_equal(b.meter[h].bytes[METER_BUILD],
                         (21 + 20) * page / 2 + (N_PROMPT % 32 + 1) * LB_DIM * 2);
    }
    lb_row(&b, N_PROMPT + 1, false);
    assert_int_equal(b.meter[0].bytes[METER_BUILD], 0);
    lb_close(&b);
}

static void bad_keys_are_seen_in_any_channel(void **state)
{
    (void)state;
    for (uint32_t c = 0; c < LB_DIM; c += 9) {
        lb_open(&b, SAC_KV_F16, "think", 8);
        lb_random_keys(&b, 1);
        b.k[1][77][c] = c % 2 ? NAN : INFINITY;
        lb_seal(&b);
        prompt_until(N_PROMPT - LB_PAST, N_PROMPT);
        lb_row(&b, N_PROMPT, false);
        assert_true(!b.pick[0].not_finite && b.pick[1].not_finite && b.pick[1].dense);
        lb_row(&b, N_PROMPT + 1, false);
        assert_true(!b.pick[0].not_finite && b.pick[1].not_finite);
        lb_close(&b);
    }
}

/* Of a later prompt; the channels stay those of the first. */
static void a_bad_key_that_is_cut_is_forgotten(void **state)
{
    (void)state;
    enum { BAD = N_PROMPT + 80, LATER = N_PROMPT + 200 };
    lb_open(&b, SAC_KV_F16, "think", 8);
    lb_random_keys(&b, 1);
    b.k[1][BAD][5] = NAN;
    lb_seal(&b);
    prompt_until(N_PROMPT - LB_PAST, N_PROMPT);
    lb_row(&b, N_PROMPT, false);
    assert_false(b.pick[1].not_finite);
    prompt_until(N_PROMPT + 1, LATER);
    lb_row(&b, LATER, false);
    assert_true(b.pick[1].not_finite && !b.pick[0].not_finite);
    const struct think x = state_of(1);
    const uint32_t n_cut = x.own->n_cut;
    think_cut(x.own, &b.shape, b.spec.param, BAD / 32 * 32 + 32); /* behind the key's page */
    assert_true(x.own->not_finite && x.own->n_cut < n_cut);
    think_cut(x.own, &b.shape, b.spec.param, BAD / 32 * 32 + 31);
    assert_false(x.own->not_finite);
    lb_row(&b, BAD / 32 * 32 + 31, false);
    assert_false(b.pick[1].not_finite);
    expect_attention(1, &x, BAD / 32 * 32, 1e-4);
    lb_close(&b);
}

static void states_of_a_file_are_looked_at(void **state)
{
    (void)state;
    open_random(SAC_KV_F16, "think");
    const struct think x = state_of(0);
    const struct method_loaded l = {
        .shape = &b.shape, .param = b.spec.param, .state = x.own, .n_tok = N_PROMPT + 1};
    assert_true(think_sound(&l));
    x.own->n_cut += 1;
    assert_false(think_sound(&l));
    x.own->n_cut = 2 * 704;
    assert_false(think_sound(&l));
    x.own->n_cut = 640;
    x.own->not_finite = 22;
    assert_false(think_sound(&l));
    x.own->not_finite = 0;
    x.own->n_seen = N_PROMPT + 2;
    assert_false(think_sound(&l));
    x.own->n_seen = 0;
    assert_false(think_sound(&l));
    x.own->n_seen = 1;
    x.channel[3] = LB_DIM;
    assert_false(think_sound(&l));
    lb_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_is_exact_over_what_is_left),
        cmocka_unit_test(channels_go_by_the_product_of_both),
        cmocka_unit_test(all_heads_of_a_group_weigh),
        cmocka_unit_test(answers_stay_whole_and_prompts_do_not),
        cmocka_unit_test(a_cut_takes_back_what_it_must),
        cmocka_unit_test(bytes_are_those_of_the_packed_keys),
        cmocka_unit_test(bad_keys_are_seen_in_any_channel),
        cmocka_unit_test(a_bad_key_that_is_cut_is_forgotten),
        cmocka_unit_test(states_of_a_file_are_looked_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
