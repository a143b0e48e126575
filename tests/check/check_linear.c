/* check_linear.c: linear layers of every instruction set that this CPU has, against `ref`, for
 * every type, both modes, ragged shapes and hostile values.
 *
 * Tolerances are on |y - ref| in root mean square over a row, relative to what y is expected to
 * be, |x| times the root mean square of W: a y that happens to be smaller has the same error.
 * NARROW of avx512 and amx holds activations in 15 bits per block of 32: error of an element a /
 * 16256 / sqrt(12) with a about 2.1 deviations, 4e-5. WIDE of amx rounds both operands to f16,
 * 2^-12 / sqrt(3) each, and the scales of K types once more: 2.5e-4, or as that of avx512 to
 * bf16, eight times as much. avx2 holds 16 bits per block of 32 in both modes, half the error of
 * 15: 2e-5; neon 15 bits. Up to five times that is allowed, as weights with a common mean give all
 * outputs of a row the same error; and of a single output six times as much, as of a Gaussian. Rows
 * must be bitwise equal whatever n_row and the number of threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "ops/cpu/detect.h"
#include "ops/cpu/linear.h"
#include "ops/ops.h"
#include "random_rows.h"

#include <stdio.h>

#define ROWS_MAX 129u /* one more than a tile of avx2 and neon has */

static const enum quant_type types[] = {QUANT_F32,  QUANT_F16,    QUANT_BF16,  QUANT_Q4_0,
                                        QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,  QUANT_Q8_0,
                                        QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,  QUANT_Q5_K,
                                        QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS};
#define N_TYPE (sizeof types / sizeof types[0])

#if defined(__x86_64__)
#define KERNEL(fn) .linear = (fn)
#else
#define KERNEL(fn) .linear = NULL
#endif

struct isa {
    const char *name;
    double narrow_tol, wide_tol;
    void (*linear)(struct workers *pool, const struct op_linear *op); /* NULL: the table's */
    bool needs_f16;
    struct ops ops;
};

struct tables {
    struct workers *pool[2]; /* of 1 and 3 workers */
    struct ops ref;
    struct isa isa[6];
    size_t n_isa;
};

static int setup(void **state)
{
    static const struct isa all[] = {
        {.name = "avx2", .narrow_tol = 1e-4, .wide_tol = 1e-4},
        {.name = "avx512", .narrow_tol = 2e-4, .wide_tol = 6e-3, KERNEL(linear_avx512_bf16)},
        {.name = "avx512", .narrow_tol = 2e-4, .wide_tol = 2e-4, KERNEL(linear_avx512_int8)},
        {.name = "amx", .narrow_tol = 2e-4, .wide_tol = 6e-3, KERNEL(linear_amx_bf16)},
        {.name = "amx",
         .narrow_tol = 2e-4,
         .wide_tol = 8e-4,
         KERNEL(linear_amx_f16),
         .needs_f16 = true},
        {.name = "neon", .narrow_tol = 2e-4, .wide_tol = 2e-4}};
    const bool has_f16 = (detect_features() & DETECT_AMX_FP16) != 0;
    struct tables *t = mem_calloc(1, sizeof *t);
    assert_non_null(t);
    assert_int_equal(workers_create(&t->pool[0], 1, NULL), SAC_OK);
    assert_int_equal(workers_create(&t->pool[1], 3, NULL), SAC_OK);
    assert_int_equal(ops_init_isa(&t->ref, "ref", NULL), SAC_OK);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        t->isa[t->n_isa] = all[i];
        const sac_status status = ops_init_isa(&t->isa[t->n_isa].ops, all[i].name, NULL);
        assert_true(status == SAC_OK || status == SAC_ERR_UNSUPPORTED);
        if (status != SAC_OK || (all[i].needs_f16 && !has_f16)) continue;
        if (all[i].linear) t->isa[t->n_isa].ops.linear = all[i].linear;
        t->n_isa++;
    }
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

