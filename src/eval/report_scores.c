/* report_scores.c: see the header. The map is a table of the page and no drawing: names of tasks
 * and methods are long, and a table finds room for them at every width. One scale, from 0 to 100,
 * for all panels. */
#include "eval/report_scores.h"

#include "base/mem.h"
#include "eval/colour.h"
#include "eval/markup.h"
#include "eval/scale.h"
#include "eval/summary.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define BOOTSTRAP_SEED 1 /* of the resampling: the same samples always give the same report */

static const char title[] = "Scores by task and method";

static const struct table_column columns[] = {
    {"ctx", "context", TABLE_COUNT},        {"task", "task", TABLE_TEXT},
    {"method", "method", TABLE_TEXT},       {"n", "samples", TABLE_COUNT},
    {"score", "score", TABLE_SHARE},        {"score_low", "95 % from", TABLE_SHARE},
    {"score_high", "95 % to", TABLE_SHARE},
};

struct scores {
    const struct report_data *data;
    struct report_figure figure;
    double *value; /* [n_sample] owned */
};

/* Puts the scores of a cell into s->value; returns their number. */
static size_t pick(const struct scores *s, double ctx, size_t task_i, size_t method_i)
{
    size_t n = 0;
    for (size_t i = 0; i < s->data->n_sample; i++) {
        const struct report_sample *one = &s->data->sample[i];
        if (one->ctx == ctx && one->task_i == task_i && one->method_i == method_i &&
            isfinite(one->score))
            s->value[n++] = one->score;
    }
    return n;
}

/* A name may be broken after a colon or a comma. */
static void add_name(struct strbuf *out, const char *element, const char *name)
{
    strbuf_addf(out, "<th scope=\"%s\" class=\"t\">", element);
    while (*name) {
        const size_t n = strcspn(name, ":,"), len = n + (name[n] != 0);
        markup_html(out, name, len);
        strbuf_adds(out, "<wbr>");
        name += len;
    }
    strbuf_adds(out, "</th>");
}

static sac_status add_cell(struct scores *s, double ctx, size_t task_i, size_t method_i,
                           sac_error *err)
{
    struct strbuf *out = &s->figure.panels;
    struct summary_mean m;
    const size_t n = pick(s, ctx, task_i, method_i);
    if (n == 0) {
        strbuf_adds(out, "<td></td>");
        return SAC_OK;
    }
    TRY(summary_bootstrap(&m, s->value, n, BOOTSTRAP_SEED, err));
    const unsigned step = colour_level_of(m.mean);
    strbuf_addf(out, "<td style=\"background:var(--q%u);color:var(--i%u)\"><b>%.1f</b>", step, step,
                100 * m.mean);
    if (isfinite(m.low))
        strbuf_addf(out, "<br><small>%.0f to %.0f</small>", 100 * m.low, 100 * m.high);
    strbuf_adds(out, "</td>");
    table_add(&s->figure.table, (struct table_cell[]){{.number = ctx},
                                                      {.text = s->data->tasks.item[task_i]},
                                                      {.text = s->data->methods.item[method_i]},
                                                      {.number = (double)n},
                                                      {.number = m.mean},
                                                      {.number = m.low},
                                                      {.number = m.high}});
    return SAC_OK;
}

static bool has_task(const struct scores *s, double ctx, size_t task_i)
{
    for (size_t i = 0; i < s->data->n_sample; i++)
        if (s->data->sample[i].ctx == ctx && s->data->sample[i].task_i == task_i) return true;
    return false;
}

static sac_status add_panel(struct scores *s, double ctx, sac_error *err)
{
    const struct report_data *d = s->data;
    const struct scale tokens = {.unit = SCALE_TOKENS};
    struct strbuf *out = &s->figure.panels;
    char id[64], label[32], heading[64];
    scale_label(&tokens, ctx, label);
    snprintf(heading, sizeof heading, "Context of %s", label);
    report_page_panel(&s->figure, heading, id);
    strbuf_adds(out,
                "<div class=\"data\" tabindex=\"0\"><table class=\"map\"><thead><tr><td></td>");
    for (size_t m = 0; m < d->methods.n; m++) add_name(out, "col", d->methods.item[m]);
    strbuf_adds(out, "</tr></thead><tbody>\n");
    for (size_t t = 0; t < d->tasks.n; t++) {
        if (!has_task(s, ctx, t)) continue;
        strbuf_adds(out, "<tr>");
        add_name(out, "row", d->tasks.item[t]);
        for (size_t m = 0; m < d->methods.n; m++) TRY(add_cell(s, ctx, t, m, err));
        strbuf_adds(out, "</tr>\n");
    }
    strbuf_adds(out, "</tbody></table></div>\n");
    report_page_panel_end(&s->figure);
    return SAC_OK;
}

sac_status report_scores_plot(struct report_page *page, const struct report_data *data,
                              sac_error *err)
{
    struct scores s = {
        .data = data,
        .figure = {.name = "scores",
                   .title = title,
                   .text = "Mean score of each method on each task in per cent, and the 95 % "
                           "interval of a bootstrap below it. A colour means the same everywhere."},
    };
    if (data->n_sample == 0) {
        report_page_missing(
            page, title, data->has_samples ? "samples.jsonl is empty" : "samples.jsonl is missing");
        return SAC_OK;
    }
    double *ctx = mem_calloc(data->n_sample, sizeof *ctx);
    s.value = mem_calloc(data->n_sample, sizeof *s.value);
    sac_status status = ctx && s.value
                            ? SAC_OK
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for the map of scores");
    for (size_t i = 0; status == SAC_OK && i < data->n_sample; i++) ctx[i] = data->sample[i].ctx;
    const size_t n_ctx = status == SAC_OK ? report_data_distinct(ctx, data->n_sample) : 0;
    table_init(&s.figure.table, columns, sizeof columns / sizeof columns[0]);
    for (size_t c = 0; status == SAC_OK && c < n_ctx; c++) status = add_panel(&s, ctx[c], err);
    if (status == SAC_OK && s.figure.table.n_row > 0)
        status = report_page_figure(page, &s.figure, err);
    else if (status == SAC_OK)
        report_page_missing(page, title, "samples.jsonl holds no score");
    mem_free(ctx);
    mem_free(s.value);
    table_deinit(&s.figure.table);
    strbuf_deinit(&s.figure.panels);
    return status;
}
