/* engine_loop.c: see the header.
 *
 * Invariants:
 *  1. An answer is in the inbox or among the live ones, or in neither if all its choices have
 *     ended; the loop holds a reference while it is in one of them.
 *  2. `n_left` choices of an answer have not sent their ANSWER_DONE yet; each sends exactly one.
 *  3. The engine's requests point only to choices of live answers: an answer leaves the live list
 *     when its last choice has ended. There are never more requests than sequences, so the order of
 *     answers is decided here (round_robin.h).
 *  4. An HTTP side that sleeps is woken by the next piece that it waits for, and always by the
 *     end. */
#include "serve/engine_loop.h"

#include "base/mem.h"
#include "base/workers.h"
#include "serve/doc_library.h"
#include "serve/embed.h"
#include "serve/kv_events.h"
#include "serve/round_robin.h"
#include "serve/slots.h"
#include "serve/structured_output.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define WATCH_MAX 64u /* sockets per call of poll */
/* Limits how long the shutdown waits for the cache on disk: service managers kill after a
 * timeout. */
#define FLUSH_MS 10000u

struct engine_loop {
    pthread_mutex_t lock;
    pthread_cond_t more; /* signals the engine's thread */
    struct engine_loop_limits limits;
    struct metrics *metrics;      /* borrowed */
    struct answer *inbox, **end;  /* lock; queued answers, in order */
    struct answer *live;          /* the list: lock; order of its members: engine's thread */
    uint32_t n_choice, n_started; /* lock; choices that have not ended; of these, computed */
    bool draining, stop_now;      /* lock */
    bool has_stats;               /* lock */
    sac_engine_stats stats;       /* lock */
    sac_tier_stats tier;          /* lock */
    struct loop_layer *layer;     /* lock; owned, [n_layer] */
    uint32_t n_layer;             /* 0: no KV tiers */
    sac_cache_stats cache;        /* lock */
    bool stored;                  /* lock; the cache on disk can store another entry */
    /* Owned by the engine's thread. */
    sac_engine *engine;             /* borrowed */
    struct engine_loop_parts parts; /* borrowed */
    bool in_work;                   /* long work is in progress; other such work must wait */
    struct round_robin round_robin;
    uint32_t n_submitted; /* choices submitted to the engine */
    sac_status status;    /* the engine's; after an error it cannot continue */
    sac_error why;        /* the reason */
};

sac_status engine_loop_create(struct engine_loop **out, const struct engine_loop_limits *limits,
                              struct metrics *metrics, sac_error *err)
{
    struct engine_loop *loop = mem_calloc(1, sizeof *loop);
    if (!loop) return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    pthread_mutex_init(&loop->lock, NULL);
    pthread_cond_init(&loop->more, NULL);
    loop->limits = *limits;
    loop->metrics = metrics;
    loop->end = &loop->inbox;
    *out = loop;
    return SAC_OK;
}

static void release(struct answer *a)
{
    assert(a->n_ref > 0);
    if (--a->n_ref == 0) answer_free(a);
}

static void release_all(struct answer *first)
{
    while (first) {
        struct answer *next = first->next;
        release(first);
        first = next;
    }
}

void engine_loop_destroy(struct engine_loop *loop)
{
    if (!loop) return;
    release_all(loop->inbox);
    release_all(loop->live);
    pthread_cond_destroy(&loop->more);
    pthread_mutex_destroy(&loop->lock);
    mem_free(loop->layer);
    mem_free(loop);
}

/* ---- The HTTP side ---- */

static sac_status check_room(const struct engine_loop *loop, const struct answer *a,
                             struct api_error *error)
{
    const uint32_t n_max = loop->limits.n_running + loop->limits.n_queue;
    if (loop->draining)
        return api_error_set(error, API_ERROR_UNAVAILABLE, NULL, "the server is shutting down");
    if (a->n_choice > n_max)
        return api_error_set(
            error, API_ERROR_REQUEST, "n",
            "%u answers are asked for at once ('n' to each prompt), the server takes %u",
            a->n_choice, n_max);
    if (loop->n_choice + a->n_choice > n_max)
        return api_error_set(
            error, API_ERROR_BUSY, NULL,
            "%u answers are being computed or wait, the server takes %u: try again "
            "later",
            loop->n_choice, n_max);
    return SAC_OK;
}

