/* mass.h: the slot that computes how much attention a few rows give to each token of a sequence's
 * pages, for backends other than the host (engine/mass.h describes its use). */
#ifndef SAC_OPS_MASS_H
#define SAC_OPS_MASS_H

#include "ops/ops.h"

/* One layer's. A token's mass is the sum of its softmax shares over all query heads and rows, of
 * which the last counts whole, the one before it half, the third from the end a third. Of q8 pages
 * the first plane counts: a key is min + step * (64 * hi2 + 31.5). */
struct op_mass {
    const struct page_geom *geom;
    struct page_frames frames;
    const uint32_t *frame; /* [n_kv_head, table_stride] as in struct attn_run */
    size_t table_stride;
    uint32_t n_page; /* the first ones, all of which are there and seen by all rows */
    uint32_t n_row, n_head;
    const float *q;                     /* [n_row, n_head, head_dim] rotated; the program's */
    const struct segment_view *segment; /* [n_segment] as in struct attn_run */
    uint32_t n_segment;
    struct segment_rope rope;
    float scale, softcap; /* as in struct op_attn */
    float *spare;         /* [op_mass_spare] */
    float *mass;          /* [n_page * PAGE_TOK] out */
};

static inline size_t op_mass_spare(uint32_t n_page, uint32_t n_row, uint32_t n_head)
{
    return 2 * ((size_t)n_page + 1) * n_row * n_head;
}

#endif
