/* test_quant.c: the table of tensor types, and blocks worked out by hand. The comparison with an
 * independent implementation on random blocks is tests/truth/test_dequant.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "ops/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_table(void **state)
{
    (void)state;
    static const struct {
        enum quant_type type;
        const char *name;
        uint32_t elems, bytes;
    } types[] = {
        {QUANT_F32, "F32", 1, 4},           {QUANT_F16, "F16", 1, 2},
        {QUANT_BF16, "BF16", 1, 2},         {QUANT_Q4_0, "Q4_0", 32, 18},
        {QUANT_Q4_1, "Q4_1", 32, 20},       {QUANT_Q5_0, "Q5_0", 32, 22},
        {QUANT_Q5_1, "Q5_1", 32, 24},       {QUANT_Q8_0, "Q8_0", 32, 34},
        {QUANT_Q2_K, "Q2_K", 256, 84},      {QUANT_Q3_K, "Q3_K", 256, 110},
        {QUANT_Q4_K, "Q4_K", 256, 144},     {QUANT_Q5_K, "Q5_K", 256, 176},
        {QUANT_Q6_K, "Q6_K", 256, 210},     {QUANT_IQ4_NL, "IQ4_NL", 32, 18},
        {QUANT_IQ4_XS, "IQ4_XS", 256, 136},
    };
    uint32_t n_supported = 0;
    for (uint32_t type = 0; type < 1000; type++) n_supported += quant_supported(type);
    assert_int_equal(n_supported, sizeof types / sizeof *types);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_true(quant_supported(types[i].type));
        assert_string_equal(quant_name(types[i].type), types[i].name);
        assert_int_equal(quant_block_elems(types[i].type), types[i].elems);
        assert_int_equal(quant_block_bytes(types[i].type), types[i].bytes);
        assert_int_equal(quant_row_bytes(types[i].type, 0), 0);
        assert_int_equal(quant_row_bytes(types[i].type, 512),
                         512 / types[i].elems * types[i].bytes);
    }
}

static void test_refused_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
    } types[] = {{9, "Q8_1"},     {15, "Q8_K"},  {16, "IQ2_XXS"},    {17, "IQ2_XS"},
                 {18, "IQ3_XXS"}, {19, "IQ1_S"}, {21, "IQ3_S"},      {22, "IQ2_S"},
                 {24, "I8"},      {28, "F64"},   {29, "IQ1_M"},      {31, "Q4_0_4_4"},
                 {34, "TQ1_0"},   {35, "TQ2_0"}, {38, "IQ4_NL_8_8"}, {39, "MXFP4"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        assert_string_equal(quant_name(types[i].type), types[i].name);
        assert_false(quant_supported(types[i].type));
        assert_int_equal(quant_block_elems(types[i].type), 0);
        assert_int_equal(quant_block_bytes(types[i].type), 0);
    }
    assert_null(quant_name(1000));
    assert_null(quant_name(UINT32_MAX));
    assert_false(quant_supported(UINT32_MAX));
}

/* f16 of 0.5, 2 and -1, low byte first. */
#define HALF  0x00, 0x38
#define TWO   0x00, 0x40
#define MINUS 0x00, 0xbc

static void test_small_blocks(void **state)
{
    (void)state;
    float y[32];
    const uint8_t q4_0[18] = {HALF, 0xf0}; /* element 0: code 0; element 16: code 15 */
    quant_dequant_row(y, QUANT_Q4_0, q4_0, 32);
    assert_true(y[0] == -4.0f && y[16] == 3.5f && y[1] == -4.0f);
    const uint8_t q4_1[20] = {HALF, MINUS, 0x2f};
    quant_dequant_row(y, QUANT_Q4_1, q4_1, 32);
    assert_true(y[0] == 6.5f && y[16] == 0.0f && y[31] == -1.0f);
    const uint8_t q5_0[22] = {TWO, 0x01, 0, 0, 0x80, 0x03, [21] = 0x70};
    quant_dequant_row(y, QUANT_Q5_0, q5_0, 32);
    assert_true(y[0] == 6.0f && y[16] == -32.0f && y[31] == 14.0f && y[15] == -32.0f);
    const uint8_t q5_1[24] = {TWO, MINUS, 0x01, 0, 0, 0x80, 0x03, [23] = 0x70};
    quant_dequant_row(y, QUANT_Q5_1, q5_1, 32);
    assert_true(y[0] == 37.0f && y[16] == -1.0f && y[31] == 45.0f);
    const uint8_t q8_0[34] = {HALF, 0x80, 0x7f, [33] = 0xff};
    quant_dequant_row(y, QUANT_Q8_0, q8_0, 32);
    assert_true(y[0] == -64.0f && y[1] == 63.5f && y[31] == -0.5f);
    const uint8_t iq4_nl[18] = {TWO, 0xf0, 0x78};
    quant_dequant_row(y, QUANT_IQ4_NL, iq4_nl, 32);
    assert_true(y[0] == -254.0f && y[16] == 226.0f && y[1] == 2.0f && y[17] == -20.0f);
}

