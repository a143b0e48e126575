/* pack.c: from the file's rows to the packed layout of weight_layout.h and back.
 *
 * Packing works on one group of 16 rows at a time. Per block of 32 inputs the codes of the 16 rows
 * are unpacked to bytes, transposed into eight quad lines of 64 bytes and folded into planes; only
 * `codes_*` and `scales_*` know the file's types. Loops over a line have no branches, so that the
 * compiler vectorises them.
 *
 * Invariants:
 *  1. Lossless: scales keep their bits (f16) or their integers. weight_unpack_row rounds in the
 *     same order as quant.c, hence the same pragma against fused multiply-add.
 *  2. Every byte of a group is written: rows and inputs beyond the matrix are zeros of their type
 *     (scale 0), so kernels may compute on them.
 *
 * It does not read files, allocate memory, or choose a type. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#include "base/half.h"
#include "ops/weight_layout.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define ROWS WEIGHT_GROUP

/* ---- Codes of 32 inputs of one row ----
 * `b` is the file's block; `sub` the part of 32 within a super-block. */

typedef void (*codes_fn)(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub);

static void nibble_halves(uint8_t q[LAYOUT_BLOCK], const uint8_t *nibbles)
{
    for (uint32_t j = 0; j < 16; j++) {
        q[j] = nibbles[j] & 15;
        q[j + 16] = nibbles[j] >> 4;
    }
}

static void codes_q4_0(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    (void)sub;
    nibble_halves(q, b + 2);
}

static void codes_q4_1(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    (void)sub;
    nibble_halves(q, b + 4);
}

static void add_fifth(uint8_t q[LAYOUT_BLOCK], const uint8_t *fifth)
{
    uint32_t bits;
    memcpy(&bits, fifth, sizeof bits);
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] |= (uint8_t)((bits >> j & 1u) << 4);
}

static void codes_q5_0(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    (void)sub;
    nibble_halves(q, b + 6);
    add_fifth(q, b + 2);
}

static void codes_q5_1(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    (void)sub;
    nibble_halves(q, b + 8);
    add_fifth(q, b + 4);
}

static void codes_q8_0(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    (void)sub;
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] = b[2 + j] ^ 0x80;
}

static void bit_pairs(uint8_t q[LAYOUT_BLOCK], const uint8_t *pairs, uint32_t sub)
{
    const uint8_t *from = pairs + sub / 4 * 32;
    const uint32_t shift = sub % 4 * 2;
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] = (uint8_t)(from[j] >> shift & 3);
}

static void codes_q2_k(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    bit_pairs(q, b + 16, sub);
}

static void codes_q3_k(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    bit_pairs(q, b + 32, sub);
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] |= (uint8_t)((b[j] >> sub & 1) << 2);
}

/* 32 bytes hold two parts: low nibbles, high nibbles. */
static void nibble_parts(uint8_t q[LAYOUT_BLOCK], const uint8_t *nibbles, uint32_t sub)
{
    const uint8_t *from = nibbles + sub / 2 * 32;
    const uint32_t shift = sub % 2 * 4;
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] = (uint8_t)(from[j] >> shift & 15);
}

static void codes_q4_k(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    nibble_parts(q, b + 16, sub);
}

static void codes_q5_k(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    nibble_parts(q, b + 48, sub);
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++) q[j] |= (uint8_t)((b[16 + j] >> sub & 1) << 4);
}

static void codes_q6_k(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    const uint8_t *low = b + sub / 4 * 64 + sub % 2 * 32;
    const uint32_t shift = sub % 4 / 2 * 4;
    bit_pairs(q, b + 128, sub);
    for (uint32_t j = 0; j < LAYOUT_BLOCK; j++)
        q[j] = (uint8_t)((low[j] >> shift & 15) | q[j] << 4);
}

static void codes_iq4_xs(uint8_t q[LAYOUT_BLOCK], const uint8_t *b, uint32_t sub)
{
    nibble_halves(q, b + 8 + sub * 16);
}

/* ---- Scales of one row of a chunk ----
 * `head` is the chunk's scale area, `b` the row's first block there, nb the blocks of 32. The
 * result bounds |w| from above, within a factor of about two. */

typedef float (*scales_fn)(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r);

static float copy_f16(uint8_t *dst, const uint8_t *src, uint32_t r)
{
    uint16_t h;
    memcpy(&h, src, sizeof h);
    memcpy(dst + 2 * r, &h, sizeof h);
    return fabsf(f16_to_f32(h));
}

