/* ops.h: the table of operations. One slot per operation; `ref` fills all of them with plain C,
 * then avx2, avx512, amx (or neon) overwrite slots in ascending order, once, in ops_init.
 *
 * Contract of every slot:
 *  - f32 activations are row-major [n_row, width] with a stride in floats; pointers are 64-byte
 *    aligned unless stated otherwise; in and out may be the same array only where stated.
 *  - A slot splits its work over `pool` itself and returns when all of it is done. Results do not
 *    depend on the number of workers, on n_row, or on which other rows are in the call (design D7):
 *    a row's arithmetic and its order are determined by the row alone (and its `kind`, a property
 *    of the row).
 *  - No slot allocates. Scratch belongs to the caller, sized by ops_*_scratch for the largest
 *    shapes.
 *  - NaN and infinities propagate as in IEEE arithmetic; they never cause a crash or a hang. */
#ifndef SAC_OPS_OPS_H
#define SAC_OPS_OPS_H

#include "base/workers.h"
#include "ops/page.h"
#include "ops/segment.h"
#include "ops/weight.h"

#include <string.h>

/* A property of a row, not of the call. Rows of different kinds are rounded differently, and a row
 * has the same result whatever else is computed with it. */
enum row_kind {
    ROW_DECODE, /* one row of a sequence at a time: limited by memory bandwidth */
    ROW_PROMPT, /* many consecutive rows: limited by arithmetic */
};

/* ---- Linear layers ----
 *
 * Decode rows use narrow kernels, with 8-bit activations if the ISA has them; prompt rows use wide
 * ones, with 16-bit floats if the ISA has them. */

enum linear_epilogue {
    LINEAR_STORE,    /* y  = W x + bias */
    LINEAR_ADD,      /* y += W x + bias (the residual stream) */
    LINEAR_GLU_SILU, /* part 0 = gate, part 1 = up: part[0].y = silu(gate) * up */
    LINEAR_GLU_GELU, /* the same with gelu, tanh form */
};

#define LINEAR_PARTS_MAX 3

/* Up to three matrices with the same input (q/k/v, gate/up): the input is normalized, rounded and
 * packed once. */
struct op_linear {
    const float *x; /* [n_row, n_in], stride x_stride */
    size_t x_stride;
    uint32_t n_row, n_in;
    const float *norm; /* [n_in] or NULL: x is first RMS-normalized and multiplied by it */
    float norm_eps;
    enum row_kind kind;
    enum linear_epilogue epilogue;
    bool keep_y; /* only the next call reads a GLU's y, so that any format that fits its place is
                    allowed */
    bool kept_x; /* x is such a y: the same number of rows of the same kind, and no norm */
    uint32_t n_part;
    struct linear_part {
        const struct weight *w; /* n_in as above */
        const float *bias;      /* [n_out] or NULL */
        float *y;               /* [n_row, n_out], stride y_stride; part 1 of a GLU: unused */
        size_t y_stride;
    } part[LINEAR_PARTS_MAX];
    /* NULL, or for a single part the groups [n_group] of WEIGHT_GROUP outputs to compute,
     * ascending; not for a GLU, and for decode rows only. */
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
    uint32_t n_before; /* number of tokens that it reads before the tile */
    uint32_t why;      /* enum plan_reason: why it reads everything */
    float mass;        /* attention mass of one row that it keeps; negative: unknown */
};

/* What the rows of a prompt run read before their own page, in layers without a window. Rows come
 * in tiles of tile_tok positions, aligned to tile_tok in the sequence. List i = tile * n_kv_head +
 * h, with tiles counted from that of pos0, or (by_head) tile * n_head + query head, contains
 *  - the page ranges range[range_ptr[i] .. range_ptr[i+1]-1], ascending and disjoint; a row skips
 *    those pages that are not before its own,
 *  - in addition (unless tok is NULL) the tokens tok[tok_ptr[i] .. tok_ptr[i+1]-1], ascending,
 *    outside the ranges, in pages before that of the tile's first row. tok_logw, if set, is added
 *    to their scores (after the softcap). */
