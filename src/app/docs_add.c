/* docs_add.c: `saccade docs add`: files become tokens, which are computed and stored one document
 * after another. A document that is stored stays, even if a later one fails. */
#include "app/docs.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/source.h"
#include "app/units.h"
#include "base/mem.h"
#include "base/workers.h"
#include "eval/prompt.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

#define COMMAND "docs"

/* An input file. */
struct doc_file {
    const char *name; /* borrowed: from the path, or --name */
    int32_t *tok;     /* owned (sac_free), [n_tok] */
    size_t n_tok;
};

struct adding {
    const struct docs_options *opt;
    struct setup *setup;
    sac_docs *docs;
    sac_model *model;
    sac_engine *engine;
    struct strbuf template_text;
    int32_t *head; /* [n_head] */
    size_t n_head;
    struct doc_file *file; /* [n_file] */
    size_t n_file;
    cJSON *json; /* NULL: text output */
};

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static sac_status find_head(struct adding *a, sac_error *err)
{
    struct prompt_form form = {.system = a->opt->system, .raw = a->opt->raw};
    TRY(prompt_template(&form.chat_template, a->opt->template_name, a->opt->template_file,
                        &a->template_text, err));
    return prompt_head(a->model, &form, &a->head, &a->n_head, err);
}

/* The text is followed by a blank line, to separate it from what comes next. Special tokens in it
 * are not parsed. */
