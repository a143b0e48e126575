/* critiprefill.c: neighbouring queries attend to the same keys, so blocks of keys are scored once
 * for a whole segment of queries: CritiPrefill (Lv et al., 2024), in the form of the authors' code
 * where it differs from the paper.
 *
 * For each segment and query head, with the element-wise maxima and minima of the segment's queries
 * and of the block's keys, all unscaled:
 *     a = (Qmax + Qmin) . Kmax / 2,  b = (Qmax + Qmin) . Kmin / 2,  score = max(a, b),
 * then the mean over the query heads of a KV head, a softmax over the blocks before the segment,
 * and the fusion with the layer before: fused = w * fused' + (1 - w) * softmax. The segment reads
 * the best blocks up to the budget, and its own keys. `scores=paper` is Algorithm 1 of the paper: a
 * softmax for each of the four products and each head, then the mean of two and the maximum; its
 * weight is fuse=0.75.
 *
 * Decided here, or taken from the code where the paper is silent:
 *  - The first layer for which the method runs is dense, and so are segments that begin before
 *    `dense` tokens.
 *  - The segment that contains the end of the prompt is dense.
 *  - If chunks are shorter than segments, a segment is the part of it that the chunk holds.
 *  - Only blocks before the segment can be selected. The paper's softmax also covers later ones,
 *    which do not exist yet when a prompt is computed in chunks.
 *  - Equal scores (many are zero) are ordered by the score before the softmax, then the later block
 *    wins.
 *  - Bounding boxes are those of pages. A block of several pages has the score of its best page.
 *  - The state is the fused matrix of the chunk's segments, so the method works after any past. */
#include "methods/box.h"
#include "methods/method_spec.h"
#include "methods/pick.h"
#include "methods/plan.h"

#include "base/mem.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 32, "tokens before its segment that a row reads")                    \
    P(COUNT, segment, "512", 64, 1 << 16,                                                          \
      "queries that share a selection, a multiple of 64 (else rounded up)")                        \
    P(CHOICE, block, "32", "32|64|128", "keys selected together")                                  \
    P(SHARE, fuse, "0.25", "weight of the previous layer's scores")                                \
    P(COUNT, dense, "1024", 0, 1 << 24,                                                            \
      "segments that begin before this token, or before the budget, use dense attention")          \
    P(CHOICE, scores, "code", "code|paper", "one softmax of the mean over heads, or four per head")
METHOD_PARAMS(critiprefill, PARAMS)

/* The state: fused scores, which a chunk's layers pass on to the next layer. */
struct fused {
    uint32_t pos, layer, is_set, unused[13];
    float score[]; /* [segments of a chunk, blocks of the context] */
};

/* Scratch of one lane. */
struct work {
    size_t stride;                /* pages of a context, rounded up */
    float *hi, *lo;               /* [group, head_dim] the segment's queries */
    float *qa, *qb;               /* [group, head_dim] */
    float *score[4];              /* [group, stride] products by page; scores=code needs two */
    float *raw, *soft, *by_fused; /* [stride] by block: score, softmax of it, 1 if selected */
    float *share;                 /* [stride] by page, of one head */
};

static size_t work_make(struct work *w, const struct method_shape *s, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t n_q = (size_t)s->group * s->geom->head_dim;
    w->stride = ((s->n_ctx + PAGE_TOK - 1) / PAGE_TOK + 15) & ~(size_t)15;
    float **const heads[] = {&w->hi, &w->lo, &w->qa, &w->qb};
    float **const rows[] = {&w->raw, &w->soft, &w->by_fused, &w->share};
    for (int i = 0; i < 4; i++) {
        *heads[i] = arena_take(&a, n_q, sizeof(float));
        *rows[i] = arena_take(&a, w->stride, sizeof(float));
        w->score[i] = arena_take(&a, s->group * w->stride, sizeof(float));
    }
    return a.used;
}

