/* attn_narrow_tmpl.h: decode attention in products of 16-bit floats and of integers: what one row
 * of a sequence does with its pages, except for the products themselves and for 16-bit keys and
 * values, which depend on the instruction set (private).
 *
 * Included once by attn_narrow_amx.c and by attn_narrow_avx512.c, which first define FETCH_TO (2 to
 * prefetch pages into L2, 3 into L1) and gather_q8_keys, which gathers single tokens as halves.
 *
 * A step takes one or two pages of a chunk, for blocks of 8 query heads of the KV head:
 *  - Scores. Everything between scores and values is done with one token per lane.
 *  - Softmax: exact maxima, weights 2^(score - maximum of the step).
 *  - Values. Weights are the first operand, one row per head; values, interleaved by tokens, are
 *    the second. The sums of a step start at zero and are added to the chunk's in f32.
 *
 * There are two kinds of pages, which never share a step:
 *  - CODES, sealed q8 pages. Nothing is converted to floating point. The first operand is the
 *    queries times the page's step sizes, in 16 bits; the second is the codes of the keys, joined
 *    from their planes and transposed. The product of query and `min` is added in f32. For the
 *    values, weights times the values' scales are rounded to 16 bits relative to the step's
 *    largest, and multiply the codes. All sums are exact integers. Tiles take 16 bits as two bytes
 *    each, whose sums are combined afterwards.
 *  - HALVES, 16-bit pages and gathered tokens, in products of bf16. From an f16 key the page's
 *    first visible key is subtracted before rounding, and the query's product with it is added in
 *    f32: attn_wide_tmpl.h says why. f16 values become bf16 by shifts of 32 at a time (HALF_BITS).
 *    bf16 values are multiplied as they are.
 *
 * While pages are computed, the next FETCH_PAGES are prefetched in parallel, a few lines with each
 * row that is converted (struct fetch says why).
 *
 * Tokens that the row does not see may contain anything: their scores are overwritten, and their
 * values (or scales of values) count as zero. A NaN in a visible token gives NaN. */
#ifndef SAC_OPS_CPU_ATTN_NARROW_TMPL_H
#define SAC_OPS_CPU_ATTN_NARROW_TMPL_H

#include "base/half.h"
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_q8.h"
#include "ops/cpu/attn_vec.h"
#include "ops/cpu/math_avx512.h"
#include "ops/cpu/tiles.h"

#include <assert.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define LANES      16u
#define HEADS      8u  /* heads of a block: with their low parts they fill the columns of a tile */
#define CODE_BLOCK 64u /* channels of a tile of codes */
#define STEP_PAGES 2u  /* for codes; halves have one per step: more would not stay in L1 */
#define STEP_TOK   (STEP_PAGES * PAGE_TOK)

#define FETCH_PAGES  ATTN_AHEAD     /* read as parallel streams */
#define GATHER_AHEAD (2 * PAGE_TOK) /* prefetch distance in single tokens */

/* Conversion to 16-bit integers. After adding INTEGER to a float below 2^15, or NATURAL to one
 * below 2^16, the low 16 bits of the sum are the float, rounded. INTEGER includes another 128: with
 * it, the low byte is the low part plus 128 and the high byte is the high part, both signed. */
#define QUERY_MAX  32512.0f
#define WEIGHT_MAX 65535.0f
#define INTEGER    (0x1.8p23f + 128)
#define NATURAL    0x1p23f
#define PART_BITS  8

/* f16 are converted to bf16 by shifts alone, which multiplies them by 2^-HALF_BITS, the difference
 * of the exponent biases. Their factors are scaled up by as much. */
#define HALF_BITS 112

/* Layout of a worker's memory. Parts whose offset depends on d alone come first: if d is a
 * compile-time constant, so are their offsets. */
struct narrow_mem {
    uint32_t d, d_code;      /* d_code: d rounded up to whole tiles of codes */
    uint32_t group, n_block; /* query heads; blocks of HEADS of them */
    uint8_t *rows;           /* [16] rows to be transposed into a tile */
    uint8_t *keys;           /* HALVES: [PAGE_TOK] rows; CODES: [STEP_TOK/16, d_code/64] tiles */
    uint16_t *centre;        /* HALVES: [d] the key that is subtracted from the others */
    uint8_t *w_tile;         /* CODES: [STEP_PAGES, d_code/64] tiles: integer queries */
    float *s;                /* tiles of sums: HALVES [token, 16], CODES [STEP_TOK/16, 16, 16] */
    float *y;                /* [HEADS, STEP_TOK] scores */
    uint8_t *p;              /* weights: a tile; CODES: [d/32] tiles */
    uint8_t *v;              /* values: tiles [d/16] */
    float *scale, *v_unit;   /* CODES: scales of values [d/32, STEP_TOK] and their units [d/32] */
    float *x;                /* [d/16] tiles: sums of values of a step */
    uint16_t *gathered;      /* [PAGE_TOK, d] keys or values of single tokens */
    float *q;        /* [n_block * HEADS, d] queries, divided by powers of two to at most 1 */
    float *unit;     /* [n_block * HEADS] factor from raw scores to scores in log 2 */
    float *m, *l;    /* [n_block, 16], the last 8 unused */
    uint8_t *q_tile; /* HALVES: [n_block, d/32] tiles: queries */
    float *q_code, *q_most; /* CODES: [n_block * HEADS, d_code] q by quads of channels; [n_block,
                               d_code] their largest magnitudes */
    size_t bytes;
};

