/* best_tmpl.h: the best of many values, by bisecting the interval of keys that contains the
 * threshold, in vectors: one source for AVX2 and AVX-512 (private).
 *
 * Included once by a file of one instruction set after its vec_*.h.
 *
 * Values become keys, integers of the same order. Each round sums what lies in the upper half of
 * the interval [lo, hi). Keys above the interval are certainly taken, keys below it are not, and
 * both are removed from the list of keys as soon as they are half of it. If the threshold is
 * determined by a sum, values too small to reach it are left out from the start: all of them
 * together hold less than what may be missed. Sums are f64, in the order of the items, whatever the
 * number of workers. */
#ifndef SAC_OPS_CPU_BEST_TMPL_H
#define SAC_OPS_CPU_BEST_TMPL_H

#include "base/half.h"
#include "ops/ops.h"

#include <math.h>

static vec_i keys_of(vec value)
{
    const vec_i bits = i_bits(value);
    const vec_i flip = i_or(i_sra(bits, 31), i_set1(INT32_MIN));
    return i_where(m_ordered(value), i_xor(bits, flip)); /* 0 for NaN */
}

/* Keys that may still be the threshold. */
struct keys {
    uint32_t *key; /* [n] */
    uint32_t n;
    bool by_sum;
};

/* Mask of the keys among the first n that are in [lo, last]. */
VEC_PART vec_m between(vec_i key, uint32_t n, vec_i lo, vec_i last)
{
    return m_and(m_first(n), m_and(i_reaches(key, lo), i_reaches(last, key)));
}

/* Weight of the keys in [from, hi): their number or, by_sum, the sum of their values. Keys of
 * values that are not negative are their bits with the highest one set. */
static double weight_between(const struct keys *k, uint32_t from, uint64_t hi, uint32_t *out_n)
{
    const vec_i lowest = i_set1((int32_t)from), highest = i_set1((int32_t)(uint32_t)(hi - 1));
    vec_d sum[2] = {d_zero(), d_zero()};
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i += VEC) {
        const vec_i key = i_first(k->key + i, k->n - i);
        const vec_m in = between(key, k->n - i, lowest, highest);
        n += (uint32_t)__builtin_popcount(m_word(in));
        if (!k->by_sum) continue;
        d_add(sum, v_bits(i_where(in, i_and(key, i_set1(INT32_MAX)))));
    }
    *out_n = n;
    return k->by_sum ? d_sum(sum) : n;
}

static void keep_between(struct keys *k, uint32_t lo, uint64_t hi)
{
    const vec_i lowest = i_set1((int32_t)lo), highest = i_set1((int32_t)(uint32_t)(hi - 1));
    uint32_t n = 0;
    for (uint32_t i = 0; i < k->n; i += VEC) {
        const vec_i key = i_first(k->key + i, k->n - i);
        n += i_pack(k->key + n, between(key, k->n - i, lowest, highest), key, k->n - i >= VEC);
    }
    k->n = n;
}

struct total {
    double sum;
    float max;
};

static struct total total_of(const struct op_best *op)
{
    vec_d sum[2] = {d_zero(), d_zero()};
    vec max = v_zero();
    for (uint32_t i = 0; i < op->n; i += VEC) {
        const vec x = v_first(op->value + i, op->n - i);
        d_add(sum, x);
        max = v_max(max, x);
    }
    return (struct total){d_sum(sum), v_most(max)};
}

/* Lists the keys from `lo` on. */
static void load_keys(struct keys *k, const struct op_best *op, uint32_t lo)
{
    const vec_i lowest = i_set1((int32_t)lo);
    k->n = 0;
    for (uint32_t i = 0; i < op->n; i += VEC) {
        const vec_i key = keys_of(v_first(op->value + i, op->n - i));
        const vec_m in = m_and(m_first(op->n - i), i_reaches(key, lowest));
        k->n += i_pack(k->key + k->n, in, key, op->n - i >= VEC);
    }
}

static struct op_cut best_vec(const struct op_best *op)
{
    struct keys k = {.key = op->spare, .by_sum = op->by_sum};
    uint32_t lo = 0, n_in;
    uint64_t hi = (uint64_t)UINT32_MAX + 1;
    double need = op->target;
    if (!(need > 0)) return (struct op_cut){.key = UINT32_MAX};
    if (op->by_sum) {
        const struct total total = total_of(op);
        /* Half of what may be missing, so that rounding of sums cannot matter. */
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

static void mark_vec(const struct op_mark *op)
{
    const vec_i cut = i_set1((int32_t)op->cut.key);
    uint32_t n_tie = op->cut.n_tie;
    for (uint32_t p = 0; p < op->n_page; p++) {
        const float *value = op->value + (size_t)p * PAGE_TOK;
        uint32_t bits = 0, ties = 0;
        for (uint32_t i = 0; i < PAGE_TOK; i += VEC) {
            const vec_i key = keys_of(v_load(value + i));
            const vec_m reaches = i_reaches(key, cut), is_tie = m_and(reaches, i_reaches(cut, key));
            bits |= m_word(m_less(reaches, is_tie)) << i;
            ties |= m_word(is_tie) << i;
        }
        for (; ties && n_tie; ties &= ties - 1, n_tie--) bits |= ties & -ties;
        if (bits) op->mask[op->page ? op->page[p] : p] |= bits;
    }
}

#endif
