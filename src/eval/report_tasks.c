/* report_tasks.c: see the header. Each plot asks for the samples of a cell of its table (a task, a
 * method, a context, a depth) and shows their mean or median; the table says how many there were.
 */
#include "eval/report_tasks.h"

#include "base/mem.h"
#include "eval/question.h"
#include "eval/summary.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOOTSTRAP_SEED 1 /* of the resampling: the same samples always give the same report */
#define ANY            SIZE_MAX
#define SCORE          offsetof(struct report_sample, score)
#define SHARE_READ     offsetof(struct report_sample, share_read)
#define BYTES_SHARE    offsetof(struct report_sample, bytes_share)
#define BYTES          offsetof(struct report_sample, bytes_per_token)
#define N_DECODE_ROW   offsetof(struct report_sample, n_decode_row)
#define QUESTION_ROWS  offsetof(struct report_sample, question_rows)

struct tasks {
    struct report_page *page;
    const struct report_data *data;
    const struct plot_series *series; /* [data->methods.n] */
    double *value;                    /* [n_sample] result of the last call of pick() */
    double *ctx;                      /* [n_ctx] all contexts, rising */
    size_t n_ctx;
};

/* A filter of samples; ANY and NAN match all. */
struct pick {
    size_t task_i, method_i;
    double ctx, depth;
};

/* Collects the finite values of the field at `offset` of the samples that match; returns their
 * number. */
static size_t pick(struct tasks *t, struct pick p, size_t offset)
{
    size_t n = 0;
    for (size_t i = 0; i < t->data->n_sample; i++) {
        const struct report_sample *s = &t->data->sample[i];
        if (p.task_i != ANY && s->task_i != p.task_i) continue;
        if (p.method_i != ANY && s->method_i != p.method_i) continue;
        if (!isnan(p.ctx) && s->ctx != p.ctx) continue;
        if (!isnan(p.depth) && s->depth != p.depth) continue;
        memcpy(&t->value[n], (const char *)s + offset, sizeof(double));
        n += isfinite(t->value[n]);
    }
    return n;
}

static const char *method_name(const struct tasks *t, size_t i)
{
    return t->data->methods.item[i];
}

/* ---- Needle ---- */

static const struct table_column needle_columns[] = {
    {"task", "task", TABLE_TEXT},    {"method", "method", TABLE_TEXT},
    {"ctx", "context", TABLE_COUNT}, {"depth", "depth, %", TABLE_COUNT},
    {"n", "samples", TABLE_COUNT},   {"score", "score", TABLE_SHARE},
};

struct needle {
    double *depth; /* [n_depth] rising */
    size_t n_depth;
    double *mean; /* [n_depth, n_ctx] */
    plot_name *depth_name, *ctx_name;
};

static void needle_deinit(struct needle *n)
{
    mem_free(n->depth);
    mem_free(n->mean);
    mem_free(n->depth_name);
    mem_free(n->ctx_name);
}

static sac_status needle_init(struct needle *n, struct tasks *t, sac_error *err)
{
    const size_t n_sample = t->data->n_sample;
    n->depth = mem_calloc(n_sample, sizeof *n->depth);
    if (!n->depth) return error_set(err, SAC_ERR_MEMORY, "out of memory for the needle plot");
    for (size_t i = 0; i < n_sample; i++) n->depth[i] = t->data->sample[i].depth;
    n->n_depth = report_data_distinct(n->depth, n_sample);
    n->mean = mem_calloc(n->n_depth * t->n_ctx, sizeof *n->mean);
    n->depth_name = mem_calloc(n->n_depth, sizeof *n->depth_name);
    n->ctx_name = mem_calloc(t->n_ctx, sizeof *n->ctx_name);
    if (!n->mean || !n->depth_name || !n->ctx_name)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the needle plot");
    const struct scale tokens = {.unit = SCALE_TOKENS};
    for (size_t i = 0; i < n->n_depth; i++)
        snprintf(n->depth_name[i], sizeof *n->depth_name, "%.4g %%", n->depth[i]);
    for (size_t i = 0; i < t->n_ctx; i++) scale_label(&tokens, t->ctx[i], n->ctx_name[i]);
    return SAC_OK;
}

/* Fills the grid of one task and method; false if it has no sample. */
static bool needle_fill(struct needle *n, struct tasks *t, struct table *table, size_t task_i,
                        size_t method_i)
{
    bool any = false;
    for (size_t k = 0; k < n->n_depth * t->n_ctx; k++) {
        const double ctx = t->ctx[k % t->n_ctx], depth = n->depth[k / t->n_ctx];
        const size_t count = pick(t, (struct pick){task_i, method_i, ctx, depth}, SCORE);
        n->mean[k] = report_data_mean(t->value, count);
        if (count == 0) continue;
        any = true;
        table_add(table, (struct table_cell[]){{.text = t->data->tasks.item[task_i]},
                                               {.text = method_name(t, method_i)},
                                               {.number = ctx},
                                               {.number = depth},
                                               {.number = (double)count},
                                               {.number = n->mean[k]}});
    }
    return any;
}

