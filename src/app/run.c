/* run.c: `saccade run` answers one prompt, for pipes and scripts: the answer on stdout, everything
 * else on stderr. With `-o json` stdout is one object and nothing streams.
 *
 * What is computed before the request, documents that are saved or the prompt under --show-reading,
 * is computed by read_to and counted as a part of the answer's times. */
#include "app/app.h"
#include "app/docs.h"
#include "app/escape.h"
#include "app/generate.h"
#include "app/interrupt.h"
#include "app/joined.h"
#include "app/options.h"
#include "app/output.h"
#include "app/passages_print.h"
#include "app/progress.h"
#include "app/reading_docs.h"
#include "app/setup.h"
#include "app/source.h"
#include "app/structure.h"
#include "app/units.h"
#include "base/mem.h"
#include "base/textfile.h"
#include "base/workers.h"
#include "eval/choices.h"
#include "eval/passages.h"
#include "eval/prompt.h"
#include "eval/question.h"
#include "eval/traffic.h"

#include "saccade.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COMMAND "run"

#define BETWEEN_FILES "\n\n"

enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_HTML };

struct run_options {
    const char *prompt, *system, *template_name, *template_file;
    const char *load_state, *save_state, *rows;
    struct option_list files, stop;
    const char *docs, *context, *store;
    int32_t n_predict;
    uint32_t n_probs;
    bool raw, as_is, escape, ignore_eos, quiet, show_reading;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct run_options, field), arg, help, __VA_ARGS__                   \
    }

static const struct option_spec specs[] = {
    OPT("-p --prompt", OPTION_TEXT, prompt, "TEXT", "question or instruction", .env = NULL),
    OPT("-f --file", OPTION_LIST, files, "FILE",
        "document that precedes the prompt; - is stdin; repeatable", .env = NULL),
    OPT("--docs", OPTION_TEXT, docs, "NAME,NAME", JOINED_DOCS_HELP, .env = NULL),
    OPT("--context", OPTION_TEXT, context, "SPEC", JOINED_CONTEXT_HELP, .env = "CONTEXT"),
    OPT("--store", OPTION_TEXT, store, "DIR", DOCS_STORE_HELP, .env = NULL),
    OPT("--save-state", OPTION_TEXT, save_state, "FILE",
        "save what was computed for the documents to FILE, for other questions; without -p the "
        "command stops there",
        .env = NULL),
    OPT("--load-state", OPTION_TEXT, load_state, "FILE",
        "load from FILE; what it holds of this prompt, -f included, is not computed again",
        .env = NULL),
    OPT("-sys --system-prompt", OPTION_TEXT, system, "TEXT", "system message", .env = NULL),
    OPT("--raw --no-chat -no-cnv --no-conversation", OPTION_FLAG, raw, NULL,
        "complete the text as it is, without a chat template; documents byte for byte",
        .env = NULL),
    OPT("--as-is", OPTION_FLAG, as_is, NULL, SOURCE_AS_IS_HELP, .env = NULL),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "name of a built-in template, or template text, to use instead of the model's own",
        .env = "CHAT_TEMPLATE"),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE", "file with a chat template",
        .env = "CHAT_TEMPLATE_FILE"),
    OPT("-e --escape", OPTION_FLAG, escape, NULL,
        "interpret \\n \\r \\t \\\" \\' \\\\ and \\xNN in -p, -sys and --stop", .env = NULL),
    OPT("-n --predict --n-predict --max-tokens", OPTION_I32, n_predict, "N",
        "maximum tokens of the answer; -1: up to the end of the context", .env = "N_PREDICT",
        .min = -1, .max = INT32_MAX),
    OPT("--decode-rows", OPTION_TEXT, rows, "N|question", QUESTION_HELP, .env = NULL),
    OPT("--stop -r --reverse-prompt", OPTION_LIST, stop, "TEXT",
        "stop the answer before this text; repeatable", .env = NULL),
    OPT("--ignore-eos", OPTION_FLAG, ignore_eos, NULL, "never sample the tokens that end an answer",
        .env = NULL),
    OPT("--n-probs", OPTION_U32, n_probs, "N",
        "with -o json: the N most likely tokens at each position, with their log-probabilities",
        .env = NULL, .max = 1000),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: an object with text, tokens and timings when the answer is complete; html: a page, "
        "with --show-reading",
        .env = NULL, .choices = "text|json|html"),
    OPT("--show-reading", OPTION_FLAG, show_reading, NULL,
        "after the answer, show what it read: documents, passages by characters, and the texts "
        "with these marked",
        .env = NULL),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "print no timings on stderr", .env = NULL),
    {0},
};

