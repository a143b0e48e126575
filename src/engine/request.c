/* request.c: continuous batching over the public sequence calls: every request is a sequence, a
 * sampler and a text filter, and one sac_step serves all of them.
 *
 * A request waits until a sequence and pages are free, is computed (its prompt as wide rows except
 * for the last n_decode_row tokens, then one narrow row per token), and ends. Logits exist only
 * during a step, so tokens are sampled there. Everything else (events, appending, freeing) happens
 * between steps, where callbacks may submit and cancel requests.
 *
 * Invariants:
 *  1. The list is ordered by priority, then by submission. A waiting request never overtakes one
 *     before it, and a request of higher priority takes the place of a running one.
 *  2. A running request has pending rows and needs logits of the last one, so every step that
 *     reaches this row advances it.
 *  3. The result of a request depends on nothing but the request (design D7). When the pool runs
 *     out of pages, the last request of the list is preempted: its sequence is freed and recomputed
 *     later, every token as a row of the kind that it had, which gives the same numbers. A caller's
 *     sequence may have a past that cannot be recomputed: it is saved instead, and continues from
 *     there.
 *  4. Memory is allocated at submit; sac_run allocates only for sequences that are saved.
 *
 * Not here: which rows a step computes (sched.c), and which prompts share pages (reuse.c). */
#include "engine/request.h"

#include "base/mem.h"
#include "engine/admit.h"
#include "engine/engine.h"
#include "engine/reuse_disk.h"
#include "engine/sample.h"
#include "engine/state.h"
#include "engine/stop.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define BUDGET_BYTES 32u

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_ENDED };

struct request {
    struct request *next;
    uint64_t id;
    int32_t priority;
    enum request_state state;
    bool cancelled; /* takes effect between steps */
    bool ignore_eos, keep_stop, owns_seq;
    sac_seq seq;          /* SAC_SEQ_NONE while waiting */
    sac_sampler *sampler; /* owned */
    struct stop stop;
    int32_t *stop_tok; /* owned, [n_stop_tok] */
    size_t n_stop_tok;
    /* Owned, [n_prompt + max_tokens]: the prompt, then the sampled tokens; needed to recompute the
     * sequence after preemption. */
    int32_t *tok;
    uint8_t *parked; /* owned, [n_parked] the caller's sequence while it has no pages; or NULL */
    size_t n_parked;
    uint32_t n_cached, n_prompt, n_prompt_done, n_predicted, max_tokens, min_tokens;
    uint32_t n_decode_row;    /* rows at the prompt's end that are decode rows: 1 to n_prompt */
    uint32_t decode, prefill; /* or SAC_DECODE_KEEP, SAC_PREFILL_KEEP */
    sac_sparse sparse;        /* its budget text is in `budget` */
    char budget[BUDGET_BYTES];
    sac_guide guide;
    const uint64_t *mask; /* for the next token, if has_mask; NULL: any token is allowed */
    bool has_mask;
    uint64_t *own_mask; /* owned: the guide's mask without tokens that end a generation; or NULL */
    bool has_choice;    /* the last step has sampled a token */
    int32_t choice;
    float choice_logprob;
    sac_prob *probs; /* owned, [n_probs] */
    uint32_t n_probs;
    uint8_t salt[SHA256_BYTES];   /* digest of the tenant's salt */
    uint32_t n_reused, n_disk;    /* tokens of the prompt, when it was first computed */
    sac_reuse_end reuse_end;      /* why the reuse ended */
    uint32_t n_preempted;         /* times that the request was preempted */
    uint64_t held_us;             /* microseconds that its decode rows have waited */
    sac_reads reads;              /* counters of sequences that it has given back */
    uint64_t submit_us, start_us; /* when it was submitted; when it got a sequence */
    uint64_t first_us, last_us;   /* of the first and the last token */
    sac_read_fn on_read;
    sac_event_fn on_event;
    void *user;
};

struct request_list {
    sac_engine *engine; /* borrowed */
    struct request *first;
    uint64_t next_id;
    uint64_t n_preempted;
    bool in_run;
    uint32_t n_vocab;
    size_t piece_max;  /* bytes of the longest token */
    size_t n_mask;     /* words of a mask */
    uint64_t *no_ends; /* owned, [n_mask]: all tokens except those that end a generation */
};

static uint32_t count_state(const struct request_list *list, enum request_state state)
{
    uint32_t n = 0;
    for (const struct request *r = list->first; r; r = r->next) n += r->state == state;
    return n;
}

