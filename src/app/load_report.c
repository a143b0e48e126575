/* load_report.c: the results of the requests, with the terms and the JSON names of vLLM's `bench
 * serve`: TTFT (time to the first token), TPOT (mean time for each token after it), ITL (each gap
 * between pieces of text), E2EL (to the end), throughput, goodput.
 *
 * Only complete answers count. Tokens are those that the server's usage reports; TPOT is over
 * answers of more than one token, as in vLLM. A piece is what the server sent at once, possibly
 * more than one token: then ITL is about pieces and TPOT about tokens. */
#include "app/load.h"

#include "base/mem.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- Numbers ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Linear interpolation, as numpy's default. */
static double percentile(const double *sorted, size_t n, double share)
{
    const double at = share * (double)(n - 1);
    const size_t low = (size_t)at, high = low + 1 < n ? low + 1 : low;
    return sorted[low] + (at - (double)low) * (sorted[high] - sorted[low]);
}

struct load_stat load_stat_make(double *values, size_t n)
{
    double sum = 0, squares = 0;
    if (!n) return (struct load_stat){0};
    qsort(values, n, sizeof *values, compare);
    for (size_t i = 0; i < n; i++) sum += values[i];
    const double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++) squares += (values[i] - mean) * (values[i] - mean);
    return (struct load_stat){
        .mean = mean * 1e3,
        .median = percentile(values, n, 0.5) * 1e3,
        .std = sqrt(squares / (double)n) * 1e3,
        .p99 = percentile(values, n, 0.99) * 1e3,
    };
}

static double tpot_of(const struct load_sample *s)
{
    return s->n_output > 1 ? (s->e2el_s - s->ttft_s) / (s->n_output - 1) : 0;
}

static bool meets(double seconds, double limit_ms)
{
    return limit_ms <= 0 || seconds * 1e3 <= limit_ms;
}

/* Adds one answer to the sums and its times to `values` [n]. */
static void count_sample(struct load_result *out, const struct load_sample *s,
                         const struct load_goodput *goodput)
{
    out->n_done++;
    out->n_input += s->n_input;
    out->n_output += s->n_output;
    out->n_cached += s->n_cached;
    out->n_good += meets(s->ttft_s, goodput->ttft_ms) && meets(tpot_of(s), goodput->tpot_ms) &&
                   meets(s->e2el_s, goodput->e2el_ms);
}

enum { TTFT, TPOT, E2EL };

/* `values` has room for one number per sample. */
static struct load_stat stat_of(double *values, const struct load_run *run, int which)
{
    size_t n = 0;
    for (size_t i = 0; i < run->n; i++) {
        const struct load_sample *s = &run->sample[i];
        if (!s->is_done || (which == TPOT && s->n_output < 2)) continue;
        values[n++] = which == TTFT ? s->ttft_s : which == TPOT ? tpot_of(s) : s->e2el_s;
    }
    return load_stat_make(values, n);
}

static struct load_stat stat_of_gaps(double *values, const struct load_run *run)
{
    size_t n = 0;
    for (size_t i = 0; i < run->n; i++) {
        const struct load_sample *s = &run->sample[i];
        if (!s->is_done || !s->n_itl) continue;
        memcpy(values + n, s->itl_s, s->n_itl * sizeof *values);
        n += s->n_itl;
    }
    return load_stat_make(values, n);
}

sac_status load_result_make(struct load_result *out, const struct load_run *run,
                            const struct load_goodput *goodput, sac_error *err)
{
    *out = (struct load_result){0};
    size_t n_value = run->n, n_gap = 0;
    for (size_t i = 0; i < run->n; i++) n_gap += run->sample[i].n_itl;
    if (n_gap > n_value) n_value = n_gap;
    double *values = mem_calloc(n_value, sizeof *values);
    if (!values) return error_set(err, SAC_ERR_MEMORY, "no memory for %zu numbers", n_value);
    for (size_t i = 0; i < run->n; i++) {
        if (run->sample[i].is_done) count_sample(out, &run->sample[i], goodput);
        out->n_failed += run->sample[i].error != NULL;
    }
    out->ttft = stat_of(values, run, TTFT);
    out->tpot = stat_of(values, run, TPOT);
    out->e2el = stat_of(values, run, E2EL);
    out->itl = stat_of_gaps(values, run);
    mem_free(values);
    return SAC_OK;
}