INLINE float *take_floats(uint8_t *base, size_t *at, size_t n)
{
    return align_take(base, at, n * sizeof(float));
}

INLINE struct narrow_mem narrow_layout(uint8_t *base, uint32_t d, uint32_t group)
{
    struct narrow_mem w = {.d = d, .group = group, .n_block = (group + HEADS - 1) / HEADS};
    w.d_code = (d + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK;
    const size_t n_head = w.n_block * HEADS, wide = w.d_code;
    size_t at = 0;
    w.rows = align_take(base, &at, LANES * 2 * (size_t)d);
    w.keys = align_take(base, &at, STEP_TOK * wide);
    w.centre = align_take(base, &at, 2 * (size_t)d);
    w.w_tile = align_take(base, &at, STEP_PAGES * wide / CODE_BLOCK * TILE_BYTES);
    w.s = take_floats(base, &at, (size_t)STEP_TOK * LANES);
    w.y = take_floats(base, &at, (size_t)HEADS * STEP_TOK);
    w.p = align_take(base, &at, (size_t)(d / PAGE_VBLOCK) * TILE_BYTES);
    w.v = align_take(base, &at, (size_t)(d / LANES) * TILE_BYTES);
    w.scale = take_floats(base, &at, (size_t)(d / PAGE_VBLOCK) * STEP_TOK);
    w.v_unit = take_floats(base, &at, d / PAGE_VBLOCK);
    w.x = take_floats(base, &at, (size_t)(d / LANES) * TILE_BYTES / sizeof(float));
    w.gathered = align_take(base, &at, (size_t)PAGE_TOK * d * 2);
    w.q = take_floats(base, &at, n_head * d);
    w.unit = take_floats(base, &at, n_head + HEADS);
    w.m = take_floats(base, &at, (size_t)w.n_block * LANES);
    w.l = take_floats(base, &at, (size_t)w.n_block * LANES);
    w.q_tile = align_take(base, &at, (size_t)w.n_block * (d / 32) * TILE_BYTES);
    w.q_code = take_floats(base, &at, n_head * wide);
    w.q_most = take_floats(base, &at, w.n_block * wide);
    w.bytes = at;
    return w;
}

static uint32_t block_heads(const struct narrow_mem *w, uint32_t block)
{
    const uint32_t left = w->group - block * HEADS;
    return left < HEADS ? left : HEADS;
}

/* ---- The queries ---- */

/* Divides a query by a power of two above its largest magnitude, which it returns. A query that is
 * not finite becomes zeros, and NaN is returned. */
static float scale_query(float *dst, const float *q, uint32_t d)
{
    __m512i mag = _mm512_setzero_si512();
    for (uint32_t c = 0; c < d; c += LANES)
        mag = _mm512_max_epu32(mag, _mm512_slli_epi32(_mm512_loadu_si512(q + c), 1));
    const uint32_t top = _mm512_reduce_max_epu32(mag) >> 24; /* exponent field of the largest */
    if (top == 255) {
        memset(dst, 0, d * sizeof *dst);
        return NAN;
    }
    const int32_t e = top == 0 ? -126 : (int32_t)top - 126;
    for (uint32_t c = 0; c < d; c += LANES)
        _mm512_store_ps(dst + c,
                        _mm512_scalef_ps(_mm512_loadu_ps(q + c), _mm512_set1_ps((float)-e)));
    return ldexpf(1.0f, e);
}

INLINE __m512i bf16_pair(__m512 lo, __m512 hi)
{
    return (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
}

/* Orders the queries by quads of channels, and finds the largest magnitudes among the heads of a
 * block. */
static void query_quads(const struct narrow_mem *w, uint32_t block)
{
    for (uint32_t c = 0; c < w->d_code; c += CODE_BLOCK) {
        __m512 most[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                          _mm512_setzero_ps()};
        for (uint32_t h = block * HEADS; h < (block + 1) * HEADS; h++) {
            __m512 x[4];
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t at = c + i * LANES;
                x[i] =
                    at < w->d ? _mm512_load_ps(w->q + (size_t)h * w->d + at) : _mm512_setzero_ps();
            }
            math_quads_apart((__m512i *)x);
            for (uint32_t i = 0; i < 4; i++) {
                _mm512_store_ps(w->q_code + (size_t)h * w->d_code + c + i * LANES, x[i]);
                most[i] = _mm512_max_ps(most[i], _mm512_abs_ps(x[i]));
            }
        }
        for (uint32_t i = 0; i < 4; i++)
            _mm512_store_ps(w->q_most + (size_t)block * w->d_code + c + i * LANES, most[i]);
    }
}

static bool page_has_codes(const struct page_geom *g, const struct attn_page *page)
{
    return page->form == PAGE_SEALED && g->type_k == SAC_KV_Q8 && !page->tok;
}

/* Prepares the queries and clears the sums. Returns whether there are HALVES, for which the
 * including file prepares the queries in its own form. */
static bool narrow_begin(const struct attn_chunk *c, const struct narrow_mem *w)
{
    const uint32_t d = w->d, n = w->n_block * HEADS;
    bool codes = false, halves = false;
    for (uint32_t j = 0; j < c->n_page; j++)
        *(page_has_codes(c->op->geom, &c->page[j]) ? &codes : &halves) = true;
    memset(c->acc, 0, (size_t)c->group * d * sizeof(float));
    for (uint32_t i = 0; i < w->n_block * LANES; i++) {
        w->m[i] = -INFINITY;
        w->l[i] = 0;
    }
    const float unit = c->op->softcap > 0 ? c->op->scale : c->op->scale * (float)M_LOG2E;
    for (uint32_t h = 0; h < n; h++) {
        float *q = w->q + (size_t)h * d;
        w->unit[h] = 0;
        if (h < c->group)
            w->unit[h] = scale_query(q, c->q + (size_t)h * d, d) * unit;
        else
            memset(q, 0, d * sizeof *q);
    }
    for (uint32_t b = 0; b < w->n_block && codes; b++) query_quads(w, b);
    return halves;
}

/* ---- One step ---- */

/* Software prefetching of pages. The hardware prefetcher reaches the full memory rate by running up
 * to 20 lines ahead within each 4 KiB that is read in order. For a single stream that is not
 * enough: its prefetches fill the buffers of L1 and delay the loads of the computation. Pages are
 * therefore prefetched line by line in turn, as parallel streams: the pages of one group while the
 * previous group is computed. */
struct fetch {
    const uint8_t *page[FETCH_PAGES];
    uint32_t at, due; /* bytes of each page prefetched so far, and those due by now */
    uint32_t rate;    /* increase of `due` per call */
};

/* May exceed the pages by one line, which is harmless. */
ATTN_FETCH fetch_lines(struct fetch *f)
{
    f->due += f->rate;
    for (; f->at < f->due; f->at += 64)
        for (uint32_t i = 0; i < FETCH_PAGES; i++)
            __builtin_prefetch(f->page[i] + f->at, 0, FETCH_TO);
}

struct narrow_step {
    const struct attn_page *page[STEP_PAGES];
    struct attn_page none; /* CODES: replaces a missing second page; nothing of it is visible */
    uint32_t n_page;
    bool codes;
    const uint16_t *keys;         /* HALVES: rows of bf16 [PAGE_TOK, d] */
    float query_unit[STEP_PAGES]; /* CODES: the value of one unit of an integer query */
    float up;                     /* HALVES: HALF_BITS for values of f16, else 0 */
    struct fetch fetch;
};

/* ---- Keys ---- */

/* Packs the codes of page j into tiles, whose lines have four channels of 16 tokens. The planes are
 * transposed before they are combined, because they are smaller. Shifts are of 16-bit words,
 * because bits that cross from the neighbouring byte are masked anyway. */
INLINE void code_keys(const struct narrow_mem *w, struct narrow_step *st, uint32_t j,
                      const struct page_geom *g, uint32_t d)
{
    const uint32_t quarter = d / 4, d_code = (d + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK;
    const uint8_t *hi2 = st->page[j]->bytes + g->k_hi2, *low = st->page[j]->bytes + g->k_low;
    uint8_t *dst = w->keys + (size_t)j * PAGE_TOK * d_code;
    for (uint32_t t = 0; t < PAGE_TOK;
         t += LANES, hi2 += LANES * quarter, low += LANES * 3 * quarter, dst += LANES * d_code)
        for (uint32_t c = 0; c < quarter; c += 16) {
            __m512i hi[4], mid[4], a[4], b[4];
            attn_dword_lanes(hi, hi2 + c, quarter);
            attn_dword_lanes(mid, low + c, 3 * (size_t)quarter);
            attn_dword_lanes(a, low + quarter + c, 3 * (size_t)quarter);
            attn_dword_lanes(b, low + 2 * quarter + c, 3 * (size_t)quarter);
            for (uint32_t k = 0; k < 4 && c + 4 * k < quarter; k++) {
                uint8_t *line = dst + (c / 4 + k) * (size_t)64;
                fetch_lines(&st->fetch);
                _mm512_store_si512(line, attn_q8_merge(_mm512_slli_epi16(hi[k], 6),
                                                       _mm512_slli_epi16(mid[k], 4), a[k]));
                line += quarter / 4 * (size_t)64;
                _mm512_store_si512(line, attn_q8_merge(_mm512_slli_epi16(hi[k], 4),
                                                       _mm512_slli_epi16(mid[k], 2), b[k]));
                line += quarter / 4 * (size_t)64;
                _mm512_store_si512(line, attn_q8_merge(_mm512_slli_epi16(hi[k], 2), mid[k],
                                                       _mm512_srli_epi16(a[k], 4)));
                line += quarter / 4 * (size_t)64;
                _mm512_store_si512(line, attn_q8_merge(hi[k], _mm512_srli_epi16(mid[k], 2),
                                                       _mm512_srli_epi16(b[k], 4)));
            }
        }
}

/* Splits the low 16 bits of 64 dwords into high and low bytes, in groups of four: lanes i of x[0]
 * to x[3]. */
INLINE void two_parts(__m512i *high, __m512i *low, const __m512i x[4])
{
    const __mmask32 odd = 0xaaaaaaaa;
    const __m512i upper = _mm512_set1_epi16((int16_t)0xff00);
    const __m512i a = _mm512_mask_mov_epi16(x[0], odd, _mm512_slli_epi32(x[2], 16));
    const __m512i b = _mm512_mask_mov_epi16(x[1], odd, _mm512_slli_epi32(x[3], 16));
    /* both select b where the mask is 1 and a where it is 0 */
    *high = _mm512_ternarylogic_epi32(_mm512_srli_epi16(a, PART_BITS), b, upper, 0xd8);
    *low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(b, PART_BITS), a, upper, 0xe4);
}

/* Computes the queries times the step sizes of page j as integers, in tiles: high parts of eight
 * heads, then low parts. Scaled so that the largest product is QUERY_MAX. */
INLINE void code_queries(const struct narrow_mem *w, struct narrow_step *st, uint32_t block,
                         uint32_t j, const struct page_geom *g, uint32_t d)
{
    const uint32_t d_code = (d + CODE_BLOCK - 1) / CODE_BLOCK * CODE_BLOCK;
    const uint8_t *from = st->page[j]->bytes + g->k_step;
    const float *q_most = w->q_most + (size_t)block * d_code;
    __m512 step[HEAD_DIM_MAX / LANES], most = _mm512_setzero_ps();
    for (uint32_t c = 0; c < d_code; c += CODE_BLOCK) {
        __m512 *x = step + c / LANES;
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t at = c + i * LANES;
            x[i] = at < d ? attn_load_f16(from + 2 * (size_t)at) : _mm512_setzero_ps();
        }
        math_quads_apart((__m512i *)x);
        for (uint32_t i = 0; i < 4; i++)
            most = _mm512_max_ps(most, _mm512_mul_ps(x[i], _mm512_load_ps(q_most + c + i * LANES)));
    }
    const float top = _mm512_reduce_max_ps(most);
    const __m512 inv = _mm512_set1_ps(top > 0 ? QUERY_MAX / top : 0);
    st->query_unit[j] = top / QUERY_MAX;
    const __m512 integer = _mm512_set1_ps(INTEGER);
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    for (uint32_t i = 0; i < d_code / LANES; i++) step[i] = _mm512_mul_ps(step[i], inv);
    for (uint32_t h = 0; h < block_heads(w, block); h++) {
        const float *q = w->q_code + (size_t)(block * HEADS + h) * d_code;
        for (uint32_t c = 0; c < d_code; c += CODE_BLOCK) {
            uint8_t *row = w->w_tile + (j * d_code + c) / CODE_BLOCK * (size_t)TILE_BYTES + h * 64;
            __m512i x[4], high, low;
            for (uint32_t i = 0; i < 4; i++) {
                x[i] = _mm512_castps_si512(_mm512_fmadd_ps(
                    step[c / LANES + i], _mm512_load_ps(q + c + i * LANES), integer));
            }
            two_parts(&high, &low, x);
            _mm512_store_si512(row, high);
            _mm512_store_si512(row + HEADS * (size_t)64, _mm512_xor_si512(low, sign));
        }
    }
}

