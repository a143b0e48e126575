/* loopserve.c: each head reads lines that are selected online, again for each chunk, until they
 * hold a share of the attention of sampled rows: LoopServe (Li et al., 2025), Algorithm 2, with
 * exact overlaps.
 *
 * A slash and a vertical cross in one cell, which must not count twice. The printed algorithm
 * bounds the loss by each selected line's largest entry. Where rows give all their attention to one
 * key, as the first rows do, these bounds exceed the gains: the sum falls, and every line is taken.
 * Here the uncovered attention of each line is kept exactly:
 *  1. m rows are sampled, one from each stratum of the chunk and the last row, the same for all
 *     heads. At the start of a sequence the strata begin at row m, because early rows say nothing
 *     about lines.
 *  2. left[x] of a line x is the attention in its cells of the sampled rows that is not yet
 *     covered.
 *  3. The first slashes and columns are taken. Then each round takes all lines whose
 *         key = left / max(1, cells that no selected line crosses)
 *     is at least `beta` times the best key: slashes first, then columns with recomputed keys.
 *  4. Taking line x covers left[x], and subtracts the attention at each crossing from the line that
 *     crosses it. The rounds end when the share `mass` of the sample is covered.
 * A head that would read more than `most` of its cells is dense.
 *
 * "The new rows of a turn" are those of a chunk: a turn is planned as a whole if the batch (-b)
 * holds it. Tokens of past turns are keys like others. Rows of the last answer are not computed
 * again, so they are not sampled. With heads=group a KV head has one set of lines, from the sum
 * over its query heads.
 *
 * Lines over several turns. The paper unites the lines of all turns, from which the decode stage
 * selects; here decoding selects among all keys. With keep=on later rows read the union of the
 * lines of earlier chunks (and so turns): these lines are taken before the rounds, which add what
 * is missing. */
#include "methods/lines.h"
#include "methods/pick.h"
#include "methods/plan.h"
#include "methods/rows.h"

#include <stdlib.h>
#include <string.h>

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.955", "share of the sampled rows' attention that lines must hold")           \
    P(COUNT, sample, "64", 1, 1024, "rows sampled per chunk")                                      \
    P(NUMBER, beta, "0.7", 0.01, 1,                                                                \
      "lines with at least this fraction of the best line's score are taken together")             \
    P(COUNT, slashes, "64", 0, 4096, "first slashes, always taken")                                \
    P(COUNT, columns, "16", 0, 4096, "first columns, always taken")                                \
    P(SHARE, most, "0.6", "a head that needs more of its cells is dense")                          \
    P(CHOICE, heads, "query", "query|group", "lines per query head, or one set per KV head")       \
    P(FLAG, keep, "off", "lines that earlier chunks and turns selected are taken first")
METHOD_PARAMS(loopserve, PARAMS)

/* ---- Greedy selection ---- */

#define AHEAD 16u /* lines whose cells are prefetched while others are processed */

enum kind { SLASH, COLUMN, KINDS };

struct ranked {
    float key;
    uint32_t line;
};

/* The state of one head's selection. Lines of both kinds are numbered 0 .. n - 1: slashes by their
 * offset, columns by their key. In the row at position r >= x, line x of either kind crosses line r
 * - x of the other kind. It has n - max(pos0, x) cells. */
struct greedy {
    const struct ops *ops;
    uint32_t n, pos0, n_row; /* positions; the first row's position; number of sampled rows */
    const uint32_t *at;      /* [n_row] positions of the sampled rows */
    /* Attention probabilities as rows_sum leaves them; zeros after a row's position. */
    const uint16_t *p;
    size_t stride;
    float *left[KINDS];   /* [stride] uncovered attention of a line; at most 0 once it is taken */
    float *key[KINDS];    /* [stride] uncovered attention per uncrossed cell */
    float *top[KINDS];    /* [n / OP_RATE_LINES, rounded up] largest key of each block of lines */
    bool *taken[KINDS];   /* [n] */
    uint32_t *before;     /* [n + 1] at n - x: taken lines of the other kind before number x */
    struct ranked *round; /* [n] */
    uint32_t *line;       /* [n] lines of a round, ascending */
    double goal, covered;
    uint64_t n_cell; /* cells of the taken lines, in all rows */
};