sac_status engine_loop_submit(struct engine_loop *loop, struct answer *a, struct api_error *error)
{
    pthread_mutex_lock(&loop->lock);
    const sac_status status = check_room(loop, a, error);
    if (status == SAC_OK) {
        a->submit_us = a->piece_us = clock_us();
        a->n_ref++;
        *loop->end = a;
        loop->end = &a->next;
        loop->n_choice += a->n_choice;
        pthread_cond_signal(&loop->more);
    }
    pthread_mutex_unlock(&loop->lock);
    return status;
}

struct answer_piece *engine_loop_take(struct engine_loop *loop, struct answer *a, bool *out_done)
{
    pthread_mutex_lock(&loop->lock);
    struct answer_piece *first = NULL;
    *out_done = false;
    if (a->eager || a->n_left == 0) {
        first = a->first;
        a->first = NULL;
        a->end = &a->first;
        a->piece_bytes = 0;
        *out_done = !first && a->n_left == 0;
    }
    if (!first && !*out_done) {
        a->asleep = true;
        a->sleep(a->user);
    }
    pthread_mutex_unlock(&loop->lock);
    return first;
}

void engine_loop_leave(struct engine_loop *loop, struct answer *a)
{
    pthread_mutex_lock(&loop->lock);
    a->gone = true;
    a->fd = -1;
    a->asleep = false;
    pthread_cond_signal(&loop->more);
    release(a);
    pthread_mutex_unlock(&loop->lock);
}

/* ---- Pieces ---- */

/* Returns whether the HTTP side was asleep; the caller must then wake it. Requires the lock. */
static bool set_awake(struct answer *a)
{
    const bool was_asleep = a->asleep;
    a->asleep = false;
    return was_asleep;
}

/* Called without the lock: the woken thread takes it at once, and would block. The pointers are
 * valid, because a sleeping connection cannot end and the loop holds a reference to the answer. */
static void wake_if(struct answer *a, bool wakes)
{
    if (wakes) a->wake(a->user);
}

/* Without this, the client would keep the connection until it reads on or the idle timeout ends
 * it. */
static void disconnect(struct answer *a)
{
    a->slow = a->gone = true;
    if (a->fd >= 0) shutdown(a->fd, SHUT_RDWR);
}

/* Appends a piece; NULL means that it could not be allocated, which cancels the answer. Returns
 * whether the HTTP side must be woken (wake_if). Requires the lock. */
static bool append_piece(struct engine_loop *loop, struct answer *a, struct answer_piece *p)
{
    const size_t bytes = p ? sizeof *p + p->n_text + p->n_prob * sizeof *p->prob : 0;
    a->piece_us = clock_us();
    if (!p) a->lost = a->gone = true;
    if (p && p->kind != ANSWER_DONE && a->eager &&
        a->piece_bytes + bytes > loop->limits.unread_bytes_max)
        disconnect(a);
    if (p) {
        p->us = a->piece_us;
        *a->end = p;
        a->end = &p->next;
        a->piece_bytes += bytes;
    }
    return (a->eager || a->n_left == 0) && set_awake(a);
}

static bool end_choice(struct engine_loop *loop, struct answer_choice *c, struct answer_piece *p)
{
    struct answer *a = c->answer;
    assert(!c->ended && a->n_left > 0);
    c->ended = true;
    if (c->started) loop->n_started--;
    if (c->submitted) loop->n_submitted--;
    loop->n_choice--;
    a->n_left--;
    return append_piece(loop, a, p);
}

/* If the grammar reached a limit, its own message replaces the engine's, which only reports an
 * empty mask. */
static struct answer_piece *error_piece(const struct answer_choice *c, const sac_event *e)
{
    const char *why = NULL;
    const sac_status status = structured_output_status(c->structured_output, &why);
    if (status == SAC_OK) return answer_piece_of(c->answer, c->i, e);
    return answer_piece_failed(c->i, status == SAC_ERR_CONTEXT ? SAC_ERR_ARG : status, why);
}

