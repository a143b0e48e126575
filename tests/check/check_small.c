/* check_small.c: RMS norm, RoPE and addition of every instruction set that this CPU has, against
 * `ref` on ordinary and hostile values, and against a formula of the test's own for `ref` itself.
 *
 * Tolerances. add: none. rmsnorm: the sum is double in all sets, so scale differs by one rounding
 * of f32 at most and y by two units in the last place. rope: a set may fuse one multiplication; the
 * error is below 2^-22 of |a cos| + |b sin|. NaN must stand exactly where `ref` has it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/half.h"
#include "base/mem.h"
#include "ops/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum fill { FILL_PLAIN, FILL_TINY, FILL_HUGE, FILL_ZERO, FILL_HOSTILE, N_FILL };

/* A small generator of our own: the same numbers on every machine. */
static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static float random_unit(uint64_t *state) /* -1 to 1 */
{
    return (float)next_random(state) / 1073741824.0f - 1.0f;
}

static void fill_values(float *x, size_t n, enum fill fill, uint64_t *state)
{
    static const float hostile[] = {NAN, INFINITY, -INFINITY, 0x1p-149f, 3.4e38f, -3.4e38f, -0.0f};
    for (size_t i = 0; i < n; i++) {
        const float u = random_unit(state);
        switch (fill) {
        case FILL_PLAIN: x[i] = u; break;
        case FILL_TINY: x[i] = u * 0x1p-130f; break;
        case FILL_HUGE: x[i] = u * 0x1p100f; break;
        case FILL_ZERO: x[i] = 0; break;
        default: x[i] = next_random(state) % 61 ? u : hostile[next_random(state) % 7]; break;
        }
    }
}

/* Equal, both NaN, or nearer than `tol`. */
static bool near(float a, float b, double tol)
{
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b);
    if (a == b) return true;
    if (isinf(a) || isinf(b)) return false;
    return fabs((double)a - (double)b) <= tol;
}

struct tables {
    struct workers *pool[2]; /* of 1 and 3 workers */
    struct ops ops[N_ISA];   /* [n], ref first */
    size_t n;
};

static int setup(void **state)
{
    struct tables *t = mem_calloc(1, sizeof *t);
    assert_non_null(t);
    assert_int_equal(workers_create(&t->pool[0], 1, NULL), SAC_OK);
    assert_int_equal(workers_create(&t->pool[1], 3, NULL), SAC_OK);
    for (size_t i = 0; i < N_ISA; i++) {
        sac_error err = {0};
        const sac_status status = ops_init_isa(&t->ops[t->n], isa_names[i], &err);
        if (status == SAC_OK) {
            assert_string_equal(t->ops[t->n].isa, isa_names[i]);
            t->n++;
        } else {
            assert_int_equal(status, SAC_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.msg, isa_names[i]));
            print_message("not on this CPU: %s\n", isa_names[i]);
        }
    }
    assert_true(t->n >= 1);
    *state = t;
    return 0;
}

static int teardown(void **state)
{
    struct tables *t = *state;
    workers_destroy(t->pool[0]);
    workers_destroy(t->pool[1]);
    mem_free(t);
    return 0;
}

static void test_table(void **state)
{
    (void)state;
    struct ops o;
    sac_error err = {0};
    assert_int_equal(ops_init_isa(&o, "sse9", &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "sse9"));
    for (size_t i = 0; i < N_ISA; i++) assert_non_null(strstr(err.msg, isa_names[i]));
    assert_int_equal(ops_init_isa(&o, NULL, &err), SAC_OK);
    const char *best = o.isa;
    assert_int_equal(ops_init_isa(&o, "", &err), SAC_OK);
    assert_string_equal(o.isa, best);
    assert_int_equal(setenv("SAC_CPU", "ref", 1), 0);
    assert_int_equal(ops_init(&o, &err), SAC_OK);
    assert_string_equal(o.isa, "ref");
    assert_int_equal(setenv("SAC_CPU", "fast", 1), 0);
    assert_int_equal(ops_init(&o, &err), SAC_ERR_ARG);
    assert_int_equal(unsetenv("SAC_CPU"), 0);
    assert_int_equal(ops_init(&o, &err), SAC_OK);
    assert_string_equal(o.isa, best);
}

