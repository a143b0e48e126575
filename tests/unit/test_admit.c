/* test_admit.c: which requests decode above a disk. Those whose working sets fit into memory
 * together do, the others wait and lose nothing: every answer keeps its bits, nothing is computed
 * twice, and each gets its turn. */
#include "engine/admit.h"
#include "engine/engine.h"
#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_CTX = 1024, N_ASK_MAX = 4, N_ANSWER_MAX = 700, N_FRAME = 100, N_SHORT = 30, N_SMALL = 48 };

static sac_model *model;

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 8});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

struct way {
    const char *spec;
    bool tiers, keeps_prefixes;
    sac_tier_admit admit;
    float target_ms;
    uint32_t n_frame; /* 0: N_FRAME */
};

static sac_engine *open_engine(const struct way *way)
{
    static char path[80];
    struct page_geom g = {.n_layer = 1, .n_kv_head = 1, .head_dim = TINY_DIM};
    sac_engine_params p = sac_engine_params_default();
    sac_engine *e = NULL;
    sac_error err;
    page_geom_init(&g);
    snprintf(path, sizeof path, "%s/saccade-admit-%d",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : P_tmpdir, (int)getpid());
    const struct sac_tier_params tier = {.file = path,
                                         .file_bytes = 16u << 20,
                                         .fast_bytes =
                                             (way->n_frame ? way->n_frame : N_FRAME) * g.bytes,
                                         .admit = way->admit};
    p.n_ctx = N_CTX;
    p.n_seq_max = N_ASK_MAX;
    p.n_threads = 1;
    p.n_batch = 64;
    p.sparse_min_ctx = 64;
    p.prefix_cache = way->keeps_prefixes;
    p.tbt_target_ms = way->target_ms;
    p.decode = &way->spec;
    p.n_decode = 1;
    if (way->tiers) p.tier = &tier;
    must(sac_engine_create(&e, model, &p, &err), &err);
    return e;
}

/* ---- Asking ---- */

struct answer {
    sac_engine *engine;
    int32_t tok[N_ANSWER_MAX];
    uint64_t step[N_ANSWER_MAX]; /* in which it came */
    uint32_t n_tok;
    uint64_t id;
    sac_finish finish;
    sac_timings timings;
};

static bool collect(void *user, const sac_event *event)
{
    struct answer *a = user;
    if (event->kind == SAC_EVENT_TOKEN) {
        a->step[a->n_tok] = sac_engine_get_stats(a->engine).n_step;
        a->tok[a->n_tok++] = event->tok;
    }
    if (event->kind == SAC_EVENT_DONE) {
        a->finish = event->finish;
        a->timings = event->timings;
    }
    return false;
}

static void ask_with(sac_engine *e, struct answer *a, int32_t text, uint32_t n_prompt,
                     uint32_t n_tok, int32_t priority)
{
    int32_t prompt[N_CTX];
    sac_error err;
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)((i * 37 + i / 9 * 5 + (uint32_t)text * 11) % TINY_VOCAB);
    *a = (struct answer){.engine = e};
    sac_request r = sac_request_default();
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.sampling.temp = 0;
    r.max_tokens = n_tok;
    r.priority = priority;
    r.ignore_eos = true;
    r.on_event = collect;
    r.user = a;
    must(sac_submit(e, &r, &a->id, &err), &err);
}

static void ask(sac_engine *e, struct answer *a, int32_t text, uint32_t n_prompt, uint32_t n_tok)
{
    ask_with(e, a, text, n_prompt, n_tok, 0);
}

/* One step; the invariants of admit.c hold behind it. */
static uint32_t run_step(sac_engine *e)
{
    sac_error err;
    uint32_t n_active = 0;
    const uint64_t n_alloc = mem_count();
    must(sac_run(e, &n_active, &err), &err);
    assert_true(mem_count() <= n_alloc); /* requests that end give theirs back */
    for (uint32_t i = 0; i < e->params.n_seq_max; i++) {
        const struct seq *s = &e->seqs[i];
        assert_true(!s->admit.held || (s->alive && s->admit.joined));
        /* Who has waited is counted anew. */
        assert_true(s->admit.n_seen == 0 || s->admit.last - s->admit.first + 1 == s->admit.n_seen);
    }
    const sac_tier_stats t = sac_tier_get_stats(e);
    assert_true(t.n_held < N_ASK_MAX && e->admit.room >= e->pool.n_frame);
    return n_active;
}

static void run_all(sac_engine *e)
{
    for (int i = 0; run_step(e); i++) assert_true(i < 10000);
}

/* ---- Tests ---- */

/* A step takes a millisecond, and each fetched page as much as the test says. */
struct fetch_clock {
    sac_engine *engine;
    uint64_t us_per_page;
};

