/* small_ref.c: RMS norm, rotary embedding and addition in plain C, the definition for the others.
 *
 * Order of the norm's sum: one double, from the first element to the last. The squares of f32 are
 * exact in double, so this is within a few units of 2^-53 of the true sum; other ISAs sum in f32
 * lanes and are compared against this. */
#include "ops/cpu/small.h"

#include <math.h>

static void rmsnorm_row(float *y, const float *x, const float *w, uint32_t width, float eps)
{
    double sum = 0;
    for (uint32_t i = 0; i < width; i++) sum += (double)x[i] * x[i];
    const float scale = (float)(1.0 / sqrt(sum / width + (double)eps));
    for (uint32_t i = 0; i < width; i++) y[i] = x[i] * scale * w[i];
}

static void rope_neox(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        const float a = x[i], b = x[i + half];
        x[i] = a * cos[i] - b * sin[i];
        x[i + half] = a * sin[i] + b * cos[i];
    }
}

static void rope_interleaved(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    for (uint32_t i = 0; i < n_rot / 2; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = a * cos[i] - b * sin[i];
        x[2 * i + 1] = a * sin[i] + b * cos[i];
    }
}

static void add_span(float *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) y[i] += x[i];
}

#include "ops/cpu/small_tmpl.h"

void ops_fill_ref_small(struct ops *o)
{
    fill(o);
}
