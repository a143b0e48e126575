/* docrow.c: see the header. One table of fields serves writing and reading. */
#include "eval/docrow.h"

#include "base/input.h"
#include "base/mem.h"
#include "base/strbuf.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const field_name[DOCROW_FIELDS] = {
    [DOCROW_SCORE] = "score",
    [DOCROW_RESIDENT] = "resident_share",
    [DOCROW_RECOMPUTED] = "recomputed_share",
    [DOCROW_BYTES] = "bytes",
    [DOCROW_TTFT] = "ttft_ms",
    [DOCROW_LOAD] = "load_ms",
    [DOCROW_LOAD_FILE] = "load_file_ms",
    [DOCROW_LOAD_COLD] = "load_cold_ms",
    [DOCROW_JOIN] = "join_ms",
    [DOCROW_PROBE] = "probe_ms",
    [DOCROW_REFRESH] = "refresh_ms",
    [DOCROW_QUERY] = "query_ms",
    [DOCROW_PEAK] = "peak_bytes",
    [DOCROW_RSS] = "rss_bytes",
    [DOCROW_KV] = "kv_bytes",
    [DOCROW_KL] = "kl",
    [DOCROW_KV_ERROR] = "kv_error",
};

const char *docrow_field_name(enum docrow_field field)
{
    return field_name[field];
}

bool docrow_same_cell(const struct docrow *a, const struct docrow *b)
{
    return a->n_document == b->n_document && a->n_tok == b->n_tok &&
           a->has_filler == b->has_filler && strcmp(a->task, b->task) == 0 &&
           strcmp(a->model, b->model) == 0 && strcmp(a->kv, b->kv) == 0;
}

bool docrow_same_question(const struct docrow *a, const struct docrow *b)
{
    return docrow_same_cell(a, b) && a->index == b->index && a->seed == b->seed &&
           strcmp(a->place, b->place) == 0;
}

/* ---- Writing ---- */

static void add_number(cJSON *o, const char *key, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, key, v);
    else
        cJSON_AddNullToObject(o, key);
}

cJSON *docrow_json(const struct docrow *row)
{
    cJSON *o = cJSON_CreateObject(), *layers = cJSON_CreateArray();
    cJSON_AddStringToObject(o, "model", row->model);
    cJSON_AddStringToObject(o, "kv", row->kv);
    cJSON_AddStringToObject(o, "task", row->task);
    cJSON_AddStringToObject(o, "place", row->place);
    cJSON_AddNumberToObject(o, "documents", row->n_document);
    cJSON_AddNumberToObject(o, "document_tokens", row->n_tok);
    cJSON_AddBoolToObject(o, "filler", row->has_filler);
    cJSON_AddNumberToObject(o, "seed", (double)row->seed);
    cJSON_AddNumberToObject(o, "index", row->index);
    cJSON_AddStringToObject(o, "method", row->method);
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) add_number(o, field_name[f], row->value[f]);
    for (uint32_t l = 0; l < row->n_layer; l++)
        cJSON_AddItemToArray(layers, isfinite(row->layer_error[l])
                                         ? cJSON_CreateNumber(row->layer_error[l])
                                         : cJSON_CreateNull());
    cJSON_AddItemToObject(o, "layer_error", layers);
    return o;
}

/* ---- Reading ---- */

static sac_status need_text(const cJSON *o, const char *key, char *out, size_t bytes,
                            sac_error *err)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    if (!s) return error_set(err, SAC_ERR_FORMAT, "field '%s' is missing or no text", key);
    if (strlen(s) >= bytes)
        return error_set(err, SAC_ERR_FORMAT, "field '%s' is longer than %zu bytes", key,
                         bytes - 1);
    memcpy(out, s, strlen(s) + 1);
    return SAC_OK;
}

static sac_status need_count(const cJSON *o, const char *key, double max, double *out,
                             sac_error *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    *out = cJSON_GetNumberValue(item);
    if (cJSON_IsNumber(item) && *out >= 0 && *out <= max && *out == floor(*out)) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT, "field '%s' is missing or no count", key);
}