static void greedy_make(struct greedy *g, size_t n, struct arena *a)
{
    g->stride = n;
    for (int k = 0; k < KINDS; k++) {
        g->left[k] = arena_take(a, n, sizeof(float));
        g->key[k] = arena_take(a, n, sizeof(float));
        g->top[k] = arena_take(a, n / OP_RATE_LINES + 1, sizeof(float));
        g->taken[k] = arena_take(a, n, sizeof(bool));
    }
    g->before = arena_take(a, n + 1, sizeof *g->before);
    g->round = arena_take(a, n, sizeof *g->round);
    g->line = arena_take(a, n, sizeof *g->line);
}

/* Starts with no lines taken. The sums of the attention must then be added: columns to
 * left[COLUMN], and slashes, in descending order as in lines.h, to key[SLASH]. */
static void greedy_clear(struct greedy *g)
{
    for (int k = 0; k < KINDS; k++) memset(g->taken[k], 0, g->n * sizeof(bool));
    memset(g->left[COLUMN], 0, g->stride * sizeof(float));
    memset(g->key[SLASH], 0, g->stride * sizeof(float));
    g->covered = 0;
    g->n_cell = 0;
}

/* Puts the slashes into ascending order; returns the total attention of the sample. */
static double greedy_begin(struct greedy *g)
{
    double sum = 0;
    for (uint32_t o = 0; o < g->n; o++) g->left[SLASH][o] = g->key[SLASH][g->n - 1 - o];
    for (uint32_t c = 0; c < g->n; c++) sum += (double)g->left[COLUMN][c];
    return sum;
}

/* Cells of a line, in all rows of the chunk, that taken lines of the other kind cross: in rows max
 * (pos0, line) .. n - 1 these have the numbers from max (0, pos0 - line) to n - 1 - line. */
static uint32_t crossings(const struct greedy *g, uint32_t line)
{
    const uint32_t last = line < g->pos0 ? g->n - g->pos0 + line : g->n;
    assert(line < g->n && g->before[line] >= g->before[last]);
    return g->before[line] - g->before[last];
}

static uint32_t cells(const struct greedy *g, uint32_t line)
{
    assert(line < g->n && g->pos0 < g->n);
    return g->n - max_u32(g->pos0, line);
}

/* Keeps sixteen maxima and combines them at the end, because compilers do not vectorise a single
 * float maximum. */
static float largest(const float *x, uint32_t n)
{
    float part[16] = {0};
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (uint32_t j = 0; j < 16; j++) part[j] = x[i + j] > part[j] ? x[i + j] : part[j];
    for (uint32_t j = 0; i < n; i++, j++) part[j] = x[i] > part[j] ? x[i] : part[j];
    for (uint32_t j = 0; j < 8; j++) part[j] = part[j + 8] > part[j] ? part[j + 8] : part[j];
    for (uint32_t j = 0; j < 4; j++) part[j] = part[j + 4] > part[j] ? part[j + 4] : part[j];
    const float a = part[0] > part[1] ? part[0] : part[1],
                b = part[2] > part[3] ? part[2] : part[3];
    return a > b ? a : b;
}

/* Counts taken lines before each number, stored from the last number down, so that loops over
 * ascending lines read it in ascending order (crossings). Most lines are not taken, so eight of
 * them are checked at once. */
static void count_before(uint32_t *before, const bool *taken, uint32_t n)
{
    uint32_t count = 0, i = 0;
    before[n] = 0;
    while (i < n) {
        uint64_t eight = 1;
        if (n - i >= sizeof eight) memcpy(&eight, taken + i, sizeof eight);
        if (eight == 0) {
            for (uint32_t j = 0; j < sizeof eight; j++) before[n - i - sizeof eight + j] = count;
            i += sizeof eight;
            continue;
        }
        for (const uint32_t end = min_u32(i + sizeof eight, n); i < end; i++)
            before[n - i - 1] = count += taken[i];
    }
}

static uint32_t block_count(const struct greedy *g)
{
    return (g->n + OP_RATE_LINES - 1) / OP_RATE_LINES;
}

/* Computes the keys of all lines of a kind; returns the best. */
static float make_keys(const struct greedy *g, enum kind k)
{
    count_before(g->before, g->taken[!k], g->n);
    g->ops->rate(&(struct op_rate){.left = g->left[k],
                                   .before = g->before,
                                   .n = g->n,
                                   .pos0 = g->pos0,
                                   .key = g->key[k],
                                   .top = g->top[k]});
    return largest(g->top[k], block_count(g));
}

