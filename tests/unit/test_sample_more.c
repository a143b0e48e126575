/* DRY, XTC and Mirostat against cases computed by hand and, for DRY, against its definition. */
#include "engine/sample.c"

#include "must.h"

#include <stdio.h>
#include <stdlib.h>

#define N_VOCAB 12
#define BREAKER 7

struct sac_model {
    uint32_t n_vocab;
};

sac_model_info sac_model_get_info(const sac_model *model)
{
    return (sac_model_info){.n_vocab = model->n_vocab};
}

const char *sac_token_piece(const sac_model *model, int32_t tok, bool special, size_t *out_n)
{
    (void)model;
    (void)special;
    *out_n = tok == BREAKER ? 3 : 1;
    return tok == BREAKER ? " \n\n" : "x";
}

static const sac_model model = {N_VOCAB};

static sac_sampler *make(const sac_sampling *p)
{
    sac_sampler *s = NULL;
    sac_error err = {0};
    must(sac_sampler_create(&s, &model, p, &err), &err);
    return s;
}

/* All filters off. */
static sac_sampling plain(float temp)
{
    return (sac_sampling){.temp = temp, .top_p = 1, .typical_p = 1, .repeat_penalty = 1};
}

static const char *const breakers[] = {"\n"};

static sac_sampling dry(int32_t last_n)
{
    sac_sampling p = plain(0);
    p.dry_multiplier = 0.5f;
    p.dry_base = 3;
    p.dry_allowed_length = 2;
    p.dry_last_n = last_n;
    p.dry_breaker = breakers;
    p.n_dry_breaker = 1;
    return p;
}

/* What each token loses behind a text. */
static void losses(float out[N_VOCAB], const sac_sampling *p, const int32_t *text, size_t n)
{
    sac_sampler *s = make(p);
    float logits[N_VOCAB] = {0};
    for (size_t i = 0; i < n; i++) sac_sampler_accept(s, text[i]);
    (void)edit_logits(s, logits);
    for (int i = 0; i < N_VOCAB; i++) out[i] = -logits[i];
    sac_sampler_free(s);
}

static void dry_by_hand(void **state)
{
    const int32_t text[] = {1, 2, 3, 9, 2, 3, 8, 1, 2, 3};
    const int32_t broken[] = {1, 2, BREAKER, 3, 9, 1, 2, BREAKER, 3};
    const int32_t ends[] = {1, 2, BREAKER, 5, 1, 2};
    const sac_sampling p = dry(64), few = dry(7);
    float got[N_VOCAB];
    (void)state;
    losses(got, &p, text, sizeof text / sizeof text[0]);
    for (int i = 0; i < N_VOCAB; i++) /* behind 1 2 3 stood 9, behind 2 3 stood 8 */
        assert_true(got[i] == (i == 9 ? 1.5f : i == 8 ? 0.5f : 0));
    losses(got, &few, text, sizeof text / sizeof text[0]);
    assert_true(got[9] == 0 && got[8] == 0.5f); /* of 2 3 9 the last seven tokens have 9 alone */
    losses(got, &p, broken, sizeof broken / sizeof broken[0]);
    assert_true(got[9] == 0);
    losses(got, &p, ends, sizeof ends / sizeof ends[0]);
    assert_true(got[BREAKER] == 0);
}

/* The definition, by looking at every place of the text. */
static void define(double out[N_VOCAB], const int32_t *text, size_t n)
{
    size_t longest[N_VOCAB] = {0};
    for (size_t end = 1; end < n; end++) { /* text[end] followed text[..end) */
        size_t len = 0;
        while (len < end && text[end - 1 - len] == text[n - 1 - len] &&
               text[n - 1 - len] != BREAKER)
            len++;
        if (len > longest[text[end]] && text[end] != BREAKER) longest[text[end]] = len;
    }
    for (int i = 0; i < N_VOCAB; i++)
        out[i] = longest[i] < 2 ? 0 : 0.5 * pow(3, (double)longest[i] - 2);
}