/* The larger of two; a NaN in `b` is ignored. */
static float max_f32(float a, float b)
{
    return b > a ? b : a;
}

static float scales_d(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r, uint32_t bytes,
                      float code_max)
{
    float d_max = 0;
    for (uint32_t i = 0; i < nb; i++)
        d_max = max_f32(d_max, copy_f16(head + 32 * i, b + (size_t)bytes * i, r));
    return d_max * code_max;
}

static float scales_dm(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r, uint32_t bytes,
                       float code_max)
{
    float bound = 0;
    for (uint32_t i = 0; i < nb; i++) {
        const float d = copy_f16(head + 64 * i, b + (size_t)bytes * i, r);
        const float m = copy_f16(head + 64 * i + 32, b + (size_t)bytes * i + 2, r);
        bound = max_f32(bound, d * code_max + m);
    }
    return bound;
}

static float scales_q4_0(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_d(head, b, nb, r, 18, 8);
}

static float scales_q4_1(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_dm(head, b, nb, r, 20, 15);
}

static float scales_q5_0(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_d(head, b, nb, r, 22, 16);
}

static float scales_q5_1(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_dm(head, b, nb, r, 24, 31);
}

static float scales_q8_0(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_d(head, b, nb, r, 34, 128);
}

static float scales_iq4_nl(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    return scales_d(head, b, nb, r, 18, 127);
}

static float scales_q2_k(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    for (uint32_t i = 0; i < 16; i++) head[64 + 16 * i + r] = b[i];
    const float d = copy_f16(head, b + 80, r), dmin = copy_f16(head + 32, b + 82, r);
    return d * (15 * 3) + dmin * 15;
}

static float scales_q3_k(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    const uint8_t *packed = b + 96;
    for (uint32_t i = 0; i < 16; i++) {
        const int low = packed[i % 8] >> (i / 8 * 4) & 15, high = packed[8 + i % 4] >> (i / 4 * 2);
        head[32 + 16 * i + r] = (uint8_t)((low | (high & 3) << 4) - 32);
    }
    return copy_f16(head, b + 108, r) * (32 * 4);
}

/* Q4_K and Q5_K: 6-bit scales and offsets from 12 bytes, as quant.c describes. */
static float scales_k32_m(uint8_t *head, const uint8_t *b, uint32_t r, float code_max)
{
    const uint8_t *packed = b + 4;
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t *s = head + 64 + 16 * i + r, *o = s + 128;
        s[0] = packed[i] & 63;
        o[0] = packed[i + 4] & 63;
        s[64] = (uint8_t)((packed[i + 8] & 15) | packed[i] >> 6 << 4);
        o[64] = (uint8_t)(packed[i + 8] >> 4 | packed[i + 4] >> 6 << 4);
    }
    const float d = copy_f16(head, b, r), dmin = copy_f16(head + 32, b + 2, r);
    return d * (63 * code_max) + dmin * 63;
}

static float scales_q4_k(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    return scales_k32_m(head, b, r, 15);
}

static float scales_q5_k(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    return scales_k32_m(head, b, r, 31);
}

static float scales_q6_k(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    int s_max = 0;
    for (uint32_t i = 0; i < 16; i++) {
        const int s = (int8_t)b[192 + i], magnitude = s < 0 ? -s : s;
        head[32 + 16 * i + r] = b[192 + i];
        if (magnitude > s_max) s_max = magnitude;
    }
    return copy_f16(head, b + 208, r) * (float)(s_max * 32);
}

static float scales_iq4_xs(uint8_t *head, const uint8_t *b, uint32_t nb, uint32_t r)
{
    (void)nb;
    const int high = b[2] | b[3] << 8;
    for (int i = 0; i < 8; i++) {
        const int low = b[4 + i / 2] >> (i % 2 * 4) & 15;
        head[32 + 16 * i + (int)r] = (uint8_t)((low | (high >> (2 * i) & 3) << 4) - 32);
    }
    return copy_f16(head, b, r) * (32 * 127);
}

/* ---- The types ---- */

struct packer {
    codes_fn codes;
    scales_fn scales;
};

