/* ops.h: the compute table. One slot per operation; `ref` fills all of them with plain C, then
 * avx2, avx512, amx (or neon) overwrite slots in rising order, once, in ops_init.
 *
 * Contract of every slot:
 *  - f32 activations are row-major [n_row, width] with a stride in floats; pointers are 64-byte
 *    aligned unless said; in and out may be the same array only where said.
 *  - A slot splits its work over `pool` itself and returns when all is done. Results do not depend
 *    on the number of workers, on n_row, or on which other rows are in the call (design D7): a
 *    row's arithmetic and its order are fixed by the row alone (and its `kind`, a property of the
 *    row).
 *  - No slot allocates. Scratch is the caller's, sized by ops_*_scratch with the largest shapes.
 *  - NaN and infinities flow through as in IEEE arithmetic; they never crash or hang. */
#ifndef SAC_OPS_OPS_H
#define SAC_OPS_OPS_H

#include "base/workers.h"
#include "ops/page.h"
#include "ops/segment.h"
#include "ops/weight.h"

#include <string.h>

/* A property of a row, not of the call that it is in: rows of different kinds are rounded
 * differently, so a row has the same result whatever else is computed with it. */
enum row_kind {
    ROW_DECODE, /* one row of a sequence at a time: bound by the bytes that are read */
    ROW_PROMPT, /* many rows behind each other: bound by arithmetic */
};

/* ---- Linear layers ----
 * Decode rows take narrow kernels, with activations of 8 bits where the ISA has them; prompt rows
 * take wide ones, with 16-bit floats where the ISA has them. */

enum linear_epilogue {
    LINEAR_STORE,    /* y  = W x + bias */
    LINEAR_ADD,      /* y += W x + bias (the residual stream) */
    LINEAR_GLU_SILU, /* part 0 = gate, part 1 = up: part[0].y = silu(gate) * up */
    LINEAR_GLU_GELU, /* the same with gelu, tanh form */
};

#define LINEAR_PARTS_MAX 3

/* Up to three matrices that read the same input (q/k/v, gate/up): the input is normalised, rounded
 * and packed once. */
struct op_linear {
    const float *x; /* [n_row, n_in], stride x_stride */
    size_t x_stride;
    uint32_t n_row, n_in;
    const float *norm; /* [n_in] or NULL: x is first RMS-normalised and multiplied by it */
    float norm_eps;
    enum row_kind kind;
    enum linear_epilogue epilogue;
    bool keep_y; /* only the next call reads a GLU's y: any form that fits its place will do */
    bool kept_x; /* x is such a y, of as many rows of the same kind, and there is no norm */
    uint32_t n_part;
    struct linear_part {
        const struct weight *w; /* n_in as above */
        const float *bias;      /* [n_out] or NULL */
        float *y;               /* [n_row, n_out], stride y_stride; part 1 of a GLU: unused */
        size_t y_stride;
    } part[LINEAR_PARTS_MAX];
    /* NULL, or of one part the groups [n_group] of WEIGHT_GROUP outputs that are computed,
     * ascending; not for a GLU, and decode rows only. */
    const uint32_t *group;
    uint32_t n_group;
    void *scratch;
    size_t scratch_bytes;
};

/* ---- Attention over pages ---- */

struct attn_range { /* pages begin .. end - 1 */
    uint32_t begin, end;
};

struct attn_list { /* a list of struct attn_plan that a device has made */
    uint32_t n_range, n_tok;
    uint32_t n_before; /* tokens before the tile that it reads */
    uint32_t why;      /* enum plan_reason: it reads everything */
    float mass;        /* that it keeps of one row's softmax; below 0: that is not known */
};

/* What the rows of a prompt run read before their own page, in layers without a window. Rows come
 * in tiles of tile_tok positions, aligned to tile_tok in the sequence. List i = tile * n_kv_head +
 * h, tiles counted from that of pos0, or (by_head) tile * n_head + query head, holds
 *  - the page ranges range[range_ptr[i] .. range_ptr[i+1]-1], ascending and disjoint; a row skips
 *    those pages of them that are not before its own,
 *  - besides them (unless tok is NULL) the tokens tok[tok_ptr[i] .. tok_ptr[i+1]-1], ascending,
 *    outside the ranges, of pages before the tile's first row's. tok_logw, if set, is added to
 *    their scores (after the softcap). */