/* Gathers 16-bit keys or values of single tokens, with zeros in slots that are not visible. */
INLINE void gather_halves(uint16_t *dst, const struct page_geom *g, const struct attn_page *page,
                          uint32_t d, bool keys)
{
    const size_t row = 2 * (size_t)d;
    uint8_t *to = (uint8_t *)dst;
    memset(to, 0, page->begin * row);
    for (uint32_t i = page->begin; i < page->end; i++) {
        if (keys)
            attn_fetch_key(g, page, i + GATHER_AHEAD);
        else
            attn_fetch_value(g, page, i + GATHER_AHEAD);
        const uint8_t *from =
            attn_page_of(g, page, i) + (keys ? g->k : g->v) + page->tok[i] % PAGE_TOK * row;
        for (size_t x = 0; x < row; x += 64)
            _mm512_storeu_si512(to + i * row + x, _mm512_loadu_si512(from + x));
    }
    memset(to + page->end * row, 0, (PAGE_TOK - page->end) * row);
}

/* Keys of a step of halves: in place, or gathered. */
INLINE const uint8_t *half_rows(const struct narrow_mem *w, const struct attn_page *page,
                                const struct page_geom *g, uint32_t d)
{
    const uint8_t *src = page->bytes + (page->form == PAGE_TAIL ? 0 : g->k);
    if (page->tok) {
        if (g->type_k == SAC_KV_Q8)
            gather_q8_keys(w->gathered, g, page);
        else
            gather_halves(w->gathered, g, page, d, true);
        src = (const uint8_t *)w->gathered;
    }
    return src;
}

