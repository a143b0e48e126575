/* share_avx512.c: share_planes with vectors of 16 lanes, products by VNNI.
 *
 * A channel's code has four values in a page, min + step * (31.5, 95.5, 159.5, 223.5). They become
 * bytes in one scale for all pages but the first, with the channel's middle as 0: a table of four
 * bytes, and a shuffle looks 64 codes up at once. So the weights of a head, q times the scale, are
 * int8 and the same for all pages, and a page's exponents are sums of products of bytes, which need
 * no score of the page of their own. Scales come from some of the pages, with room; what is beyond
 * is cut. The first page, whose keys are often like no others, has a scale of its own.
 *
 * Channels stand in an order in which the codes of 16 tokens are quick to spread out: row r of a
 * page's codes holds four channels of 16 tokens. Exponents are the bits of a bf16 (2^x by the
 * straight line between powers of two, up to 6 % too large), relative to the score of the first
 * page's middle, and end at 2^100 times that. */
#include "ops/cpu/share.h"

#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

/* Where shapes are constants, loops over channels are straight code. */
#define INLINE __attribute__((always_inline)) static inline

#define LANES   16u
#define HEADS   8u  /* whose sums stay in registers together */
#define BLOCK   4u  /* pages that are computed together */
#define AHEAD   3u  /* blocks between a fetch and its use */
#define SAMPLE  32u /* pages that scales come from */
#define ROOM    1.25f
#define LEAST   0x1p-14f /* of scales: the largest half is no more than a 32-bit integer then */
#define OCTAVE  128      /* steps of an exponent to a factor of two: those of a bf16 */
#define ONE     (127 * OCTAVE)
#define HIGHEST (227 * OCTAVE)

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
    return left < LANES ? (__mmask16)((1u << left) - 1) : 0xffff;
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
    /* Of a head: a sum loses `shift` bits, then is 16 bits; times by / 2^15 and `from` more it is
     * an exponent. 16 bits twice in a word. */
    uint32_t shift[SHARE_GROUP_MAX], by[SHARE_GROUP_MAX], from[SHARE_GROUP_MAX];
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

static uint32_t twice_int16(float x)
{
    const int32_t i = (int32_t)lrintf(fmaxf(fminf(x, 32767), -32768));
    return ((uint32_t)i & 0xffff) * 0x10001u;
}

/* Weights of head g; `middle` and `unit` are the channels' zeros and units. */
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
    const __m512 to_code = _mm512_set1_ps(top > 0 ? 127 / top : 0);
    for (uint32_t i = 0; i < n_vector; i += 4) {
        __m512 x[4];
        for (uint32_t s = 0; s < 4; s++)
            x[s] = _mm512_mul_ps(_mm512_load_ps(w + (i + s) * LANES), to_code);
        _mm512_store_si512(f->w + (size_t)g * n_vector * LANES + i * LANES, pack_rows(x));
    }
    f->middle[g] = _mm512_reduce_add_ps(score);
    /* As many bits as leave a factor below 1: what 16 bits cut off lies beyond all exponents. */
    const float by = OCTAVE * (float)M_LOG2E * top / 127;
    f->shift[g] = 0;
    while (f->shift[g] < 15 && by * (float)(2u << f->shift[g]) < 1) f->shift[g]++;
    f->by[g] = twice_int16(by * (float)(32768u << f->shift[g]));
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
        const float above = reference ? f->middle[g] - reference[g] : 0;
        f->from[g] = twice_int16(OCTAVE * (float)M_LOG2E * above + ONE);
    }
}

/* ---- Codes ---- */

/* A block of pages on its way. */
struct block {
    uint32_t n;
    /* One page's behind the other's. */
    size_t code_bytes, n_sum;
    _Alignas(64) uint8_t table[SHARE_DIM_MAX * 4]; /* of one page: 16 bytes for a row */
    _Alignas(64) uint8_t code[BLOCK * 2 * (SHARE_DIM_MAX / 4) * SHARE_ROW];
    _Alignas(64) int32_t sum[BLOCK * SHARE_GROUP_MAX * 2 * LANES];
};

/* The bytes that a page's codes stand for: of row 4 m + s, byte 4 * code + i is channel i's, at
 * 16 m of vector s of the step. Adds to `wrong` what is not finite. */
