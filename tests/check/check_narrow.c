/* check_narrow.c: linear layers of decode rows as the CUDA library has them, against the reference,
 * for every type: rows of weights that are cut into pieces and such that are not, ragged ends, the
 * same bits for a row in whatever company, parts of several types in one call, and, for some types,
 * more outputs than there is room for at a time, of a GLU too, with rows that stay and such that do
 * not. */
#include "cuda_lib.h"

#include "base/mem.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

/* WAVE: groups of outputs that a GPU multiplies at a time, of each of its multiprocessors. */
enum { N_ROW = 19, IN_MAX = 4864, OUT_MAX = 35, WAVE = 3, MANY_IN = 2304, GROUP = 16 };

static const enum quant_type types[] = {QUANT_F32,  QUANT_F16,    QUANT_BF16,  QUANT_Q4_0,
                                        QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,  QUANT_Q8_0,
                                        QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,  QUANT_Q5_K,
                                        QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS};

static struct workers *pool;
static float x[N_ROW * IN_MAX], norm[IN_MAX], bias[OUT_MAX];
static float want[N_ROW * OUT_MAX], all[N_ROW * OUT_MAX], got[N_ROW * OUT_MAX];

static int open_problem(void **state)
{
    uint64_t seed = 7;
    sac_error err;
    if (workers_create(&pool, 1, &err) != SAC_OK) return -1;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = random_gauss(&seed);
    for (size_t i = 0; i < IN_MAX; i++) norm[i] = 1 + 0.5f * random_unit(&seed);
    for (size_t i = 0; i < OUT_MAX; i++) bias[i] = random_unit(&seed);
    return open_library(state);
}

static int close_problem(void **state)
{
    workers_destroy(pool);
    return close_library(state);
}

/* As many bytes there of no number, until give_all. */
static void *put_none(size_t bytes)
{
    uint8_t *none = mem_map(bytes);
    assert_non_null(none);
    memset(none, 0xff, bytes);
    void *there = put(none, bytes);
    mem_unmap(none, bytes);
    return there;
}

/* ---- Calls ---- */

static struct weight make_weight(enum quant_type type, uint32_t n_out, uint32_t n_in)
{
    const size_t bytes = n_out * quant_row_bytes(type, n_in);
    struct weight w;
    uint64_t seed = 3;
    weight_init(&w, type, n_out, n_in);
    uint8_t *src = mem_map(bytes);
    w.data = mem_map(weight_bytes(&w));
    assert_true(src && w.data);
    random_rows(src, type, (size_t)n_out * n_in, &seed);
    weight_pack(pool, &w, src);
    mem_unmap(src, bytes);
    return w;
}

static void call_ref(struct op_linear op)
{
    op.scratch_bytes = ref.linear_scratch(1, op.n_row, op.n_in, op.part[0].w->n_out);
    op.scratch = mem_map(op.scratch_bytes);
    assert_non_null(op.scratch);
    ref.linear(pool, &op);
    mem_unmap(op.scratch, op.scratch_bytes);
}

/* Rows row0 .. row0 + n - 1 of a problem whose pointers are the device's, to `to`. */
static void call(float *to, struct op_linear op, uint32_t row0, uint32_t n)
{
    sac_error err;
    const size_t bytes = n * op.part[0].y_stride * sizeof *to;
    op.x += row0 * op.x_stride;
    op.n_row = n;
    assert_int_equal(api->linear(device, &op), SAC_OK);
    api->down(device, to, op.part[0].y, bytes);
    must(api->wait(device, &err), &err);
}

/* Off by no more than `most` in root mean square, of what they should be. */
static void assert_near(const float *are, const float *should, uint32_t n, double most,
                        const char *name)
{
    double error = 0, power = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = (double)are[i] - (double)should[i];
        error += d * d;
        power += (double)should[i] * (double)should[i];
    }
    if (!(error <= most * most * power)) fail_msg("%s: off by %.2e", name, sqrt(error / power));
}

/* All rows against the reference, then fewer of them against these bits. */
static void check(enum quant_type type, uint32_t n_out, uint32_t n_in, bool has_norm)
{
    static const uint32_t some[][2] = {{0, 1}, {7, 3}, {18, 1}, {2, 6}, {3, 16}};
    struct weight w = make_weight(type, n_out, n_in);
    struct op_linear op = {.x = x,
                           .x_stride = n_in,
                           .n_row = N_ROW,
                           .n_in = n_in,
                           .norm = has_norm ? norm : NULL,
                           .norm_eps = 1e-5f,
                           .kind = ROW_DECODE,
                           .n_part = 1,
                           .part = {{.w = &w, .bias = bias, .y = want, .y_stride = n_out}}};
    call_ref(op);
    const struct weight there = {.type = w.type,
                                 .n_out = w.n_out,
                                 .n_in = w.n_in,
                                 .n_group = w.n_group,
                                 .group_bytes = w.group_bytes,
                                 .data = put(w.data, weight_bytes(&w))};
    op.x = put(x, (size_t)N_ROW * n_in * sizeof *x);
    if (has_norm) op.norm = put(norm, n_in * sizeof *norm);
    op.part[0].w = &there;
    op.part[0].bias = put(bias, n_out * sizeof *bias);
    op.part[0].y = put_none((size_t)N_ROW * n_out * sizeof *all);
    op.scratch_bytes = api->linear_scratch(1, N_ROW, n_in, n_out);
    op.scratch = put_none(op.scratch_bytes);
    call(all, op, 0, N_ROW);
    assert_near(all, want, N_ROW * n_out, 1e-3, quant_name(type));
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        call(got, op, some[i][0], some[i][1]);
        assert_memory_equal(got, all + some[i][0] * n_out, some[i][1] * n_out * sizeof *got);
    }
    give_all();
    mem_unmap(w.data, weight_bytes(&w));
}

