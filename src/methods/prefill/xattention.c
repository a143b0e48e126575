/* xattention.c: blocks of 128 x 128 selected by the sums of their antidiagonals: XAttention (Xu et
 * al., 2025).
 *
 * Rows and keys are taken in groups of `stride`. The score of two groups is the sum of the products
 * of the group's last row with the first key, the last but one with the second, and so on: an
 * antidiagonal, which every vertical, slash and block crosses. All scores together are one matrix
 * product of 1/stride of the size of dense scores. The softmax over the groups up to a row group's
 * own, summed over blocks, estimates their mass; a block row reads the first and its own block and
 * then the best ones until the share `mass` is reached.
 *
 * Decided here: groups and blocks are aligned in the sequence, so results do not depend on chunks
 * and past turns; rows and keys missing in a group at the chunk's ends count as zeros, as in the
 * authors' padding. One threshold for all heads: the authors' table is for one model only. The
 * estimate ignores a softcap of the scores. */
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"
#include "ops/plans.h"

#include <string.h>

#define BLOCK       OP_ANTIDIAG_TILE
#define PANEL_PAGES 128u /* keys that are scored together: 512 KiB for 64 channels */
#define PANEL_TOK   (PANEL_PAGES * PAGE_TOK)
#define STRIDE_MAX  16u

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.9", "estimated share of the attention that a block of rows reads")           \
    P(CHOICE, stride, "16", "4|8|16", "rows and keys per group: larger is cheaper and less precise")
METHOD_PARAMS(xattention, PARAMS)

struct work {
    uint32_t stride;
    uint16_t *q;  /* [query heads, row groups of the chunk, width] bf16, a group's last row first */
    size_t width; /* stride * head_dim, padded: rows a power of two apart would share cache sets */
    float *k;     /* [OP_DOTS_ROWS groups, stride, head_dim] */
    uint16_t *key;  /* [groups of PANEL_TOK, stride * head_dim] packed */
    float *centre;  /* [stride, head_dim] subtracted from the keys of every group */
    float *z;       /* [query heads, row groups of the chunk, n_group] antidiagonal scores */
    float *one;     /* [n_group] the softmax of a row group's scores */
    float *sum;     /* [n_group] the sum of these over a block row */
    float *mass;    /* [blocks of the context] */
    size_t n_group; /* of keys in a context, padded */
};

static uint32_t xa_stride(const void *param)
{
    const struct xattention_param *set = param;
    return 4u << set->stride;
}

static size_t work_make(struct work *w, const struct method_shape *s, const void *param,
                        void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t d = s->geom->head_dim, n_panel = (s->n_ctx + PANEL_TOK - 1) / PANEL_TOK;
    w->stride = xa_stride(param);
    const size_t n_row = s->group * ((size_t)s->n_row_max / w->stride + 2);
    w->n_group = n_panel * (PANEL_TOK / w->stride) + 16; /* not a power of two, either */
    w->width = w->stride * d + 32;
    w->q = arena_take(&a, (n_row + OP_DOTS_ROWS) * w->width, sizeof *w->q);
    w->k = arena_take(&a, OP_DOTS_ROWS * STRIDE_MAX * d, sizeof(float));
    w->key = arena_take(&a, PANEL_TOK * d, sizeof *w->key);
    w->centre = arena_take(&a, STRIDE_MAX * d, sizeof(float));
    w->z = arena_take(&a, n_row * w->n_group, sizeof(float));
    w->one = arena_take(&a, w->n_group, sizeof(float));
    w->sum = arena_take(&a, w->n_group, sizeof(float));
    w->mass = arena_take(&a, n_panel * (PANEL_TOK / BLOCK), sizeof(float));
    return a.used;
}

static size_t xa_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    return work_make(&w, s, param, NULL);
}

/* Row groups of the chunk, the partial ones at its ends included. */
static uint32_t count_groups(const struct work *w, const struct method_lane *l)
{
    return (l->pos + l->n_row - 1) / w->stride + 1 - l->pos / w->stride;
}

/* Arranges the chunk's queries by heads and groups, each group's rows in reverse order, scaled so
 * that a product is the mean logit of an antidiagonal. Rows outside the chunk are zeros. */
