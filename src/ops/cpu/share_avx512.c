/* share_avx512.c: share_planes with vectors of 16 lanes, products by VNNI.
 *
 * A channel's code has four values in a page, min + step * (31.5, 95.5, 159.5, 223.5). They become
 * bytes in one scale for all pages but the first, with the channel's middle as 0: a table of four
 * bytes, and a shuffle looks 64 codes up at once. So the weights of a head, q times the scale, are
 * int8 and the same for all pages, and a page's exponents are sums of products of bytes, which need
 * no score of the page of their own. A head's sums are exponents with a number of bits behind the
 * point: weights are in steps of a power of two. Scales come from some of the pages, with room;
 * what is beyond is cut. The first page, whose keys are often like no others, has a scale of its
 * own.
 *
 * Channels stand in an order in which the codes of 16 tokens are quick to spread out: row r of a
 * page's codes holds four channels of 16 tokens. Exponents are the bits of a bf16 (2^x by the
 * straight line between powers of two, up to 6 % too large), relative to the score of the first
 * page's middle, and end at 2^100 times that. */
#include "ops/cpu/share.h"

#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Where shapes are constants, loops over channels are straight code. */
#define INLINE __attribute__((always_inline)) static inline

#define LANES     16u
#define HEADS     8u  /* whose sums stay in registers together */
#define BLOCK     4u  /* pages that are computed together */
#define AHEAD     3u  /* blocks between a fetch and its use */
#define SAMPLE    32u /* pages that scales come from */
#define ROOM      1.25f
#define LEAST     0x1p-14f /* of scales: the largest half is no more than a 32-bit integer then */
#define OCTAVE    128      /* steps of an exponent to a factor of two: those of a bf16 */
#define ONE       (127 * OCTAVE)
#define HIGHEST   (227 * OCTAVE)
#define SHIFT_MAX 15u /* bits of a sum behind the point */

/* Channels in vectors: vector 4 j + s holds channels s * d/4 + 16 j and on, as many as there are
 * before the next quarter, then zeros. */
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

/* Parts of their callers: gcc drops calls of a function that does nothing but fetch. */
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
    return op->base + op->page[i] * op->stride;
}

/* ---- Scales ---- */

/* What turns the planes of some pages into exponents. */
struct frame {
    /* Of a channel: byte = key * inv + offset. */
    _Alignas(64) float inv[SHARE_DIM_MAX], offset[SHARE_DIM_MAX];
    _Alignas(64) int8_t w[SHARE_GROUP_MAX * SHARE_DIM_MAX]; /* [group][row][4] */
    /* Of a head: a sum begins with `start`, loses `shift` bits and is an exponent. */
    _Alignas(64) int32_t start[SHARE_GROUP_MAX * LANES];
    uint32_t shift[SHARE_GROUP_MAX];
    float middle[SHARE_GROUP_MAX]; /* score where all bytes are 0 */
};

/* Least and largest key of each channel in these pages, or in SAMPLE of them. */
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

/* Four vectors of a step as bytes in rows of four channels. */
INLINE __m512i pack_rows(const __m512 x[4])
{
    return _mm512_packs_epi16(
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[0]), _mm512_cvtps_epi32(x[1])),
        _mm512_packs_epi32(_mm512_cvtps_epi32(x[2]), _mm512_cvtps_epi32(x[3])));
}

/* Weights of head g; `middle` and `unit` are the channels' zeros and units. Sums have as many bits
 * behind the point as fit: a factor of a power of two makes them exponents by a shift. */