static uint64_t fetch_clock(void *user)
{
    const struct fetch_clock *c = user;
    return 1 + sac_engine_get_stats(c->engine).n_step * 1000 +
           sac_tier_get_stats(c->engine).n_fetch * c->us_per_page;
}

/* Four prompts of 20 page indices, 80 pages; memory holds 100. All is done before more are tried.
 */
static void answers_do_not_depend_on_who_waits(void **state)
{
    static struct answer want[N_ASK_MAX], got[N_ASK_MAX];
    static const char *const spec[] = {"full", "quest:budget=128", "psa:mass=0.9",
                                       "topk:budget=64"};
    (void)state;
    for (size_t m = 0; m < sizeof spec / sizeof spec[0]; m++) {
        uint64_t n_fetch[2];
        for (int way = 0; way < 3; way++) {
            sac_engine *e = open_engine(
                &(struct way){spec[m], .tiers = way > 0,
                              .admit = way == 2 ? SAC_TIER_ADMIT_SETS : SAC_TIER_ADMIT_ALL});
            for (int i = 0; i < N_ASK_MAX; i++) ask(e, way ? &got[i] : &want[i], i, 640, N_SHORT);
            run_all(e);
            const sac_tier_stats t = sac_tier_get_stats(e);
            if (way) n_fetch[way - 1] = t.n_fetch;
            for (int i = 0; way && i < N_ASK_MAX; i++) {
                assert_int_equal(got[i].n_tok, N_SHORT);
                assert_memory_equal(got[i].tok, want[i].tok, sizeof want[i].tok);
                assert_int_equal(got[i].timings.n_preempted, 0);
            }
            if (way == 1) assert_int_equal(t.n_hold, 0);
            if (way == 2 && m == 0) {
                assert_true(t.n_hold >= 3 && got[3].timings.held_ms > 0);
                assert_true(n_fetch[1] * 4 < n_fetch[0] * 3);
            }
            assert_int_equal(t.n_held, 0);
            sac_engine_free(e);
        }
    }
}

/* Two answers that grow until they do not fit beside each other, and a third that comes then. */
static void everybody_gets_a_turn(void **state)
{
    static struct answer a[3];
    (void)state;
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
    struct fetch_clock clock = {e, 1000};
    sac_engine_use_clock(e, fetch_clock, &clock);
    for (int i = 0; i < 2; i++) ask(e, &a[i], i, 96, 640);
    for (int i = 0; i < 400; i++) run_step(e);
    assert_true(sac_tier_get_stats(e).n_hold > 0);
    ask(e, &a[2], 2, 96, 640);
    run_all(e);
    uint64_t n_tok = 0;
    for (int i = 0; i < 3; i++) {
        uint32_t n_gap = 0;
        assert_int_equal(a[i].n_tok, 640);
        for (uint32_t t = 1; t < a[i].n_tok; t++) {
            const uint64_t gap = a[i].step[t] - a[i].step[t - 1];
            assert_true(gap <= 2 * 256 + 20);
            n_gap += gap > 1;
        }
        assert_in_range(n_gap, 1, 640 / 100);
        n_tok += a[i].n_tok - 1 + a[i].timings.n_prompt;
    }
    const sac_reads r = sac_engine_get_stats(e).reads;
    assert_int_equal(r.n_prompt_tok + r.n_decode_tok, n_tok); /* nothing was computed again */
    sac_engine_free(e);
}

/* 80 pages each, and memory for 100: the same ones need no room twice. */
static void shared_pages_count_once(void **state)
{
    static struct answer a[2];
    (void)state;
    for (int same = 0; same < 2; same++) {
        sac_engine *e = open_engine(&(struct way){"full", .tiers = true, .keeps_prefixes = true});
        ask(e, &a[0], 0, 640, 30);
        while (a[0].n_tok < 4) run_step(e);
        ask(e, &a[1], same ? 0 : 1, 640, 20);
        run_all(e);
        assert_int_equal(sac_tier_get_stats(e).n_hold, same ? 0 : 1);
        assert_true(same == (a[1].step[0] < a[0].step[29]));
        if (same) assert_memory_equal(a[0].tok, a[1].tok, 20 * sizeof a[0].tok[0]);
        sac_engine_free(e);
    }
}

/* What a sparse method reads is what counts, and it is foretold from those before: when the first
 * set is known, all others come together. */