static void fill_queries(const struct work *w, const struct method_lane *l)
{
    const uint32_t d = l->shape->geom->head_dim, s = w->stride, first = l->pos / s;
    const uint32_t n_group = count_groups(w, l), begin = first * s, end = begin + n_group * s;
    const float scale = l->scale / (float)s;
    for (uint32_t pos = begin; pos < end; pos++) {
        const bool is_row = pos >= l->pos && pos < l->pos + l->n_row;
        const float *q = is_row ? l->q + (pos - l->pos) * l->q_stride : NULL;
        method_fetch_row(l, pos + 4 - l->pos);
        uint16_t *slot = w->q + (pos / s - first) * w->width + (size_t)(s - 1 - pos % s) * d;
        for (uint32_t h = 0; h < l->shape->group; h++, slot += n_group * w->width) {
            if (is_row)
                for (uint32_t c = 0; c < d; c++)
                    slot[c] = f32_to_bf16(scale * q[(size_t)h * d + c]);
            else
                memset(slot, 0, d * sizeof *slot);
        }
    }
}

/* Computes the centre that is subtracted from all keys; false: nothing is subtracted. */
static bool find_centre(const struct work *w, const struct method_lane *l)
{
    const size_t d = l->shape->geom->head_dim;
    if (!pick_centre(w->centre, w->k, l)) return false;
    for (uint32_t i = 1; i < w->stride; i++)
        memcpy(w->centre + i * d, w->centre, d * sizeof *w->centre);
    return true;
}

/* Packs the keys of at most PANEL_TOK tokens from `tok` on, the last group filled up with zeros;
 * returns the number of groups. Numbers that are not finite are detected in the scores. */
static uint32_t read_keys(const struct work *w, const struct method_lane *l, uint32_t tok,
                          const float *centre)
{
    const size_t d = l->shape->geom->head_dim, width = w->stride * d;
    const uint32_t end = min_u32(tok + PANEL_TOK, l->pos + l->n_row);
    const uint32_t block = OP_DOTS_ROWS * w->stride;
    for (uint32_t at = tok; at < end; at += block) {
        const uint32_t n = min_u32(block, end - at), n_group = (n + w->stride - 1) / w->stride;
        pick_span(w->k, l, at, at + n);
        memset(w->k + n * d, 0, (n_group * w->stride - n) * d * sizeof(float));
        (void)l->ops->pack(&(struct op_pack){.b = w->k,
                                             .b_stride = width,
                                             .n_b = n_group,
                                             .width = (uint32_t)width,
                                             .less = centre,
                                             .out = w->key + (at - tok) * d});
    }
    return (end - tok + w->stride - 1) / w->stride;
}

static void score_groups(const struct work *w, const struct method_lane *l)
{
    const uint32_t s = w->stride, end = l->pos + l->n_row, width = s * l->shape->geom->head_dim;
    const float *centre = find_centre(w, l) ? w->centre : NULL;
    for (uint32_t tok = 0; tok < end; tok += PANEL_TOK) {
        const uint32_t n_group = read_keys(w, l, tok, centre);
        l->ops->dots_bf16(&(struct op_dots_bf16){.a = w->q,
                                                 .a_stride = w->width,
                                                 .b = w->key,
                                                 .n_a = l->shape->group * count_groups(w, l),
                                                 .n_b = n_group,
                                                 .width = width,
                                                 .out = w->z + tok / s,
                                                 .out_stride = w->n_group});
    }
}

/* Puts into w->mass the estimated attention mass of the blocks up to `block`, summed over the row
 * groups of block row `block` in the chunk. Returns the number of these groups, which is the total
 * mass; 0 if a score is not finite. */
