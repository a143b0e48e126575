/* runner.c: see the header.
 *
 * One prefill serves all methods of a prefill method: the first turn's prompt is computed once up
 * to the rows that decode methods serve (the question's, or the last), and each method goes on in a
 * fork of it. What methods with other such rows need beyond it is computed behind it, or, if chunks
 * of the prefill method must not be cut there, anew. Later turns go on in the method's own
 * sequence, as far as its tokens are those of the new prompt; what is new before the question are
 * prompt rows.
 *
 * Invariants:
 *  1. At most two sequences live: the shared one and one method's.
 *  2. A row is written when its answer is complete, never twice for a cell, method and turn.
 *
 * What it does not do: sampling. An evaluation that draws has to draw often; greedy answers are
 * what the suites compare. */
#include "eval/runner.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "base/workers.h"
#include "eval/choices.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct run {
    const struct runner_params *p;
    struct runner_progress progress;
    double work_done, work_all; /* tokens of prompts */
    double model_us;
    bool stopped;
    /* Of the request in work. */
    struct strbuf answer;
    int32_t *held; /* [n_held] the tokens of the method's sequence */
    size_t n_held, held_room;
    bool no_memory, done;
    uint64_t submit_us, first_us;
    uint32_t n_predicted;
    sac_finish finish;
    sac_timings timings;
    sac_error error;
    double mass_sum;
    uint64_t n_mass;
};

/* ---- Progress ---- */

/* `share` of the cell in work is done. */
static void tell(struct run *r, double share)
{
    r->progress.share =
        r->work_all > 0 ? (r->work_done + share * r->progress.cell->ctx) / r->work_all : 0;
    if (r->p->on_progress && r->p->on_progress(r->p->user, &r->progress)) r->stopped = true;
}

/* ---- One request ---- */

static void hold(struct run *r, const int32_t *tok, size_t n)
{
    if (r->n_held + n > r->held_room) {
        const size_t room = 2 * (r->n_held + n);
        int32_t *grown = mem_realloc(r->held, room * sizeof *grown);
        if (!grown) {
            r->no_memory = true;
            return;
        }
        r->held = grown;
        r->held_room = room;
    }
    if (n) memcpy(r->held + r->n_held, tok, n * sizeof *tok);
    r->n_held += n;
}

static bool on_event(void *user, const sac_event *e)
{
    struct run *r = user;
    if (e->kind == SAC_EVENT_TOKEN) {
        if (r->n_predicted++ == 0) r->first_us = clock_us();
        hold(r, &e->tok, 1);
    }
    if (e->text_bytes) strbuf_add(&r->answer, e->text, e->text_bytes);
    if (e->kind == SAC_EVENT_DONE) {
        r->finish = e->finish;
        r->timings = e->timings;
        if (e->error) snprintf(r->error.msg, sizeof r->error.msg, "%s", e->error);
        r->done = true;
    }
    tell(r, 1);
    return r->stopped || r->no_memory || r->answer.failed;
}

static void on_record(void *user, const sac_read_record *record)
{
    struct run *r = user;
    if (record->kind != SAC_ROW_DECODE) return;
    r->mass_sum += (double)record->mass;
    r->n_mass++;
}

/* Asks with `tok` behind what the sequence holds, of which the last n_decode_row are decode rows;
 * the answer is in `r` then. */
