/* summary.c: see the header. The bootstrap draws from a stream of its own for each row, so adding a
 * method changes no interval of another. */
#include "eval/summary.h"

#include "base/mem.h"
#include "eval/choices.h"
#include "eval/rng.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_RESAMPLE 2000u

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mean over all groups or, with a generator, over as many that are drawn. */
static double mean_of_groups(const struct summary_group *group, size_t n, struct rng *r)
{
    double sum = 0, n_value = 0;
    for (size_t i = 0; i < n; i++) {
        const struct summary_group *g = &group[r ? rng_below(r, n) : i];
        sum += g->sum;
        n_value += g->n;
    }
    return sum / n_value;
}

sac_status summary_bootstrap_groups(struct summary_mean *out, const struct summary_group *group,
                                    size_t n, uint64_t seed, sac_error *err)
{
    struct rng r = rng_stream("bootstrap", n, seed, 0);
    *out = (struct summary_mean){.mean = (double)NAN, .low = (double)NAN, .high = (double)NAN};
    for (size_t i = 0; i < n; i++) out->n += group[i].n;
    if (n > 0) out->mean = mean_of_groups(group, n, NULL);
    if (n < 2) return SAC_OK; /* there is no interval for one sample */
    double *mean = mem_alloc(N_RESAMPLE * sizeof *mean);
    if (!mean) return error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    for (size_t b = 0; b < N_RESAMPLE; b++) mean[b] = mean_of_groups(group, n, &r);
    qsort(mean, N_RESAMPLE, sizeof *mean, compare_doubles);
    out->low = mean[(size_t)(0.025 * (N_RESAMPLE - 1))];
    out->high = mean[(size_t)ceil(0.975 * (N_RESAMPLE - 1))];
    mem_free(mean);
    return SAC_OK;
}

sac_status summary_bootstrap(struct summary_mean *out, const double *value, size_t n, uint64_t seed,
                             sac_error *err)
{
    struct summary_group *group = mem_alloc((n + 1) * sizeof *group);
    if (!group) return error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    for (size_t i = 0; i < n; i++) group[i] = (struct summary_group){value[i], 1};
    const sac_status status = summary_bootstrap_groups(out, group, n, seed, err);
    mem_free(group);
    return status;
}

/* ---- Groups ---- */

static bool in_row(const struct summary_row *g, const struct sample_row *r)
{
    return g->ctx == r->cell.ctx && strcmp(g->task, r->cell.task) == 0 &&
           strcmp(g->place, r->cell.place) == 0 && strcmp(g->method, r->method) == 0;
}

static bool is_pair(const struct sample_row *a, const struct sample_row *b)
{
    return a->turn == b->turn && a->cell.ctx == b->cell.ctx && a->cell.index == b->cell.index &&
           fabs(a->cell.depth - b->cell.depth) < 1e-6 && strcmp(a->cell.task, b->cell.task) == 0 &&
           strcmp(a->cell.place, b->cell.place) == 0;
}

static void add_mean(double *sum, uint32_t *n, double v)
{
    if (!isfinite(v)) return;
    *sum += v;
    ++*n;
}

/* Fills in the means that have no interval. */
static void fill_means(struct summary_row *g, const struct samples *samples)
{
    struct {
        double sum;
        uint32_t n;
    } traffic[TRAFFIC_FIELDS] = {0}, mass = {0}, share = {0}, chosen = {0}, rows = {0},
      planned = {0}, ttft = {0}, prompt = {0}, predicted = {0};
    for (size_t i = 0; i < samples_count(samples); i++) {
        const struct sample_row *r = samples_row(samples, i);
        if (!in_row(g, r)) continue;
        add_mean(&mass.sum, &mass.n, r->mass_mean);
        add_mean(&share.sum, &share.n, r->share_read);
        struct traffic t = r->traffic;
        for (unsigned k = 0; k < TRAFFIC_FIELDS; k++)
            add_mean(&traffic[k].sum, &traffic[k].n, *traffic_field(&t, k));
        add_mean(&chosen.sum, &chosen.n, r->chosen);
        add_mean(&rows.sum, &rows.n, r->rows.n);
        add_mean(&planned.sum, &planned.n, r->planned_share);
        add_mean(&ttft.sum, &ttft.n, r->ttft_ms);
        add_mean(&prompt.sum, &prompt.n, r->prompt_per_s);
        add_mean(&predicted.sum, &predicted.n, r->predicted_per_s);
    }
#define MEAN(m) ((m).n ? (m).sum / (m).n : (double)NAN)
    g->mass_mean = MEAN(mass);
    g->share_read = MEAN(share);
    for (unsigned k = 0; k < TRAFFIC_FIELDS; k++) *traffic_field(&g->traffic, k) = MEAN(traffic[k]);
    g->chosen = MEAN(chosen);
    g->n_decode_row = MEAN(rows);
    g->planned_share = MEAN(planned);
    g->ttft_ms = MEAN(ttft);
    g->prompt_per_s = MEAN(prompt);
    g->predicted_per_s = MEAN(predicted);
#undef MEAN
}

