/* check_wide.c: linear layers of prompt rows as the CUDA library has them, by matrices that lie
 * there in f16 (weight.plain): the same bits as by packed ones, of parts of several types, of a
 * GLU, and of more outputs than are multiplied at a time. What a GLU packs for the next layer
 * at once: the same bits as if it had not. And how large or small sums may be. */
#include "brief.h"
#include "cuda_lib.h"

#include "base/mem.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

/* MANY: more than a panel. MOST: of a GLU that is packed. */
enum { N_ROW = 37, N_IN = 256, MANY = 16384 + 300, MOST = 24576, N_PART = 3, ROOM = 16 << 20 };

static struct workers *pool;
static float x[N_ROW * N_IN], bias[MOST];
static float by_packed[N_ROW * MANY], by_plain[N_ROW * MANY];

static int open_problem(void **state)
{
    uint64_t seed = 7;
    sac_error err;
    if (workers_create(&pool, 1, &err) != SAC_OK) return -1;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) x[i] = random_gauss(&seed);
    for (size_t i = 0; i < MOST; i++) bias[i] = random_unit(&seed);
    return open_library(state);
}

static int close_problem(void **state)
{
    workers_destroy(pool);
    return close_library(state);
}

/* On the device, packed, until give_all. */
static struct weight make_weight(enum quant_type type, uint32_t n_out, uint32_t n_in, uint64_t seed)
{
    const size_t bytes = n_out * quant_row_bytes(type, n_in);
    struct weight w;
    weight_init(&w, type, n_out, n_in);
    assert_null(w.plain);
    uint8_t *src = mem_map(bytes), *data = mem_map(weight_bytes(&w));
    assert_true(src && data);
    random_rows(src, type, (size_t)n_out * n_in, &seed);
    w.data = data;
    weight_pack(pool, &w, src);
    w.data = put(data, weight_bytes(&w));
    mem_unmap(src, bytes);
    mem_unmap(data, weight_bytes(&w));
    return w;
}

/* Of parts of these sizes, or of a GLU's two, into `to` [n_row, the sum]. */
struct layer {
    uint32_t n_part, n_out[N_PART], n_row;
    enum quant_type type[N_PART];
    bool is_glu;
};

static uint32_t width_of(const struct layer *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < (l->is_glu ? 1 : l->n_part); i++) n += l->n_out[i];
    return n;
}

static void run(float *to, const struct layer *l, const struct weight *w)
{
    const uint32_t width = width_of(l);
    const size_t bytes = (size_t)l->n_row * width * sizeof *to;
    float *y = put_any(bytes), *there = put(bias, sizeof bias);
    uint32_t n_out = 0;
    struct op_linear op = {.x = put(x, sizeof x),
                           .x_stride = N_IN,
                           .n_row = l->n_row,
                           .n_in = N_IN,
                           .kind = ROW_PROMPT,
                           .epilogue = l->is_glu ? LINEAR_GLU_SILU : LINEAR_STORE,
                           .n_part = l->n_part};
    for (uint32_t i = 0, at = 0; i < l->n_part; at += l->n_out[i++]) {
        op.part[i] = (struct linear_part){&w[i], there + at, y + at, width};
        n_out += l->n_out[i];
    }
    op.scratch_bytes = api->linear_scratch(1, l->n_row, N_IN, n_out);
    op.scratch = put_any(op.scratch_bytes);
    assert_int_equal(api->linear(device, &op), SAC_OK);
    get(to, y, bytes);
}

/* Matrices in f16 behind each other, or with `gap` bytes between them. */
static void unpack(struct weight *w, uint32_t n, size_t gap)
{
    uint8_t *at = put_any(ROOM), *end = at + ROOM;
    for (uint32_t i = 0; i < n; i++) {
        w[i].plain = at;
        at += weight_plain_bytes(&w[i]) + gap;
        assert_true(at <= end);
        assert_int_equal(api->unpack(device, &w[i]), SAC_OK);
    }
}