static struct packer packer_of(enum quant_type type)
{
    switch (type) {
    case QUANT_F32:
    case QUANT_F16:
    case QUANT_BF16: break;
    case QUANT_Q4_0: return (struct packer){codes_q4_0, scales_q4_0};
    case QUANT_Q4_1: return (struct packer){codes_q4_1, scales_q4_1};
    case QUANT_Q5_0: return (struct packer){codes_q5_0, scales_q5_0};
    case QUANT_Q5_1: return (struct packer){codes_q5_1, scales_q5_1};
    case QUANT_Q8_0: return (struct packer){codes_q8_0, scales_q8_0};
    case QUANT_Q2_K: return (struct packer){codes_q2_k, scales_q2_k};
    case QUANT_Q3_K: return (struct packer){codes_q3_k, scales_q3_k};
    case QUANT_Q4_K: return (struct packer){codes_q4_k, scales_q4_k};
    case QUANT_Q5_K: return (struct packer){codes_q5_k, scales_q5_k};
    case QUANT_Q6_K: return (struct packer){codes_q6_k, scales_q6_k};
    case QUANT_IQ4_NL: return (struct packer){codes_q4_0, scales_iq4_nl};
    case QUANT_IQ4_XS: return (struct packer){codes_iq4_xs, scales_iq4_xs};
    }
    return (struct packer){0};
}

/* ---- Planes ---- */

/* line[j] takes inputs 4j..4j+3 of all rows. */
static void transpose_quads(uint8_t line[8][LAYOUT_LINE], uint8_t tile[ROWS][LAYOUT_BLOCK])
{
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t j = 0; j < 8; j++) memcpy(line[j] + 4 * r, tile[r] + 4 * j, 4);
}

static void fold_bit_pairs(uint8_t *dst, uint8_t line[8][LAYOUT_LINE], uint32_t shift)
{
    for (uint32_t h = 0; h < 2; h++)
        for (uint32_t i = 0; i < LAYOUT_LINE; i++) {
            const uint32_t a = line[4 * h][i] >> shift & 3, b = line[4 * h + 1][i] >> shift & 3;
            const uint32_t c = line[4 * h + 2][i] >> shift & 3, d = line[4 * h + 3][i] >> shift & 3;
            dst[LAYOUT_LINE * h + i] = (uint8_t)(a | b << 2 | c << 4 | d << 6);
        }
}

static void fold_bits(uint8_t *dst, uint8_t line[8][LAYOUT_LINE], uint32_t shift)
{
    memset(dst, 0, LAYOUT_LINE);
    for (uint32_t j = 0; j < 8; j++)
        for (uint32_t i = 0; i < LAYOUT_LINE; i++)
            dst[i] = (uint8_t)(dst[i] | (line[j][i] >> shift & 1) << j);
}

static void fold_planes(uint8_t *dst, uint8_t line[8][LAYOUT_LINE], struct weight_layout l)
{
    if (l.low_bits == 8) {
        memcpy(dst, line, 8 * LAYOUT_LINE);
    } else if (l.low_bits == 4) {
        for (uint32_t j = 0; j < 4; j++)
            for (uint32_t i = 0; i < LAYOUT_LINE; i++)
                dst[LAYOUT_LINE * j + i] = (uint8_t)((line[j][i] & 15) | line[j + 4][i] << 4);
    } else {
        fold_bit_pairs(dst, line, 0);
    }
    dst += layout_low_bytes(l);
    if (l.high_bits == 1) fold_bits(dst, line, l.low_bits);
    if (l.high_bits == 2) fold_bit_pairs(dst, line, l.low_bits);
}

/* Code of row r, input k of a block. */
static uint32_t plane_code(const uint8_t *block, struct weight_layout l, uint32_t r, uint32_t k)
{
    const uint32_t j = k / 4, at = 4 * r + k % 4;
    const uint8_t *high = block + layout_low_bytes(l);
    uint32_t q;
    if (l.low_bits == 8)
        q = block[LAYOUT_LINE * j + at];
    else if (l.low_bits == 4)
        q = block[LAYOUT_LINE * (j % 4) + at] >> (j / 4 * 4) & 15u;
    else
        q = block[LAYOUT_LINE * (j / 4) + at] >> (j % 4 * 2) & 3u;
    if (l.high_bits == 1) q |= (high[at] >> j & 1u) << l.low_bits;
    if (l.high_bits == 2) q |= (high[LAYOUT_LINE * (j / 4) + at] >> (j % 4 * 2) & 3u) << l.low_bits;
    return q;
}

/* Byte offset of input k of row r in a block of a 16 or 32-bit type. */
static uint32_t dense_offset(struct weight_layout l, uint32_t r, uint32_t k)
{
    if (l.low_bits == 32) return LAYOUT_LINE * k + 4 * r;
    return LAYOUT_LINE * (k / 4 * 2 + k % 2) + 2 * (2 * r + k % 4 / 2);
}

