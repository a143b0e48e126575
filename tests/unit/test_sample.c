/* test_sample.c: the sampler against definitions in double precision that sort everything, the draw
 * against its distribution, and hostile logits.
 *
 * The sampler works in float, so a cut that falls within EDGE of a candidate is left out of the
 * comparison; how many cases remain is checked as well. */
#include "engine/sample.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define N_VOCAB 1000
#define EDGE    1e-5
#define N_ROUND 2000

struct sac_model {
    uint32_t n_vocab;
};

sac_model_info sac_model_get_info(const sac_model *model)
{
    return (sac_model_info){.n_vocab = model->n_vocab};
}

/* Linked in by DRY, which is off here. */
const char *sac_token_piece(const sac_model *m, int32_t tok, bool special, size_t *out_n)
{
    (void)m;
    (void)tok;
    (void)special;
    *out_n = 0;
    return "";
}

static const sac_model model = {N_VOCAB};

static sac_sampler *make(const sac_sampling *p)
{
    sac_sampler *s = NULL;
    sac_error err = {0};
    if (sac_sampler_create(&s, &model, p, &err) != SAC_OK) fail_msg("%s", err.msg);
    return s;
}

/* All filters off. */
static sac_sampling plain(float temp)
{
    return (sac_sampling){
        .temp = temp, .top_p = 1, .typical_p = 1, .repeat_penalty = 1, .repeat_last_n = 64};
}

static void assert_near(float got, double want)
{
    assert_true(fabs((double)got - want) < 1e-5); /* some ulp of numbers up to 30 */
}

static double uniform(uint64_t rng[4], double lo, double hi)
{
    return lo + (hi - lo) * rng_next(rng);
}

/* Normal enough: a language model's logits have a body and a few peaks. */
static void random_logits(uint64_t rng[4], float *logits, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double x = 0;
        for (int k = 0; k < 6; k++) x += uniform(rng, -1, 1);
        logits[i] = (float)(2 * x + (rng_next(rng) < 0.02 ? 6 : 0));
    }
}

/* ---- The definitions ---- */

struct ref {
    int32_t tok;
    double logit, p, key;
};

struct ref_list {
    struct ref at[N_VOCAB];
    size_t n;
    bool near_edge;
};

static int by_key(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    return x->tok < y->tok ? -1 : 1;
}

static void ref_sort(struct ref_list *l)
{
    qsort(l->at, l->n, sizeof l->at[0], by_key);
}

static void ref_normalise(struct ref_list *l, double temp)
{
    double max = -HUGE_VAL, sum = 0;
    for (size_t i = 0; i < l->n; i++) max = fmax(max, l->at[i].logit);
    for (size_t i = 0; i < l->n; i++) sum += l->at[i].p = exp((l->at[i].logit - max) / temp);
    for (size_t i = 0; i < l->n; i++) l->at[i].p /= sum;
}

static void ref_keep_mass(struct ref_list *l, double share)
{
    double mass = 0;
    size_t k = 0;
    ref_sort(l);
    for (; k < l->n && (k == 0 || mass < share); k++) {
        mass += l->at[k].p;
        if (fabs(mass - share) < EDGE) l->near_edge = true;
        if (k && fabs(l->at[k].key - l->at[k - 1].key) < EDGE && l->at[k].key != l->at[k - 1].key)
            l->near_edge = true;
    }
    l->n = k;
}

/* What may be drawn, and how likely. */
static void ref_filter(struct ref_list *l, const float *logits, const sac_sampling *p)
{
    l->n = N_VOCAB;
    l->near_edge = false;
    for (int32_t i = 0; i < N_VOCAB; i++)
        l->at[i] = (struct ref){.tok = i, .logit = (double)logits[i], .key = (double)logits[i]};
    ref_sort(l);
    if (p->top_k > 0 && (size_t)p->top_k < l->n) l->n = (size_t)p->top_k;
    if (p->typical_p < 1) {
        double entropy = 0;
        ref_normalise(l, 1);
        for (size_t i = 0; i < l->n; i++)
            if (l->at[i].p > 0) entropy -= l->at[i].p * log(l->at[i].p);
        for (size_t i = 0; i < l->n; i++) l->at[i].key = -fabs(-log(l->at[i].p) - entropy);
        ref_keep_mass(l, (double)p->typical_p);
    }
    if (p->top_p < 1) {
        ref_normalise(l, 1);
        for (size_t i = 0; i < l->n; i++) l->at[i].key = l->at[i].logit;
        ref_keep_mass(l, (double)p->top_p);
    }
    if (p->min_p > 0) {
        double max = -HUGE_VAL;
        size_t k = 0;
        ref_normalise(l, 1);
        for (size_t i = 0; i < l->n; i++) max = fmax(max, l->at[i].p);
        for (size_t i = 0; i < l->n; i++) {
            const double ratio = l->at[i].p / max / (double)p->min_p;
            if (fabs(ratio - 1) < EDGE) l->near_edge = true;
            if (ratio >= 1) l->at[k++] = l->at[i];
        }
        l->n = k;
    }
    ref_normalise(l, (double)p->temp);
    for (size_t i = 0; i < l->n; i++) l->at[i].key = -l->at[i].tok;
    ref_sort(l);
}

