/* attn_wide_tmpl.h: attention of many rows in products of 16-bit floats with f32 sums, one source
 * for AMX and AVX-512 (private).
 *
 * Included once by a file of one instruction set, which first defines
 *     TILE_Q (query rows of a tile), wide_panel_tok (head_dim)
 *     half_begin (), half_end (): called before and after the work on a tile
 *     half_block (x, n_col, add, f16): the products that x, a struct attn_half_block, describes, of
 *         16 or 32 columns; they replace C or are added to it
 *     half_from_q8_k (dst, g, page, tokens, f16): keys of a sealed q8 page [tokens.n, head_dim]
 *     half_from_q8_v (code, scale, f16): 32 values of it
 * Halves are f16 if `f16` says so, otherwise bf16. This file defines DEFINE_KERNEL, an entry of the
 * table of operations for CPUs with or without products of f16.
 *
 * Layouts (tiles: attn_half.h): S [query, key] = Q K^T, with rows of Q as A tiles and the panel's
 * K, transposed by pairs of channels, as B tiles; then the weights P in 16 bits as A tiles and V,
 * interleaved by pairs of tokens, as B tiles give O [query, channel]. Everything is stored in whole
 * consecutive tiles of 1 KiB, so no load crosses a cache line. V is interleaved by unpack
 * instructions, which leave the channels of each 32 in an order that `unpack_order` undoes when
 * results are written.
 *
 * Softmax. Weights are 2^(s - m), where m follows the true maximum: m is set to maximum - HEADROOM
 * when a row starts, and again only if a sum of weights reaches WEIGHT_LIMIT (then the accumulators
 * are rescaled and the weights computed again). No pass searches for the maximum, weights stay
 * below f16's largest number, and a weight of 2^-20 of the largest is still a normal f16. All of
 * this depends on the row alone. 2^x: degree 3 on the fraction, relative error 7.5e-5, a third of
 * what rounding the weight to f16 adds.
 *
 * Number formats. f16 and q8 pages use products of f16 where the CPU has them; bf16 pages, and all
 * pages on other CPUs, use products of bf16. Queries are scaled by a power of two to below 1, so
 * that no product of a query can overflow and few digits fall below f16's normal range.
 *
 * Centred keys (where keys are more precise than the tiles). Some channels of the keys hardly
 * change from token to token and are much larger than the rest, mostly because of biases. Rounding
 * them to bf16 would lose the differences on which the softmax depends: on qwen2.5 this was most of
 * the error of the whole model. Therefore k - c is rounded, where c is the page's first key, and q
 * c is added to the scores, with c in two parts that represent it exactly. c is 0 for a page whose
 * first key is not finite.
 *
 * Invalid numbers: a row that sees a NaN or an infinity gives NaN or infinity. A row that does not
 * see it must not be affected, but its weight 0 times infinity is NaN. In a panel with tokens that
 * some row does not see (own pages, windows), a value row that is not finite is therefore replaced
 * by zeros and its key by NaN: the masks then determine which rows get the NaN. */
#ifndef SAC_OPS_CPU_ATTN_WIDE_TMPL_H
#define SAC_OPS_CPU_ATTN_WIDE_TMPL_H

#include "ops/cpu/attn.h"
#include "ops/cpu/attn_half.h"
#include "ops/cpu/attn_vec.h"
#include "ops/cpu/math_avx512.h"
#include "ops/cpu/tiles.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

#define QUERY_BLOCK 32u /* queries computed at a time: two rows of tiles */
#define CENTRES     8u /* maximum pages of a panel: centres and their rounding errors fill a tile */
#define HEADROOM    6.0f /* the weight of a maximum that was just set is 2^6 ... */
#define WEIGHT_LIMIT                                                                               \
    0x1p15f /* ... and a lane's sum of weights must stay below this; f16 ends at 2^16 */
#define GATHER_AHEAD (2 * PAGE_TOK) /* prefetch distance in tokens */
#define ROWS_AHEAD   8u /* prefetch distance in rows of queries and results, which are far apart */

/* ---- Small pieces ---- */

/* The 16-bit formats of the K and V tiles, and whether the first key of a page is subtracted from
 * its keys. */
struct kinds {
    bool k_f16, v_f16, centred;
};

/* Mask of the tokens at .. at + 15 that lie in [lo, hi). */
INLINE __mmask16 visible_lanes(uint32_t at, uint32_t lo, uint32_t hi)
{
    const uint32_t below_hi = hi <= at ? 0 : hi - at >= 16 ? 0xffffu : (1u << (hi - at)) - 1;
    const uint32_t below_lo = lo <= at ? 0 : lo - at >= 16 ? 0xffffu : (1u << (lo - at)) - 1;
    return (__mmask16)(below_hi & ~below_lo);
}

/* Divides a query by a power of two, which it returns, so that all magnitudes are below 1, and
 * rounds it to 16 bits. A query that is not finite is not scaled. */
