/* report_reading.c: see the header. A recording may hold a million records, so it is streamed and
 * never stored: one pass sums over heads, layers and methods and finds the prompt of the block map;
 * a second one fills the map, whose size is then known.
 *
 * The masses are those of exact dense attention for the executed queries, whichever method selected
 * the pages. "Blocks needed" is therefore a property of the model and the text, while density and
 * mass kept are properties of the method. */
#include "eval/report_reading.h"

#include "base/mem.h"
#include "eval/reading.h"
#include "eval/report_data.h"
#include "eval/report_missed.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FILE_NAME "reading.sacr"
#define ANY       REPORT_READING_ANY
#define N_BIN     40u /* bins of the distribution of needed blocks */
#define MAP_SIDE  96u /* maximum cells of a block map along one side */
#define MAP_LAYER 4u
#define CTX_MAX   64u
#define ENOUGH    0.95 /* of the mass */

static const char heads_title[] = "Layers and heads: density and mass kept";
static const char need_title[] = "Share of blocks that hold 95 % of the mass";
static const char map_title[] = "Block map of a prompt";

/* Sums over the records of one context, method, layer and KV head. */
struct head_sum {
    double n, mass, tok_seen, tok_read, need, n_need;
};

/* The quantities of the panels by layer and head. */
enum { DENSITY, MASS, NEED, N_QUANTITY };

struct map {
    uint32_t sample, layer[MAP_LAYER], n_layer;
    uint32_t n_page;           /* of the prompt */
    uint32_t bin_page, n_side; /* pages of a cell, cells of a side */
    double *mass, *n;          /* [n_layer, n_side, n_side] and [n_layer, n_side]: sums and tiles */
    double *value;             /* [n_side, n_side] of one panel */
    plot_name *name;           /* [n_side] */
};

struct view {
    struct report_page *page;
    const struct report_map *want;
    struct reading in;
    sac_row_kind kind;     /* kind of the records from which density and mass are computed */
    uint32_t ctx[CTX_MAX]; /* [n_ctx] the records' sample numbers, in order of appearance */
    uint32_t n_ctx;
    struct head_sum *sum;           /* [n_ctx, n_method, n_layer, n_kv_head] */
    struct scale scale[N_QUANTITY]; /* shared by all panels of a quantity */
    double *need;  /* [n_layer, N_BIN] number of records by the share of blocks that they need */
    float *sorted; /* [n_page_max] */
    uint32_t n_page_max;
    struct map map;
    struct report_missed missed[2]; /* by kind of record */
};

/* In recordings of `eval fidelity` the sample's number is the context. */
struct group {
    uint32_t ctx_i, method;
};

static struct head_sum *sum_of(const struct view *v, struct group g, uint32_t layer, uint32_t head)
{
    const struct reading_shape *s = &v->in.shape;
    const size_t row = ((size_t)g.ctx_i * v->in.n_method + g.method) * s->n_layer + layer;
    return &v->sum[row * s->n_kv_head + head];
}

static uint32_t ctx_index(const struct view *v, uint32_t ctx)
{
    uint32_t i = 0;
    while (i < v->n_ctx && v->ctx[i] != ctx) i++;
    return i;
}

/* Registers the context of a record. */
static sac_status take_ctx(struct view *v, uint32_t ctx, sac_error *err)
{
    /* The same as the previous record's */
    if (v->n_ctx > 0 && v->ctx[v->n_ctx - 1] == ctx) return SAC_OK;
    if (ctx_index(v, ctx) < v->n_ctx) return SAC_OK;
    if (v->n_ctx == CTX_MAX)
        return error_set(err, SAC_ERR_FORMAT, FILE_NAME " has more than %u contexts", CTX_MAX);
    v->ctx[v->n_ctx++] = ctx;
    return SAC_OK;
}

/* ---- First pass: contexts and the prompt of the map ---- */