/* ---- The filters keep what the definitions keep ---- */

static int by_tok(const void *a, const void *b)
{
    return ((const struct candidate *)a)->tok - ((const struct candidate *)b)->tok;
}

/* As `choose`, up to the draw. */
static size_t kept(sac_sampler *s, const float *logits)
{
    const struct seen seen = {logits, NULL, N_VOCAB};
    (void)choose(s, &seen);
    const sac_sampling *p = &s->params;
    const bool cut = p->top_k > 0 && p->top_k < N_VOCAB;
    size_t n = cut ? gather_top(s->list, &seen, (size_t)p->top_k) : gather_all(s->list, &seen);
    if (p->typical_p < 1) n = filter_typical(s->list, n, p->typical_p);
    if (p->top_p < 1) n = filter_top_p(s->list, n, p->top_p);
    if (p->min_p > 0) n = filter_min_p(s->list, n, p->min_p);
    qsort(s->list, n, sizeof s->list[0], by_tok);
    return n;
}

static void filters_keep_what_they_define(void **state)
{
    (void)state;
    uint64_t rng[4];
    rng_seed(rng, 1);
    float logits[N_VOCAB];
    static struct ref_list want;
    int n_compared = 0;
    for (int round = 0; round < N_ROUND; round++) {
        sac_sampling p = plain((float)uniform(rng, 0.2, 2));
        if (rng_next(rng) < 0.6) p.top_k = (int32_t)uniform(rng, 1, round % 2 ? 60 : 1200);
        if (rng_next(rng) < 0.3) p.typical_p = (float)uniform(rng, 0.05, 1);
        if (rng_next(rng) < 0.6) p.top_p = (float)uniform(rng, 0.02, 1);
        if (rng_next(rng) < 0.6) p.min_p = (float)uniform(rng, 0.001, 1);
        random_logits(rng, logits, N_VOCAB);
        ref_filter(&want, logits, &p);
        if (want.near_edge) continue;
        sac_sampler *s = make(&p);
        assert_int_equal(kept(s, logits), want.n);
        for (size_t i = 0; i < want.n; i++) assert_int_equal(s->list[i].tok, want.at[i].tok);
        sac_sampler_free(s);
        n_compared++;
    }
    assert_true(n_compared > N_ROUND / 2);
}

/* Which tokens come up when a sampler is asked often: a bit for each of the first 32. */
static uint32_t tokens_drawn(const sac_sampling *p, const double *share, uint32_t n)
{
    uint32_t seen = 0;
    sac_sampler *s = make(p);
    for (int round = 0; round < 400; round++) {
        float logits[N_VOCAB];
        for (uint32_t i = 0; i < N_VOCAB; i++) logits[i] = i < n ? (float)log(share[i]) : -INFINITY;
        seen |= 1u << sac_sampler_sample(s, logits, NULL, 0);
    }
    sac_sampler_free(s);
    return seen;
}

