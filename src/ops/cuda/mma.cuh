/* mma.cuh: conversions between f32 and the 16-bit types of matrix instructions, and the residual
 * that rounding leaves. */
#ifndef SAC_OPS_CUDA_MMA_CUH
#define SAC_OPS_CUDA_MMA_CUH

#include "ops/cuda/machine.cuh"
#include "saccade.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <string.h>

#define LOG2E 1.4426950408889634f
#define LN2   0.6931471805599453f

/* The conversions of base/half.h in hardware, except that a NaN keeps its payload. */
__device__ __forceinline__ uint16_t half_bits(float f, sac_kv_type type)
{
    const uint32_t u = __float_as_uint(f);
    const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
    if (type == SAC_KV_BF16)
        return nan ? (uint16_t)(u >> 16 | 0x40u) : __bfloat16_as_ushort(__float2bfloat16_rn(f));
    if (nan) return (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (u >> 13 & 0x3ffu));
    return __half_as_ushort(__float2half_rn(f));
}

template <int H> __device__ __forceinline__ float2 half_unpack(uint32_t w)
{
    if constexpr (H == HALF_F16) {
        __half2 h;
        memcpy(&h, &w, sizeof h);
        return __half22float2(h);
    }
    return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}

/* The rounding error of a packed pair, rounded to 16 bits itself. A product with value and residual
 * is nearly as exact as f32. */
template <int H>
__device__ __forceinline__ uint32_t half_residual(float x, float y, uint32_t packed)
{
    const float2 near = half_unpack<H>(packed);
    return half_pack<H>(x - near.x, y - near.y);
}

#endif
