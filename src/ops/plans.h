/* plans.h: the slot that chooses what prompt rows read, of backends that are not the host.
 *
 * There nobody looks at queries, masks and lists before the step is over: one call samples the rows
 * of a run's tiles, surveys the pages before them as the survey slot does (struct op_survey says
 * what is taken), and leaves for each tile and query head a list that attention reads
 * (attn_plan.made). The contract is that of lanes.h. */
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

#define OP_SAMPLE_TILE 256u /* positions of a tile */

/* List i = tile * n_head + query head. What lies behind pointers is memory of the backend. */
struct op_sample {
    /* The rows, [pos, end) of a sequence, and their tiles: tile i holds positions (tile0 + i) *
     * OP_SAMPLE_TILE and up. */
    const struct page_geom *geom;
    struct page_frames frames; /* `of` is not looked at */
    const uint32_t *frame;     /* [n_kv_head, table_stride] of pages before end / PAGE_TOK */
    size_t table_stride;
    const uint8_t *own; /* [n_kv_head, tail_bytes] the page of row end - 1, unless it is full */
    const float *q;     /* row r: [n_head, head_dim] at q + r * q_stride */
    size_t q_stride;
    float scale;
    uint32_t n_head, pos, end, tile0, n_tile;
    /* What a method decides. */
    uint32_t n_query;    /* rows of a tile that are scored, a multiple of OP_SURVEY_ROWS */
    float least, spread; /* as in struct op_survey */
    uint32_t seed;       /* of KV head 0; those of others follow it */
    uint32_t n_recent;   /* pages before a tile that are read whole, as is the first page */
    double most;         /* a larger share than this is not read by lists */
    uint32_t dense_from; /* tiles with rows from this position on read everything, */
    uint32_t dense_to;   /* and so do those that end at or before this one */
    bool dense;          /* all of them do */
    /* Tile `audit` + i * audit_step: what the lists keep of the softmax of row `audit_row` of the
     * tile's rows, in turns, is told. */
    uint32_t audit, audit_step, audit_row;
    /* Rooms. */
    uint32_t n_word;  /* of a list: pages before the last tile, at least */
    uint32_t *mask;   /* [n_tile * n_head][n_word] as of the survey slot */
    uint8_t *weight;  /* [n_tile * n_head][n_word * PAGE_TOK] */
    uint16_t *query;  /* [n_tile * n_head][n_query * head_dim] */
    float *start;     /* [n_tile * n_head][n_query] */
    uint32_t *failed; /* [n_kv_head] `call` where something is not finite */
    uint32_t call;    /* no other has this number */
    /* Lists, in rooms of their own. */
    uint32_t range_max, tok_max;
    struct attn_range *range; /* [n_tile * n_head][range_max], 2 or more */
    uint32_t *tok;            /* [n_tile * n_head][tok_max] */
    float *logw;              /* as tok */
    struct attn_list *made;   /* [n_tile * n_head] */
};

#endif