/* Inputs of 10 bits with a large mean, which f16 holds, come out but for the rounding of f32 sums:
 * nothing on the way has fewer bits. */
static void whole_numbers_are_not_rounded(void **state)
{
    enum { N_IN = 512 };
    static float whole[N_ROW * N_IN];
    uint64_t seed = 11;
    (void)state;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        whole[i] = (float)(int)(700 + 300 * random_unit(&seed));
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (quant_block_elems(types[i]) == 1) continue; /* weights are rounded to f16 */
        struct weight w = make_weight(types[i], OUT_MAX, N_IN), there = w;
        struct op_linear op = {.x = whole,
                               .x_stride = N_IN,
                               .n_row = N_ROW,
                               .n_in = N_IN,
                               .kind = ROW_DECODE,
                               .n_part = 1,
                               .part = {{.w = &w, .y = want, .y_stride = OUT_MAX}}};
        call_ref(op);
        there.data = put(w.data, weight_bytes(&w));
        op.x = put(whole, sizeof whole);
        op.part[0].w = &there;
        op.part[0].y = put_none(sizeof all);
        op.scratch_bytes = api->linear_scratch(1, N_ROW, N_IN, OUT_MAX);
        op.scratch = put_none(op.scratch_bytes);
        call(all, op, 0, N_ROW);
        assert_near(all, want, N_ROW * OUT_MAX, 4e-5, quant_name(types[i]));
        give_all();
        mem_unmap(w.data, weight_bytes(&w));
    }
}

/* Parts of several types in one call give the bits that each gives alone. */
static void check_parts(const enum quant_type type[3], uint32_t n_in, uint32_t n_row)
{
    static const uint32_t n_out[3] = {19, 35, 13};
    static float alone[3][N_ROW * OUT_MAX], together[3][N_ROW * OUT_MAX];
    struct weight there[3];
    struct op_linear op = {.x = put(x, (size_t)n_row * n_in * sizeof *x),
                           .x_stride = n_in,
                           .n_in = n_in,
                           .kind = ROW_DECODE,
                           .n_part = 1};
    const float *bias_there = put(bias, sizeof bias);
    op.scratch_bytes = api->linear_scratch(1, n_row, n_in, 67);
    op.scratch = put_none(op.scratch_bytes);
    struct op_linear all_parts = op;
    all_parts.n_part = 3;
    for (uint32_t i = 0; i < 3; i++) {
        struct weight w = there[i] = make_weight(type[i], n_out[i], n_in);
        const size_t bytes = (size_t)n_row * n_out[i] * sizeof *x;
        there[i].data = put(w.data, weight_bytes(&w));
        op.part[0].w = &there[i];
        op.part[0].bias = bias_there;
        op.part[0].y_stride = n_out[i];
        op.part[0].y = put_none(bytes);
        call(alone[i], op, 0, n_row);
        all_parts.part[i] = op.part[0];
        all_parts.part[i].y = put_none(bytes);
        mem_unmap(w.data, weight_bytes(&w));
    }
    call(together[0], all_parts, 0, n_row);
    for (uint32_t i = 0; i < 3; i++) {
        sac_error err;
        const size_t bytes = (size_t)n_row * n_out[i] * sizeof *x;
        api->down(device, together[i], all_parts.part[i].y, bytes);
        must(api->wait(device, &err), &err);
        assert_memory_equal(together[i], alone[i], bytes);
    }
    give_all();
}

static void parts_of_several_types_are_those_alone(void **state)
{
    (void)state;
    /* Too short to be cut, as alone and together rows are cut in other ways. */
    check_parts((enum quant_type[]){QUANT_Q5_0, QUANT_Q5_0, QUANT_Q8_0}, 896, 1);
    check_parts((enum quant_type[]){QUANT_Q4_K, QUANT_F32, QUANT_Q6_K}, 512, 3);
    check_parts((enum quant_type[]){QUANT_F16, QUANT_Q4_K, QUANT_Q4_K}, 256, N_ROW);
}

static void long_rows_are_those_of_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const uint32_t block = quant_block_elems(types[i]);
        check(types[i], 13, block == 256 ? IN_MAX : block == 32 ? 4640 : 4627, i % 2);
    }
}

static void short_rows_are_those_of_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const uint32_t block = quant_block_elems(types[i]);
        check(types[i], OUT_MAX, block == 256 ? 256 : block == 32 ? 608 : 587, i % 2 == 0);
    }
}