static void *zeroed(size_t n, size_t bytes)
{
    void *p = mem_map(n * bytes);
    assert_non_null(p);
    return p;
}

struct matrix {
    struct weight w;
    uint8_t *src; /* file order */
    float *bias;
    double mean_square; /* of the weights */
};

static void matrix_init(struct matrix *m, struct tables *t, enum quant_type type, uint32_t n_out,
                        uint32_t n_in, uint64_t seed)
{
    weight_init(&m->w, type, n_out, n_in);
    m->src = zeroed(n_out, quant_row_bytes(type, n_in));
    m->w.data = zeroed(weight_bytes(&m->w), 1);
    m->bias = zeroed(n_out, sizeof *m->bias);
    random_rows(m->src, type, (size_t)n_out * n_in, &seed);
    for (uint32_t i = 0; i < n_out; i++) m->bias[i] = 0.1f * random_unit(&seed);
    weight_pack(t->pool[1], &m->w, m->src);
    float *row = zeroed(n_in, sizeof *row);
    double sum = 0;
    for (uint32_t o = 0; o < n_out; o++) {
        quant_dequant_row(row, type, m->src + o * quant_row_bytes(type, n_in), n_in);
        for (uint32_t k = 0; k < n_in; k++) sum += (double)row[k] * row[k];
    }
    m->mean_square = sum / n_in / n_out;
    mem_unmap(row, n_in * sizeof *row);
}

static void matrix_deinit(struct matrix *m)
{
    mem_unmap(m->src, m->w.n_out * quant_row_bytes(m->w.type, m->w.n_in));
    mem_unmap(m->w.data, weight_bytes(&m->w));
    mem_unmap(m->bias, m->w.n_out * sizeof *m->bias);
}

/* One call under `ops` with scratch of exactly the size that it asks for, full of NaN. */
static void call(const struct ops *ops, struct workers *pool, struct op_linear op)
{
    uint32_t n_out = 0;
    for (uint32_t p = 0; p < op.n_part; p++) n_out += op.part[p].w->n_out;
    op.scratch_bytes = ops->linear_scratch(workers_count(pool), op.n_row, op.n_in, n_out);
    op.scratch = mem_map(op.scratch_bytes);
    assert_non_null(op.scratch);
    memset(op.scratch, 0xff, op.scratch_bytes);
    ops->linear(pool, &op);
    mem_unmap(op.scratch, op.scratch_bytes);
}

/* n outputs of one row against ref's. `power` is their expected mean square, 0: take ref's. */
static void compare(const float *got, const float *want, uint32_t n, double power, double tol,
                    const char *what)
{
    double error = 0, sum = 0, worst = 0;
    for (uint32_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        if (!isfinite(d)) fail_msg("%s: output %u is %g", what, i, (double)got[i]);
        error += d * d;
        sum += (double)want[i] * (double)want[i];
        if (fabs(d) > worst) worst = fabs(d);
    }
    if (power == 0) power = sum / n;
    if (error > tol * tol * power * n || worst > 6 * tol * sqrt(power))
        fail_msg("%s: a row is off by %.2e, one output by %.2e, allowed is %.0e", what,
                 sqrt(error / n / power), worst / sqrt(power), tol);
}

/* The rows of an op without norm. */
static void compare_rows(const struct op_linear *op, const float *want, const struct matrix *m,
                         double tol, const char *what)
{
    const uint32_t n = m->w.n_out;
    for (uint32_t r = 0; r < op->n_row; r++) {
        double sum = 0;
        for (uint32_t k = 0; k < op->n_in; k++) {
            const double x = (double)op->x[r * op->x_stride + k];
            sum += x * x;
        }
        compare(op->part[0].y + r * op->part[0].y_stride, want + r * op->part[0].y_stride, n,
                sum * m->mean_square, tol, what);
    }
}