struct attn_plan {
    uint32_t tile_tok; /* a multiple of PAGE_TOK */
    bool by_head;      /* a list for each query head, not for each KV head */
    const struct attn_range *range;
    const uint32_t *range_ptr;
    const uint32_t *tok, *tok_ptr;
    const float *tok_logw; /* beside tok, or NULL */
    /* Lists made by a device, in its memory like all of the above: list i has made[i].n_range
     * ranges at range + i * range_max, and made[i].n_tok tokens at tok + i * tok_max. range_ptr and
     * tok_ptr are then NULL. NULL: the lists are the host's. */
    const struct attn_list *made;
    uint32_t range_max, tok_max;
    /* > 0: a row skips a group of adjacent tokens of its list whose softmax weights add up to less
     * than this fraction of the row's sum so far. The kernel decides the group size and the order;
     * the group of the own page is never skipped. */
    float skip;
};

/* What a row reads of a KV head if a device has made the lists. */
struct attn_count {
    uint32_t dense;      /* 1: everything, ignoring the lists */
    uint32_t not_finite; /* 1: because of a NaN or infinity */
    uint32_t n_page, n_tok, n_chosen;
    uint32_t n_line;                  /* lines of 64 bytes read: page_lines.h */
    uint32_t n_line_tok;              /* further lines, unless dense: of sampled tokens */
    uint32_t n_line_scored, n_bypass; /* as in struct op_lane_result */
};

/* Lists of KV head h: count[h] entries from h * stride pages on. */
struct attn_chosen {
    const struct attn_count *count; /* [n_kv_head]; NULL: no selection by a device */
    const uint32_t *page, *tok;     /* [n_kv_head][stride], [n_kv_head][stride * PAGE_TOK] */
    const float *logw;              /* [n_kv_head][stride * PAGE_TOK], or NULL */
    size_t stride;
};

/* Consecutive rows of one sequence. A row at position p reads, in this order of meaning: every
 * sealed page before its own, i.e. pages 0 .. p/PAGE_TOK - 1, in sealed form, and its own page
 * p/PAGE_TOK, tokens up to p, in 16-bit form from `own`. The result therefore does not depend on
 * how a prompt was split into chunks. */
