/* observe.h: the slots of methods that learn from the queries of a few rows and keep their
 * selections for later steps, for backends other than the host. The contract is that of lanes.h.
 * There is no host slot, because such methods read keys and votes themselves there. */
#ifndef SAC_OPS_OBSERVE_H
#define SAC_OPS_OBSERVE_H

#include "ops/ops.h"

struct op_lane_result;

#define OP_OBSERVE_ROWS 32u /* maximum rows of a call */

/* Queries of a sequence's rows: [group, head_dim] each, contiguous. That of row `pos` is q; those
 * of rows before it are stored: row p in slot p % n_slot, `stride` floats apart. */
struct op_rows {
    const float *q, *past;
    uint32_t n_slot, pos, group;
    size_t stride;
};

/* Keys that rows up to `pos` see: sealed pages, followed by the own page in tail form. */
struct op_seen {
    const struct page_geom *geom; /* the same for all lanes */
    struct page_frames frames;    /* `of` is ignored */
    const uint32_t *page;         /* [pos / PAGE_TOK] frames; PAGE_NONE: no row sees the page */
    const uint8_t *own;
};

/* Attention of some rows: sum[t] = the softmax shares of token t, summed over the rows and the
 * query heads. Each row sees the tokens up to its own. */
struct op_lane_observe {
    struct op_seen keys;
    struct op_rows rows;
    uint32_t row0, n_row; /* the rows, up to `pos` */
    uint32_t first;       /* no row sees the tokens before it; at most row0 */
    float scale, softcap;
    bool adds;    /* adds to the sums instead of replacing them */
    float *spare; /* [op_observe_spare] */
    float *sum;   /* [tokens of pos / PAGE_TOK + 1 pages]; 0 after `pos` */
    /* The same by distance: slash[pos - d] = the shares of the tokens d before each row; or NULL.
     */
    float *slash;
    /* Everything left out is -INFINITY: tokens outside [begin, end), and slash[end] and on. */
    uint32_t begin, end;
    struct op_lane_result *result; /* n_bad: a score is not finite */
};

/* Floats of scratch for calls with at most OP_OBSERVE_ROWS rows. */
static inline size_t op_observe_spare(uint32_t n_page, uint32_t group)
{
    return 2 * (size_t)OP_OBSERVE_ROWS * group * (n_page + 2);
}

/* Marks an earlier selection. */
struct op_lane_keep {
    uint32_t *kept;      /* [n_kept] marked tokens of each page */
    uint32_t n_kept;     /* the last may be the row's own page, which is not marked */
    uint32_t begin, end; /* kept tokens in between count as selected */
    /* The result of the selection if it was made in this step, otherwise NULL: if it met a value
     * that is not finite, everything is kept until the next selection. */
    const struct op_lane_result *made;
    uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    struct op_lane_result *result;
};

/* Marks columns and diagonals selected earlier, both as bits of tokens. A diagonal is stored at its
 * place for the last observed row, and has moved by `by` tokens since. */
struct op_lane_lines {
    uint32_t *column, *slash; /* [n_line] */
    const uint32_t *taken; /* [2 * n_line] with `made`: the new selection, which is stored first */
    const struct op_lane_result *made; /* as for op_lane_keep, or NULL */
    uint32_t n_line, by;
    uint32_t *mask; /* [n_page] */
    uint32_t n_page;
    struct op_lane_result *result; /* n_chosen: bits that are new */
};

/* Stores the queries of rows row0 .. row0 + n_row - 1, contiguous from q on. */
struct op_past {
    const float *q;
    size_t q_stride;
    float *past;                         /* [n_slot][width] row p in slot p % n_slot */
    uint32_t n_slot, width, row0, n_row; /* n_row <= n_slot */
};

#endif
