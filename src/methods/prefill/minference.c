/* minference.c: each head reads the columns and diagonals that the last rows look at most:
 * MInference (Jiang et al., 2024), vertical-slash heads with the sizes of its current Llama-3.1
 * table.
 *
 * The attention of the chunk's last rows is computed exactly and summed along lines; the best
 * `columns` verticals and `slashes` diagonals are read by all rows of the chunk. The first columns
 * and diagonals always win; where they alone are too many the smallest offsets do, so that the
 * local band has no holes (the authors' code leaves that to chance).
 *
 * Deviations: the rows observed are the last of each chunk, as in the engines that merged the
 * method; in the original they are the prompt's. Tiles read the runs of a tile's rows, which is
 * tighter than the original's blocks of 64. All heads have one size: no published table has another
 * family than vertical-slash, and the authors replaced their searched sizes by this one. */
#include "methods/lines.h"
#include "methods/pick.h"
#include "methods/plan.h"
#include "methods/rows.h"

#include <string.h>

enum { COLUMNS, SLASHES, SAMPLE, SINK, BAND, SIZES };

static const sac_method_param params[] = {
    {"columns", SAC_PARAM_INT, "512", 1, 1 << 20, NULL, "columns that every row reads"},
    {"slashes", SAC_PARAM_INT, "2048", 1, 1 << 20, NULL, "diagonals that every row reads"},
    {"sample", SAC_PARAM_INT, "64", 1, 1024, NULL, "last rows of a chunk that choose them"},
    {"sink", SAC_PARAM_INT, "30", 0, 1 << 20, NULL, "first columns, always among them"},
    {"band", SAC_PARAM_INT, "100", 0, 1 << 20, NULL, "first diagonals, always among them"},
    {"sizes", SAC_PARAM_CHOICE, "fixed", 0, 0, "fixed|search",
     "columns and slashes as given, or for each head the best of five sizes"},
};

struct size {
    uint32_t columns, slashes;
};

/* The authors' candidates; an A-shape that wins they write as columns and slashes too. */
static const struct size candidates[] = {
    {30, 800}, {100, 750}, {500, 700}, {3500, 100}, {100, 800}};
#define N_CANDIDATE (sizeof candidates / sizeof candidates[0])

struct work {
    struct rows rows;
    struct lines lines;
    float *column, *slash; /* [n_ctx] attention along lines, then 1 for those taken, else 0 */
    float *down;           /* [n_ctx] the same for slashes from the last to the first */
    float *column_sum, *slash_sum; /* [n_ctx] kept while sizes are tried */
};

static void work_make(struct work *w, const struct method_shape *s, const double *param,
                      struct arena *a)
{
    rows_make(&w->rows, s, pick_min((uint32_t)param[SAMPLE], s->n_row_max), a);
    w->column = arena_take(a, s->n_ctx, sizeof(float));
    w->slash = arena_take(a, s->n_ctx, sizeof(float));
    w->down = arena_take(a, s->n_ctx, sizeof(float));
    const size_t n_kept = param[SIZES] > 0 ? s->n_ctx : 0;
    w->column_sum = arena_take(a, n_kept, sizeof(float));
    w->slash_sum = arena_take(a, n_kept, sizeof(float));
}

static size_t mi_scratch_bytes(const struct method_shape *s, const double *param)
{
    struct work w;
    struct arena a = {0};
    work_make(&w, s, param, &a);
    lines_make(&w.lines, s->n_ctx, 2 * PAGE_TOK, &a);
    return a.used;
}

/* Replaces the k largest of n values by 1 and the others by 0; the first n_first are the largest.
 */
static void take_best(float *value, uint32_t n, uint32_t n_first, uint32_t k)
{
    for (uint32_t i = 0; i < pick_min(n_first, n); i++) value[i] = INFINITY;
    struct pick_cut cut = pick_best(value, n, k);
    for (uint32_t i = 0; i < n; i++) value[i] = pick_takes(&cut, value[i]) ? 1.0f : 0;
}

/* Attention of the sample that lies on taken lines, a share of all. */
static double covered(const struct work *w, uint32_t n)
{
    double sum = 0;
    for (uint32_t o = 0; o < n; o++) w->down[n - 1 - o] = w->slash[o];
    for (uint32_t i = 0; i < w->rows.n; i++) {
        const float *p = w->rows.p + i * w->rows.stride;
        const float *slash = w->down + (n - 1 - w->rows.at[i]);
        for (uint32_t c = 0; c <= w->rows.at[i]; c++)
            sum += (double)(p[c] * (w->column[c] > slash[c] ? w->column[c] : slash[c]));
    }
    return sum / w->rows.n;
}

