/* report_data.c: see the header. The files are written by this program, but may be truncated,
 * edited or of another version: required data is checked, unknown data is ignored. */
#include "eval/report_data.h"

#include "base/mem.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAMPLES  "samples.jsonl"
#define FIDELITY "fidelity.json"
#define SUMMARY  "summary.json"
#define RUN      "run.json"
#define DOCS     "docs.jsonl"

/* Reads all of `dir`/`name`; `*out_found` is false if there is no such file. */
static sac_status read_file_of(struct strbuf *out, bool *out_found, const char *dir,
                               const char *name, sac_error *err)
{
    struct strbuf path = {0};
    strbuf_addf(&path, "%s/%s", dir, name);
    FILE *f = path.failed ? NULL : fopen(path.data, "rb");
    const int why = errno;
    const bool no_memory = path.failed;
    strbuf_deinit(&path);
    *out_found = f != NULL;
    if (no_memory) return error_set(err, SAC_ERR_MEMORY, "out of memory for a path");
    if (!f && why == ENOENT) return SAC_OK;
    if (!f) return error_set(err, SAC_ERR_IO, "cannot open %s/%s: %s", dir, name, strerror(why));
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) strbuf_add(out, chunk, n);
    strbuf_add(out, "", 0);
    const bool failed = ferror(f) != 0;
    fclose(f);
    if (failed) return error_set(err, SAC_ERR_IO, "cannot read %s/%s", dir, name);
    if (out->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for %s/%s", dir, name);
    return SAC_OK;
}

/* ---- Numbers ---- */

int report_data_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

size_t report_data_distinct(double *v, size_t n)
{
    size_t n_finite = 0, n_out = 0;
    for (size_t i = 0; i < n; i++)
        if (isfinite(v[i])) v[n_finite++] = v[i];
    if (n_finite) qsort(v, n_finite, sizeof *v, report_data_compare);
    for (size_t i = 0; i < n_finite; i++)
        if (i == 0 || v[i] != v[n_out - 1]) v[n_out++] = v[i];
    return n_out;
}

double report_data_mean(const double *v, size_t n)
{
    double sum = 0;
    size_t n_finite = 0;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(v[i])) continue;
        sum += v[i];
        n_finite++;
    }
    return n_finite ? sum / (double)n_finite : (double)NAN;
}

double report_data_quantile(const double *rising, size_t n, double q)
{
    if (n == 0) return (double)NAN;
    const double at = q * (double)(n - 1);
    const size_t i = (size_t)at;
    if (i + 1 >= n) return rising[n - 1];
    return rising[i] + (at - (double)i) * (rising[i + 1] - rising[i]);
}

/* ---- Records ---- */

/* The index of `name` in the list, to which it is appended if it is new. */
static sac_status name_index(struct strlist *l, const char *name, size_t *out, sac_error *err)
{
    for (*out = 0; *out < l->n; ++*out)
        if (strcmp(l->item[*out], name) == 0) return SAC_OK;
    strlist_add(l, name);
    if (l->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a name");
    return SAC_OK;
}

static double number_of(const cJSON *o, const char *key)
{
    const cJSON *v = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(v) ? v->valuedouble : (double)NAN;
}

/* A time or a rate; 0 means that it was not measured. */
static double positive_of(const cJSON *o, const char *key)
{
    const double v = number_of(o, key);
    return v > 0 ? v : (double)NAN;
}

static sac_status need_number(const cJSON *o, const char *key, double *out, sac_error *err)
{
    *out = number_of(o, key);
    if (isfinite(*out)) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT, "field '%s' is missing or no number", key);
}

static sac_status need_name(const cJSON *o, const char *key, struct strlist *l, size_t *out,
                            sac_error *err)
{
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
    if (!s) return error_set(err, SAC_ERR_FORMAT, "field '%s' is missing or no text", key);
    return name_index(l, s, out, err);
}

static sac_status read_sample(struct report_data *d, const cJSON *o, sac_error *err)
{
    struct report_sample *s = &d->sample[d->n_sample];
    const char *rows = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, "decode_rows"));
    *s = (struct report_sample){
        .depth = number_of(o, "depth"),
        .score = (double)NAN,
        .ttft_ms = positive_of(o, "ttft_ms"),
        .prompt_per_s = positive_of(o, "prompt_per_second"),
        .predicted_per_s = positive_of(o, "predicted_per_second"),
        .share_read = number_of(o, "share_read"),
        .bytes_share = number_of(o, "bytes_share"),
        .bytes_per_token = number_of(o, "bytes_per_token"),
        .mass_mean = number_of(o, "mass_mean"),
        .n_decode_row = number_of(o, "decode_rows_n"),
        .question_rows = rows ? strcmp(rows, "question") == 0 : (double)NAN,
    };
    TRY(need_name(o, "task", &d->tasks, &s->task_i, err));
    TRY(need_name(o, "method", &d->methods, &s->method_i, err));
    TRY(need_number(o, "ctx", &s->ctx, err));
    if (!cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(o, "score"))) /* null: not scored */
        TRY(need_number(o, "score", &s->score, err));
    d->n_sample++;
    return SAC_OK;
}

