/* quant.c: what the bytes of each tensor type mean in f32, as plain loops over blocks.
 *
 * These loops are the definition of correct, so they trade speed for being easy to compare with the
 * format: one function per type, elements in file order, every product and sum rounded to f32 in
 * the order of the reference (scale times sub-scale first, then times the code, then the offset). A
 * fused multiply-add would round once where the reference rounds twice; the pragma below forbids
 * the compiler to make one.
 *
 * Shared vocabulary: a *block* is the unit of the file; `d` its f16 scale; `dmin` or `m` the scale
 * of its offsets; *codes* are the small integers per element. Super-blocks of 256 elements (the _K
 * types and IQ4_XS) hold groups of 16 or 32 elements with a sub-scale each.
 *
 * Blocks may lie at any address. Nothing here checks sizes: gguf_parse.c did. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "ops/quant.h"

#include "base/half.h"
#include "ops/weight_layout.h"

#include <assert.h>
#include <string.h>

#define SUPER 256u /* elements of a super-block */

static uint32_t load_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t load_u32(const uint8_t *p)
{
    return load_u16(p) | load_u16(p + 2) << 16;
}

static float load_f16(const uint8_t *p)
{
    return f16_to_f32((uint16_t)load_u16(p));
}

/* ---- One value per element ---- */

static void row_f32(float *dst, const uint8_t *src, size_t n)
{
    memcpy(dst, src, n * sizeof *dst);
}

static void row_f16(float *dst, const uint8_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = load_f16(src + 2 * i);
}

static void row_bf16(float *dst, const uint8_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++) dst[i] = bf16_to_f32((uint16_t)load_u16(src + 2 * i));
}

/* ---- Blocks of 32: scale, maybe an offset, codes; nibble j: elements j and j + 16 ---- */

/* d f16, codes 4 bit [16]: d * (q - 8) */
static void row_q4_0(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 18, dst += 32) {
        const float d = load_f16(b);
        for (uint32_t j = 0; j < 16; j++) {
            const int q = b[2 + j];
            dst[j] = d * (float)((q & 15) - 8);
            dst[j + 16] = d * (float)((q >> 4) - 8);
        }
    }
}

/* d f16, m f16, codes 4 bit [16]: d * q + m */
static void row_q4_1(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 20, dst += 32) {
        const float d = load_f16(b), m = load_f16(b + 2);
        for (uint32_t j = 0; j < 16; j++) {
            const int q = b[4 + j];
            dst[j] = d * (float)(q & 15) + m;
            dst[j + 16] = d * (float)(q >> 4) + m;
        }
    }
}

/* A code of 5 bits: the nibble, and bit `bit` of `high` above it. */
static int code5(int nibble, uint32_t high, size_t bit)
{
    return nibble | (int)((high >> bit) & 1u) << 4;
}

/* d f16, fifth bits u32, codes 4 bit [16]: d * (q - 16) */
static void row_q5_0(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 22, dst += 32) {
        const float d = load_f16(b);
        const uint32_t high = load_u32(b + 2);
        for (uint32_t j = 0; j < 16; j++) {
            const int q = b[6 + j];
            dst[j] = d * (float)(code5(q & 15, high, j) - 16);
            dst[j + 16] = d * (float)(code5(q >> 4, high, j + 16) - 16);
        }
    }
}

/* d f16, m f16, fifth bits u32, codes 4 bit [16]: d * q + m */
static void row_q5_1(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 24, dst += 32) {
        const float d = load_f16(b), m = load_f16(b + 2);
        const uint32_t high = load_u32(b + 4);
        for (uint32_t j = 0; j < 16; j++) {
            const int q = b[8 + j];
            dst[j] = d * (float)code5(q & 15, high, j) + m;
            dst[j + 16] = d * (float)code5(q >> 4, high, j + 16) + m;
        }
    }
}

/* d f16, codes i8 [32]: d * q */
static void row_q8_0(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 34, dst += 32) {
        const float d = load_f16(b);
        for (uint32_t j = 0; j < 32; j++) dst[j] = d * (float)(int8_t)b[2 + j];
    }
}

/* d f16, codes 4 bit [16]: d * level[q] */
static void row_iq4_nl(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 18, dst += 32) {
        const float d = load_f16(b);
        for (uint32_t j = 0; j < 16; j++) {
            dst[j] = d * (float)layout_iq4_level[b[2 + j] & 15];
            dst[j + 16] = d * (float)layout_iq4_level[b[2 + j] >> 4];
        }
    }
}

/* ---- Super-blocks of 256 ---- */

/* scales [16]: scale low nibble, offset high; codes 2 bit [64]; d, dmin f16.
 * Per group of 16: (d * scale) * q - dmin * offset. Each 32 bytes of codes hold 128 elements, 32
 * per bit pair. */
static void row_q2_k(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 84, dst += SUPER) {
        const uint8_t *codes = b + 16;
        const float d = load_f16(b + 80), dmin = load_f16(b + 82);
        for (size_t e = 0; e < SUPER; e++) {
            const size_t shift = e % 128 / 32 * 2;
            const int q = codes[e / 128 * 32 + e % 32] >> shift & 3;
            const float scale = d * (float)(b[e / 16] & 15),
                        offset = dmin * (float)(b[e / 16] >> 4);
            dst[e] = scale * (float)q - offset;
        }
    }
}

