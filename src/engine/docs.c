/* docs.c: documents that are computed once: the public calls. kv/docstore.c determines names and
 * places of files; the bytes of a document are a saved sequence (state.c), computed by an engine
 * like any prompt.
 *
 * Invariants:
 *  1. A document's id is derived from everything that its keys and values depend on, so equal ids
 *     mean equal documents. The tokens of a hit are compared all the same, which also detects
 *     damaged files.
 *  2. A document that could not be computed or stored leaves neither a sequence nor a file. */
#include "base/digest.h"
#include "base/hex.h"
#include "base/mem.h"
#include "engine/doc_stats.h"
#include "engine/docfile.h"
#include "engine/engine.h"
#include "engine/resident.h"
#include "engine/state.h"
#include "kv/docstore.h"

#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define FORM       "saccade document 1" /* documents of another format have other ids */
#define USED_GRAIN 60                   /* seconds */

struct sac_docs {
    struct docstore *store; /* owned */
    uint8_t tenant[DOCSTORE_TENANT_BYTES];
    uint8_t salt[DIGEST_BYTES]; /* zeros: none */
};

_Static_assert(DIGEST_BYTES == DOCSTORE_ID_BYTES, "an id is a digest");

/* ---- Records ---- */

static sac_doc public_view(const struct docstore_record *r)
{
    sac_doc d = {.model_id = r->scope.model,
                 .type_k = (sac_kv_type)r->scope.type_k,
                 .type_v = (sac_kv_type)r->scope.type_v,
                 .n_tok = r->n_tok,
                 .n_head = r->n_head,
                 .bytes = r->bytes,
                 .created = r->created,
                 .used = r->used,
                 .expires = r->expires,
                 .pinned = r->is_pinned};
    snprintf(d.name, sizeof d.name, "%s", r->name);
    snprintf(d.model, sizeof d.model, "%s", r->model);
    snprintf(d.tags, sizeof d.tags, "%s", r->tags);
    hex_print(d.id, r->id, sizeof r->id);
    return d;
}

static struct docstore_scope scope_of(const sac_docs *docs, uint64_t model, sac_kv_type type_k,
                                      sac_kv_type type_v)
{
    struct docstore_scope s = {
        .model = model, .type_k = (uint8_t)type_k, .type_v = (uint8_t)type_v};
    memcpy(s.tenant, docs->tenant, sizeof s.tenant);
    return s;
}

static struct docstore_scope engine_scope(const sac_docs *docs, const sac_engine *e)
{
    return scope_of(docs, e->model->fingerprint, e->params.type_k, e->params.type_v);
}

/* ---- The store ---- */

sac_status sac_docs_use_salt(sac_docs *docs, const char *salt, sac_error *err)
{
    const struct digest_piece piece = {salt, salt ? strlen(salt) : 0};
    uint8_t digest[DIGEST_BYTES] = {0};
    if (salt) TRY(digest_pieces(digest, &piece, 1, err));
    memcpy(docs->salt, digest, sizeof docs->salt);
    memcpy(docs->tenant, digest, sizeof docs->tenant);
    return SAC_OK;
}

sac_status sac_docs_open(sac_docs **out, const char *dir, const sac_docs_params *params,
                         sac_error *err)
{
    sac_docs *docs = mem_calloc(1, sizeof *docs);
    if (!docs) return error_set(err, SAC_ERR_MEMORY, "out of memory for a document store");
    sac_status status = sac_docs_use_salt(docs, params->salt, err);
    if (status == SAC_OK) status = docstore_open(&docs->store, dir, params->only_read, err);
    if (status != SAC_OK) {
        sac_docs_close(docs);
        return status;
    }
    *out = docs;
    return SAC_OK;
}

void sac_docs_close(sac_docs *docs)
{
    if (!docs) return;
    docstore_close(docs->store);
    mem_free(docs);
}

sac_status sac_doc_list(sac_docs *docs, sac_doc **out, size_t *out_n, sac_error *err)
{
    struct docstore_record *record;
    size_t n, n_own = 0;
    TRY(docstore_list(docs->store, &record, &n, err));
    sac_doc *all = mem_calloc(n, sizeof *all);
    for (size_t i = 0; all && i < n; i++)
        if (memcmp(record[i].scope.tenant, docs->tenant, sizeof docs->tenant) == 0)
            all[n_own++] = public_view(&record[i]);
    mem_free(record);
    if (!all) return error_set(err, SAC_ERR_MEMORY, "out of memory for the list of documents");
    *out = all;
    *out_n = n_own;
    return SAC_OK;
}

