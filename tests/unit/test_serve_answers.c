/* test_serve_answers.c: what becomes of answers between their clients and an engine: who comes
 * first, who is cancelled, what is left of them, and that no key meets what another has asked. The
 * engine's thread is the test's own, a turn at a time. */
#include "serve/engine_loop.c"

#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { N_CTX = 1024, N_SEQ = 4, N_BATCH = 16, N_PROMPT = 96 };

static sac_model *model;

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 4});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

struct world {
    struct metrics *metrics;
    struct engine_loop *loop;
    sac_engine *engine;
};

static void world_init(struct world *w, uint32_t n_running)
{
    sac_engine_params p = sac_engine_params_default();
    sac_error err;
    p.n_ctx = N_CTX;
    p.n_seq_max = N_SEQ;
    p.n_batch = N_BATCH;
    p.n_threads = 1;
    p.prefix_cache = true;
    must(sac_engine_create(&w->engine, model, &p, &err), &err);
    must(metrics_create(&w->metrics, &err), &err);
    must(engine_loop_create(&w->loop, &(struct engine_loop_limits){n_running, 8, 1 << 20},
                            w->metrics, &err),
         &err);
    w->loop->engine = w->engine;
}

static void world_free(struct world *w)
{
    engine_loop_destroy(w->loop);
    metrics_destroy(w->metrics);
    sac_engine_free(w->engine);
}

static void turn(struct world *w)
{
    pthread_mutex_lock(&w->loop->lock);
    take_inbox(w->loop);
    pthread_mutex_unlock(&w->loop->lock);
    run_step(w->loop);
    assert_int_equal(w->loop->status, SAC_OK);
    end_step(w->loop);
}

static void ignore(void *user)
{
    (void)user;
}

struct want {
    uint64_t key;
    int32_t priority, text;
    uint32_t n_tok, n;
    float temp;
};

static struct answer *submit(struct world *w, const struct want *want)
{
    struct api_request request = {.n = want->n ? want->n : 1,
                                  .n_prompt = 1,
                                  .sampling = sac_sampling_default(),
                                  .max_tokens = want->n_tok,
                                  .ignore_eos = true,
                                  .priority = want->priority};
    struct api_error error = {0};
    int32_t *tok = mem_alloc(N_PROMPT * sizeof *tok);
    for (int32_t i = 0; i < N_PROMPT; i++) tok[i] = (i * 37 + want->text * 11) % TINY_VOCAB;
    request.prompt[0] = (struct api_request_prompt){.tok = tok, .n = N_PROMPT};
    request.sampling.temp = want->temp;
    request.sampling.top_k = 0;
    struct answer *a = answer_create(&request);
    assert_non_null(a);
    a->key = want->key;
    a->sleep = a->wake = ignore;
    assert_int_equal(engine_loop_submit(w->loop, a, &error), SAC_OK);
    return a;
}

static void finish(struct world *w, const struct answer *a)
{
    for (int i = 0; a->n_left > 0; i++) {
        assert_true(i < 1000);
        turn(w);
    }
    turn(w); /* the loop lets go of it */
}

/* How the only choice has ended. */
static sac_finish end_of(const struct answer *a)
{
    const struct answer_piece *p = a->first;
    while (p && p->kind != ANSWER_DONE) p = p->next;
    assert_non_null(p);
    return p->finish;
}

static void expect_idle(struct world *w)
{
    const struct engine_loop_view view = engine_loop_view(w->loop);
    assert_int_equal(view.n_running, 0);
    assert_int_equal(view.n_waiting, 0);
    assert_int_equal(w->loop->n_submitted, 0);
    assert_null(w->loop->live);
    for (sac_seq seq = 0; seq < N_SEQ; seq++)
        assert_int_equal(sac_seq_length(w->engine, seq, NULL), 0);
}

/* ---- Who leaves ---- */

static void who_leaves_before_its_turn_is_forgotten(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1);
    struct answer *first = submit(&w, &(struct want){.n_tok = 20});
    struct answer *second = submit(&w, &(struct want){.text = 1, .n_tok = 20});
    turn(&w);
    assert_int_equal(engine_loop_view(w.loop).n_waiting, 1);
    engine_loop_leave(w.loop, second);
    turn(&w);
    turn(&w);
    assert_int_equal(w.loop->n_choice, 1);
    assert_null(w.loop->live->next);
    finish(&w, first);
    assert_int_equal(end_of(first), SAC_FINISH_LENGTH);
    expect_idle(&w);
    engine_loop_leave(w.loop, first);
    world_free(&w);
}

/* In the middle of its prompt, or of its answer: what it held is there for others. */
static void who_leaves_while_it_is_computed_is_cancelled(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2);
    for (uint32_t n_turn = 1; n_turn < 12; n_turn += 3) {
        struct answer *a =
            submit(&w, &(struct want){.text = (int32_t)n_turn, .n_tok = 200, .n = 2});
        for (uint32_t i = 0; i < n_turn; i++) turn(&w);
        assert_int_equal(w.loop->n_submitted, 2);
        engine_loop_leave(w.loop, a);
        for (int i = 0; i < 3; i++) turn(&w);
        expect_idle(&w);
    }
    world_free(&w);
}