static sac_status survey(struct view *v, bool *out_any, sac_error *err)
{
    struct reading_record r;
    bool more, prompt = false, decode = false;
    v->map.sample = v->want->sample;
    for (;;) {
        TRY(reading_next(&v->in, &r, &more, err));
        if (!more) break;
        TRY(take_ctx(v, r.sample_i, err));
        if (r.n_page > v->n_page_max) v->n_page_max = r.n_page;
        decode |= r.kind == SAC_ROW_DECODE;
        report_missed_see(&v->missed[r.kind], &r);
        if (r.kind == SAC_ROW_DECODE) continue;
        prompt = true;
        if (v->map.sample == ANY) v->map.sample = r.sample_i;
        if (r.sample_i == v->map.sample && r.n_page > v->map.n_page) v->map.n_page = r.n_page;
    }
    /* A decode row is one query; a tile of a prompt is the mean over many. */
    v->kind = decode ? SAC_ROW_DECODE : SAC_ROW_PROMPT;
    *out_any = prompt || decode;
    reading_rewind(&v->in);
    return SAC_OK;
}

static sac_status plan_map(struct view *v, sac_error *err)
{
    struct map *m = &v->map;
    const uint32_t n_layer = v->in.shape.n_layer;
    if (v->want->layer != ANY && v->want->layer >= n_layer)
        return error_set(err, SAC_ERR_ARG, "layer %u: the recording has %u layers", v->want->layer,
                         n_layer);
    if (v->want->head != ANY && v->want->head >= v->in.shape.n_kv_head)
        return error_set(err, SAC_ERR_ARG, "head %u: the recording has %u KV heads", v->want->head,
                         v->in.shape.n_kv_head);
    if (m->n_page == 0 && v->want->sample != ANY)
        return error_set(err, SAC_ERR_ARG, "sample %u: the recording has no prompt of it",
                         v->want->sample);
    if (m->n_page == 0) return SAC_OK;
    m->n_layer = v->want->layer != ANY ? 1 : n_layer < MAP_LAYER ? n_layer : MAP_LAYER;
    for (uint32_t i = 0; i < m->n_layer; i++)
        m->layer[i] = v->want->layer != ANY ? v->want->layer
                      : m->n_layer == 1     ? 0
                                            : i * (n_layer - 1) / (m->n_layer - 1);
    m->bin_page = (m->n_page + MAP_SIDE - 1) / MAP_SIDE;
    m->n_side = (m->n_page + m->bin_page - 1) / m->bin_page;
    const size_t cells = (size_t)m->n_side * m->n_side;
    m->mass = mem_calloc(m->n_layer * cells, sizeof *m->mass);
    m->n = mem_calloc((size_t)m->n_layer * m->n_side, sizeof *m->n);
    m->value = mem_calloc(cells, sizeof *m->value);
    m->name = mem_calloc(m->n_side, sizeof *m->name);
    if (m->mass && m->n && m->value && m->name) return SAC_OK;
    return error_set(err, SAC_ERR_MEMORY, "out of memory for a block map");
}

/* ---- Second pass: sums ---- */

