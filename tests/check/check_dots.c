/* check_dots.c: the slots keys, dots, pack and dots_bf16 of every instruction set that this CPU
 * has, against page_read and against a sum in double.
 *
 * Tolerance of products: the order of an f32 sum, 2^-20 of the sum of magnitudes. A NaN must reach
 * the products of its row and no others, and a product must not depend on its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "ops/ops.h"
#include "random_rows.h"

#include <math.h>
#include <string.h>

static const char *const isa_names[] = {"ref", "avx2", "avx512", "amx", "neon"};
#define N_ISA (sizeof isa_names / sizeof isa_names[0])

enum { N_MAX = 70, WIDTH_MAX = 1024, STRIDE = WIDTH_MAX + 8, OUT = N_MAX + 3 };

struct data {
    float a[N_MAX * STRIDE], b[N_MAX * STRIDE], out[N_MAX * OUT];
};

static struct op_dots make_op(struct data *d, uint32_t n_a, uint32_t n_b, uint32_t width)
{
    return (struct op_dots){.a = d->a,
                            .b = d->b,
                            .a_stride = STRIDE,
                            .b_stride = STRIDE,
                            .n_a = n_a,
                            .n_b = n_b,
                            .width = width,
                            .out = d->out,
                            .out_stride = OUT};
}

static void fill(struct data *d, uint64_t *seed)
{
    for (size_t i = 0; i < N_MAX * STRIDE; i++) {
        d->a[i] = random_unit(seed);
        d->b[i] = 3 * random_unit(seed) + (i % 7 == 0 ? 50.0f : 0);
    }
}

static void every_set_is_near_the_exact_sum(void **state)
{
    (void)state;
    static struct data d;
    static const uint32_t sizes[] = {1, 3, 4, 16, 31, 64, 70}, widths[] = {16, 48, 64, 128, 1024};
    uint64_t seed = 1;
    fill(&d, &seed);
    for (size_t k = 0; k < N_ISA * 7 * 5; k++) {
        struct ops o;
        const uint32_t n_a = sizes[k % 7], n_b = sizes[k / 5 % 7], width = widths[k / 7 % 5];
        if (ops_init_isa(&o, isa_names[k / 35], NULL) != SAC_OK) continue;
        const double slack = strcmp(o.isa, "amx") == 0 ? 0x1p-15 : 0x1p-20;
        const struct op_dots op = make_op(&d, n_a, n_b, width);
        for (size_t i = 0; i < N_MAX * OUT; i++) d.out[i] = -77;
        o.dots(&op);
        for (uint32_t i = 0; i < N_MAX; i++)
            for (uint32_t j = 0; j < OUT; j++) {
                double sum = 0, size = 0;
                for (uint32_t c = 0; c < width && i < n_a && j < n_b; c++) {
                    const double x = (double)d.a[i * STRIDE + c] * (double)d.b[j * STRIDE + c];
                    sum += x;
                    size += fabs(x);
                }
                if (i >= n_a || j >= n_b) sum = -77; /* nothing is written outside */
                assert_true(fabs((double)d.out[i * OUT + j] - sum) <= slack * size);
            }
    }
}

/* Rows in bf16, those of `b` packed: a block alone and all others together, in memory that holds
 * garbage. */
struct data_bf16 {
    uint16_t a[(N_MAX + OP_DOTS_ROWS) * STRIDE];
    _Alignas(64) uint16_t b[(N_MAX + OP_DOTS_ROWS) * WIDTH_MAX];
};

/* Whether all numbers are finite is what the slot says. */
static void dots_bf16(struct data_bf16 *half, struct data *d, const struct ops *o,
                      const uint32_t n[2], uint32_t width, const float *less)
{
    struct op_pack pack = {.b = d->b, .b_stride = STRIDE, .width = width, .less = less};
    memset(half->b, 0x7f, sizeof half->b);
    for (size_t i = 0; i < N_MAX * STRIDE; i++) half->a[i] = f32_to_bf16(d->a[i]);
    pack.n_b = n[1] < OP_DOTS_ROWS ? n[1] : OP_DOTS_ROWS;
    pack.out = half->b;
    bool finite = o->pack(&pack), is_finite = true;
    if (n[1] > OP_DOTS_ROWS) {
        pack.n_b = n[1] - OP_DOTS_ROWS;
        pack.b += OP_DOTS_ROWS * STRIDE;
        pack.out += OP_DOTS_ROWS * (size_t)width;
        finite &= o->pack(&pack);
    }
    for (uint32_t j = 0; j < n[1]; j++)
        for (uint32_t c = 0; c < width; c++) is_finite &= isfinite(d->b[j * STRIDE + c]) != 0;
    assert_int_equal(finite, is_finite);
    for (size_t i = 0; i < N_MAX * OUT; i++) d->out[i] = -77;
    o->dots_bf16(&(struct op_dots_bf16){.a = half->a,
                                        .a_stride = STRIDE,
                                        .b = half->b,
                                        .n_a = n[0],
                                        .n_b = n[1],
                                        .width = width,
                                        .out = d->out,
                                        .out_stride = OUT});
}