/* One filter works on what the one before it has left, and all before the temperature flattens. */
static void filters_come_in_their_order(void **state)
{
    (void)state;
    static const double share[] = {0.4, 0.3, 0.1, 0.1, 0.1};
    sac_sampling p = plain(3);
    assert_int_equal(tokens_drawn(&p, share, 5), 31);
    p.top_p = 0.65f; /* 0.4 and 0.3 hold it; at a temperature of 3 it would take three */
    assert_int_equal(tokens_drawn(&p, share, 5), 3);
    p.top_p = 0.55f;
    p.min_p = 0.5f; /* of 0.4 and 0.3 alone the first would hold 0.57 */
    assert_int_equal(tokens_drawn(&p, share, 5), 3);
    p = plain(3);
    p.top_k = 2;
    p.top_p = 0.5f; /* of all five it takes two, of the best two the first holds 0.57 */
    assert_int_equal(tokens_drawn(&p, share, 5), 1);
}

/* However little a filter is told to keep, the likeliest stays. */
static void filters_leave_the_likeliest(void **state)
{
    (void)state;
    static const double share[] = {0.2, 0.5, 0.3};
    sac_sampling p = plain(1);
    p.top_p = 0;
    assert_int_equal(tokens_drawn(&p, share, 3), 2);
    p = plain(1);
    p.min_p = 2;
    assert_int_equal(tokens_drawn(&p, share, 3), 2);
}

static void top_k_takes_smaller_ids_on_ties(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    const struct seen seen = {logits, NULL, N_VOCAB};
    for (int i = 0; i < N_VOCAB; i++) logits[i] = (float)(i % 7);
    sac_sampling p = plain(1);
    for (p.top_k = 1; p.top_k < N_VOCAB; p.top_k += 13) {
        sac_sampler *s = make(&p);
        const size_t n = gather_top(s->list, &seen, (size_t)p.top_k);
        assert_int_equal(n, p.top_k);
        for (size_t i = 1; i < n; i++) assert_true(is_better(&s->list[i - 1], &s->list[i]));
        /* The sixes come first, by id; then the fives. */
        const size_t n_six = (N_VOCAB - 7) / 7 + 1;
        for (size_t i = 0; i < n && i < n_six; i++)
            assert_int_equal(s->list[i].tok, 6 + 7 * (int)i);
        if (n > n_six) assert_int_equal(s->list[n_six].tok, 5);
        sac_sampler_free(s);
    }
}

/* Rising logits raise the bar at every token: the worst case of gather_top. */
static void top_k_of_rising_logits(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    const struct seen seen = {logits, NULL, N_VOCAB};
    for (int i = 0; i < N_VOCAB; i++) logits[i] = (float)i;
    sac_sampling p = plain(1);
    p.top_k = 10;
    sac_sampler *s = make(&p);
    assert_int_equal(gather_top(s->list, &seen, 10), 10);
    for (int i = 0; i < 10; i++) assert_int_equal(s->list[i].tok, N_VOCAB - 1 - i);
    sac_sampler_free(s);
}

/* ---- The draw ---- */

/* Wilson and Hilferty's normal approximation: how far is chi-square from its mean, in sigmas? */
static double chi_square_sigmas(double chi, double n_free)
{
    const double v = 2 / (9 * n_free);
    return (cbrt(chi / n_free) - (1 - v)) / sqrt(v);
}

static void draw_follows_the_distribution(void **state)
{
    (void)state;
    enum { N_DRAW = 50000 };
    static struct ref_list want;
    static uint32_t count[N_VOCAB];
    uint64_t rng[4];
    float logits[N_VOCAB], copy[N_VOCAB];
    for (int round = 0; round < 6; round++) {
        rng_seed(rng, 100 + (uint64_t)round);
        random_logits(rng, logits, N_VOCAB);
        for (int i = 0; i < N_VOCAB; i++) logits[i] *= 0.4f; /* flat: many tokens are drawn often */
        sac_sampling p = plain(round % 2 ? 0.7f : 1.3f);
        p.seed = (uint64_t)round;
        if (round >= 2) p.top_k = 40;
        if (round >= 4) p.min_p = 0.05f;
        ref_filter(&want, logits, &p);
        memset(count, 0, sizeof count);
        sac_sampler *s = make(&p);
        for (int i = 0; i < N_DRAW; i++) {
            memcpy(copy, logits, sizeof copy);
            count[sac_sampler_sample(s, copy, NULL, 0)]++;
        }
        sac_sampler_free(s);
        double chi = 0, n_free = -1, rest_p = 0, rest_n = 0, n_seen = 0;
        for (size_t i = 0; i < want.n; i++) {
            const double expected = want.at[i].p * N_DRAW, got = count[want.at[i].tok];
            n_seen += got;
            if (expected < 10) { /* too few for the approximation: counted together */
                rest_p += expected;
                rest_n += got;
                continue;
            }
            chi += (got - expected) * (got - expected) / expected;
            n_free++;
        }
        if (rest_p >= 10) {
            chi += (rest_n - rest_p) * (rest_n - rest_p) / rest_p;
            n_free++;
        }
        assert_true(n_seen == N_DRAW); /* nothing outside of the kept set */
        assert_true(n_free >= 5);
        assert_true(fabs(chi_square_sigmas(chi, n_free)) < 4);
    }
}

