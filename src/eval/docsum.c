/* docsum.c: see the header. */
#include "eval/docsum.h"

#include "base/mem.h"
#include "eval/multidoc.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define SEED 1 /* of the resampling: the same rows always give the same intervals */

static bool is_of(const struct docsum_row *s, const struct docrow *r, const char *method)
{
    return strcmp(r->method, method) == 0 && docrow_same_cell(r, s->first) &&
           (strcmp(s->place, "all") == 0 || strcmp(s->place, r->place) == 0);
}

static const struct docrow *find_pair(const struct docrows *rows, const struct docrow *r,
                                      const char *base)
{
    for (size_t i = 0; i < rows->n; i++)
        if (strcmp(rows->row[i].method, base) == 0 && docrow_same_question(&rows->row[i], r))
            return &rows->row[i];
    return NULL;
}

static void fill_means(struct docsum_row *s, const struct docrows *rows)
{
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) {
        double sum = 0;
        size_t n = 0;
        for (size_t i = 0; i < rows->n; i++) {
            const double v = rows->row[i].value[f];
            if (!is_of(s, &rows->row[i], s->first->method) || !isfinite(v)) continue;
            sum += v;
            n++;
        }
        s->mean[f] = n ? sum / (double)n : (double)NAN;
    }
}

/* Adds a value of row `of` to the group of its documents, which questions of all places share.
 * documents[i] is a row of group i, of *n groups. */
static void add_to_group(struct summary_group *group, const struct docrow **documents, size_t *n,
                         const struct docrow *of, double value)
{
    size_t i = 0;
    while (i < *n && (documents[i]->seed != of->seed || documents[i]->index != of->index)) i++;
    if (i == *n) {
        documents[i] = of;
        group[i] = (struct summary_group){0};
        ++*n;
    }
    group[i].sum += value;
    group[i].n++;
}

/* Scratch for a summary row's groups, [rows->n] each. */
struct room {
    struct summary_group *score, *diff;
    const struct docrow **of_score, **of_diff;
};

static sac_status fill_scores(struct docsum_row *s, const struct docrows *rows, const char *base,
                              const struct room *room, sac_error *err)
{
    size_t n = 0, n_diff = 0;
    const bool is_base = strcmp(s->first->method, base) == 0;
    for (size_t i = 0; i < rows->n; i++) {
        const struct docrow *r = &rows->row[i];
        const double score = r->value[DOCROW_SCORE];
        if (!is_of(s, r, s->first->method) || !isfinite(score)) continue;
        add_to_group(room->score, room->of_score, &n, r, score);
        const struct docrow *pair = is_base ? NULL : find_pair(rows, r, base);
        if (pair && isfinite(pair->value[DOCROW_SCORE]))
            add_to_group(room->diff, room->of_diff, &n_diff, r, score - pair->value[DOCROW_SCORE]);
    }
    TRY(summary_bootstrap_groups(&s->score, room->score, n, SEED, err));
    return summary_bootstrap_groups(&s->diff, room->diff, n_diff, SEED, err);
}

static bool has_group(const struct docsum *s, const struct docrow *r)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->row[i].first->method, r->method) == 0 && docrow_same_cell(s->row[i].first, r))
            return true;
    return false;
}

static void add_group(struct docsum *s, const struct docrows *rows, const struct docrow *first)
{
    for (uint32_t p = 0; multidoc_place(p); p++) {
        struct docsum_row row = {.first = first, .place = multidoc_place(p)};
        bool any = false;
        for (size_t i = 0; i < rows->n; i++) any = any || is_of(&row, &rows->row[i], first->method);
        if (any) s->row[s->n++] = row;
    }
    s->row[s->n++] = (struct docsum_row){.first = first, .place = "all"};
}

/* Adds the groups so that those of one kind of question are adjacent. */
static void add_groups(struct docsum *s, const struct docrows *rows)
{
    for (size_t i = 0; i < rows->n; i++) {
        if (has_group(s, &rows->row[i])) continue;
        for (size_t k = i; k < rows->n; k++)
            if (docrow_same_cell(&rows->row[k], &rows->row[i]) && !has_group(s, &rows->row[k]))
                add_group(s, rows, &rows->row[k]);
    }
}

static sac_status fill(struct docsum *s, const struct docrows *rows, sac_error *err)
{
    const size_t n = rows->n + 1;
    struct room room = {mem_alloc(n * sizeof *room.score), mem_alloc(n * sizeof *room.diff),
                        mem_alloc(n * sizeof *room.of_score), mem_alloc(n * sizeof *room.of_diff)};
    sac_status status = room.score && room.diff && room.of_score && room.of_diff
                            ? SAC_OK
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    for (size_t i = 0; status == SAC_OK && i < s->n; i++) {
        fill_means(&s->row[i], rows);
        status = fill_scores(&s->row[i], rows, s->base, &room, err);
    }
    mem_free(room.score);
    mem_free(room.diff);
    mem_free(room.of_score);
    mem_free(room.of_diff);
    return status;
}

sac_status docsum_make(struct docsum *out, const struct docrows *rows, sac_error *err)
{
    struct docsum s = {.row = mem_calloc(4 * rows->n + 1, sizeof *s.row)};
    if (!s.row) return error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    if (rows->n) snprintf(s.base, sizeof s.base, "%s", rows->row[0].method);
    add_groups(&s, rows);
    const sac_status status = fill(&s, rows, err);
    if (status != SAC_OK) {
        docsum_deinit(&s);
        return status;
    }
    *out = s;
    return SAC_OK;
}