/* Gives the choice's sequence to its slot, or removes it. */
static void end_seq(struct engine_loop *loop, struct answer_choice *c)
{
    if (loop->parts.slots) slots_end(loop->parts.slots, c);
    if (c->seq != SAC_SEQ_NONE) sac_seq_remove(loop->engine, c->seq);
    c->seq = SAC_SEQ_NONE;
}

static bool on_event(void *user, const sac_event *e)
{
    struct answer_choice *c = user;
    struct answer *a = c->answer;
    struct engine_loop *loop = c->loop;
    struct answer_piece *p =
        e->finish == SAC_FINISH_ERROR ? error_piece(c, e) : answer_piece_of(a, c->i, e);
    if (a->slot >= 0 && e->kind == SAC_EVENT_TOKEN)
        strbuf_add(&c->said, (const char *)&e->tok, sizeof e->tok);
    if (c->reading && e->kind == SAC_EVENT_TOKEN) reading_token(c->reading, e->tok);
    const uint64_t now_us = clock_us();
    bool wakes;
    pthread_mutex_lock(&loop->lock);
    if (!c->started) {
        c->started = true;
        loop->n_started++;
        metrics_started(loop->metrics, now_us - a->submit_us);
    }
    if (e->kind == SAC_EVENT_TOKEN) {
        metrics_token(loop->metrics, now_us - (c->token_us ? c->token_us : a->submit_us),
                      c->token_us == 0);
        c->token_us = now_us;
    }
    if (e->kind == SAC_EVENT_DONE) {
        c->reads = e->reads;
        end_seq(loop, c);
        metrics_ended(loop->metrics, e, now_us - a->submit_us);
        if (a->request.audit || a->sampled) metrics_audited(loop->metrics, c->reading);
        wakes = end_choice(loop, c, p);
    } else {
        wakes = append_piece(loop, a, p);
    }
    const bool cancel = a->gone;
    pthread_mutex_unlock(&loop->lock);
    wake_if(a, wakes);
    return cancel;
}

/* ---- The engine's thread ---- */

static void on_read(void *user, const sac_read_record *record)
{
    struct answer_choice *c = user;
    reading_take(c->reading, record);
}

static sac_status watch_reading(struct answer_choice *c, sac_request *r, sac_error *err)
{
    const struct api_request *request = &c->answer->request;
    if (!answer_is_read(c->answer)) return SAC_OK;
    c->reading = reading_create(&request->prompt[c->i / request->n].passages,
                                request->attention == API_REQUEST_ATTENTION_TOKENS);
    if (!c->reading) return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading");
    r->on_read = on_read;
    return SAC_OK;
}

/* Builds the engine's request; borrows from the choice's `request`. */
static sac_request make_request(const struct answer_choice *c)
{
    const struct api_request *request = &c->answer->request;
    const struct api_request_prompt *prompt = &request->prompt[c->i / request->n];
    sac_request r = sac_request_default();
    r.prompt = prompt->tok;
    r.n_prompt = prompt->n;
    if (c->seq != SAC_SEQ_NONE) { /* the sequence holds the beginning of the prompt already */
        r.seq = c->seq;
        r.prompt += c->n_held;
        r.n_prompt -= c->n_held;
    }
    r.sampling = request->sampling;
    if (request->n_breaker) {
        r.sampling.dry_breaker = (const char *const *)request->breaker;
        r.sampling.n_dry_breaker = request->n_breaker;
    }
    r.sampling.seed += c->i % request->n; /* otherwise the choices of a prompt would be identical */
    r.max_tokens = request->max_tokens;
    r.min_tokens = request->min_tokens;
    r.stop = (const char *const *)request->stop;
    r.n_stop = request->n_stop;
    r.stop_tok = request->stop_tok;
    r.n_stop_tok = request->n_stop_tok;
    r.keep_stop = request->keep_stop;
    r.ignore_eos = request->ignore_eos;
    r.decode = request->decode;
    r.prefill = request->prefill;
    r.sparse = request->sparse;
    /* The engine reports the chosen token's probability only along with alternatives. */
    r.n_probs = request->logprobs && request->n_top == 0 ? 1 : request->n_top;
    r.priority = request->priority;
    return r;
}

