/* session.c: see the header. The engine is asked each time for the tokens that the sequence holds:
 * nothing here stores a copy that could differ. */
#include "app/session.h"

#include "app/interrupt.h"
#include "app/progress.h"
#include "app/setup_method.h"
#include "app/setup_sampling.h"
#include "base/mem.h"
#include "eval/prompt.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define PAGE 32u /* granularity at which the engine shares pages */

/* ---- Engine ---- */

static sac_status open_engine(struct session *s, const struct session_plan *plan, sac_error *err)
{
    const char *const prefill = plan->prefill, *const decode = plan->decode;
    sac_engine_params p = setup_engine_params(&s->setup, plan->n_ctx, 1);
    p.prefill = &prefill;
    p.n_prefill = *prefill ? 1 : 0;
    p.decode = &decode;
    p.n_decode = *decode ? 1 : 0;
    p.record = plan->record;
    p.prefix_cache = !s->no_prefix_cache && !s->docs; /* joined: no prefix */
    if (s->docs) joined_plan(&s->joined, &p, plan->n_ctx);
    TRY(sac_engine_create(&s->engine, s->model, &p, err));
    sac_status status = setup_check_memory(s->setup.command, s->engine, err);
    if (status == SAC_OK) {
        p = sac_engine_get_params(s->engine);
        s->plan = *plan;
        s->rows = question_in_force(s->rows_wanted, p.prefill[0], p.decode[0]);
        return SAC_OK;
    }
    sac_engine_free(s->engine);
    s->engine = NULL;
    return status;
}

/* Documents are looked up before the engine is created, which must have room for them. */
static sac_status find_documents(struct session *s, sac_error *err)
{
    const sac_engine_params p = setup_engine_params(&s->setup, 0, 1);
    sac_method_info m;
    TRY(joined_open(&s->joined, s->store, s->docs, s->context, err));
    TRY(joined_find(&s->joined, s->docs, s->model, &p, err));
    if (s->context && setup_method_find("context", s->context, &m)) s->chooses = m.needs_question;
    s->doc_tok = mem_calloc(s->joined.n_tok, sizeof *s->doc_tok);
    return s->doc_tok
               ? SAC_OK
               : error_set(err, SAC_ERR_MEMORY, "out of memory for %u tokens", s->joined.n_tok);
}

sac_status session_open(struct session *s, sac_error *err)
{
    struct session_plan plan = {.n_ctx = s->setup.n_ctx};
    if (plan.n_ctx == 0) plan.n_ctx = sac_model_get_info(s->model).n_ctx_train;
    if (s->docs) TRY(find_documents(s, err));
    if (s->setup.prefill) snprintf(plan.prefill, sizeof plan.prefill, "%s", s->setup.prefill_spec);
    if (s->setup.decode) snprintf(plan.decode, sizeof plan.decode, "%s", s->setup.decode_spec);
    TRY(structure_open(&s->structure, s->model, err));
    TRY(open_engine(s, &plan, err));
    setup_warn_of_context(s->setup.command, s->model, plan.n_ctx);
    return sac_seq_create(s->engine, &s->seq, err);
}

void session_close(struct session *s)
{
    conversation_deinit(&s->said);
    joined_close(&s->joined);
    mem_free(s->doc_tok);
    structure_close(&s->structure);
    sac_engine_free(s->engine);
    sac_model_free(s->model);
}