struct attn_plan {
    uint32_t tile_tok; /* a multiple of PAGE_TOK */
    bool by_head;      /* a list for each query head, not for each KV head */
    const struct attn_range *range;
    const uint32_t *range_ptr;
    const uint32_t *tok, *tok_ptr;
    const float *tok_logw; /* beside tok, or NULL */
    /* Lists that nobody but the device has seen, in its memory as all of the above: list i has
     * made[i].n_range ranges at range + i * range_max, and as many tokens at tok + i * tok_max. The
     * pointers to begins and ends are NULL then. NULL: the lists are the host's. */
    const struct attn_list *made;
    uint32_t range_max, tok_max;
    /* > 0: a row leaves out a group of neighbours in its list whose softmax is below this share of
     * what the row has summed up before them. How many keys are a group, and which come first, is
     * the kernel's affair; the group of the own page stays. */
    float skip;
};

/* What a row reads of a KV head by lists that nobody but the device has seen. */
struct attn_count {
    uint32_t dense;      /* 1: everything, and not by the lists */
    uint32_t not_finite; /* 1: because of a NaN or infinity */
    uint32_t n_page, n_tok, n_chosen;
    uint32_t n_line;     /* of 64 bytes that are read: page_lines.h */
    uint32_t n_line_tok; /* more, if it is not dense: of tokens that were drawn into the list */
    uint32_t n_line_scored, n_bypass; /* as in struct op_lane_result */
};

/* KV head h reads count[h] of lists that are `stride` pages apart. */
struct attn_chosen {
    const struct attn_count *count; /* [n_kv_head]; NULL: nothing is chosen this way */
    const uint32_t *page, *tok;     /* [n_kv_head][stride], [n_kv_head][stride * PAGE_TOK] */
    const float *logw;              /* as tok, or NULL */
    size_t stride;
};

/* Rows of one sequence that stand behind each other. A row at position p reads, in this order of
 * meaning: every sealed page before its own, i.e. pages 0 .. p/PAGE_TOK - 1, in sealed form, and
 * its own page p/PAGE_TOK, tokens up to p, in 16-bit form from `own`. So the result does not depend
 * on how a prompt was cut into chunks. */
struct attn_run {
    uint32_t row0, n_row; /* rows of the batch */
    uint32_t pos0;        /* position of the first */
    enum row_kind kind;   /* decode: n_row is 1 */
    /* Its rows follow those of the run before it in the batch and lie behind them in the same
     * sequence, have the same table and plan (which has one list for all of them and is not
     * by_head), and segments that begin with that run's: a kernel may compute both together. What
     * they are does not change by it. */
    bool joins;
    const page_id *table; /* [n_kv_head, table_stride] sealed pages by page index */
    size_t table_stride;
    /* [n_kv_head, table_stride] frames of the table's pages, in memory of a device that looks
     * there and at neither `table` nor page_frames.of; NULL on a CPU. */
    const uint32_t *frame;
    /* 16-bit pages of this run, tail form: first the page of pos0, then those after it:
     * head h's page of index pos0/PAGE_TOK + j is at own0 + h * geom.tail_bytes for j = 0 and at
     * own + ((j-1) * n_kv_head + h) * geom.tail_bytes after. */
    uint8_t *own0, *own;
    /* What the row of a decode run reads before its own page; NULL: all pages (dense). For KV head
     * h the pages select[select_ptr[h] .. select_ptr[h+1]-1], ascending, each below pos0/PAGE_TOK,
     * and besides them (needs `select`, which may name no page) the single tokens
     * select_tok[select_tok_ptr[h] .. select_tok_ptr[h+1]-1], ascending, of such pages, outside the
     * selected ones. select_logw: added to the tokens' scores (after the softcap), or NULL. */
    const uint32_t *select, *select_ptr;
    const uint32_t *select_tok, *select_tok_ptr;
    const float *select_logw;
    /* [n_kv_head] heads whose selection has been attended to elsewhere: they read their own page
     * alone. NULL: none. */
    const bool *attended;
    /* In place of `select`: what a device has chosen, in its own memory. */
    struct attn_chosen chosen;
    const struct attn_plan *plan; /* the same for the rows of a prompt run; NULL: dense */
    /* [n_segment] of pages before that of pos0, all whose keys wait for a turned query; NULL: none
     * do. */
    const struct segment_view *segment;
    uint32_t n_segment;
};

/* The 16-bit page of a run's position `pos` and KV head h. */
static inline uint8_t *attn_own_page(const struct attn_run *run, const struct page_geom *geom,
                                     uint32_t pos, uint32_t h)
{
    const size_t j = pos / PAGE_TOK - run->pos0 / PAGE_TOK;
    return j == 0 ? run->own0 + h * geom->tail_bytes
                  : run->own + ((j - 1) * geom->n_kv_head + h) * geom->tail_bytes;
}

