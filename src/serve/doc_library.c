/* doc_library.c: see the header. There is one handle for the whole store, because a process opens a
 * folder only once; it is switched to the salt of the key that makes the request. */
#include "serve/doc_library.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

struct doc_library {
    sac_docs *docs; /* owned */
    sac_engine *engine;
    struct doc_library_options options;
};

sac_status doc_library_open(struct doc_library **out, sac_engine *engine,
                            const struct doc_library_options *options, sac_error *err)
{
    struct doc_library *l = mem_calloc(1, sizeof *l);
    if (!l) return error_set(err, SAC_ERR_MEMORY, "out of memory for the store of documents");
    *l = (struct doc_library){.engine = engine, .options = *options};
    const sac_docs_params params = {0};
    const sac_status status = sac_docs_open(&l->docs, options->dir, &params, err);
    if (status == SAC_OK)
        *out = l;
    else
        doc_library_close(l);
    return status;
}

void doc_library_close(struct doc_library *l)
{
    if (!l) return;
    sac_docs_close(l->docs);
    mem_free(l);
}

/* Requests without a key form a tenant of their own. */
static sac_status use_tenant(struct doc_library *l, uint64_t key, sac_error *err)
{
    char salt[24];
    snprintf(salt, sizeof salt, "%016llx", (unsigned long long)key);
    return sac_docs_use_salt(l->docs, key ? salt : NULL, err);
}

/* ---- Errors ---- */

/* Errors of the server's files are detailed only in its log. */
static sac_status internal_error(const struct doc_library *l, const char *what, sac_error *err)
{
    server_log_message(l->options.log, "documents: %s", err->msg);
    return error_set(err, SAC_ERR_IO, "%s: the server's log says why", what);
}

/* Clients learn what failed, not why. The causes include the store's files and the file of the KV
 * tier. */
static sac_status check_files(const struct doc_library *l, sac_status status, const char *what,
                              sac_error *err)
{
    return status == SAC_ERR_IO || status == SAC_ERR_FORMAT ? internal_error(l, what, err) : status;
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

static sac_status add(struct doc_library *l, const struct api_request_document *d,
                      struct doc_library_wait wait, struct strbuf *out, sac_error *err)
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

/* Documents of other models or KV types are not visible. */
static sac_status find_document(struct doc_library *l, const char *name, sac_doc *out,
                                sac_error *err)
{
    const sac_engine_params params = sac_engine_get_params(l->engine);
    const sac_status status = sac_doc_find(l->docs, l->options.model, &params, name, out, err);
    if (status != SAC_ERR_NOT_FOUND) return status;
    return error_set(err, status, "there is no document '%.200s', or its time is over", name);
}

static sac_status list(struct doc_library *l, struct strbuf *out, sac_error *err)
{
    sac_doc *doc;
    size_t n;
    sac_error gone;
    TRY(sac_doc_list(l->docs, &doc, &n, err));
    cJSON *o = cJSON_CreateObject(), *data;
    cJSON_AddStringToObject(o, "object", "list");
    data = cJSON_AddArrayToObject(o, "data");
    for (size_t i = 0; i < n; i++) {
        sac_doc own;
        if (find_document(l, doc[i].name, &own, &gone) == SAC_OK && strcmp(own.id, doc[i].id) == 0)
            cJSON_AddItemToArray(data, doc_json(&doc[i]));
    }
    sac_free(doc);
    json_print(out, o);
    return SAC_OK;
}

static sac_status remove_document(struct doc_library *l, const struct api_request *request,
                                  struct strbuf *out, sac_error *err)
{
    sac_doc doc;
    TRY(find_document(l, request->document.name, &doc, err));
    TRY(sac_doc_remove(l->docs, &doc, err));
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "object", "document");
    json_add_text(o, "name", doc.name, strlen(doc.name));
    cJSON_AddBoolToObject(o, "deleted", true);
    json_print(out, o);
    return SAC_OK;
}

/* Names the failed operation for the client. */
static void describe_work(const struct api_request *request, char out[256])
{
    if (request->work == API_REQUEST_DOC_LIST)
        snprintf(out, 256, "the documents cannot be listed");
    else
        snprintf(out, 256, "document '%.200s' cannot be %s", request->document.name,
                 request->work == API_REQUEST_DOC_ADD ? "added" : "removed");
}

