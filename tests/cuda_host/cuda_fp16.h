/* cuda_fp16.h: CUDA's f16 for a CPU, with the conversions of base/half.h. */
#ifndef SAC_TESTS_CUDA_FP16_H
#define SAC_TESTS_CUDA_FP16_H

#include <cuda_runtime.h>

#include "base/half.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

struct __half {
    uint16_t bits;
};
struct __align__(4) __half2
{
    __half x, y;
};

static inline __half __ushort_as_half(uint16_t bits)
{
    return {bits};
}
static inline uint16_t __half_as_ushort(__half h)
{
    return h.bits;
}
static inline float __half2float(__half h)
{
#ifdef __F16C__
    return _cvtsh_ss(h.bits);
#else
    return f16_to_f32(h.bits);
#endif
}
static inline __half __float2half_rn(float f)
{
#ifdef __F16C__
    return {_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT)};
#else
    return {f32_to_f16(f)};
#endif
}
static inline __half2 __floats2half2_rn(float x, float y)
{
    return {__float2half_rn(x), __float2half_rn(y)};
}
static inline __half2 __float2half2_rn(float x)
{
    return __floats2half2_rn(x, x);
}
static inline float2 __half22float2(__half2 h)
{
    return {__half2float(h.x), __half2float(h.y)};
}
static inline __half2 __low2half2(__half2 h)
{
    return {h.x, h.x};
}
static inline __half2 __high2half2(__half2 h)
{
    return {h.y, h.y};
}
static inline __half2 __hneg2(__half2 h)
{
    return {{(uint16_t)(h.x.bits ^ 0x8000u)}, {(uint16_t)(h.y.bits ^ 0x8000u)}};
}
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    const float2 x = __half22float2(a), y = __half22float2(b);
    return __floats2half2_rn(x.x - y.x, x.y - y.y);
}
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    const float2 x = __half22float2(a), y = __half22float2(b);
    return __floats2half2_rn(x.x * y.x, x.y * y.y);
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    const float2 x = __half22float2(a), y = __half22float2(b), z = __half22float2(c);
    return __floats2half2_rn(fmaf(x.x, y.x, z.x), fmaf(x.y, y.y, z.y));
}

#endif
