/* eval_docs_ask.c: see the header. The first method is the reference: its sequence and its
 * distributions are kept until the question is done. */
#include "app/eval_docs_ask.h"

#include "app/docs.h"
#include "app/generate.h"
#include "app/interrupt.h"
#include "app/joined.h"
#include "app/peak_memory.h"
#include "app/setup.h"
#include "app/setup_method.h"
#include "base/mem.h"
#include "base/workers.h"
#include "eval/logprob.h"
#include "eval/prompt.h"
#include "eval/rng.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NEW_TOK = 32, FORCED_MAX = 16 };

/* The state of one question. */
struct asked {
    struct eval_docs_asking *a;
    const struct docrow *question;
    struct multidoc text;
    struct strbuf names;       /* names of its documents, separated by commas */
    sac_doc doc[MULTIDOC_MAX]; /* [n_new], added for this question */
    size_t n_new;
    sac_doc file[JOINED_MAX]; /* [n_file], all of them, once stored */
    size_t n_file;
    int32_t *head, *tok; /* [n_head], of all prompts; [n_tok], question and answer's beginning */
    size_t n_head, n_tok;
    int32_t forced[FORCED_MAX]; /* [n_forced], the expected answer */
    size_t n_forced;
    size_t n_asked; /* of `tok`: computed by the method already */
    sac_engine *engine;
    double file_ms, cold_ms; /* time to load its documents; NAN: unknown */
    sac_seq exact; /* the first method's sequence, without the question; or SAC_SEQ_NONE */
    float *log_p;  /* [n_forced, n_vocab], the first method's, valid if has_log_p */
    bool has_log_p;
};

/* ---- Methods ---- */

static sac_status parse_one(struct eval_docs_methods *out, const char *text, size_t n,
                            sac_error *err)
{
    struct eval_docs_method *m = &out->item[out->n];
    sac_method_info info;
    if (out->n == EVAL_DOCS_METHODS || n == 0 || n >= sizeof m->name)
        return error_set(err, SAC_ERR_ARG, "'%.60s' is no list of at most %u methods", text,
                         EVAL_DOCS_METHODS);
    snprintf(m->name, sizeof m->name, "%.*s", (int)n, text);
    const size_t context = strcspn(m->name, "+");
    memcpy(m->context, m->name, context);
    m->context[context] = 0;
    TRY(sac_method_check("context", m->context, err));
    if (m->name[context]) {
        memcpy(m->decode, m->name + context + 1, n - context);
        TRY(sac_method_check("decode", m->decode, err));
    } else if (setup_method_find("context", m->context, &info) && info.decode) {
        snprintf(m->decode, sizeof m->decode, "%s", info.decode); /* it needs that */
    }
    while (*m->decode && m->decode_i < out->n_decode &&
           strcmp(out->decode[m->decode_i], m->decode) != 0)
        m->decode_i++;
    if (*m->decode && m->decode_i == out->n_decode) out->decode[out->n_decode++] = m->decode;
    out->n++;
    return SAC_OK;
}

sac_status eval_docs_parse(struct eval_docs_methods *out, const char *list, sac_error *err)
{
    *out = (struct eval_docs_methods){.decode = {"full"}, .n_decode = 1};
    for (const char *at = list; *at;) {
        size_t n = strcspn(at, ",");
        while (at[n]) {
            const size_t next = strcspn(at + n + 1, ",");
            const char *equals = memchr(at + n + 1, '=', next);
            if (!equals || memchr(at + n + 1, ':', (size_t)(equals - at) - n - 1)) break;
            n += 1 + next;
        }
        TRY(parse_one(out, at, n, err));
        at += n + (at[n] == ',');
    }
    return out->n ? SAC_OK : error_set(err, SAC_ERR_ARG, "no method is named");
}

/* ---- Tokens ---- */

