/* plans.h: the slots that select what prompt rows read, for backends other than the host.
 *
 * On such a backend the host sees no queries, masks or lists before the step is over: one call does
 * everything and produces, for each tile, a list that attention reads (attn_plan.made). There are
 * four slots:
 *  - One samples the rows of a run's tiles and surveys the pages before them, for each query head,
 *    as the survey slot does (struct op_survey defines what is taken).
 *  - One selects blocks of keys for whole segments of rows, for each KV head.
 *  - One selects columns and diagonals, for each query head.
 *  - One selects blocks of keys for tiles of rows by their antidiagonals, for each query head.
 * The contract is that of lanes.h. */
#ifndef SAC_OPS_PLANS_H
#define SAC_OPS_PLANS_H

#include "ops/ops.h"

/* Why a lane or a list reads everything; PLAN_SPARSE: it does not. */
enum plan_reason {
    PLAN_SPARSE = 0,
    PLAN_SHORT, /* the context is too short for the method */
    PLAN_PAST, /* the method cannot continue from earlier tokens (method_prefill.needs_past_zero) */
    PLAN_LAYER,    /* the method leaves this layer or these rows dense on purpose */
    PLAN_NO_GAIN,  /* so much would be read that dense is faster */
    PLAN_NAN,      /* a query, key or score is NaN or infinite */
    PLAN_OVERFLOW, /* too many single tokens for the lists */
    PLAN_REASONS,
};

/* Rows of a sequence's run, [pos, end), and the tiles of them that get lists: tile i holds
 * positions from (tile0 + i) * tile_tok on. Pointers are to memory of the backend, except geom. */
struct op_prompt_rows {
    const struct page_geom *geom;
    struct page_frames frames; /* `of` is ignored */
    const uint32_t *frame;     /* [n_kv_head, table_stride] of pages before end / PAGE_TOK */
    size_t table_stride;
    const uint8_t *own; /* [n_kv_head, tail_bytes] the page of row end - 1, unless it is full */
    const float *q;     /* row r: [n_head, head_dim] at q + r * q_stride */
    size_t q_stride;
    float scale;
    uint32_t n_head, pos, end, tile_tok, tile0, n_tile;
    uint32_t dense_to; /* tiles that end at or before this position read everything */
};

/* The result: list i = tile * heads + head, of KV heads or query heads, depending on the call.
 * Pointers are to memory of the backend, for these lists alone except `failed`. */
struct op_prompt_lists {
    uint32_t *failed; /* [n_kv_head] set to `call` if something is not finite */
    uint32_t call;    /* unique number of the call, not 0 */
    uint32_t range_max, tok_max;
    struct attn_range *range; /* [n_tile * heads][range_max], 2 or more */
    uint32_t *tok;            /* [n_tile * heads][tok_max], of calls that take single tokens */
    float *logw;              /* as tok; NULL: no weights */
    struct attn_list *made;   /* [n_tile * heads] */
};

#define OP_SAMPLE_TILE    512u /* positions of a tile */
#define OP_SAMPLE_QUERIES 256u /* scored rows of a tile, at most */

/* Lists of query heads. */
struct op_sample {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists;
    /* Parameters of the method. */
    uint32_t n_query;    /* scored rows of a tile, a multiple of OP_SURVEY_ROWS */
    float least, spread; /* as in struct op_survey */
    uint32_t seed;       /* of KV head 0; those of others follow it */
    uint32_t n_recent;   /* pages before a tile that are read whole, as is the first page */
    double most;         /* above this share, everything is read */
    uint32_t dense_from; /* tiles with rows from this position on read everything */
    bool dense;          /* all tiles read everything */
    /* For tiles `audit` + i * audit_step, the attention mass that the lists keep of row `audit_row`
     * of the tile's rows, in turn, is reported. */
    uint32_t audit, audit_step, audit_row;
    /* Scratch. */
    uint32_t n_word; /* of a list: pages before the last tile, at least */
    uint32_t *mask;  /* [n_tile * n_head][n_word] as of the survey slot */
    uint8_t *weight; /* [n_tile * n_head][n_word * PAGE_TOK] */
    uint16_t *query; /* [n_tile * n_head][n_query * head_dim] */
    float *start;    /* [n_tile * n_head][n_query] */
};

/* Rows of a run that share a selection: positions [begin, end). */
struct op_block_segment {
    uint32_t begin, end;
    uint32_t n_page; /* candidate pages: the first ones, in whole blocks */
    uint32_t n_take; /* blocks, at most as many as there are */
    enum plan_reason why;
};