/* ---- Scores to weights ---- */

/* Product of a query with a key vector in f16, by lane: a centre, or the minima of a page. */
INLINE __m512 centre_product(const uint8_t *centre, const float *q, uint32_t d)
{
    __m512 x = _mm512_setzero_ps();
    for (uint32_t c = 0; c < d; c += LANES)
        x = _mm512_fmadd_ps(attn_load_f16(centre + 2 * (size_t)c), _mm512_load_ps(q + c), x);
    return x;
}

/* Computes the scores of a step: integer sums times their unit, plus the products of the queries
 * and the minima. */
INLINE void code_scores(const struct narrow_mem *w, struct narrow_step *st, uint32_t block,
                        const struct page_geom *g, uint32_t d)
{
    const uint32_t n_head = block_heads(w, block);
    const float *q = w->q + (size_t)block * HEADS * d;
    const __m512 unit = _mm512_broadcast_f32x8(_mm256_load_ps(w->unit + block * HEADS));
    _Alignas(64) float base[STEP_PAGES * HEADS], by[STEP_PAGES * HEADS];
    __m512 sum[STEP_PAGES * HEADS];
    for (uint32_t i = 0; i < STEP_PAGES * HEADS; i++) sum[i] = _mm512_setzero_ps();
    for (uint32_t h = 0; h < n_head; h++)
        for (uint32_t j = 0; j < STEP_PAGES; j++)
            sum[j * HEADS + h] =
                centre_product(st->page[j]->bytes + g->k_min, q + (size_t)h * d, d);
    _mm512_store_ps(base, _mm512_mul_ps(attn_sums(sum), unit));
    const __m512 second = _mm512_set1_ps(st->query_unit[1]);
    _mm512_store_ps(by, _mm512_mul_ps(unit, _mm512_mask_mov_ps(_mm512_set1_ps(st->query_unit[0]),
                                                               0xff00, second)));
    for (uint32_t h = 0; h < n_head; h++) {
        const float *s = w->s + h * LANES;
        float *y = w->y + h * STEP_TOK;
        fetch_lines(&st->fetch);
        for (uint32_t i = 0; i < STEP_TOK / LANES; i++, s += LANES * LANES) {
            const __m512 high = _mm512_cvtepi32_ps(_mm512_load_si512(s));
            const __m512 low = _mm512_cvtepi32_ps(_mm512_load_si512(s + HEADS * LANES));
            const __m512 x = _mm512_fmadd_ps(high, _mm512_set1_ps(1 << PART_BITS), low);
            const uint32_t at = i * LANES / PAGE_TOK * HEADS + h;
            _mm512_store_ps(y + i * LANES,
                            _mm512_fmadd_ps(x, _mm512_set1_ps(by[at]), _mm512_set1_ps(base[at])));
        }
    }
}

