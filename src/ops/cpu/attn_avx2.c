/* attn_avx2.c: attention in f32 with vectors of 8 lanes; attn_f32.h holds the algorithms. */
#include "ops/cpu/attn.h"
#include "ops/cpu/attn_q8_avx2.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/vec_avx2.h"

#include <immintrin.h>
#include <math.h>

#define KEYS    4u
#define CHANS   4u
#define TILE_Q  256u
#define v_floor _mm256_floor_ps

#define f32_from_q8_k attn_q8_by_eights

static inline vec v_load_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}

/* n is at least -200: exponents below -126 are cut to 0 by the comparison. */
static inline vec v_scale2(vec p, vec n)
{
    const __m256i bits =
        _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    const __m256 normal = _mm256_cmp_ps(n, _mm256_set1_ps(-126.0f), _CMP_NLT_UQ);
    return _mm256_mul_ps(p, _mm256_and_ps(normal, _mm256_castsi256_ps(bits)));
}

static inline bool v_any_gt(vec a, vec b)
{
    return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}

static inline vec v_unless_lt(vec a, vec b, vec y)
{
    return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ), y);
}

static inline vec v_seen(vec y, int32_t at, const int32_t *lo, const int32_t *hi)
{
    const __m256i x = _mm256_set1_epi32(at);
    const __m256i below = _mm256_cmpgt_epi32(_mm256_loadu_si256((const void *)lo), x);
    const __m256i inside = _mm256_cmpgt_epi32(_mm256_loadu_si256((const void *)hi), x);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), y,
                            _mm256_castsi256_ps(_mm256_andnot_si256(below, inside)));
}

/* Adds neighbours until each lane holds one row's sum. */
static inline vec v_row_sums(const vec r[8])
{
    __m256 a[4];
    for (int i = 0; i < 4; i++) a[i] = _mm256_hadd_ps(r[2 * i], r[2 * i + 1]);
    const __m256 b = _mm256_hadd_ps(a[0], a[1]), c = _mm256_hadd_ps(a[2], a[3]);
    return _mm256_add_ps(_mm256_permute2f128_ps(b, c, 0x20), _mm256_permute2f128_ps(b, c, 0x31));
}

static void f32_from_half(float *dst, const uint8_t *src, size_t n, bool bf16)
{
    for (size_t i = 0; i < n; i += 8) {
        const __m128i x = _mm_loadu_si128((const void *)(src + 2 * i));
        const __m256 wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
        _mm256_storeu_ps(dst + i, bf16 ? wide : _mm256_cvtph_ps(x));
    }
}

#include "ops/cpu/attn_f32.h"

void ops_fill_avx2_attn(struct ops *o)
{
    o->attn = f32_attn;
    o->attn_scratch = f32_attn_scratch;
    attn_fill_avx2_seal(o);
}
