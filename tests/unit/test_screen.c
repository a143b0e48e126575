/* test_screen.c: bounds of the short form of an output matrix hold for the logits of the kernels,
 * for states of all kinds, and matrices that a screen does not serve have none. */
#include "../check/random_rows.h"
#include "model/screen.c"
#include "ops/ops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { N_OUT = 4096 + 37, N_IN = 512, N_STATE = 24, PIECE = 100 };

struct fixture {
    struct workers *pool;
    struct weight w;
    struct screen s;
    float norm[N_IN];
    uint8_t *block;
    size_t block_bytes;
};

static void lay_out(struct fixture *f, enum quant_type type, uint32_t n_out, struct arena *a)
{
    weight_init(&f->w, type, n_out, N_IN);
    f->w.data = arena_take(a, 1, weight_bytes(&f->w));
    screen_plan(&f->s, &f->w, a);
}

/* Rows of random codes; every seventh is zeros, and some have a few huge weights. */
static void make(struct fixture *f, enum quant_type type)
{
    struct arena a = {0};
    uint64_t seed = 7;
    *f = (struct fixture){0};
    assert_int_equal(workers_create(&f->pool, 2, NULL), SAC_OK);
    lay_out(f, type, N_OUT, &a);
    f->block_bytes = a.used;
    f->block = mem_map(a.used);
    assert_non_null(f->block);
    a = (struct arena){.base = f->block, .capacity = f->block_bytes};
    lay_out(f, type, N_OUT, &a);
    const size_t row_bytes = quant_row_bytes(type, N_IN);
    uint8_t *src = mem_calloc(N_OUT, row_bytes);
    assert_non_null(src);
    random_rows(src, type, (size_t)N_OUT * N_IN, &seed);
    for (uint32_t r = 0; r < N_OUT; r += 7) memset(src + r * row_bytes, 0, row_bytes);
    for (uint32_t i = 0; i < N_IN; i++)
        f->norm[i] = i % 40 == 3 ? 30 : 1 + 0.3f * random_unit(&seed);
    weight_pack(f->pool, &f->w, src);
    screen_find_large(&f->s, f->norm);
    for (uint32_t g = 0; g < f->w.n_group; g += PIECE)
        assert_int_equal(
            screen_pack(&f->s, f->pool, g, PIECE, type, src + g * WEIGHT_GROUP * row_bytes, NULL),
            SAC_OK);
    mem_free(src);
}

static void destroy(struct fixture *f)
{
    mem_unmap(f->block, f->block_bytes);
    workers_destroy(f->pool);
}

/* Gaussians times the norm; one input alone; a row of the matrix, which makes a bound tight; what
 * the screen leaves out of a row, the worst there is. */
static void make_state(float *h, const struct fixture *f, uint32_t i, uint64_t *seed)
{
    float sketch[N_IN];
    for (uint32_t k = 0; k < N_IN; k++) h[k] = f->norm[k] * random_gauss(seed);
    if (i % 4 == 1)
        for (uint32_t k = 0; k < N_IN; k++) h[k] = k == i ? 1e4f : 0;
    if (i % 4 < 2) return;
    weight_unpack_row(h, &f->w, 100 + i);
    weight_unpack_row(sketch, &f->s.w, 100 + i);
    for (uint32_t k = 0; i % 4 == 3 && k < N_IN; k++) h[k] -= sketch[k];
}

static void project(const struct ops *ops, struct workers *pool, const struct weight *w,
                    const float *h, float *y)
{
    struct op_linear op = {.x = h,
                           .x_stride = N_IN,
                           .n_row = 1,
                           .n_in = N_IN,
                           .kind = ROW_DECODE,
                           .n_part = 1,
                           .part = {{.w = w, .y = y, .y_stride = N_OUT}}};
    op.scratch_bytes = ops->linear_scratch(workers_count(pool), 1, N_IN, N_OUT);
    op.scratch = mem_map(op.scratch_bytes);
    assert_non_null(op.scratch);
    ops->linear(pool, &op);
    mem_unmap(op.scratch, op.scratch_bytes);
}