/* ---- One group ---- */

struct pack_job {
    const struct weight *w;
    const uint8_t *src;
    size_t row_bytes; /* of the file */
};

static uint32_t rows_of_group(const struct weight *w, uint32_t group_i)
{
    const uint32_t left = w->n_out - group_i * ROWS;
    return left < ROWS ? left : ROWS;
}

/* The power of two that brings `bound` below 2^15, at most 2^126; 1 if the row is zero or has an
 * infinity. */
static float shrink_of(float bound)
{
    if (!(bound > 0) || !isfinite(bound)) return 1;
    const int e = 15 - (ilogbf(bound) + 1);
    return ldexpf(1, e > 126 ? 126 : e);
}

static void pack_group_quant(const struct pack_job *job, uint32_t group_i, float bound[ROWS])
{
    const struct weight *w = job->w;
    const struct weight_layout l = weight_layout_of(w->type);
    const struct packer packer = packer_of(w->type);
    const uint32_t block_elems = quant_block_elems(w->type), n_row = rows_of_group(w, group_i);
    const uint32_t n_block = layout_n_block(w->n_in), subs = block_elems / LAYOUT_BLOCK;
    const size_t block_bytes = quant_block_bytes(w->type);
    uint8_t *dst = w->data + group_i * w->group_bytes + LAYOUT_HEAD;
    uint8_t tile[ROWS][LAYOUT_BLOCK] = {{0}};
    uint8_t line[8][LAYOUT_LINE];
    for (uint32_t b0 = 0; b0 < n_block; b0 += LAYOUT_BLOCKS) {
        const uint32_t nb = layout_chunk_blocks(n_block, b0 / LAYOUT_BLOCKS);
        const uint8_t *src = job->src + (size_t)group_i * ROWS * job->row_bytes;
        for (uint32_t r = 0; r < n_row; r++) {
            const uint8_t *row = src + r * job->row_bytes + b0 / subs * block_bytes;
            bound[r] = max_f32(bound[r], packer.scales(dst, row, nb, r));
        }
        dst += layout_scale_bytes(l, nb);
        for (uint32_t b = b0; b < b0 + nb; b++) {
            for (uint32_t r = 0; r < n_row; r++)
                packer.codes(tile[r], src + r * job->row_bytes + b / subs * block_bytes, b % subs);
            transpose_quads(line, tile);
            fold_planes(dst, line, l);
            dst += layout_block_bytes(l);
        }
    }
}

static float dense_value(enum quant_type type, const uint8_t *p)
{
    uint32_t word = 0;
    if (type == QUANT_F32) {
        memcpy(&word, p, 4);
        return bits_float(word);
    }
    memcpy(&word, p, 2);
    return type == QUANT_F16 ? f16_to_f32((uint16_t)word) : bf16_to_f32((uint16_t)word);
}

static void pack_group_dense(const struct pack_job *job, uint32_t group_i, float bound[ROWS])
{
    const struct weight *w = job->w;
    const struct weight_layout l = weight_layout_of(w->type);
    const uint32_t bytes = l.low_bits / 8u, n_row = rows_of_group(w, group_i);
    const uint8_t *src = job->src + (size_t)group_i * ROWS * job->row_bytes;
    uint8_t *dst = w->data + group_i * w->group_bytes + LAYOUT_HEAD;
    for (uint32_t b = 0; b * LAYOUT_BLOCK < w->n_in; b++, dst += layout_block_bytes(l)) {
        const uint32_t left = w->n_in - b * LAYOUT_BLOCK;
        const uint32_t n = left < LAYOUT_BLOCK ? left : LAYOUT_BLOCK;
        for (uint32_t r = 0; r < n_row; r++) {
            const uint8_t *row = src + r * job->row_bytes + (size_t)b * LAYOUT_BLOCK * bytes;
            for (uint32_t k = 0; k < n; k++) {
                memcpy(dst + dense_offset(l, r, k), row + k * bytes, bytes);
                bound[r] = max_f32(bound[r], fabsf(dense_value(w->type, row + k * bytes)));
            }
        }
    }
}