static void dry_is_its_definition(void **state)
{
    uint64_t rng[4];
    size_t n_lossy = 0;
    (void)state;
    rng_seed(rng, 1);
    for (int round = 0; round < 300; round++) {
        const sac_sampling p = dry(40);
        int32_t text[40];
        float got[N_VOCAB];
        double want[N_VOCAB];
        const size_t n = (size_t)(rng_next(rng) * 41);
        for (size_t i = 0; i < n; i++)
            text[i] = rng_next(rng) < 0.1 ? BREAKER : (int32_t)(rng_next(rng) * 3);
        losses(got, &p, text, n);
        define(want, text, n);
        for (int i = 0; i < N_VOCAB; i++) {
            n_lossy += want[i] > 0;
            if (fabs((double)got[i] - want[i]) > 1e-5 * (1 + want[i]))
                fail_msg("round %d, token %d: %g, not %g", round, i, (double)got[i], want[i]);
        }
    }
    assert_true(n_lossy > 200);
}

/* Logits of these probabilities. */
static size_t list_of(struct candidate *list, const double *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        list[i] = (struct candidate){(int32_t)i, (float)log(p[i]), (float)log(p[i])};
    return n;
}

static void xtc_by_hand(void **state)
{
    const double p[] = {0.1, 0.4, 0.2, 0.3}, one[] = {0.05, 0.9, 0.05}, half[] = {0.5, 0.5};
    struct candidate list[4];
    (void)state;
    assert_int_equal(filter_xtc(list, list_of(list, p, 4), 0.15f), 2);
    assert_int_equal(list[0].tok, 0); /* below the threshold */
    assert_int_equal(list[1].tok, 2); /* the least likely above it */
    assert_int_equal(filter_xtc(list, list_of(list, one, 3), 0.15f), 3); /* none but one above */
    assert_int_equal(filter_xtc(list, list_of(list, p, 4), 0.6f), 4);
    /* The threshold itself is enough; of equals the one with the larger number is less likely. */
    assert_int_equal(filter_xtc(list, list_of(list, half, 2), 0.5f), 1);
    assert_int_equal(list[0].tok, 1);
}

/* Eight tokens of three quarters of the last bit of 1, which each add a whole one to the sum, are
 * not enough to bring it back to zero; the one behind them has no chance. */
static void rounding_draws_nobody_without_a_chance(void **state)
{
    struct candidate list[10];
    (void)state;
    for (int i = 0; i < 10; i++) list[i] = (struct candidate){.tok = i, .logit = -36.33f};
    list[0].logit = 0;
    list[9].logit = -200;
    assert_int_equal(draw(list, 10, 1, 1 - 0x1p-53), 8);
    assert_true(list[8].key > 0 && list[9].key == 0);
}

static void xtc_comes_as_often_as_asked(void **state)
{
    sac_sampling p = plain(1);
    const double probs[] = {0.4, 0.3, 0.3};
    int n_first = 0;
    (void)state;
    p.xtc_probability = 0.25f;
    p.xtc_threshold = 0.2f;
    sac_sampler *s = make(&p);
    for (int i = 0; i < 4000; i++) {
        float logits[N_VOCAB];
        for (int t = 0; t < N_VOCAB; t++) logits[t] = t < 3 ? (float)log(probs[t]) : -INFINITY;
        n_first += sac_sampler_sample(s, logits, NULL, 0) == 0;
    }
    /* 0.75 * 0.4 of 4000 is 1200; the standard deviation is 29. */
    if (abs(n_first - 1200) > 5 * 29) fail_msg("%d of 4000", n_first);
    sac_sampler_free(s);
}

/* Of p_i = c / i^s the estimate of s is exact. */
static void zipf(double *p, size_t n, double s)
{
    for (size_t i = 0; i < n; i++) p[i] = 0.4 / pow((double)(i + 1), s);
}

static void mirostat_k_by_hand(void **state)
{
    double p[SAMPLE_MIROSTAT_M];
    (void)state;
    zipf(p, SAMPLE_MIROSTAT_M, 2); /* (1 * 2^6 / (1 - 1 / 1000))^(1/2) = 8.004 */
    assert_true(sample_mirostat_k(p, SAMPLE_MIROSTAT_M, 1000, 6) == 8);
    zipf(p, SAMPLE_MIROSTAT_M, 1); /* 2^5 / ln 1000 = 4.63 */
    assert_true(sample_mirostat_k(p, SAMPLE_MIROSTAT_M, 1000, 5) == 4);
    zipf(p, SAMPLE_MIROSTAT_M, 0.5); /* (-0.5 * 2^5 / (1 - 1000^0.5))^2 = 0.27: one is kept */
    assert_true(sample_mirostat_k(p, SAMPLE_MIROSTAT_M, 1000, 5) == 1);
    zipf(p, SAMPLE_MIROSTAT_M, 0);
    assert_true(sample_mirostat_k(p, SAMPLE_MIROSTAT_M, 1000, 5) == 1000);
    assert_true(sample_mirostat_k(p, 1, 1000, 5) == 1000);
}