static sac_status request(struct run *r, sac_seq seq, const int32_t *tok, size_t n,
                          uint32_t n_decode_row, uint32_t new_tok, sac_error *err)
{
    sac_engine *engine = r->p->engine;
    sac_request q = sac_request_default();
    uint64_t id;
    uint32_t n_active;
    q.seq = seq;
    q.prompt = tok;
    q.n_prompt = n;
    q.n_decode_row = n_decode_row;
    q.sampling.temp = 0;
    q.sampling.repeat_penalty = 1;
    q.max_tokens = new_tok;
    q.on_event = on_event;
    q.user = r;
    strbuf_reset(&r->answer);
    strbuf_add(&r->answer, "", 0);
    r->n_predicted = 0;
    r->mass_sum = 0;
    r->n_mass = 0;
    r->done = false;
    r->submit_us = r->first_us = clock_us();
    hold(r, tok, n);
    TRY(sac_submit(engine, &q, &id, err));
    if (r->p->record) TRY(sac_engine_set_recorder(engine, on_record, r, err));
    sac_status status = SAC_OK;
    while (status == SAC_OK && !r->done) status = sac_run(engine, &n_active, err);
    if (r->p->record && status == SAC_OK) status = sac_engine_set_recorder(engine, NULL, NULL, err);
    r->model_us += (double)(clock_us() - r->submit_us);
    if (status != SAC_OK) return status;
    if (r->no_memory || r->answer.failed)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    if (r->finish == SAC_FINISH_ERROR) return error_set(err, SAC_ERR_CONTEXT, "%s", r->error.msg);
    if (r->finish == SAC_FINISH_CANCELLED) return error_set(err, SAC_ERR_CANCELLED, "stopped");
    return SAC_OK;
}

/* ---- One method ---- */

struct asked {
    const struct task_cell *cell;
    const struct task_sample *sample;
    const int32_t *tok; /* [n_tok] the first turn's prompt */
    size_t n_tok;
    size_t question;   /* the first token of the question */
    double prefill_ms; /* of the shared part, as what follows */
    uint64_t n_cell, n_cell_read;
};

/* Judges the answer in `r` and writes its row. */
static sac_status conclude(struct run *r, const struct asked *a, const struct subject *subject,
                           struct sample_row *row, sac_error *err)
{
    const struct task_turn *turn = &a->sample->turn[row->turn];
    struct score_args score = {
        .metric = a->sample->metric,
        .expected = &turn->expected,
        .classes = &a->sample->classes,
    };
    struct sample_text text = {.sample = a->sample, .answer = r->answer.data, .seed = r->p->seed};
    char *judged = mem_strdup(r->answer.data);
    if (!judged) return error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    if (turn->first_line) score_keep_first_line(judged);
    score.answer = judged;
    row->cell = *a->cell;
    snprintf(row->method, sizeof row->method, "%s", subject->name);
    row->predicted_n = r->n_predicted;
    sac_status status = score_answer(&row->score, &score, err);
    if (status == SAC_OK && !samples_has(r->p->samples, a->cell, subject->name, row->turn))
        status = samples_add(r->p->samples, row, &text, err);
    mem_free(judged);
    return status;
}

/* Tokens at the begin of `tok` that the sequence has already; the last of `tok` is always new, its
 * row chooses the answer's first token. */
static size_t count_kept(const struct run *r, sac_seq seq, const int32_t *tok, size_t n_tok)
{
    uint32_t n_pending = 0;
    const size_t n_seq = sac_seq_length(r->p->engine, seq, &n_pending) + n_pending;
    size_t n = 0;
    while (n + 1 < n_tok && n < r->n_held && n < n_seq && r->held[n] == tok[n]) n++;
    return n;
}

/* Which of its prompts' rows a subject's decode method serves. */
static struct question_rows rows_of(const struct run *r, const struct subject *subject)
{
    const struct subjects *subjects = r->p->subjects;
    return question_in_force(r->p->rows, subjects->prefill[subject->prefill_i],
                             subjects->decode[subject->decode_i]);
}