/* Inputs of which every 128 are of another size than those before them. */
static void strips_have_scales_of_their_own(void **state)
{
    enum { N_IN = 1280, STRIP = 128 };
    static const float size[] = {1, 0x1p-20f, 0x1p12f, 0x1p30f, 0};
    static float kept[N_ROW * N_IN];
    (void)state;
    memcpy(kept, x, sizeof kept);
    for (size_t i = 0; i < N_ROW * N_IN; i++) x[i] *= size[i % N_IN / STRIP % 5];
    check(QUANT_Q4_K, OUT_MAX, N_IN, true);
    check(QUANT_Q5_0, OUT_MAX, N_IN, false);
    check(QUANT_BF16, OUT_MAX, N_IN, true);
    memcpy(x, kept, sizeof kept);
}

/* More outputs than there is room for at a time; a GLU's two matrices are the same. */
static void check_many(enum quant_type type, enum linear_epilogue epilogue, uint32_t n_out)
{
    static const uint32_t some[][2] = {{0, 1}, {7, 4}, {2, 8}, {3, 16}};
    const bool is_glu = epilogue == LINEAR_GLU_SILU;
    const size_t bytes = (size_t)N_ROW * n_out * sizeof(float);
    struct weight w = make_weight(type, n_out, MANY_IN), there = w;
    float *out[3]; /* what is wanted, that of all rows, that of some */
    struct op_linear op = {.x = x,
                           .x_stride = MANY_IN,
                           .n_row = N_ROW,
                           .n_in = MANY_IN,
                           .norm = norm,
                           .norm_eps = 1e-5f,
                           .kind = ROW_DECODE,
                           .epilogue = epilogue,
                           .n_part = is_glu ? 2 : 1,
                           .part = {{.w = &w, .y_stride = n_out}, {.w = &w, .y_stride = n_out}}};
    for (int i = 0; i < 3; i++) out[i] = mem_map(bytes);
    op.part[0].y = out[0];
    call_ref(op);
    there.data = put(w.data, weight_bytes(&w));
    op.x = put(x, (size_t)N_ROW * MANY_IN * sizeof *x);
    op.norm = put(norm, MANY_IN * sizeof *norm);
    op.part[0].w = op.part[1].w = &there;
    op.part[0].y = put_none(bytes);
    op.scratch_bytes = api->linear_scratch(1, N_ROW, MANY_IN, 2 * n_out);
    op.scratch = put_none(op.scratch_bytes);
    call(out[1], op, 0, N_ROW);
    assert_near(out[1], out[0], N_ROW * n_out, 1e-3, quant_name(type));
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        call(out[2], op, some[i][0], some[i][1]);
        assert_memory_equal(out[2], out[1] + some[i][0] * n_out, some[i][1] * n_out * sizeof *x);
    }
    for (int i = 0; i < 3; i++) mem_unmap(out[i], bytes);
    give_all();
    mem_unmap(w.data, weight_bytes(&w));
}

static void many_outputs_are_those_of_the_reference(void **state)
{
    (void)state;
    struct cuda_info info;
    sac_error err;
    must(api->info(&info, 0, &err), &err);
    const uint32_t n_out = (WAVE * info.n_sm + 2) * GROUP - 5;
    check_many(QUANT_Q4_K, LINEAR_GLU_SILU, n_out);
    check_many(QUANT_Q8_0, LINEAR_GLU_SILU, n_out);
    check_many(QUANT_Q6_K, LINEAR_STORE, n_out);
    check_many(QUANT_F16, LINEAR_STORE, n_out);
}

/* cuda_host as a GPU whose blocks have less shared memory: rows are read where they lie, and parts
 * of several types go one by one. */
static void little_shared_memory_is_enough(void **state)
{
    close_library(state);
    setenv("SAC_HOST_SHARED", "99", 1);
    assert_int_equal(open_library(state), 0);
    check(QUANT_Q4_K, 13, IN_MAX, true);
    check(QUANT_F16, OUT_MAX, 4627, false);
    check(QUANT_F32, OUT_MAX, 587, true);
    check_many(QUANT_Q8_0, LINEAR_GLU_SILU, OUT_MAX);
    check_parts((enum quant_type[]){QUANT_Q4_K, QUANT_F32, QUANT_Q6_K}, 512, 3);
    check_parts((enum quant_type[]){QUANT_F16, QUANT_Q4_K, QUANT_Q4_K}, 256, N_ROW);
    close_library(state);
    unsetenv("SAC_HOST_SHARED");
    assert_int_equal(open_library(state), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(little_shared_memory_is_enough),
                                       cmocka_unit_test(whole_numbers_are_not_rounded),
                                       cmocka_unit_test(long_rows_are_those_of_the_reference),
                                       cmocka_unit_test(short_rows_are_those_of_the_reference),
                                       cmocka_unit_test(strips_have_scales_of_their_own),
                                       cmocka_unit_test(parts_of_several_types_are_those_alone),
                                       cmocka_unit_test(many_outputs_are_those_of_the_reference)};
    return cmocka_run_group_tests(tests, open_problem, close_problem);
}