/* Applies what few pages need: the softcap, log weights, and -inf for invisible tokens. */
static void amend_scores(float *scores, const struct attn_chunk *c, const struct attn_page *page,
                         uint32_t n_head)
{
    for (uint32_t t = 0; t < PAGE_TOK; t += LANES) {
        const __m512i at = _mm512_add_epi32(
            _mm512_set1_epi32((int)t),
            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        const __mmask16 seen = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32((int)page->begin)) &
                               _mm512_cmplt_epi32_mask(at, _mm512_set1_epi32((int)page->end));
        for (uint32_t h = 0; h < n_head; h++) {
            float *p = scores + h * STEP_TOK + t;
            __m512 y = _mm512_load_ps(p);
            if (c->op->softcap > 0)
                y = _mm512_mul_ps(attn_softcap(y, c->op->softcap), _mm512_set1_ps((float)M_LOG2E));
            if (page->logw)
                y = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(seen, page->logw + t),
                                    _mm512_set1_ps((float)M_LOG2E), y);
            _mm512_store_ps(p, _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, y));
        }
    }
}

INLINE void narrow_amend(const struct attn_chunk *c, const struct narrow_mem *w,
                         const struct narrow_step *st, uint32_t n_head, bool codes)
{
    for (uint32_t j = 0; j < (codes ? STEP_PAGES : 1); j++) {
        const struct attn_page *page = st->page[j];
        if (c->op->softcap > 0 || page->logw || page->begin > 0 || page->end < PAGE_TOK)
            amend_scores(w->y + j * PAGE_TOK, c, page, n_head);
    }
}

/* Horizontal maxima: lane i < 8 is the largest lane of r[i]. A NaN may be lost here; its weight
 * will be NaN anyway. */