void request_list_count(const struct request_list *list, sac_engine_stats *out)
{
    out->n_request_waiting = count_state(list, REQUEST_WAITING);
    out->n_request_running = count_state(list, REQUEST_RUNNING);
    out->n_preempted = list->n_preempted;
}

/* ---- Creating and freeing ---- */

static void request_free(struct request *r)
{
    sac_sampler_free(r->sampler);
    stop_deinit(&r->stop);
    mem_free(r->stop_tok);
    mem_free(r->tok);
    mem_free(r->parked);
    mem_free(r->probs);
    mem_free(r->own_mask);
    mem_free(r);
}

sac_status request_list_create(struct request_list **out, sac_engine *engine, sac_error *err)
{
    const sac_model *model = engine_model(engine);
    const int32_t n_vocab = (int32_t)sac_model_get_info(model).n_vocab;
    struct request_list *list = mem_calloc(1, sizeof *list);
    if (!list) return error_set(err, SAC_ERR_MEMORY, "out of memory for the requests");
    list->engine = engine;
    list->next_id = 1;
    list->n_vocab = (uint32_t)n_vocab;
    list->n_mask = ((size_t)n_vocab + 63) / 64;
    list->no_ends = mem_calloc(list->n_mask, sizeof *list->no_ends);
    if (!list->no_ends) {
        request_list_destroy(list);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the requests");
    }
    for (int32_t tok = 0; tok < n_vocab; tok++) {
        size_t bytes;
        sac_token_piece(model, tok, false, &bytes);
        if (bytes > list->piece_max) list->piece_max = bytes;
        if (!sac_token_is_eog(model, tok)) list->no_ends[tok / 64] |= 1ull << tok % 64;
    }
    *out = list;
    return SAC_OK;
}

void request_list_destroy(struct request_list *list)
{
    if (!list) return;
    while (list->first) {
        struct request *r = list->first;
        list->first = r->next;
        request_free(r);
    }
    mem_free(list->no_ends);
    mem_free(list);
}

sac_request sac_request_default(void)
{
    return (sac_request){.seq = SAC_SEQ_NONE,
                         .n_decode_row = 1,
                         .sampling = sac_sampling_default(),
                         .decode = SAC_DECODE_KEEP,
                         .prefill = SAC_PREFILL_KEEP};
}

/* ---- Submitting ---- */

/* Checks the parameters that end the answer. */
static sac_status check_ends(const struct request_list *list, const sac_request *want,
                             sac_error *err)
{
    if (want->max_tokens && want->min_tokens > want->max_tokens)
        return error_set(err, SAC_ERR_ARG, "min_tokens is %u, more than the max_tokens of %u",
                         want->min_tokens, want->max_tokens);
    for (size_t i = 0; i < want->n_stop_tok; i++)
        if (want->stop_tok[i] < 0 || (uint32_t)want->stop_tok[i] >= list->n_vocab)
            return error_set(err, SAC_ERR_ARG, "stop token %zu is %d, the vocabulary has %u", i,
                             want->stop_tok[i], list->n_vocab);
    return SAC_OK;
}