struct attn_run {
    uint32_t row0, n_row; /* rows of the batch */
    uint32_t pos0;        /* position of the first */
    enum row_kind kind;   /* decode: n_row is 1 */
    /* Its rows follow those of the previous run in the batch and in the same sequence, with the
     * same table and plan (which has one list for all of them and is not by_head), and segments
     * that begin with that run's: a kernel may compute both together. Results do not change. */
    bool joins;
    const page_id *table; /* [n_kv_head, table_stride] sealed pages by page index */
    size_t table_stride;
    /* [n_kv_head, table_stride] frames of the table's pages, in memory of a device that reads these
     * and neither `table` nor page_frames.of; NULL on a CPU. */
    const uint32_t *frame;
    /* 16-bit pages of this run, tail form: first the page of pos0, then those after it: head h's
     * page of index pos0/PAGE_TOK + j is at own0 + h * geom.tail_bytes for j = 0 and at own +
     * ((j-1) * n_kv_head + h) * geom.tail_bytes after. */
    uint8_t *own0, *own;
    /* What the row of a decode run reads before its own page; NULL: all pages (dense). For KV head
     * h the pages select[select_ptr[h] .. select_ptr[h+1]-1], ascending, each below pos0/PAGE_TOK,
     * and in addition (requires `select`, which may name no page) the single tokens
     * select_tok[select_tok_ptr[h] .. select_tok_ptr[h+1]-1], ascending, of such pages, outside the
     * selected ones. select_logw: added to the tokens' scores (after the softcap), or NULL. */
    const uint32_t *select, *select_ptr;
    const uint32_t *select_tok, *select_tok_ptr;
    const float *select_logw;
    /* [n_kv_head] heads whose selection has been attended to elsewhere: they read only their own
     * page. NULL: none. */
    const bool *attended;
    /* Instead of `select`: the selection of a device, in its own memory. */
    struct attn_chosen chosen;
    const struct attn_plan *plan; /* the same for the rows of a prompt run; NULL: dense */
    /* [n_segment] of pages before that of pos0, all of whose keys need a rotated query; NULL:
     * none. */
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

#define ATTN_TAKE_PAGES  32u /* maximum whole pages that a worker takes at a time */
#define ATTN_TAKE_TOKENS (ATTN_TAKE_PAGES * PAGE_TOK) /* the same for pages of single tokens */

/* For runs whose pages may not all be in memory at once: a worker takes the pages that it reads
 * next, none twice, and releases them before it takes others. Which pages are taken together
 * depends on the run alone, and no result depends on where they were. */
struct attn_pager {
    /* False: they cannot be loaded; the run's rows will be unusable. */
    bool (*take)(void *user, const page_id *id, uint32_t n);
    void (*give)(void *user, const page_id *id, uint32_t n);
    /* Announces pages that will probably be taken soon. */
    void (*ahead)(void *user, const page_id *id, uint32_t n);
    void *user;
};

struct op_attn {
    const struct page_geom *geom;
    struct page_frames frames;
    const struct attn_pager *pager; /* NULL: all pages to read are in their frames */
    uint32_t n_head;                /* query heads, a multiple of geom->n_kv_head */
    const float *q;                 /* [n_row, n_head, head_dim] after RoPE, stride q_stride */
    size_t q_stride;
    /* After this call nobody reads q or the arrays from which the keys of these rows were written,
     * and no two runs have the same own page. */
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
    uint64_t *n_skip; /* [n_worker] += skipped pairs of query and key; or NULL */
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

/* The inverse for whole pages: sealed form -> tail form, as page_unseal. */
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
    uint32_t n_row, n_group, width; /* a row has n_group consecutive groups (heads) */
    const float *w;                 /* [width] */
    float eps;
};

struct op_rope { /* in place on [n_row, n_head, head_dim] */
    float *x;
    size_t x_stride;
    uint32_t n_row, n_head, head_dim, n_rot; /* the first n_rot channels are rotated */
    bool interleaved;       /* pairs (2i, 2i+1); else NEOX pairs (i, i + n_rot/2) */
    const float *cos, *sin; /* [n_row, n_rot/2], magnitude factor included */
};

struct op_add { /* y = x + y, element-wise */
    const float *x;
    float *y;
    size_t n;
};

/* One device's part of a sum over all devices, in the order of devices. All of them get the result:
 * y = part[0] + part[1] + ... */
struct op_sum {
    const float *part; /* this device's; may be y */
    float *y;
    size_t n;  /* the same on all devices; at most n_word of struct cuda_api's join */
    bool adds; /* y = y + part[0] + part[1] + ... */
};

/* ---- Scores for selection ----
 *
 * Called by one worker for one KV head of one row: these slots split nothing, and write only where
 * a pointer is not const. Pages are named by id: page id's data is at base + id * stride; or, if it
 * is part of the page's bytes in its frame, at base + frame_of[id] * stride. */

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

/* Softmax shares of all tokens of the pages, mean over the query heads, as approximated by the
 * first plane of a q8 page: token t of page i has the logit scale * q[g] . (min + step * (64 *
 * hi2(t) + 31.5)). Shares are approximate: 2^x may be 6 % too large. */
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
    float *lse;   /* [group] out: ln of the sum of exp(logit), equally approximate; or NULL */
    void *frame;  /* [OPS_SHARE_FRAME] of share_begin, aligned to 64 */
};
/* Bytes for what the pages of one call have in common. */
#define OPS_SHARE_FRAME (44u * 1024)

struct op_vote { /* vote[i] = mean over g of softmax(score[g])[i], lse[g] = ln sum exp(score[g]) */
    const float *score; /* [group, n], stride score_stride */
    size_t score_stride;
    uint32_t n, group;
    float *vote; /* [n] */
    float *lse;  /* [group] */
};

/* The threshold of the best of many items: higher values rank first, then lower indices; NaN ranks
 * below all. */
struct op_best {
    const float *value; /* [n] */
    uint32_t n;
    bool by_sum;     /* the target is a sum of values, none of them negative; otherwise a number of
                        items */
    double target;   /* the fewest items that reach it are taken; all if none do */
    uint32_t *spare; /* [n] scratch */
};