sac_status doc_library_work(struct doc_library *l, const struct api_request *request, uint64_t key,
                            struct doc_library_wait wait, struct strbuf *out, sac_error *err)
{
    struct json_pool json = {0};
    char what[256];
    TRY(use_tenant(l, key, err));
    json_enter(&json);
    const sac_status status =
        request->work == API_REQUEST_DOC_ADD    ? add(l, &request->document, wait, out, err)
        : request->work == API_REQUEST_DOC_LIST ? list(l, out, err)
                                                : remove_document(l, request, out, err);
    json_leave();
    json_pool_deinit(&json);
    describe_work(request, what);
    return check_files(l, status, what, err);
}

/* ---- Joining ---- */

/* A document must have been computed after the same text as the prompt begins with, padded to whole
 * pages. */
static sac_status check_head(const struct doc_library *l, const struct api_request *request,
                             sac_seq seq, const sac_doc *doc, sac_error *err)
{
    const int32_t *tok = sac_seq_tokens(l->engine, seq);
    const size_t filled = (request->n_head + SAC_PAGE_TOK - 1) / SAC_PAGE_TOK * SAC_PAGE_TOK;
    if (filled == doc->n_head &&
        memcmp(tok, request->prompt[0].tok, request->n_head * sizeof *tok) == 0)
        return SAC_OK;
    return error_set(err, SAC_ERR_ARG,
                     "document '%.200s' was added for another system message or chat template "
                     "than this prompt has",
                     doc->name);
}

struct loaded {
    sac_seq seq[API_REQUEST_DOC_MAX];
    sac_doc doc[API_REQUEST_DOC_MAX];
    uint32_t n;
};

/* The document is in the index, so a damaged file is the server's fault. */
static sac_status load_document(struct doc_library *l, const char *name, struct loaded *out,
                                sac_error *err)
{
    char what[256];
    sac_doc *doc = &out->doc[out->n];
    snprintf(what, sizeof what, "document '%.200s' cannot be read", name);
    TRY(check_files(l, find_document(l, name, doc, err), what, err));
    const sac_status status = sac_doc_load(l->docs, l->engine, name, &out->seq[out->n], doc, err);
    if (status == SAC_OK || status == SAC_ERR_CANCELLED) return status;
    if (status == SAC_ERR_CONTEXT || status == SAC_ERR_MEMORY || status == SAC_ERR_BUSY)
        return error_set(err, status, "document '%.200s' of %u tokens finds no room", name,
                         doc->n_tok);
    return internal_error(l, what, err);
}

/* `out->n` is valid even on failure. */
static sac_status load_all(struct doc_library *l, const struct api_request *request,
                           struct loaded *out, sac_error *err)
{
    while (out->n < request->n_doc) {
        const uint32_t i = out->n;
        TRY(load_document(l, request->doc_name[i], out, err));
        out->n++;
        TRY(check_head(l, request, out->seq[i], &out->doc[i], err));
    }
    return SAC_OK;
}

/* The tokens of the sequence, followed by the rest of the prompt. Owned by the caller. */
static int32_t *whole_prompt(const struct doc_library *l, const struct api_request *request,
                             sac_seq seq, size_t *out_n)
{
    const struct api_request_prompt *p = &request->prompt[0];
    const size_t n_seq = sac_seq_length(l->engine, seq, NULL), n_rest = p->n - request->n_head;
    int32_t *tok = mem_alloc((n_seq + n_rest) * sizeof *tok);
    if (!tok) return NULL;
    memcpy(tok, sac_seq_tokens(l->engine, seq), n_seq * sizeof *tok);
    memcpy(tok + n_seq, p->tok + request->n_head, n_rest * sizeof *tok);
    *out_n = n_seq + n_rest;
    return tok;
}

/* The texts of a prompt, in order. */
struct texts {
    struct passages_document *item; /* [n], owned; borrows the texts */
    size_t n;
    struct strbuf own[API_REQUEST_DOC_MAX]; /* texts of the documents, from their tokens */
};

