/* weight_layout.h: planes and scales of a packed weight matrix, for pack.c and the linear kernels.
 *
 * A group (16 output rows, r = 0..15) is one sequential stream:
 *     f32 shrink[16]         power of two per row; |w| * shrink < 2^15, so w fits f16 after it
 *     chunk 0, chunk 1, ...  256 inputs each; the last holds what is left, in blocks of 32
 *     padding to 64 bytes
 * A chunk is its scales, then its blocks. With nb blocks in it (8 except in the last chunk):
 *     SCALE_D       f16 d[nb][16]                          w = d * v
 *     SCALE_DM      f16 {d[16], m[16]}[nb]                 w = d * v + m
 *     SCALE_K32     f16 d[16], i8 s[8][16]                 w = (d * s) * v         s per 32 inputs
 *     SCALE_K32_M   f16 d[16], dmin[16], u8 s[8][16], o[8][16]   w = (d * s) * v - dmin * o
 *     SCALE_K16     f16 d[16], i8 s[16][16]                the same as K32, s per 16 inputs
 *     SCALE_K16_M   f16 d[16], dmin[16], u8 so[16][16]     s = low nibble, o = high nibble
 *     SCALE_NONE    nothing (16 and 32-bit types)
 * v is code - offset, or iq4 level[code]; codes are unsigned, because VPDPBUSD needs one unsigned
 * operand. A block is its low plane, then its high plane. In every plane, byte 4r + i of a 64-byte
 * line belongs to row r and to input 4j + i of "quad line" j = 0..7:
 *     8 bits    line j                            Q8_0: int8 code + 128
 *     4 bits    line j % 4, nibble j / 4          so line & 15 is quad j, line >> 4 is quad j + 4
 *     2 bits    line j / 4, bit pair j % 4        low plane of Q2_K and Q3_K, high plane of Q6_K
 *     1 bit     one line, bit j                   high plane of 5-bit types and of Q3_K
 *     16 bits   line 2j + h, 16-bit word 2r + i   input 4j + h + 2i (h, i = 0, 1): the order that
 *                                                 masking words out of a quad line gives, too
 *     32 bits   line k, f32 r                     input k = 0..31
 * Bits per weight are those of the file except for Q3_K 3.56 (file 3.44), Q4_K 4.63 (4.5), Q5_K
 * 5.63 (5.5) and IQ4_XS 4.31 (4.25), whose packed 6-bit scales become bytes. Every part is a
 * multiple of 32 bytes; only the group is aligned to 64. */
#ifndef SAC_OPS_WEIGHT_LAYOUT_H
#define SAC_OPS_WEIGHT_LAYOUT_H

#include "ops/weight.h"

#define LAYOUT_CHUNK  256u /* inputs of a chunk */
#define LAYOUT_BLOCK  32u
#define LAYOUT_BLOCKS 8u  /* blocks of a full chunk */
#define LAYOUT_HEAD   64u /* bytes of shrink[16] */
#define LAYOUT_LINE   64u

#ifdef __cplusplus /* CUDA C folds these when it compiles a kernel for one type */
#define LAYOUT_INLINE static constexpr inline
#else
#define LAYOUT_INLINE static inline
#endif

enum layout_scale {
    SCALE_NONE,
    SCALE_D,
    SCALE_DM,
    SCALE_K32,
    SCALE_K32_M,
    SCALE_K16,
    SCALE_K16_M,
};

struct weight_layout {
    uint8_t low_bits, high_bits; /* of the planes; 16 or 32 low bits: unquantised */
    uint8_t offset;              /* of unsigned codes; unused by `iq4` */
    bool iq4;                    /* codes index layout_iq4_level */
    enum layout_scale scale;
};