INLINE void make_table(uint8_t *table, const struct op_share_planes *op, const struct frame *f,
                       const uint8_t *page, struct channels c, __m512 *wrong)
{
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
        *wrong = _mm512_add_ps(*wrong, _mm512_sub_ps(x[3], x[3]));
        _mm512_store_si512(table + i * 64, pack_rows(x));
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

/* Two bits of each byte as where the row's table has their value: 4 * code + channel. */
INLINE __m512i look_up(const uint8_t *table, __m512i bits)
{
    const __m512i mask = _mm512_set1_epi8(12), channel = _mm512_set1_epi32(0x03020100);
    const __m512i at = _mm512_ternarylogic_epi32(bits, mask, channel, (0xf0 & 0xcc) | 0xaa);
    const __m128i row = _mm_load_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(row), at);
}

/* Four rows of codes from one dword of each token: two bits of each of its bytes for each row. */
INLINE void spread(uint8_t *row, const uint8_t *table, __m512i dword)
{
    _mm512_store_si512(row, look_up(table, _mm512_slli_epi32(dword, 2)));
    _mm512_store_si512(row + SHARE_ROW, look_up(table + 64, dword));
    _mm512_store_si512(row + 2 * SHARE_ROW, look_up(table + 128, _mm512_srli_epi32(dword, 2)));
    _mm512_store_si512(row + 3 * SHARE_ROW, look_up(table + 192, _mm512_srli_epi32(dword, 4)));
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

/* Exponentials of a block for one head, two bf16 in a word: tokens 4 i, 4 i + 1, 4 i + 2, 4 i + 3
 * and 16 + 4 i on in quarter i. Adds them to `total`; the second of two carries the first one's
 * bits below its own, which are worth 0.4 % at most, here as in the shares. */
INLINE void raise(const struct block *b, const struct frame *f, uint32_t g, uint16_t *e,
                  size_t e_stride, float *total)
{
    const __m512i by = _mm512_set1_epi32((int32_t)f->by[g]);
    const __m512i from = _mm512_set1_epi32((int32_t)f->from[g]);
    const __m512i shift = _mm512_set1_epi32((int32_t)f->shift[g]);
    __m512 even = _mm512_load_ps(total), odd = _mm512_load_ps(total + LANES);
    for (uint32_t p = 0; p < b->n; p++, e += e_stride) {
        const int32_t *sum = b->sum + p * b->n_sum + (size_t)g * 2 * LANES;
        const __m512i both =
            _mm512_packs_epi32(_mm512_srav_epi32(_mm512_load_si512(sum), shift),
                               _mm512_srav_epi32(_mm512_load_si512(sum + LANES), shift));
        __m512i x = _mm512_adds_epi16(_mm512_mulhrs_epi16(both, by), from);
        x = _mm512_min_epi16(_mm512_max_epi16(x, _mm512_setzero_si512()),
                             _mm512_set1_epi16(HIGHEST));
        _mm512_storeu_si512(e, x);
        even = _mm512_add_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)));
        odd = _mm512_add_ps(odd, _mm512_castsi512_ps(x));
    }
    _mm512_store_ps(total, even);
    _mm512_store_ps(total + LANES, odd);
}

struct pass {
    const struct op_share_planes *op;
    void (*multiply)(const struct share_product *p);
    struct frame *frame;
    float (*total)[2 * LANES]; /* [group] sums of exponentials by lane */
    __m512 *wrong;             /* NaN once something is not finite */
};

/* Exponentials of the tokens of pages first .. end - 1 [n_page][group][PAGE_TOK], and their sums
 * over tokens by lane. Adds to `wrong` what is not finite. The pages of a block come from places
 * far apart: the CPU's own prefetcher runs a few lines ahead in each, and one stream is too few. */
INLINE void raise_pages(const struct pass *pass, uint32_t first, uint32_t end, struct channels c)
{
    const struct op_share_planes *op = pass->op;
    const uint32_t part = (end - first + BLOCK - 1) / BLOCK;
    const size_t n_head = (op->group + LANES - 1) / LANES * LANES;
    const size_t e_stride = (size_t)op->group * PAGE_TOK;
    struct block b;
    b.code_bytes = (size_t)2 * c.n_step * SHARE_STEP * SHARE_ROW;
    b.n_sum = n_head * 2 * LANES;
    for (uint32_t i = first; i < first + part; i++) {
        b.n = 0;
        for (uint32_t at = i; at < end && b.n < BLOCK; at += part, b.n++) {
            const uint8_t *page = page_at(op, at);
            if (i + AHEAD < first + part && at + AHEAD < end)
                fetch_page(op, page_at(op, at + AHEAD), c);
            make_table(b.table, op, pass->frame, page, c, pass->wrong);
            spread_codes(b.code + b.n * b.code_bytes, b.table, page + op->hi2_at, c);
        }
        for (uint32_t p = 0; p < b.n; p++)
            pass->multiply(&(struct share_product){.w = pass->frame->w,
                                                   .code = b.code + p * b.code_bytes,
                                                   .sum = b.sum + p * b.n_sum,
                                                   .group = op->group,
                                                   .n_row = c.n_step * SHARE_STEP});
        uint16_t *e = (uint16_t *)(void *)op->e + i * e_stride;
        for (uint32_t g = 0; g < op->group; g++)
            raise(&b, pass->frame, g, e + g * PAGE_TOK, part * e_stride, pass->total[g]);
    }
}