/* Everything that must be freed, in one place. */
struct run {
    struct run_options opt;
    struct setup setup;
    struct setup_sampling sampling;
    struct structure structure;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct strbuf text, template_text;
    const char *chat_template; /* NULL: the model's own */
    sac_model *model;
    sac_engine *engine;
    int32_t *tok; /* [n_tok], sac_free */
    size_t n_tok;
    struct question_rows rows; /* of --decode-rows; from `answer` on those in force */
    size_t n_document;         /* tokens before those that the question has a part in */
    size_t n_shared; /* tokens that other questions to the same documents begin with, too */
    uint32_t n_ctx;
    uint32_t n_loaded;                  /* tokens that came from a state */
    double ahead_ms;                    /* taken by read_to */
    size_t document_bytes;              /* of `text` in front of the question */
    size_t file_bytes[OPTION_LIST_MAX]; /* [files.n] of each document */
    struct passages passages;
    struct reading_docs reading; /* what these are passages of */
    struct generation gen;
    struct joined joined; /* of --docs */
    int32_t *head;        /* [n_head] what the prompt begins with; sac_free */
    size_t n_head;
};

static sac_status add_question(struct strbuf *text, const struct run_options *opt,
                               const char *question, sac_error *err)
{
    if (opt->files.n && !opt->raw) strbuf_adds(text, "\n\n");
    strbuf_adds(text, question);
    return text->failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for the prompt") : SAC_OK;
}

/* Documents, a blank line, the prompt. */
static sac_status read_text(struct run *r, sac_error *err)
{
    for (size_t i = 0; i < r->opt.files.n; i++) {
        if (i > 0) strbuf_adds(&r->text, BETWEEN_FILES);
        const size_t begin = r->text.n;
        TRY(source_read(&r->text, r->opt.files.item[i], r->opt.raw || r->opt.as_is, err));
        r->file_bytes[i] = r->text.n - begin;
    }
    r->document_bytes = r->text.n;
    if (r->opt.prompt) TRY(add_question(&r->text, &r->opt, r->opt.prompt, err));
    /* A template would make a message of nothing; behind a BOS a model may go on from nothing. */
    if (r->text.n == 0 && !r->opt.raw) return error_set(err, SAC_ERR_ARG, "the prompt is empty");
    return SAC_OK;
}

static sac_status encode_text(const struct run *r, const struct strbuf *text, int32_t **out_tok,
                              size_t *out_n, sac_error *err)
{
    const struct prompt_form form = {r->opt.system, r->chat_template, r->opt.raw};
    return prompt_form_tokens(r->model, &form, text, out_tok, out_n, err);
}

static sac_status encode_other(const void *arg, const char *question, int32_t **out_tok,
                               size_t *out_n, sac_error *err)
{
    const struct run *r = arg;
    struct strbuf text = {0};
    strbuf_add(&text, r->text.data, r->document_bytes);
    sac_status status = add_question(&text, &r->opt, question, err);
    if (status == SAC_OK) status = encode_text(r, &text, out_tok, out_n, err);
    strbuf_deinit(&text);
    return status;
}

/* How far the prompt goes as any other question to the same documents would. */
static sac_status find_question(struct run *r, sac_error *err)
{
    const struct question_text text = {encode_other, r};
    return question_find(&r->n_document, r->tok, r->n_tok, &text, err);
}

/* What other questions, and one that begins with a digit, which may cut the tokens before it
 * otherwise, have in common with this one; whole pages, so that nothing of a saved sequence has
 * ever to be cut off. */
static sac_status find_shared(struct run *r, sac_error *err)
{
    const struct question_text text = {encode_other, r};
    r->n_shared = r->n_document < r->n_tok ? r->n_document : r->n_tok - 1;
    TRY(question_alike(&r->n_shared, r->tok, &text, "1", err));
    r->n_shared -= r->n_shared % SAC_PAGE_TOK;
    if (r->n_shared == 0)
        return error_set(err, SAC_ERR_ARG,
                         "option '--save-state': documents of less than %u tokens are not worth a "
                         "file",
                         SAC_PAGE_TOK);
    return SAC_OK;
}

/* Documents of a store stand between the prompt's head and the user's text: room is made for their
 * tokens, which are known when they are joined. */
static sac_status make_room(struct run *r, sac_error *err)
{
    const struct prompt_form form = {r->opt.system, r->chat_template, r->opt.raw};
    const sac_engine_params params = setup_engine_params(&r->setup, 0, 1);
    TRY(joined_find(&r->joined, r->opt.docs, r->model, &params, err));
    TRY(prompt_head(r->model, &form, &r->head, &r->n_head, err));
    if (r->n_head > r->n_tok ||
        (r->n_head > 0 && memcmp(r->tok, r->head, r->n_head * sizeof *r->head) != 0))
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "the chat template puts something before the user's text that depends on "
                         "it: documents cannot stand there");
    const size_t n_text = r->n_tok - r->n_head, n_joined = r->joined.n_tok;
    int32_t *tok = mem_calloc(n_joined + n_text, sizeof *tok);
    if (!tok) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", n_joined);
    memcpy(tok + n_joined, r->tok + r->n_head, n_text * sizeof *tok);
    sac_free(r->tok);
    r->tok = tok;
    r->n_tok = n_joined + n_text;
    r->n_document = n_joined + (r->n_document > r->n_head ? r->n_document - r->n_head : 0);
    return SAC_OK;
}

