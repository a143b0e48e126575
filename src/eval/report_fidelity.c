/* report_fidelity.c: see the header. The divergence of dense attention from itself is exactly 0,
 * which a logarithmic axis cannot show: it has a strip of its own below. */
#include "eval/report_fidelity.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SERIES 64u

static const char kl_title[] = "KL divergence against share of bytes read";
static const char time_title[] = "KL divergence against time";
static const char layer_title[] = "Output error by layer";

static const struct table_column kl_columns[] = {
    {"ctx", "context", TABLE_COUNT},
    {"method", "method", TABLE_TEXT},
    {"kl_mean", "KL mean", TABLE_NUMBER},
    {"bytes_share", "bytes read", TABLE_SHARE},
    {"ms_per_token", "ms a token", TABLE_NUMBER},
    {"top1", "top-1 same", TABLE_SHARE},
    {"share_read", "KV read", TABLE_SHARE},
    {"bytes_per_token", "bytes a token", TABLE_NUMBER},
    {"kl_median", "median", TABLE_NUMBER},
    {"kl_p90", "90 %", TABLE_NUMBER},
    {"kl_p99", "99 %", TABLE_NUMBER},
    {"top5", "top-5 same", TABLE_SHARE},
    {"ppl", "perplexity", TABLE_NUMBER},
    {"ppl_dense", "dense", TABLE_NUMBER},
    {"mass_mean", "mass kept", TABLE_SHARE},
    {"out_err_mean", "output error", TABLE_NUMBER},
};

static double share_of(const struct report_fidelity *f)
{
    return f->bytes_share;
}

static double ms_of(const struct report_fidelity *f)
{
    return f->us_per_token * 1e-3;
}

/* The quantity on the x axis of a divergence plot. */
struct cost {
    const char *name, *title, *text, *desc, *label;
    enum scale_unit unit;
    double least_end; /* the axis extends at least to this value */
    double (*of)(const struct report_fidelity *f);
};

static const struct cost cost_bytes = {
    .name = "kl-share",
    .title = kl_title,
    .text = "How far the next-token distribution is from that of dense attention, on the same "
            "text. Marks are means, bars reach up to the 99th percentile.",
    .desc = "Mean KL divergence of the next-token distribution to dense, against the bytes read, "
            "choosing and building included, as a share of what dense attention reads.",
    .label = "share of bytes read",
    .unit = SCALE_PERCENT,
    .least_end = 1,
    .of = share_of,
};

static const struct cost cost_time = {
    .name = "kl-time",
    .title = time_title,
    .text = "The same divergence against the time of a step that computes one token, with nothing "
            "recorded: the median over the scored tokens, linear layers included.",
    .desc = "Mean KL divergence of the next-token distribution to dense, against the median time "
            "of a step.",
    .label = "time of a token",
    .unit = SCALE_MS,
    .of = ms_of,
};

/* The rows of one context. */
struct rows {
    const struct report_fidelity *row[MAX_SERIES];
    struct plot_series series[MAX_SERIES];
    size_t n;
};

static struct rows rows_of(const struct report_data *d, const struct plot_series *series,
                           double ctx)
{
    struct rows r = {.n = 0};
    for (size_t i = 0; i < d->n_fidelity && r.n < MAX_SERIES; i++) {
        const struct report_fidelity *f = &d->fidelity[i];
        if (f->ctx != ctx) continue;
        r.row[r.n] = f;
        r.series[r.n++] = series[f->method_i];
    }
    return r;
}

static void kl_rows(const struct report_data *d, const struct rows *r, struct table *table)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct report_fidelity *f = r->row[i];
        table_add(table, (struct table_cell[]){{.number = f->ctx},
                                               {.text = d->methods.item[f->method_i]},
                                               {.number = f->kl_mean},
                                               {.number = f->bytes_share},
                                               {.number = ms_of(f)},
                                               {.number = f->top1},
                                               {.number = f->share_read},
                                               {.number = f->bytes_per_token},
                                               {.number = f->kl_median},
                                               {.number = f->kl_p90},
                                               {.number = f->kl_p99},
                                               {.number = f->top5},
                                               {.number = f->ppl},
                                               {.number = f->ppl_dense},
                                               {.number = f->mass_mean},
                                               {.number = f->out_err_mean}});
    }
}