static void expect_same_bits(const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (float_bits(got[i]) != float_bits(want[i]))
            fail_msg("%s: value %zu is %a, not %a", what, i, (double)got[i], (double)want[i]);
}

static double tolerance(const struct isa *isa, enum row_kind kind)
{
    return kind == ROW_DECODE ? isa->narrow_tol : isa->wide_tol;
}

static const char *label(const struct isa *isa, enum row_kind kind, enum quant_type type)
{
    static char text[64];
    snprintf(text, sizeof text, "%s %s %s", isa->name, kind == ROW_DECODE ? "narrow" : "wide",
             quant_name(type));
    return text;
}

static void fill_gauss(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) x[i] = random_gauss(&seed);
}

/* ROWS_MAX rows against ref; then fewer rows and other thread counts against those bits. */
static void check_type(struct tables *t, enum quant_type type, uint32_t n_out, uint32_t n_in)
{
    static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 7, 16, 17, 22, 64, ROWS_MAX};
    struct matrix m;
    matrix_init(&m, t, type, n_out, n_in, 3);
    const uint32_t x_stride = n_in + 3, y_stride = n_out;
    const size_t n_y = (size_t)ROWS_MAX * y_stride;
    float *x = zeroed((size_t)ROWS_MAX * x_stride, sizeof *x);
    float *want = zeroed(n_y, sizeof *want), *all = zeroed(n_y, sizeof *all);
    float *some = zeroed(n_y, sizeof *some);
    fill_gauss(x, (size_t)ROWS_MAX * x_stride, 5);
    struct op_linear op = {.x = x,
                           .x_stride = x_stride,
                           .n_row = ROWS_MAX,
                           .n_in = n_in,
                           .n_part = 1,
                           .part = {{.w = &m.w, .bias = m.bias, .y_stride = y_stride}}};
    op.part[0].y = want;
    call(&t->ref, t->pool[1], op);
    for (size_t i = 0; i < t->n_isa; i++) {
        for (int kind = ROW_DECODE; kind <= ROW_PROMPT; kind++) {
            const char *what = label(&t->isa[i], (enum row_kind)kind, type);
            op.kind = (enum row_kind)kind;
            op.n_row = ROWS_MAX;
            op.part[0].y = all;
            call(&t->isa[i].ops, t->pool[0], op);
            compare_rows(&op, want, &m, tolerance(&t->isa[i], op.kind), what);
            op.part[0].y = some;
            for (size_t c = 0; c < sizeof row_counts / sizeof *row_counts; c++) {
                op.n_row = row_counts[c];
                call(&t->isa[i].ops, t->pool[c % 2 ? 0 : 1], op);
                expect_same_bits(some, all, (size_t)op.n_row * y_stride, what);
            }
        }
    }
    matrix_deinit(&m);
    mem_unmap(x, (size_t)ROWS_MAX * x_stride * sizeof *x);
    mem_unmap(want, n_y * sizeof *want);
    mem_unmap(all, n_y * sizeof *all);
    mem_unmap(some, n_y * sizeof *some);
}