static sac_status submit_choice(struct engine_loop *loop, struct answer_choice *c, sac_error *err)
{
    const struct api_request *request = &c->answer->request;
    sac_request r = make_request(c);
    /* The API key is part of the salt, so that response times reveal nothing about the prompts of
     * other keys. */
    char salt[SLOTS_SALT_BYTES];
    slots_salt(salt, c->answer->key, request->cache_salt);
    if (c->seq == SAC_SEQ_NONE) r.cache_salt = salt;
    if (request->automaton || request->allowed) {
        TRY(structured_output_create(&c->structured_output, request->automaton, request->allowed,
                                     err));
        r.guide = structured_output_guide(c->structured_output);
    }
    r.on_event = on_event;
    r.user = c;
    TRY(watch_reading(c, &r, err));
    return sac_submit(loop->engine, &r, &c->request_id, err);
}

static void end_with(struct engine_loop *loop, struct answer_choice *c, struct answer_piece *p)
{
    struct answer *a = c->answer;
    pthread_mutex_lock(&loop->lock);
    const bool wakes = end_choice(loop, c, p);
    pthread_mutex_unlock(&loop->lock);
    wake_if(a, wakes);
}

static void start_choice(struct engine_loop *loop, struct answer_choice *c)
{
    sac_error err = {0};
    const sac_status status = submit_choice(loop, c, &err);
    if (status != SAC_OK) {
        c->request_id = 0;
        end_seq(loop, c);
        end_with(loop, c, answer_piece_failed(c->i, status, err.msg));
        return;
    }
    pthread_mutex_lock(&loop->lock);
    c->submitted = true;
    loop->n_submitted++;
    const bool wakes = append_piece(loop, c->answer, answer_piece_bare(ANSWER_TAKEN, c->i));
    pthread_mutex_unlock(&loop->lock);
    wake_if(c->answer, wakes);
}

/* ---- Documents and slots ---- */

static bool on_progress(void *user, double share);

static struct doc_library_wait progress_of(struct answer *a)
{
    return (struct doc_library_wait){on_progress, a};
}

static sac_status work(struct engine_loop *loop, struct answer *a, struct strbuf *out,
                       sac_error *err)
{
    if (a->request.work == API_REQUEST_EMBED)
        return embed_work(loop->engine, &a->request, progress_of(a), out, err);
    if (a->request.work >= API_REQUEST_SLOT_SAVE)
        return slots_work(loop->parts.slots, &a->request, a->key, progress_of(a), out, err);
    return doc_library_work(loop->parts.documents, &a->request, a->key, progress_of(a), out, err);
}

static void do_work(struct engine_loop *loop, struct answer *a)
{
    struct strbuf text = {0};
    sac_error err = {0};
    loop->in_work = true;
    const sac_status status = work(loop, a, &text, &err);
    loop->in_work = false;
    end_with(loop, &a->choice[0],
             status == SAC_OK ? answer_piece_whole(&text)
                              : answer_piece_failed(0, status, err.msg));
    strbuf_deinit(&text);
}

/* Each choice gets a fork of the sequence that holds the documents. */
static sac_status join_documents(struct engine_loop *loop, struct answer *a, sac_error *err)
{
    struct doc_library_joined joined;
    if (a->request.n_doc == 0) return SAC_OK;
    loop->in_work = true;
    sac_status status =
        doc_library_join(loop->parts.documents, &a->request, a->key, progress_of(a), &joined, err);
    loop->in_work = false;
    a->choice[0].seq = joined.seq;
    a->joined = joined.report;
    if (status == SAC_OK && !a->request.names_decode) a->request.decode = joined.report.decode;
    a->request.prompt[0].passages = joined.passages;
    for (uint32_t i = 1; i < a->n_choice && status == SAC_OK; i++)
        status = sac_seq_fork(loop->engine, joined.seq, &a->choice[i].seq, err);
    for (uint32_t i = 0; i < a->n_choice && status != SAC_OK; i++) {
        if (a->choice[i].seq != SAC_SEQ_NONE) sac_seq_remove(loop->engine, a->choice[i].seq);
        a->choice[i].seq = SAC_SEQ_NONE;
    }
    for (uint32_t i = 0; i < a->n_choice; i++) a->choice[i].n_held = a->request.n_head;
    return status;
}

