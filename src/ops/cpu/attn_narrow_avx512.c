/* attn_narrow_avx512.c: decode attention in vectors of bf16 and of bytes: one row of a sequence
 * against its pages. The parts that do not depend on the products are in attn_narrow_tmpl.h.
 *
 * Every product has one element of the head's row (a query or a weight) broadcast to all lanes,
 * times a vector that the heads of a block share: keys transposed so that lanes are tokens, or
 * values, whose lanes are channels. Sums stay in registers, which is why the kernels are
 * instantiated for each number of heads.
 *
 * HALVES: queries are rounded to bf16, like those of prompt rows. f16 keys are converted by way of
 * f32. Values are read in place, f16 converted to bf16 on the fly; a page that contains infinities,
 * NaN or invisible tokens is first repaired in a copy. */
#define FETCH_TO 3 /* L1: prefetching to L2 alone takes up to a sixth longer on Zen 4 */

#include "ops/cpu/attn_avx512.h"

#define gather_q8_keys attn_avx512_gather_keys
#include "ops/cpu/attn_narrow_tmpl.h"

size_t attn_narrow_avx512_bytes(const struct page_geom *g, uint32_t group)
{
    return narrow_layout(NULL, g->head_dim, group).bytes;
}

/* Calls fn (..., n) with n, the number of heads, as a compile-time constant. */
#define WITH_HEADS(n, fn, ...)                                                                     \
    switch (n) {                                                                                   \
    case 1: fn(__VA_ARGS__, 1); break;                                                             \
    case 2: fn(__VA_ARGS__, 2); break;                                                             \
    case 3: fn(__VA_ARGS__, 3); break;                                                             \
    case 4: fn(__VA_ARGS__, 4); break;                                                             \
    case 5: fn(__VA_ARGS__, 5); break;                                                             \
    case 6: fn(__VA_ARGS__, 6); break;                                                             \
    case 7: fn(__VA_ARGS__, 7); break;                                                             \
    default: fn(__VA_ARGS__, 8);                                                                   \
    }

#define UNROLL _Pragma("GCC unroll 8")

/* Broadcasts the dword at p. */
INLINE __m512i all_lanes(const uint8_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}

/* ---- Codes ---- */

/* Multiplies queries with the codes of the step's keys, in the layout that code_scores reads. */
INLINE void code_sums_of(const struct narrow_mem *w, uint32_t n_head)
{
    const uint32_t n = w->d_code / CODE_BLOCK;
    for (uint32_t half = 0; half < 2 * STEP_PAGES; half++) {
        const uint8_t *k = w->keys + half * n * (size_t)TILE_BYTES;
        const uint8_t *q = w->w_tile + half / 2 * n * (size_t)TILE_BYTES;
        __m512i high[HEADS], low[HEADS];
        UNROLL for (uint32_t h = 0; h < n_head; h++) high[h] = low[h] = _mm512_setzero_si512();
        for (uint32_t i = 0; i < n; i++, q += TILE_BYTES - 64)
            for (uint32_t quad = 0; quad < LANES; quad++, k += 64, q += 4) {
                const __m512i code = _mm512_load_si512(k);
                UNROLL for (uint32_t h = 0; h < n_head; h++)
                {
                    high[h] = _mm512_dpbusd_epi32(high[h], code, all_lanes(q + h * 64));
                    low[h] = _mm512_dpbusd_epi32(low[h], code, all_lanes(q + (HEADS + h) * 64));
                }
            }
        float *s = w->s + half * LANES * LANES;
        UNROLL for (uint32_t h = 0; h < n_head; h++)
        {
            _mm512_store_si512(s + h * LANES, high[h]);
            _mm512_store_si512(s + (HEADS + h) * LANES, low[h]);
        }
    }
}

static void code_sums(const struct narrow_mem *w,
                      uint32_t n_head){WITH_HEADS(n_head, code_sums_of, w)}