/* Every element of a super-block in turn: one code set, the others as code 0 gives them. */
static void test_places(void **state)
{
    (void)state;
    float y[256];
    for (uint32_t e = 0; e < 256; e++) {
        const uint32_t half = e / 128, l = e % 32, pair = e % 128 / 32;
        uint8_t q6_k[210] = {0}; /* scales 1, d = 2; code 33 = 1 | 2 << 4 */
        memset(q6_k + 192, 1, 16);
        memcpy(q6_k + 208, (uint8_t[]){TWO}, 2);
        q6_k[half * 64 + pair % 2 * 32 + l] = (uint8_t)(1u << (pair / 2 * 4));
        q6_k[128 + half * 32 + l] = (uint8_t)(2u << (2 * pair));
        quant_dequant_row(y, QUANT_Q6_K, q6_k, 256);
        for (uint32_t i = 0; i < 256; i++) assert_true(y[i] == (i == e ? 2.0f : -64.0f));

        uint8_t q2_k[84] = {0}; /* scales 1, offsets 1, d = 2, dmin = 0.5 */
        memset(q2_k, 0x11, 16);
        memcpy(q2_k + 80, (uint8_t[]){TWO, HALF}, 4);
        q2_k[16 + half * 32 + l] = (uint8_t)(3u << (2 * pair));
        quant_dequant_row(y, QUANT_Q2_K, q2_k, 256);
        for (uint32_t i = 0; i < 256; i++) assert_true(y[i] == (i == e ? 5.5f : -0.5f));

        uint8_t q5_k[176] = {TWO, HALF}; /* scales 1, offsets 1 of groups 0..3; 4..7: both 1 */
        memset(q5_k + 4, 1, 8);
        memset(q5_k + 12, 0x11, 4);
        q5_k[48 + e / 64 * 32 + l] = (uint8_t)(5u << (e / 32 % 2 * 4));
        q5_k[16 + l] = (uint8_t)(1u << (e / 32));
        quant_dequant_row(y, QUANT_Q5_K, q5_k, 256);
        for (uint32_t i = 0; i < 256; i++) assert_true(y[i] == (i == e ? 41.5f : -0.5f));
    }
}

/* A row of several blocks, at an odd address, writes exactly its elements. */
static void test_rows(void **state)
{
    (void)state;
    for (uint32_t type = 0; type <= QUANT_BF16; type++) {
        if (!quant_supported(type)) continue;
        const size_t n = 3 * 256, bytes = quant_row_bytes(type, n);
        uint8_t *src = malloc(bytes + 1);
        float *row = malloc((n + 1) * sizeof *row), *one = malloc(256 * sizeof *one);
        assert_true(src && row && one);
        for (size_t i = 0; i < bytes; i++) src[i + 1] = (uint8_t)(i * 37 % 57);
        row[n] = 1234.5f;
        quant_dequant_row(row, type, src + 1, n);
        assert_true(row[n] == 1234.5f);
        for (size_t i = 0; i < 3; i++) {
            quant_dequant_row(one, type, src + 1 + quant_row_bytes(type, i * 256), 256);
            assert_memory_equal(one, row + i * 256, 256 * sizeof *one);
        }
        quant_dequant_row(row, type, src, 0);
        free(one);
        free(row);
        free(src);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),        cmocka_unit_test(test_refused_types),
        cmocka_unit_test(test_small_blocks), cmocka_unit_test(test_places),
        cmocka_unit_test(test_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