/* A threshold: items whose key is above `key` are taken, and the first n_tie that equal it. */
struct op_cut {
    uint32_t key, n_tie;
};

/* Maps values to integers of the same order. */
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

/* The k largest values of each row in descending order, lower ids first among equals; NaN ranks
 * below all. */
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

/* Sets the bits of the items that a threshold takes, PAGE_TOK to a word. */
struct op_mark {
    const float *value; /* [n_page * PAGE_TOK] */
    struct op_cut cut;
    uint32_t n_page;
    const uint32_t *page; /* [n_page] indices of words of `mask`; NULL: 0, 1, ... */
    uint32_t *mask;
};

/* An importance sample of many items, so that a weighted mean over it estimates the mean over all:
 * items whose value is not below a cut are always taken, others with probability value / cut and
 * weight cut / value. Systematic sampling: probabilities are accumulated by position, in
 * OP_DRAW_LANES lanes to which items are assigned in turn; an item is taken when its lane's sum
 * passes an integer, so the items taken are spread evenly among similar ones. Sums have 32
 * fractional bits and start as far from each other as possible.
 *
 * Values are shares: none is negative, and their sum is at most 1. The variance of the estimate is
 * at most cut * (sum of values below the cut), and the cut is the highest that keeps this at or
 * below `variance`.
 *
 * A steady draw has the same cut, and other items and weights: steady.h. */
struct op_draw {
    const float *value; /* [n] */
    uint32_t n, first;  /* item i is number first + i */
    double variance;
    uint32_t *item; /* [n] out: taken, ascending */
    float *logw;    /* [n] out: logs of their weights */
    bool steady;    /* items are tokens, and `first` is that of a page; host only */
    uint32_t key;   /* key of its random numbers: the same for the same lane of all rows */
    uint32_t pos;   /* position of the row */
};
#define OP_DRAW_LEAST 0x1p-40f   /* minimum cut */
#define OP_DRAW_STEP  (1u << 19) /* resolution of cuts, in their bits: a sixteenth of an octave */
#define OP_DRAW_LANES 16u

/* Initial value of a lane's sum. */
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
    uint32_t n_open; /* number of values that may reach the cut: in logw, from `begin` on */
    double below;    /* sum of the others */
    uint32_t chance[OP_DRAW_LANES]; /* sums of the piece's chances */
    uint32_t n_taken;
    /* against false sharing */
    char pad[128 - sizeof(double) - (4 + OP_DRAW_LANES) * sizeof(uint32_t)];
};

/* A draw in pieces, each by one worker. First all pieces are opened. Then the cut is found from all
 * of them, in order. Then items are taken, each piece with the lanes' sums as the previous piece
 * has left them, or as `add` gives the sums of the pieces before. */
struct ops_draw {
    void (*open)(const struct op_draw *op, struct op_draw_piece *p);
    float (*cut)(const struct op_draw *op, const struct op_draw_piece *p, uint32_t n_piece);
    void (*add)(const struct op_draw *op, struct op_draw_piece *p, float cut);
    /* Writes to item and logw from index `at` on, which is not after `begin`. Steady draws do not
     * use the sums. */
    void (*take)(const struct op_draw *op, struct op_draw_piece *p, float cut,
                 uint32_t sum[OP_DRAW_LANES], uint32_t at);
};

struct op_keys { /* keys of sealed pages in f32, the same bits as page_read's; one worker's */
    const struct page_geom *geom;
    struct page_frames frames;
    const page_id *page; /* [n_page] */
    uint32_t n_page;
    /* [n_page] bit t: token t is wanted, and rows of others are not written; NULL: all are */
    const uint32_t *tok;
    float *out; /* [n_page * PAGE_TOK, head_dim] */
};

/* The wanted tokens of page i. */
static inline uint32_t op_keys_tok(const struct op_keys *op, uint32_t i)
{
    return op->tok ? op->tok[i] : UINT32_MAX;
}

/* Softmax weights of a page's tokens for some queries under given logits: weight = exp(logit -
 * most), where `most` is the largest logit of a query; 0 from n_tok on; and their sums. A logit
 * that is not finite gives a sum that is not finite. For one worker, no alignment. */
