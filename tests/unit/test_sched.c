/* test_sched.c: how many prompt rows a step takes beside decode rows, and whose come first, on a
 * small engine whose pace is set by the test. What comes of that: test_pace.c. */
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

static sac_engine *make_engine_with(const sac_model *model, float tbt_target_ms,
                                    const char *prefill, bool prefix_cache)
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
    p.prefix_cache = prefix_cache;
    p.prefill = &prefill;
    p.n_prefill = 1;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

static sac_engine *make_engine(const sac_model *model, float tbt_target_ms, const char *prefill)
{
    return make_engine_with(model, tbt_target_ms, prefill, false);
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

/* Where a row costs so much and the last step had `n` rows of whose text these are the next. */
static struct pace paced(double decode_us, double fixed_us, double row_us, uint32_t n)
{
    return (struct pace){.decode_us = decode_us,
                         .line = {{.us = {fixed_us / 12, row_us}, .is_known = true}},
                         .margin = {1, 0.125, 2},
                         .n = n,
                         .work = n * 4096.0};
}

static void prompts_take_the_time_that_is_left(void **state)
{
    struct pace late = paced(1000, 0, 84, 256), waited = late, elsewhere = late;
    late.debt_us = waited.debt_us = 1;
    waited.n_wait = 8;
    elsewhere.end = 500;
    elsewhere.n = 24;
    const struct {
        float target_ms;
        struct pace pace;
        uint32_t n_row;
    } cases[] = {
        {0, paced(1000, 0, 50, 256), N_BATCH - PAGE_TOK}, /* no target */
        {10, {.decode_us = 1000}, 16},                    /* it is not known yet what a row costs */
        /* eight of ten ms with a margin of 1.25, and decode rows take 1 ms: 83 rows */
        {10, paced(1000, 0, 84, 256), 64},
        {10, paced(4000, 0, 40, 256), 96},    /* 100 */
        {10, paced(4000, 1500, 40, 256), 32}, /* 62 */
        {10, paced(4000, 0, 160, 256), 25},   /* less than a page */
        {10, paced(20000, 0, 100, 256), 16},  /* decode rows alone take longer */
        {10, paced(1000, 0, 1, 256), N_BATCH - PAGE_TOK},
        {10, paced(1000, 0, 1, 40), 96}, /* not far more than before */
        {10, elsewhere, 24},             /* another text: no more than before */
        {10, late, 0},                   /* others are to catch up */
        {10, waited, 64},                /* not for ever */
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
    assert_int_equal(step(e, paced(1000, 0, 70, 256)), 3 * PAGE_TOK - 10);
    assert_int_equal(sac_seq_length(e, 0, NULL), 3 * PAGE_TOK);
    sac_engine_free(e);
}

/* How many rows there is time for depends on where they are: behind what another has computed. */
static void rows_are_chosen_behind_what_is_found(void **state)
{
    sac_engine *e = make_engine_with(*state, 10, "dense", true);
    add(e, 520, SAC_ROW_PROMPT);
    while (step(e, (struct pace){0})) continue;
    add(e, 1, SAC_ROW_DECODE);
    add(e, N_PROMPT, SAC_ROW_PROMPT);
    struct pace pace = paced(1000, 0, 10, 256);
    pace.line[0].us[2] = 320; /* 40 a row there */
    pace.end = 512;
    assert_int_equal(step(e, pace), 128); /* of 140 */
    assert_int_equal(sac_engine_get_stats(e).reads.n_reused_tok, 512);
    sac_engine_free(e);
}

static uint64_t tick(void *user)
{
    uint64_t *us = user;
    return *us += 1000;
}

static void steps_are_timed(void **state)
{
    uint64_t us = 0;
    sac_engine *e = make_engine(*state, 10, "dense");
    sac_engine_use_clock(e, tick, &us);
    const sac_seq s = add(e, 1, SAC_ROW_DECODE);
    step(e, (struct pace){0});
    assert_true(e->pace.decode_us >= 1000 && e->pace.decode_us <= us);
    sac_error err = {0};
    must(sac_seq_append(e, s, &(int32_t){1}, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
    add(e, N_PROMPT, SAC_ROW_PROMPT);
    us += 3000; /* what goes on between two steps */
    step(e, e->pace);
    assert_true(e->pace.spent_us >= 4000 && e->pace.n > 0);
    sac_engine_free(e);
}

/* A chunk of a method that plans is whole, and no second one goes with it. */
static void planned_chunks_stay_whole(void **state)
{
    sac_engine *e = make_engine(*state, 10, "xattention");
    add(e, 1, SAC_ROW_DECODE);
    add(e, N_PROMPT, SAC_ROW_PROMPT);
    add(e, 100, SAC_ROW_PROMPT);
    assert_int_equal(step(e, paced(1000, 0, 100, 256)), N_BATCH);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_take_the_time_that_is_left),
        cmocka_unit_test(a_cut_is_the_end_of_a_page),
        cmocka_unit_test(rows_are_chosen_behind_what_is_found),
        cmocka_unit_test(steps_are_timed),
        cmocka_unit_test(planned_chunks_stay_whole),
        cmocka_unit_test(the_urgent_prompt_comes_first),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