/* Axes that hold all rows: costs from the smallest, positive divergences, and the strip for
 * zeros. */
static void kl_scales(const struct rows *r, const struct cost *cost, struct plot_axes *axes)
{
    double lo = INFINITY, hi = 0, least = INFINITY, most = cost->least_end;
    for (size_t i = 0; i < r->n; i++) {
        const struct report_fidelity *f = r->row[i];
        const double x = cost->of(f);
        if (x > 0) least = fmin(least, x);
        if (x > 0) most = fmax(most, x); /* selection may read more than dense attention does */
        if (!(f->kl_mean > 0)) axes->y_zero = "0";
        if (!(f->kl_mean > 0)) continue;
        lo = fmin(lo, f->kl_mean);
        hi = fmax(hi, f->kl_p99 > 0 ? fmax(f->kl_mean, f->kl_p99) : f->kl_mean);
    }
    if (!(lo <= hi)) lo = hi = 1e-3; /* all are zero */
    axes->x = (struct scale){.form = SCALE_LINEAR, .unit = cost->unit, .lo = 0, .hi = most};
    if (least < most / 10)
        axes->x = (struct scale){SCALE_LOG10, cost->unit, least * 0.9, most, 0, 0};
    axes->y = (struct scale){.form = SCALE_LOG10, .lo = lo, .hi = hi};
    scale_round(&axes->y, 6);
}

static void kl_marks(struct plot *plot, const struct rows *r, const struct cost *cost)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct report_fidelity *row = r->row[i];
        const double x = cost->of(row);
        char tip[200], kl[32], at[32];
        table_number(kl, TABLE_NUMBER, row->kl_mean);
        table_number(at, cost->unit == SCALE_PERCENT ? TABLE_SHARE : TABLE_NUMBER, x);
        snprintf(tip, sizeof tip, "%.100s: KL %s, %s%s", r->series[i].name, kl,
                 cost->unit == SCALE_PERCENT ? "read " : "", at);
        if (cost->unit == SCALE_MS) snprintf(tip + strlen(tip), sizeof tip - strlen(tip), " ms");
        if (row->kl_mean > 0 && row->kl_p99 > row->kl_mean)
            plot_interval(plot, i, x, row->kl_mean, row->kl_p99);
        plot_point(plot, i, x, row->kl_mean, tip);
    }
}

static void kl_panel(struct report_figure *f, const struct rows *r, const struct cost *cost)
{
    char id[64], heading[64], label[32];
    const struct scale tokens = {.unit = SCALE_TOKENS};
    assert(r->n > 0);
    scale_label(&tokens, r->row[0]->ctx, label);
    snprintf(heading, sizeof heading, "Context of %s", label);
    report_page_panel(f, heading, id);
    struct plot_axes axes = {
        .words = {id, heading, cost->desc, cost->label, "KL divergence to dense"},
        .series = r->series,
        .n_series = r->n,
    };
    kl_scales(r, cost, &axes);
    struct plot plot = plot_begin(&f->panels, &axes);
    double x[MAX_SERIES], y[MAX_SERIES];
    for (size_t i = 0; i < r->n; i++) {
        x[i] = cost->of(r->row[i]);
        y[i] = r->row[i]->kl_mean;
    }
    plot_families(&plot, x, y);
    kl_marks(&plot, r, cost);
    plot_end(&plot);
    report_page_panel_end(f);
}