/* Asks with the prompt `tok` of turn `turn` and writes what came of it. */
static sac_status ask(struct run *r, const struct asked *a, const struct subject *subject,
                      sac_seq seq, uint32_t turn, sac_error *err)
{
    sac_engine *engine = r->p->engine;
    const size_t n_kept = count_kept(r, seq, a->tok, a->n_tok);
    const struct question_rows rows = rows_of(r, subject);
    const size_t begin = question_rows_begin(&rows, a->n_tok, a->question);
    const uint32_t n_decode_row = (uint32_t)(a->n_tok - (begin > n_kept ? begin : n_kept));
    const double shared_ms = turn == 0 ? a->prefill_ms : 0;
    TRY(sac_seq_truncate(engine, seq, (uint32_t)n_kept, err));
    r->n_held = n_kept;
    const sac_reads before = sac_engine_get_stats(engine).reads;
    const sac_tier_stats tier = sac_tier_get_stats(engine);
    TRY(request(r, seq, a->tok + n_kept, a->n_tok - n_kept, n_decode_row,
                a->sample->turn[turn].new_tok, err));
    const sac_reads after = sac_engine_get_stats(engine).reads;
    const sac_tier_stats tier_after = sac_tier_get_stats(engine);
    const double n_seen = (double)(after.n_tok_seen - before.n_tok_seen);
    const double ttft_ms = shared_ms + (double)(r->first_us - r->submit_us) * 1e-3;
    const double n_new = (double)(turn == 0 ? a->n_tok : a->n_tok - n_kept);
    const uint64_t n_cell = after.n_cell - before.n_cell + (turn == 0 ? a->n_cell : 0);
    const uint64_t n_cell_read =
        after.n_cell_read - before.n_cell_read + (turn == 0 ? a->n_cell_read : 0);
    struct sample_row row = {
        .turn = turn,
        .prompt_n = (uint32_t)a->n_tok,
        .predicted_n = r->n_predicted,
        .rows = {.all = rows.all, .n = n_decode_row},
        .ttft_ms = ttft_ms,
        .prompt_per_s = ttft_ms > 0 ? n_new / ttft_ms * 1e3 : (double)NAN,
        /* One token says nothing about the speed of decoding. */
        .predicted_per_s = r->n_predicted > 1 ? r->timings.predicted_per_s : (double)NAN,
        .share_read =
            n_seen > 0 ? (double)(after.n_tok_read - before.n_tok_read) / n_seen : (double)NAN,
        .traffic = traffic_between(&before, &after),
        .chosen = choices_mean(&before, &after,
                               choices_are_made(r->p->subjects->decode[subject->decode_i])),
        .planned_share = n_cell > 0 ? (double)n_cell_read / (double)n_cell : (double)NAN,
        .mass_mean = r->n_mass ? r->mass_sum / (double)r->n_mass : (double)NAN,
    };
    traffic_add_tier(&row.traffic, &tier, &tier_after);
    return conclude(r, a, subject, &row, err);
}

/* What later turns see of this one's answer; owned by the caller. */
static char *history_answer(const struct run *r, const struct task_turn *turn)
{
    struct strbuf text = {0};
    if (!r->p->gold_history) return mem_strdup(r->answer.data);
    for (size_t i = 0; i < turn->expected.n; i++)
        strbuf_addf(&text, "%s%s", i || turn->prefix ? " " : "", turn->expected.item[i]);
    return strbuf_detach(&text, NULL);
}

/* Encodes a later turn's prompt into `a`, its tokens into `*out_tok` (sac_free). */
static sac_status encode_turn(const struct run *r, struct asked *a, uint32_t turn,
                              const char *const *answer, int32_t **out_tok, sac_error *err)
{
    TRY(task_encode(r->p->text, a->sample, turn, answer, out_tok, &a->n_tok, err));
    a->tok = *out_tok;
    const struct task_prompt prompt = {a->sample, turn, answer, a->tok, a->n_tok};
    return task_find_question(r->p->text, &prompt, &a->question, err);
}

/* All turns of a sample in `seq`, which holds the shared part of the first, `n_shared` tokens. */
static sac_status ask_turns(struct run *r, const struct asked *first, const struct subject *subject,
                            sac_seq seq, size_t n_shared, sac_error *err)
{
    char *answer[TASK_TURN_MAX] = {0};
    sac_status status = SAC_OK;
    r->n_held = 0;
    hold(r, first->tok, n_shared);
    for (uint32_t t = 0; status == SAC_OK && t < first->sample->n_turn; t++) {
        struct asked a = *first;
        int32_t *tok = NULL;
        if (t > 0) status = encode_turn(r, &a, t, (const char *const *)answer, &tok, err);
        if (status == SAC_OK) status = ask(r, &a, subject, seq, t, err);
        sac_free(tok);
        if (status != SAC_OK) break;
        answer[t] = history_answer(r, &first->sample->turn[t]);
        if (!answer[t]) status = error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    }
    for (uint32_t t = 0; t < TASK_TURN_MAX; t++) mem_free(answer[t]);
    return status;
}

