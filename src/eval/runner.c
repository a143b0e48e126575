/* runner.c: see the header.
 *
 * Up to n_parallel samples are processed at once, and a step of the engine serves all of them. One
 * method at a time answers a sample. One prefill serves all methods of a prefill method: the first
 * turn's prompt is computed once up to the rows that decode methods serve (the question's, or the
 * last), and each method continues in a fork of it. Methods for which these rows differ compute the
 * additional prompt rows after it or, if the prefill method's chunks must not be cut there, compute
 * the prompt again.
 *
 * Invariants:
 *  1. A sample in progress has at most two sequences: the shared one and one method's.
 *  2. A row is written when its answer and all before it in the file are complete; rows that wait
 *     are written at the end, however the run ended. None is written twice for a cell, method and
 *     turn.
 *  3. `work` is in the order of cells.
 *
 * Not here: sampling. An evaluation that samples would have to do so many times; the suites compare
 * greedy answers. */
#include "eval/runner.h"

#include "base/mem.h"
#include "base/workers.h"
#include "eval/answerer.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* A prompt as computed by one prefill method, for all methods that continue from it. */
struct shared {
    uint32_t prefill_i;
    sac_seq seq; /* SAC_SEQ_NONE: there is none yet */
    size_t n;    /* tokens in it */
    bool is_reading;
    uint64_t start_us; /* when its computation began */
};

/* A sample, from its generation until its rows are written. */
struct work {
    struct work *next;
    size_t cell_i;
    const struct task_cell *cell;
    struct task_sample sample;
    int32_t *tok; /* the first turn's prompt; sac_free */
    struct asked asked;
    struct shared shared;
    struct answerer *answerer; /* [n_answerer] in the order of the file; owned */
    uint32_t n_answerer;
    uint32_t at;  /* the current one; n_answerer: all have answered */
    bool is_over; /* it no longer counts among the samples in progress */
    bool is_new;  /* it counts in the reported progress */
};

struct run {
    const struct runner_params *p;
    struct runner_progress progress;
    struct work *first;         /* owned list */
    size_t next_cell;           /* the first that has not been considered */
    uint32_t n_work;            /* samples in progress */
    double work_done, work_all; /* tokens of prompts */
    double model_us;
    bool stopped, recording, cannot_write;
};

/* ---- Completed cells ---- */

static bool has_answers(const struct run *r, const struct task_cell *cell, uint32_t subject_i,
                        uint32_t n_turn)
{
    for (uint32_t t = 0; t < n_turn; t++)
        if (!samples_has(r->p->samples, cell, r->p->subjects->item[subject_i].name, t))
            return false;
    return true;
}

/* Whether all methods have answered the first turn: there is nothing to do, or only later turns. */
static bool is_begun(const struct run *r, const struct task_cell *cell)
{
    for (uint32_t i = 0; i < r->p->subjects->n; i++)
        if (!has_answers(r, cell, i, 1)) return false;
    return true;
}

/* ---- Beginning a sample ---- */

/* Lists the methods that have not answered: by prefill method, and of these first those whose
 * decode rows begin with the question, then those of the last rows. */
static void list_answerers(const struct run *r, struct work *w)
{
    const struct subjects *subjects = r->p->subjects;
    for (uint32_t prefill_i = 0; prefill_i < subjects->n_prefill; prefill_i++)
        for (uint32_t i = 0; i < 2 * subjects->n; i++) {
            const uint32_t subject_i = i % subjects->n;
            const struct subject *subject = &subjects->item[subject_i];
            const struct answerer one = answerer_of(r->p, &w->asked, subject);
            if (subject->prefill_i != prefill_i || one.rows.all != (i < subjects->n)) continue;
            if (has_answers(r, w->cell, subject_i, w->sample.n_turn)) continue;
            w->answerer[w->n_answerer++] = one;
        }
}

static void drop_shared(const struct run *r, struct shared *s)
{
    if (s->seq != SAC_SEQ_NONE) sac_seq_remove(r->p->engine, s->seq);
    *s = (struct shared){.prefill_i = s->prefill_i, .seq = SAC_SEQ_NONE};
}

static void free_work(const struct run *r, struct work *w)
{
    for (uint32_t i = 0; i < w->n_answerer; i++) answerer_deinit(&w->answerer[i]);
    mem_free(w->answerer);
    drop_shared(r, &w->shared);
    task_sample_deinit(&w->sample);
    sac_free(w->tok);
    mem_free(w);
}

