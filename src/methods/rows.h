/* rows.h: what a few rows of a prompt chunk attend to: the sample by which line methods judge all
 * rows. All keys are scored, with queries and keys rounded to bf16.
 *
 * Keys are read, centred and packed once for all query heads. Processing is then head by head, so
 * that the data of a head stays in the caches: scores become 16-bit weights panel by panel, and
 * weights become shares when they are summed. */
#ifndef SAC_METHODS_ROWS_H
#define SAC_METHODS_ROWS_H

#include "base/mem.h"
#include "methods/method.h"

#define ROWS_PANEL 256u /* tokens */

struct rows {
    uint32_t n;   /* rows of the sample */
    uint32_t *at; /* [n] their positions, ascending, all in the chunk */
    size_t stride;
    /* The rest is scratch of this file. */
    uint32_t *seen, *first; /* [n] */
    uint16_t *q, *key;      /* bf16; [tokens] packed, of all panels */
    float *k, *centre;
    float *score;           /* [OP_DOTS_ROWS, ROWS_PANEL] and some more */
    uint16_t *weight;       /* [panels][n, ROWS_PANEL] */
    float *top, *max, *sum; /* [panels][n], [n], [n] */
};

/* Allocates memory for samples of at most n_max rows; the caller fills `at` and sets `n`. Sets
 * `stride`: the number of floats for a row of attention, a sum of columns or one of slashes. */
void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a);
/* Reads the lane's keys, before the first head attends. False: one is not finite. */
bool rows_read_keys(const struct rows *r, const struct method_lane *l);
/* Computes the attention of the rows for one query head, which the functions below use. False: a
 * score is NaN or infinite. */
bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head);
/* Adds each row's attention to the sums over columns, column[c], and slashes, down[end - 1 - o] for
 * the chunk's end, as in lines.h. With `keep` the attention of row i to token c is also left in
 * weight[rows_cell(n, i, c)], as bf16 and zero after the row, and the sums are those of the rounded
 * values. */
void rows_sum(const struct rows *r, const struct method_lane *l, float *column, float *down,
              bool keep);

static inline size_t rows_cell(uint32_t n, uint32_t i, uint32_t c)
{
    return (size_t)(c / ROWS_PANEL) * n * ROWS_PANEL + i * ROWS_PANEL + c % ROWS_PANEL;
}

/* The attention of all rows in the cells where one of n columns, column[n] ascending, crosses a
 * slash o whose bit is set in `slash`; `kept`: rows_sum was called with `keep`. */
double rows_cross(const struct rows *r, const uint32_t *column, uint32_t n, const uint32_t *slash,
                  bool kept);

#endif