/* Groups that are listed get the bits that all of them get, and no other output is written. */
static void check_listed(struct tables *t, enum quant_type type, uint32_t n_in)
{
    enum { OUT = 16 * 23 + 5, ROWS = 6 };
    static const uint32_t list[] = {0, 1, 2, 5, 6, 7, 8, 9, 14, 20, 22, 23};
    const uint32_t n_list = sizeof list / sizeof *list;
    struct matrix m;
    matrix_init(&m, t, type, OUT, n_in, 4);
    float *x = zeroed((size_t)ROWS * n_in, sizeof *x);
    float *all = zeroed(ROWS * OUT, sizeof *all), *some = zeroed(ROWS * OUT, sizeof *some);
    fill_gauss(x, (size_t)ROWS * n_in, 6);
    struct op_linear op = {.x = x,
                           .x_stride = n_in,
                           .n_in = n_in,
                           .kind = ROW_DECODE,
                           .n_part = 1,
                           .part = {{.w = &m.w, .bias = m.bias, .y_stride = OUT}}};
    for (size_t i = 0; i <= t->n_isa; i++) {
        const struct ops *ops = i < t->n_isa ? &t->isa[i].ops : &t->ref;
        const char *what = i < t->n_isa ? label(&t->isa[i], ROW_DECODE, type) : "ref";
        for (uint32_t r = 1; r <= ROWS; r += ROWS - 1) {
            op.n_row = r;
            op.group = NULL;
            op.part[0].y = all;
            call(ops, t->pool[1], op);
            op.group = list;
            op.n_group = n_list;
            op.part[0].y = some;
            for (uint32_t o = 0; o < ROWS * OUT; o++) some[o] = 1e9f;
            call(ops, t->pool[r > 1], op);
            bool listed[OUT / 16 + 1] = {false};
            for (uint32_t l = 0; l < n_list; l++) listed[list[l]] = true;
            for (uint32_t o = 0; o < r * OUT; o++)
                if (!listed[o % OUT / 16]) all[o] = 1e9f;
            expect_same_bits(some, all, (size_t)r * OUT, what);
        }
    }
    matrix_deinit(&m);
    mem_unmap(x, (size_t)ROWS * n_in * sizeof *x);
    mem_unmap(all, ROWS * OUT * sizeof *all);
    mem_unmap(some, ROWS * OUT * sizeof *some);
}

static void listed_groups_alone(void **state)
{
    check_listed(*state, QUANT_Q8_0, 608);
    check_listed(*state, QUANT_Q6_K, 512);
    check_listed(*state, QUANT_F16, 40);
}

static void types_match_ref(void **state)
{
    struct tables *t = *state;
    for (size_t i = 0; i < N_TYPE; i++) {
        const uint32_t block = quant_block_elems(types[i]);
        check_type(t, types[i], 73, 512); /* groups that no number of streams divides */
        check_type(t, types[i], 19, block == 256 ? 256 : block == 32 ? 608 : 587);
    }
}

/* The shapes and types of the four models; every third row of outputs would do, all are cheap. */
static void model_shapes_match_ref(void **state)
{
    struct tables *t = *state;
    static const struct {
        enum quant_type type;
        uint32_t n_out, n_in;
    } cases[] = {{QUANT_Q4_1, 1536, 576},  {QUANT_Q4_1, 576, 1536},  {QUANT_Q8_0, 192, 576},
                 {QUANT_Q5_0, 4864, 896},  {QUANT_Q8_0, 128, 896},   {QUANT_Q6_K, 896, 4864},
                 {QUANT_Q4_K, 8960, 1536}, {QUANT_Q6_K, 1536, 8960}, {QUANT_Q4_K, 256, 1536},
                 {QUANT_Q5_0, 2048, 640},  {QUANT_Q4_K, 640, 2048},  {QUANT_Q8_0, 256, 640}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct matrix m;
        const uint32_t n_out = cases[c].n_out, n_in = cases[c].n_in, n_row = 5;
        matrix_init(&m, t, cases[c].type, n_out, n_in, c);
        float *x = zeroed((size_t)n_row * n_in, sizeof *x);
        float *want = zeroed((size_t)n_row * n_out, sizeof *want);
        float *got = zeroed((size_t)n_row * n_out, sizeof *got);
        fill_gauss(x, (size_t)n_row * n_in, c);
        struct op_linear op = {.x = x,
                               .x_stride = n_in,
                               .n_row = n_row,
                               .n_in = n_in,
                               .n_part = 1,
                               .part = {{.w = &m.w, .y = want, .y_stride = n_out}}};
        call(&t->ref, t->pool[1], op);
        op.part[0].y = got;
        for (size_t i = 0; i < t->n_isa; i++) {
            for (int kind = ROW_DECODE; kind <= ROW_PROMPT; kind++) {
                op.kind = (enum row_kind)kind;
                call(&t->isa[i].ops, t->pool[1], op);
                compare_rows(&op, want, &m, tolerance(&t->isa[i], op.kind),
                             label(&t->isa[i], op.kind, cases[c].type));
            }
        }
        matrix_deinit(&m);
        mem_unmap(x, (size_t)n_row * n_in * sizeof *x);
        mem_unmap(want, (size_t)n_row * n_out * sizeof *want);
        mem_unmap(got, (size_t)n_row * n_out * sizeof *got);
    }
}