INLINE __m512 maxima(const __m512 r[HEADS])
{
    __m512 a[4], b[2];
    for (int i = 0; i < 4; i++)
        a[i] = _mm512_max_ps(_mm512_shuffle_f32x4(r[i], r[i + 4], 0x44),
                             _mm512_shuffle_f32x4(r[i], r[i + 4], 0xee));
    for (int i = 0; i < 2; i++) /* lanes of 128 bits: rows i, i + 4, i + 2, i + 6 */
        b[i] = _mm512_max_ps(_mm512_shuffle_f32x4(a[i], a[i + 2], 0x88),
                             _mm512_shuffle_f32x4(a[i], a[i + 2], 0xdd));
    const __m512 c = _mm512_max_ps(_mm512_unpacklo_ps(b[0], b[1]), _mm512_unpackhi_ps(b[0], b[1]));
    const __m512 max = _mm512_max_ps(c, _mm512_permute_ps(c, 0x4e));
    const __m512i order = _mm512_setr_epi32(0, 1, 8, 9, 4, 5, 12, 13, 0, 1, 8, 9, 4, 5, 12, 13);
    return _mm512_permutexvar_ps(order, max);
}

/* How the value sums of a step are merged into the chunk's: chunk = old * chunk + fresh * step, for
 * each head of a block. */
struct narrow_merge {
    bool pending; /* there are sums to merge */
    bool codes;
    uint32_t block;
    /* CODES: a copy, because the next step overwrites that of narrow_mem */
    float v_unit[HEAD_DIM_MAX / PAGE_VBLOCK];
    _Alignas(64) float old[LANES]; /* factor of the chunk's sums */
    _Alignas(64) float fresh[LANES];
};

/* Computes the weights of a step, relative to its maxima, as tiles; times 2^up if f16 values are
 * converted by shifts. Updates the chunk's maxima and denominators. */
INLINE void narrow_weights(const struct narrow_mem *w, struct narrow_step *st, uint32_t block,
                           uint32_t d, bool codes, struct narrow_merge *merge)
{
    const uint32_t n_head = block_heads(w, block);
    const float up = codes ? 0 : st->up;
    const uint32_t n_vec = codes ? STEP_TOK / LANES : PAGE_TOK / LANES;
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 row[2 * HEADS];
    for (uint32_t h = 0; h < 2 * HEADS; h++) row[h] = _mm512_setzero_ps();
    for (uint32_t h = 0; h < n_head; h++) {
        const float *y = w->y + h * STEP_TOK;
        row[h] = _mm512_max_ps(_mm512_load_ps(y), _mm512_load_ps(y + LANES));
        if (codes)
            row[h] = _mm512_max_ps(row[h], _mm512_max_ps(_mm512_load_ps(y + 2 * LANES),
                                                         _mm512_load_ps(y + 3 * LANES)));
    }
    const __m512 top = maxima(row), m_old = _mm512_load_ps(w->m + block * LANES);
    const __m512 m_new = _mm512_max_ps(m_old, top);
    /* without visible tokens any finite number may be subtracted */
    const __m512 ref =
        _mm512_mask_mov_ps(top, _mm512_cmp_ps_mask(top, none, _CMP_EQ_OQ), _mm512_setzero_ps());
    const __m512 from =
        _mm512_mask_mov_ps(m_new, _mm512_cmp_ps_mask(m_new, none, _CMP_EQ_OQ), _mm512_setzero_ps());
    _Alignas(64) float base[LANES];
    _mm512_store_ps(base, _mm512_sub_ps(ref, _mm512_set1_ps(up)));
    const __m512 old = math_exp2_quintic(_mm512_sub_ps(m_old, from));
    const __m512 fresh = math_exp2_quintic(_mm512_sub_ps(top, from));
    merge->pending = true;
    merge->codes = codes;
    merge->block = block;
    if (codes) memcpy(merge->v_unit, w->v_unit, d / PAGE_VBLOCK * sizeof(float));
    _mm512_store_ps(merge->old, old);
    _mm512_store_ps(merge->fresh, fresh);
    _mm512_store_ps(w->m + block * LANES, m_new);
    for (uint32_t h = 0; h < n_head; h++) {
        const float *y = w->y + h * STEP_TOK;
        const __m512 m = _mm512_set1_ps(base[h]);
        __m512 p[STEP_TOK / LANES];
        fetch_lines(&st->fetch);
        for (uint32_t i = 0; i < n_vec; i++)
            p[i] = math_exp2_cubic(_mm512_sub_ps(_mm512_load_ps(y + i * LANES), m));
        row[h] = _mm512_add_ps(p[0], p[1]);
        if (!codes) {
            _mm512_store_si512(w->p + h * 64, bf16_pair(p[0], p[1]));
            continue;
        }
        row[h] = _mm512_add_ps(row[h], _mm512_add_ps(p[2], p[3]));
        for (uint32_t b = 0; b < d / PAGE_VBLOCK; b++) {
            __m512i x[STEP_TOK / LANES];
            for (uint32_t i = 0; i < n_vec; i++) {
                const __m512 scale = _mm512_load_ps(w->scale + b * STEP_TOK + i * LANES);
                x[i] = _mm512_castps_si512(_mm512_fmadd_ps(p[i], scale, _mm512_set1_ps(NATURAL)));
            }
            __m512i high, low;
            uint8_t *to = w->p + b * (size_t)TILE_BYTES + h * 64;
            two_parts(&high, &low, x);
            _mm512_store_si512(to, high);
            _mm512_store_si512(to + HEADS * (size_t)64, low);
        }
    }
    float *l = w->l + block * LANES;
    const __m512 by = _mm512_scalef_ps(fresh, _mm512_set1_ps(-up));
    _mm512_store_ps(l, _mm512_fmadd_ps(_mm512_load_ps(l), old, _mm512_mul_ps(attn_sums(row), by)));
}

