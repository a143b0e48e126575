/* share_avx2.c: share_planes with vectors of 8 lanes. share_avx512.c explains codes and weights.
 * Here products of bytes are added in 16 bits, which must hold four of them: codes therefore have
 * seven bits without a sign, 64 being the channel's middle, and weights seven bits with one.
 *
 * Channels keep their order. The plane has one byte for four channels that are a quarter apart, so
 * at the same two bits, four neighbouring bytes of a token hold four neighbouring channels: a row
 * of a page's codes has four such channels of all 32 tokens. */
#include "ops/cpu/fill.h"
#include "ops/cpu/share.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE __attribute__((always_inline)) static inline

#define LANES     8u
#define VECTORS   (PAGE_TOK / LANES) /* vectors of tokens in a page */
#define HEADS     2u                 /* heads whose sums are in registers at a time */
#define AHEAD     6u                 /* prefetch distance in pages */
#define SAMPLE    32u                /* pages from which scales are determined */
#define ROOM      1.25f
#define MIDDLE    64       /* code of the middle of a channel's range; its ends are 63 from it */
#define W_MOST    63       /* largest weight: 4 * 127 * 63 fits in 16 bits */
#define LEAST     0x1p-14f /* minimum scale */
#define OCTAVE    128      /* steps of an exponent per factor of two, as in bf16 */
#define ONE       (127 * OCTAVE)
#define HIGHEST   (227 * OCTAVE)
#define SHIFT_MAX 15u /* fractional bits of a sum */

static const float octaves = OCTAVE * (float)M_LOG2E;