static sac_status make_sample(const struct run *r, struct work *w, sac_error *err)
{
    const struct task_source *source = r->p->source;
    struct asked *a = &w->asked;
    TRY(source->make(source->arg, r->p->text, w->cell, &w->sample, err));
    assert(w->sample.n_turn > 0 && w->sample.n_turn <= TASK_TURN_MAX);
    TRY(task_encode(r->p->text, &w->sample, 0, NULL, &w->tok, &a->n_tok, err));
    assert(a->n_tok > 0);
    a->cell = w->cell;
    a->sample = &w->sample;
    a->tok = w->tok;
    const struct task_prompt prompt = {.sample = &w->sample, .tok = w->tok, .n_tok = a->n_tok};
    TRY(task_find_question(r->p->text, &prompt, &a->question, err));
    w->answerer = mem_calloc(r->p->subjects->n, sizeof *w->answerer);
    if (!w->answerer) return error_set(err, SAC_ERR_MEMORY, "out of memory for answers");
    list_answerers(r, w);
    return SAC_OK;
}

/* Puts the sample, and the method that answers it, before an error's message. */
static sac_status blame(const struct work *w, sac_status status, sac_error *err)
{
    const struct task_cell *c = w->cell;
    char depth[32] = "";
    if (c->depth >= 0) snprintf(depth, sizeof depth, ", depth %g %%", c->depth);
    if (w->at < w->n_answerer && w->answerer[w->at].is_begun)
        status = error_prefix(err, status, "%s", w->answerer[w->at].subject->name);
    return error_prefix(err, status, "%s%s%s, %u tokens%s, sample %u", c->task,
                        c->place[0] ? " " : "", c->place, c->ctx, depth, c->index);
}

static void finish_work(struct run *r, struct work *w)
{
    assert(!w->is_over && w->at == w->n_answerer);
    drop_shared(r, &w->shared);
    w->is_over = true;
    r->n_work--;
    if (w->is_new) r->work_done += w->cell->ctx;
}

/* Begins a cell's sample, after all others. */
static sac_status begin_sample(struct run *r, size_t cell_i, bool is_new, sac_error *err)
{
    struct work *w = mem_calloc(1, sizeof *w), **end = &r->first;
    if (!w) return error_set(err, SAC_ERR_MEMORY, "out of memory for a sample");
    w->cell_i = cell_i;
    w->cell = &r->p->source->cell[cell_i];
    w->shared.seq = SAC_SEQ_NONE;
    w->is_new = is_new;
    while (*end) end = &(*end)->next;
    *end = w;
    r->n_work++;
    const sac_status status = make_sample(r, w, err);
    if (status != SAC_OK) return blame(w, status, err);
    if (w->n_answerer == 0) finish_work(r, w);
    return SAC_OK;
}

static sac_status fill_places(struct run *r, sac_error *err)
{
    const struct task_source *source = r->p->source;
    for (; r->next_cell < source->n_cell && r->n_work < r->p->n_parallel; r->next_cell++) {
        const bool is_new = !is_begun(r, &source->cell[r->next_cell]);
        if (is_new || !source->single_turn) TRY(begin_sample(r, r->next_cell, is_new, err));
    }
    return SAC_OK;
}

/* ---- Between two steps ---- */

/* Begins an empty sequence, whose counters start at 0. */
static sac_status begin_shared(const struct run *r, struct work *w, uint32_t prefill_i,
                               sac_error *err)
{
    drop_shared(r, &w->shared);
    w->asked.read_ms = 0;
    w->asked.read = (sac_reads){0};
    w->shared.prefill_i = prefill_i;
    TRY(sac_seq_create(r->p->engine, &w->shared.seq, err));
    return sac_seq_use_prefill(r->p->engine, w->shared.seq, prefill_i, err);
}

/* Has the prompt computed up to token `n`: after the tokens that are computed, if the method
 * computes the rest as it would have computed all at once. */
