/* flexprefill.c: each head uses either blocks selected by pooled scores or lines, with a budget
 * from cumulative attention: FlexPrefill (Lai et al., 2025), as in the authors' code.
 *
 * The attention of the chunk's last 128 rows is computed exactly. With blocks of 128 tokens:
 *  1. v[c] and s[o] are the means of this attention along columns and slashes. The budget of each
 *     is the number of best entries that hold the share `mass` of it, rounded down to whole blocks,
 *     plus one block, and at least `least`.
 *  2. The attention of the same rows by blocks is estimated from mean queries and mean keys and
 *     compared with v summed over blocks: the square root of the Jensen-Shannon divergence, natural
 *     log.
 *  3. Below `tau` the estimate is good and the head is query-aware: pooled scores of all blocks of
 *     rows and keys, softmax by row, and the best entries of the whole matrix until they hold
 *     `mass` of it; in addition lines with the smallest budgets. (This union is in the code and not
 *     in the paper.)
 *  4. Otherwise the best blocks of columns and of slashes are read, by their budgets.
 * The first block and a row's own block are always read.
 *
 * Deviations: the observed rows are the last of each chunk; 0 log 0 is 0 in the divergence, where
 * the original gets NaN and then uses lines. */
#include "methods/pick.h"
#include "methods/plan.h"
#include "methods/rows.h"
#include "ops/plans.h"

#include <string.h>

#define BLOCK OP_TRACE_BLOCK

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.9", "share of the observed attention that the lines or blocks hold")         \
    P(NUMBER, tau, "0.1", 0, 2, "largest distance at which a head is judged by pooled blocks")     \
    P(TOKENS, least, "512", 128, 1 << 20, "minimum budget, in tokens")
METHOD_PARAMS(flexprefill, PARAMS)

struct work {
    struct rows rows;
    float *column, *down, *slash; /* [rows.stride] */
    float *by_column, *by_slash;  /* [n_block] sums over blocks of columns, of slashes */
    float *estimate;              /* [n_block] attention of the observed rows by pooled scores */
    float *key;                   /* [n_block, head_dim] mean keys */
    float *query;                 /* [tiles of a chunk, head_dim] mean queries */
    float *score, *share;         /* [tiles of a chunk, n_block] */
    size_t n_block;               /* of a context, rounded up to 16 */
    uint32_t *spare, *bits;       /* [rows.stride], [rows.stride / 32] scratch */
};

static size_t work_make(struct work *w, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_tile = s->n_row_max / BLOCK + 2;
    w->n_block = ((s->n_ctx + BLOCK - 1) / BLOCK + 15) & ~(size_t)15;
    rows_make(&w->rows, s, min_u32(BLOCK, s->n_row_max), &a);
    float **const by_token[] = {&w->column, &w->down, &w->slash};
    for (int i = 0; i < 3; i++) *by_token[i] = arena_take(&a, w->rows.stride, sizeof(float));
    w->spare = arena_take(&a, w->rows.stride, sizeof *w->spare);
    w->bits = arena_take(&a, w->rows.stride / PAGE_TOK, sizeof *w->bits);
    float **const by_block[] = {&w->by_column, &w->by_slash, &w->estimate};
    for (int i = 0; i < 3; i++) *by_block[i] = arena_take(&a, w->n_block, sizeof(float));
    w->key = arena_take(&a, w->n_block * d, sizeof(float));
    w->query = arena_take(&a, n_tile * d, sizeof(float));
    w->score = arena_take(&a, n_tile * w->n_block, sizeof(float));
    w->share = arena_take(&a, n_tile * w->n_block, sizeof(float));
    return a.used;
}

static size_t flex_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    (void)param;
    return work_make(&w, s, NULL);
}

/* ---- Pooled scores ---- */