static float query_to_half(uint16_t *dst, const float *q, uint32_t d, bool f16)
{
    __m512i mag = _mm512_setzero_si512();
    for (uint32_t c = 0; c < d; c += 16)
        mag = _mm512_max_epu32(mag, _mm512_slli_epi32(_mm512_loadu_si512(q + c), 1));
    const uint32_t top = _mm512_reduce_max_epu32(mag) >> 24; /* exponent field of the largest */
    const int32_t e = top == 255 || top == 0 ? 0 : (int32_t)top - 126;
    const __m512 down = _mm512_set1_ps((float)-e);
    for (uint32_t c = 0; c < d; c += 32)
        _mm512_storeu_si512(
            dst + c, attn_half_from_f32(_mm512_scalef_ps(_mm512_loadu_ps(q + c), down),
                                        _mm512_scalef_ps(_mm512_loadu_ps(q + c + 16), down), f16));
    return ldexpf(1.0f, e);
}

/* Stores two neighbouring result tiles with their channels in ascending order. */
INLINE void unpack_order(float *out, __m512 even, __m512 odd, __m512 factor)
{
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_storeu_ps(out, _mm512_mul_ps(factor, _mm512_permutex2var_ps(even, first, odd)));
    _mm512_storeu_ps(out + 16, _mm512_mul_ps(factor, _mm512_permutex2var_ps(even, second, odd)));
}

/* ---- Pages to halves ---- */

static bool page_is_q8(const struct page_geom *g, const struct attn_page *page)
{
    return page->form == PAGE_SEALED && g->type_k == SAC_KV_Q8;
}

/* Copies n 16-bit numbers of a page, converted to bf16 if necessary. f16 tiles are never used for
 * bf16 pages. */
static void copy_halves(uint16_t *dst, const uint8_t *src, size_t n, bool to_bf16)
{
    for (size_t i = 0; i < n; i += 32) {
        const __m512i x = _mm512_loadu_si512(src + 2 * i);
        _mm512_storeu_si512(dst + i, to_bf16 ? attn_bf16_from_f16(x) : x);
    }
}

/* Gathers the keys of a gathered page, with zeros in slots that are not visible, and prefetches
 * further ones. */
static void gather_keys(uint16_t *dst, const struct page_geom *g, const struct attn_page *page,
                        bool f16)
{
    const size_t d = g->head_dim;
    memset(dst, 0, page->begin * d * 2);
    for (uint32_t i = page->begin, n; i < page->end; i += n) {
        n = attn_neighbours(page, i);
        for (uint32_t j = i; j < i + n; j++) attn_fetch_key(g, page, j + GATHER_AHEAD);
        const struct attn_tokens tok = {page->tok[i] % PAGE_TOK, n};
        const uint8_t *from = attn_page_of(g, page, i);
        if (g->type_k == SAC_KV_Q8)
            half_from_q8_k(dst + i * d, g, from, tok, f16);
        else
            copy_halves(dst + i * d, from + g->k + 2 * d * tok.first, n * d,
                        !f16 && g->type_k != SAC_KV_BF16);
    }
    memset(dst + page->end * d, 0, (PAGE_TOK - page->end) * d * 2);
}

/* Keys of a page as 16-bit floats [PAGE_TOK, d]: in place if the page has this format, otherwise in
 * `buf`. */
static const uint16_t *page_keys(uint16_t *buf, const struct page_geom *g,
                                 const struct attn_page *page, bool f16)
{
    if (page->tok) {
        gather_keys(buf, g, page, f16);
        return buf;
    }
    if (page_is_q8(g, page)) {
        half_from_q8_k(buf, g, page->bytes, (struct attn_tokens){0, PAGE_TOK}, f16);
        return buf;
    }
    const uint8_t *src = page->bytes + (page->form == PAGE_TAIL ? 0 : g->k);
    if (f16 == (g->type_k != SAC_KV_BF16)) return (const uint16_t *)(const void *)src;
    copy_halves(buf, src, (size_t)PAGE_TOK * g->head_dim, true);
    return buf;
}

/* Where the values of a page are, and their format. */
struct value_source {
    const uint8_t *v, *scale; /* scale: q8 only, else NULL */
    uint32_t begin, end, d;   /* tokens outside [begin, end) give zeros */
    bool to_bf16;             /* f16 in the page, bf16 in the tile */
};

static struct value_source page_values(const struct page_geom *g, const struct attn_page *page,
                                       bool f16)
{
    const bool q8 = page_is_q8(g, page);
    return (struct value_source){
        .v = page->bytes + (page->form == PAGE_TAIL ? g->tail_v : g->v),
        .scale = q8 ? page->bytes + g->v_scale : NULL,
        .begin = page->begin,
        .end = page->end,
        .d = g->head_dim,
        .to_bf16 = !f16 && g->type_v != SAC_KV_BF16,
    };
}

/* Loads channels c .. c + 31 of token t. */
INLINE __m512i load_values(const struct value_source *s, size_t t, uint32_t c, bool q8,
                           bool to_bf16)
{
    if (q8) {
        uint16_t scale;
        memcpy(&scale, s->scale + 2 * (t * (s->d / PAGE_VBLOCK) + c / PAGE_VBLOCK), 2);
        return half_from_q8_v(s->v + t * s->d + c, scale, !to_bf16);
    }
    const __m512i x = _mm512_loadu_si512(s->v + 2 * (t * s->d + c));
    return to_bf16 ? attn_bf16_from_f16(x) : x;
}