/* Without -c the context is what this prompt and answer need, so that a model made for a million
 * tokens does not plan a million. What is saved serves longer prompts, too, and what was saved
 * belongs to its context. */
static sac_status plan_context(struct run *r, sac_error *err)
{
    const uint32_t trained = sac_model_get_info(r->model).n_ctx_train;
    sac_state_info state = {.n_ctx = trained};
    if (r->opt.load_state) TRY(sac_state_get_info(&state, r->opt.load_state, err));
    const uint64_t most = r->setup.n_ctx ? r->setup.n_ctx : state.n_ctx;
    const bool is_fixed = r->setup.n_ctx || r->opt.save_state || r->opt.load_state;
    if (r->n_tok == 0) return error_set(err, SAC_ERR_ARG, "the prompt is empty");
    if (r->n_tok > most) {
        char hint[128];
        if (r->n_tok <= trained)
            snprintf(hint, sizeof hint, ": a larger -c, or none, has room for it");
        else
            snprintf(
                hint, sizeof hint,
                "; the model was made for %u: --rope-scaling yarn --rope-scale %zu stretches it",
                trained, (r->n_tok + trained - 1) / trained);
        return error_set(err, SAC_ERR_CONTEXT,
                         "the prompt has %zu tokens, the context holds %llu%s", r->n_tok,
                         (unsigned long long)most, hint);
    }
    r->n_ctx = (uint32_t)most;
    if (!is_fixed && r->opt.n_predict >= 0) {
        const uint64_t need = (uint64_t)r->n_tok + (uint64_t)r->opt.n_predict;
        if (need < most) r->n_ctx = (uint32_t)need;
    }
    return SAC_OK;
}

/* Computes the prompt up to n tokens. */
static sac_status read_to(struct run *r, size_t n, sac_error *err)
{
    const sac_seq seq = r->gen.request.seq;
    const size_t begin = sac_seq_length(r->engine, seq, NULL);
    const uint64_t start_us = clock_us();
    uint32_t pending = 1;
    struct progress bar;
    if (begin >= n) return SAC_OK;
    TRY(sac_seq_append(r->engine, seq, r->tok + begin, n - begin, SAC_ROW_PROMPT, SAC_WANT_NONE,
                       err));
    progress_begin(&bar, "reading");
    sac_status status = SAC_OK;
    while (status == SAC_OK && pending) {
        status = sac_step(r->engine, NULL, NULL, NULL, err);
        const uint32_t done = sac_seq_length(r->engine, seq, &pending);
        progress_update(&bar, (double)done / (double)n);
        if (interrupt_pending()) status = error_set(err, SAC_ERR_CANCELLED, "interrupted");
    }
    progress_end(&bar);
    r->ahead_ms += (double)(clock_us() - start_us) * 1e-3;
    return status;
}

static sac_status join_documents(struct run *r, sac_error *err)
{
    const uint64_t start_us = clock_us();
    sac_seq *seq = &r->gen.request.seq;
    const struct joined_prompt prompt = {.head = r->head,
                                         .n_head = r->n_head,
                                         .question = r->tok + r->joined.n_tok,
                                         .n_question = r->n_tok - r->joined.n_tok};
    TRY(joined_make(&r->joined, r->engine, &prompt, seq, err));
    r->n_loaded = sac_seq_length(r->engine, *seq, NULL);
    assert(r->n_loaded >= r->joined.n_tok); /* more where the method has computed the question */
    memcpy(r->tok, sac_seq_tokens(r->engine, *seq), r->n_loaded * sizeof *r->tok);
    r->ahead_ms += (double)(clock_us() - start_us) * 1e-3;
    return SAC_OK;
}

/* The sequence of the answer: a new one, or the saved one if this prompt goes on from it. It
 * outlives the request, so that its pages can be counted. */
