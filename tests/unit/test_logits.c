/* test_logits.c: screened logits on a real small model (smollm2-135m). What a row gives are the
 * bits of the whole projection, at least of as many as were asked for, under every instruction set;
 * and requests answer the same with a screen and without. */
#include "engine/engine.h"
#include "model_open.h"
#include "must.h"
#include "saccade.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_VOCAB = 49152, N_STEP = 24, N_STEP_REF = 5 };

static sac_model *model, *plain_model; /* with a screen and without */

static const char text[] =
    "The eye does not glide along a line of print. It jumps, rests, and jumps";

static int load_models(void **state)
{
    char path[4096];
    sac_model_params params = sac_model_params_default();
    (void)state;
    model = model_open();
    if (!model) return -1;
    params.screen = false;
    return sac_model_load(&plain_model, model_path(path, MODEL_NAME), &params, NULL) == SAC_OK ? 0
                                                                                               : -1;
}

static int free_models(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(plain_model);
    return 0;
}

/* The logits of sequences 0 and 1 in the step at hand. */
struct rows {
    float of[2][N_VOCAB];
};

static void keep_row(void *user, const sac_row *row)
{
    struct rows *rows = user;
    memcpy(rows->of[row->seq], row->logits, sizeof rows->of[row->seq]);
}

static int falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void check_row(const struct rows *rows, uint32_t n_top)
{
    static float sorted[N_VOCAB];
    memcpy(sorted, rows->of[0], sizeof sorted);
    qsort(sorted, N_VOCAB, sizeof *sorted, falling);
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        if (rows->of[1][i] == -INFINITY)
            assert_true(rows->of[0][i] < sorted[n_top - 1]);
        else
            assert_memory_equal(&rows->of[1][i], &rows->of[0][i], sizeof(float));
    }
}