static int compare_falling(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The smallest share of a record's pages that holds ENOUGH of its mass; NAN if it has no mass. */
static double share_needed(struct view *v, const struct reading_record *r)
{
    double total = 0, held = 0;
    for (uint32_t i = 0; i < r->n_page; i++) {
        v->sorted[i] = reading_page_mass(r, i);
        total += (double)v->sorted[i];
    }
    if (!(total > 0)) return (double)NAN;
    qsort(v->sorted, r->n_page, sizeof *v->sorted, compare_falling);
    uint32_t n = 0;
    while (n < r->n_page && held < ENOUGH * total) held += (double)v->sorted[n++];
    return (double)n / r->n_page;
}

static void add_to_heads(struct view *v, const struct reading_record *r)
{
    const struct group g = {ctx_index(v, r->sample_i), r->method_i};
    struct head_sum *s = sum_of(v, g, r->layer, r->kv_head);
    const double need = share_needed(v, r);
    s->n++;
    s->mass += (double)r->mass;
    s->tok_seen += r->n_tok_seen;
    s->tok_read += r->n_tok_read;
    if (isnan(need)) return;
    s->need += need;
    s->n_need++;
    const double bin = ceil(need * N_BIN - 1e-9) - 1;
    v->need[(size_t)r->layer * N_BIN + (size_t)fmax(0, fmin(N_BIN - 1, bin))]++;
}

static void add_to_map(struct map *m, const struct reading_record *r, uint32_t page_tok)
{
    for (uint32_t l = 0; l < m->n_layer; l++) {
        if (m->layer[l] != r->layer) continue;
        const uint32_t row = r->pos / page_tok / m->bin_page;
        assert(row < m->n_side);
        double *to = m->mass + ((size_t)l * m->n_side + row) * m->n_side;
        for (uint32_t i = 0; i < r->n_page; i++)
            to[i / m->bin_page] += (double)reading_page_mass(r, i);
        m->n[l * m->n_side + row]++;
    }
}

static sac_status add_up(struct view *v, sac_error *err)
{
    struct reading_record r;
    bool more;
    for (;;) {
        TRY(reading_next(&v->in, &r, &more, err));
        if (!more) return SAC_OK;
        if (r.kind == v->kind) {
            add_to_heads(v, &r);
            report_missed_add(&v->missed[r.kind], &r);
        }
        const bool in_map =
            r.kind == SAC_ROW_PROMPT && v->map.n_page && r.sample_i == v->map.sample;
        if (in_map && (v->want->head == ANY || v->want->head == r.kv_head))
            add_to_map(&v->map, &r, v->in.shape.page_tok);
    }
}

/* ---- Layers and heads ---- */

static const struct table_column head_columns[] = {
    {"method", "method", TABLE_TEXT},   {"ctx", "context", TABLE_COUNT},
    {"layer", "layer", TABLE_COUNT},    {"kv_head", "KV head", TABLE_COUNT},
    {"n", "records", TABLE_COUNT},      {"density", "density", TABLE_SHARE},
    {"mass", "mass kept", TABLE_SHARE}, {"blocks_95", "blocks for 95 %", TABLE_SHARE},
};

static double head_value(const struct head_sum *s, int which)
{
    if (s->n == 0) return (double)NAN;
    if (which == DENSITY) return s->tok_seen > 0 ? s->tok_read / s->tok_seen : 1;
    if (which == MASS) return s->mass / s->n;
    return s->n_need > 0 ? s->need / s->n_need : (double)NAN;
}

/* One scale for all panels of a quantity, so that a colour has the same meaning in all of them. */
static void share_scales(struct view *v)
{
    const struct reading_shape *shape = &v->in.shape;
    const size_t n = (size_t)v->n_ctx * v->in.n_method * shape->n_layer * shape->n_kv_head;
    for (int which = 0; which < N_QUANTITY; which++) {
        struct scale *s = &v->scale[which];
        *s = (struct scale){.unit = SCALE_PERCENT, .lo = which == MASS, .hi = which == MASS};
        for (size_t i = 0; i < n; i++) {
            const double x = head_value(&v->sum[i], which);
            if (isnan(x)) continue;
            s->lo = fmin(s->lo, x);
            s->hi = fmax(s->hi, x);
        }
        if (which == MASS && s->lo > 0.999) s->lo = 0; /* all mass was kept */
        scale_round(s, 4);
    }
}

static void head_panel(const struct view *v, struct report_figure *f, struct group g, int which,
                       double *value)
{
    static const char *const what[] = {"density: share of tokens read", "mass kept",
                                       "share of blocks that hold 95 %"};
    const struct reading_shape *s = &v->in.shape;
    char id[64], heading[256];
    plot_name layer[512], head[128];
    const uint32_t n_layer = s->n_layer < 512 ? s->n_layer : 512;
    const uint32_t n_head = s->n_kv_head < 128 ? s->n_kv_head : 128;
    for (uint32_t l = 0; l < n_layer; l++) snprintf(layer[l], sizeof layer[l], "%u", l);
    for (uint32_t h = 0; h < n_head; h++) snprintf(head[h], sizeof head[h], "%u", h);
    for (uint32_t h = 0; h < n_head; h++)
        for (uint32_t l = 0; l < n_layer; l++)
            value[(size_t)h * n_layer + l] = head_value(sum_of(v, g, l, h), which);
    if (v->n_ctx > 1)
        snprintf(heading, sizeof heading, "%.120s, context %u: %s", v->in.method[g.method],
                 v->ctx[g.ctx_i], what[which]);
    else
        snprintf(heading, sizeof heading, "%.120s: %s", v->in.method[g.method], what[which]);
    report_page_panel(f, heading, id);
    plot_grid(&f->panels, &(struct plot_grid){
                              .words = {id, heading, "One cell for each layer and KV head.",
                                        "layer", "KV head"},
                              .n_x = n_layer,
                              .n_y = n_head,
                              .value = value,
                              .x_name = (const plot_name *)layer,
                              .y_name = (const plot_name *)head,
                              .colour = v->scale[which],
                              .colour_label = which == MASS ? "mass" : "share",
                              .cell_h = n_head > 16 ? 12 : 24,
                          });
    report_page_panel_end(f);
}

static bool head_rows(const struct view *v, struct table *table, struct group g)
{
    const struct reading_shape *s = &v->in.shape;
    bool any = false;
    for (size_t k = 0; k < (size_t)s->n_layer * s->n_kv_head; k++) {
        const uint32_t l = (uint32_t)(k / s->n_kv_head), h = (uint32_t)(k % s->n_kv_head);
        const struct head_sum *sum = sum_of(v, g, l, h);
        if (sum->n == 0) continue;
        any = true;
        table_add(table, (struct table_cell[]){{.text = v->in.method[g.method]},
                                               {.number = v->ctx[g.ctx_i]},
                                               {.number = l},
                                               {.number = h},
                                               {.number = sum->n},
                                               {.number = head_value(sum, DENSITY)},
                                               {.number = head_value(sum, MASS)},
                                               {.number = head_value(sum, NEED)}});
    }
    return any;
}

static sac_status plot_heads(struct view *v, sac_error *err)
{
    struct report_figure f = {
        .name = "heads",
        .title = heads_title,
        .text = v->kind == SAC_ROW_DECODE
                    ? "Which share of the earlier tokens each layer and KV head read in the "
                      "answers, how much of the "
                      "dense softmax mass that was, and how little would have held 95 % of it."
                    : "Which share of the earlier tokens each layer and KV head read in the "
                      "prompts, how much of the "
                      "dense softmax mass that was, and how little would have held 95 % of it.",
    };
    const struct reading_shape *s = &v->in.shape;
    double *value = mem_calloc((size_t)s->n_layer * s->n_kv_head, sizeof *value);
    if (!value) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    table_init(&f.table, head_columns, sizeof head_columns / sizeof head_columns[0]);
    share_scales(v);
    for (uint32_t c = 0; c < v->n_ctx; c++)
        for (uint32_t m = 0; m < v->in.n_method; m++)
            if (head_rows(v, &f.table, (struct group){c, m}))
                for (int which = 0; which < N_QUANTITY; which++)
                    head_panel(v, &f, (struct group){c, m}, which, value);
    const sac_status status = report_page_figure(v->page, &f, err);
    mem_free(value);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- Blocks needed ---- */

static const struct table_column need_columns[] = {
    {"layer", "layer", TABLE_COUNT},
    {"share_blocks", "share of blocks", TABLE_SHARE},
    {"share_queries", "queries that need no more", TABLE_SHARE},
};

/* Puts the cumulative distribution of a layer into `y` [N_BIN + 1]; false if it has no record. */
static bool need_curve(const struct view *v, uint32_t layer, double *y)
{
    const double *bin = v->need + (size_t)layer * N_BIN;
    double total = 0;
    y[0] = 0;
    for (size_t i = 0; i < N_BIN; i++) y[i + 1] = total += bin[i];
    for (size_t i = 0; i <= N_BIN && total > 0; i++) y[i] /= total;
    return total > 0;
}

#define N_CURVE 6u

static sac_status plot_need(struct view *v, sac_error *err)
{
    struct report_figure f = {
        .name = "blocks-95",
        .title = need_title,
        .text =
            "Share of queries (of all KV heads of a layer) for which no more than this share of "
            "their blocks holds 95 % of the dense softmax mass, the best blocks first. Figure 2 "
            "of PSA (arXiv 2503.00392) shows the same against the number of blocks.",
    };
    const uint32_t n_layer = v->in.shape.n_layer;
    const uint32_t n_curve = n_layer < N_CURVE ? n_layer : N_CURVE;
    struct plot_series series[N_CURVE];
    plot_name name[N_CURVE];
    char id[64];
    double x[N_BIN + 1], y[N_BIN + 1];
    for (uint32_t i = 0; i < n_curve; i++) {
        const uint32_t layer = n_curve == 1 ? 0 : i * (n_layer - 1) / (n_curve - 1);
        snprintf(name[i], sizeof name[i], "layer %u", layer);
        series[i] = (struct plot_series){name[i], i, PLOT_NO_MARK, i};
    }
    report_page_panel(&f, NULL, id);
    struct plot plot = plot_begin(
        &f.panels, &(struct plot_axes){
                       .words = {id, need_title, f.text, "share of blocks", "share of queries"},
                       .x = {.unit = SCALE_PERCENT, .lo = 0, .hi = 1},
                       .y = {.unit = SCALE_PERCENT, .lo = 0, .hi = 1},
                       .series = series,
                       .n_series = n_curve,
                   });
    table_init(&f.table, need_columns, sizeof need_columns / sizeof need_columns[0]);
    for (size_t i = 0; i <= N_BIN; i++) x[i] = (double)i / N_BIN;
    for (uint32_t layer = 0, curve = 0; layer < n_layer; layer++) {
        const bool any = need_curve(v, layer, y);
        for (size_t i = 0; i <= N_BIN && any; i++)
            table_add(&f.table,
                      (struct table_cell[]){{.number = layer}, {.number = x[i]}, {.number = y[i]}});
        const bool drawn =
            curve < n_curve && layer == (n_curve == 1 ? 0 : curve * (n_layer - 1) / (n_curve - 1));
        if (drawn && any) plot_line(&plot, curve, x, y, N_BIN + 1, false);
        curve += drawn;
    }
    plot_end(&plot);
    report_page_panel_end(&f);
    const sac_status status = report_page_figure(v->page, &f, err);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- Block map ---- */

static const struct table_column map_columns[] = {
    {"layer", "layer", TABLE_COUNT},
    {"query", "query from", TABLE_COUNT},
    {"key", "key from", TABLE_COUNT},
    {"mass", "mass", TABLE_NUMBER},
};

static void map_panel(const struct view *v, struct report_figure *f, uint32_t l)
{
    const struct map *m = &v->map;
    const uint32_t bin_tok = m->bin_page * v->in.shape.page_tok;
    char id[64], heading[96], who[32] = "mean over KV heads";
    double least = 1;
    for (size_t k = 0; k < (size_t)m->n_side * m->n_side; k++) {
        const uint32_t row = (uint32_t)(k / m->n_side), col = (uint32_t)(k % m->n_side);
        const double n = m->n[l * m->n_side + row];
        const double mass = m->mass[(size_t)l * m->n_side * m->n_side + k];
        m->value[k] = col <= row && n > 0 ? mass / n : (double)NAN;
        if (isnan(m->value[k])) continue;
        if (m->value[k] > 0) least = fmin(least, m->value[k]);
        table_add(&f->table, (struct table_cell[]){{.number = m->layer[l]},
                                                   {.number = (double)row * bin_tok},
                                                   {.number = (double)col * bin_tok},
                                                   {.number = m->value[k]}});
    }
    if (v->want->head != ANY) snprintf(who, sizeof who, "KV head %u", v->want->head);
    snprintf(heading, sizeof heading, "Layer %u, %s", m->layer[l], who);
    report_page_panel(f, heading, id);
    const double room = PLOT_W - 88;
    plot_grid(&f->panels,
              &(struct plot_grid){
                  .words = {id, heading, f->text, "key, token", "query, token"},
                  .n_x = m->n_side,
                  .n_y = m->n_side,
                  .value = m->value,
                  .x_name = (const plot_name *)m->name,
                  .y_name = (const plot_name *)m->name,
                  .colour = {.form = SCALE_LOG10, .unit = SCALE_PERCENT, .lo = 1e-4, .hi = 1},
                  .colour_label = "mass",
                  .cell_h = room / m->n_side,
              });
    report_page_panel_end(f);
}

static sac_status plot_map(struct view *v, sac_error *err)
{
    struct map *m = &v->map;
    if (m->n_page == 0) {
        report_page_missing(v->page, map_title, FILE_NAME " holds no rows of a prompt");
        return SAC_OK;
    }
    const uint32_t bin_tok = m->bin_page * v->in.shape.page_tok;
    const struct scale tokens = {.unit = SCALE_TOKENS};
    /* Names every step-th cell, with the step a power of two: at most eight names. */
    uint32_t step = 1;
    while (m->n_side / step > 8) step *= 2;
    for (uint32_t i = 0; i < m->n_side; i += step)
        scale_label(&tokens, (double)i * bin_tok, m->name[i]);
    char text[240];
    snprintf(
        text, sizeof text,
        "Dense softmax mass that the queries of a row give to the keys of a column, for sample "
        "%u of the recording; a cell is %u by %u tokens. Colours are logarithmic.",
        m->sample, bin_tok, bin_tok);
    struct report_figure f = {.name = "block-map", .title = map_title, .text = text};
    table_init(&f.table, map_columns, sizeof map_columns / sizeof map_columns[0]);
    for (uint32_t l = 0; l < m->n_layer; l++) map_panel(v, &f, l);
    sac_status status = SAC_OK;
    if (f.table.n_row > 0)
        status = report_page_figure(v->page, &f, err);
    else
        report_page_missing(v->page, map_title, FILE_NAME " holds no tile of this prompt");
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

/* ---- The figures ---- */

static sac_status view_all(struct view *v, sac_error *err)
{
    const struct reading_shape *s = &v->in.shape;
    bool any = false;
    TRY(survey(v, &any, err));
    TRY(plan_map(v, err));
    if (!any) {
        report_page_missing(v->page, heads_title, FILE_NAME " holds no record");
        report_page_missing(v->page, need_title, FILE_NAME " holds no record");
        return plot_map(v, err);
    }
    v->sum =
        mem_calloc((size_t)v->n_ctx * v->in.n_method * s->n_layer * s->n_kv_head, sizeof *v->sum);
    v->need = mem_calloc((size_t)s->n_layer * N_BIN, sizeof *v->need);
    v->sorted = mem_calloc(v->n_page_max, sizeof *v->sorted);
    if (!v->sum || !v->need || !v->sorted)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the plots of " FILE_NAME);
    TRY(report_missed_plan(&v->missed[v->kind], err));
    TRY(add_up(v, err));
    TRY(plot_heads(v, err));
    TRY(report_missed_plot(&v->missed[v->kind], v->page, err));
    TRY(plot_need(v, err));
    return plot_map(v, err);
}

static sac_status missing(struct report_page *page)
{
    report_page_missing(page, heads_title, FILE_NAME " is missing");
    report_page_missing(page, need_title, FILE_NAME " is missing");
    report_page_missing(page, map_title, FILE_NAME " is missing");
    return SAC_OK;
}

sac_status report_reading_plots(struct report_page *page, const struct report_map *map,
                                bool *out_found, sac_error *err)
{
    struct strbuf path = {0};
    strbuf_addf(&path, "%s/" FILE_NAME, page->dir);
    if (path.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a path");
    *out_found = access(path.data, F_OK) == 0;
    if (!*out_found) {
        strbuf_deinit(&path);
        return missing(page);
    }
    struct view v = {.page = page, .want = map};
    v.missed[SAC_ROW_PROMPT].in = v.missed[SAC_ROW_DECODE].in = &v.in;
    sac_status status = reading_load(&v.in, path.data, err);
    if (status == SAC_OK) {
        status = view_all(&v, err);
        reading_deinit(&v.in);
    }
    report_missed_deinit(&v.missed[v.kind]);
    mem_free(v.sum);
    mem_free(v.need);
    mem_free(v.sorted);
    mem_free(v.map.mass);
    mem_free(v.map.n);
    mem_free(v.map.value);
    mem_free(v.map.name);
    strbuf_deinit(&path);
    return status;
}
