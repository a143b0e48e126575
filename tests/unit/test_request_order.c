/* test_request_order.c: requests that rule or outdo others, over a fake engine: guides, priorities,
 * a full house. */
#include "request_log.h"

/* ---- Guides ---- */

/* Lets the text go on in "ab" and c's only, and counts what it is asked and told. */
struct guide {
    uint64_t mask[(N_VOCAB + 63) / 64];
    uint32_t n_mask, n_logits, n_chosen;
    int32_t chosen[N_CTX];
    bool is_empty;   /* the mask from the third token on */
    bool wants_mask; /* else NULL: any token */
};

static const uint64_t *guide_mask(void *user)
{
    struct guide *g = user;
    assert_int_equal(g->n_mask++, g->n_chosen); /* once a token, knowing all before */
    memset(g->mask, 0, sizeof g->mask);
    for (int32_t t = 'a'; t <= 'c' && !(g->is_empty && g->n_chosen == 2); t++)
        g->mask[t / 64] |= 1ull << t % 64;
    return g->wants_mask ? g->mask : NULL;
}

static void guide_logits(void *user, float *logits, uint32_t n_vocab)
{
    struct guide *g = user;
    assert_int_equal(n_vocab, N_VOCAB);
    logits['c'] = 40; /* more than any has */
    g->n_logits++;
}

static void guide_chosen(void *user, int32_t tok)
{
    struct guide *g = user;
    g->chosen[g->n_chosen++] = tok;
}

/* A guide hears what was chosen before it is asked for more, gives way with its request and is not
 * asked again for what was chosen before. */
static void a_guide_rules_its_request_only(void **state)
{
    (void)state;
    for (int way = 0; way < 3; way++) {
        struct guide guide = {.wants_mask = way < 2};
        struct log guided = {0}, other = {0}, want = {0};
        const sac_guide hooks = {way == 2 ? NULL : guide_mask, way ? guide_logits : NULL,
                                 guide_chosen, &guide};
        sac_request r = random_request(1);
        sac_engine *e = engine_new(2, 96, 512);
        r.max_tokens = 100; /* three pages each, and there are three */
        submit(e, &other, RANDOM, 8, &r);
        r.guide = hooks;
        submit(e, &guided, RANDOM, 8, &r);
        run_all(e);
        assert_int_equal(guided.timings.n_preempted, 1);
        assert_int_equal(guided.n_tok, 100);
        assert_int_equal(guide.n_chosen, 100);
        assert_int_equal(guide.n_mask, way == 2 ? 0 : 100);
        assert_int_equal(guide.n_logits, way ? 100 : 0);
        assert_memory_equal(guide.chosen, guided.tok, sizeof guided.tok[0] * 100);
        assert_int_equal(strspn(guided.text, way ? "c" : "abc"), way == 2 ? 100 : guided.n_text);
        engine_delete(e);
        e = engine_new(1, N_CTX, 512);
        r.guide = (sac_guide){0};
        submit(e, &want, RANDOM, 8, &r);
        run_all(e);
        assert_string_equal(other.text, want.text);
        engine_delete(e);
    }
}

static const uint64_t *all_of_it(void *user)
{
    return user;
}

/* A request that ignores ends does so beside a guide, too, which may allow them. */
static void a_guide_does_not_bring_ends_back(void **state)
{
    uint64_t mask[(N_VOCAB + 63) / 64];
    struct log log[3] = {0};
    sac_engine *e = engine_new(1, N_CTX, 64);
    sac_request r = greedy();
    (void)state;
    memset(mask, 0xff, sizeof mask);
    r.max_tokens = 14;
    for (int i = 0; i < 3; i++) {
        r.ignore_eos = i > 0;
        if (i == 2) r.guide = (sac_guide){.mask = all_of_it, .user = mask};
        submit(e, &log[i], 1, 3, &r);
        run_all(e);
    }
    assert_int_equal(log[0].finish, SAC_FINISH_STOP);
    assert_int_equal(log[1].n_tok, 14);
    assert_int_equal(log[2].n_tok, 14);
    assert_string_equal(log[2].text, log[1].text);
    engine_delete(e);
}

static void an_empty_mask_ends_one_request_only(void **state)
{
    (void)state;
    struct guide guide = {.wants_mask = true, .is_empty = true}, any = {0};
    struct log guided = {0}, free_one = {0};
    sac_engine *e = engine_new(2, 2 * N_CTX, 64);
    sac_request r = greedy();
    r.guide = (sac_guide){.mask = guide_mask, .chosen = guide_chosen, .user = &guide};
    submit(e, &guided, 0, 3, &r);
    r.guide.user = &any; /* says every time that any token will do */
    submit(e, &free_one, 0, 3, &r);
    run_all(e);
    assert_int_equal(guided.finish, SAC_FINISH_ERROR);
    assert_non_null(strstr(guided.error, "the mask leaves none"));
    assert_int_equal(guided.n_tok, 2);
    assert_string_equal(free_one.text, scripts[0]);
    assert_int_equal(any.n_mask, free_one.n_tok);
    assert_nothing_held(e);
    engine_delete(e);
}