/* ---- Turns ---- */

static void start_answer(struct engine_loop *loop, struct answer *a)
{
    sac_error err = {0};
    a->waits = false;
    round_robin_take(&loop->round_robin, a->key);
    for (uint32_t i = 0; i < a->n_choice; i++) a->choice[i].loop = loop;
    if (a->request.work) {
        do_work(loop, a);
        return;
    }
    const sac_status status = join_documents(loop, a, &err);
    if (loop->parts.slots && status == SAC_OK) slots_begin(loop->parts.slots, a);
    for (uint32_t i = 0; i < a->n_choice; i++) {
        if (status == SAC_OK)
            start_choice(loop, &a->choice[i]);
        else
            end_with(loop, &a->choice[i], answer_piece_failed(i, status, err.msg));
    }
}

/* Whether the engine can start the answer now, possibly by preempting one of lower priority.
 * Requires the lock. */
static bool can_start(const struct engine_loop *loop, const struct answer *a)
{
    if ((a->request.work || a->request.n_doc) && loop->in_work) return false;
    if (a->request.work || loop->n_submitted == 0) return true;
    if (loop->n_submitted + a->n_choice <= loop->limits.n_running) return true;
    for (const struct answer *o = loop->live; o; o = o->next)
        if (!o->waits && !o->request.work && o->n_left && o->request.priority < a->request.priority)
            return true;
    return false;
}

static bool comes_before(const struct engine_loop *loop, const struct answer *a,
                         const struct answer *b)
{
    if (a->request.priority != b->request.priority)
        return a->request.priority > b->request.priority;
    return round_robin_last(&loop->round_robin, a->key) <
           round_robin_last(&loop->round_robin, b->key);
}

/* The next answer to start, or NULL. The list breaks ties. */
static struct answer *next_to_start(struct engine_loop *loop)
{
    struct answer *best = NULL;
    pthread_mutex_lock(&loop->lock);
    for (struct answer *a = loop->live; a; a = a->next)
        if (a->waits && !a->gone && (!best || comes_before(loop, a, best))) best = a;
    if (best && !can_start(loop, best)) best = NULL;
    pthread_mutex_unlock(&loop->lock);
    return best;
}

/* Appends the inbox to the live answers. Requires the lock. */
static void take_inbox(struct engine_loop *loop)
{
    struct answer **last = &loop->live;
    while (*last) last = &(*last)->next;
    *last = loop->inbox;
    for (struct answer *a = loop->inbox; a; a = a->next) a->waits = true;
    loop->inbox = NULL;
    loop->end = &loop->inbox;
}

/* Blocks until there is work; false: everything has ended and the loop is draining. */
static bool wait_for_work(struct engine_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    while (!loop->inbox && !loop->live && !loop->draining && !loop->stored)
        pthread_cond_wait(&loop->more, &loop->lock);
    loop->stored = false;
    take_inbox(loop);
    const bool go_on = loop->live != NULL || !loop->draining;
    pthread_mutex_unlock(&loop->lock);
    return go_on;
}

