/* mass.h: the slot that computes how much attention a few rows give to each token of a sequence's
 * pages, for backends other than the host (engine/mass.h describes its use). */
#ifndef SAC_OPS_MASS_H
#define SAC_OPS_MASS_H

#include "ops/ops.h"

/* The attention mass of tokens in one layer: the sum of a token's softmax shares over all query
 * heads and rows, weighted 1 for the last row, 1/2 for the one before it, 1/3 for the third from
 * the end. Keys of q8 pages are approximated by their first plane: min + step * (64 * hi2 +
 * 31.5). */
struct op_mass {
    const struct page_geom *geom;
    struct page_frames frames;
    const uint32_t *frame; /* [n_kv_head, table_stride] as in struct attn_run */
    size_t table_stride;
    uint32_t n_page; /* the first pages, all of which are resident and visible to all rows */
    uint32_t n_row, n_head;
    const float *q; /* [n_row, n_head, head_dim] rotated; memory of the program */
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