struct op_raise {
    const float *logit; /* [group, PAGE_TOK] */
    uint32_t group, n_tok;
    float *weight;     /* [group, PAGE_TOK] */
    float *most, *sum; /* [group] */
};

/* value += the values of a sealed page under such weights, times a query's `by`. For one worker, no
 * alignment. */
struct op_blend {
    const struct page_geom *geom;
    const uint8_t *page;
    const float *weight, *by; /* [group, PAGE_TOK], [group] */
    uint32_t group;
    float *value; /* [group, head_dim] */
};

/* out[i][j] = a[i] . b[j]; width is a multiple of 16. For one worker, no alignment. */
struct op_dots {
    const float *a, *b; /* [n_a, width], [n_b, width] */
    size_t a_stride, b_stride;
    uint32_t n_a, n_b, width;
    float *out; /* [n_a, n_b], stride out_stride */
    size_t out_stride;
};

/* The same with rows in bf16, for estimates: a third to a sixth of the work. Rows of `b` are packed
 * first, in consecutive blocks of OP_DOTS_ROWS whose layout depends on the instruction set, so that
 * any block may be packed alone. For one worker. */
#define OP_DOTS_ROWS 32u
struct op_pack {
    const float *b; /* [n_b, width], stride b_stride */
    size_t b_stride;
    uint32_t n_b, width; /* width is a multiple of 32 */
    const float *less;   /* [width] subtracted from every row before it is rounded; or NULL */
    uint16_t *out;       /* [n_b, width], n_b rounded up to OP_DOTS_ROWS; aligned to 64 */
};

struct op_dots_bf16 {
    const uint16_t *a; /* [n_a, width], bf16; rows up to a multiple of OP_DOTS_ROWS have any
                          content */
    size_t a_stride;
    const uint16_t *b; /* [n_b, width] packed */
    uint32_t n_a, n_b, width;
    float *out; /* [n_a, n_b], stride out_stride */
    size_t out_stride;
};

/* Softmax weights of some rows over a panel of keys, one of many panels; for one worker. With share
 * = weight * exp(top - ln sum exp(score over all panels)), which op_lines computes, no score is
 * stored in full, and none is computed twice. */
struct op_weigh {
    const float *score; /* [n_row, width], stride score_stride */
    size_t score_stride;
    uint32_t n_row, width; /* width is a multiple of 16 */
    const uint32_t *n;     /* [n_row] number of valid scores, which come first */
    uint16_t *weight;      /* [n_row, width] out: f16, exp(score - top); 0 from n on */
    /* [n_row] out: the largest score of this panel or of those before, or less; -INFINITY if none
     * is valid */
    float *top;
    float *max, *sum; /* [n_row] over all panels so far: sum of exp(score - max); initially
                         -INFINITY and 0 */
};

/* Adds a panel's shares to sums along columns and diagonals; for one worker. */
struct op_lines {
    uint16_t *weight;       /* [n_row, width] of op_weigh, and its top */
    const float *top, *lse; /* [n_row] */
    uint32_t n_row, width;
    float *column;         /* [width] += shares of all rows */
    float *down;           /* down[first[i] + j] += share j of row i */
    const uint32_t *first; /* [n_row] unused for rows without a score */
    bool keep;             /* shares replace the weights, in bf16, and these are what is added */
};

/* Attention of lines per cell that no line of the other kind covers: key[i] = left[i] / max(1,
 * cells). Line i has n - max(pos0, i) cells; before[i] - before[min(n, n - pos0 + i)] lines cross
 * it. For one worker. */
struct op_rate {
    const float *left;      /* [n] */
    const uint32_t *before; /* [n + 1], the last one 0 */
    uint32_t n, pos0;
    float *key; /* [n] out */
    float *top; /* [n / OP_RATE_LINES, rounded up] out: their largest, or 0 if none is larger */
};
#define OP_RATE_LINES 64u

struct ops;