/* Takes the prompt's sizes from the request, and refuses a request that cannot be computed. */
static sac_status check_request(struct request *r, const struct request_list *list,
                                const sac_request *want, sac_error *err)
{
    const sac_engine_params params = sac_engine_get_params(list->engine);
    if (!want->on_event) return error_set(err, SAC_ERR_ARG, "the request has no event callback");
    if (want->n_prompt == 0) return error_set(err, SAC_ERR_ARG, "the prompt has no tokens");
    if (want->on_read && !params.watch)
        return error_set(err, SAC_ERR_ARG, "the engine was created without `watch`");
    if (want->cache_salt && !r->owns_seq)
        return error_set(err, SAC_ERR_ARG,
                         "sequence %u has a salt of its own: cache_salt is for a fresh one",
                         want->seq);
    if (want->n_decode_row == 0)
        return error_set(err, SAC_ERR_ARG,
                         "n_decode_row is 0: the prompt's last token is a decode row in any case");
    for (const struct request *o = list->first; o; o = o->next)
        if (!r->owns_seq && o->seq == want->seq && o->state != REQUEST_ENDED)
            return error_set(err, SAC_ERR_ARG, "sequence %u is in use by request %llu", want->seq,
                             (unsigned long long)o->id);
    if (r->decode != SAC_DECODE_KEEP && r->decode >= params.n_decode)
        return error_set(err, SAC_ERR_ARG, "there is no decode method %u: the engine has %u",
                         r->decode, params.n_decode);
    if (r->prefill != SAC_PREFILL_KEEP && r->prefill >= params.n_prefill)
        return error_set(err, SAC_ERR_ARG, "there is no prefill method %u: the engine has %u",
                         r->prefill, params.n_prefill);
    if (r->owns_seq) /* a new sequence has methods 0 */
        TRY(engine_check_sparse(list->engine, r->decode == SAC_DECODE_KEEP ? 0 : r->decode,
                                r->prefill == SAC_PREFILL_KEEP ? 0 : r->prefill, &r->sparse, err));
    uint32_t pending = 0;
    if (!r->owns_seq) r->n_cached = sac_seq_length(list->engine, want->seq, &pending);
    if (pending)
        return error_set(err, SAC_ERR_ARG, "sequence %u has %u pending tokens", want->seq, pending);
    const uint64_t n_tok = (uint64_t)r->n_cached + want->n_prompt;
    /* The last page, which is not full, is a tail */
    const uint64_t n_pool = params.n_kv_tok + PAGE_TOK - 1;
    const uint64_t n_max = params.n_ctx < n_pool ? params.n_ctx : n_pool;
    if (n_tok > n_max)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the prompt has %zu tokens behind %u, the context holds %llu",
                         want->n_prompt, r->n_cached, (unsigned long long)n_max);
    for (size_t i = 0; i < want->n_prompt; i++)
        if (want->prompt[i] < 0 || (uint32_t)want->prompt[i] >= list->n_vocab)
            return error_set(err, SAC_ERR_ARG, "prompt token %zu is %d, the vocabulary has %u", i,
                             want->prompt[i], list->n_vocab);
    r->n_prompt = (uint32_t)want->n_prompt;
    r->n_decode_row = want->n_decode_row < r->n_prompt ? want->n_decode_row : r->n_prompt;
    /* The last token needs no room in the context: it is sampled from the row before it. */
    r->max_tokens = params.n_ctx - (uint32_t)n_tok + 1;
    if (want->max_tokens && want->max_tokens < r->max_tokens) r->max_tokens = want->max_tokens;
    return check_ends(list, want, err);
}

static sac_status create_sampler(struct request *r, const struct request_list *list,
                                 const sac_request *want, sac_error *err)
{
    TRY(sac_sampler_create(&r->sampler, engine_model(list->engine), &want->sampling, err));
    /* Penalties cover the whole sequence, including tokens from before this request. */
    const int32_t *before = r->n_cached ? sac_seq_tokens(list->engine, r->seq) : NULL;
    for (uint32_t i = 0; i < r->n_cached; i++) sac_sampler_accept(r->sampler, before[i]);
    for (size_t i = 0; i < want->n_prompt; i++) sac_sampler_accept(r->sampler, want->prompt[i]);
    return SAC_OK;
}

/* Sets how the request's sequence is computed: its methods, and only as many logits as the sampler
 * needs. */
static sac_status set_up_seq(sac_engine *engine, const struct request *r, sac_error *err)
{
    if (r->decode != SAC_DECODE_KEEP) TRY(sac_seq_use_decode(engine, r->seq, r->decode, err));
    if (r->prefill != SAC_PREFILL_KEEP) TRY(sac_seq_use_prefill(engine, r->seq, r->prefill, err));
    TRY(sac_seq_use_sparse(engine, r->seq, &r->sparse, err));
    engine_use_priority(engine, r->seq, r->priority);
    engine_use_reader(engine, r->seq, r->on_read, r->user);
    admit_join(engine, r->seq);
    const bool wants_all = r->n_probs || r->guide.logits;
    return sac_seq_use_top(engine, r->seq, wants_all ? 0 : sample_n_top(r->sampler), err);
}

/* Queues the tokens that the sequence does not have yet: the rest of the prompt, and then the
 * tokens that were sampled before the request was preempted. check_request has ensured that all of
 * them fit. */
static sac_status queue_rest(sac_engine *engine, const struct request *r, sac_error *err)
{
    const uint32_t n_wide = r->n_prompt - r->n_decode_row, n_all = r->n_prompt + r->n_predicted;
    uint32_t n = sac_seq_length(engine, r->seq, NULL) - r->n_cached;
    assert(n < n_all);
    if (n < n_wide) {
        TRY(engine_append(engine, r->seq, r->tok + n, n_wide - n, SAC_ROW_PROMPT, SAC_WANT_NONE,
                          err));
        n = n_wide;
    }
    return engine_append(engine, r->seq, r->tok + n, n_all - n, SAC_ROW_DECODE, SAC_WANT_LAST, err);
}

