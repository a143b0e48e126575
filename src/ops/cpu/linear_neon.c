/* linear_neon.c: linear layers with NEON, and with SDOT where the CPU has it.
 *
 * Quantised weights are multiplied with activations rounded to 15 bits in blocks of 32, x = d *
 * (128 * high + low) with d = max |x| / 16256, so that both parts are int8; F32, F16 and BF16
 * weights are multiplied with f32 activations. One group of 16 outputs is unpacked to signed bytes,
 * a chunk of 256 inputs at a time (4 KiB), and up to LINEAR_TILE_ROWS rows stream past it, ROWS at
 * a time; for that the tile's rows are stored chunk by chunk. ROW_PROMPT and ROW_DECODE are
 * computed alike.
 *
 * Order of arithmetic, the same for every row, number of rows and worker:
 *  - Products and sums within 32 inputs (16 for types with scales per 16) are exact integers, so
 *    SDOT and widening multiplies give the same bits.
 *  - Per output there is one f32 sum from 0 in ascending order of blocks, acc = fma(dot, w_scale *
 *    d, acc), with scales per 16 inputs first half, second half; then, for types with a minimum,
 *    acc = fma(w_min, d * sum of q, acc), halves likewise.
 *  - Dense types have one f32 sum by FMA in ascending order of inputs.
 *
 * A block with NaN or infinity gets d = NaN and makes its row NaN. A block whose largest value is
 * below 2^-100 counts as zero. This file knows no threads beyond its items, and allocates
 * nothing. */
#include "base/half.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/linear_tile.h"
#include "ops/cpu/math_neon.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define ROWS     2        /* rows computed at a time: 16 integer sums, 8 float sums, 4 weights */
#define VECS     4        /* vectors of four outputs in a group */
#define STEP_MAX 16256.0f /* 127 * 128 */

/* 256 inputs of one row. */
struct x_chunk {
    int8_t high[LAYOUT_CHUNK], low[LAYOUT_CHUNK];
    float d[LAYOUT_BLOCKS];
    float d_sum[LAYOUT_BLOCKS][2]; /* d * sum of the first and second 16 q */
};

/* 256 inputs of a group: signed values in quad lines, scales in f32. */
struct panel {
    _Alignas(64) int8_t w[LAYOUT_BLOCKS][8][LAYOUT_LINE];
    _Alignas(64) float scale[LAYOUT_BLOCKS][2][WEIGHT_GROUP]; /* [.][1] for scales per 16 only */
    _Alignas(64) float min[LAYOUT_BLOCKS][2][WEIGHT_GROUP];
};

/* ---- Activations ---- */

static void quantise_block(struct x_chunk *out, uint32_t b, const float x[LAYOUT_BLOCK])
{
    uint32x4_t m = vdupq_n_u32(0);
    /* Compared as integers, so that NaN counts as the largest. */
    for (uint32_t i = 0; i < LAYOUT_BLOCK; i += 4)
        m = vmaxq_u32(m, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
    const float largest = bits_float(vmaxvq_u32(m));
    int8_t *high = out->high + b * LAYOUT_BLOCK, *low = out->low + b * LAYOUT_BLOCK;
    if (!(largest >= 0x1p-100f && largest < INFINITY)) {
        memset(high, 0, LAYOUT_BLOCK);
        memset(low, 0, LAYOUT_BLOCK);
        out->d[b] = out->d_sum[b][0] = out->d_sum[b][1] = largest < 0x1p-100f ? 0 : NAN;
        return;
    }
    const float inverse = STEP_MAX / largest, d = largest / STEP_MAX;
    int32_t sum[2] = {0, 0};
    for (uint32_t i = 0; i < LAYOUT_BLOCK; i += 8) {
        const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
        const int32x4_t c = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse));
        const int16x8_t q = vcombine_s16(vmovn_s32(a), vmovn_s32(c));
        const int16x8_t h = vrshrq_n_s16(q, 7); /* rounds, so that the rest is -64 .. 63 */
        vst1_s8(high + i, vmovn_s16(h));
        vst1_s8(low + i, vmovn_s16(vsubq_s16(q, vshlq_n_s16(h, 7))));
        sum[i / 16] += vaddlvq_s16(q);
    }
    out->d[b] = d;
    out->d_sum[b][0] = d * (float)sum[0];
    out->d_sum[b][1] = d * (float)sum[1];
}

