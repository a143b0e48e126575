/* capacity_trial.c: requests that arrive on schedule, whether or not earlier ones have been
 * answered, on an engine of this process; and a method that has the engine for itself.
 *
 * A trial ends as soon as its limits can no longer be met: otherwise an excessive load would take
 * the longest. Answers do not depend on the load (design D7), so each one is compared with that of
 * the method running alone. */
#include "app/capacity.h"

#include "app/load.h"

#include "base/mem.h"
#include "base/workers.h"
#include "eval/score.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define PERCENTILE 0.99

struct one {
    struct trial *trial;
    uint64_t id;
    size_t context_i;
    uint64_t arrival_us, first_us, begin_us, last_us; /* first_us: first token; 0: not yet */
    uint32_t n_tok;
    double held_s; /* time waiting to decode; known at the end */
    bool is_done, differs;
};

struct trial {
    const struct capacity_site *site;
    const struct capacity_want *want;
    const struct capacity_alone *alone;
    struct capacity_trial *out;
    struct one *one; /* owned, [want->n_request] */
    size_t n_sent;
    uint64_t start_us;
    double *value;        /* owned, [n_request * n_output]: gaps, then others, in seconds */
    size_t n_gap, n_over; /* n_over: above the limit */
};

/* ---- Asking ---- */

static sac_request request_of(const struct capacity_site *site, size_t context_i,
                              char salt[CAPACITY_SALT_BYTES])
{
    sac_request r = capacity_load_request(site->load, context_i, salt);
    r.decode = site->decode_i;
    r.prefill = site->prefill_i;
    return r;
}

static bool is_stopped(const struct capacity_site *site)
{
    return site->stop && site->stop(site->user);
}

/* ---- Without concurrency ---- */

struct asked {
    const struct capacity_site *site;
    struct strbuf text;
    int32_t *tok; /* [n_output] */
    uint32_t n_tok;
    uint64_t last_us;
    double *gap; /* seconds */
    size_t n_gap;
    bool is_done;
    sac_error error;
};

static bool on_alone(void *user, const sac_event *e)
{
    struct asked *a = user;
    if (e->kind == SAC_EVENT_TOKEN) {
        const uint64_t now = capacity_clock_now(a->site->clock);
        if (a->n_tok > 0) a->gap[a->n_gap++] = (double)(now - a->last_us) * 1e-6;
        a->last_us = now;
        a->tok[a->n_tok++] = e->tok;
    }
    strbuf_add(&a->text, e->text, e->text_bytes);
    if (e->kind == SAC_EVENT_DONE) {
        a->is_done = true;
        if (e->error) error_set(&a->error, SAC_ERR_CONTEXT, "%s", e->error);
    }
    return false;
}

static sac_status ask_alone(struct asked *a, const struct capacity_site *site, size_t prompt_i,
                            sac_error *err)
{
    char salt[CAPACITY_SALT_BYTES];
    sac_request r = request_of(site, prompt_i, salt);
    uint64_t id;
    uint32_t n_active;
    r.on_event = on_alone;
    r.user = a;
    a->n_tok = 0;
    a->is_done = false;
    a->error.msg[0] = 0;
    strbuf_reset(&a->text);
    TRY(sac_submit(site->engine, &r, &id, err));
    while (!a->is_done) {
        if (is_stopped(site)) sac_cancel(site->engine, id);
        TRY(sac_run(site->engine, &n_active, err));
    }
    if (is_stopped(site)) return error_set(err, SAC_ERR_CANCELLED, "interrupted");
    if (a->error.msg[0]) return error_set(err, SAC_ERR_CONTEXT, "%s", a->error.msg);
    if (a->text.failed) return error_set(err, SAC_ERR_MEMORY, "no memory for an answer");
    return SAC_OK;
}

static sac_status judge(struct capacity_alone *out, const struct asked *a, const char *expected,
                        sac_error *err)
{
    struct strlist list = {0};
    double score = 0;
    strlist_add(&list, expected);
    const struct score_args args = {
        .metric = METRIC_ALL_MATCH, .answer = a->text.data ? a->text.data : "", .expected = &list};
    const sac_status status = list.failed ? error_set(err, SAC_ERR_MEMORY, "no memory for a score")
                                          : score_answer(&score, &args, err);
    strlist_deinit(&list);
    out->n_right += score;
    return status;
}

sac_status capacity_alone_run(struct capacity_alone *out, const struct capacity_site *site,
                              size_t first, size_t end, sac_error *err)
{
    const struct capacity_load *load = site->load;
    struct asked a = {.site = site};
    assert(first < end && end <= load->n_prompt);
    *out = (struct capacity_alone){.n_prompt = end - first};
    out->tok = mem_calloc(load->n_prompt * load->n_output, sizeof *out->tok);
    a.gap = mem_calloc(out->n_prompt * load->n_output, sizeof *a.gap);
    sac_status status =
        out->tok && a.gap ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "no memory for answers");
    for (size_t i = first; status == SAC_OK && i < end; i++) {
        a.tok = out->tok + i * load->n_output;
        status = ask_alone(&a, site, i, err);
        if (status == SAC_OK) status = judge(out, &a, load->prompt[i].expected, err);
    }
    if (status == SAC_OK) out->gap_ms = load_stat_make(a.gap, a.n_gap).median;
    strbuf_deinit(&a.text);
    mem_free(a.gap);
    return status;
}

