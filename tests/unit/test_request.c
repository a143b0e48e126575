/* test_request.c: requests over a fake engine. */
#include "request_log.h"

/* ---- Text ---- */

static void text_streams_in_whole_characters(void **state)
{
    (void)state;
    const char *const want[N_SCRIPT] = {"The cat sat. STOP here", "caf\xc3\xa9 \xf0\x9f\x90\x88!",
                                        "broken \xef\xbf\xbd and cut \xef\xbf\xbd", ""};
    for (int i = 0; i < N_SCRIPT; i++) {
        sac_engine *e = engine_new(1, N_CTX, 8);
        struct log log = {0};
        submit(e, &log, i, 20, NULL);
        run_all(e);
        assert_string_equal(log.text, want[i]);
        assert_int_equal(log.finish, SAC_FINISH_STOP);
        assert_int_equal(log.n_tok, strlen(scripts[i]) + 1);
        assert_int_equal(log.tok[log.n_tok - 1], END);
        assert_int_equal(log.n_prompt_event, 4); /* 19 rows by 8, and the last, a decode row */
        assert_int_equal(log.timings.n_prompt, 20);
        assert_int_equal(log.timings.n_predicted, log.n_tok);
        assert_true(log.timings.prompt_ms >= 0 && log.timings.predicted_ms >= 0);
        assert_nothing_held(e);
        engine_delete(e);
    }
}

static bool never_shows_stop(struct log *log, const sac_event *event)
{
    (void)event;
    assert_null(strstr(log->text, "ST")); /* held back: it may become the stop string */
    return false;
}

static void stop_string_across_tokens(void **state)
{
    (void)state;
    const char *const stop[] = {"XYZ", "STOP"};
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {.also = never_shows_stop};
    sac_request r = greedy();
    r.stop = stop;
    r.n_stop = 2;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The cat sat. ");
    assert_string_equal(log.stop, "STOP");
    assert_int_equal(log.finish, SAC_FINISH_STOP);
    assert_int_equal(log.n_tok, strlen("The cat sat. STOP"));
    engine_delete(e);
}

/* The text shows what stopped it, and nothing of what stands behind that. */
static void what_stops_may_be_shown(void **state)
{
    (void)state;
    const char *const stop[] = {"STO"};
    const int32_t end = '.';
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.stop = stop;
    r.n_stop = 1;
    r.keep_stop = true;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The cat sat. STO");
    assert_string_equal(log.stop, "STO");
    log = (struct log){0};
    r.stop_tok = &end;
    r.n_stop_tok = 1;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The cat sat.");
    assert_string_equal(log.stop, "");
    engine_delete(e);
}

/* A beginning of a stop string that comes to nothing is shown in the end. */
static void held_back_text_is_shown_at_the_end(void **state)
{
    (void)state;
    const char *const stop[] = {"here and there"};
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.stop = stop;
    r.n_stop = 1;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, scripts[0]);
    assert_string_equal(log.stop, "");
    r.max_tokens = 20; /* ends within "here" */
    log = (struct log){0};
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_int_equal(log.finish, SAC_FINISH_LENGTH);
    assert_int_equal(log.n_text, 20);
    engine_delete(e);
}

/* ---- Ends ---- */

static void ends_by_length(void **state)
{
    (void)state;
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.max_tokens = 5;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The c");
    assert_int_equal(log.finish, SAC_FINISH_LENGTH);
    /* The context's end: the token chosen from its last row needs no place of its own. */
    log = (struct log){0};
    r.max_tokens = 0;
    submit(e, &log, RANDOM, N_CTX - 10, &r);
    run_all(e);
    assert_int_equal(log.n_tok, 11);
    assert_int_equal(log.finish, SAC_FINISH_LENGTH);
    log = (struct log){0};
    submit(e, &log, RANDOM, N_CTX, &r);
    run_all(e);
    assert_int_equal(log.n_tok, 1);
    assert_nothing_held(e);
    engine_delete(e);
}