static void sets_are_small_where_little_is_read(void **state)
{
    static struct answer a[N_ASK_MAX];
    (void)state;
    sac_engine *e = open_engine(&(struct way){"streaming:sink=32,budget=64", .tiers = true});
    for (int i = 0; i < N_ASK_MAX; i++) ask(e, &a[i], i, 640, 60);
    while (a[N_ASK_MAX - 1].n_tok == 0) run_step(e);
    const sac_tier_stats t = sac_tier_get_stats(e);
    assert_int_equal(t.n_held, 0);
    assert_true(a[0].n_tok < 60); /* all four at once */
    assert_true(t.set_bytes > 0 && t.set_bytes < t.fast_bytes);
    run_all(e);
    sac_engine_free(e);
}

/* 10 ms for each decode row, and a little for each prompt row. */
static uint64_t row_clock(void *user)
{
    const sac_reads r = sac_engine_get_stats(user).reads;
    return 1 + r.n_decode_tok * 10000 + r.n_prompt_tok;
}

/* Two rows keep the target, three do not. */
static void late_steps_keep_newcomers_out(void **state)
{
    static struct answer a[N_ASK_MAX];
    uint32_t n_most = 0;
    (void)state;
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true, .target_ms = 25});
    sac_engine_use_clock(e, row_clock, e);
    for (int i = 0; i < 3; i++) ask(e, &a[i], i, 40, 30);
    run_all(e);
    for (int i = 0; i < N_ASK_MAX; i++) ask(e, &a[i], i, 40, 200);
    for (uint32_t n = 1; n;) {
        n = run_step(e);
        if (e->batch.n_decode > n_most) n_most = e->batch.n_decode;
    }
    assert_int_equal(n_most, 2);
    for (int i = 0; i < N_ASK_MAX; i++) assert_int_equal(a[i].n_tok, 200);
    assert_true(sac_engine_set_tbt_target(e, 100, NULL) == SAC_OK); /* there is time for more now */
    for (int i = 0; i < N_ASK_MAX; i++) ask(e, &a[i], i, 40, 250);
    for (n_most = 0; run_step(e);)
        if (e->batch.n_decode > n_most) n_most = e->batch.n_decode;
    assert_true(n_most > 2);
    sac_engine_free(e);
}

/* Where fetches cost next to nothing, four rows for the time of one are worth them. */
static void more_than_fit_decode_where_it_pays(void **state)
{
    static struct answer a[N_ASK_MAX];
    (void)state;
    for (int dear = 0; dear < 2; dear++) {
        sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
        struct fetch_clock clock = {e, dear ? 1000 : 0};
        uint32_t n_most = 0;
        sac_engine_use_clock(e, fetch_clock, &clock);
        for (int i = 0; i < N_ASK_MAX; i++) ask(e, &a[i], i, 320, 600);
        while (run_step(e) == N_ASK_MAX)
            if (e->batch.n_decode > n_most) n_most = e->batch.n_decode;
        assert_true(dear ? n_most < N_ASK_MAX : n_most == N_ASK_MAX);
        run_all(e);
        sac_engine_free(e);
    }
}

/* A step of up to two decode rows takes a millisecond, one of more takes ten. */
struct crowd_clock {
    sac_engine *engine;
    uint64_t n_step, n_row, us;
};

static uint64_t crowd_clock(void *user)
{
    struct crowd_clock *c = user;
    const sac_engine_stats s = sac_engine_get_stats(c->engine);
    if (s.n_step > c->n_step) c->us += s.reads.n_decode_tok - c->n_row > 2 ? 10000 : 1000;
    c->n_step = s.n_step;
    c->n_row = s.reads.n_decode_tok;
    return 1 + c->us;
}

/* A room that does not pay is left after 32 steps, and the next is tried when eight times as many
 * have passed. */
static void a_room_that_does_not_pay_is_not_tried_soon(void **state)
{
    static struct answer a[N_ASK_MAX];
    uint64_t last = 0;
    uint32_t n_bad = 0, n_step = 0;
    bool rose = false, rests = false;
    (void)state;
    sac_engine *e = open_engine(
        &(struct way){"streaming:sink=32,budget=128", .tiers = true, .n_frame = N_SMALL});
    struct crowd_clock clock = {.engine = e};
    sac_engine_use_clock(e, crowd_clock, &clock);
    for (int i = 0; i < N_ASK_MAX; i++) ask(e, &a[i], i, 200, 600);
    for (; run_step(e); n_step++) {
        const uint64_t room = e->admit.room;
        if (room == last) continue;
        assert_true(!rests || n_step >= 8 * 32);
        rests = rose && room < last;
        n_bad += rests;
        rose = last && room > last;
        last = room;
        n_step = 0;
    }
    assert_true(n_bad > 1);
    sac_engine_free(e);
}

/* 44 and 48 pages would fit into 100 frames, and leave less than an eighth of them for more; 40 and
 * 44 leave it. */