static void weigh_head(struct frame *f, const struct op_share_planes *op, struct channels c,
                       uint32_t g, const float *middle, const float *unit)
{
    const uint32_t n_vector = 4 * c.n_step;
    _Alignas(64) float w[SHARE_DIM_MAX];
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

/* Sums of head g begin with the exponent of the middle, `above` the reference, rounded. */
static void start_sums(struct frame *f, uint32_t g, float above)
{
    const float middle = fmaxf(fminf(OCTAVE * (float)M_LOG2E * above + ONE, 32767), -32768);
    const int32_t one = (int32_t)(1u << f->shift[g]);
    _mm512_store_si512(f->start + (size_t)g * LANES,
                       _mm512_set1_epi32((int32_t)lrintf(middle) * one + one / 2));
}

/* The frame of these pages, whose exponents are relative to the scores `reference`; NULL: to its
 * middle. */
static void make_frame(struct frame *f, const struct op_share_planes *op, struct channels c,
                       struct attn_range pages, const float *reference)
{
    _Alignas(64) float lo[SHARE_DIM_MAX], hi[SHARE_DIM_MAX];
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

/* A block of pages on its way. */
struct block {
    uint32_t n;
    size_t code_bytes, n_sum;                      /* of a page */
    _Alignas(64) uint8_t table[SHARE_DIM_MAX * 4]; /* of one page: 16 bytes for a row */
    _Alignas(64) uint8_t code[BLOCK * 2 * (SHARE_DIM_MAX / 4) * SHARE_ROW];
    _Alignas(64) int32_t sum[BLOCK * SHARE_GROUP_MAX * 2 * LANES];
};

/* The bytes that a page's codes stand for, of row 4 m + s at 16 m of vector s of the step: byte
 * 4 * code + i is channel i's, or byte code + 4 * i where s is even (look_up). `wrong` becomes NaN
 * once something is not finite. */
INLINE void make_table(uint8_t *table, const struct op_share_planes *op, const struct frame *f,
                       const uint8_t *page, struct channels c, __m512 *wrong)
{
    const __m512i turned =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    for (uint32_t i = 0; i < 4 * c.n_step; i++) {
        const size_t at = 2 * (size_t)first_channel(c, i);
        const __mmask16 lanes = lanes_of(c, i);
        const __m512 inv = _mm512_load_ps(f->inv + i * LANES);
        const __m512 step = _mm512_mul_ps(load_half(lanes, page + op->step_at + at), inv);
        const __m512 min = _mm512_fmadd_ps(load_half(lanes, page + op->min_at + at), inv,
                                           _mm512_load_ps(f->offset + i * LANES));
        __m512 x[4];
        for (uint32_t k = 0; k < 4; k++)
            x[k] = _mm512_fmadd_ps(step, _mm512_set1_ps(31.5f + 64 * (float)k), min);
        *wrong = _mm512_fmadd_ps(x[3], _mm512_setzero_ps(), *wrong);
        const __m512i rows = pack_rows(x);
        _mm512_store_si512(table + i * 64, i % 2 ? rows : _mm512_shuffle_epi8(rows, turned));
    }
}

/* Lane t of out[m]: dword m of token t, 16 tokens of 16 bytes (head_dim 64). */
INLINE void transpose_rows16(__m512i out[4], const uint8_t *codes)
{
    for (int i = 0; i < 4; i++) out[i] = _mm512_loadu_si512(codes + 64 * (size_t)i);
    math_quads_apart(out);
}

/* The same for eight dwords of tokens that are `row` bytes apart. */
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

/* The same for one dword. */
static __m512i gather_dwords(const uint8_t *codes, size_t row, uint32_t m)
{
    const __m512i at =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int)row));
    return _mm512_i32gather_epi32(at, codes + (size_t)m * 4, 1);
}

/* Values of 64 codes: two bits of each byte, above two that do not count or not, and the byte's
 * channel tell where the row's table has them. */
INLINE __m512i look_up(const uint8_t *table, __m512i bits, bool above)
{
    const __m512i mask = _mm512_set1_epi8(above ? 12 : 3);
    const __m512i channel = _mm512_set1_epi32(above ? 0x03020100 : 0x0c080400);
    const __m512i at = _mm512_ternarylogic_epi32(bits, mask, channel, (0xf0 & 0xcc) | 0xaa);
    const __m128i row = _mm_load_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), at);
}

/* Four rows of codes from one dword of each token: two bits of each of its bytes for each row. */
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