static sac_status read_fields(struct docrow *row, const cJSON *o, sac_error *err)
{
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, field_name[f]);
        row->value[f] = cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
        if (item && !cJSON_IsNumber(item) && !cJSON_IsNull(item))
            return error_set(err, SAC_ERR_FORMAT, "field '%s' is no number", field_name[f]);
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(o, "layer_error"))
    {
        if (row->n_layer == DOCROW_LAYER_MAX)
            return error_set(err, SAC_ERR_FORMAT, "field 'layer_error' has more than %u layers",
                             DOCROW_LAYER_MAX);
        row->layer_error[row->n_layer++] = cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
    }
    return SAC_OK;
}

static sac_status read_row(struct docrow *row, const cJSON *o, sac_error *err)
{
    double documents, tokens, index, seed;
    *row =
        (struct docrow){.has_filler = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(o, "filler"))};
    TRY(need_text(o, "model", row->model, sizeof row->model, err));
    TRY(need_text(o, "kv", row->kv, sizeof row->kv, err));
    TRY(need_text(o, "task", row->task, sizeof row->task, err));
    TRY(need_text(o, "place", row->place, sizeof row->place, err));
    TRY(need_text(o, "method", row->method, sizeof row->method, err));
    TRY(need_count(o, "documents", UINT32_MAX, &documents, err));
    TRY(need_count(o, "document_tokens", UINT32_MAX, &tokens, err));
    TRY(need_count(o, "index", UINT32_MAX, &index, err));
    TRY(need_count(o, "seed", 0x1p53, &seed, err));
    row->n_document = (uint32_t)documents;
    row->n_tok = (uint32_t)tokens;
    row->index = (uint32_t)index;
    row->seed = (int64_t)seed;
    return read_fields(row, o, err);
}

sac_status docrows_add(struct docrows *r, const struct docrow *row, sac_error *err)
{
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 64;
        struct docrow *grown = mem_realloc(r->row, room * sizeof *grown);
        if (!grown) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu answers", room);
        r->row = grown;
        r->room = room;
    }
    r->row[r->n++] = *row;
    return SAC_OK;
}

bool docrows_has(const struct docrows *r, const struct docrow *row)
{
    for (size_t i = 0; i < r->n; i++)
        if (strcmp(r->row[i].method, row->method) == 0 && docrow_same_question(&r->row[i], row))
            return true;
    return false;
}

static sac_status read_line(struct docrows *r, const char *line, size_t n, bool is_whole,
                            sac_error *err)
{
    struct docrow row;
    cJSON *o = cJSON_ParseWithLength(line, n);
    if (!o && !is_whole) { /* the writer was interrupted within this line */
        r->was_cut = true;
        return SAC_OK;
    }
    sac_status status = cJSON_IsObject(o) ? read_row(&row, o, err)
                                          : error_set(err, SAC_ERR_FORMAT, "not a JSON object");
    cJSON_Delete(o);
    if (status == SAC_OK && !docrows_has(r, &row)) status = docrows_add(r, &row, err);
    return status;
}

static sac_status read_lines(struct docrows *r, const char *path, const struct strbuf *text,
                             sac_error *err)
{
    size_t line_no = 0;
    for (const char *line = text->data, *all = text->data + text->n, *next; line < all;
         line = next) {
        const char *end = memchr(line, '\n', (size_t)(all - line));
        const size_t n = (size_t)((end ? end : all) - line);
        next = end ? end + 1 : all;
        r->whole_bytes = (size_t)(line - text->data);
        line_no++;
        if (strspn(line, " \t\r\n") >= n) continue;
        const sac_status status = read_line(r, line, n, end != NULL, err);
        if (status != SAC_OK) return error_prefix(err, status, "%s:%zu", path, line_no);
    }
    return SAC_OK;
}

sac_status docrows_read(struct docrows *r, const char *path, sac_error *err)
{
    struct strbuf text = {0};
    r->was_cut = false;
    sac_status status = input_read(&text, path, err);
    if (status == SAC_OK && text.n) status = read_lines(r, path, &text, err);
    strbuf_deinit(&text);
    return status;
}

void docrows_deinit(struct docrows *r)
{
    mem_free(r->row);
    *r = (struct docrows){0};
}