/* Takes a line: its uncovered attention is covered now. The caller then lowers the lines that cross
 * it. */
static void take(struct greedy *g, enum kind k, uint32_t line)
{
    assert(line < g->n && !g->taken[k][line]); /* no cell counts twice */
    g->covered += (double)g->left[k][line];
    g->left[k][line] = g->key[k][line] = 0;
    g->taken[k][line] = true;
}

/* Subtracts the attention at the crossings with these n lines, ascending and of one kind, from the
 * uncovered attention of the lines that cross them. Row by row, because rows are far apart in
 * memory. For taken lines, whose `left` is no longer used, the subtraction has no effect. */
static void lower(struct greedy *g, enum kind k, const uint32_t *line, uint32_t n)
{
    float *left = g->left[!k];
    uint32_t n_met = 0;
    assert(n == 0 || line[n - 1] < g->n);
    for (uint32_t i = 0; i < g->n_row; i++) {
        const uint32_t at = g->at[i];
        while (n_met < n && line[n_met] <= at) n_met++;
        for (uint32_t j = 0; j < n_met; j++) {
            const uint32_t soon = line[min_u32(j + AHEAD, n_met - 1)], cross = at - line[j];
            __builtin_prefetch(g->p + rows_cell(g->n_row, i, k == SLASH ? at - soon : soon));
            left[cross] -= bf16_to_f32(g->p[rows_cell(g->n_row, i, k == SLASH ? cross : line[j])]);
        }
    }
}

static int by_key(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? 1 : -1;
    return x->line < y->line ? -1 : 1;
}

/* Lists the lines of a kind whose key is at least `least`, without branches, because these would be
 * unpredictable; returns their number. */
static uint32_t list_round(struct greedy *g, enum kind k, float least)
{
    const float *key = g->key[k];
    uint32_t n = 0;
    for (uint32_t b = 0; b < block_count(g); b++) {
        if (g->top[k][b] < least) continue; /* true for nearly all blocks */
        for (uint32_t x = b * OP_RATE_LINES; x < min_u32((b + 1) * OP_RATE_LINES, g->n); x++)
            g->line[n] = x, n += key[x] >= least;
    }
    return n;
}

/* Shortens a list of n lines to the fewest with the largest keys that reach the goal, if all of
 * them together exceed it; returns their number. */
static uint32_t cut_round(struct greedy *g, enum kind k, uint32_t n)
{
    double sum = g->covered;
    uint32_t n_taken = 0, n_left = 0;
    for (uint32_t i = 0; i < n; i++) {
        sum += (double)g->left[k][g->line[i]];
        g->round[i] = (struct ranked){g->key[k][g->line[i]], g->line[i]};
    }
    if (sum < g->goal) return n;
    qsort(g->round, n, sizeof *g->round, by_key);
    for (sum = g->covered; n_taken < n && sum < g->goal; n_taken++)
        sum += (double)g->left[k][g->round[n_taken].line];
    const struct ranked *last = &g->round[n_taken ? n_taken - 1 : 0];
    for (uint32_t i = 0; i < n && n_taken; i++) {
        const struct ranked own = {g->key[k][g->line[i]], g->line[i]};
        if (by_key(&own, last) <= 0 || own.line == last->line) g->line[n_left++] = own.line;
    }
    return n_left;
}

/* Takes lines of a kind with keys of at least `least`, the best first, until the goal is reached.
 * Keys and crossings are those of the last make_keys of this kind. */
static void take_round(struct greedy *g, enum kind k, float least)
{
    const uint32_t n = cut_round(g, k, list_round(g, k, least));
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t line = g->line[i];
        g->n_cell += cells(g, line) - min_u32(cells(g, line), crossings(g, line));
        take(g, k, line);
    }
    for (uint32_t i = 0; i < n; i++) { /* the blocks' largest keys, without the taken lines */
        const uint32_t b = g->line[i] / OP_RATE_LINES, begin = b * OP_RATE_LINES;
        if (i + 1 < n && g->line[i + 1] / OP_RATE_LINES == b) continue;
        g->top[k][b] = largest(g->key[k] + begin, min_u32(OP_RATE_LINES, g->n - begin));
    }
    lower(g, k, g->line, n);
}

