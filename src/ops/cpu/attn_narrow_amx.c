/* attn_narrow_amx.c: decode attention in AMX tiles: one row of a sequence against its pages. The
 * parts that do not depend on tiles are in attn_narrow_tmpl.h.
 *
 * Each query head has one row (or column) for the high part of its queries and one for the low
 * part, so queries are not rounded. HALVES are multiplied with the keys as the first operand, so
 * that the keys need not be transposed; instead the sums, which leave the tile by token, are
 * transposed. Keys, too, are converted to bf16 by shifts. An infinite f16 key counts as the largest
 * number.
 *
 * Each page takes about 2,000 instructions (head_dim 64): this limits q8, and memory bandwidth
 * limits the other types. */
#define FETCH_TO 2 /* L2: loads from DRAM would occupy the buffers of L1 for too long */

#include "ops/cpu/attn_amx.h"

#define gather_q8_keys attn_amx_gather_keys
#include "ops/cpu/attn_narrow_tmpl.h"

size_t attn_narrow_amx_bytes(const struct page_geom *g, uint32_t group)
{
    return narrow_layout(NULL, g->head_dim, group).bytes;
}

/* ---- The queries ---- */

/* Packs the queries: column h is head h's query times 2^up, rounded to bf16, and column HEADS + h
 * its rounding error. */
static void query_tiles(const struct narrow_mem *w, uint32_t block, int up)
{
    const __m512 by = _mm512_set1_ps((float)up);
    const uint32_t d = w->d;
    uint16_t *rows = (uint16_t *)(void *)w->rows;
    for (uint32_t h = 0; h < HEADS; h++)
        for (uint32_t c = 0; c < d; c += 32) {
            const float *q = w->q + (size_t)(block * HEADS + h) * d + c;
            const __m512 a = _mm512_scalef_ps(_mm512_load_ps(q), by);
            const __m512 b = _mm512_scalef_ps(_mm512_load_ps(q + LANES), by);
            const __m512i high = bf16_pair(a, b);
            const __m512i at = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(high));
            const __m512i bt = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1));
            const __m512i low =
                bf16_pair(_mm512_sub_ps(a, _mm512_castsi512_ps(_mm512_slli_epi32(at, 16))),
                          _mm512_sub_ps(b, _mm512_castsi512_ps(_mm512_slli_epi32(bt, 16))));
            _mm512_store_si512(rows + (size_t)h * d + c, high);
            _mm512_store_si512(rows + (size_t)(HEADS + h) * d + c, low);
        }
    uint8_t *tile = w->q_tile + (size_t)block * (d / 32) * TILE_BYTES;
    for (uint32_t c = 0; c < d; c += 32, tile += TILE_BYTES)
        attn_transpose(tile, (const uint8_t *)(rows + c), 2 * (size_t)d);
}

static void amx_begin(const struct attn_chunk *c)
{
    const struct narrow_mem mem = narrow_layout(c->mem, c->op->geom->head_dim, c->group), *w = &mem;
    const int up = c->op->geom->type_k == SAC_KV_BF16 ? 0 : HALF_BITS;
    if (narrow_begin(c, w))
        for (uint32_t b = 0; b < w->n_block; b++) query_tiles(w, b, up);
    tiles_begin();
}

/* ---- Keys of codes ---- */

INLINE void code_sums(const struct narrow_mem *w, uint32_t d)
{
    const uint32_t n = (d + CODE_BLOCK - 1) / CODE_BLOCK;
    for (uint32_t j = 0; j < STEP_PAGES; j++) {
        const uint8_t *k = w->keys + j * 2 * n * (size_t)TILE_BYTES;
        const uint8_t *q = w->w_tile + j * n * (size_t)TILE_BYTES;
        TILE_ZERO(0);
        TILE_ZERO(1);
        for (uint32_t i = 0; i < n; i++) {
            TILE_LOAD(4, q + i * (size_t)TILE_BYTES, 64);
            TILE_LOAD(2, k + i * (size_t)TILE_BYTES, 64);
            TILE_DOT_S8U(0, 4, 2);
            TILE_LOAD(3, k + (n + i) * (size_t)TILE_BYTES, 64);
            TILE_DOT_S8U(1, 4, 3);
        }
        TILE_STORE(0, w->s + j * PAGE_TOK * LANES, 64);
        TILE_STORE(1, w->s + j * PAGE_TOK * LANES + 256, 64);
    }
}