static void check(const struct layer *l, size_t gap)
{
    struct weight w[N_PART];
    const size_t bytes = (size_t)l->n_row * width_of(l) * sizeof(float);
    for (uint32_t i = 0; i < l->n_part; i++)
        w[i] = make_weight(l->type[i], l->n_out[i], N_IN, i + 3);
    run(by_packed, l, w);
    unpack(w, l->n_part, gap);
    run(by_plain, l, w);
    assert_memory_equal(by_plain, by_packed, bytes);
    give_all();
}

static void parts_have_the_same_bits(void **state)
{
    (void)state;
    static const enum quant_type types[] = {QUANT_F32,  QUANT_F16,  QUANT_BF16,  QUANT_Q4_0,
                                            QUANT_Q5_1, QUANT_Q8_0, QUANT_Q3_K,  QUANT_Q4_K,
                                            QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_XS};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        for (uint32_t n_row = is_brief() ? N_ROW : 1; n_row <= N_ROW; n_row += N_ROW - 1)
            check(&(struct layer){.n_part = 3,
                                  .n_out = {40, 19, 16}, /* groups that are not full */
                                  .type = {types[i], QUANT_Q6_K, types[i]},
                                  .n_row = n_row},
                  0);
}

static void a_glu_has_the_same_bits(void **state)
{
    (void)state;
    check(&(struct layer){.n_part = 2,
                          .n_out = {96, 96},
                          .type = {QUANT_Q4_K, QUANT_Q6_K},
                          .n_row = N_ROW,
                          .is_glu = true},
          0);
}

static void many_outputs_have_the_same_bits(void **state)
{
    (void)state;
    check(&(struct layer){.n_part = 1, .n_out = {MANY}, .type = {QUANT_Q4_K}, .n_row = 2}, 0);
}

/* Apart from each other they are not one matrix: the packed ones are read. */
static void parts_that_lie_apart_have_the_same_bits(void **state)
{
    (void)state;
    check(
        &(struct layer){
            .n_part = 2, .n_out = {32, 32}, .type = {QUANT_Q4_K, QUANT_Q4_K}, .n_row = 5},
        4096);
}

/* Zeros in the place of a matrix make zeros. */
static void what_lies_there_is_what_is_multiplied(void **state)
{
    (void)state;
    const struct layer l = {.n_part = 1, .n_out = {32}, .type = {QUANT_Q4_K}, .n_row = 3};
    struct weight w = make_weight(QUANT_Q4_K, 32, N_IN, 9);
    uint8_t *none = mem_map(weight_plain_bytes(&w));
    assert_non_null(none);
    w.plain = put(none, weight_plain_bytes(&w));
    run(by_plain, &l, &w);
    for (uint32_t i = 0; i < l.n_row * 32; i++) assert_true(by_plain[i] == bias[i % 32]);
    mem_unmap(none, weight_plain_bytes(&w));
    give_all();
}

/* A GLU of n_mid outputs and the layer that reads it. Every other row is smaller than halves are
 * that the scale of its neighbours fits. */