/* A panel for each context. */
static sac_status plot_kl(struct report_page *page, const struct report_data *d,
                          const struct plot_series *series, const struct cost *cost, sac_error *err)
{
    struct report_figure f = {.name = cost->name, .title = cost->title, .text = cost->text};
    double *ctx = mem_calloc(d->n_fidelity, sizeof *ctx);
    if (!ctx) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    for (size_t i = 0; i < d->n_fidelity; i++) ctx[i] = d->fidelity[i].ctx;
    const size_t n_ctx = report_data_distinct(ctx, d->n_fidelity);
    table_init(&f.table, kl_columns, sizeof kl_columns / sizeof kl_columns[0]);
    for (size_t c = 0; c < n_ctx; c++) {
        const struct rows r = rows_of(d, series, ctx[c]);
        kl_rows(d, &r, &f.table);
        kl_panel(&f, &r, cost);
    }
    const sac_status status = report_page_figure(page, &f, err);
    mem_free(ctx);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* Whether steps were timed, as in a sweep. */
static bool is_timed(const struct report_data *d)
{
    for (size_t i = 0; i < d->n_fidelity; i++)
        if (!(d->fidelity[i].us_per_token > 0)) return false;
    return d->n_fidelity > 0;
}

/* ---- Output error by layer, at the longest context ---- */

static const struct table_column layer_columns[] = {
    {"method", "method", TABLE_TEXT},
    {"layer", "layer", TABLE_COUNT},
    {"out_err", "output error", TABLE_NUMBER},
};

/* The ranges of the axes over all methods; false if there is nothing to draw. */
static bool layer_scales(const struct rows *r, struct plot_axes *axes)
{
    size_t n_layer = 0;
    double lo = INFINITY, hi = 0;
    for (size_t i = 0; i < r->n; i++) {
        for (size_t l = 0; l < r->row[i]->n_layer; l++) {
            const double v = r->row[i]->layer_err[l];
            if (!isfinite(v)) continue;
            if (l >= n_layer) n_layer = l + 1;
            if (!(v > 0)) axes->y_zero = "0";
            if (!(v > 0)) continue;
            lo = fmin(lo, v);
            hi = fmax(hi, v);
        }
    }
    if (!(lo <= hi)) lo = hi = 1e-3;
    axes->x =
        (struct scale){.form = SCALE_LINEAR, .lo = 0, .hi = (double)(n_layer ? n_layer - 1 : 0)};
    axes->y = (struct scale){.form = SCALE_LOG10, .lo = lo, .hi = hi};
    scale_round(&axes->x, 6);
    scale_round(&axes->y, 6);
    return n_layer > 0;
}

static void layer_lines(struct plot *plot, const struct rows *r, struct table *table)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct report_fidelity *f = r->row[i];
        double x[512];
        const size_t n = f->n_layer < 512 ? f->n_layer : 512;
        for (size_t l = 0; l < n; l++) {
            x[l] = (double)l;
            table_add(table, (struct table_cell[]){{.text = r->series[i].name},
                                                   {.number = (double)l},
                                                   {.number = f->layer_err[l]}});
        }
        plot_line(plot, i, x, f->layer_err, n, true);
    }
}

static sac_status plot_layers(struct report_page *page, const struct report_data *d,
                              const struct plot_series *series, sac_error *err)
{
    struct report_figure f = {
        .name = "layer-error",
        .title = layer_title,
        .text = "Relative L2 error of the attention output against dense, mean over heads and "
                "positions of a layer.",
    };
    double ctx = 0;
    for (size_t i = 0; i < d->n_fidelity; i++)
        if (d->fidelity[i].n_layer > 0) ctx = fmax(ctx, d->fidelity[i].ctx);
    const struct rows r = rows_of(d, series, ctx);
    struct plot_axes axes = {.series = r.series, .n_series = r.n};
    if (!layer_scales(&r, &axes)) {
        report_page_missing(page, layer_title, "fidelity.json holds no errors per layer");
        return SAC_OK;
    }
    char id[64], heading[64], label[32];
    const struct scale tokens = {.unit = SCALE_TOKENS};
    scale_label(&tokens, ctx, label);
    snprintf(heading, sizeof heading, "Context of %s", label);
    report_page_panel(&f, heading, id);
    axes.words = (struct plot_words){id, heading, f.text, "layer", "relative error of the output"};
    table_init(&f.table, layer_columns, sizeof layer_columns / sizeof layer_columns[0]);
    struct plot plot = plot_begin(&f.panels, &axes);
    layer_lines(&plot, &r, &f.table);
    plot_end(&plot);
    report_page_panel_end(&f);
    const sac_status status = report_page_figure(page, &f, err);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

sac_status report_fidelity_plots(struct report_page *page, const struct report_data *data,
                                 const struct plot_series *series, sac_error *err)
{
    if (data->n_fidelity == 0) {
        const char *why =
            data->has_fidelity ? "fidelity.json is empty" : "fidelity.json is missing";
        report_page_missing(page, kl_title, why);
        report_page_missing(page, layer_title, why);
        return SAC_OK;
    }
    TRY(plot_kl(page, data, series, &cost_bytes, err));
    if (is_timed(data)) TRY(plot_kl(page, data, series, &cost_time, err));
    return plot_layers(page, data, series, err);
}
