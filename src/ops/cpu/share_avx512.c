/* share_avx512.c: share_planes with vectors of 16 lanes, products by VNNI or by AMX.
 *
 * A channel's 2-bit code has four values in a page, min + step * (31.5, 95.5, 159.5, 223.5). They
 * become bytes in one scale for all pages except the first, with the channel's middle as 0: the
 * four bytes are a table in which a shuffle looks up 64 codes at once. The weights of a head, q
 * times the scale, are therefore int8 and the same for all pages, and the exponents of a page are
 * sums of byte products that need no per-page score. The sums of a head are exponents with a fixed
 * number of fractional bits, because weights are in steps of a power of two. Scales are determined
 * from some of the pages, with headroom; what exceeds them is clipped. The first page, whose keys
 * are often unlike all others, has its own scale.
 *
 * Channels are ordered so that the codes of 16 tokens expand quickly: row r of a page's codes holds
 * four channels of 16 tokens. Exponents are the bits of a bf16 (2^x by linear interpolation between
 * powers of two, up to 6 % too large), relative to the score of the first page's middle, and are
 * clipped at 2^100 times that.
 *
 * With VNNI, codes go from the shuffle directly into the products: on Zen 4 a store costs as much
 * as one and a half of them. */
#include "ops/cpu/share.h"

#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Loops over channels are unrolled where shapes are constants. */
#define INLINE __attribute__((always_inline)) static inline
#define UNROLL _Pragma("GCC unroll 8")

#define LANES     16u
#define HEADS     8u  /* heads whose sums are in registers at a time */
#define BLOCK     4u  /* pages that are computed together */
#define AHEAD     3u  /* prefetch distance in blocks */
#define SAMPLE    32u /* pages from which scales are determined */
#define ROOM      1.25f
#define LEAST     0x1p-14f /* minimum scale: with it the largest f16 still fits a 32-bit integer */
#define OCTAVE    128      /* steps of an exponent per factor of two, as in bf16 */
#define ONE       (127 * OCTAVE)
#define HIGHEST   (227 * OCTAVE)
#define SHIFT_MAX 15u /* fractional bits of a sum */

/* Channels in vectors: vector 4 j + s holds channels from s * d/4 + 16 j on, up to the next
 * quarter, then zeros. */
struct channels {
    uint32_t quarter, n_step;
};

INLINE uint32_t first_channel(struct channels c, uint32_t vector)
{
    return vector % 4 * c.quarter + vector / 4 * LANES;
}

INLINE __mmask16 lanes_of(struct channels c, uint32_t vector)
{
    const uint32_t left = c.quarter - vector / 4 * LANES;
    return (__mmask16)(left < LANES ? (1u << left) - 1 : 0xffff);
}

INLINE __m512 load_half(__mmask16 lanes, const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
}

/* Always inlined: gcc removes calls of a function that only prefetches. */
INLINE void fetch_scales(const struct op_share_planes *op, const uint8_t *page, struct channels c)
{
    for (size_t at = 0; at < 8 * (size_t)c.quarter; at += 64) {
        _mm_prefetch((const char *)page + op->min_at + at, _MM_HINT_T0);
        _mm_prefetch((const char *)page + op->step_at + at, _MM_HINT_T0);
    }
}

INLINE void fetch_page(const struct op_share_planes *op, const uint8_t *page, struct channels c)
{
    fetch_scales(op, page, c);
    for (size_t at = 0; at < PAGE_TOK * (size_t)c.quarter; at += 64)
        _mm_prefetch((const char *)page + op->hi2_at + at, _MM_HINT_T0);
}

INLINE const uint8_t *page_at(const struct op_share_planes *op, uint32_t i)
{
    return op->base + page_frame_of(op->frame_of, op->page[i]) * op->stride;
}

/* ---- Scales ---- */

/* The scales and weights that turn the planes of some pages into exponents. */
struct frame {
    /* Per channel: code = key * inv + offset. */
    _Alignas(64) float inv[HEAD_DIM_MAX], offset[HEAD_DIM_MAX];
    _Alignas(64) int8_t w[SHARE_GROUP_MAX * HEAD_DIM_MAX]; /* [group][row][4] */
    /* Per head: a sum starts with `start`, and shifted right by `shift` it is an exponent. */
    _Alignas(64) int32_t start[SHARE_GROUP_MAX * LANES];
    uint32_t shift[SHARE_GROUP_MAX];
    float middle[SHARE_GROUP_MAX]; /* score where all codes are 0 */
};

