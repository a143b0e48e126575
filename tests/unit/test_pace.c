/* test_pace.c: what comes of a target for the time between tokens on simulated machines, where
 * steps are picked and not computed and the clock is the test's; and what is learnt from single
 * steps. */
#include "engine/engine.h"
#include "engine/pace.h"
#include "engine/sched.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

enum { N_STREAM = 7, N_LONG = 8192, N_STEP_MAX = 20000 };

static uint64_t now_us;

static uint64_t read_clock(void *user)
{
    (void)user;
    return now_us;
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
    now_us = 1;
    sac_engine_use_clock(e, read_clock, NULL);
    for (uint32_t i = 0; i < N_STREAM; i++) {
        sac_seq s;
        must(sac_seq_create(e, &s, &err), &err);
    }
    return e;
}

/* ---- Single steps ---- */

/* Decode rows of two sequences and n of a prompt behind `depth` tokens have taken so long. */
static void note(sac_engine *e, uint32_t n, uint32_t depth, uint64_t us)
{
    struct batch *b = &e->batch;
    b->n_decode = b->n_run = b->n_row = 2;
    b->run[0] = (struct batch_run){.n_row = 1, .seq_i = 0, .kind = ROW_DECODE};
    b->run[1] = (struct batch_run){.n_row = 1, .seq_i = 1, .kind = ROW_DECODE};
    b->run[2] = (struct batch_run){.n_row = n, .pos0 = depth, .seq_i = 2, .kind = ROW_PROMPT};
    b->n_row += n;
    b->n_run += n > 0;
    now_us += us;
    pace_note(e, now_us - us, now_us);
}

static double foretold(const sac_engine *e, double n, double depth)
{
    const struct pace_line *l = &e->pace.line[0];
    return e->pace.decode_us + 12 * l->us[0] + n * (l->us[1] + depth / 4096 * l->us[2]);
}

static void assert_near(double a, double b, double share)
{
    if (fabs(a - b) > share * b) fail_msg("%g instead of %g", a, b);
}

static void the_pace_follows_the_steps(void **state)
{
    sac_engine *e = make_streams(*state, 10);
    note(e, 0, 0, 800);
    assert_near(e->pace.decode_us, 800, 0);
    note(e, 0, 0, 1200);
    assert_near(e->pace.decode_us, 900, 0);
    note(e, 16, 0, 2500); /* the first tells all, and promises little of more rows and of deeper */
    assert_near(foretold(e, 16, 0), 2500, 0.02);
    assert_true(foretold(e, 32, 0) > 900 + 1.5 * 1600);
    assert_true(foretold(e, 16, 4096) > 900 + 1.4 * 1600);
    for (uint32_t i = 0; i < 200;
         i++) /* 600 in any case, 50 a row, and 1 of a hundred tokens before */
        note(e, 16u << i % 4, i * 50, 1500 + (16u << i % 4) * (50 + i / 2));
    for (double n = 32; n <= 128; n *= 2) assert_near(foretold(e, n, 5000), 1500 + n * 100, 0.05);
    note(e, 32, 0, 500); /* all of it took less than decode rows seemed to */
    assert_near(e->pace.decode_us, 500, 0);
    e->batch.n_decode = 0; /* nobody waits: what follows is of another size */
    const struct pace before = e->pace;
    pace_note(e, 0, 90000);
    assert_memory_equal(&e->pace, &before, sizeof before);
    sac_engine_free(e);
}

/* Each prefill method has a line of its own. */
static void methods_are_told_apart(void **state)
{
    sac_engine *e = make_streams(*state, 10);
    note(e, 0, 0, 800);
    note(e, 16, 0, 2500);
    e->seqs[2].method_i[METHOD_SET_PREFILL] = 1;
    note(e, 16, 0, 1500);
    assert_near(foretold(e, 16, 0), 2500, 0.02);
    assert_near(12 * e->pace.line[1].us[0] + 16 * e->pace.line[1].us[1], 700, 0.02);
    sac_engine_free(e);
}