/* Norm in front; q, k, v of different types and widths in one call; bias on some. */
#define N_ROW 21u
#define N_IN  512u

struct trio {
    struct matrix m[3];
    float x[N_ROW * N_IN], norm[N_IN];
    float want[3][N_ROW * 96], got[3][N_ROW * 96];
};

static const uint32_t trio_out[3] = {96, 40, 33};

static struct trio *trio_create(struct tables *t, bool equal_widths)
{
    static const enum quant_type trio_types[3] = {QUANT_Q4_K, QUANT_Q8_0, QUANT_F16};
    struct trio *s = zeroed(1, sizeof *s);
    uint64_t seed = 11;
    for (uint32_t i = 0; i < 3; i++)
        matrix_init(&s->m[i], t, trio_types[i], equal_widths ? 90 : trio_out[i], N_IN, i + 20);
    fill_gauss(s->x, N_ROW * N_IN, 12);
    for (uint32_t i = 0; i < N_IN; i++) s->norm[i] = 1 + 0.3f * random_unit(&seed);
    return s;
}

static void trio_destroy(struct trio *s)
{
    for (uint32_t i = 0; i < 3; i++) matrix_deinit(&s->m[i]);
    mem_unmap(s, sizeof *s);
}

/* Runs the op under ref and under every set from the same starting y, and compares. */
static void trio_check(struct tables *t, struct trio *s, struct op_linear op, const char *what)
{
    const uint32_t n_y = op.epilogue >= LINEAR_GLU_SILU ? 1 : op.n_part;
    for (uint32_t p = 0; p < op.n_part; p++) {
        op.part[p].w = &s->m[p].w;
        op.part[p].bias = p == 1 ? NULL : s->m[p].bias;
        op.part[p].y_stride = s->m[p].w.n_out;
        op.part[p].y = s->want[p];
        fill_gauss(s->want[p], N_ROW * 96, p);
    }
    call(&t->ref, t->pool[0], op);
    for (size_t i = 0; i < t->n_isa; i++) {
        for (int kind = ROW_DECODE; kind <= ROW_PROMPT; kind++) {
            op.kind = (enum row_kind)kind;
            for (uint32_t p = 0; p < op.n_part; p++) {
                op.part[p].y = s->got[p];
                fill_gauss(s->got[p], N_ROW * 96, p);
            }
            call(&t->isa[i].ops, t->pool[1], op);
            /* A GLU multiplies two outputs; and some rows of y are small against their terms. */
            const double factor = op.epilogue >= LINEAR_GLU_SILU ? 4 : 2;
            for (uint32_t p = 0; p < n_y; p++)
                for (uint32_t r = 0; r < N_ROW; r++)
                    compare(s->got[p] + r * s->m[p].w.n_out, s->want[p] + r * s->m[p].w.n_out,
                            s->m[p].w.n_out, 0, factor * tolerance(&t->isa[i], op.kind), what);
            for (uint32_t p = n_y; p < op.n_part; p++) {
                fill_gauss(s->want[p], N_ROW * 96, p); /* not written */
                expect_same_bits(s->got[p], s->want[p], N_ROW * 96, what);
            }
        }
    }
}