void capacity_alone_deinit(struct capacity_alone *a)
{
    mem_free(a->tok);
    *a = (struct capacity_alone){0};
}

/* ---- One trial ---- */

static void take_token(struct trial *t, struct one *o, int32_t tok, uint64_t now)
{
    const uint32_t n_output = t->site->load->n_output;
    if (o->n_tok > 0) {
        const double gap_s = (double)(now - o->last_us) * 1e-6;
        t->value[t->n_gap++] = gap_s;
        t->n_over += gap_s * 1e3 > t->want->limit_ms;
    } else {
        o->first_us = now;
    }
    o->last_us = now;
    const size_t prompt_i = o->context_i % t->site->load->n_prompt;
    if (t->alone->tok[prompt_i * n_output + o->n_tok] != tok) o->differs = true;
    o->n_tok++;
}

static bool on_event(void *user, const sac_event *e)
{
    struct one *o = user;
    struct trial *t = o->trial;
    const uint64_t now = capacity_clock_now(t->site->clock);
    if (!o->begin_us && e->kind != SAC_EVENT_DONE) o->begin_us = now;
    if (e->kind == SAC_EVENT_TOKEN) take_token(t, o, e->tok, now);
    if (e->kind != SAC_EVENT_DONE) return false;
    o->is_done = true;
    o->held_s = e->timings.held_ms * 1e-3;
    if (e->finish == SAC_FINISH_LENGTH) {
        t->out->n_done++;
        t->out->n_differ += o->differs;
    } else if (e->finish == SAC_FINISH_ERROR) {
        if (!t->out->n_failed++)
            snprintf(t->out->error, sizeof t->out->error, "%s", e->error ? e->error : "");
    }
    return false;
}

static sac_status send_due(struct trial *t, sac_error *err)
{
    const uint64_t now = capacity_clock_now(t->site->clock);
    for (; t->n_sent < t->want->n_request; t->n_sent++) {
        struct one *o = &t->one[t->n_sent];
        if (o->arrival_us > now) break;
        char salt[CAPACITY_SALT_BYTES];
        sac_request r = request_of(t->site, o->context_i, salt);
        r.on_event = on_event;
        r.user = o;
        TRY(sac_submit(t->site->engine, &r, &o->id, err));
    }
    return SAC_OK;
}

/* How long a request has waited, or waits at least, for its first rows and for its turn to
 * decode. */
static double wait_s(const struct one *o, uint64_t now)
{
    const uint64_t end = o->begin_us ? o->begin_us : now;
    return o->held_s + (end > o->arrival_us ? (double)(end - o->arrival_us) * 1e-6 : 0);
}

/* Whether the limits can no longer be kept: too many gaps exceed theirs, a request has failed, or
 * most requests have waited too long. */
static bool is_hopeless(const struct trial *t)
{
    const size_t n_all = t->want->n_request * (t->site->load->n_output - 1);
    const size_t n_may = n_all - 1 - (size_t)(PERCENTILE * (double)(n_all - 1));
    const uint64_t now = capacity_clock_now(t->site->clock);
    size_t n_late = 0;
    for (size_t i = 0; i < t->n_sent; i++)
        n_late += wait_s(&t->one[i], now) * 1e3 > t->want->wait_ms;
    return t->n_over > n_may || t->out->n_failed > 0 || 2 * n_late > t->want->n_request;
}

static sac_status drain(struct trial *t, sac_error *err)
{
    uint32_t n_active = 1;
    for (size_t i = 0; i < t->n_sent; i++)
        if (!t->one[i].is_done) sac_cancel(t->site->engine, t->one[i].id);
    while (n_active) TRY(sac_run(t->site->engine, &n_active, err));
    return SAC_OK;
}

/* Time until the trial is given up. */
static uint64_t left_us(const struct trial *t)
{
    const uint64_t until = t->want->until_us, now = until ? clock_us() : 0;
    return !until ? UINT64_MAX : until > now ? until - now : 0;
}

static void wait_for(const struct trial *t, uint64_t due_us)
{
    const uint64_t now = capacity_clock_now(t->site->clock), left = left_us(t);
    const bool first = t->site->clock->is_model || due_us < now || due_us - now < left;
    capacity_clock_wait(t->site->clock, first ? due_us : now + left);
}

/* Tokens of requests that are being computed. */
static uint64_t count_kv(const struct trial *t)
{
    const struct capacity_load *load = t->site->load;
    uint64_t n = 0;
    for (size_t i = 0; i < t->n_sent; i++) {
        const struct one *o = &t->one[i];
        if (o->begin_us && !o->is_done)
            n += load->prompt[o->context_i % load->n_prompt].n_tok + o->n_tok;
    }
    return n;
}