static void same_seed_same_tokens(void **state)
{
    (void)state;
    uint64_t rng[4];
    float logits[N_VOCAB], copy[N_VOCAB];
    sac_sampling p = plain(1);
    int n_differ = 0;
    p.seed = 7;
    sac_sampler *a = make(&p), *b = make(&p);
    p.seed = 8;
    sac_sampler *c = make(&p);
    rng_seed(rng, 3);
    for (int i = 0; i < 200; i++) {
        random_logits(rng, logits, N_VOCAB);
        memcpy(copy, logits, sizeof copy);
        const int32_t tok = sac_sampler_sample(a, copy, NULL, 0);
        memcpy(copy, logits, sizeof copy);
        /* Asking for probabilities must not disturb the draw. */
        sac_prob probs[3];
        assert_int_equal(sac_sampler_sample(b, copy, probs, 3), tok);
        memcpy(copy, logits, sizeof copy);
        n_differ += sac_sampler_sample(c, copy, NULL, 0) != tok;
    }
    assert_true(n_differ > 100);
    sac_sampler_free(a);
    sac_sampler_free(b);
    sac_sampler_free(c);
}

/* The first numbers of xoshiro256** from the state 1, 2, 3, 4, worked out by hand from its
 * definition: rotl(2 * 5, 7) * 9 = 11520, then 0, then rotl(262149 * 5, 7) * 9. */
static void generator_is_xoshiro(void **state)
{
    (void)state;
    uint64_t rng[4] = {1, 2, 3, 4};
    const double scale = 0x1p-53;
    assert_true(rng_next(rng) == (double)(11520u >> 11) * scale);
    assert_true(rng_next(rng) == 0);
    assert_true(rng_next(rng) == (double)(UINT64_C(1509978240) >> 11) * scale);
}

/* ---- Greedy, bias, penalties ---- */

static void greedy_takes_the_largest_and_smaller_ids(void **state)
{
    (void)state;
    float logits[N_VOCAB];
    sac_sampling p = plain(0);
    sac_sampler *s = make(&p);
    for (int at = 0; at < N_VOCAB; at++) {
        for (int i = 0; i < N_VOCAB; i++) logits[i] = -1;
        logits[at] = 2;
        logits[N_VOCAB - 1] = 2;
        assert_int_equal(sac_sampler_sample(s, logits, NULL, 0), at);
    }
    sac_sampler_free(s);
}

static void bias_adds_up_and_bans(void **state)
{
    (void)state;
    float logits[N_VOCAB] = {[5] = 3, [6] = 2, [7] = 1};
    const sac_logit_bias bias[] = {{5, -INFINITY}, {7, 0.75f}, {7, 0.75f}};
    sac_sampling p = plain(0);
    p.logit_bias = bias;
    p.n_logit_bias = 3;
    sac_sampler *s = make(&p);
    sac_prob probs[2];
    assert_int_equal(sac_sampler_sample(s, logits, probs, 2), 7);
    /* What is reported comes from the model: 5 is the likeliest, and 7 has its own probability. */
    const double sum = exp(3) + exp(2) + exp(1) + (N_VOCAB - 3);
    assert_int_equal(probs[0].tok, 5);
    assert_int_equal(probs[1].tok, 6);
    assert_near(probs[0].logprob, 3 - log(sum));
    assert_near(probs[1].logprob, 2 - log(sum));
    assert_near(sample_last_logprob(s), 1 - log(sum));
    sac_sampler_free(s);
}

/* Penalties by their definition over the last tokens, for windows that fill, slide and never end.
 */