/* Packs values as B tiles: two tiles per 32 channels, with pairs of tokens interleaved. */
INLINE void pack_values_as(uint8_t *dst, const struct value_source *s, bool q8, bool to_bf16)
{
    for (uint32_t t = 0; t < PAGE_TOK; t += 2) {
        for (uint32_t c = 0; c < s->d; c += 32) {
            __m512i a = load_values(s, t, c, q8, to_bf16);
            __m512i b = load_values(s, t + 1, c, q8, to_bf16);
            if (t < s->begin || t >= s->end) a = _mm512_setzero_si512();
            if (t + 1 < s->begin || t + 1 >= s->end) b = _mm512_setzero_si512();
            uint8_t *tile = dst + (size_t)(c / 16) * TILE_BYTES + t / 2 * 64;
            _mm512_store_si512(tile, _mm512_unpacklo_epi16(a, b));
            _mm512_store_si512(tile + TILE_BYTES, _mm512_unpackhi_epi16(a, b));
        }
    }
}

/* Gathers the values of a gathered page in the tile's format, with zeros in slots that are not
 * visible. */
static void gather_values(uint16_t *dst, const struct page_geom *g, const struct attn_page *page,
                          bool f16)
{
    const size_t d = g->head_dim;
    memset(dst, 0, page->begin * d * 2);
    for (uint32_t i = page->begin; i < page->end; i++) {
        struct attn_page whole = {.form = PAGE_SEALED};
        attn_fetch_value(g, page, i + GATHER_AHEAD);
        whole.bytes = attn_page_of(g, page, i);
        const struct value_source s = page_values(g, &whole, f16);
        for (uint32_t c = 0; c < d; c += 32)
            _mm512_storeu_si512(dst + i * d + c, load_values(&s, page->tok[i] % PAGE_TOK, c,
                                                             s.scale != NULL, s.to_bf16));
    }
    memset(dst + page->end * d, 0, (PAGE_TOK - page->end) * d * 2);
}
/* Packs the values of a page as B tiles. `buf` [PAGE_TOK, d] is scratch for gathered pages. */
static void pack_values(uint8_t *dst, uint16_t *buf, const struct page_geom *g,
                        const struct attn_page *page, bool f16)
{
    struct value_source s = page_values(g, page, f16);
    if (page->tok) {
        gather_values(buf, g, page, f16);
        s.v = (const uint8_t *)buf;
        s.scale = NULL;
        s.to_bf16 = false;
    }
    if (s.scale && s.to_bf16)
        pack_values_as(dst, &s, true, true);
    else if (s.scale)
        pack_values_as(dst, &s, true, false);
    else if (s.to_bf16)
        pack_values_as(dst, &s, false, true);
    else
        pack_values_as(dst, &s, false, false);
}
/* ---- Tiles of rows and their panels ---- */

/* Layout of a worker's memory while it computes a tile. */
struct wide_mem {
    uint32_t d, panel_tok, s_stride; /* s_stride in floats, not a power of two */
    uint8_t *q;                      /* [n_q/16, d/32] A tiles */
    uint8_t *k;                      /* [panel_tok/16, d/32] B tiles */
    uint8_t *c;  /* [d/32] B tiles: centres of the pages, then the rounding errors of these */
    uint8_t *v;  /* [panel_tok/32, d/16] B tiles */
    uint8_t *p;  /* [2, panel_tok/32] A tiles: weights of a block of queries */
    float *s;    /* [QUERY_BLOCK, s_stride] scores; from column panel_tok on those of the centres */
    float *unit; /* [n_q] factor from raw scores to scores in log 2 */
    float *o, *m, *l; /* current stretch: struct stretch */
    float *logw;      /* [panel_tok] gathered panel: log weights, in log 2; -inf for padding */
    uint16_t *keys, *values; /* [PAGE_TOK, d] one page before it is packed into k, v */
    uint8_t *stretch[2]; /* stretch[n_fold > 0] is the current one; after a fold, stretch[0] is the
                            sum of all completed ones */
    size_t stretch_bytes, bytes;
};

/* Softmax state of the keys of a stretch. */
struct stretch {
    float *o; /* [n_q/16, d/16] C tiles */
    float *m; /* [n_q] */
    float *l; /* [n_q, 16] softmax denominators, one partial sum per lane */
    size_t bytes;
};

static struct stretch stretch_layout(uint8_t *base, uint32_t d, uint32_t n_q)
{
    struct stretch s;
    size_t at = 0;
    s.o = align_take(base, &at, (size_t)n_q * d * 4);
    s.m = align_take(base, &at, (size_t)n_q * 4);
    s.l = align_take(base, &at, (size_t)n_q * 64);
    s.bytes = at;
    return s;
}

static struct wide_mem wide_layout(uint8_t *base, uint32_t d, uint32_t n_q)
{
    struct wide_mem w = {.d = d, .panel_tok = wide_panel_tok(d)};
    size_t at = 0;
    w.s_stride = w.panel_tok + 2 * CENTRES;
    w.q = align_take(base, &at, (size_t)n_q * d * 2);
    w.k = align_take(base, &at, (size_t)w.panel_tok * d * 2);
    w.c = align_take(base, &at, 16 * (size_t)d * 2);
    w.v = align_take(base, &at, (size_t)w.panel_tok * d * 2);
    w.p = align_take(base, &at, QUERY_BLOCK * (size_t)w.panel_tok * 2);
    w.s = align_take(base, &at, QUERY_BLOCK * (size_t)w.s_stride * 4);
    w.unit = align_take(base, &at, (size_t)n_q * 4);
    w.logw = align_take(base, &at, (size_t)w.panel_tok * 4);
    w.keys = align_take(base, &at, (size_t)PAGE_TOK * d * 2);
    w.values = align_take(base, &at, (size_t)PAGE_TOK * d * 2);
    w.stretch_bytes = stretch_layout(NULL, d, n_q).bytes;
    for (int i = 0; i < 2; i++) w.stretch[i] = align_take(base, &at, w.stretch_bytes);
    w.bytes = at;
    return w;
}