/* Range of each channel's keys in these pages, or in SAMPLE of them. */
static void find_range(const struct op_share_planes *op, struct channels c, struct attn_range pages,
                       float *lo, float *hi)
{
    const uint32_t n_page = pages.end - pages.begin, n = n_page < SAMPLE ? n_page : SAMPLE;
    const uint8_t *page[SAMPLE];
    for (uint32_t k = 0; k < n; k++) {
        page[k] = page_at(op, pages.begin + (uint32_t)((size_t)n_page * k / n));
        fetch_scales(op, page[k], c);
    }
    for (uint32_t i = 0; i < 4 * c.n_step; i++) {
        const size_t at = 2 * (size_t)first_channel(c, i);
        const __mmask16 lanes = lanes_of(c, i);
        __m512 least = _mm512_set1_ps(INFINITY), most = _mm512_set1_ps(-INFINITY);
        for (uint32_t k = 0; k < n; k++) {
            const __m512 min = load_half(lanes, page[k] + op->min_at + at);
            const __m512 step = load_half(lanes, page[k] + op->step_at + at);
            least = _mm512_min_ps(min, least);
            most = _mm512_max_ps(_mm512_fmadd_ps(step, _mm512_set1_ps(255), min), most);
        }
        _mm512_store_ps(lo + i * LANES, least);
        _mm512_store_ps(hi + i * LANES, most);
    }
}

/* Converts four vectors of a step to int8, in rows of four channels. */
INLINE __m512i pack_rows(const __m512 x[4])
{
    return _mm512_packs_epi16(
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1])),
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3])));
}

/* Quantises the weights of head g; `middle` and `unit` are the channels' middles and units. Sums
 * have as many fractional bits as fit: the scale is a power of two, so that a shift makes them
 * exponents. */
static void weigh_head(struct frame *f, const struct op_share_planes *op, struct channels c,
                       uint32_t g, const float *middle, const float *unit)
{
    const uint32_t n_vector = 4 * c.n_step;
    _Alignas(64) float w[HEAD_DIM_MAX];
    __m512 most = _mm512_setzero_ps(), score = most;
    for (uint32_t i = 0; i < n_vector; i++) {
        const float *from = op->q + (size_t)g * op->head_dim + first_channel(c, i);
        const __m512 q =
            _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes_of(c, i), from), _mm512_set1_ps(op->scale));
        const __m512 x = _mm512_mul_ps(q, _mm512_load_ps(unit + i * LANES));
        score = _mm512_fmadd_ps(q, _mm512_load_ps(middle + i * LANES), score);
        most = _mm512_max_ps(_mm512_abs_ps(x), most);
        _mm512_store_ps(w + i * LANES, x);
    }
    const float top = _mm512_reduce_max_ps(most);
    const float octaves = OCTAVE * (float)M_LOG2E;
    f->shift[g] = 0;
    while (f->shift[g] < SHIFT_MAX && octaves * top * (float)(2u << f->shift[g]) <= 127)
        f->shift[g]++;
    const __m512 to_code = _mm512_set1_ps(octaves * (float)(1u << f->shift[g]));
    for (uint32_t i = 0; i < n_vector; i += 4) {
        __m512 x[4];
        for (uint32_t s = 0; s < 4; s++)
            x[s] = _mm512_mul_ps(_mm512_load_ps(w + (i + s) * LANES), to_code);
        _mm512_store_si512(f->w + (size_t)g * n_vector * LANES + i * LANES, pack_rows(x));
    }
    f->middle[g] = _mm512_reduce_add_ps(score);
}

/* Sets the initial value of head g's sums: the exponent of the middle, which is `above` the
 * reference, plus a half for rounding. */
static void start_sums(struct frame *f, uint32_t g, float above)
{
    const float middle = fmaxf(fminf(OCTAVE * (float)M_LOG2E * above + ONE, 32767), -32768);
    const int32_t one = (int32_t)(1u << f->shift[g]);
    _mm512_store_si512(f->start + (size_t)g * LANES,
                       _mm512_set1_epi32((int32_t)lrintf(middle) * one + one / 2));
}

/* Computes the scales for these pages. Exponents are relative to the scores `reference`; NULL: to
 * the pages' own middle. */
