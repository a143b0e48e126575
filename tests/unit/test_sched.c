/* test_sched.c: how many prompt rows a step takes beside decode rows, and whose come first, on a
 * small engine whose pace is set by the test; and what comes of that on simulated machines, where
 * steps are picked and not computed. */
#include "engine/engine.h"
#include "engine/sched.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>

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
        {0, {.decode_us = 1000, .row_us = 50}, N_BATCH - PAGE_TOK}, /* no target */
        {10, {.decode_us = 1000}, 32}, /* it is not known yet what a row costs */
        /* nine tenths of the target, and decode rows take 1 ms: 95 rows */
        {10, {.decode_us = 1000, .row_us = 84}, 64},
        {10, {.decode_us = 4000, .row_us = 50}, 96},                   /* 100 */
        {10, {.decode_us = 4000, .fixed_us = 1500, .row_us = 50}, 64}, /* 70 */
        {10, {.decode_us = 4000, .row_us = 50, .over = 0.25}, 64},     /* 80 */
        {10, {.decode_us = 4000, .row_us = 200}, 25},                  /* less than a page */
        {10, {.decode_us = 20000, .row_us = 100}, 16}, /* decode rows alone take longer */
        {10, {.decode_us = 1000, .row_us = 1}, N_BATCH - PAGE_TOK},
        {10,
         {.decode_us = 1000, .row_us = 1, .work = 40 * 4096},
         96},                                                    /* not far more than before */
        {10, {.decode_us = 1000, .row_us = 1, .debt_us = 1}, 0}, /* others are to catch up */
        {10, {.decode_us = 1000, .row_us = 84, .debt_us = 1, .n_wait = 8}, 64}, /* not for ever */
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
    assert_int_equal(step(e, (struct pace){.decode_us = 1000, .row_us = 84}), 3 * PAGE_TOK - 10);
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
    assert_int_equal(step(e, (struct pace){.decode_us = 1000, .row_us = 100}), N_BATCH);
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
    assert_true(e->pace.row_us == 50 && e->pace.fixed_us == 0 && e->pace.decode_us == 900);
    sched_note(e, 100); /* shorter than decode rows take: says nothing of prompts */
    assert_true(e->pace.row_us == 50);
    b->n_row = 52; /* half as many rows take 3500: 2000 in any case, and 30 each */
    sched_note(e, 4400);
    assert_true(fabs(e->pace.row_us - 30) < 1e-6 && fabs(e->pace.fixed_us - 2000) < 1e-6);
    assert_true(e->pace.over < 1e-6);
    sched_note(e, 6150); /* half as long again */
    assert_true(e->pace.over > 0.1);
    b->n_decode = 0, b->n_row = 100; /* nobody waits: what follows is of another size */
    const struct pace before = e->pace;
    sched_note(e, 90000);
    assert_memory_equal(&e->pace, &before, sizeof before);
    sac_engine_free(e);
}

/* ---- A simulated machine ---- */

enum { N_STREAM = 7, N_LONG = 8192, N_STEP_MAX = 20000 };

/* What a step takes. */
struct machine {
    const char *name;
    double decode_us;
    double fixed_us, row_us; /* prompt rows: linear layers */
    const double (*attn)[2]; /* [n_attn] rows and the us of their attention behind N_LONG tokens */
    uint32_t n_attn;
    double scatter; /* of a step's time, to both sides */
};

static double attention_us(const struct machine *m, uint32_t n)
{
    uint32_t i = 1;
    if (n == 0 || m->n_attn == 0) return 0;
    while (i + 1 < m->n_attn && m->attn[i][0] < n) i++;
    const double *a = m->attn[i - 1], *b = m->attn[i];
    return n <= a[0] ? a[1] : a[1] + (b[1] - a[1]) * (n - a[0]) / (b[0] - a[0]);
}

static double step_us(const struct machine *m, const sac_engine *e, uint64_t *seed)
{
    const uint32_t n = e->batch.n_row - e->batch.n_decode;
    double us = m->decode_us;
    for (uint32_t i = 0; i < e->batch.n_run; i++)
        if (e->batch.run[i].kind == ROW_PROMPT)
            us += m->fixed_us + n * m->row_us + attention_us(m, n) * e->batch.run[i].pos0 / N_LONG;
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return us * (1 + m->scatter * ((double)(*seed >> 33) * 0x1p-30 - 1));
}