/* Mean keys of all blocks, including the partial last one. */
static void pool_keys(const struct work *w, const struct method_lane *l)
{
    const uint32_t d = l->shape->geom->head_dim, end = l->pos + l->n_row;
    for (uint32_t first = 0; first < end; first += BLOCK) {
        const uint32_t last = min_u32(first + BLOCK, end);
        float *mean = w->key + (size_t)(first / BLOCK) * d;
        memset(mean, 0, d * sizeof(float));
        for (uint32_t tok = first; tok < last; tok += PAGE_TOK) {
            const uint32_t n = min_u32(PAGE_TOK, last - tok);
            pick_span(w->rows.k, l, tok, tok + n);
            for (uint32_t t = 0; t < n; t++)
                for (uint32_t c = 0; c < d; c++) mean[c] += w->rows.k[t * d + c];
        }
        for (uint32_t c = 0; c < d; c++) mean[c] /= (float)(last - first);
    }
}

/* The scaled mean query of rows [row0, row1) of the chunk. */
static void pool_rows(float *out, const struct method_lane *l, uint32_t head, uint32_t row0,
                      uint32_t row1)
{
    const uint32_t d = l->shape->geom->head_dim;
    assert(row0 < row1 && row1 <= l->n_row);
    memset(out, 0, d * sizeof(float));
    for (uint32_t r = row0; r < row1; r++)
        for (uint32_t c = 0; c < d; c++) out[c] += l->q[r * l->q_stride + (size_t)head * d + c];
    for (uint32_t c = 0; c < d; c++) out[c] *= l->scale / (float)(row1 - row0);
}

/* Products of n_query mean queries with the mean keys of n_block blocks. */
static void score_blocks(const struct work *w, const struct method_lane *l, const float *query,
                         uint32_t n_query, uint32_t n_block)
{
    const uint32_t d = l->shape->geom->head_dim;
    l->ops->dots(&(struct op_dots){.a = query,
                                   .b = w->key,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = n_query,
                                   .n_b = n_block,
                                   .width = d,
                                   .out = w->score,
                                   .out_stride = w->n_block});
}

static bool softmax(const struct method_lane *l, const float *score, uint32_t n, float *out)
{
    float lse;
    return l->ops->vote(
        &(struct op_vote){.score = score, .n = n, .group = 1, .vote = out, .lse = &lse});
}

/* The square root of the Jensen-Shannon divergence of two distributions, with natural logs. */
static double sqrt_js_divergence(const float *a, const float *b, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double x = (double)a[i], y = (double)b[i], m = (x + y) / 2;
        if (x > 0) sum += x * log(x / m) / 2;
        if (y > 0) sum += y * log(y / m) / 2;
    }
    return sqrt(fmax(sum, 0));
}

/* ---- Selection ---- */

static uint32_t min_budget_blocks(const struct method_lane *l)
{
    const struct flexprefill_param *set = l->param;
    return (set->least + BLOCK - 1) / BLOCK;
}

/* The budget of columns or slashes, in blocks (step 1). */
static uint32_t budget_blocks(const struct work *w, const struct method_lane *l, const float *value,
                              const float *by_block)
{
    const struct flexprefill_param *set = l->param;
    const uint32_t n = l->pos + l->n_row, n_page = (n + PAGE_TOK - 1) / PAGE_TOK;
    assert(n <= w->rows.stride);
    double sum = 0;
    uint32_t count = 0;
    for (uint32_t b = 0; b * BLOCK < n; b++) sum += (double)by_block[b];
    const struct op_cut cut = l->ops->best(&(struct op_best){
        .value = value, .n = n, .by_sum = true, .target = set->mass * sum, .spare = w->spare});
    memset(w->bits, 0, n_page * sizeof *w->bits);
    l->ops->mark(&(struct op_mark){.value = value, .cut = cut, .n_page = n_page, .mask = w->bits});
    for (uint32_t i = 0; i < n_page; i++) count += (uint32_t)__builtin_popcount(w->bits[i]);
    return max_u32(count / BLOCK + 1, min_budget_blocks(l));
}

