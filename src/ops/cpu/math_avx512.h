/* math_avx512.h: functions of whole vectors for the AVX-512 and AMX kernels. Included only by files
 * compiled for AVX-512. */
#ifndef SAC_OPS_CPU_MATH_AVX512_H
#define SAC_OPS_CPU_MATH_AVX512_H

#include <immintrin.h>
#include <stddef.h>

/* Mask of the first `n` of 16 lanes. */
static inline __mmask16 math_lane_mask(size_t n)
{
    if (n >= 16) return 0xffff;
    return (__mmask16)((1u << n) - 1);
}

/* 2^y with a relative error of 7.5e-5, a third of what rounding to f16 adds; -inf gives 0, NaN
 * stays. */
static inline __m512 math_exp2_cubic(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, 0x09); /* y - floor(y), no exception */
    __m512 p = _mm512_set1_ps(0.0780245233f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.226067159f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.695833537f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.999925219f));
    return _mm512_scalef_ps(p, y);
}

/* The same with a relative error below 3e-6. */
static inline __m512 math_exp2_quartic(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, 0x09);
    __m512 p = _mm512_set1_ps(0.01353417f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.05201146f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24144276f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.69300383f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.00000259f));
    return _mm512_scalef_ps(p, y);
}

/* The same, exactly 1 at 0, with a relative error of 8.3e-8. */
static inline __m512 math_exp2_quintic(__m512 y)
{
    const __m512 r = _mm512_reduce_ps(y, 0x09);
    __m512 p = _mm512_set1_ps(0.00186713019f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00901703006f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0557999133f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24016445f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.693151312f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, y);
}

/* De-interleaves 64 dwords: x[b] gets the b-th of each group of four. */
static inline __attribute__((always_inline)) void math_quads_apart(__m512i x[4])
{
    const __m512i low = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(2));
    const __m512i a = _mm512_permutex2var_epi32(x[0], low, x[1]);
    const __m512i b = _mm512_permutex2var_epi32(x[0], high, x[1]);
    const __m512i c = _mm512_permutex2var_epi32(x[2], low, x[3]);
    const __m512i e = _mm512_permutex2var_epi32(x[2], high, x[3]);
    x[0] = _mm512_shuffle_i32x4(a, c, 0x44);
    x[1] = _mm512_shuffle_i32x4(a, c, 0xee);
    x[2] = _mm512_shuffle_i32x4(b, e, 0x44);
    x[3] = _mm512_shuffle_i32x4(b, e, 0xee);
}

#endif
