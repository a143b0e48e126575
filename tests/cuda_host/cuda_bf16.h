/* cuda_bf16.h: CUDA's bf16 for a CPU, with the conversions of base/half.h. */
#ifndef SAC_TESTS_CUDA_BF16_H
#define SAC_TESTS_CUDA_BF16_H

#include "base/half.h"

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float f)
{
    return {f32_to_bf16(f)};
}
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h)
{
    return h.bits;
}

#endif