static void products_in_bf16_are_of_rounded_rows(void **state)
{
    (void)state;
    static struct data d;
    static struct data_bf16 half;
    static float less[WIDTH_MAX];
    static const uint32_t sizes[] = {1, 16, 31, 32, 33, 64, 70}, widths[] = {32, 64, 128, 1024};
    uint64_t seed = 5;
    fill(&d, &seed);
    for (uint32_t c = 0; c < WIDTH_MAX; c++) less[c] = 50 * random_unit(&seed);
    for (size_t k = 0; k < N_ISA * 7 * 4; k++) {
        struct ops o;
        const uint32_t n[] = {sizes[k % 7], sizes[k / 4 % 7]}, width = widths[k % 4];
        const bool centred = k / 7 % 2;
        if (ops_init_isa(&o, isa_names[k / 28], NULL) != SAC_OK) continue;
        dots_bf16(&half, &d, &o, n, width, centred ? less : NULL);
        for (uint32_t i = 0; i < N_MAX; i++)
            for (uint32_t j = 0; j < OUT; j++) {
                double sum = 0, size = 0;
                for (uint32_t c = 0; c < width && i < n[0] && j < n[1]; c++) {
                    const float b = d.b[j * STRIDE + c] - (centred ? less[c] : 0);
                    const double x = (double)bf16_to_f32(half.a[i * STRIDE + c]) *
                                     (double)bf16_to_f32(f32_to_bf16(b));
                    sum += x;
                    size += fabs(x);
                }
                if (i >= n[0] || j >= n[1]) sum = -77; /* nothing is written outside */
                assert_true(fabs((double)d.out[i * OUT + j] - sum) <= 0x1p-20 * size);
            }
    }
}

static void a_nan_in_bf16_reaches_its_row_only(void **state)
{
    (void)state;
    static struct data d;
    static struct data_bf16 half;
    static const float bad[] = {NAN, -NAN, -INFINITY};
    for (size_t k = 0; k < 3 * N_ISA; k++) {
        struct ops o;
        uint64_t seed = 6;
        if (ops_init_isa(&o, isa_names[k / 3], NULL) != SAC_OK) continue;
        fill(&d, &seed);
        d.b[20 * STRIDE + 40] = d.b[35 * STRIDE] = bad[k % 3];
        dots_bf16(&half, &d, &o, (const uint32_t[]){33, 37}, 64, NULL);
        for (uint32_t i = 0; i < 33; i++)
            for (uint32_t j = 0; j < 37; j++)
                assert_int_equal(isfinite(d.out[i * OUT + j]) != 0, j != 20 && j != 35);
    }
}

static void a_product_depends_on_its_rows_alone(void **state)
{
    (void)state;
    static struct data d;
    static float all[N_MAX * OUT];
    uint64_t seed = 2;
    fill(&d, &seed);
    for (size_t k = 0; k < N_ISA; k++) {
        struct ops o;
        if (ops_init_isa(&o, isa_names[k], NULL) != SAC_OK) continue;
        struct op_dots op = make_op(&d, N_MAX, N_MAX, 64);
        o.dots(&op);
        memcpy(all, d.out, sizeof all);
        for (uint32_t at = 0; at < N_MAX; at += 9) {
            op = make_op(&d, 1, N_MAX - at, 64);
            op.a += at * STRIDE;
            op.b += at * STRIDE;
            o.dots(&op);
            for (uint32_t j = 0; j < N_MAX - at; j++)
                assert_true(float_bits(d.out[j]) == float_bits(all[at * OUT + at + j]));
        }
    }
}