/* A switch and not a table, so that kernels specialised by type fold it away. */
LAYOUT_INLINE struct weight_layout weight_layout_of(enum quant_type type)
{
    switch (type) {
    case QUANT_F32: return (struct weight_layout){32, 0, 0, false, SCALE_NONE};
    case QUANT_F16:
    case QUANT_BF16: return (struct weight_layout){16, 0, 0, false, SCALE_NONE};
    case QUANT_Q4_0: return (struct weight_layout){4, 0, 8, false, SCALE_D};
    case QUANT_Q4_1: return (struct weight_layout){4, 0, 0, false, SCALE_DM};
    case QUANT_Q5_0: return (struct weight_layout){4, 1, 16, false, SCALE_D};
    case QUANT_Q5_1: return (struct weight_layout){4, 1, 0, false, SCALE_DM};
    case QUANT_Q8_0: return (struct weight_layout){8, 0, 128, false, SCALE_D};
    case QUANT_Q2_K: return (struct weight_layout){2, 0, 0, false, SCALE_K16_M};
    case QUANT_Q3_K: return (struct weight_layout){2, 1, 4, false, SCALE_K16};
    case QUANT_Q4_K: return (struct weight_layout){4, 0, 0, false, SCALE_K32_M};
    case QUANT_Q5_K: return (struct weight_layout){4, 1, 0, false, SCALE_K32_M};
    case QUANT_Q6_K: return (struct weight_layout){4, 2, 32, false, SCALE_K16};
    case QUANT_IQ4_NL: return (struct weight_layout){4, 0, 0, true, SCALE_D};
    case QUANT_IQ4_XS: return (struct weight_layout){4, 0, 0, true, SCALE_K32};
    }
    __builtin_unreachable();
}

/* The 16 levels of the non-linear 4-bit types. */
static const int8_t layout_iq4_level[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                            1,    13,   25,  38,  53,  69,  89,  113};

/* Offset that kernels subtract when they look up levels as unsigned bytes level + 128. */
#define LAYOUT_IQ4_OFFSET 128

LAYOUT_INLINE bool layout_is_float(struct weight_layout l)
{
    return l.low_bits >= 16;
}

/* Whether the type has a scale per 16 inputs, not per 32. */
LAYOUT_INLINE bool layout_halves(struct weight_layout l)
{
    return l.scale == SCALE_K16 || l.scale == SCALE_K16_M;
}

LAYOUT_INLINE bool layout_has_min(struct weight_layout l)
{
    return l.scale == SCALE_DM || l.scale == SCALE_K32_M || l.scale == SCALE_K16_M;
}

LAYOUT_INLINE uint32_t layout_low_bytes(struct weight_layout l)
{
    return LAYOUT_LINE * l.low_bits;
}

LAYOUT_INLINE uint32_t layout_block_bytes(struct weight_layout l)
{
    return LAYOUT_LINE * ((uint32_t)l.low_bits + l.high_bits);
}

/* Bytes of scales in front of a chunk of `nb` blocks. */
LAYOUT_INLINE uint32_t layout_scale_bytes(struct weight_layout l, uint32_t nb)
{
    switch (l.scale) {
    case SCALE_NONE: return 0;
    case SCALE_D: return 32 * nb;
    case SCALE_DM: return 64 * nb;
    case SCALE_K32: return 32 + 128;
    case SCALE_K32_M: return 64 + 256;
    case SCALE_K16: return 32 + 256;
    case SCALE_K16_M: return 64 + 256;
    }
    __builtin_unreachable();
}

LAYOUT_INLINE uint32_t layout_chunk_bytes(struct weight_layout l, uint32_t nb)
{
    return layout_scale_bytes(l, nb) + nb * layout_block_bytes(l);
}

/* Number of blocks of a row of n_in inputs, and of those in chunk c. */
LAYOUT_INLINE uint32_t layout_n_block(uint32_t n_in)
{
    return (n_in + LAYOUT_BLOCK - 1) / LAYOUT_BLOCK;
}

LAYOUT_INLINE uint32_t layout_chunk_blocks(uint32_t n_block, uint32_t c)
{
    const uint32_t left = n_block - c * LAYOUT_BLOCKS;
    return left < LAYOUT_BLOCKS ? left : LAYOUT_BLOCKS;
}

/* All chunks but the last have this size, so chunk c is at LAYOUT_HEAD + c times it. */
LAYOUT_INLINE uint32_t layout_full_chunk_bytes(struct weight_layout l)
{
    return layout_chunk_bytes(l, LAYOUT_BLOCKS);
}

#endif
