/* lanes.c: selection for lists of lanes on a CPU, the same for all instruction sets: each slot cuts
 * its list into pieces of work and calls the single-worker slots for them.
 *
 * Invariants:
 *  1. Pieces depend on the context alone, not on the number of workers, and their shared results
 *     are combined in order. A lane's result thus has the same bits whichever workers compute it,
 *     alone or with other lanes.
 *  2. Work of the size of a query, or of one word per page, is done by the caller. */
#include "ops/cpu/lanes_bound.h"
#include "ops/cpu/lanes_visit.h"

#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define PIECE       64u                        /* pages */
#define SHARE_PIECE (OP_DRAW_ITEMS / PAGE_TOK) /* the same for shares and for draws */
#define RAISE_PIECE 64u  /* pages, for exponentials, which are most of the work */
#define FOLD_PIECE  256u /* output items */

struct call { /* arguments of a slot */
    const struct ops *ops;
    const void *op;
    uint32_t n_piece; /* of the longest operation */
};

static uint32_t piece_count(uint32_t n_page)
{
    return (n_page + PIECE - 1) / PIECE;
}

/* Piece i of n_page pages; it may be empty. */
static struct attn_range piece_of(uint32_t n_page, uint32_t i)
{
    const uint32_t begin = i * PIECE < n_page ? i * PIECE : n_page;
    return (struct attn_range){begin, n_page - begin < PIECE ? n_page : begin + PIECE};
}

/* ---- Scores ---- */

static void fill_queries(const struct op_lane_boxes *op)
{
    const struct op_score_pages *at = &op->at;
    float *qa = (float *)(uintptr_t)at->qa, *qb = (float *)(uintptr_t)at->qb;
    const size_t n = (size_t)at->group * at->head_dim;
    if (op->turn) {
        for (size_t i = 0; i < n; i += at->head_dim)
            segment_turn(qa + i, op->q + i, at->head_dim, op->turn, op->rope, 1);
    } else {
        memcpy(qa, op->q, n * sizeof *qa);
    }
    for (size_t i = 0; i < n; i++) {
        const float q = qa[i] * op->scale;
        qa[i] = q;
        qb[i] = op->mean ? fabsf(q) : fmaxf(q, 0) * op->unit;
    }
}

static void score_piece(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_boxes *op = (const struct op_lane_boxes *)c->op + i / c->n_piece;
    const struct attn_range pages = piece_of(op->at.n_page, i % c->n_piece);
    struct op_score_pages one = op->at;
    (void)worker_i;
    if (pages.begin == pages.end) return;
    one.page += pages.begin;
    one.n_page = pages.end - pages.begin;
    one.out += pages.begin;
    for (uint32_t b = 0; b < op->n_box; b++) {
        c->ops->score_pages(&one);
        one.a_at += op->box_at;
        one.b_at += op->box_at;
        one.out += op->box_out;
    }
}

static void boxes(struct workers *pool, const struct ops *ops, const struct op_lane_boxes *op,
                  uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    for (uint32_t i = 0; i < n; i++) {
        fill_queries(&op[i]);
        c.n_piece = max_u32(c.n_piece, piece_count(op[i].at.n_page));
    }
    workers_for(pool, n * c.n_piece, score_piece, &c);
}

/* Computes the logits of one page; k: scratch for its keys. */
static void page_logits(const struct ops *ops, const struct op_lane_logits *op, uint32_t page,
                        float *k)
{
    const uint32_t d = op->keys.geom->head_dim;
    float *out = op->out + (size_t)page * PAGE_TOK;
    struct op_keys keys = op->keys;
    keys.page += page;
    keys.n_page = 1;
    keys.out = k;
    ops->keys(&keys);
    const uint32_t s = segment_of(op->segment, op->n_segment, page, 0);
    for (uint32_t t = 0; t < PAGE_TOK && s < op->n_segment; t++)
        segment_turn(k + t * d, k + t * d, d, &op->segment[s], op->rope, -1);
    ops->dots(&(struct op_dots){.a = op->q,
                                .b = k,
                                .a_stride = d,
                                .b_stride = d,
                                .n_a = op->group,
                                .n_b = PAGE_TOK,
                                .width = d,
                                .out = out,
                                .out_stride = op->out_stride});
    for (uint32_t g = 0; g < op->group; g++, out += op->out_stride) {
        for (uint32_t i = 0; i < PAGE_TOK; i++) out[i] *= op->scale;
        for (uint32_t i = 0; i < PAGE_TOK && op->softcap > 0; i++)
            out[i] = op->softcap * tanhf(out[i] / op->softcap);
    }
}