static sac_status copy_sparse(struct request *r, const sac_sparse *sparse, sac_error *err)
{
    r->sparse = *sparse;
    if (!sparse->budget) return SAC_OK;
    if (strlen(sparse->budget) >= sizeof r->budget)
        return error_set(err, SAC_ERR_ARG, "a budget of %zu bytes: must be shorter than %zu",
                         strlen(sparse->budget), sizeof r->budget);
    memcpy(r->budget, sparse->budget, strlen(sparse->budget) + 1);
    r->sparse.budget = r->budget;
    return SAC_OK;
}

static sac_status fill_request(struct request *r, struct request_list *list,
                               const sac_request *want, sac_error *err)
{
    r->submit_us = engine_now(list->engine);
    r->owns_seq = want->seq == SAC_SEQ_NONE;
    r->seq = want->seq;
    r->ignore_eos = want->ignore_eos;
    r->keep_stop = want->keep_stop;
    r->min_tokens = want->min_tokens;
    r->n_stop_tok = want->n_stop_tok;
    r->n_probs = want->n_probs;
    r->decode = want->decode;
    r->prefill = want->prefill;
    r->priority = want->priority;
    TRY(copy_sparse(r, &want->sparse, err));
    r->guide = want->guide;
    r->on_read = want->on_read;
    r->on_event = want->on_event;
    r->user = want->user;
    TRY(check_request(r, list, want, err));
    reuse_salt_digest(list->engine, want->cache_salt, r->salt);
    TRY(create_sampler(r, list, want, err));
    TRY(stop_init(&r->stop, want->stop, want->n_stop, list->piece_max, err));
    r->probs = mem_calloc(r->n_probs, sizeof *r->probs);
    r->tok = mem_calloc((size_t)r->n_prompt + r->max_tokens, sizeof *r->tok);
    r->stop_tok = mem_calloc(r->n_stop_tok, sizeof *r->stop_tok);
    const bool needs_mask = (r->ignore_eos || r->min_tokens) && (r->guide.mask || r->n_stop_tok);
    if (needs_mask) r->own_mask = mem_calloc(list->n_mask, sizeof *r->own_mask);
    if (!r->probs || !r->tok || !r->stop_tok || (needs_mask && !r->own_mask))
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a request of %u tokens",
                         r->n_prompt);
    for (size_t i = 0; i < r->n_stop_tok; i++) r->stop_tok[i] = want->stop_tok[i];
    memcpy(r->tok, want->prompt, r->n_prompt * sizeof *r->tok);
    if (r->owns_seq) return SAC_OK;
    r->state = REQUEST_RUNNING;
    r->start_us = r->submit_us;
    /* What was read before this request does not count for it. */
    (void)sac_seq_take_reads(list->engine, r->seq);
    TRY(set_up_seq(list->engine, r, err));
    return queue_rest(list->engine, r, err);
}

sac_status sac_submit(sac_engine *engine, const sac_request *request, uint64_t *out_id,
                      sac_error *err)
{
    struct request_list *list = engine_requests(engine);
    const uint32_t n_max = sac_engine_get_params(engine).n_request_max;
    if (n_max && count_state(list, REQUEST_WAITING) + count_state(list, REQUEST_RUNNING) >= n_max)
        return error_set(err, SAC_ERR_BUSY, "%u requests are waiting or running, no more may",
                         n_max);
    struct request *r = mem_calloc(1, sizeof *r);
    if (!r) return error_set(err, SAC_ERR_MEMORY, "out of memory for a request");
    const sac_status status = fill_request(r, list, request, err);
    if (status != SAC_OK) {
        request_free(r);
        return status;
    }
    r->id = list->next_id++;
    struct request **at = &list->first;
    while (*at && (*at)->priority >= r->priority) at = &(*at)->next;
    r->next = *at;
    *at = r;
    *out_id = r->id;
    return SAC_OK;
}

void sac_cancel(sac_engine *engine, uint64_t request_id)
{
    for (struct request *r = engine_requests(engine)->first; r; r = r->next)
        if (r->id == request_id) r->cancelled = true;
}

