/* mass_amx.c: the mass slot in AMX tiles of bf16.
 *
 * S^T [key, query] = K Q^T: rows of a page's keys as A tiles, 16 queries as columns of B tiles that
 * are packed once, so a lane of a vector is a query: sums over keys need no step across lanes, and
 * a key's mass one, and only if it has any. Two passes over the pages, sums before shares, cost
 * less than to keep the logits: nearly all of them lie below the cut and are compared and
 * forgotten.
 *
 * Logits are in units of log 2: log2(e) goes into the packed queries and into `top`. Queries that
 * fill a set up to a multiple of 16 have a top of infinity: below the cut whatever they are. */
#include "ops/cpu/fill.h"
#include "ops/cpu/tiles.h"

#include <assert.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define LANES  16u
#define LOG2_E 1.44269504089f
#define LOGITS ((size_t)PAGE_TOK * LANES) /* of a block of queries */

/* 2^x for x <= 30 or so: degree 3 on the fraction, relative error 7.5e-5. */
static inline __m512 exp2_ps(__m512 x)
{
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(5.550410866e-2f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402265069e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931471806e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

struct work {
    const struct op_mass *op;
    uint32_t d, n_block;      /* blocks of 16 queries of a set */
    uint8_t *q;               /* [n_set][n_block][d / 32] B tiles */
    float *top, *sum, *share; /* [n_set][n_block * LANES] */
    float *k;                 /* [PAGE_TOK, d] */
    uint16_t *half;           /* [PAGE_TOK, d] */
    float *logit;             /* [2][PAGE_TOK, LANES] */
    float *mass;              /* [PAGE_TOK, LANES] */
};

static struct work lay_out(const struct op_mass *op)
{
    const uint32_t d = op->geom->head_dim, n_block = (op->n_query + LANES - 1) / LANES;
    const size_t n = (size_t)op->n_set * n_block * LANES;
    struct work w = {.op = op, .d = d, .n_block = n_block, .q = op->scratch};
    w.top = (float *)(void *)(w.q + n * d * 2);
    w.sum = w.top + n;
    w.share = w.sum + n;
    w.k = w.share + n;
    w.half = (uint16_t *)(void *)(w.k + PAGE_TOK * (size_t)d);
    w.logit = (float *)(void *)(w.half + PAGE_TOK * (size_t)d);
    w.mass = w.logit + 2 * LOGITS;
    assert((uint8_t *)(w.mass + LOGITS) <= w.q + ops_mass_scratch(op->n_set, op->n_query, d));
    return w;
}

/* Column `i` of the block's B tiles: pairs of channels go to rows. */
static void pack_query(uint8_t *block, uint32_t i, const float *q, uint32_t d)
{
    const __m512i row =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32(64));
    const __m512 unit = _mm512_set1_ps(LOG2_E);
    for (uint32_t c = 0; c < d; c += 32) {
        const __m512 lo = _mm512_mul_ps(_mm512_loadu_ps(q + c), unit);
        const __m512 hi = _mm512_mul_ps(_mm512_loadu_ps(q + c + LANES), unit);
        uint8_t *tile = block + c / 32 * (size_t)TILE_BYTES + i * (size_t)4;
        _mm512_i32scatter_epi32(tile, row, (__m512i)_mm512_cvtne2ps_pbh(hi, lo), 1);
    }
}

static void pack_queries(const struct work *w)
{
    const struct op_mass *op = w->op;
    const uint32_t n_pad = w->n_block * LANES, d = w->d;
    for (uint32_t s = 0; s < op->n_set; s++)
        for (uint32_t i = 0; i < n_pad; i++) {
            const bool is_real = i < op->n_query;
            const size_t to = (size_t)s * n_pad + i;
            /* Filled up with the last query again. */
            const size_t from = (size_t)s * op->n_query + (is_real ? i : op->n_query - 1);
            pack_query(w->q + to / LANES * (d / 32) * TILE_BYTES, i % LANES, op->q + from * d, d);
            w->top[to] = is_real ? op->top[from] * LOG2_E : INFINITY;
            w->sum[to] = is_real ? op->sum[from] : 1.0f;
        }
}

static void load_page(const struct work *w, uint32_t page)
{
    const struct op_mass *op = w->op;
    op->ops->keys(&(struct op_keys){
        .geom = op->geom, .pool = op->pool, .page = op->page + page, .n_page = 1, .out = w->k});
    for (size_t i = 0; i < PAGE_TOK * (size_t)w->d; i += 32)
        _mm512_storeu_si512(w->half + i,
                            (__m512i)_mm512_cvtne2ps_pbh(_mm512_loadu_ps(w->k + i + 16),
                                                         _mm512_loadu_ps(w->k + i)));
}

/* With 64 channels the page's keys stay in tiles 4 to 7 for all blocks of queries. */
static void hold_keys(const struct work *w)
{
    const uint8_t *k = (const uint8_t *)w->half;
    if (w->d != 64) return;
    TILE_LOAD(4, k, 128);
    TILE_LOAD(5, k + 64, 128);
    TILE_LOAD(6, k + 16 * 128, 128);
    TILE_LOAD(7, k + 16 * 128 + 64, 128);
}

/* Logits of the page's keys for one block of queries. */
static inline void score_block(const struct work *w, size_t block, float *logit)
{
    const uint8_t *q = w->q + block * (w->d / 32) * TILE_BYTES;
    TILE_ZERO(0);
    TILE_ZERO(1);
    if (w->d == 64) {
        TILE_LOAD(2, q, 64);
        TILE_LOAD(3, q + TILE_BYTES, 64);
        TILE_DOT(0, 4, 2);
        TILE_DOT(1, 6, 2);
        TILE_DOT(0, 5, 3);
        TILE_DOT(1, 7, 3);
    } else {
        const uint8_t *k = (const uint8_t *)w->half;
        const size_t row = 2 * (size_t)w->d;
        for (uint32_t c = 0; c < w->d / 32; c++) {
            TILE_LOAD(2, q + c * (size_t)TILE_BYTES, 64);
            TILE_LOAD(3, k + c * (size_t)64, row);
            TILE_LOAD(4, k + c * (size_t)64 + 16 * row, row);
            TILE_DOT(0, 3, 2);
            TILE_DOT(1, 4, 2);
        }
    }
    TILE_STORE(0, logit, 64);
    TILE_STORE(1, logit + 16 * LANES, 64);
}

/* Adds the block's exponentials to its sums. */
static inline void sum_block(const float *logit, float *sum, const float *top)
{
    const __m512 least = _mm512_sub_ps(_mm512_loadu_ps(top), _mm512_set1_ps(OP_MASS_CUT * LOG2_E));
    const __m512 off = _mm512_loadu_ps(top);
    __m512 all = _mm512_loadu_ps(sum);
    for (uint32_t t = 0; t < PAGE_TOK; t += 4) {
        __m512 x[4];
        __mmask16 some = 0, hit[4];
        for (uint32_t i = 0; i < 4; i++) {
            x[i] = _mm512_load_ps(logit + (size_t)(t + i) * LANES);
            hit[i] = _mm512_cmp_ps_mask(x[i], least, _CMP_NLT_UQ); /* NaN counts */
            some |= hit[i];
        }
        if (!some) continue;
        for (uint32_t i = 0; i < 4; i++)
            all = _mm512_mask_add_ps(all, hit[i], all, exp2_ps(_mm512_sub_ps(x[i], off)));
    }
    _mm512_storeu_ps(sum, all);
}

/* Adds the block's shares to the keys' masses; returns which keys got any. */
static inline uint32_t weigh_block(const struct work *w, const float *logit, size_t block)
{
    const __m512 off = _mm512_loadu_ps(w->top + block * LANES);
    const __m512 least = _mm512_sub_ps(off, _mm512_set1_ps(OP_MASS_CUT * LOG2_E));
    const __m512 each = _mm512_loadu_ps(w->share + block * LANES);
    uint32_t keys = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const __m512 x = _mm512_load_ps(logit + (size_t)t * LANES);
        const __mmask16 hit = _mm512_cmp_ps_mask(x, least, _CMP_NLT_UQ);
        if (!hit) continue;
        float *mass = w->mass + (size_t)t * LANES;
        const __m512 e = _mm512_maskz_mul_ps(hit, each, exp2_ps(_mm512_sub_ps(x, off)));
        _mm512_store_ps(mass, _mm512_add_ps(_mm512_load_ps(mass), e));
        keys |= 1u << t;
    }
    return keys;
}