static void norm_and_parts_match_ref(void **state)
{
    struct trio *s = trio_create(*state, false);
    struct op_linear op = {.x = s->x,
                           .x_stride = N_IN,
                           .n_row = N_ROW,
                           .n_in = N_IN,
                           .norm = s->norm,
                           .norm_eps = 1e-6f,
                           .n_part = 3};
    trio_check(*state, s, op, "norm, store");
    op.epilogue = LINEAR_ADD;
    trio_check(*state, s, op, "norm, add");
    op.norm = NULL;
    trio_check(*state, s, op, "add");
    trio_destroy(s);
}

static void glu_matches_ref(void **state)
{
    struct trio *s = trio_create(*state, true);
    struct op_linear op = {.x = s->x,
                           .x_stride = N_IN,
                           .n_row = N_ROW,
                           .n_in = N_IN,
                           .norm = s->norm,
                           .norm_eps = 1e-6f,
                           .n_part = 2};
    op.epilogue = LINEAR_GLU_SILU;
    trio_check(*state, s, op, "silu");
    op.epilogue = LINEAR_GLU_GELU;
    trio_check(*state, s, op, "gelu");
    for (uint32_t i = 0; i < N_ROW * N_IN; i++) s->x[i] *= 300; /* gates far out: 0 and identity */
    op.norm = NULL;
    trio_check(*state, s, op, "gelu, large");
    op.epilogue = LINEAR_GLU_SILU;
    trio_check(*state, s, op, "silu, large");
    trio_destroy(s);
}

/* A GLU and the layer that reads it, for one number of rows: whatever form y has in between, the
 * bits are the same. */
static void check_kept(struct tables *t, const struct isa *isa, const struct matrix m[3], float *x,
                       uint32_t n_row)
{
    const uint32_t n_in = m[0].w.n_in, n_mid = m[0].w.n_out, n_out = m[2].w.n_out;
    float *mid = zeroed((size_t)n_row * n_mid, sizeof *mid);
    float *y[2];
    for (int kept = 0; kept < 2; kept++) {
        y[kept] = zeroed((size_t)n_row * n_out, sizeof *y[kept]);
        call(&isa->ops, t->pool[kept],
             (struct op_linear){
                 .x = x,
                 .x_stride = n_in,
                 .n_row = n_row,
                 .n_in = n_in,
                 .kind = ROW_PROMPT,
                 .epilogue = LINEAR_GLU_SILU,
                 .keep_y = kept,
                 .n_part = 2,
                 .part = {{&m[0].w, m[0].bias, mid, n_mid}, {&m[1].w, NULL, NULL, 0}}});
        call(&isa->ops, t->pool[kept],
             (struct op_linear){.x = mid,
                                .x_stride = n_mid,
                                .n_row = n_row,
                                .n_in = n_mid,
                                .kind = ROW_PROMPT,
                                .kept_x = kept,
                                .n_part = 1,
                                .part = {{&m[2].w, m[2].bias, y[kept], n_out}}});
    }
    expect_same_bits(y[1], y[0], (size_t)n_row * n_out, isa->name);
    for (int kept = 0; kept < 2; kept++)
        mem_unmap(y[kept], (size_t)n_row * n_out * sizeof *y[kept]);
    mem_unmap(mid, (size_t)n_row * n_mid * sizeof *mid);
}

static void kept_rows_have_the_same_bits(void **state)
{
    static const uint32_t row_counts[] = {1, 6, 13, 15, 16, 31, 33, 64, ROWS_MAX};
    static const uint32_t widths[] = {96, 1856, 90}; /* one range, two, and none that fits */
    struct tables *t = *state;
    float *x = zeroed((size_t)ROWS_MAX * N_IN, sizeof *x);
    fill_gauss(x, (size_t)ROWS_MAX * N_IN, 31);
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        struct matrix m[3];
        matrix_init(&m[0], t, QUANT_Q4_K, widths[k], N_IN, 32);
        matrix_init(&m[1], t, QUANT_Q8_0, widths[k], N_IN, 33);
        matrix_init(&m[2], t, widths[k] == 90 ? QUANT_F16 : QUANT_Q4_0, 35, widths[k], 34);
        for (size_t i = 0; i < t->n_isa; i++)
            for (size_t c = 0; c < sizeof row_counts / sizeof *row_counts; c++)
                check_kept(t, &t->isa[i], m, x, row_counts[c]);
        for (int i = 0; i < 3; i++) matrix_deinit(&m[i]);
    }
    mem_unmap(x, (size_t)ROWS_MAX * N_IN * sizeof *x);
}