static void run_pair(float *to, const struct weight w[3], enum linear_epilogue epilogue,
                     uint32_t n_mid, uint32_t n_row, bool kept)
{
    float *mid = put_any((size_t)n_row * n_mid * sizeof *mid), *there = put(bias, sizeof bias);
    float *y = put_any((size_t)n_row * w[2].n_out * sizeof *y);
    static float rows[N_ROW * N_IN];
    for (uint32_t i = 0; i < N_ROW * N_IN; i++) rows[i] = x[i] * (i / N_IN % 2 ? 0x1p-12f : 1);
    struct op_linear op = {.x = put(rows, sizeof rows),
                           .x_stride = N_IN,
                           .n_row = n_row,
                           .n_in = N_IN,
                           .kind = ROW_PROMPT,
                           .epilogue = epilogue,
                           .keep_y = kept,
                           .n_part = 2,
                           .part = {{&w[0], there, mid, n_mid}, {&w[1], NULL, NULL, 0}}};
    op.scratch_bytes = api->linear_scratch(1, n_row, N_IN + n_mid, 2 * n_mid + w[2].n_out);
    op.scratch = put_any(op.scratch_bytes);
    assert_int_equal(api->linear(device, &op), SAC_OK);
    op.x = mid;
    op.x_stride = op.n_in = n_mid;
    op.epilogue = LINEAR_STORE;
    op.keep_y = false;
    op.kept_x = kept;
    op.n_part = 1;
    op.part[0] = (struct linear_part){&w[2], NULL, y, w[2].n_out};
    assert_int_equal(api->linear(device, &op), SAC_OK);
    get(to, y, (size_t)n_row * w[2].n_out * sizeof *to);
}

/* Of an even and an odd number of rows, and of more outputs than two rows have room for together.
 */
static void kept_rows_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t n_mid[] = {64, 1088, MOST}, n_row[] = {1, 4, 9};
    static const enum linear_epilogue epilogue[] = {LINEAR_GLU_SILU, LINEAR_GLU_GELU};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            for (int r = 0; r < (i < 2 ? 3 : 2); r++) {
                if (is_brief() && r != 1) continue;
                const struct weight w[3] = {make_weight(QUANT_Q4_K, n_mid[i], N_IN, 3),
                                            make_weight(QUANT_Q6_K, n_mid[i], N_IN, 4),
                                            make_weight(QUANT_Q8_0, 35, n_mid[i], 5)};
                const size_t bytes = n_row[r] * 35 * sizeof(float);
                run_pair(by_packed, w, epilogue[k], n_mid[i], n_row[r], false);
                run_pair(by_plain, w, epilogue[k], n_mid[i], n_row[r], true);
                assert_memory_equal(by_plain, by_packed, bytes);
                give_all();
            }
}

/* A layer that adds to its rows, and the next one, which normalises them. */
static void run_next(float *to, float *sums, const struct weight w[2], uint32_t n_mid,
                     uint32_t n_row, bool waits)
{
    static float norm[MOST];
    for (uint32_t i = 0; i < n_mid; i++) norm[i] = 1 + (float)(i % 7) / 8;
    const size_t bytes = (size_t)n_row * n_mid * sizeof(float);
    float *mid = put(sums, bytes), *y = put_any((size_t)n_row * w[1].n_out * sizeof *y);
    const float *by = put(norm, n_mid * sizeof *norm);
    struct op_linear op = {
        .x = put(x, sizeof x),
        .x_stride = N_IN,
        .n_row = n_row,
        .n_in = N_IN,
        .kind = ROW_PROMPT,
        .epilogue = LINEAR_ADD,
        .n_part = 1,
        .part = {{&w[0], n_row % 2 ? NULL : put(bias, sizeof bias), mid, n_mid}}};
    op.scratch_bytes = api->linear_scratch(1, n_row, N_IN + n_mid, n_mid + w[1].n_out);
    op.scratch = put_any(op.scratch_bytes);
    assert_int_equal(api->linear(device, &op), SAC_OK);
    if (waits) get(sums, mid, bytes);
    op.x = mid;
    op.x_stride = op.n_in = n_mid;
    op.norm = by;
    op.norm_eps = 1e-5f;
    op.epilogue = LINEAR_STORE;
    op.part[0] = (struct linear_part){&w[1], NULL, y, w[1].n_out};
    assert_int_equal(api->linear(device, &op), SAC_OK);
    get(to, y, (size_t)n_row * w[1].n_out * sizeof *to);
    get(sums, mid, bytes);
}

/* Rows that are packed when they have just been added up are those that lie there: narrower than
 * the ones before, whose scratch they share, as wide, and wider. */