/* v and s, and their sums over blocks. */
static void sum_lines(const struct work *w, const struct method_lane *l)
{
    const uint32_t n = l->pos + l->n_row;
    const float each = 1 / (float)w->rows.n;
    memset(w->column, 0, w->rows.stride * sizeof(float));
    memset(w->down, 0, w->rows.stride * sizeof(float));
    rows_sum(&w->rows, l, w->column, w->down, false);
    memset(w->by_column, 0, w->n_block * sizeof(float));
    memset(w->by_slash, 0, w->n_block * sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        w->column[i] *= each;
        w->slash[i] = w->down[n - 1 - i] * each;
        w->by_column[i / BLOCK] += w->column[i];
        w->by_slash[i / BLOCK] += w->slash[i];
    }
    for (uint32_t i = n; i % PAGE_TOK > 0; i++) w->slash[i] = 0; /* `mark` reads whole pages */
}

static void mark_block(struct plan *p, uint32_t tile, uint32_t head, uint32_t block)
{
    plan_range(p, tile, head, block * BLOCK, (block + 1) * BLOCK);
}

/* Marks the best n_column blocks of columns, the best n_slash blocks of slashes and the first
 * block, for all tiles (step 4). */
static void mark_lines(const struct work *w, struct plan *p, uint32_t head, uint32_t n_column,
                       uint32_t n_slash)
{
    const uint32_t n_block = p->tile0 + p->n_tile;
    assert(n_block <= w->n_block && n_column > 0 && n_slash > 0);
    struct pick_cut column = pick_best(w->by_column, n_block, n_column);
    struct pick_cut slash = pick_best(w->by_slash, n_block, n_slash);
    for (uint32_t b = 0; b < n_block; b++) {
        const bool is_column = pick_takes(&column, w->by_column[b]);
        const bool is_slash = pick_takes(&slash, w->by_slash[b]);
        for (uint32_t i = 0; i < p->n_tile; i++) {
            if (is_column || b == 0) mark_block(p, i, head, b);
            if (is_slash && p->tile0 + i >= b) mark_block(p, i, head, p->tile0 + i - b);
        }
    }
}

/* Marks the best entries of the pooled attention matrix of the chunk (step 3). False: not
 * finite. */
static bool mark_pooled(const struct work *w, const struct method_lane *l, struct plan *p,
                        uint32_t head)
{
    const struct flexprefill_param *set = l->param;
    const uint32_t n_block = p->tile0 + p->n_tile, d = l->shape->geom->head_dim;
    assert(n_block <= w->n_block && p->n_tile <= l->shape->n_row_max / BLOCK + 2);
    for (uint32_t i = 0; i < p->n_tile; i++)
        pool_rows(w->query + (size_t)i * d, l, head, plan_row0(p, i), plan_row_end(p, i));
    score_blocks(w, l, w->query, p->n_tile, n_block);
    memset(w->share, 0, (size_t)p->n_tile * n_block * sizeof(float));
    for (uint32_t i = 0; i < p->n_tile; i++)
        if (!softmax(l, w->score + i * w->n_block, p->tile0 + i + 1,
                     w->share + (size_t)i * n_block))
            return false;
    struct pick_cut cut = pick_share(w->share, p->n_tile * n_block, set->mass);
    for (uint32_t i = 0; i < p->n_tile; i++)
        for (uint32_t b = 0; b < n_block; b++)
            if (pick_takes(&cut, w->share[(size_t)i * n_block + b])) mark_block(p, i, head, b);
    return true;
}

/* Plans one query head: query-aware, or by lines. False: a score is not finite. */
static bool plan_head(const struct work *w, const struct method_lane *l, struct plan *p,
                      uint32_t head)
{
    const struct flexprefill_param *set = l->param;
    const uint32_t n_block = p->tile0 + p->n_tile, least = min_budget_blocks(l);
    if (!rows_attend(&w->rows, l, head)) return false;
    sum_lines(w, l);
    pool_rows(w->query, l, head, l->n_row - w->rows.n, l->n_row);
    score_blocks(w, l, w->query, 1, n_block);
    if (!softmax(l, w->score, n_block, w->estimate)) return false;
    if (sqrt_js_divergence(w->estimate, w->by_column, n_block) < set->tau) {
        mark_lines(w, p, head, least, least);
        return mark_pooled(w, l, p, head);
    }
    mark_lines(w, p, head, budget_blocks(w, l, w->column, w->by_column),
               budget_blocks(w, l, w->slash, w->by_slash));
    return true;
}