sac_status session_rebuild(struct session *s, const struct session_plan *plan, bool *out_kept,
                           sac_error *err)
{
    const struct session_plan before = s->plan;
    uint8_t *bytes = NULL;
    size_t n = 0;
    sac_error again;
    TRY(sac_seq_truncate(s->engine, s->seq, sac_seq_length(s->engine, s->seq, NULL), err));
    TRY(sac_seq_to_bytes(s->engine, s->seq, &bytes, &n, err));
    sac_engine_free(s->engine); /* freed first, since both may not fit into memory */
    s->engine = NULL;
    sac_status status = open_engine(s, plan, err);
    if (status != SAC_OK && open_engine(s, &before, &again) != SAC_OK)
        status = error_set(err, SAC_ERR_MEMORY, "%s; and the engine is lost", again.msg);
    sac_error *why = status == SAC_OK ? err : &again;
    *out_kept = s->engine && sac_seq_from_bytes(s->engine, bytes, n, &s->seq, why) == SAC_OK;
    sac_free(bytes);
    if (!s->engine || *out_kept) return status;
    s->answer_at = 0;
    TRY(sac_seq_create(s->engine, &s->seq, why));
    return status;
}

/* ---- What the sequence holds ---- */

/* Replaces the head in `*tok` (owned, reallocated) by the documents' tokens, which include it. */
static sac_status put_documents(const struct session *s, int32_t **tok, size_t *n, sac_error *err)
{
    const struct prompt_form form = {.system = s->said.system, .chat_template = s->chat_template};
    int32_t *head = NULL, *all = NULL;
    size_t n_head = 0;
    TRY(prompt_head(s->model, &form, &head, &n_head, err));
    sac_status status = SAC_OK;
    if (n_head > *n || memcmp(*tok, head, n_head * sizeof *head) != 0)
        status = error_set(err, SAC_ERR_UNSUPPORTED,
                           "the chat template puts something before the first question that "
                           "depends on it: documents cannot stand there");
    const size_t n_doc = s->joined.n_tok;
    if (status == SAC_OK) all = mem_alloc((n_doc + *n - n_head) * sizeof *all);
    if (status == SAC_OK && !all)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", n_doc + *n);
    sac_free(head);
    TRY(status);
    memcpy(all, s->doc_tok, n_doc * sizeof *all);
    memcpy(all + n_doc, *tok + n_head, (*n - n_head) * sizeof *all);
    sac_free(*tok);
    *tok = all;
    *n += n_doc - n_head;
    return SAC_OK;
}

/* The tokens of the conversation up to the assistant's turn; `last` (or NULL) replaces the last
 * turn. */
static sac_status render(const struct session *s, const char *last, int32_t **out_tok,
                         size_t *out_n, sac_error *err)
{
    const struct conversation *said = &s->said;
    sac_message *msgs = mem_calloc(said->n_turn + 1, sizeof *msgs);
    size_t n = 0;
    if (!msgs) return error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation");
    if (said->system) msgs[n++] = (sac_message){.role = "system", .content = said->system};
    for (size_t i = 0; i < said->n_turn; i++)
        msgs[n++] = (sac_message){.role = said->turns[i].role, .content = said->turns[i].text};
    if (last) msgs[n - 1].content = last;
    sac_status status = prompt_chat(s->model, msgs, n, s->chat_template, out_tok, out_n, err);
    mem_free(msgs);
    if (status != SAC_OK || !s->docs) return status;
    status = put_documents(s, out_tok, out_n, err);
    if (status != SAC_OK) sac_free(*out_tok);
    return status;
}

/* The same with an empty question after the waiting documents. */
static sac_status render_waiting(struct session *s, int32_t **out_tok, size_t *out_n,
                                 sac_error *err)
{
    TRY(conversation_ask(&s->said, "", err));
    const sac_status status = render(s, NULL, out_tok, out_n, err);
    conversation_unask(&s->said);
    return status;
}

sac_status session_count(struct session *s, size_t *out, sac_error *err)
{
    int32_t *tok = NULL;
    const sac_status status = render_waiting(s, &tok, out, err);
    sac_free(tok);
    return status;
}

/* Cuts the sequence to its common prefix with `tok` and returns its length, which is less than n so
 * that there are logits. The engine looks pages up by content at page boundaries, so the prefix is
 * rounded down to a page if more than a page follows. */
