/* plans.h: the slots that choose what prompt rows read, of backends that are not the host.
 *
 * There nobody looks at queries, masks and lists before the step is over: one call does it all and
 * leaves for each tile a list that attention reads (attn_plan.made). One slot samples the rows of a
 * run's tiles and surveys the pages before them as the survey slot does (struct op_survey says what
 * is taken), for each query head; another chooses blocks of keys for whole segments of rows, for
 * each KV head; one chooses columns and diagonals, for each query head; and one blocks of keys for
 * tiles of rows, by their antidiagonals, for each query head, too. The contract is that of lanes.h.
 */
#ifndef SAC_OPS_PLANS_H
#define SAC_OPS_PLANS_H

#include "ops/ops.h"

/* Why a lane or a list reads everything; PLAN_SPARSE: it does not. */
enum plan_reason {
    PLAN_SPARSE = 0,
    PLAN_SHORT,    /* the context is too short for the method */
    PLAN_PAST,     /* it cannot go on from a past (method_prefill.needs_past_zero) */
    PLAN_LAYER,    /* it leaves this layer or these rows dense on purpose */
    PLAN_NO_GAIN,  /* it would read so much that dense is faster */
    PLAN_NAN,      /* a query, key or score is NaN or infinite */
    PLAN_OVERFLOW, /* the lists have no room for so many single tokens */
    PLAN_REASONS,
};

/* Rows of a sequence's run, [pos, end), and the tiles of them that get lists: tile i holds
 * positions (tile0 + i) * tile_tok and up. What lies behind pointers is memory of the backend but
 * for geom. */
struct op_prompt_rows {
    const struct page_geom *geom;
    struct page_frames frames; /* `of` is not looked at */
    const uint32_t *frame;     /* [n_kv_head, table_stride] of pages before end / PAGE_TOK */
    size_t table_stride;
    const uint8_t *own; /* [n_kv_head, tail_bytes] the page of row end - 1, unless it is full */
    const float *q;     /* row r: [n_head, head_dim] at q + r * q_stride */
    size_t q_stride;
    float scale;
    uint32_t n_head, pos, end, tile_tok, tile0, n_tile;
    uint32_t dense_to; /* tiles that end at or before this position read everything */
};

/* What is made: list i = tile * heads + head, of KV heads or query heads, as the call says. What
 * lies behind pointers is memory of the backend, rooms of these lists alone but for `failed`. */
struct op_prompt_lists {
    uint32_t *failed; /* [n_kv_head] `call` where something is not finite */
    uint32_t call;    /* no other has this number, and none has 0 */
    uint32_t range_max, tok_max;
    struct attn_range *range; /* [n_tile * heads][range_max], 2 or more */
    uint32_t *tok;            /* [n_tile * heads][tok_max], of calls that take single tokens */
    float *logw;              /* as tok; NULL: tokens have no weights */
    struct attn_list *made;   /* [n_tile * heads] */
};

#define OP_SAMPLE_TILE 256u /* positions of a tile */

/* Lists of query heads. */
struct op_sample {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists;
    /* What a method decides. */
    uint32_t n_query;    /* rows of a tile that are scored, a multiple of OP_SURVEY_ROWS */
    float least, spread; /* as in struct op_survey */
    uint32_t seed;       /* of KV head 0; those of others follow it */
    uint32_t n_recent;   /* pages before a tile that are read whole, as is the first page */
    double most;         /* a larger share than this is not read by lists */
    uint32_t dense_from; /* tiles with rows from this position on read everything */
    bool dense;          /* all of them do */
    /* Tile `audit` + i * audit_step: what the lists keep of the softmax of row `audit_row` of the
     * tile's rows, in turns, is told. */
    uint32_t audit, audit_step, audit_row;
    /* Rooms. */
    uint32_t n_word; /* of a list: pages before the last tile, at least */
    uint32_t *mask;  /* [n_tile * n_head][n_word] as of the survey slot */
    uint8_t *weight; /* [n_tile * n_head][n_word * PAGE_TOK] */
    uint16_t *query; /* [n_tile * n_head][n_query * head_dim] */
    float *start;    /* [n_tile * n_head][n_query] */
};

/* Rows of a run that share a choice: positions [begin, end). */
struct op_block_segment {
    uint32_t begin, end;
    uint32_t n_page; /* pages that are chosen from: the first ones, whole blocks */
    uint32_t n_take; /* blocks, at most as many as there are */
    enum plan_reason why;
};