static size_t wide_bytes(const struct page_geom *g, uint32_t n_q)
{
    return wide_layout(NULL, g->head_dim, n_q).bytes;
}

static struct wide_mem wide_mem_of(const struct attn_tile *t)
{
    const uint32_t d = t->op->geom->head_dim, n_q = attn_tile_queries(t);
    struct wide_mem w = wide_layout(t->mem, d, n_q);
    const struct stretch s = stretch_layout(w.stretch[t->n_fold > 0], d, n_q);
    w.o = s.o;
    w.m = s.m;
    w.l = s.l;
    return w;
}

static size_t wide_sums(const struct page_geom *g, uint32_t n_q)
{
    return stretch_layout(NULL, g->head_dim, n_q).bytes;
}

static void wide_save(struct attn_tile *t, void *to)
{
    const struct wide_mem w = wide_mem_of(t);
    memcpy(to, w.stretch[t->n_fold > 0], w.stretch_bytes);
    half_end();
}

static void wide_load(struct attn_tile *t, const void *from)
{
    const struct wide_mem w = wide_mem_of(t);
    memcpy(w.stretch[t->n_fold > 0], from, w.stretch_bytes);
}

static void clear_sums(const struct wide_mem *w, uint32_t n_q)
{
    memset(w->o, 0, (size_t)n_q * w->d * 4);
    memset(w->l, 0, (size_t)n_q * 64);
    for (uint32_t q = 0; q < n_q; q++) w->m[q] = -INFINITY;
}

static void wide_begin(struct attn_tile *t)
{
    const struct wide_mem w = wide_mem_of(t);
    const uint32_t n_q = attn_tile_queries(t);
    memset(w.q, 0, (size_t)n_q * w.d * 2);
    clear_sums(&w, n_q);
    half_begin();
}

/* all = old * all + new * add, lane by lane. */
INLINE void fold_lanes(float *all, const float *add, __m512 old, __m512 new)
{
    const __m512 sum = _mm512_mul_ps(_mm512_load_ps(all), old);
    _mm512_store_ps(all, _mm512_fmadd_ps(_mm512_load_ps(add), new, sum));
}

/* Merges 16 queries, from q on, of a stretch into the completed ones. A query without visible keys
 * in the stretch keeps its bits. */
static void fold_queries(const struct stretch *all, const struct stretch *add, uint32_t q,
                         uint32_t d)
{
    const __m512 before = _mm512_load_ps(all->m + q), here = _mm512_load_ps(add->m + q);
    const __m512 m = _mm512_max_ps(before, here);
    const __m512 base = _mm512_max_ps(m, _mm512_set1_ps(-3e38f)); /* no visible keys yet */
    _Alignas(64) float old[16], new[16];
    _mm512_store_ps(old, math_exp2_quintic(_mm512_sub_ps(before, base)));
    _mm512_store_ps(new, math_exp2_quintic(_mm512_sub_ps(here, base)));
    _mm512_store_ps(all->m + q, m);
    for (uint32_t i = 0; i < 16; i++) {
        const __m512 a = _mm512_set1_ps(old[i]), b = _mm512_set1_ps(new[i]);
        const size_t l = (size_t)(q + i) * 16, o = (size_t)(q / 16) * d * 16 + i * 16;
        const __m512 seen = _mm512_load_ps(add->l + l); /* true for NaN */
        if (!_mm512_cmp_ps_mask(seen, _mm512_setzero_ps(), _CMP_NEQ_UQ)) continue;
        fold_lanes(all->l + l, add->l + l, a, b);
        for (uint32_t c = 0; c < d / 16; c++)
            fold_lanes(all->o + o + c * (size_t)256, add->o + o + c * (size_t)256, a, b);
    }
}

static void wide_fold(struct attn_tile *t)
{
    const uint32_t d = t->op->geom->head_dim, n_q = attn_tile_queries(t);
    const bool is_first = t->n_fold++ == 0;
    const struct wide_mem w = wide_mem_of(t);
    const struct stretch all = stretch_layout(w.stretch[0], d, n_q);
    const struct stretch add = stretch_layout(w.stretch[1], d, n_q);
    for (uint32_t q = 0; q < n_q && !is_first; q += 16) fold_queries(&all, &add, q, d);
    clear_sums(&w, n_q);
}

INLINE void wide_query(struct attn_tile *t, struct kinds kinds)
{
    const struct wide_mem w = wide_mem_of(t);
    const struct op_attn *op = t->op;
    const uint32_t d = w.d;
    uint16_t half[HEAD_DIM_MAX];
    for (uint32_t q = 0; q < t->n_row * t->group; q++) {
        const uint32_t row = q / t->group;
        const float *src = t->q + row * t->q_stride + (size_t)(q % t->group) * d;
        if (row + ROWS_AHEAD < t->n_row)
            attn_fetch_bytes((const uint8_t *)(src + ROWS_AHEAD * t->q_stride), 4 * (size_t)d);
        w.unit[q] = query_to_half(half, src, d, kinds.k_f16) * op->scale;
        if (op->softcap <= 0) w.unit[q] *= (float)M_LOG2E;
        uint8_t *tile = w.q + (size_t)(q / 16) * (d / 32) * TILE_BYTES + q % 16 * 64;
        for (uint32_t c = 0; c < d / 32; c++)
            memcpy(tile + c * (size_t)TILE_BYTES, half + c * 32, 64);
    }
}

