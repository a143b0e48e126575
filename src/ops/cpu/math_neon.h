/* math_neon.h: functions that the NEON files share: the norm's sum, exp and the gates of a GLU.
 *
 * Everything here works lane by lane, or in a stated order, so that a row's result does not depend
 * on its neighbours. */
#ifndef SAC_OPS_CPU_MATH_NEON_H
#define SAC_OPS_CPU_MATH_NEON_H

#include "ops/gelu.h"

#include <arm_neon.h>
#include <math.h>
#include <stdint.h>

/* Sum of squares in f64. Four partial sums: number l adds elements l, l + 4, l + 8, ...; then (0 +
 * 2) + (1 + 3), and the last n % 4 elements one by one. */
static inline double math_sum_squares(const float *x, uint32_t n)
{
    float64x2_t low = vdupq_n_f64(0), high = vdupq_n_f64(0);
    uint32_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(x + i);
        const float64x2_t a = vcvt_f64_f32(vget_low_f32(v)), b = vcvt_high_f64_f32(v);
        low = vfmaq_f64(low, a, a);
        high = vfmaq_f64(high, b, b);
    }
    double sum = vaddvq_f64(vaddq_f64(low, high));
    for (; i < n; i++) sum = fma((double)x[i], (double)x[i], sum);
    return sum;
}

/* 1 / sqrt(mean(x^2) + eps), rounded to f32 once. */
static inline float math_rms_scale(const float *x, uint32_t n, float eps)
{
    return (float)(1.0 / sqrt(math_sum_squares(x, n) / n + (double)eps));
}

/* exp(x) within 2 units in the last place; 0, denormals, infinity and NaN as libm gives them.
 * x = n ln 2 + r with |r| <= ln 2 / 2; the Taylor polynomial of degree 7 leaves r^8/8! < 6e-9. 2^n
 * is multiplied in two halves, as n reaches from -150 to 128. */
static inline float32x4_t math_exp(float32x4_t x)
{
    /* FMIN and FMAX propagate NaN. */
    x = vmaxq_f32(vdupq_n_f32(-104.0f), vminq_f32(vdupq_n_f32(89.0f), x));
    const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, 0x1.715476p+0f));
    /* ln 2 in two parts, the first with few bits so that n times it is exact. */
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(0x1.63p-1f));
    r = vfmsq_f32(r, n, vdupq_n_f32(-0x1.bd0106p-13f));
    float32x4_t p = vdupq_n_f32(1.0f / 5040);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 720), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 120), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 24), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f / 6), p, r);
    p = vfmaq_f32(vdupq_n_f32(0.5f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    p = vfmaq_f32(vdupq_n_f32(1.0f), p, r);
    const int32x4_t e = vcvtq_s32_f32(n), half = vshrq_n_s32(e, 1), bias = vdupq_n_s32(127);
    const int32x4_t low = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t high = vshlq_n_s32(vaddq_s32(vsubq_s32(e, half), bias), 23);
    return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(low)), vreinterpretq_f32_s32(high));
}

/* x / (1 + exp(-t)) */
static inline float32x4_t math_gate(float32x4_t x, float32x4_t t)
{
    return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), math_exp(vnegq_f32(t))));
}

static inline float32x4_t math_silu(float32x4_t x)
{
    return math_gate(x, x);
}

/* The tanh form: 0.5 x (1 + tanh u) = x / (1 + exp(-2u)), u = sqrt(2/pi) (x + 0.044715 x^3). */
static inline float32x4_t math_gelu(float32x4_t x)
{
    const float32x4_t cubic = vmulq_n_f32(vmulq_f32(x, x), GELU_CUBIC);
    const float32x4_t u = vfmaq_f32(x, cubic, x);
    return math_gate(x, vmulq_n_f32(u, 2 * GELU_SQRT_2_OVER_PI));
}

#endif