static void make_frame(struct frame *f, const struct op_share_planes *op, struct channels c,
                       struct attn_range pages, const float *reference)
{
    _Alignas(64) float lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX];
    find_range(op, c, pages, lo, hi);
    for (uint32_t i = 0; i < 4 * c.n_step * LANES; i += LANES) {
        const __m512 a = _mm512_load_ps(lo + i), b = _mm512_load_ps(hi + i);
        const __m512 half = _mm512_set1_ps(0.5f);
        const __m512 middle = _mm512_mul_ps(_mm512_add_ps(a, b), half);
        const __m512 reach = _mm512_mul_ps(_mm512_sub_ps(b, a), half);
        const __m512 unit =
            _mm512_max_ps(_mm512_mul_ps(reach, _mm512_set1_ps(ROOM / 127)), _mm512_set1_ps(LEAST));
        const __m512 inv = _mm512_div_ps(_mm512_set1_ps(1), unit);
        _mm512_store_ps(f->inv + i, inv);
        _mm512_store_ps(f->offset + i, _mm512_fnmadd_ps(middle, inv, _mm512_setzero_ps()));
        _mm512_store_ps(lo + i, middle);
        _mm512_store_ps(hi + i, unit);
    }
    for (uint32_t g = 0; g < op->group; g++) {
        weigh_head(f, op, c, g, lo, hi);
        start_sums(f, g, reference ? f->middle[g] - reference[g] : 0);
    }
}

/* ---- Codes ---- */

/* Intermediate results of a block of pages. */
struct block {
    uint32_t n;
    size_t code_bytes, n_sum;                     /* per page */
    _Alignas(64) uint8_t table[HEAD_DIM_MAX * 4]; /* of one page: 16 bytes per row */
    _Alignas(64) uint8_t code[BLOCK * 2 * (HEAD_DIM_MAX / 4) * SHARE_ROW];
    _Alignas(64) int32_t sum[BLOCK * SHARE_GROUP_MAX * 2 * LANES];
};

/* Table of the int8 values of a page's codes for the channels of vector i: row 4 m + i % 4 of step
 * i / 4 is at 16 m. Byte 4 * code + k belongs to channel k, or byte code + 4 * k where i is even
 * (look_up). `wrong` becomes NaN if something is not finite. */
INLINE __m512i make_rows(const struct op_share_planes *op, const struct frame *f,
                         const uint8_t *page, struct channels c, uint32_t i, __m512 *wrong)
{
    const __m512i transpose =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const size_t at = 2 * (size_t)first_channel(c, i);
    const __mmask16 lanes = lanes_of(c, i);
    const __m512 inv = _mm512_load_ps(f->inv + i * LANES);
    const __m512 step = _mm512_mul_ps(load_half(lanes, page + op->step_at + at), inv);
    const __m512 min = _mm512_fmadd_ps(load_half(lanes, page + op->min_at + at), inv,
                                       _mm512_load_ps(f->offset + i * LANES));
    __m512 x[4];
    for (uint32_t k = 0; k < 4; k++)
        x[k] = _mm512_fmadd_ps(step, _mm512_set1_ps(31.5f + 64 * (float)k), min);
    *wrong = _mm512_add_ps(*wrong, _mm512_sub_ps(x[3], x[3]));
    const __m512i rows = pack_rows(x);
    return i % 2 ? rows : _mm512_shuffle_epi8(rows, transpose);
}

INLINE void make_table(uint8_t *table, const struct op_share_planes *op, const struct frame *f,
                       const uint8_t *page, struct channels c, __m512 *wrong)
{
    for (uint32_t i = 0; i < 4 * c.n_step; i++)
        _mm512_store_si512(table + i * 64, make_rows(op, f, page, c, i, wrong));
}

/* Transposes: lane t of out[m] is dword m of token t, for 16 tokens of 16 bytes (head_dim 64). */
INLINE void transpose_rows16(__m512i out[4], const uint8_t *codes)
{
    for (int i = 0; i < 4; i++) out[i] = _mm512_loadu_si512(codes + 64 * (size_t)i);
    math_quads_apart(out);
}