static sac_status open_seq(struct run *r, sac_error *err)
{
    sac_seq *seq = &r->gen.request.seq;
    uint32_t n_same = 0;
    if (r->opt.docs) return join_documents(r, err);
    if (!r->opt.load_state) return sac_seq_create(r->engine, seq, err);
    TRY(sac_seq_load(r->engine, r->opt.load_state, seq, err));
    r->n_loaded = sac_seq_length(r->engine, *seq, NULL);
    const int32_t *held = sac_seq_tokens(r->engine, *seq);
    while (n_same < r->n_loaded && n_same < r->n_tok && held[n_same] == r->tok[n_same]) n_same++;
    if (n_same < r->n_loaded || n_same == r->n_tok)
        return error_set(err, SAC_ERR_ARG,
                         "%s holds %u tokens, and this prompt of %zu goes on from %u of them: "
                         "documents, system message and template must be those it was saved with",
                         r->opt.load_state, r->n_loaded, r->n_tok, n_same);
    return SAC_OK;
}

/* Told before a long document is read, not after. */
static sac_status check_place(const char *path, sac_error *err)
{
    const char *slash = strrchr(path, '/');
    char folder[4096];
    const int n = slash ? (int)(slash - path) + 1 : 0;
    if (n >= (int)sizeof folder) return error_set(err, SAC_ERR_ARG, "a path is too long");
    snprintf(folder, sizeof folder, "%.*s.", n, path);
    TRY(textfile_replaceable(path, err));
    if (access(folder, W_OK) == 0) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
}

static sac_status save_documents(struct run *r, sac_error *err)
{
    sac_state_info info;
    TRY(read_to(r, r->n_shared, err));
    TRY(sac_seq_save(r->engine, r->gen.request.seq, r->opt.save_state, err));
    TRY(sac_state_get_info(&info, r->opt.save_state, err));
    if (!r->opt.quiet)
        fprintf(stderr, "saved    %6u tokens to %s, %llu bytes\n", info.n_tok, r->opt.save_state,
                (unsigned long long)info.bytes);
    return SAC_OK;
}

/* What was computed ahead is part of the answer's times. */
static void count_ahead(struct run *r)
{
    sac_timings *t = &r->gen.timings;
    t->n_cached = r->n_loaded;
    t->n_prompt = (uint32_t)r->n_tok - r->n_loaded;
    t->prompt_ms += r->ahead_ms;
    t->prompt_per_s = t->prompt_ms > 0 ? 1e3 * t->n_prompt / t->prompt_ms : 0;
    r->gen.ttft_ms += r->ahead_ms;
}

/* With --show-reading all of the prompt but its decode rows is computed before the request:
 * recording a prompt takes long and says what the prompt read, not what the answer did. */
static sac_status read_and_record(struct run *r, size_t n, sac_error *err)
{
    struct passages_document document[READING_DOCS_MAX];
    const char *at = r->text.data;
    if (r->opt.docs) TRY(reading_docs_add_joined(&r->reading, &r->joined, r->model, r->tok, err));
    for (size_t i = 0; i < r->opt.files.n; i++) {
        reading_docs_add(&r->reading, r->opt.files.item[i], at, r->file_bytes[i]);
        at += r->file_bytes[i] + strlen(BETWEEN_FILES);
    }
    reading_docs_list(&r->reading, document);
    const struct passages_prompt prompt = {r->model, r->tok,       r->n_tok,
                                           document, r->reading.n, false};
    TRY(read_to(r, n, err));
    return passages_begin(&r->passages, r->engine, &prompt, err);
}

/* Documents that are read for later need no question. */
static bool wants_answer(const struct run *r)
{
    return r->opt.prompt || !r->opt.save_state;
}

static sac_status answer(struct run *r, sac_error *err)
{
    struct generation *g = &r->gen;
    sac_engine_params params = setup_engine_params(&r->setup, r->n_ctx, 1);
    params.record = r->opt.show_reading;
    if (r->opt.docs) joined_plan(&r->joined, &params, r->n_ctx);
    g->request = sac_request_default();
    TRY(setup_sampling_params(&r->sampling, &g->request.sampling, r->bias, err));
    TRY(sac_engine_create(&r->engine, r->model, &params, err));
    TRY(setup_check_memory(COMMAND, r->engine, err));
    setup_warn_of_context(COMMAND, r->model, r->n_ctx); /* not of one that is refused */
    params = sac_engine_get_params(r->engine);
    r->rows = question_in_force(r->rows, params.prefill[0], params.decode[0]);
    TRY(open_seq(r, err));
    if (r->opt.save_state) TRY(save_documents(r, err));
    if (!wants_answer(r)) return SAC_OK;
    const size_t n_wide = question_rows_begin(&r->rows, r->n_tok, r->n_document);
    if (r->opt.show_reading) TRY(read_and_record(r, n_wide, err));
    const uint32_t n_held = sac_seq_length(r->engine, g->request.seq, NULL);
    r->rows.n = (uint32_t)(r->n_tok - (n_wide > n_held ? n_wide : n_held));
    g->engine = r->engine;
    g->model = r->model;
    g->request.prompt = r->tok + n_held;
    g->request.n_prompt = r->n_tok - n_held;
    g->request.n_decode_row = r->rows.n;
    g->request.max_tokens = r->opt.n_predict < 0 ? 0 : (uint32_t)r->opt.n_predict;
    g->request.stop = r->opt.stop.item;
    g->request.n_stop = r->opt.stop.n;
    g->request.ignore_eos = r->opt.ignore_eos;
    g->stream = r->opt.format == FORMAT_TEXT;
    g->want_probs = r->opt.format == FORMAT_JSON && r->opt.n_probs > 0;
    g->request.n_probs = g->want_probs ? r->opt.n_probs : 0;
    TRY(structure_open(&r->structure, r->model, err));
    TRY(structure_begin(&r->structure, &g->request, err));
    const sac_status status = generation_run(g, err);
    if (status != SAC_OK) structure_explain(&r->structure, err);
    TRY(status);
    count_ahead(r);
    return r->opt.show_reading ? passages_finish(&r->passages, r->engine, err) : SAC_OK;
}