static void logits_piece(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_logits *op = (const struct op_lane_logits *)c->op + i / c->n_piece;
    const struct attn_range pages = piece_of(op->keys.n_page, i % c->n_piece);
    _Alignas(64) float k[PAGE_TOK * HEAD_DIM_MAX];
    (void)worker_i;
    assert(op->keys.geom->head_dim <= HEAD_DIM_MAX);
    for (uint32_t p = pages.begin; p < pages.end; p++) page_logits(c->ops, op, p, k);
}

static void logits(struct workers *pool, const struct ops *ops, const struct op_lane_logits *op,
                   uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    for (uint32_t i = 0; i < n; i++) c.n_piece = max_u32(c.n_piece, piece_count(op[i].keys.n_page));
    workers_for(pool, n * c.n_piece, logits_piece, &c);
}

/* ---- Shares ---- */

static void scale_by(float *x, float by, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] *= by;
}

/* Computes the shares of one query head over pages [begin, end), with query `q`, and merges them
 * with those of the pages before. `*sum`: log of the sum of exponentials so far. */
static bool share_part(const struct ops *ops, const struct op_lane_shares *of,
                       struct attn_range pages, const float *q, uint32_t head)
{
    struct op_share_planes op = of->at;
    const size_t before = (size_t)pages.begin * PAGE_TOK;
    float *share = of->at.e + (size_t)head * of->at.n_page * PAGE_TOK, *sum = &of->lse[head], part;
    op.page += pages.begin;
    op.n_page = pages.end - pages.begin;
    op.group = 1;
    op.q = q;
    op.share = share + before;
    op.e = of->at.share; /* free until the shares of all heads are summed */
    op.lse = &part;
    if (!ops->share_planes(&op)) return false;
    const float top = fmaxf(*sum, part), all = top + logf(expf(*sum - top) + expf(part - top));
    scale_by(share, expf(*sum - all), before);
    scale_by(op.share, expf(part - all), (size_t)op.n_page * PAGE_TOK);
    *sum = all;
    return true;
}

/* The same for contexts with segments, whose queries are rotated: segment by segment and head by
 * head. */
static bool share_segments(const struct ops *ops, const struct op_lane_shares *op)
{
    const uint32_t n_page = op->at.n_page, group = op->at.group, d = op->at.head_dim;
    const size_t n = (size_t)n_page * PAGE_TOK;
    for (uint32_t g = 0; g < group; g++) op->lse[g] = -INFINITY;
    for (uint32_t page = 0, end; page < n_page; page = end) {
        const uint32_t s = segment_of(op->segment, op->n_segment, page, 0);
        end = s < op->n_segment && op->segment[s].end < n_page ? op->segment[s].end : n_page;
        for (uint32_t g = 0; g < group; g++) {
            const float *q = op->at.q + (size_t)g * d;
            if (s < op->n_segment) {
                segment_turn(op->turned, q, d, &op->segment[s], op->rope, 1);
                q = op->turned;
            }
            if (!share_part(ops, op, (struct attn_range){page, end}, q, g)) return false;
        }
    }
    memset(op->at.share, 0, n * sizeof(float));
    for (uint32_t g = 0; g < group; g++)
        for (size_t i = 0; i < n; i++) op->at.share[i] += op->at.e[g * n + i] / (float)group;
    return true;
}

/* Computes the first page, and everything for lanes with segments. */
static void begin_shares(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_shares *op = (const struct op_lane_shares *)c->op + i;
    (void)worker_i;
    if (!(op->n_segment ? share_segments(c->ops, op) : c->ops->share_begin(&op->at, op->sum)))
        op->result->n_bad = 1;
}

/* Pages of piece i, of `size` pages each, of those after the first page. */
static struct attn_range share_range(const struct op_lane_shares *op, uint32_t i, uint32_t size)
{
    const uint32_t n = op->at.n_page, begin = 1 + i * size;
    if (op->n_segment || begin >= n) return (struct attn_range){n, n};
    return (struct attn_range){begin, n - begin < size ? n : begin + size};
}

/* If a number is not finite, the piece's sum becomes NaN: pieces have no other place to report
 * it. */
static void raise_piece(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_shares *op = (const struct op_lane_shares *)c->op + i / c->n_piece;
    const struct attn_range pages = share_range(op, i % c->n_piece, RAISE_PIECE);
    float *sum = op->sum + (size_t)(1 + i % c->n_piece) * op->at.group;
    (void)worker_i;
    if (pages.begin == pages.end) return;
    if (!c->ops->share_raise(&op->at, pages, sum)) sum[0] = NAN;
}