static void pack_group(void *arg, uint32_t group_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct pack_job *job = arg;
    const struct weight *w = job->w;
    uint8_t *dst = w->data + group_i * w->group_bytes;
    float bound[ROWS] = {0};
    /* Missing rows and inputs, and the padding, must be zero. Of the last group everything is
     * cleared, of others the last chunk, which is all that can have gaps. */
    const size_t tail = layout_full_chunk_bytes(weight_layout_of(w->type)) + LAYOUT_LINE;
    const size_t clear =
        rows_of_group(w, group_i) < ROWS || tail > w->group_bytes ? w->group_bytes : tail;
    memset(dst + w->group_bytes - clear, 0, clear);
    if (weight_layout_of(w->type).scale == SCALE_NONE)
        pack_group_dense(job, group_i, bound);
    else
        pack_group_quant(job, group_i, bound);
    for (uint32_t r = 0; r < ROWS; r++) {
        const float shrink = shrink_of(bound[r]);
        memcpy(dst + 4 * r, &shrink, sizeof shrink);
    }
}

/* ---- One row back to f32 ---- */

static float load_f16(const uint8_t *p, uint32_t r)
{
    uint16_t h;
    memcpy(&h, p + 2 * r, sizeof h);
    return f16_to_f32(h);
}

struct affine { /* w = scale * v + plus */
    float scale, plus;
};

/* Scale and offset of 16 inputs, half `h` of block b of a chunk, for row r. */
static struct affine scale_of(const uint8_t *head, enum layout_scale kind, uint32_t b, uint32_t h,
                              uint32_t r)
{
    const uint32_t at16 = 16 * (2 * b + h) + r, at32 = 16 * b + r;
    switch (kind) {
    case SCALE_NONE: break;
    case SCALE_D: return (struct affine){load_f16(head + 32 * b, r), 0};
    case SCALE_DM:
        return (struct affine){load_f16(head + 64 * b, r), load_f16(head + 64 * b + 32, r)};
    case SCALE_K32: return (struct affine){load_f16(head, r) * (float)(int8_t)head[32 + at32], 0};
    case SCALE_K16: return (struct affine){load_f16(head, r) * (float)(int8_t)head[32 + at16], 0};
    case SCALE_K32_M:
        return (struct affine){load_f16(head, r) * (float)head[64 + at32],
                               -(load_f16(head + 32, r) * (float)head[192 + at32])};
    case SCALE_K16_M:
        return (struct affine){load_f16(head, r) * (float)(head[64 + at16] & 15),
                               -(load_f16(head + 32, r) * (float)(head[64 + at16] >> 4))};
    }
    return (struct affine){0, 0};
}

static void unpack_quant(float *dst, const struct weight *w, const uint8_t *src, uint32_t r)
{
    const struct weight_layout l = weight_layout_of(w->type);
    const uint32_t n_block = layout_n_block(w->n_in);
    struct affine a = {0, 0};
    for (uint32_t b0 = 0; b0 < n_block; b0 += LAYOUT_BLOCKS) {
        const uint32_t nb = layout_chunk_blocks(n_block, b0 / LAYOUT_BLOCKS);
        const uint8_t *head = src;
        src += layout_scale_bytes(l, nb);
        for (uint32_t b = 0; b < nb; b++, src += layout_block_bytes(l)) {
            for (uint32_t k = 0; k < LAYOUT_BLOCK; k++) {
                if (k % 16 == 0) a = scale_of(head, l.scale, b, k / 16, r);
                const int q = (int)plane_code(src, l, r, k);
                const float v = a.scale * (float)(l.iq4 ? layout_iq4_level[q] : q - l.offset);
                /* Only with an offset: adding 0 would turn -0 into +0. */
                *dst++ = layout_has_min(l) ? v + a.plus : v;
            }
        }
    }
}

static void unpack_dense(float *dst, const struct weight *w, const uint8_t *src, uint32_t r)
{
    const struct weight_layout l = weight_layout_of(w->type);
    for (uint32_t i = 0; i < w->n_in; i++) {
        const uint8_t *block = src + (size_t)(i / LAYOUT_BLOCK) * layout_block_bytes(l);
        dst[i] = dense_value(w->type, block + dense_offset(l, r, i % LAYOUT_BLOCK));
    }
}

/* ---- weight.h ---- */