/* All pages. False: a score is not finite. */
INLINE bool raise_all(const struct op_share_planes *op, float total[][2 * LANES],
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

static bool raise_some(const struct op_share_planes *op, float total[][2 * LANES],
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

bool share_planes_run(const struct op_share_planes *op,
                      void (*multiply)(const struct share_product *p))
{
    _Alignas(64) float total[SHARE_GROUP_MAX][2 * LANES] = {{0}};
    float by[SHARE_GROUP_MAX];
    const uint16_t *e = (const uint16_t *)(const void *)op->e;
    assert(op->head_dim <= SHARE_DIM_MAX && op->head_dim % 32 == 0);
    assert(op->group <= SHARE_GROUP_MAX && op->n_page > 0);
    const bool finite = raise_some(op, total, multiply);
    for (uint32_t g = 0; g < op->group; g++)
        by[g] = 1 / (_mm512_reduce_add_ps(_mm512_add_ps(_mm512_load_ps(total[g]),
                                                        _mm512_load_ps(total[g] + LANES))) *
                     (float)op->group);
    for (size_t i = 0; i < op->n_page; i++) {
        __m512 even = _mm512_setzero_ps(), odd = even;
        for (uint32_t g = 0; g < op->group; g++, e += PAGE_TOK) {
            const __m512i x = _mm512_loadu_si512(e);
            const __m512 share = _mm512_set1_ps(by[g]);
            even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)), share, even);
            odd = _mm512_fmadd_ps(_mm512_castsi512_ps(x), share, odd);
        }
        _mm512_storeu_ps(op->share + i * PAGE_TOK, _mm512_unpacklo_ps(even, odd));
        _mm512_storeu_ps(op->share + i * PAGE_TOK + LANES, _mm512_unpackhi_ps(even, odd));
    }
    return finite;
}

/* ---- Products by VNNI ---- */

/* Of n heads; n is a constant where this is inlined, so that the sums stay in registers: two chains
 * for each head hide the latency of dpbusd. It wants codes without a sign, 128 more than they are.
 */
__attribute__((always_inline)) static inline void multiply_heads(const struct share_product *p,
                                                                 uint32_t g0, const uint32_t n)
{
    const size_t width = (size_t)p->n_row * 4;
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i sum[2][HEADS];
    for (uint32_t g = 0; g < n; g++) {
        __m512i w = _mm512_setzero_si512();
        for (uint32_t c = 0; c < width; c += 64)
            w = _mm512_dpbusd_epi32(w, flip, _mm512_load_si512(p->w + (g0 + g) * width + c));
        sum[0][g] = sum[1][g] = _mm512_set1_epi32(-_mm512_reduce_add_epi32(w));
    }
    for (uint32_t r = 0; r < p->n_row; r++) {
        const uint8_t *code = p->code + (size_t)r * SHARE_ROW;
        const __m512i x = _mm512_xor_si512(_mm512_load_si512(code), flip);
        const __m512i y =
            _mm512_xor_si512(_mm512_load_si512(code + (size_t)p->n_row * SHARE_ROW), flip);
        for (uint32_t g = 0; g < n; g++) {
            int32_t four;
            memcpy(&four, p->w + (g0 + g) * width + 4 * (size_t)r, sizeof four);
            const __m512i w = _mm512_set1_epi32(four);
            sum[0][g] = _mm512_dpbusd_epi32(sum[0][g], x, w);
            sum[1][g] = _mm512_dpbusd_epi32(sum[1][g], y, w);
        }
    }
    for (uint32_t g = 0; g < n; g++)
        for (uint32_t half = 0; half < 2; half++)
            _mm512_store_si512(p->sum + ((g0 + g) * 2 + half) * LANES, sum[half][g]);
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