static uint32_t sum_blocks(const struct work *w, const struct method_lane *l, uint32_t head,
                           uint32_t block)
{
    const uint32_t s = w->stride, per_block = BLOCK / s, first = l->pos / s;
    const uint32_t begin = max_u32(first, block * per_block);
    const uint32_t end = min_u32((l->pos + l->n_row - 1) / s + 1, (block + 1) * per_block);
    const float *z = w->z + (size_t)head * count_groups(w, l) * w->n_group;
    memset(w->sum, 0, (block + 1) * per_block * sizeof(float));
    for (uint32_t i = begin; i < end; i++) {
        float lse;
        if (!l->ops->vote(&(struct op_vote){.score = z + (i - first) * w->n_group,
                                            .n = i + 1,
                                            .group = 1,
                                            .vote = w->one,
                                            .lse = &lse}))
            return 0;
        for (uint32_t j = 0; j <= i; j++) w->sum[j] += w->one[j];
    }
    for (uint32_t b = 0; b <= block; b++) {
        w->mass[b] = 0;
        for (uint32_t j = 0; j < per_block; j++) w->mass[b] += w->sum[b * per_block + j];
    }
    return end - begin;
}

/* Marks the blocks of one block row; `total` is their mass. Returns the share that is read. */
static double mark_blocks(const struct work *w, struct plan *p, uint32_t tile, uint32_t head,
                          double total, double share)
{
    const uint32_t n = plan_tile_tok(p, tile) / BLOCK; /* blocks before its own */
    double kept = (double)w->mass[n], others = 0;
    if (n > 0) {
        kept += (double)w->mass[0];
        plan_range(p, tile, head, 0, BLOCK);
        w->mass[0] = 0;
    }
    for (uint32_t j = 1; j < n; j++) others += (double)w->mass[j];
    const double need = share * total - kept;
    if (need <= 0 || others <= 0) return kept / total;
    struct pick_cut cut = pick_share(w->mass, n, fmin(need / others, 1));
    for (uint32_t j = 0; j < n; j++)
        if (pick_takes(&cut, w->mass[j]) && j > 0) {
            plan_range(p, tile, head, j * BLOCK, (j + 1) * BLOCK);
            kept += (double)w->mass[j];
        }
    return kept / total;
}

static void xa_plan(const struct method_lane *l, struct plan *p)
{
    const struct xattention_param *set = l->param;
    struct work w;
    if (set->mass >= 1) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    work_make(&w, l->shape, l->param, l->scratch);
    fill_queries(&w, l);
    score_groups(&w, l);
    for (uint32_t h = 0; h < l->shape->group; h++)
        for (uint32_t i = 0; i < p->n_tile; i++) {
            const uint32_t n = sum_blocks(&w, l, h, p->tile0 + i);
            if (n == 0) {
                plan_dense(p, PLAN_NAN);
                return;
            }
            plan_estimate(p, mark_blocks(&w, p, i, h, n, set->mass), 1);
        }
}

/* ---- On a device ---- */

static void xa_antidiag(const struct method_lane *l, uint32_t n_tok, struct op_antidiag *op)
{
    const struct xattention_param *set = l->param;
    (void)n_tok;
    op->stride = xa_stride(l->param);
    op->mass = set->mass;
    op->dense = set->mass >= 1;
}

static const struct method_prefill hooks = {
    .tile_tok = BLOCK,
    .by_head = true,
    .scratch_bytes = xa_scratch_bytes,
    .plan = xa_plan,
    .antidiag = xa_antidiag,
    .antidiag_stride = xa_stride,
};

static const sac_method_deviation deviations[] = {
    {"thresholds for each head, found offline", "one for all heads", "their table is for one model",
     NULL},
    {"blocks start at the start of the prompt", "groups and blocks are aligned in the sequence",
     "chunks and earlier turns then change nothing", NULL},
};

const struct method xattention_method = {
    METHOD_PREFILL(xattention, "blocks whose antidiagonals hold a share of the attention"),
    .paper = "Xu et al., XAttention: Block Sparse Attention with Antidiagonal Scoring, "
             "arXiv 2503.16428",
    .about =
        "Estimates the mass of every 128 x 128 block from one antidiagonal in sixteen and reads "
        "the best blocks of each block row until the wanted share is reached, so budgets adapt to "
        "heads and rows. Every row takes part in the estimate, wherever a question stands. A "
        "single important key is diluted within its block, and the whole block is read for it. The "
        "estimate costs a sixteenth of the dense scores: it grows quadratically with the length.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "mass=0.5", .whole = "mass=1"},
    .prefill = &hooks,
};