/* Row contents of the hostile test. */
enum hostile {
    ROW_GAUSS,
    ROW_ZERO,
    ROW_DENORMAL,
    ROW_HUGE,
    ROW_SMALL,
    ROW_SPIKE,
    ROW_INF,
    ROW_NAN,
    ROW_GAUSS_TOO,
    N_HOSTILE
};

static void fill_hostile(float *x, uint32_t n)
{
    fill_gauss(x, (size_t)N_HOSTILE * n, 9);
    for (uint32_t k = 0; k < n; k++) {
        x[ROW_ZERO * n + k] = k % 2 ? 0.0f : -0.0f;
        x[ROW_DENORMAL * n + k] *= 0x1p-130f;
        x[ROW_HUGE * n + k] *= 1e30f;
        x[ROW_SMALL * n + k] *= 1e-20f;
    }
    x[ROW_SPIKE * n + 5] = 3e4f;
    x[ROW_INF * n + n / 2] = INFINITY;
    x[ROW_NAN * n + n - 1] = NAN;
}

/* Three times the tolerance: next to the spike, which fixes the step of its block, 31 inputs lose
 * their bits, an error of 1e-4 of the output. */
static void check_hostile_rows(const float *y, const float *want, uint32_t n, const float *bias,
                               double tol, const char *what)
{
    static const enum hostile normal[] = {ROW_GAUSS, ROW_HUGE, ROW_SMALL, ROW_SPIKE, ROW_GAUSS_TOO};
    for (size_t i = 0; i < sizeof normal / sizeof normal[0]; i++)
        compare(y + normal[i] * n, want + normal[i] * n, n, 0, 3 * tol, what);
    for (uint32_t o = 0; o < n; o++) {
        assert_true(y[ROW_ZERO * n + o] == (bias ? bias[o] : 0));
        assert_true(fabsf(y[ROW_DENORMAL * n + o] - (bias ? bias[o] : 0)) < 1e-28f);
        assert_true(!isfinite(y[ROW_INF * n + o]));
        assert_true(isnan(y[ROW_NAN * n + o]));
    }
}

static void hostile_rows_stay_alone(void **state)
{
    struct tables *t = *state;
    const uint32_t n_in = 512, n_out = 35;
    float *x = zeroed(N_HOSTILE * n_in, sizeof *x);
    float *want = zeroed(N_HOSTILE * n_out, sizeof *want), *got = zeroed(N_HOSTILE * n_out, 4);
    fill_hostile(x, n_in);
    for (size_t k = 0; k < N_TYPE; k++) {
        struct matrix m;
        matrix_init(&m, t, types[k], n_out, n_in, k);
        struct op_linear op = {.x = x,
                               .x_stride = n_in,
                               .n_row = N_HOSTILE,
                               .n_in = n_in,
                               .n_part = 1,
                               .part = {{.w = &m.w, .y = want, .y_stride = n_out}}};
        call(&t->ref, t->pool[0], op);
        op.part[0].y = got;
        for (size_t i = 0; i < t->n_isa; i++) {
            for (int kind = ROW_DECODE; kind <= ROW_PROMPT; kind++) {
                const char *what = label(&t->isa[i], (enum row_kind)kind, types[k]);
                op.kind = (enum row_kind)kind;
                call(&t->isa[i].ops, t->pool[1], op);
                check_hostile_rows(got, want, n_out, NULL, tolerance(&t->isa[i], op.kind), what);
            }
        }
        matrix_deinit(&m);
    }
    mem_unmap(x, N_HOSTILE * n_in * sizeof *x);
    mem_unmap(want, N_HOSTILE * n_out * sizeof *want);
    mem_unmap(got, N_HOSTILE * n_out * sizeof *got);
}