/* Encodes what follows the documents: the question, the template, the beginning of the answer. */
static sac_status encode_question(struct asked *q, sac_error *err)
{
    const struct prompt_form form = {.raw = q->a->raw};
    const sac_model *model = q->a->model;
    struct strbuf text = {0};
    int32_t *all = NULL, *prefix = NULL;
    size_t n_all = 0, n_prefix = 0;
    TRY(prompt_head(model, &form, &q->head, &q->n_head, err));
    strbuf_adds(&text, q->text.question);
    sac_status status = text.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory") : SAC_OK;
    if (status == SAC_OK) status = prompt_form_tokens(model, &form, &text, &all, &n_all, err);
    if (status == SAC_OK)
        status =
            sac_tokenize(model, q->text.prefix, strlen(q->text.prefix), 0, &prefix, &n_prefix, err);
    if (status == SAC_OK) {
        q->n_tok = n_all - q->n_head + n_prefix;
        q->tok = mem_alloc(q->n_tok * sizeof *q->tok);
        if (!q->tok) status = error_set(err, SAC_ERR_MEMORY, "out of memory");
    }
    if (status == SAC_OK) {
        memcpy(q->tok, all + q->n_head, (n_all - q->n_head) * sizeof *q->tok);
        memcpy(q->tok + n_all - q->n_head, prefix, n_prefix * sizeof *q->tok);
    }
    sac_free(all);
    sac_free(prefix);
    strbuf_deinit(&text);
    return status;
}

static sac_status encode_answer(struct asked *q, sac_error *err)
{
    char text[32];
    int32_t *tok = NULL;
    size_t n = 0;
    snprintf(text, sizeof text, " %s", q->text.expected);
    TRY(sac_tokenize(q->a->model, text, strlen(text), 0, &tok, &n, err));
    q->n_forced = n < FORCED_MAX ? n : FORCED_MAX;
    memcpy(q->forced, tok, q->n_forced * sizeof *tok);
    sac_free(tok);
    return SAC_OK;
}

/* ---- Documents ---- */

/* Sized for the longest question, so that one engine serves all. */
static sac_status open_reader(struct eval_docs_asking *a, size_t n_head, sac_error *err)
{
    if (a->reader) return SAC_OK;
    const uint32_t n_ctx = (uint32_t)n_head + 2 * a->args->n_tok + 1024;
    const sac_engine_params params = setup_engine_params(a->setup, n_ctx, 1);
    return sac_engine_create(&a->reader, a->model, &params, err);
}

/* Documents are named by a hash of their text, so that equal texts are stored once. */
static sac_status add_document(struct asked *q, const char *text, sac_error *err)
{
    char name[40];
    bool was_there = true;
    int32_t *tok = NULL;
    size_t n_tok = 0;
    struct strbuf whole = {0};
    snprintf(name, sizeof name, "eval-%016llx", (unsigned long long)rng_hash(text, strlen(text)));
    strbuf_addf(&q->names, "%s%s", q->names.n ? "," : "", name);
    strbuf_addf(&whole, "%s\n\n", text); /* as in `docs add` */
    sac_status status = whole.failed || q->names.failed
                            ? error_set(err, SAC_ERR_MEMORY, "out of memory for documents")
                            : sac_tokenize(q->a->model, whole.data, whole.n, 0, &tok, &n_tok, err);
    strbuf_deinit(&whole);
    if (status == SAC_OK) {
        const sac_doc_source source = {
            .name = name, .head = q->head, .n_head = q->n_head, .tok = tok, .n_tok = n_tok};
        status =
            sac_doc_add(q->a->store, q->a->reader, &source, &q->doc[q->n_new], &was_there, err);
    }
    if (status == SAC_OK && !was_there) q->n_new++;
    sac_free(tok);
    return status;
}

static sac_status add_documents(struct asked *q, sac_error *err)
{
    TRY(open_reader(q->a, q->n_head, err));
    for (uint32_t d = 0; d < q->text.n; d++) {
        TRY(add_document(q, q->text.document[d], err));
        if (interrupt_pending()) return error_set(err, SAC_ERR_CANCELLED, "interrupted");
    }
    return SAC_OK;
}