/* ---- Output ---- */

static double planned_share(const sac_engine_stats *s)
{
    return s->reads.n_cell ? (double)s->reads.n_cell_read / (double)s->reads.n_cell : 1;
}

/* Why lists of a prefill method read everything although it would have chosen. */
static void print_fallbacks(const sac_engine_stats *s)
{
    const struct {
        uint64_t n;
        const char *why;
    } reason[] = {{s->reads.n_plan_past, "the method cannot go on from earlier tokens"},
                  {s->reads.n_plan_nan, "a number is not finite"},
                  {s->reads.n_plan_overflow, "too many single tokens"}};
    for (size_t i = 0; i < sizeof reason / sizeof reason[0]; i++)
        if (reason[i].n)
            fprintf(stderr, "         %llu of them: %s\n", (unsigned long long)reason[i].n,
                    reason[i].why);
}

static void print_timings(const struct run *r)
{
    const sac_timings *t = &r->gen.timings;
    const sac_engine_stats stats = sac_engine_get_stats(r->engine);
    char used[UNITS_BYTES], planned[UNITS_BYTES];
    if (t->n_cached)
        fprintf(stderr, "loaded   %6u tokens from %s\n", t->n_cached,
                r->opt.docs ? r->opt.docs : r->opt.load_state);
    if (r->opt.docs)
        fprintf(stderr, "joined   by %s: %.1f %% of it computed again, %.1f %% kept\n",
                r->joined.method, 100 * r->joined.report.recomputed_share,
                100 * r->joined.report.resident_share);
    if (r->gen.finish == SAC_FINISH_CANCELLED && t->n_predicted == 0) {
        fprintf(stderr, "interrupted while %u tokens of the prompt were read\n", t->n_prompt);
        return;
    }
    fprintf(stderr, "prompt   %6u tokens %10.1f ms %9.1f tokens/s\n", t->n_prompt, t->prompt_ms,
            t->prompt_per_s);
    fprintf(stderr, "answer   %6u tokens %10.1f ms %9.1f tokens/s  (%s)\n", t->n_predicted,
            t->predicted_ms, t->predicted_per_s, generation_finish_name(r->gen.finish));
    if (stats.reads.n_plan)
        fprintf(
            stderr,
            "prefill  %5.1f %% of the attention computed, %.1f ms to choose, %llu of %llu lists "
            "read everything\n",
            100 * planned_share(&stats), (double)stats.plan_us * 1e-3,
            (unsigned long long)stats.reads.n_plan_dense, (unsigned long long)stats.reads.n_plan);
    print_fallbacks(&stats);
    fprintf(stderr, "first token after %.1f ms; KV %s used, %s planned\n", r->gen.ttft_ms,
            units_size(stats.kv_bytes_used, used), units_size(stats.kv_bytes, planned));
}

/* What the prefill method left out, what it took to choose, and where it gave up. */
static cJSON *prefill_json(const struct run *r)
{
    const sac_engine_stats s = sac_engine_get_stats(r->engine);
    cJSON *o = cJSON_CreateObject(), *fallbacks;
    cJSON_AddStringToObject(o, "method", sac_engine_get_params(r->engine).prefill[0]);
    cJSON_AddNumberToObject(o, "planned_share", planned_share(&s));
    if (s.reads.n_plan_mass)
        cJSON_AddNumberToObject(o, "mass_estimate",
                                s.reads.plan_mass / (double)s.reads.n_plan_mass);
    cJSON_AddNumberToObject(o, "skipped_share",
                            s.reads.n_cell ? (double)s.n_cell_skipped / (double)s.reads.n_cell : 0);
    cJSON_AddNumberToObject(o, "estimate_ms", (double)s.plan_us * 1e-3);
    cJSON_AddNumberToObject(o, "attention_ms", (double)s.attn_us * 1e-3);
    cJSON_AddNumberToObject(o, "lists", (double)s.reads.n_plan);
    fallbacks = cJSON_AddObjectToObject(o, "dense");
    cJSON_AddNumberToObject(fallbacks, "all", (double)s.reads.n_plan_dense);
    cJSON_AddNumberToObject(fallbacks, "past", (double)s.reads.n_plan_past);
    cJSON_AddNumberToObject(fallbacks, "not_finite", (double)s.reads.n_plan_nan);
    cJSON_AddNumberToObject(fallbacks, "overflow", (double)s.reads.n_plan_overflow);
    return o;
}