/* One row of weights is scaled far up, one far down, one poisoned: the others keep their bits. */
static void poison_weights(struct matrix *m, uint32_t n_in)
{
    const size_t row = quant_row_bytes(m->w.type, n_in);
    for (uint32_t k = 0; k < n_in; k++) {
        float *f = (float *)(m->src + 2 * row) + k, *g = (float *)(m->src + 20 * row) + k;
        *f *= 1e30f;
        *g *= 1e-30f;
    }
    ((float *)(m->src + 7 * row))[3] = NAN;
    ((float *)(m->src + 30 * row))[0] = INFINITY;
}

static void hostile_weights_stay_alone(void **state)
{
    struct tables *t = *state;
    const uint32_t n_in = 256, n_out = 35, n_row = 18;
    struct matrix m;
    matrix_init(&m, t, QUANT_F32, n_out, n_in, 77);
    float *x = zeroed(n_row * n_in, sizeof *x);
    float *want = zeroed(n_row * n_out, sizeof *want), *got = zeroed(n_row * n_out, sizeof *got);
    float *before = zeroed(n_row * n_out, sizeof *before);
    fill_gauss(x, n_row * n_in, 78);
    struct op_linear op = {.x = x,
                           .x_stride = n_in,
                           .n_row = n_row,
                           .n_in = n_in,
                           .n_part = 1,
                           .part = {{.w = &m.w, .y = want, .y_stride = n_out}}};
    for (size_t i = 0; i < t->n_isa; i++) {
        for (int kind = ROW_DECODE; kind <= ROW_PROMPT; kind++) {
            const double tol = tolerance(&t->isa[i], (enum row_kind)kind);
            uint64_t seed = 77;
            random_rows(m.src, QUANT_F32, (size_t)n_out * n_in, &seed);
            weight_pack(t->pool[1], &m.w, m.src);
            op.kind = (enum row_kind)kind;
            op.part[0].y = before;
            call(&t->isa[i].ops, t->pool[0], op);
            poison_weights(&m, n_in);
            weight_pack(t->pool[1], &m.w, m.src);
            op.part[0].y = want;
            call(&t->ref, t->pool[0], op);
            op.part[0].y = got;
            call(&t->isa[i].ops, t->pool[0], op);
            for (uint32_t r = 0; r < n_row; r++)
                for (uint32_t o = 0; o < n_out; o++) {
                    const float a = got[r * n_out + o], b = want[r * n_out + o];
                    const double term = o == 2 ? 1e30 : 1e-30; /* of a product, about 0.03 of it */
                    if (o == 7 || o == 30)
                        assert_true(!isfinite(a));
                    else if (o == 2 || o == 20)
                        assert_true(fabs((double)a - (double)b) < 6 * tol * term);
                    else
                        expect_same_bits(&a, &before[r * n_out + o], 1, t->isa[i].name);
                }
        }
    }
    matrix_deinit(&m);
    mem_unmap(x, n_row * n_in * sizeof *x);
    mem_unmap(want, n_row * n_out * sizeof *want);
    mem_unmap(got, n_row * n_out * sizeof *got);
    mem_unmap(before, n_row * n_out * sizeof *before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(listed_groups_alone),     cmocka_unit_test(types_match_ref),
        cmocka_unit_test(model_shapes_match_ref),  cmocka_unit_test(norm_and_parts_match_ref),
        cmocka_unit_test(glu_matches_ref),         cmocka_unit_test(kept_rows_have_the_same_bits),
        cmocka_unit_test(hostile_rows_stay_alone), cmocka_unit_test(hostile_weights_stay_alone),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
