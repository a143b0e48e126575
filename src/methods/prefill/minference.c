/* minference.c: each head reads the columns and diagonals to which the last rows attend most:
 * MInference (Jiang et al., 2024), vertical-slash heads with the sizes of its current Llama-3.1
 * table.
 *
 * The attention of the chunk's last rows is computed exactly and summed along lines. All rows of
 * the chunk read the best `columns` verticals and `slashes` diagonals. The first columns and
 * diagonals are always taken; if they alone exceed the size, those with the smallest offsets come
 * first, so that the local band has no gaps (the authors' code leaves this order undefined).
 *
 * Patterns of heads. Without a table all heads have the same size: every published table contains
 * only vertical-slash heads, and the authors replaced the sizes of their search by this one. A
 * table has a pattern for each head. It is learned as in their first version: on a long prompt,
 * from the lines of its last rows and the blocks of pooled scores, the candidate wins that keeps
 * most of the attention of rows from LEARN_FROM on. Where blocks win, the authors write columns and
 * slashes of a size that covers them, and so does this file. Where an A-shape wins, it is kept.
 *
 * Deviations: the observed rows are the last of each chunk, as in the engines that adopted the
 * method; in the original they are the prompt's. Tiles read the lines' runs of a tile's rows, which
 * is tighter than the original's blocks of 64. */
#include "methods/prefill/pattern.h"

#include "methods/lines.h"
#include "methods/pick.h"
#include "methods/plan.h"
#include "methods/rows.h"

#include <string.h>

#define LEARN_FROM  2500u /* earlier rows are left out, as in the authors' search */
#define BLOCK       64u
#define BLOCK_PAGES (BLOCK / PAGE_TOK)

#define PARAMS(P)                                                                                  \
    P(COUNT, columns, "512", 1, 1 << 20, "columns that every row reads")                           \
    P(COUNT, slashes, "2048", 1, 1 << 20, "diagonals that every row reads")                        \
    P(COUNT, sample, "64", 1, 1024, "last rows of a chunk that select them")                       \
    P(TOKENS, sink, "30", 0, 1 << 20, "first columns, always included")                            \
    P(COUNT, band, "100", 0, 1 << 20, "first diagonals, always included")                          \
    P(CHOICE, sizes, "fixed", "fixed|search",                                                      \
      "columns and slashes as given, or for each head and chunk the best of five sizes")           \
    P(PATH, table, "table of patterns for the model's heads, made by 'saccade eval patterns'")
METHOD_PARAMS(minference, PARAMS)

/* Attention of a head's rows, summed along lines. */
struct sums {
    float *column, *slash; /* [stride] */
};

struct work {
    struct rows rows;
    struct lines lines;
    struct sums by;             /* of the last rows, by which lines are selected */
    struct sums judge;          /* of rows from all over the chunk, by which sizes are compared */
    float *down;                /* [stride] scratch: slashes from the last to the first */
    float *first;               /* [stride] scratch: sums of the first lines */
    uint32_t *spare;            /* [stride] scratch */
    uint32_t *column, *slash;   /* [stride / 32] bits of the lines that are taken */
    float *key, *query, *score; /* [n_block, head_dim], [head_dim], [n_block] */
};

static void work_make(struct work *w, const struct method_shape *s, const void *param,
                      struct arena *a)
{
    const struct minference_param *set = param;
    const uint32_t n_sample = min_u32(set->sample, s->n_row_max);
    rows_make(&w->rows, s, n_sample, a);
    float **const by_token[] = {&w->by.column,   &w->by.slash, &w->judge.column,
                                &w->judge.slash, &w->down,     &w->first};
    for (int i = 0; i < 6; i++) *by_token[i] = arena_take(a, w->rows.stride, sizeof(float));
    w->spare = arena_take(a, w->rows.stride, sizeof *w->spare);
    w->column = arena_take(a, w->rows.stride / PAGE_TOK, sizeof *w->column);
    w->slash = arena_take(a, w->rows.stride / PAGE_TOK, sizeof *w->slash);
    const size_t n_block = s->n_ctx / BLOCK + 1;
    w->key = arena_take(a, n_block * s->geom->head_dim, sizeof(float));
    w->query = arena_take(a, s->geom->head_dim, sizeof(float));
    w->score = arena_take(a, n_block, sizeof(float));
}

static size_t mi_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    struct arena a = {0};
    work_make(&w, s, param, &a);
    lines_make(&w.lines, s->n_ctx, 2 * PAGE_TOK, &a);
    return a.used;
}