static sac_status run_trial(struct trial *t, sac_error *err)
{
    const size_t n = t->want->n_request;
    while (t->out->n_done + t->out->n_failed < n) {
        uint32_t n_active = 0;
        TRY(send_due(t, err));
        TRY(sac_run(t->site->engine, &n_active, err));
        const sac_engine_stats s = sac_engine_get_stats(t->site->engine);
        if (s.n_request_running > t->out->n_running_most)
            t->out->n_running_most = s.n_request_running;
        const uint64_t kv_tok = count_kv(t);
        if (kv_tok > t->out->kv_most_tok) t->out->kv_most_tok = kv_tok;
        if (is_stopped(t->site)) {
            TRY(drain(t, err));
            return error_set(err, SAC_ERR_CANCELLED, "interrupted");
        }
        t->out->is_cut = is_hopeless(t);
        t->out->is_open = !t->out->is_cut && left_us(t) == 0 && t->out->n_done < n;
        if (t->out->is_cut || t->out->is_open) break;
        if (!n_active && t->n_sent < n) wait_for(t, t->one[t->n_sent].arrival_us);
    }
    return SAC_OK;
}

/* ---- Results ---- */

static void count_times(struct trial *t)
{
    struct capacity_trial *out = t->out;
    const uint64_t now = capacity_clock_now(t->site->clock);
    size_t n = 0;
    const struct load_stat gap = load_stat_make(t->value, t->n_gap);
    out->p50_ms = gap.median;
    out->p99_ms = gap.p99;
    out->most_ms = t->n_gap ? t->value[t->n_gap - 1] * 1e3 : 0;
    for (size_t i = 0; i < t->n_sent; i++) t->value[i] = wait_s(&t->one[i], now);
    out->wait_ms = load_stat_make(t->value, t->n_sent).median;
    for (size_t i = 0; i < t->n_sent; i++) {
        const struct one *o = &t->one[i];
        if (o->first_us) t->value[n++] = (double)(o->first_us - o->arrival_us) * 1e-6;
    }
    out->ttft_ms = load_stat_make(t->value, n).median;
    out->seconds = (double)(now - t->start_us) * 1e-6;
    uint64_t n_tok = 0;
    for (size_t i = 0; i < t->n_sent; i++) n_tok += t->one[i].n_tok;
    out->tok_s = out->seconds > 0 ? (double)n_tok / out->seconds : 0;
    out->is_kept = !out->is_cut && !out->is_open && out->p99_ms <= t->want->limit_ms &&
                   out->wait_ms <= t->want->wait_ms && out->n_failed == 0;
}

static void count_traffic(struct capacity_trial *out, const sac_engine *engine,
                          const sac_engine_stats *before, const sac_tier_stats *tier)
{
    const sac_engine_stats after = sac_engine_get_stats(engine);
    const sac_tier_stats now = sac_tier_get_stats(engine);
    out->traffic = traffic_between(&before->reads, &after.reads);
    out->n_prompt_tok = after.reads.n_prompt_tok - before->reads.n_prompt_tok;
    out->n_preempted = after.n_preempted - before->n_preempted;
    out->n_hold = now.n_hold - tier->n_hold;
    out->n_hit = now.n_hit - tier->n_hit;
    out->n_fetch = now.n_fetch - tier->n_fetch;
    out->bytes_fetched = now.bytes_fetched - tier->bytes_fetched;
}

static sac_status plan(struct trial *t, sac_error *err)
{
    const struct capacity_load *load = t->site->load;
    const size_t n = t->want->n_request;
    double *at = mem_calloc(n, sizeof *at);
    t->one = mem_calloc(n, sizeof *t->one);
    t->value = mem_calloc(n * load->n_output, sizeof *t->value);
    if (!at || !t->one || !t->value) {
        mem_free(at);
        return error_set(err, SAC_ERR_MEMORY, "no memory for %zu requests", n);
    }
    load_plan_arrivals(at, n, t->want->rate, load->burstiness, load->seed);
    t->start_us = capacity_clock_now(t->site->clock);
    for (size_t i = 0; i < n; i++)
        t->one[i] = (struct one){.trial = t,
                                 .context_i = i % load->n_context,
                                 .arrival_us = t->start_us + (uint64_t)(at[i] * 1e6)};
    mem_free(at);
    return SAC_OK;
}

sac_status capacity_trial_run(struct capacity_trial *out, const struct capacity_site *site,
                              const struct capacity_want *want, const struct capacity_alone *alone,
                              sac_error *err)
{
    struct trial t = {.site = site, .want = want, .alone = alone, .out = out};
    assert(want->n_request >= 2 && want->rate > 0 && site->load->n_output >= 2);
    *out = (struct capacity_trial){.want = *want};
    const sac_engine_stats before = sac_engine_get_stats(site->engine);
    const sac_tier_stats tier = sac_tier_get_stats(site->engine);
    sac_status status = sac_engine_set_tbt_target(site->engine, (float)want->target_ms, err);
    if (status == SAC_OK) status = plan(&t, err);
    if (status == SAC_OK) status = run_trial(&t, err);
    if (status == SAC_OK) {
        count_times(&t);
        count_traffic(out, site->engine, &before, &tier);
        status = drain(&t, err);
    }
    mem_free(t.one);
    mem_free(t.value);
    return status;
}
