/* attn_seal_avx2.c: writing keys and values into pages and sealing pages, in AVX2.
 *
 * The results are bit for bit those of attn_ref.c. Sealing consists of a minimum, a maximum, one
 * difference, products and roundings to nearest, none of which can be contracted or reordered, so
 * vectors give the scalar result. Rounding to bf16 is done on integers, because the instruction of
 * newer CPUs flushes denormals. AVX-512 would gain nothing: both are bound by memory. */
#include "ops/cpu/attn.h"
#include "ops/cpu/fill.h"

#include <immintrin.h>
#include <string.h>

#define F16_NAN 0x7e00

/* ---- Writing ---- */

static __m128i bf16_from_f32(__m256 x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    const __m256i near = _mm256_srli_epi32(_mm256_add_epi32(u, round), 16);
    const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i half = _mm256_blendv_epi8(near, quiet, nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
}

static void write_half(uint8_t *dst, sac_kv_type type, const float *src, uint32_t n)
{
    for (uint32_t i = 0; i < n; i += 8) {
        const __m256 x = _mm256_loadu_ps(src + i);
        const __m128i half =
            type == SAC_KV_BF16 ? bf16_from_f32(x) : _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
        _mm_storeu_si128((void *)(dst + 2 * (size_t)i), half);
    }
}

static void write_row(void *arg, uint32_t row_i, uint32_t worker_i)
{
    (void)worker_i;
    const struct op_kv_write *op = arg;
    const struct page_geom *g = op->geom;
    const struct attn_run *run = op->run;
    const uint32_t d = g->head_dim, pos = run->pos0 + row_i;
    const size_t at = pos % PAGE_TOK * (size_t)d;
    const size_t src = (size_t)(run->row0 + row_i) * op->kv_stride;
    uint8_t *page = attn_own_page(run, g, pos, 0);
    for (size_t h = 0; h < g->n_kv_head; h++, page += g->tail_bytes) {
        write_half(page + 2 * at, g->type_k, op->k + src + h * d, d);
        write_half(page + g->tail_v + 2 * at, g->type_v, op->v + src + h * d, d);
    }
}

static void avx2_kv_write(struct workers *pool, const struct op_kv_write *op)
{
    for (uint32_t i = 0; i < op->n_run; i++) {
        struct op_kv_write one = *op;
        one.run = &op->run[i];
        workers_for(pool, one.run->n_row, write_row, &one);
    }
}

/* ---- Sealing ---- */

static __m256 load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

/* Mask of the lanes whose f16 is NaN or infinite. */
static __m128i f16_invalid(__m128i h)
{
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    return _mm_cmpeq_epi16(_mm_and_si128(h, exponent), exponent);
}

/* The smallest f16 >= x, for finite x >= 0 within the range of f16. */
static __m128i f16_not_below(__m256 x)
{
    const __m128i near = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
    const __m256i below = _mm256_castps_si256(_mm256_cmp_ps(_mm256_cvtph_ps(near), x, _CMP_LT_OQ));
    /* a true lane is -1: subtracting it adds one */
    return _mm_sub_epi16(
        near, _mm_packs_epi32(_mm256_castsi256_si128(below), _mm256_extracti128_si256(below, 1)));
}

/* 1 / step, or 0 for a step of 0. */
static __m256 inverse(__m256 step)
{
    const __m256 some = _mm256_cmp_ps(step, _mm256_setzero_ps(), _CMP_GT_OQ);
    return _mm256_and_ps(some, _mm256_div_ps(_mm256_set1_ps(1.0f), step));
}

/* Computes min, step and codes [PAGE_TOK, d] of channels c .. c + 7. */
static void seal_k_channels(const struct page_geom *g, const uint8_t *k, uint8_t *page,
                            uint8_t *code, uint32_t c)
{
    const size_t d = g->head_dim;
    __m256 min = _mm256_set1_ps(__builtin_inff()), max = _mm256_set1_ps(-__builtin_inff());
    __m128i invalid = _mm_setzero_si128();
    for (size_t t = 0; t < PAGE_TOK; t++) {
        const __m128i h = _mm_loadu_si128((const void *)(k + 2 * (t * d + c)));
        const __m256 x = _mm256_cvtph_ps(h);
        invalid = _mm_or_si128(invalid, f16_invalid(h));
        min = _mm256_min_ps(x, min); /* returns its second operand if both are equal or x is NaN */
        max = _mm256_max_ps(x, max);
    }
    const __m256 range = _mm256_mul_ps(_mm256_sub_ps(max, min), _mm256_set1_ps(1.0f / 255.0f));
    const __m128i step16 = _mm_andnot_si128(invalid, f16_not_below(range));
    const __m128i min16 = _mm256_cvtps_ph(_mm256_add_ps(min, _mm256_setzero_ps()), 0);
    _mm_storeu_si128((void *)(page + g->k_step + 2 * c), step16);
    _mm_storeu_si128((void *)(page + g->k_min + 2 * c),
                     _mm_blendv_epi8(min16, _mm_set1_epi16(F16_NAN), invalid));
    const __m256 inv = inverse(_mm256_cvtph_ps(step16));
    const __m256i valid = _mm256_xor_si256(_mm256_cvtepi16_epi32(invalid), _mm256_set1_epi32(-1));
    for (size_t t = 0; t < PAGE_TOK; t++) {
        const __m256 x = load_f16(k + 2 * (t * d + c));
        const __m256i near = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(x, min), inv));
        const __m256i q = _mm256_and_si256(valid, _mm256_min_epi32(near, _mm256_set1_epi32(255)));
        const __m128i words =
            _mm_packus_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
        _mm_storel_epi64((void *)(code + t * d + c), _mm_packus_epi16(words, words));
    }
}