sac_status sac_docs_collect(sac_docs *docs, uint64_t bytes_max, sac_docs_freed *out, sac_error *err)
{
    struct docstore_freed f;
    TRY(docstore_collect(docs->store, bytes_max, &f, err));
    *out = (sac_docs_freed){.n_expired = f.n_expired,
                            .n_evicted = f.n_evicted,
                            .n_lost = f.n_lost,
                            .n_stray = f.n_stray,
                            .bytes = f.bytes};
    return SAC_OK;
}

/* ---- Adding ---- */

/* Head and text as they are computed, each padded to whole pages. */
struct filled {
    int32_t *tok; /* [n_tok] owned */
    size_t n_tok, n_head;
};

static size_t whole_pages(size_t n)
{
    return (n + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK;
}

/* The token of a newline after other text. */
static sac_status newline(const sac_model *model, int32_t *out, sac_error *err)
{
    int32_t *tok = NULL;
    size_t n = 0;
    TRY(sac_tokenize(model, "\n", 1, 0, &tok, &n, err));
    const int32_t last = n > 0 ? tok[n - 1] : -1;
    sac_free(tok);
    if (last < 0)
        return error_set(err, SAC_ERR_UNSUPPORTED, "the model has no token for a newline");
    *out = last;
    return SAC_OK;
}

static sac_status fill(struct filled *out, const sac_engine *e, const sac_doc_source *source,
                       sac_error *err)
{
    int32_t end;
    TRY(newline(e->model, &end, err));
    out->n_head = whole_pages(source->n_head);
    out->n_tok = out->n_head + whole_pages(source->n_tok);
    if (out->n_tok > repeat_context(e))
        return error_set(err, SAC_ERR_CONTEXT,
                         "document '%s' has %zu tokens with its head, in whole pages of %u; the "
                         "context holds %u",
                         source->name, out->n_tok, PAGE_TOK, repeat_context(e));
    out->tok = mem_alloc(out->n_tok * sizeof *out->tok);
    if (!out->tok)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu tokens", out->n_tok);
    for (size_t i = 0; i < out->n_tok; i++) out->tok[i] = end;
    if (source->n_head) memcpy(out->tok, source->head, source->n_head * sizeof *out->tok);
    memcpy(out->tok + out->n_head, source->tok, source->n_tok * sizeof *out->tok);
    return SAC_OK;
}

static sac_status check_source(const sac_engine *e, const sac_doc_source *source, sac_error *err)
{
    const struct docstore_record *r;
    TRY(tensor_parallel_refuse(e, "computing of a document", err));
    TRY(docstore_check_name(source->name, err));
    if (source->tags && strlen(source->tags) >= sizeof r->tags)
        return error_set(err, SAC_ERR_ARG, "the tags of '%s' are longer than %zu bytes",
                         source->name, sizeof r->tags - 1);
    if (source->n_tok == 0)
        return error_set(err, SAC_ERR_ARG, "document '%s' is empty", source->name);
    if (source->n_tok > repeat_context(e) || source->n_head > repeat_context(e))
        return error_set(err, SAC_ERR_CONTEXT,
                         "document '%s' has %zu tokens behind a head of %zu, the context holds %u",
                         source->name, source->n_tok, source->n_head, repeat_context(e));
    if (e->model->config.rope.kind == ROPE_LONG)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "documents of %s cannot be stored: its positions are scaled by the length "
                         "of the context",
                         e->model->name);
    TRY(engine_check_tokens(e, source->head, source->n_head, err));
    return engine_check_tokens(e, source->tok, source->n_tok, err);
}

/* A document's record, without its id. */
static struct docstore_record make_record(const sac_docs *docs, const sac_engine *e,
                                          const sac_doc_source *source, const struct filled *f)
{
    const int64_t now = time(NULL);
    struct docstore_record r = {.scope = engine_scope(docs, e),
                                .n_tok = (uint32_t)f->n_tok,
                                .n_head = (uint32_t)f->n_head,
                                .created = now,
                                .used = now,
                                .expires = source->seconds ? now + source->seconds : 0,
                                .is_pinned = source->pin};
    snprintf(r.name, sizeof r.name, "%s", source->name);
    snprintf(r.model, sizeof r.model, "%s", e->model->name);
    if (source->tags) snprintf(r.tags, sizeof r.tags, "%s", source->tags);
    return r;
}