static size_t criti_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct work w;
    (void)param;
    return work_make(&w, s, NULL);
}

static uint32_t segment_tok(const void *param)
{
    const struct critiprefill_param *set = param;
    return (set->segment + 63) & ~63u;
}

static uint32_t block_pages(const void *param)
{
    const struct critiprefill_param *set = param;
    return 1u << set->block;
}

/* Floats of a segment's row of fused scores. */
static size_t fused_row(const struct method_shape *s, const struct critiprefill_param *set)
{
    return (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK / block_pages(set) + 1;
}

static size_t criti_state_bytes(const struct method_shape *s, const void *param)
{
    const size_t n_segment = s->n_row_max / segment_tok(param) + 2;
    return sizeof(struct fused) + n_segment * fused_row(s, param) * sizeof(float);
}

static size_t criti_side_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return box_bytes(s, BOX_BOUND);
}

static void criti_seal(uint8_t *side, const struct method_shape *s, const void *param,
                       const float *k)
{
    (void)param;
    box_seal(side, s, BOX_BOUND, k);
}

static enum op_note_kind criti_note(const struct method_shape *s, const void *param)
{
    (void)s;
    (void)param;
    return box_note(BOX_BOUND);
}

/* ---- Criticality ---- */

/* Element-wise maxima and minima over rows [row0, row1) of the chunk, for each query head. */
static void pool_queries(const struct work *w, const struct method_lane *l, uint32_t row0,
                         uint32_t row1)
{
    assert(row0 < row1 && row1 <= l->n_row);
    const uint32_t n = l->shape->group * l->shape->geom->head_dim;
    memcpy(w->hi, l->q + row0 * l->q_stride, n * sizeof(float));
    memcpy(w->lo, w->hi, n * sizeof(float));
    for (uint32_t r = row0 + 1; r < row1; r++) {
        const float *q = l->q + r * l->q_stride;
        for (uint32_t i = 0; i < n; i++) {
            w->hi[i] = q[i] > w->hi[i] ? q[i] : w->hi[i];
            w->lo[i] = q[i] < w->lo[i] ? q[i] : w->lo[i];
        }
    }
}

/* A page's box is stored as its minimum and width, which a q8 page holds in units of 1/255. */
static bool box_in_page(const struct method_shape *s)
{
    return box_bytes(s, BOX_BOUND) == 0;
}

static float box_width(const struct method_shape *s)
{
    return box_in_page(s) ? 255 : 1;
}

/* out[g][p] = q[g] . Kmax or Kmin of page p. */
static void score_boxes(const struct work *w, const struct method_lane *l, const float *q,
                        bool of_max, uint32_t n_page, float *out)
{
    const struct page_geom *g = l->shape->geom;
    const bool in_page = box_in_page(l->shape);
    const float width = of_max ? box_width(l->shape) : 0;
    for (uint32_t i = 0; i < l->shape->group * g->head_dim; i++) w->qb[i] = width * q[i];
    l->ops->score_pages(&(struct op_score_pages){
        .base = in_page ? l->cards.base : l->side,
        .frame_of = in_page ? l->cards.of : NULL,
        .stride = in_page ? l->cards.stride : l->side_stride,
        .a_at = in_page ? g->k_min : 0,
        .b_at = in_page ? g->k_step : (size_t)g->head_dim * 2,
        .page = l->page,
        .n_page = n_page,
        .head_dim = g->head_dim,
        .group = l->shape->group,
        .qa = q,
        .qb = w->qb,
        .out = out,
        .out_stride = w->stride,
    });
}

/* False: a score is not finite. */
static bool softmax(const struct method_lane *l, const float *score, uint32_t n, float *out)
{
    float lse;
    return l->ops->vote(
        &(struct op_vote){.score = score, .n = n, .group = 1, .vote = out, .lse = &lse});
}