/* What the decode method chose, and what it knows of what it left out. */
static cJSON *decode_json(const struct run *r)
{
    const sac_engine_stats s = sac_engine_get_stats(r->engine);
    const char *method = sac_engine_get_params(r->engine).decode[0];
    const double n = (double)s.reads.n_select_proved;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "method", method);
    cJSON_AddStringToObject(o, "decode_rows", question_name(&r->rows));
    cJSON_AddNumberToObject(o, "decode_rows_n", r->rows.n);
    if (s.reads.n_tok_seen)
        cJSON_AddNumberToObject(o, "share_read",
                                (double)s.reads.n_tok_read / (double)s.reads.n_tok_seen);
    else
        cJSON_AddNullToObject(o, "share_read");
    const struct traffic traffic = traffic_between(&(sac_reads){0}, &s.reads);
    traffic_json(o, &traffic);
    const double chosen = choices_mean(&(sac_reads){0}, &s.reads, choices_are_made(method));
    cJSON_AddNumberToObject(o, "chosen", chosen);
    cJSON_AddNumberToObject(o, "choices", (double)s.reads.n_select);
    cJSON_AddNumberToObject(o, "dense", (double)s.reads.n_select_dense);
    cJSON_AddNumberToObject(o, "not_finite", (double)s.reads.n_select_nan);
    cJSON_AddNumberToObject(o, "bypassed_heads", (double)s.reads.n_bypass);
    cJSON_AddNumberToObject(o, "proved", n);
    if (n > 0) {
        cJSON_AddNumberToObject(o, "mass_proved", s.reads.mass_proved / n);
        cJSON_AddNumberToObject(o, "out_bound", s.reads.out_bound / n);
        cJSON_AddNumberToObject(o, "out_bound_max", s.reads.out_bound_max);
    }
    return o;
}

/* Pages in memory and in the file below it. */
static cJSON *tier_json(const sac_engine *engine, uint32_t n_layer)
{
    const sac_tier_stats t = sac_tier_get_stats(engine);
    const struct {
        const char *name;
        uint64_t value;
    } number[] = {
        {"fast_bytes", t.fast_bytes},
        {"card_bytes", t.card_bytes},
        {"file_bytes", t.file_bytes},
        {"hits", t.n_hit},
        {"fetches", t.n_fetch},
        {"fetches_early", t.n_fetch_early},
        {"ahead", t.n_ahead},
        {"ahead_used", t.n_ahead_used},
        {"ahead_cancelled", t.n_ahead_cancelled},
        {"reads", t.n_read},
        {"bytes_fetched", t.bytes_fetched},
        {"bytes_between", t.bytes_between},
        {"bytes_written", t.bytes_written},
        {"wait_us", t.wait_us},
    };
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "backend", t.backend);
    for (size_t i = 0; i < sizeof number / sizeof number[0]; i++)
        cJSON_AddNumberToObject(o, number[i].name, (double)number[i].value);
    cJSON *layers = cJSON_AddArrayToObject(o, "layers");
    for (uint32_t i = 0; i < n_layer; i++) {
        uint64_t hit, fetch;
        sac_tier_get_layer(engine, i, &hit, &fetch);
        cJSON *layer = cJSON_CreateObject();
        cJSON_AddNumberToObject(layer, "hits", (double)hit);
        cJSON_AddNumberToObject(layer, "fetches", (double)fetch);
        cJSON_AddItemToArray(layers, layer);
    }
    return o;
}

static cJSON *timings_json(const struct run *r)
{
    const sac_timings *t = &r->gen.timings;
    cJSON *o = cJSON_CreateObject();
    cJSON_AddNumberToObject(o, "cache_n", t->n_cached);
    cJSON_AddNumberToObject(o, "prompt_n", t->n_prompt);
    cJSON_AddNumberToObject(o, "prompt_ms", t->prompt_ms);
    cJSON_AddNumberToObject(o, "prompt_per_second", t->prompt_per_s);
    cJSON_AddNumberToObject(o, "predicted_n", t->n_predicted);
    cJSON_AddNumberToObject(o, "predicted_ms", t->predicted_ms);
    cJSON_AddNumberToObject(o, "predicted_per_second", t->predicted_per_s);
    cJSON_AddNumberToObject(o, "ttft_ms", r->gen.ttft_ms);
    cJSON_AddItemToObject(o, "prefill", prefill_json(r));
    cJSON_AddItemToObject(o, "decode", decode_json(r));
    return o;
}