static void end_token_can_be_banned(void **state)
{
    (void)state;
    const sac_logit_bias bias = {'!', -INFINITY};
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.ignore_eos = true;
    r.max_tokens = 14;
    r.sampling.logit_bias = &bias; /* stays in force beside the ban */
    r.sampling.n_logit_bias = 1;
    submit(e, &log, 1, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "caf\xc3\xa9 \xf0\x9f\x90\x88????");
    assert_int_equal(log.n_tok, 14);
    assert_int_equal(log.finish, SAC_FINISH_LENGTH);
    engine_delete(e);
}

static void a_stop_token_ends(void **state)
{
    (void)state;
    const int32_t stop[] = {'!', '.'};
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.stop_tok = stop;
    r.n_stop_tok = 2;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The cat sat");
    assert_int_equal(log.finish, SAC_FINISH_STOP);
    assert_int_equal(log.tok[log.n_tok - 1], '.');
    engine_delete(e);
}

/* The second choice of the fake model is '?'. */
static void too_short_an_answer_does_not_end(void **state)
{
    (void)state;
    const char *const text[] = {"cat", " sa"};
    const int32_t tok = 'c';
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    r.min_tokens = 12;
    submit(e, &log, 3, 3, &r); /* the model would say nothing at all */
    run_all(e);
    assert_string_equal(log.text, "????????????");
    assert_int_equal(log.n_tok, 13);
    assert_int_equal(log.finish, SAC_FINISH_STOP);
    log = (struct log){0};
    r.min_tokens = 8; /* "The ?at ", by which 'c' and "cat" are not certain to be meant */
    r.stop_tok = &tok;
    r.n_stop_tok = 1;
    r.stop = text;
    r.n_stop = 2;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The ?at");
    assert_string_equal(log.stop, " sa");
    log = (struct log){0};
    r.n_stop_tok = 0;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The cat");
    assert_string_equal(log.stop, " sa");
    r.min_tokens = 6;
    log = (struct log){0};
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_string_equal(log.text, "The ");
    assert_string_equal(log.stop, "cat");
    assert_nothing_held(e);
    engine_delete(e);
}

static const uint64_t *only_the_end(void *user)
{
    static uint64_t mask[(N_VOCAB + 63) / 64];
    (void)user;
    mask[END / 64] = 1ull << END % 64;
    return mask;
}

/* A complete form ends the answer, whatever the request would rather have. */
static void a_complete_form_ends(void **state)
{
    (void)state;
    sac_engine *e = engine_new(1, N_CTX, 64);
    for (int i = 0; i < 2; i++) {
        struct log log = {0};
        sac_request r = greedy();
        r.guide.mask = only_the_end;
        r.ignore_eos = i == 0;
        r.min_tokens = i == 1 ? 5 : 0;
        submit(e, &log, 0, 3, &r);
        run_all(e);
        assert_string_equal(log.error, "");
        assert_int_equal(log.finish, SAC_FINISH_STOP);
        assert_int_equal(log.n_tok, 1);
    }
    engine_delete(e);
}

static void cancel_from_the_event_from_outside_and_while_waiting(void **state)
{
    (void)state;
    sac_engine *e = engine_new(2, 2 * N_CTX, 64);
    struct log logs[3] = {{.cancel_at = 4}};
    uint64_t id[3];
    uint32_t n_active;
    for (int i = 0; i < 3; i++) id[i] = submit(e, &logs[i], 0, 3, NULL);
    /* A step of prompt rows, and three that choose a token. */
    for (int i = 0; i < 4; i++) assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(n_active, 3);
    sac_cancel(e, id[1]);
    sac_cancel(e, id[2]);
    sac_cancel(e, 999); /* there is none: nothing happens */
    assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(n_active, 0);
    assert_nothing_held(e);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(logs[i].finish, SAC_FINISH_CANCELLED);
        assert_int_equal(logs[i].n_done, 1);
    }
    assert_string_equal(logs[0].text, "The ");
    assert_string_equal(logs[1].text, "The");
    assert_string_equal(logs[2].text, "");
    engine_delete(e);
}

static void cancel_within_a_long_prompt(void **state)
{
    (void)state;
    sac_engine *e = engine_new(1, N_CTX, 8);
    struct log log = {0};
    uint32_t n_active;
    const uint64_t id = submit(e, &log, 0, 100, NULL);
    assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    sac_cancel(e, id);
    assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    assert_int_equal(n_active, 0);
    assert_int_equal(log.n_prompt_event, 1);
    assert_int_equal(log.timings.n_predicted, 0);
    assert_nothing_held(e);
    engine_delete(e);
}