static sac_status keep_common(struct session *s, const int32_t *tok, size_t n, uint32_t *out,
                              sac_error *err)
{
    const uint32_t n_held = sac_seq_length(s->engine, s->seq, NULL);
    const int32_t *held = sac_seq_tokens(s->engine, s->seq);
    uint32_t common = 0;
    assert(n > 0);
    if (n > s->plan.n_ctx)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the conversation has %zu tokens, the context holds %u", n, s->plan.n_ctx);
    while (common < n_held && common + 1 < n && held[common] == tok[common]) common++;
    if (!s->no_prefix_cache && common < n_held && n - common > PAGE) common -= common % PAGE;
    TRY(sac_seq_truncate(s->engine, s->seq, common, err));
    s->answer_at = 0;
    *out = common;
    return SAC_OK;
}

/* Joins the documents for the prompt `tok` [n] and inserts their tokens, unless the sequence has
 * them already and they do not depend on the question. */
static sac_status join_documents(struct session *s, int32_t *tok, size_t n, sac_error *err)
{
    const size_t n_doc = s->joined.n_tok;
    const struct prompt_form form = {.system = s->said.system, .chat_template = s->chat_template};
    struct joined_prompt prompt = {.question = tok + n_doc, .n_question = n - n_doc};
    int32_t *head = NULL;
    if (n > s->plan.n_ctx) return SAC_OK; /* keep_common reports this */
    const bool is_there =
        s->has_doc_tok && sac_seq_length(s->engine, s->seq, NULL) >= n_doc &&
        memcmp(sac_seq_tokens(s->engine, s->seq), s->doc_tok, n_doc * sizeof *tok) == 0;
    if (is_there && !s->chooses) return SAC_OK;
    TRY(prompt_head(s->model, &form, &head, &prompt.n_head, err));
    prompt.head = head;
    sac_seq_remove(s->engine, s->seq);
    const sac_status status = joined_make(&s->joined, s->engine, &prompt, &s->seq, err);
    sac_free(head);
    if (status != SAC_OK) {
        TRY(sac_seq_create(s->engine, &s->seq, NULL));
        return status;
    }
    memcpy(s->doc_tok, sac_seq_tokens(s->engine, s->seq), n_doc * sizeof *tok);
    memcpy(tok, s->doc_tok, n_doc * sizeof *tok);
    s->has_doc_tok = true;
    return SAC_OK;
}

/* Computes queued tokens up to `n` in total; after Ctrl-C drops the rest. */
static sac_status compute(struct session *s, const char *label, size_t n, sac_error *err)
{
    struct progress bar;
    uint32_t pending = 1;
    sac_status status = SAC_OK;
    const uint32_t begin = sac_seq_length(s->engine, s->seq, NULL);
    progress_begin(&bar, label);
    while (status == SAC_OK && pending && !interrupt_pending()) {
        status = sac_step(s->engine, NULL, NULL, NULL, err);
        const uint32_t done = sac_seq_length(s->engine, s->seq, &pending);
        snprintf(bar.note, sizeof bar.note, "%u of %zu tokens", done, n);
        progress_update(&bar, (double)(done - begin) / (double)(n - begin));
    }
    progress_end(&bar);
    const uint32_t length = sac_seq_length(s->engine, s->seq, &pending);
    if (status == SAC_OK && pending) status = sac_seq_truncate(s->engine, s->seq, length, err);
    return status;
}

sac_status session_read_ahead(struct session *s, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    uint32_t common = 0;
    if (s->docs) return SAC_OK; /* they are joined when there is a question */
    TRY(render_waiting(s, &tok, &n, err));
    sac_status status = keep_common(s, tok, n, &common, err);
    if (status == SAC_OK)
        status = sac_seq_append(s->engine, s->seq, tok + common, n - common, SAC_ROW_PROMPT,
                                SAC_WANT_NONE, err);
    if (status == SAC_OK) status = compute(s, "reading", n, err);
    interrupt_clear();
    sac_free(tok);
    return status;
}