/* ---- One cell ---- */

static bool has_answers(const struct run *r, const struct task_cell *cell, uint32_t subject_i,
                        uint32_t n_turn)
{
    for (uint32_t t = 0; t < n_turn; t++)
        if (!samples_has(r->p->samples, cell, r->p->subjects->item[subject_i].name, t))
            return false;
    return true;
}

static void ignore_row(void *user, const sac_row *row)
{
    (void)user;
    (void)row;
}

/* A prompt as one prefill method reads it, for all methods that go on from there. */
struct shared {
    uint32_t prefill_i;
    sac_seq seq; /* SAC_SEQ_NONE: none yet */
    size_t n;    /* tokens in it */
};

static void drop_shared(const struct run *r, struct shared *s)
{
    if (s->seq != SAC_SEQ_NONE) sac_seq_remove(r->p->engine, s->seq);
    *s = (struct shared){.prefill_i = s->prefill_i, .seq = SAC_SEQ_NONE};
}

/* An empty sequence; the sums of what it takes begin anew. */
static sac_status begin_shared(const struct run *r, struct asked *a, struct shared *s,
                               sac_error *err)
{
    a->prefill_ms = 0;
    a->n_cell = a->n_cell_read = 0;
    TRY(sac_seq_create(r->p->engine, &s->seq, err));
    return sac_seq_use_prefill(r->p->engine, s->seq, s->prefill_i, err);
}

/* Computes what pends in the shared sequence of `n` tokens. */
static sac_status compute_shared(struct run *r, const struct shared *s, size_t n, sac_error *err)
{
    uint32_t n_row = 1, n_pending = 1;
    while (n_pending > 0 && n_row > 0 && !r->stopped) {
        TRY(sac_step(r->p->engine, ignore_row, NULL, &n_row, err));
        const uint32_t done = sac_seq_length(r->p->engine, s->seq, &n_pending);
        tell(r, n ? (double)done / (double)n : 1);
    }
    return r->stopped ? error_set(err, SAC_ERR_CANCELLED, "stopped") : SAC_OK;
}

/* Brings the shared prompt to its first `n` tokens: behind what it has, if the method reads the
 * rest as it would have read it in one go. */