/* Lines that earlier rows have selected: one bit each, for both kinds. */
struct kept {
    uint32_t *line[KINDS]; /* [n_word]; NULL: nothing is kept */
    uint32_t n_word;
};

static bool is_kept(const struct kept *kept, enum kind k, uint32_t line)
{
    return kept->line[k] && kept->line[k][line / 32] >> line % 32 & 1;
}

/* Takes the first n_first lines of a kind, and the kept ones. */
static void take_first(struct greedy *g, enum kind k, uint32_t n_first, const struct kept *kept)
{
    uint32_t n = 0;
    count_before(g->before, g->taken[!k], g->n);
    for (uint32_t x = 0; x < g->n; x++) {
        if (x >= n_first && !is_kept(kept, k, x)) continue;
        g->n_cell += cells(g, x) - min_u32(cells(g, x), crossings(g, x));
        take(g, k, x);
        g->line[n++] = x;
    }
    lower(g, k, g->line, n);
}

/* The rounds. False: no more line covers anything, and the goal is not reached. */
static bool greedy_run(struct greedy *g, float beta)
{
    float column = make_keys(g, COLUMN);
    while (g->covered < g->goal) {
        const float least = beta * fmaxf(column, make_keys(g, SLASH));
        if (!(least > 0)) return false;
        take_round(g, SLASH, least);
        make_keys(g, COLUMN);
        take_round(g, COLUMN, least);
        /* No slash was taken since the columns' keys were computed. */
        column = largest(g->top[COLUMN], block_count(g));
    }
    return true;
}

/* ---- The method ---- */

struct work {
    struct rows rows;
    struct greedy greedy;
    struct lines lines;
    struct kept kept; /* of the current head */
    float *sum; /* with heads=group: attention summed over the heads, in the layout of rows_sum */
};

static size_t work_make(struct work *w, const struct method_shape *s, const void *param,
                        struct arena *a)
{
    const struct loopserve_param *set = param;
    const uint32_t n_sample = min_u32(set->sample, s->n_row_max);
    rows_make(&w->rows, s, n_sample, a);
    greedy_make(&w->greedy, w->rows.stride, a);
    w->sum = arena_take(a, set->heads > 0 ? n_sample * w->rows.stride : 0, sizeof(float));
    return a->used;
}

static size_t loop_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    struct arena a = {0};
    work_make(&w, s, param, &a);
    lines_make(&w.lines, s->n_ctx, 2 * PAGE_TOK, &a);
    return a.used;
}

static size_t line_words(const struct method_shape *s)
{
    return (s->n_ctx + 31) / 32;
}

/* Bits of kept lines: [n_layer, lists of a tile, KINDS, line_words]. */
static size_t loop_state_bytes(const struct method_shape *s, const void *param)
{
    const struct loopserve_param *set = param;
    const size_t n_part = set->heads > 0 ? 1 : s->group;
    return set->keep ? s->geom->n_layer * n_part * KINDS * line_words(s) * sizeof(uint32_t) : 0;
}

static struct kept kept_of(const struct method_lane *l, uint32_t part)
{
    const struct loopserve_param *set = l->param;
    const size_t n_part = set->heads > 0 ? 1 : l->shape->group, n = line_words(l->shape);
    if (!set->keep) return (struct kept){0};
    uint32_t *first = (uint32_t *)l->state + (l->layer * n_part + part) * KINDS * n;
    return (struct kept){{first, first + n}, (uint32_t)n};
}

/* Removed columns are cleared; slashes are distances, which remain valid. */
static void loop_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    const size_t n = line_words(s), n_list = loop_state_bytes(s, param) / (KINDS * n * 4);
    for (size_t i = 0; i < n_list; i++) {
        uint32_t *column = (uint32_t *)state + (i * KINDS + COLUMN) * n;
        for (size_t w = n_tok / 32; w < n; w++)
            column[w] &= w == n_tok / 32 ? (1u << n_tok % 32) - 1 : 0;
    }
}

/* Any bits are valid lines; those after the sequence's end are never read. */
static bool loop_sound(const struct method_loaded *l)
{
    (void)l;
    return true;
}