/* ---- Events ---- */

static void emit(struct request *r, sac_event *event)
{
    event->request_id = r->id;
    event->seq = r->seq;
    event->n_prompt = r->n_prompt;
    event->n_prompt_done = r->n_prompt_done;
    if (!event->text) event->text = "";
    if (r->on_event(r->user, event)) r->cancelled = true;
}

static double per_second(uint32_t n, double ms)
{
    return ms > 0 ? 1e3 * n / ms : 0;
}

/* The first token belongs to the prompt's time, so the rate of the others is over the time after
 * it. */
static sac_timings timings_of(const struct request_list *list, const struct request *r)
{
    sac_timings t = {.n_cached = r->n_cached + r->n_reused,
                     .n_reused = r->n_reused,
                     .n_disk = r->n_disk,
                     .reuse_end = r->reuse_end,
                     .n_prompt = r->n_prompt,
                     .n_predicted = r->n_predicted,
                     .n_preempted = r->n_preempted};
    const uint64_t start_us = r->start_us ? r->start_us : engine_now(list->engine);
    t.queue_ms = (double)(start_us - r->submit_us) * 1e-3;
    t.held_ms = (double)r->held_us * 1e-3;
    if (r->n_predicted == 0) return t;
    t.prompt_ms = (double)(r->first_us - r->start_us) * 1e-3;
    t.predicted_ms = (double)(r->last_us - r->first_us) * 1e-3;
    t.prompt_per_s = per_second(r->n_prompt - r->n_reused, t.prompt_ms);
    t.predicted_per_s = per_second(r->n_predicted - 1, t.predicted_ms);
    return t;
}

/* Adds what the sequence has read since the last call to the request's counters. */
static void take_reads(struct request_list *list, struct request *r)
{
    const sac_reads reads = sac_seq_take_reads(list->engine, r->seq);
    reads_add(&r->reads, &reads);
    if (r->n_preempted && r->owns_seq) return;
    r->n_reused += (uint32_t)reads.n_reused_tok;
    r->n_disk += (uint32_t)reads.n_disk_tok;
    r->reuse_end = reuse_end_of(list->engine, r->seq);
}

static void give_back_seq(struct request_list *list, struct request *r)
{
    if (r->seq == SAC_SEQ_NONE) return;
    take_reads(list, r);
    r->held_us += admit_leave(list->engine, r->seq);
    if (r->owns_seq) {
        reuse_disk_want(list->engine, r->seq);
        sac_seq_remove(list->engine, r->seq);
        r->seq = SAC_SEQ_NONE;
        return;
    }
    /* The caller's sequence keeps what was computed. Truncation can fail only if the caller has
     * removed the sequence meanwhile; then there is nothing to drop. */
    const uint32_t n_done = sac_seq_length(list->engine, r->seq, NULL);
    sac_status status = sac_seq_truncate(list->engine, r->seq, n_done, NULL);
    if (status == SAC_OK) status = sac_seq_use_top(list->engine, r->seq, 0, NULL);
    (void)status;
    engine_use_mask(list->engine, r->seq, NULL);
    engine_use_reader(list->engine, r->seq, NULL, NULL);
}

/* Emits the last event of a request, with the text that the filter held back. */
static void end_request(struct request_list *list, struct request *r, sac_event done)
{
    assert(r->state != REQUEST_ENDED && done.finish != SAC_FINISH_NONE);
    const sac_seq seq = r->seq;
    give_back_seq(list, r);
    r->state = REQUEST_ENDED;
    done.kind = SAC_EVENT_DONE;
    done.text_bytes = stop_flush(&r->stop);
    done.text = r->stop.held;
    done.timings = timings_of(list, r);
    done.reads = r->reads;
    r->seq = seq;
    emit(r, &done);
    r->seq = SAC_SEQ_NONE;
}

static void fail_request(struct request_list *list, struct request *r, sac_status status,
                         const char *why)
{
    end_request(list, r, (sac_event){.finish = SAC_FINISH_ERROR, .status = status, .error = why});
}

/* ---- One step ---- */

static void on_row(void *user, const sac_row *row)
{
    const struct request_list *list = user;
    for (struct request *r = list->first; r; r = r->next) {
        if (r->state != REQUEST_RUNNING || r->seq != row->seq || r->cancelled) continue;
        assert(!r->has_choice); /* only one row per step needs its logits */
        if (r->guide.logits) r->guide.logits(r->guide.user, row->logits, list->n_vocab);
        r->choice = sample_row(r->sampler, row, r->mask, r->probs, r->n_probs);
        r->choice_logprob = sample_last_logprob(r->sampler);
        r->has_choice = true;
    }
}