void weight_init(struct weight *w, enum quant_type type, uint32_t n_out, uint32_t n_in)
{
    assert(quant_supported(type) && n_in % quant_block_elems(type) == 0);
    assert(n_out > 0 && n_in > 0);
    const struct weight_layout l = weight_layout_of(type);
    const uint32_t n_block = layout_n_block(n_in), n_full = n_block / LAYOUT_BLOCKS;
    size_t bytes = LAYOUT_HEAD + (size_t)n_full * layout_full_chunk_bytes(l);
    if (n_block % LAYOUT_BLOCKS) bytes += layout_chunk_bytes(l, n_block % LAYOUT_BLOCKS);
    *w = (struct weight){
        .type = type,
        .n_out = n_out,
        .n_in = n_in,
        .n_group = (n_out + ROWS - 1) / ROWS,
        .group_bytes = (bytes + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE,
    };
}

size_t weight_plain_bytes(const struct weight *w)
{
    return (size_t)w->n_group * ROWS * layout_n_block(w->n_in) * LAYOUT_BLOCK * sizeof(uint16_t);
}

struct weight weight_piece(const struct weight *w, uint32_t first, uint32_t n)
{
    assert(first < w->n_group && n > 0);
    struct weight piece = *w;
    piece.data = w->data + first * w->group_bytes;
    piece.plain = NULL;
    piece.n_group = w->n_group - first < n ? w->n_group - first : n;
    piece.n_out = w->n_out - first * ROWS < n * ROWS ? w->n_out - first * ROWS : n * ROWS;
    return piece;
}

uint32_t weight_cut_unit(enum quant_type type)
{
    const uint32_t n = quant_block_elems(type);
    return n > LAYOUT_BLOCK ? n : LAYOUT_BLOCK;
}

/* Place of block b in a group of n_block blocks: offset of its chunk, its index there, and the
 * number of blocks of the chunk. */
struct block_at {
    size_t chunk;
    uint32_t i, n;
};

static struct block_at find_block(struct weight_layout l, uint32_t n_block, uint32_t b)
{
    const uint32_t c = b / LAYOUT_BLOCKS;
    return (struct block_at){.chunk = LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(l),
                             .i = b % LAYOUT_BLOCKS,
                             .n = layout_chunk_blocks(n_block, c)};
}

/* Copies one block of a type whose blocks have their own scales, or none. */
static void cut_block(const struct weight *to, uint8_t *dst, uint32_t to_b,
                      const struct weight *from, const uint8_t *src, uint32_t from_b)
{
    const struct weight_layout l = weight_layout_of(to->type);
    const struct block_at t = find_block(l, layout_n_block(to->n_in), to_b);
    const struct block_at f = find_block(l, layout_n_block(from->n_in), from_b);
    const size_t n_scale = layout_scale_bytes(l, 1), n = layout_block_bytes(l);
    memcpy(dst + t.chunk + t.i * n_scale, src + f.chunk + f.i * n_scale, n_scale);
    memcpy(dst + t.chunk + t.n * n_scale + t.i * n, src + f.chunk + f.n * n_scale + f.i * n, n);
}

void weight_cut(const struct weight *to, const struct weight *from, uint32_t first)
{
    const struct weight_layout l = weight_layout_of(to->type);
    const uint32_t unit = weight_cut_unit(to->type), n_block = layout_n_block(to->n_in);
    const size_t full = layout_full_chunk_bytes(l);
    assert(to->type == from->type && to->n_out == from->n_out && first % unit == 0);
    assert(first + to->n_in == from->n_in ||
           (first + to->n_in < from->n_in && to->n_in % unit == 0));
    for (uint32_t g = 0; g < to->n_group; g++) {
        uint8_t *dst = to->data + g * to->group_bytes;
        const uint8_t *src = from->data + g * from->group_bytes;
        memset(dst, 0, to->group_bytes);
        memcpy(dst, src, LAYOUT_HEAD); /* bounds of whole rows also hold for parts of them */
        if (unit == LAYOUT_CHUNK)
            memcpy(dst + LAYOUT_HEAD, src + LAYOUT_HEAD + first / unit * full,
                   to->n_in / unit * full);
        for (uint32_t b = 0; unit < LAYOUT_CHUNK && b < n_block; b++)
            cut_block(to, dst, b, from, src, first / LAYOUT_BLOCK + b);
    }
}

void weight_pack(struct workers *pool, const struct weight *w, const void *src)
{
    assert(w->data && (uintptr_t)w->data % LAYOUT_LINE == 0);
    struct pack_job job = {.w = w, .src = src, .row_bytes = quant_row_bytes(w->type, w->n_in)};
    workers_for(pool, w->n_group, pack_group, &job);
}

void weight_unpack_row(float *dst, const struct weight *w, uint32_t out_i)
{
    assert(out_i < w->n_out);
    const uint8_t *src = w->data + out_i / ROWS * w->group_bytes + LAYOUT_HEAD;
    if (weight_layout_of(w->type).scale == SCALE_NONE)
        unpack_dense(dst, w, src, out_i % ROWS);
    else
        unpack_quant(dst, w, src, out_i % ROWS);
}
