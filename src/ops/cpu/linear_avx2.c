/* linear_avx2.c: linear layers with AVX2, and with AVX-VNNI where CPUID has it.
 *
 * Quantised weights are multiplied with activations rounded to int16 in blocks of 32 (x = d * q, d
 * = max |x| / 32512). 8 bits would be twice as fast with many rows, but cost a mean KL divergence
 * of 3e-3 on smollm2-135m, against less than 1e-6. F32, F16 and BF16 weights are multiplied with
 * f32 activations.
 *
 * The only row of a call is multiplied with the packed weights while they are unpacked into
 * registers, as bytes where that is less work: q = 256 * hi + lo, so that codes need not be
 * widened. Up to FEW_ROWS rows do the same as words. More rows share a panel: one group of 16
 * outputs is unpacked to int16, a chunk of 256 inputs at a time (8 KiB, stays in L1), and up to
 * LINEAR_TILE_ROWS rows stream past it, ROWS at a time; for that the tile's rows are stored chunk
 * by chunk. ROW_PROMPT and ROW_DECODE are computed alike.
 *
 * Order of arithmetic, the same for every row, number of rows and worker:
 *  - Products and sums within 32 inputs (16 for types with scales per 16) are exact integers, so
 *    their order is free: bytes, words, and the fused instructions of AVX-VNNI give the same bits.
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
#include "ops/cpu/math_avx2.h"

#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define ROWS     4        /* rows computed at a time */
#define FEW_ROWS 4        /* up to this many, unpacking a panel costs more than it saves */
#define STEP_MAX 32512.0f /* 127 * 256 */

/* 256 inputs of one row. */
struct x_chunk {
    int16_t q[LAYOUT_CHUNK]; /* inputs 4j, 4j+2, 4j+1, 4j+3: see split_codes */
    float d[LAYOUT_BLOCKS];
    float d_sum[LAYOUT_BLOCKS];    /* d * sum of q, rounded once */
    int32_t sum[LAYOUT_BLOCKS][2]; /* of the first and the second 16 q */
};

/* The same for a layer of a single row, in addition split into bytes: q = 256 * hi + lo. */
struct x_single {
    struct x_chunk x;
    int8_t hi[LAYOUT_CHUNK], lo[LAYOUT_CHUNK]; /* in ascending order */
};
_Static_assert(sizeof(struct x_single) <= 2 * sizeof(struct x_chunk), "scratch of two rows");

/* Scales of 256 inputs of a group in f32; [.][1] for types with scales per 16 only. */
struct scales {
    _Alignas(64) float scale[LAYOUT_BLOCKS][2][WEIGHT_GROUP];
    _Alignas(64) float min[LAYOUT_BLOCKS][2][WEIGHT_GROUP];
};

#define PAIR_LINES 16 /* lines of a block, each 2 inputs of 16 outputs (64 bytes) */

struct panel {
    const uint8_t *next; /* packed weights to prefetch meanwhile */
    struct scales s;
    _Alignas(64) int16_t w[LAYOUT_BLOCKS][PAIR_LINES][2 * WEIGHT_GROUP];
};

/* ---- Activations ---- */

INLINE int32_t max_lane(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

static void quantise_block(struct x_chunk *out, uint32_t b, const __m256 v[4])
{
    const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
    int16_t *q = out->q + b * LAYOUT_BLOCK;
    __m256i m = _mm256_setzero_si256();
    /* Compared as integers, so that NaN counts as the largest. */
    for (int i = 0; i < 4; i++)
        m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
    const float largest = bits_float((uint32_t)max_lane(m));
    if (!(largest >= 0x1p-100f && largest < INFINITY)) {
        memset(q, 0, LAYOUT_BLOCK * sizeof *q);
        out->d[b] = out->d_sum[b] = largest < 0x1p-100f ? 0 : NAN;
        out->sum[b][0] = out->sum[b][1] = 0;
        return;
    }
    const __m256 inverse = _mm256_set1_ps(STEP_MAX / largest);
    /* Swaps the middle two of four words, in both 128-bit lanes. */
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15));
    for (int i = 0; i < 2; i++) {
        const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i], inverse));
        const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(v[2 * i + 1], inverse));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(q + 16 * i), _mm256_shuffle_epi8(packed, order));
        __m256i sum = _mm256_madd_epi16(packed, _mm256_set1_epi16(1));
        sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
        sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
        out->sum[b][i] = _mm256_extract_epi32(sum, 0) + _mm256_extract_epi32(sum, 4);
    }
    out->d[b] = largest / STEP_MAX;
    out->d_sum[b] = out->d[b] * (float)(out->sum[b][0] + out->sum[b][1]);
}