/* Sets the bits of the k[1] lines with the largest sums and clears the others; the first k[0] lines
 * count as the largest. */
static void take_largest(const struct work *w, const struct method_lane *l, uint32_t *bits,
                         float *sum, const uint32_t k[2])
{
    const uint32_t n = l->pos + l->n_row, n_page = (n + PAGE_TOK - 1) / PAGE_TOK;
    const uint32_t n_first = min_u32(k[0], n);
    assert(n <= w->rows.stride);
    memcpy(w->first, sum, n_first * sizeof *sum);
    for (uint32_t i = 0; i < n_first; i++) sum[i] = INFINITY;
    const struct op_cut cut = l->ops->best(
        &(struct op_best){.value = sum, .n = n, .target = min_u32(k[1], n), .spare = w->spare});
    memset(bits, 0, n_page * sizeof *bits);
    l->ops->mark(&(struct op_mark){.value = sum, .cut = cut, .n_page = n_page, .mask = bits});
    memcpy(sum, w->first, n_first * sizeof *sum);
}

static void take_lines(const struct work *w, const struct method_lane *l,
                       const struct pattern *size)
{
    const struct minference_param *set = l->param;
    const uint32_t sink = set->sink, band = set->band;
    take_largest(w, l, w->column, w->by.column, (const uint32_t[]){sink, size->a});
    take_largest(w, l, w->slash, w->by.slash, (const uint32_t[]){band, size->b});
}

/* Lists the set bits of n words. */
static uint32_t list_bits(uint32_t *out, const uint32_t *bits, uint32_t n)
{
    uint32_t n_out = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t left = bits[i]; left; left &= left - 1)
            out[n_out++] = 32 * i + (uint32_t)__builtin_ctz(left);
    return n_out;
}

/* The share of the sample's attention in the cells of the taken lines: the sums along them minus
 * what lies at their crossings, which count twice. It is rounded to the accuracy of such sums, so
 * that patterns which hold everything compare equal. */
static double covered(const struct work *w, const struct method_lane *l, const struct sums *along,
                      bool kept)
{
    const uint32_t n_word = (l->pos + l->n_row + 31) / 32;
    assert(w->rows.n > 0);
    double sum = 0;
    uint32_t n = list_bits(w->spare, w->slash, n_word);
    for (uint32_t j = 0; j < n; j++) sum += (double)along->slash[w->spare[j]];
    n = list_bits(w->spare, w->column, n_word);
    for (uint32_t j = 0; j < n; j++) sum += (double)along->column[w->spare[j]];
    sum -= rows_cross(&w->rows, w->spare, n, w->slash, kept);
    return round(sum / w->rows.n * 0x1p16) * 0x1p-16;
}

/* The attention of sampled row i to token c, after rows_sum with `keep`. */
static double attention_at(const struct work *w, uint32_t i, uint32_t c)
{
    return (double)bf16_to_f32(w->rows.weight[rows_cell(w->rows.n, i, c)]);
}

/* The share of the sample's attention in an A-shape: on the first `sink` keys, and on the `window`
 * keys that end with each row. */
static double covered_ends(const struct work *w, uint32_t sink, uint32_t window)
{
    double sum = 0;
    for (uint32_t i = 0; i < w->rows.n; i++) {
        const uint32_t at = w->rows.at[i], recent = at + 1 > window ? at + 1 - window : 0;
        for (uint32_t c = 0; c <= at; c++)
            if (c < sink || c >= recent) sum += attention_at(w, i, c);
    }
    return sum / w->rows.n;
}

/* Samples the last rows of the chunk; returns their number. */
static uint32_t sample_last_rows(uint32_t *at, const struct method_lane *l)
{
    const struct minference_param *set = l->param;
    const uint32_t n = min_u32(set->sample, l->n_row);
    for (uint32_t i = 0; i < n; i++) at[i] = l->pos + l->n_row - n + i;
    return n;
}

/* Samples the last row of each of equal parts of the chunk after position `from`. */
static uint32_t sample_all_rows(uint32_t *at, const struct method_lane *l, uint32_t from)
{
    const struct minference_param *set = l->param;
    const uint32_t first = max_u32(l->pos, from), span = l->pos + l->n_row - first;
    const uint32_t n = min_u32(set->sample, span);
    assert(span > 0 && span <= l->n_row);
    for (uint32_t i = 0; i < n; i++) at[i] = first + (uint32_t)((uint64_t)span * (i + 1) / n) - 1;
    return n;
}