/* Samples one row from each stratum of the chunk and the last row, ascending; returns their number.
 * The generator is splitmix64. */
static uint32_t sample_rows(uint32_t *at, const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    const uint32_t skip = l->pos == 0 ? min_u32(set->sample, l->n_row / 2) : 0;
    const uint32_t span = l->n_row - skip, n = min_u32(set->sample, span);
    uint64_t seed = ((uint64_t)l->layer << 32 | l->pos) * 0x9e3779b97f4a7c15u;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t from = (uint32_t)((uint64_t)span * i / n);
        const uint32_t to = (uint32_t)((uint64_t)span * (i + 1) / n);
        assert(to > from);
        uint64_t z = seed += 0x9e3779b97f4a7c15u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        at[i] = l->pos + skip + from + (uint32_t)((z ^ z >> 31) % (to - from));
    }
    assert(n > 0);
    at[n - 1] = l->pos + l->n_row - 1;
    return n;
}

/* Causal cells of the chunk's rows, of one head. */
static uint64_t chunk_cells(const struct method_lane *l)
{
    return (uint64_t)l->n_row * (2 * (uint64_t)l->pos + l->n_row + 1) / 2;
}

/* For heads=group: replaces the attention and sums of the last head by those over all heads. */
static void use_sum(struct work *w)
{
    struct greedy *g = &w->greedy;
    greedy_clear(g);
    for (uint32_t i = 0; i < g->n_row; i++)
        for (uint32_t c = 0; c <= g->at[i]; c++) {
            const size_t cell = rows_cell(g->n_row, i, c);
            w->rows.weight[cell] = f32_to_bf16(w->sum[cell]);
            g->left[COLUMN][c] += bf16_to_f32(w->rows.weight[cell]);
            g->key[SLASH][g->n - 1 - (g->at[i] - c)] += bf16_to_f32(w->rows.weight[cell]);
        }
}

/* Selects one set of lines for n_part heads, of which the first is `part`, by their attention in
 * w->greedy, and marks it in the lists of these heads. */
static void plan_parts(struct work *w, const struct method_lane *l, struct plan *p, uint32_t part,
                       uint32_t n_part)
{
    const struct loopserve_param *set = l->param;
    struct greedy *g = &w->greedy;
    const uint32_t n_list = p->n_tile * n_part;
    const double total = greedy_begin(g);
    g->goal = set->mass * total;
    w->kept = kept_of(l, n_part > 1 ? 0 : part);
    take_first(g, SLASH, set->slashes, &w->kept);
    take_first(g, COLUMN, set->columns, &w->kept);
    if (!greedy_run(g, (float)set->beta) ||
        (double)g->n_cell > set->most * (double)chunk_cells(l)) {
        for (uint32_t i = 0; i < n_list; i++)
            plan_tile_dense(p, i / n_part, part + i % n_part, PLAN_NO_GAIN);
        plan_estimate(p, n_part, n_part);
        return;
    }
    lines_clear(&w->lines);
    for (uint32_t x = 0; x < g->n; x++) {
        if (g->taken[SLASH][x]) lines_take_slash(&w->lines, x);
        if (g->taken[COLUMN][x]) lines_take_col(&w->lines, x);
        for (int k = 0; k < KINDS && w->kept.n_word; k++)
            w->kept.line[k][x / 32] |= (uint32_t)g->taken[k][x] << x % 32;
    }
    for (uint32_t i = 0; i < n_list; i++)
        lines_mark(plan_mask(p, i / n_part, part + i % n_part), &w->lines,
                   plan_tile_tok(p, i / n_part));
    plan_estimate(p, g->covered / total * n_part, n_part);
}