/* With element-wise maxima Q+ and minima Q- of a segment's queries, and K+ and K- of a page's keys,
 * a page's score is the mean over the query heads of the larger of (Q+ + Q-) K+ / 2 and the same
 * with K-; a block's that of its best page. A softmax over the blocks before the segment, mixed
 * with that of the layer before, says which are read; the higher score before the softmax goes
 * first among equals, then the later block. `four`: a softmax over pages for each of the four
 * products and query head, of which the larger of two means counts, and none behind it.
 *
 * Lists of KV heads: blocks taken, what lies between the last block of the segment and the tile,
 * and the tile. What lies behind pointers is memory of the backend but for `segment`. */
struct op_blocks {
    struct op_prompt_rows rows;   /* of which keys and `scale` are not looked at */
    struct op_prompt_lists lists; /* of no tokens */
    /* What a method decides. */
    const uint8_t *box; /* minimum and width [head_dim] f16 of a page in frame f: a_at and b_at */
    size_t box_stride, a_at, b_at; /* behind box + f * box_stride, */
    float width;                   /* widths being in units of 1 / width */
    uint32_t segment_tok; /* a multiple of tile_tok: segment i holds positions (pos / segment_tok +
                             i) * segment_tok and up */
    uint32_t n_segment;
    struct op_block_segment *segment; /* [n_segment] of the host */
    uint32_t block;                   /* pages */
    float fuse;                       /* weight of the scores of the layer before */
    bool four;
    bool dense; /* everything is read */
    /* Rooms. */
    uint32_t n_word; /* pages before the last tile, at least */
    float *query;    /* [n_segment * n_head][2][head_dim] */
    float *sums;     /* [n_segment * n_head][4][2] */
    float *raw;      /* [n_segment * n_kv_head][n_word] */
    float *value;    /* the same */
    uint32_t *mask;  /* the same */
    uint32_t before; /* the call of the layer before; 0: there is none */
    float *fused;    /* of KV head h at h * fused_stride, of a segment fused_row apart: the call */
    size_t fused_stride, fused_row; /* that has written it, then its blocks. Stays between layers */
};

/* ---- Columns and diagonals ---- */

#define OP_TRACE_SIZES 5u   /* patterns of a head that are compared, at most */
#define OP_TRACE_BLOCK 128u /* positions of a tile of the pooled rule */

enum op_trace_rule {
    OP_TRACE_BEST,   /* so many of the best columns and diagonals */
    OP_TRACE_GREEDY, /* those with the most attention for each cell, until they hold a share */
    OP_TRACE_POOLED, /* whole blocks, by sums of lines or by pooled scores */
};

/* What a head reads. */
enum op_trace_family {
    OP_TRACE_LINES, /* so many columns and diagonals */
    OP_TRACE_ENDS,  /* the first n_column keys, and of each row the last n_slash */
    OP_TRACE_ALL,   /* everything: its patterns would, in a context so short */
};
struct op_trace_size {
    enum op_trace_family family;
    uint32_t n_column, n_slash;
};

/* Rows that are looked at: their attention to all keys before them is computed exactly, rounded to
 * bf16. */
struct op_trace_rows {
    uint32_t n;
    uint32_t *at; /* [n] of the host: positions, ascending, all in the run */
};

/* The attention of some rows of a run is summed along columns (a key) and diagonals (a distance),
 * the best of both are chosen, and all tiles of the run read what their rows meet of them: a column
 * as one token, a diagonal as the tile_tok tokens that the tile's rows have at that distance. Sums
 * are made of whole numbers, so they do not depend on an order.
 *
 * Lists of query heads: those tokens, and the tile. What lies behind pointers is memory of the
 * backend but for the rows that are looked at, and sizes. The mass of a head's lines, a share of
 * the judging rows' attention, is told with the list of its first tile. */