static void take_lines(struct work *w, const struct method_lane *l, uint32_t n, struct size size)
{
    take_best(w->column, n, (uint32_t)l->param[SINK], size.columns);
    take_best(w->slash, n, (uint32_t)l->param[BAND], size.slashes);
}

/* Rows of the sample: the last of the chunk, or one at the end of each of as many equal parts. */
static void sample_rows(struct work *w, const struct method_lane *l, bool is_spread)
{
    const uint32_t n = pick_min((uint32_t)l->param[SAMPLE], l->n_row);
    w->rows.n = n;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row = (uint32_t)((uint64_t)l->n_row * (i + 1) / n) - 1;
        w->rows.at[i] = l->pos + (is_spread ? row : l->n_row - n + i);
    }
}

/* The candidate whose lines recover most of what rows from all over the chunk look at. Leaves the
 * sums as they were. False: a score is not finite. */
static bool search_size(struct work *w, const struct method_lane *l, uint32_t head,
                        struct size *out)
{
    const uint32_t n = l->pos + l->n_row;
    double best = -1;
    memcpy(w->column_sum, w->column, n * sizeof(float));
    memcpy(w->slash_sum, w->slash, n * sizeof(float));
    sample_rows(w, l, true);
    if (!rows_attend(&w->rows, l, head)) return false;
    for (size_t i = 0; i < N_CANDIDATE; i++) {
        take_lines(w, l, n, candidates[i]);
        const double mass = covered(w, n);
        if (mass > best) *out = candidates[i];
        best = fmax(best, mass);
        memcpy(w->column, w->column_sum, n * sizeof(float));
        memcpy(w->slash, w->slash_sum, n * sizeof(float));
    }
    return true;
}

/* False: a score is not finite. */
static bool plan_head(struct work *w, const struct method_lane *l, struct plan *p, uint32_t head)
{
    const uint32_t n = l->pos + l->n_row;
    struct size size = {(uint32_t)l->param[COLUMNS], (uint32_t)l->param[SLASHES]};
    sample_rows(w, l, false);
    if (!rows_attend(&w->rows, l, head)) return false;
    memset(w->column, 0, n * sizeof(float));
    memset(w->down, 0, n * sizeof(float));
    for (uint32_t i = 0; i < w->rows.n; i++)
        lines_add(w->column, w->down, n, w->rows.p + i * w->rows.stride, w->rows.at[i]);
    for (uint32_t o = 0; o < n; o++) w->slash[o] = w->down[n - 1 - o];
    if (l->param[SIZES] > 0 && !search_size(w, l, head, &size)) return false;
    take_lines(w, l, n, size);
    lines_clear(&w->lines);
    for (uint32_t x = 0; x < n; x++) {
        if (w->column[x] > 0) lines_take_col(&w->lines, x);
        if (w->slash[x] > 0) lines_take_slash(&w->lines, x);
    }
    for (uint32_t i = 0; i < p->n_tile; i++)
        lines_mark(plan_mask(p, i, head), &w->lines, plan_tile_tok(p, i));
    plan_estimate(p, covered(w, n), 1);
    return true;
}

/* Positions up to which a size would read everything. */
static uint32_t short_tok(const struct method_lane *l)
{
    double most = fmax(l->param[COLUMNS], l->param[SLASHES]);
    for (size_t i = 0; i < N_CANDIDATE && l->param[SIZES] > 0; i++)
        most = fmax(i > 0 ? most : 0, fmax(candidates[i].columns, candidates[i].slashes));
    return (uint32_t)most;
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
    for (uint32_t h = 0; h < l->shape->group; h++)
        if (!plan_head(&w, l, p, h)) {
            plan_dense(p, PLAN_NAN);
            return;
        }
}

static const struct method_prefill hooks = {
    .by_head = true,
    .scratch_bytes = mi_scratch_bytes,
    .plan = mi_plan,
};

const struct method minference_method = {
    .kind = "prefill",
    .name = "minference",
    .summary = "the columns and diagonals that the last rows of a chunk look at most",
    .paper = "Jiang et al., MInference 1.0: Accelerating Pre-filling for Long-Context LLMs via "
             "Dynamic Sparse Attention, arXiv 2407.02490",
    .about =
        "Sums the exact attention of the last rows along columns and diagonals and reads the best "
        "of each for all rows of the chunk. The budget is fixed, so it wastes on sharp heads and "
        "starves flat ones. The last rows speak for all: what only rows before them look for, a "
        "question in front of the text for one, is missed. The sample's cost is that of its rows, "
        "so chunks should be large (-b 2048 and more).",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .token_grain = true,
    .prefill = &hooks,
};