#define ATTN_TAKE_PAGES  32u /* whole pages that a worker takes at a time, at most */
#define ATTN_TAKE_TOKENS (ATTN_TAKE_PAGES * PAGE_TOK) /* pages of single tokens, at most */

/* Where not all pages that a run reads can be in memory at once: workers take those that they read
 * next, none twice, and give them back before they take others. Which pages are taken together
 * depends on the run alone, and no result on where they were. */
struct attn_pager {
    /* False: they cannot be had, and the run's rows will be of no use. */
    bool (*take)(void *user, const page_id *id, uint32_t n);
    void (*give)(void *user, const page_id *id, uint32_t n);
    /* These will probably be taken soon. */
    void (*ahead)(void *user, const page_id *id, uint32_t n);
    void *user;
};

struct op_attn {
    const struct page_geom *geom;
    struct page_frames frames;
    const struct attn_pager *pager; /* NULL: all pages that are read are in their frames */
    uint32_t n_head;                /* query heads, a multiple of geom->n_kv_head */
    const float *q;                 /* [n_row, n_head, head_dim] after RoPE, stride q_stride */
    size_t q_stride;
    /* Nobody reads q, or what the keys of these rows were written from, behind this call, and no
     * two runs have the same own page. */
    bool q_ends;
    float *out; /* [n_row, n_head, head_dim], stride out_stride; not q */
    size_t out_stride;
    float *lse;               /* [n_row, n_head] natural log of the sum of exp(score), or NULL */
    struct segment_rope rope; /* how segments turn queries */
    float scale;              /* of q.k */
    float softcap;            /* > 0: score = cap * tanh(score / cap) */
    uint32_t window;          /* > 0: keys at distance >= window are not seen */
    uint32_t n_run;
    const struct attn_run *run;
    uint64_t *n_skip; /* [n_worker] adds the pairs of query and key that were left out; or NULL */
    void *scratch;
    size_t scratch_bytes;
};

/* Writes new keys and values of runs into their own pages (tail form). */
struct op_kv_write {
    const struct page_geom *geom;
    uint32_t n_run;
    const struct attn_run *run;
    const float *k, *v; /* row r of the batch: [n_kv_head, head_dim] at k + r * kv_stride */
    size_t kv_stride;
};

/* Seals one full page: tail form -> sealed form. Deterministic; NaN or infinity in K or V makes a
 * page whose reads give NaN, not garbage. */
struct op_seal {
    const struct page_geom *geom;
    uint32_t n_page;
    const uint8_t *const *tail; /* [n_page] */
    uint8_t *const *sealed;     /* [n_page] */
};

/* The way back of whole pages: sealed form -> tail form, as page_unseal says. */
struct op_unseal {
    const struct page_geom *geom;
    uint32_t n_page;
    const uint8_t *const *sealed; /* [n_page] */
    uint8_t *const *tail;         /* [n_page] */
};

/* ---- Small operations ---- */

struct op_rmsnorm { /* y = x / sqrt(mean(x^2) + eps) * w, over groups of `width` */
    const float *x;
    float *y; /* may be x */
    size_t x_stride, y_stride;
    uint32_t n_row, n_group, width; /* a row holds n_group groups (heads) behind each other */
    const float *w;                 /* [width] */
    float eps;
};

struct op_rope { /* in place on [n_row, n_head, head_dim] */
    float *x;
    size_t x_stride;
    uint32_t n_row, n_head, head_dim, n_rot; /* the first n_rot channels turn */
    bool interleaved;       /* pairs (2i, 2i+1); else NEOX pairs (i, i + n_rot/2) */
    const float *cos, *sin; /* [n_row, n_rot/2], magnitude factor included */
};

struct op_add { /* y = x + y, element-wise */
    const float *x;
    float *y;
    size_t n;
};

/* One of several devices' side of a sum of all their parts, in the devices' order, which all of
 * them get: y = part[0] + part[1] + ... */
struct op_sum {
    const float *part; /* its own; may be y */
    float *y;
    size_t n;  /* the same for all; at most n_word of struct cuda_api's join */
    bool adds; /* y = y + part[0] + part[1] + ... */
};