/* Sub-scale `g` of Q3_K, 6 bits from 12 bytes: low nibbles of 0..7 in the low halves of bytes 0..7,
 * of 8..15 in the high halves; the upper 2 bits in bytes 8..11, four groups each. */
static int q3_k_scale(const uint8_t *packed, size_t g)
{
    const int low = packed[g % 8] >> (g / 8 * 4) & 15;
    const int high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
    return (low | high << 4) - 32;
}

/* third bits [32], codes 2 bit [64], scales 6 bit [12], d f16. Per group of 16: (d * scale) * q.
 * The code is 2 bits less 4 where the third bit is clear. */
static void row_q3_k(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 110, dst += SUPER) {
        const uint8_t *codes = b + 32, *scales = b + 96;
        const float d = load_f16(b + 108);
        for (size_t g = 0; g < 16; g++) {
            const float scale = d * (float)q3_k_scale(scales, g);
            for (size_t e = g * 16; e < g * 16 + 16; e++) {
                const size_t shift = e % 128 / 32 * 2;
                const int low = codes[e / 128 * 32 + e % 32] >> shift & 3;
                const int third = b[e % 32] >> (e / 32) & 1;
                dst[e] = scale * (float)(low - (third ? 0 : 4));
            }
        }
    }
}

/* Sub-scale and offset of group `g` of Q4_K and Q5_K, 6 bits each from 12 bytes: groups 0..3 in the
 * low 6 bits of bytes 0..3 (scales) and 4..7 (offsets); groups 4..7 have their low nibbles in bytes
 * 8..11 and their upper 2 bits on top of bytes 0..3 and 4..7. */
static void q4_k_scale(const uint8_t *packed, size_t g, float *out_scale, float *out_offset)
{
    int scale, offset;
    if (g < 4) {
        scale = packed[g] & 63;
        offset = packed[g + 4] & 63;
    } else {
        scale = (packed[g + 4] & 15) | (packed[g - 4] >> 6) << 4;
        offset = packed[g + 4] >> 4 | (packed[g] >> 6) << 4;
    }
    *out_scale = (float)scale;
    *out_offset = (float)offset;
}

/* d, dmin f16, scales 6 bit [12], codes 4 bit [128]. Per group of 32: (d * scale) * q - dmin *
 * offset. Each 32 bytes of codes hold two groups, low nibbles first. */
static void row_q4_k(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 144, dst += SUPER) {
        const float d = load_f16(b), dmin = load_f16(b + 2);
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *codes = b + 16 + g / 2 * 32;
            float scale, offset;
            q4_k_scale(b + 4, g, &scale, &offset);
            scale = d * scale;
            offset = dmin * offset;
            for (size_t j = 0; j < 32; j++) {
                const int q = codes[j] >> (g % 2 * 4) & 15;
                dst[g * 32 + j] = scale * (float)q - offset;
            }
        }
    }
}

/* As Q4_K with fifth bits [32] before the codes: bit g of byte j belongs to element j of group
 * g. */
static void row_q5_k(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 176, dst += SUPER) {
        const float d = load_f16(b), dmin = load_f16(b + 2);
        for (size_t g = 0; g < 8; g++) {
            const uint8_t *fifth = b + 16, *codes = b + 48 + g / 2 * 32;
            float scale, offset;
            q4_k_scale(b + 4, g, &scale, &offset);
            scale = d * scale;
            offset = dmin * offset;
            for (size_t j = 0; j < 32; j++) {
                const int q = code5(codes[j] >> (g % 2 * 4) & 15, fifth[j], g);
                dst[g * 32 + j] = scale * (float)q - offset;
            }
        }
    }
}

/* low nibbles [128], upper 2 bits [64], scales i8 [16], d f16. Per group of 16:
 * (d * scale) * (q - 32). In each half of 128 elements, quarter s takes its nibbles from bytes
 * s % 2 * 32 on (high nibbles for s >= 2) and its upper bits from bit pair s. */
static void row_q6_k(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 210, dst += SUPER) {
        const uint8_t *scales = b + 192;
        const float d = load_f16(b + 208);
        for (size_t s = 0; s < 8; s++) {
            const uint8_t *low = b + s / 4 * 64 + s % 2 * 32, *high = b + 128 + s / 4 * 32;
            const size_t low_shift = s % 4 / 2 * 4, high_shift = s % 4 * 2;
            for (size_t j = 0; j < 32; j++) {
                const int q = (low[j] >> low_shift & 15) | (high[j] >> high_shift & 3) << 4;
                const float scale = d * (float)(int8_t)scales[s * 2 + j / 16];
                dst[s * 32 + j] = scale * (float)(q - 32);
            }
        }
    }
}

/* d f16, upper 2 bits of 8 scales u16, their low nibbles [4], codes 4 bit [128]. Per group of 32:
 * (d * (scale - 32)) * level[q]; inside a group nibbles lie as in IQ4_NL. */