static void pack_block(const struct linear_tile_slot *slot, const float *x, uint32_t n, float scale,
                       const float *norm)
{
    const __m256 factor = _mm256_set1_ps(scale);
    __m256 v[4];
    for (uint32_t k = 0; k < 4; k++) {
        const uint32_t left = n > 8 * k ? n - 8 * k : 0;
        v[k] = math_load_first(x + 8 * k, left);
        if (norm)
            v[k] = _mm256_mul_ps(_mm256_mul_ps(v[k], factor), math_load_first(norm + 8 * k, left));
        if (slot->xf) _mm256_storeu_ps(slot->xf->x + slot->block_i * LAYOUT_BLOCK + 8 * k, v[k]);
    }
    if (slot->xq) quantise_block(slot->xq, slot->block_i, v);
}

static void pack_single(const struct linear_tile_slot *slot, const float *x, uint32_t n,
                        float scale, const float *norm)
{
    pack_block(slot, x, n, scale, norm);
    if (!slot->xq) return;
    struct x_single *out = slot->xq;
    const uint32_t i0 = slot->block_i * LAYOUT_BLOCK;
    for (uint32_t i = i0; i < i0 + LAYOUT_BLOCK; i++) {
        const int16_t q = out->x.q[i - i % 4 + (i % 4 * 2 + i % 4 / 2) % 4];
        out->hi[i] = (int8_t)((q + 128) >> 8);
        out->lo[i] = (int8_t)q;
    }
}

/* ---- Weights: a chunk to a panel ---- */

INLINE __m256i load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE __m256 load_half8(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

/* Bits of every byte moved left by `left` (right when negative) and masked: whole 16-bit words are
 * shifted, the mask removes what crosses into a neighbour. */
INLINE __m256i byte_bits(__m256i v, int left, int mask)
{
    v = left >= 0 ? _mm256_slli_epi16(v, left) : _mm256_srli_epi16(v, -left);
    return _mm256_and_si256(v, _mm256_set1_epi8((char)mask));
}

/* Low-plane codes of half `h` (32 bytes) of quad line j. */
INLINE __m256i low_codes(const uint8_t *block, const struct weight_layout l, int j, int h)
{
    if (l.low_bits == 2)
        return byte_bits(load_bytes(block + 64 * (j / 4) + 32 * h), -2 * (j % 4), 3);
    return byte_bits(load_bytes(block + 64 * (j % 4) + 32 * h), -4 * (j / 4), 15);
}

INLINE __m256i high_codes(const uint8_t *high, const struct weight_layout l, int j, int h)
{
    if (l.high_bits == 1)
        return byte_bits(load_bytes(high + 32 * h), l.low_bits - j, 1 << l.low_bits);
    return byte_bits(load_bytes(high + 64 * (j / 4) + 32 * h), l.low_bits - 2 * (j % 4),
                     3 << l.low_bits);
}

/* Half `h` (eight outputs) of quad line j as unsigned codes: value + value_offset. */
INLINE __m256i quad_codes(const uint8_t *block, const struct weight_layout l, int j, int h)
{
    if (l.low_bits == 8) return load_bytes(block + 64 * j + 32 * h);
    __m256i q = low_codes(block, l, j, h);
    if (l.high_bits) q = _mm256_or_si256(q, high_codes(block + layout_low_bytes(l), l, j, h));
    if (!l.iq4) return q;
    const __m128i levels = _mm_loadu_si128((const __m128i *)layout_iq4_level);
    const __m128i raised = _mm_xor_si128(levels, _mm_set1_epi8((char)LAYOUT_IQ4_OFFSET));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(raised), q);
}

INLINE int value_offset(const struct weight_layout l)
{
    return l.iq4 ? LAYOUT_IQ4_OFFSET : l.offset;
}

/* Widens bytes to words: inputs 4j and 4j + 2 of each output, then 4j + 1 and 4j + 3. */
INLINE void split_codes(__m256i out[2], __m256i bytes)
{
    out[0] = _mm256_and_si256(bytes, _mm256_set1_epi16(0xff));
    out[1] = _mm256_srli_epi16(bytes, 8);
}