static void loop_plan(const struct method_lane *l, struct plan *p)
{
    const struct loopserve_param *set = l->param;
    struct arena a = {.base = l->scratch, .capacity = SIZE_MAX};
    struct work w;
    const uint32_t group = l->shape->group;
    const bool as_group = set->heads > 0;
    if (set->mass >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    work_make(&w, l->shape, l->param, &a);
    lines_make(&w.lines, l->pos + l->n_row, p->tile_tok, &a);
    w.rows.n = sample_rows(w.rows.at, l);
    if (!rows_read_keys(&w.rows, l)) {
        plan_dense(p, PLAN_NAN);
        return;
    }
    struct greedy *g = &w.greedy;
    g->ops = l->ops;
    g->n = l->pos + l->n_row;
    g->pos0 = l->pos;
    g->n_row = w.rows.n;
    g->at = w.rows.at;
    g->p = w.rows.weight;
    const size_t n_sum = rows_cell(g->n_row, 0, (g->n + ROWS_PANEL - 1) / ROWS_PANEL * ROWS_PANEL);
    if (as_group) memset(w.sum, 0, n_sum * sizeof(float));
    for (uint32_t h = 0; h < group; h++) {
        if (!rows_attend(&w.rows, l, h)) {
            plan_dense(p, PLAN_NAN);
            return;
        }
        greedy_clear(g);
        rows_sum(&w.rows, l, g->left[COLUMN], g->key[SLASH], true);
        if (as_group)
            for (size_t i = 0; i < n_sum; i++) w.sum[i] += bf16_to_f32(g->p[i]);
        else
            plan_parts(&w, l, p, h, 1);
    }
    if (!as_group) return;
    use_sum(&w);
    plan_parts(&w, l, p, 0, group);
}

/* ---- On a device ---- */

static uint32_t loop_trace_rows(const struct method_shape *s, const void *param)
{
    const struct loopserve_param *set = param;
    return min_u32(set->sample, s->n_row_max);
}

static void loop_trace(const struct method_lane *l, uint32_t n_tok, struct op_trace *op)
{
    const struct loopserve_param *set = l->param;
    (void)n_tok;
    if (set->mass >= 1) op->why = PLAN_LAYER;
    op->rule = OP_TRACE_GREEDY;
    op->n_size = 1;
    for (uint32_t h = 0; h < op->rows.n_head; h++)
        op->size[h] = (struct op_trace_size){.family = OP_TRACE_LINES};
    op->sink = set->columns;
    op->band = set->slashes;
    op->mass = set->mass;
    op->beta = (float)set->beta;
    op->most = set->most * (double)chunk_cells(l);
    op->by_group = set->heads > 0;
    op->choose.n = sample_rows(op->choose.at, l);
}

/* The lines of earlier chunks would be state of the sequence on the device. */
static const char *loop_refuses(const void *param)
{
    const struct loopserve_param *set = param;
    return set->keep ? "keep=on" : NULL;
}

static const struct method_prefill hooks = {
    .by_head = true,
    .trace = loop_trace,
    .trace_rows = loop_trace_rows,
    .refuses = loop_refuses,
    .state_bytes = loop_state_bytes,
    .scratch_bytes = loop_scratch_bytes,
    .plan = loop_plan,
    .cut = loop_cut,
    .sound = loop_sound,
};

static const sac_method_deviation deviations[] = {
    {"a crossing is bounded by a line's largest entry", "crossings are counted exactly",
     "as printed, gains become negative and every line is taken",
     "as printed, everything is read, whatever the mass"},
    {"one line at a time", "in rounds, all lines within beta of the best",
     "sorting once per round is faster", NULL},
    {"lines for the rows of a turn", "for those of a chunk of -b tokens",
     "chunks are computed one after the other", NULL},
    {"lines of all turns are passed to the decode stage",
     "decode selects among all keys; keep=on reads them again in later rows",
     "its formula ranges over all tokens", NULL},
    {"the answer's rows are recomputed and sampled", "they are not", "their keys are in the cache",
     NULL},
};

const struct method loopserve_method = {
    METHOD_PREFILL(
        loopserve,
        "columns and diagonals that hold a share of each head's attention, found online"),
    .paper = "Li et al., LoopServe: An Adaptive Dual-phase LLM Inference Acceleration System for "
             "Multi-Turn Dialogues, arXiv 2507.13681",
    .about = "Computes the attention of a sample of the chunk's rows exactly. It then takes "
             "columns and diagonals, those with the most attention per cell first, until they hold "
             "the wanted share of it. Nothing is tuned offline: every head, layer and chunk gets "
             "what it needs, past turns included. A key to which only rows outside the sample "
             "attend is missed: a larger sample helps, a higher share does not. The sample's cost "
             "is that of its rows, so chunks should be large (-b 2048 and more).",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "mass=0.6,slashes=8,columns=4", .whole = "mass=1"},
    .prefill = &hooks,
};
