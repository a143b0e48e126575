/* test_engine_loop.c: how pieces of an answer go from the engine's thread to a connection that
 * sleeps: who wakes it, how often, and that the lock which it takes is free then. */
#include "serve/engine_loop.c"

#include "must.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

struct probe {
    struct engine_loop *loop;
    uint32_t n_sleep, n_wake, n_locked;
};

static void on_sleep(void *user)
{
    struct probe *p = user;
    p->n_sleep++;
}

static void on_wake(void *user)
{
    struct probe *p = user;
    p->n_wake++;
    if (pthread_mutex_trylock(&p->loop->lock) == 0)
        pthread_mutex_unlock(&p->loop->lock);
    else
        p->n_locked++;
}

static void say(struct answer *a, const char *text, sac_event_kind kind)
{
    const sac_event e = {.kind = kind,
                         .text = text,
                         .text_bytes = strlen(text),
                         .finish = kind == SAC_EVENT_DONE ? SAC_FINISH_STOP : SAC_FINISH_NONE};
    assert_false(on_event(&a->choice[0], &e));
}

static uint32_t take(struct engine_loop *loop, struct answer *a, bool *done)
{
    struct answer_piece *first = engine_loop_take(loop, a, done);
    uint32_t n = 0;
    for (const struct answer_piece *p = first; p; p = p->next) n++;
    answer_pieces_free(first);
    return n;
}

static void run(bool eager)
{
    struct probe probe = {0};
    struct metrics *metrics;
    struct api_request request = {.work = API_REQUEST_DOC_ADD};
    struct api_error error = {0};
    sac_error err;
    bool done;
    must(metrics_create(&metrics, &err), &err);
    must(
        engine_loop_create(&probe.loop, &(struct engine_loop_limits){1, 1, 1 << 20}, metrics, &err),
        &err);
    struct answer *a = answer_create(&request);
    assert_non_null(a);
    a->eager = eager;
    a->sleep = on_sleep;
    a->wake = on_wake;
    a->user = &probe;
    a->choice[0].loop = probe.loop;
    assert_int_equal(engine_loop_submit(probe.loop, a, &error), SAC_OK);
    assert_int_equal(take(probe.loop, a, &done), 0);
    assert_int_equal(probe.n_sleep, 1);
    say(a, "one", SAC_EVENT_TOKEN);
    say(a, "two", SAC_EVENT_TOKEN); /* it was woken already */
    assert_int_equal(probe.n_wake, eager);
    if (eager) {
        assert_int_equal(take(probe.loop, a, &done), 2);
        assert_false(done);
        assert_int_equal(take(probe.loop, a, &done), 0);
        assert_int_equal(probe.n_sleep, 2);
    }
    say(a, "", SAC_EVENT_DONE);
    assert_int_equal(probe.n_wake, eager ? 2 : 1);
    assert_int_equal(probe.n_locked, 0);
    assert_int_equal(take(probe.loop, a, &done), eager ? 1 : 3);
    assert_int_equal(take(probe.loop, a, &done), 0);
    assert_true(done);
    engine_loop_leave(probe.loop, a);
    engine_loop_destroy(probe.loop);
    metrics_destroy(metrics);
}

static void each_token_wakes_a_stream_once(void **state)
{
    (void)state;
    run(true);
}

static void the_end_wakes_who_waits_for_all(void **state)
{
    (void)state;
    run(false);
}

/* What cannot start ends what was queued, or the connections would sleep for ever. */
static void a_loop_that_cannot_run_ends_what_waits(void **state)
{
    struct probe probe = {0};
    struct metrics *metrics;
    struct api_request request = {.work = API_REQUEST_DOC_ADD};
    struct api_error error = {0};
    const struct engine_loop_parts parts = {.events = (struct kv_events *)&probe};
    sac_engine_params p = sac_engine_params_default();
    sac_engine *engine;
    sac_error err;
    bool done;
    sac_model *model = tiny_open(&(struct tiny){.seed = 3});
    (void)state;
    p.n_ctx = 64;
    p.n_threads = 1;
    p.prefix_cache = false; /* which KV events need */
    must(sac_engine_create(&engine, model, &p, &err), &err);
    must(metrics_create(&metrics, &err), &err);
    must(
        engine_loop_create(&probe.loop, &(struct engine_loop_limits){1, 1, 1 << 20}, metrics, &err),
        &err);
    struct answer *a = answer_create(&request);
    a->sleep = on_sleep;
    a->wake = on_wake;
    a->user = &probe;
    assert_int_equal(engine_loop_submit(probe.loop, a, &error), SAC_OK);
    assert_int_equal(take(probe.loop, a, &done), 0);
    assert_int_equal(engine_loop_run(probe.loop, engine, &parts, &err), SAC_ERR_ARG);
    assert_int_equal(probe.n_wake, 1);
    assert_int_equal(take(probe.loop, a, &done), 1);
    engine_loop_leave(probe.loop, a);
    assert_int_not_equal(engine_loop_submit(probe.loop, a, &error), SAC_OK);
    engine_loop_destroy(probe.loop);
    metrics_destroy(metrics);
    sac_engine_free(engine);
    sac_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_token_wakes_a_stream_once),
        cmocka_unit_test(the_end_wakes_who_waits_for_all),
        cmocka_unit_test(a_loop_that_cannot_run_ends_what_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
