/* sparge.c: blocks by mean queries and mean keys, where a block's vectors are similar, and small
 * weights skipped in the kernel: SpargeAttention (Zhang et al., 2025).
 *
 * Blocks are 128 rows and 64 keys. A block's self-similarity is the mean of all entries of the Gram
 * matrix of its normalized vectors, i.e. the squared norm of their mean. Scores are products of
 * means; dissimilar key blocks take no part in the softmax over the blocks before a row block's
 * end. The best blocks are read: `top` of them, or, with `cdf` above 0, the fewest whose share is
 * above `cdf`. Means say nothing about dissimilar blocks: such a block of rows reads everything,
 * and such a block of keys is read by all rows. The first block is always read.
 *
 * The second stage is in the kernels (struct attn_plan.skip): scores of a group of keys are
 * computed, and its values are skipped for the rows to which they add less than `skip` of the
 * softmax so far. The authors compare maxima and decide for all rows of a tile at once; sums bound
 * what is lost, and a decision per row does not depend on its neighbours. Off by default.
 *
 * Not here: quantized scores, which are not part of the selection. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#include <string.h>

#define ROWS        128u
#define BLOCK       64u
#define BLOCK_PAGES (BLOCK / PAGE_TOK)
#define MASKED      (-1e30f) /* a finite score, which the softmax turns into 0 */

#define PARAMS(P)                                                                                  \
    P(SHARE, top, "0.5", "share of the blocks to read")                                            \
    P(SHARE, cdf, "0", "if above 0: share of the estimated attention to read instead")             \
    P(NUMBER, like, "-0.1", -2, 2, "least self-similarity of a block that its mean represents")    \
    P(SHARE, skip, "0",                                                                            \
      "keys whose share of a row's attention so far is below this add no values; 0: all do")
METHOD_PARAMS(sparge, PARAMS)

struct work {
    size_t n_block;      /* of a context, rounded up to 16 */
    float *key;          /* [n_block, head_dim] mean keys */
    bool *is_dissimilar; /* [n_block] */
    float *query;        /* [tiles of a chunk, head_dim] scaled means */
    float *score;        /* [tiles of a chunk, n_block] */
    float *share;        /* [n_block] softmax of a row block's scores */
    float *norms;        /* [head_dim] sum of the normalized vectors of a block */
    float *k;            /* [PAGE_TOK, head_dim] */
};

static size_t work_make(struct work *w, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_tile = s->n_row_max / ROWS + 2;
    w->n_block = ((s->n_ctx + BLOCK - 1) / BLOCK + 15) & ~(size_t)15;
    w->key = arena_take(&a, w->n_block * d, sizeof(float));
    w->is_dissimilar = arena_take(&a, w->n_block, sizeof(bool));
    w->query = arena_take(&a, n_tile * d, sizeof(float));
    w->score = arena_take(&a, n_tile * w->n_block, sizeof(float));
    w->share = arena_take(&a, w->n_block, sizeof(float));
    w->norms = arena_take(&a, d, sizeof(float));
    w->k = arena_take(&a, PAGE_TOK * d, sizeof(float));
    return a.used;
}

static size_t sparge_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    (void)param;
    return work_make(&w, s, NULL);
}

/* ---- Blocks ---- */

/* Adds x to one sum, and x / |x| to the other. */
static void add_vector(float *sum, float *unit_sum, const float *x, uint32_t d)
{
    float square = 0;
    for (uint32_t c = 0; c < d; c++) square += x[c] * x[c];
    const float by = square > 0 ? 1 / sqrtf(square) : 0;
    for (uint32_t c = 0; c < d; c++) {
        sum[c] += x[c];
        unit_sum[c] += by * x[c];
    }
}

/* The squared norm of the mean of n vectors whose sum is given: of normalized vectors, the block's
 * self-similarity. */
static float mean_norm2(const float *sum, uint32_t n, uint32_t d)
{
    float square = 0;
    for (uint32_t c = 0; c < d; c++) square += sum[c] * sum[c];
    return square / ((float)n * (float)n);
}

/* Side data of a page: the sum of its keys, and that of its normalized keys. */
static size_t sparge_side_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return 2 * s->geom->head_dim * sizeof(float);
}

static void sparge_seal(uint8_t *side, const struct method_shape *s, const void *param,
                        const float *k)
{
    const uint32_t d = s->geom->head_dim;
    float *sum = (float *)(void *)side;
    (void)param;
    memset(sum, 0, 2 * d * sizeof(float));
    for (uint32_t t = 0; t < PAGE_TOK; t++) add_vector(sum, sum + d, k + (size_t)t * d, d);
}

/* Means of all blocks of keys, the partial last one included, and which of them are dissimilar. */
static void pool_keys(const struct work *w, const struct method_lane *l)
{
    const struct sparge_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, end = l->pos + l->n_row;
    for (uint32_t b = 0; b * BLOCK < end; b++) {
        const uint32_t n = min_u32(BLOCK, end - b * BLOCK);
        float *mean = w->key + (size_t)b * d;
        memset(mean, 0, d * sizeof(float));
        memset(w->norms, 0, d * sizeof(float));
        for (uint32_t j = 0; j < BLOCK_PAGES && j * PAGE_TOK < n; j++) {
            const uint32_t page = b * BLOCK_PAGES + j, left = n - j * PAGE_TOK;
            if (left < PAGE_TOK) {
                page_read(w->k, NULL, l->shape->geom, l->own, PAGE_TAIL, left);
                for (uint32_t t = 0; t < left; t++)
                    add_vector(mean, w->norms, w->k + (size_t)t * d, d);
                continue;
            }
            const float *sum =
                (const float *)(const void *)(l->side + (size_t)l->page[page] * l->side_stride);
            for (uint32_t c = 0; c < d; c++) {
                mean[c] += sum[c];
                w->norms[c] += sum[d + c];
            }
        }
        for (uint32_t c = 0; c < d; c++) mean[c] /= (float)n;
        w->is_dissimilar[b] = !((double)mean_norm2(w->norms, n, d) > set->like);
    }
}