/* The same for eight dwords of tokens `row` bytes apart. */
INLINE void transpose_rows32(__m512i out[8], const uint8_t *codes, size_t row)
{
    const __m512i low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    __m512i four[2][4]; /* lane j: dword j, or 4 + j, of four tokens */
    for (size_t i = 0; i < 4; i++) {
        __m512i two[2];
        for (size_t k = 0; k < 2; k++) {
            const uint8_t *at = codes + (4 * i + 2 * k) * row;
            two[k] = _mm512_inserti64x4(
                _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)at)),
                _mm256_loadu_si256((const __m256i *)(const void *)(at + row)), 1);
        }
        four[0][i] = _mm512_permutex2var_epi32(two[0], low, two[1]);
        four[1][i] = _mm512_permutex2var_epi32(two[0], high, two[1]);
    }
    for (size_t h = 0; h < 2; h++) {
        const __m512i a = _mm512_shuffle_i64x2(four[h][0], four[h][1], 0x44);
        const __m512i b = _mm512_shuffle_i64x2(four[h][0], four[h][1], 0xee);
        const __m512i c = _mm512_shuffle_i64x2(four[h][2], four[h][3], 0x44);
        const __m512i d = _mm512_shuffle_i64x2(four[h][2], four[h][3], 0xee);
        out[4 * h] = _mm512_shuffle_i64x2(a, c, 0x88);
        out[4 * h + 1] = _mm512_shuffle_i64x2(a, c, 0xdd);
        out[4 * h + 2] = _mm512_shuffle_i64x2(b, d, 0x88);
        out[4 * h + 3] = _mm512_shuffle_i64x2(b, d, 0xdd);
    }
}

/* The same for dword m alone. */
static __m512i gather_dwords(const uint8_t *codes, size_t row, uint32_t m)
{
    const __m512i at =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int)row));
    return _mm512_i32gather_epi32(at, codes + (size_t)m * 4, 1);
}

/* Looks up the values of 64 codes. The index into the row's table consists of two bits of each
 * byte, either the lowest or the two above them, and of the byte's channel. */
INLINE __m512i look_up(const uint8_t *table, __m512i bits, bool above)
{
    const __m512i mask = _mm512_set1_epi8(above ? 12 : 3);
    const __m512i channel = _mm512_set1_epi32(above ? 0x03020100 : 0x0c080400);
    const __m512i at = _mm512_ternarylogic_epi32(bits, mask, channel, (0xf0 & 0xcc) | 0xaa);
    const __m128i row = _mm_load_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), at);
}

/* Expands one dword of each token to four rows: each row takes two bits of each byte. */
INLINE void spread(uint8_t *row, const uint8_t *table, __m512i dword)
{
    const __m512i high = _mm512_srli_epi32(dword, 4);
    _mm512_store_si512(row, look_up(table, dword, false));
    _mm512_store_si512(row + SHARE_ROW, look_up(table + 64, dword, true));
    _mm512_store_si512(row + 2 * SHARE_ROW, look_up(table + 128, high, false));
    _mm512_store_si512(row + 3 * SHARE_ROW, look_up(table + 192, high, true));
}

INLINE void spread_codes(uint8_t *out, const uint8_t *table, const uint8_t *codes,
                         struct channels c)
{
    const uint32_t n_dword = c.quarter / 4;
    for (uint32_t half = 0; half < 2; half++, codes += LANES * (size_t)c.quarter) {
        uint8_t *row = out + (size_t)half * c.n_step * SHARE_STEP * SHARE_ROW;
        if (c.quarter == 16) {
            __m512i dword[4];
            transpose_rows16(dword, codes);
            for (uint32_t m = 0; m < 4; m++)
                spread(row + 4 * m * SHARE_ROW, table + 16 * m, dword[m]);
            continue;
        }
        for (uint32_t m = 0; m < 4 * c.n_step;) {
            __m512i dword[8];
            const uint32_t n = c.quarter % 32 == 0 ? 8 : 1;
            if (n == 8)
                transpose_rows32(dword, codes + (size_t)m * 4, c.quarter);
            else
                dword[0] =
                    m < n_dword ? gather_dwords(codes, c.quarter, m) : _mm512_setzero_si512();
            for (uint32_t i = 0; i < n; i++, m++)
                spread(row + 4 * m * SHARE_ROW, table + m / 4 * 256 + m % 4 * 16, dword[i]);
        }
    }
}

/* ---- Shares ---- */

/* Exponentials of one head as 32 bf16: 128-bit lane i has tokens 4 i .. 4 i + 3, then 16 + 4 i ..
 * 16 + 4 i + 3. */
INLINE __m512i exponentials(__m512i first, __m512i second, uint32_t bits)
{
    const __m512i shift = _mm512_set1_epi32((int32_t)bits);
    const __m512i both =
        _mm512_packus_epi32(_mm512_srav_epi32(first, shift), _mm512_srav_epi32(second, shift));
    return _mm512_min_epu16(both, _mm512_set1_epi16(HIGHEST));
}