/* ---- Keys of halves ---- */

/* Sets the centre: the first visible key, or zeros if that is not finite. */
INLINE void find_centre(const struct narrow_mem *w, const uint8_t *key, uint32_t d)
{
    __mmask32 bad = 0;
    for (uint32_t c = 0; c < d; c += 32) {
        const __m512h x = _mm512_loadu_ph(key + 2 * (size_t)c);
        bad |= _mm512_fpclass_ph_mask(x, 0x99); /* NaN or infinity */
        _mm512_store_ph(w->centre + c, x);
    }
    if (bad) memset(w->centre, 0, 2 * (size_t)d);
}

/* Converts 32 f16 numbers to bf16, times 2^-HALF_BITS. Products treat those below 2^-14 as zeros.
 * If one is a NaN or infinity, for which the result is wrong, `nonfinite` becomes NaN. */
INLINE __m512i bf16_of_halves(__m512h x, __m512h *nonfinite)
{
    *nonfinite = _mm512_fmadd_ph(x, _mm512_setzero_ph(), *nonfinite);
    /* (x * 2^12 + 2^14) >> 15 drops three bits, rounded; copies of the sign fill their place */
    const __m512i moved = _mm512_mulhrs_epi16(_mm512_castph_si512(x), _mm512_set1_epi16(0x1000));
    return _mm512_and_si512(moved, _mm512_set1_epi16((int16_t)0x8fff));
}

/* Whether there was a NaN or infinity. Four accumulators, so that none of the chains of additions
 * is long. */
INLINE bool any_nonfinite(const __m512h nonfinite[4])
{
    const __m512h a = _mm512_add_ph(nonfinite[0], nonfinite[1]),
                  b = _mm512_add_ph(nonfinite[2], nonfinite[3]);
    return _mm512_fpclass_ph_mask(_mm512_add_ph(a, b), 0x81) != 0;
}

/* Subtracts the centre from f16 keys and converts them to bf16. An infinity becomes 2^16; returns
 * whether there are NaN. */
INLINE bool centred_keys(const struct narrow_mem *w, struct fetch *fetch, const uint8_t *src,
                         uint32_t d)
{
    __m512h nonfinite[4] = {_mm512_setzero_ph(), _mm512_setzero_ph(), _mm512_setzero_ph(),
                            _mm512_setzero_ph()};
    for (uint32_t t = 0; t < PAGE_TOK; t += 4)
        for (uint32_t c = 0; c < d; c += 32) {
            const __m512h centre = _mm512_load_ph(w->centre + c);
            fetch_lines(fetch);
            for (uint32_t i = t; i < t + 4; i++) {
                const size_t at = 2 * ((size_t)i * d + c);
                const __m512h x = _mm512_sub_ph(_mm512_loadu_ph(src + at), centre);
                _mm512_store_si512(w->keys + at, bf16_of_halves(x, &nonfinite[i - t]));
            }
        }
    return any_nonfinite(nonfinite);
}

/* Restores NaN where the f16 keys contain them. */
static void restore_nan_keys(uint16_t *dst, const uint8_t *src, uint32_t d)
{
    for (uint32_t i = 0; i < PAGE_TOK * d; i += 32) {
        const __m512h x = _mm512_loadu_ph(src + 2 * (size_t)i);
        const __mmask32 nan = _mm512_fpclass_ph_mask(x, 0x81);
        _mm512_mask_storeu_epi16(dst + i, nan, _mm512_set1_epi16(0x7fff));
    }
}