static void needle_panel(const struct needle *n, const struct tasks *t, struct report_figure *f,
                         size_t task_i, size_t method_i)
{
    char id[64], heading[256];
    snprintf(heading, sizeof heading, "%.120s, %.120s", t->data->tasks.item[task_i],
             method_name(t, method_i));
    report_page_panel(f, heading, id);
    const struct plot_grid g = {
        .words = {id, heading, "Mean score for each context and depth of the needle.",
                  "context, tokens", "depth of the needle"},
        .n_x = t->n_ctx,
        .n_y = n->n_depth,
        .value = n->mean,
        .x_name = (const plot_name *)n->ctx_name,
        .y_name = (const plot_name *)n->depth_name,
        .colour = {.form = SCALE_LINEAR, .unit = SCALE_PERCENT, .lo = 0, .hi = 1},
        .colour_label = "score",
        .cell_h = n->n_depth > 12 ? 16 : 24,
        .numbers = true,
    };
    plot_grid(&f->panels, &g);
    report_page_panel_end(f);
}

static sac_status plot_needle(struct tasks *t, sac_error *err)
{
    static const char title[] = "Needle in a haystack";
    struct report_figure f = {
        .name = "needle",
        .title = title,
        .text =
            "Share of the hidden facts that the answer names, by the length of the document and "
            "the place of the fact in it.",
    };
    struct needle n = {0};
    table_init(&f.table, needle_columns, sizeof needle_columns / sizeof needle_columns[0]);
    sac_status status = needle_init(&n, t, err);
    for (size_t task = 0; status == SAC_OK && n.n_depth && task < t->data->tasks.n; task++)
        for (size_t method = 0; method < t->data->methods.n; method++)
            if (needle_fill(&n, t, &f.table, task, method)) needle_panel(&n, t, &f, task, method);
    if (status == SAC_OK && f.n_panel > 0)
        status = report_page_figure(t->page, &f, err);
    else if (status == SAC_OK)
        report_page_missing(t->page, title, "samples.jsonl holds no sample with a depth");
    needle_deinit(&n);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- Score against share of bytes read ---- */

static const struct table_column share_columns[] = {
    {"ctx", "context", TABLE_COUNT},
    {"method", "method", TABLE_TEXT},
    {"n", "samples", TABLE_COUNT},
    {"decode_rows", "decode rows", TABLE_TEXT},
    {"decode_rows_n", "of a prompt", TABLE_COUNT},
    {"bytes_share", "bytes read", TABLE_SHARE},
    {"bytes_per_token", "bytes a token", TABLE_NUMBER},
    {"share_read", "KV read", TABLE_SHARE},
    {"score", "score", TABLE_SHARE},
    {"score_low", "95 % from", TABLE_SHARE},
    {"score_high", "to", TABLE_SHARE},
};

/* One method at one context. */
struct share_point {
    size_t method_i;
    double share; /* of the bytes that dense attention reads */
    struct summary_mean score;
};

static double pick_mean(struct tasks *t, struct pick which, size_t offset)
{
    return report_data_mean(t->value, pick(t, which, offset));
}

/* Which rows of a prompt the decode method served. */
static const char *rows_name(double question_rows)
{
    if (isnan(question_rows)) return "";
    return question_name(&(struct question_rows){.all = question_rows > 0});
}

/* Puts the methods that have both values at a context into `out` [methods.n]. */
static sac_status share_points(struct tasks *t, struct table *table, double ctx,
                               struct share_point *out, size_t *out_n, sac_error *err)
{
    *out_n = 0;
    for (size_t m = 0; m < t->data->methods.n; m++) {
        const struct pick which = {ANY, m, ctx, (double)NAN};
        struct share_point *p = &out[*out_n];
        p->method_i = m;
        const char *rows = rows_name(pick_mean(t, which, QUESTION_ROWS));
        const double n_row = pick_mean(t, which, N_DECODE_ROW);
        p->share = pick_mean(t, which, BYTES_SHARE);
        const double bytes = pick_mean(t, which, BYTES), read = pick_mean(t, which, SHARE_READ);
        const size_t count = pick(t, which, SCORE);
        if (!isfinite(p->share) || count == 0) continue;
        TRY(summary_bootstrap(&p->score, t->value, count, BOOTSTRAP_SEED, err));
        ++*out_n;
        table_add(table, (struct table_cell[]){{.number = ctx},
                                               {.text = method_name(t, m)},
                                               {.number = (double)count},
                                               {.text = rows},
                                               {.number = n_row},
                                               {.number = p->share},
                                               {.number = bytes},
                                               {.number = read},
                                               {.number = p->score.mean},
                                               {.number = p->score.low},
                                               {.number = p->score.high}});
    }
    return SAC_OK;
}

static void share_panel(const struct tasks *t, struct report_figure *f, double ctx,
                        const struct share_point *p, size_t n)
{
    struct plot_series series[64];
    /* Selection may read more than dense attention does */
    double share[64], score[64], least = 1, most = 1;
    char id[64], heading[64], label[32];
    const struct scale tokens = {.unit = SCALE_TOKENS};
    if (n > 64) n = 64; /* more points could not be distinguished */
    for (size_t i = 0; i < n; i++) {
        series[i] = t->series[p[i].method_i];
        share[i] = p[i].share;
        score[i] = p[i].score.mean;
        if (share[i] > 0) least = fmin(least, share[i]);
        most = fmax(most, share[i]);
    }
    scale_label(&tokens, ctx, label);
    snprintf(heading, sizeof heading, "Context of %s", label);
    report_page_panel(f, heading, id);
    struct plot_axes axes = {
        .words = {id, heading,
                  "Mean score of each method against the bytes that it read, choosing and building "
                  "included, as a share of what dense attention reads.",
                  "share of bytes read", "mean score"},
        .x = {.form = SCALE_LINEAR, .unit = SCALE_PERCENT, .lo = 0, .hi = most},
        .y = {.form = SCALE_LINEAR, .unit = SCALE_PERCENT, .lo = 0, .hi = 1},
        .series = series,
        .n_series = n,
    };
    if (least < 0.1) axes.x = (struct scale){SCALE_LOG10, SCALE_PERCENT, least * 0.9, most, 0, 0};
    struct plot plot = plot_begin(&f->panels, &axes);
    plot_families(&plot, share, score);
    for (size_t i = 0; i < n; i++) {
        char tip[200], read[32], right[32];
        table_number(read, TABLE_SHARE, share[i]);
        table_number(right, TABLE_SHARE, score[i]);
        snprintf(tip, sizeof tip, "%.100s: score %s, read %s", series[i].name, right, read);
        plot_interval(&plot, i, share[i], p[i].score.low, p[i].score.high);
        plot_point(&plot, i, share[i], score[i], tip);
    }
    plot_end(&plot);
    report_page_panel_end(f);
}

static sac_status plot_share(struct tasks *t, sac_error *err)
{
    static const char title[] = "Score against share of bytes read";
    struct report_figure f = {
        .name = "score-share",
        .title = title,
        .text = "Mean score over all samples of a context, with the 95 % interval of a bootstrap. "
                "Points of one colour are one method with other parameters.",
    };
    struct share_point *p = mem_calloc(t->data->methods.n, sizeof *p);
    if (!p) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    table_init(&f.table, share_columns, sizeof share_columns / sizeof share_columns[0]);
    sac_status status = SAC_OK;
    for (size_t c = 0; status == SAC_OK && c < t->n_ctx; c++) {
        size_t n = 0;
        status = share_points(t, &f.table, t->ctx[c], p, &n, err);
        if (status == SAC_OK && n > 0) share_panel(t, &f, t->ctx[c], p, n);
    }
    if (status == SAC_OK && f.n_panel > 0)
        status = report_page_figure(t->page, &f, err);
    else if (status == SAC_OK)
        report_page_missing(t->page, title, "no sample of samples.jsonl has bytes_share");
    mem_free(p);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- Speed against context ---- */

static const struct table_column speed_columns[] = {
    {"method", "method", TABLE_TEXT}, {"ctx", "context", TABLE_COUNT},
    {"n", "samples", TABLE_COUNT},    {"median", "median", TABLE_NUMBER},
    {"p10", "10 %", TABLE_NUMBER},    {"p90", "90 %", TABLE_NUMBER},
};

struct speed {
    const char *name, *title, *text, *y_label;
    size_t offset; /* in struct report_sample */
    struct scale y;
};

/* Puts the medians of all methods into `median` [methods.n, n_ctx], and rows into the table. */
static void speed_medians(struct tasks *t, const struct speed *s, struct table *table,
                          double *median)
{
    for (size_t k = 0; k < t->data->methods.n * t->n_ctx; k++) {
        const struct pick p = {ANY, k / t->n_ctx, t->ctx[k % t->n_ctx], (double)NAN};
        const size_t n = pick(t, p, s->offset);
        if (n) qsort(t->value, n, sizeof *t->value, report_data_compare);
        median[k] = report_data_quantile(t->value, n, 0.5);
        if (n == 0) continue;
        table_add(table, (struct table_cell[]){{.text = method_name(t, p.method_i)},
                                               {.number = p.ctx},
                                               {.number = (double)n},
                                               {.number = median[k]},
                                               {.number = report_data_quantile(t->value, n, 0.1)},
                                               {.number = report_data_quantile(t->value, n, 0.9)}});
    }
}

static void speed_panel(const struct tasks *t, const struct speed *s, struct report_figure *f,
                        const double *median)
{
    char id[64];
    double lo = INFINITY, hi = 0;
    for (size_t k = 0; k < t->data->methods.n * t->n_ctx; k++) {
        if (!isfinite(median[k])) continue;
        lo = fmin(lo, median[k]);
        hi = fmax(hi, median[k]);
    }
    report_page_panel(f, NULL, id);
    struct plot_axes axes = {
        .words = {id, s->title, s->text, "context, tokens", s->y_label},
        .x = {.form = SCALE_LOG2,
              .unit = SCALE_TOKENS,
              .lo = t->ctx[0],
              .hi = t->ctx[t->n_ctx - 1]},
        .y = s->y,
        .series = t->series,
        .n_series = t->data->methods.n,
    };
    axes.y.lo = s->y.form == SCALE_LINEAR ? 0 : lo;
    axes.y.hi = hi;
    scale_round(&axes.x, 6);
    scale_round(&axes.y, 6);
    struct plot plot = plot_begin(&f->panels, &axes);
    for (size_t m = 0; m < t->data->methods.n; m++)
        plot_line(&plot, m, t->ctx, median + m * t->n_ctx, t->n_ctx, true);
    plot_end(&plot);
    report_page_panel_end(f);
}

static sac_status plot_speed(struct tasks *t, const struct speed *s, sac_error *err)
{
    struct report_figure f = {.name = s->name, .title = s->title, .text = s->text};
    double *median = mem_calloc(t->data->methods.n * t->n_ctx, sizeof *median);
    if (!median) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    table_init(&f.table, speed_columns, sizeof speed_columns / sizeof speed_columns[0]);
    speed_medians(t, s, &f.table, median);
    sac_status status = SAC_OK;
    if (f.table.n_row > 0) {
        speed_panel(t, s, &f, median);
        status = report_page_figure(t->page, &f, err);
    } else {
        report_page_missing(t->page, s->title, "samples.jsonl holds no such timing");
    }
    mem_free(median);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- The figures ---- */

static const struct speed speeds[] = {
    {"ttft",
     "Time to first token",
     "Median time from the request to the first token of the answer, in milliseconds in the table.",
     "time to first token",
     offsetof(struct report_sample, ttft_ms),
     {.form = SCALE_LOG10, .unit = SCALE_MS}},
    {"decode-speed",
     "Speed of the answer",
     "Median tokens per second behind the first token, at the end of a context of this length.",
     "tokens per second",
     offsetof(struct report_sample, predicted_per_s),
     {.form = SCALE_LINEAR, .unit = SCALE_PLAIN}},
    {"prompt-speed",
     "Speed of reading",
     "Median tokens of the prompt that are read per second.",
     "tokens per second",
     offsetof(struct report_sample, prompt_per_s),
     {.form = SCALE_LINEAR, .unit = SCALE_PLAIN}},
};

static sac_status missing_file(struct report_page *page, const struct report_data *data)
{
    const char *why = data->has_samples ? "samples.jsonl is empty" : "samples.jsonl is missing";
    report_page_missing(page, "Needle in a haystack", why);
    report_page_missing(page, "Score against share of bytes read", why);
    for (size_t i = 0; i < sizeof speeds / sizeof speeds[0]; i++)
        report_page_missing(page, speeds[i].title, why);
    return SAC_OK;
}

sac_status report_tasks_plots(struct report_page *page, const struct report_data *data,
                              const struct plot_series *series, sac_error *err)
{
    if (data->n_sample == 0) return missing_file(page, data);
    struct tasks t = {.page = page, .data = data, .series = series};
    t.value = mem_calloc(data->n_sample, sizeof *t.value);
    t.ctx = mem_calloc(data->n_sample, sizeof *t.ctx);
    sac_status status = SAC_OK;
    if (!t.value || !t.ctx) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %zu samples", data->n_sample);
    } else {
        for (size_t i = 0; i < data->n_sample; i++) t.ctx[i] = data->sample[i].ctx;
        t.n_ctx = report_data_distinct(t.ctx, data->n_sample);
        status = plot_needle(&t, err);
    }
    if (status == SAC_OK) status = plot_share(&t, err);
    for (size_t i = 0; status == SAC_OK && i < sizeof speeds / sizeof speeds[0]; i++)
        status = plot_speed(&t, &speeds[i], err);
    mem_free(t.value);
    mem_free(t.ctx);
    return status;
}