/* scores=code: raw[p] is the mean over heads of max(a, b). */
static void page_scores(const struct work *w, const struct method_lane *l, uint32_t n_page)
{
    const uint32_t group = l->shape->group, n_q = group * l->shape->geom->head_dim;
    for (uint32_t i = 0; i < n_q; i++) w->qa[i] = (w->hi[i] + w->lo[i]) / 2;
    score_boxes(w, l, w->qa, true, n_page, w->score[0]);
    score_boxes(w, l, w->qa, false, n_page, w->score[1]);
    for (uint32_t p = 0; p < n_page; p++) {
        float sum = 0;
        for (uint32_t g = 0; g < group; g++) {
            const float a = w->score[0][g * w->stride + p], b = w->score[1][g * w->stride + p];
            sum += a > b || isnan(a) ? a : b;
        }
        w->raw[p] = sum / (float)group;
    }
}

/* scores=paper: raw[p] is the mean over heads of the criticality of Algorithm 1. False: not
 * finite. */
static bool page_shares(const struct work *w, const struct method_lane *l, uint32_t n_page)
{
    const uint32_t group = l->shape->group;
    for (int i = 0; i < 4; i++)
        score_boxes(w, l, i < 2 ? w->hi : w->lo, i % 2 == 0, n_page, w->score[i]);
    memset(w->raw, 0, n_page * sizeof(float));
    for (uint32_t g = 0; g < group; g++) {
        for (int i = 0; i < 4; i++) {
            float *s = w->score[i] + g * w->stride;
            if (!softmax(l, s, n_page, w->share)) return false;
            memcpy(s, w->share, n_page * sizeof(float));
        }
        for (uint32_t p = 0; p < n_page; p++) {
            const size_t at = g * w->stride + p;
            const float of_max = (w->score[0][at] + w->score[2][at]) / 2;
            const float of_min = (w->score[1][at] + w->score[3][at]) / 2;
            w->raw[p] += fmaxf(of_max, of_min) / (float)group;
        }
    }
    return true;
}

/* Turns raw [n_page] into raw [n_page / block]: the score of a block is that of its best page. */
static void pages_to_blocks(float *raw, uint32_t n_page, uint32_t block)
{
    for (uint32_t p = 0; p < n_page; p++)
        if (p % block == 0 || raw[p] > raw[p / block]) raw[p / block] = raw[p];
}

/* Scores the n_block blocks before a segment into w->raw and w->soft. False: not finite. */
static bool score_segment(const struct work *w, const struct method_lane *l, uint32_t n_block)
{
    const struct critiprefill_param *set = l->param;
    const uint32_t block = block_pages(l->param), n_page = n_block * block;
    const bool by_paper = set->scores > 0;
    assert(n_page <= w->stride && n_page <= l->n_sealed);
    if (by_paper && !page_shares(w, l, n_page)) return false;
    if (!by_paper) page_scores(w, l, n_page);
    for (uint32_t p = 0; p < n_page; p++)
        if (!isfinite(w->raw[p])) return false;
    pages_to_blocks(w->raw, n_page, block);
    if (!by_paper) return softmax(l, w->raw, n_block, w->soft);
    memcpy(w->soft, w->raw, n_block * sizeof(float));
    return true;
}

/* ---- Selection ---- */

/* Selects the best k blocks by fused score, then raw score, then position, the later first: 1 in
 * by_fused, 0 for the others. */
static void choose(const struct work *w, const float *fused, uint32_t n, uint32_t k)
{
    assert(k > 0);
    struct pick_cut cut = pick_best(fused, n, k);
    for (uint32_t i = 0; i < n; i++) w->by_fused[i] = pick_key(fused[i]) > cut.key;
    if (cut.n_tie == 0) return;
    for (uint32_t i = 0; i < n; i++)
        w->soft[i] = pick_key(fused[i]) == cut.key ? w->raw[i] : -INFINITY;
    struct pick_cut tie = pick_best(w->soft, n, cut.n_tie);
    for (uint32_t i = n; i-- > 0;)
        if (pick_takes(&tie, w->soft[i])) w->by_fused[i] = 1;
}