static sac_status list_texts(struct texts *t, const struct doc_library *l,
                             const struct api_request *request, const struct loaded *loaded,
                             const int32_t *tok)
{
    const int32_t *at = tok + loaded->doc[0].n_head;
    t->item = mem_calloc(request->n_said + loaded->n, sizeof *t->item);
    if (!t->item) return SAC_ERR_MEMORY;
    for (uint32_t i = 0; i < request->n_before; i++)
        t->item[t->n++] = (struct passages_document){request->said[i], strlen(request->said[i])};
    for (uint32_t i = 0; i < loaded->n; i++) {
        const size_t n_own = loaded->doc[i].n_tok - loaded->doc[i].n_head;
        passages_add_pieces(&t->own[i], l->options.model, at, n_own);
        strbuf_add(&t->own[i], "", 0);
        if (t->own[i].failed) return SAC_ERR_MEMORY;
        t->item[t->n++] = (struct passages_document){t->own[i].data, t->own[i].n};
        at += n_own;
    }
    for (uint32_t i = request->n_before; i < request->n_said; i++)
        t->item[t->n++] = (struct passages_document){request->said[i], strlen(request->said[i])};
    return SAC_OK;
}

static sac_status find_passages(const struct doc_library *l, const struct api_request *request,
                                const struct loaded *loaded, struct doc_library_joined *joined,
                                sac_error *err)
{
    struct texts texts = {0};
    size_t n_tok = 0;
    int32_t *tok = whole_prompt(l, request, joined->seq, &n_tok);
    sac_status status = tok ? list_texts(&texts, l, request, loaded, tok) : SAC_ERR_MEMORY;
    if (status == SAC_OK) {
        const struct passages_prompt prompt = {.model = l->options.model,
                                               .tok = tok,
                                               .n_tok = n_tok,
                                               .document = texts.item,
                                               .n_document = texts.n,
                                               .may_lack = true};
        status = passages_find(&joined->passages, &prompt, err);
    } else {
        (void)error_set(err, status, "out of memory for a reading");
    }
    for (uint32_t i = 0; i < loaded->n; i++) strbuf_deinit(&texts.own[i]);
    mem_free(texts.item);
    mem_free(tok);
    return status;
}

static sac_status compose(struct doc_library *l, const struct api_request *request,
                          const struct loaded *loaded, struct doc_library_wait wait,
                          struct doc_library_joined *out, sac_error *err)
{
    const char *method = request->context ? request->context : l->options.context;
    const sac_compose_params params = {.method = method ? method : "reuse",
                                       .doc = loaded->seq,
                                       .n_doc = loaded->n,
                                       .n_head = loaded->doc[0].n_head,
                                       .question = request->prompt[0].tok + request->n_head,
                                       .n_question = request->prompt[0].n - request->n_head,
                                       .decode = request->decode,
                                       .progress = wait.progress,
                                       .user = wait.user};
    TRY(sac_compose(l->engine, &params, &out->seq, &out->report, err));
    if (!request->attention) return SAC_OK;
    const sac_status status = find_passages(l, request, loaded, out, err);
    if (status == SAC_OK) return SAC_OK;
    passages_deinit(&out->passages);
    sac_seq_remove(l->engine, out->seq);
    out->seq = SAC_SEQ_NONE;
    return status;
}

sac_status doc_library_join(struct doc_library *l, const struct api_request *request, uint64_t key,
                            struct doc_library_wait wait, struct doc_library_joined *out,
                            sac_error *err)
{
    struct loaded loaded = {.n = 0};
    *out = (struct doc_library_joined){.seq = SAC_SEQ_NONE};
    if (!request->context && !l->options.context && request->n_doc > 1)
        return error_set(err, SAC_ERR_ARG,
                         "several documents need 'sparse.context', which says how they are "
                         "joined: recompute is exact");
    sac_status status = use_tenant(l, key, err);
    if (status == SAC_OK) status = load_all(l, request, &loaded, err);
    if (status == SAC_OK)
        status = check_files(l, compose(l, request, &loaded, wait, out, err),
                             "the documents cannot be joined", err);
    for (uint32_t i = 0; i < loaded.n; i++) sac_seq_remove(l->engine, loaded.seq[i]);
    return status;
}