/* A server that is stopped lets nobody in, and ends all at once or as they would have. */
static void a_stop_waits_or_does_not(void **state)
{
    (void)state;
    for (int now = 0; now < 2; now++) {
        struct world w;
        struct api_error error = {0};
        world_init(&w, 1);
        struct answer *a[2];
        for (int i = 0; i < 2; i++) a[i] = submit(&w, &(struct want){.text = i, .n_tok = 20});
        for (int i = 0; i < 8; i++) turn(&w);
        engine_loop_drain(w.loop, now);
        assert_int_not_equal(engine_loop_submit(w.loop, a[0], &error), SAC_OK);
        if (now)
            for (int i = 0; i < 3; i++) turn(&w);
        for (int i = 0; i < 2; i++) {
            finish(&w, a[i]);
            assert_int_equal(end_of(a[i]), now ? SAC_FINISH_CANCELLED : SAC_FINISH_LENGTH);
            engine_loop_leave(w.loop, a[i]);
        }
        expect_idle(&w);
        world_free(&w);
    }
}

/* ---- Whose turn it is ---- */

/* The higher priority, then the key whose turn was longest ago, then who came first. */
static void priority_then_keys_then_order(void **state)
{
    enum { N = 5 };
    static const struct want want[N] = {{.key = 1, .n_tok = 30},
                                        {.key = 1, .text = 1, .n_tok = 4},
                                        {.key = 1, .text = 2, .n_tok = 4},
                                        {.key = 2, .text = 3, .n_tok = 4},
                                        {.key = 1, .text = 4, .n_tok = 4, .priority = -1}};
    static const uint32_t order[N] = {0, 3, 1, 2, 4};
    struct world w;
    struct answer *a[N];
    (void)state;
    world_init(&w, 1);
    for (int i = 0; i < N; i++) a[i] = submit(&w, &want[i]);
    for (int i = 0; i < N; i++) {
        finish(&w, a[order[i]]);
        for (int k = i + 2; k < N; k++) assert_true(a[order[k]]->waits);
    }
    for (int i = 0; i < N; i++) engine_loop_leave(w.loop, a[i]);
    expect_idle(&w);
    world_free(&w);
}

/* Two answers to one prompt wait for two places, and nobody behind them takes the one that is
 * free; one that matters more takes it from those that are there. */
static void a_pair_waits_for_two_places(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 2);
    struct answer *one = submit(&w, &(struct want){.n_tok = 60});
    turn(&w);
    struct answer *pair = submit(&w, &(struct want){.text = 1, .n_tok = 4, .n = 2});
    struct answer *behind = submit(&w, &(struct want){.text = 2, .n_tok = 4});
    for (int i = 0; i < 10; i++) turn(&w);
    assert_true(!one->waits && pair->waits && behind->waits);
    struct answer *urgent =
        submit(&w, &(struct want){.text = 3, .n_tok = 4, .n = 2, .priority = 1});
    finish(&w, urgent);
    assert_true(one->n_left > 0 && pair->waits && behind->waits);
    finish(&w, one);
    assert_true(!pair->waits && behind->waits);
    finish(&w, behind);
    assert_int_equal(pair->n_left, 0);
    expect_idle(&w);
    engine_loop_leave(w.loop, one);
    engine_loop_leave(w.loop, pair);
    engine_loop_leave(w.loop, behind);
    engine_loop_leave(w.loop, urgent);
    world_free(&w);
}

/* ---- What is shared ---- */

static uint64_t reused(struct world *w, uint64_t key, const char *salt)
{
    struct answer *a = submit(w, &(struct want){.key = key, .n_tok = 2});
    a->request.cache_salt = salt ? mem_strdup(salt) : NULL;
    finish(w, a);
    const uint64_t n = a->choice[0].reads.n_reused_tok;
    engine_loop_leave(w->loop, a);
    return n;
}

/* The same prompt again: from pages for who has asked it, of the same salt, and for nobody else. */
static void keys_and_salts_share_nothing(void **state)
{
    struct world w;
    (void)state;
    world_init(&w, 1);
    assert_int_equal(reused(&w, 1, NULL), 0);
    assert_int_equal(reused(&w, 2, NULL), 0);
    assert_int_equal(reused(&w, 1, "a"), 0);
    assert_int_equal(reused(&w, 2, "a"), 0);
    assert_int_equal(reused(&w, 1, "b"), 0);
    assert_true(reused(&w, 1, NULL) > 0);
    assert_true(reused(&w, 2, "a") > 0);
    world_free(&w);
}

/* Several answers to one prompt are drawn apart, and the first is what one alone would be. */
static void answers_to_one_prompt_differ(void **state)
{
    enum { N_TOK = 12 };
    static const uint32_t n[] = {1, 2};
    int32_t tok[3][N_TOK];
    struct world w;
    (void)state;
    world_init(&w, 2);
    for (uint32_t i = 0, row = 0; i < 2; row += n[i++]) {
        uint32_t n_tok[2] = {0};
        struct answer *a = submit(&w, &(struct want){.n_tok = N_TOK, .n = n[i], .temp = 1});
        finish(&w, a);
        for (const struct answer_piece *p = a->first; p; p = p->next)
            if (p->kind == ANSWER_TOKEN) tok[row + p->choice_i][n_tok[p->choice_i]++] = p->tok;
        for (uint32_t k = 0; k < n[i]; k++) assert_int_equal(n_tok[k], N_TOK);
        engine_loop_leave(w.loop, a);
    }
    assert_memory_equal(tok[0], tok[1], sizeof tok[0]);
    assert_memory_not_equal(tok[1], tok[2], sizeof tok[0]);
    world_free(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_leaves_before_its_turn_is_forgotten),
        cmocka_unit_test(who_leaves_while_it_is_computed_is_cancelled),
        cmocka_unit_test(a_stop_waits_or_does_not),
        cmocka_unit_test(priority_then_keys_then_order),
        cmocka_unit_test(a_pair_waits_for_two_places),
        cmocka_unit_test(keys_and_salts_share_nothing),
        cmocka_unit_test(answers_to_one_prompt_differ),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
