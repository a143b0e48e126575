/* test_pack.c: the packed layout loses nothing. For every type and for shapes with ragged edges,
 * weight_unpack_row must give the bits of quant_dequant_row on blocks of random bytes, which hold
 * every code, scale, infinity and NaN. Payloads of NaN are free: they name no number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/mem.h"
#include "ops/weight_layout.h"

#include <math.h>
#include <string.h>

static const enum quant_type types[] = {QUANT_F32,  QUANT_F16,    QUANT_BF16,  QUANT_Q4_0,
                                        QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,  QUANT_Q8_0,
                                        QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,  QUANT_Q5_K,
                                        QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS};
#define N_TYPE (sizeof types / sizeof types[0])

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static void check_matrix(struct workers *pool, enum quant_type type, uint32_t n_out, uint32_t n_in)
{
    uint64_t seed = 1 + type;
    const size_t row_bytes = quant_row_bytes(type, n_in);
    struct weight w;
    weight_init(&w, type, n_out, n_in);
    assert_int_equal(w.group_bytes % 64, 0);
    uint8_t *src = mem_alloc(n_out * row_bytes);
    float *want = mem_alloc(n_in * sizeof *want), *got = mem_alloc(n_in * sizeof *got);
    w.data = mem_map(weight_bytes(&w));
    assert_true(src && want && got && w.data);
    for (size_t i = 0; i < n_out * row_bytes; i++) src[i] = (uint8_t)next_random(&seed);
    memset(w.data, 0xa5, weight_bytes(&w)); /* what pack does not write must show */
    weight_pack(pool, &w, src);
    for (uint32_t o = 0; o < n_out; o++) {
        quant_dequant_row(want, type, src + o * row_bytes, n_in);
        weight_unpack_row(got, &w, o);
        float shrink;
        memcpy(&shrink, w.data + o / 16 * w.group_bytes + o % 16 * 4, sizeof shrink);
        bool finite = true;
        for (uint32_t k = 0; k < n_in; k++) finite &= isfinite(want[k]) != 0;
        for (uint32_t k = 0; k < n_in; k++) {
            if (isnan(want[k]) ? !isnan(got[k]) : float_bits(want[k]) != float_bits(got[k]))
                fail_msg("%s [%u, %u]: row %u, input %u is %a, not %a", quant_name(type), n_out,
                         n_in, o, k, (double)got[k], (double)want[k]);
            if (finite) assert_true(fabsf(want[k] * shrink) < 0x1p15f);
        }
    }
    mem_unmap(w.data, weight_bytes(&w));
    mem_free(src);
    mem_free(want);
    mem_free(got);
}

static void every_type_keeps_its_bits(void **state)
{
    (void)state;
    static const uint32_t outs[] = {1, 16, 17, 40}, ins[] = {32, 256, 288, 896, 1024};
    struct workers *pool = NULL;
    assert_int_equal(workers_create(&pool, 2, NULL), SAC_OK);
    for (size_t t = 0; t < N_TYPE; t++)
        for (size_t o = 0; o < sizeof outs / sizeof *outs; o++)
            for (size_t i = 0; i < sizeof ins / sizeof *ins; i++)
                if (ins[i] % quant_block_elems(types[t]) == 0)
                    check_matrix(pool, types[t], outs[o], ins[i]);
    /* Plain floats need no whole block. */
    for (size_t t = 0; t < 3; t++) check_matrix(pool, types[t], 19, 45);
    workers_destroy(pool);
}

/* Inputs [first, first + n) of a matrix, in place of other bytes. */
static void check_cut(const struct weight *all, uint32_t first, uint32_t n)
{
    struct weight w;
    weight_init(&w, all->type, all->n_out, n);
    float *want = mem_alloc(all->n_in * sizeof *want), *got = mem_alloc(n * sizeof *got);
    w.data = mem_map(weight_bytes(&w));
    assert_true(want && got && w.data);
    memset(w.data, 0xa5, weight_bytes(&w));
    weight_cut(&w, all, first);
    for (uint32_t o = 0; o < all->n_out; o++) {
        weight_unpack_row(want, all, o);
        weight_unpack_row(got, &w, o);
        for (uint32_t k = 0; k < n; k++)
            if (isnan(want[first + k]) ? !isnan(got[k])
                                       : float_bits(want[first + k]) != float_bits(got[k]))
                fail_msg("%s: row %u, inputs from %u: %u is %a, not %a", quant_name(all->type), o,
                         first, k, (double)got[k], (double)want[first + k]);
    }
    mem_unmap(w.data, weight_bytes(&w));
    mem_free(want);
    mem_free(got);
}

/* Into parts of whole units, chunks or not, and what is left. */
static void a_cut_keeps_the_bits_of_its_inputs(void **state)
{
    (void)state;
    struct workers *pool = NULL;
    uint64_t seed = 7;
    assert_int_equal(workers_create(&pool, 1, NULL), SAC_OK);
    for (size_t t = 0; t < N_TYPE; t++) {
        struct weight all;
        const uint32_t n_in = 1280, unit = weight_cut_unit(types[t]);
        assert_true(unit >= 32 && unit % quant_block_elems(types[t]) == 0);
        weight_init(&all, types[t], 19, n_in);
        const size_t n = 19 * quant_row_bytes(types[t], n_in);
        uint8_t *src = mem_alloc(n);
        all.data = mem_map(weight_bytes(&all));
        assert_true(src && all.data);
        for (size_t i = 0; i < n; i++) src[i] = (uint8_t)next_random(&seed);
        weight_pack(pool, &all, src);
        check_cut(&all, 0, unit);
        check_cut(&all, unit, 3 * unit);
        check_cut(&all, 3 * unit, n_in - 3 * unit);
        check_cut(&all, 0, n_in);
        mem_unmap(all.data, weight_bytes(&all));
        mem_free(src);
    }
    workers_destroy(pool);
}

/* What a decode step reads must stay close to the file. */
static void bytes_per_weight_are_bounded(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPE; t++) {
        struct weight w;
        weight_init(&w, types[t], 4096, 4096);
        const double file = (double)quant_row_bytes(types[t], 4096) * 4096;
        assert_true((double)weight_bytes(&w) < file * 1.045);
    }
    struct weight w;
    weight_init(&w, QUANT_Q4_K, 4096, 4096);
    assert_true((double)weight_bytes(&w) * 8 / (4096.0 * 4096.0) < 4.7);
    weight_init(&w, QUANT_Q6_K, 4096, 4096);
    assert_true((double)weight_bytes(&w) * 8 / (4096.0 * 4096.0) < 6.7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_type_keeps_its_bits),
        cmocka_unit_test(a_cut_keeps_the_bits_of_its_inputs),
        cmocka_unit_test(bytes_per_weight_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