/* Computes the exponentials of a block for one head and adds them to `total`. */
INLINE void raise(const struct block *b, const struct frame *f, uint32_t g, uint16_t *e,
                  size_t e_stride, float *total)
{
    const __m512bh one = (__m512bh)_mm512_set1_epi16(ONE);
    __m512 sum = _mm512_load_ps(total);
    for (uint32_t p = 0; p < b->n; p++, e += e_stride) {
        const int32_t *from = b->sum + p * b->n_sum + (size_t)g * 2 * LANES;
        const __m512i x =
            exponentials(_mm512_load_si512(from), _mm512_load_si512(from + LANES), f->shift[g]);
        _mm512_storeu_si512(e, x);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)x, one);
    }
    _mm512_store_ps(total, sum);
}

struct pass {
    const struct op_share_planes *op;
    void (*multiply)(const struct share_product *p); /* NULL: VNNI */
    const struct frame *frame;
    float (*total)[LANES]; /* [group] sums of exponentials by lane */
    __m512 *wrong;         /* NaN once something is not finite */
};

/* Computes the exponentials of the tokens of pages first .. end - 1, [n_page][group][PAGE_TOK], and
 * their sums by lane. The pages of a block are far apart, because the hardware prefetcher runs only
 * a few lines ahead in each stream, and one stream is too few. */
INLINE void raise_pages(const struct pass *pass, uint32_t first, uint32_t end, struct channels c)
{
    const struct op_share_planes *op = pass->op;
    const uint32_t part = (end - first + BLOCK - 1) / BLOCK;
    const size_t e_stride = (size_t)op->group * PAGE_TOK;
    struct block b;
    b.code_bytes = (size_t)2 * c.n_step * SHARE_STEP * SHARE_ROW;
    b.n_sum = (size_t)share_padded(op->group) * 2 * LANES;
    for (uint32_t i = first; i < first + part; i++) {
        b.n = 0;
        for (uint32_t at = i; at < end && b.n < BLOCK; at += part, b.n++) {
            const uint8_t *page = page_at(op, at);
            if (i + AHEAD < first + part && at + AHEAD < end)
                fetch_page(op, page_at(op, at + AHEAD), c);
            make_table(b.table, op, pass->frame, page, c, pass->wrong);
            spread_codes(b.code + b.n * b.code_bytes, b.table, page + op->hi2_at, c);
        }
        pass->multiply(&(struct share_product){.w = pass->frame->w,
                                               .start = pass->frame->start,
                                               .code = b.code,
                                               .sum = b.sum,
                                               .n_page = b.n,
                                               .group = op->group,
                                               .n_row = c.n_step * SHARE_STEP});
        uint16_t *e = (uint16_t *)(void *)op->e + i * e_stride;
        for (uint32_t g = 0; g < op->group; g++)
            raise(&b, pass->frame, g, e + g * PAGE_TOK, part * e_stride, pass->total[g]);
    }
}

/* ---- Products by VNNI ---- */

/* Weights of up to HEADS heads, from head g0 on. VNNI needs unsigned codes, which are 128 larger;
 * `start` makes up for it. */
struct vnni_heads {
    _Alignas(64) int32_t start[HEADS * LANES];
    int32_t w[HEADS * HEAD_DIM_MAX / 4]; /* [row][head] of four channels each */
    uint32_t g0;
};

static void load_heads(struct vnni_heads *h, const struct frame *f, struct channels c, uint32_t g0,
                       uint32_t n)
{
    const uint32_t n_row = c.n_step * SHARE_STEP;
    h->g0 = g0;
    for (uint32_t g = 0; g < n; g++) {
        const int8_t *w = f->w + (size_t)(g0 + g) * n_row * 4;
        int32_t sum = 0;
        for (uint32_t r = 0; r < n_row; r++, w += 4) {
            memcpy(h->w + r * n + g, w, 4);
            sum += w[0] + w[1] + w[2] + w[3];
        }
        const __m512i start = _mm512_load_si512(f->start + (size_t)(g0 + g) * LANES);
        _mm512_store_si512(h->start + g * LANES,
                           _mm512_sub_epi32(start, _mm512_set1_epi32(128 * sum)));
    }
}

