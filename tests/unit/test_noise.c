/* test_noise.c: contexts of noise are those of their seed, however they were cut and wherever their
 * pages lie, methods note them as they note a prompt, and engines that would mistake them for a
 * prompt refuse them. */
#include "engine/engine.h"
#include "must.h"
#include "tiny_rows.h"

#include "saccade_machine.h"
#include "saccade_tier.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_TOK = 300 };

static sac_model *model;
static int32_t text[N_TOK];

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 3});
    for (int i = 0; i < N_TOK; i++) text[i] = i % TINY_VOCAB;
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static sac_engine_params engine_params(const char *const *spec)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = 2;
    p.n_threads = 2;
    p.n_batch = 64;
    p.sparse_min_ctx = 0;
    p.decode = spec;
    p.n_decode = 1;
    return p;
}

/* The logits of a decode row behind noise that is stored in parts of at most `part` tokens. */
static void behind_noise(float *logits, const sac_engine_params *p, size_t part, uint64_t seed)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_seq s;
    uint32_t n_row;
    must(sac_engine_create(&e, model, p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    for (size_t i = 0; i < N_TOK; i += part)
        must(sac_seq_append_noise(e, s, text + i, i + part < N_TOK ? part : N_TOK - i, seed, &err),
             &err);
    assert_int_equal(sac_seq_length(e, s, &n_row), N_TOK);
    assert_int_equal(n_row, 0);
    if (p->tier) /* and nothing of it is left to be written, at the cost of the rows behind it */
        assert_int_equal(sac_tier_get_stats(e).bytes_written,
                         N_TOK / PAGE_TOK * pool_pages_per_index(&e->pool) *
                             disk_slot_bytes(e->pool.tier->disk));
    must(sac_seq_append(e, s, text, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err), &err);
    must(sac_step(e, catch_row, logits, &n_row, &err), &err);
    assert_int_equal(n_row, 1);
    sac_engine_free(e);
}

static void noise_is_that_of_its_seed(void **state)
{
    static const char *const spec[] = {"full", "quest:budget=64", "psa:mass=0.9", "h2o:budget=64"};
    char path[80];
    (void)state;
    snprintf(path, sizeof path, "%s/saccade-noise-%d", P_tmpdir, (int)getpid());
    for (size_t i = 0; i < sizeof spec / sizeof spec[0]; i++) {
        float want[TINY_VOCAB], got[TINY_VOCAB];
        const struct sac_tier_params tier = {
            .file = path, .file_bytes = 16u << 20, .fast_bytes = 40 * 128 * TINY_DIM};
        sac_engine_params p = engine_params(&spec[i]);
        behind_noise(want, &p, N_TOK, 1);
        behind_noise(got, &p, 47, 1);
        assert_memory_equal(got, want, sizeof want);
        behind_noise(got, &p, N_TOK, 2);
        assert_memory_not_equal(got, want, sizeof want);
        p.tier = &tier;
        behind_noise(got, &p, 130, 1);
        assert_memory_equal(got, want, sizeof want);
    }
}

static void noise_is_refused_where_it_would_be_believed(void **state)
{
    static const char *const spec[] = {"full"};
    (void)state;
    for (int way = 0; way < 4; way++) {
        sac_engine_params p = engine_params(spec);
        sac_engine *e = NULL;
        sac_error err;
        sac_seq s;
        p.prefix_cache = way == 0;
        p.record = way == 1;
        must(sac_engine_create(&e, model, &p, &err), &err);
        must(sac_seq_create(e, &s, &err), &err);
        if (way == 2)
            must(sac_seq_append(e, s, text, 3, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
        const sac_status status = sac_seq_append_noise(e, way == 3 ? 7 : s, text, 40, 1, &err);
        assert_int_equal(status, way == 3 ? SAC_ERR_NOT_FOUND : SAC_ERR_ARG);
        assert_non_null(strstr(err.msg, way < 2    ? "stores no noise"
                                        : way == 2 ? "3 pending tokens"
                                                   : "no sequence 7"));
        assert_int_equal(sac_seq_length(e, s, NULL), 0);
        sac_engine_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_is_that_of_its_seed),
        cmocka_unit_test(noise_is_refused_where_it_would_be_believed),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