/* ---- Values ---- */

/* Interleaves 32 or 64 channels of four tokens to rows of their tiles: of each 32 channels, tile 0
 * has those whose bit 2 is 0, tile 1 those whose bit 2 is 1. */
INLINE void value_fours(uint8_t *tile, const uint8_t *const v[4], bool wide)
{
    __m512i r[4];
    for (uint32_t i = 0; i < 4; i++)
        r[i] = wide ? _mm512_loadu_si512(v[i])
                    : _mm512_castsi256_si512(_mm256_loadu_si256((const void *)v[i]));
    const __m512i a = _mm512_unpacklo_epi8(r[0], r[1]), b = _mm512_unpackhi_epi8(r[0], r[1]);
    const __m512i e = _mm512_unpacklo_epi8(r[2], r[3]), f = _mm512_unpackhi_epi8(r[2], r[3]);
    const __m512i x[4] = {_mm512_unpacklo_epi16(a, e), _mm512_unpackhi_epi16(a, e),
                          _mm512_unpacklo_epi16(b, f), _mm512_unpackhi_epi16(b, f)};
    for (uint32_t i = 0; i < 4; i++) {
        uint8_t *to = tile + i % 2 * TILE_BYTES + i / 2 * 32;
        _mm256_store_si256((void *)to, _mm512_castsi512_si256(x[i]));
        if (wide)
            _mm256_store_si256((void *)(to + 2 * (size_t)TILE_BYTES),
                               _mm512_extracti64x4_epi64(x[i], 1));
    }
}

/* Loads the scales [d/32, STEP_TOK] of page j as f32, with zeros for invisible tokens. */
INLINE void code_scales(const struct narrow_mem *w, const struct narrow_step *st, uint32_t j,
                        const struct page_geom *g, uint32_t d)
{
    const uint32_t n = d / PAGE_VBLOCK;
    const struct attn_page *page = st->page[j];
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for (uint32_t t = 0; t < PAGE_TOK; t += LANES) {
        const __m512i tok = _mm512_add_epi32(lane, _mm512_set1_epi32((int)t));
        const __mmask16 seen = _mm512_cmpge_epi32_mask(tok, _mm512_set1_epi32((int)page->begin)) &
                               _mm512_cmplt_epi32_mask(tok, _mm512_set1_epi32((int)page->end));
        const uint8_t *from = page->bytes + g->v_scale + 2 * (size_t)t * n;
        for (uint32_t b = 0; b < n;
             b += 2) { /* if n is odd, the last iteration reads one scale too many */
            const __m512i two = n == 2
                                    ? _mm512_loadu_si512(from)
                                    : _mm512_i32gather_epi32(
                                          _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)(2 * n))),
                                          from + 2 * b, 1);
            float *to = w->scale + b * STEP_TOK + j * PAGE_TOK + t;
            _mm512_store_ps(to, _mm512_maskz_cvtph_ps(seen, _mm512_cvtepi32_epi16(two)));
            if (b + 1 == n) break;
            const __m512i second = _mm512_srli_epi32(two, 16);
            _mm512_store_ps(to + STEP_TOK,
                            _mm512_maskz_cvtph_ps(seen, _mm512_cvtepi32_epi16(second)));
        }
    }
}

/* Scales such that the largest scale of a block times a weight of 1 becomes WEIGHT_MAX. Compared as
 * integers, NaN is above all floats, so it reaches the unit. */
INLINE void code_scale_units(const struct narrow_mem *w, uint32_t d)
{
    for (uint32_t b = 0; b < d / PAGE_VBLOCK; b++) {
        float *scale = w->scale + b * STEP_TOK;
        __m512i most = _mm512_setzero_si512();
        for (uint32_t t = 0; t < STEP_TOK; t += LANES)
            most = _mm512_max_epi32(most, _mm512_load_si512(scale + t));
        const float top = bits_float((uint32_t)_mm512_reduce_max_epi32(most));
        const __m512 inv = _mm512_set1_ps(top > 0 ? WEIGHT_MAX / top : 0);
        w->v_unit[b] = top / WEIGHT_MAX;
        for (uint32_t t = 0; t < STEP_TOK; t += LANES)
            _mm512_store_ps(scale + t, _mm512_mul_ps(inv, _mm512_load_ps(scale + t)));
    }
}