/* A step may have told that its rows cost nothing. Where there is no time there are the fewest. */
static void rows_that_cost_nothing_want_time(void **state)
{
    sac_engine *e = make_streams(*state, 10);
    note(e, 0, 0, 8000);
    note(e, 16, 0, 9000);
    memset(e->pace.line[0].us, 0, sizeof e->pace.line[0].us);
    e->seqs[2].n_done = e->pace.end;
    e->batch.n_decode = 2;
    e->pace.spent_us = 0;
    e->pace.decode_us = 100;
    assert_true(pace_rows(e, 2) > PACE_LEAST_ROWS);
    e->pace.decode_us = 12000;
    assert_int_equal(pace_rows(e, 2), PACE_LEAST_ROWS);
    sac_engine_free(e);
}

/* A late step widens the margin as far as 150 in time narrow it; small steps say nothing. */
static void the_width_is_a_percentile(void **state)
{
    sac_engine *e = make_streams(*state, 10);
    note(e, 0, 0, 1000);
    for (int i = 0; i < 51; i++) note(e, 32, 0, 6000);
    const double before = e->pace.margin.width, spread = e->pace.margin.spread;
    assert_near(before, 4 - 50 * 0.5 / 150, 1e-6);
    assert_true(spread < 0.02);
    note(e, 32, 0, 12000);
    assert_near(e->pace.margin.width, before + 0.5, 1e-6);
    assert_true(e->pace.margin.spread > spread + 0.02);
    for (int i = 0; i < 150; i++) note(e, 32, 0, 6000);
    assert_near(e->pace.margin.width, before, 1e-6);
    const struct pace_margin margin = e->pace.margin;
    for (int i = 0; i < 5; i++) note(e, 4, 0, 4500);
    assert_memory_equal(&e->pace.margin, &margin, sizeof margin);
    sac_engine_free(e);
}

/* ---- Simulated machines ---- */

enum scatter {
    SCATTER_EVEN,  /* any time between the bounds */
    SCATTER_STALL, /* one step of 150 takes half as long again */
    SCATTER_SLOW,  /* phases of 40 steps that take longer */
    SCATTER_TAIL,  /* exponential: others compute on the same cores */
};

/* What a step takes. */
struct machine {
    const char *name;
    double decode_us;
    double fixed_us, row_us; /* prompt rows: linear layers */
    const double (*attn)[2]; /* [n_attn] rows and the us of their attention behind N_LONG tokens */
    uint32_t n_attn;
    double scatter; /* of a step's time, to both sides */
    enum scatter kind;
    double aside_us; /* before one step of five: pieces for the disk, requests that begin */
};

static double attention_us(const struct machine *m, uint32_t n)
{
    uint32_t i = 1;
    if (n == 0 || m->n_attn == 0) return 0;
    while (i + 1 < m->n_attn && m->attn[i][0] < n) i++;
    const double *a = m->attn[i - 1], *b = m->attn[i];
    return n <= a[0] ? a[1] : a[1] + (b[1] - a[1]) * (n - a[0]) / (b[0] - a[0]);
}

/* 0 to 1. */
static double draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 33) * 0x1p-31;
}

static double scatter_of(const struct machine *m, uint32_t step, uint64_t *seed)
{
    const double even = 1 + m->scatter * (2 * draw(seed) - 1), other = draw(seed);
    if (m->kind == SCATTER_STALL) return other < 1.0 / 150 ? 1.5 : even;
    if (m->kind == SCATTER_TAIL) return 1 - m->scatter * log(1 - other);
    if (m->kind == SCATTER_SLOW && step / 40 % 4 == 3) return even + m->scatter;
    return even;
}

static double step_us(const struct machine *m, const sac_engine *e, uint32_t step, uint64_t *seed)
{
    const uint32_t n = e->batch.n_row - e->batch.n_decode;
    double us = m->decode_us;
    for (uint32_t i = 0; i < e->batch.n_run; i++)
        if (e->batch.run[i].kind == ROW_PROMPT)
            us += m->fixed_us + n * m->row_us + attention_us(m, n) * e->batch.run[i].pos0 / N_LONG;
    return us * scatter_of(m, step, seed);
}

/* What the streams and the prompt see. */
struct seen {
    uint32_t n_step, n_late;      /* tokens of a stream while a prompt is read; beyond the target */
    double us, longest;           /* their time; the longest gap */
    uint32_t least_row, most_row; /* of prompts in a step that has some */
    uint32_t n_without; /* steps behind each other without a row of the prompt, the most */
};