/* Replaces value rows that are not finite by zeros and their keys by NaN: see the top of the file.
 * Returns the keys: w->keys if any were replaced. */
static const uint16_t *quarantine(const struct wide_mem *w, const uint16_t *keys, uint8_t *values,
                                  bool v_f16)
{
    const __m512i exponent = _mm512_set1_epi16(v_f16 ? 0x7c00 : 0x7f80);
    for (uint32_t pair = 0; pair < PAGE_TOK / 2; pair++) {
        __mmask32 bad = 0;
        uint8_t *at = values + pair * 64;
        for (uint32_t c = 0; c < w->d / 16; c++) {
            const __m512i x = _mm512_load_si512(at + c * (size_t)TILE_BYTES);
            bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        }
        for (uint32_t odd = 0; odd < 2; odd++) {
            const __mmask32 lanes = 0x55555555u << odd;
            if (!(bad & lanes)) continue;
            for (uint32_t c = 0; c < w->d / 16; c++)
                _mm512_mask_storeu_epi16(at + c * (size_t)TILE_BYTES, lanes,
                                         _mm512_setzero_si512());
            if (keys != w->keys) memcpy(w->keys, keys, (size_t)PAGE_TOK * w->d * 2);
            keys = w->keys;
            /* 0x7fff is a NaN in f16 and in bf16 */
            for (uint32_t c = 0; c < w->d; c++) w->keys[(2 * pair + odd) * w->d + c] = 0x7fff;
        }
    }
    return keys;
}

/* Stores 32 channels of a page's centre, from x on, in column `slot` of the centres' tiles; then
 * their rounding errors in bf16. */
INLINE void store_centre(const struct wide_mem *w, uint32_t slot, uint32_t x, __m512 lo, __m512 hi)
{
    uint32_t *column = (uint32_t *)(void *)(w->c + x / 32 * (size_t)TILE_BYTES) + slot;
    for (uint32_t part = 0; part < 2; part++, column += CENTRES) {
        const __m512i half = attn_half_from_f32(lo, hi, false);
        uint32_t pair[16];
        _mm512_storeu_si512(pair, half);
        for (uint32_t i = 0; i < 16; i++) column[i * 16] = pair[i];
        lo = _mm512_sub_ps(lo, attn_f32_from_bf16(half, 0));
        hi = _mm512_sub_ps(hi, attn_f32_from_bf16(half, 1));
    }
}

/* Subtracts key `first` from f16 keys [PAGE_TOK, d] and rounds to bf16. The result, w->keys, may be
 * the same array. */
static void centre_keys(const struct wide_mem *w, uint32_t slot, const uint16_t *keys,
                        uint32_t first)
{
    const uint32_t d = w->d;
    const __m512i exponent = _mm512_set1_epi16(0x7c00);
    bool finite = true;
    for (uint32_t x = 0; x < d; x += 32) {
        const __m512i h = _mm512_loadu_si512(keys + (size_t)first * d + x);
        finite &= !_mm512_cmpeq_epi16_mask(_mm512_and_si512(h, exponent), exponent);
    }
    for (uint32_t x = 0; x < d; x += 32) {
        __m512 lo = _mm512_setzero_ps(), hi = lo;
        if (finite) {
            const __m512i h = _mm512_loadu_si512(keys + (size_t)first * d + x);
            lo = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
            hi = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
        }
        store_centre(w, slot, x, lo, hi);
        for (uint32_t t = 0; t < PAGE_TOK; t++) {
            const __m512i h = _mm512_loadu_si512(keys + (size_t)t * d + x);
            const __m512 k0 = _mm512_cvtph_ps(_mm512_castsi512_si256(h));
            const __m512 k1 = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(h, 1));
            _mm512_storeu_si512(
                w->keys + (size_t)t * d + x,
                attn_half_from_f32(_mm512_sub_ps(k0, lo), _mm512_sub_ps(k1, hi), false));
        }
    }
}

INLINE void wide_page(struct attn_tile *t, uint32_t slot, const struct attn_page *page,
                      struct kinds kinds)
{
    const struct wide_mem w = wide_mem_of(t);
    const struct page_geom *g = t->op->geom;
    const uint32_t d = w.d;
    uint8_t *values = w.v + (size_t)slot * (d / 16) * TILE_BYTES;
    const uint16_t *keys = page_keys(w.keys, g, page, kinds.k_f16 || kinds.centred);
    if (kinds.centred) {
        centre_keys(&w, slot, keys, page->tok ? page->begin : 0);
        keys = w.keys;
    }
    pack_values(values, w.values, g, page, kinds.v_f16);
    if (page->tok) attn_logw(w.logw + (size_t)slot * PAGE_TOK, page);
    if (attn_is_guarded(t->op, page)) keys = quarantine(&w, keys, values, kinds.v_f16);
    uint8_t *tile = w.k + (size_t)slot * 2 * (d / 32) * TILE_BYTES;
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t c = 0; c < d; c += 32, tile += TILE_BYTES)
            attn_transpose(tile, (const uint8_t *)(keys + half * 16 * d + c), 2 * (size_t)d);
}