/* ---- Measurements ---- */

struct distance {
    struct asked *q;
    uint32_t n_vocab, row; /* row: the next one */
    double kl;
};

static void on_logits(void *user, const sac_row *row)
{
    struct distance *d = user;
    float *log_p = d->q->log_p + (size_t)d->row++ * d->n_vocab;
    logprob_from_logits(row->logits, d->n_vocab);
    if (d->q->has_log_p)
        d->kl += logprob_kl(log_p, row->logits, d->n_vocab);
    else
        memcpy(log_p, row->logits, d->n_vocab * sizeof *log_p);
}

/* Mean KL divergence from the first method over the tokens of the expected answer, which is
 * forced. */
static sac_status measure_kl(struct asked *q, sac_seq seq, double *out, sac_error *err)
{
    struct distance d = {.q = q, .n_vocab = sac_model_get_info(q->a->model).n_vocab};
    uint32_t pending = 1;
    if (!q->log_p) q->log_p = mem_alloc(q->n_forced * d.n_vocab * sizeof *q->log_p);
    if (!q->log_p) return error_set(err, SAC_ERR_MEMORY, "out of memory for distributions");
    TRY(sac_seq_append(q->engine, seq, q->tok + q->n_asked, q->n_tok - 1 - q->n_asked,
                       SAC_ROW_PROMPT, SAC_WANT_NONE, err));
    TRY(sac_seq_append(q->engine, seq, q->tok + q->n_tok - 1, 1, SAC_ROW_DECODE, SAC_WANT_ALL,
                       err));
    TRY(sac_seq_append(q->engine, seq, q->forced, q->n_forced - 1, SAC_ROW_DECODE, SAC_WANT_ALL,
                       err));
    while (pending) {
        TRY(sac_step(q->engine, on_logits, &d, NULL, err));
        sac_seq_length(q->engine, seq, &pending);
    }
    *out = q->has_log_p ? d.kl / (double)q->n_forced : 0;
    q->has_log_p = true;
    return SAC_OK;
}

static sac_status measure_values(const struct asked *q, sac_seq seq, uint32_t n_tok,
                                 struct docrow *row, sac_error *err)
{
    double sum = 0;
    uint32_t n = 0;
    row->n_layer = sac_model_get_info(q->a->model).n_layer;
    if (row->n_layer > DOCROW_LAYER_MAX) row->n_layer = 0;
    if (row->n_layer == 0) return SAC_OK;
    TRY(sac_seq_compare(q->engine, seq, q->exact == SAC_SEQ_NONE ? seq : q->exact, n_tok,
                        row->layer_error, err));
    for (uint32_t l = 0; l < row->n_layer; l++) {
        if (!isfinite(row->layer_error[l])) continue;
        sum += row->layer_error[l];
        n++;
    }
    if (n) row->value[DOCROW_KV_ERROR] = sum / n;
    return SAC_OK;
}

static void fill_row(struct docrow *row, const struct joined *j, const struct generation *g,
                     const char *expected)
{
    const sac_compose_report *r = &j->report;
    const bool right = g->text.data && strstr(g->text.data, expected);
    row->value[DOCROW_SCORE] = right ? 1 : 0;
    row->value[DOCROW_RESIDENT] = r->resident_share;
    row->value[DOCROW_RECOMPUTED] = r->recomputed_share;
    row->value[DOCROW_BYTES] = (double)j->own_bytes;
    row->value[DOCROW_PEAK] = (double)j->peak_bytes;
    row->value[DOCROW_LOAD] = j->load_ms;
    row->value[DOCROW_JOIN] = r->join_ms;
    row->value[DOCROW_PROBE] = r->probe_ms;
    row->value[DOCROW_REFRESH] = r->refresh_ms;
    row->value[DOCROW_QUERY] = g->ttft_ms;
    row->value[DOCROW_TTFT] = j->load_ms + r->join_ms + r->probe_ms + r->refresh_ms + g->ttft_ms;
}