static void penalties_follow_their_definition(void **state)
{
    (void)state;
    enum { N_STEP = 300, N_KIND = 40 };
    const int32_t windows[] = {0, 1, 5, 64, -1};
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
        uint64_t rng[4];
        int32_t said[N_STEP];
        sac_sampling p = plain(0);
        p.repeat_penalty = 1.3f;
        p.frequency_penalty = 0.2f;
        p.presence_penalty = 0.4f;
        p.repeat_last_n = windows[w];
        sac_sampler *s = make(&p);
        rng_seed(rng, 17);
        for (int step = 0; step < N_STEP; step++) {
            float logits[N_VOCAB], was[N_VOCAB];
            random_logits(rng, logits, N_VOCAB);
            memcpy(was, logits, sizeof was);
            sac_sampler_sample(s, logits, NULL, 0);
            const int n_back = windows[w] < 0 || windows[w] > step ? step : windows[w];
            for (int32_t tok = 0; tok < N_VOCAB; tok++) {
                int count = 0;
                for (int i = step - n_back; i < step; i++) count += said[i] == tok;
                double x = (double)was[tok];
                if (count) {
                    x = x > 0 ? x / (double)p.repeat_penalty : x * (double)p.repeat_penalty;
                    x -= count * (double)p.frequency_penalty + (double)p.presence_penalty;
                }
                assert_near(logits[tok], x);
            }
            said[step] = (int32_t)uniform(rng, 0, N_KIND);
            sac_sampler_accept(s, said[step]);
        }
        sac_sampler_free(s);
    }
}

/* Leaves the n largest logits and what is as large as the last of them. */
static void keep_top(float *logits, uint32_t n)
{
    static struct candidate list[N_VOCAB];
    const struct seen seen = {logits, NULL, N_VOCAB};
    const size_t k = gather_top(list, &seen, n);
    for (int i = 0; i < N_VOCAB; i++)
        if (logits[i] < list[k - 1].logit) logits[i] = -INFINITY;
}

/* Names the tokens that are left, and makes the others such that whoever looked would take them. */
static uint32_t name_top(float *logits, int32_t *top)
{
    uint32_t n = 0;
    for (int32_t i = 0; i < N_VOCAB; i++)
        if (logits[i] > -INFINITY)
            top[n++] = i;
        else
            logits[i] = 1000;
    return n;
}

/* Every choice hangs on as many of the largest logits as the sampler says, ties included. */
static void the_top_decides(void **state)
{
    (void)state;
    const sac_logit_bias bans[] = {{3, -INFINITY}, {400, -2}, {401, 0}};
    const struct {
        float temp;
        int32_t top_k;
        size_t n_bias;
        uint32_t want;
    } cases[] = {{0, 40, 0, 1}, {0, 0, 3, 4}, {0.8f, 1, 0, 1}, {0.8f, 40, 0, 40}, {1.5f, 5, 3, 8}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        uint64_t rng[4];
        sac_sampling p = plain(cases[c].temp);
        p.top_k = cases[c].top_k;
        p.top_p = 0.95f;
        p.min_p = 0.05f;
        p.logit_bias = bans;
        p.n_logit_bias = cases[c].n_bias;
        sac_sampler *whole = make(&p), *top = make(&p), *named = make(&p);
        assert_int_equal(sample_n_top(whole), cases[c].want);
        rng_seed(rng, c);
        for (int round = 0; round < N_ROUND; round++) {
            float logits[N_VOCAB], few[N_VOCAB], known[N_VOCAB];
            int32_t id[N_VOCAB];
            random_logits(rng, logits, N_VOCAB);
            for (int i = 0; i < N_VOCAB; i++) logits[i] = roundf(4 * logits[i]) / 4; /* ties */
            for (size_t i = 0; i < p.n_logit_bias && round % 2; i++) logits[bans[i].tok] = 20;
            memcpy(few, logits, sizeof few);
            keep_top(few, sample_n_top(whole));
            memcpy(known, few, sizeof known);
            const sac_row row = {.logits = known, .top = id, .n_top = name_top(known, id)};
            const int32_t tok = sac_sampler_sample(whole, logits, NULL, 0);
            assert_int_equal(sac_sampler_sample(top, few, NULL, 0), tok);
            assert_int_equal(sac_sampler_sample_row(named, &row), tok);
        }
        sac_sampler_free(named);
        sac_sampler_free(whole);
        sac_sampler_free(top);
    }
}