/* Sums along lines; `keep` is as in rows_sum. */
static void sum_lines(const struct work *w, const struct method_lane *l, const struct sums *out,
                      bool keep)
{
    const uint32_t n = l->pos + l->n_row;
    memset(out->column, 0, w->rows.stride * sizeof(float));
    memset(out->slash, 0, w->rows.stride * sizeof(float));
    memset(w->down, 0, w->rows.stride * sizeof(float));
    rows_sum(&w->rows, l, out->column, w->down, keep);
    for (uint32_t o = 0; o < n; o++) out->slash[o] = w->down[n - 1 - o];
}

/* Sums the attention of the last rows. False: a score is not finite. */
static bool attend_last(struct work *w, const struct method_lane *l, uint32_t head)
{
    w->rows.n = sample_last_rows(w->rows.at, l);
    if (!rows_attend(&w->rows, l, head)) return false;
    sum_lines(w, l, &w->by, false);
    return true;
}

/* Sums the attention of rows from all over the chunk, from position `from` on. */
static bool attend_all(struct work *w, const struct method_lane *l, uint32_t head, uint32_t from,
                       bool keep)
{
    w->rows.n = sample_all_rows(w->rows.at, l, from);
    if (!rows_attend(&w->rows, l, head)) return false;
    sum_lines(w, l, &w->judge, keep);
    return true;
}

/* sizes=search: the candidate whose lines hold most of the attention of rows from all over the
 * chunk. False: a score is not finite. */
static bool search_size(struct work *w, const struct method_lane *l, uint32_t head,
                        struct pattern *out)
{
    double best = -1;
    if (!attend_all(w, l, head, 0, false)) return false;
    for (size_t i = 0; i < PATTERN_CANDIDATES; i++) {
        if (pattern_candidates[i].family == PATTERN_BLOCKS) continue;
        /* An A-shape counts as lines of its size, as in the authors' tables. */
        take_lines(w, l, &pattern_candidates[i]);
        const double mass = covered(w, l, &w->judge, false);
        if (mass > best) *out = pattern_candidates[i];
        best = fmax(best, mass);
    }
    return true;
}

/* ---- Tables ---- */

/* Mean keys of all full blocks; the last block is read anyway. */
static void pool_keys(struct work *w, const struct method_lane *l)
{
    const uint32_t d = l->shape->geom->head_dim, n_block = (l->pos + l->n_row) / BLOCK;
    memset(w->key, 0, (size_t)n_block * d * sizeof(float));
    for (uint32_t page = 0; page < n_block * BLOCK_PAGES; page++) {
        float *mean = w->key + (size_t)(page / BLOCK_PAGES) * d;
        pick_keys(w->rows.k, l, page);
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            for (uint32_t c = 0; c < d; c++) mean[c] += w->rows.k[t * d + c] / (float)BLOCK;
    }
}

/* The share of the sample's attention in the blocks that pooled scores select, one of `ratio`, and
 * in the first and the row's own block. */
static double covered_blocks(struct work *w, const struct method_lane *l, uint32_t head,
                             uint32_t ratio)
{
    const uint32_t d = l->shape->geom->head_dim, end = l->pos + l->n_row;
    double sum = 0;
    for (uint32_t i = 0; i < w->rows.n; i++) {
        const uint32_t at = w->rows.at[i], own = at / BLOCK;
        const uint32_t r0 = max_u32(own * BLOCK, l->pos), r1 = min_u32((own + 1) * BLOCK, end);
        memset(w->query, 0, d * sizeof(float));
        for (uint32_t r = r0; r < r1; r++) {
            const float *q = l->q + (r - l->pos) * l->q_stride + (size_t)head * d;
            for (uint32_t c = 0; c < d; c++) w->query[c] += q[c] / (float)(r1 - r0);
        }
        for (uint32_t b = 0; b < own; b++) {
            w->score[b] = 0;
            for (uint32_t c = 0; c < d; c++) w->score[b] += w->query[c] * w->key[(size_t)b * d + c];
        }
        struct pick_cut cut = pick_best(w->score, own, (own + 1) / ratio);
        for (uint32_t b = 0; b <= own; b++) {
            const bool is_best = b < own && pick_takes(&cut, w->score[b]);
            for (uint32_t c = b * BLOCK;
                 c < min_u32((b + 1) * BLOCK, at + 1) && (is_best || b == 0 || b == own); c++)
                sum += attention_at(w, i, c);
        }
    }
    return sum / w->rows.n;
}

