/* test_bench.c: the list of operations that can be measured, its counts, and failures. Times are
 * the machine's business. */
#include "base/mem.h"
#include "ops/bench_case.h"

#include "saccade_machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Rates as round as they are false: limits can be computed by hand. */
static const sac_machine machine = {.n_threads = 1,
                                    .read_gb_s = 10,
                                    .avx2_f32_gflop_s = 100,
                                    .avx2_int8_gop_s = 100,
                                    .avx512_f32_gflop_s = 100,
                                    .avx512_int8_gop_s = 100,
                                    .avx512_bf16_gflop_s = 100,
                                    .amx_bf16_gflop_s = 100,
                                    .amx_int8_gop_s = 100,
                                    .neon_f32_gflop_s = 100,
                                    .neon_int8_gop_s = 100};

static size_t find(const char *op, const char *shape, const char *what)
{
    sac_op o;
    for (size_t i = 0; sac_op_at(i, &o); i++)
        if (strcmp(o.op, op) == 0 && strcmp(o.shape, shape) == 0 && strcmp(o.what, what) == 0)
            return i;
    fail_msg("no %s of %s: %s", op, shape, what);
    return 0;
}

static void test_names_are_unique(void **state)
{
    (void)state;
    sac_op a, b;
    size_t n = 0;
    for (; sac_op_at(n, &a); n++) {
        assert_true(a.bytes > 0);
        assert_true(strlen(a.what) < sizeof a.what - 1);
        for (size_t i = 0; i < n && sac_op_at(i, &b); i++)
            assert_true(strcmp(a.op, b.op) || strcmp(a.mode, b.mode) || strcmp(a.shape, b.shape) ||
                        strcmp(a.what, b.what));
    }
    assert_true(n > 150);
}

static void test_counts(void **state)
{
    (void)state;
    sac_op o;
    /* Rows see 1,537 to 2,048 keys; a key costs two products of head_dim. */
    assert_true(sac_op_at(
        find("attn", "qwen2.5-coder-0.5b", "f16 14+2 heads of 64, 2048 tokens, 512 rows"), &o));
    double keys = 0;
    for (int row = 0; row < 512; row++) keys += 1536 + row + 1;
    assert_true(o.flop == 14 * keys * 64 * 2 * 2);
    assert_true(o.bytes == 2.0 * 2048 * 2 * 64 * 2);
    /* q, k and v together; Q4_K packs 32 weights into 16 bytes and 256 scales, by chunks of 256. */
    assert_true(sac_op_at(find("linear", "llama-3.1-8b", "qkv Q4_K 4096 x 6144, 8 rows"), &o));
    assert_true(o.flop == 2.0 * 8 * 4096 * 6144);
    struct weight w;
    weight_init(&w, QUANT_Q4_K, 6144, 4096);
    assert_true(o.bytes == (double)weight_bytes(&w));
}

static void test_limit_is_the_larger_time(void **state)
{
    (void)state;
    sac_op_bench *bench = NULL;
    sac_op o;
    assert_int_equal(sac_op_bench_create(&bench, &machine, NULL), SAC_OK);
    const size_t narrow = find("linear", "smollm2-135m", "o Q4_1 576 x 576, 1 row");
    assert_int_equal(sac_op_measure(bench, narrow, 0, &o, NULL), SAC_OK);
    assert_string_equal(o.limit, "read");
    assert_true(o.seconds_limit == o.bytes / 10e9);
    assert_true(o.seconds >= o.seconds_best && o.seconds_best > 0);
    const size_t wide = find("linear", "smollm2-135m", "o Q4_1 576 x 576, 512 rows");
    assert_int_equal(sac_op_measure(bench, wide, 0, &o, NULL), SAC_OK);
    assert_string_not_equal(o.limit, "read");
    assert_true(o.seconds_limit == o.flop / 100e9);
    sac_op_bench_free(bench);
}

static void test_every_kind_runs(void **state)
{
    (void)state;
    static const char *const what[][2] = {{"attn", "f16 4+1 heads of 256, 8192 tokens, 1 row"},
                                          {"attn", "q8 4+1 heads of 256, 8192 tokens, 1 row"},
                                          {"rmsnorm", "640, 512 rows"},
                                          {"rope", "4 heads of 256, 512 rows"},
                                          {"kv_write", "1 heads of 256, 512 rows"},
                                          {"seal", "f16 1 heads of 256, 512 rows"},
                                          {"seal", "q8 1 heads of 256, 512 rows"}};
    sac_op_bench *bench = NULL;
    sac_op o;
    assert_int_equal(sac_op_bench_create(&bench, &machine, NULL), SAC_OK);
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        const size_t at = find(what[i][0], "gemma-3-270m", what[i][1]);
        assert_int_equal(sac_op_measure(bench, at, 0, &o, NULL), SAC_OK);
        assert_true(o.seconds > 0);
    }
    sac_op_bench_free(bench);
}

static void test_failures(void **state)
{
    (void)state;
    sac_op_bench *bench = NULL;
    sac_op o;
    sac_error err;
    for (uint64_t n = 1;; n++) {
        mem_fail_after(n);
        const sac_status status = sac_op_bench_create(&bench, &machine, &err);
        mem_fail_after(0);
        if (status == SAC_OK) break;
        assert_int_equal(status, SAC_ERR_MEMORY);
        assert_null(bench);
    }
    static const char *const what[][2] = {{"linear", "qkv Q4_1 576 x 960, 1 row"},
                                          {"attn", "q8 9+3 heads of 64, 8192 tokens, 1 row"},
                                          {"seal", "f16 3 heads of 64, 512 rows"}};
    for (size_t i = 0; i < sizeof what / sizeof what[0]; i++) {
        const size_t at = find(what[i][0], "smollm2-135m", what[i][1]);
        uint64_t n = 1;
        for (;; n++) {
            mem_fail_after(n);
            const sac_status status = sac_op_measure(bench, at, 0, &o, &err);
            mem_fail_after(0);
            if (status == SAC_OK) break;
            assert_int_equal(status, SAC_ERR_MEMORY);
            assert_true(strlen(err.msg) > 0);
        }
        assert_true(n > 1);
    }
    assert_int_equal(sac_op_measure(bench, 1000000, 0, &o, &err), SAC_ERR_ARG);
    sac_op_bench_free(bench);
    sac_op_bench_free(NULL);
}

static void test_peaks(void **state)
{
    (void)state;
    static const struct {
        const char *isa;
        bool linear, wide;
        const char *name;
    } cases[] = {{"amx", true, true, "amx bf16"},        {"amx", true, false, "avx512 int8"},
                 {"amx", false, false, "amx bf16"},      {"avx512", true, true, "avx512 bf16"},
                 {"avx512", true, false, "avx512 int8"}, {"avx512", false, true, "avx512 bf16"},
                 {"avx2", true, true, "avx2 int8"},      {"neon", true, false, "neon int8"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *name;
        const double peak =
            sac_machine_peak(&machine, cases[i].isa, cases[i].linear, cases[i].wide, &name);
        assert_string_equal(name, cases[i].name);
        assert_true(peak == 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_peaks),
        cmocka_unit_test(test_limit_is_the_larger_time),
        cmocka_unit_test(test_every_kind_runs),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
