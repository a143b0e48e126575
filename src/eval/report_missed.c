/* report_missed.c: see the header. Three maps are shown side by side: the dense softmax mass of the
 * executed queries, its part on pages that were read, and its part on pages that were not; the
 * first is the sum of the others. Rows are layers, columns parts of the text. Method, context and
 * KV head are selected on the page.
 *
 * Parts of a text are sums of whole pages, so their values depend on the parts' width. Colours are
 * logarithmic, because the newest and the first tokens hold most of the mass of many heads. */
#include "eval/report_missed.h"

#include "base/mem.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#define N_BIN      64u  /* maximum parts of a text */
#define LEAST      1e-4 /* of the mass: the value of the lightest colour */
#define NAME_BYTES 160u

struct report_missed_cell {
    float read, missed; /* sums over the records */
};

enum { DENSE, READ, MISSED, N_MAP };

static size_t row_of(const struct report_missed *m, size_t group_i, uint32_t layer, uint32_t head)
{
    const struct reading_shape *s = &m->in->shape;
    assert(group_i < m->n_group && layer < s->n_layer && head < s->n_kv_head);
    return (group_i * s->n_layer + layer) * s->n_kv_head + head;
}

/* A text with few pages has a part for each page. */
static uint32_t bin_count(const struct report_missed_group *g)
{
    return g->n_page < N_BIN ? g->n_page : N_BIN;
}

/* The index of the record's group; n_group: it is not drawn. */
static uint32_t find_group(const struct report_missed *m, const struct reading_record *r)
{
    uint32_t i = 0;
    while (i < m->n_group && (m->group[i].method != r->method_i || m->group[i].ctx != r->sample_i))
        i++;
    return i;
}

void report_missed_see(struct report_missed *m, const struct reading_record *r)
{
    const uint32_t i = find_group(m, r);
    if (i == REPORT_MISSED_GROUPS) {
        m->n_left_out++;
        return;
    }
    if (i == m->n_group)
        m->group[m->n_group++] =
            (struct report_missed_group){.method = r->method_i, .ctx = r->sample_i};
    if (r->n_page > m->group[i].n_page) m->group[i].n_page = r->n_page;
}

sac_status report_missed_plan(struct report_missed *m, sac_error *err)
{
    const struct reading_shape *s = &m->in->shape;
    const size_t n_row = (size_t)m->n_group * s->n_layer * s->n_kv_head;
    m->cell = mem_calloc(n_row * N_BIN, sizeof *m->cell);
    m->n_record = mem_calloc(n_row, sizeof *m->n_record);
    if (m->cell && m->n_record) return SAC_OK;
    return error_set(err, SAC_ERR_MEMORY, "out of memory for a map of %zu heads", n_row);
}

void report_missed_add(struct report_missed *m, const struct reading_record *r)
{
    const uint32_t g = find_group(m, r);
    if (g == m->n_group) return;
    const size_t row = row_of(m, g, r->layer, r->kv_head);
    for (uint32_t i = 0; i < r->n_page; i++) {
        const size_t bin = (size_t)i * bin_count(&m->group[g]) / m->group[g].n_page;
        struct report_missed_cell *c = &m->cell[row * N_BIN + bin];
        *(reading_page_read(r, i) ? &c->read : &c->missed) += reading_page_mass(r, i);
    }
    m->n_record[row]++;
}

/* ---- The maps ---- */

struct map {
    uint32_t group_i, head; /* head n_kv_head is the mean over all heads */
    int which;
};

static const char *const map_name[] = {"dense mass", "read", "missed"};

/* NAN: there is no record of this head. */
static double head_value(const struct report_missed *m, const struct map *map, uint32_t layer,
                         uint32_t head, uint32_t bin)
{
    const size_t row = row_of(m, map->group_i, layer, head);
    const struct report_missed_cell c = m->cell[row * N_BIN + bin];
    const double read = map->which == MISSED ? 0 : (double)c.read;
    const double missed = map->which == READ ? 0 : (double)c.missed;
    return m->n_record[row] > 0 ? (read + missed) / m->n_record[row] : (double)NAN;
}

static double map_value(const struct report_missed *m, const struct map *map, uint32_t layer,
                        uint32_t bin)
{
    const uint32_t n_head = m->in->shape.n_kv_head;
    if (map->head < n_head) return head_value(m, map, layer, map->head, bin);
    double sum = 0, n = 0;
    for (uint32_t h = 0; h < n_head; h++) {
        const double v = head_value(m, map, layer, h, bin);
        if (isnan(v)) continue;
        sum += v;
        n++;
    }
    return n > 0 ? sum / n : (double)NAN;
}

/* The first token of a part of the text. */
static double bin_tok(const struct report_missed *m, uint32_t group_i, uint32_t bin)
{
    const uint32_t n_page = m->group[group_i].n_page, n_bin = bin_count(&m->group[group_i]);
    return (double)((bin * n_page + n_bin - 1) / n_bin) * m->in->shape.page_tok;
}

