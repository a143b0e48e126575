/* test_capacity.c: `bench capacity` on a made-up model and a modelled clock: what it finds follows
 * from counts alone, so that it can be worked out. */
#include "app/capacity_clock.c"
#include "app/capacity_load.c"
#include "app/capacity_report.c"
#include "app/capacity_search.c"
#include "app/capacity_trial.c"
#include "app/load_plan.c"
#include "app/load_report.c"
#include "app/table_printer.c"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_OUTPUT = 5, N_PROMPT = 3, N_CONTEXT = 5 };

static sac_model *model;

static int load_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 3});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

/* ---- Lengths ---- */

static void test_lengths(void **state)
{
    (void)state;
    struct capacity_lengths l;
    sac_error err;
    must(capacity_lengths_parse(&l, "512:4096", &err), &err);
    assert_true(l.is_range && l.item[0] == 512 && l.item[1] == 4096);
    must(capacity_lengths_parse(&l, "512,300,128", &err), &err);
    assert_true(!l.is_range && l.n == 3 && l.item[1] == 300);
    const char *const bad[][2] = {{"", "no length"},     {"12", "12 tokens"},
                                  {"512:", "no length"}, {"900:512", "smaller"},
                                  {"512:900,3", "',3'"}, {"512,x", "'x'"},
                                  {"512 ", "' '"},       {"99999999999999999999", "tokens"},
                                  {"-512", "no length"}, {"512:1024:2048", "':2048'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(capacity_lengths_parse(&l, bad[i][0], &err), SAC_ERR_ARG);
        if (!strstr(err.msg, bad[i][1])) fail_msg("%s: %s", bad[i][0], err.msg);
    }
}

/* As many below the geometric middle as above it. */
static void test_lengths_are_spread_by_logarithm(void **state)
{
    (void)state;
    struct capacity_lengths l;
    sac_error err;
    uint32_t n_low = 0;
    must(capacity_lengths_parse(&l, "1000:100000", &err), &err);
    struct rng r = rng_stream("test", 0, 1, 0);
    for (int i = 0; i < 4000; i++) {
        const uint32_t n = draw_prompt_length(&l, &r);
        assert_true(n >= 1000 && n <= 100000);
        n_low += n < 10000;
    }
    assert_true(n_low > 1900 && n_low < 2100);
}

/* ---- Search ---- */

struct server {
    double capacity;
    uint32_t n, n_time; /* the trial that there is no time for; 0: there is for all */
    double tried[64];
};

static sac_status serve(void *user, double rate, enum capacity_verdict *out, sac_error *err)
{
    struct server *s = user;
    (void)err;
    s->tried[s->n++] = rate;
    *out = rate <= s->capacity ? CAPACITY_KEPT : CAPACITY_BROKEN;
    if (s->n == s->n_time) *out = CAPACITY_OPEN;
    return SAC_OK;
}

static void test_search_brackets_the_capacity(void **state)
{
    (void)state;
    const double capacities[] = {0.013, 0.9, 1, 1.7, 40, 333};
    for (size_t i = 0; i < sizeof capacities / sizeof capacities[0]; i++) {
        struct server s = {.capacity = capacities[i]};
        const struct capacity_search search = {
            .start = 1, .factor = 1.1, .n_most = 64, .judge = serve, .user = &s};
        struct capacity_found f;
        sac_error err;
        must(capacity_search_run(&f, &search, &err), &err);
        assert_true(f.keeps <= s.capacity && f.fails > s.capacity && f.fails <= 1.1 * f.keeps);
        assert_false(f.is_late);
        assert_true(s.n < 16);
    }
}

static void test_search_that_ends_early(void **state)
{
    (void)state;
    struct capacity_found f;
    sac_error err;
    struct server none = {.capacity = 0}, all = {.capacity = INFINITY};
    struct capacity_search s = {.start = 3, .factor = 1.1, .n_most = 4, .judge = serve};
    s.user = &none;
    must(capacity_search_run(&f, &s, &err), &err);
    assert_true(f.keeps == 0 && f.fails == 0.375 && none.n == 4);
    s.user = &all;
    must(capacity_search_run(&f, &s, &err), &err);
    assert_true(f.keeps == 24 && f.fails == INFINITY && !f.is_late && all.n == 4);
    struct server late = {.capacity = 5, .n_time = 3};
    s.user = &late;
    must(capacity_search_run(&f, &s, &err), &err);
    assert_true(f.keeps == 3 && f.fails == 6 && f.is_late && late.n == 3);
}

/* ---- Trials ---- */

struct rig {
    struct capacity_load load;
    struct capacity_clock clock;
    struct capacity_site site;
    struct capacity_alone alone;
};

static void rig_open(struct rig *r, uint32_t n_seq)
{
    struct capacity_lengths lengths;
    sac_error err;
    *r = (struct rig){0};
    must(capacity_lengths_parse(&lengths, "320,400", &err), &err);
    must(capacity_load_make(&r->load, model,
                            &(struct capacity_load_params){.lengths = &lengths,
                                                           .n_prompt = N_PROMPT,
                                                           .n_context = N_CONTEXT,
                                                           .n_output = N_OUTPUT,
                                                           .seed = 5,
                                                           .burstiness = 1},
                            &err),
         &err);
    r->clock = (struct capacity_clock){
        .is_model = true, .read_gb_s = 1, .gflop_s = 1, .fetch_gb_s = 1, .flop_per_row = 1e6};
    static const char *const decode[] = {"full", "streaming:budget=64"};
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = n_seq;
    p.n_kv_tok = 512 * (N_CONTEXT + n_seq);
    p.n_threads = 1;
    p.sparse_min_ctx = 0;
    p.decode = decode;
    p.n_decode = 2;
    p.prefix_cache = true;
    must(sac_engine_create(&r->site.engine, model, &p, &err), &err);
    r->site.clock = &r->clock;
    r->site.load = &r->load;
    capacity_clock_use(&r->clock, r->site.engine);
    must(capacity_alone_run(&r->alone, &r->site, 0, N_PROMPT, &err), &err);
    must(capacity_load_copy(&r->load, r->site.engine, &err), &err);
}

static void rig_close(struct rig *r)
{
    capacity_alone_deinit(&r->alone);
    capacity_clock_use(&r->clock, NULL);
    sac_engine_free(r->site.engine);
    capacity_load_deinit(&r->load);
}

static void test_prompts(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    for (size_t i = 0; i < N_PROMPT; i++) {
        const struct capacity_prompt *p = &r.load.prompt[i];
        const size_t room = p->n_tok > 320 ? 400 : 320;
        char *text = NULL;
        size_t n;
        sac_error err;
        assert_true(p->n_tok <= room && p->n_tok > room - 60);
        must(sac_detokenize(model, p->tok, p->n_tok, true, &text, &n, &err), &err);
        assert_non_null(strstr(text, p->expected));
        assert_int_equal(strlen(p->expected), 7);
        sac_free(text);
    }
    assert_true(r.load.n_tok > 0 && r.load.n_most <= 400);
    rig_close(&r);
}

/* A row of this machine takes a millisecond, and what it reads; nothing else takes any time. */
static void test_clock_charges_for_counts(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    const sac_engine_stats s = sac_engine_get_stats(r.site.engine);
    const double rows = (double)(s.reads.n_prompt_tok + s.reads.n_decode_tok);
    const double bytes = (double)(s.weight_bytes_read + s.reads.kv_bytes_read +
                                  s.reads.choose_bytes_read + s.reads.build_bytes_read);
    const uint64_t now = capacity_clock_now(&r.clock);
    assert_int_equal(now, 1 + (uint64_t)ceil(rows * 1e3 + bytes * 1e-3));
    assert_true(r.alone.gap_ms > 1 && r.alone.gap_ms < 2);
    capacity_clock_wait(&r.clock, now + 12345);
    assert_int_equal(capacity_clock_now(&r.clock), now + 12345);
    capacity_clock_wait(&r.clock, now); /* past */
    assert_int_equal(capacity_clock_now(&r.clock), now + 12345);
    rig_close(&r);
}

static struct capacity_trial try_rate(struct rig *r, double rate, double limit_ms)
{
    struct capacity_trial t;
    sac_error err;
    const struct capacity_want want = {
        .rate = rate, .n_request = 12, .limit_ms = limit_ms, .target_ms = limit_ms, .wait_ms = 1e9};
    must(capacity_trial_run(&t, &r->site, &want, &r->alone, &err), &err);
    return t;
}

/* Requests that come one by one wait for nobody; at once, they share steps. */
static void test_load_is_felt(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 4);
    const struct capacity_trial slow = try_rate(&r, 0.01, 1e6), fast = try_rate(&r, 1e4, 1e6);
    assert_true(slow.is_kept && fast.is_kept);
    assert_int_equal(slow.n_done, 12);
    assert_int_equal(fast.n_done, 12);
    assert_int_equal(slow.n_running_most, 1);
    assert_int_equal(fast.n_running_most, 4);
    assert_true(slow.p99_ms < 1.1 * r.alone.gap_ms);
    assert_true(fast.p99_ms > 3 * r.alone.gap_ms);
    assert_true(slow.seconds > 1100 && slow.seconds < 1300);
    assert_true(fast.tok_s > 100 * slow.tok_s);
    assert_true(fast.wait_ms > slow.wait_ms);
    assert_int_equal(slow.n_differ + fast.n_differ, 0);
    /* All pages of each prompt were there, and what fills none are decode rows. */
    uint64_t n_row = 0, n_most = 0;
    for (size_t i = 0; i < 12; i++) {
        const size_t n_tok = r.load.prompt[i % N_CONTEXT % N_PROMPT].n_tok;
        n_row += (n_tok - 1) % 32 + N_OUTPUT;
        if (n_tok + N_OUTPUT > n_most) n_most = n_tok + N_OUTPUT;
    }
    assert_int_equal(slow.traffic.rows, n_row);
    assert_int_equal(slow.n_prompt_tok + fast.n_prompt_tok, 0);
    assert_true(slow.kv_most_tok > 320 && slow.kv_most_tok <= n_most);
    assert_true(fast.kv_most_tok > 3 * slow.kv_most_tok && fast.kv_most_tok <= 4 * n_most);
    rig_close(&r);
}