/* ---- Scores for choosing what to read ----
 * Called by one worker for one KV head of one row: these slots split nothing, and write only where
 * a pointer is not const. Pages are named by id: page id's data is at base + id * stride; or, where
 * it is a part of the page's bytes and lies in its frame, at base + frame_of[id] * stride. */

struct op_score_pages { /* out[g][i] = qa[g] . a(page[i]) + qb[g] . b(page[i]) */
    const uint8_t *base;
    const uint32_t *frame_of;  /* or NULL */
    size_t stride, a_at, b_at; /* byte offsets of two f16 vectors [head_dim] */
    const page_id *page;       /* [n_page] */
    uint32_t n_page, head_dim, group;
    const float *qa, *qb; /* [group, head_dim] */
    float *out;           /* [group, n_page], stride out_stride */
    size_t out_stride;
};

/* Softmax shares of all tokens of the pages, mean over the query heads, as far as the first plane
 * of a q8 page tells them: token t of page i has the logit scale * q[g] . (min + step * (64 *
 * hi2(t) + 31.5)). Shares are rough: 2^x may be 6 % too large. */
struct op_share_planes {
    const uint8_t *base;
    const uint32_t *frame_of;               /* or NULL */
    size_t stride, min_at, step_at, hi2_at; /* byte offsets, as in page.h */
    const page_id *page;                    /* [n_page] */
    uint32_t n_page, head_dim, group;
    const float *q; /* [group, head_dim] */
    float scale;
    float *share; /* [n_page * PAGE_TOK] out */
    float *e;     /* [group * n_page * PAGE_TOK] scratch */
    float *lse;   /* [group] out: ln of the sum of exp(logit), as rough; or NULL */
    void *frame;  /* [OPS_SHARE_FRAME] of share_begin, aligned to 64 */
};
/* What the pages of one call have in common. */
#define OPS_SHARE_FRAME (44u * 1024)

struct op_vote { /* vote[i] = mean over g of softmax(score[g])[i], lse[g] = ln sum exp(score[g]) */
    const float *score; /* [group, n], stride score_stride */
    size_t score_stride;
    uint32_t n, group;
    float *vote; /* [n] */
    float *lse;  /* [group] */
};

/* The best items of many: by value, the higher first, then the lower index; NaN is below all. */
struct op_best {
    const float *value; /* [n] */
    uint32_t n;
    bool by_sum; /* the target is of the sum of values, none of them negative; else their number */
    double target;   /* the fewest items that reach it are taken; beyond reach: all */
    uint32_t *spare; /* [n] scratch */
};

/* What is taken: items whose key lies above, and the first n_tie that lie on it. */
struct op_cut {
    uint32_t key, n_tie;
};