/* With element-wise maxima Q+ and minima Q- of a segment's queries, and K+ and K- of a page's keys,
 * a page's score is the mean over the query heads of the larger of (Q+ + Q-) K+ / 2 and the same
 * with K-; a block's score is that of its best page. A softmax over the blocks before the segment,
 * blended with that of the previous layer, determines which are read; among equals the higher score
 * before the softmax comes first, then the later block. `four`: a softmax over pages for each of
 * the four products and query head, of which the larger of two means counts, with no further
 * softmax.
 *
 * Lists of KV heads: the selected blocks, what is between the last block of the segment and the
 * tile, and the tile. Pointers are to memory of the backend, except `segment`. */
struct op_blocks {
    struct op_prompt_rows rows;   /* its keys and `scale` are ignored */
    struct op_prompt_lists lists; /* without single tokens */
    /* Parameters of the method. */
    /* Minimum and width of the keys of the page in frame f, f16 [head_dim] each, at offsets a_at
     * and b_at from box + f * box_stride. Widths are in units of 1 / width. */
    const uint8_t *box;
    size_t box_stride, a_at, b_at;
    float width;
    uint32_t segment_tok; /* a multiple of tile_tok: segment i holds positions from (pos /
                             segment_tok + i) * segment_tok on */
    uint32_t n_segment;
    struct op_block_segment *segment; /* [n_segment] of the host */
    uint32_t block;                   /* pages */
    float fuse;                       /* weight of the previous layer's scores */
    bool four;
    bool dense; /* everything is read */
    /* Scratch. */
    uint32_t n_word; /* pages before the last tile, at least */
    float *query;    /* [n_segment * n_head][2][head_dim] */
    float *sums;     /* [n_segment * n_head][4][2] */
    float *raw;      /* [n_segment * n_kv_head][n_word] */
    float *value;    /* the same */
    uint32_t *mask;  /* the same */
    uint32_t before; /* the call of the previous layer; 0: none */
    /* Persists between layers: for KV head h at h * fused_stride, segments fused_row apart, the
     * call that has written it, then the scores of its blocks. */
    float *fused;
    size_t fused_stride, fused_row;
};

/* ---- Columns and diagonals ---- */

#define OP_TRACE_SIZES 5u   /* patterns compared per head, at most */
#define OP_TRACE_BLOCK 128u /* positions of a tile of the pooled rule */

enum op_trace_rule {
    OP_TRACE_BEST,   /* a fixed number of the best columns and diagonals */
    OP_TRACE_GREEDY, /* those with the most attention per cell, until they hold a share */
    OP_TRACE_POOLED, /* whole blocks, by sums of lines or by pooled scores */
};

/* What a head reads. */
enum op_trace_family {
    OP_TRACE_LINES, /* this many columns and diagonals */
    OP_TRACE_ENDS,  /* the first n_column keys, and the last n_slash of each row */
    OP_TRACE_ALL,   /* everything: what its patterns would read in so short a context */
};
struct op_trace_size {
    enum op_trace_family family;
    uint32_t n_column, n_slash;
};

/* Sampled rows: their attention to all keys before them is computed exactly, rounded to bf16. */
struct op_trace_rows {
    uint32_t n;
    uint32_t *at; /* [n] of the host: positions, ascending, all in the run */
};

/* The attention of some rows of a run is summed along columns (a key) and diagonals (a distance),
 * the best of both are selected, and all tiles of the run read what their rows have in common with
 * them: a column as one token, a diagonal as the tile_tok tokens that the tile's rows have at that
 * distance. Sums consist of integers, so they do not depend on order.
 *
 * Lists of query heads: those tokens, and the tile. Pointers are to memory of the backend, except
 * the sampled rows, and sizes. The mass of a head's lines, a share of the judging rows' attention,
 * is reported with the list of its first tile. */
