/* eval_contexts.c: `saccade eval contexts`: questions over documents that were computed apart,
 * asked with each way to join them, by the place of the evidence. The documents are those of `eval
 * docs`; they are kept in the store, so a second run computes none of them. All methods see the
 * same tokens.
 */
#include "app/app.h"
#include "app/docs.h"
#include "app/eval.h"
#include "app/generate.h"
#include "app/interrupt.h"
#include "app/joined.h"
#include "app/output.h"
#include "app/setup.h"
#include "base/mem.h"
#include "base/strbuf.h"
#include "base/workers.h"
#include "eval/multidoc.h"
#include "eval/prompt.h"
#include "eval/task.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define COMMAND "eval contexts"

enum { METHOD_MAX = 16, PLACES = 3, SPARE_TOK = 128 };

struct contexts_options {
    const char *methods, *task, *store;
    uint32_t n_document, n_tok, n_sample;
    uint32_t seed;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct contexts_options, field), arg, help, __VA_ARGS__              \
    }

static const struct option_spec specs[] = {
    OPT("--methods", OPTION_TEXT, methods, "LIST",
        "context methods, NAME:key=value,..., separated by commas", .env = NULL),
    OPT("--task", OPTION_TEXT, task, "NAME", "docs_facts or docs_hop", .env = NULL),
    OPT("--documents", OPTION_U32, n_document, "N", "documents of a question", .min = 1, .max = 64),
    OPT("--document-tokens", OPTION_U32, n_tok, "N", "tokens of a document, in the mean",
        .min = 128, .max = 1048576),
    OPT("-n --samples", OPTION_U32, n_sample, "N", "questions for each place", .min = 1,
        .max = 10000),
    OPT("-s --seed", OPTION_U32, seed, "N", "seed of the documents", .env = NULL),
    OPT("--store", OPTION_TEXT, store, "DIR",
        "folder of the documents; without it $SACCADE_DOCS, or saccade/docs in the user's cache",
        .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "json: a list of objects, one a question",
        .choices = "text|json"),
    {0},
};

struct sums {
    uint32_t n;
    double score, resident, recomputed, ttft_ms, bytes;
};

struct contexts {
    const struct contexts_options *opt;
    struct setup *setup;
    sac_model *model;
    sac_docs *store;
    char method[METHOD_MAX][256];
    size_t n_method;
    struct sums sums[METHOD_MAX][PLACES];
    cJSON *rows; /* NULL: text */
};

/* One question, while it is asked. */
struct question {
    const struct task_turn *turn;
    const char *place;
    uint32_t place_i, index;
    struct strbuf names; /* of its documents, with commas */
    int32_t *head, *tok; /* [n_head] of any prompt; [n_tok] question and the answer's beginning */
    size_t n_head, n_tok;
};

/* A comma parts methods, unless what follows is a further parameter. */
static sac_status split_methods(struct contexts *c, sac_error *err)
{
    for (const char *at = c->opt->methods; *at;) {
        size_t n = strcspn(at, ",");
        while (at[n]) {
            const size_t next = strcspn(at + n + 1, ",");
            const char *equals = memchr(at + n + 1, '=', next);
            if (!equals || memchr(at + n + 1, ':', (size_t)(equals - at) - n - 1)) break;
            n += 1 + next;
        }
        if (c->n_method == METHOD_MAX || n == 0 || n > 255)
            return error_set(err, SAC_ERR_ARG, "option '--methods': '%.60s' is no list of methods",
                             c->opt->methods);
        snprintf(c->method[c->n_method], 256, "%.*s", (int)n, at);
        TRY(sac_method_check("context", c->method[c->n_method++], err));
        at += n + (at[n] == ',');
    }
    return c->n_method ? SAC_OK : error_set(err, SAC_ERR_ARG, "option '--methods': none is named");
}

/* ---- Documents ---- */

static sac_status add_document(struct contexts *c, struct question *q, const char *text, size_t n,
                               sac_error *err)
{
    char name[128];
    sac_engine *engine = NULL;
    sac_doc doc;
    bool was_there;
    int32_t *tok;
    size_t n_tok;
    snprintf(name, sizeof name, "%s-%u-%u-%u-%s-%u-%zu", c->opt->task, c->opt->n_document,
             c->opt->n_tok, c->opt->seed, q->place, q->index, q->names.n);
    TRY(sac_tokenize(c->model, text, n, 0, &tok, &n_tok, err));
    const sac_engine_params params =
        setup_engine_params(c->setup, (uint32_t)(q->n_head + n_tok + SPARE_TOK), 1);
    sac_status status = sac_engine_create(&engine, c->model, &params, err);
    const sac_doc_source source = {
        .name = name, .head = q->head, .n_head = q->n_head, .tok = tok, .n_tok = n_tok};
    if (status == SAC_OK) status = sac_doc_add(c->store, engine, &source, &doc, &was_there, err);
    sac_engine_free(engine);
    sac_free(tok);
    strbuf_addf(&q->names, "%s%s", q->names.n ? "," : "", name);
    return status;
}