static void a_nan_reaches_its_row_only(void **state)
{
    (void)state;
    static struct data d;
    static const float bad[] = {NAN, INFINITY};
    for (size_t k = 0; k < 2 * N_ISA; k++) {
        struct ops o;
        uint64_t seed = 3;
        if (ops_init_isa(&o, isa_names[k / 2], NULL) != SAC_OK) continue;
        fill(&d, &seed);
        d.a[5 * STRIDE + 13] = bad[k % 2];
        d.b[20 * STRIDE + 40] = bad[k % 2];
        const struct op_dots op = make_op(&d, 33, 37, 64);
        o.dots(&op);
        for (uint32_t i = 0; i < 33; i++)
            for (uint32_t j = 0; j < 37; j++)
                assert_int_equal(isfinite(d.out[i * OUT + j]) != 0, i != 5 && j != 20);
    }
}

static void assert_keys(const float *got, const float *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        assert_true(isnan(got[i]) ? isnan(want[i]) : float_bits(got[i]) == float_bits(want[i]));
}

/* Random bytes are pages of all types: codes, and halves of any kind, NaN and infinities too. */
static void keys_are_those_of_page_read(void **state)
{
    (void)state;
    enum { N_PAGE = 3, DIM = 128 };
    static const uint32_t dims[] = {32, 64, 96, 128};
    static uint8_t pool[N_PAGE * PAGE_TOK * DIM * 4 + 4096];
    static float got[N_PAGE * PAGE_TOK * DIM], want[PAGE_TOK * DIM];
    static const page_id list[N_PAGE] = {2, 0, 1};
    uint64_t seed = 4;
    for (size_t i = 0; i < sizeof pool; i++) pool[i] = (uint8_t)random_next(&seed);
    for (size_t k = 0; k < N_ISA * 4 * 3; k++) {
        struct ops o;
        struct page_geom g = {.n_layer = 1, .n_kv_head = 1, .head_dim = dims[k % 4]};
        g.type_k = g.type_v = (sac_kv_type)(k / 4 % 3);
        page_geom_init(&g);
        if (ops_init_isa(&o, isa_names[k / 12], NULL) != SAC_OK) continue;
        o.keys(&(struct op_keys){
            .geom = &g, .frames = {.base = pool}, .page = list, .n_page = N_PAGE, .out = got});
        for (uint32_t i = 0; i < N_PAGE; i++) {
            page_read(want, NULL, &g, pool + list[i] * g.bytes, PAGE_SEALED, PAGE_TOK);
            assert_keys(got + i * PAGE_TOK * g.head_dim, want, PAGE_TOK * g.head_dim);
        }
        /* Some of their tokens: behind each other, and nothing behind them. */
        uint32_t some[N_PAGE] = {(uint32_t)random_next(&seed) | 0xc0000003u, 0, 1u << k % 32},
                 n = 0;
        memset(got, 0x55, sizeof got);
        o.keys(&(struct op_keys){.geom = &g,
                                 .frames = {.base = pool},
                                 .page = list,
                                 .n_page = N_PAGE,
                                 .tok = some,
                                 .out = got});
        for (uint32_t i = 0; i < N_PAGE; i++) {
            page_read(want, NULL, &g, pool + list[i] * g.bytes, PAGE_SEALED, PAGE_TOK);
            for (uint32_t t = 0; t < PAGE_TOK; t++)
                if (some[i] >> t % 32 & 1)
                    assert_keys(got + n++ * g.head_dim, want + t * g.head_dim, g.head_dim);
        }
        assert_int_equal(float_bits(got[n * g.head_dim]), 0x55555555);
    }
}

/* ---- Values under given logits ---- */

enum { BLEND_GROUP = 9, BLEND_DIM = 96 };

static void assert_raised(const struct op_raise *op, uint32_t g)
{
    const float *logit = op->logit + (size_t)g * PAGE_TOK;
    const float *weight = op->weight + (size_t)g * PAGE_TOK;
    float most = -INFINITY;
    double sum = 0;
    for (uint32_t t = 0; t < op->n_tok; t++) most = fmaxf(most, logit[t]);
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const bool counts = t < op->n_tok && most > -INFINITY;
        const double want = counts ? exp((double)logit[t] - (double)most) : 0;
        assert_true(fabs((double)weight[t] - want) <= 1e-5 * want + 1e-30);
        sum += want;
    }
    assert_true(float_bits(op->most[g]) == float_bits(most));
    assert_true(fabs((double)op->sum[g] - sum) <= 1e-5 * sum);
}