static void broken_logits_end_one_request_only(void **state)
{
    (void)state;
    sac_engine *e = engine_new(2, 2 * N_CTX, 64);
    struct log bad = {0}, good = {0};
    submit(e, &bad, BROKEN, 3, NULL);
    submit(e, &good, 0, 3, NULL);
    run_all(e);
    assert_int_equal(bad.finish, SAC_FINISH_ERROR);
    assert_int_equal(bad.status, SAC_ERR_ARG);
    assert_non_null(strstr(bad.error, "NaN"));
    assert_string_equal(good.text, scripts[0]);
    engine_delete(e);
}

/* ---- Many at once ---- */

enum { N_REQUEST = 10 };

static void results_do_not_depend_on_others(void **state)
{
    (void)state;
    struct log alone[N_REQUEST] = {0};
    for (int i = 0; i < N_REQUEST; i++) {
        const sac_request r = random_request((uint64_t)i);
        sac_engine *e = engine_new(1, N_CTX, 512);
        submit(e, &alone[i], RANDOM, 5 + 9 * (size_t)i, &r);
        run_all(e);
        assert_int_equal(alone[i].n_tok, 60);
        engine_delete(e);
    }
    assert_string_not_equal(alone[0].text, alone[1].text);
    /* Fewer sequences than requests, then a pool that makes requests give way, small batches. */
    const struct {
        uint32_t n_seq, n_batch;
        uint64_t n_kv_tok;
    } crowds[] = {{16, 512, 16 * N_CTX}, {3, 512, 3 * N_CTX}, {16, 16, 16 * N_CTX},
                  {16, 512, 320},        {16, 20, 224},       {4, 7, 160}};
    for (size_t c = 0; c < sizeof crowds / sizeof crowds[0]; c++) {
        struct log logs[N_REQUEST] = {0};
        sac_engine *e = engine_new(crowds[c].n_seq, crowds[c].n_kv_tok, crowds[c].n_batch);
        for (int i = 0; i < N_REQUEST; i++) {
            const sac_request r = random_request((uint64_t)i);
            submit(e, &logs[i], RANDOM, 5 + 9 * (size_t)i, &r);
        }
        const uint64_t n_alloc = mem_count();
        run_all(e);
        assert_int_equal(mem_count(), n_alloc); /* a step allocates nothing */
        for (int i = 0; i < N_REQUEST; i++) {
            assert_int_equal(logs[i].finish, SAC_FINISH_LENGTH);
            assert_string_equal(logs[i].text, alone[i].text);
            assert_memory_equal(logs[i].tok, alone[i].tok, sizeof alone[i].tok);
        }
        assert_nothing_held(e);
        engine_delete(e);
    }
}

/* Without pages for all, the youngest must have given way, or the test above shows nothing. */
static void the_youngest_gives_way(void **state)
{
    (void)state;
    sac_engine *e = engine_new(2, 96, 512);
    struct log old = {0}, young = {0};
    sac_request r = random_request(1);
    r.max_tokens = 100; /* three pages each, and there are three */
    submit(e, &old, RANDOM, 8, &r);
    submit(e, &young, RANDOM, 8, &r);
    uint32_t n_active = 1;
    bool gave_way = false;
    while (n_active) {
        assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
        const struct request *last = fake_of(e)->base.requests->first;
        while (last && last->next) last = last->next;
        if (last && last->state == REQUEST_WAITING && last->n_predicted) gave_way = true;
    }
    assert_true(gave_way);
    assert_string_equal(old.text, young.text);
    engine_delete(e);
}

/* A sequence of the caller is put aside with all that it was and goes on from there; cancelled
 * meanwhile, it comes back before its request ends. */