/* ---- Text output ---- */

static bool has_goodput(const struct load_goodput *g)
{
    return g->ttft_ms > 0 || g->tpot_ms > 0 || g->e2el_ms > 0;
}

static void line(struct strbuf *out, const char *label, int digits, double number)
{
    strbuf_addf(out, "%-40s %.*f\n", label, digits, number);
}

static void stat_lines(struct strbuf *out, const char *title, const char *name,
                       const struct load_stat *s)
{
    strbuf_addf(out, "---- %s ----\n", title);
    strbuf_addf(out, "Mean %s (ms): %*s %.2f\n", name, 26 - (int)strlen(name), "", s->mean);
    strbuf_addf(out, "Median %s (ms): %*s %.2f\n", name, 24 - (int)strlen(name), "", s->median);
    strbuf_addf(out, "P99 %s (ms): %*s %.2f\n", name, 27 - (int)strlen(name), "", s->p99);
}

/* Each error once, with its count. */
static void error_lines(struct strbuf *out, const struct load_run *run)
{
    for (size_t i = 0; i < run->n; i++) {
        const char *error = run->sample[i].error;
        size_t n = 0, first = i;
        for (size_t j = 0; error && j < run->n; j++) {
            if (!run->sample[j].error || strcmp(run->sample[j].error, error) != 0) continue;
            if (j < first) first = j;
            n++;
        }
        if (error && first == i) strbuf_addf(out, "%zu times: %s\n", n, error);
    }
}

void load_report_text(const struct load_report *r, struct strbuf *out)
{
    const struct load_result *t = r->result;
    const double s = r->run->duration_s;
    line(out, "Successful requests:", 0, (double)t->n_done);
    line(out, "Failed requests:", 0, (double)t->n_failed);
    line(out, "Benchmark duration (s):", 2, s);
    line(out, "Total input tokens:", 0, (double)t->n_input);
    line(out, "Of these cached:", 0, (double)t->n_cached);
    line(out, "Total generated tokens:", 0, (double)t->n_output);
    line(out, "Peak concurrent requests:", 0, r->run->n_running_most);
    line(out, "Request throughput (req/s):", 2, (double)t->n_done / s);
    if (has_goodput(r->goodput)) line(out, "Request goodput (req/s):", 2, (double)t->n_good / s);
    line(out, "Output token throughput (tok/s):", 2, (double)t->n_output / s);
    line(out, "Total token throughput (tok/s):", 2, (double)(t->n_input + t->n_output) / s);
    stat_lines(out, "Time to first token", "TTFT", &t->ttft);
    stat_lines(out, "Time per output token, the first excluded", "TPOT", &t->tpot);
    stat_lines(out, "Time between pieces", "ITL", &t->itl);
    stat_lines(out, "Time to the end", "E2EL", &t->e2el);
    if (t->n_failed) {
        strbuf_adds(out, "---- Failures ----\n");
        error_lines(out, r->run);
    }
}

/* ---- Machine-readable output ---- */

static void add_stat(cJSON *json, const char *name, const struct load_stat *s)
{
    const struct {
        const char *what;
        double number;
    } part[] = {{"mean", s->mean}, {"median", s->median}, {"std", s->std}, {"p99", s->p99}};
    for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s_%s_ms", part[i].what, name);
        cJSON_AddNumberToObject(json, key, part[i].number);
    }
}

/* The settings that reproduce the load. */
static void add_settings(cJSON *json, const struct load_report *r)
{
    const struct load_params *p = r->params;
    const struct load_target *t = r->target;
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y%m%d-%H%M%S", gmtime_r(&now, &utc));
    cJSON_AddStringToObject(json, "date", date);
    cJSON_AddStringToObject(json, "endpoint_type",
                            t->backend == LOAD_CHAT ? "openai-chat" : "openai");
    cJSON_AddStringToObject(json, "model_id", t->model);
    cJSON_AddNumberToObject(json, "num_prompts", (double)r->run->n);
    if (p->rate > 0)
        cJSON_AddNumberToObject(json, "request_rate", p->rate);
    else
        cJSON_AddStringToObject(json, "request_rate", "inf");
    cJSON_AddNumberToObject(json, "burstiness", p->burstiness);
    if (t->n_running_max)
        cJSON_AddNumberToObject(json, "max_concurrency", t->n_running_max);
    else
        cJSON_AddNullToObject(json, "max_concurrency");
    cJSON_AddNumberToObject(json, "seed", (double)p->seed);
    cJSON_AddNumberToObject(json, "input_len", p->n_input);
    cJSON_AddNumberToObject(json, "output_len", p->n_output);
    cJSON_AddNumberToObject(json, "range_ratio", p->range_ratio);
    cJSON_AddNumberToObject(json, "prefix_len", p->n_prefix_tok);
    cJSON_AddNumberToObject(json, "num_prefixes", p->n_prefix);
    cJSON_AddNumberToObject(json, "num_turns", p->n_turn);
    cJSON_AddNumberToObject(json, "think_time_s", t->think_s);
    cJSON_AddBoolToObject(json, "ignore_eos", t->ignore_eos);
    if (t->extra_body)
        cJSON_AddItemToObject(json, "extra_body", cJSON_Parse(t->extra_body));
    else
        cJSON_AddNullToObject(json, "extra_body");
}

