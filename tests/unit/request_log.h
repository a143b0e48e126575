/* request_log.h: requests over a fake engine, and a log of what each of them yields. The tests that
 * include it see the inside of request.c. */
#ifndef SAC_TESTS_UNIT_REQUEST_LOG_H
#define SAC_TESTS_UNIT_REQUEST_LOG_H

#include "engine/request.c"
#include "fake_engine.h"

#include <stdio.h>
#include <stdlib.h>

struct log {
    char text[1024];
    size_t n_text;
    int32_t tok[N_CTX];
    uint32_t n_tok, n_prompt_event, n_prompt_done, n_done;
    uint64_t id;
    sac_finish finish;
    sac_status status;
    char stop[32], error[128], kinds[N_CTX + 1];
    sac_timings timings;
    uint32_t cancel_at; /* answers true at this token; 0: never */
    bool (*also)(struct log *log, const sac_event *event);
    const uint32_t *n_top; /* for note_n_top */
    uint32_t first_step;   /* of note_time */
    sac_engine *engine;
};

static inline bool collect(void *user, const sac_event *e)
{
    struct log *log = user;
    assert_true(log->n_done == 0); /* nothing comes behind the last event */
    assert_true(log->n_text + e->text_bytes < sizeof log->text);
    memcpy(log->text + log->n_text, e->text, e->text_bytes);
    log->n_text += e->text_bytes;
    log->text[log->n_text] = 0;
    log->id = e->request_id;
    if (e->kind == SAC_EVENT_PROMPT) {
        log->n_prompt_event++;
        assert_true(e->n_prompt_done > log->n_prompt_done);
        log->n_prompt_done = e->n_prompt_done;
    }
    if (e->kind == SAC_EVENT_TOKEN) {
        assert_int_equal(e->n_prompt_done, e->n_prompt);
        log->tok[log->n_tok++] = e->tok;
    }
    if (e->kind == SAC_EVENT_DONE) {
        log->n_done++;
        log->finish = e->finish;
        log->status = e->status;
        log->timings = e->timings;
        snprintf(log->stop, sizeof log->stop, "%s", e->stop ? e->stop : "");
        snprintf(log->error, sizeof log->error, "%s", e->error ? e->error : "");
    }
    if (log->also && log->also(log, e)) return true;
    return log->cancel_at && log->n_tok == log->cancel_at && e->kind == SAC_EVENT_TOKEN;
}

static inline sac_engine *engine_new(uint32_t n_seq_max, uint64_t n_kv_tok, uint32_t n_batch)
{
    struct fake *f = calloc(1, sizeof *f);
    assert_non_null(f);
    f->base.params = (sac_engine_params){
        .n_ctx = N_CTX, .n_seq_max = n_seq_max, .n_kv_tok = n_kv_tok, .n_batch = n_batch};
    sac_engine *e = &f->base;
    assert_int_equal(request_list_create(&f->base.requests, e, NULL), SAC_OK);
    return e;
}

static inline void engine_delete(sac_engine *e)
{
    request_list_destroy(fake_of(e)->base.requests);
    free(fake_of(e));
}

static inline void assert_nothing_held(const sac_engine *e)
{
    for (uint32_t i = 0; i < N_SEQ_MAX; i++) assert_false(fake_of(e)->seqs[i].alive);
    assert_null(fake_of(e)->base.requests->first);
}

static inline uint64_t submit(sac_engine *e, struct log *log, int32_t kind, size_t n_prompt,
                              const sac_request *with)
{
    int32_t prompt[N_CTX];
    uint64_t id = 0;
    sac_error err = {0};
    for (size_t i = 0; i < n_prompt; i++) prompt[i] = i ? FILL : kind;
    sac_request r = with ? *with : sac_request_default();
    if (!with) r.sampling.temp = 0;
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.on_event = collect;
    r.user = log;
    if (sac_submit(e, &r, &id, &err) != SAC_OK) fail_msg("%s", err.msg);
    return id;
}

static inline void run_all(sac_engine *e)
{
    uint32_t n_active = 1;
    for (int i = 0; n_active; i++) {
        assert_true(i < 100000);
        assert_int_equal(sac_run(e, &n_active, NULL), SAC_OK);
    }
}

static inline sac_request greedy(void)
{
    sac_request r = sac_request_default();
    r.sampling.temp = 0;
    return r;
}

static inline sac_request random_request(uint64_t seed)
{
    sac_request r = sac_request_default();
    r.sampling.temp = 1;
    r.sampling.top_k = 0;
    r.sampling.repeat_penalty = 1.2f;
    r.sampling.seed = seed;
    r.n_decode_row = 1 + 4 * (uint32_t)seed; /* the hash is another one where kinds are lost */
    r.max_tokens = 60;
    return r;
}

#endif