/* Multiplies weights with the codes of the step's values, in the layout that merge_values reads. */
INLINE void code_value_sums_of(const struct narrow_mem *w, uint32_t n_head)
{
    for (uint32_t c = 0; c < w->d / LANES; c++) {
        const uint8_t *v = w->v + c * (size_t)TILE_BYTES;
        const uint8_t *p = w->p + c / 2 * (size_t)TILE_BYTES;
        __m512i high[HEADS], low[HEADS];
        UNROLL for (uint32_t h = 0; h < n_head; h++) high[h] = low[h] = _mm512_setzero_si512();
        for (uint32_t quad = 0; quad < LANES; quad++, v += 64, p += 4) {
            const __m512i code = _mm512_load_si512(v);
            UNROLL for (uint32_t h = 0; h < n_head; h++)
            {
                high[h] = _mm512_dpbusd_epi32(high[h], all_lanes(p + h * 64), code);
                low[h] = _mm512_dpbusd_epi32(low[h], all_lanes(p + (HEADS + h) * 64), code);
            }
        }
        float *x = w->x + c * LANES * LANES;
        UNROLL for (uint32_t h = 0; h < n_head; h++)
        {
            _mm512_store_si512(x + h * LANES, high[h]);
            _mm512_store_si512(x + (HEADS + h) * LANES, low[h]);
        }
    }
}

static void code_value_sums(const struct narrow_mem *w, uint32_t n_head)
{
    WITH_HEADS(n_head, code_value_sums_of, w)
}

/* ---- Keys of halves ---- */

/* The queries of a block in bf16 [HEADS, d]. */
static uint8_t *query_rows(const struct narrow_mem *w, uint32_t block)
{
    return w->q_tile + (size_t)block * (w->d / 32) * TILE_BYTES;
}

static void round_queries(const struct narrow_mem *w, uint32_t block)
{
    uint8_t *rows = query_rows(w, block);
    const float *q = w->q + (size_t)block * HEADS * w->d;
    for (size_t i = 0; i < HEADS * (size_t)w->d; i += 32)
        _mm512_store_si512(rows + 2 * i,
                           bf16_pair(_mm512_load_ps(q + i), _mm512_load_ps(q + i + LANES)));
}

/* Sets the centre: the first visible key, or zeros if that is not finite. */
INLINE void find_centre(const struct narrow_mem *w, const uint8_t *key, uint32_t d)
{
    const __m512i exponent = _mm512_set1_epi16(0x7c00);
    __mmask32 bad = 0;
    for (uint32_t c = 0; c < d; c += 32) {
        const __m512i x = _mm512_loadu_si512(key + 2 * (size_t)c);
        bad |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(x, exponent), exponent);
        _mm512_store_si512(w->centre + c, x);
    }
    if (bad) memset(w->centre, 0, 2 * (size_t)d);
}

/* Subtracts the centre from f16 keys and rounds to bf16. */
INLINE void centred_keys(const struct narrow_mem *w, struct fetch *fetch, const uint8_t *src,
                         uint32_t d)
{
    for (uint32_t c = 0; c < d; c += 32) {
        const __m512 c0 = attn_load_f16((const uint8_t *)(w->centre + c));
        const __m512 c1 = attn_load_f16((const uint8_t *)(w->centre + c + LANES));
        for (uint32_t t = 0; t < PAGE_TOK; t += 4) {
            fetch_lines(fetch);
            for (uint32_t i = t; i < t + 4; i++) {
                const size_t at = 2 * ((size_t)i * d + c);
                const __m512 x0 = _mm512_sub_ps(attn_load_f16(src + at), c0);
                const __m512 x1 = _mm512_sub_ps(attn_load_f16(src + at + 32), c1);
                _mm512_store_si512(w->keys + at, bf16_pair(x0, x1));
            }
        }
    }
}