static void who_comes_leaves_room_to_grow(void **state)
{
    static struct answer a[2];
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
        ask(e, &a[0], 0, (10 + i) * PAGE_TOK + 6, 20);
        ask(e, &a[1], 1, (11 + i) * PAGE_TOK + 6, 20);
        run_all(e);
        assert_int_equal(sac_tier_get_stats(e).n_hold, i);
        sac_engine_free(e);
    }
}

/* A small one would fit beside the first, and waits behind a large one that does not. */
static void none_overtakes_another(void **state)
{
    static struct answer a[3];
    (void)state;
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
    for (int i = 0; i < 2; i++) ask(e, &a[i], i, 640, 60);
    while (sac_tier_get_stats(e).n_held == 0) run_step(e);
    ask(e, &a[2], 2, 38, 10);
    run_all(e);
    assert_true(a[2].step[0] >= a[1].step[0]);
    sac_engine_free(e);
}

/* One of higher priority comes before those that wait, and in the place of one that decodes. */
static void priority_comes_before_who_waits(void **state)
{
    static struct answer a[3];
    (void)state;
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
    for (int i = 0; i < 2; i++) ask(e, &a[i], i, 640, 80);
    while (sac_tier_get_stats(e).n_held == 0) run_step(e);
    ask_with(e, &a[2], 2, 640, 20, 5);
    run_all(e);
    assert_true(a[2].step[0] < a[0].step[79]);
    assert_true(a[2].step[19] < a[1].step[0]);
    for (int i = 0; i < 2; i++) assert_int_equal(a[i].n_tok, 80);
    sac_engine_free(e);
}

static void one_that_waits_can_be_cancelled(void **state)
{
    static struct answer a[3];
    (void)state;
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
    for (int i = 0; i < 3; i++) ask(e, &a[i], i, 640, 40);
    while (sac_tier_get_stats(e).n_held < 2) run_step(e);
    assert_int_equal(a[1].n_tok, 0);
    sac_cancel(e, a[1].id);
    run_step(e);
    assert_int_equal(a[1].finish, SAC_FINISH_CANCELLED);
    assert_int_equal(sac_tier_get_stats(e).n_held, 1);
    sac_cancel(e, a[0].id); /* the one that decodes: the last comes in its place */
    run_all(e);
    assert_int_equal(a[2].n_tok, 40);
    sac_engine_free(e);
}

/* Whoever steps sequences without requests has them all in each step. */
static void sequences_of_the_caller_do_not_wait(void **state)
{
    sac_error err;
    sac_seq seq[3];
    int32_t prompt[640];
    uint32_t n_row = 1;
    (void)state;
    for (uint32_t i = 0; i < 640; i++) prompt[i] = (int32_t)(i * 37 % TINY_VOCAB);
    sac_engine *e = open_engine(&(struct way){"full", .tiers = true});
    for (int i = 0; i < 3; i++) {
        must(sac_seq_create(e, &seq[i], &err), &err);
        must(sac_seq_append(e, seq[i], prompt, 640, SAC_ROW_PROMPT, SAC_WANT_NONE, &err), &err);
    }
    while (n_row) must(sac_step(e, NULL, NULL, &n_row, &err), &err);
    for (int i = 0; i < 3; i++)
        must(sac_seq_append(e, seq[i], prompt, 1, SAC_ROW_DECODE, SAC_WANT_NONE, &err), &err);
    must(sac_step(e, NULL, NULL, &n_row, &err), &err);
    assert_int_equal(n_row, 3);
    sac_engine_free(e);
}

static void a_wrong_setting_is_told(void **state)
{
    sac_engine *e = NULL;
    sac_error err;
    sac_engine_params p = sac_engine_params_default();
    const struct sac_tier_params tier = {
        .file = "/nowhere", .file_bytes = 1, .fast_bytes = 1, .admit = (sac_tier_admit)7};
    (void)state;
    p.tier = &tier;
    assert_int_equal(sac_engine_create(&e, model, &p, &err), SAC_ERR_ARG);
    assert_string_equal(err.msg, "unknown admission 7 of requests");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_who_waits),
        cmocka_unit_test(everybody_gets_a_turn),
        cmocka_unit_test(shared_pages_count_once),
        cmocka_unit_test(sets_are_small_where_little_is_read),
        cmocka_unit_test(late_steps_keep_newcomers_out),
        cmocka_unit_test(more_than_fit_decode_where_it_pays),
        cmocka_unit_test(a_room_that_does_not_pay_is_not_tried_soon),
        cmocka_unit_test(who_comes_leaves_room_to_grow),
        cmocka_unit_test(none_overtakes_another),
        cmocka_unit_test(priority_comes_before_who_waits),
        cmocka_unit_test(one_that_waits_can_be_cancelled),
        cmocka_unit_test(sequences_of_the_caller_do_not_wait),
        cmocka_unit_test(a_wrong_setting_is_told),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