INLINE __m256 load_half(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m256i load(const void *p)
{
    return _mm256_loadu_si256(p);
}

INLINE const uint8_t *page_at(const struct op_share_planes *op, uint32_t i)
{
    return op->base + page_frame_of(op->frame_of, op->page[i]) * op->stride;
}

/* Always inlined: gcc removes calls of a function that only prefetches. */
INLINE void fetch_page(const struct op_share_planes *op, uint32_t i)
{
    const uint8_t *page = page_at(op, i);
    for (size_t at = 0; at < 2 * (size_t)op->head_dim; at += 64) {
        _mm_prefetch((const char *)page + op->min_at + at, _MM_HINT_T0);
        _mm_prefetch((const char *)page + op->step_at + at, _MM_HINT_T0);
    }
    for (size_t at = 0; at < PAGE_TOK * (size_t)op->head_dim / 4; at += 64)
        _mm_prefetch((const char *)page + op->hi2_at + at, _MM_HINT_T0);
}

/* ---- Scales ---- */

/* The scales and weights that turn the planes of some pages into exponents. */
struct frame {
    float inv[HEAD_DIM_MAX], offset[HEAD_DIM_MAX]; /* code = key * inv + offset */
    int8_t w[SHARE_GROUP_MAX * HEAD_DIM_MAX];      /* [group][head_dim] */
    /* Per head: a sum starts with `start`, and shifted right by `shift` it is an exponent. */
    int32_t start[SHARE_GROUP_MAX], shift[SHARE_GROUP_MAX];
    float middle[SHARE_GROUP_MAX]; /* score where all codes are MIDDLE */
};

/* Range of each channel's keys in these pages, or in SAMPLE of them. */
static void find_range(const struct op_share_planes *op, struct attn_range pages, float *lo,
                       float *hi)
{
    const uint32_t n_page = pages.end - pages.begin, n = n_page < SAMPLE ? n_page : SAMPLE;
    for (uint32_t c = 0; c < op->head_dim; c += LANES) {
        __m256 least = _mm256_set1_ps(INFINITY), most = _mm256_set1_ps(-INFINITY);
        for (uint32_t k = 0; k < n; k++) {
            const uint8_t *page = page_at(op, pages.begin + (uint32_t)((size_t)n_page * k / n));
            const __m256 min = load_half(page + op->min_at + 2 * c);
            const __m256 step = load_half(page + op->step_at + 2 * c);
            least = _mm256_min_ps(min, least);
            most = _mm256_max_ps(_mm256_fmadd_ps(step, _mm256_set1_ps(255), min), most);
        }
        _mm256_storeu_ps(lo + c, least);
        _mm256_storeu_ps(hi + c, most);
    }
}

/* Quantises the weights of head g. Its sums start with the exponent of its middle relative to
 * `reference`; `middle` and `unit` are the channels' middles and units. Sums have as many
 * fractional bits as fit: the scale is a power of two, so that a shift makes them exponents. */
static void weigh_head(struct frame *f, const struct op_share_planes *op, uint32_t g,
                       const float *middle, const float *unit, const float *reference)
{
    const uint32_t d = op->head_dim;
    const float *q = op->q + (size_t)g * d;
    float x[HEAD_DIM_MAX], most = 0, score = 0;
    int32_t of_middle = 0;
    for (uint32_t c = 0; c < d; c++) {
        x[c] = octaves * op->scale * q[c] * unit[c];
        score += op->scale * q[c] * middle[c];
        most = fabsf(x[c]) > most ? fabsf(x[c]) : most;
    }
    f->shift[g] = 0;
    while (f->shift[g] < (int32_t)SHIFT_MAX && most * (float)(2u << f->shift[g]) <= W_MOST)
        f->shift[g]++;
    const int32_t one = 1 << f->shift[g];
    for (uint32_t c = 0; c < d; c++) {
        const float w = fmaxf(fminf(x[c] * (float)one, W_MOST), -W_MOST);
        f->w[(size_t)g * d + c] = (int8_t)lrintf(w);
        of_middle += MIDDLE * f->w[(size_t)g * d + c];
    }
    f->middle[g] = score;
    const float above = reference ? score - reference[g] : 0;
    const float exponent = fmaxf(fminf(octaves * above + ONE, 32767), -32768);
    f->start[g] = (int32_t)lrintf(exponent) * one + one / 2 - of_middle;
}

/* Computes the scales for these pages. Exponents are relative to the scores `reference`; NULL: to
 * the pages' own middle. */
static void make_frame(struct frame *f, const struct op_share_planes *op, struct attn_range pages,
                       const float *reference)
{
    float lo[HEAD_DIM_MAX], hi[HEAD_DIM_MAX];
    find_range(op, pages, lo, hi);
    for (uint32_t c = 0; c < op->head_dim; c++) {
        const float middle = (lo[c] + hi[c]) / 2, reach = (hi[c] - lo[c]) / 2;
        const float unit = fmaxf(reach * (ROOM / (MIDDLE - 1)), LEAST);
        f->inv[c] = 1 / unit;
        f->offset[c] = MIDDLE - middle / unit;
        lo[c] = middle;
        hi[c] = unit;
    }
    for (uint32_t g = 0; g < op->group; g++) weigh_head(f, op, g, lo, hi, reference);
}

/* ---- Codes ---- */

/* Codes of the four values of each channel: 16 bytes for four channels, in the order that look_up
 * needs. Adds NaN to `wrong` if something is not finite. */
INLINE void make_table(uint8_t *table, const struct op_share_planes *op, const struct frame *f,
                       const uint8_t *page, __m256 *wrong)
{
    const __m256i transpose = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const uint32_t d = op->head_dim;
    for (uint32_t c = 0; c < d; c += LANES) {
        const __m256 inv = _mm256_loadu_ps(f->inv + c);
        const __m256 step = _mm256_mul_ps(load_half(page + op->step_at + 2 * c), inv);
        const __m256 min = _mm256_fmadd_ps(load_half(page + op->min_at + 2 * c), inv,
                                           _mm256_loadu_ps(f->offset + c));
        __m256 x[4];
        __m256i code[4];
        for (uint32_t k = 0; k < 4; k++) {
            x[k] = _mm256_fmadd_ps(step, _mm256_set1_ps(31.5f + 64 * (float)k), min);
            code[k] = _mm256_cvtps_epi32(x[k]);
        }
        *wrong = _mm256_fmadd_ps(x[3], _mm256_setzero_ps(), *wrong);
        __m256i rows = _mm256_packus_epi16(_mm256_packs_epi32(code[0], code[1]),
                                           _mm256_packs_epi32(code[2], code[3]));
        rows = _mm256_min_epu8(rows, _mm256_set1_epi8(127));
        if (c / (d / 4) % 2 == 0) rows = _mm256_shuffle_epi8(rows, transpose);
        _mm256_storeu_si256((__m256i *)(void *)(table + 4 * (size_t)c), rows);
    }
}

/* Looks up the codes of 32 bytes. The index into the row's table consists of two bits of each byte,
 * either the lowest or the two above them, and of the byte's channel. */
INLINE __m256i look_up(const uint8_t *table, __m256i bits, bool above)
{
    const __m256i mask = _mm256_set1_epi8(above ? 12 : 3);
    const __m256i channel = _mm256_set1_epi32(above ? 0x03020100 : 0x0c080400);
    const __m128i row = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(row),
                               _mm256_or_si256(_mm256_and_si256(bits, mask), channel));
}

/* Transposes: lane t of out[m] is dword m of token t. `row`: bytes from token to token; `left`:
 * bytes to read, 8 or more. */