struct op_trace {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists;
    float softcap; /* of scores; 0: none */
    /* What a method decides. */
    enum op_trace_rule rule;
    enum plan_reason why; /* everything is read, and nothing looked at */
    struct op_trace_rows choose;
    struct op_trace_rows judge; /* that patterns are compared by; n = 0: those that choose */
    uint32_t n_size; /* patterns of each head: the one whose lines hold most of the attention, of
                        equal ones the first */
    struct op_trace_size *size; /* [n_size][n_head] of the host */
    uint32_t sink, band; /* so many first columns and diagonals are the best, whatever they hold */
    /* Of the greedy rule, which has one pattern, of lines. In rounds it takes all lines of which
     * the attention that no taken line holds, for each cell in the run's rows that none has, is at
     * least `beta` times the best line's; diagonals first; in the last round the best of them. */
    double mass; /* of all attention */
    float beta;
    double most;   /* lines of more cells than these are not read by lists */
    bool by_group; /* query heads of a KV head share lines, by the sum of their attention */
    /* Of the pooled rule, whose tiles have OP_TRACE_BLOCK positions, which are blocks of keys, too;
     * nobody judges, and no mass is told. Mean keys of blocks and the mean query of the rows that
     * choose make a softmax over blocks. Where the root of its Jensen-Shannon divergence from the
     * sums of columns by blocks is below `tau`, a head reads the entries of all tiles' such
     * softmaxes that hold the share `mass` of them, and the `least` best blocks of columns and of
     * diagonals; else as many blocks of either as the lines that hold the share have tokens, and
     * one more, at least `least`. The first block is read in any case. Of equal ones the first go
     * first. */
    float tau;
    uint32_t least;
    /* Rooms. */
    void *room; /* [op_trace_bytes] */
    void *pool; /* [op_trace_pool_bytes], of the pooled rule */
};

#define OP_TRACE_SPAN 1024u /* tokens whose sums of exponentials are one */

/* Of a room for n_row rows of so many heads, and n_tok tokens: sums of exponentials and their
 * logarithms, attention, sums along lines and what they are ranked by, lines of a round, lines, and
 * what they hold. */
static inline size_t op_trace_bytes(size_t n_head, size_t n_row, size_t n_tok)
{
    const size_t n_span = n_tok / OP_TRACE_SPAN + 1, n_row16 = (n_row + 15) / 16 * 16;
    const size_t tok32 = n_span * OP_TRACE_SPAN;
    const size_t by_row = n_row16 * (n_span * 8 + 4) + n_row * tok32 * 2;
    const size_t by_line = 2 * tok32 * (8 + 4) + tok32 * 4 + OP_TRACE_SIZES * (2 * tok32 / 8 + 8);
    return n_head * (by_row + by_line);
}

/* Of the pooled rule's other room, for runs of n_row rows: means, shares, sums by blocks, budgets,
 * and which heads go by what. */
static inline size_t op_trace_pool_bytes(const struct page_geom *g, size_t n_head, size_t n_row,
                                         size_t n_tok)
{
    const size_t n_block = n_tok / OP_TRACE_BLOCK + 1, n_mean = n_row / OP_TRACE_BLOCK + 3;
    const size_t by_head = n_mean * (g->head_dim + n_block) + 2 * n_block + 3;
    return (g->n_kv_head * n_block * g->head_dim + n_head * by_head) * 4;
}

/* ---- Antidiagonals ---- */

#define OP_ANTIDIAG_TILE 128u /* positions of a tile, and of a block of keys */

/* Rows and keys are taken in groups of `stride`, aligned in the sequence; rows and keys that a
 * group lacks at the run's ends are zeros. The score of two groups is the mean product of the
 * group's last row with the first key, the last but one with the second, and so on. A softmax over
 * the key groups up to the row group's own, summed over a tile's row groups that have rows and over
 * a block's key groups, is the block's mass. A tile reads the first and its own block, and of the
 * others the best ones, the first of equal ones first, until they hold the share `mass` of all.
 *
 * Lists of query heads: those blocks, of which the last is the tile. What lies behind pointers is
 * memory of the backend. The share that is read is told with each list. */
struct op_antidiag {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists; /* of no tokens */
    /* What a method decides. */
    uint32_t stride; /* 4, 8 or 16 */
    double mass;
    bool dense; /* everything is read, and nothing looked at */
    void *room; /* [op_antidiag_bytes] */
};

/* Of a room for runs of n_row rows of so many heads, and n_tok tokens: for each tile and head the
 * sums of exponentials of row groups, by blocks, and the masses of blocks. */
static inline size_t op_antidiag_bytes(size_t n_head, size_t n_row, size_t n_tok, size_t stride)
{
    const size_t n_block = n_tok / OP_ANTIDIAG_TILE + 1, n_tile = n_row / OP_ANTIDIAG_TILE + 2;
    return n_head * n_tile * n_block * (OP_ANTIDIAG_TILE / stride * 8 + 4);
}

#endif