/* Collects the scores of the row's samples, and with `base` their differences from that
 * method's. */
static sac_status fill_scores(struct summary_row *g, const struct samples *samples,
                              const char *base, uint64_t seed, sac_error *err)
{
    const size_t n = samples_count(samples);
    const uint64_t stream =
        seed ^ rng_hash(g->task, strlen(g->task)) ^ rng_hash(g->method, strlen(g->method)) ^ g->ctx;
    double *value = mem_alloc(2 * n * sizeof *value);
    size_t n_value = 0, n_diff = 0;
    if (!value) return error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    double *diff = value + n;
    for (size_t i = 0; i < n; i++) {
        const struct sample_row *r = samples_row(samples, i);
        if (!in_row(g, r)) continue;
        value[n_value++] = r->score;
        for (size_t j = 0; base && j < n; j++) {
            const struct sample_row *b = samples_row(samples, j);
            if (strcmp(b->method, base) == 0 && is_pair(b, r)) {
                diff[n_diff++] = r->score - b->score;
                break;
            }
        }
    }
    sac_status status = summary_bootstrap(&g->score, value, n_value, stream, err);
    if (status == SAC_OK) status = summary_bootstrap(&g->diff, diff, n_diff, stream, err);
    if (n_diff) snprintf(g->diff_to, sizeof g->diff_to, "%s", base);
    mem_free(value);
    return status;
}

sac_status summary_make(struct summary *out, const struct samples *samples, const char *base,
                        uint64_t seed, sac_error *err)
{
    const size_t n_sample = samples_count(samples);
    struct summary s = {.row = mem_calloc(n_sample, sizeof *s.row)};
    if (!s.row) return error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    for (size_t i = 0; i < n_sample; i++) {
        const struct sample_row *r = samples_row(samples, i);
        size_t g = 0;
        while (g < s.n && !in_row(&s.row[g], r)) g++;
        if (g < s.n) continue;
        struct summary_row *row = &s.row[s.n++];
        row->ctx = r->cell.ctx;
        snprintf(row->task, sizeof row->task, "%s", r->cell.task);
        snprintf(row->place, sizeof row->place, "%s", r->cell.place);
        snprintf(row->method, sizeof row->method, "%s", r->method);
        row->question_rows = r->rows.all;
    }
    for (size_t g = 0; g < s.n; g++) {
        const bool is_base = strcmp(s.row[g].method, base) == 0;
        const sac_status status = fill_scores(&s.row[g], samples, is_base ? NULL : base, seed, err);
        if (status != SAC_OK) {
            summary_deinit(&s);
            return status;
        }
        fill_means(&s.row[g], samples);
    }
    *out = s;
    return SAC_OK;
}

void summary_deinit(struct summary *s)
{
    mem_free(s->row);
    *s = (struct summary){0};
}

/* ---- Output ---- */

static void add_number(cJSON *o, const char *key, double v)
{
    if (isfinite(v))
        cJSON_AddNumberToObject(o, key, v);
    else
        cJSON_AddNullToObject(o, key);
}

