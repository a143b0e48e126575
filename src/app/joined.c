/* joined.c: see the header. */
#include "app/joined.h"

#include "app/docs.h"
#include "base/workers.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <string.h>

/* The next name of the list, without surrounding blanks; `*at` becomes NULL at the end. */
static sac_status next_name(char out[256], const char **at, sac_error *err)
{
    const char *name = *at + strspn(*at, " ");
    size_t n = strcspn(name, ",");
    *at = name[n] ? name + n + 1 : NULL;
    while (n > 0 && name[n - 1] == ' ') n--;
    if (n == 0) return error_set(err, SAC_ERR_ARG, "option '--docs': a document without a name");
    if (n > 255)
        return error_set(err, SAC_ERR_ARG, "option '--docs': '%.60s...' is too long", name);
    memcpy(out, name, n);
    out[n] = 0;
    return SAC_OK;
}

sac_status joined_check(const char *names, const char *method, sac_error *err)
{
    char name[256];
    size_t n = 0;
    for (const char *at = names; at; n++) TRY(next_name(name, &at, err));
    if (n > JOINED_MAX)
        return error_set(err, SAC_ERR_ARG,
                         "option '--docs': %zu documents, at most %u are possible", n, JOINED_MAX);
    if (!method && n > 1)
        return error_set(err, SAC_ERR_ARG,
                         "several documents need --context METHOD, which says how they are joined: "
                         "'saccade methods' lists them, recompute is exact");
    if (!method) return SAC_OK;
    const sac_status status = sac_method_check("context", method, err);
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "option '--context'");
}

sac_status joined_open(struct joined *j, const char *store, const char *names, const char *method,
                       sac_error *err)
{
    TRY(joined_check(names, method, err));
    snprintf(j->method, sizeof j->method, "%s", method ? method : "reuse");
    return docs_open(&j->store, store, NULL, DOCS_CHANGE, err);
}

void joined_close(struct joined *j)
{
    sac_docs_close(j->store);
}

sac_status joined_find(struct joined *j, const char *names, const sac_model *model,
                       const sac_engine_params *params, sac_error *err)
{
    char name[256];
    for (const char *at = names; at; j->n++) {
        sac_doc *doc = &j->doc[j->n];
        TRY(next_name(name, &at, err));
        TRY(sac_doc_find(j->store, model, params, name, doc, err));
        j->n_tok += j->n == 0 ? doc->n_tok : doc->n_tok - doc->n_head;
    }
    return SAC_OK;
}

void joined_plan(const struct joined *j, sac_engine_params *params, uint32_t n_ctx)
{
    params->compose = true;
    params->n_seq_max = (uint32_t)j->n + 1;
    /* The documents, each with its head; a second copy for methods that recompute everything; and
     * the rest of the prompt. */
    params->n_kv_tok = (uint64_t)j->n_tok + n_ctx;
    for (size_t i = 1; i < j->n; i++) params->n_kv_tok += j->doc[i].n_head;
}

/* Documents must have been computed after the prompt's head, padded to whole pages. */
static sac_status check_head(const struct joined *j, const sac_engine *e, sac_seq seq,
                             const int32_t *head, size_t n_head, sac_error *err)
{
    if (n_head <= j->doc[0].n_head &&
        (n_head == 0 || memcmp(sac_seq_tokens(e, seq), head, n_head * sizeof *head) == 0) &&
        j->doc[0].n_head - n_head < 32)
        return SAC_OK;
    return error_set(
        err, SAC_ERR_ARG,
        "document '%s' was added for another system message, another chat template, or "
        "for prompts without one (--raw)",
        j->doc[0].name);
}

static sac_status load_all(struct joined *j, sac_engine *e, sac_seq *seq, size_t *out_n,
                           sac_error *err)
{
    for (*out_n = 0; *out_n < j->n; ++*out_n) {
        sac_doc *doc = &j->doc[*out_n];
        TRY(sac_doc_load(j->store, e, doc->name, &seq[*out_n], doc, err));
        if (doc->n_head == j->doc[0].n_head) continue;
        ++*out_n;
        return error_set(err, SAC_ERR_ARG,
                         "documents '%s' and '%s' were added for different system messages or chat "
                         "templates",
                         j->doc[0].name, doc->name);
    }
    return SAC_OK;
}

sac_status joined_make(struct joined *j, sac_engine *e, const struct joined_prompt *prompt,
                       sac_seq *out, sac_error *err)
{
    sac_seq seq[JOINED_MAX];
    size_t n_loaded;
    const uint64_t start_us = clock_us();
    const uint64_t bytes = sac_engine_get_stats(e).kv_bytes_used;
    sac_status status = load_all(j, e, seq, &n_loaded, err);
    const sac_engine_stats loaded = sac_engine_get_stats(e);
    j->load_ms = (double)(clock_us() - start_us) * 1e-3;
    if (status == SAC_OK) status = check_head(j, e, seq[0], prompt->head, prompt->n_head, err);
    if (status == SAC_OK) {
        const sac_compose_params params = {.method = j->method,
                                           .doc = seq,
                                           .n_doc = j->n,
                                           .n_head = j->doc[0].n_head,
                                           .question = prompt->question,
                                           .n_question = prompt->n_question};
        status = sac_compose(e, &params, out, &j->report, err);
    }
    const sac_engine_stats both = sac_engine_get_stats(e); /* stored and joined ones */
    j->own_bytes = (loaded.n_page_free - both.n_page_free) * both.page_bytes;
    j->peak_bytes = both.kv_bytes_used - bytes;
    for (size_t i = 0; i < n_loaded; i++) sac_seq_remove(e, seq[i]);
    return status;
}

cJSON *joined_json(const struct joined *j)
{
    const sac_compose_report *r = &j->report;
    cJSON *o = cJSON_CreateObject(), *names = cJSON_CreateArray();
    for (size_t i = 0; i < j->n; i++)
        cJSON_AddItemToArray(names, cJSON_CreateString(j->doc[i].name));
    cJSON_AddStringToObject(o, "method", j->method);
    cJSON_AddItemToObject(o, "documents", names);
    cJSON_AddNumberToObject(o, "n_tok", r->n_tok);
    cJSON_AddNumberToObject(o, "resident_share", r->resident_share);
    cJSON_AddNumberToObject(o, "recomputed_share", r->recomputed_share);
    cJSON_AddNumberToObject(o, "bytes", (double)j->own_bytes);
    cJSON_AddNumberToObject(o, "load_ms", j->load_ms);
    cJSON_AddNumberToObject(o, "join_ms", r->join_ms);
    cJSON_AddNumberToObject(o, "probe_ms", r->probe_ms);
    cJSON_AddNumberToObject(o, "refresh_ms", r->refresh_ms);
    return o;
}