/* Version 2 from mu = 2: the halves and quarters stay, with 2/3 and 1/3. */
static void mirostat_moves_its_bound(void **state)
{
    const double probs[] = {0.5, 0.25, 0.125, 0.125};
    (void)state;
    for (int32_t version = 1; version <= 2; version++) {
        sac_sampling p = plain(1);
        p.mirostat = version;
        p.mirostat_tau = 1;
        p.mirostat_eta = 0.5f;
        sac_sampler *s = make(&p);
        double mu = 2;
        for (int i = 0; i < 50; i++) {
            float logits[N_VOCAB];
            double kept = 0;
            for (int t = 0; t < N_VOCAB; t++) logits[t] = t < 4 ? (float)log(probs[t]) : -INFINITY;
            for (int t = 0; t < 4; t++)
                if (probs[t] >= exp2(-mu) * (1 - 1e-6)) kept += probs[t];
            const int32_t tok = sac_sampler_sample(s, logits, NULL, 0);
            assert_true(tok >= 0 && tok < 4);
            if (kept == 0) kept = 0.5; /* the likeliest alone */
            const double own = version == 1 ? probs[tok] : probs[tok] / kept;
            assert_true(version == 1 || probs[tok] >= exp2(-mu) * (1 - 1e-6) || tok == 0);
            mu -= 0.5 * (-log2(own) - 1);
            assert_true(fabs(s->mu - mu) < 1e-4);
            s->mu = mu; /* float and double must not differ at the next border */
        }
        sac_sampler_free(s);
    }
}

static void bad_parameters_are_named(void **state)
{
    const struct {
        sac_sampling p;
        const char *word;
    } cases[] = {
        {{.repeat_penalty = 1, .dry_multiplier = -1}, "DRY multiplier"},
        {{.repeat_penalty = 1, .dry_multiplier = 1, .dry_base = 0.5f}, "DRY base"},
        {{.repeat_penalty = 1, .dry_multiplier = 1, .dry_base = 2}, "DRY allowed length"},
        {{.repeat_penalty = 1,
          .dry_multiplier = 1,
          .dry_base = 2,
          .dry_allowed_length = 2,
          .dry_last_n = -1},
         "looks back"},
        {{.repeat_penalty = 1, .mirostat = 3}, "versions 1 and 2"},
        {{.repeat_penalty = 1, .xtc_threshold = NAN}, "XTC threshold"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_sampler *s = NULL;
        sac_error err = {0};
        assert_int_equal(sac_sampler_create(&s, &model, &cases[i].p, &err), SAC_ERR_ARG);
        if (!strstr(err.msg, cases[i].word)) fail_msg("case %zu: %s", i, err.msg);
    }
}

static void memory_is_taken_at_create_only(void **state)
{
    const sac_sampling p = dry(16);
    (void)state;
    for (uint64_t nth = 1; nth <= 8; nth++) {
        sac_sampler *s = NULL;
        sac_error err;
        mem_fail_after(nth);
        assert_int_equal(sac_sampler_create(&s, &model, &p, &err), SAC_ERR_MEMORY);
        mem_fail_after(0);
    }
    sac_sampler *s = make(&p);
    float logits[N_VOCAB] = {0};
    const uint64_t before = mem_count();
    for (int i = 0; i < 100; i++) {
        sac_sampler_accept(s, i % 3);
        (void)sac_sampler_sample(s, logits, NULL, 0);
    }
    assert_int_equal(mem_count(), before);
    sac_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dry_by_hand),
        cmocka_unit_test(dry_is_its_definition),
        cmocka_unit_test(xtc_by_hand),
        cmocka_unit_test(rounding_draws_nobody_without_a_chance),
        cmocka_unit_test(xtc_comes_as_often_as_asked),
        cmocka_unit_test(mirostat_k_by_hand),
        cmocka_unit_test(mirostat_moves_its_bound),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(memory_is_taken_at_create_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