/* A sample of the keys of sealed pages that represents all of them, by importance: a key of mass m,
 * the root of the mean square of its shares of the queries' softmax sums, is taken with probability
 * min(1, m / least), and counts least / m times if that is more than 1. Sums over what is taken
 * therefore have the expectation of sums over all keys, and the variance of a softmax sum, its mean
 * over the queries, is at most `least` times the masses of what is not always taken: no other
 * selection of as many keys has a smaller one. A key of one query alone has a mass of its share
 * over the root of the number of queries, where a mean would give its share over the number. An
 * estimate: logits have the error of 8-bit mantissas of queries and keys, masses 3 %, and the sum
 * to which shares refer comes from the first page, the last pages and one of OP_SURVEY_STRIDE of
 * the others.
 *
 * Queries come in sets; those of set s see the first n_page[s] pages, and other keys, of which the
 * caller knows the sum. A set has parts (query heads), each with a sample of its own. */
#define OP_SURVEY_ROWS   16u /* the number of queries of a part is a multiple of it */
#define OP_SURVEY_NEAR   4u  /* number of last pages, all of which are summed */
#define OP_SURVEY_STRIDE 8u  /* 1 of 8 other pages is summed, from OP_SURVEY_FAR on 1 of 16 */
#define OP_SURVEY_FAR    512u
#define OP_SURVEY_OCTAVE 8u /* steps of a weight per factor of two */
struct op_survey {
    const struct ops *ops; /* the table that contains this slot */
    const struct page_geom *geom;
    struct page_frames frames;
    const page_id *page;
    const uint32_t *n_page; /* [n_set] ascending */
    uint32_t n_set, n_part, n_query;
    const float *q;   /* [n_set][n_part][n_query][head_dim]: logit = q . key */
    const float *lse; /* [n_set][n_part][n_query] ln of the sum of exp(logit) over the other keys */
    float least;
    float spread;  /* this share of a page's mass counts as if spread evenly over its keys */
    uint32_t seed; /* the same seed gives the same selection */
    /* [n_set][n_part][n_word] bit t of word p: key p * PAGE_TOK + t is taken. Words of pages that
     * the set sees are written. */
    uint32_t *mask;
    uint32_t n_word;
    uint8_t *weight;   /* [n_set][n_part][n_word * PAGE_TOK] weight of a taken key, in steps;
                          undefined for others */
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

/* Selection for lists of lanes: lanes.h. */
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

/* Operations on joined documents: mass.h. NULLs on the host, where pages are looked up one by
 * one. */
struct ops_docs {
    void (*unseal)(struct workers *pool, const struct op_unseal *op);
    void (*mass)(struct workers *pool, const struct op_mass *op);
};

struct op_offload_store;
struct op_offload_renew;
struct op_offload_fetch;

/* Pages offloaded to host memory: offload.h. NULLs on the host. */
struct ops_offload {
    void (*store)(struct workers *pool, const struct op_offload_store *op);
    void (*renew)(struct workers *pool, const struct op_offload_renew *op);
    void (*fetch)(struct workers *pool, const struct op_offload_fetch *op);
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
    /* The same in pieces; `op` has all pages in each call. First page 0, then pieces that cover the
     * other pages, in any order and by any worker: they compute exponentials and their sums for
     * each query head, sum [group]. Then, from the sums of all pieces, the shares of any pages. */
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
    /* The same, but with other rounding, for few rows on both sides, where packing does not pay. */
    void (*dots_few)(const struct op_dots *op);
    void (*raise)(const struct op_raise *op);
    void (*blend)(const struct op_blend *op);
    bool (*pack)(const struct op_pack *op); /* false: a number is not finite */
    void (*dots_bf16)(const struct op_dots_bf16 *op);
    bool (*weigh)(const struct op_weigh *op); /* false: a valid score is NaN or infinite */
    void (*lines)(const struct op_lines *op);
    void (*rate)(const struct op_rate *op);
    bool (*survey)(struct workers *pool,
                   const struct op_survey *op); /* false: a key or sum is not finite */
    struct ops_lanes lanes;
    struct ops_offload offload;
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
/* The same with a name instead of the environment variable ("" or NULL: the best). For tests. */
sac_status ops_init_isa(struct ops *out, const char *isa, sac_error *err);

/* One entry per file that fills slots; each is defined in ops/cpu and overwrites what it
 * improves. */
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
