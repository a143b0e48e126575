/* lfps_table.c: see the header. Tables are stored divided by the decay so far, so a step changes
 * only the entries that it has read.
 *
 * A prompt is processed a few rows at a time: workers score them against parts of the context, then
 * each table adds the attention of its heads. Sums over parts are added in their order, so results
 * do not depend on the number of workers. */
#include "methods/decode/lfps_table.h"

#include "base/mem.h"
#include "methods/meter.h"

#include <string.h>

size_t lfps_table_state(struct parts *p, const struct method_shape *s, uint32_t n_table,
                        void *state)
{
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    struct op_memory *m = &p->memory;
    m->n_table = n_table;
    m->n_tok = ((size_t)s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * PAGE_TOK;
    p->state = arena_take(&a, 1, sizeof *p->state);
    m->pair = arena_take(&a, m->n_table, sizeof *m->pair);
    m->key_sum = arena_take(&a, s->geom->head_dim, sizeof *m->key_sum);
    m->value_sum = arena_take(&a, s->geom->head_dim, sizeof *m->value_sum);
    m->spread = arena_take(&a, s->group, sizeof *m->spread);
    m->ver = arena_take(&a, m->n_table * m->n_tok, sizeof *m->ver);
    m->sla = arena_take(&a, m->n_table * (m->n_tok + PAGE_TOK), sizeof *m->sla);
    return a.used;
}

size_t lfps_table_scratch(struct lfps_scratch *w, const struct method_shape *s, uint32_t n_table,
                          void *scratch)
{
    const size_t used = observe_make(&w->o, s, scratch), d = s->geom->head_dim;
    struct arena a = {.base = w->o.rest, .capacity = SIZE_MAX};
    w->n_word = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    w->step = arena_take(&a, 1, sizeof *w->step);
    w->cand = arena_take(&a, (size_t)n_table * w->n_word, sizeof *w->cand);
    w->hot = arena_take(&a, (size_t)n_table * w->n_word, sizeof *w->hot);
    w->above = arena_take(&a, (size_t)n_table * w->n_word, sizeof *w->above);
    w->weight = arena_take(&a, n_table * w->o.stride, sizeof *w->weight);
    w->q = arena_take(&a, s->group * d, sizeof *w->q);
    w->k = arena_take(&a, max_u32(n_table, LFPS_PIECES) * LFPS_KEPT * d, sizeof *w->k);
    w->sum = arena_take(&a, 2 * LFPS_PIECES * d, sizeof *w->sum);
    return used + a.used;
}

void lfps_table_open(struct lfps_table *t, const struct method_lane *l,
                     const struct lfps_rule *rule, uint32_t table)
{
    memset(&t->meter, 0, sizeof t->meter);
    t->lane = *l;
    if (l->meter) t->lane.meter = &t->meter;
    t->rule = *rule;
    lfps_table_state(&t->p, l->shape, rule->n_table, l->state);
    lfps_table_scratch(&t->w, l->shape, rule->n_table, l->scratch);
    const size_t group = l->shape->group, stride = t->w.o.stride;
    t->table = table;
    t->n_head = l->shape->group / t->p.memory.n_table;
    t->head0 = table * t->n_head;
    t->cand = t->w.cand + (size_t)table * t->w.n_word;
    t->hot = t->w.hot + (size_t)table * t->w.n_word;
    t->above = t->w.above + (size_t)table * t->w.n_word;
    t->weight = t->w.weight + table * stride;
    t->score = t->w.o.score + t->head0 * stride;
    t->tok = (uint32_t *)(void *)(t->score + group * stride);
    t->spare = (uint32_t *)(void *)(t->score + 2 * group * stride);
    t->k = t->w.k + (size_t)table * LFPS_KEPT * l->shape->geom->head_dim;
}

void lfps_table_count(const struct lfps_table *t, const struct method_lane *l)
{
    for (uint32_t i = 0; l->meter && i < METER_KINDS; i++)
        __atomic_fetch_add(&l->meter->bytes[i], t->meter.bytes[i], __ATOMIC_RELAXED);
}

static struct op_moments sum_powers(const float *x, uint32_t n)
{
    double s1 = 0, s2 = 0, s3 = 0, s4 = 0;
    for (uint32_t t = 0; t < n; t++) {
        const double v = (double)x[t], v2 = v * v;
        s1 += v;
        s2 += v2;
        s3 += v2 * v;
        s4 += v2 * v2;
    }
    return (struct op_moments){{s1, s2, s3, s4}};
}

void lfps_table_plain(const struct lfps_table *t)
{
    const uint32_t pos = t->lane.pos;
    struct op_pair *pair = &t->p.memory.pair[t->table];
    for (uint32_t i = 0; i < 2; i++) {
        float *x = lfps_table_row(&t->p, t->table, i, pos);
        meter_read(&t->lane, x, (pos + 1) * sizeof *x);
        for (uint32_t k = 0; k <= pos; k++) x[k] *= pair->unit;
        *(i ? &pair->sla : &pair->ver) = sum_powers(x, pos + 1);
    }
    pair->unit = 1;
}

/* ---- Filling the tables from the prompt ---- */

static void clear_table(const struct lfps_table *t)
{
    const struct op_memory *m = &t->p.memory;
    memset(m->ver + t->table * m->n_tok, 0, m->n_tok * sizeof *m->ver);
    memset(m->sla + t->table * (m->n_tok + PAGE_TOK), 0, (m->n_tok + PAGE_TOK) * sizeof *m->sla);
    m->pair[t->table].unit = 1;
}

struct attn_range lfps_table_past(const struct method_lane *l, const struct lfps_rule *rule)
{
    const uint32_t begin =
        max_u32(max_u32(l->past.begin, rule->sink), l->pos > rule->past ? l->pos - rule->past : 0);
    if (begin < l->pos) return (struct attn_range){begin, l->pos};
    return (struct attn_range){l->pos, l->pos + 1}; /* no query is kept but the row's own */
}

void lfps_table_begin(const struct lfps_table *t)
{
    const struct attn_range past = lfps_table_past(&t->lane, &t->rule);
    t->w.step->begin = past.begin;
    t->w.step->end = past.end;
    t->p.state->n_mean = 0;
}

/* The pages of one of the LFPS_PIECES parts of a context. */
static struct attn_range piece_of(uint32_t n_page, uint32_t piece)
{
    return (struct attn_range){(uint32_t)((uint64_t)n_page * piece / LFPS_PIECES),
                               (uint32_t)((uint64_t)n_page * (piece + 1) / LFPS_PIECES)};
}

/* Adds keys and values of rows first .. end - 1 to sum [2, head_dim]. */
static void add_values(double *sum, const float *k, const float *v, uint32_t d, uint32_t first,
                       uint32_t end)
{
    for (uint32_t t = first; t < end; t++)
        for (uint32_t c = 0; c < d; c++) {
            sum[c] += (double)k[(size_t)t * d + c];
            sum[d + c] += (double)v[(size_t)t * d + c];
        }
}

/* Sums keys and values over one part of the pages before the own one, sinks left out. */
static void sum_piece(const struct lfps_table *t, uint32_t piece)
{
    const uint32_t d = t->lane.shape->geom->head_dim, sink = t->rule.sink;
    const struct attn_range pages = piece_of(pick_page_count(&t->lane), piece);
    double *sum = t->w.sum + (size_t)piece * 2 * d;
    float *k = t->w.k + (size_t)piece * LFPS_KEPT * d, *v = k + PAGE_TOK * (size_t)d;
    memset(sum, 0, 2 * d * sizeof *sum);
    for (uint32_t page = pages.begin; page < pages.end; page++) {
        const uint32_t first = page * PAGE_TOK;
        pick_keys_values(k, v, &t->lane, page);
        add_values(sum, k, v, d, min_u32(max_u32(first, sink) - first, PAGE_TOK), PAGE_TOK);
    }
}

void lfps_table_means(const struct lfps_table *t)
{
    const struct method_lane *l = &t->lane;
    const uint32_t d = l->shape->geom->head_dim, sink = t->rule.sink;
    double *sum = t->w.sum;
    struct lfps_state *s = t->p.state;
    memset(sum, 0, 2 * d * sizeof *sum);
    while (s->n_mean <= l->pos) {
        const uint32_t page = s->n_mean / PAGE_TOK, base = page * PAGE_TOK;
        const uint32_t end = min_u32(base + PAGE_TOK, l->pos + 1);
        float *k = t->w.k, *v = k + PAGE_TOK * (size_t)d;
        uint32_t from = base; /* token of the first row in k and v */
        assert(end > s->n_mean);
        if (page == pick_page_count(l))
            pick_own_rows(k, v, l, (from = s->n_mean) - base, end - s->n_mean);
        else
            pick_keys_values(k, v, l, page);
        const uint32_t first = min_u32(max_u32(s->n_mean, sink), end);
        add_values(sum, k, v, d, first - from, end - from);
        s->n_mean = end;
    }
    for (uint32_t c = 0; c < d; c++) {
        t->p.memory.key_sum[c] += sum[c];
        t->p.memory.value_sum[c] += sum[d + c];
    }
}

/* Adds up the sums of all parts. */
static void fold_means(const struct lfps_table *t)
{
    const uint32_t d = t->lane.shape->geom->head_dim;
    const struct parts *p = &t->p;
    for (uint32_t c = 0; c < d; c++) {
        p->memory.key_sum[c] = p->memory.value_sum[c] = 0;
        for (uint32_t i = 0; i < LFPS_PIECES; i++) {
            p->memory.key_sum[c] += t->w.sum[(size_t)i * 2 * d + c];
            p->memory.value_sum[c] += t->w.sum[((size_t)i * 2 + 1) * d + c];
        }
    }
    p->state->n_mean = pick_page_count(&t->lane) * PAGE_TOK;
}

/* sigma^2 / |q|^2 of each head: the variance of its scores over tokens sink .. row, divided by the
 * squared norm of the query. `score` begins with the first head's. */
static void find_spread(const struct lfps_table *t, const float *score, uint32_t row)
{
    const struct method_lane *l = &t->lane;
    const uint32_t d = l->shape->geom->head_dim, sink = t->rule.sink;
    const float *q =
        row == l->pos ? l->q : method_past_query(&l->past, row, (size_t)l->shape->group * d);
    for (uint32_t g = t->head0; g < t->head0 + t->n_head; g++, score += t->w.o.stride) {
        double sum = 0, square = 0;
        for (uint32_t i = sink; i <= row; i++) {
            const double x = (double)score[i];
            sum += x;
            square += x * x;
        }
        const double n = row + 1.0 - sink, length = lfps_table_norm2(q + (size_t)g * d, d);
        const double variance = fmax(square / n - sum / n * (sum / n), 0);
        t->p.memory.spread[g] = length > 0 ? (float)(variance / length) : 0;
    }
}

/* Eq. 4 for one row: adds c times its softmax weights, mean over the table's heads, to both tables.
 * The softmax leaves out the sinks, so that each table sums to 1 / (2 (1 - decay)), as it does
 * under Eq. 10. */
static bool add_row(const struct lfps_table *t, float *score, uint32_t row, double c)
{
    const struct method_lane *l = &t->lane;
    const uint32_t sink = t->rule.sink;
    for (uint32_t g = 0; g < t->n_head; g++)
        for (uint32_t i = 0; i < sink; i++) score[g * t->w.o.stride + i] = OBSERVE_NEVER;
    float lse[METHOD_GROUP_MAX];
    if (!l->ops->vote(&(struct op_vote){.score = score,
                                        .score_stride = t->w.o.stride,
                                        .n = row + 1,
                                        .group = t->n_head,
                                        .vote = t->weight,
                                        .lse = lse}))
        return false;
    float *ver = lfps_table_row(&t->p, t->table, false, row),
          *sla = lfps_table_row(&t->p, t->table, true, row);
    meter_read(l, ver + sink, (row + 1 - sink) * sizeof *ver);
    meter_read(l, sla + sink, (row + 1 - sink) * sizeof *sla);
    for (uint32_t i = sink; i <= row; i++) ver[i] += (float)c * t->weight[i];
    for (uint32_t i = sink; i <= row; i++) sla[i] += (float)c * t->weight[i];
    return true;
}

/* lfps_table_learn, at rows from number `row` on of each prompt. */
struct call {
    const struct method_batch *b;
    const struct lfps_rule *rule;
    uint32_t row;
};

/* Rows of a lane's prompt that are processed now. */
static uint32_t row_count(const struct call *c, const struct step *step)
{
    const uint32_t n = step->end - step->begin;
    return c->row < n ? min_u32(OBSERVE_ROWS, n - c->row) : 0;
}

/* A worker's item: scores rows against one part of a lane's context, and before the first rows sums
 * up its keys and values. */
static void score_piece(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct method_lane *l = &c->b->lane[item_i / LFPS_PIECES];
    const uint32_t piece = item_i % LFPS_PIECES, n_page = pick_page_count(l);
    struct lfps_table t;
    (void)worker_i;
    lfps_table_open(&t, l, c->rule, 0);
    const uint32_t n_row = row_count(c, t.w.step);
    if (n_row == 0) return;
    t.meter.kind = METER_BUILD;
    if (c->row == 0) sum_piece(&t, piece);
    struct attn_range pages = piece_of(n_page, piece);
    pages.end += piece == LFPS_PIECES - 1; /* the own page */
    observe_pages(&t.w.o, &t.lane, t.w.step->begin + c->row, n_row, pages,
                  t.w.k + (size_t)piece * LFPS_KEPT * l->shape->geom->head_dim);
    lfps_table_count(&t, l);
}

/* A worker's item: adds the rows that were scored to one table. */
static void learn_table(void *arg, uint32_t item_i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct method_lane *l = &c->b->lane[item_i / c->rule->n_table];
    struct lfps_table t;
    (void)worker_i;
    lfps_table_open(&t, l, c->rule, item_i % c->rule->n_table);
    const struct step *step = t.w.step;
    const uint32_t n_row = row_count(c, step), row0 = step->begin + c->row;
    if (n_row == 0) return;
    t.meter.kind = METER_BUILD;
    if (c->row == 0) clear_table(&t);
    const double share = 1 / (2 * (step->end - step->begin) * (1 - t.rule.decay));
    for (uint32_t i = 0; i < n_row; i++) {
        float *score = t.score + (size_t)i * l->shape->group * t.w.o.stride;
        if (row0 + i + 1 == step->end) find_spread(&t, score, row0 + i);
        if (!add_row(&t, score, row0 + i, share)) lfps_table_bad(&t);
    }
    if (row0 + n_row == step->end) lfps_table_plain(&t);
    lfps_table_count(&t, l);
}

void lfps_table_learn(const struct method_batch *b, const struct lfps_rule *rule)
{
    struct call c = {.b = b, .rule = rule};
    struct lfps_table t;
    for (;; c.row += OBSERVE_ROWS) {
        bool any = false;
        for (uint32_t i = 0; i < b->n; i++) {
            lfps_table_open(&t, &b->lane[i], rule, 0);
            const uint32_t n_row = row_count(&c, t.w.step);
            if (n_row > 0) observe_queries(&t.w.o, &t.lane, t.w.step->begin + c.row, n_row);
            any = any || n_row > 0;
        }
        if (!any) return;
        workers_for(b->workers, b->n * LFPS_PIECES, score_piece, &c);
        for (uint32_t i = 0; c.row == 0 && i < b->n; i++) {
            lfps_table_open(&t, &b->lane[i], rule, 0);
            if (row_count(&c, t.w.step) > 0) fold_means(&t);
        }
        workers_for(b->workers, b->n * rule->n_table, learn_table, &c);
    }
}