/* `text` is the whole file; its lines are NUL-terminated in place. */
static sac_status read_samples(struct report_data *d, char *text, size_t n, const char *dir,
                               sac_error *err)
{
    size_t n_line = 1;
    for (size_t i = 0; i < n; i++) n_line += text[i] == '\n';
    d->sample = mem_calloc(n_line, sizeof *d->sample);
    if (!d->sample) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu samples", n_line);
    size_t line_no = 0;
    for (char *line = text, *next; line < text + n; line = next) {
        char *end = memchr(line, '\n', (size_t)(text + n - line));
        next = end ? end + 1 : text + n;
        line_no++;
        const size_t len = (size_t)((end ? end : text + n) - line);
        if (strspn(line, " \t\r\n") >= len) continue;
        cJSON *o = cJSON_ParseWithLength(line, len);
        if (!o && !end) { /* the writer was interrupted within this line */
            d->cut = true;
            break;
        }
        sac_status status = SAC_OK;
        if (!cJSON_IsObject(o))
            status = error_set(err, SAC_ERR_FORMAT, "not a JSON object");
        else
            status = read_sample(d, o, err);
        cJSON_Delete(o);
        if (status != SAC_OK) return error_prefix(err, status, "%s/" SAMPLES ":%zu", dir, line_no);
    }
    return SAC_OK;
}

/* The output error of each layer: a list of numbers, or of objects with out_err_mean or out_err. */
static sac_status read_layers(struct report_fidelity *f, const cJSON *list, sac_error *err)
{
    if (!cJSON_IsArray(list)) return SAC_OK;
    const size_t n = (size_t)cJSON_GetArraySize(list);
    f->layer_err = mem_calloc(n, sizeof *f->layer_err);
    if (!f->layer_err) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu layers", n);
    const cJSON *item;
    cJSON_ArrayForEach(item, list)
    {
        double v = cJSON_IsNumber(item) ? item->valuedouble : number_of(item, "out_err_mean");
        if (isnan(v)) v = number_of(item, "out_err");
        f->layer_err[f->n_layer++] = v;
    }
    return SAC_OK;
}

static sac_status read_fidelity_row(struct report_data *d, const cJSON *o, sac_error *err)
{
    struct report_fidelity *f = &d->fidelity[d->n_fidelity++];
    *f = (struct report_fidelity){
        .share_read = number_of(o, "share_read"),
        .bytes_share = number_of(o, "bytes_share"),
        .bytes_per_token = number_of(o, "bytes_per_token"),
        .mass_mean = number_of(o, "mass_mean"),
        .kl_median = number_of(o, "kl_median"),
        .kl_p90 = number_of(o, "kl_p90"),
        .kl_p99 = number_of(o, "kl_p99"),
        .top1 = number_of(o, "top1"),
        .top5 = number_of(o, "top5"),
        .ppl = number_of(o, "ppl"),
        .ppl_dense = number_of(o, "ppl_dense"),
        .out_err_mean = number_of(o, "out_err_mean"),
        .us_per_token = number_of(o, "us_per_token"),
    };
    TRY(need_name(o, "method", &d->methods, &f->method_i, err));
    TRY(need_number(o, "ctx", &f->ctx, err));
    TRY(need_number(o, "kl_mean", &f->kl_mean, err));
    return read_layers(f, cJSON_GetObjectItemCaseSensitive(o, "per_layer"), err);
}

static sac_status read_fidelity(struct report_data *d, const cJSON *root, const char *dir,
                                sac_error *err)
{
    const cJSON *rows = cJSON_IsArray(root) ? root : cJSON_GetObjectItemCaseSensitive(root, "rows");
    if (!cJSON_IsArray(rows))
        return error_set(err, SAC_ERR_FORMAT, "%s/" FIDELITY ": no list of rows", dir);
    const size_t n = (size_t)cJSON_GetArraySize(rows);
    d->fidelity = mem_calloc(n, sizeof *d->fidelity);
    if (!d->fidelity) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu rows", n);
    size_t row_no = 0;
    const cJSON *row;
    cJSON_ArrayForEach(row, rows)
    {
        row_no++;
        const sac_status status = read_fidelity_row(d, row, err);
        if (status != SAC_OK)
            return error_prefix(err, status, "%s/" FIDELITY ": row %zu", dir, row_no);
    }
    return SAC_OK;
}

/* Parses a whole JSON file; *out is NULL if the file does not exist. */
static sac_status load_json(cJSON **out, const char *dir, const char *name, sac_error *err)
{
    struct strbuf text = {0};
    bool found = false;
    sac_status status = read_file_of(&text, &found, dir, name, err);
    if (status == SAC_OK && found) {
        *out = cJSON_ParseWithLength(text.data, text.n);
        if (!*out) status = error_set(err, SAC_ERR_FORMAT, "%s/%s: not valid JSON", dir, name);
    }
    strbuf_deinit(&text);
    return status;
}