static double covered_by(struct work *w, const struct method_lane *l, uint32_t head,
                         const struct pattern *pattern)
{
    switch (pattern->family) {
    case PATTERN_BLOCKS: return covered_blocks(w, l, head, pattern->a);
    case PATTERN_ENDS: return covered_ends(w, pattern->a, pattern->b);
    case PATTERN_LINES: break;
    }
    take_lines(w, l, pattern);
    return covered(w, l, &w->judge, true);
}

/* Adds the attention that each candidate pattern keeps of this chunk to the table's sums. */
static void learn_patterns(const struct method_lane *l, void *table)
{
    struct arena a = {.base = l->scratch, .capacity = SIZE_MAX};
    struct work w;
    if (l->pos + l->n_row <= LEARN_FROM) return;
    work_make(&w, l->shape, l->param, &a);
    pool_keys(&w, l);
    if (!rows_read_keys(&w.rows, l)) return;
    for (uint32_t h = 0; h < l->shape->group; h++) {
        struct pattern_head *head = (struct pattern_head *)table + pattern_entry(l, h);
        if (!attend_last(&w, l, h)) return;
        if (!attend_all(&w, l, h, LEARN_FROM, true)) return;
        for (size_t i = 0; i < PATTERN_CANDIDATES; i++)
            head->mass[i] += w.rows.n * covered_by(&w, l, h, &pattern_candidates[i]);
        head->n_row += w.rows.n;
    }
}

static const struct method_table table = {pattern_table_bytes, pattern_table_read, learn_patterns,
                                          pattern_table_write};

/* ---- The method ---- */

/* The pattern of a head by the table or the parameters. */
static struct pattern pattern_of(const struct method_lane *l, uint32_t head)
{
    const struct minference_param *set = l->param;
    const struct pattern_head *heads = l->table;
    if (set->table) return heads[pattern_entry(l, head)].pattern;
    return (struct pattern){PATTERN_LINES, set->columns, set->slashes};
}

/* Plans one query head. False: a score is not finite. */
static bool plan_head(struct work *w, const struct method_lane *l, struct plan *p, uint32_t head)
{
    const struct minference_param *set = l->param;
    const bool searches = set->sizes > 0;
    struct pattern pattern = pattern_of(l, head);
    if (pattern.family == PATTERN_ENDS) {
        for (uint32_t i = 0; i < p->n_tile; i++) plan_ends(p, i, head, pattern.a, pattern.b);
        return true;
    }
    if (!attend_last(w, l, head)) return false;
    if (searches && !search_size(w, l, head, &pattern)) return false;
    take_lines(w, l, &pattern);
    plan_estimate(p, covered(w, l, searches ? &w->judge : &w->by, false), 1);
    lines_clear(&w->lines);
    memcpy(w->lines.col, w->column, w->lines.n_word * sizeof *w->column);
    const uint32_t n_slash = list_bits(w->spare, w->slash, w->lines.n_word);
    for (uint32_t i = 0; i < n_slash; i++) lines_take_slash(&w->lines, w->spare[i]);
    for (uint32_t i = 0; i < p->n_tile; i++)
        lines_mark(plan_mask(p, i, head), &w->lines, plan_tile_tok(p, i));
    return true;
}

/* The context length up to which the largest pattern of the lane's heads would read everything. */
static uint32_t short_tok(const struct method_lane *l)
{
    const struct minference_param *set = l->param;
    uint32_t most = 0;
    for (uint32_t h = 0; h < l->shape->group && !(set->sizes > 0); h++) {
        const struct pattern p = pattern_of(l, h);
        most = max_u32(most, max_u32(p.a, p.b));
    }
    for (size_t i = 0; i < PATTERN_CANDIDATES && set->sizes > 0; i++)
        most = max_u32(most, max_u32(pattern_candidates[i].a, pattern_candidates[i].b));
    return most;
}

static void mi_plan(const struct method_lane *l, struct plan *p)
{
    struct arena a = {.base = l->scratch, .capacity = SIZE_MAX};
    struct work w;
    const uint32_t n = l->pos + l->n_row;
    if (n <= short_tok(l)) {
        plan_dense(p, PLAN_SHORT);
        return;
    }
    work_make(&w, l->shape, l->param, &a);
    lines_make(&w.lines, n, p->tile_tok, &a);
    bool finite = rows_read_keys(&w.rows, l);
    for (uint32_t h = 0; h < l->shape->group && finite; h++) finite = plan_head(&w, l, p, h);
    if (!finite) plan_dense(p, PLAN_NAN);
}

