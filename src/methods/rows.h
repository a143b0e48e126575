/* rows.h: what a few rows of a prompt chunk attend to, exactly: the sample from which the methods
 * of lines judge all rows. */
#ifndef SAC_METHODS_ROWS_H
#define SAC_METHODS_ROWS_H

#include "base/mem.h"
#include "methods/method.h"

struct rows {
    uint32_t n;   /* rows of the sample */
    uint32_t *at; /* [n] their positions, ascending, all in the chunk */
    size_t stride;
    float *p;   /* [n, stride] */
    float *one; /* [stride] */
    float *q;   /* [n, head_dim] */
    float *k;   /* keys of a few pages */
};

/* Takes memory for samples of at most n_max rows; `at` is the caller's to fill, and `n` to set. */
void rows_make(struct rows *r, const struct method_shape *s, uint32_t n_max, struct arena *a);
/* Attention of all rows of query head `head` of the lane's KV head: p[i * stride + c] for tokens c
 * up to row i's own, zero behind it up to the chunk's end. False: a score is not finite. */
bool rows_attend(const struct rows *r, const struct method_lane *l, uint32_t head);

#endif