/* Marks answers whose client has closed the connection, or its sending side. */
static void poll_batch(struct answer *const *watched, struct pollfd *fds, nfds_t n)
{
    if (n == 0 || poll(fds, n, 0) <= 0) return;
    for (nfds_t i = 0; i < n; i++)
        if (fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
            watched[i]->left = watched[i]->gone = true;
}

/* Requires the lock: the HTTP side calls engine_loop_leave before a socket is closed, so no polled
 * descriptor can be reused meanwhile. */
static void poll_clients(struct engine_loop *loop)
{
    struct answer *watched[WATCH_MAX];
    struct pollfd fds[WATCH_MAX];
    nfds_t n = 0;
    for (struct answer *a = loop->live; a; a = a->next) {
        if (a->gone || a->fd < 0) continue;
        if (n == WATCH_MAX) {
            poll_batch(watched, fds, n);
            n = 0;
        }
        watched[n] = a;
        fds[n++] = (struct pollfd){.fd = a->fd, .events = POLLRDHUP};
    }
    poll_batch(watched, fds, n);
}

/* Cancels a choice. Requires the lock. */
static void cancel_choice(struct engine_loop *loop, struct answer_choice *c)
{
    if (c->ended) return;
    if (c->submitted)
        sac_cancel(loop->engine, c->request_id);
    else if (c->answer->waits)
        wake_if(c->answer, end_choice(loop, c, answer_piece_cancelled(c->i)));
}

/* Between steps: publishes statistics, finds clients that disconnected, cancels their requests, and
 * releases answers that have ended. */
static void end_step(struct engine_loop *loop)
{
    const sac_engine_stats stats = sac_engine_get_stats(loop->engine);
    const sac_tier_stats tier = sac_tier_get_stats(loop->engine);
    const sac_cache_stats cache = sac_cache_get_stats(loop->engine);
    if (loop->parts.events) kv_events_flush(loop->parts.events);
    pthread_mutex_lock(&loop->lock);
    loop->stats = stats;
    loop->tier = tier;
    for (uint32_t i = 0; i < loop->n_layer; i++)
        sac_tier_get_layer(loop->engine, i, &loop->layer[i].n_hit, &loop->layer[i].n_fetch);
    loop->cache = cache;
    loop->has_stats = true;
    poll_clients(loop);
    for (struct answer **at = &loop->live; *at;) {
        struct answer *a = *at;
        if (a->n_left == 0) {
            *at = a->next;
            a->next = NULL;
            release(a);
            continue;
        }
        for (uint32_t i = 0; i < a->n_choice && (a->gone || loop->stop_now); i++)
            cancel_choice(loop, &a->choice[i]);
        at = &a->next;
    }
    pthread_mutex_unlock(&loop->lock);
}

/* The engine cannot continue: all answers end with this error. */
static void fail_all(struct engine_loop *loop, sac_status status, const char *why)
{
    pthread_mutex_lock(&loop->lock);
    loop->draining = true;
    take_inbox(loop);
    for (struct answer *a = loop->live; a; a = a->next)
        for (uint32_t i = 0; i < a->n_choice; i++)
            if (!a->choice[i].ended)
                wake_if(a, end_choice(loop, &a->choice[i], answer_piece_failed(i, status, why)));
    pthread_mutex_unlock(&loop->lock);
}

/* Starts the answers whose turn it is, and computes one step. */
static void run_step(struct engine_loop *loop)
{
    uint32_t n_active;
    struct answer *a;
    while (loop->status == SAC_OK && (a = next_to_start(loop))) start_answer(loop, a);
    if (loop->parts.slots && loop->n_submitted > 0) slots_make_room(loop->parts.slots);
    if (loop->status == SAC_OK) loop->status = sac_run(loop->engine, &n_active, &loop->why);
}

/* Called during long work, so that other answers make progress. */
static bool on_progress(void *user, double share)
{
    struct answer *a = user;
    struct engine_loop *loop = a->choice[0].loop;
    const uint32_t n_all = (uint32_t)(a->request.document.n_head + a->request.document.n_tok);
    pthread_mutex_lock(&loop->lock);
    take_inbox(loop);
    if (a->request.work == API_REQUEST_DOC_ADD)
        wake_if(a, append_piece(loop, a, answer_piece_progress((uint32_t)(share * n_all), n_all)));
    pthread_mutex_unlock(&loop->lock);
    run_step(loop);
    end_step(loop);
    pthread_mutex_lock(&loop->lock);
    const bool gives_up = a->gone || loop->stop_now || loop->status != SAC_OK;
    pthread_mutex_unlock(&loop->lock);
    return gives_up;
}

/* Events carry the client's salt, which routers know, not the one derived from its key. */
static void on_page(void *user, const sac_cache_page *page)
{
    const struct engine_loop *loop = user;
    const struct answer_choice *c = page->request_user;
    kv_events_page(loop->parts.events, page, c ? c->answer->request.cache_salt : NULL);
}

static sac_status plan_layers(struct engine_loop *loop, sac_error *err)
{
    const uint32_t n = sac_tier_get_stats(loop->engine).n_layer;
    struct loop_layer *layer = mem_calloc(n, sizeof *layer);
    if (n && !layer) return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    pthread_mutex_lock(&loop->lock);
    loop->layer = layer;
    loop->n_layer = n;
    pthread_mutex_unlock(&loop->lock);
    return SAC_OK;
}

static sac_status begin_run(struct engine_loop *loop, sac_error *err)
{
    TRY(plan_layers(loop, err));
    return loop->parts.events ? sac_cache_watch(loop->engine, on_page, loop, err) : SAC_OK;
}

sac_status engine_loop_run(struct engine_loop *loop, sac_engine *engine,
                           const struct engine_loop_parts *parts, sac_error *err)
{
    loop->engine = engine;
    loop->parts = *parts;
    loop->status = begin_run(loop, &loop->why);
    /* Answers may have been queued already, and their connections sleep until the end. */
    if (loop->status == SAC_OK)
        end_step(loop);
    else
        fail_all(loop, loop->status, loop->why.msg);
    while (loop->status == SAC_OK && wait_for_work(loop)) {
        run_step(loop);
        if (loop->status != SAC_OK) fail_all(loop, loop->status, loop->why.msg);
        /* Stores one entry per step; engine_loop_stored reports when the next one can follow. */
        (void)sac_cache_store(engine);
        end_step(loop);
    }
    sac_cache_flush(engine, FLUSH_MS);
    return loop->status == SAC_OK ? SAC_OK : error_set(err, loop->status, "%s", loop->why.msg);
}

void engine_loop_drain(struct engine_loop *loop, bool now)
{
    pthread_mutex_lock(&loop->lock);
    loop->draining = true;
    loop->stop_now = loop->stop_now || now;
    pthread_cond_signal(&loop->more);
    pthread_mutex_unlock(&loop->lock);
}

void engine_loop_stored(void *user)
{
    struct engine_loop *loop = user;
    pthread_mutex_lock(&loop->lock);
    loop->stored = true;
    pthread_cond_signal(&loop->more);
    pthread_mutex_unlock(&loop->lock);
}

static void ping(struct engine_loop *loop, struct answer *a, uint64_t ping_us)
{
    if (!a->eager || !a->asleep || clock_us() - a->piece_us < ping_us) return;
    struct answer_piece *p = answer_piece_bare(ANSWER_PING, 0);
    if (p) wake_if(a, append_piece(loop, a, p)); /* otherwise the next tick tries again */
}

void engine_loop_tick(struct engine_loop *loop, uint64_t ping_us)
{
    pthread_mutex_lock(&loop->lock);
    for (struct answer *a = loop->live; a; a = a->next) ping(loop, a, ping_us);
    for (struct answer *a = loop->inbox; a; a = a->next) ping(loop, a, ping_us);
    pthread_mutex_unlock(&loop->lock);
}

struct engine_loop_view engine_loop_view(struct engine_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    const struct engine_loop_view view = {.n_running = loop->n_started,
                                          .n_waiting = loop->n_choice - loop->n_started,
                                          .has_stats = loop->has_stats,
                                          .stats = loop->stats,
                                          .tier = loop->tier,
                                          .cache = loop->cache};
    pthread_mutex_unlock(&loop->lock);
    return view;
}

uint32_t loop_layers(struct engine_loop *loop, struct loop_layer *out, uint32_t n)
{
    pthread_mutex_lock(&loop->lock);
    const uint32_t n_layer = loop->n_layer;
    for (uint32_t i = 0; i < n && i < n_layer; i++) out[i] = loop->layer[i];
    pthread_mutex_unlock(&loop->lock);
    return n_layer;
}