static void some_samplers_want_all(void **state)
{
    (void)state;
    const sac_logit_bias lift = {3, 1};
    sac_sampling p[5] = {plain(0.8f), plain(0), plain(0), plain(0), plain(0.8f)};
    p[1].repeat_penalty = 1.1f;
    p[2].logit_bias = &lift;
    p[2].n_logit_bias = 1;
    p[3].dry_multiplier = 1;
    p[3].dry_base = 2;
    p[3].dry_allowed_length = p[3].dry_last_n = 1;
    p[4].mirostat = 1;
    p[4].top_k = 5;
    for (int i = 0; i < 5; i++) {
        sac_sampler *s = make(&p[i]);
        assert_int_equal(sample_n_top(s), 0);
        sac_sampler_free(s);
    }
}

/* ---- Hostile input ---- */

/* A mask does what the same ban of each token would: it chooses the same tokens, greedily and by
 * chance, behind every filter, and probabilities stay the model's. */
static void a_mask_bans_what_it_leaves_out(void **state)
{
    static float logits[N_VOCAB], copy[N_VOCAB];
    static sac_logit_bias ban[N_VOCAB];
    static int32_t all[N_VOCAB];
    uint64_t rng[4], mask[(N_VOCAB + 63) / 64];
    (void)state;
    rng_seed(rng, 9);
    for (int32_t t = 0; t < N_VOCAB; t++) all[t] = t;
    for (int i = 0; i < 200; i++) {
        sac_sampling p = plain(i % 4 ? 0.9f : 0);
        p.top_k = i % 3 ? 20 : 0;
        p.min_p = i % 5 ? 0 : 0.1f;
        p.repeat_penalty = i % 2 ? 1.3f : 1;
        p.seed = (uint64_t)i;
        size_t n_ban = 0;
        memset(mask, 0, sizeof mask);
        for (uint32_t t = 0; t < N_VOCAB; t++)
            if (rng_next(rng) < (i % 7 ? 0.5 : 0.01))
                mask[t / 64] |= 1ull << t % 64;
            else
                ban[n_ban++] = (sac_logit_bias){(int32_t)t, -INFINITY};
        sac_sampler *masked = make(&p);
        p.logit_bias = ban;
        p.n_logit_bias = n_ban;
        sac_sampler *banned = make(&p);
        for (int round = 0; round < 3; round++) {
            sac_prob probs[2], want[2];
            random_logits(rng, logits, N_VOCAB);
            memcpy(copy, logits, sizeof copy);
            const sac_row row = {
                .logits = logits, .top = round == 1 ? all : NULL, .n_top = N_VOCAB};
            const int32_t tok = sample_row(masked, &row, mask, probs, 2);
            assert_int_equal(tok, sac_sampler_sample(banned, copy, want, 2));
            assert_memory_equal(probs, want, sizeof probs);
            assert_true(tok >= 0 && (mask[tok / 64] >> tok % 64 & 1));
            assert_true(sample_last_logprob(masked) == sample_last_logprob(banned));
            sac_sampler_accept(masked, tok);
            sac_sampler_accept(banned, tok);
        }
        memset(mask, 0, sizeof mask);
        random_logits(rng, logits, N_VOCAB);
        assert_int_equal(sample_row(masked, &(sac_row){.logits = logits}, mask, NULL, 0), -1);
        sac_sampler_free(masked);
        sac_sampler_free(banned);
    }
}

static void odd_logits_have_a_defined_outcome(void **state)
{
    (void)state;
    static float logits[N_VOCAB];
    for (int greedy = 0; greedy < 2; greedy++)
        for (int32_t top_k = 0; top_k < 80; top_k += 40) {
            sac_sampling p = plain(greedy ? 0 : 1);
            p.top_k = top_k;
            p.typical_p = 0.9f;
            p.top_p = 0.9f;
            p.min_p = 0.05f;
            sac_sampler *s = make(&p);
            sac_prob probs[2];
            for (int i = 0; i < N_VOCAB; i++) logits[i] = NAN;
            assert_int_equal(sac_sampler_sample(s, logits, probs, 2), -1);
            assert_true(probs[0].tok == -1 && probs[0].logprob == -INFINITY);
            for (int i = 0; i < N_VOCAB; i++) logits[i] = i % 2 ? -INFINITY : NAN;
            assert_int_equal(sac_sampler_sample(s, logits, probs, 2), -1);
            logits[501] = -3; /* the only number */
            assert_int_equal(sac_sampler_sample(s, logits, probs, 2), 501);
            assert_true(probs[0].tok == 501 && fabsf(probs[0].logprob) < 1e-6f);
            assert_true(probs[1].tok == -1);
            logits[77] = INFINITY;
            assert_int_equal(sac_sampler_sample(s, logits, probs, 2), 77);
            assert_true(probs[0].tok == 77 && isfinite(probs[0].logprob));
            for (int i = 0; i < N_VOCAB; i++) logits[i] = -FLT_MAX;
            logits[9] = FLT_MAX;
            assert_int_equal(sac_sampler_sample(s, logits, NULL, 0), 9);
            sac_sampler_free(s);
        }
}