static void pack_block(const struct linear_tile_slot *slot, const float *x, uint32_t n, float scale,
                       const float *norm)
{
    float v[LAYOUT_BLOCK] = {0};
    for (uint32_t k = 0; k < n; k++) v[k] = norm ? x[k] * scale * norm[k] : x[k];
    if (slot->xq) quantise_block(slot->xq, slot->block_i, v);
    if (slot->xf) memcpy(slot->xf->x + slot->block_i * LAYOUT_BLOCK, v, sizeof v);
}

/* ---- Weights: a chunk to a panel ---- */

INLINE float32x4_t load_half4(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* Bits of every byte moved left by `left` (right when negative) and masked. */
INLINE uint8x16_t byte_bits(uint8x16_t v, int left, int mask)
{
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)left)), vdupq_n_u8((uint8_t)mask));
}

/* Outputs 4h .. 4h+3 of quad line j as unsigned codes. */
INLINE uint8x16_t quad_codes(const uint8_t *block, const struct weight_layout l, int j, int h)
{
    const uint8_t *low = block + 16 * h, *high = low + layout_low_bytes(l);
    if (l.low_bits == 8) return vld1q_u8(low + 64 * j);
    uint8x16_t q;
    if (l.low_bits == 4)
        q = byte_bits(vld1q_u8(low + 64 * (j % 4)), -4 * (j / 4), 15);
    else
        q = byte_bits(vld1q_u8(low + 64 * (j / 4)), -2 * (j % 4), 3);
    if (l.high_bits == 1)
        q = vorrq_u8(q, byte_bits(vld1q_u8(high), l.low_bits - j, 1 << l.low_bits));
    if (l.high_bits == 2)
        q = vorrq_u8(
            q, byte_bits(vld1q_u8(high + 64 * (j / 4)), l.low_bits - 2 * (j % 4), 3 << l.low_bits));
    return q;
}

INLINE void unpack_block(int8_t line[8][LAYOUT_LINE], const uint8_t *block,
                         const struct weight_layout l)
{
    const int8x16_t levels = vld1q_s8(layout_iq4_level);
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
#pragma GCC unroll 4
        for (int h = 0; h < VECS; h++) {
            const uint8x16_t q = quad_codes(block, l, j, h);
            const uint8x16_t centred = vsubq_u8(q, vdupq_n_u8(l.offset)); /* wraps to signed */
            vst1q_s8(line[j] + 16 * h,
                     l.iq4 ? vqtbl1q_s8(levels, q) : vreinterpretq_s8_u8(centred));
        }
    }
}

/* Scale `i` of four outputs as the layout stores bytes. */
INLINE float32x4_t byte_scales(const uint8_t *p, bool is_signed)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(word));
    if (is_signed)
        return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u8(bytes)))));
    return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))));
}

INLINE float32x4_t nibble_scales(const uint8_t *p, int shift)
{
    uint32_t word;
    memcpy(&word, p, sizeof word);
    word = word >> shift & 0x0f0f0f0fu;
    return byte_scales((const uint8_t *)&word, false);
}

/* Unpacks the scales of block b for outputs o .. o+3. Products of d and integer scales are rounded
 * once, as the type defines. */
INLINE void unpack_scales(struct panel *p, const uint8_t *head, uint32_t b, uint32_t o,
                          enum layout_scale kind)
{
    float *scale = &p->scale[b][0][o], *min = &p->min[b][0][o];
    const uint8_t *d = head + 2 * o, *d_min = d + 32;
    switch (kind) {
    case SCALE_NONE: break;
    case SCALE_D: vst1q_f32(scale, load_half4(d + 32 * b)); break;
    case SCALE_DM:
        vst1q_f32(scale, load_half4(d + 64 * b));
        vst1q_f32(min, load_half4(d_min + 64 * b));
        break;
    case SCALE_K32:
        vst1q_f32(scale, vmulq_f32(load_half4(d), byte_scales(head + 32 + 16 * b + o, true)));
        break;
    case SCALE_K32_M: {
        const uint8_t *s = head + 64 + 16 * b + o;
        vst1q_f32(scale, vmulq_f32(load_half4(d), byte_scales(s, false)));
        vst1q_f32(min, vnegq_f32(vmulq_f32(load_half4(d_min), byte_scales(s + 128, false))));
        break;
    }
    case SCALE_K16:
        for (uint32_t h = 0; h < 2; h++) {
            const uint8_t *s = head + 32 + 16 * (2 * b + h) + o;
            vst1q_f32(scale + h * WEIGHT_GROUP, vmulq_f32(load_half4(d), byte_scales(s, true)));
        }
        break;
    case SCALE_K16_M:
        for (uint32_t h = 0; h < 2; h++) {
            const uint8_t *s = head + 64 + 16 * (2 * b + h) + o;
            vst1q_f32(scale + h * WEIGHT_GROUP, vmulq_f32(load_half4(d), nibble_scales(s, 0)));
            vst1q_f32(min + h * WEIGHT_GROUP,
                      vnegq_f32(vmulq_f32(load_half4(d_min), nibble_scales(s, 4))));
        }
        break;
    }
}

