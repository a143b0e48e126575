/* test_sched.c: how many prompt rows a step takes beside decode rows, and whose come first, on a
 * small engine whose pace is set by the test. */
#include "engine/engine.h"
#include "engine/sched.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { N_BATCH = 256, N_PROMPT = 1000 };

static sac_engine *make_engine(const sac_model *model, float tbt_target_ms, const char *prefill)
{
    sac_engine *e = NULL;
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 2048;
    p.n_seq_max = 3;
    p.n_batch = N_BATCH;
    p.n_threads = 1;
    p.sparse_min_ctx = 64;
    p.tbt_target_ms = tbt_target_ms;
    p.prefill = &prefill;
    p.n_prefill = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

static sac_seq add(sac_engine *e, size_t n, sac_row_kind kind)
{
    static const int32_t tok[N_PROMPT] = {1, 2, 3};
    sac_seq s;
    sac_error err = {0};
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_NONE, &err), &err);
    return s;
}

/* Prompt rows of one step. */
static uint32_t step(sac_engine *e, struct pace pace)
{
    sac_error err = {0};
    const uint64_t before = sac_engine_get_stats(e).reads.n_prompt_tok;
    e->pace = pace;
    must(sac_step(e, NULL, NULL, NULL, &err), &err);
    return (uint32_t)(sac_engine_get_stats(e).reads.n_prompt_tok - before);
}

static void prompts_take_the_time_that_is_left(void **state)
{
    const struct {
        float target_ms;
        struct pace pace;
        uint32_t n_row;
    } cases[] = {
        {0, {1000, 50}, N_BATCH - PAGE_TOK}, /* no target */
        {10, {1000, 0}, 32},                 /* it is not known yet what a row costs */
        {10, {1000, 84}, 64},   /* nine tenths of the target, and decode rows take 1 ms: 95 rows */
        {10, {4000, 50}, 96},   /* 100 */
        {10, {20000, 100}, 32}, /* decode rows alone take longer: some rows in any case */
        {10, {1000, 1}, N_BATCH - PAGE_TOK},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_engine *e = make_engine(*state, cases[i].target_ms, "dense");
        add(e, 1, SAC_ROW_DECODE);
        add(e, N_PROMPT, SAC_ROW_PROMPT);
        assert_int_equal(step(e, cases[i].pace), cases[i].n_row);
        /* Nobody waits for tokens now. */
        assert_int_equal(step(e, cases[i].pace), N_BATCH);
        sac_engine_free(e);
    }
}

/* What a part of a page costs is paid once. */
static void a_cut_is_the_end_of_a_page(void **state)
{
    sac_engine *e = make_engine(*state, 10, "dense");
    add(e, 10, SAC_ROW_PROMPT);
    step(e, (struct pace){0});
    static const int32_t tok[N_PROMPT] = {1, 2, 3};
    sac_error err = {0};
    must(sac_seq_append(e, 0, tok, 500, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    add(e, 1, SAC_ROW_DECODE);
    add(e, 500, SAC_ROW_PROMPT); /* does not get what the first leaves of the time */
    assert_int_equal(step(e, (struct pace){1000, 84}), 3 * PAGE_TOK - 10);
    assert_int_equal(sac_seq_length(e, 0, NULL), 3 * PAGE_TOK);
    sac_engine_free(e);
}

/* A chunk of a method that plans is whole, and no second one goes with it. */
static void planned_chunks_stay_whole(void **state)
{
    sac_engine *e = make_engine(*state, 10, "xattention");
    add(e, 1, SAC_ROW_DECODE);
    add(e, N_PROMPT, SAC_ROW_PROMPT);
    add(e, 100, SAC_ROW_PROMPT);
    assert_int_equal(step(e, (struct pace){1000, 100}), N_BATCH);
    sac_engine_free(e);
}

static void the_urgent_prompt_comes_first(void **state)
{
    sac_engine *e = make_engine(*state, 0, "dense");
    const sac_seq old = add(e, 300, SAC_ROW_PROMPT), low = add(e, 300, SAC_ROW_PROMPT),
                  high = add(e, 200, SAC_ROW_PROMPT);
    engine_use_priority(e, high, 2);
    engine_use_priority(e, low, -2);
    step(e, (struct pace){0});
    assert_int_equal(sac_seq_length(e, high, NULL), 200);
    assert_int_equal(sac_seq_length(e, old, NULL), N_BATCH - 200);
    step(e, (struct pace){0});
    assert_int_equal(sac_seq_length(e, old, NULL), 300);
    assert_int_equal(sac_seq_length(e, low, NULL), 2 * N_BATCH - 500);
    sac_engine_free(e);
}

static void the_pace_follows_the_steps(void **state)
{
    sac_engine *e = make_engine(*state, 10, "dense");
    struct batch *b = &e->batch;
    b->n_decode = 2, b->n_row = 2;
    sched_note(e, 800);
    assert_true(e->pace.decode_us == 800);
    sched_note(e, 1200);
    assert_true(e->pace.decode_us == 900);
    b->n_row = 102;
    sched_note(e, 5900);
    assert_true(e->pace.row_us == 50 && e->pace.decode_us == 900);
    sched_note(e, 100); /* shorter than decode rows take: says nothing of prompts */
    assert_true(e->pace.row_us == 50);
    b->n_decode = 0, b->n_row = 100;
    sched_note(e, 9000);
    assert_true(e->pace.row_us == 90); /* at once */
    sched_note(e, 5000);
    assert_true(e->pace.row_us == 80); /* slowly */
    sac_engine_free(e);
}

static int open_model(void **state)
{
    sac_model *model = tiny_open(&(struct tiny){.seed = 5});
    *state = model;
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    sac_model_free(*state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_take_the_time_that_is_left),
        cmocka_unit_test(a_cut_is_the_end_of_a_page),
        cmocka_unit_test(planned_chunks_stay_whole),
        cmocka_unit_test(the_urgent_prompt_comes_first),
        cmocka_unit_test(the_pace_follows_the_steps),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