static bool is_stop(const struct request *r, int32_t tok)
{
    for (size_t i = 0; i < r->n_stop_tok; i++)
        if (r->stop_tok[i] == tok) return true;
    return false;
}

/* Removes the tokens that end a generation from the guide's mask (NULL: all tokens are in it), and,
 * while the answer is too short, the stop tokens. If nothing else is left because the form is
 * complete, they stay. */
static const uint64_t *without_ends(const struct request_list *list, struct request *r,
                                    const uint64_t *mask, bool is_short)
{
    uint64_t left = 0;
    for (size_t i = 0; i < list->n_mask; i++)
        r->own_mask[i] = (mask ? mask[i] : UINT64_MAX) & list->no_ends[i];
    for (size_t i = 0; is_short && i < r->n_stop_tok; i++)
        r->own_mask[r->stop_tok[i] / 64] &= ~(1ull << r->stop_tok[i] % 64);
    for (size_t i = 0; i < list->n_mask; i++) left |= r->own_mask[i];
    return left || !mask ? r->own_mask : mask;
}

/* The tokens that are allowed next; NULL: any. */
static const uint64_t *next_mask(const struct request_list *list, struct request *r)
{
    const uint64_t *mask = r->guide.mask ? r->guide.mask(r->guide.user) : NULL;
    const bool is_short = r->n_predicted < r->min_tokens;
    if (!r->ignore_eos && !is_short) return mask;
    return mask || r->n_stop_tok ? without_ends(list, r, mask, is_short) : list->no_ends;
}

/* Requests masks before the step, so that it can skip logits of masked tokens. */
static void ask_masks(struct request_list *list)
{
    for (struct request *r = list->first; r; r = r->next) {
        if (r->state != REQUEST_RUNNING || !(r->guide.mask || r->ignore_eos || r->min_tokens))
            continue;
        if (!r->has_mask) r->mask = next_mask(list, r);
        r->has_mask = true;
        engine_use_mask(list->engine, r->seq, r->mask);
    }
}

static void report_prompt(struct request_list *list, struct request *r)
{
    if (r->n_prompt_done == r->n_prompt) return;
    const uint32_t n_done = sac_seq_length(list->engine, r->seq, NULL) - r->n_cached;
    if (n_done <= r->n_prompt_done) return;
    r->n_prompt_done = n_done < r->n_prompt ? n_done : r->n_prompt;
    emit(r, &(sac_event){.kind = SAC_EVENT_PROMPT});
}

/* Queues the row of the sampled token. */
static void continue_request(struct request_list *list, struct request *r)
{
    sac_error err = {0};
    r->tok[r->n_prompt + r->n_predicted - 1] = r->choice;
    sac_sampler_accept(r->sampler, r->choice);
    const sac_status status =
        engine_append(list->engine, r->seq, &r->choice, 1, SAC_ROW_DECODE, SAC_WANT_LAST, &err);
    if (status != SAC_OK) fail_request(list, r, status, err.msg);
}

static void take_choice(struct request_list *list, struct request *r)
{
    const sac_model *model = engine_model(list->engine);
    r->has_choice = false;
    if (r->choice < 0) {
        const char *why = r->guide.mask
                              ? "no token can be chosen: the mask leaves none that is possible"
                              : "no token can be chosen: every logit is banned or NaN";
        fail_request(list, r, SAC_ERR_ARG, why);
        return;
    }
    r->has_mask = false;
    if (r->guide.chosen) r->guide.chosen(r->guide.user, r->choice);
    assert(r->n_predicted < r->max_tokens);
    r->last_us = engine_now(list->engine);
    if (r->n_predicted++ == 0) r->first_us = r->last_us;
    const bool is_end = sac_token_is_eog(model, r->choice) || is_stop(r, r->choice);
    sac_event event = {.kind = SAC_EVENT_TOKEN,
                       .tok = r->choice,
                       .logprob = r->choice_logprob,
                       .probs = r->probs,
                       .n_probs = r->n_probs};
    const char *match = NULL;
    size_t n_piece = 0;
    const char *piece =
        is_end && !r->keep_stop ? "" : sac_token_piece(model, r->choice, false, &n_piece);
    r->stop.passes = r->n_predicted <= r->min_tokens;
    event.text_bytes = stop_push(&r->stop, piece, n_piece, &match);
    if (match && r->keep_stop) event.text_bytes += strlen(match);
    const bool is_last = is_end || match || r->n_predicted == r->max_tokens;
    if (is_last && !match) event.text_bytes = stop_flush(&r->stop);
    event.text = r->stop.held;
    if (r->n_predicted == 1)
        take_reads(list, r); /* the prompt's reads are reported with the first token */
    event.timings = timings_of(list, r);
    emit(r, &event);
    /* Text after the stop string within its token is never emitted. */
    stop_consume(&r->stop, match ? r->stop.n_held : event.text_bytes);
    if (match) r->stop.utf8.n_held = 0;
    if (is_last) {
        const sac_finish finish = is_end || match ? SAC_FINISH_STOP : SAC_FINISH_LENGTH;
        end_request(list, r, (sac_event){.finish = finish, .stop = match});
    } else if (!r->cancelled) {
        continue_request(list, r);
    }
}