static sac_status read_to(const struct run *r, struct work *w, uint32_t prefill_i, size_t n,
                          sac_error *err)
{
    struct shared *s = &w->shared;
    sac_method_info method;
    const bool goes_on = s->seq != SAC_SEQ_NONE && s->prefill_i == prefill_i &&
                         subjects_method(&method, "prefill", r->p->subjects->prefill[prefill_i]) &&
                         method.any_chunk;
    if (!goes_on) TRY(begin_shared(r, w, prefill_i, err));
    assert(s->n <= n);
    TRY(sac_seq_append(r->p->engine, s->seq, w->tok + s->n, n - s->n, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    s->n = n;
    s->is_reading = true;
    s->start_us = clock_us();
    return SAC_OK;
}

/* Whether the prompt is computed as far as the next method needs it; if nothing is being computed,
 * begins to. */
static sac_status share(const struct run *r, struct work *w, bool *out_ready, sac_error *err)
{
    const struct answerer *next = &w->answerer[w->at];
    struct shared *s = &w->shared;
    const size_t n = answerer_shared(next);
    uint32_t n_pending = 0;
    *out_ready = false;
    if (!s->is_reading &&
        (s->seq == SAC_SEQ_NONE || s->prefill_i != next->subject->prefill_i || s->n != n))
        TRY(read_to(r, w, next->subject->prefill_i, n, err));
    sac_seq_length(r->p->engine, s->seq, &n_pending);
    if (n_pending > 0) return SAC_OK;
    if (s->is_reading) {
        const sac_reads read = sac_seq_take_reads(r->p->engine, s->seq);
        w->asked.read_ms += (double)(clock_us() - s->start_us) * 1e-3;
        w->asked.read.n_cell += read.n_cell;
        w->asked.read.n_cell_read += read.n_cell_read;
        s->is_reading = false;
    }
    *out_ready = true;
    return SAC_OK;
}

/* Asks what can be asked: the turn after a completed one, or the next method's first. */
static sac_status ask(const struct run *r, struct work *w, sac_error *err)
{
    struct answerer *now = &w->answerer[w->at];
    bool is_ready = false;
    if (now->is_asked) return SAC_OK;
    if (now->is_begun) return answerer_ask_next(now, err);
    TRY(share(r, w, &is_ready, err));
    return is_ready ? answerer_begin(now, w->shared.seq, err) : SAC_OK;
}

static sac_status ask_all(const struct run *r, sac_error *err)
{
    for (struct work *w = r->first; w; w = w->next) {
        const sac_status status = w->is_over ? SAC_OK : ask(r, w, err);
        if (status != SAC_OK) return blame(w, status, err);
    }
    return SAC_OK;
}

static sac_status take_answers(struct run *r, sac_error *err)
{
    for (struct work *w = r->first; w; w = w->next) {
        if (w->is_over) continue;
        struct answerer *now = &w->answerer[w->at];
        const sac_status status = answerer_take(now, err);
        if (status != SAC_OK) return blame(w, status, err);
        if (now->is_over && ++w->at == w->n_answerer) finish_work(r, w);
    }
    return SAC_OK;
}

/* ---- Writing ---- */

static sac_status write_answers(struct run *r, const struct work *w, struct answerer *of,
                                sac_error *err)
{
    for (; of->n_written < of->n_row; of->n_written++) {
        const struct sample_row *row = &of->row[of->n_written];
        const struct sample_text text = {
            .sample = &w->sample, .answer = of->answer[of->n_written], .seed = r->p->seed};
        if (samples_has(r->p->samples, w->cell, row->method, row->turn)) continue;
        const sac_status status = samples_add(r->p->samples, row, &text, err);
        if (status != SAC_OK) {
            r->cannot_write = true;
            return status;
        }
    }
    return SAC_OK;
}

/* Writes completed rows in the order of the file, up to the first that is missing; if the run ends,
 * those after it, too. Frees the samples that are written. */
static sac_status write_rows(struct run *r, bool ends, sac_error *err)
{
    while (r->first) {
        struct work *w = r->first;
        for (uint32_t i = 0; i < w->n_answerer; i++) {
            TRY(write_answers(r, w, &w->answerer[i], err));
            if (!w->answerer[i].is_over && !ends) return SAC_OK;
        }
        if (!w->is_over && !ends) return SAC_OK;
        r->first = w->next;
        free_work(r, w);
    }
    return SAC_OK;
}

/* ---- Steps ---- */

static const struct work *first_in_work(const struct run *r)
{
    const struct work *w = r->first;
    while (w && w->is_over) w = w->next;
    return w;
}

static struct answerer *answering(const struct work *w)
{
    struct answerer *now = w->at < w->n_answerer ? &w->answerer[w->at] : NULL;
    return now && now->is_asked && !now->is_done ? now : NULL;
}

static void on_record(void *user, const sac_read_record *record)
{
    const struct run *r = user;
    for (const struct work *w = r->first; w; w = w->next) {
        struct answerer *now = answering(w);
        if (now && now->seq == record->seq) answerer_record(now, record);
    }
}

/* Records rows while an answer needs the records, because recording takes time. */
static sac_status use_recorder(struct run *r, bool on, sac_error *err)
{
    if (!r->p->record || r->recording == on) return SAC_OK;
    r->recording = on;
    return sac_engine_set_recorder(r->p->engine, on ? on_record : NULL, r, err);
}

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
}

static sac_status step(struct run *r, sac_error *err)
{
    uint32_t n = 0;
    bool any = false;
    for (const struct work *w = r->first; w; w = w->next) any = any || answering(w);
    TRY(use_recorder(r, any, err));
    const uint64_t start = clock_us();
    const sac_status status =
        any ? sac_run(r->p->engine, &n, err) : sac_step(r->p->engine, ignore_row, NULL, &n, err);
    r->model_us += (double)(clock_us() - start);
    if (status == SAC_OK) return SAC_OK;
    const sac_status blamed = blame(first_in_work(r), status, err);
    return r->n_work == 1 ? blamed
                          : error_prefix(err, blamed, "%u samples in work, the first", r->n_work);
}

/* The share of a sample's work that is done, as far as it is known; most of it is the prompts. */
static double share_done(const struct run *r, const struct work *w)
{
    const struct shared *s = &w->shared;
    if (!s->is_reading || s->n == 0) return 1;
    return (double)sac_seq_length(r->p->engine, s->seq, NULL) / (double)s->n;
}

static void tell(struct run *r)
{
    const struct work *first = first_in_work(r);
    double done = r->work_done;
    assert(first);
    if (!r->p->on_progress) return;
    for (const struct work *w = first; w; w = w->next)
        if (!w->is_over && w->is_new) done += share_done(r, w) * w->cell->ctx;
    r->progress.cell = first->cell;
    r->progress.n_done = first->cell_i;
    r->progress.share = r->work_all > 0 ? done / r->work_all : 0;
    r->stopped = r->p->on_progress(r->p->user, &r->progress);
}

static sac_status run_all(struct run *r, sac_error *err)
{
    while (true) {
        TRY(take_answers(r, err));
        TRY(write_rows(r, false, err));
        TRY(fill_places(r, err));
        if (r->n_work == 0) return SAC_OK;
        tell(r);
        if (r->stopped) return error_set(err, SAC_ERR_CANCELLED, "stopped");
        TRY(ask_all(r, err));
        TRY(step(r, err));
    }
}

/* Cancels all requests. Errors of the engine no longer matter: either all is done, or there is an
 * error already. */
static void withdraw(struct run *r)
{
    uint32_t n = 1;
    for (struct work *w = r->first; w; w = w->next) {
        const struct answerer *now = answering(w);
        if (now) sac_cancel(r->p->engine, now->id);
        drop_shared(r, &w->shared);
    }
    while (n > 0 && sac_run(r->p->engine, &n, NULL) == SAC_OK) {
    }
}

sac_status runner_run(const struct runner_params *p, struct runner_times *out_times, sac_error *err)
{
    struct run r = {.p = p, .progress = {.n_cell = p->source->n_cell}};
    const uint64_t start = clock_us();
    sac_error last;
    assert(p->n_parallel > 0);
    for (size_t i = 0; i < p->source->n_cell; i++)
        if (!is_begun(&r, &p->source->cell[i])) r.work_all += p->source->cell[i].ctx;
    sac_status status = run_all(&r, err);
    withdraw(&r);
    /* Whatever failed, completed rows are written; an error of writing is reported only if there
     * was no other. */
    const sac_status written = r.cannot_write ? SAC_OK : write_rows(&r, true, &last);
    if (written != SAC_OK && (status == SAC_OK || status == SAC_ERR_CANCELLED))
        status = error_set(err, written, "%s", last.msg);
    while (r.first) {
        struct work *w = r.first;
        r.first = w->next;
        free_work(&r, w);
    }
    const sac_status off = use_recorder(&r, false, &last);
    if (off != SAC_OK && status == SAC_OK) status = error_set(err, off, "%s", last.msg);
    out_times->model_s = r.model_us * 1e-6;
    out_times->own_s = (double)(clock_us() - start) * 1e-6 - out_times->model_s;
    return status;
}