static void bad_parameters_are_named(void **state)
{
    (void)state;
    const sac_logit_bias outside = {N_VOCAB, 1}, nan_bias = {1, NAN};
    struct {
        sac_sampling p;
        const char *word;
    } cases[8];
    for (size_t i = 0; i < 8; i++) cases[i].p = plain(1);
    cases[0].p.temp = NAN, cases[0].word = "temperature";
    cases[1].p.top_p = INFINITY, cases[1].word = "top-p";
    cases[2].p.repeat_penalty = 0, cases[2].word = "repeat penalty";
    cases[3].p.repeat_last_n = -2, cases[3].word = "repeat_last_n -2";
    cases[4].p.logit_bias = &outside, cases[4].p.n_logit_bias = 1, cases[4].word = "token 1000";
    cases[5].p.logit_bias = &nan_bias, cases[5].p.n_logit_bias = 1, cases[5].word = "token 1 ";
    cases[6].p.frequency_penalty = NAN, cases[6].word = "frequency";
    cases[7].p.repeat_last_n = INT32_MAX, cases[7].word = "repeat_last_n";
    for (size_t i = 0; i < 8; i++) {
        sac_sampler *s = NULL;
        sac_error err = {0};
        assert_int_equal(sac_sampler_create(&s, &model, &cases[i].p, &err), SAC_ERR_ARG);
        assert_non_null(strstr(err.msg, cases[i].word));
        assert_null(s);
    }
}

static void memory_is_taken_at_create_only(void **state)
{
    (void)state;
    sac_sampling p = sac_sampling_default();
    const sac_logit_bias bias = {3, 1};
    p.repeat_penalty = 1.1f;
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    for (uint64_t nth = 1; nth <= 8; nth++) { /* eight allocations, each of which may fail */
        sac_sampler *s = NULL;
        sac_error err;
        mem_fail_after(nth);
        assert_int_equal(sac_sampler_create(&s, &model, &p, &err), SAC_ERR_MEMORY);
        mem_fail_after(0);
    }
    sac_sampler *s = make(&p);
    float logits[N_VOCAB];
    sac_prob probs[10];
    uint64_t rng[4];
    rng_seed(rng, 5);
    const uint64_t before = mem_count();
    for (int i = 0; i < 100; i++) {
        random_logits(rng, logits, N_VOCAB);
        sac_sampler_accept(s, sac_sampler_sample(s, logits, probs, 10));
    }
    assert_int_equal(mem_count(), before);
    sac_sampler_free(s);
    sac_sampler_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_keep_what_they_define),
        cmocka_unit_test(filters_come_in_their_order),
        cmocka_unit_test(filters_leave_the_likeliest),
        cmocka_unit_test(top_k_takes_smaller_ids_on_ties),
        cmocka_unit_test(top_k_of_rising_logits),
        cmocka_unit_test(draw_follows_the_distribution),
        cmocka_unit_test(same_seed_same_tokens),
        cmocka_unit_test(generator_is_xoshiro),
        cmocka_unit_test(greedy_takes_the_largest_and_smaller_ids),
        cmocka_unit_test(bias_adds_up_and_bans),
        cmocka_unit_test(penalties_follow_their_definition),
        cmocka_unit_test(the_top_decides),
        cmocka_unit_test(some_samplers_want_all),
        cmocka_unit_test(a_mask_bans_what_it_leaves_out),
        cmocka_unit_test(odd_logits_have_a_defined_outcome),
        cmocka_unit_test(bad_parameters_are_named),
        cmocka_unit_test(memory_is_taken_at_create_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