static void weights_are_powers_of_logits(void **state)
{
    (void)state;
    static float logit[BLEND_GROUP * PAGE_TOK], weight[BLEND_GROUP * PAGE_TOK];
    static float most[BLEND_GROUP], sum[BLEND_GROUP];
    uint64_t seed = 7;
    for (size_t k = 0; k < N_ISA * 4; k++) {
        struct ops o;
        if (ops_init_isa(&o, isa_names[k / 4], NULL) != SAC_OK) continue;
        for (size_t i = 0; i < BLEND_GROUP * PAGE_TOK; i++) logit[i] = 9 * random_unit(&seed);
        for (size_t t = 0; t < PAGE_TOK; t++) logit[2 * PAGE_TOK + t] = -INFINITY;
        const struct op_raise op = {.logit = logit,
                                    .group = BLEND_GROUP,
                                    .n_tok = k % 2 ? PAGE_TOK : 1 + (uint32_t)(k * 5 % PAGE_TOK),
                                    .weight = weight,
                                    .most = most,
                                    .sum = sum};
        o.raise(&op);
        for (uint32_t g = 0; g < BLEND_GROUP; g++) assert_raised(&op, g);
        logit[PAGE_TOK] = NAN;
        logit[3 * PAGE_TOK] = INFINITY;
        o.raise(&op);
        for (uint32_t g = 0; g < BLEND_GROUP; g++)
            assert_int_equal(isfinite(sum[g]) == 0, g == 1 || g == 3);
    }
}

static void blends_are_weighted_sums(void **state)
{
    (void)state;
    static uint8_t page[PAGE_TOK * BLEND_DIM * 4 + 4096];
    static float v[PAGE_TOK * BLEND_DIM], weight[BLEND_GROUP * PAGE_TOK];
    float by[BLEND_GROUP], value[BLEND_GROUP * BLEND_DIM + 1];
    uint64_t seed = 6;
    for (size_t k = 0; k < N_ISA * 3 * BLEND_GROUP; k++) {
        struct ops o;
        const uint32_t group = 1 + (uint32_t)(k % BLEND_GROUP);
        struct page_geom g = {.n_layer = 1, .n_kv_head = 1, .head_dim = BLEND_DIM};
        g.type_k = g.type_v = (sac_kv_type)(k / BLEND_GROUP % 3);
        page_geom_init(&g);
        if (ops_init_isa(&o, isa_names[k / BLEND_GROUP / 3], NULL) != SAC_OK) continue;
        for (size_t i = 0; i < g.bytes; i += 2) { /* halves from 2^-1 to 2, of both signs */
            const uint32_t bits = (uint32_t)random_next(&seed);
            const uint16_t half = g.type_v == SAC_KV_BF16 ? (uint16_t)(0x3f00u | (bits & 0x80ffu))
                                                          : (uint16_t)(0x3800u | (bits & 0x87ffu));
            memcpy(page + i, &half, sizeof half);
        }
        for (size_t i = 0; i < BLEND_GROUP * PAGE_TOK; i++) weight[i] = random_unit(&seed);
        for (uint32_t h = 0; h < BLEND_GROUP; h++) by[h] = 0.125f * (float)h;
        for (size_t i = 0; i <= BLEND_GROUP * BLEND_DIM; i++) value[i] = (float)(i % 7);
        page_read(NULL, v, &g, page, PAGE_SEALED, PAGE_TOK);
        o.blend(&(struct op_blend){
            .geom = &g, .page = page, .weight = weight, .by = by, .group = group, .value = value});
        for (uint32_t i = 0; i <= BLEND_GROUP * BLEND_DIM; i++) {
            const uint32_t h = i / BLEND_DIM, c = i % BLEND_DIM;
            double want = (double)(i % 7), all = want;
            for (uint32_t t = 0; t < PAGE_TOK && h < group; t++) {
                const double w = (double)by[h] * (double)weight[h * PAGE_TOK + t];
                want += w * (double)v[t * BLEND_DIM + c];
                all += fabs(w * (double)v[t * BLEND_DIM + c]);
            }
            assert_true(fabs((double)value[i] - want) <= 1e-5 * all);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_those_of_page_read),
        cmocka_unit_test(weights_are_powers_of_logits),
        cmocka_unit_test(blends_are_weighted_sums),
        cmocka_unit_test(every_set_is_near_the_exact_sum),
        cmocka_unit_test(products_in_bf16_are_of_rounded_rows),
        cmocka_unit_test(a_nan_in_bf16_reaches_its_row_only),
        cmocka_unit_test(a_product_depends_on_its_rows_alone),
        cmocka_unit_test(a_nan_reaches_its_row_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