/* Prefetches part m of 4 n_step of a page. The last ones may exceed the page, which is harmless. */
INLINE void fetch_part(const struct op_share_planes *op, const uint8_t *page, uint32_t m)
{
    const uint8_t *code = page + op->hi2_at + 128 * (size_t)m;
    const uint8_t *scale = page + (m % 2 ? op->step_at : op->min_at) + m / 2 * 64;
    _mm_prefetch((const char *)code, _MM_HINT_T0);
    _mm_prefetch((const char *)code + 64, _MM_HINT_T0);
    _mm_prefetch((const char *)scale, _MM_HINT_T0);
}

/* Transposes: lane t of out[m] is dword 4 j + m of token t, of 16 tokens; zeros after the end of a
 * quarter. */
INLINE void transpose_step(__m512i out[4], const uint8_t *codes, struct channels c, uint32_t j)
{
    const __mmask16 bytes = lanes_of(c, 4 * j);
    const size_t row = c.quarter;
    codes += j * LANES;
    for (uint32_t i = 0; i < 4; i++, codes += 4 * row) {
        __m128i x[4];
        if (row == LANES) {
            out[i] = _mm512_loadu_si512(codes);
            continue;
        }
        for (uint32_t k = 0; k < 4; k++) x[k] = _mm_maskz_loadu_epi8(bytes, codes + k * row);
        const __m512i two = _mm512_inserti32x4(_mm512_castsi128_si512(x[0]), x[1], 1);
        out[i] = _mm512_inserti32x4(_mm512_inserti32x4(two, x[2], 2), x[3], 3);
    }
    math_quads_apart(out);
}

/* Inline assembly, because with the intrinsic gcc 12 loads all weights before the products and
 * spills sums. */
INLINE __m512i add_products(__m512i sum, __m512i code, const int32_t *w)
{
    __asm__ volatile("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(code), "m"(*w));
    return sum;
}

/* raise_pages for n heads. n is a constant at every call, so that sums stay in registers. The table
 * of a page is made while the previous page is multiplied. */
INLINE void raise_heads(const struct pass *pass, struct attn_range pages, struct channels c,
                        const struct vnni_heads *h, const uint32_t n)
{
    const struct op_share_planes *op = pass->op;
    const uint32_t part = (pages.end - pages.begin + BLOCK - 1) / BLOCK, last = pages.begin + part;
    const __m512bh one = (__m512bh)_mm512_set1_epi16(ONE);
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    _Alignas(64) uint8_t table[2][HEAD_DIM_MAX * 4]; /* of this page and the next, alternating */
    __m512 wrong = *pass->wrong;
    for (uint32_t i = 0; i < 4 * c.n_step; i++) {
        const uint8_t *page = page_at(op, pages.begin);
        const __m512i x = make_rows(op, pass->frame, page, c, i, &wrong);
        _mm512_store_si512(table[0] + i * 64, _mm512_xor_si512(x, flip));
    }
    uint32_t first = pages.begin, k = 0;
    for (uint32_t at = first, next; at < pages.end; at = next, k++) {
        next = at + part;
        if (next >= pages.end) next = ++first < last ? first : pages.end;
        const uint8_t *page = page_at(op, at), *after = page_at(op, next < pages.end ? next : at);
        const uint8_t *ahead = page_at(op, at + AHEAD < pages.end ? at + AHEAD : at);
        const uint8_t *from = table[k % 2];
        uint8_t *to = table[(k + 1) % 2];
        uint16_t *e = (uint16_t *)(void *)op->e + ((size_t)at * op->group + h->g0) * PAGE_TOK;
        __m512i sum[2][HEADS];
        UNROLL for (uint32_t half = 0; half < 2; half++)
        {
            const uint8_t *codes = page + op->hi2_at + half * LANES * (size_t)c.quarter;
            const int32_t *w = h->w;
            UNROLL for (uint32_t g = 0; g < n; g++) sum[half][g] =
                _mm512_load_si512(h->start + g * LANES);
            for (uint32_t j = 0; j < c.n_step; j++) {
                __m512i dword[4];
                transpose_step(dword, codes, c, j);
                UNROLL for (uint32_t m = 0; m < 4; m++)
                {
                    const uint32_t i = 4 * j + m;
                    const uint8_t *rows = from + j * 256 + m * 16;
                    const __m512i high = _mm512_srli_epi32(dword[m], 4);
                    UNROLL for (uint32_t s = 0; s < 4; s++, w += n)
                    {
                        const __m512i bits = s < 2 ? dword[m] : high;
                        const __m512i code = look_up(rows + 64 * s, bits, s % 2 > 0);
                        UNROLL for (uint32_t g = 0; g < n; g++) sum[half][g] =
                            add_products(sum[half][g], code, w + g);
                    }
                    if (half == 0) {
                        const __m512i x = make_rows(op, pass->frame, after, c, i, &wrong);
                        _mm512_store_si512(to + i * 64, _mm512_xor_si512(x, flip));
                    } else {
                        fetch_part(op, ahead, i);
                    }
                }
            }
        }
        UNROLL for (uint32_t g = 0; g < n; g++)
        {
            float *total = pass->total[h->g0 + g];
            const uint32_t shift = pass->frame->shift[h->g0 + g];
            const __m512i x = exponentials(sum[0][g], sum[1][g], shift);
            _mm512_storeu_si512(e + (size_t)g * PAGE_TOK, x);
            _mm512_store_ps(total, _mm512_dpbf16_ps(_mm512_load_ps(total), (__m512bh)x, one));
        }
    }
    *pass->wrong = wrong;
}

#define RAISE(n)                                                                                   \
    static void raise_##n(const struct pass *pass, struct attn_range pages, struct channels c,     \
                          const struct vnni_heads *h)                                              \
    {                                                                                              \
        if (c.quarter == 16)                                                                       \
            raise_heads(pass, pages, (struct channels){16, 1}, h, n);                              \
        else                                                                                       \
            raise_heads(pass, pages, c, h, n);                                                     \
    }