static void rows_packed_at_once_have_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t n_mid[] = {64, 96, N_IN, 1088, MOST}, n_row[] = {1, 4, 9};
    static float sums[2][9 * MOST];
    for (int i = 0; i < 5; i += (int)brief_by(3))
        for (int r = 0; r < 3; r += (int)brief_by(2)) {
            const struct weight w[2] = {make_weight(QUANT_Q4_K, n_mid[i], N_IN, 3),
                                        make_weight(QUANT_Q8_0, 35, n_mid[i], 5)};
            for (uint32_t k = 0; k < n_row[r] * n_mid[i]; k++)
                sums[0][k] = sums[1][k] = (float)(k % 23) / 16 - 0.5f;
            run_next(by_packed, sums[0], w, n_mid[i], n_row[r], true);
            run_next(by_plain, sums[1], w, n_mid[i], n_row[r], false);
            assert_memory_equal(by_plain, by_packed, n_row[r] * 35 * sizeof(float));
            assert_memory_equal(sums[1], sums[0], n_row[r] * n_mid[i] * sizeof(float));
            give_all();
        }
}

/* Sums of several matrices lie in 16 bits, whose range is narrow: of values that are all as large
 * as the largest there is no infinity, and of rows and outputs that are small, no zero. */
static void sums_of_any_size_are_kept(void **state)
{
    (void)state;
    static const float scale[] = {1, 0x1p-60f, 0x1p60f}, weight[] = {1.9990234f, 0x1.ffcp-30f};
    const float value = 1.9990234f;
    static float ones[16 * N_IN], rows[3 * N_IN], y[3 * 2 * 16];
    struct weight w[2];
    for (int i = 0; i < 2; i++) {
        weight_init(&w[i], QUANT_F32, 16, N_IN);
        for (uint32_t k = 0; k < 16 * N_IN; k++) ones[k] = weight[i];
        w[i].data = mem_map(weight_bytes(&w[i]));
        assert_non_null(w[i].data);
        weight_pack(pool, &w[i], (const uint8_t *)ones);
        uint8_t *const data = w[i].data;
        w[i].data = put(data, weight_bytes(&w[i]));
        mem_unmap(data, weight_bytes(&w[i]));
    }
    for (uint32_t k = 0; k < 3 * N_IN; k++) rows[k] = value * scale[k / N_IN];
    float *const there = put_any(sizeof y);
    struct op_linear op = {.x = put(rows, sizeof rows),
                           .x_stride = N_IN,
                           .n_row = 3,
                           .n_in = N_IN,
                           .kind = ROW_PROMPT,
                           .epilogue = LINEAR_STORE,
                           .n_part = 2,
                           .part = {{&w[0], NULL, there, 32}, {&w[1], NULL, there + 16, 32}}};
    op.scratch_bytes = api->linear_scratch(1, 3, N_IN, 32);
    op.scratch = put_any(op.scratch_bytes);
    assert_int_equal(api->linear(device, &op), SAC_OK);
    get(y, there, sizeof y);
    for (uint32_t i = 0; i < 3 * 32; i++) {
        const float want = value * scale[i / 32] * weight[i / 16 % 2] * N_IN;
        assert_true(fabsf(y[i] - want) <= want * 0x1p-10f);
    }
    give_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_have_the_same_bits),
        cmocka_unit_test(a_glu_has_the_same_bits),
        cmocka_unit_test(many_outputs_have_the_same_bits),
        cmocka_unit_test(parts_that_lie_apart_have_the_same_bits),
        cmocka_unit_test(what_lies_there_is_what_is_multiplied),
        cmocka_unit_test(kept_rows_have_the_same_bits),
        cmocka_unit_test(rows_packed_at_once_have_the_same_bits),
        cmocka_unit_test(sums_of_any_size_are_kept),
    };
    return cmocka_run_group_tests(tests, open_problem, close_problem);
}