static void row_iq4_xs(float *dst, const uint8_t *b, size_t n_block)
{
    for (size_t i = 0; i < n_block; i++, b += 136, dst += SUPER) {
        const float d = load_f16(b);
        const uint32_t high = load_u16(b + 2);
        for (size_t g = 0; g < 8; g++) {
            const int low = b[4 + g / 2] >> (g % 2 * 4) & 15;
            const float scale = d * (float)((low | (int)(high >> (2 * g) & 3u) << 4) - 32);
            const uint8_t *codes = b + 8 + g * 16;
            for (size_t j = 0; j < 16; j++) {
                dst[g * 32 + j] = scale * (float)layout_iq4_level[codes[j] & 15];
                dst[g * 32 + j + 16] = scale * (float)layout_iq4_level[codes[j] >> 4];
            }
        }
    }
}

/* ---- The table ---- */

struct type_info {
    const char *name;
    uint32_t block_elems, block_bytes; /* 0, 0: known by name only */
    void (*row)(float *dst, const uint8_t *src, size_t n_block);
};

/* Indexed by GGUF id. Ids that the format has withdrawn keep their names, so that an old file is
 * refused by name. */
static const struct type_info types[] = {
    [QUANT_F32] = {"F32", 1, 4, row_f32},
    [QUANT_F16] = {"F16", 1, 2, row_f16},
    [QUANT_Q4_0] = {"Q4_0", 32, 18, row_q4_0},
    [QUANT_Q4_1] = {"Q4_1", 32, 20, row_q4_1},
    [4] = {.name = "Q4_2"},
    [5] = {.name = "Q4_3"},
    [QUANT_Q5_0] = {"Q5_0", 32, 22, row_q5_0},
    [QUANT_Q5_1] = {"Q5_1", 32, 24, row_q5_1},
    [QUANT_Q8_0] = {"Q8_0", 32, 34, row_q8_0},
    [9] = {.name = "Q8_1"},
    [QUANT_Q2_K] = {"Q2_K", SUPER, 84, row_q2_k},
    [QUANT_Q3_K] = {"Q3_K", SUPER, 110, row_q3_k},
    [QUANT_Q4_K] = {"Q4_K", SUPER, 144, row_q4_k},
    [QUANT_Q5_K] = {"Q5_K", SUPER, 176, row_q5_k},
    [QUANT_Q6_K] = {"Q6_K", SUPER, 210, row_q6_k},
    [15] = {.name = "Q8_K"},
    [16] = {.name = "IQ2_XXS"},
    [17] = {.name = "IQ2_XS"},
    [18] = {.name = "IQ3_XXS"},
    [19] = {.name = "IQ1_S"},
    [QUANT_IQ4_NL] = {"IQ4_NL", 32, 18, row_iq4_nl},
    [21] = {.name = "IQ3_S"},
    [22] = {.name = "IQ2_S"},
    [QUANT_IQ4_XS] = {"IQ4_XS", SUPER, 136, row_iq4_xs},
    [24] = {.name = "I8"},
    [25] = {.name = "I16"},
    [26] = {.name = "I32"},
    [27] = {.name = "I64"},
    [28] = {.name = "F64"},
    [29] = {.name = "IQ1_M"},
    [QUANT_BF16] = {"BF16", 1, 2, row_bf16},
    [31] = {.name = "Q4_0_4_4"},
    [32] = {.name = "Q4_0_4_8"},
    [33] = {.name = "Q4_0_8_8"},
    [34] = {.name = "TQ1_0"},
    [35] = {.name = "TQ2_0"},
    [36] = {.name = "IQ4_NL_4_4"},
    [37] = {.name = "IQ4_NL_4_8"},
    [38] = {.name = "IQ4_NL_8_8"},
    [39] = {.name = "MXFP4"},
    [40] = {.name = "NVFP4"},
    [41] = {.name = "Q1_0"},
};

static const struct type_info *type_find(uint32_t type)
{
    static const struct type_info unknown = {0};
    return type < sizeof types / sizeof *types ? &types[type] : &unknown;
}

const char *quant_name(uint32_t type)
{
    return type_find(type)->name;
}

bool quant_supported(uint32_t type)
{
    return type_find(type)->row != NULL;
}

uint32_t quant_block_elems(uint32_t type)
{
    return type_find(type)->block_elems;
}

uint32_t quant_block_bytes(uint32_t type)
{
    return type_find(type)->block_bytes;
}

size_t quant_row_bytes(uint32_t type, size_t n)
{
    const struct type_info *t = type_find(type);
    assert(t->row && n % t->block_elems == 0);
    assert(n / t->block_elems <= SIZE_MAX / t->block_bytes);
    return n / t->block_elems * t->block_bytes;
}

void quant_dequant_row(float *dst, uint32_t type, const void *src, size_t n)
{
    const struct type_info *t = type_find(type);
    assert(t->row && n % t->block_elems == 0);
    t->row(dst, src, n / t->block_elems);
}