/* Why the lane is dense, or PLAN_SPARSE. */
static enum plan_reason dense_reason(const struct method_lane *l)
{
    const struct flexprefill_param *set = l->param;
    if (set->mass >= 1) return PLAN_LAYER; /* rounding could stop before the last entry */
    return l->pos + l->n_row <= fmax(2 * BLOCK, set->least) ? PLAN_SHORT : PLAN_SPARSE;
}

/* Lists the observed rows; returns their number. */
static uint32_t list_last_rows(uint32_t *at, const struct method_lane *l)
{
    const uint32_t n = min_u32(BLOCK, l->n_row);
    for (uint32_t i = 0; i < n; i++) at[i] = l->pos + l->n_row - n + i;
    return n;
}

static void flex_plan(const struct method_lane *l, struct plan *p)
{
    struct work w;
    const enum plan_reason why = dense_reason(l);
    if (why) {
        plan_dense(p, why);
        return;
    }
    work_make(&w, l->shape, l->scratch);
    w.rows.n = list_last_rows(w.rows.at, l);
    pool_keys(&w, l);
    bool finite = rows_read_keys(&w.rows, l);
    for (uint32_t h = 0; h < l->shape->group && finite; h++) finite = plan_head(&w, l, p, h);
    if (!finite) plan_dense(p, PLAN_NAN);
}

/* ---- On a device ---- */

static uint32_t flex_trace_rows(const struct method_shape *s, const void *param)
{
    (void)param;
    return min_u32(BLOCK, s->n_row_max);
}

static void flex_trace(const struct method_lane *l, uint32_t n_tok, struct op_trace *op)
{
    const struct flexprefill_param *set = l->param;
    (void)n_tok;
    op->rule = OP_TRACE_POOLED;
    op->why = dense_reason(l);
    op->choose.n = list_last_rows(op->choose.at, l);
    op->mass = set->mass;
    op->tau = (float)set->tau;
    op->least = min_budget_blocks(l);
}

static const struct method_prefill hooks = {
    .tile_tok = BLOCK,
    .by_head = true,
    .scratch_bytes = flex_scratch_bytes,
    .plan = flex_plan,
    .trace = flex_trace,
    .trace_rows = flex_trace_rows,
    .trace_pools = true,
};

static const sac_method_deviation deviations[] = {
    {"the last 128 prompt tokens are observed", "the last 128 of each chunk of -b tokens",
     "a chunk does not know whether the prompt continues", NULL},
    {"query-aware heads read their blocks",
     "and lines with the minimum budgets, as in the authors' code", "paper and code differ", NULL},
    {"in the code a block without mass makes the divergence NaN, and the head uses lines",
     "it counts as 0", "the limit of the formula", NULL},
};

const struct method flexprefill_method = {
    METHOD_PREFILL(
        flexprefill,
        "vertical and slash lines or pooled blocks, chosen per head, by cumulative attention"),
    .paper = "Lai et al., FlexPrefill: A Context-Aware Sparse Attention Mechanism for Efficient "
             "Long-Sequence Inference, arXiv 2502.20766",
    .about = "Computes the exact attention of the chunk's last rows and takes as many blocks of "
             "columns and diagonals as hold the wanted share of it. Heads whose attention is well "
             "explained by mean queries and mean keys select by those instead, for every block of "
             "rows. Budgets adapt to the input. The share is that of the observed rows: for other "
             "rows it is a guess, and whole blocks are read for single keys.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "mass=0.1,least=128", .whole = "mass=1"},
    .prefill = &hooks,
};