/* Packs the codes of the step's values, interleaved by four tokens like the weights (two_parts). */
INLINE void code_values(const struct narrow_mem *w, struct narrow_step *st,
                        const struct page_geom *g, uint32_t d)
{
    const size_t half = (size_t)LANES * d;
    const uint8_t *first = st->page[0]->bytes + g->v, *second = st->page[1]->bytes + g->v;
    for (uint32_t i = 0; i < LANES; i++, first += d, second += d)
        for (uint32_t c = 0; c < d; c += CODE_BLOCK) {
            const uint8_t *const v[4] = {first + c, first + half + c, second + c,
                                         second + half + c};
            fetch_lines(&st->fetch);
            value_fours(w->v + (size_t)(c / 16) * TILE_BYTES + i * 64, v, c + 32 < d);
        }
}

/* 16 channels of a row: high and low parts combined. The permutation gives 128-bit lanes the order
 * that HALVES have. */
INLINE __m512 of_parts(const float *row)
{
    const __m512i high = _mm512_slli_epi32(_mm512_load_si512(row), PART_BITS);
    const __m512 x =
        _mm512_cvtepi32_ps(_mm512_add_epi32(high, _mm512_load_si512(row + HEADS * LANES)));
    return _mm512_shuffle_f32x4(x, x, 0xd8);
}

/* Merges the value sums of a step into the chunk's, which stay in the order of the tiles until the
 * chunk ends. */
INLINE void merge_values(const struct attn_chunk *chunk, const struct narrow_mem *w,
                         const struct narrow_merge *merge, uint32_t d)
{
    if (!merge->pending) return;
    float *acc = chunk->acc + (size_t)merge->block * HEADS * d;
    for (uint32_t h = 0; h < block_heads(w, merge->block); h++, acc += d) {
        const __m512 old = _mm512_set1_ps(merge->old[h]);
        __m512 by = _mm512_set1_ps(merge->fresh[h]);
        for (uint32_t c = 0; c < d; c += LANES) {
            const float *row = w->x + c * LANES + h * LANES;
            if (merge->codes) by = _mm512_set1_ps(merge->fresh[h] * merge->v_unit[c / PAGE_VBLOCK]);
            const __m512 x = merge->codes ? of_parts(row) : _mm512_load_ps(row);
            const __m512 before = _mm512_mul_ps(old, _mm512_loadu_ps(acc + c));
            _mm512_storeu_ps(acc + c, _mm512_fmadd_ps(by, x, before));
        }
    }
}

/* Brings the channels of the sums into ascending order: of each 32, the tiles have first the groups
 * of four channels whose bit 2 is 0, then the others. */
static void in_order(float *acc, size_t n)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (size_t i = 0; i < n; i += 2 * LANES) {
        const __m512 a = _mm512_loadu_ps(acc + i), b = _mm512_loadu_ps(acc + i + LANES);
        _mm512_storeu_ps(acc + i, _mm512_permutex2var_ps(a, first, b));
        _mm512_storeu_ps(acc + i + LANES, _mm512_permutex2var_ps(a, second, b));
    }
}

/* ---- A chunk ---- */

/* Page i of the chunk, or one that is read after it; `here`, which is cached already, if the page
 * is gathered or not known. */
static const uint8_t *page_ahead(const struct attn_chunk *c, uint32_t i, const uint8_t *here)
{
    const uint8_t *page = NULL;
    if (i >= c->n_page)
        page = i - c->n_page < ATTN_AHEAD ? c->ahead[i - c->n_page] : NULL;
    else if (c->page[i].form == PAGE_SEALED && !c->page[i].tok)
        page = c->page[i].bytes;
    return page ? page : here;
}

/* Starts prefetching the group of pages after the one that begins with page i. A step calls
 * fetch_lines n_call times. */
INLINE void fetch_group(struct fetch *f, const struct attn_chunk *c, uint32_t i, uint32_t n_call)
{
    const struct page_geom *g = c->op->geom;
    const uint32_t step_pages = g->type_k == SAC_KV_Q8 ? STEP_PAGES : 1;
    for (uint32_t j = 0; j < FETCH_PAGES; j++)
        f->page[j] = page_ahead(c, i + FETCH_PAGES + j, c->page[i].bytes);
    f->at = f->due = 0;
    f->rate = (uint32_t)g->bytes * step_pages / (FETCH_PAGES * n_call) + 1;
}

/* Sets up the step that begins with page i of the chunk. */
INLINE void step_at(struct narrow_step *st, const struct attn_chunk *c, uint32_t i)
{
    const struct page_geom *g = c->op->geom;
    st->page[0] = &c->page[i];
    st->codes = page_has_codes(g, st->page[0]);
    st->n_page = 1;
    if (!st->codes) return;
    if (i + 1 < c->n_page && page_has_codes(g, &c->page[i + 1])) {
        st->page[1] = &c->page[i + 1];
        st->n_page = 2;
        return;
    }
    st->none = c->page[i];
    st->none.begin = st->none.end = 0;
    st->page[1] = &st->none;
}

/* Stores the results of the chunk. */
static void narrow_end(const struct attn_chunk *c, const struct narrow_mem *w)
{
    in_order(c->acc, (size_t)c->group * w->d);
    for (uint32_t h = 0; h < c->group; h++) {
        c->m[h] = w->m[h / HEADS * LANES + h % HEADS];
        c->l[h] = w->l[h / HEADS * LANES + h % HEADS];
    }
}
#endif