/* The rows of one segment that are in the chunk, positions [begin, end). */
struct segment {
    uint32_t at, begin, end; /* `at`: first position of the whole segment */
    uint32_t n_block;        /* candidate blocks, all before it */
    uint32_t n_take;         /* blocks to select */
    enum plan_reason why;    /* why it is dense, or PLAN_SPARSE */
};

/* Segment i of the sequence in the chunk [pos, end) of a prompt of n_tok tokens. */
static struct segment segment_at(const struct critiprefill_param *set, uint32_t i, uint32_t pos,
                                 uint32_t end, uint32_t n_tok)
{
    const uint32_t size = segment_tok(set), at = i * size, block_tok = block_pages(set) * PAGE_TOK;
    struct segment s = {.at = at,
                        .begin = max_u32(pos, at),
                        .end = min_u32(end, at + size),
                        .n_block = at / block_tok};
    s.n_take = max_u32(1, method_spec_budget(set->budget, at) / block_tok);
    if (at < set->dense || at <= method_spec_budget(set->budget, at))
        s.why = PLAN_SHORT;
    else if (s.end == n_tok)
        s.why = PLAN_LAYER;
    return s;
}

/* Marks the selected blocks, and the tokens between the last block and the tile, for all tiles of a
 * segment. */
static void mark_segment(const struct method_lane *l, struct plan *p, const struct work *w,
                         const struct segment *s)
{
    const uint32_t block_tok = block_pages(l->param) * PAGE_TOK;
    for (uint32_t i = 0; i < p->n_tile; i++) {
        const uint32_t tile = plan_tile_tok(p, i);
        if (tile < s->at || tile >= s->end) continue;
        for (uint32_t j = 0; j < s->n_block; j++)
            if (w->by_fused[j] > 0) plan_range(p, i, 0, j * block_tok, (j + 1) * block_tok);
        plan_range(p, i, 0, s->n_block * block_tok, tile);
    }
}

static void dense_segment(struct plan *p, const struct segment *s, enum plan_reason why)
{
    for (uint32_t i = 0; i < p->n_tile; i++)
        if (plan_tile_tok(p, i) >= s->at && plan_tile_tok(p, i) < s->end)
            plan_tile_dense(p, i, 0, why);
}

static void criti_plan(const struct method_lane *l, struct plan *p)
{
    const struct critiprefill_param *set = l->param;
    struct fused *state = l->state;
    struct work w;
    const uint32_t n_tok = segment_tok(set), chunk_end = l->pos + l->n_row, first = l->pos / n_tok;
    const size_t row_stride = fused_row(l->shape, set);
    /* The scores of the previous layer must be of the same rows; otherwise there is nothing to fuse
     * with. */
    const bool go_on = state->is_set && state->pos == l->pos && state->layer < l->layer;
    if (l->layer == 0) {
        plan_dense(p, PLAN_LAYER);
        return;
    }
    work_make(&w, l->shape, l->scratch);
    for (uint32_t i = first; i * n_tok < chunk_end; i++) {
        const struct segment s = segment_at(set, i, l->pos, chunk_end, p->end + p->n_after);
        assert(i - first < l->shape->n_row_max / n_tok + 2 && s.n_block < row_stride);
        float *fused = state->score + (i - first) * row_stride;
        if (s.why) {
            dense_segment(p, &s, s.why);
            continue;
        }
        pool_queries(&w, l, s.begin - l->pos, s.end - l->pos);
        if (!score_segment(&w, l, s.n_block)) {
            plan_dense(p, PLAN_NAN);
            state->is_set = false;
            return;
        }
        const float old = go_on ? (float)set->fuse : 0;
        for (uint32_t j = 0; j < s.n_block; j++)
            fused[j] = old > 0 ? old * fused[j] + (1 - old) * w.soft[j] : w.soft[j];
        choose(&w, fused, s.n_block, s.n_take);
        mark_segment(l, p, &w, &s);
    }
    state->pos = l->pos;
    state->layer = l->layer;
    state->is_set = true;
}