/* Scores of 32 queries with the centres of the panel. */
INLINE void block_centres(const struct wide_mem *w, uint32_t q, uint32_t d)
{
    const size_t row = (size_t)(d / 32) * TILE_BYTES, stride = w->s_stride * sizeof(float);
    const struct attn_half_block x = {.a = w->q + q / 16 * row,
                                      .a_row = row,
                                      .b = w->c,
                                      .b_tile = TILE_BYTES,
                                      .n_tile = d / 32,
                                      .c = (uint8_t *)(w->s + w->panel_tok),
                                      .c_stride = stride,
                                      .c_row = 16 * stride};
    half_block(&x, 16, false, false);
}

/* Raw scores of 32 queries. */
INLINE void block_scores(const struct wide_mem *w, uint32_t q, const struct attn_panel *p,
                         uint32_t d, bool f16)
{
    const size_t row = (size_t)(d / 32) * TILE_BYTES, stride = w->s_stride * sizeof(float);
    for (uint32_t key = p->begin; key < p->end; key += 32) {
        const struct attn_half_block x = {.a = w->q + q / 16 * row,
                                          .a_row = row,
                                          .b = w->k + key / 16 * row,
                                          .b_tile = TILE_BYTES,
                                          .b_next = row,
                                          .n_tile = d / 32,
                                          .c = (uint8_t *)(w->s + key),
                                          .c_stride = stride,
                                          .c_row = 16 * stride,
                                          .c_next = 64};
        half_block(&x, 32, false, f16);
    }
}

/* O += P V for 32 queries. */
INLINE void block_values(const struct wide_mem *w, uint32_t q, const struct attn_panel *p,
                         uint32_t d, bool f16)
{
    const size_t row = (size_t)(d / 16) * TILE_BYTES;
    const uint32_t first = p->begin / 32;
    for (uint32_t c = 0; c < d / 16; c += 2) {
        const struct attn_half_block x = {.a = w->p + first * (size_t)TILE_BYTES,
                                          .a_row = w->panel_tok / 32 * (size_t)TILE_BYTES,
                                          .b = w->v + first * row + c * (size_t)TILE_BYTES,
                                          .b_tile = row,
                                          .b_next = TILE_BYTES,
                                          .n_tile = p->end / 32 - first,
                                          .c = (uint8_t *)w->o + q / 16 * row +
                                               c * (size_t)TILE_BYTES,
                                          .c_stride = 64,
                                          .c_row = row,
                                          .c_next = TILE_BYTES};
        half_block(&x, 32, true, f16);
    }
}

/* Arguments of the softmax of one row. */
struct score_row {
    float *s;            /* [panel_tok] raw scores */
    uint8_t *p;          /* its row in the first A tile of weights */
    uint32_t begin, end; /* multiples of 32 */
    uint32_t lo, hi;     /* visible tokens, when masked */
    float unit;
    const float *centre; /* [CENTRES] added to the scores of each page */
    const float *logw;   /* [panel_tok] added to scores times unit, or NULL */
};

/* Which tokens of a panel a row sees: all, a range, or those with a finite log weight. */
enum visibility { SEE_ALL, SEE_MASKED, SEE_GATHERED };

/* Writes the weights 2^(s * unit - m); returns their sums by lane. */
INLINE __m512 row_weights(const struct score_row *r, float m, enum visibility visibility,
                          struct kinds kinds)
{
    const __m512 unit = _mm512_set1_ps(r->unit);
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 m_vec = _mm512_set1_ps(m == -INFINITY ? 0 : m);
    __m512 sum0 = _mm512_setzero_ps(), sum1 = sum0;
    _Alignas(32) float page_m[CENTRES];
    if (kinds.centred)
        _mm256_store_ps(page_m,
                        _mm256_fnmadd_ps(_mm512_castps512_ps256(unit), _mm256_loadu_ps(r->centre),
                                         _mm512_castps512_ps256(m_vec)));
    for (uint32_t k = r->begin; k < r->end; k += 32) {
        if (kinds.centred) m_vec = _mm512_set1_ps(page_m[k / PAGE_TOK]);
        __m512 y0 = _mm512_fmsub_ps(_mm512_loadu_ps(r->s + k), unit, m_vec);
        __m512 y1 = _mm512_fmsub_ps(_mm512_loadu_ps(r->s + k + 16), unit, m_vec);
        if (visibility == SEE_GATHERED) {
            y0 = _mm512_add_ps(y0, _mm512_loadu_ps(r->logw + k));
            y1 = _mm512_add_ps(y1, _mm512_loadu_ps(r->logw + k + 16));
        }
        if (visibility == SEE_MASKED && (k < r->lo || k + 32 > r->hi)) {
            y0 = _mm512_mask_blend_ps(visible_lanes(k, r->lo, r->hi), none, y0);
            y1 = _mm512_mask_blend_ps(visible_lanes(k + 16, r->lo, r->hi), none, y1);
        }
        const __m512 w0 = math_exp2_cubic(y0), w1 = math_exp2_cubic(y1);
        sum0 = _mm512_add_ps(sum0, w0);
        sum1 = _mm512_add_ps(sum1, w1);
        _mm512_store_si512(r->p + k / 32 * (size_t)TILE_BYTES,
                           attn_half_from_f32(w0, w1, kinds.v_f16));
    }
    return _mm512_add_ps(sum0, sum1);
}