/* ---- Rows times a panel ---- */

INLINE int8x16_t broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return vreinterpretq_s8_s32(vdupq_n_s32(quad));
}

/* acc [4 outputs] + products of 4 bytes each. SDOT is inline assembly, because the file is compiled
 * without it. */
INLINE int32x4_t dot_add(const struct linear_kernel k, int32x4_t acc, int8x16_t w, int8x16_t x)
{
    if (k.fused) {
        __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(acc) : "w"(w), "w"(x));
        return acc;
    }
    /* Pairs of products reach 2 * 128 * 127 and are added in 32 bits. */
    const int32x4_t a = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(x)));
    const int32x4_t b = vpaddlq_s16(vmull_high_s8(w, x));
    return vaddq_s32(acc, vpaddq_s32(a, b));
}

INLINE void mul_block(float32x4_t f[ROWS][VECS], const struct linear_kernel k,
                      const struct panel *p, const struct x_chunk *const x[ROWS], uint32_t b,
                      int n_row)
{
    const int n_part = layout_halves(k.l) ? 2 : 1, n_quad = 8 / n_part;
#pragma GCC unroll 2
    for (int part = 0; part < n_part; part++) {
        int32x4_t high[ROWS][VECS], low[ROWS][VECS];
        for (int r = 0; r < n_row; r++)
            for (int v = 0; v < VECS; v++) high[r][v] = low[r][v] = vdupq_n_s32(0);
#pragma GCC unroll 8
        for (int j = n_quad * part; j < n_quad * (part + 1); j++) {
#pragma GCC unroll 2
            for (int r = 0; r < n_row; r++) {
                const int8x16_t h = broadcast_quad(x[r]->high + LAYOUT_BLOCK * b + 4 * j);
                const int8x16_t l = broadcast_quad(x[r]->low + LAYOUT_BLOCK * b + 4 * j);
#pragma GCC unroll 4
                for (int v = 0; v < VECS; v++) {
                    const int8x16_t w = vld1q_s8(p->w[b][j] + 16 * v);
                    high[r][v] = dot_add(k, high[r][v], w, h);
                    low[r][v] = dot_add(k, low[r][v], w, l);
                }
            }
        }
        for (int r = 0; r < n_row; r++)
            for (int v = 0; v < VECS; v++) {
                const int32x4_t dot = vaddq_s32(vshlq_n_s32(high[r][v], 7), low[r][v]);
                const float32x4_t s = vmulq_n_f32(vld1q_f32(&p->scale[b][part][4 * v]), x[r]->d[b]);
                f[r][v] = vfmaq_f32(f[r][v], vcvtq_f32_s32(dot), s);
            }
    }
    if (!layout_has_min(k.l)) return;
    for (int r = 0; r < n_row; r++)
        for (int part = 0; part < n_part; part++) {
            const float *d_sum = x[r]->d_sum[b];
            const float s = layout_halves(k.l) ? d_sum[part] : d_sum[0] + d_sum[1];
            for (int v = 0; v < VECS; v++)
                f[r][v] = vfmaq_n_f32(f[r][v], vld1q_f32(&p->min[b][part][4 * v]), s);
        }
}

INLINE void mul_rows(const struct linear_kernel k, const struct panel *p,
                     const struct linear_tile *t, uint32_t c, uint32_t r0, int n_row)
{
    const uint32_t nb = layout_chunk_blocks(t->n_block, c);
    const struct x_chunk *x[ROWS];
    float32x4_t f[ROWS][VECS];
    for (int r = 0; r < n_row; r++) {
        x[r] = (const struct x_chunk *)t->xq + (size_t)c * t->n_row + r0 + (uint32_t)r;
        for (int v = 0; v < VECS; v++) f[r][v] = vld1q_f32(t->acc[r0 + (uint32_t)r] + 4 * v);
    }
    for (uint32_t b = 0; b < nb; b++) mul_block(f, k, p, x, b, n_row);
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < VECS; v++) vst1q_f32(t->acc[r0 + (uint32_t)r] + 4 * v, f[r][v]);
}