/* 32 bf16 of one head from its sums: tokens 4 i, 4 i + 1, 4 i + 2, 4 i + 3 and 16 + 4 i on in
 * quarter i. */
INLINE __m512i exponentials(const int32_t *sum, __m512i shift)
{
    const __m512i both =
        _mm512_packus_epi32(_mm512_srav_epi32(_mm512_load_si512(sum), shift),
                            _mm512_srav_epi32(_mm512_load_si512(sum + LANES), shift));
    return _mm512_min_epu16(both, _mm512_set1_epi16(HIGHEST));
}

/* Exponentials of a block for one head. Adds them to `total`. */
INLINE void raise(const struct block *b, const struct frame *f, uint32_t g, uint16_t *e,
                  size_t e_stride, float *total)
{
    const __m512i shift = _mm512_set1_epi32((int32_t)f->shift[g]);
    const __m512bh one = (__m512bh)_mm512_set1_epi16(ONE);
    __m512 sum = _mm512_load_ps(total);
    for (uint32_t p = 0; p < b->n; p++, e += e_stride) {
        const __m512i x = exponentials(b->sum + p * b->n_sum + (size_t)g * 2 * LANES, shift);
        _mm512_storeu_si512(e, x);
        sum = _mm512_dpbf16_ps(sum, (__m512bh)x, one);
    }
    _mm512_store_ps(total, sum);
}

struct pass {
    const struct op_share_planes *op;
    void (*multiply)(const struct share_product *p);
    struct frame *frame;
    float (*total)[LANES]; /* [group] sums of exponentials by lane */
    __m512 *wrong;         /* NaN once something is not finite */
};

/* Exponentials of the tokens of pages first .. end - 1 [n_page][group][PAGE_TOK], and their sums
 * over tokens by lane. Adds to `wrong` what is not finite. The pages of a block come from places
 * far apart: the CPU's own prefetcher runs a few lines ahead in each, and one stream is too few. */
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

/* All pages. False: a score is not finite. */
INLINE bool raise_all(const struct op_share_planes *op, float total[][LANES],
                      void (*multiply)(const struct share_product *p), struct channels c)
{
    struct frame f;
    float reference[SHARE_GROUP_MAX], off = 0;
    __m512 wrong = _mm512_setzero_ps();
    const struct pass pass = {
        .op = op, .multiply = multiply, .frame = &f, .total = total, .wrong = &wrong};
    make_frame(&f, op, c, (struct attn_range){0, 1}, NULL);
    memcpy(reference, f.middle, sizeof reference);
    raise_pages(&pass, 0, 1, c);
    if (op->n_page > 1) {
        make_frame(&f, op, c, (struct attn_range){1, op->n_page}, reference);
        raise_pages(&pass, 1, op->n_page, c);
    }
    for (uint32_t g = 0; g < op->group; g++) off += f.middle[g] - f.middle[g];
    return _mm512_reduce_add_ps(wrong) + off == 0;
}

static bool raise_some(const struct op_share_planes *op, float total[][LANES],
                       void (*multiply)(const struct share_product *p))
{
    switch (op->head_dim) {
    case 64: return raise_all(op, total, multiply, (struct channels){16, 1});
    case 128: return raise_all(op, total, multiply, (struct channels){32, 2});
    default:
        return raise_all(
            op, total, multiply,
            (struct channels){op->head_dim / 4, (op->head_dim / 4 + LANES - 1) / LANES});
    }
}

