/* best_avx512.c: the best of many values, by halving an interval of keys that holds the cut.
 *
 * Values become keys, integers in their order. Each round sums what lies in the upper half of the
 * interval [lo, hi); what lies above is known to be taken, what lies below is not, and both leave
 * the list of keys as soon as half of it has. When a sum decides, values too small to reach the cut
 * are left out from the start: all of them together hold less than what may be missed. Sums are
 * f64, in the order of the items, whatever the machine does beside. */
#include "base/half.h"
#include "ops/cpu/fill.h"
#include "ops/cpu/math_avx512.h"

#include <immintrin.h>
#include <math.h>

#define LANES 16u

static __m512i keys_of(__m512 value)
{
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i flip = _mm512_or_si512(_mm512_srai_epi32(bits, 31), _mm512_set1_epi32(INT32_MIN));
    const __mmask16 number = _mm512_cmp_ps_mask(value, value, _CMP_ORD_Q);
    return _mm512_maskz_xor_epi32(number, bits, flip); /* 0 for NaN */
}

/* The list of keys that may still be the cut's. */
struct keys {
    uint32_t *key; /* [n] */
    uint32_t n;
    bool by_sum;
};

/* Number of keys in [from, hi) and, by_sum, the sum of their values: keys of values that are not
 * negative are their bits, the highest one set. */
static double weight_between(const struct keys *k, uint32_t from, uint64_t hi, uint32_t *out_n)
{
    const __m512i lowest = _mm512_set1_epi32((int)from);
    const __m512i highest = _mm512_set1_epi32((int)(uint32_t)(hi - 1));
    __m512d sum0 = _mm512_setzero_pd(), sum1 = sum0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(k->n - i);
        const __m512i key = _mm512_maskz_loadu_epi32(lanes, k->key + i);
        const __mmask16 in = _mm512_mask_cmple_epu32_mask(
            _mm512_mask_cmpge_epu32_mask(lanes, key, lowest), key, highest);
        n += (uint32_t)__builtin_popcount(in);
        if (!k->by_sum) continue;
        const __m512 value =
            _mm512_castsi512_ps(_mm512_maskz_and_epi32(in, key, _mm512_set1_epi32(INT32_MAX)));
        sum0 = _mm512_add_pd(sum0, _mm512_cvtps_pd(_mm512_castps512_ps256(value)));
        sum1 = _mm512_add_pd(sum1, _mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1)));
    }
    *out_n = n;
    return k->by_sum ? _mm512_reduce_add_pd(_mm512_add_pd(sum0, sum1)) : n;
}

static void keep_between(struct keys *k, uint32_t lo, uint64_t hi)
{
    const __m512i lowest = _mm512_set1_epi32((int)lo);
    const __m512i highest = _mm512_set1_epi32((int)(uint32_t)(hi - 1));
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(k->n - i);
        const __m512i key = _mm512_maskz_loadu_epi32(lanes, k->key + i);
        const __mmask16 in = _mm512_mask_cmple_epu32_mask(
            _mm512_mask_cmpge_epu32_mask(lanes, key, lowest), key, highest);
        _mm512_mask_compressstoreu_epi32(k->key + n, in, key);
        n += (uint32_t)__builtin_popcount(in);
    }
    k->n = n;
}

struct total {
    double sum;
    float max;
};

static struct total total_of(const struct op_best *op)
{
    __m512d sum0 = _mm512_setzero_pd(), sum1 = sum0;
    __m512 max = _mm512_setzero_ps();
    for (uint32_t i = 0; i < op->n; i += LANES) {
        const __m512 x = _mm512_maskz_loadu_ps(math_lane_mask(op->n - i), op->value + i);
        sum0 = _mm512_add_pd(sum0, _mm512_cvtps_pd(_mm512_castps512_ps256(x)));
        sum1 = _mm512_add_pd(sum1, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1)));
        max = _mm512_max_ps(max, x);
    }
    return (struct total){_mm512_reduce_add_pd(_mm512_add_pd(sum0, sum1)),
                          _mm512_reduce_max_ps(max)};
}

/* Keys of values not below `least`. */
static void load_keys(struct keys *k, const struct op_best *op, uint32_t lo)
{
    const __m512i lowest = _mm512_set1_epi32((int)lo);
    k->n = 0;
    for (uint32_t i = 0; i < op->n; i += LANES) {
        const __mmask16 lanes = math_lane_mask(op->n - i);
        const __m512i key = keys_of(_mm512_maskz_loadu_ps(lanes, op->value + i));
        const __mmask16 in = _mm512_mask_cmpge_epu32_mask(lanes, key, lowest);
        _mm512_mask_compressstoreu_epi32(k->key + k->n, in, key);
        k->n += (uint32_t)__builtin_popcount(in);
    }
}

static struct op_cut best_avx512(const struct op_best *op)
{
    struct keys k = {.key = op->spare, .by_sum = op->by_sum};
    uint32_t lo = 0, n_in;
    uint64_t hi = (uint64_t)UINT32_MAX + 1;
    double need = op->target;
    if (!(need > 0)) return (struct op_cut){.key = UINT32_MAX};
    if (op->by_sum) {
        const struct total total = total_of(op);
        /* Half of what may be missed, so that rounding of sums cannot matter. */
        const double least = (total.sum - need) / 2 / op->n;
        if (least > 0) lo = op_best_key((float)least);
        hi = (uint64_t)op_best_key(total.max) + 1;
    }
    load_keys(&k, op, lo);
    while (hi - lo > 1) {
        const uint32_t mid = (uint32_t)(lo + (hi - lo) / 2);
        const double weight = weight_between(&k, mid, hi, &n_in);
        if (weight >= need) {
            lo = mid;
        } else {
            need -= weight;
            hi = mid;
            n_in = k.n - n_in;
        }
        if (n_in <= k.n / 2) keep_between(&k, lo, hi);
    }
    const double weight = weight_between(&k, lo, hi, &n_in);
    const double each = n_in ? weight / n_in : 0, ties = each > 0 ? ceil(need / each) : n_in;
    return (struct op_cut){.key = lo, .n_tie = ties < n_in ? (uint32_t)ties : n_in};
}

static void mark_avx512(const struct op_mark *op)
{
    const __m512i cut = _mm512_set1_epi32((int)op->cut.key);
    uint32_t n_tie = op->cut.n_tie;
    for (uint32_t p = 0; p < op->n_page; p++) {
        const float *value = op->value + (size_t)p * PAGE_TOK;
        const __m512i a = keys_of(_mm512_loadu_ps(value));
        const __m512i b = keys_of(_mm512_loadu_ps(value + LANES));
        uint32_t bits = (uint32_t)_mm512_cmpgt_epu32_mask(a, cut) |
                        (uint32_t)_mm512_cmpgt_epu32_mask(b, cut) << LANES;
        uint32_t ties = (uint32_t)_mm512_cmpeq_epi32_mask(a, cut) |
                        (uint32_t)_mm512_cmpeq_epi32_mask(b, cut) << LANES;
        for (; ties && n_tie; ties &= ties - 1, n_tie--) bits |= ties & -ties;
        if (bits) op->mask[op->page ? op->page[p] : p] |= bits;
    }
}

void ops_fill_avx512_best(struct ops *o)
{
    o->best = best_avx512;
    o->mark = mark_avx512;
}