static sac_status read_file(const struct adding *a, struct doc_file *f, const char *path,
                            sac_error *err)
{
    struct strbuf text = {0};
    f->name = a->opt->name ? a->opt->name : base_name(path);
    sac_status status = source_read(&text, path, a->opt->raw, err);
    if (status == SAC_OK && text.n == 0) status = error_set(err, SAC_ERR_ARG, "%s is empty", path);
    strbuf_adds(&text, "\n\n");
    if (status == SAC_OK && text.failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %s", path);
    if (status == SAC_OK)
        status = sac_tokenize(a->model, text.data, text.n, 0, &f->tok, &f->n_tok, err);
    strbuf_deinit(&text);
    return status;
}

/* One engine for all files: the context is as long as the longest, in whole pages. */
static sac_status open_engine(struct adding *a, sac_error *err)
{
    const uint32_t n_ctx =
        a->setup->n_ctx ? a->setup->n_ctx : sac_model_get_info(a->model).n_ctx_train;
    size_t n_most = 0;
    for (size_t i = 0; i < a->n_file; i++) {
        const size_t n = a->n_head + a->file[i].n_tok + 2 * SAC_PAGE_TOK;
        n_most = n > n_most ? n : n_most;
    }
    const sac_engine_params params =
        setup_engine_params(a->setup, n_most < n_ctx ? (uint32_t)n_most : n_ctx, 1);
    TRY(sac_engine_create(&a->engine, a->model, &params, err));
    setup_warn_of_context(COMMAND, a->model, params.n_ctx);
    return setup_check_memory(COMMAND, a->engine, err);
}

static bool on_progress(void *user, double share)
{
    progress_update(user, share);
    return interrupt_pending();
}

/* Finds the document that has the name now. */
static bool find_present(const struct adding *a, const struct doc_file *f, sac_doc *out)
{
    const sac_engine_params params = sac_engine_get_params(a->engine);
    sac_error err;
    return sac_doc_find(a->docs, a->model, &params, f->name, out, &err) == SAC_OK;
}

/* `replaced`: an earlier document of this name was removed. */
static void report(const struct adding *a, const sac_doc *doc, bool was_there, bool replaced,
                   double ms)
{
    char size[24];
    if (!a->json && !a->opt->quiet) {
        printf("%s: %u tokens, %llu bytes (%s), %s%s\n", doc->name, doc->n_tok - doc->n_head,
               (unsigned long long)doc->bytes, units_size(doc->bytes, size),
               was_there ? "was there" : "computed",
               replaced ? ", in place of another text of this name" : "");
        (void)output_write("", 0); /* computing takes long, and a reader of the pipe may wait */
    }
    if (!a->json) return;
    cJSON *o = docs_json(doc);
    cJSON_AddBoolToObject(o, "was_there", was_there);
    cJSON_AddBoolToObject(o, "replaced", replaced);
    cJSON_AddNumberToObject(o, "ms", ms);
    cJSON_AddItemToArray(a->json, o);
}

static sac_status add_file(struct adding *a, const struct doc_file *f, sac_error *err)
{
    struct progress bar;
    sac_doc doc, before;
    bool was_there;
    const bool had = find_present(a, f, &before);
    const uint64_t start_us = clock_us();
    progress_begin(&bar, f->name);
    const sac_doc_source source = {.name = f->name,
                                   .tags = a->opt->tags,
                                   .head = a->head,
                                   .n_head = a->n_head,
                                   .tok = f->tok,
                                   .n_tok = f->n_tok,
                                   .seconds = a->opt->seconds,
                                   .pin = a->opt->pin,
                                   .progress = on_progress,
                                   .user = &bar};
    const sac_status status = sac_doc_add(a->docs, a->engine, &source, &doc, &was_there, err);
    progress_end(&bar);
    if (status == SAC_OK)
        report(a, &doc, was_there, had && strcmp(before.id, doc.id) != 0,
               (double)(clock_us() - start_us) * 1e-3);
    return status;
}

static sac_status add_all(struct adding *a, const char *const *path, sac_error *err)
{
    sac_docs_freed freed;
    TRY(docs_open(&a->docs, a->opt->store, a->opt->salt, DOCS_ADD, err));
    TRY(find_head(a, err));
    for (size_t i = 0; i < a->n_file; i++) TRY(read_file(a, &a->file[i], path[i], err));
    TRY(open_engine(a, err));
    for (size_t i = 0; i < a->n_file; i++) TRY(add_file(a, &a->file[i], err));
    return a->opt->bytes_max ? sac_docs_collect(a->docs, a->opt->bytes_max, &freed, err) : SAC_OK;
}

static void deinit(struct adding *a)
{
    for (size_t i = 0; a->file && i < a->n_file; i++) sac_free(a->file[i].tok);
    mem_free(a->file);
    sac_free(a->head);
    strbuf_deinit(&a->template_text);
    sac_engine_free(a->engine);
    sac_model_free(a->model);
    sac_docs_close(a->docs);
}

/* Refuses two files of the same name: the second document would replace the first. */
static int check_files(const struct docs_options *opt, const char *const *file, size_t n_file)
{
    if (n_file == 0) return options_usage_error(COMMAND, "'add' needs a FILE");
    if (opt->name && n_file > 1)
        return options_usage_error(COMMAND, "--name is for one FILE, %zu are given", n_file);
    for (size_t i = 0; i < n_file; i++) {
        if (strcmp(file[i], "-") == 0 && !opt->name)
            return options_usage_error(COMMAND, "stdin has no name: --name NAME is missing");
        for (size_t j = 0; j < i; j++)
            if (strcmp(base_name(file[i]), base_name(file[j])) == 0)
                return options_usage_error(
                    COMMAND, "%s and %s have the same name: add them one by one, with --name",
                    file[j], file[i]);
    }
    return OPTIONS_GO_ON;
}

int docs_add(const struct docs_options *opt, struct setup *setup, const char *const *file,
             size_t n_file)
{
    struct adding a = {.opt = opt, .setup = setup, .n_file = n_file};
    sac_error err = {0};
    int code = check_files(opt, file, n_file);
    if (code != OPTIONS_GO_ON) return code;
    if (opt->raw && (opt->system || opt->template_name || opt->template_file))
        return options_usage_error(COMMAND, "--raw cannot be combined with -sys or chat templates");
    setup->no_screen = true; /* no tokens are sampled */
    code = setup_load(setup, &a.model);
    if (code != OPTIONS_GO_ON) return code;
    a.file = mem_calloc(n_file, sizeof *a.file);
    if (opt->format == DOCS_JSON) a.json = cJSON_CreateArray();
    const sac_status status =
        a.file ? add_all(&a, file, &err) : error_set(&err, SAC_ERR_MEMORY, "out of memory");
    code = a.json ? output_json(a.json) : EXIT_OK; /* what was stored, even so */
    if (status != SAC_OK) code = setup_failed(COMMAND, status, err.msg);
    deinit(&a);
    return code;
}
