/* rows.h: what a few rows of a prompt chunk attend to: the sample from which the methods of lines
 * judge all rows. All keys are scored, by queries rounded to bf16.
 *
 * Keys are read and split once for all query heads, panel by panel; scores become 16-bit weights
 * while they are in cache, and a head's weights become shares when they are summed up. */
#ifndef SAC_METHODS_ROWS_H
#define SAC_METHODS_ROWS_H

#include "base/mem.h"
#include "methods/method.h"

struct rows {
    uint32_t n;   /* rows of the sample */
    uint32_t *at; /* [n] their positions, ascending, all in the chunk */
    size_t stride;
    /* The rest is scratch of this file; "rows" are those of all heads, n for each. */
    uint32_t *seen, *first; /* [n] */
    uint16_t *q;            /* bf16 */
    float *k, *score;
    uint16_t *weight;       /* [panels][rows, panel] */
    float *top, *max, *sum; /* [panels][rows], [rows], [rows] */
};

/* Takes memory for samples of at most n_max rows; `at` is the caller's to fill, and `n` to set.
 * Sets `stride`: so many floats hold a row of shares, a sum of columns or one of slashes. */
void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a);
/* Attention of all rows of n_head query heads of the lane's KV head from head0 on. False: a score
 * is not finite. */
bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head0,
                 uint32_t n_head);
/* Of the i-th of those heads: adds each row's attention to the sums of columns, column[c], and
 * slashes, down[end - 1 - o] for the chunk's end, as in lines.h; and writes it to share[i * stride
 * + c], zero behind the row, unless `share` is NULL. */
void rows_sum(const struct rows *r, const struct method_lane *l, uint32_t i, float *column,
              float *down, float *share);
/* Of the same head: the attention of all rows where one of n columns, column[n] ascending, meets a
 * slash o whose bit, o % 32 of slash[o / 32], is set. */
double rows_cross(const struct rows *r, const struct method_lane *l, uint32_t i,
                  const uint32_t *column, uint32_t n, const uint32_t *slash);

#endif