/* ---- Asking ---- */

static sac_status answer(struct asked *q, sac_seq seq, struct generation *g, sac_error *err)
{
    g->engine = q->engine;
    g->model = q->a->model;
    g->request = sac_request_default();
    g->request.seq = seq;
    g->request.sampling.temp = 0;
    g->request.prompt = q->tok + q->n_asked;
    g->request.n_prompt = q->n_tok - q->n_asked;
    g->request.max_tokens = NEW_TOK;
    TRY(generation_run(g, err));
    return interrupt_pending() ? error_set(err, SAC_ERR_CANCELLED, "interrupted") : SAC_OK;
}

/* `seq` holds the documents, joined by the method. The divergence is measured on a fork, outside of
 * the measured times. */
static sac_status measure(struct asked *q, sac_seq seq, const struct joined *j, struct docrow *row,
                          sac_error *err)
{
    struct generation g = {0};
    sac_seq fork;
    const uint64_t others = sac_engine_get_stats(q->engine).kv_bytes_used;
    TRY(sac_seq_fork(q->engine, seq, &fork, err));
    sac_status status = answer(q, seq, &g, err);
    if (status == SAC_OK) {
        fill_row(row, j, &g, q->text.expected);
        row->value[DOCROW_KV] += (double)(sac_engine_get_stats(q->engine).kv_bytes_used - others);
        status = measure_kl(q, fork, &row->value[DOCROW_KL], err);
    }
    if (status == SAC_OK) status = measure_values(q, fork, j->n_tok, row, err);
    sac_seq_remove(q->engine, fork);
    if (status == SAC_OK)
        status = q->a->on_row(q->a->user, row, g.text.data ? g.text.data : "", err);
    generation_deinit(&g);
    return status;
}

/* Loads all documents of the question and removes the sequences. */
static sac_status load_files(const struct asked *q, double *out_ms, sac_error *err)
{
    struct joined j = {.store = q->a->store};
    const sac_engine_params params = sac_engine_get_params(q->engine);
    sac_docs_forget(q->engine);
    const uint64_t start = clock_us();
    TRY(joined_find(&j, q->names.data, q->a->model, &params, err)); /* reads ahead */
    for (size_t i = 0; i < j.n; i++) {
        sac_seq seq;
        TRY(sac_doc_load(j.store, q->engine, j.doc[i].name, &seq, &j.doc[i], err));
        sac_seq_remove(q->engine, seq);
    }
    *out_ms = (double)(clock_us() - start) * 1e-3;
    return SAC_OK;
}

/* Measures once with an empty page cache, if requested, and once with the files cached. The pages
 * loaded last stay in the engine, where methods find them. */
static sac_status measure_loading(struct asked *q, sac_error *err)
{
    double first_ms;
    for (size_t i = 0; q->a->cold && i < q->n_file; i++)
        TRY(docs_cool(q->a->folder, &q->file[i], err));
    TRY(load_files(q, &first_ms, err));
    q->cold_ms = q->a->cold ? first_ms : (double)NAN;
    return load_files(q, &q->file_ms, err);
}