static sac_status make_id(struct docstore_record *r, const sac_docs *docs, const sac_engine *e,
                          const struct filled *f, sac_error *err)
{
    const char *prefill = e->method_set[METHOD_SET_PREFILL].specs.text[0];
    const struct digest_piece piece[] = {
        {FORM, strlen(FORM)},
        {&r->scope.model, sizeof r->scope.model},
        {&r->scope.type_k, 1},
        {&r->scope.type_v, 1},
        {docs->salt, sizeof docs->salt},
        {prefill, strlen(prefill)},
        {&r->n_head, sizeof r->n_head},
        {f->tok, f->n_tok * sizeof *f->tok},
    };
    return digest_pieces(r->id, piece, sizeof piece / sizeof piece[0], err);
}

static sac_status compute(sac_engine *e, sac_seq seq, const sac_doc_source *source,
                          const struct filled *f, sac_error *err)
{
    TRY(sac_seq_append(e, seq, f->tok, f->n_tok, SAC_ROW_PROMPT, SAC_WANT_NONE, err));
    const sac_status status = engine_run_only(e, seq, source->progress, source->user, err);
    if (status != SAC_ERR_CANCELLED) return status;
    return error_set(err, status, "document '%s' is not stored: interrupted", source->name);
}

static sac_status store(sac_docs *docs, sac_engine *e, sac_seq seq, struct docstore_record *record,
                        sac_error *err)
{
    struct docstore_draft draft;
    TRY(docstore_begin(docs->store, record->id, &draft, err));
    const sac_status status = docfile_write(e, seq, draft.file, draft.path, err);
    if (status == SAC_OK) return docstore_commit(docs->store, &draft, record, err);
    docstore_abort(&draft);
    return status;
}

/* Whether the document is stored completely, possibly under another name. */
static bool is_stored(const sac_docs *docs, const struct filled *f, struct docstore_record *record)
{
    char path[DOCSTORE_PATH_MAX];
    docstore_path(docs->store, record->id, path);
    if (!docfile_holds(path, f->tok, f->n_tok)) return false;
    record->bytes = docstore_file_bytes(docs->store, record->id);
    return true;
}

static sac_status compute_and_store(sac_docs *docs, sac_engine *e, const sac_doc_source *source,
                                    const struct filled *f, struct docstore_record *record,
                                    sac_error *err)
{
    struct doc_stats_watch watch;
    sac_seq seq;
    TRY(sac_seq_create(e, &seq, err));
    sac_status status =
        doc_stats_begin(&watch, e, seq, (uint32_t)f->n_head, (uint32_t)(f->n_tok - f->n_head), err);
    if (status == SAC_OK) status = compute(e, seq, source, f, err);
    if (status == SAC_OK) status = doc_stats_make(&watch, e, err);
    doc_stats_end(&watch, e);
    if (status == SAC_OK) status = store(docs, e, seq, record, err);
    sac_seq_remove(e, seq);
    return status;
}

sac_status sac_doc_add(sac_docs *docs, sac_engine *e, const sac_doc_source *source, sac_doc *out,
                       bool *out_was_there, sac_error *err)
{
    struct filled f = {0};
    TRY(check_source(e, source, err));
    sac_status status = fill(&f, e, source, err);
    struct docstore_record record = make_record(docs, e, source, &f);
    if (status == SAC_OK) status = make_id(&record, docs, e, &f, err);
    const bool was_there = status == SAC_OK && is_stored(docs, &f, &record);
    if (was_there) status = docstore_put(docs->store, &record, err);
    if (status == SAC_OK && !was_there)
        status = compute_and_store(docs, e, source, &f, &record, err);
    mem_free(f.tok);
    if (status != SAC_OK) return status;
    *out = public_view(&record);
    *out_was_there = was_there;
    return SAC_OK;
}

/* ---- Using ---- */

static sac_status find_record(sac_docs *docs, const sac_model *model,
                              const sac_engine_params *params, const char *name,
                              struct docstore_record *out, sac_error *err)
{
    const struct docstore_scope scope =
        scope_of(docs, model->fingerprint, params->type_k, params->type_v);
    const sac_status status = docstore_find(docs->store, &scope, name, out, err);
    if (status == SAC_OK) return SAC_OK;
    return error_prefix(err, status, "for %s with keys in %s", model->name,
                        sac_kv_type_name((sac_kv_type)scope.type_k));
}