static int print_json(struct run *r)
{
    struct generation *g = &r->gen;
    const sac_engine_stats stats = sac_engine_get_stats(r->engine);
    cJSON *o = cJSON_CreateObject(), *tokens = cJSON_CreateArray();
    char seed[24];
    for (size_t i = 0; i < g->n_tok; i++)
        cJSON_AddItemToArray(tokens, cJSON_CreateNumber(g->tok[i]));
    strbuf_add(&g->text, "", 0); /* an empty answer is "" */
    cJSON_AddStringToObject(o, "text", g->text.data);
    cJSON_AddItemToObject(o, "tokens", tokens);
    cJSON_AddStringToObject(o, "finish", generation_finish_name(g->finish));
    if (g->stop[0]) cJSON_AddStringToObject(o, "stop", g->stop);
    if (g->probs) cJSON_AddItemReferenceToObject(o, "probs", g->probs);
    cJSON_AddStringToObject(o, "model", sac_model_get_info(r->model).name);
    /* As it was given to -s: cJSON would write 16 digits with an exponent. */
    snprintf(seed, sizeof seed, "%" PRIu64, g->request.sampling.seed);
    cJSON_AddRawToObject(o, "seed", seed);
    cJSON_AddItemToObject(o, "timings", timings_json(r));
    cJSON_AddNumberToObject(o, "kv_bytes", (double)stats.kv_bytes);
    cJSON_AddNumberToObject(o, "kv_bytes_used", (double)stats.kv_bytes_used);
    const uint32_t n_layer = sac_model_get_info(r->model).n_layer;
    if (r->setup.tier.fast_bytes) cJSON_AddItemToObject(o, "tier", tier_json(r->engine, n_layer));
    if (r->opt.docs) cJSON_AddItemToObject(o, "context", joined_json(&r->joined));
    if (r->opt.show_reading) {
        cJSON_AddItemToObject(o, "reading", passages_json(&r->passages));
        cJSON_AddItemToObject(o, "reading_documents", reading_docs_json(&r->reading, &r->passages));
    }
    return output_json(o);
}

/* The reading map, behind a streamed answer or as a page with it. */
static int print_reading(struct run *r)
{
    struct strbuf out = {0};
    strbuf_add(&r->gen.text, "", 0);
    if (r->opt.format == FORMAT_HTML) {
        const struct passages_page page = {r->opt.prompt, r->gen.text.data};
        passages_print_html(&r->passages, &page, &out);
    } else {
        strbuf_adds(&out, "\nWhat the answer read (share of the squared softmax mass, without the "
                          "first tokens and the question):\n\n");
        reading_docs_print(&r->reading, &r->passages, &out);
        strbuf_adds(&out, "\n");
        passages_print_text(&r->passages, passages_print_colours(), &out);
    }
    if (!out.failed)
        output_write(out.data, out.n);
    else
        fprintf(stderr, "saccade " COMMAND ": out of memory for the reading map\n");
    const int code = out.failed ? EXIT_RUNTIME : EXIT_OK;
    strbuf_deinit(&out);
    return code;
}

static int report(struct run *r)
{
    int code = EXIT_OK;
    if (r->opt.format == FORMAT_JSON)
        code = print_json(r);
    else if (r->opt.format == FORMAT_TEXT && !r->gen.output_lost)
        output_write("\n", 1);
    if (r->opt.show_reading && r->opt.format != FORMAT_JSON && !r->gen.output_lost)
        code = print_reading(r);
    if (!r->opt.quiet && !r->gen.output_lost) print_timings(r);
    return interrupt_pending() ? EXIT_INTERRUPTED : code;
}

/* The texts are those of the command line, which may be written to. */
static void undo_escapes(const struct run_options *opt)
{
    if (opt->prompt) escape_undo((char *)(uintptr_t)opt->prompt);
    if (opt->system) escape_undo((char *)(uintptr_t)opt->system);
    for (size_t i = 0; i < opt->stop.n; i++) escape_undo((char *)(uintptr_t)opt->stop.item[i]);
}