/* ---- One answer ---- */

static sac_status encode_other(const void *arg, const char *question, int32_t **out_tok,
                               size_t *out_n, sac_error *err)
{
    const struct session *s = arg;
    const struct turn *turn = &s->said.turns[s->said.n_turn - 1];
    struct strbuf text = {0};
    strbuf_add(&text, turn->text, conversation_document_bytes(turn));
    strbuf_adds(&text, question);
    const sac_status status =
        text.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for the conversation")
                    : render(s, text.data, out_tok, out_n, err);
    strbuf_deinit(&text);
    return status;
}

/* How many of the prompt's rows after `common` the decode method serves. */
static sac_status count_decode_rows(struct session *s, const int32_t *tok, size_t n,
                                    uint32_t common, sac_error *err)
{
    const struct question_text text = {encode_other, s};
    size_t question = 0;
    if (s->rows.all) TRY(question_find(&question, tok, n, &text, err));
    const size_t begin = question_rows_begin(&s->rows, n, question);
    s->n_decode_row = (uint32_t)(n - (begin > common ? begin : common));
    return SAC_OK;
}

sac_status session_answer(struct session *s, struct generation *g, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    uint32_t common = 0;
    g->engine = s->engine;
    g->model = s->model;
    g->stream = true;
    g->request = sac_request_default();
    TRY(setup_sampling_params(&s->sampling, &g->request.sampling, s->bias, err));
    if (s->sampling.seed >= 0) g->request.sampling.seed = (uint64_t)s->sampling.seed + s->n_asked;
    s->n_asked++;
    TRY(render(s, NULL, &tok, &n, err));
    sac_status status = s->docs ? join_documents(s, tok, n, err) : SAC_OK;
    if (status == SAC_OK) status = keep_common(s, tok, n, &common, err);
    if (status == SAC_OK) status = count_decode_rows(s, tok, n, common, err);
    if (status == SAC_OK) {
        g->request.n_decode_row = s->n_decode_row;
        g->request.seq = s->seq;
        g->request.prompt = tok + common;
        g->request.n_prompt = n - common;
        g->request.max_tokens = s->n_predict < 0 ? 0 : (uint32_t)s->n_predict;
        g->request.stop = s->stop.item;
        g->request.n_stop = s->stop.n;
        g->request.ignore_eos = s->ignore_eos;
        status = structure_begin(&s->structure, &g->request, err);
        if (status == SAC_OK) status = generation_run(g, err);
        if (status != SAC_OK) structure_explain(&s->structure, err);
        if (status == SAC_OK && g->n_tok > 0) s->answer_at = (uint32_t)n;
    }
    s->timings = g->timings;
    sac_free(tok);
    return status;
}

/* ---- Attention ---- */

/* Collects stored documents and those of all questions. Without any, pasted text: earlier
 * questions, and the last one up to its last line. */
static sac_status gather(const struct session *s, struct reading_docs *out, sac_error *err)
{
    const struct conversation *c = &s->said;
    if (s->docs) TRY(reading_docs_add_joined(out, &s->joined, s->model, s->doc_tok, err));
    for (size_t i = 0; i < c->n_turn && out->n < READING_DOCS_MAX; i += 2)
        if (c->turns[i].n_document)
            reading_docs_add(out, c->turns[i].document[0].name, c->turns[i].text,
                             conversation_document_bytes(&c->turns[i]));
    for (size_t i = 0; out->n == 0 && i < c->n_turn; i += 2) {
        const char *text = c->turns[i].text, *line = strrchr(text, '\n');
        const bool is_last = i + 2 >= c->n_turn;
        if (is_last && line) reading_docs_add(out, "what was pasted", text, (size_t)(line - text));
    }
    return out->n > 0 ? SAC_OK
                      : error_set(err, SAC_ERR_NOT_FOUND,
                                  "the conversation has no document: /file puts one in");
}