/* What exponentials are multiplied with, a bf16 for each of two heads in a word. */
static void find_factors(uint32_t *by, float total[][LANES], uint32_t group)
{
    uint16_t *to = (uint16_t *)(void *)by;
    by[(group - 1) / 2] = 0;
    for (uint32_t g = 0; g < group; g++) {
        const float sum = _mm512_reduce_add_ps(_mm512_load_ps(total[g]));
        to[g] = (uint16_t)((float_bits(1 / (sum * (float)group)) + 0x8000) >> 16);
    }
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

bool share_planes_run(const struct op_share_planes *op,
                      void (*multiply)(const struct share_product *p))
{
    _Alignas(64) float total[SHARE_GROUP_MAX][LANES] = {{0}};
    uint32_t by[SHARE_GROUP_MAX / 2];
    const uint16_t *e = (const uint16_t *)(const void *)op->e;
    assert(op->head_dim <= SHARE_DIM_MAX && op->head_dim % 32 == 0);
    assert(op->group <= SHARE_GROUP_MAX && op->n_page > 0);
    const bool finite = raise_some(op, total, multiply);
    find_factors(by, total, op->group);
    for (size_t i = 0; i < op->n_page; i++)
        share_page(op->share + i * PAGE_TOK, e + i * op->group * PAGE_TOK, by, op->group);
    return finite;
}

/* ---- Products by VNNI ---- */

/* Of n heads; n is a constant where this is inlined, so that the sums stay in registers: two chains
 * for each head hide the latency of dpbusd. It wants codes without a sign, 128 more than they are.
 */
__attribute__((always_inline)) static inline void multiply_heads(const struct share_product *p,
                                                                 uint32_t g0, const uint32_t n)
{
    const size_t width = (size_t)p->n_row * 4, half = (size_t)p->n_row * SHARE_ROW;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i start[HEADS];
    for (uint32_t g = 0; g < n; g++) {
        __m512i w = _mm512_setzero_si512();
        for (uint32_t c = 0; c < width; c += 64)
            w = _mm512_dpbusd_epi32(w, flip, _mm512_load_si512(p->w + (g0 + g) * width + c));
        start[g] = _mm512_sub_epi32(_mm512_load_si512(p->start + (g0 + g) * LANES),
                                    _mm512_set1_epi32(_mm512_reduce_add_epi32(w)));
    }
    for (uint32_t i = 0; i < p->n_page; i++) {
        const uint8_t *code = p->code + i * 2 * half;
        int32_t *to = p->sum + (i * share_padded(p->group) + g0) * 2 * LANES;
        __m512i sum[2][HEADS];
        for (uint32_t g = 0; g < n; g++) sum[0][g] = sum[1][g] = start[g];
        for (uint32_t r = 0; r < p->n_row; r++, code += SHARE_ROW) {
            const __m512i x = _mm512_xor_si512(_mm512_load_si512(code), flip);
            const __m512i y = _mm512_xor_si512(_mm512_load_si512(code + half), flip);
            for (uint32_t g = 0; g < n; g++) {
                int32_t four;
                memcpy(&four, p->w + (g0 + g) * width + 4 * (size_t)r, sizeof four);
                const __m512i w = _mm512_set1_epi32(four);
                sum[0][g] = _mm512_dpbusd_epi32(sum[0][g], x, w);
                sum[1][g] = _mm512_dpbusd_epi32(sum[1][g], y, w);
            }
        }
        for (uint32_t g = 0; g < n; g++)
            for (uint32_t h = 0; h < 2; h++)
                _mm512_store_si512(to + (g * 2 + h) * LANES, sum[h][g]);
    }
}

static void multiply_vnni(const struct share_product *p)
{
    for (uint32_t g0 = 0; g0 < p->group; g0 += HEADS) {
        const uint32_t left = p->group - g0;
        switch (left < HEADS ? left : HEADS) {
        case 1: multiply_heads(p, g0, 1); break;
        case 2: multiply_heads(p, g0, 2); break;
        case 3: multiply_heads(p, g0, 3); break;
        case 4: multiply_heads(p, g0, 4); break;
        case 5: multiply_heads(p, g0, 5); break;
        case 6: multiply_heads(p, g0, 6); break;
        case 7: multiply_heads(p, g0, 7); break;
        default: multiply_heads(p, g0, HEADS); break;
        }
    }
}

static bool share_planes_avx512(const struct op_share_planes *op)
{
    return share_planes_run(op, multiply_vnni);
}

void ops_fill_avx512_share(struct ops *o)
{
    o->share_planes = share_planes_avx512;
}