/* The tiles compute a block's logits while the vectors still work on those of the one before. */
static void sum_page(const struct work *w, size_t block, size_t end)
{
    hold_keys(w);
    score_block(w, block, w->logit);
    for (uint32_t i = 0; block < end; block++, i ^= 1) {
        const float *logit = w->logit + i * LOGITS;
        if (block + 1 < end) score_block(w, block + 1, w->logit + (i ^ 1) * LOGITS);
        sum_block(logit, w->sum + block * LANES, w->top + block * LANES);
    }
}

/* The mass of the page's keys in set s. `mass` is zero before and after. */
static void end_set(const struct work *w, uint32_t s, uint32_t page, uint32_t keys)
{
    float *out = w->op->mass + s * w->op->mass_stride + (size_t)page * PAGE_TOK;
    memset(out, 0, PAGE_TOK * sizeof *out);
    for (; keys; keys &= keys - 1) {
        float *mass = w->mass + (size_t)__builtin_ctz(keys) * LANES;
        out[__builtin_ctz(keys)] = _mm512_reduce_add_ps(_mm512_load_ps(mass));
        _mm512_store_ps(mass, _mm512_setzero_ps());
    }
}

static void weigh_page(const struct work *w, size_t block, size_t end, uint32_t page)
{
    uint32_t keys = 0;
    hold_keys(w);
    score_block(w, block, w->logit);
    for (uint32_t i = 0; block < end; block++, i ^= 1) {
        const float *logit = w->logit + i * LOGITS;
        if (block + 1 < end) score_block(w, block + 1, w->logit + (i ^ 1) * LOGITS);
        keys |= weigh_block(w, logit, block);
        if ((block + 1) % w->n_block) continue;
        end_set(w, (uint32_t)(block / w->n_block), page, keys);
        keys = 0;
    }
}