INLINE void half_keys(const struct narrow_mem *w, struct narrow_step *st, const struct page_geom *g,
                      uint32_t d)
{
    const struct attn_page *page = st->page[0];
    const uint8_t *src = half_rows(w, page, g, d);
    uint16_t *dst = (uint16_t *)(void *)w->keys;
    if (g->type_k != SAC_KV_BF16) {
        find_centre(w, src + 2 * (size_t)d * (page->begin < page->end ? page->begin : 0), d);
        if (centred_keys(w, &st->fetch, src, d)) restore_nan_keys(dst, src, d);
        st->keys = dst;
        return;
    }
    st->keys = (const uint16_t *)(const void *)src;
    if (!page->tok) return;
    memcpy(dst, src, PAGE_TOK * 2 * (size_t)d); /* the next page may be gathered, too */
    st->keys = dst;
}

INLINE void half_sums(const struct narrow_mem *w, const struct narrow_step *st, uint32_t block,
                      uint32_t d)
{
    const uint8_t *q = w->q_tile + (size_t)block * (d / 32) * TILE_BYTES;
    const uint8_t *k = (const uint8_t *)st->keys;
    TILE_ZERO(0);
    TILE_ZERO(1);
    for (uint32_t c = 0; c < d / 32; c++) {
        TILE_LOAD(4, q + c * (size_t)TILE_BYTES, 64);
        TILE_LOAD(2, k + c * 64, 2 * (size_t)d);
        TILE_DOT(0, 2, 4);
        TILE_LOAD(3, k + 32 * (size_t)d + c * 64, 2 * (size_t)d);
        TILE_DOT(1, 3, 4);
    }
    TILE_STORE(0, w->s, 64);
    TILE_STORE(1, w->s + 256, 64);
}

/* Transposes the sums of 16 tokens and four heads, and adds high and low parts: out[i] is head i's,
 * one token per lane. */
INLINE void token_lanes(__m512 out[4], const float *s)
{
    __m512i x[4];
    for (uint32_t i = 0; i < 4; i++, s += LANES) {
        const __m512i high = attn_quarter_rows((const uint8_t *)s, LANES * sizeof(float));
        const __m512i low = attn_quarter_rows((const uint8_t *)(s + HEADS), LANES * sizeof(float));
        x[i] =
            _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(high), _mm512_castsi512_ps(low)));
    }
    attn_transpose_4x4(x);
    for (uint32_t i = 0; i < 4; i++) out[i] = _mm512_castsi512_ps(x[i]);
}

INLINE void half_scores(const struct narrow_mem *w, struct narrow_step *st, uint32_t block,
                        const struct page_geom *g, uint32_t d)
{
    const uint32_t n_head = block_heads(w, block);
    const float *q = w->q + (size_t)block * HEADS * d, *unit = w->unit + block * HEADS;
    _Alignas(64) float base[LANES] = {0};
    if (g->type_k != SAC_KV_BF16) {
        __m512 sum[LANES];
        for (uint32_t h = 0; h < LANES; h++) sum[h] = _mm512_setzero_ps();
        for (uint32_t h = 0; h < n_head; h++)
            sum[h] = centre_product((const uint8_t *)w->centre, q + (size_t)h * d, d);
        _mm512_store_ps(base, _mm512_mul_ps(attn_sums(sum), _mm512_loadu_ps(unit)));
    }
    for (uint32_t t = 0; t < PAGE_TOK; t += LANES)
        for (uint32_t h = 0; h < n_head; h += 4) {
            __m512 x[4];
            fetch_lines(&st->fetch);
            token_lanes(x, w->s + t * (size_t)LANES + h);
            for (uint32_t i = 0; i < 4; i++)
                _mm512_store_ps(w->y + (h + i) * STEP_TOK + t,
                                _mm512_fmadd_ps(x[i], _mm512_set1_ps(unit[h + i]),
                                                _mm512_set1_ps(base[h + i])));
        }
}

/* ---- Values ---- */

/* Packs 16-bit values, with pairs of tokens interleaved: of each 32 channels, one tile has those
 * whose bit 2 is 0, the next the others (see in_order). Returns whether there are NaN or infinities
 * in f16. */