static void draw(const struct report_missed *m, struct report_figure *f, const struct map *map,
                 double *value)
{
    const uint32_t n_layer = m->in->shape.n_layer, n_head = m->in->shape.n_kv_head;
    const uint32_t n_bin = bin_count(&m->group[map->group_i]);
    const struct scale tokens = {.unit = SCALE_TOKENS};
    char id[64], heading[64], who[32] = "mean over KV heads";
    plot_name place[N_BIN] = {""};
    plot_name *layer = mem_calloc(n_layer, sizeof *layer);
    if (!layer) {
        f->panels.failed = true;
        return;
    }
    for (uint32_t i = 0; i < n_bin; i++)
        scale_label(&tokens, bin_tok(m, map->group_i, i), place[i]);
    for (uint32_t l = 0; l < n_layer; l++) {
        snprintf(layer[l], sizeof layer[l], "%u", l);
        for (uint32_t i = 0; i < n_bin; i++) value[l * n_bin + i] = map_value(m, map, l, i);
    }
    if (map->head < n_head) snprintf(who, sizeof who, "KV head %u", map->head);
    snprintf(heading, sizeof heading, "%s, %s", map_name[map->which], who);
    heading[0] = (char)(heading[0] - 'a' + 'A');
    report_page_panel(f, heading, id);
    plot_grid(&f->panels,
              &(struct plot_grid){
                  .words = {id, heading, f->text, "key, token", "layer"},
                  .n_x = n_bin,
                  .n_y = n_layer,
                  .value = value,
                  .x_name = (const plot_name *)place,
                  .y_name = (const plot_name *)layer,
                  .colour = {.form = SCALE_LOG10, .unit = SCALE_PERCENT, .lo = LEAST, .hi = 1},
                  .colour_label = "mass",
                  .cell_h = n_layer > 40   ? 6
                            : n_layer > 12 ? 10
                                           : 20,
              });
    report_page_panel_end(f);
    mem_free(layer);
}

static const struct table_column columns[] = {
    {"method", "method", TABLE_TEXT}, {"ctx", "context", TABLE_COUNT},
    {"layer", "layer", TABLE_COUNT},  {"kv_head", "KV head", TABLE_COUNT},
    {"key", "key from", TABLE_COUNT}, {"dense", "dense mass", TABLE_NUMBER},
    {"read", "read", TABLE_NUMBER},   {"missed", "missed", TABLE_NUMBER},
};

static void add_rows(const struct report_missed *m, struct table *table, uint32_t group_i)
{
    const struct report_missed_group *g = &m->group[group_i];
    const uint32_t n_head = m->in->shape.n_kv_head;
    const uint32_t n_bin = bin_count(g);
    for (size_t k = 0; k < (size_t)m->in->shape.n_layer * n_head * n_bin; k++) {
        const uint32_t layer = (uint32_t)(k / n_bin / n_head), bin = (uint32_t)(k % n_bin);
        const uint32_t head = (uint32_t)(k / n_bin % n_head);
        double v[N_MAP];
        for (int which = 0; which < N_MAP; which++)
            v[which] = head_value(m, &(struct map){group_i, head, which}, layer, head, bin);
        if (isnan(v[DENSE])) continue;
        table_add(table, (struct table_cell[]){{.text = m->in->method[g->method]},
                                               {.number = g->ctx},
                                               {.number = layer},
                                               {.number = head},
                                               {.number = bin_tok(m, group_i, bin)},
                                               {.number = v[DENSE]},
                                               {.number = v[READ]},
                                               {.number = v[MISSED]}});
    }
}

/* The names of the groups and heads that the page offers. */
struct names {
    char group[REPORT_MISSED_GROUPS][NAME_BYTES], head[REPORT_MISSED_HEADS + 1][32];
    const char *group_at[REPORT_MISSED_GROUPS], *head_at[REPORT_MISSED_HEADS + 1];
    uint32_t n_head; /* the mean counts as one */
};

static void make_names(struct names *n, const struct report_missed *m)
{
    const uint32_t n_kv_head = m->in->shape.n_kv_head;
    n->n_head = 1 + (n_kv_head < REPORT_MISSED_HEADS ? n_kv_head : REPORT_MISSED_HEADS);
    if (n_kv_head == 1) n->n_head = 1; /* the only head equals the mean */
    for (uint32_t i = 0; i < m->n_group; i++) {
        snprintf(n->group[i], NAME_BYTES, "%.120s, context %u", m->in->method[m->group[i].method],
                 m->group[i].ctx);
        n->group_at[i] = n->group[i];
    }
    n->head_at[0] = "mean over all";
    for (uint32_t i = 1; i < n->n_head; i++) {
        snprintf(n->head[i], sizeof n->head[i], "%u", i - 1);
        n->head_at[i] = n->head[i];
    }
}

sac_status report_missed_plot(const struct report_missed *m, struct report_page *page,
                              sac_error *err)
{
    struct names names;
    const uint32_t n_kv_head = m->in->shape.n_kv_head;
    make_names(&names, m);
    struct report_figure f = {
        .name = "read-and-missed",
        .title = "Where the mass lies, what was read, and what was missed",
        .text =
            "Dense softmax mass of the queries on each part of the text, and its parts on pages "
            "that were read and on pages that were not. Colours are logarithmic.",
        .choice = {{"Method", names.group_at, m->n_group, 0},
                   {"KV head", names.head_at, names.n_head, 0}},
        .three = true,
    };
    double *value = mem_calloc((size_t)m->in->shape.n_layer * N_BIN, sizeof *value);
    if (!value) return error_set(err, SAC_ERR_MEMORY, "out of memory for a plot");
    table_init(&f.table, columns, sizeof columns / sizeof columns[0]);
    for (uint32_t g = 0; g < m->n_group; g++) {
        add_rows(m, &f.table, g);
        for (uint32_t h = 0; h < names.n_head; h++)
            for (int which = 0; which < N_MAP; which++) {
                f.choice[0].at = g;
                f.choice[1].at = h;
                draw(m, &f, &(struct map){g, h == 0 ? n_kv_head : h - 1, which}, value);
            }
    }
    const sac_status status = report_page_figure(page, &f, err);
    if (m->n_left_out > 0)
        report_page_missing(page, f.title, "the first methods and contexts alone are drawn");
    mem_free(value);
    table_deinit(&f.table);
    strbuf_deinit(&f.panels);
    return status;
}

void report_missed_deinit(struct report_missed *m)
{
    mem_free(m->cell);
    mem_free(m->n_record);
}