/* Shares of the sums, which go back to the caller. False: one is not finite. */
static bool end_sums(const struct work *w)
{
    const struct op_mass *op = w->op;
    const uint32_t n_pad = w->n_block * LANES;
    bool finite = true;
    for (uint32_t s = 0; s < op->n_set; s++)
        for (uint32_t i = 0; i < n_pad; i++) {
            const size_t at = (size_t)s * n_pad + i;
            w->share[at] = 1.0f / (w->sum[at] * (float)op->n_query);
            if (i >= op->n_query) continue;
            op->sum[(size_t)s * op->n_query + i] = w->sum[at];
            finite = finite && isfinite(w->sum[at]);
        }
    return finite;
}

static bool mass_amx(const struct op_mass *op)
{
    const struct work w = lay_out(op);
    const uint32_t n_page = op->n_page[op->n_set - 1];
    uint32_t first = 0; /* of the sets that see the page */
    assert(w.d % 32 == 0 && (uintptr_t)op->scratch % 64 == 0);
    pack_queries(&w);
    tiles_begin();
    for (uint32_t i = 0; i < n_page; i++) {
        while (op->n_page[first] <= i) first++;
        load_page(&w, i);
        sum_page(&w, (size_t)first * w.n_block, (size_t)op->n_set * w.n_block);
    }
    const bool finite = end_sums(&w);
    memset(w.mass, 0, LOGITS * sizeof *w.mass);
    first = 0;
    for (uint32_t i = 0; i < n_page && finite; i++) {
        while (op->n_page[first] <= i) first++;
        load_page(&w, i);
        weigh_page(&w, (size_t)first * w.n_block, (size_t)op->n_set * w.n_block, i);
    }
    tiles_end();
    return finite;
}

void ops_fill_amx_mass(struct ops *o)
{
    o->mass = mass_amx;
}
