/* small_neon.c: the small operations with NEON.
 *
 * Order of the norm's sum: math_sum_squares. The rotation rounds its second product and the sum
 * once (FMA), also in the scalar ends. */
#include "ops/cpu/fill.h"
#include "ops/cpu/math_neon.h"
#include "ops/cpu/small.h"

static void rmsnorm_row(float *y, const float *x, const float *w, uint32_t width, float eps)
{
    const float scale = math_rms_scale(x, width, eps);
    uint32_t i = 0;
    for (; i + 4 <= width; i += 4) {
        const float32x4_t t = vmulq_n_f32(vld1q_f32(x + i), scale);
        vst1q_f32(y + i, vmulq_f32(t, vld1q_f32(w + i)));
    }
    for (; i < width; i++) y[i] = x[i] * scale * w[i];
}

static void rope_neox(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    uint32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        const float32x4_t a = vld1q_f32(x + i), b = vld1q_f32(x + half + i);
        const float32x4_t c = vld1q_f32(cos + i), s = vld1q_f32(sin + i);
        vst1q_f32(x + i, vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c));
        vst1q_f32(x + half + i, vfmaq_f32(vmulq_f32(a, s), b, c));
    }
    for (; i < half; i++) {
        const float a = x[i], b = x[half + i];
        x[i] = fmaf(a, cos[i], -(b * sin[i]));
        x[half + i] = fmaf(b, cos[i], a * sin[i]);
    }
}

static void rope_interleaved(float *x, const float *cos, const float *sin, uint32_t n_rot)
{
    const uint32_t half = n_rot / 2;
    uint32_t i = 0;
    for (; i + 4 <= half; i += 4) {
        const float32x4x2_t pair = vld2q_f32(x + 2 * i);
        const float32x4_t a = pair.val[0], b = pair.val[1];
        const float32x4_t c = vld1q_f32(cos + i), s = vld1q_f32(sin + i);
        const float32x4x2_t turned = {
            {vfmaq_f32(vnegq_f32(vmulq_f32(b, s)), a, c), vfmaq_f32(vmulq_f32(a, s), b, c)}};
        vst2q_f32(x + 2 * i, turned);
    }
    for (; i < half; i++) {
        const float a = x[2 * i], b = x[2 * i + 1];
        x[2 * i] = fmaf(a, cos[i], -(b * sin[i]));
        x[2 * i + 1] = fmaf(b, cos[i], a * sin[i]);
    }
}

static void add_span(float *y, const float *x, size_t n)
{
    size_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vaddq_f32(vld1q_f32(x + i), vld1q_f32(y + i)));
    for (; i < n; i++) y[i] += x[i];
}

#include "ops/cpu/small_tmpl.h"

void ops_fill_neon_small(struct ops *o)
{
    fill(o);
}
