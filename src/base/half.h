/* half.h: scalar conversions of 16-bit floats: round to nearest even, NaN kept, as the hardware
 * does. */
#ifndef SAC_BASE_HALF_H
#define SAC_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float bits_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exp = (h >> 10) & 31u, man = h & 0x3ffu;
    if (exp == 31) return bits_float(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0));
    if (exp == 0) { /* zero or denormal: man * 2^-24 is exact in f32 */
        const float mag = (float)man * 0x1p-24f;
        return sign ? -mag : mag;
    }
    return bits_float(sign | (exp + 112u) << 23 | man << 13);
}

static inline uint16_t f32_to_f16(float f)
{
    const uint32_t u = float_bits(f), sign = (u >> 16) & 0x8000u, mag = u & 0x7fffffffu;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to 2^16 or more */
    if (mag < 0x38800000u) { /* below 2^-14: adding 0.5 lets the FPU round at bit 2^-24 */
        const float shifted = bits_float(mag) + 0.5f;
        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (mag >> 13) & 1u;
    return (uint16_t)(sign | ((mag - 0x38000000u + 0xfffu + odd) >> 13));
}

/* As f32_to_f16, but all NaNs become the same: processors differ in the bits they produce. */
static inline uint16_t f32_to_f16_canonical(float f)
{
    return f != f ? 0x7e00u : f32_to_f16(f);
}

static inline float bf16_to_f32(uint16_t b)
{
    return bits_float((uint32_t)b << 16);
}

static inline uint16_t f32_to_bf16(float f)
{
    const uint32_t u = float_bits(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u); /* NaN, quiet */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

#endif