/* Puts the scaled mean query of a tile's rows into w->query; returns their self-similarity. */
static float pool_rows(const struct work *w, const struct method_lane *l, const struct plan *p,
                       uint32_t tile, uint32_t head)
{
    const uint32_t d = l->shape->geom->head_dim, row0 = plan_row0(p, tile);
    const uint32_t n = plan_row_end(p, tile) - row0;
    assert(n > 0 && tile < p->n_tile);
    float *mean = w->query + (size_t)tile * d;
    memset(mean, 0, d * sizeof(float));
    memset(w->norms, 0, d * sizeof(float));
    for (uint32_t r = row0; r < row0 + n; r++)
        add_vector(mean, w->norms, l->q + r * l->q_stride + (size_t)head * d, d);
    for (uint32_t c = 0; c < d; c++) mean[c] *= l->scale / (float)n;
    return mean_norm2(w->norms, n, d);
}

/* ---- Selection ---- */

/* Marks the blocks that one tile reads. Returns their estimated share of the attention, negative if
 * a score is not finite. */
static double mark_tile(const struct work *w, const struct method_lane *l, struct plan *p,
                        uint32_t tile, uint32_t head)
{
    const struct sparge_param *set = l->param;
    const uint32_t before = plan_tile_tok(p, tile) / BLOCK, end = l->pos + plan_row_end(p, tile);
    const uint32_t n = (end + BLOCK - 1) / BLOCK;
    assert(before < n && n <= w->n_block);
    float *score = w->score + tile * w->n_block, lse;
    double kept = 0;
    for (uint32_t b = 0; b < n; b++)
        if (w->is_dissimilar[b] && isfinite(score[b])) score[b] = MASKED;
    if (!l->ops->vote(
            &(struct op_vote){.score = score, .n = n, .group = 1, .vote = w->share, .lse = &lse}))
        return -1;
    const uint32_t top = max_u32(1, (uint32_t)ceil(set->top * n));
    struct pick_cut cut =
        set->cdf > 0 ? pick_share(w->share, n, set->cdf) : pick_best(w->share, n, top);
    for (uint32_t b = 0; b < n; b++) {
        const bool is_best = pick_takes(&cut, w->share[b]);
        if (!is_best && !w->is_dissimilar[b] && b > 0 && b < before) continue;
        plan_range(p, tile, head, b * BLOCK, (b + 1) * BLOCK);
        kept += (double)w->share[b];
    }
    return kept;
}

/* Plans all tiles of one query head. False: a score is not finite. */
static bool plan_head(const struct work *w, const struct method_lane *l, struct plan *p,
                      uint32_t head)
{
    const struct sparge_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, end = l->pos + l->n_row;
    for (uint32_t i = 0; i < p->n_tile; i++)
        if (!((double)pool_rows(w, l, p, i, head) > set->like))
            plan_tile_dense(p, i, head, PLAN_NO_GAIN);
    l->ops->dots(&(struct op_dots){.a = w->query,
                                   .b = w->key,
                                   .a_stride = d,
                                   .b_stride = d,
                                   .n_a = p->n_tile,
                                   .n_b = (end + BLOCK - 1) / BLOCK,
                                   .width = d,
                                   .out = w->score,
                                   .out_stride = w->n_block});
    for (uint32_t i = 0; i < p->n_tile; i++) {
        const double kept = mark_tile(w, l, p, i, head);
        if (kept < 0) return false;
        plan_estimate(p, kept, 1);
    }
    return true;
}

static void sparge_plan(const struct method_lane *l, struct plan *p)
{
    const struct sparge_param *set = l->param;
    struct work w;
    if (set->cdf > 0 ? set->cdf >= 1 : set->top >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    work_make(&w, l->shape, l->scratch);
    p->skip = (float)set->skip;
    pool_keys(&w, l);
    for (uint32_t h = 0; h < l->shape->group; h++)
        if (!plan_head(&w, l, p, h)) {
            plan_dense(p, PLAN_NAN);
            return;
        }
}

static const struct method_prefill hooks = {
    .tile_tok = ROWS,
    .by_head = true,
    .side_bytes = sparge_side_bytes,
    .scratch_bytes = sparge_scratch_bytes,
    .seal = sparge_seal,
    .plan = sparge_plan,
};

static const sac_method_deviation deviations[] = {
    {"queries and keys are quantized to eight bits for the scores", "they are not",
     "it is no part of the selection", NULL},
    {"the second stage compares maxima, for a tile of rows at once",
     "shares of the running softmax, row by row; off unless skip= is set",
     "sums bound what is lost, and a row does not depend on its neighbours", NULL},
    {"thresholds are tuned for each layer and head", "one for all", "nothing is calibrated offline",
     NULL},
};

const struct method sparge_method = {
    METHOD_PREFILL(sparge,
                   "blocks by mean queries and mean keys, where a block's vectors are similar"),
    .paper = "Zhang et al., SpargeAttention: Accurate and Training-free Sparse Attention "
             "Accelerating Any Model Inference, arXiv 2502.18137",
    .about = "Scores blocks of keys by the product of their mean and the mean of a block of rows, "
             "and reads the best half of them. Where the vectors of a block point in different "
             "directions its mean says nothing; such blocks are read whole. Selection is cheap. A "
             "single important key does not move a mean, so needles are found because half is "
             "read, not because of the score.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "top=0.3,like=-2", .whole = "top=1"},
    .prefill = &hooks,
};