RAISE(1)
RAISE(2)
RAISE(3)
RAISE(4)
RAISE(5)
RAISE(6)
RAISE(7)
RAISE(8)

static void raise_vnni(const struct pass *pass, struct attn_range pages, struct channels c)
{
    static void (*const raise_n[HEADS + 1])(const struct pass *pass, struct attn_range pages,
                                            struct channels c, const struct vnni_heads *h) = {
        NULL, raise_1, raise_2, raise_3, raise_4, raise_5, raise_6, raise_7, raise_8};
    for (uint32_t g = 0; g < pass->op->group; g += HEADS) {
        const uint32_t left = pass->op->group - g, n = left < HEADS ? left : HEADS;
        struct vnni_heads h;
        load_heads(&h, pass->frame, c, g, n);
        raise_n[n](pass, pages, c, &h);
    }
}

/* ---- All pages ---- */

INLINE void raise_range(const struct pass *pass, struct attn_range pages, struct channels c)
{
    if (pass->multiply)
        raise_pages(pass, pages.begin, pages.end, c);
    else
        raise_vnni(pass, pages, c);
}

/* Computes the exponentials of some pages and their sums; false: a score is not finite. */
INLINE bool raise_framed(const struct op_share_planes *op, const struct frame *f,
                         struct attn_range pages, float *sum,
                         void (*multiply)(const struct share_product *p), struct channels c)
{
    _Alignas(64) float total[SHARE_GROUP_MAX][LANES] = {{0}};
    __m512 wrong = _mm512_setzero_ps();
    const struct pass pass = {
        .op = op, .multiply = multiply, .frame = f, .total = total, .wrong = &wrong};
    raise_range(&pass, pages, c);
    for (uint32_t g = 0; g < op->group; g++)
        sum[g] = _mm512_reduce_add_ps(_mm512_load_ps(total[g]));
    return _mm512_reduce_add_ps(wrong) == 0;
}

static struct channels channels_of(const struct op_share_planes *op)
{
    return (struct channels){op->head_dim / 4, (op->head_dim / 4 + LANES - 1) / LANES};
}

static bool raise_some(const struct op_share_planes *op, const struct frame *f,
                       struct attn_range pages, float *sum,
                       void (*multiply)(const struct share_product *p))
{
    switch (op->head_dim) {
    case 64: return raise_framed(op, f, pages, sum, multiply, (struct channels){16, 1});
    case 128: return raise_framed(op, f, pages, sum, multiply, (struct channels){32, 2});
    default: return raise_framed(op, f, pages, sum, multiply, channels_of(op));
    }
}

/* Factors from exponentials to shares: bf16, those of two heads in a word. */
static void find_factors(uint32_t *by, const float *sum, uint32_t group)
{
    uint16_t *to = (uint16_t *)(void *)by;
    by[(group - 1) / 2] = 0;
    for (uint32_t g = 0; g < group; g++)
        to[g] = (uint16_t)((float_bits(1 / (sum[g] * (float)group)) + 0x8000) >> 16);
}

