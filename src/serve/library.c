/* library.c: see the header. One handle for the whole store, turned to the salt of the key that
 * asks, for a process opens a folder once. */
#include "serve/library.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

#define PAGE_TOK 32u /* documents and their heads fill pages of so many tokens */

struct library {
    sac_docs *docs; /* owned */
    sac_engine *engine;
    struct library_options options;
};

sac_status library_open(struct library **out, sac_engine *engine,
                        const struct library_options *options, sac_error *err)
{
    struct library *l = mem_calloc(1, sizeof *l);
    if (!l) return error_set(err, SAC_ERR_MEMORY, "out of memory for the store of documents");
    *l = (struct library){.engine = engine, .options = *options};
    const sac_docs_params params = {0};
    const sac_status status = sac_docs_open(&l->docs, options->dir, &params, err);
    if (status == SAC_OK)
        *out = l;
    else
        library_close(l);
    return status;
}

void library_close(struct library *l)
{
    if (!l) return;
    sac_docs_close(l->docs);
    mem_free(l);
}

/* No key is a tenant, too. */
static sac_status turn_to(struct library *l, uint64_t key, sac_error *err)
{
    char salt[24];
    snprintf(salt, sizeof salt, "%016llx", (unsigned long long)key);
    return sac_docs_use_salt(l->docs, key ? salt : NULL, err);
}

/* ---- Adding, listing, removing ---- */

static cJSON *doc_json(const sac_doc *d)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "document");
    json_add_text(o, "name", d->name, strlen(d->name));
    cJSON_AddStringToObject(o, "id", d->id);
    cJSON_AddNumberToObject(o, "tokens", d->n_tok - d->n_head);
    cJSON_AddNumberToObject(o, "head_tokens", d->n_head);
    cJSON_AddNumberToObject(o, "bytes", (double)d->bytes);
    cJSON_AddNumberToObject(o, "created", (double)d->created);
    cJSON_AddNumberToObject(o, "used", (double)d->used);
    if (d->expires)
        cJSON_AddNumberToObject(o, "expires", (double)d->expires);
    else
        cJSON_AddNullToObject(o, "expires");
    cJSON_AddBoolToObject(o, "pinned", d->pinned);
    json_add_text(o, "tags", d->tags, strlen(d->tags));
    return o;
}

static sac_status add(struct library *l, const struct ask_document *d, struct library_wait wait,
                      struct strbuf *out, sac_error *err)
{
    const sac_doc_source source = {.name = d->name,
                                   .tags = d->tags,
                                   .head = d->head,
                                   .n_head = d->n_head,
                                   .tok = d->tok,
                                   .n_tok = d->n_tok,
                                   .seconds = d->seconds,
                                   .pin = d->pin,
                                   .progress = wait.progress,
                                   .user = wait.user};
    sac_docs_freed freed;
    sac_doc doc;
    bool was_there;
    TRY(sac_doc_add(l->docs, l->engine, &source, &doc, &was_there, err));
    TRY(sac_docs_collect(l->docs, l->options.bytes_max, &freed, err));
    cJSON *o = doc_json(&doc);
    cJSON_AddBoolToObject(o, "was_there", was_there);
    json_print(out, o);
    return SAC_OK;
}

/* A document of another model, or of other types of keys, is another one. */
static sac_status find(struct library *l, const char *name, sac_doc *out, sac_error *err)
{
    const sac_engine_params params = sac_engine_get_params(l->engine);
    return sac_doc_find(l->docs, l->options.model, &params, name, out, err);
}

static sac_status list(struct library *l, struct strbuf *out, sac_error *err)
{
    sac_doc *doc;
    size_t n;
    TRY(sac_doc_list(l->docs, &doc, &n, err));
    cJSON *o = cJSON_CreateObject(), *data;
    cJSON_AddStringToObject(o, "object", "list");
    data = cJSON_AddArrayToObject(o, "data");
    for (size_t i = 0; i < n; i++) {
        sac_doc own;
        if (find(l, doc[i].name, &own, NULL) == SAC_OK && strcmp(own.id, doc[i].id) == 0)
            cJSON_AddItemToArray(data, doc_json(&doc[i]));
    }
    sac_free(doc);
    json_print(out, o);
    return SAC_OK;
}