sac_status sac_doc_find(sac_docs *docs, const sac_model *model, const sac_engine_params *params,
                        const char *name, sac_doc *out, sac_error *err)
{
    struct docstore_record record;
    if (params->type_k > SAC_KV_Q8 || params->type_v > SAC_KV_Q8)
        return error_set(err, SAC_ERR_ARG, "unknown KV type %d or %d", (int)params->type_k,
                         (int)params->type_v);
    TRY(find_record(docs, model, params, name, &record, err));
    docstore_read_ahead(docs->store,
                        record.id); /* a document that is looked up is usually loaded next */
    *out = public_view(&record);
    return SAC_OK;
}

static sac_status load_pages(sac_docs *docs, sac_engine *e, const struct docstore_record *record,
                             sac_seq *out, sac_error *err)
{
    char path[DOCSTORE_PATH_MAX];
    docstore_path(docs->store, record->id, path);
    const sac_status status = docfile_load(e, path, record->n_tok - record->n_head, out, err);
    if (status != SAC_OK) return error_prefix(err, status, "document '%s'", record->name);
    if (sac_seq_length(e, *out, NULL) == record->n_tok && record->n_head < record->n_tok)
        return SAC_OK;
    sac_seq_remove(e, *out);
    return error_set(err, SAC_ERR_FORMAT,
                     "document '%s': %s is damaged: it has not the tokens that the index tells of",
                     record->name, path);
}

/* What distinguishes the document from others, and the current state of its file from others. */
static bool make_key(struct resident_key *out, const sac_docs *docs,
                     const struct docstore_record *record)
{
    char path[DOCSTORE_PATH_MAX];
    struct stat st;
    docstore_path(docs->store, record->id, path);
    if (stat(path, &st) != 0) return false;
    *out = (struct resident_key){.device = st.st_dev,
                                 .inode = st.st_ino,
                                 .bytes = (uint64_t)st.st_size,
                                 .changed = st.st_mtim};
    memcpy(out->id, record->id, sizeof out->id);
    return true;
}

/* Loads a document from the engine's resident pages, or from the file. */
static sac_status load(sac_docs *docs, sac_engine *e, const struct docstore_record *record,
                       sac_seq *out, sac_error *err)
{
    struct resident_key key;
    if (!make_key(&key, docs, record)) return load_pages(docs, e, record, out, err);
    const sac_status status = resident_take(e, &key, out, err);
    if (status != SAC_ERR_NOT_FOUND) return status;
    TRY(load_pages(docs, e, record, out, err));
    resident_keep(e, &key, *out);
    return SAC_OK;
}

/* Records the last use, to the minute, because a change of the index waits for the disk. A failure
 * is ignored: the disk may be full, and the document can be used all the same. Nothing else of the
 * record is written, because the name may have been removed or reassigned meanwhile. */
static void note_use(sac_docs *docs, struct docstore_record *record)
{
    const int64_t now = time(NULL);
    const char *name = record->name;
    if (now - record->used < USED_GRAIN || !docstore_writable(docs->store)) return;
    record->used = now;
    (void)!docstore_touch(docs->store, &record->scope, &name, 1, NULL);
}

sac_status sac_doc_load(sac_docs *docs, sac_engine *e, const char *name, sac_seq *out,
                        sac_doc *out_doc, sac_error *err)
{
    struct docstore_record record;
    sac_seq seq;
    TRY(find_record(docs, e->model, &e->params, name, &record, err));
    TRY(load(docs, e, &record, &seq, err));
    note_use(docs, &record);
    *out = seq;
    *out_doc = public_view(&record);
    return SAC_OK;
}

static sac_status find_exact(sac_docs *docs, const sac_doc *doc, struct docstore_record *out,
                             sac_error *err)
{
    const struct docstore_scope scope = scope_of(docs, doc->model_id, doc->type_k, doc->type_v);
    return docstore_get(docs->store, &scope, doc->name, out, err);
}

sac_status sac_doc_verify(sac_docs *docs, const sac_doc *doc, sac_error *err)
{
    struct docstore_record record;
    char path[DOCSTORE_PATH_MAX];
    TRY(find_exact(docs, doc, &record, err));
    docstore_path(docs->store, record.id, path);
    return docfile_verify(path, err);
}

sac_status sac_doc_remove(sac_docs *docs, const sac_doc *doc, sac_error *err)
{
    struct docstore_record record;
    TRY(find_exact(docs, doc, &record, err));
    return docstore_remove(docs->store, &record, err);
}