static cJSON *row_json(const struct summary_row *g)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "method", g->method);
    cJSON_AddStringToObject(o, "task", g->task);
    if (g->place[0]) cJSON_AddStringToObject(o, "place", g->place);
    cJSON_AddNumberToObject(o, "ctx", g->ctx);
    cJSON_AddNumberToObject(o, "n", g->score.n);
    add_number(o, "score", g->score.mean);
    add_number(o, "score_low", g->score.low);
    add_number(o, "score_high", g->score.high);
    if (g->diff_to[0]) {
        cJSON_AddStringToObject(o, "diff_to", g->diff_to);
        add_number(o, "diff", g->diff.mean);
        add_number(o, "diff_low", g->diff.low);
        add_number(o, "diff_high", g->diff.high);
    }
    const struct question_rows rows = {.all = g->question_rows};
    cJSON_AddStringToObject(o, "decode_rows", question_name(&rows));
    add_number(o, "decode_rows_n", g->n_decode_row);
    add_number(o, "mass_mean", g->mass_mean);
    add_number(o, "share_read", g->share_read);
    traffic_json(o, &g->traffic);
    add_number(o, "chosen", g->chosen);
    add_number(o, "planned_share", g->planned_share);
    add_number(o, "ttft_ms", g->ttft_ms);
    add_number(o, "prompt_per_second", g->prompt_per_s);
    add_number(o, "predicted_per_second", g->predicted_per_s);
    return o;
}

cJSON *summary_json(const struct summary *s)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t g = 0; list && g < s->n; g++) cJSON_AddItemToArray(list, row_json(&s->row[g]));
    return list;
}

static void add_cell(struct strbuf *out, const char *fmt_digits, double v)
{
    char text[32];
    snprintf(text, sizeof text, strcmp(fmt_digits, "1") == 0 ? "%.1f" : "%.3f", v);
    strbuf_addf(out, " %s |", isfinite(v) ? text : "-");
}

static void add_interval(struct strbuf *out, bool is_signed, const struct summary_mean *m)
{
    if (!isfinite(m->low))
        strbuf_adds(out, " |");
    else if (is_signed)
        strbuf_addf(out, " %+.1f to %+.1f |", 100 * m->low, 100 * m->high);
    else
        strbuf_addf(out, " %.1f to %.1f |", 100 * m->low, 100 * m->high);
}

static bool has_tier(const struct summary *s)
{
    for (size_t g = 0; g < s->n; g++)
        if (isfinite(s->row[g].traffic.fetched)) return true;
    return false;
}

void summary_markdown(const struct summary *s, struct strbuf *out)
{
    const bool tier = has_tier(s);
    strbuf_addf(out,
                "| task | ctx | method | n | score | 95 %% | difference | 95 %% | cells | rows "
                "| read | bytes | kB/token | chosen | mass | first token, s | tokens/s |%s\n"
                "|---|--:|---|--:|--:|---|--:|---|--:|---|--:|--:|--:|--:|--:|--:|--:|%s\n",
                tier ? " hits | fetched, kB/token |" : "", tier ? "--:|--:|" : "");
    for (size_t g = 0; g < s->n; g++) {
        const struct summary_row *r = &s->row[g];
        strbuf_addf(out, "| %s%s%s | %u | %s | %u |", r->task, r->place[0] ? " " : "", r->place,
                    r->ctx, r->method, r->score.n);
        add_cell(out, "1", 100 * r->score.mean);
        add_interval(out, false, &r->score);
        if (r->diff_to[0])
            strbuf_addf(out, " %+.1f |", 100 * r->diff.mean);
        else
            strbuf_adds(out, " |");
        add_interval(out, true, &r->diff);
        add_cell(out, "3", r->planned_share);
        const struct question_rows rows = {.all = r->question_rows};
        strbuf_addf(out, " %s", question_name(&rows));
        add_cell(out, "1", r->n_decode_row);
        add_cell(out, "3", r->share_read);
        add_cell(out, "3", r->traffic.share);
        add_cell(out, "1", r->traffic.per_token * 1e-3);
        strbuf_adds(out, " ");
        choices_print(out, r->chosen);
        strbuf_adds(out, " |");
        add_cell(out, "3", r->mass_mean);
        add_cell(out, "1", r->ttft_ms * 1e-3);
        add_cell(out, "1", r->predicted_per_s);
        if (tier) add_cell(out, "3", r->traffic.hit_share);
        if (tier) add_cell(out, "1", r->traffic.fetched * 1e-3);
        strbuf_adds(out, "\n");
    }
}