/* Shares of a page's tokens from its exponentials. */
INLINE void share_page(float *share, const uint16_t *e, const uint32_t *by, uint32_t group)
{
    __m512 first = _mm512_setzero_ps(), second = first;
    for (uint32_t g = 0; g < group; g += 2, e += 2 * PAGE_TOK) {
        const __m512i a = _mm512_loadu_si512(e);
        const __m512i b = g + 1 < group ? _mm512_loadu_si512(e + PAGE_TOK) : _mm512_setzero_si512();
        const __m512bh two = (__m512bh)_mm512_set1_epi32((int32_t)by[g / 2]);
        first = _mm512_dpbf16_ps(first, (__m512bh)_mm512_unpacklo_epi16(a, b), two);
        second = _mm512_dpbf16_ps(second, (__m512bh)_mm512_unpackhi_epi16(a, b), two);
    }
    _mm512_storeu_ps(share, first);
    _mm512_storeu_ps(share + LANES, second);
}

/* ---- Pieces ---- */

struct state {          /* common to the pages of a call */
    struct frame frame; /* of all pages but the first */
    float reference[SHARE_GROUP_MAX];
};
_Static_assert(sizeof(struct state) <= OPS_SHARE_FRAME, "raise OPS_SHARE_FRAME");

bool share_begin_run(const struct op_share_planes *op, float *sum,
                     void (*multiply)(const struct share_product *p))
{
    struct state *s = op->frame;
    struct frame first;
    const struct frame *last = &first;
    const struct channels c = channels_of(op);
    float off = 0;
    assert(op->head_dim <= HEAD_DIM_MAX && op->head_dim % 32 == 0);
    assert(op->group <= SHARE_GROUP_MAX && op->n_page > 0);
    make_frame(&first, op, c, (struct attn_range){0, 1}, NULL);
    memcpy(s->reference, first.middle, sizeof first.middle);
    if (op->n_page > 1) {
        make_frame(&s->frame, op, c, (struct attn_range){1, op->n_page}, s->reference);
        last = &s->frame;
    }
    for (uint32_t g = 0; g < op->group; g++) off += last->middle[g] - last->middle[g];
    return raise_some(op, &first, (struct attn_range){0, 1}, sum, multiply) && off == 0;
}

bool share_raise_run(const struct op_share_planes *op, struct attn_range pages, float *sum,
                     void (*multiply)(const struct share_product *p))
{
    const struct state *s = op->frame;
    assert(pages.begin > 0 && pages.end <= op->n_page);
    return raise_some(op, &s->frame, pages, sum, multiply);
}

static void share_spread_avx512(const struct op_share_planes *op, struct attn_range pages,
                                const float *sum)
{
    const uint16_t *e = (const uint16_t *)(const void *)op->e;
    uint32_t by[SHARE_GROUP_MAX / 2];
    find_factors(by, sum, op->group);
    for (size_t i = pages.begin; i < pages.end; i++)
        share_page(op->share + i * PAGE_TOK, e + i * op->group * PAGE_TOK, by, op->group);
}

bool share_planes_run(const struct op_share_planes *all,
                      void (*multiply)(const struct share_product *p))
{
    _Alignas(64) struct state s;
    struct op_share_planes op = *all;
    float sum[SHARE_GROUP_MAX], rest[SHARE_GROUP_MAX];
    op.frame = &s;
    bool finite = share_begin_run(&op, sum, multiply);
    if (op.n_page > 1)
        finite &= share_raise_run(&op, (struct attn_range){1, op.n_page}, rest, multiply);
    for (uint32_t g = 0; g < op.group; g++) {
        if (op.n_page > 1) sum[g] += rest[g];
        if (op.lse) op.lse[g] = s.reference[g] + logf(sum[g]);
    }
    share_spread_avx512(&op, (struct attn_range){0, op.n_page}, sum);
    return finite;
}

static bool share_planes_avx512(const struct op_share_planes *op)
{
    return share_planes_run(op, NULL);
}

static bool share_begin_avx512(const struct op_share_planes *op, float *sum)
{
    return share_begin_run(op, sum, NULL);
}

static bool share_raise_avx512(const struct op_share_planes *op, struct attn_range pages,
                               float *sum)
{
    return share_raise_run(op, pages, sum, NULL);
}

void ops_fill_avx512_share(struct ops *o)
{
    o->share_planes = share_planes_avx512;
    o->share_begin = share_begin_avx512;
    o->share_raise = share_raise_avx512;
    o->share_spread = share_spread_avx512;
}