static void count_step(struct seen *seen, const sac_engine *e, double gap_us, uint32_t *without)
{
    const uint32_t n = e->batch.n_row - N_STREAM;
    seen->n_step++;
    seen->us += gap_us;
    seen->longest = fmax(seen->longest, gap_us);
    seen->n_late += gap_us > 1e3 * (double)e->params.tbt_target_ms;
    if (n > 0 && n < seen->least_row) seen->least_row = n;
    if (n > seen->most_row) seen->most_row = n;
    *without = n > 0 ? 0 : *without + 1;
    if (*without > seen->n_without) seen->n_without = *without;
    assert_true(seen->n_step < N_STEP_MAX);
}

/* Reads a long prompt beside streams that decode; only the clock is simulated. */
static struct seen read_beside(sac_engine *e, const struct machine *m, uint64_t *seed)
{
    static const int32_t tok[N_LONG] = {1, 2, 3};
    struct seen seen = {.least_row = UINT32_MAX};
    uint32_t without = 0;
    sac_error err = {0};
    sac_seq s;
    must(sac_seq_create(e, &s, &err), &err);
    must(sac_seq_append(e, s, tok, N_LONG, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    while (e->seqs[s].n_done < N_LONG) {
        const uint64_t before = now_us;
        for (uint32_t i = 0; i < N_STREAM; i++)
            must(sac_seq_append(e, i, tok, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
        now_us += seen.n_step % 5 == 4 ? (uint64_t)m->aside_us : 0;
        must(sched_pick(e, &err), &err);
        assert_int_equal(e->batch.n_decode, N_STREAM); /* none of them waits */
        const uint64_t start = now_us;
        now_us += (uint64_t)step_us(m, e, seen.n_step, seed);
        pace_note(e, start, now_us);
        sched_commit(e);
        count_step(&seen, e, (double)(now_us - before), &without);
    }
    sac_seq_remove(e, s);
    return seen;
}

/* Measured on 16 virtual CPUs with AMX (docs/performance/many_cores.md), where attention of few
 * rows was not yet cut along the context: 32 rows take longer than the target, 16 do not. */
static const double slow_attn[][2] = {{16, 32e3},  {32, 48e3},  {64, 49e3},
                                      {128, 52e3}, {256, 66e3}, {512, 154e3}};
static const double even_attn[][2] = {{16, 5e3}, {512, 150e3}};

static void print_seen(const struct machine *m, const struct seen *s)
{
    print_message("%s: %u steps, %u late (%.2f %%), the longest %.1f ms, mean %.1f, %u to %u rows, "
                  "%u steps without\n",
                  m->name, s->n_step, s->n_late, 100.0 * s->n_late / s->n_step, s->longest / 1e3,
                  s->us / s->n_step / 1e3, s->least_row, s->most_row, s->n_without);
}

/* From the first prompt on. */
static void steps_keep_the_target(void **state)
{
    const struct machine machines[] = {
        {"few rows take long", 8000, 3000, 150, slow_attn, 6, 0.04, SCATTER_EVEN, 0},
        {"rows take alike", 8000, 4000, 200, even_attn, 2, 0.04, SCATTER_EVEN, 0},
        {"no time for attention", 8000, 2000, 100, NULL, 0, 0.04, SCATTER_EVEN, 0},
        {"more beside", 8000, 4000, 200, even_attn, 2, 0.04, SCATTER_EVEN, 15e3},
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        sac_engine *e = make_streams(*state, 50);
        uint64_t seed = 7;
        for (uint32_t again = 0; again < 3; again++) {
            const struct seen s = read_beside(e, &machines[i], &seed);
            print_seen(&machines[i], &s);
            assert_true(s.n_late * 100 <= s.n_step);     /* the 99th percentile */
            assert_true(s.us / s.n_step >= 0.55 * 50e3); /* and the time is used */
        }
        sac_engine_free(e);
    }
}

/* Behind one prompt by which it is learnt how far. */
static void scattered_steps_keep_the_target(void **state)
{
    const struct machine machines[] = {
        {"30 % to both sides", 8000, 4000, 200, even_attn, 2, 0.3, SCATTER_EVEN, 0},
        {"stalls", 8000, 4000, 200, even_attn, 2, 0.1, SCATTER_STALL, 0},
        {"slow phases", 8000, 4000, 200, even_attn, 2, 0.15, SCATTER_SLOW, 0},
        {"a long tail", 4000, 2000, 100, even_attn, 2, 0.2, SCATTER_TAIL, 0},
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        sac_engine *e = make_streams(*state, 50);
        uint64_t seed = 11;
        struct seen all = {0};
        for (uint32_t again = 0; again < 9; again++) {
            const struct seen s = read_beside(e, &machines[i], &seed);
            print_seen(&machines[i], &s);
            if (again == 0) continue;
            all.n_step += s.n_step;
            all.n_late += s.n_late;
            assert_true(s.us / s.n_step >= 0.35 * 50e3);
        }
        print_message("%u of %u\n", all.n_late, all.n_step);
        assert_true(all.n_late * 100 <= all.n_step);
        sac_engine_free(e);
    }
}

/* No step with prompt rows keeps this target: the mean time between tokens does. */
static void late_steps_are_caught_up_with(void **state)
{
    const struct machine m = {"", 8000, 30000, 200, slow_attn, 6, 0.04, SCATTER_EVEN, 0};
    sac_engine *e = make_streams(*state, 40);
    uint64_t seed = 9;
    const struct seen s = read_beside(e, &m, &seed);
    print_seen(&m, &s);
    assert_true(s.n_late > 0 && s.n_late * 10 < s.n_step * 9);
    assert_true(s.us / s.n_step <= 40e3 && s.longest < 100e3);
    sac_engine_free(e);
}

/* Whatever the machine does: nine steps have a part of the prompt. */
static void a_prompt_never_starves(void **state)
{
    const struct machine machines[] = {
        {"decode rows take too long", 80e3, 4000, 200, even_attn, 2, 0.3, SCATTER_EVEN, 0},
        {"time goes elsewhere", 8000, 4000, 200, even_attn, 2, 0.3, SCATTER_EVEN, 900e3},
        {"prompt rows take too long", 8000, 300e3, 200, even_attn, 2, 0.3, SCATTER_EVEN, 0},
    };
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        sac_engine *e = make_streams(*state, 50);
        uint64_t seed = 3;
        const struct seen s = read_beside(e, &machines[i], &seed);
        print_seen(&machines[i], &s);
        assert_true(s.n_without == 8 && s.least_row == 16);
        assert_true(s.n_step <= N_LONG / 16 * 9);
        sac_engine_free(e);
    }
}

/* ---- What is computed ---- */

enum { N_READ = 300 };

static void take_logits(void *user, const sac_row *row)
{
    if (row->seq == N_STREAM) memcpy(user, row->logits, TINY_VOCAB * sizeof(float));
}

/* The logits behind a prompt that is read beside a stream; returns its steps. */
static uint32_t read_for_real(float logits[TINY_VOCAB], const sac_model *model, float target_ms)
{
    int32_t tok[N_READ];
    sac_engine *e = make_streams(model, target_ms);
    sac_error err = {0};
    sac_seq s;
    for (int32_t i = 0; i < N_READ; i++) tok[i] = i * 31 % TINY_VOCAB;
    sac_engine_use_clock(e, NULL, NULL);
    must(sac_seq_create(e, &s, &err), &err);
    assert_int_equal(s, N_STREAM);
    must(sac_seq_append(e, s, tok, N_READ, SAC_ROW_PROMPT, SAC_WANT_LAST, &err), &err);
    uint32_t n = 0, pending = 1;
    for (; pending; n++) {
        must(sac_seq_append(e, 0, tok + n % N_READ, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
        must(sac_step(e, take_logits, logits, NULL, &err), &err);
        sac_seq_length(e, s, &pending);
    }
    sac_engine_free(e);
    return n;
}

static void no_result_depends_on_it(void **state)
{
    float at_once[TINY_VOCAB], in_parts[TINY_VOCAB];
    assert_int_equal(read_for_real(at_once, *state, 0), 1);
    assert_true(read_for_real(in_parts, *state, 1e-3F) >= N_READ / 16);
    assert_memory_equal(at_once, in_parts, sizeof at_once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_pace_follows_the_steps),
        cmocka_unit_test(methods_are_told_apart),
        cmocka_unit_test(rows_that_cost_nothing_want_time),
        cmocka_unit_test(the_width_is_a_percentile),
        cmocka_unit_test(steps_keep_the_target),
        cmocka_unit_test(scattered_steps_keep_the_target),
        cmocka_unit_test(late_steps_are_caught_up_with),
        cmocka_unit_test(a_prompt_never_starves),
        cmocka_unit_test(no_result_depends_on_it),
    };
    return cmocka_run_group_tests(tests, tiny_setup, tiny_teardown);
}