/* Converts the keys of a step to rows of bf16. */
INLINE void half_keys(const struct narrow_mem *w, struct narrow_step *st, const struct page_geom *g,
                      uint32_t d)
{
    const struct attn_page *page = st->page[0];
    const uint8_t *src = half_rows(w, page, g, d);
    st->keys = (const uint16_t *)(const void *)w->keys;
    if (g->type_k != SAC_KV_BF16) {
        find_centre(w, src + 2 * (size_t)d * (page->begin < page->end ? page->begin : 0), d);
        centred_keys(w, &st->fetch, src, d);
    } else if (page->tok) {
        memcpy(w->keys, src,
               PAGE_TOK * 2 * (size_t)d); /* because values are gathered into the same buffer */
    } else {
        st->keys = (const uint16_t *)(const void *)src;
    }
}

/* Computes the scores of n_head heads: queries times keys, times `unit`, plus `base`. Keys are
 * transposed on the fly, so that lanes are tokens. */
INLINE void half_scores_of(const struct narrow_mem *w, struct narrow_step *st, const uint8_t *q,
                           const float *unit, const float *base, uint32_t n_head)
{
    const size_t row = 2 * (size_t)w->d;
    const uint8_t *k = (const uint8_t *)st->keys;
    __m512 sum[HEADS][2];
    UNROLL for (uint32_t h = 0; h < n_head; h++) sum[h][0] = sum[h][1] = _mm512_setzero_ps();
    for (uint32_t c = 0; c < w->d; c += 8, k += 16) {
        __m512i k0[4], k1[4];
        attn_dword_lanes(k0, k, row);
        attn_dword_lanes(k1, k + LANES * row, row);
        UNROLL for (uint32_t i = 0; i < 4; i++, q += 4)
        {
            fetch_lines(&st->fetch);
            UNROLL for (uint32_t h = 0; h < n_head; h++)
            {
                const __m512bh x = (__m512bh)all_lanes(q + h * row);
                sum[h][0] = _mm512_dpbf16_ps(sum[h][0], x, (__m512bh)k0[i]);
                sum[h][1] = _mm512_dpbf16_ps(sum[h][1], x, (__m512bh)k1[i]);
            }
        }
    }
    UNROLL for (uint32_t h = 0; h < n_head; h++)
    {
        const __m512 u = _mm512_set1_ps(unit[h]), b = _mm512_set1_ps(base[h]);
        _mm512_store_ps(w->y + h * STEP_TOK, _mm512_fmadd_ps(sum[h][0], u, b));
        _mm512_store_ps(w->y + h * STEP_TOK + LANES, _mm512_fmadd_ps(sum[h][1], u, b));
    }
}

static void half_scores(const struct narrow_mem *w, struct narrow_step *st, uint32_t block,
                        const struct page_geom *g)
{
    const uint32_t n_head = block_heads(w, block), d = w->d;
    const float *q = w->q + (size_t)block * HEADS * d, *unit = w->unit + block * HEADS;
    _Alignas(64) float base[LANES] = {0};
    if (g->type_k != SAC_KV_BF16) {
        __m512 sum[LANES];
        for (uint32_t h = 0; h < LANES; h++) sum[h] = _mm512_setzero_ps();
        for (uint32_t h = 0; h < n_head; h++)
            sum[h] = centre_product((const uint8_t *)w->centre, q + (size_t)h * d, d);
        _mm512_store_ps(base, _mm512_mul_ps(attn_sums(sum), _mm512_loadu_ps(unit)));
    }
    WITH_HEADS(n_head, half_scores_of, w, st, query_rows(w, block), unit, base)
}

/* ---- Values of halves ---- */

/* Converts 32 f16 numbers to bf16, times 2^-HALF_BITS. Products treat those below 2^-14 as zeros.
 * If one is a NaN or infinity, for which the result is wrong, a sign bit of `nonfinite` is set:
 * only their exponents carry into the sign. */
INLINE __m512i bf16_of_halves(__m512i x, __m512i *nonfinite)
{
    const __m512i carry = _mm512_add_epi16(x, _mm512_set1_epi16(0x400));
    *nonfinite =
        _mm512_ternarylogic_epi32(*nonfinite, x, carry, 0xf6); /* nonfinite | (x ^ carry) */
    /* (x * 2^12 + 2^14) >> 15 drops three bits, rounded; copies of the sign fill their place */
    const __m512i moved = _mm512_mulhrs_epi16(x, _mm512_set1_epi16(0x1000));
    return _mm512_and_si512(moved, _mm512_set1_epi16((int16_t)0x8fff));
}

