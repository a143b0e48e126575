/* linear_avx512.h: the beginning and end of a linear layer that linear_avx512.c and linear_amx.c
 * share: RMS norm before it, bias and epilogue after it. Included only by files compiled for
 * AVX-512.
 *
 * exp: 2^n * p(r), |r| <= ln2/2, p of degree 6: relative error below 2e-7 (checked against expf in
 * check_linear.c through the epilogues). */
#ifndef SAC_OPS_CPU_LINEAR_AVX512_H
#define SAC_OPS_CPU_LINEAR_AVX512_H

#include "ops/cpu/linear.h"
#include "ops/cpu/math_avx512.h"

#include <immintrin.h>
#include <math.h>

/* 1 / sqrt(mean(x^2) + eps). The sum is in f64: lanes over ascending k, then reduced pairwise. */
static inline float linear_rms_scale(const float *x, uint32_t n, float eps)
{
    __m512d sum[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (uint32_t k = 0; k < n; k += 16) {
        const __m512 v = _mm512_maskz_loadu_ps(math_lane_mask(n - k), x + k);
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        sum[0] = _mm512_fmadd_pd(low, low, sum[0]);
        sum[1] = _mm512_fmadd_pd(high, high, sum[1]);
    }
    const double total = _mm512_reduce_add_pd(_mm512_add_pd(sum[0], sum[1]));
    return (float)(1.0 / sqrt(total / n + (double)eps));
}

/* 16 inputs of row r from k on, normalised by `scale` if the op has a norm; zeros beyond n_in. */
static inline __m512 linear_load_x(const struct op_linear *op, uint32_t r, uint32_t k, float scale)
{
    const __mmask16 m = math_lane_mask(op->n_in > k ? op->n_in - k : 0);
    const __m512 x = _mm512_maskz_loadu_ps(m, op->x + r * op->x_stride + k);
    if (!op->norm) return x;
    return _mm512_mul_ps(_mm512_mul_ps(x, _mm512_set1_ps(scale)),
                         _mm512_maskz_loadu_ps(m, op->norm + k));
}

static inline __m512 linear_exp(__m512 x)
{
    /* The operand order lets a NaN in x pass through max and min. */
    x = _mm512_min_ps(_mm512_set1_ps(89), _mm512_max_ps(_mm512_set1_ps(-104), x));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.62e4p-1f), x); /* ln2 in two parts */
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0x1.7f7d1cp-20f), r);
    __m512 p = _mm512_set1_ps(1.0f / 720);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 120));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 24));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f / 6));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    return _mm512_scalef_ps(p, n);
}

/* gate * up * sigmoid(gate), or gelu (tanh form) = gate * sigmoid(2 u): 1 + tanh(u) = 2 / (1 +
 * exp(-2u)). */
static inline __m512 linear_glu(enum linear_epilogue epilogue, __m512 gate, __m512 up)
{
    __m512 s = gate;
    if (epilogue == LINEAR_GLU_GELU) {
        const __m512 g2 = _mm512_mul_ps(gate, gate);
        const __m512 cubic = _mm512_fmadd_ps(g2, _mm512_set1_ps(GELU_CUBIC), _mm512_set1_ps(1));
        s = _mm512_mul_ps(_mm512_mul_ps(gate, cubic), _mm512_set1_ps(2 * GELU_SQRT_2_OVER_PI));
    }
    const __m512 e = linear_exp(_mm512_sub_ps(_mm512_setzero_ps(), s));
    const __m512 act = _mm512_div_ps(gate, _mm512_add_ps(e, _mm512_set1_ps(1)));
    return _mm512_mul_ps(act, up);
}

static inline __m512 linear_add_bias(const struct linear_part *part, uint32_t out_i, __mmask16 m,
                                     __m512 v)
{
    if (!part->bias) return v;
    return _mm512_add_ps(v, _mm512_maskz_loadu_ps(m, part->bias + out_i));
}

/* Sixteen outputs of a row, and where they are stored. */
struct linear_out {
    float *y;
    __m512 v;
    __mmask16 m;
};

static inline struct linear_out linear_finished(const struct op_linear *op, struct linear_unit unit,
                                                uint32_t r, __m512 v, __m512 up)
{
    const struct linear_part *part = &op->part[unit.part_i];
    const uint32_t out_i = unit.group_i * WEIGHT_GROUP;
    const __mmask16 m = math_lane_mask(part->w->n_out - out_i);
    float *y = part->y + r * part->y_stride + out_i;
    v = linear_add_bias(part, out_i, m, v);
    if (linear_is_glu(op))
        v = linear_glu(op->epilogue, v, linear_add_bias(&op->part[1], out_i, m, up));
    else if (op->epilogue == LINEAR_ADD)
        v = _mm512_add_ps(_mm512_maskz_loadu_ps(m, y), v);
    return (struct linear_out){y, v, m};
}

static inline void linear_finish(const struct op_linear *op, struct linear_unit unit, uint32_t r,
                                 __m512 v, __m512 up)
{
    const struct linear_out o = linear_finished(op, unit, r, v, up);
    _mm512_mask_storeu_ps(o.y, o.m, o.v);
}

/* Decode rows: kernels of linear_avx512.c and int8 tiles. */
void linear_narrow_amx(struct workers *pool, const struct op_linear *op);
/* Decode rows without tiles. */
void linear_avx512_narrow(struct workers *pool, const struct op_linear *op);
size_t linear_avx512_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum);

#endif