INLINE bool half_values_as(const struct narrow_mem *w, struct fetch *fetch, const uint8_t *v,
                           uint32_t d, bool f16)
{
    __m512h nonfinite[4] = {_mm512_setzero_ph(), _mm512_setzero_ph(), _mm512_setzero_ph(),
                            _mm512_setzero_ph()};
    for (uint32_t t = 0; t < PAGE_TOK; t += 4)
        for (uint32_t c = 0; c < d; c += 32) {
            fetch_lines(fetch);
            for (uint32_t i = t; i < t + 4; i += 2) {
                const uint8_t *from = v + 2 * ((size_t)i * d + c);
                uint8_t *to = w->v + (size_t)(c / 16) * TILE_BYTES + i * (size_t)32;
                __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 2 * (size_t)d);
                if (f16) {
                    a = bf16_of_halves(_mm512_castsi512_ph(a), &nonfinite[i - t]);
                    b = bf16_of_halves(_mm512_castsi512_ph(b), &nonfinite[i - t + 1]);
                }
                _mm512_store_si512(to, _mm512_unpacklo_epi16(a, b));
                _mm512_store_si512(to + TILE_BYTES, _mm512_unpackhi_epi16(a, b));
            }
        }
    return any_nonfinite(nonfinite);
}

/* Restores infinities and NaN, and writes zeros for invisible tokens. */
static void repair_half_values(uint16_t *dst, const uint8_t *v, uint32_t d,
                               const struct attn_page *page, bool f16)
{
    const uint16_t *src = (const uint16_t *)(const void *)v;
    for (uint32_t t = 0; t < PAGE_TOK; t++)
        for (uint32_t c = 0; c < d; c++) {
            const uint32_t tile = c / 32 * 2 + c / 4 % 2, column = c % 32 / 8 * 4 + c % 4;
            uint16_t *to = dst + tile * (TILE_BYTES / 2) + t / 2 * 32 + 2 * column + t % 2;
            const uint16_t x = src[(size_t)t * d + c];
            if (t < page->begin || t >= page->end)
                *to = 0;
            else if (f16 && (x & 0x7fff) >= 0x7c00)
                *to = (uint16_t)((x & 0x8000) | 0x7f80 | ((x & 0x3ff) ? 0x40 : 0));
        }
}

INLINE void half_values(const struct narrow_mem *w, struct narrow_step *st,
                        const struct page_geom *g, uint32_t d)
{
    const struct attn_page *page = st->page[0];
    const uint8_t *v = page->bytes + (page->form == PAGE_TAIL ? g->tail_v : g->v);
    if (page->tok) {
        if (g->type_v == SAC_KV_Q8)
            attn_amx_gather_values(w->gathered, g, page);
        else
            gather_halves(w->gathered, g, page, d, false);
        v = (const uint8_t *)w->gathered;
    }
    const bool f16 = g->type_v != SAC_KV_BF16;
    const bool nonfinite = f16 ? half_values_as(w, &st->fetch, v, d, true)
                               : half_values_as(w, &st->fetch, v, d, false);
    if (nonfinite || page->begin > 0 || page->end < PAGE_TOK)
        repair_half_values((uint16_t *)(void *)w->v, v, d, page, f16);
}

/* Weights times values: a tile of sums for each 16 channels c. a_at: the weights for channels from
 * 16 c on. */
#define VALUE_TILES(dot, a_at)                                                                     \
    for (uint32_t c = 0; c < d / 16; c += 2) {                                                     \
        TILE_ZERO(0);                                                                              \
        TILE_ZERO(1);                                                                              \
        TILE_LOAD(4, a_at, 64);                                                                    \
        TILE_LOAD(5, w->v + c * (size_t)TILE_BYTES, 64);                                           \
        dot(0, 4, 5);                                                                              \
        TILE_LOAD(6, w->v + (c + 1) * (size_t)TILE_BYTES, 64);                                     \
        dot(1, 4, 6);                                                                              \
        TILE_STORE(0, w->x + c * 256, 64);                                                         \
        TILE_STORE(1, w->x + c * 256 + 256, 64);                                                   \
    }

INLINE void value_sums(const struct narrow_mem *w, const struct narrow_merge *step, uint32_t d)
{
    if (!step->pending) return;
    if (step->codes)
        VALUE_TILES(TILE_DOT_U8, w->p + c / 2 * (size_t)TILE_BYTES)
    else
        VALUE_TILES(TILE_DOT, w->p)
}