static void a_callers_sequence_gives_way_and_comes_back(void **state)
{
    (void)state;
    for (int cancels = 0; cancels < 2; cancels++) {
        struct log old = {0}, first = {0}, young = {0}, want[2] = {0};
        sac_request r = random_request(1);
        sac_seq seq[2];
        uint32_t n_active = 1, n_aside = 0, length = 0;
        uint64_t id = 0;
        for (int way = 0; way < 2; way++) { /* alone, and with another that takes its pages */
            sac_engine *e = engine_new(2, way ? 96 : N_CTX, 512);
            assert_int_equal(sac_seq_create(e, &seq[way], NULL), SAC_OK);
            r.seq = seq[way];
            r.max_tokens = 10;
            submit(e, way ? &first : &want[0], RANDOM, 4, &r);
            run_all(e);
            r.max_tokens = 100;
            sac_request other = r;
            other.seq = SAC_SEQ_NONE;
            if (way) submit(e, &old, RANDOM, 8, &other);
            id = submit(e, way ? &young : &want[1], 'x', 6, &r);
            for (n_active = 1; n_active;) {
                assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
                if (way == 0 || sac_seq_length(e, r.seq, NULL) > 0) continue;
                if (n_aside++ > 0) continue;
                uint64_t none;
                assert_int_equal(sac_submit(e, &r, &none, NULL), SAC_ERR_ARG); /* in use */
                if (cancels) sac_cancel(e, id);
                n_active = 1;
            }
            if (way == 1) length = sac_seq_length(e, r.seq, NULL);
            engine_delete(e);
        }
        assert_true(n_aside > 0);
        assert_int_equal(young.timings.n_preempted, 1);
        assert_int_equal(young.finish, cancels ? SAC_FINISH_CANCELLED : SAC_FINISH_LENGTH);
        assert_int_equal(length, 13 + 6 + young.n_tok - (cancels ? 0 : 1));
        assert_memory_equal(young.tok, want[1].tok, young.n_tok * sizeof young.tok[0]);
        if (!cancels) assert_string_equal(young.text, want[1].text);
    }
}

static void no_memory_to_put_aside_ends_that_request(void **state)
{
    (void)state;
    struct log old = {0}, young = {0};
    sac_request r = random_request(1);
    sac_engine *e = engine_new(2, 96, 512);
    r.max_tokens = 100;
    submit(e, &old, RANDOM, 8, &r);
    assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
    submit(e, &young, RANDOM, 8, &r);
    mem_fail_after(1);
    run_all(e);
    mem_fail_after(0);
    assert_int_equal(young.finish, SAC_FINISH_ERROR);
    assert_int_equal(young.status, SAC_ERR_MEMORY);
    assert_non_null(strstr(young.error, "put the sequence aside"));
    assert_true(sac_seq_length(e, r.seq, NULL) > 8);
    engine_delete(e);
}

static void alone_with_a_full_pool_is_an_error(void **state)
{
    (void)state;
    sac_engine *e = engine_new(2, 64, 512);
    struct log log = {0};
    sac_request r = random_request(1);
    r.max_tokens = 0;
    submit(e, &log, RANDOM, 10, &r);
    run_all(e);
    assert_int_equal(log.finish, SAC_FINISH_ERROR);
    assert_int_equal(log.status, SAC_ERR_CONTEXT);
    assert_non_null(strstr(log.error, "pool is full"));
    assert_int_equal(log.n_tok, 96 - 10); /* two pages and the tail, which is not in the pool */
    assert_nothing_held(e);
    engine_delete(e);
}

static bool submit_again(struct log *log, const sac_event *event)
{
    static struct log second;
    uint32_t n_active;
    if (event->kind != SAC_EVENT_DONE) return false;
    sac_error err;
    assert_int_equal(sac_run(log->engine, &n_active, &err), SAC_ERR_ARG); /* not from an event */
    second = (struct log){0};
    submit(log->engine, &second, 3, 2, NULL);
    return true; /* too late to cancel */
}

static void events_may_submit(void **state)
{
    (void)state;
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {.also = submit_again, .engine = e};
    const uint64_t first = submit(e, &log, 0, 3, NULL);
    run_all(e);
    assert_int_equal(log.finish, SAC_FINISH_STOP);
    struct log third = {0};
    assert_int_equal(submit(e, &third, 3, 2, NULL), first + 2);
    engine_delete(e); /* with a request in it */
}

/* ---- A sequence of the caller ---- */