static sac_status ask(struct asked *q, const struct eval_docs_method *m, sac_error *err)
{
    struct joined j = {.store = q->a->store};
    struct docrow row = *q->question;
    const sac_engine_params params = sac_engine_get_params(q->engine);
    const struct joined_prompt prompt = {q->head, q->tok, q->n_head, q->n_tok};
    const uint64_t before = sac_engine_get_stats(q->engine).kv_bytes_used;
    sac_seq seq;
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) row.value[f] = (double)NAN;
    snprintf(row.method, sizeof row.method, "%s", m->name);
    snprintf(j.method, sizeof j.method, "%s", m->context);
    row.value[DOCROW_LOAD_FILE] = q->file_ms;
    row.value[DOCROW_LOAD_COLD] = q->cold_ms;
    const bool has_peak = peak_memory_reset();
    TRY(joined_find(&j, q->names.data, q->a->model, &params, err));
    TRY(joined_make(&j, q->engine, &prompt, &seq, err));
    row.value[DOCROW_KV] = (double)(sac_engine_get_stats(q->engine).kv_bytes_used - before);
    if (has_peak) row.value[DOCROW_RSS] = (double)peak_memory_bytes();
    q->n_asked = sac_seq_length(q->engine, seq, NULL) - j.n_tok;
    sac_status status = SAC_OK;
    if (*m->decode) status = sac_seq_use_decode(q->engine, seq, m->decode_i, err);
    if (status == SAC_OK) status = measure(q, seq, &j, &row, err);
    if (status == SAC_OK && q->exact == SAC_SEQ_NONE) {
        q->exact = seq; /* the state before the question */
        return sac_seq_truncate(q->engine, seq, j.n_tok, err);
    }
    sac_seq_remove(q->engine, seq);
    return status;
}

/* Sized for the stored documents, two joined copies, and a fork. */
static sac_status open_engine(struct asked *q, sac_error *err)
{
    const struct eval_docs_methods *m = q->a->methods;
    struct joined j = {.store = q->a->store};
    sac_engine_params params = setup_engine_params(q->a->setup, 0, 1);
    TRY(joined_find(&j, q->names.data, q->a->model, &params, err));
    memcpy(q->file, j.doc, j.n * sizeof *q->file);
    q->n_file = j.n;
    params.n_ctx = j.n_tok + (uint32_t)q->n_tok + NEW_TOK + FORCED_MAX;
    joined_plan(&j, &params, params.n_ctx);
    params.n_seq_max += 2;
    params.n_kv_tok += (uint64_t)params.n_ctx + q->n_tok + NEW_TOK + 4 * SAC_PAGE_TOK;
    params.decode = m->decode;
    params.n_decode = m->n_decode;
    return sac_engine_create(&q->engine, q->a->model, &params, err);
}

static bool is_known(const struct asked *q, const struct eval_docs_method *m)
{
    struct docrow row = *q->question;
    snprintf(row.method, sizeof row.method, "%s", m->name);
    return docrows_has(q->a->known, &row);
}

static sac_status ask_all(struct asked *q, sac_error *err)
{
    const struct eval_docs_methods *m = q->a->methods;
    const struct multidoc_cell cell = {q->question->task, q->question->place, q->question->index};
    TRY(multidoc_make(&q->text, q->a->args, &cell, q->a->model, err));
    TRY(encode_question(q, err));
    TRY(encode_answer(q, err));
    TRY(add_documents(q, err));
    TRY(open_engine(q, err));
    TRY(measure_loading(q, err));
    for (size_t i = 0; i < m->n; i++)
        if (i == 0 || !is_known(q, &m->item[i])) /* the first method is the reference */
            TRY(ask(q, &m->item[i], err));
    return SAC_OK;
}

sac_status eval_docs_ask(struct eval_docs_asking *a, const struct docrow *question, sac_error *err)
{
    struct asked q = {.a = a, .question = question, .exact = SAC_SEQ_NONE};
    bool all = true;
    for (size_t i = 0; i < a->methods->n; i++) all = all && is_known(&q, &a->methods->item[i]);
    if (all) return SAC_OK;
    sac_status status = ask_all(&q, err);
    sac_engine_free(q.engine);
    for (size_t i = 0; !a->keep && i < q.n_new; i++) {
        const sac_status removed =
            sac_doc_remove(a->store, &q.doc[i], status == SAC_OK ? err : NULL);
        if (status == SAC_OK) status = removed;
    }
    multidoc_deinit(&q.text);
    strbuf_deinit(&q.names);
    sac_free(q.head);
    mem_free(q.tok);
    mem_free(q.log_p);
    return status;
}