/* Distributes the codes [d] of one token to the three planes. Plain byte loops, which the compiler
 * vectorises. */
static void store_planes(uint8_t *restrict hi2, uint8_t *restrict low, const uint8_t *restrict code,
                         uint32_t d)
{
    const uint32_t quarter = d / 4, half = d / 2;
    const uint8_t *c0 = code, *c1 = code + quarter, *c2 = c1 + quarter, *c3 = c2 + quarter;
    for (uint32_t j = 0; j < quarter; j++) {
        hi2[j] = (uint8_t)((c0[j] >> 6 & 0x03) | (c1[j] >> 4 & 0x0c) | (c2[j] >> 2 & 0x30) |
                           (c3[j] & 0xc0));
        low[j] = (uint8_t)((c0[j] >> 4 & 0x03) | (c1[j] >> 2 & 0x0c) | (c2[j] & 0x30) |
                           (c3[j] << 2 & 0xc0));
    }
    uint8_t *restrict lo4 = low + quarter;
    for (uint32_t j = 0; j < half; j++)
        lo4[j] = (uint8_t)((code[j] & 0x0f) | (code[half + j] << 4 & 0xf0));
}

static float max_of(__m256 x)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

/* Quantises one block of PAGE_VBLOCK values. */
static void seal_v_block(const uint8_t *v, uint16_t *out_scale, int8_t *out)
{
    __m256 x[4], amax = _mm256_setzero_ps();
    __m128i invalid = _mm_setzero_si128();
    for (int i = 0; i < 4; i++) {
        const __m128i h = _mm_loadu_si128((const void *)(v + 16 * i));
        invalid = _mm_or_si128(invalid, f16_invalid(h));
        x[i] = _mm256_cvtph_ps(h);
        amax = _mm256_max_ps(amax, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x[i]));
    }
    if (!_mm_testz_si128(invalid, invalid)) {
        *out_scale = F16_NAN;
        memset(out, 0, PAGE_VBLOCK);
        return;
    }
    const __m128i scale = f16_not_below(_mm256_set1_ps(max_of(amax) * (1.0f / 127.0f)));
    *out_scale = (uint16_t)_mm_extract_epi16(scale, 0);
    const __m256 inv = inverse(_mm256_cvtph_ps(scale));
    __m256i q[4];
    for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inv));
    /* packs works within 128-bit lanes; the permutation restores the order of groups of four */
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i all = _mm256_permutevar8x32_epi32(bytes, order);
    _mm256_storeu_si256((void *)out, _mm256_max_epi8(all, _mm256_set1_epi8(-127)));
}

static void seal_q8(const struct page_geom *g, const uint8_t *tail, uint8_t *page)
{
    const uint32_t d = g->head_dim;
    uint8_t code[PAGE_TOK * HEAD_DIM_MAX];
    for (uint32_t c = 0; c < d; c += 8) seal_k_channels(g, tail, page, code, c);
    for (size_t t = 0; t < PAGE_TOK; t++)
        store_planes(page + g->k_hi2 + t * (d / 4), page + g->k_low + t * (d * 3 / 4), code + t * d,
                     d);
    uint16_t *scale = (uint16_t *)(void *)(page + g->v_scale);
    for (size_t i = 0; i < PAGE_TOK * (size_t)d / PAGE_VBLOCK; i++)
        seal_v_block(tail + g->tail_v + 2 * i * PAGE_VBLOCK, scale + i,
                     (int8_t *)(page + g->v) + i * PAGE_VBLOCK);
}

static void avx2_seal(struct workers *pool, const struct op_seal *op)
{
    attn_seal(pool, op, seal_q8);
}

void attn_fill_avx2_seal(struct ops *o)
{
    o->kv_write = avx2_kv_write;
    o->seal = avx2_seal;
}