INLINE void unpack_block(int16_t line[PAIR_LINES][2 * WEIGHT_GROUP], const uint8_t *block,
                         const struct weight_layout l)
{
    const __m256i offset = _mm256_set1_epi16((int16_t)value_offset(l));
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m256i w[2];
            split_codes(w, quad_codes(block, l, j, h));
            for (int i = 0; i < 2; i++)
                _mm256_store_si256((__m256i *)(line[2 * j + i] + (int)WEIGHT_GROUP * h),
                                   _mm256_sub_epi16(w[i], offset));
        }
    }
}

INLINE __m256 signed8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

INLINE __m256 unsigned8(const uint8_t *p, int shift, int mask)
{
    const __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    return _mm256_cvtepi32_ps(
        _mm256_and_si256(_mm256_srli_epi32(v, shift), _mm256_set1_epi32(mask)));
}

INLINE __m256 negative(__m256 v)
{
    return _mm256_xor_ps(v, _mm256_set1_ps(-0.0f));
}

/* Unpacks the scales of `nb` blocks to f32. Products of d and integer scales are rounded once, as
 * the type defines. */
INLINE void unpack_scales(struct scales *p, const uint8_t *head, uint32_t nb,
                          enum layout_scale kind)
{
    for (uint32_t b = 0; b < nb; b++) {
#pragma GCC unroll 2
        for (uint32_t o = 0; o < WEIGHT_GROUP; o += 8) {
            const __m256 d = load_half8(head + 2 * o); /* for types with one d per chunk */
            const __m256 d_min = load_half8(head + 32 + 2 * o);
            float *scale = &p->scale[b][0][o], *min = &p->min[b][0][o];
            switch (kind) {
            case SCALE_NONE: break;
            case SCALE_D: _mm256_store_ps(scale, load_half8(head + 32 * b + 2 * o)); break;
            case SCALE_DM:
                _mm256_store_ps(scale, load_half8(head + 64 * b + 2 * o));
                _mm256_store_ps(min, load_half8(head + 64 * b + 32 + 2 * o));
                break;
            case SCALE_K32:
                _mm256_store_ps(scale, _mm256_mul_ps(d, signed8(head + 32 + 16 * b + o)));
                break;
            case SCALE_K32_M: {
                const uint8_t *s = head + 64 + 16 * b + o;
                _mm256_store_ps(scale, _mm256_mul_ps(d, unsigned8(s, 0, 255)));
                _mm256_store_ps(min, negative(_mm256_mul_ps(d_min, unsigned8(s + 128, 0, 255))));
                break;
            }
            case SCALE_K16:
            case SCALE_K16_M:
                for (uint32_t h = 0; h < 2; h++) {
                    const uint8_t *s = head + (kind == SCALE_K16 ? 32 : 64) + 16 * (2 * b + h) + o;
                    const __m256 k = kind == SCALE_K16 ? signed8(s) : unsigned8(s, 0, 15);
                    _mm256_store_ps(scale + h * WEIGHT_GROUP, _mm256_mul_ps(d, k));
                    if (kind == SCALE_K16_M)
                        _mm256_store_ps(min + h * WEIGHT_GROUP,
                                        negative(_mm256_mul_ps(d_min, unsigned8(s, 4, 15))));
                }
                break;
            }
        }
    }
}

/* Prefetches n bytes LINEAR_TILE_AHEAD behind `src`. A block at a time: prefetching a whole chunk
 * at once needs more lines than a core has fill buffers, and everything else would wait. */
INLINE void fetch_ahead(const uint8_t *src, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += LAYOUT_LINE) __builtin_prefetch(src + LINEAR_TILE_AHEAD + i);
}

/* ---- Rows times weights ---- */

INLINE __m256i broadcast_pair(const int16_t *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm256_set1_epi32(pair);
}

/* acc + products of word pairs. VPDPWSSD is inline assembly, because the file is compiled for plain
 * AVX2. The empty assembly keeps GCC from reassociating the integer sums into a tree, which would
 * spill every product. */
INLINE __m256i dot_add(const struct linear_kernel k, __m256i acc, __m256i w, __m256i x)
{
    if (k.fused) {
        __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    } else {
        acc = _mm256_add_epi32(acc, _mm256_madd_epi16(w, x));
        __asm__("" : "+x"(acc));
    }
    return acc;
}

