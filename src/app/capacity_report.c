/* capacity_report.c: the report of `bench capacity`: a row for each method, a table of all trials,
 * and a drawing of it.
 *
 * The figures beside the two capacities are those of the trial at the larger one: bytes that decode
 * rows moved (docs/fairness.md), and what was fetched for the same rows. */
#include "app/capacity.h"

#include "eval/chart.h"

#include <math.h>
#include <stdio.h>

static double share(double part, double rest)
{
    return part + rest > 0 ? part / (part + rest) : (double)NAN;
}

/* NAN if the rate is unknown. */
static double known(double rate)
{
    return isfinite(rate) ? rate : (double)NAN;
}

/* Formats a rate with its uncertainty. */
static void name_capacity(char out[48], const struct capacity_found *f, double factor,
                          struct capacity_marks *marks)
{
    const bool fails = isfinite(f->fails), keeps = f->keeps > 0;
    /* Tolerates rounding in the search. */
    const bool is_wide = keeps && fails && f->fails > f->keeps * factor * 1.0001;
    const char *late = f->is_late ? "*" : "";
    if (is_wide)
        snprintf(out, 48, "%.3g..%.3g%s", f->keeps, f->fails, late);
    else if (keeps)
        snprintf(out, 48, "%s%.3g%s", fails ? "" : ">=", f->keeps, late);
    else if (fails)
        snprintf(out, 48, "<%.3g%s", f->fails, late);
    else
        snprintf(out, 48, "?%s", late);
    marks->between |= is_wide;
    marks->least |= keeps && !fails;
    marks->below |= !keeps && fails;
    marks->none |= !keeps && !fails;
    marks->late |= f->is_late;
}

void capacity_legend_print(const struct capacity_marks *marks)
{
    const struct {
        bool is_used;
        const char *text;
    } line[] = {
        {marks->between, "A..B: A keeps the limit and B breaks it; no rate between was tried."},
        {marks->least, ">=A: A keeps the limit; no larger rate was decided."},
        {marks->below, "<A: A breaks the limit; no smaller rate was decided."},
        {marks->none, "?: no rate was decided."},
        {marks->late, "*: the search ended for want of time; --seconds gives it more. Others end "
                      "when they are near enough (--factor), or with --max-trials."},
    };
    for (size_t i = 0; i < sizeof line / sizeof line[0]; i++)
        if (line[i].is_used) printf("\n%s\n", line[i].text);
}

void capacity_row_print(struct table_printer *printer, const struct capacity_setting *s,
                        const struct capacity_result *r, struct capacity_marks *marks)
{
    const struct capacity_trial *strict = &r->best[CAPACITY_STRICT];
    const struct capacity_trial *t = &r->best[CAPACITY_RELAXED];
    const struct sac_tier_params *tier = s->params.tier;
    const double right = r->alone->n_right / (double)r->alone->n_prompt;
    const double hits = share((double)t->n_hit, (double)t->n_fetch);
    const double fetched = tier ? (double)t->bytes_fetched / t->traffic.rows : (double)NAN;
    const struct capacity_found *found = r->found;
    char name[CAPACITY_LIMITS][48];
    for (uint32_t i = 0; i < CAPACITY_LIMITS; i++)
        name_capacity(name[i], &found[i], s->factor, marks);
    const struct table_printer_cell cells[] = {
        {"model_filename", NULL, .text = s->model},
        {"method", "method", .text = r->method},
        {NULL, "strict req/s", .text = name[CAPACITY_STRICT]},
        {NULL, "relaxed req/s", .text = name[CAPACITY_RELAXED]},
        {"capacity_strict", .number = found[CAPACITY_STRICT].keeps},
        {"capacity_relaxed", .number = found[CAPACITY_RELAXED].keeps},
        {"fails_strict", .number = known(found[CAPACITY_STRICT].fails)},
        {"fails_relaxed", .number = known(found[CAPACITY_RELAXED].fails)},
        {"late_strict", .number = found[CAPACITY_STRICT].is_late},
        {"late_relaxed", .number = found[CAPACITY_RELAXED].is_late},
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
        {NULL, "KV MiB", 1, .number = (double)t->kv_most_tok * s->kv_bytes / 0x1p20},
        {"kv_most_bytes", .number = (double)t->kv_most_tok * s->kv_bytes},
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
        {"n_contexts", .number = (double)s->load->n_context},
        {"n_output", .number = s->load->n_output},
        {"n_parallel", .number = s->params.n_seq_max},
        {"n_threads", .number = s->params.n_threads},
        {"fast_bytes", .number = tier ? (double)tier->fast_bytes : (double)NAN},
    };
    table_printer_row(printer, cells, sizeof cells / sizeof cells[0]);
}

void capacity_trials_begin(struct strbuf *csv)
{
    strbuf_adds(csv, "method,limit,rate,limit_ms,kept,cut,p99_ms,p99_iterations,p50_ms,most_ms,"
                     "wait_ms,ttft_ms,tok_s,n_request,n_done,n_failed,n_differ,n_running_most,"
                     "bytes_per_token,n_hit,n_fetch,bytes_fetched,n_hold,kv_most_bytes\n");
}

void capacity_trials_add(struct strbuf *csv, const char *method, bool strict,
                         const struct capacity_setting *s, const struct capacity_trial *t)
{
    strbuf_addf(csv, "\"%s\",%s,%.6g,%.6g,%d,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g,", method,
                strict ? "strict" : "relaxed", t->want.rate, t->want.limit_ms, t->is_kept,
                t->is_cut, t->p99_ms, t->p99_ms / s->idle_ms, t->p50_ms, t->most_ms, t->wait_ms,
                t->ttft_ms, t->tok_s);
    strbuf_addf(csv, "%zu,%zu,%zu,%zu,%u,", t->want.n_request, t->n_done, t->n_failed, t->n_differ,
                t->n_running_most);
    if (isfinite(t->traffic.per_token)) strbuf_addf(csv, "%.6g", t->traffic.per_token);
    strbuf_addf(csv, ",%llu,%llu,%llu,%llu,%.0f\n", (unsigned long long)t->n_hit,
                (unsigned long long)t->n_fetch, (unsigned long long)t->bytes_fetched,
                (unsigned long long)t->n_hold, (double)t->kv_most_tok * s->kv_bytes);
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