INLINE void quant_tile(const struct linear_kernel k, const struct linear_tile *t)
{
    const uint8_t *src = t->group + LAYOUT_HEAD;
    struct panel p;
    memset(t->acc, 0, t->n_row * sizeof *t->acc);
    for (uint32_t c = 0; c < t->n_chunk; c++, src += layout_full_chunk_bytes(k.l)) {
        const uint32_t nb = layout_chunk_blocks(t->n_block, c);
        const uint8_t *block = src + layout_scale_bytes(k.l, nb);
        for (uint32_t b = 0; b < nb; b++, block += layout_block_bytes(k.l)) {
            for (uint32_t o = 0; o < WEIGHT_GROUP; o += 4) unpack_scales(&p, src, b, o, k.l.scale);
            unpack_block(p.w[b], block, k.l);
        }
        uint32_t r = 0;
        for (; r + ROWS <= t->n_row; r += ROWS) mul_rows(k, &p, t, c, r, ROWS);
        if (r < t->n_row) mul_rows(k, &p, t, c, r, 1);
    }
}

/* ---- Unquantised weights ---- */

#define DENSE_ROWS 4

/* Inputs 4j + h and 4j + h + 2 of four outputs, from the low and high words of four lanes. */
INLINE void unpack_words(float *low, float *high, const uint8_t *line, enum quant_type type)
{
    const uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(line));
    if (type == QUANT_BF16) {
        vst1q_f32(low, vreinterpretq_f32_u32(vshlq_n_u32(v, 16)));
        vst1q_f32(high, vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u))));
        return;
    }
    vst1q_f32(low, vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v))));
    vst1q_f32(high, vcvt_f32_f16(vreinterpret_f16_u16(vshrn_n_u32(v, 16))));
}

INLINE void unpack_line(float *low, float *high, const uint8_t *line, enum quant_type type)
{
    for (uint32_t v = 0; v < VECS; v++)
        unpack_words(low + 4 * v, high + 4 * v, line + 16 * v, type);
}

INLINE void dense_rows(const float *panel, const struct linear_tile *t, uint32_t c, uint32_t r0,
                       int n_row)
{
    const uint32_t n = layout_chunk_blocks(t->n_block, c) * LAYOUT_BLOCK;
    const struct linear_tile_dense *x = t->xf + (size_t)c * t->n_row + r0;
    float32x4_t f[DENSE_ROWS][VECS];
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < VECS; v++) f[r][v] = vld1q_f32(t->acc[r0 + (uint32_t)r] + 4 * v);
    for (uint32_t i = 0; i < n; i++)
#pragma GCC unroll 4
        for (int v = 0; v < VECS; v++) {
            const float32x4_t w = vld1q_f32(panel + i * WEIGHT_GROUP + 4 * (uint32_t)v);
#pragma GCC unroll 4
            for (int r = 0; r < n_row; r++) f[r][v] = vfmaq_n_f32(f[r][v], w, x[r].x[i]);
        }
    for (int r = 0; r < n_row; r++)
        for (int v = 0; v < VECS; v++) vst1q_f32(t->acc[r0 + (uint32_t)r] + 4 * v, f[r][v]);
}

/* ---- Results ---- */

static void finish(const struct linear_tile_finish *f, float *y, const float *acc, const float *up)
{
    for (int o = 0; o < 16; o += 4) {
        float32x4_t v = vaddq_f32(vld1q_f32(acc + o), vld1q_f32(f->bias + o));
        if (f->epilogue == LINEAR_ADD) {
            v = vaddq_f32(vld1q_f32(y + o), v);
        } else if (f->epilogue != LINEAR_STORE) {
            const float32x4_t u = vaddq_f32(vld1q_f32(up + o), vld1q_f32(f->bias_up + o));
            v = vmulq_f32(f->epilogue == LINEAR_GLU_SILU ? math_silu(v) : math_gelu(v), u);
        }
        vst1q_f32(y + o, v);
    }
}

static struct linear_tile_isa isa_of(bool single)
{
    (void)single;
    return (struct linear_tile_isa){
        .chunk_bytes = sizeof(struct x_chunk),
        .rms_scale = math_rms_scale,
        .pack_block = pack_block,
        .finish = finish,
    };
}

#define FUSED __attribute__((target("arch=armv8.2-a+dotprod")))
#include "ops/cpu/linear_tile_tmpl.h"

void ops_fill_neon_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_NEON_DOTPROD ? linear_fused : linear_plain;
    o->linear_scratch = linear_scratch;
}