/* ---- On a device ---- */

static uint32_t mi_trace_rows(const struct method_shape *s, const void *param)
{
    const struct minference_param *set = param;
    return min_u32(set->sample, s->n_row_max);
}

/* Lists the patterns among which a device selects for a head: with sizes=search all candidates,
 * otherwise its own. Returns their number, which must be the same for all heads, so an A-shape from
 * a table is repeated. */
static uint32_t list_patterns(struct pattern out[PATTERN_CANDIDATES], const struct method_lane *l,
                              uint32_t head)
{
    const struct minference_param *set = l->param;
    const struct pattern own = pattern_of(l, head);
    uint32_t n = 0;
    out[0] = own;
    for (size_t i = 0; i < PATTERN_CANDIDATES && set->sizes > 0; i++) {
        if (pattern_candidates[i].family == PATTERN_BLOCKS) continue;
        out[n] = own;
        if (own.family != PATTERN_ENDS)
            out[n] =
                (struct pattern){PATTERN_LINES, pattern_candidates[i].a, pattern_candidates[i].b};
        n++;
    }
    return n ? n : 1;
}

/* The sizes of the query heads of a lane's KV head. */
static void put_sizes(const struct method_lane *l, struct op_trace *op)
{
    const uint32_t group = l->shape->group;
    const bool reads_all = l->pos + l->n_row <= short_tok(l);
    for (uint32_t h = 0; h < group; h++) {
        struct pattern p[PATTERN_CANDIDATES];
        op->n_size = list_patterns(p, l, h);
        for (uint32_t i = 0; i < op->n_size; i++)
            op->size[i * op->rows.n_head + l->kv_head * group + h] =
                (struct op_trace_size){reads_all                     ? OP_TRACE_ALL
                                       : p[i].family == PATTERN_ENDS ? OP_TRACE_ENDS
                                                                     : OP_TRACE_LINES,
                                       p[i].a, p[i].b};
    }
}

static void mi_trace(const struct method_lane *l, uint32_t n_tok, struct op_trace *op)
{
    const struct minference_param *set = l->param;
    (void)n_tok;
    op->why = PLAN_SHORT;
    for (uint32_t h = 0; h < l->shape->geom->n_kv_head; h++) {
        struct method_lane lane = *l;
        lane.kv_head = h;
        put_sizes(&lane, op);
        if (l->pos + l->n_row > short_tok(&lane)) op->why = PLAN_SPARSE;
    }
    op->rule = OP_TRACE_BEST;
    op->sink = set->sink;
    op->band = set->band;
    op->choose.n = sample_last_rows(op->choose.at, l);
    op->judge.n = set->sizes > 0 ? sample_all_rows(op->judge.at, l, 0) : 0;
}

static const struct method_prefill hooks = {
    .by_head = true,
    .table = &table,
    .scratch_bytes = mi_scratch_bytes,
    .plan = mi_plan,
    .trace = mi_trace,
    .trace_rows = mi_trace_rows,
};

static const sac_method_deviation deviations[] = {
    {"the last 64 rows of the prompt select", "the last 64 of each chunk of -b tokens do",
     "a chunk does not know whether the prompt continues; engines that adopted the method do the "
     "same",
     NULL},
    {"blocks of 64 around columns and diagonals", "runs of a tile's rows", "it is tighter", NULL},
    {"a table of patterns for each model",
     "one size for all heads, the authors' newest; a table can be learned (eval patterns)",
     "tables exist for a few models only", NULL},
};

const struct method minference_method = {
    METHOD_PREFILL(minference,
                   "vertical and slash lines to which the last rows of a chunk attend most"),
    .paper = "Jiang et al., MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via "
             "Dynamic Sparse Attention, arXiv 2407.02490",
    .about = "Sums the exact attention of the last rows along columns and diagonals and reads the "
             "best of each for all rows of the chunk. The budget is fixed, so it is wasted on "
             "sharp heads and too small for flat ones; a table, made once per model by 'saccade "
             "eval patterns', gives each head a size of its own. The last rows speak for all: what "
             "only earlier rows attend to, for example a question in front of the text, is missed. "
             "The sample's cost is that of its rows, so chunks should be large (-b 2048 and more).",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "columns=40,slashes=40,band=20,sink=4", .whole = "columns=4096"},
    .prefill = &hooks,
};
