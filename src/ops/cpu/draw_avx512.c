/* draw_avx512.c: `draw` with vectors of 16 lanes. Sums are f32 by lane: a cut that rounding moves
 * by a step is as good as its neighbour. */
#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <immintrin.h>
#include <stdbool.h>

#define LANES OP_DRAW_LANES

/* Stores the lanes of `mask` behind each other. There is `room` for whole vectors or not. */
static void store_some(void *out, __mmask16 mask, __m512i x, bool room)
{
    if (room)
        _mm512_storeu_si512(out, _mm512_maskz_compress_epi32(mask, x));
    else
        _mm512_mask_compressstoreu_epi32(out, mask, x);
}

/* Values that may lie on either side of the cut, and what is known of the others. */
struct open {
    const float *value;
    uint32_t n;
    double sum_below;
};

/* Sums up what lies below `cut`; keeps what the answer leaves open in `kept`. */
static bool try_cut(struct open *o, const struct op_draw *op, float cut, float *kept)
{
    const __m512 at = _mm512_set1_ps(cut);
    __m512 sum = _mm512_setzero_ps();
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(o->n - i);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, o->value + i);
        const __mmask16 below = _mm512_mask_cmp_ps_mask(lanes, x, at, _CMP_LT_OQ);
        sum = _mm512_mask_add_ps(sum, below, sum, x);
    }
    const double sum_below = (double)_mm512_reduce_add_ps(sum);
    const bool rises = op_draw_may_rise(op, cut, o->sum_below + sum_below);
    o->sum_below += rises ? sum_below : 0;
    for (uint32_t i = 0; i < o->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(o->n - i);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, o->value + i);
        const __mmask16 below = _mm512_mask_cmp_ps_mask(lanes, x, at, _CMP_LT_OQ);
        const __mmask16 stay = rises ? lanes & (__mmask16)~below : below;
        if (!stay) continue;
        _mm512_mask_compressstoreu_ps(kept + n, stay, x);
        n += (uint32_t)__builtin_popcount(stay);
    }
    o->value = kept;
    o->n = n;
    return rises;
}

/* The same for a cut that is known to be low enough, in one sweep. */
static void rise_to(struct open *o, float cut, float *kept)
{
    const __m512 at = _mm512_set1_ps(cut);
    __m512 sum = _mm512_setzero_ps();
    uint32_t n = 0;
    for (uint32_t i = 0; i < o->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(o->n - i);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, o->value + i);
        const __mmask16 stay = _mm512_mask_cmp_ps_mask(lanes, x, at, _CMP_NLT_UQ);
        sum = _mm512_mask_add_ps(sum, (__mmask16)~stay, sum, x);
        store_some(kept + n, stay, _mm512_castps_si512(x), o->n - i >= LANES);
        n += (uint32_t)__builtin_popcount(stay);
    }
    *o = (struct open){.value = kept, .n = n, .sum_below = (double)_mm512_reduce_add_ps(sum)};
}

/* `kept` [n] is scratch. */
static float find_cut(const struct op_draw *op, float *kept)
{
    struct open open = {.value = op->value, .n = op->n};
    uint32_t lo = float_bits(OP_DRAW_LEAST), hi = float_bits(2.0f);
    /* What lies below can be no more than 1: a cut as low as the variance is never too high. */
    const float sure = (float)op->variance / 2;
    if (sure > OP_DRAW_LEAST && sure < 1) {
        rise_to(&open, sure, kept);
        lo = float_bits(sure);
    }
    while (hi - lo > OP_DRAW_STEP) {
        const uint32_t mid = lo + (hi - lo) / 2;
        if (try_cut(&open, op, bits_float(mid), kept))
            lo = mid;
        else
            hi = mid;
    }
    return bits_float(lo);
}

/* Natural logs of positive normal numbers, by the series of atanh; relative error below 1e-6. */
static __m512 log_ps(__m512 x)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 m = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_zero);
    const __m512 e = _mm512_getexp_ps(_mm512_div_ps(x, m)); /* x / m is a power of two */
    const __m512 z = _mm512_div_ps(_mm512_sub_ps(m, one), _mm512_add_ps(m, one));
    const __m512 z2 = _mm512_mul_ps(z, z);
    __m512 p = _mm512_set1_ps(2.0f / 7);
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(2.0f / 5));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(2.0f / 3));
    p = _mm512_fmadd_ps(p, z2, _mm512_set1_ps(2.0f));
    return _mm512_fmadd_ps(e, _mm512_set1_ps(0.693147181f), _mm512_mul_ps(p, z));
}

/* The items taken and, in `logw`, their values. */
static uint32_t take_items(const struct op_draw *op, float found)
{
    const __m512 cut = _mm512_set1_ps(found), by = _mm512_set1_ps(0x1p32f / found);
    const __m512i step = _mm512_set1_epi32(LANES);
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i at = _mm512_add_epi32(lane, _mm512_set1_epi32((int32_t)op->first));
    uint32_t begin[LANES], n = 0;
    for (uint32_t i = 0; i < LANES; i++) begin[i] = op_draw_begin(i);
    __m512i sum = _mm512_loadu_si512(begin);
    for (uint32_t i = 0; i < op->n; i += LANES, at = _mm512_add_epi32(at, step)) {
        const __mmask16 lanes = math_lane_mask(op->n - i);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, op->value + i);
        const __mmask16 below = _mm512_cmp_ps_mask(x, cut, _CMP_LT_OQ);
        /* What rounds to a chance of 1 becomes the largest integer. */
        const __m512i chance = _mm512_maskz_cvttps_epu32(below, _mm512_mul_ps(x, by));
        sum = _mm512_add_epi32(sum, chance);
        const __mmask16 drawn = _mm512_cmplt_epu32_mask(sum, chance);
        const __mmask16 taken = (__mmask16)(drawn | (lanes & ~below));
        const bool room = op->n - i >= LANES; /* for no more are taken than have passed */
        store_some(op->item + n, taken, at, room);
        store_some(op->logw + n, taken, _mm512_castps_si512(x), room);
        n += (uint32_t)__builtin_popcount(taken);
    }
    return n;
}

static uint32_t draw_avx512(const struct op_draw *op)
{
    const float found = find_cut(op, op->logw);
    const uint32_t n = take_items(op, found);
    const __m512 cut = _mm512_set1_ps(found);
    for (uint32_t i = 0; i < n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(n - i);
        const __m512 x = _mm512_maskz_loadu_ps(lanes, op->logw + i);
        const __mmask16 below = _mm512_mask_cmp_ps_mask(lanes, x, cut, _CMP_LT_OQ);
        _mm512_mask_storeu_ps(op->logw + i, lanes,
                              _mm512_maskz_mov_ps(below, log_ps(_mm512_div_ps(cut, x))));
    }
    return n;
}

void ops_fill_avx512_draw(struct ops *o)
{
    o->draw = draw_avx512;
}
