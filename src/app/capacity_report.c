/* capacity_report.c: what `bench capacity` tells: a row for each method, a table of all trials, and
 * the drawing of it.
 *
 * Figures beside the two capacities are of the trial at the larger one: bytes are those that decode
 * rows moved (docs/fairness.md); what was fetched is over the same rows. */
#include "app/capacity.h"

#include "eval/chart.h"

#include <math.h>
#include <stdio.h>

static double share(double part, double rest)
{
    return part + rest > 0 ? part / (part + rest) : (double)NAN;
}

/* NAN for a rate that is not known. */
static double known(double rate)
{
    return isfinite(rate) ? rate : (double)NAN;
}

/* ">=" where no rate was found that breaks the limit, "<" where none was found that keeps it, "?"
 * where there was no time for either. */
static void name_capacity(char out[32], const struct capacity_result *r, uint32_t limit_i)
{
    if (r->keeps[limit_i] > 0)
        snprintf(out, 32, "%s%.3g", isfinite(r->fails[limit_i]) ? "" : ">=", r->keeps[limit_i]);
    else if (isfinite(r->fails[limit_i]))
        snprintf(out, 32, "<%.3g", r->fails[limit_i]);
    else
        snprintf(out, 32, "?");
}

void capacity_row_print(struct sheet *sheet, const struct capacity_setting *s,
                        const struct capacity_result *r)
{
    const struct capacity_trial *strict = &r->best[CAPACITY_STRICT];
    const struct capacity_trial *t = &r->best[CAPACITY_RELAXED];
    const struct sac_tier_params *tier = s->params.tier;
    const double right = r->alone->n_right / (double)r->alone->n_prompt;
    const double hits = share((double)t->n_hit, (double)t->n_fetch);
    const double fetched = tier ? (double)t->bytes_fetched / t->traffic.rows : (double)NAN;
    char name[CAPACITY_LIMITS][32];
    for (uint32_t i = 0; i < CAPACITY_LIMITS; i++) name_capacity(name[i], r, i);
    const struct sheet_cell cells[] = {
        {"model_filename", NULL, .text = s->model},
        {"method", "method", .text = r->method},
        {NULL, "strict req/s", .text = name[CAPACITY_STRICT]},
        {NULL, "relaxed req/s", .text = name[CAPACITY_RELAXED]},
        {"capacity_strict", .number = r->keeps[CAPACITY_STRICT]},
        {"capacity_relaxed", .number = r->keeps[CAPACITY_RELAXED]},
        {"fails_strict", .number = known(r->fails[CAPACITY_STRICT])},
        {"fails_relaxed", .number = known(r->fails[CAPACITY_RELAXED])},
        {"p99_strict_ms", .number = strict->p99_ms},
        {"p99_ms", "p99 ms", 1, .number = t->p99_ms},
        {"p50_ms", "p50 ms", 1, .number = t->p50_ms},
        {"tok_s", "tok/s", 1, .number = t->tok_s},
        {NULL, "KV KiB/token", 1, .number = t->traffic.per_token / 1024},
        {"bytes_per_token", .number = t->traffic.per_token},
        {NULL, "bytes %", 1, .number = 100 * t->traffic.share},
        {"bytes_share", .number = t->traffic.share},
        {NULL, "hits %", 1, .number = 100 * hits},
        {"tier_hit_share", .number = hits},
        {NULL, "fetched KiB/token", 1, .number = fetched / 1024},
        {"fetched_bytes_per_token", .number = fetched},
        {NULL, "needles %", 1, .number = 100 * right},
        {"needles_found", .number = right},
        {"wait_ms", "wait ms", 1, .number = t->wait_ms},
        {"ttft_ms", "TTFT ms", 1, .number = t->ttft_ms},
        {"n_running_most", "at once", .number = t->n_running_most},
        {"n_request", .number = (double)t->want.n_request},
        {"n_done", .number = (double)t->n_done},
        {"n_failed", .number = (double)t->n_failed},
        {"n_differ", "differ", .number = (double)(t->n_differ + strict->n_differ)},
        {"n_preempted", .number = (double)t->n_preempted},
        {"n_hold", "holds", .number = (double)t->n_hold},
        {"n_prompt_tok", .number = (double)t->n_prompt_tok},
        {"gap_alone_ms", .number = r->alone->gap_ms},
        {"n_trial", .number = r->n_trial},
        {"idle_ms", .number = s->idle_ms},
        {"strict_ms", .number = s->limit_ms[CAPACITY_STRICT]},
        {"relaxed_ms", .number = s->limit_ms[CAPACITY_RELAXED]},
        {"clock", .text = s->clock->is_model ? "model" : "wall"},
        {"seed", .number = (double)s->load->seed},
        {"lengths", .text = s->lengths},
        {"n_prompts", .number = (double)s->load->n_prompt},
        {"n_output", .number = s->load->n_output},
        {"n_parallel", .number = s->params.n_seq_max},
        {"n_threads", .number = s->params.n_threads},
        {"fast_bytes", .number = tier ? (double)tier->fast_bytes : (double)NAN},
    };
    sheet_row(sheet, cells, sizeof cells / sizeof cells[0]);
}

void capacity_trials_begin(struct strbuf *csv)
{
    strbuf_adds(csv, "method,limit,rate,limit_ms,kept,cut,p99_ms,p99_iterations,p50_ms,most_ms,"
                     "wait_ms,ttft_ms,tok_s,n_request,n_done,n_failed,n_differ,n_running_most,"
                     "bytes_per_token,n_hit,n_fetch,bytes_fetched,n_hold\n");
}

void capacity_trials_add(struct strbuf *csv, const char *method, double idle_ms, bool strict,
                         const struct capacity_trial *t)
{
    strbuf_addf(csv, "\"%s\",%s,%.6g,%.6g,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,", method,
                strict ? "strict" : "relaxed", t->want.rate, t->want.limit_ms, t->is_kept,
                t->is_cut, t->p99_ms, t->p99_ms / idle_ms, t->p50_ms, t->most_ms, t->wait_ms,
                t->ttft_ms, t->tok_s);
    strbuf_addf(csv, "%zu,%zu,%zu,%zu,%u,", t->want.n_request, t->n_done, t->n_failed, t->n_differ,
                t->n_running_most);
    if (isfinite(t->traffic.per_token)) strbuf_addf(csv, "%.6g", t->traffic.per_token);
    strbuf_addf(csv, ",%llu,%llu,%llu,%llu\n", (unsigned long long)t->n_hit,
                (unsigned long long)t->n_fetch, (unsigned long long)t->bytes_fetched,
                (unsigned long long)t->n_hold);
}

sac_status capacity_plot(struct strbuf *out, const struct strbuf *csv, sac_error *err)
{
    const struct chart chart = {
        .title = "99th percentile of the time between tokens, by requests per second",
        .x = "rate",
        .y = "p99_iterations",
        .by = "method",
        .x_label = "requests per second",
        .y_label = "p99 of the time between tokens, in idle iterations",
    };
    struct csv table = {0};
    sac_status status = csv_parse(&table, "the trials", csv->data, csv->n, err);
    if (status == SAC_OK) status = chart_svg(out, &table, &chart, err);
    csv_deinit(&table);
    return status;
}