/* The definition in long double, for the values that stay finite. */
static void test_rmsnorm_ref(void **state)
{
    const struct tables *t = *state;
    float x[100], w[100], y[100];
    uint64_t seed = 1;
    for (uint32_t width = 1; width <= 100; width++) {
        fill_values(x, width, FILL_PLAIN, &seed);
        fill_values(w, width, FILL_PLAIN, &seed);
        t->ops[0].rmsnorm(t->pool[0], &(struct op_rmsnorm){.x = x,
                                                           .y = y,
                                                           .x_stride = width,
                                                           .y_stride = width,
                                                           .n_row = 1,
                                                           .n_group = 1,
                                                           .width = width,
                                                           .w = w,
                                                           .eps = 1e-5f});
        long double sum = 0;
        for (uint32_t i = 0; i < width; i++) sum += (long double)x[i] * x[i];
        const long double scale = 1 / sqrtl(sum / width + (long double)1e-5f);
        for (uint32_t i = 0; i < width; i++) {
            const long double want = x[i] * scale * w[i];
            assert_true(fabsl(y[i] - want) <= 0x1.8p-23L * fabsl(want));
        }
    }
}

#define ROWS_MAX 37

static void compare_rmsnorm(const struct tables *t, uint32_t width, uint32_t n_group,
                            enum fill fill, uint64_t *seed)
{
    const size_t row = (size_t)n_group * width, stride = row + 3, all = ROWS_MAX * stride;
    float *x = mem_alloc(all * 4), *w = mem_alloc(width * 4), *want = mem_alloc(all * 4);
    float *y = mem_alloc(all * 4), *one = mem_alloc(stride * 4);
    assert_true(x && w && want && y && one);
    fill_values(x, all, fill, seed);
    fill_values(w, width, FILL_PLAIN, seed);
    struct op_rmsnorm op = {.x = x,
                            .y = want,
                            .x_stride = stride,
                            .y_stride = stride,
                            .n_row = ROWS_MAX,
                            .n_group = n_group,
                            .width = width,
                            .w = w,
                            .eps = 1e-6f};
    t->ops[0].rmsnorm(t->pool[0], &op);
    for (size_t k = 0; k < t->n; k++) {
        memset(y, 0x55, all * 4);
        op.y = y;
        op.x = x;
        t->ops[k].rmsnorm(t->pool[1], &op);
        for (size_t r = 0; r < ROWS_MAX; r++) {
            for (size_t i = 0; i < row; i++) {
                const float b = want[r * stride + i];
                assert_true(near(y[r * stride + i], b, 0x1p-22 * fabs((double)b) + 0x1p-149));
            }
            /* A row alone, in place, with one worker: the same bits. */
            memcpy(one, x + r * stride, row * 4);
            struct op_rmsnorm alone = op;
            alone.x = alone.y = one;
            alone.n_row = 1;
            t->ops[k].rmsnorm(t->pool[0], &alone);
            assert_memory_equal(one, y + r * stride, row * 4);
            if (r + 1 < ROWS_MAX) assert_int_equal(float_bits(y[r * stride + row]), 0x55555555);
        }
    }
    mem_free(x), mem_free(w), mem_free(want), mem_free(y), mem_free(one);
}

static void test_rmsnorm(void **state)
{
    static const uint32_t widths[] = {1,  7,  8,  9,  15,  16,  17,  31,
                                      32, 33, 47, 64, 128, 576, 896, 1001};
    uint64_t seed = 2;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        for (enum fill fill = 0; fill < N_FILL; fill++) {
            compare_rmsnorm(*state, widths[i], 1, fill, &seed);
            compare_rmsnorm(*state, widths[i], 3, fill, &seed);
        }
}

struct rope_shape {
    uint32_t n_head, head_dim, n_rot;
};

/* What rope must give row r of `op`, by the definition, and the size of the terms added. */
static void rope_formula(double *out, double *size, const float *head, const struct op_rope *op,
                         size_t r)
{
    const uint32_t half = op->n_rot / 2;
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t p = op->interleaved ? 2 * i : i, q = op->interleaved ? 2 * i + 1 : i + half;
        const double a = (double)head[p], b = (double)head[q], c = (double)op->cos[r * half + i],
                     s = (double)op->sin[r * half + i];
        out[p] = a * c - b * s;
        out[q] = a * s + b * c;
        size[p] = fabs(a * c) + fabs(b * s);
        size[q] = fabs(a * s) + fabs(b * c);
    }
}