/* Integers in the order of the values. */
static inline uint32_t op_best_key(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0; /* NaN */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The value of a key. */
static inline float op_best_value(uint32_t key)
{
    const uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The k largest values of each row, the largest first, then the lowest id; NaN is below all. */
#define OP_TOP_PIECE    4096u
#define OP_TOP_ROOM_MAX 6144u
struct op_top_item {
    uint32_t id;
    float value;
};
struct op_top {
    const float *x; /* [n_row, n], stride `stride` */
    size_t stride;
    uint32_t n_row, n, k;    /* k <= n, op_top_room(n, k) <= OP_TOP_ROOM_MAX */
    uint64_t *spare;         /* [n_row * op_top_room(n, k)] */
    struct op_top_item *out; /* [n_row, k] */
};
static inline uint32_t op_top_room(uint32_t n, uint32_t k)
{
    return (n / OP_TOP_PIECE + 1) * k;
}

struct op_mark { /* sets the bits of the items that a cut takes, PAGE_TOK of them to a word */
    const float *value; /* [n_page * PAGE_TOK] */
    struct op_cut cut;
    uint32_t n_page;
    const uint32_t *page; /* [n_page] words of `mask`; NULL: 0, 1, .. */
    uint32_t *mask;
};

/* Some of many items, so that a weighted mean over them estimates the mean over all: items whose
 * value is not below a cut are taken for certain, others with the chance value / cut, and then they
 * weigh cut / value times as much. Chances are summed up by position, in OP_DRAW_LANES lanes that
 * items are dealt to in turns, and an item is taken when its lane's sum passes a whole number: so
 * items taken lie evenly among their like. Sums are of 32 bits behind the point and begin as far
 * from each other as they can.
 *
 * Values are shares: none is negative, and their sum is 1 at most. The variance of the estimate is
 * at most cut * (sum of values below the cut), and the cut is the highest that keeps this at or
 * below `variance`.
 *
 * A steady draw has the same cut, and other items and weights: steady.h. */
struct op_draw {
    const float *value; /* [n] */
    uint32_t n, first;  /* items are first, first + 1, .. */
    double variance;
    uint32_t *item; /* [n] out: taken, ascending */
    float *logw;    /* [n] out: logs of their weights */
    bool steady;    /* items are tokens, and `first` is a page's; host only */
    uint32_t key;   /* of its numbers: the same for the same lane of all rows */
    uint32_t pos;   /* the row's */
};
#define OP_DRAW_LEAST 0x1p-40f   /* of cuts */
#define OP_DRAW_STEP  (1u << 19) /* of their bits: a sixteenth of an octave */
#define OP_DRAW_LANES 16u

/* What a lane's sum begins with. */
static inline uint32_t op_draw_begin(uint32_t lane)
{
    return (2 * lane + 1) * (UINT32_MAX / (2 * OP_DRAW_LANES) + 1);
}

static inline bool op_draw_may_rise(const struct op_draw *op, float cut, double sum_below)
{
    return (double)cut * sum_below <= op->variance;
}

/* Items [begin, end) of a draw; begin is a multiple of OP_DRAW_LANES. */
struct op_draw_piece {
    uint32_t begin, end;
    uint32_t n_open; /* values that may be as high as the cut: in logw, from `begin` on */
    double below;    /* sum of the others */
    uint32_t chance[OP_DRAW_LANES]; /* sums of the piece's chances */
    uint32_t n_taken;
    char pad[128 - sizeof(double) - (4 + OP_DRAW_LANES) * sizeof(uint32_t)]; /* lines of its own */
};

/* A draw in pieces: one worker's each. All are opened, then the cut is found from all of them, in
 * their order; then they are taken, each with its lanes' sums as the piece before has left them, or
 * as `add` tells the sums of those before. */
struct ops_draw {
    void (*open)(const struct op_draw *op, struct op_draw_piece *p);
    float (*cut)(const struct op_draw *op, const struct op_draw_piece *p, uint32_t n_piece);
    void (*add)(const struct op_draw *op, struct op_draw_piece *p, float cut);
    /* To item and logw from number `at` on, which is not behind `begin`. Sums are not looked at by
     * steady draws. */
    void (*take)(const struct op_draw *op, struct op_draw_piece *p, float cut,
                 uint32_t sum[OP_DRAW_LANES], uint32_t at);
};

struct op_keys { /* keys of sealed pages in f32, the same bits as page_read's; one worker's */
    const struct page_geom *geom;
    struct page_frames frames;
    const page_id *page; /* [n_page] */
    uint32_t n_page;
    /* [n_page] bit t: token t is wanted, and rows of others are not there; NULL: all are */
    const uint32_t *tok;
    float *out; /* [n_page * PAGE_TOK, head_dim] */
};

/* The wanted tokens of page i. */
static inline uint32_t op_keys_tok(const struct op_keys *op, uint32_t i)
{
    return op->tok ? op->tok[i] : UINT32_MAX;
}

/* What tokens of a page weigh for some queries under given logits: weight = exp(logit - most) with
 * the largest of a query's logits, 0 behind n_tok, and their sum. A logit that is not finite leaves
 * a sum that is not finite. One worker's, no alignment. */
struct op_raise {
    const float *logit; /* [group, PAGE_TOK] */
    uint32_t group, n_tok;
    float *weight;     /* [group, PAGE_TOK] */
    float *most, *sum; /* [group] */
};

/* Adds the values of a sealed page under such weights, times a query's `by`. One worker's, no
 * alignment. */
struct op_blend {
    const struct page_geom *geom;
    const uint8_t *page;
    const float *weight, *by; /* [group, PAGE_TOK], [group] */
    uint32_t group;
    float *value; /* [group, head_dim] */
};

/* out[i][j] = a[i] . b[j]; width is a multiple of 16; one worker's, no alignment. */
struct op_dots {
    const float *a, *b; /* [n_a, width], [n_b, width] */
    size_t a_stride, b_stride;
    uint32_t n_a, n_b, width;
    float *out; /* [n_a, n_b], stride out_stride */
    size_t out_stride;
};

/* The same of rows in bf16, for estimates: a third to a sixth of the work. Rows of `b` are packed
 * before, blocks of OP_DOTS_ROWS of them behind each other in an order of the set's own, so that
 * any block may be packed alone. One worker's. */
#define OP_DOTS_ROWS 32u
struct op_pack {
    const float *b; /* [n_b, width], stride b_stride */
    size_t b_stride;
    uint32_t n_b, width; /* width is a multiple of 32 */
    const float *less;   /* [width] taken from every row before it is rounded; or NULL */
    uint16_t *out;       /* [n_b, width], n_b rounded up to OP_DOTS_ROWS; aligned to 64 */
};

struct op_dots_bf16 {
    const uint16_t *a; /* [n_a, width], bf16; rows up to a multiple of OP_DOTS_ROWS hold anything */
    size_t a_stride;
    const uint16_t *b; /* [n_b, width] packed */
    uint32_t n_a, n_b, width;
    float *out; /* [n_a, n_b], stride out_stride */
    size_t out_stride;
};

/* Scores of some rows and of a panel of keys as weights of a softmax over many panels; one
 * worker's. With share = weight * exp(top - ln sum exp(score over all panels)), which op_lines
 * makes, no score is kept in full, and none is made twice. */
struct op_weigh {
    const float *score; /* [n_row, width], stride score_stride */
    size_t score_stride;
    uint32_t n_row, width; /* width is a multiple of 16 */
    const uint32_t *n; /* [n_row] so many scores, the first ones, count; others may be anything */
    uint16_t *weight;  /* [n_row, width] out: f16, exp(score - top); 0 behind n */
    /* [n_row] out: the largest score of this panel or of those before, or less; -INFINITY if none
     * counts */
    float *top;
    float *max, *sum; /* [n_row] of all panels so far: sum of exp(score - max); first -INFINITY
                         and 0 */
};

/* Adds a panel's shares to sums along lines; one worker's. */
struct op_lines {
    uint16_t *weight;       /* [n_row, width] of op_weigh, and its top */
    const float *top, *lse; /* [n_row] */
    uint32_t n_row, width;
    float *column;         /* [width] += shares of all rows */
    float *down;           /* down[first[i] + j] += share j of row i */
    const uint32_t *first; /* [n_row] those of rows without a score are not looked at */
    bool keep;             /* shares replace the weights, in bf16, and what is added are these */
};

/* What lines hold for each of their cells that no line of the other kind has: key[i] = left[i] /
 * max(1, cells). Line i has n - max(pos0, i) cells; before[i] - before[min(n, n - pos0 + i)] lines
 * cross it. One worker's. */
struct op_rate {
    const float *left;      /* [n] */
    const uint32_t *before; /* [n + 1], the last one 0 */
    uint32_t n, pos0;
    float *key; /* [n] out */
    float *top; /* [n / OP_RATE_LINES, rounded up] out: their largest, or 0 if none is larger */
};
#define OP_RATE_LINES 64u

struct ops;

/* A sample of the keys of sealed pages that stands for all of them, by importance: a key of mass m,
 * the root of the mean square of its shares of the queries' softmax sums, is taken with probability
 * min(1, m / least), and counts least / m times if that is more than 1. So sums over what is taken
 * have the expectation of sums over all keys, and the variance of a softmax sum, its mean over the
 * queries, is at most `least` times the masses of what is not taken for certain: no other choice of
 * as many keys has a smaller one. A key of one query alone has a mass of its share over the root of
 * the number of queries, where a mean would have it over the number. An estimate:
 * logits carry the error of 8-bit mantissas of queries and keys, masses 3 %, and the sum that they
 * are shares of comes from the first page, the last pages and one of OP_SURVEY_STRIDE of the
 * others.
 *
 * Queries come in sets; those of set s see the first n_page[s] pages, and other keys besides, of
 * which the caller knows the sum. A set has parts (query heads), each with a sample of its own. */
#define OP_SURVEY_ROWS   16u /* queries of a part are a multiple of it */
#define OP_SURVEY_NEAR   4u  /* last pages, all of which are summed up */
#define OP_SURVEY_STRIDE 8u  /* twice that where OP_SURVEY_FAR pages or more are in question */
#define OP_SURVEY_FAR    512u
#define OP_SURVEY_OCTAVE 8u /* steps of a weight to a factor of two */
struct op_survey {
    const struct ops *ops; /* the table that holds this slot */
    const struct page_geom *geom;
    struct page_frames frames;
    const page_id *page;
    const uint32_t *n_page; /* [n_set] ascending */
    uint32_t n_set, n_part, n_query;
    const float *q;   /* [n_set][n_part][n_query][head_dim]: logit = q . key */
    const float *lse; /* [n_set][n_part][n_query] ln of the sum of exp(logit) over the other keys */
    float least;
    float spread;  /* this share of a page's mass counts as if spread evenly over its keys */
    uint32_t seed; /* of the choice, the same for the same result */
    /* [n_set][n_part][n_word] bit t of word p: key p * PAGE_TOK + t is taken. Words of pages that
     * the set sees are written. */
    uint32_t *mask;
    uint32_t n_word;
    uint8_t *weight;   /* [n_set][n_part][n_word * PAGE_TOK] a taken key's, in steps; others: any */
    uint32_t *n_taken; /* [n_set][n_part] */
    void *scratch;     /* [ops_survey_scratch], aligned to 64 */
    uint8_t *room;     /* a worker's [ops_survey_room] at room + worker * room_stride, both of 64 */
    size_t room_stride;
};

static inline size_t ops_survey_scratch(uint32_t n_set, uint32_t n_part, uint32_t n_query,
                                        uint32_t head_dim)
{
    const size_t n = (size_t)n_set * n_part * n_query;
    return n * ((size_t)head_dim * 4 + 132) + (size_t)head_dim * 4 + 2048;
}

static inline size_t ops_survey_room(uint32_t n_query, uint32_t head_dim)
{
    return PAGE_TOK * ((size_t)head_dim * 36 + (size_t)n_query * 4) + 8704;
}

/* ---- The table ---- */

struct op_lane_boxes;
struct op_lane_logits;
struct op_lane_shares;
struct op_lane_vote;
struct op_lane_fold;
struct op_lane_ends;
struct op_lane_take;
struct op_lane_draw;
struct op_lane_visit;
struct op_lane_bounds;
struct op_lane_begin;
struct op_lane_list;
struct op_lane_observe;
struct op_lane_keep;
struct op_lane_lines;
struct op_past;
struct op_lane_recall;
struct op_lane_settle;
struct op_lane_rest;
struct op_note;
struct op_sample;
struct op_blocks;
struct op_trace;
struct op_antidiag;

/* Choosing for lists of lanes: lanes.h. */
struct ops_lanes {
    void (*boxes)(struct workers *pool, const struct ops *ops, const struct op_lane_boxes *op,
                  uint32_t n);
    void (*logits)(struct workers *pool, const struct ops *ops, const struct op_lane_logits *op,
                   uint32_t n);
    void (*shares)(struct workers *pool, const struct ops *ops, const struct op_lane_shares *op,
                   uint32_t n);
    void (*vote)(struct workers *pool, const struct ops *ops, const struct op_lane_vote *op,
                 uint32_t n);
    void (*fold)(struct workers *pool, const struct ops *ops, const struct op_lane_fold *op,
                 uint32_t n);
    void (*ends)(struct workers *pool, const struct ops *ops, const struct op_lane_ends *op,
                 uint32_t n);
    void (*take)(struct workers *pool, const struct ops *ops, const struct op_lane_take *op,
                 uint32_t n);
    void (*draw)(struct workers *pool, const struct ops *ops, const struct op_lane_draw *op,
                 uint32_t n);
    void (*visit)(struct workers *pool, const struct ops *ops, const struct op_lane_visit *op,
                  uint32_t n);
    void (*bounds)(struct workers *pool, const struct ops *ops, const struct op_lane_bounds *op,
                   uint32_t n);
    /* NULL on the host. */
    void (*begin)(struct workers *pool, const struct op_lane_begin *op, uint32_t n);
    void (*list)(struct workers *pool, const struct op_lane_list *op, uint32_t n);
    void (*observe)(struct workers *pool, const struct op_lane_observe *op, uint32_t n);
    void (*keep)(struct workers *pool, const struct op_lane_keep *op, uint32_t n);
    void (*lines)(struct workers *pool, const struct op_lane_lines *op, uint32_t n);
    void (*past)(struct workers *pool, const struct op_past *op, uint32_t n);
    void (*recall)(struct workers *pool, const struct op_lane_recall *op, uint32_t n);
    void (*settle)(struct workers *pool, const struct op_lane_settle *op, uint32_t n);
    void (*rest)(struct workers *pool, const struct op_lane_rest *op, uint32_t n);
    void (*note)(struct workers *pool, const struct op_note *op);
    void (*sample)(struct workers *pool, const struct op_sample *op); /* plans.h */
    void (*blocks)(struct workers *pool, const struct op_blocks *op);
    void (*trace)(struct workers *pool, const struct op_trace *op);
    void (*antidiag)(struct workers *pool, const struct op_antidiag *op);
};

struct op_mass;

/* What joined documents ask of a device: mass.h. NULLs on the host, where pages are looked up one
 * by one. */
struct ops_docs {
    void (*unseal)(struct workers *pool, const struct op_unseal *op);
    void (*mass)(struct workers *pool, const struct op_mass *op);
};

struct op_depot_store;
struct op_depot_renew;
struct op_depot_fetch;

/* Pages below a device's memory: depot.h. NULLs on the host. */
struct ops_depot {
    void (*store)(struct workers *pool, const struct op_depot_store *op);
    void (*renew)(struct workers *pool, const struct op_depot_renew *op);
    void (*fetch)(struct workers *pool, const struct op_depot_fetch *op);
};

struct ops {
    const char *isa; /* highest set in use: "ref", "avx2", "avx512", "amx", "neon" */
    void (*linear)(struct workers *pool, const struct op_linear *op);
    void (*attn)(struct workers *pool, const struct op_attn *op);
    void (*kv_write)(struct workers *pool, const struct op_kv_write *op);
    void (*seal)(struct workers *pool, const struct op_seal *op);
    void (*rmsnorm)(struct workers *pool, const struct op_rmsnorm *op);
    void (*rope)(struct workers *pool, const struct op_rope *op);
    void (*add)(struct workers *pool, const struct op_add *op);
    void (*score_pages)(const struct op_score_pages *op);
    bool (*share_planes)(const struct op_share_planes *op); /* false: a logit is not finite */
    /* The same in pieces, for which `op` names all pages. First that of page 0, then those that
     * cover the others, in any order and by any worker: exponentials of these pages, and their sums
     * for each query head in sum [group]. Then, from the sums of all, the shares of any pages. */
    bool (*share_begin)(const struct op_share_planes *op, float *sum);
    bool (*share_raise)(const struct op_share_planes *op, struct attn_range pages, float *sum);
    void (*share_spread)(const struct op_share_planes *op, struct attn_range pages,
                         const float *sum);
    bool (*vote)(const struct op_vote *op); /* false: a score is NaN or infinite */
    struct op_cut (*best)(const struct op_best *op);
    void (*mark)(const struct op_mark *op);
    void (*top)(struct workers *pool, const struct op_top *op);
    struct ops_draw draw;
    void (*keys)(const struct op_keys *op);
    void (*dots)(const struct op_dots *op);
    /* The same, in bits of its own, where both sides are few rows, which nothing is laid out for.
     */
    void (*dots_few)(const struct op_dots *op);
    void (*raise)(const struct op_raise *op);
    void (*blend)(const struct op_blend *op);
    bool (*pack)(const struct op_pack *op); /* false: a number is not finite */
    void (*dots_bf16)(const struct op_dots_bf16 *op);
    bool (*weigh)(const struct op_weigh *op); /* false: a score that counts is NaN or infinity */
    void (*lines)(const struct op_lines *op);
    void (*rate)(const struct op_rate *op);
    bool (*survey)(struct workers *pool,
                   const struct op_survey *op); /* false: a key or sum is not finite */
    struct ops_lanes lanes;
    struct ops_depot depot;
    struct ops_docs docs;
    /* Bytes of scratch that one call may need, for at most n_row rows of these shapes. */
    size_t (*linear_scratch)(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum);
    size_t (*attn_scratch)(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max);
};

/* Fills the table for this CPU, restricted by the environment variable SAC_CPU ("ref", "avx2",
 * "avx512", "amx"; each names the highest set allowed). An unknown name is SAC_ERR_ARG; a set that
 * the CPU lacks is SAC_ERR_UNSUPPORTED. */
sac_status ops_init(struct ops *out, sac_error *err);
/* The same with a name instead of the environment ("" or NULL: the best). Tests use it. */
sac_status ops_init_isa(struct ops *out, const char *isa, sac_error *err);

/* One row per file that fills slots; each is defined in ops/cpu and overwrites what it improves. */
void ops_fill_ref_linear(struct ops *o);
void ops_fill_ref_attn(struct ops *o);
void ops_fill_ref_small(struct ops *o);
void ops_fill_ref_score(struct ops *o);
void ops_fill_ref_best(struct ops *o);
void ops_fill_ref_draw(struct ops *o);
void ops_fill_ref_dots(struct ops *o);
void ops_fill_ref_blend(struct ops *o);
void ops_fill_ref_weigh(struct ops *o);
void ops_fill_ref_survey(struct ops *o);
void ops_fill_lanes(struct ops *o);

#endif