void docsum_deinit(struct docsum *s)
{
    mem_free(s->row);
    *s = (struct docsum){0};
}

uint32_t docsum_layers(const struct docrows *rows, const struct docrow *like,
                       double out[DOCROW_LAYER_MAX])
{
    uint32_t n_layer = 0, n[DOCROW_LAYER_MAX] = {0};
    for (uint32_t l = 0; l < DOCROW_LAYER_MAX; l++) out[l] = 0;
    for (size_t i = 0; i < rows->n; i++) {
        const struct docrow *r = &rows->row[i];
        if (!docrow_same_cell(r, like) || strcmp(r->method, like->method) != 0) continue;
        n_layer = r->n_layer > n_layer ? r->n_layer : n_layer;
        for (uint32_t l = 0; l < r->n_layer; l++) {
            if (!isfinite(r->layer_error[l])) continue;
            out[l] += r->layer_error[l];
            n[l]++;
        }
    }
    for (uint32_t l = 0; l < n_layer; l++) out[l] = n[l] ? out[l] / n[l] : (double)NAN;
    return n_layer;
}

/* ---- Output ---- */

static void add_number(cJSON *o, const char *key, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, key, v);
    else
        cJSON_AddNullToObject(o, key);
}

static cJSON *row_json(const struct docsum *s, const struct docsum_row *r)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "method", r->first->method);
    cJSON_AddStringToObject(o, "place", r->place);
    cJSON_AddStringToObject(o, "task", r->first->task);
    cJSON_AddStringToObject(o, "model", r->first->model);
    cJSON_AddStringToObject(o, "kv", r->first->kv);
    cJSON_AddNumberToObject(o, "documents", r->first->n_document);
    cJSON_AddNumberToObject(o, "document_tokens", r->first->n_tok);
    cJSON_AddBoolToObject(o, "filler", r->first->has_filler);
    cJSON_AddNumberToObject(o, "n", r->score.n);
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) add_number(o, docrow_field_name(f), r->mean[f]);
    add_number(o, "score_low", r->score.low);
    add_number(o, "score_high", r->score.high);
    if (r->diff.n == 0) return o;
    cJSON_AddStringToObject(o, "diff_to", s->base);
    add_number(o, "diff", r->diff.mean);
    add_number(o, "diff_low", r->diff.low);
    add_number(o, "diff_high", r->diff.high);
    return o;
}

cJSON *docsum_json(const struct docsum *s)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; list && i < s->n; i++)
        if (strcmp(s->row[i].place, "all") != 0)
            cJSON_AddItemToArray(list, row_json(s, &s->row[i]));
    return list;
}

static void add_value(struct strbuf *out, const char *form, double v)
{
    char text[32];
    snprintf(text, sizeof text, form, v);
    strbuf_addf(out, " | %s", isfinite(v) ? text : "-");
}

static void add_interval(struct strbuf *out, const char *form, const struct summary_mean *m)
{
    char text[64];
    snprintf(text, sizeof text, form, 100 * m->low, 100 * m->high);
    strbuf_addf(out, " | %s", isfinite(m->low) ? text : "");
}

static void add_row(struct strbuf *out, const struct docsum_row *r)
{
    const double *m = r->mean;
    strbuf_addf(out, "| %s | %s | %u", r->first->method, r->place, r->score.n);
    add_value(out, "%.1f", 100 * r->score.mean);
    add_interval(out, "%.0f to %.0f", &r->score);
    add_value(out, "%+.1f", r->diff.n ? 100 * r->diff.mean : (double)NAN);
    add_interval(out, "%+.0f to %+.0f", &r->diff);
    add_value(out, "%.1f", 100 * m[DOCROW_RESIDENT]);
    add_value(out, "%.1f", 100 * m[DOCROW_RECOMPUTED]);
    add_value(out, "%.4f", m[DOCROW_KL]);
    add_value(out, "%.3f", m[DOCROW_KV_ERROR]);
    add_value(out, "%.1f", m[DOCROW_BYTES] * 1e-6);
    add_value(out, "%.1f", m[DOCROW_PEAK] * 1e-6);
    add_value(out, "%.0f", m[DOCROW_RSS] * 1e-6);
    for (unsigned f = DOCROW_TTFT; f <= DOCROW_QUERY; f++)
        if (f != DOCROW_JOIN) add_value(out, "%.0f", m[f]);
    strbuf_adds(out, " |\n");
}

void docsum_text(const struct docsum *s, struct strbuf *out)
{
    const struct docrow *cell = NULL;
    for (size_t i = 0; i < s->n; i++) {
        const struct docrow *r = s->row[i].first;
        if (!cell || !docrow_same_cell(cell, r))
            strbuf_addf(
                out,
                "%s%s, %s, keys in %s: %u documents of %u tokens%s\n\n"
                "| method | place | n | score | 95 %% | difference | 95 %% | kept %% | "
                "computed %% | KL | KV error | own MB | peak MB | process MB | "
                "first token, ms | load | load, files | load, cold | probe | refresh | query |\n"
                "|---|---|--:|--:|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
                "--:|--:|--:|\n",
                cell ? "\n" : "", r->task, r->model, r->kv, r->n_document, r->n_tok,
                r->has_filler ? ", half of them from a text" : "");
        cell = r;
        add_row(out, &s->row[i]);
    }
}