/* Two sequences read one text in the same steps, and one of them wants few logits. */
static uint64_t check_isa(int n_step, uint32_t n_top)
{
    static struct rows rows;
    sac_engine_params params = sac_engine_params_default();
    sac_engine *e;
    sac_seq all, top;
    int32_t *tok;
    size_t n_tok;
    sac_error err;
    params.n_ctx = 256;
    params.n_seq_max = 2;
    params.n_threads = 1; /* tests run side by side */
    must(sac_tokenize(model, text, sizeof text - 1, 0, &tok, &n_tok, &err), &err);
    must(sac_engine_create(&e, model, &params, &err), &err);
    must(sac_seq_create(e, &all, &err), &err);
    must(sac_seq_append(e, all, tok, n_tok, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    must(sac_step(e, keep_row, &rows, NULL, &err), &err);
    must(sac_seq_fork(e, all, &top, &err), &err);
    must(sac_seq_use_top(e, top, n_top, &err), &err);
    const uint64_t before = sac_engine_get_stats(e).n_logit_computed;
    for (int step = 0; step < n_step; step++) {
        int32_t next = 0;
        for (int32_t i = 1; i < N_VOCAB; i++)
            if (rows.of[all][i] > rows.of[all][next]) next = i;
        must(sac_seq_append(e, all, &next, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
        must(sac_seq_append(e, top, &next, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
        must(sac_step(e, keep_row, &rows, NULL, &err), &err);
        check_row(&rows, n_top);
    }
    const uint64_t n_computed = sac_engine_get_stats(e).n_logit_computed - before;
    sac_engine_free(e);
    sac_free(tok);
    return n_computed - (uint64_t)n_step * N_VOCAB;
}

static void logits_are_those_of_the_whole_projection(void **state)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", "amx", "neon"};
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        sac_engine *probe;
        sac_engine_params params = sac_engine_params_default();
        params.n_ctx = 32;
        assert_int_equal(setenv("SAC_CPU", isas[i], 1), 0);
        if (sac_engine_create(&probe, model, &params, NULL) != SAC_OK) continue;
        sac_engine_free(probe);
        /* Of a text that the model knows how to go on with, most rows compute a small part. */
        const int n_step = i == 0 ? N_STEP_REF : N_STEP; /* plain C is slow */
        assert_true(check_isa(n_step, 1) < (uint64_t)n_step * N_VOCAB / 2);
        check_isa(n_step / 2, 40);
        check_isa(1, N_VOCAB);
    }
    unsetenv("SAC_CPU");
}

struct one {
    float logits[N_VOCAB];
};

static void keep_one(void *user, const sac_row *row)
{
    memcpy(((struct one *)user)->logits, row->logits, sizeof(struct one));
}

/* Allows the tokens that stand in a group with one of the 500 likeliest, and none of these. */
static void mask_neighbours(uint64_t mask[N_VOCAB / 64], const float *logits)
{
    static float sorted[N_VOCAB];
    memcpy(sorted, logits, sizeof sorted);
    qsort(sorted, N_VOCAB, sizeof *sorted, falling);
    memset(mask, 0, N_VOCAB / 8);
    for (uint32_t i = 0; i < N_VOCAB; i++)
        if (logits[i] >= sorted[500]) mask[i / 64] |= UINT64_C(0xffff) << i % 64 / 16 * 16;
    for (uint32_t i = 0; i < N_VOCAB; i++)
        if (logits[i] >= sorted[500]) mask[i / 64] &= ~(UINT64_C(1) << i % 64);
}

/* The best of the tokens that a mask leaves, though each shares a group with one that is likelier
 * and ruled out. */
static void ruled_out_tokens_hide_none(void **state)
{
    static struct one whole, few;
    static uint64_t mask[N_VOCAB / 64];
    static float sorted[N_VOCAB];
    sac_engine_params params = sac_engine_params_default();
    sac_engine *e;
    sac_seq begin, all, top;
    int32_t *tok;
    size_t n_tok;
    sac_error err;
    (void)state;
    params.n_ctx = 256;
    params.n_seq_max = 3;
    params.n_threads = 1;
    must(sac_tokenize(model, text, sizeof text - 1, 0, &tok, &n_tok, &err), &err);
    must(sac_engine_create(&e, model, &params, &err), &err);
    must(sac_seq_create(e, &begin, &err), &err);
    must(sac_seq_append(e, begin, tok, n_tok - 1, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    must(sac_step(e, NULL, NULL, NULL, &err), &err);
    for (uint32_t n_top = 1; n_top < 150; n_top += 7) {
        must(sac_seq_fork(e, begin, &all, &err), &err);
        must(sac_seq_append(e, all, tok + n_tok - 1, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
        must(sac_step(e, keep_one, &whole, NULL, &err), &err);
        mask_neighbours(mask, whole.logits);
        must(sac_seq_fork(e, begin, &top, &err), &err);
        must(sac_seq_use_top(e, top, n_top, &err), &err);
        engine_use_mask(e, top, mask);
        must(sac_seq_append(e, top, tok + n_tok - 1, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
        must(sac_step(e, keep_one, &few, NULL, &err), &err);
        for (uint32_t i = 0; i < N_VOCAB; i++)
            sorted[i] = mask[i / 64] >> i % 64 & 1 ? whole.logits[i] : -INFINITY;
        qsort(sorted, N_VOCAB, sizeof *sorted, falling);
        for (uint32_t i = 0; i < N_VOCAB; i++)
            if ((mask[i / 64] >> i % 64 & 1) && whole.logits[i] >= sorted[n_top - 1])
                assert_memory_equal(&few.logits[i], &whole.logits[i], sizeof(float));
        sac_seq_remove(e, all);
        sac_seq_remove(e, top);
    }
    sac_engine_free(e);
    sac_free(tok);
}

struct answer {
    int32_t tok[N_STEP];
    uint32_t n_tok;
};

static bool collect(void *user, const sac_event *e)
{
    struct answer *a = user;
    if (e->kind == SAC_EVENT_TOKEN) a->tok[a->n_tok++] = e->tok;
    return false;
}

/* A guide that allows one token in `step`, beginning elsewhere each time. */
struct every {
    uint64_t mask[N_VOCAB / 64];
    uint32_t step, n;
};

static const uint64_t *every_mask(void *user)
{
    struct every *g = user;
    memset(g->mask, 0, sizeof g->mask);
    for (uint32_t t = g->n++ % g->step; t < N_VOCAB; t += g->step)
        g->mask[t / 64] |= 1ull << t % 64;
    return g->mask;
}

/* `step` as of struct every; 0: no guide. Returns the share of logits that were computed. */
static double ask(struct answer *a, const sac_model *m, float temp, uint32_t step)
{
    struct every every = {.step = step};
    sac_engine_params params = sac_engine_params_default();
    sac_engine *e;
    sac_request r = sac_request_default();
    int32_t *tok;
    uint32_t n_active = 1;
    sac_error err;
    *a = (struct answer){0};
    params.n_ctx = 256;
    params.n_threads = 1;
    must(sac_tokenize(m, text, sizeof text - 1, 0, &tok, &r.n_prompt, &err), &err);
    must(sac_engine_create(&e, m, &params, &err), &err);
    r.prompt = tok;
    r.sampling.temp = temp;
    r.sampling.seed = 5;
    r.max_tokens = N_STEP;
    r.ignore_eos = true;
    if (step) r.guide = (sac_guide){.mask = every_mask, .user = &every};
    r.on_event = collect;
    r.user = a;
    uint64_t id;
    must(sac_submit(e, &r, &id, &err), &err);
    while (n_active) must(sac_run(e, &n_active, &err), &err);
    const sac_engine_stats stats = sac_engine_get_stats(e);
    if (m == plain_model) assert_int_equal(stats.n_logit_computed, stats.n_logit);
    sac_engine_free(e);
    sac_free(tok);
    return (double)stats.n_logit_computed / (double)stats.n_logit;
}

/* With a mask, too, rows give what the sampler needs: the largest logits of the tokens that are
 * left, whether they are half of the vocabulary or a handful. */
static void masked_requests_answer_alike(void **state)
{
    static const uint32_t steps[] = {2, N_VOCAB / 5};
    (void)state;
    for (size_t i = 0; i < 2 * sizeof steps / sizeof steps[0]; i++) {
        struct answer with, without;
        const float temp = i % 2 ? 0.8f : 0;
        const double share = ask(&with, model, temp, steps[i / 2]);
        ask(&without, plain_model, temp, steps[i / 2]);
        assert_int_equal(with.n_tok, N_STEP);
        assert_memory_equal(with.tok, without.tok, sizeof with.tok);
        for (uint32_t n = 0; n < N_STEP; n++)
            assert_int_equal((uint32_t)with.tok[n] % steps[i / 2], n % steps[i / 2]);
        if (steps[i / 2] > 2) assert_true(share <= 6.0 * 16 / N_VOCAB); /* a group each */
    }
}

static void requests_answer_alike(void **state)
{
    (void)state;
    assert_true(sac_model_get_info(model).weight_bytes >
                sac_model_get_info(plain_model).weight_bytes);
    for (float temp = 0; temp < 2; temp += 0.8f) {
        struct answer with, without;
        const double share = ask(&with, model, temp, 0);
        ask(&without, plain_model, temp, 0);
        assert_int_equal(with.n_tok, N_STEP);
        assert_memory_equal(with.tok, without.tok, sizeof with.tok);
        /* The largest one needs a few; to ignore ends must not ask for as many more. */
        if (temp <= 0 && share > 0.1) fail_msg("%g of the logits were computed", share);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_whole_projection),
        cmocka_unit_test(ruled_out_tokens_hide_none),
        cmocka_unit_test(requests_answer_alike),
        cmocka_unit_test(masked_requests_answer_alike),
    };
    return cmocka_run_group_tests(tests, load_models, free_models);
}