/* What the streams and the prompt see. */
struct seen {
    uint32_t n_step, n_late;      /* steps while a prompt is read; beyond the target */
    double us, longest;           /* their time; the longest step */
    uint32_t least_row, most_row; /* of prompts in a step that has some */
};

/* Reads a long prompt beside streams that decode; only the clock is simulated. */
static struct seen read_beside(sac_engine *e, const struct machine *m, uint64_t *seed)
{
    static const int32_t tok[N_LONG] = {1, 2, 3};
    struct seen seen = {.least_row = UINT32_MAX};
    sac_error err = {0};
    sac_seq s;
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, tok, N_LONG, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    while (e->seqs[s].n_done < N_LONG) {
        for (uint32_t i = 0; i < N_STREAM; i++)
            must(sac_seq_append(e, i, tok, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
        must(sched_pick(e, &err), &err);
        assert_int_equal(e->batch.n_decode, N_STREAM); /* none of them waits */
        const uint32_t n = e->batch.n_row - N_STREAM;
        const double us = step_us(m, e, seed);
        sched_note(e, us);
        sched_commit(e);
        seen.n_step++;
        seen.us += us;
        seen.longest = fmax(seen.longest, us);
        seen.n_late += us > 1e3 * (double)e->params.tbt_target_ms;
        if (n > 0 && n < seen.least_row) seen.least_row = n;
        if (n > seen.most_row) seen.most_row = n;
        assert_true(seen.n_step < N_STEP_MAX);
    }
    sac_seq_remove(e, s);
    return seen;
}

static sac_engine *make_streams(const sac_model *model, float tbt_target_ms)
{
    sac_engine *e = NULL;
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 16384;
    p.n_seq_max = N_STREAM + 1;
    p.n_batch = 1024;
    p.n_threads = 1;
    p.tbt_target_ms = tbt_target_ms;
    must(sac_engine_create(&e, model, &p, &err), &err);
    for (uint32_t i = 0; i < N_STREAM; i++) {
        sac_seq s;
        must(sac_seq_create(e, &s, &err), &err);
    }
    return e;
}

/* Measured on 16 virtual CPUs with AMX (docs/performance/many_cores.md), where attention of few
 * rows was not yet cut along the context: 32 rows take longer than the target, 16 do not. */
static const double slow_attn[][2] = {{16, 32e3},  {32, 48e3},  {64, 49e3},
                                      {128, 52e3}, {256, 66e3}, {512, 154e3}};

static void steps_keep_the_target(void **state)
{
    static const double even_attn[][2] = {{16, 5e3}, {512, 150e3}};
    const struct machine machines[] = {
        {"few rows take long", 8000, 3000, 150, slow_attn, 6, 0.04},
        {"rows take alike", 8000, 4000, 200, even_attn, 2, 0.04},
        {"no time for attention", 8000, 2000, 100, NULL, 0, 0.04},
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        sac_engine *e = make_streams(*state, 50);
        uint64_t seed = 7;
        for (uint32_t again = 0; again < 3; again++) {
            const struct seen s = read_beside(e, &machines[i], &seed);
            print_message("%s: %u steps, %u late, the longest %.1f ms, mean %.1f, %u to %u rows\n",
                          machines[i].name, s.n_step, s.n_late, s.longest / 1e3,
                          s.us / s.n_step / 1e3, s.least_row, s.most_row);
            assert_true(s.n_late * 100 <= s.n_step);    /* the 99th percentile */
            assert_true(s.us / s.n_step >= 0.6 * 50e3); /* and the time is used */
        }
        sac_engine_free(e);
    }
}

/* No step with prompt rows keeps this target: the mean time between tokens does. */
static void late_steps_are_caught_up_with(void **state)
{
    const struct machine m = {"", 8000, 30000, 200, slow_attn, 6, 0.04};
    sac_engine *e = make_streams(*state, 40);
    uint64_t seed = 9;
    const struct seen s = read_beside(e, &m, &seed);
    assert_true(s.n_late > 0 && s.n_late * 10 < s.n_step * 9);
    assert_true(s.us / s.n_step <= 40e3 && s.longest < 100e3);
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
        cmocka_unit_test(steps_keep_the_target),
        cmocka_unit_test(late_steps_are_caught_up_with),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