static void raise_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    for (; begin < end; begin++) raise_piece(arg, begin, worker_i);
}

/* Adds the sums of all pieces, in order, to that of the first page. */
static void sum_pieces(const struct op_lane_shares *op)
{
    if (op->n_segment) return;
    for (uint32_t k = 0; share_range(op, k, RAISE_PIECE).begin < op->at.n_page; k++)
        for (uint32_t g = 0; g < op->at.group; g++)
            op->sum[g] += op->sum[(size_t)(1 + k) * op->at.group + g];
    op->result->n_bad += isnan(op->sum[0]) != 0;
}

static void spread_piece(const struct ops *ops, const struct op_lane_shares *op, uint32_t piece)
{
    const struct attn_range pages = share_range(op, piece, SHARE_PIECE);
    if (pages.begin < pages.end) ops->share_spread(&op->at, pages, op->sum);
}

static void spread_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (; begin < end; begin++) {
        const uint32_t k = begin % c->n_piece;
        const struct op_lane_shares *op = (const struct op_lane_shares *)c->op + begin / c->n_piece;
        if (op->n_segment) continue;
        if (k == 0) c->ops->share_spread(&op->at, (struct attn_range){0, 1}, op->sum);
        spread_piece(c->ops, op, k);
    }
}

static void shares(struct workers *pool, const struct ops *ops, const struct op_lane_shares *op,
                   uint32_t n)
{
    struct call c = {.ops = ops, .op = op, .n_piece = 1};
    bool later = true;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t n_piece = (op[i].at.n_page + RAISE_PIECE - 2) / RAISE_PIECE;
        assert(n_piece + 1 <= OP_LANE_PIECES(op[i].at.n_page));
        c.n_piece = max_u32(c.n_piece, n_piece);
        later = later && op[i].later;
    }
    workers_for(pool, n, begin_shares, &c);
    workers_for_span(pool, n * c.n_piece, 1, raise_pieces, &c);
    for (uint32_t i = 0; i < n; i++) sum_pieces(&op[i]);
    if (!later) workers_for_span(pool, n * c.n_piece, 1, spread_pieces, &c);
}

static void vote_lane(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_vote *op = (const struct op_lane_vote *)c->op + i;
    (void)worker_i;
    if (!c->ops->vote(&op->at)) op->result->n_bad = 1;
}

static void vote(struct workers *pool, const struct ops *ops, const struct op_lane_vote *op,
                 uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    workers_for(pool, n, vote_lane, &c);
}

/* Folds FOLD_PIECE of the output items. */
static void fold_piece(const struct op_lane_fold *op, uint32_t piece)
{
    const uint32_t end = min_u32((piece + 1) * FOLD_PIECE, op->n);
    for (uint32_t k = piece * FOLD_PIECE; k < end; k++) {
        float sum = 0;
        for (uint32_t j = 0; j < op->n_part; j++) sum += op->in[k * op->step + j * op->part_step];
        op->out[k] = sum;
    }
}

static void fold_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (; begin < end; begin++)
        fold_piece((const struct op_lane_fold *)c->op + begin / c->n_piece, begin % c->n_piece);
}

static void fold(struct workers *pool, const struct ops *ops, const struct op_lane_fold *op,
                 uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    for (uint32_t i = 0; i < n; i++)
        c.n_piece = max_u32(c.n_piece, (op[i].n + FOLD_PIECE - 1) / FOLD_PIECE);
    workers_for_span(pool, n * c.n_piece, 1, fold_pieces, &c);
}

/* ---- Marks ---- */

/* Bits of the tokens of a page that are in [begin, end), positions of the sequence. */
static uint32_t page_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK;
    const uint32_t lo = begin > first ? begin - first : 0;
    const uint32_t hi = end > first ? (end - first < PAGE_TOK ? end - first : PAGE_TOK) : 0;
    return lo < hi ? UINT32_MAX >> (PAGE_TOK - hi) & UINT32_MAX << lo : 0;
}

static void ends(struct workers *pool, const struct ops *ops, const struct op_lane_ends *op,
                 uint32_t n)
{
    (void)pool;
    (void)ops;
    for (; n > 0; n--, op++) {
        for (uint32_t p = 0; p < op->n_page && p * PAGE_TOK < op->begin; p++)
            op->mask[p] |= page_bits(p, 0, op->begin);
        for (uint32_t p = op->end / PAGE_TOK; p < op->n_page; p++)
            op->mask[p] |= page_bits(p, op->end, UINT32_MAX);
    }
}

