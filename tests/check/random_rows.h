/* random_rows.h: file-order weight rows with random codes and sane scales, for tests and benches of
 * linear layers; and the small generator behind them, the same numbers on every machine. */
#ifndef SAC_TESTS_RANDOM_ROWS_H
#define SAC_TESTS_RANDOM_ROWS_H

#include "base/half.h"
#include "ops/quant.h"

#include <math.h>
#include <string.h>

static inline uint32_t random_next(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static inline float random_unit(uint64_t *state) /* -1 to 1 */
{
    return (float)random_next(state) / 1073741824.0f - 1.0f;
}

static inline float random_gauss(uint64_t *state) /* sum of 12 uniforms */
{
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += random_unit(state);
    return sum * 0.5f;
}

/* Where a block has its f16 scale and offset (-1: none), and a scale that makes weights of about
 * 0.03. */
struct random_fields {
    int d, m;
    float d_typical;
};

static inline struct random_fields random_fields_of(enum quant_type type)
{
    switch (type) {
    case QUANT_Q4_0: return (struct random_fields){0, -1, 0.006f};
    case QUANT_Q4_1: return (struct random_fields){0, 2, 0.006f};
    case QUANT_Q5_0: return (struct random_fields){0, -1, 0.003f};
    case QUANT_Q5_1: return (struct random_fields){0, 2, 0.003f};
    case QUANT_Q8_0: return (struct random_fields){0, -1, 0.0004f};
    case QUANT_Q2_K: return (struct random_fields){80, 82, 0.002f};
    case QUANT_Q3_K: return (struct random_fields){108, -1, 0.0007f};
    case QUANT_Q4_K: return (struct random_fields){0, 2, 0.0002f};
    case QUANT_Q5_K: return (struct random_fields){0, 2, 0.0001f};
    case QUANT_Q6_K: return (struct random_fields){208, -1, 0.00002f};
    case QUANT_IQ4_NL: return (struct random_fields){0, -1, 0.0005f};
    case QUANT_IQ4_XS: return (struct random_fields){0, -1, 0.00003f};
    default: return (struct random_fields){-1, -1, 0.03f};
    }
}

static inline void random_put_f16(uint8_t *p, float value)
{
    const uint16_t h = f32_to_f16(value);
    memcpy(p, &h, sizeof h);
}

/* Fills `n` elements of file-order blocks. */
static inline void random_rows(void *dst, enum quant_type type, size_t n, uint64_t *state)
{
    const struct random_fields f = random_fields_of(type);
    const size_t bytes = quant_row_bytes(type, n), block = quant_block_bytes(type);
    uint8_t *p = dst;
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(random_next(state) >> 5);
    for (size_t i = 0; i < bytes; i += block) {
        const float u = f.d_typical * (1 + 0.5f * random_unit(state));
        if (type == QUANT_F32) {
            const float v = f.d_typical * random_gauss(state);
            memcpy(p + i, &v, sizeof v);
        } else if (type == QUANT_F16) {
            random_put_f16(p + i, f.d_typical * random_gauss(state));
        } else if (type == QUANT_BF16) {
            const uint16_t b = f32_to_bf16(f.d_typical * random_gauss(state));
            memcpy(p + i, &b, sizeof b);
        } else {
            /* Legacy types have m near -d * half the codes; K-quants subtract dmin * o. */
            const bool k = quant_block_elems(type) == 256;
            random_put_f16(p + i + f.d, u);
            if (f.m >= 0) random_put_f16(p + i + f.m, k ? u * 8 : -8 * u);
        }
    }
}

#endif