INLINE void transpose_rows(__m256i out[4], const uint8_t *codes, size_t row, uint32_t left)
{
    __m256i x[4];
    for (uint32_t i = 0; i < 4; i++) {
        const __m128i *at[] = {(const void *)(codes + i * row),
                               (const void *)(codes + (i + 4) * row)};
        __m128i part[2];
        for (uint32_t k = 0; k < 2; k++)
            part[k] = left >= 16 ? _mm_loadu_si128(at[k]) : _mm_loadl_epi64(at[k]);
        x[i] = _mm256_set_m128i(part[1], part[0]);
    }
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
    const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

/* Expands a page's codes to rows [head_dim / 4][PAGE_TOK][4]. */
INLINE void spread_codes(uint8_t *out, const uint8_t *table, const uint8_t *codes, uint32_t d)
{
    const uint32_t row = d / 4, n_row = row / 4; /* bytes of a token; rows of a quarter */
    for (uint32_t v = 0; v < VECTORS; v++)
        for (uint32_t j = 0; j < row; j += 16) {
            const uint32_t left = row - j;
            __m256i dword[4];
            transpose_rows(dword, codes + v * LANES * (size_t)row + j, row, left);
            for (uint32_t m = 0; m < (left < 16 ? 2 : 4); m++) {
                const __m256i high = _mm256_srli_epi32(dword[m], 4);
                for (uint32_t s = 0; s < 4; s++) {
                    const size_t r = s * n_row + j / 4 + m;
                    const __m256i x = look_up(table + 16 * r, s < 2 ? dword[m] : high, s % 2 > 0);
                    _mm256_storeu_si256((__m256i *)(void *)(out + (r * PAGE_TOK + v * LANES) * 4),
                                        x);
                }
            }
        }
}

/* ---- Shares ---- */

INLINE __m256i broadcast_four(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Computes the exponents of n heads, from head g on, for the tokens of a page. n is a constant at
 * every call, so that sums stay in registers. */
INLINE void multiply_heads(uint16_t *e, const struct frame *f, const uint8_t *code, uint32_t g,
                           uint32_t d, const uint32_t n)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[HEADS][VECTORS];
    for (uint32_t h = 0; h < n; h++)
        for (uint32_t v = 0; v < VECTORS; v++) sum[h][v] = _mm256_set1_epi32(f->start[g + h]);
    for (uint32_t c = 0; c < d; c += 8, code += 2 * PAGE_TOK * 4)
        for (uint32_t h = 0; h < n; h++) {
            const int8_t *from = f->w + (size_t)(g + h) * d + c;
            const __m256i w0 = broadcast_four(from), w1 = broadcast_four(from + 4);
            for (uint32_t v = 0; v < VECTORS; v++) {
                const uint8_t *at = code + v * LANES * 4;
                const __m256i four =
                    _mm256_add_epi16(_mm256_maddubs_epi16(load(at), w0),
                                     _mm256_maddubs_epi16(load(at + PAGE_TOK * 4), w1));
                sum[h][v] = _mm256_add_epi32(sum[h][v], _mm256_madd_epi16(four, ones));
            }
        }
    for (uint32_t h = 0; h < n; h++, e += PAGE_TOK) {
        const __m128i by = _mm_cvtsi32_si128(f->shift[g + h]);
        for (uint32_t v = 0; v < VECTORS; v += 2) {
            const __m256i both = _mm256_packus_epi32(_mm256_sra_epi32(sum[h][v], by),
                                                     _mm256_sra_epi32(sum[h][v + 1], by));
            _mm256_storeu_si256((__m256i *)(void *)(e + v * LANES),
                                _mm256_min_epu16(both, _mm256_set1_epi16(HIGHEST)));
        }
    }
}

/* Unpacks two vectors of exponentials, in the order in which packus stored them. */
INLINE void load_powers(__m256 x[2], const uint16_t *e)
{
    const __m256i both = load(e), zero = _mm256_setzero_si256();
    x[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, both));
    x[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, both));
}