/* Each context is found by its requests alone: its pages have the bytes of the prompt that it is a
 * copy of, and nothing is computed. */
static void test_contexts_have_pages_of_their_own(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 1);
    const sac_engine_stats s = sac_engine_get_stats(r.site.engine);
    uint64_t n_page = 0, n_copied = 0; /* prompts may begin alike */
    for (size_t i = 0; i < N_CONTEXT; i++) {
        const size_t n = (r.load.prompt[i % N_PROMPT].n_tok - 1) / 32;
        *(i < N_PROMPT ? &n_page : &n_copied) += n;
    }
    const uint64_t index_bytes = TINY_LAYERS * TINY_KV_HEADS * s.page_bytes;
    assert_true(s.kv_bytes_kept <= (n_page + n_copied) * index_bytes);
    assert_true(s.kv_bytes_kept > (n_page / 2 + n_copied) * index_bytes);
    char salt[CAPACITY_SALT_BYTES];
    assert_null(capacity_load_request(&r.load, 2, salt).cache_salt);
    assert_string_equal(capacity_load_request(&r.load, 3, salt).cache_salt, "context 3");
    const struct capacity_trial t = try_rate(&r, 0.01, 1e6);
    assert_int_equal(t.n_prompt_tok, 0);
    assert_int_equal(t.n_differ, 0);
    rig_close(&r);
}