static void a_sequence_goes_on(void **state)
{
    (void)state;
    sac_engine *e = engine_new(2, 2 * N_CTX, 64);
    struct log log = {0};
    sac_request r = greedy();
    assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
    r.max_tokens = 4;
    submit(e, &log, RANDOM, 10, &r);
    /* One request at a time on one sequence. */
    uint64_t id;
    sac_error err = {0};
    const int32_t more = 'x';
    sac_request other = r;
    other.prompt = &more;
    other.n_prompt = 1;
    other.on_event = collect;
    assert_int_equal(sac_submit(e, &other, &id, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "in use"));
    run_all(e);
    uint32_t pending = 1;
    assert_int_equal(sac_seq_length(e, r.seq, &pending), 13); /* the last token is not computed */
    assert_int_equal(pending, 0);
    struct log next = {0};
    other.user = &next;
    assert_int_equal(sac_submit(e, &other, &id, &err), SAC_OK);
    run_all(e);
    assert_int_equal(next.timings.n_cached, 13);
    assert_int_equal(next.timings.n_prompt, 1);
    assert_int_equal(next.n_tok, 4);
    /* Cancelled before its first step: what it had queued is dropped. */
    const uint32_t before = sac_seq_length(e, r.seq, NULL);
    next = (struct log){0};
    assert_int_equal(sac_submit(e, &other, &id, &err), SAC_OK);
    sac_cancel(e, id);
    run_all(e);
    assert_int_equal(sac_seq_length(e, r.seq, &pending), before);
    assert_int_equal(pending, 0);
    engine_delete(e);
}

/* ---- Rows of the prompt that a decode method serves ---- */

/* The kinds of the rows of a sequence's first `n`, "ppd". */
static void kinds_of(char out[N_CTX + 1], const sac_engine *e, sac_seq seq, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) out[i] = fake_of(e)->seqs[seq].decode[i] ? 'd' : 'p';
    out[n] = 0;
}

static bool note_kinds(struct log *log, const sac_event *e)
{
    if (e->kind == SAC_EVENT_TOKEN && log->n_tok == 1)
        kinds_of(log->kinds, log->engine, e->seq, fake_of(log->engine)->seqs[e->seq].n_done);
    return false;
}