static void compare_rope(const struct tables *t, const struct rope_shape *shape, bool interleaved,
                         enum fill fill, uint64_t *seed)
{
    const uint32_t n_rot = shape->n_rot, half = n_rot / 2;
    const size_t row = (size_t)shape->n_head * shape->head_dim, stride = row + 5;
    const size_t all = ROWS_MAX * stride;
    float *x = mem_alloc(all * 4), *y = mem_alloc(all * 4), *one = mem_alloc(row * 4);
    float *cos_tab = mem_alloc(ROWS_MAX * half * 4 + 4),
          *sin_tab = mem_alloc(ROWS_MAX * half * 4 + 4);
    double out[512], size[512];
    assert_true(x && y && one && cos_tab && sin_tab);
    fill_values(x, all, fill, seed);
    for (size_t i = 0; i < (size_t)ROWS_MAX * half; i++) {
        const float angle = 3.2f * random_unit(seed);
        cos_tab[i] = 1.1f * cosf(angle); /* with a magnitude factor as YaRN has */
        sin_tab[i] = 1.1f * sinf(angle);
    }
    for (size_t k = 0; k < t->n; k++) {
        memcpy(y, x, all * 4);
        struct op_rope op = {.x = y,
                             .x_stride = stride,
                             .n_row = ROWS_MAX,
                             .n_head = shape->n_head,
                             .head_dim = shape->head_dim,
                             .n_rot = n_rot,
                             .interleaved = interleaved,
                             .cos = cos_tab,
                             .sin = sin_tab};
        t->ops[k].rope(t->pool[1], &op);
        for (size_t r = 0; r < ROWS_MAX; r++) {
            for (uint32_t h = 0; h < shape->n_head; h++) {
                const size_t at = r * stride + (size_t)h * shape->head_dim;
                rope_formula(out, size, x + at, &op, r);
                for (uint32_t i = 0; i < n_rot; i++) {
                    const bool finite = isfinite(size[i]) && size[i] < 3.4e38;
                    if (finite)
                        assert_true(near(y[at + i], (float)out[i], 0x1p-22 * size[i] + 0x1p-148));
                    else
                        assert_false(isfinite(y[at + i]) && !isfinite(out[i]));
                }
                for (uint32_t i = n_rot; i < shape->head_dim; i++)
                    assert_int_equal(float_bits(y[at + i]), float_bits(x[at + i]));
            }
            memcpy(one, x + r * stride, row * 4);
            struct op_rope alone = op;
            alone.x = one;
            alone.n_row = 1;
            alone.cos = cos_tab + r * half;
            alone.sin = sin_tab + r * half;
            t->ops[k].rope(t->pool[0], &alone);
            assert_memory_equal(one, y + r * stride, row * 4);
        }
        for (size_t r = 0; r + 1 < ROWS_MAX; r++)
            assert_memory_equal(y + r * stride + row, x + r * stride + row, 5 * 4);
    }
    mem_free(x), mem_free(y), mem_free(one), mem_free(cos_tab), mem_free(sin_tab);
}

static void test_rope(void **state)
{
    static const struct rope_shape shapes[] = {{1, 32, 32}, {3, 64, 64},   {2, 64, 48},
                                               {5, 96, 24}, {2, 128, 6},   {7, 128, 128},
                                               {1, 256, 2}, {2, 512, 510}, {2, 64, 0}};
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (enum fill fill = 0; fill < N_FILL; fill++) {
            compare_rope(*state, &shapes[i], false, fill, &seed);
            compare_rope(*state, &shapes[i], true, fill, &seed);
        }
}

static void test_add(void **state)
{
    const struct tables *t = *state;
    static const size_t sizes[] = {0, 1, 7, 8, 15, 16, 17, 31, 33, 8191, 8192, 8193, 40000};
    enum { MAX = 40000 };
    float *x = mem_alloc(MAX * 4), *y0 = mem_alloc(MAX * 4), *y = mem_alloc((MAX + 1) * 4);
    assert_true(x && y0 && y);
    uint64_t seed = 4;
    for (size_t k = 0; k < t->n; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            const size_t n = sizes[i];
            fill_values(x, n, FILL_HOSTILE, &seed);
            fill_values(y0, n, FILL_HOSTILE, &seed);
            memcpy(y, y0, n * 4);
            y[n] = 42;
            t->ops[k].add(t->pool[1], &(struct op_add){.x = x, .y = y, .n = n});
            for (size_t j = 0; j < n; j++) assert_true(near(y[j], x[j] + y0[j], 0));
            assert_true(y[n] == 42);
        }
    mem_free(x), mem_free(y0), mem_free(y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),   cmocka_unit_test(test_rmsnorm_ref),
        cmocka_unit_test(test_rmsnorm), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_add),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