static sac_status share_to(struct run *r, struct asked *a, struct shared *s, size_t n,
                           sac_error *err)
{
    sac_engine *engine = r->p->engine;
    sac_method_info method;
    const uint64_t start = clock_us();
    const sac_reads before = sac_engine_get_stats(engine).reads;
    if (s->seq != SAC_SEQ_NONE && s->n == n) return SAC_OK;
    if (!subjects_method(&method, "prefill", r->p->subjects->prefill[s->prefill_i]) ||
        !method.any_chunk)
        drop_shared(r, s);
    if (s->seq == SAC_SEQ_NONE) TRY(begin_shared(r, a, s, err));
    assert(s->n <= n);
    TRY(sac_seq_append(engine, s->seq, a->tok + s->n, n - s->n, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    s->n = n;
    TRY(compute_shared(r, s, n, err));
    const sac_reads after = sac_engine_get_stats(engine).reads;
    a->prefill_ms += (double)(clock_us() - start) * 1e-3;
    r->model_us += (double)(clock_us() - start);
    a->n_cell += after.n_cell - before.n_cell;
    a->n_cell_read += after.n_cell_read - before.n_cell_read;
    return SAC_OK;
}

static sac_status ask_subject(struct run *r, const struct asked *a, uint32_t subject_i,
                              const struct shared *shared, sac_error *err)
{
    sac_engine *engine = r->p->engine;
    sac_seq seq;
    TRY(sac_seq_fork(engine, shared->seq, &seq, err));
    const struct subject *subject = &r->p->subjects->item[subject_i];
    sac_status status = sac_seq_use_decode(engine, seq, subject->decode_i, err);
    if (status == SAC_OK) status = ask_turns(r, a, subject, seq, shared->n, err);
    sac_seq_remove(engine, seq);
    return status;
}

/* Asks the subjects that share a prefill method, on forks of one prompt: first those whose decode
 * rows begin with the question, then those of the last rows. */
static sac_status ask_prefilled(struct run *r, struct asked *a, uint32_t prefill_i, sac_error *err)
{
    const struct subjects *subjects = r->p->subjects;
    struct shared shared = {.prefill_i = prefill_i, .seq = SAC_SEQ_NONE};
    sac_status status = SAC_OK;
    for (uint32_t i = 0; i < 2 * subjects->n && status == SAC_OK; i++) {
        const struct subject *subject = &subjects->item[i % subjects->n];
        const struct question_rows rows = rows_of(r, subject);
        if (subject->prefill_i != prefill_i || rows.all != (i < subjects->n)) continue;
        if (has_answers(r, a->cell, i % subjects->n, a->sample->n_turn)) continue;
        const size_t n = question_rows_begin(&rows, a->n_tok, a->question);
        status = share_to(r, a, &shared, n, err);
        if (status == SAC_OK) status = ask_subject(r, a, i % subjects->n, &shared, err);
    }
    drop_shared(r, &shared);
    return status;
}

static sac_status run_cell(struct run *r, const struct task_cell *cell, sac_error *err)
{
    const struct task_source *source = r->p->source;
    struct task_sample sample = {0};
    struct asked a = {.cell = cell, .sample = &sample};
    int32_t *tok = NULL;
    sac_status status = SAC_OK;
    TRY_FAIL(source->make(source->arg, r->p->text, cell, &sample, err));
    assert(sample.n_turn > 0 && sample.n_turn <= TASK_TURN_MAX);
    TRY_FAIL(task_encode(r->p->text, &sample, 0, NULL, &tok, &a.n_tok, err));
    assert(a.n_tok > 0);
    a.tok = tok;
    const struct task_prompt prompt = {.sample = &sample, .tok = tok, .n_tok = a.n_tok};
    TRY_FAIL(task_find_question(r->p->text, &prompt, &a.question, err));
    for (uint32_t i = 0; i < r->p->subjects->n_prefill; i++) TRY_FAIL(ask_prefilled(r, &a, i, err));
fail:
    task_sample_deinit(&sample);
    sac_free(tok);
    return status;
}

/* All methods have answered the first turn: there is no more to do, or only later turns. */
static bool is_begun(const struct run *r, const struct task_cell *cell)
{
    for (uint32_t i = 0; i < r->p->subjects->n; i++)
        if (!has_answers(r, cell, i, 1)) return false;
    return true;
}

sac_status runner_run(const struct runner_params *p, struct runner_times *out_times, sac_error *err)
{
    struct run r = {.p = p, .progress = {.n_cell = p->source->n_cell}};
    const uint64_t start = clock_us();
    sac_status status = SAC_OK;
    for (size_t i = 0; i < p->source->n_cell; i++)
        if (!is_begun(&r, &p->source->cell[i])) r.work_all += p->source->cell[i].ctx;
    for (size_t i = 0; i < p->source->n_cell && status == SAC_OK; i++) {
        const struct task_cell *cell = &p->source->cell[i];
        const bool is_new = !is_begun(&r, cell);
        if (!is_new && p->source->single_turn) continue;
        r.progress.cell = cell;
        r.progress.n_done = i;
        status = run_cell(&r, cell, err);
        if (status != SAC_OK && status != SAC_ERR_CANCELLED)
            status = error_prefix(err, status, "%s, %u tokens, sample %u", cell->task, cell->ctx,
                                  cell->index);
        if (is_new) r.work_done += cell->ctx;
    }
    out_times->model_s = r.model_us * 1e-6;
    out_times->own_s = (double)(clock_us() - start) * 1e-6 - out_times->model_s;
    strbuf_deinit(&r.answer);
    mem_free(r.held);
    return status;
}