/* What is known of a rate, and what it is marked with. */
static void test_rates_are_named(void **state)
{
    (void)state;
    const struct {
        struct capacity_found found;
        const char *name;
    } all[] = {
        {{3, 3.3, false}, "3"},        {{3, 6, false}, "3..6"},   {{3, 6, true}, "3..6*"},
        {{3, INFINITY, true}, ">=3*"}, {{0, 0.5, false}, "<0.5"}, {{0, INFINITY, true}, "?*"},
        {{1, 1.1000001, false}, "1"}, /* as near as was asked for, but for rounding */
    };
    struct capacity_marks marks = {0};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char name[48];
        name_capacity(name, &all[i].found, 1.1, &marks);
        assert_string_equal(name, all[i].name);
        assert_int_equal(marks.between, i >= 1);
        assert_int_equal(marks.late, i >= 2);
        assert_int_equal(marks.least, i >= 3);
        assert_int_equal(marks.below, i >= 4);
        assert_int_equal(marks.none, i >= 5);
    }
}

static void test_trial_repeats(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 4);
    const struct capacity_trial a = try_rate(&r, 100, 1e6), b = try_rate(&r, 100, 1e6);
    assert_true(fabs(a.p99_ms - b.p99_ms) < 0.01 && fabs(a.wait_ms - b.wait_ms) < 0.01);
    assert_int_equal(a.n_running_most, b.n_running_most);
    rig_close(&r);
}

/* What cannot be kept ends early; the engine is free for the next trial. */
static void test_hopeless_load_is_cut(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 4);
    const struct capacity_trial t = try_rate(&r, 1e4, 2 * r.alone.gap_ms);
    assert_true(t.is_cut && !t.is_kept);
    assert_true(t.n_done < 12);
    const struct capacity_trial after = try_rate(&r, 0.01, 2 * r.alone.gap_ms);
    assert_true(after.is_kept);
    assert_int_equal(after.n_done, 12);
    /* Waiting alone is enough. */
    struct capacity_trial late;
    sac_error err;
    const struct capacity_want want = {
        .rate = 1e4, .n_request = 12, .limit_ms = 1e6, .wait_ms = 0.5 * r.alone.gap_ms};
    must(capacity_trial_run(&late, &r.site, &want, &r.alone, &err), &err);
    assert_true(late.is_cut && !late.is_kept && late.wait_ms > want.wait_ms);
    rig_close(&r);
}