/* ---- A chunk ---- */

/* Number of fetch_lines calls in a step: for keys (bf16 keys are read in place), values, scores and
 * weights. */
static uint32_t step_calls(const struct attn_chunk *c)
{
    const struct page_geom *g = c->op->geom;
    const uint32_t rows = g->head_dim / 4, n_block = (c->group + HEADS - 1) / HEADS;
    return g->type_k == SAC_KV_Q8     ? 2 * rows + 2 * c->group
           : g->type_k == SAC_KV_BF16 ? rows + c->group + 4 * n_block
                                      : 2 * rows + c->group + 4 * n_block;
}

INLINE void step_keys(const struct attn_chunk *c, const struct narrow_mem *w,
                      struct narrow_step *st, uint32_t d, bool codes)
{
    const struct page_geom *g = c->op->geom;
    if (!codes) {
        half_keys(w, st, g, d);
        return;
    }
    for (uint32_t j = 0; j < STEP_PAGES; j++) code_keys(w, st, j, g, d);
}

INLINE void step_values(const struct attn_chunk *c, const struct narrow_mem *w,
                        struct narrow_step *st, uint32_t d, bool codes)
{
    const struct page_geom *g = c->op->geom;
    if (!codes) {
        half_values(w, st, g, d);
        return;
    }
    for (uint32_t j = 0; j < STEP_PAGES; j++) code_scales(w, st, j, g, d);
    code_scale_units(w, d);
    code_values(w, st, g, d);
}

/* A tile load waits until the data it reads has left the store buffer, after all earlier stores,
 * some of which wait for lines of L1; and the results of a tile product arrive late. Other work is
 * therefore placed between stores and the tile loads that read them: between keys and scores, the
 * value products of the previous step, whose weights were computed long ago, and the packing of the
 * values; between scores and their use, the merge of those products. */
INLINE void narrow_step(const struct attn_chunk *c, const struct narrow_mem *w,
                        struct narrow_step *st, struct narrow_merge *before, uint32_t d, bool codes)
{
    const struct page_geom *g = c->op->geom;
    step_keys(c, w, st, d, codes);
    for (uint32_t b = 0; b < w->n_block; b++) {
        const uint32_t n_head = block_heads(w, b);
        value_sums(w, before, d);
        for (uint32_t j = 0; j < STEP_PAGES && codes; j++) code_queries(w, st, b, j, g, d);
        if (b == 0) step_values(c, w, st, d, codes);
        if (codes)
            code_sums(w, d);
        else
            half_sums(w, st, b, d);
        merge_values(c, w, before, d);
        if (codes)
            code_scores(w, st, b, g, d);
        else
            half_scores(w, st, b, g, d);
        narrow_amend(c, w, st, n_head, codes);
        narrow_weights(w, st, b, d, codes, before);
    }
}

INLINE void narrow_d(const struct attn_chunk *c, uint32_t d)
{
    const struct narrow_mem w = narrow_layout(c->mem, d, c->group);
    struct narrow_merge before = {.pending = false};
    struct narrow_step st = {.up = c->op->geom->type_v == SAC_KV_BF16 ? 0 : HALF_BITS};
    uint32_t group = 0; /* first page of the next group */
    const uint32_t n_call = step_calls(c);
    amx_begin(c);
    for (uint32_t i = 0; i < c->n_page; i += st.n_page) {
        if (i >= group) {
            fetch_group(&st.fetch, c, i, n_call);
            group = i + FETCH_PAGES;
        }
        step_at(&st, c, i);
        if (st.codes)
            narrow_step(c, &w, &st, &before, d, true);
        else
            narrow_step(c, &w, &st, &before, d, false);
    }
    value_sums(&w, &before, d);
    merge_values(c, &w, &before, d);
    narrow_end(c, &w);
    tiles_end();
}

void attn_narrow_amx(const struct attn_chunk *c)
{
    /* constant sizes become displacements of loads */
    switch (c->op->geom->head_dim) {
    case 64: narrow_d(c, 64); break;
    case 128: narrow_d(c, 128); break;
    default: narrow_d(c, c->op->geom->head_dim);
    }
}