struct op_trace {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists;
    float softcap; /* of scores; 0: none */
    /* Parameters of the method. */
    enum op_trace_rule rule;
    enum plan_reason why; /* everything is read, and nothing is sampled */
    struct op_trace_rows choose;
    struct op_trace_rows judge; /* by which patterns are compared; n = 0: those that select */
    uint32_t n_size; /* patterns of each head: the one whose lines hold most of the attention,
                        the first among equals */
    struct op_trace_size *size; /* [n_size][n_head] of the host */
    uint32_t sink, band;        /* number of first columns and diagonals that are always taken */
    /* For the greedy rule, which has one pattern, of lines. In rounds it takes all lines for which
     * the attention per cell that no taken line covers is at least `beta` times the best line's;
     * diagonals first; in the last round the best of them. */
    double mass; /* of all attention */
    float beta;
    double most;   /* above this number of cells, everything is read */
    bool by_group; /* query heads of a KV head share lines, by the sum of their attention */
    /* For the pooled rule, whose tiles have OP_TRACE_BLOCK positions and are blocks of keys, too;
     * there are no judging rows, and no mass is reported. Mean keys of blocks and the mean query of
     * the selecting rows make a softmax over blocks. If the root of its Jensen-Shannon divergence
     * from the sums of columns by blocks is below `tau`, a head reads the entries of all tiles'
     * such softmaxes that hold the share `mass` of them, and the `least` best blocks of columns and
     * of diagonals; otherwise as many blocks of either as the lines that hold the share have
     * tokens, and one more, at least `least`. The first block is always read. Among equals the
     * first come first. */
    float tau;
    uint32_t least;
    /* Scratch. */
    void *room; /* [op_trace_bytes] */
    void *pool; /* [op_trace_pool_bytes], of the pooled rule */
};

#define OP_TRACE_SPAN 1024u /* tokens whose sums of exponentials are one */

/* Bytes of scratch for n_row rows, n_head heads and n_tok tokens: sums of exponentials and their
 * logarithms, attention, sums along lines and their ranking values, lines of a round, lines, and
 * what they hold. */
static inline size_t op_trace_bytes(size_t n_head, size_t n_row, size_t n_tok)
{
    const size_t n_span = n_tok / OP_TRACE_SPAN + 1, n_row16 = (n_row + 15) / 16 * 16;
    const size_t tok32 = n_span * OP_TRACE_SPAN;
    const size_t by_row = n_row16 * (n_span * 8 + 4) + n_row * tok32 * 2;
    const size_t by_line = 2 * tok32 * (8 + 4) + tok32 * 4 + OP_TRACE_SIZES * (2 * tok32 / 8 + 8);
    return n_head * (by_row + by_line);
}

/* Bytes of the pooled rule's other scratch, for runs of n_row rows: means, shares, sums by blocks,
 * budgets, and which rule each head uses. */
static inline size_t op_trace_pool_bytes(const struct page_geom *g, size_t n_head, size_t n_row,
                                         size_t n_tok)
{
    const size_t n_block = n_tok / OP_TRACE_BLOCK + 1, n_mean = n_row / OP_TRACE_BLOCK + 3;
    const size_t by_head = n_mean * (g->head_dim + n_block) + 2 * n_block + 3;
    return (g->n_kv_head * n_block * g->head_dim + n_head * by_head) * 4;
}

/* ---- Antidiagonals ---- */

#define OP_ANTIDIAG_TILE 128u /* positions of a tile, and of a block of keys */

/* Rows and keys are taken in groups of `stride`, aligned in the sequence; rows and keys missing in
 * a group at the run's ends are zeros. The score of two groups is the mean product of the group's
 * last row with the first key, the last but one with the second, and so on. A softmax over the key
 * groups up to the row group's own, summed over a tile's row groups that have rows and over a
 * block's key groups, is the block's mass. A tile reads the first block and its own, and the best
 * of the others, the first among equals first, until they hold the share `mass` of everything.
 *
 * Lists of query heads: those blocks, of which the last is the tile. Pointers are to memory of the
 * backend. The share read is reported with each list. */
struct op_antidiag {
    struct op_prompt_rows rows;
    struct op_prompt_lists lists; /* without single tokens */
    /* Parameters of the method. */
    uint32_t stride; /* 4, 8 or 16 */
    double mass;
    bool dense; /* everything is read, and nothing is sampled */
    void *room; /* [op_antidiag_bytes] */
};

/* Bytes of scratch for runs of n_row rows, n_head heads and n_tok tokens: for each tile and head
 * the sums of exponentials of row groups, by blocks, and the masses of blocks. */
static inline size_t op_antidiag_bytes(size_t n_head, size_t n_row, size_t n_tok, size_t stride)
{
    const size_t n_block = n_tok / OP_ANTIDIAG_TILE + 1, n_tile = n_row / OP_ANTIDIAG_TILE + 2;
    return n_head * n_tile * n_block * (OP_ANTIDIAG_TILE / stride * 8 + 4);
}

#endif
