/* test_method_set.c: what an engine makes of the methods that it is given: the room that they need
 * does not show in its parameters, and a model that they cannot work with is refused. */
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_BATCH = 64, N_SEQ = 3 };

static sac_engine_params params_with(const char *const *prefill, const char *const *decode)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 256;
    p.n_batch = N_BATCH;
    p.n_seq_max = N_SEQ;
    p.n_threads = 1;
    p.sparse_min_ctx = 0;
    p.prefill = prefill;
    p.n_prefill = prefill != NULL;
    p.decode = decode;
    p.n_decode = decode != NULL;
    return p;
}

static void append(sac_engine *e, sac_seq s, uint32_t n, sac_row_kind kind)
{
    int32_t tok[N_BATCH];
    sac_error err;
    for (uint32_t i = 0; i < n; i++) tok[i] = (int32_t)(i * 37 % TINY_VOCAB);
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_NONE, &err), &err);
}

/* A prefill method's chunk is never cut, so it is computed beside a row of every other sequence. */
static void whole_chunks_fit_and_the_batch_stays_as_asked(void **state)
{
    static const char *const prefill = "a-shape:sink=4,window=32";
    (void)state;
    sac_model *model = tiny_open(&(struct tiny){.seed = 1});
    sac_engine_params p = params_with(&prefill, NULL);
    sac_engine *e;
    sac_seq s[N_SEQ];
    sac_error err;
    uint32_t n_row;
    must(sac_engine_create(&e, model, &p, &err), &err);
    assert_int_equal(sac_engine_get_params(e).n_batch, N_BATCH);
    for (int i = 0; i < N_SEQ; i++) must(sac_seq_create(e, &s[i], &err), &err);
    for (int i = 0; i + 1 < N_SEQ; i++) append(e, s[i], 1, SAC_ROW_DECODE);
    append(e, s[N_SEQ - 1], N_BATCH, SAC_ROW_PROMPT);
    must(sac_step(e, NULL, NULL, &n_row, &err), &err);
    assert_int_equal(n_row, N_BATCH + N_SEQ - 1);
    sac_engine_free(e);
    sac_model_free(model);
}

static void a_model_with_too_many_query_heads_is_refused(void **state)
{
    static const char *const quest = "quest", *const full = "full", *const sparge = "sparge";
    (void)state;
    sac_model *model = tiny_open(&(struct tiny){.seed = 1, .n_head = 65, .n_kv_head = 1});
    const sac_engine_params bad[] = {params_with(NULL, &quest), params_with(&sparge, NULL)};
    sac_engine_params dense = params_with(NULL, &full);
    sac_engine *e;
    sac_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(sac_engine_create(&e, model, &bad[i], &err), SAC_ERR_UNSUPPORTED);
        assert_non_null(strstr(err.msg, "65 query heads"));
        assert_non_null(strstr(err.msg, i ? "prefill" : "decode"));
    }
    must(sac_engine_create(&e, model, &dense, &err), &err);
    sac_engine_free(e);
    sac_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_chunks_fit_and_the_batch_stays_as_asked),
        cmocka_unit_test(a_model_with_too_many_query_heads_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