/* A caller's sequence that was saved is restored before its request ends: it keeps what was
 * computed. */
static void end_cancelled(struct request_list *list)
{
    for (struct request *r = list->first; r; r = r->next)
        if (r->cancelled && r->state != REQUEST_ENDED && !r->parked)
            end_request(list, r, (sac_event){.finish = SAC_FINISH_CANCELLED});
}

/* Whether the pool will probably hold this request beside the running ones. A request that starts
 * too early and is preempted has wasted its computation; one that starts too late has only
 * waited. */
static bool has_room(const struct request_list *list, const struct request *r)
{
    uint64_t want = r->n_cached + r->n_prompt + r->n_predicted + PAGE_TOK;
    uint32_t n_running = 0;
    for (const struct request *o = list->first; o; o = o->next) {
        if (o->state != REQUEST_RUNNING) continue;
        uint32_t pending;
        sac_seq_length(list->engine, o->seq, &pending);
        want += pending + PAGE_TOK;
        n_running++;
    }
    if (n_running == 0) return true;
    const sac_engine_stats stats = sac_engine_get_stats(list->engine);
    const double free_share = (double)stats.n_page_free / (double)stats.n_page;
    return (double)want <= free_share * (double)sac_engine_get_params(list->engine).n_kv_tok;
}

static sac_status start_request(struct request_list *list, struct request *r, sac_error *err)
{
    assert(r->tok && r->seq != SAC_SEQ_NONE);
    TRY(set_up_seq(list->engine, r, err));
    return queue_rest(list->engine, r, err);
}

/* Preempts a request: other requests get its pages. It is recomputed later or, if the sequence is
 * the caller's, continues from its saved state. */
static void give_way(struct request_list *list, struct request *r)
{
    sac_error err = {0};
    assert(r->state == REQUEST_RUNNING && !r->parked);
    r->held_us += admit_leave(list->engine, r->seq);
    if (r->owns_seq) {
        give_back_seq(list, r);
    } else {
        const sac_status status = state_park(list->engine, r->seq, &r->parked, &r->n_parked, &err);
        if (status != SAC_OK) {
            fail_request(list, r, status, err.msg);
            return;
        }
    }
    r->state = REQUEST_WAITING;
    r->n_preempted++;
    list->n_preempted++;
}

/* The last running request of lower priority that can be preempted. */
static struct request *last_below(const struct request_list *list, int32_t priority)
{
    struct request *last = NULL;
    for (struct request *r = list->first; r; r = r->next)
        if (r->state == REQUEST_RUNNING && r->owns_seq && r->priority < priority) last = r;
    return last;
}

/* Gets the request's sequence: a new one, or the saved one restored. */
static sac_status take_seq(struct request_list *list, struct request *r, sac_error *err)
{
    if (r->owns_seq) {
        TRY(sac_seq_create(list->engine, &r->seq, err));
        reuse_use_salt(list->engine, r->seq, r->salt);
        reuse_use_owner(list->engine, r->seq, r->user);
        return SAC_OK;
    }
    TRY(state_unpark(list->engine, r->seq, r->parked, r->n_parked, err));
    mem_free(r->parked);
    r->parked = NULL;
    return SAC_OK;
}

/* Finds a sequence for a waiting request, preempting requests of lower priority; SAC_ERR_BUSY: it
 * must wait until another one ends. */
