/* answerer.c: see the header. Later turns continue in the method's own sequence, as far as its
 * tokens match those of the new prompt; new tokens before the question are prompt rows.
 *
 * What was read is the request's own count, so it does not depend on what else the engine computed.
 * Times do: if several samples are in progress at once, a step serves many of them, and no time
 * belongs to one answer. Such rows have no times. */
#include "eval/answerer.h"

#include "base/mem.h"
#include "base/workers.h"
#include "eval/choices.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct answerer answerer_of(const struct runner_params *p, const struct asked *asked,
                            const struct subject *subject)
{
    const struct subjects *subjects = p->subjects;
    return (struct answerer){
        .p = p,
        .asked = asked,
        .subject = subject,
        .rows = question_in_force(p->rows, subjects->prefill[subject->prefill_i],
                                  subjects->decode[subject->decode_i]),
        .seq = SAC_SEQ_NONE,
    };
}

size_t answerer_shared(const struct answerer *w)
{
    return question_rows_begin(&w->rows, w->asked->n_tok, w->asked->question);
}

/* ---- One request ---- */

static bool on_event(void *user, const sac_event *e)
{
    struct answerer *w = user;
    if (e->kind == SAC_EVENT_TOKEN && w->n_predicted++ == 0) w->first_us = clock_us();
    if (e->text_bytes) strbuf_add(&w->text, e->text, e->text_bytes);
    if (e->kind == SAC_EVENT_DONE) {
        w->finish = e->finish;
        w->timings = e->timings;
        w->reads = e->reads;
        if (e->error) snprintf(w->error.msg, sizeof w->error.msg, "%s", e->error);
        w->is_done = true;
    }
    return w->text.failed;
}

void answerer_record(struct answerer *w, const sac_read_record *record)
{
    if (record->kind != SAC_ROW_DECODE) return;
    w->mass_sum += (double)record->mass;
    w->n_mass++;
}

/* How many first tokens of the prompt the sequence already holds. The last token of the prompt is
 * always new, because its row selects the answer's first token. */
static size_t count_kept(const struct answerer *w, const int32_t *tok, size_t n_tok)
{
    uint32_t n_pending = 0;
    const int32_t *has = sac_seq_tokens(w->p->engine, w->seq);
    const size_t n_seq = sac_seq_length(w->p->engine, w->seq, &n_pending) + n_pending;
    size_t n = 0;
    while (n + 1 < n_tok && n < n_seq && has[n] == tok[n]) n++;
    return n;
}

/* Asks the turn after the completed ones, whose prompt is `tok` [n_tok]. */
static sac_status ask(struct answerer *w, const int32_t *tok, size_t n_tok, size_t question,
                      sac_error *err)
{
    sac_engine *engine = w->p->engine;
    const size_t begin = question_rows_begin(&w->rows, n_tok, question);
    w->n_tok = n_tok;
    w->n_kept = count_kept(w, tok, n_tok);
    w->n_decode_row = (uint32_t)(n_tok - (begin > w->n_kept ? begin : w->n_kept));
    TRY(sac_seq_truncate(engine, w->seq, (uint32_t)w->n_kept, err));
    sac_request q = sac_request_default();
    q.seq = w->seq;
    q.prompt = tok + w->n_kept;
    q.n_prompt = n_tok - w->n_kept;
    q.n_decode_row = w->n_decode_row;
    q.sampling.temp = 0;
    q.sampling.repeat_penalty = 1;
    q.max_tokens = w->asked->sample->turn[w->n_row].new_tok;
    q.on_event = on_event;
    q.user = w;
    strbuf_reset(&w->text);
    strbuf_add(&w->text, "", 0);
    w->n_predicted = 0;
    w->mass_sum = 0;
    w->n_mass = 0;
    w->is_done = false;
    w->tier = sac_tier_get_stats(engine);
    w->submit_us = w->first_us = clock_us();
    TRY(sac_submit(engine, &q, &w->id, err));
    w->is_asked = true;
    return SAC_OK;
}

sac_status answerer_begin(struct answerer *w, sac_seq shared, sac_error *err)
{
    const struct asked *a = w->asked;
    assert(!w->is_begun && a->sample->n_turn > 0);
    w->is_begun = true;
    w->row = mem_calloc(a->sample->n_turn, sizeof *w->row);
    w->answer = mem_calloc(a->sample->n_turn, sizeof *w->answer);
    if (!w->row || !w->answer) return error_set(err, SAC_ERR_MEMORY, "out of memory for answers");
    TRY(sac_seq_fork(w->p->engine, shared, &w->seq, err));
    TRY(sac_seq_use_decode(w->p->engine, w->seq, w->subject->decode_i, err));
    return ask(w, a->tok, a->n_tok, a->question, err);
}

/* ---- Results ---- */

/* Fills in the times of an answer that had the engine to itself; other answers have none. */
static void fill_times(const struct answerer *w, struct sample_row *row)
{
    const bool is_alone = w->p->n_parallel == 1, is_first = row->turn == 0;
    const double shared_ms = is_first ? w->asked->read_ms : 0;
    const double ttft_ms = shared_ms + (double)(w->first_us - w->submit_us) * 1e-3;
    const double n_new = (double)(is_first ? w->n_tok : w->n_tok - w->n_kept);
    row->ttft_ms = row->prompt_per_s = row->predicted_per_s = (double)NAN;
    if (!is_alone) return;
    const sac_tier_stats tier = sac_tier_get_stats(w->p->engine);
    traffic_add_tier(&row->traffic, &w->tier, &tier);
    row->ttft_ms = ttft_ms;
    if (ttft_ms > 0) row->prompt_per_s = n_new / ttft_ms * 1e3;
    /* One token says nothing about the speed of decoding. */
    if (w->n_predicted > 1) row->predicted_per_s = w->timings.predicted_per_s;
}