INLINE float sum_lanes(__m256 x)
{
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Computes the exponentials of the tokens of these pages [n_page][group][PAGE_TOK] and adds them to
 * `total` [group], by lane. */
static void raise_pages(const struct op_share_planes *op, const struct frame *f,
                        struct attn_range pages, __m256 *total, __m256 *wrong)
{
    const uint32_t d = op->head_dim;
    uint8_t table[HEAD_DIM_MAX * 4], code[HEAD_DIM_MAX / 4 * PAGE_TOK * 4];
    for (uint32_t i = pages.begin; i < pages.end; i++) {
        const uint8_t *page = page_at(op, i);
        uint16_t *e = (uint16_t *)(void *)op->e + (size_t)i * op->group * PAGE_TOK;
        if (i + AHEAD < pages.end) fetch_page(op, i + AHEAD);
        make_table(table, op, f, page, wrong);
        spread_codes(code, table, page + op->hi2_at, d);
        uint32_t g = 0;
        for (; g + HEADS <= op->group; g += HEADS)
            multiply_heads(e + g * PAGE_TOK, f, code, g, d, HEADS);
        if (g < op->group) multiply_heads(e + g * PAGE_TOK, f, code, g, d, 1);
        for (g = 0; g < op->group; g++, e += PAGE_TOK) {
            __m256 x[4];
            load_powers(x, e);
            load_powers(x + 2, e + 2 * LANES);
            total[g] = _mm256_add_ps(
                total[g], _mm256_add_ps(_mm256_add_ps(x[0], x[1]), _mm256_add_ps(x[2], x[3])));
        }
    }
}

/* ---- Pieces ---- */

struct state {          /* common to the pages of a call */
    struct frame frame; /* of all pages but the first */
    float reference[SHARE_GROUP_MAX];
};
_Static_assert(sizeof(struct state) <= OPS_SHARE_FRAME, "raise OPS_SHARE_FRAME");

/* Computes the exponentials of some pages and their sums; false: something is not finite. */
static bool raise_framed(const struct op_share_planes *op, const struct frame *f,
                         struct attn_range pages, float *sum)
{
    __m256 total[SHARE_GROUP_MAX], wrong = _mm256_setzero_ps();
    for (uint32_t g = 0; g < op->group; g++) total[g] = _mm256_setzero_ps();
    raise_pages(op, f, pages, total, &wrong);
    for (uint32_t g = 0; g < op->group; g++) sum[g] = sum_lanes(total[g]);
    return sum_lanes(wrong) == 0;
}

static bool share_begin_avx2(const struct op_share_planes *op, float *sum)
{
    struct state *s = op->frame;
    struct frame first;
    const struct frame *last = &first;
    float off = 0;
    assert(op->head_dim <= HEAD_DIM_MAX && op->head_dim % 32 == 0);
    assert(op->group <= SHARE_GROUP_MAX && op->n_page > 0);
    make_frame(&first, op, (struct attn_range){0, 1}, NULL);
    memcpy(s->reference, first.middle, op->group * sizeof(float));
    if (op->n_page > 1) {
        make_frame(&s->frame, op, (struct attn_range){1, op->n_page}, s->reference);
        last = &s->frame;
    }
    for (uint32_t g = 0; g < op->group; g++) off += last->middle[g] - last->middle[g];
    return raise_framed(op, &first, (struct attn_range){0, 1}, sum) && off == 0;
}

static bool share_raise_avx2(const struct op_share_planes *op, struct attn_range pages, float *sum)
{
    const struct state *s = op->frame;
    assert(pages.begin > 0 && pages.end <= op->n_page);
    return raise_framed(op, &s->frame, pages, sum);
}

static void share_spread_avx2(const struct op_share_planes *op, struct attn_range pages,
                              const float *all)
{
    float by[SHARE_GROUP_MAX];
    const uint16_t *e =
        (const uint16_t *)(const void *)op->e + (size_t)pages.begin * op->group * PAGE_TOK;
    for (uint32_t g = 0; g < op->group; g++) by[g] = 1 / (all[g] * (float)op->group);
    for (uint32_t i = pages.begin; i < pages.end; i++) {
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(),
                         _mm256_setzero_ps()};
        for (uint32_t g = 0; g < op->group; g++, e += PAGE_TOK) {
            __m256 x[4];
            load_powers(x, e);
            load_powers(x + 2, e + 2 * LANES);
            for (uint32_t v = 0; v < 4; v++)
                sum[v] = _mm256_fmadd_ps(x[v], _mm256_set1_ps(by[g]), sum[v]);
        }
        for (uint32_t v = 0; v < 4; v++)
            _mm256_storeu_ps(op->share + i * (size_t)PAGE_TOK + v * LANES, sum[v]);
    }
}

static bool share_planes_avx2(const struct op_share_planes *all)
{
    _Alignas(64) struct state s;
    struct op_share_planes op = *all;
    float sum[SHARE_GROUP_MAX], rest[SHARE_GROUP_MAX];
    op.frame = &s;
    bool finite = share_begin_avx2(&op, sum);
    if (op.n_page > 1) finite &= share_raise_avx2(&op, (struct attn_range){1, op.n_page}, rest);
    for (uint32_t g = 0; g < op.group; g++) {
        if (op.n_page > 1) sum[g] += rest[g];
        if (op.lse) op.lse[g] = s.reference[g] + logf(sum[g]);
    }
    share_spread_avx2(&op, (struct attn_range){0, op.n_page}, sum);
    return finite;
}

void ops_fill_avx2_share(struct ops *o)
{
    o->share_planes = share_planes_avx2;
    o->share_begin = share_begin_avx2;
    o->share_raise = share_raise_avx2;
    o->share_spread = share_spread_avx2;
}