static void the_prompts_last_rows_are_decode_rows(void **state)
{
    (void)state;
    const struct {
        uint32_t n_prompt, n_decode_row;
        const char *kinds;
        uint32_t n_event; /* by 4 */
    } cases[] = {
        {10, 1, "pppppppppd", 4},        {10, 3, "pppppppddd", 5}, {10, 10, "dddddddddd", 10},
        {10, 999, "dddddddddd", 10},     {1, 1, "d", 1},           {1, 7, "d", 1},
        {9, UINT32_MAX, "ddddddddd", 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sac_engine *e = engine_new(1, N_CTX, 4);
        struct log log = {.also = note_kinds, .engine = e};
        sac_request r = greedy();
        r.n_decode_row = cases[i].n_decode_row;
        r.max_tokens = 3;
        submit(e, &log, 0, cases[i].n_prompt, &r);
        run_all(e);
        assert_string_equal(log.kinds, cases[i].kinds);
        assert_int_equal(log.n_prompt_event, cases[i].n_event);
        assert_int_equal(log.n_prompt_done, cases[i].n_prompt);
        assert_int_equal(log.timings.n_prompt, cases[i].n_prompt);
        assert_string_equal(log.text, "The");
        engine_delete(e);
    }
}

/* Tokens that the sequence has already stay rows of the kind that they were. */
static void a_cached_beginning_keeps_its_rows(void **state)
{
    (void)state;
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log first = {0}, log = {.also = note_kinds, .engine = e};
    sac_request r = greedy();
    assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
    r.max_tokens = 2; /* the second is chosen, and not computed */
    submit(e, &first, RANDOM, 5, &r);
    run_all(e);
    r.n_decode_row = 2;
    submit(e, &log, 'x', 4, &r);
    run_all(e);
    assert_string_equal(log.kinds, "ppppddppdd");
    assert_int_equal(log.timings.n_cached, 6);
    assert_int_equal(log.n_prompt_done, 4);
    log = (struct log){.also = note_kinds, .engine = e};
    r.n_decode_row = 9; /* more than the request brings */
    submit(e, &log, 'x', 3, &r);
    run_all(e);
    assert_string_equal(log.kinds, "ppppddppdddddd");
    engine_delete(e);
}

/* ---- Probabilities, errors ---- */

static bool check_probs(struct log *log, const sac_event *event)
{
    if (event->kind != SAC_EVENT_TOKEN) return false;
    const double sum = exp(10) + exp(5) + (N_VOCAB - 2) * exp(-10);
    assert_int_equal(event->n_probs, 3);
    assert_int_equal(event->probs[0].tok,
                     log->n_tok > strlen(scripts[0]) ? END : (uint8_t)scripts[0][log->n_tok - 1]);
    assert_int_equal(event->probs[1].tok, '?');
    assert_true(fabs((double)event->probs[1].logprob - (5 - log1p(sum - 1))) < 1e-5);
    assert_true(event->tok == '?'); /* the bias below makes the second the first */
    assert_true(event->logprob == event->probs[1].logprob);
    return false;
}

static bool note_n_top(struct log *log, const sac_event *e)
{
    if (e->kind == SAC_EVENT_TOKEN)
        assert_int_equal(fake_of(log->engine)->seqs[e->seq].n_top, *log->n_top);
    return false;
}

static void leave_logits(void *user, float *logits, uint32_t n_vocab)
{
    (void)user;
    (void)logits;
    assert_int_equal(n_vocab, N_VOCAB);
}

/* A sequence gives the logits that the sampler wants, and all of them again when it is given back.
 */
static void few_logits_are_asked_for(void **state)
{
    (void)state;
    uint32_t want[4] = {1, 40, 0, 0};
    for (int i = 0; i < 4; i++) {
        sac_engine *e = engine_new(1, N_CTX, 8);
        struct log log = {.engine = e, .also = note_n_top, .n_top = &want[i]};
        sac_request r = greedy();
        assert_int_equal(sac_seq_create(e, &r.seq, NULL), SAC_OK);
        if (i == 1) r.sampling.temp = 0.1f;
        if (i == 2) r.n_probs = 1;
        if (i == 3) r.guide.logits = leave_logits;
        r.max_tokens = 5;
        submit(e, &log, 0, 4, &r);
        run_all(e);
        assert_int_equal(log.n_tok, 5);
        assert_int_equal(fake_of(e)->seqs[r.seq].n_top, 0);
        sac_seq_remove(e, r.seq);
        engine_delete(e);
    }
}

static void probabilities_are_the_models(void **state)
{
    (void)state;
    const sac_logit_bias bias = {'?', 20};
    sac_engine *e = engine_new(1, N_CTX, 64);
    struct log log = {.also = check_probs};
    sac_request r = greedy();
    r.n_probs = 3;
    r.max_tokens = 1;
    r.sampling.logit_bias = &bias;
    r.sampling.n_logit_bias = 1;
    submit(e, &log, 0, 3, &r);
    run_all(e);
    assert_int_equal(log.n_tok, 1);
    engine_delete(e);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    int32_t prompt[N_CTX + 1] = {0};
    const char *const empty = "";
    const int32_t outside = N_VOCAB;
    sac_engine *e = engine_new(1, 64, 64);
    sac_request good = greedy();
    good.prompt = prompt;
    good.n_prompt = 3;
    good.on_event = collect;
    struct {
        sac_request r;
        sac_status status;
        const char *words[2];
    } cases[10];
    for (size_t i = 0; i < 10; i++) {
        cases[i].r = good;
        cases[i].status = SAC_ERR_ARG;
        cases[i].words[0] = cases[i].words[1] = "";
    }
    cases[0].r.n_prompt = N_CTX + 1, cases[0].status = SAC_ERR_CONTEXT;
    cases[0].words[0] = "257", cases[0].words[1] = "95"; /* two pages and a tail */
    cases[1].r.n_prompt = 0, cases[1].words[0] = "no tokens";
    cases[2].r.prompt = &outside, cases[2].r.n_prompt = 1, cases[2].words[0] = "token 0 is";
    cases[3].r.stop = &empty, cases[3].r.n_stop = 1, cases[3].words[0] = "stop string 0";
    cases[4].r.on_event = NULL, cases[4].words[0] = "callback";
    cases[5].r.seq = 5, cases[5].status = SAC_ERR_NOT_FOUND, cases[5].words[0] = "sequence 5";
    cases[6].r.sampling.top_p = NAN, cases[6].words[0] = "top-p";
    cases[7].r.n_decode_row = 0, cases[7].words[0] = "n_decode_row is 0";
    cases[8].r.stop_tok = &outside, cases[8].r.n_stop_tok = 1, cases[8].words[0] = "stop token 0";
    cases[9].r.max_tokens = 4, cases[9].r.min_tokens = 5, cases[9].words[0] = "min_tokens is 5";
    for (size_t i = 0; i < 10; i++) {
        sac_error err = {0};
        uint64_t id = 0;
        assert_int_equal(sac_submit(e, &cases[i].r, &id, &err), cases[i].status);
        assert_non_null(strstr(err.msg, cases[i].words[0]));
        assert_non_null(strstr(err.msg, cases[i].words[1]));
        assert_nothing_held(e);
    }
    engine_delete(e);
}

static void failures_leave_nothing_behind(void **state)
{
    (void)state;
    const char *const stop = "x";
    const int32_t prompt = 0;
    struct log log = {0};
    sac_engine *e = engine_new(1, N_CTX, 64);
    sac_request r = random_request(1);
    r.prompt = &prompt;
    r.n_prompt = 1;
    r.stop = &stop;
    r.n_stop = 1;
    r.n_probs = 1;
    r.ignore_eos = true;
    r.on_event = collect;
    r.user = &log;
    uint64_t id, n_failed = 0;
    sac_status status = SAC_ERR_MEMORY;
    while (status == SAC_ERR_MEMORY) {
        mem_fail_after(++n_failed);
        status = sac_submit(e, &r, &id, NULL);
        mem_fail_after(0);
        if (status != SAC_OK) assert_nothing_held(e);
    }
    assert_int_equal(status, SAC_OK);
    assert_true(n_failed > 8);
    /* A step that fails is passed on, and nothing is lost. */
    uint32_t n_active = 0;
    sac_error err = {0};
    fake_of(e)->step_status = SAC_ERR_IO;
    assert_int_equal(sac_run(e, &n_active, &err), SAC_ERR_IO);
    assert_string_equal(err.msg, "the step failed");
    fake_of(e)->step_status = SAC_OK;
    run_all(e);
    assert_int_equal(log.n_done, 1);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        struct request_list *list = NULL;
        mem_fail_after(nth);
        assert_int_equal(request_list_create(&list, e, NULL), SAC_ERR_MEMORY);
        mem_fail_after(0);
        assert_null(list);
    }
    engine_delete(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_streams_in_whole_characters),
        cmocka_unit_test(stop_string_across_tokens),
        cmocka_unit_test(held_back_text_is_shown_at_the_end),
        cmocka_unit_test(what_stops_may_be_shown),
        cmocka_unit_test(a_stop_token_ends),
        cmocka_unit_test(too_short_an_answer_does_not_end),
        cmocka_unit_test(a_complete_form_ends),
        cmocka_unit_test(ends_by_length),
        cmocka_unit_test(end_token_can_be_banned),
        cmocka_unit_test(cancel_from_the_event_from_outside_and_while_waiting),
        cmocka_unit_test(cancel_within_a_long_prompt),
        cmocka_unit_test(broken_logits_end_one_request_only),
        cmocka_unit_test(results_do_not_depend_on_others),
        cmocka_unit_test(the_youngest_gives_way),
        cmocka_unit_test(a_callers_sequence_gives_way_and_comes_back),
        cmocka_unit_test(no_memory_to_put_aside_ends_that_request),
        cmocka_unit_test(alone_with_a_full_pool_is_an_error),
        cmocka_unit_test(events_may_submit),
        cmocka_unit_test(a_sequence_goes_on),
        cmocka_unit_test(the_prompts_last_rows_are_decode_rows),
        cmocka_unit_test(a_cached_beginning_keeps_its_rows),
        cmocka_unit_test(few_logits_are_asked_for),
        cmocka_unit_test(probabilities_are_the_models),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(failures_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