/* ---- Priorities, places ---- */

static sac_request urgent(int32_t priority)
{
    sac_request r = random_request(1);
    r.priority = priority;
    return r;
}

static bool note_time(struct log *log, const sac_event *event)
{
    if (event->kind == SAC_EVENT_TOKEN && log->n_tok == 1)
        log->first_step = fake_of(log->engine)->n_step;
    return false;
}

/* One sequence for all: who is first, and who comes back behind the urgent one, as if nothing had
 * been. */
static void an_urgent_request_takes_the_place_of_a_running_one(void **state)
{
    (void)state;
    struct log log[4] = {0};
    const int32_t priority[4] = {0, -1, 0, 7}; /* the last comes while the first runs */
    const int order[4] = {0, 3, 2, 1};         /* the first has spoken before */
    sac_engine *e = engine_new(1, N_CTX, 512);
    uint32_t n_active;
    for (int i = 0; i < 4; i++) {
        const sac_request r = urgent(priority[i]);
        log[i].also = note_time;
        log[i].engine = e;
        submit(e, &log[i], RANDOM, 8, &r);
        for (int step = 0; i == 2 && step < 10; step++)
            assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    }
    run_all(e);
    for (int i = 0; i < 4; i++) assert_string_equal(log[i].text, log[0].text);
    for (int i = 0; i < 3; i++)
        assert_true(log[order[i]].first_step < log[order[i + 1]].first_step);
    assert_int_equal(log[0].timings.n_preempted, 1);
    assert_int_equal(log[3].timings.n_preempted, 0);
    assert_true(log[1].timings.queue_ms > 0);
    assert_nothing_held(e);
    engine_delete(e);
}

/* Equals wait for each other, however many there are. */
static void equals_do_not_give_way(void **state)
{
    (void)state;
    struct log log[3] = {0};
    sac_engine *e = engine_new(1, N_CTX, 512);
    for (int i = 0; i < 3; i++) {
        const sac_request r = urgent(3);
        submit(e, &log[i], RANDOM, 8, &r);
    }
    run_all(e);
    for (int i = 0; i < 3; i++) assert_int_equal(log[i].timings.n_preempted, 0);
    engine_delete(e);
}

/* Of two that need the same pages, the one of lower priority gives way, though it is older. */
static void the_less_urgent_gives_way(void **state)
{
    (void)state;
    struct log low = {0}, high = {0};
    sac_engine *e = engine_new(2, 96, 512);
    sac_request r = urgent(-5);
    r.max_tokens = 100;
    submit(e, &low, RANDOM, 8, &r);
    r.priority = 5;
    submit(e, &high, RANDOM, 8, &r);
    run_all(e);
    assert_int_equal(low.timings.n_preempted, 1);
    assert_int_equal(high.timings.n_preempted, 0);
    assert_string_equal(low.text, high.text);
    engine_delete(e);
}

static void a_full_house_is_busy(void **state)
{
    (void)state;
    struct log log[4] = {0};
    sac_error err = {0};
    uint64_t id;
    sac_engine *e = engine_new(1, N_CTX, 512);
    fake_of(e)->base.params.n_request_max = 3;
    for (int i = 0; i < 3; i++) submit(e, &log[i], 0, 3, NULL);
    sac_request r = greedy();
    const int32_t prompt = 0;
    r.prompt = &prompt;
    r.n_prompt = 1;
    r.on_event = collect;
    r.user = &log[3];
    assert_int_equal(sac_submit(e, &r, &id, &err), SAC_ERR_BUSY);
    assert_non_null(strstr(err.msg, "3 requests"));
    sac_engine_stats stats = {0};
    request_list_count(fake_of(e)->base.requests, &stats);
    assert_int_equal(stats.n_request_waiting, 3);
    run_all(e);
    assert_int_equal(log[3].n_done, 0);
    assert_int_equal(sac_submit(e, &r, &id, &err), SAC_OK);
    engine_delete(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_guide_rules_its_request_only),
        cmocka_unit_test(a_guide_does_not_bring_ends_back),
        cmocka_unit_test(an_empty_mask_ends_one_request_only),
        cmocka_unit_test(an_urgent_request_takes_the_place_of_a_running_one),
        cmocka_unit_test(equals_do_not_give_way),
        cmocka_unit_test(the_less_urgent_gives_way),
        cmocka_unit_test(a_full_house_is_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