struct half_source {
    const uint8_t *v; /* rows of 16 bits */
    struct fetch *fetch;
    bool f16;
    bool nonfinite; /* out: there were NaN or infinities in f16 */
};

/* Multiplies weights with the step's values, in the layout that merge_values reads. */
INLINE void half_value_sums_of(const struct narrow_mem *w, struct half_source *s, bool f16,
                               uint32_t n_head)
{
    const size_t row = 2 * (size_t)w->d;
    __m512i nonfinite[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    for (uint32_t c = 0; c < w->d; c += 32) {
        const uint8_t *v = s->v + 2 * (size_t)c, *p = w->p;
        __m512 sum[HEADS][2];
        UNROLL for (uint32_t h = 0; h < n_head; h++) sum[h][0] = sum[h][1] = _mm512_setzero_ps();
        for (uint32_t pair = 0; pair < PAGE_TOK / 2; pair++, v += 2 * row, p += 4) {
            __m512i a = _mm512_loadu_si512(v), b = _mm512_loadu_si512(v + row);
            fetch_lines(s->fetch);
            if (f16) {
                a = bf16_of_halves(a, &nonfinite[0]);
                b = bf16_of_halves(b, &nonfinite[1]);
            }
            const __m512bh v0 = (__m512bh)_mm512_unpacklo_epi16(a, b);
            const __m512bh v1 = (__m512bh)_mm512_unpackhi_epi16(a, b);
            UNROLL for (uint32_t h = 0; h < n_head; h++)
            {
                const __m512bh x = (__m512bh)all_lanes(p + h * 64);
                sum[h][0] = _mm512_dpbf16_ps(sum[h][0], x, v0);
                sum[h][1] = _mm512_dpbf16_ps(sum[h][1], x, v1);
            }
        }
        float *x = w->x + c * LANES;
        UNROLL for (uint32_t h = 0; h < n_head; h++)
        {
            _mm512_store_ps(x + h * LANES, sum[h][0]);
            _mm512_store_ps(x + (LANES + h) * LANES, sum[h][1]);
        }
    }
    s->nonfinite = _mm512_movepi16_mask(_mm512_or_si512(nonfinite[0], nonfinite[1])) != 0;
}

static void half_value_sums(const struct narrow_mem *w, struct half_source *s, uint32_t n_head)
{
    if (s->f16)
        WITH_HEADS(n_head, half_value_sums_of, w, s, true)
    else
        WITH_HEADS(n_head, half_value_sums_of, w, s, false)
}

/* Converts values exactly, including NaN and infinities: bf16, f16 times 2^-HALF_BITS; zeros for
 * invisible tokens. */
static void repair_values(uint8_t *dst, const uint8_t *src, uint32_t d,
                          const struct attn_page *page, bool f16)
{
    const __m512 down = _mm512_set1_ps(-HALF_BITS);
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        for (uint32_t c = 0; c < d; c += 32, dst += 64, src += 64) {
            __m512i x = _mm512_loadu_si512(src);
            if (f16)
                x = bf16_pair(_mm512_scalef_ps(attn_load_f16(src), down),
                              _mm512_scalef_ps(attn_load_f16(src + 32), down));
            if (t < page->begin || t >= page->end) x = _mm512_setzero_si512();
            _mm512_store_si512(dst, x);
        }
}

/* The 16-bit values of a step: in place, or gathered contiguously. */
INLINE const uint8_t *half_values(const struct narrow_mem *w, const struct narrow_step *st,
                                  const struct page_geom *g, uint32_t d)
{
    const struct attn_page *page = st->page[0];
    if (!page->tok) return page->bytes + (page->form == PAGE_TAIL ? g->tail_v : g->v);
    if (g->type_v == SAC_KV_Q8)
        attn_avx512_gather_values(w->gathered, g, page);
    else
        gather_halves(w->gathered, g, page, d, false);
    return (const uint8_t *)w->gathered;
}

/* ---- A chunk ---- */

/* Number of fetch_lines calls in a step. */
static uint32_t step_calls(const struct attn_chunk *c)
{
    const struct page_geom *g = c->op->geom;
    const uint32_t rows = g->head_dim / 4, n_block = (c->group + HEADS - 1) / HEADS;
    if (g->type_k == SAC_KV_Q8) return 2 * rows + 2 * c->group;
    return (g->type_k == SAC_KV_BF16 ? 0 : rows) + c->group + 4 * rows * n_block;
}

INLINE void half_step(const struct attn_chunk *c, const struct narrow_mem *w,
                      struct narrow_step *st, uint32_t d)
{
    const struct page_geom *g = c->op->geom;
    const struct attn_page *page = st->page[0];
    struct narrow_merge merge;
    half_keys(w, st, g, d);
    struct half_source src = {
        .v = half_values(w, st, g, d), .fetch = &st->fetch, .f16 = g->type_v != SAC_KV_BF16};
    for (uint32_t b = 0; b < w->n_block; b++) {
        const uint32_t n_head = block_heads(w, b);
        half_scores(w, st, b, g);
        narrow_amend(c, w, st, n_head, false);
        narrow_weights(w, st, b, d, false, &merge);
        if (page->begin == 0 && page->end == PAGE_TOK) half_value_sums(w, &src, n_head);
        if (src.nonfinite || page->begin > 0 || page->end < PAGE_TOK) {
            repair_values(w->v, src.v, d, page, g->type_v != SAC_KV_BF16);
            struct half_source repaired = {.v = w->v, .fetch = &st->fetch};
            half_value_sums(w, &repaired, n_head);
        }
        merge_values(c, w, &merge, d);
    }
}

INLINE void code_step(const struct attn_chunk *c, const struct narrow_mem *w,
                      struct narrow_step *st, uint32_t d)
{
    const struct page_geom *g = c->op->geom;
    struct narrow_merge merge;
    for (uint32_t j = 0; j < STEP_PAGES; j++) {
        code_keys(w, st, j, g, d);
        code_scales(w, st, j, g, d);
    }
    code_scale_units(w, d);
    code_values(w, st, g, d);
    for (uint32_t b = 0; b < w->n_block; b++) {
        const uint32_t n_head = block_heads(w, b);
        for (uint32_t j = 0; j < STEP_PAGES; j++) code_queries(w, st, b, j, g, d);
        code_sums(w, n_head);
        code_scores(w, st, b, g, d);
        narrow_amend(c, w, st, n_head, true);
        narrow_weights(w, st, b, d, true, &merge);
        code_value_sums(w, n_head);
        merge_values(c, w, &merge, d);
    }
}

INLINE void narrow_d(const struct attn_chunk *c, uint32_t d)
{
    const struct narrow_mem w = narrow_layout(c->mem, d, c->group);
    struct narrow_step st = {.up = c->op->geom->type_v == SAC_KV_BF16 ? 0 : HALF_BITS};
    uint32_t group = 0; /* first page of the next group */
    const uint32_t n_call = step_calls(c);
    if (narrow_begin(c, &w))
        for (uint32_t b = 0; b < w.n_block; b++) round_queries(&w, b);
    for (uint32_t i = 0; i < c->n_page; i += st.n_page) {
        if (i >= group) {
            fetch_group(&st.fetch, c, i, n_call);
            group = i + FETCH_PAGES;
        }
        step_at(&st, c, i);
        if (st.codes)
            code_step(c, &w, &st, d);
        else
            half_step(c, &w, &st, d);
    }
    narrow_end(c, &w);
}

void attn_narrow_avx512(const struct attn_chunk *c)
{
    /* constant sizes become displacements of loads */
    switch (c->op->geom->head_dim) {
    case 64: narrow_d(c, 64); break;
    case 128: narrow_d(c, 128); break;
    default: narrow_d(c, c->op->geom->head_dim);
    }
}