static void mark_bits(const struct op_lane_take *op, uint32_t page, uint32_t bits)
{
    op->result->n_chosen += (uint32_t)__builtin_popcount(bits & ~op->mask[page]);
    op->mask[page] |= bits;
}

static uint32_t item_count(const struct op_lane_take *op)
{
    return op->n_page * (PAGE_TOK / op->item_tok);
}

/* The first token of an item. */
static uint32_t item_begin(const struct op_lane_take *op, uint32_t i)
{
    if (op->item_tok == 1) return i;
    return i % op->n_page * PAGE_TOK + i / op->n_page * op->item_tok;
}

/* Excludes the items outside the range; returns how many are left. */
static uint32_t exclude_items(const struct op_lane_take *op)
{
    const uint32_t n = item_count(op);
    uint32_t n_left = n;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t tok = item_begin(op, i);
        if (tok >= op->begin && tok + op->item_tok <= op->end) continue;
        op->value[i] = -INFINITY;
        n_left--;
    }
    return n_left;
}

/* Marks items of more than one token. */
static void mark_items(const struct op_lane_take *op, struct op_cut cut)
{
    const uint32_t n = item_count(op);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t key = op_best_key(op->value[i]);
        if (key < cut.key || (key == cut.key && cut.n_tie == 0)) continue;
        cut.n_tie -= key == cut.key;
        const uint32_t tok = item_begin(op, i);
        mark_bits(op, tok / PAGE_TOK, page_bits(tok / PAGE_TOK, tok, tok + op->item_tok));
    }
}

static void take_lane(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_take *op = (const struct op_lane_take *)c->op + i;
    (void)worker_i;
    if (op->result->n_bad) return; /* everything is read */
    const uint32_t n_left = exclude_items(op), n = op->target < n_left ? op->target : n_left;
    if (n == 0) return;
    const struct op_cut cut = c->ops->best(&(struct op_best){
        .value = op->value, .n = item_count(op), .target = n, .spare = op->spare});
    if (op->item_tok > 1) {
        mark_items(op, cut);
        return;
    }
    c->ops->mark(
        &(struct op_mark){.value = op->value, .cut = cut, .n_page = op->n_page, .mask = op->mask});
    op->result->n_chosen += n;
}

static void take(struct workers *pool, const struct ops *ops, const struct op_lane_take *op,
                 uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    workers_for(pool, n, take_lane, &c);
}

/* ---- Draws ---- */

/* Number of pieces, the same as for shares; the last ones may be empty. */
static uint32_t draw_pieces(const struct op_lane_draw *op)
{
    const uint32_t n = (op->at.n + OP_DRAW_ITEMS - 1) / OP_DRAW_ITEMS;
    return max_u32(n, 1);
}

static void open_piece(const struct ops *ops, const struct op_lane_draw *op, uint32_t k)
{
    struct op_draw_piece *p = &op->piece[k];
    const uint32_t n = op->at.n, begin = k * OP_DRAW_ITEMS;
    assert(!op->shares || n == 0 || op->at.first == PAGE_TOK);
    assert(!op->at.steady || op->at.first % PAGE_TOK == 0);
    if (op->shares && begin < n) spread_piece(ops, op->shares, k);
    p->begin = begin < n ? begin : n;
    p->end = n - p->begin < OP_DRAW_ITEMS ? n : p->begin + OP_DRAW_ITEMS;
    ops->draw.open(&op->at, p);
}

static void report_draw(const struct op_lane_draw *op, uint32_t n)
{
    op->result->n_tok += n;
    op->result->n_chosen += n;
    op->result->n_over += n + op->n_more > op->most;
}

/* The whole draw of a lane by one worker. */
static void draw_lane(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct call *c = arg;
    const struct op_lane_draw *op = (const struct op_lane_draw *)c->op + i;
    const uint32_t n_piece = draw_pieces(op);
    uint32_t sum[OP_DRAW_LANES], n = 0;
    (void)worker_i;
    if (op->result->n_bad) return; /* everything is read */
    for (uint32_t k = 0; k < n_piece; k++) open_piece(c->ops, op, k);
    const float cut = c->ops->draw.cut(&op->at, op->piece, n_piece);
    for (uint32_t l = 0; l < OP_DRAW_LANES; l++) sum[l] = op_draw_begin(l);
    for (uint32_t k = 0; k < n_piece; n += op->piece[k++].n_taken)
        c->ops->draw.take(&op->at, &op->piece[k], cut, sum, n);
    report_draw(op, n);
}