static struct sample_row make_row(const struct answerer *w)
{
    const sac_reads none = {0}, *r = &w->reads;
    const sac_reads first = w->n_row == 0 ? w->asked->read : none;
    const uint64_t n_cell = first.n_cell + r->n_cell;
    struct sample_row row = {
        .cell = *w->asked->cell,
        .turn = w->n_row,
        .prompt_n = (uint32_t)w->n_tok,
        .predicted_n = w->n_predicted,
        .rows = {.all = w->rows.all, .n = w->n_decode_row},
        .share_read = r->n_tok_seen ? (double)r->n_tok_read / (double)r->n_tok_seen : (double)NAN,
        .traffic = traffic_between(&none, r),
        .chosen =
            choices_mean(&none, r, choices_are_made(w->p->subjects->decode[w->subject->decode_i])),
        .planned_share =
            n_cell ? (double)(first.n_cell_read + r->n_cell_read) / (double)n_cell : (double)NAN,
        .mass_mean = w->n_mass ? w->mass_sum / (double)w->n_mass : (double)NAN,
    };
    snprintf(row.method, sizeof row.method, "%s", w->subject->name);
    fill_times(w, &row);
    return row;
}

/* Scores the turn's answer and adds its row. */
static sac_status conclude(struct answerer *w, sac_error *err)
{
    const struct task_sample *sample = w->asked->sample;
    const struct task_turn *turn = &sample->turn[w->n_row];
    struct sample_row row = make_row(w);
    char *answer = strbuf_detach(&w->text, NULL), *judged = answer ? mem_strdup(answer) : NULL;
    if (judged && turn->first_line) score_keep_first_line(judged);
    const struct score_args score = {.metric = sample->metric,
                                     .answer = judged,
                                     .expected = &turn->expected,
                                     .classes = &sample->classes};
    const sac_status status = judged
                                  ? score_answer(&row.score, &score, err)
                                  : error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    mem_free(judged);
    if (status != SAC_OK) {
        mem_free(answer);
        return status;
    }
    w->row[w->n_row] = row;
    w->answer[w->n_row++] = answer;
    return SAC_OK;
}

/* The answer of an earlier turn as later turns see it; owned by the caller. */
static char *history_answer(const struct answerer *w, uint32_t turn)
{
    const struct task_turn *t = &w->asked->sample->turn[turn];
    struct strbuf text = {0};
    if (!w->p->gold_history) return mem_strdup(w->answer[turn]);
    for (size_t i = 0; i < t->expected.n; i++)
        strbuf_addf(&text, "%s%s", i || t->prefix ? " " : "", t->expected.item[i]);
    return strbuf_detach(&text, NULL);
}

sac_status answerer_ask_next(struct answerer *w, sac_error *err)
{
    assert(w->is_begun && !w->is_asked && !w->is_over);
    char *history[TASK_TURN_MAX] = {0};
    const char *const *answer = (const char *const *)history;
    int32_t *tok = NULL;
    size_t n_tok = 0, question = 0;
    sac_status status = SAC_OK;
    for (uint32_t t = 0; t < w->n_row; t++) {
        history[t] = history_answer(w, t);
        if (!history[t]) TRY_FAIL(error_set(err, SAC_ERR_MEMORY, "out of memory for an answer"));
    }
    TRY_FAIL(task_encode(w->p->text, w->asked->sample, w->n_row, answer, &tok, &n_tok, err));
    const struct task_prompt prompt = {w->asked->sample, w->n_row, answer, tok, n_tok};
    TRY_FAIL(task_find_question(w->p->text, &prompt, &question, err));
    status = ask(w, tok, n_tok, question, err);
fail:
    sac_free(tok);
    for (uint32_t t = 0; t < w->n_row; t++) mem_free(history[t]);
    return status;
}

sac_status answerer_take(struct answerer *w, sac_error *err)
{
    if (!w->is_asked || !w->is_done) return SAC_OK;
    w->is_asked = false;
    if (w->text.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    if (w->finish == SAC_FINISH_ERROR) return error_set(err, SAC_ERR_CONTEXT, "%s", w->error.msg);
    assert(w->finish != SAC_FINISH_CANCELLED);
    TRY(conclude(w, err));
    if (w->n_row < w->asked->sample->n_turn) return SAC_OK;
    sac_seq_remove(w->p->engine, w->seq);
    w->seq = SAC_SEQ_NONE;
    w->is_over = true;
    return SAC_OK;
}

void answerer_deinit(struct answerer *w)
{
    if (w->seq != SAC_SEQ_NONE) sac_seq_remove(w->p->engine, w->seq);
    for (uint32_t t = 0; t < w->n_row; t++) mem_free(w->answer[t]);
    mem_free(w->answer);
    mem_free(w->row);
    strbuf_deinit(&w->text);
}