static sac_status find_place(struct request_list *list, struct request *r, sac_error *err)
{
    while (true) {
        const sac_status status = has_room(list, r) ? take_seq(list, r, err) : SAC_ERR_BUSY;
        struct request *lower = status == SAC_OK ? NULL : last_below(list, r->priority);
        if (!lower)
            return status != SAC_OK && count_state(list, REQUEST_RUNNING) ? SAC_ERR_BUSY : status;
        give_way(list, lower);
    }
}

static void admit_waiting(struct request_list *list)
{
    for (struct request *r = list->first; r; r = r->next) {
        sac_error err = {0};
        if (r->state != REQUEST_WAITING) continue;
        sac_status status = find_place(list, r, &err);
        if (status == SAC_ERR_BUSY) return;
        if (status == SAC_OK) {
            r->state = REQUEST_RUNNING;
            if (r->start_us == 0) r->start_us = engine_now(list->engine);
            status = start_request(list, r, &err);
        }
        if (status != SAC_OK) fail_request(list, r, status, err.msg);
    }
}

/* The pool has no page for any row: the last request is preempted. A request that runs alone has
 * nothing to wait for and fails. */
static void make_room(struct request_list *list, const sac_error *why)
{
    struct request *last = NULL;
    for (struct request *r = list->first; r; r = r->next)
        if (r->state == REQUEST_RUNNING) last = r;
    assert(last);
    if (count_state(list, REQUEST_RUNNING) > 1)
        give_way(list, last);
    else
        fail_request(list, last, SAC_ERR_CONTEXT, why->msg);
}

static void sweep(struct request_list *list)
{
    for (struct request **at = &list->first; *at;) {
        struct request *r = *at;
        if (r->state == REQUEST_ENDED) {
            *at = r->next;
            request_free(r);
        } else {
            at = &r->next;
        }
    }
}

/* Ends a request whose sequence has lost pages. */
static void end_broken(struct request_list *list, struct request *r)
{
    const char *broken = engine_why_broken(list->engine, r->seq);
    sac_error why;
    if (!broken) return;
    error_set(&why, SAC_ERR_IO, "%s", broken); /* the message would be freed with the sequence */
    fail_request(list, r, SAC_ERR_IO, why.msg);
}

static bool any_broken(const struct request_list *list)
{
    for (const struct request *r = list->first; r; r = r->next)
        if (r->state == REQUEST_RUNNING && engine_why_broken(list->engine, r->seq)) return true;
    return false;
}

/* A caller may remove a sequence that a request drives, and a new sequence may get its number. */
static void end_removed(struct request_list *list)
{
    for (struct request *r = list->first; r; r = r->next) {
        if (r->state != REQUEST_RUNNING || admit_has_joined(list->engine, r->seq)) continue;
        r->seq = SAC_SEQ_NONE; /* the number may belong to another sequence now */
        fail_request(list, r, SAC_ERR_NOT_FOUND, "its sequence was removed");
    }
}

static sac_status run_step(struct request_list *list, sac_error *err)
{
    sac_error why = {0};
    end_removed(list);
    end_cancelled(list);
    admit_waiting(list);
    if (count_state(list, REQUEST_RUNNING) == 0) return SAC_OK;
    ask_masks(list);
    const sac_status status = engine_step(list->engine, on_row, list, NULL, &why);
    if (status == SAC_ERR_CONTEXT) {
        make_room(list, &why);
        return SAC_OK;
    }
    /* Requests whose sequences have lost pages end; all others have their results. */
    if (status != SAC_OK && !(status == SAC_ERR_IO && any_broken(list)))
        return error_set(err, status, "%s", why.msg);
    for (struct request *r = list->first; r; r = r->next) {
        if (r->state == REQUEST_RUNNING) end_broken(list, r);
        if (r->state != REQUEST_RUNNING) continue;
        report_prompt(list, r);
        if (r->has_choice) take_choice(list, r);
    }
    end_cancelled(list);
    return SAC_OK;
}

sac_status sac_run(sac_engine *engine, uint32_t *out_active, sac_error *err)
{
    struct request_list *list = engine_requests(engine);
    if (list->in_run) return error_set(err, SAC_ERR_ARG, "sac_run was called from an event");
    list->in_run = true;
    const sac_status status = run_step(list, err);
    list->in_run = false;
    sweep(list);
    if (status == SAC_OK)
        *out_active = count_state(list, REQUEST_RUNNING) + count_state(list, REQUEST_WAITING);
    return status;
}
