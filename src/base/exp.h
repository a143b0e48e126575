/* exp.h: exponentials of many floats at once.
 *
 * A polynomial of degree 6 in [-ln2/2, ln2/2], scaled by a power of two: relative error below 2e-7,
 * and exactly 0 below -87, where a float would be denormal. Loops over fixed lanes that call it
 * become vectors by the compiler. For arguments up to 88; NaN gives 0. */
#ifndef SAC_BASE_EXP_H
#define SAC_BASE_EXP_H

#include <stdint.h>
#include <string.h>

static inline float exp_fast(float x)
{
    const float kept = x > -87.0f ? x : -87.0f;
    /* Adding 1.5 * 2^23 rounds to an integer in the low bits of the mantissa. */
    const float shifted = kept * 1.44269504f + 12582912.0f;
    const float k = shifted - 12582912.0f;
    const float r = kept - k * 0.693359375f + k * 2.12194440e-4f; /* ln 2, in two parts */
    float p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits << 23) + 0x3f800000u; /* 2^k; the upper bits of `shifted` are shifted out */
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return x > -87.0f ? p * scale : 0.0f;
}

#endif