static void add_totals(cJSON *json, const struct load_report *r)
{
    const struct load_result *t = r->result;
    const double s = r->run->duration_s;
    cJSON_AddNumberToObject(json, "duration", s);
    cJSON_AddNumberToObject(json, "completed", (double)t->n_done);
    cJSON_AddNumberToObject(json, "failed", (double)t->n_failed);
    cJSON_AddNumberToObject(json, "total_input_tokens", (double)t->n_input);
    cJSON_AddNumberToObject(json, "total_cached_tokens", (double)t->n_cached);
    cJSON_AddNumberToObject(json, "total_output_tokens", (double)t->n_output);
    cJSON_AddNumberToObject(json, "max_concurrent_requests", r->run->n_running_most);
    cJSON_AddNumberToObject(json, "request_throughput", (double)t->n_done / s);
    if (has_goodput(r->goodput))
        cJSON_AddNumberToObject(json, "request_goodput", (double)t->n_good / s);
    else
        cJSON_AddNullToObject(json, "request_goodput");
    cJSON_AddNumberToObject(json, "output_throughput", (double)t->n_output / s);
    cJSON_AddNumberToObject(json, "total_token_throughput", (double)(t->n_input + t->n_output) / s);
}

/* Values per request in the order of the plan; failed requests have zeros and an error. */
static void add_details(cJSON *json, const struct load_run *run)
{
    cJSON *start = cJSON_AddArrayToObject(json, "start_times");
    cJSON *in = cJSON_AddArrayToObject(json, "input_lens");
    cJSON *n_out = cJSON_AddArrayToObject(json, "output_lens");
    cJSON *ttft = cJSON_AddArrayToObject(json, "ttfts"),
          *itl = cJSON_AddArrayToObject(json, "itls");
    cJSON *errors = cJSON_AddArrayToObject(json, "errors");
    for (size_t i = 0; i < run->n; i++) {
        const struct load_sample *s = &run->sample[i];
        cJSON *gaps = cJSON_CreateArray();
        for (size_t g = 0; g < s->n_itl; g++)
            cJSON_AddItemToArray(gaps, cJSON_CreateNumber(s->itl_s[g]));
        cJSON_AddItemToArray(start, cJSON_CreateNumber(s->start_s));
        cJSON_AddItemToArray(in, cJSON_CreateNumber(s->n_input));
        cJSON_AddItemToArray(n_out, cJSON_CreateNumber(s->n_output));
        cJSON_AddItemToArray(ttft, cJSON_CreateNumber(s->ttft_s));
        cJSON_AddItemToArray(itl, gaps);
        cJSON_AddItemToArray(errors, cJSON_CreateString(s->error ? s->error : ""));
    }
}

sac_status load_report_json(const struct load_report *r, struct strbuf *out, sac_error *err)
{
    cJSON *json = cJSON_CreateObject();
    add_settings(json, r);
    add_totals(json, r);
    add_stat(json, "ttft", &r->result->ttft);
    add_stat(json, "tpot", &r->result->tpot);
    add_stat(json, "itl", &r->result->itl);
    add_stat(json, "e2el", &r->result->e2el);
    if (r->detailed) add_details(json, r->run);
    char *text = json ? cJSON_Print(json) : NULL;
    if (text) strbuf_addf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(json);
    return text && !out->failed ? SAC_OK : error_set(err, SAC_ERR_MEMORY, "no memory for a report");
}