static float row_max(const struct score_row *r)
{
    const __m512 none = _mm512_set1_ps(-INFINITY);
    __m512 max = none;
    for (uint32_t k = r->begin; k < r->end; k += 16) {
        const __mmask16 seen = visible_lanes(k, r->lo, r->hi);
        __m512 y =
            _mm512_add_ps(_mm512_loadu_ps(r->s + k), _mm512_set1_ps(r->centre[k / PAGE_TOK]));
        if (r->logw)
            y = _mm512_fmadd_ps(_mm512_loadu_ps(r->logw + k), _mm512_set1_ps(1 / r->unit), y);
        max = _mm512_max_ps(max, _mm512_mask_mov_ps(none, seen, y));
    }
    return _mm512_reduce_max_ps(max);
}

/* Sets m of query q from the true maximum and rescales its sums. */
static void raise_max(const struct wide_mem *w, uint32_t q, const struct score_row *r)
{
    const float max = row_max(r);
    if (max == -INFINITY) return; /* no visible keys yet */
    const float m = max * r->unit - HEADROOM, before = w->m[q];
    w->m[q] = m;
    if (before == -INFINITY) return; /* nothing summed yet */
    const __m512 factor = _mm512_set1_ps(exp2f(before - m));
    float *o = w->o + (size_t)(q / 16) * w->d * 16 + q % 16 * 16;
    for (uint32_t c = 0; c < w->d / 16; c++, o += 256)
        _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), factor));
    float *l = w->l + (size_t)q * 16;
    _mm512_store_ps(l, _mm512_mul_ps(_mm512_load_ps(l), factor));
}

/* Zeroes the weights of a row. */
static void clear_weights(const struct score_row *r)
{
    for (uint32_t k = r->begin; k < r->end; k += 32)
        _mm512_store_si512(r->p + k / 32 * (size_t)TILE_BYTES, _mm512_setzero_si512());
}

static const float no_centre[CENTRES];

static void cap_row(struct score_row *r, float cap)
{
    const __m512 unit = _mm512_set1_ps(r->unit);
    for (uint32_t k = r->begin; k < r->end; k += 16) {
        const __m512 y =
            _mm512_add_ps(_mm512_loadu_ps(r->s + k), _mm512_set1_ps(r->centre[k / PAGE_TOK]));
        _mm512_storeu_ps(r->s + k, attn_softcap(_mm512_mul_ps(y, unit), cap));
    }
    r->unit = (float)M_LOG2E;
    r->centre = no_centre;
}

/* Replaces the block's scores by weights. Returns how many of its queries skip the panel. */
INLINE uint32_t block_softmax(struct attn_tile *t, const struct wide_mem *w,
                              const struct attn_panel *p, struct attn_block b,
                              enum visibility visibility, struct kinds kinds)
{
    uint32_t n_out = 0;
    const uint32_t fetch = attn_fetch_share(t, t->n_row * t->group);
    for (uint32_t i = 0; i < b.n; i++) {
        const uint32_t q = b.q + i;
        struct score_row r = {
            .s = w->s + i * (size_t)w->s_stride,
            .p = w->p + (size_t)(i / 16 * (w->panel_tok / 32)) * TILE_BYTES + i % 16 * 64,
            .begin = p->begin,
            .end = p->end,
            .hi = p->end,
            .unit = w->unit[q],
            .centre = no_centre,
            .logw = visibility == SEE_GATHERED ? w->logw : NULL,
        };
        if (i < b.first || i >= b.end) {
            clear_weights(&r);
            continue;
        }
        if (kinds.centred) {
            float *c = r.s + w->panel_tok;
            _mm256_storeu_ps(c, _mm256_add_ps(_mm256_loadu_ps(c), _mm256_loadu_ps(c + CENTRES)));
            r.centre = c;
        }
        if (visibility == SEE_MASKED) attn_visible(t->op, p, t->pos[q / t->group], &r.lo, &r.hi);
        if (t->op->softcap > 0) cap_row(&r, t->op->softcap);
        if (w->m[q] == -INFINITY) raise_max(w, q, &r);
        __m512 sum = row_weights(&r, w->m[q], visibility, kinds);
        if (_mm512_cmp_ps_mask(sum, _mm512_set1_ps(WEIGHT_LIMIT), _CMP_GE_OQ)) {
            raise_max(w, q, &r);
            sum = row_weights(&r, w->m[q], visibility, kinds);
        }
        float *l = w->l + (size_t)q * 16;
        attn_fetch(&t->ahead, fetch);
        if (visibility != SEE_MASKED && p->skip > 0 &&
            _mm512_reduce_add_ps(sum) < p->skip * _mm512_reduce_add_ps(_mm512_load_ps(l))) {
            clear_weights(&r);
            n_out++;
            continue;
        }
        _mm512_store_ps(l, _mm512_add_ps(_mm512_load_ps(l), sum));
    }
    return n_out;
}