/* The generator puts all documents into one text, each behind "Document N:". */
static sac_status add_documents(struct contexts *c, struct question *q, sac_error *err)
{
    const char *user = q->turn->user, *end = user + q->turn->question_at;
    char mark[32];
    for (uint32_t d = 0; d < c->opt->n_document; d++) {
        snprintf(mark, sizeof mark, "Document %u:\n", d + 1);
        const char *begin = strstr(user, mark);
        snprintf(mark, sizeof mark, "Document %u:\n", d + 2);
        const char *next = d + 1 < c->opt->n_document ? strstr(user, mark) : end;
        if (!begin || !next) return error_set(err, SAC_ERR_FORMAT, "a document is missing");
        TRY(add_document(c, q, begin, (size_t)(next - begin), err));
        if (interrupt_pending()) return error_set(err, SAC_ERR_CANCELLED, "interrupted");
    }
    return q->names.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory") : SAC_OK;
}

/* ---- One question ---- */

/* What stands behind the documents: the question, the template's lines, the answer's beginning. */
static sac_status encode_question(struct contexts *c, struct question *q, sac_error *err)
{
    const struct prompt_form form = {0};
    struct strbuf text = {0};
    int32_t *all = NULL, *prefix = NULL;
    size_t n_all = 0, n_prefix = 0;
    TRY(prompt_head(c->model, &form, &q->head, &q->n_head, err));
    strbuf_adds(&text, q->turn->user + q->turn->question_at);
    sac_status status = text.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory") : SAC_OK;
    if (status == SAC_OK) status = prompt_form_tokens(c->model, &form, &text, &all, &n_all, err);
    if (status == SAC_OK)
        status = sac_tokenize(c->model, q->turn->prefix, strlen(q->turn->prefix), 0, &prefix,
                              &n_prefix, err);
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

static void keep_row(struct contexts *c, const struct question *q, size_t method,
                     const struct joined *j, const struct generation *g)
{
    struct sums *s = &c->sums[method][q->place_i];
    const double score = g->text.data && strstr(g->text.data, q->turn->expected.item[0]) ? 100 : 0;
    const double ttft =
        j->load_ms + j->report.join_ms + j->report.probe_ms + j->report.refresh_ms + g->ttft_ms;
    *s = (struct sums){s->n + 1,
                       s->score + score,
                       s->resident + j->report.resident_share,
                       s->recomputed + j->report.recomputed_share,
                       s->ttft_ms + ttft,
                       s->bytes + (double)j->report.bytes};
    if (!c->rows) return;
    cJSON *o = joined_json(j);
    cJSON_AddStringToObject(o, "place", q->place);
    cJSON_AddNumberToObject(o, "index", q->index);
    cJSON_AddNumberToObject(o, "score", score);
    cJSON_AddNumberToObject(o, "ttft_ms", ttft);
    cJSON_AddNumberToObject(o, "query_ms", g->ttft_ms);
    cJSON_AddStringToObject(o, "answer", g->text.data ? g->text.data : "");
    cJSON_AddItemToArray(c->rows, o);
}

static sac_status ask(struct contexts *c, const struct question *q, size_t method, sac_error *err)
{
    struct joined j = {.store = c->store};
    sac_engine *engine = NULL;
    struct generation g = {.model = c->model, .request = sac_request_default()};
    sac_engine_params params = setup_engine_params(c->setup, 0, 1);
    const struct joined_prompt prompt = {q->head, q->tok, q->n_head, q->n_tok};
    snprintf(j.method, sizeof j.method, "%s", c->method[method]);
    TRY(joined_find(&j, q->names.data, c->model, &params, err));
    params.n_ctx = j.n_tok + (uint32_t)q->n_tok + q->turn->new_tok;
    joined_plan(&j, &params, params.n_ctx);
    TRY(sac_engine_create(&engine, c->model, &params, err));
    sac_status status = joined_make(&j, engine, &prompt, &g.request.seq, err);
    if (status == SAC_OK) {
        g.engine = engine;
        g.request.sampling.temp = 0;
        g.request.prompt = q->tok;
        g.request.n_prompt = q->n_tok;
        g.request.max_tokens = q->turn->new_tok;
        status = generation_run(&g, err);
    }
    if (status == SAC_OK && interrupt_pending())
        status = error_set(err, SAC_ERR_CANCELLED, "interrupted");
    if (status == SAC_OK) keep_row(c, q, method, &j, &g);
    generation_deinit(&g);
    sac_engine_free(engine);
    return status;
}

static sac_status run_question(struct contexts *c, struct question *q, sac_error *err)
{
    TRY(encode_question(c, q, err));
    TRY(add_documents(c, q, err));
    for (size_t m = 0; m < c->n_method; m++) TRY(ask(c, q, m, err));
    return SAC_OK;
}

static sac_status run_sample(struct contexts *c, uint32_t place, uint32_t index, sac_error *err)
{
    const struct multidoc_args args = {.seed = c->opt->seed, .n_document = c->opt->n_document};
    const struct task_text text = task_text_of(c->model);
    struct task_cell cell = {
        .ctx = c->opt->n_document * c->opt->n_tok, .depth = -1, .index = index};
    struct task_sample sample = {0};
    snprintf(cell.task, sizeof cell.task, "%s", c->opt->task);
    snprintf(cell.place, sizeof cell.place, "%s", multidoc_place(place));
    TRY(multidoc_make(&args, &text, &cell, &sample, err));
    struct question q = {
        .turn = &sample.turn[0], .place = multidoc_place(place), .place_i = place, .index = index};
    const sac_status status = run_question(c, &q, err);
    strbuf_deinit(&q.names);
    sac_free(q.head);
    mem_free(q.tok);
    task_sample_deinit(&sample);
    return status;
}

static sac_status run_all(struct contexts *c, sac_error *err)
{
    TRY(docs_open(&c->store, c->opt->store, "eval", false, err));
    for (uint32_t i = 0; i < c->opt->n_sample; i++)
        for (uint32_t place = 0; place < PLACES; place++) TRY(run_sample(c, place, i, err));
    return SAC_OK;
}

static void print_table(const struct contexts *c)
{
    printf("%-32s %-7s %4s %7s %9s %11s %12s %12s\n", "method", "place", "n", "score", "kept %",
           "computed %", "bytes", "first ms");
    for (size_t m = 0; m < c->n_method; m++)
        for (uint32_t p = 0; p < PLACES; p++) {
            const struct sums *s = &c->sums[m][p];
            if (s->n == 0) continue;
            printf("%-32s %-7s %4u %7.1f %9.1f %11.1f %12.0f %12.1f\n", c->method[m],
                   multidoc_place(p), s->n, s->score / s->n, 100 * s->resident / s->n,
                   100 * s->recomputed / s->n, s->bytes / s->n, s->ttft_ms / s->n);
        }
}

int eval_cmd_contexts(int argc, char **argv)
{
    struct contexts_options opt = {.methods = "recompute,reuse,epic,cacheblend,samkv",
                                   .task = "docs_facts",
                                   .n_document = 4,
                                   .n_tok = 1360,
                                   .n_sample = 4,
                                   .seed = 1};
    struct setup setup = setup_default(COMMAND);
    const struct option_group groups[] = {{"Questions", specs, &opt},
                                          {"Model", setup_specs, &setup}};
    struct contexts c = {.opt = &opt, .setup = &setup};
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Asks about documents that were computed apart, joined by each context method: "
                   "scores by the place of the evidence, shares that were kept and computed again, "
                   "time to the first token.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    sac_error err = {0};
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    if (strcmp(opt.task, "docs_facts") != 0 && strcmp(opt.task, "docs_hop") != 0)
        return options_usage_error(COMMAND, "option '--task': there are docs_facts and docs_hop");
    if (split_methods(&c, &err) != SAC_OK) return options_usage_error(COMMAND, "%s", err.msg);
    interrupt_install();
    code = setup_load(&setup, &c.model);
    if (code != OPTIONS_GO_ON) return code;
    if (opt.format) c.rows = cJSON_CreateArray();
    const sac_status status = run_all(&c, &err);
    code = EXIT_OK;
    if (c.rows)
        code = output_json(c.rows);
    else
        print_table(&c);
    if (status != SAC_OK) code = setup_failed(COMMAND, status, err.msg);
    sac_docs_close(c.store);
    sac_model_free(c.model);
    return code;
}