/* With every logit as the bar of its group, the group may reach it; and most bounds say something:
 * a bar far above is not reached. */
static void check_bounds(const struct fixture *f, const struct ops *ops, const float *h)
{
    static float y[N_OUT + WEIGHT_GROUP], sketch[N_OUT + WEIGHT_GROUP];
    struct screen_norms norms;
    project(ops, f->pool, &f->w, h, y);
    project(ops, f->pool, &f->s.w, h, sketch);
    assert_true(screen_find_norms(&norms, &f->s, h));
    for (uint32_t o = N_OUT; o < N_OUT + WEIGHT_GROUP; o++) y[o] = sketch[o] = -INFINITY;
    for (uint32_t g = 0; g < f->w.n_group; g++) {
        const float *of = y + g * WEIGHT_GROUP, *sketched = sketch + g * WEIGHT_GROUP;
        float most = -INFINITY, most_sketched = -INFINITY;
        for (uint32_t i = 0; i < WEIGHT_GROUP; i++) {
            most = fmaxf(most, of[i]);
            most_sketched = fmaxf(most_sketched, sketched[i]);
        }
        const float bound = most_sketched + f->s.left_max[g] * norms.all;
        assert_true(bound >= most);
        assert_true(screen_may_reach(&f->s, g, &norms, sketched, most));
        assert_false(screen_may_reach(&f->s, g, &norms, sketched, bound + fabsf(bound) + 1));
    }
}

static void bounds_hold_under_every_isa(void **state)
{
    static const char *const isas[] = {"ref", "avx2", "avx512", "amx", "neon"};
    static const enum quant_type types[] = {QUANT_Q8_0, QUANT_Q6_K};
    (void)state;
    for (int t = 0; t < 2; t++) {
        struct fixture f;
        make(&f, types[t]);
        assert_int_equal(f.s.w.n_group, f.w.n_group);
        for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
            struct ops ops;
            uint64_t seed = 3;
            if (ops_init_isa(&ops, isas[i], NULL) != SAC_OK) continue;
            for (uint32_t n = 0; n < N_STATE; n++) {
                float h[N_IN];
                make_state(h, &f, n, &seed);
                check_bounds(&f, &ops, h);
            }
        }
        destroy(&f);
    }
}

/* The parts hold the inputs of the largest norms, each once. */
static void large_inputs_come_first(void **state)
{
    (void)state;
    struct fixture f;
    make(&f, QUANT_Q8_0);
    for (uint32_t i = 0; i < SCREEN_LARGE; i++) {
        for (uint32_t j = 0; j < i; j++) assert_int_not_equal(f.s.large[i], f.s.large[j]);
        if (i) assert_true(f.norm[f.s.large[i]] <= f.norm[f.s.large[i - 1]]);
        if (i < 8) assert_int_equal(f.s.large[i] % 40, 3);
    }
    destroy(&f);
}

static void states_that_are_not_finite_are_told(void **state)
{
    (void)state;
    struct fixture f;
    struct screen_norms norms;
    make(&f, QUANT_Q8_0);
    const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        float h[N_IN] = {[17] = bad[i], [18] = bad[i]};
        assert_false(screen_find_norms(&norms, &f.s, h));
    }
    destroy(&f);
}

static void some_matrices_have_none(void **state)
{
    (void)state;
    struct fixture f = {0};
    struct arena a = {0};
    lay_out(&f, QUANT_Q5_0, 50000, &a); /* as short itself */
    assert_int_equal(f.s.w.n_group, 0);
    lay_out(&f, QUANT_F16, 50000, &a); /* its inputs are not rounded as the screen's */
    assert_int_equal(f.s.w.n_group, 0);
    lay_out(&f, QUANT_Q8_0, 1000, &a); /* too few rows */
    assert_int_equal(f.s.w.n_group, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_hold_under_every_isa),
        cmocka_unit_test(large_inputs_come_first),
        cmocka_unit_test(states_that_are_not_finite_are_told),
        cmocka_unit_test(some_matrices_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