/* Repeats the answer with recording, including the prompt rows that the decode method served. `tok`
 * [n] is the content of the sequence. */
static sac_status replay(struct session *s, const int32_t *tok, uint32_t n, sac_error *err)
{
    const uint32_t begin = s->answer_at - s->n_decode_row;
    TRY(sac_seq_truncate(s->engine, s->seq, begin, err));
    TRY(sac_seq_append(s->engine, s->seq, tok + begin, n - begin, SAC_ROW_DECODE, SAC_WANT_NONE,
                       err));
    TRY(compute(s, "rereading", n, err));
    return interrupt_pending() ? error_set(err, SAC_ERR_CANCELLED, "interrupted") : SAC_OK;
}

static sac_status record(struct session *s, struct passages *out, const struct reading_docs *docs,
                         sac_error *err)
{
    sac_error ignored;
    struct passages_document document[READING_DOCS_MAX];
    reading_docs_list(docs, document);
    const uint32_t n = sac_seq_length(s->engine, s->seq, NULL), at = s->answer_at;
    int32_t *tok = mem_calloc(n + 1, sizeof *tok);
    if (!tok) return error_set(err, SAC_ERR_MEMORY, "out of memory for a reading map");
    memcpy(tok, sac_seq_tokens(s->engine, s->seq), n * sizeof *tok);
    const struct passages_prompt prompt = {s->model, tok, at, document, docs->n, false};
    sac_status status = passages_begin(out, s->engine, &prompt, err);
    if (status == SAC_OK) status = replay(s, tok, n, err);
    if (status == SAC_OK)
        status = passages_finish(out, s->engine, err);
    else
        (void)!sac_engine_set_recorder(s->engine, NULL, NULL, &ignored);
    if (sac_seq_length(s->engine, s->seq, NULL) < n) s->answer_at = 0; /* incomplete */
    mem_free(tok);
    return status;
}

/* Moves the sequence to an engine that records. If methods that depend on the question cannot take
 * it over, that engine serves only this record. */
static sac_status read_again(struct session *s, const struct reading_docs *docs,
                             struct passages *out, sac_error *err)
{
    struct session_plan plan = s->plan;
    const bool is_plain = !plan.record;
    bool kept = true;
    sac_error ignored;
    plan.record = true;
    if (is_plain) TRY(session_rebuild(s, &plan, &kept, err));
    sac_status status = kept ? record(s, out, docs, err) : SAC_ERR_UNSUPPORTED; /* `err` is set */
    if (!is_plain || !(s->docs && s->chooses)) return status;
    plan.record = false;
    const sac_status back = session_rebuild(s, &plan, &kept, &ignored);
    return status == SAC_OK && back != SAC_OK ? error_set(err, back, "%s", ignored.msg) : status;
}

sac_status session_reading(struct session *s, struct reading_docs *docs, struct passages *out,
                           sac_error *err)
{
    if (s->answer_at == 0)
        return error_set(err, SAC_ERR_NOT_FOUND, "there is no answer whose reading could be shown");
    sac_status status = gather(s, docs, err);
    if (status == SAC_OK) status = read_again(s, docs, out, err);
    interrupt_clear();
    return status;
}

/* ---- Files ---- */

sac_status session_save_state(struct session *s, const char *path, sac_error *err)
{
    TRY(sac_seq_truncate(s->engine, s->seq, sac_seq_length(s->engine, s->seq, NULL), err));
    return sac_seq_save(s->engine, s->seq, path, err);
}

sac_status session_load_state(struct session *s, const char *path, sac_error *err)
{
    s->answer_at = 0;
    sac_seq_remove(s->engine, s->seq);
    const sac_status status = sac_seq_load(s->engine, path, &s->seq, err);
    if (status != SAC_OK) TRY(sac_seq_create(s->engine, &s->seq, NULL));
    return status;
}
