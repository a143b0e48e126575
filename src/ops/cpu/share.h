/* share.h: what the share_planes slots of AVX-512 and of AMX have in common: everything except the
 * integer products of weights and codes. */
#ifndef SAC_OPS_CPU_SHARE_H
#define SAC_OPS_CPU_SHARE_H

#include "ops/ops.h"

#define SHARE_GROUP_MAX 64u
#define SHARE_ROW       64u /* bytes: 4 channels of 16 tokens */
#define SHARE_STEP      16u /* rows of a tile */

/* For each page sum[g][half][t] = start[g][t] + sum over r and i of w[g][4 r + i] *
 * code[half][r][4 t + i]. */
struct share_product {
    const int8_t *w;      /* [group padded][n_row * 4] */
    const int32_t *start; /* [group padded][16] */
    const uint8_t *code;  /* signed bytes [n_page][2][n_row][SHARE_ROW] */
    int32_t *sum;         /* [n_page][group padded][2][16] */
    uint32_t n_page, group;
    uint32_t n_row; /* a multiple of SHARE_STEP */
};

static inline uint32_t share_padded(uint32_t group)
{
    return (group + 15) / 16 * 16;
}

/* The slots, with the products by `multiply`; NULL: by VNNI. */
bool share_planes_run(const struct op_share_planes *op,
                      void (*multiply)(const struct share_product *p));
bool share_begin_run(const struct op_share_planes *op, float *sum,
                     void (*multiply)(const struct share_product *p));
bool share_raise_run(const struct op_share_planes *op, struct attn_range pages, float *sum,
                     void (*multiply)(const struct share_product *p));

#endif