/* Eight outputs of one row: f + dot * (w_scale * d). */
INLINE __m256 add_scaled(__m256 f, __m256i dot, const float *w_scale, float d)
{
    const __m256 scale = _mm256_mul_ps(_mm256_load_ps(w_scale), _mm256_set1_ps(d));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), scale, f);
}

/* Adds the minimum times the sum of the activations, after the products of block b. */
INLINE void add_min(__m256 f[2], const struct linear_kernel k, const struct scales *s,
                    const struct x_chunk *x, uint32_t b)
{
    if (!layout_has_min(k.l)) return;
    for (int part = 0; part < (layout_halves(k.l) ? 2 : 1); part++) {
        const float d_sum = layout_halves(k.l) ? x->d[b] * (float)x->sum[b][part] : x->d_sum[b];
        for (int o = 0; o < 2; o++)
            f[o] = _mm256_fmadd_ps(_mm256_load_ps(&s->min[b][part][8 * o]), _mm256_set1_ps(d_sum),
                                   f[o]);
    }
}

/* Multiplies one block of the panel with n_row rows. */
INLINE void mul_block(__m256 f[ROWS][2], const struct linear_kernel k, const struct panel *p,
                      const struct x_chunk *const x[ROWS], uint32_t b, int n_row)
{
    const int n_part = layout_halves(k.l) ? 2 : 1, n_line = PAIR_LINES / n_part;
#pragma GCC unroll 2
    for (int part = 0; part < n_part; part++) {
        __m256i dot[ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < n_row; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
        for (int j = n_line * part; j < n_line * (part + 1); j++) {
            const __m256i w0 = _mm256_load_si256((const __m256i *)p->w[b][j]);
            const __m256i w1 = _mm256_load_si256((const __m256i *)(p->w[b][j] + WEIGHT_GROUP));
#pragma GCC unroll 4
            for (int r = 0; r < n_row; r++) {
                const __m256i q = broadcast_pair(x[r]->q + LAYOUT_BLOCK * b + 2 * j);
                dot[r][0] = dot_add(k, dot[r][0], w0, q);
                dot[r][1] = dot_add(k, dot[r][1], w1, q);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_row; r++)
            for (int o = 0; o < 2; o++)
                f[r][o] = add_scaled(f[r][o], dot[r][o], &p->s.scale[b][part][8 * o], x[r]->d[b]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) add_min(f[r], k, &p->s, x[r], b);
}

INLINE void mul_rows(const struct linear_kernel k, const struct panel *p,
                     const struct linear_tile *t, uint32_t c, uint32_t r0, int n_row)
{
    const uint32_t nb = layout_chunk_blocks(t->n_block, c);
    const uint32_t share = layout_full_chunk_bytes(k.l) / LAYOUT_BLOCKS;
    const struct x_chunk *x[ROWS];
    __m256 f[ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) {
        x[r] = (const struct x_chunk *)t->xq + (size_t)c * t->n_row + r0 + (uint32_t)r;
        f[r][0] = _mm256_load_ps(t->acc[r0 + (uint32_t)r]);
        f[r][1] = _mm256_load_ps(t->acc[r0 + (uint32_t)r] + 8);
    }
    for (uint32_t b = 0; b < nb; b++) {
        if (r0 == 0) fetch_ahead(p->next + b * share, share);
        mul_block(f, k, p, x, b, n_row);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) {
        _mm256_store_ps(t->acc[r0 + (uint32_t)r], f[r][0]);
        _mm256_store_ps(t->acc[r0 + (uint32_t)r] + 8, f[r][1]);
    }
}

INLINE void many_rows(const struct linear_kernel k, const struct linear_tile *t)
{
    const uint8_t *src = t->group + LAYOUT_HEAD;
    struct panel p;
    memset(t->acc, 0, t->n_row * sizeof *t->acc);
    for (uint32_t c = 0; c < t->n_chunk; c++, src += layout_full_chunk_bytes(k.l)) {
        const uint32_t nb = layout_chunk_blocks(t->n_block, c);
        const uint8_t *block = src + layout_scale_bytes(k.l, nb);
        unpack_scales(&p.s, src, nb, k.l.scale);
        for (uint32_t b = 0; b < nb; b++, block += layout_block_bytes(k.l))
            unpack_block(p.w[b], block, k.l);
        p.next = src + layout_full_chunk_bytes(k.l);
        uint32_t r = 0;
        for (; r + ROWS <= t->n_row; r += ROWS) mul_rows(k, &p, t, c, r, ROWS);
        for (; r + 2 <= t->n_row; r += 2) mul_rows(k, &p, t, c, r, 2);
        if (r < t->n_row) mul_rows(k, &p, t, c, r, 1);
    }
}

/* Excess of products of unsigned codes: offset * sum of q. */
INLINE __m256i offset_sum(const struct linear_kernel k, const int32_t sum[2], int part)
{
    const __m256i one = _mm256_set1_epi32(sum[part]);
    const __m256i all = layout_halves(k.l) ? one : _mm256_add_epi32(one, _mm256_set1_epi32(sum[1]));
    return _mm256_slli_epi32(all, __builtin_ctz((unsigned)value_offset(k.l)));
}

/* Packed weights of block b of a chunk. */
struct packed {
    const struct scales *s; /* of the chunk */
    const uint8_t *codes;
    uint32_t b;
};

/* Adds the scaled products of a part of a block; `dot` is of unsigned codes. */
INLINE void add_part(__m256 f[2], const struct linear_kernel k, const struct packed w,
                     const struct x_chunk *x, int part, const __m256i dot[2])
{
    for (int h = 0; h < 2; h++) {
        __m256i sum = dot[h];
        if (value_offset(k.l)) sum = _mm256_sub_epi32(sum, offset_sum(k, x->sum[w.b], part));
        f[h] = add_scaled(f[h], sum, &w.s->scale[w.b][part][8 * h], x->d[w.b]);
    }
}

/* Multiplies one block of packed weights with n_row rows. */
INLINE void few_block(__m256 (*f)[2], const struct linear_kernel k, const struct packed p,
                      const struct x_chunk *x, int n_row)
{
    const int n_part = layout_halves(k.l) ? 2 : 1, n_quad = 8 / n_part;
#pragma GCC unroll 2
    for (int part = 0; part < n_part; part++) {
        __m256i dot[FEW_ROWS][2];
#pragma GCC unroll 4
        for (int r = 0; r < n_row; r++) dot[r][0] = dot[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = n_quad * part; j < n_quad * (part + 1); j++) {
            __m256i w[2][2];
            for (int h = 0; h < 2; h++) split_codes(w[h], quad_codes(p.codes, k.l, j, h));
#pragma GCC unroll 8
            for (int i = 0; i < 2 * n_row; i++) {
                const int r = i / 2, odd = i % 2;
                const __m256i q = broadcast_pair(x[r].q + LAYOUT_BLOCK * p.b + 4 * j + 2 * odd);
                for (int h = 0; h < 2; h++) dot[r][h] = dot_add(k, dot[r][h], w[h][odd], q);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < n_row; r++) add_part(f[r], k, p, &x[r], part, dot[r]);
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) add_min(f[r], k, p.s, &x[r], p.b);
}

INLINE void few_rows(const struct linear_kernel k, const struct linear_tile *t, int n_row)
{
    const uint32_t share = layout_full_chunk_bytes(k.l) / LAYOUT_BLOCKS;
    const uint8_t *src = t->group + LAYOUT_HEAD;
    const struct x_chunk *x = t->xq;
    __m256 f[FEW_ROWS][2];
    struct scales s;
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) f[r][0] = f[r][1] = _mm256_setzero_ps();
    for (uint32_t c = 0; c < t->n_chunk; c++, x += n_row) {
        const uint32_t nb = layout_chunk_blocks(t->n_block, c);
        const uint8_t *block = src + layout_scale_bytes(k.l, nb);
        unpack_scales(&s, src, nb, k.l.scale);
        for (uint32_t b = 0; b < nb; b++, block += layout_block_bytes(k.l), src += share) {
            fetch_ahead(src, share);
            few_block(f, k, (struct packed){&s, block, b}, x, n_row);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) {
        _mm256_store_ps(t->acc[r], f[r][0]);
        _mm256_store_ps(t->acc[r] + 8, f[r][1]);
    }
}

/* ---- A single row: products of bytes where that is faster ---- */

/* Number of quad lines whose products a 16-bit sum can hold: 8, 4, or 0 if bytes do not pay. With
 * VPDPBUSD sums have 32 bits. */
INLINE int byte_lines(const struct linear_kernel k)
{
    const int bits = k.l.iq4 ? 8 : k.l.low_bits + k.l.high_bits;
    return k.fused || bits <= 4 ? 8 : bits == 5 ? 4 : 0; /* 8 * 2 * 15 * 128 = 30720 */
}

INLINE __m256i broadcast_quad(const int8_t *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

/* acc + products of unsigned codes with hi or lo: sums of four in 32 bits, or of two in 16. */
INLINE __m256i byte_dot_add(const struct linear_kernel k, __m256i acc, __m256i w, __m256i x)
{
    if (k.fused) {
        __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc) : "x"(w), "x"(x));
    } else {
        acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(w, x));
        __asm__("" : "+x"(acc));
    }
    return acc;
}

INLINE __m256i join_planes(const struct linear_kernel k, __m256i hi, __m256i lo)
{
    if (k.fused) return _mm256_add_epi32(_mm256_slli_epi32(hi, 8), lo);
    return _mm256_add_epi32(_mm256_madd_epi16(hi, _mm256_set1_epi16(256)),
                            _mm256_madd_epi16(lo, _mm256_set1_epi16(1)));
}

/* Dot products of a part of a block. */
INLINE void byte_dots(__m256i dot[2], const struct linear_kernel k, const struct packed p,
                      const struct x_single *x, int part)
{
    const int n = layout_halves(k.l) ? 4 : 8, step = byte_lines(k) < n ? byte_lines(k) : n;
    dot[0] = dot[1] = _mm256_setzero_si256();
#pragma GCC unroll 2
    for (int j0 = n * part; j0 < n * (part + 1); j0 += step) {
        __m256i hi[2], lo[2];
        for (int h = 0; h < 2; h++) hi[h] = lo[h] = _mm256_setzero_si256();
#pragma GCC unroll 8
        for (int j = j0; j < j0 + step; j++) {
            const __m256i x_hi = broadcast_quad(x->hi + LAYOUT_BLOCK * p.b + 4 * j);
            const __m256i x_lo = broadcast_quad(x->lo + LAYOUT_BLOCK * p.b + 4 * j);
            for (int h = 0; h < 2; h++) {
                const __m256i w = quad_codes(p.codes, k.l, j, h);
                hi[h] = byte_dot_add(k, hi[h], w, x_hi);
                lo[h] = byte_dot_add(k, lo[h], w, x_lo);
            }
        }
        for (int h = 0; h < 2; h++) dot[h] = _mm256_add_epi32(dot[h], join_planes(k, hi[h], lo[h]));
    }
}

INLINE void single_block(__m256 f[2], const struct linear_kernel k, const struct packed p,
                         const struct x_single *x)
{
    const int n_part = layout_halves(k.l) ? 2 : 1;
#pragma GCC unroll 2
    for (int part = 0; part < n_part; part++) {
        __m256i dot[2];
        byte_dots(dot, k, p, x, part);
        add_part(f, k, p, &x->x, part, dot);
    }
    add_min(f, k, p.s, &x->x, p.b);
}

INLINE void single_row(const struct linear_kernel k, const struct linear_tile *t)
{
    const uint32_t share = layout_full_chunk_bytes(k.l) / LAYOUT_BLOCKS;
    const uint8_t *src = t->group + LAYOUT_HEAD;
    const struct x_single *x = t->xq;
    __m256 f[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    struct scales s;
    for (uint32_t c = 0; c < t->n_chunk; c++, x++) {
        const uint32_t nb = layout_chunk_blocks(t->n_block, c);
        const uint8_t *block = src + layout_scale_bytes(k.l, nb);
        unpack_scales(&s, src, nb, k.l.scale);
        for (uint32_t b = 0; b < nb; b++, block += layout_block_bytes(k.l), src += share) {
            fetch_ahead(src, share);
            const struct packed p = {&s, block, b};
            if (byte_lines(k))
                single_block(f, k, p, x);
            else
                few_block(&f, k, p, &x->x, 1);
        }
    }
    _mm256_store_ps(t->acc[0], f[0]);
    _mm256_store_ps(t->acc[0] + 8, f[1]);
}

INLINE void quant_tile(const struct linear_kernel k, const struct linear_tile *t)
{
    if (t->single)
        single_row(k, t);
    else if (t->n_row == 2)
        few_rows(k, t, 2);
    else if (t->n_row == 3)
        few_rows(k, t, 3);
    else if (t->n_row == FEW_ROWS)
        few_rows(k, t, FEW_ROWS);
    else
        many_rows(k, t);
}

/* ---- Unquantised weights ---- */

#define DENSE_ROWS 4

/* Inputs 4j + h and 4j + h + 2 of eight outputs, from the low and high words of eight lanes. */
INLINE void unpack_words(float *low, float *high, const uint8_t *line, enum quant_type type)
{
    const __m256i v = load_bytes(line);
    if (type == QUANT_BF16) {
        _mm256_store_ps(low, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
        const __m256i upper = _mm256_set1_epi32((int)0xffff0000u);
        _mm256_store_ps(high, _mm256_castsi256_ps(_mm256_and_si256(v, upper)));
        return;
    }
    /* packus gives [l0..l3 h0..h3 | l4..l7 h4..h7]; the permutation puts the low words first. */
    const __m256i low_word = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    const __m256i packed = _mm256_packus_epi32(low_word, _mm256_srli_epi32(v, 16));
    const __m256i sorted = _mm256_permute4x64_epi64(packed, 0xd8);
    _mm256_store_ps(low, _mm256_cvtph_ps(_mm256_castsi256_si128(sorted)));
    _mm256_store_ps(high, _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1)));
}

INLINE void unpack_line(float *low, float *high, const uint8_t *line, enum quant_type type)
{
    unpack_words(low, high, line, type);
    unpack_words(low + 8, high + 8, line + 32, type);
}

INLINE void dense_rows(const float *panel, const struct linear_tile *t, uint32_t c, uint32_t r0,
                       int n_row)
{
    const uint32_t n = layout_chunk_blocks(t->n_block, c) * LAYOUT_BLOCK;
    const struct linear_tile_dense *x = t->xf + (size_t)c * t->n_row + r0;
    __m256 f[DENSE_ROWS][2];
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) {
        f[r][0] = _mm256_load_ps(t->acc[r0 + (uint32_t)r]);
        f[r][1] = _mm256_load_ps(t->acc[r0 + (uint32_t)r] + 8);
    }
    for (uint32_t i = 0; i < n; i++) {
        const __m256 w0 = _mm256_loadu_ps(panel + i * WEIGHT_GROUP);
        const __m256 w1 = _mm256_loadu_ps(panel + i * WEIGHT_GROUP + 8);
#pragma GCC unroll 4
        for (int r = 0; r < n_row; r++) {
            const __m256 v = _mm256_broadcast_ss(&x[r].x[i]);
            f[r][0] = _mm256_fmadd_ps(w0, v, f[r][0]);
            f[r][1] = _mm256_fmadd_ps(w1, v, f[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_row; r++) {
        _mm256_store_ps(t->acc[r0 + (uint32_t)r], f[r][0]);
        _mm256_store_ps(t->acc[r0 + (uint32_t)r] + 8, f[r][1]);
    }
}

/* ---- Results ---- */

static void finish(const struct linear_tile_finish *f, float *y, const float *acc, const float *up)
{
    for (int o = 0; o < 16; o += 8) {
        __m256 v = _mm256_add_ps(_mm256_loadu_ps(acc + o), _mm256_loadu_ps(f->bias + o));
        if (f->epilogue == LINEAR_ADD) {
            v = _mm256_add_ps(_mm256_loadu_ps(y + o), v);
        } else if (f->epilogue != LINEAR_STORE) {
            const __m256 u =
                _mm256_add_ps(_mm256_loadu_ps(up + o), _mm256_loadu_ps(f->bias_up + o));
            v = _mm256_mul_ps(f->epilogue == LINEAR_GLU_SILU ? math_silu(v) : math_gelu(v), u);
        }
        _mm256_storeu_ps(y + o, v);
    }
}

static struct linear_tile_isa isa_of(bool single)
{
    return (struct linear_tile_isa){
        .chunk_bytes = single ? sizeof(struct x_single) : sizeof(struct x_chunk),
        .rms_scale = math_rms_scale,
        .pack_block = single ? pack_single : pack_block,
        .finish = finish,
    };
}

#define FUSED
#include "ops/cpu/linear_tile_tmpl.h"

void ops_fill_avx2_linear(struct ops *o)
{
    o->linear = detect_features() & DETECT_AVX_VNNI ? linear_fused : linear_plain;
    o->linear_scratch = linear_scratch;
}