/* What can be told before anything is read. */
static int check_options(struct run *r)
{
    sac_error err = {0};
    if (!r->opt.prompt && r->opt.files.n == 0)
        return options_usage_error(COMMAND, "a prompt is missing (-p TEXT or -f FILE)");
    if (r->opt.n_predict == 0)
        return options_usage_error(COMMAND, "option '-n': 0 tokens are no answer");
    for (size_t i = 0; i < r->opt.stop.n; i++)
        if (!*r->opt.stop.item[i])
            return options_usage_error(COMMAND, "option '--stop': an empty text is everywhere");
    if (r->opt.raw && (r->opt.system || r->opt.template_name || r->opt.template_file))
        return options_usage_error(COMMAND, "--raw cannot be combined with -sys or chat templates");
    if (r->opt.show_reading && r->opt.files.n == 0 && !r->opt.docs)
        return options_usage_error(COMMAND,
                                   "--show-reading needs a document (-f FILE, --docs NAME)");
    if (r->opt.format == FORMAT_HTML && !r->opt.show_reading)
        return options_usage_error(COMMAND, "-o html requires --show-reading");
    if (r->opt.n_probs > 0 && r->opt.format != FORMAT_JSON)
        return options_usage_error(COMMAND, "--n-probs needs -o json, which has a place for them");
    if (r->opt.load_state && r->opt.files.n == 0)
        return options_usage_error(COMMAND, "--load-state needs the documents that the file was "
                                            "saved with (-f FILE)");
    if (r->opt.save_state && r->opt.files.n == 0)
        return options_usage_error(COMMAND, "--save-state needs a document (-f FILE)");
    if (!wants_answer(r) && (r->opt.format != FORMAT_TEXT || r->opt.show_reading))
        return options_usage_error(COMMAND, "without a question (-p) nothing is printed");
    if (r->opt.docs && (r->opt.load_state || r->opt.save_state))
        return options_usage_error(COMMAND,
                                   "--docs cannot be combined with --save-state or --load-state");
    if (r->opt.context && !r->opt.docs)
        return options_usage_error(COMMAND, "--context needs documents (--docs NAME,NAME)");
    if (r->opt.docs && joined_check(r->opt.docs, r->opt.context, &err) != SAC_OK)
        return options_usage_error(COMMAND, "%s", err.msg);
    if (question_parse(&r->rows, r->opt.rows, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--decode-rows': %s", err.msg);
    return setup_context(&r->setup, r->opt.context);
}

static int run_all(struct run *r)
{
    sac_error err = {0};
    if (r->opt.escape) undo_escapes(&r->opt);
    int code = check_options(r);
    if (code != OPTIONS_GO_ON) return code;
    sac_status status = r->opt.save_state ? check_place(r->opt.save_state, &err) : SAC_OK;
    if (status == SAC_OK) status = read_text(r, &err);
    if (status == SAC_OK && r->opt.docs)
        status = joined_open(&r->joined, r->opt.store, r->opt.docs,
                             r->opt.context ? r->setup.context_spec : NULL, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    code = structure_check(&r->structure, COMMAND, r->opt.ignore_eos);
    if (code == OPTIONS_GO_ON) code = setup_load(&r->setup, &r->model);
    if (code != OPTIONS_GO_ON) return code;
    status = prompt_template(&r->chat_template, r->opt.template_name, r->opt.template_file,
                             &r->template_text, &err);
    if (status == SAC_OK) status = encode_text(r, &r->text, &r->tok, &r->n_tok, &err);
    if (status == SAC_OK && (r->opt.save_state || r->rows.all)) status = find_question(r, &err);
    if (status == SAC_OK && r->opt.docs) status = make_room(r, &err);
    if (status == SAC_OK) status = plan_context(r, &err);
    if (status == SAC_OK && r->opt.save_state) status = find_shared(r, &err);
    if (status == SAC_OK) status = answer(r, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (!wants_answer(r)) return EXIT_OK;
    assert(r->gen.finish != SAC_FINISH_NONE);
    return report(r);
}

int app_run(int argc, char **argv)
{
    struct run r = {
        .opt = {.n_predict = 1024, .rows = "1"},
        .setup = setup_default(COMMAND),
        .sampling = setup_sampling_default(),
    };
    const struct option_group groups[] = {
        {"Prompt and answer", specs, &r.opt},
        {"Model", setup_specs, &r.setup},
        {"Sampling", setup_sampling_specs, &r.sampling},
        {"Structured output", structure_specs, &r.structure},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [-f FILE] [-p TEXT] [options]",
        .summary = "Answers one prompt. The answer streams to stdout, timings go to stderr. "
                   "Documents, a blank line and the prompt form one user message of a chat.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = run_all(&r);
    passages_deinit(&r.passages);
    reading_docs_deinit(&r.reading);
    generation_deinit(&r.gen);
    structure_close(&r.structure);
    sac_engine_free(r.engine);
    sac_model_free(r.model);
    sac_free(r.tok);
    sac_free(r.head);
    joined_close(&r.joined);
    strbuf_deinit(&r.text);
    strbuf_deinit(&r.template_text);
    return code;
}