static void criti_blocks(const struct method_lane *l, uint32_t n_tok, struct op_blocks *op)
{
    const struct critiprefill_param *set = l->param;
    const struct page_geom *g = l->shape->geom;
    const bool in_page = box_in_page(l->shape);
    const uint32_t size = segment_tok(set), first = op->rows.pos / size;
    op->box = in_page ? l->cards.base : l->side;
    op->box_stride = in_page ? l->cards.stride : l->side_stride;
    op->a_at = in_page ? g->k_min : 0;
    op->b_at = in_page ? g->k_step : (size_t)g->head_dim * 2;
    op->width = box_width(l->shape);
    op->segment_tok = size;
    op->block = block_pages(set);
    op->fuse = (float)set->fuse;
    op->four = set->scores > 0;
    op->dense = l->layer == 0;
    op->fused_row = fused_row(l->shape, set);
    for (op->n_segment = 0; (first + op->n_segment) * size < op->rows.end; op->n_segment++) {
        const struct segment s =
            segment_at(set, first + op->n_segment, op->rows.pos, op->rows.end, n_tok);
        op->segment[op->n_segment] =
            (struct op_block_segment){.begin = s.begin,
                                      .end = s.end,
                                      .n_page = s.n_block * block_pages(set),
                                      .n_take = min_u32(s.n_take, s.n_block),
                                      .why = s.why};
    }
}

/* Scores of an earlier chunk are not used, and indices come from the current one: any numbers are
 * valid. */
static bool criti_sound(const struct method_loaded *l)
{
    (void)l;
    return true;
}

static const struct method_prefill hooks = {
    .state_bytes = criti_state_bytes,
    .side_bytes = criti_side_bytes,
    .scratch_bytes = criti_scratch_bytes,
    .seal = criti_seal,
    .note = criti_note,
    .plan = criti_plan,
    .blocks = criti_blocks,
    .sound = criti_sound,
};

static const sac_method_deviation deviations[] = {
    {"four softmaxes over the products of extremes, each separately",
     "the authors' code: one over the larger of two means; scores=paper uses the four",
     "paper and code differ",
     "KL of middle rows 0.163 against 0.169 at 16K of essays on a 0.5B model, the same cells"},
    {"three quarters of a score come from the previous layer",
     "a quarter does, as in the code; fuse=0.75 is the paper's", "paper and code differ",
     "none: KL of middle rows 0.168 against 0.169 at 16K of essays on a 0.5B model"},
    {"silent on the last segment and the first layer", "both are dense, as in the code",
     "the first layer has no previous scores", NULL},
    {"scores are spread over all blocks, later ones included",
     "over blocks before the segment only",
     "later ones do not exist yet when a prompt is processed in chunks", NULL},
};

const struct method critiprefill_method = {
    METHOD_PREFILL(
        critiprefill,
        "key blocks selected for whole segments of queries, with scores fused across layers"),
    .paper = "Lv et al., CritiPrefill: A Segment-wise Criticality-based Approach for Prefilling "
             "Acceleration in LLMs, arXiv 2409.12490",
    .about =
        "Scores the bounding boxes of key pages against the bounding box of a segment's queries, "
        "blends these scores with those of the previous layer and reads the same number of blocks "
        "for every segment, so the cost of a long prompt grows linearly with its length. Selection "
        "costs almost nothing. Bounding boxes are loose: what only one row of a segment attends to "
        "may be missed, and heads that attend everywhere lose what the budget does not hold. The "
        "end of the prompt, where a question usually stands, is dense.",
    METHOD_DEVIATIONS(deviations),
    .facts = {.part = "segment=64,dense=64"},
    .prefill = &hooks,
};
