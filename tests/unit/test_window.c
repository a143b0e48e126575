/* test_window.c: methods on a model with windows, whose windowed layers no method touches: what a
 * method left to another layer never reaches them.
 *
 * In the model at hand the attention of the one layer without a window is worth nothing (its
 * output matrix is zero), so whatever a method reads there, the answer is the dense one. */
#include "must.h"
#include "spec_make.h"
#include "tiny_rows.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_LAYER = 7, WITHOUT = 5, WINDOW = 70, N_PROMPT = 400, N_ANSWER = 3 };

static sac_model *model;
static int32_t tok[N_PROMPT];

static void mute_layer(void *user, const char *name, float *x, uint32_t n_out, uint32_t n_in)
{
    (void)user;
    if (strcmp(name, "blk.5.attn_output.weight") == 0)
        memset(x, 0, (size_t)n_out * n_in * sizeof *x);
}

static int open_model(void **state)
{
    (void)state;
    assert_int_equal(WITHOUT % 6, 5);
    model = tiny_open(&(struct tiny){
        .seed = 3, .edit = mute_layer, .n_layer = N_LAYER, .n_kv_head = 1, .window = WINDOW});
    for (int i = 0; i < N_PROMPT; i++) tok[i] = (i * 37 + i / 9) % TINY_VOCAB;
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static void compute(sac_engine *e, sac_seq s, size_t n, sac_row_kind kind, float *logits)
{
    compute_rows(e, s, tok, n, kind, logits);
}

/* Two turns of a prompt and an answer; returns the pages given back in the first. */
static uint64_t two_turns(const char *spec, float logits[TINY_VOCAB])
{
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e;
    sac_error err;
    sac_seq s;
    p.n_ctx = 1024;
    p.n_threads = 1;
    p.n_batch = 128;
    p.decode = &spec;
    p.n_decode = 1;
    p.sparse_min_ctx = 0;
    must(sac_engine_create(&e, model, &p, &err), &err);
    must(sac_seq_create(e, &s, &err), &err);
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
    compute(e, s, N_ANSWER, SAC_ROW_DECODE, logits);
    const uint64_t n_dropped = sac_engine_get_stats(e).reads.n_page_dropped;
    compute(e, s, N_PROMPT, SAC_ROW_PROMPT, logits);
    compute(e, s, N_ANSWER, SAC_ROW_DECODE, logits);
    sac_engine_free(e);
    return n_dropped;
}

static void a_second_turn_leaves_windows_alone(void **state)
{
    (void)state;
    static float dense[TINY_VOCAB], sparse[TINY_VOCAB];
    const struct method *m;
    two_turns("full", dense);
    for (size_t i = 0; (m = method_at(i)); i++) {
        char spec[SPEC_MAKE_BYTES];
        if (!m->decode || !method_tested(m)) continue;
        spec_make_part(spec, m, 12);
        const uint64_t n_dropped = two_turns(spec, sparse);
        if ((n_dropped > 0) != m->evicts)
            fail_msg("%s: %llu pages given back", spec, (unsigned long long)n_dropped);
        if (memcmp(dense, sparse, sizeof dense) != 0)
            fail_msg("%s: what it reads in one layer shows in others", spec);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_second_turn_leaves_windows_alone)};
    return cmocka_run_group_tests(tests, open_model, free_model);
}