static sac_status take_out(struct library *l, const struct ask *ask, struct strbuf *out,
                           sac_error *err)
{
    sac_doc doc;
    TRY(find(l, ask->document.name, &doc, err));
    TRY(sac_doc_remove(l->docs, &doc, err));
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "document");
    json_add_text(o, "name", doc.name, strlen(doc.name));
    cJSON_AddBoolToObject(o, "deleted", true);
    json_print(out, o);
    return SAC_OK;
}

sac_status library_work(struct library *l, const struct ask *ask, uint64_t key,
                        struct library_wait wait, struct strbuf *out, sac_error *err)
{
    struct json_pool json = {0};
    TRY(turn_to(l, key, err));
    json_enter(&json);
    const sac_status status = ask->work == ASK_DOC_ADD    ? add(l, &ask->document, wait, out, err)
                              : ask->work == ASK_DOC_LIST ? list(l, out, err)
                                                          : take_out(l, ask, out, err);
    json_leave();
    json_pool_deinit(&json);
    return status;
}

/* ---- Joining ---- */

/* The head of a document is the prompt's, filled up to whole pages. */
static sac_status check_head(const struct library *l, const struct ask *ask, sac_seq seq,
                             const sac_doc *doc, sac_error *err)
{
    const int32_t *tok = sac_seq_tokens(l->engine, seq);
    const size_t filled = (ask->n_head + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK;
    if (filled == doc->n_head && memcmp(tok, ask->prompt[0].tok, ask->n_head * sizeof *tok) == 0)
        return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "document '%.200s' was added for another system message or chat template "
                     "than this prompt has",
                     doc->name);
}

/* `*out_n` sequences were loaded, whatever the result. */
static sac_status load_all(struct library *l, const struct ask *ask, sac_seq *seq, uint32_t *out_n,
                           sac_doc *out_first, sac_error *err)
{
    for (*out_n = 0; *out_n < ask->n_doc;) {
        sac_doc doc;
        TRY(sac_doc_load(l->docs, l->engine, ask->doc_name[*out_n], &seq[*out_n], &doc, err));
        if (*out_n == 0) *out_first = doc;
        TRY(check_head(l, ask, seq[(*out_n)++], &doc, err));
    }
    return SAC_OK;
}

sac_status library_join(struct library *l, const struct ask *ask, uint64_t key,
                        struct library_wait wait, sac_seq *out, sac_compose_report *report,
                        sac_error *err)
{
    const char *method = ask->context ? ask->context : l->options.context;
    sac_seq seq[ASK_DOC_MAX];
    sac_doc first = {0};
    uint32_t n_loaded = 0;
    if (!method && ask->n_doc > 1)
        return error_set(err, SAC_ERR_ARG,
                         "several documents need 'sparse.context', which says how they are "
                         "joined: recompute is exact");
    sac_status status = turn_to(l, key, err);
    if (status == SAC_OK) status = load_all(l, ask, seq, &n_loaded, &first, err);
    if (status == SAC_OK) {
        const sac_compose_params params = {.method = method ? method : "reuse",
                                           .doc = seq,
                                           .n_doc = n_loaded,
                                           .n_head = first.n_head,
                                           .question = ask->prompt[0].tok + ask->n_head,
                                           .n_question = ask->prompt[0].n - ask->n_head,
                                           .progress = wait.progress,
                                           .user = wait.user};
        status = sac_compose(l->engine, &params, out, report, err);
    }
    for (uint32_t i = 0; i < n_loaded; i++) sac_seq_remove(l->engine, seq[i]);
    return status;
}