INLINE void wide_panel_d(struct attn_tile *t, const struct attn_panel *p, uint32_t d,
                         struct kinds kinds)
{
    const struct wide_mem w = wide_mem_of(t);
    const uint32_t q0 = p->row0 * t->group / QUERY_BLOCK * QUERY_BLOCK;
    for (uint32_t q = q0; q < p->row1 * t->group; q += QUERY_BLOCK) {
        const struct attn_block b = attn_block_of(t, p, q, QUERY_BLOCK);
        if (kinds.centred) block_centres(&w, q, d);
        block_scores(&w, q, p, d, kinds.k_f16);
        const uint32_t n_out = p->gathered ? block_softmax(t, &w, p, b, SEE_GATHERED, kinds)
                               : p->masked ? block_softmax(t, &w, p, b, SEE_MASKED, kinds)
                                           : block_softmax(t, &w, p, b, SEE_ALL, kinds);
        t->n_skip += (uint64_t)n_out * (p->end - p->begin);
        if (n_out < b.end - b.first) block_values(&w, q, p, d, kinds.v_f16);
    }
}

static void wide_end(struct attn_tile *t)
{
    if (t->n_fold > 0) wide_fold(t);
    const uint32_t d = t->op->geom->head_dim;
    const struct wide_mem mem = wide_mem_of(t);
    const struct stretch w = stretch_layout(mem.stretch[0], d, attn_tile_queries(t));
    const struct op_attn *op = t->op;
    for (uint32_t q = 0; q < t->n_row * t->group; q++) {
        const uint32_t row = q / t->group, head = t->head0 + q % t->group;
        const float l = _mm512_reduce_add_ps(_mm512_load_ps(w.l + (size_t)q * 16));
        const __m512 inv = _mm512_set1_ps(1.0f / l);
        float *out = op->out + (t->row0 + row) * op->out_stride + (size_t)head * d;
        if (row + ROWS_AHEAD < t->n_row)
            attn_fetch_bytes((const uint8_t *)(out + ROWS_AHEAD * op->out_stride), 4 * (size_t)d);
        const float *o = w.o + (size_t)(q / 16) * d * 16 + q % 16 * 16;
        for (uint32_t c = 0; c < d; c += 32, o += 512)
            unpack_order(out + c, _mm512_load_ps(o), _mm512_load_ps(o + 256), inv);
        if (op->lse)
            op->lse[(size_t)(t->row0 + row) * op->n_head + head] =
                (w.m[q] + log2f(l)) * (float)M_LN2;
    }
    half_end();
}

/* ---- The kernels ---- */

static struct kinds kinds_of(const struct page_geom *g, bool fp16)
{
    const bool k_f16 = fp16 && g->type_k != SAC_KV_BF16;
    return (struct kinds){.k_f16 = k_f16,
                          .v_f16 = fp16 && g->type_v != SAC_KV_BF16,
                          .centred = !k_f16 && g->type_k != SAC_KV_BF16};
}

/* Instantiates the hot loops for the usual formats and head sizes as constants, and once for all
 * others. */
#define DISPATCH(fn, geom, fp16, ...)                                                              \
    do {                                                                                           \
        const struct kinds usual_ = {.k_f16 = (fp16), .v_f16 = (fp16), .centred = !(fp16)};        \
        const bool is_usual_ = (geom)->type_k != SAC_KV_BF16 && (geom)->type_v != SAC_KV_BF16;     \
        if (is_usual_ && (geom)->head_dim == 64)                                                   \
            fn(__VA_ARGS__, 64, usual_);                                                           \
        else if (is_usual_ && (geom)->head_dim == 128)                                             \
            fn(__VA_ARGS__, 128, usual_);                                                          \
        else                                                                                       \
            fn(__VA_ARGS__, (geom)->head_dim, kinds_of(geom, fp16));                               \
    } while (0)

#define DEFINE_KERNEL(name, fp16, narrow_kernel)                                                   \
    static void name##_wide_query(struct attn_tile *t)                                             \
    {                                                                                              \
        wide_query(t, kinds_of(t->op->geom, fp16));                                                \
    }                                                                                              \
    static void name##_wide_page(struct attn_tile *t, uint32_t slot, const struct attn_page *page) \
    {                                                                                              \
        wide_page(t, slot, page, kinds_of(t->op->geom, fp16));                                     \
    }                                                                                              \
    static void name##_wide_panel(struct attn_tile *t, const struct attn_panel *p)                 \
    {                                                                                              \
        DISPATCH(wide_panel_d, t->op->geom, fp16, t, p);                                           \
    }                                                                                              \
    static const struct attn_kernel name##_kernel = {                                              \
        .tile_q = TILE_Q,                                                                          \
        .panel_tok = wide_panel_tok,                                                               \
        .wide_bytes = wide_bytes,                                                                  \
        .wide_begin = wide_begin,                                                                  \
        .wide_query = name##_wide_query,                                                           \
        .wide_page = name##_wide_page,                                                             \
        .wide_panel = name##_wide_panel,                                                           \
        .wide_fold = wide_fold,                                                                    \
        .wide_sums = wide_sums,                                                                    \
        .wide_save = wide_save,                                                                    \
        .wide_load = wide_load,                                                                    \
        .wide_end = wide_end,                                                                      \
        .narrow_bytes = narrow_kernel##_bytes,                                                     \
        .narrow = narrow_kernel,                                                                   \
    };                                                                                             \
    static void name##_attn(struct workers *pool, const struct op_attn *op)                        \
    {                                                                                              \
        attn_execute(pool, op, &name##_kernel);                                                    \
    }

#endif