/* The lane of item i of a round, and *k, its piece; NULL: nothing to do. */
static const struct op_lane_draw *piece_lane(const struct call *c, uint32_t i, uint32_t *k)
{
    const struct op_lane_draw *op = (const struct op_lane_draw *)c->op + i / c->n_piece;
    *k = i % c->n_piece;
    return *k < draw_pieces(op) && !op->result->n_bad ? op : NULL;
}

/* Counts a finished piece; returns whether it was the last of its lane in this round. */
static bool ends_round(const struct op_lane_draw *op)
{
    if (__atomic_sub_fetch(&op->state->n_left, 1, __ATOMIC_ACQ_REL) > 0) return false;
    op->state->n_left = draw_pieces(op);
    return true;
}

static void open_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (uint32_t i = begin, k; i < end; i++) {
        const struct op_lane_draw *op = piece_lane(c, i, &k);
        if (!op) continue;
        open_piece(c->ops, op, k);
        if (ends_round(op)) op->state->cut = c->ops->draw.cut(&op->at, op->piece, draw_pieces(op));
    }
}

static void add_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (uint32_t i = begin, k; i < end; i++) {
        const struct op_lane_draw *op = piece_lane(c, i, &k);
        if (op && !op->at.steady) c->ops->draw.add(&op->at, &op->piece[k], op->state->cut);
    }
}

/* Concatenates the items that the pieces have taken, each at its own place. */
static void join_pieces(const struct op_lane_draw *op)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < draw_pieces(op); n += op->piece[k++].n_taken) {
        const struct op_draw_piece *p = &op->piece[k];
        memmove(op->at.item + n, op->at.item + p->begin, p->n_taken * sizeof *op->at.item);
        memmove(op->at.logw + n, op->at.logw + p->begin, p->n_taken * sizeof *op->at.logw);
    }
    report_draw(op, n);
}

/* Initial sums of piece k: the probabilities of all pieces before it. Steady draws have no sums,
 * because their random numbers belong to the pages. */
static void sums_before(const struct op_lane_draw *op, uint32_t k, uint32_t sum[OP_DRAW_LANES])
{
    for (uint32_t l = 0; l < OP_DRAW_LANES; l++) sum[l] = op_draw_begin(l);
    if (op->at.steady) return;
    for (uint32_t j = 0; j < k; j++) {
        for (uint32_t l = 0; l < OP_DRAW_LANES; l++) sum[l] += op->piece[j].chance[l];
    }
}

static void take_pieces(void *arg, uint32_t begin, uint32_t end, uint32_t worker_i)
{
    const struct call *c = arg;
    (void)worker_i;
    for (uint32_t i = begin, k; i < end; i++) {
        const struct op_lane_draw *op = piece_lane(c, i, &k);
        uint32_t sum[OP_DRAW_LANES];
        if (!op) continue;
        sums_before(op, k, sum);
        c->ops->draw.take(&op->at, &op->piece[k], op->state->cut, sum, op->piece[k].begin);
        if (ends_round(op)) join_pieces(op);
    }
}

/* A lane with one piece is drawn by one worker. With more pieces, the worker that finishes the last
 * piece of a round computes what all pieces need for the next one. */
static void draw(struct workers *pool, const struct ops *ops, const struct op_lane_draw *op,
                 uint32_t n)
{
    struct call c = {.ops = ops, .op = op};
    for (uint32_t i = 0; i < n; i++) {
        c.n_piece = max_u32(c.n_piece, draw_pieces(&op[i]));
        op[i].state->n_left = draw_pieces(&op[i]);
    }
    if (!pool || workers_count(pool) == 1 || c.n_piece == 1) {
        workers_for(pool, n, draw_lane, &c);
        return;
    }
    workers_for_span(pool, n * c.n_piece, 1, open_pieces, &c);
    workers_for_span(pool, n * c.n_piece, 1, add_pieces, &c);
    workers_for_span(pool, n * c.n_piece, 1, take_pieces, &c);
}

void ops_fill_lanes(struct ops *o)
{
    o->lanes = (struct ops_lanes){.boxes = boxes,
                                  .logits = logits,
                                  .shares = shares,
                                  .vote = vote,
                                  .fold = fold,
                                  .ends = ends,
                                  .take = take,
                                  .draw = draw,
                                  .visit = lanes_visit,
                                  .bounds = lanes_bounds};
}
