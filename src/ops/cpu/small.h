/* small.h: how the small operations are cut into rows and pieces, the same for every ISA.
 *
 * Contract: an ISA's file provides kernels for one row or span and calls these drivers from its
 * slots. A kernel's result depends on its arguments alone, so the division of work may follow the
 * load. */
#ifndef SAC_OPS_CPU_SMALL_H
#define SAC_OPS_CPU_SMALL_H

#include "ops/ops.h"

/* y [width] = x / sqrt(mean(x^2) + eps) * w; y may be x. */
typedef void (*small_rmsnorm_fn)(float *y, const float *x, const float *w, uint32_t width,
                                 float eps);
/* Rotates the first n_rot channels of a head by cos, sin [n_rot/2]. */
typedef void (*small_rope_fn)(float *x, const float *cos, const float *sin, uint32_t n_rot);
/* y [n] += x [n]. Called on spans that begin at multiples of 16 elements. */
typedef void (*small_add_fn)(float *y, const float *x, size_t n);

void small_rmsnorm(struct workers *pool, const struct op_rmsnorm *op, small_rmsnorm_fn kernel);
void small_rope(struct workers *pool, const struct op_rope *op, small_rope_fn kernel);
void small_add(struct workers *pool, const struct op_add *op, small_add_fn kernel);

#endif