static sac_status load_docs(struct docrows *out, const char *dir, sac_error *err)
{
    struct strbuf path = {0};
    strbuf_addf(&path, "%s/" DOCS, dir);
    sac_status status =
        path.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a path") : SAC_OK;
    if (status == SAC_OK && access(path.data, F_OK) == 0)
        status = docrows_read(out, path.data, err);
    strbuf_deinit(&path);
    return status;
}

sac_status report_data_load(struct report_data *data, const char *dir, sac_error *err)
{
    struct strbuf text = {0};
    cJSON *fidelity = NULL;
    sac_status status = read_file_of(&text, &data->has_samples, dir, SAMPLES, err);
    if (status == SAC_OK && data->has_samples)
        status = read_samples(data, text.data, text.n, dir, err);
    strbuf_deinit(&text);
    if (status == SAC_OK) status = load_json(&fidelity, dir, FIDELITY, err);
    data->has_fidelity = fidelity != NULL;
    if (status == SAC_OK && fidelity) status = read_fidelity(data, fidelity, dir, err);
    cJSON_Delete(fidelity);
    if (status == SAC_OK) status = load_json(&data->summary, dir, SUMMARY, err);
    if (status == SAC_OK) status = load_json(&data->run, dir, RUN, err);
    if (status == SAC_OK) status = load_docs(&data->docs, dir, err);
    return status;
}

/* For each name of `from` its index in `to`, where it is "NAME" or "NAME [label]". Owned by the
 * caller. */
static sac_status map_names(size_t **out, struct strlist *to, const struct strlist *from,
                            const char *label, sac_error *err)
{
    struct strbuf name = {0};
    sac_status status = SAC_OK;
    *out = mem_calloc(from->n ? from->n : 1, sizeof **out);
    if (!*out) return error_set(err, SAC_ERR_MEMORY, "out of memory for %zu names", from->n);
    for (size_t i = 0; status == SAC_OK && i < from->n; i++) {
        strbuf_reset(&name);
        strbuf_adds(&name, from->item[i]);
        if (label) strbuf_addf(&name, " [%s]", label);
        status = name.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for a name")
                             : name_index(to, name.data, &(*out)[i], err);
    }
    strbuf_deinit(&name);
    return status;
}

static sac_status move_records(struct report_data *d, struct report_data *from,
                               const size_t *method, const size_t *task, sac_error *err)
{
    struct report_sample *sample =
        mem_realloc(d->sample, (d->n_sample + from->n_sample + 1) * sizeof *sample);
    if (sample) d->sample = sample;
    struct report_fidelity *row =
        mem_realloc(d->fidelity, (d->n_fidelity + from->n_fidelity + 1) * sizeof *row);
    if (row) d->fidelity = row;
    if (!sample || !row) return error_set(err, SAC_ERR_MEMORY, "out of memory for a directory");
    for (size_t i = 0; i < from->n_sample; i++) {
        struct report_sample s = from->sample[i];
        s.method_i = method[s.method_i];
        s.task_i = task[s.task_i];
        d->sample[d->n_sample++] = s;
    }
    for (size_t i = 0; i < from->n_fidelity; i++) {
        struct report_fidelity f = from->fidelity[i];
        f.method_i = method[f.method_i];
        d->fidelity[d->n_fidelity++] = f;
    }
    from->n_fidelity = 0; /* `d` owns the rows' arrays now */
    d->has_samples |= from->has_samples;
    d->has_fidelity |= from->has_fidelity;
    d->cut |= from->cut;
    return SAC_OK;
}

sac_status report_data_append(struct report_data *d, struct report_data *from, const char *label,
                              sac_error *err)
{
    size_t *method = NULL, *task = NULL;
    sac_status status = map_names(&method, &d->methods, &from->methods, label, err);
    if (status == SAC_OK) status = map_names(&task, &d->tasks, &from->tasks, NULL, err);
    if (status == SAC_OK) status = move_records(d, from, method, task, err);
    for (size_t i = 0; status == SAC_OK && i < from->docs.n; i++) {
        struct docrow *row = &from->docs.row[i];
        const size_t n = strlen(row->method);
        snprintf(row->method + n, sizeof row->method - n, " [%s]", label);
        status = docrows_add(&d->docs, row, err);
    }
    mem_free(method);
    mem_free(task);
    return status;
}

void report_data_deinit(struct report_data *data)
{
    strlist_deinit(&data->methods);
    strlist_deinit(&data->tasks);
    mem_free(data->sample);
    for (size_t i = 0; i < data->n_fidelity; i++) mem_free(data->fidelity[i].layer_err);
    mem_free(data->fidelity);
    docrows_deinit(&data->docs);
    cJSON_Delete(data->summary);
    cJSON_Delete(data->run);
    *data = (struct report_data){0};
}