/* One whose time is over is neither kept nor broken, and does not wait for what is to come. */
static void test_trial_is_given_up(void **state)
{
    (void)state;
    struct rig r;
    sac_error err;
    rig_open(&r, 4);
    for (int wall = 0; wall < 2; wall++) {
        struct capacity_trial t;
        r.clock.is_model = !wall;
        capacity_clock_use(&r.clock, r.site.engine);
        const uint64_t begin = clock_us();
        const struct capacity_want want = {.rate = 0.01,
                                           .n_request = 12,
                                           .limit_ms = 1e6,
                                           .wait_ms = 1e9,
                                           .until_us = begin + (wall ? 20000 : 0)};
        must(capacity_trial_run(&t, &r.site, &want, &r.alone, &err), &err);
        assert_true(t.is_open && !t.is_cut && !t.is_kept && t.n_done < 12);
        assert_true(clock_us() - begin < 5000000);
        assert_int_equal(sac_engine_get_stats(r.site.engine).n_request_running, 0);
    }
    rig_close(&r);
}

/* An answer that is another than alone is counted. */
static void test_answers_are_compared(void **state)
{
    (void)state;
    struct rig r;
    rig_open(&r, 2);
    r.alone.tok[1 * N_OUTPUT + 2] ^= 1;
    const struct capacity_trial t = try_rate(&r, 1, 1e6);
    assert_int_equal(t.n_differ, 5); /* of twelve requests for five contexts of three prompts */
    rig_close(&r);
}

static bool stop_now(void *user)
{
    int *left = user;
    return (*left)-- <= 0;
}

static void test_stop(void **state)
{
    (void)state;
    struct rig r;
    sac_error err;
    int left = 9;
    rig_open(&r, 2);
    r.site.stop = stop_now;
    r.site.user = &left;
    struct capacity_trial t;
    const struct capacity_want want = {
        .rate = 1e4, .n_request = 12, .limit_ms = 1e6, .wait_ms = 1e9};
    assert_int_equal(capacity_trial_run(&t, &r.site, &want, &r.alone, &err), SAC_ERR_CANCELLED);
    assert_int_equal(sac_engine_get_stats(r.site.engine).n_request_running, 0);
    capacity_alone_deinit(&r.alone);
    left = 2;
    assert_int_equal(capacity_alone_run(&r.alone, &r.site, 0, 1, &err), SAC_ERR_CANCELLED);
    assert_int_equal(sac_engine_get_stats(r.site.engine).n_request_running, 0);
    rig_close(&r);
}

static void test_plot_has_a_line_for_each_method(void **state)
{
    (void)state;
    struct strbuf csv = {0}, svg = {0};
    sac_error err;
    struct capacity_trial t = {.want = {.rate = 2, .limit_ms = 30}, .p99_ms = 12};
    t.traffic.per_token = NAN;
    capacity_trials_begin(&csv);
    const struct capacity_setting s = {.idle_ms = 3, .kv_bytes = 100};
    capacity_trials_add(&csv, "dense", true, &s, &t);
    t.want.rate = 4;
    capacity_trials_add(&csv, "dense", false, &s, &t);
    capacity_trials_add(&csv, "quest:budget=5%,sink=4", false, &s, &t);
    must(capacity_plot(&svg, &csv, &err), &err);
    assert_non_null(strstr(svg.data, "quest:budget=5%,sink=4"));
    assert_non_null(strstr(csv.data, "\"dense\",relaxed,4,30,0,0,12,4,"));
    strbuf_deinit(&csv);
    strbuf_deinit(&svg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_lengths_are_spread_by_logarithm),
        cmocka_unit_test(test_search_brackets_the_capacity),
        cmocka_unit_test(test_search_that_ends_early),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_clock_charges_for_counts),
        cmocka_unit_test(test_load_is_felt),
        cmocka_unit_test(test_contexts_have_pages_of_their_own),
        cmocka_unit_test(test_rates_are_named),
        cmocka_unit_test(test_trial_repeats),
        cmocka_unit_test(test_hopeless_load_is_cut),
        cmocka_unit_test(test_trial_is_given_up),
        cmocka_unit_test(test_answers_are_compared),
        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_plot_has_a_line_for_each_method),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
