/* bench.c: measures single operations on synthetic data, against the machine's limits.
 *
 * Invariants:
 *  1. What an operation reads is cold: calls walk through copies of a matrix, or through sequences,
 *     that fill a block larger than the caches. In a model the same happens, as layer follows
 *     layer.
 *  2. Data is valid for its type, no denormals, no overflow, and boring: bytes 0x20 to 0x3f make a
 *     positive f16 between 2^-7 and 2 wherever a layout puts one. Layouts may change and this file
 *     need not.
 *  3. Times are of batches of calls that are long beside the clock's microsecond.
 * It does not check results (tests/check does) and knows no model file. */
#include "ops/bench_case.h"

#include "base/mem.h"

#include "saccade_machine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define COLD_BYTES  ((size_t)512 << 20) /* as machine.c reads */
#define SEED_BYTES  ((size_t)1 << 20)   /* random bytes; the rest of the data repeats them */
#define SAMPLE_US   1000.0 /* minimum length of a sample: 1000 times the clock's resolution */
#define SAMPLES_MIN 3
#define SAMPLES_MAX 256
#define CHUNK_PAGES (BENCH_WIDE_ROWS / PAGE_TOK) /* pages of a head that a prompt chunk fills */

struct sac_op_bench {
    struct workers *pool; /* owned */
    struct ops ops;
    sac_machine machine;
    uint8_t *cold; /* owned, [COLD_BYTES] */
    /* What `cold` holds: the matrices or pages of this case and its neighbours; SMALL: floats. */
    struct bench_case loaded;
    struct weight *weight; /* owned, [n_copy][LINEAR_PARTS_MAX] of a linear layer */
    uint32_t n_copy;
};

/* ---- Limits ---- */

struct peak {
    double gflop_s;
    const char *name;
};

/* wide: many rows of a linear layer; attention counts as wide for decode rows, too, because it is
 * in bf16. */
static struct peak peak_of(const sac_machine *m, const char *isa, bool linear, bool wide)
{
    if (strcmp(isa, "amx") == 0 && wide) return (struct peak){m->amx_bf16_gflop_s, "amx bf16"};
    /* Linear layers are in bf16 where that is faster than f32 (linear_wide_avx512.c). */
    const bool bf16 = m->avx512_bf16_gflop_s >= m->avx512_f32_gflop_s;
    if (strcmp(isa, "avx512") == 0 && wide && (bf16 || !linear))
        return (struct peak){m->avx512_bf16_gflop_s, "avx512 bf16"};
    if (strcmp(isa, "amx") == 0 || strcmp(isa, "avx512") == 0)
        return (struct peak){m->avx512_int8_gop_s, "avx512 int8"};
    if (strcmp(isa, "avx2") == 0)
        return linear ? (struct peak){m->avx2_int8_gop_s, "avx2 int8"}
                      : (struct peak){m->avx2_f32_gflop_s, "avx2 f32"};
    if (strcmp(isa, "neon") == 0 && linear) return (struct peak){m->neon_int8_gop_s, "neon int8"};
    /* Plain C depends on the compiler: f32, at best in vectors. */
    return m->neon_f32_gflop_s > 0 ? (struct peak){m->neon_f32_gflop_s, "neon f32"}
                                   : (struct peak){m->avx2_f32_gflop_s, "avx2 f32"};
}

double sac_machine_peak(const sac_machine *machine, const char *isa, bool linear, bool wide,
                        const char **out_name)
{
    const struct peak peak = peak_of(machine, isa, linear, wide || !linear);
    if (out_name) *out_name = peak.name;
    return peak.gflop_s;
}

static void set_limit(const struct sac_op_bench *b, const struct bench_case *c, sac_op *out)
{
    const char *name;
    const double peak = sac_machine_peak(&b->machine, b->ops.isa, c->op == BENCH_LINEAR,
                                         c->rows == ROW_PROMPT, &name);
    const double read_s = out->bytes / (b->machine.read_gb_s * 1e9);
    const double compute_s = peak > 0 ? out->flop / (peak * 1e9) : 0;
    out->seconds_limit = fmax(read_s, compute_s);
    out->limit = read_s >= compute_s ? "read" : name;
}

/* ---- Timing ---- */

/* One call of an operation on the copy_i-th copy of its data. */
typedef void (*call_fn)(void *arg, uint32_t copy_i);

struct timing {
    call_fn call;
    void *arg;
    uint32_t n_copy, at;
};

static double time_calls(struct timing *t, uint32_t n)
{
    const uint64_t start = clock_us();
    for (uint32_t i = 0; i < n; i++) t->call(t->arg, t->at++ % t->n_copy);
    return (double)(clock_us() - start);
}

static int order_double(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct timing *t, double seconds, sac_op *out)
{
    double us[SAMPLES_MAX], total = 0;
    time_calls(t, 1); /* page faults, sleeping threads */
    const double once = fmax(time_calls(t, 1), 1);
    const uint32_t n_call = (uint32_t)fmax(SAMPLE_US / once, 1);
    int n = 0;
    while (n < SAMPLES_MIN || (n < SAMPLES_MAX && total < seconds * 1e6)) {
        const double sample = time_calls(t, n_call);
        us[n++] = sample / n_call;
        total += sample;
    }
    qsort(us, (size_t)n, sizeof us[0], order_double);
    out->seconds = us[n / 2] * 1e-6;
    out->seconds_best = us[0] * 1e-6;
}

/* ---- Data ---- */

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Repeats the first `period` bytes until the end. */
static void repeat(uint8_t *dst, size_t period, size_t bytes)
{
    for (size_t done = period; done < bytes; done *= 2)
        memcpy(dst + done, dst, done < bytes - done ? done : bytes - done);
}

/* Weights or 16-bit pages. */
static void fill_bytes(uint8_t *dst, size_t bytes)
{
    uint64_t state = 1;
    const size_t first = bytes < SEED_BYTES ? bytes : SEED_BYTES;
    for (size_t i = 0; i < first; i++) dst[i] = 0x20u | (next_random(&state) & 0x1fu);
    repeat(dst, first, bytes);
}

/* Activations, -1 to 1. */
static void fill_floats(float *dst, size_t n)
{
    uint64_t state = 1;
    const size_t first = n < SEED_BYTES / sizeof *dst ? n : SEED_BYTES / sizeof *dst;
    for (size_t i = 0; i < first; i++) dst[i] = (float)next_random(&state) * 0x1p-30f - 1.0f;
    repeat((uint8_t *)dst, first * sizeof *dst, n * sizeof *dst);
}

static void fill_constant(float *dst, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) dst[i] = value;
}

/* Zeroed memory for what a call needs in addition to the cold data. It is laid out twice: first to
 * compute the size, then with memory. */
struct call_memory {
    struct arena arena;
    size_t bytes;
};

static sac_status call_memory_alloc(struct call_memory *m, sac_error *err)
{
    m->bytes = m->arena.used;
    m->arena = (struct arena){.base = mem_map(m->bytes), .capacity = m->bytes};
    if (m->arena.base) return SAC_OK;
    return error_set(err, SAC_ERR_MEMORY, "no %zu bytes for the benchmark of an operation",
                     m->bytes);
}

static void call_memory_free(struct call_memory *m)
{
    mem_unmap(m->arena.base, m->bytes);
}

/* ---- Linear layers ---- */

static bool holds_matrix(const struct sac_op_bench *b, const struct bench_case *c)
{
    return b->loaded.shape == c->shape && b->loaded.op == BENCH_LINEAR &&
           b->loaded.matrix == c->matrix;
}

/* Fills `cold` with copies of the case's matrices. */
static sac_status load_matrices(struct sac_op_bench *b, const struct bench_case *c, sac_error *err)
{
    const struct bench_linear l = bench_case_linear(c);
    struct weight part[LINEAR_PARTS_MAX];
    size_t bytes = 0;
    for (uint32_t i = 0; i < l.n_part; i++) {
        weight_init(&part[i], l.type, l.n_out[i], l.n_in);
        part[i].data = b->cold + bytes;
        bytes += weight_bytes(&part[i]);
    }
    assert(bytes > 0 && bytes <= COLD_BYTES && bytes % 64 == 0);
    const size_t row_bytes = quant_row_bytes(l.type, l.n_in), src_bytes = row_bytes * l.n_out[0];
    uint8_t *src = mem_map(src_bytes); /* the first part is the largest */
    b->n_copy = (uint32_t)(COLD_BYTES / bytes);
    b->loaded = (struct bench_case){0};
    mem_free(b->weight);
    b->weight = mem_calloc(b->n_copy, sizeof part);
    if (!src || !b->weight) {
        mem_unmap(src, src_bytes);
        return error_set(err, SAC_ERR_MEMORY, "no %zu bytes for the benchmark of a matrix",
                         src_bytes);
    }
    fill_bytes(src, src_bytes);
    for (uint32_t i = 0; i < l.n_part; i++) weight_pack(b->pool, &part[i], src);
    mem_unmap(src, src_bytes);
    for (uint32_t copy = 0; copy < b->n_copy; copy++) {
        if (copy) memcpy(b->cold + copy * bytes, b->cold, bytes);
        for (uint32_t i = 0; i < l.n_part; i++) {
            b->weight[copy * LINEAR_PARTS_MAX + i] = part[i];
            b->weight[copy * LINEAR_PARTS_MAX + i].data += copy * bytes;
        }
    }
    b->loaded = *c;
    return SAC_OK;
}

struct linear_call {
    const struct sac_op_bench *bench;
    struct op_linear op;
};

static void call_linear(void *arg, uint32_t copy_i)
{
    const struct linear_call *call = arg;
    struct op_linear op = call->op;
    for (uint32_t i = 0; i < op.n_part; i++)
        op.part[i].w = &call->bench->weight[copy_i * LINEAR_PARTS_MAX + i];
    call->bench->ops.linear(call->bench->pool, &op);
}

/* Called twice: to compute the size and to lay out (struct call_memory). The values of `y` do not
 * matter; those of `x` must not be special. */
static struct op_linear plan_linear(const struct sac_op_bench *b, const struct bench_case *c,
                                    struct arena *a)
{
    const struct bench_linear l = bench_case_linear(c);
    const uint32_t n_out = l.n_out[0] + l.n_out[1] + l.n_out[2];
    const size_t n_x = (size_t)c->n_row * l.n_in;
    float *x = arena_take(a, n_x, sizeof *x), *norm = arena_take(a, l.n_in, sizeof *norm);
    float *y = arena_take(a, (size_t)c->n_row * n_out, sizeof *y);
    struct op_linear op = {
        .x = x,
        .x_stride = l.n_in,
        .n_row = c->n_row,
        .n_in = l.n_in,
        .kept_x = l.kept_x,
        .norm = l.norm ? norm : NULL,
        .norm_eps = 1e-6f,
        .kind = c->rows,
        .epilogue = l.epilogue,
        .n_part = l.n_part,
        .scratch_bytes = b->ops.linear_scratch(workers_count(b->pool), c->n_row, l.n_in, n_out),
    };
    op.scratch = arena_take(a, 1, op.scratch_bytes);
    if (!a->base) return op;
    fill_floats(x, n_x);
    /* Gates stay in the range of models: sigmoids of values in the hundreds would be denormal
     * numbers, which are slow. */
    fill_constant(norm, l.n_in, 0x1p-12f);
    if (l.epilogue == LINEAR_GLU_SILU || l.epilogue == LINEAR_GLU_GELU) {
        op.keep_y = true;
        op.part[0].y = y;
        op.part[0].y_stride = l.n_out[0];
        return op;
    }
    for (uint32_t i = 0, at = 0; i < l.n_part; at += l.n_out[i++]) {
        op.part[i].y = y + at;
        op.part[i].y_stride = n_out;
    }
    return op;
}

/* A GLU with few inputs whose outputs are the inputs of `down`, in the format in which the kernels
 * keep them. Called twice, as plan_linear. */
static struct op_linear plan_glu(const struct sac_op_bench *b, const struct op_linear *down,
                                 struct weight *w, struct arena *a)
{
    const uint32_t n_in = 32, n_out = down->n_in;
    weight_init(w, QUANT_F32, n_out, n_in);
    float *src = arena_take(a, (size_t)n_out * n_in, sizeof *src);
    float *in = arena_take(a, (size_t)down->n_row * n_in, sizeof *in);
    w->data = arena_take(a, 1, weight_bytes(w));
    struct op_linear op = {
        .x = in,
        .x_stride = n_in,
        .n_row = down->n_row,
        .n_in = n_in,
        .kind = down->kind,
        .epilogue = LINEAR_GLU_SILU,
        .keep_y = true,
        .n_part = 2,
        .part = {{.w = w, .y = (float *)down->x, .y_stride = n_out}, {.w = w}},
        .scratch_bytes =
            b->ops.linear_scratch(workers_count(b->pool), down->n_row, n_in, 2 * n_out),
    };
    op.scratch = arena_take(a, 1, op.scratch_bytes);
    if (!a->base) return op;
    fill_floats(src, (size_t)n_out * n_in);
    fill_floats(in, (size_t)down->n_row * n_in);
    weight_pack(b->pool, w, src);
    return op;
}

/* Computes the inputs of `down` in the kept format. */
static sac_status keep_x(const struct sac_op_bench *b, const struct op_linear *down, sac_error *err)
{
    struct weight w;
    struct call_memory memory = {0};
    plan_glu(b, down, &w, &memory.arena);
    TRY(call_memory_alloc(&memory, err));
    const struct op_linear glu = plan_glu(b, down, &w, &memory.arena);
    b->ops.linear(b->pool, &glu);
    call_memory_free(&memory);
    return SAC_OK;
}

static sac_status measure_linear(struct sac_op_bench *b, const struct bench_case *c, double seconds,
                                 sac_op *out, sac_error *err)
{
    if (!holds_matrix(b, c)) TRY(load_matrices(b, c, err));
    struct call_memory memory = {0};
    plan_linear(b, c, &memory.arena);
    TRY(call_memory_alloc(&memory, err));
    struct linear_call call = {b, plan_linear(b, c, &memory.arena)};
    const sac_status status = call.op.kept_x ? keep_x(b, &call.op, err) : SAC_OK;
    struct timing t = {.call = call_linear, .arg = &call, .n_copy = b->n_copy};
    if (status == SAC_OK) measure(&t, seconds, out);
    call_memory_free(&memory);
    return status;
}

/* ---- Attention ---- */

static struct page_geom geom_of(const struct bench_case *c)
{
    struct page_geom g = {.n_layer = 1,
                          .n_kv_head = c->shape->n_kv_head,
                          .head_dim = c->shape->head_dim,
                          .type_k = c->kv,
                          .type_v = c->kv};
    page_geom_init(&g);
    return g;
}

/* Fills `cold` with sealed pages, all made of a few. */
static sac_status load_pages(struct sac_op_bench *b, const struct bench_case *c, sac_error *err)
{
    const struct page_geom g = geom_of(c);
    const uint8_t *tail[CHUNK_PAGES];
    uint8_t *sealed[CHUNK_PAGES], *tails = mem_map(CHUNK_PAGES * g.tail_bytes);
    if (!tails) return error_set(err, SAC_ERR_MEMORY, "no memory for the benchmark of attention");
    fill_bytes(tails, CHUNK_PAGES * g.tail_bytes);
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
        tail[i] = tails + i * g.tail_bytes;
        sealed[i] = b->cold + i * g.bytes;
    }
    const struct op_seal seal = {.geom = &g, .n_page = CHUNK_PAGES, .tail = tail, .sealed = sealed};
    b->ops.seal(b->pool, &seal);
    mem_unmap(tails, CHUNK_PAGES * g.tail_bytes);
    const size_t bytes = COLD_BYTES / g.bytes * g.bytes;
    repeat(b->cold, CHUNK_PAGES * g.bytes, bytes);
    b->loaded = *c;
    return SAC_OK;
}

struct attn_call {
    const struct sac_op_bench *bench;
    struct page_geom geom;
    struct attn_run run;
    page_id *table; /* [n_copy, n_kv_head, n_index] */
    struct op_attn op;
};

static void call_attn(void *arg, uint32_t copy_i)
{
    struct attn_call *call = arg;
    call->run.table = call->table + copy_i * call->geom.n_kv_head * call->run.table_stride;
    call->bench->ops.attn(call->bench->pool, &call->op);
}

/* Page ids as if n_copy layers were filled in chunks: all layers' pages of the first chunk, head by
 * head, then those of the second. */
static void fill_table(const struct attn_call *call, uint32_t n_copy)
{
    const uint32_t n_head = call->geom.n_kv_head, n_index = (uint32_t)call->run.table_stride;
    for (uint32_t lane = 0; lane < n_copy * n_head; lane++)
        for (uint32_t i = 0; i < n_index; i++)
            call->table[lane * n_index + i] =
                (i / CHUNK_PAGES * n_copy * n_head + lane) * CHUNK_PAGES + i % CHUNK_PAGES;
}

/* Called twice: to compute the size and to lay out (struct call_memory). */
static void plan_attn(struct attn_call *call, const struct bench_case *c, uint32_t n_copy,
                      struct arena *a)
{
    const struct bench_shape *s = c->shape;
    const struct sac_op_bench *b = call->bench;
    const struct page_geom *g = &call->geom;
    const size_t width = (size_t)s->n_head * s->head_dim, n_index = c->n_tok / PAGE_TOK;
    const size_t own_bytes = CHUNK_PAGES * g->n_kv_head * g->tail_bytes;
    const size_t scratch_bytes =
        b->ops.attn_scratch(workers_count(b->pool), g, s->n_head, c->n_row, c->n_tok);
    call->table = arena_take(a, n_copy * g->n_kv_head * n_index, sizeof *call->table);
    float *q = arena_take(a, c->n_row * width, sizeof *q);
    float *out = arena_take(a, c->n_row * width, sizeof *out);
    uint8_t *own = arena_take(a, 1, own_bytes);
    void *scratch = arena_take(a, 1, scratch_bytes);
    if (!a->base) return;
    fill_floats(q, c->n_row * width);
    fill_bytes(own, own_bytes);
    call->run = (struct attn_run){.n_row = c->n_row,
                                  .pos0 = c->n_tok - c->n_row,
                                  .kind = c->rows,
                                  .table_stride = n_index,
                                  .own0 = own,
                                  .own = own + g->n_kv_head * g->tail_bytes};
    call->op = (struct op_attn){.geom = g,
                                .frames = {.base = b->cold},
                                .n_head = s->n_head,
                                .q = q,
                                .q_stride = width,
                                .out = out,
                                .out_stride = width,
                                .scale = 1.0f / sqrtf((float)s->head_dim),
                                .n_run = 1,
                                .run = &call->run,
                                .scratch = scratch,
                                .scratch_bytes = scratch_bytes};
    fill_table(call, n_copy);
}

static sac_status measure_attn(struct sac_op_bench *b, const struct bench_case *c, double seconds,
                               sac_op *out, sac_error *err)
{
    assert(c->n_tok % BENCH_WIDE_ROWS == 0);
    if (b->loaded.shape != c->shape || b->loaded.op != BENCH_ATTN || b->loaded.kv != c->kv)
        TRY(load_pages(b, c, err));
    struct attn_call call = {.bench = b, .geom = geom_of(c)};
    const size_t seq_bytes = (size_t)c->n_tok / PAGE_TOK * call.geom.n_kv_head * call.geom.bytes;
    assert(seq_bytes <= COLD_BYTES);
    const uint32_t n_copy = (uint32_t)(COLD_BYTES / seq_bytes);
    struct call_memory memory = {0};
    plan_attn(&call, c, n_copy, &memory.arena);
    TRY(call_memory_alloc(&memory, err));
    plan_attn(&call, c, n_copy, &memory.arena);
    struct timing t = {.call = call_attn, .arg = &call, .n_copy = n_copy};
    measure(&t, seconds, out);
    call_memory_free(&memory);
    return SAC_OK;
}

/* ---- Small operations ---- */

struct small_call {
    const struct sac_op_bench *bench;
    const struct bench_case *c;
    struct page_geom geom;
    size_t from_bytes, to_bytes; /* of one call; in place: to_bytes is 0 */
    uint32_t n_copy;
    float *constant;      /* weights of a norm, cosines and sines */
    const uint8_t **tail; /* [CHUNK_PAGES * n_kv_head] pages to seal */
    uint8_t **sealed;
};

static uint8_t *small_to(const struct small_call *s, uint32_t copy_i)
{
    return s->bench->cold + s->n_copy * s->from_bytes + copy_i * s->to_bytes;
}

static void call_rmsnorm(void *arg, uint32_t copy_i)
{
    const struct small_call *s = arg;
    const uint32_t width = s->c->shape->n_embd;
    float *x = (float *)(void *)(s->bench->cold + copy_i * s->from_bytes);
    s->bench->ops.rmsnorm(s->bench->pool, &(struct op_rmsnorm){.x = x,
                                                               .y = x,
                                                               .x_stride = width,
                                                               .y_stride = width,
                                                               .n_row = s->c->n_row,
                                                               .n_group = 1,
                                                               .width = width,
                                                               .w = s->constant,
                                                               .eps = 1e-6f});
}

static void call_rope(void *arg, uint32_t copy_i)
{
    const struct small_call *s = arg;
    const struct bench_shape *shape = s->c->shape;
    s->bench->ops.rope(s->bench->pool,
                       &(struct op_rope){
                           .x = (float *)(void *)(s->bench->cold + copy_i * s->from_bytes),
                           .x_stride = (size_t)shape->n_head * shape->head_dim,
                           .n_row = s->c->n_row,
                           .n_head = shape->n_head,
                           .head_dim = shape->head_dim,
                           .n_rot = shape->head_dim,
                           .cos = s->constant,
                           .sin = s->constant + (size_t)s->c->n_row * shape->head_dim / 2,
                       });
}

static void call_kv_write(void *arg, uint32_t copy_i)
{
    const struct small_call *s = arg;
    const size_t width = (size_t)s->geom.n_kv_head * s->geom.head_dim;
    const float *k = (const float *)(const void *)(s->bench->cold + copy_i * s->from_bytes);
    uint8_t *own = small_to(s, copy_i);
    const struct attn_run run = {
        .n_row = s->c->n_row, .own0 = own, .own = own + s->geom.n_kv_head * s->geom.tail_bytes};
    s->bench->ops.kv_write(s->bench->pool, &(struct op_kv_write){.geom = &s->geom,
                                                                 .n_run = 1,
                                                                 .run = &run,
                                                                 .k = k,
                                                                 .v = k + width,
                                                                 .kv_stride = 2 * width});
}

static void call_seal(void *arg, uint32_t copy_i)
{
    const struct small_call *s = arg;
    const uint32_t n = CHUNK_PAGES * s->geom.n_kv_head;
    for (uint32_t i = 0; i < n; i++) {
        s->tail[i] = s->bench->cold + copy_i * s->from_bytes + i * s->geom.tail_bytes;
        s->sealed[i] = small_to(s, copy_i) + i * s->geom.bytes;
    }
    s->bench->ops.seal(
        s->bench->pool,
        &(struct op_seal){.geom = &s->geom, .n_page = n, .tail = s->tail, .sealed = s->sealed});
}

/* Sets sizes and returns the call. */
static call_fn plan_small(struct small_call *s, const struct bench_case *c)
{
    const size_t n_row = c->n_row, n_page = (size_t)CHUNK_PAGES * s->geom.n_kv_head;
    switch (c->op) {
    case BENCH_RMSNORM:
        s->from_bytes = n_row * c->shape->n_embd * sizeof(float);
        return call_rmsnorm;
    case BENCH_ROPE:
        s->from_bytes = n_row * c->shape->n_head * c->shape->head_dim * sizeof(float);
        return call_rope;
    case BENCH_KV_WRITE:
        s->from_bytes = n_row * 2 * s->geom.n_kv_head * s->geom.head_dim * sizeof(float);
        s->to_bytes = n_page * s->geom.tail_bytes;
        return call_kv_write;
    default:
        assert(c->op == BENCH_SEAL);
        s->from_bytes = n_page * s->geom.tail_bytes;
        s->to_bytes = n_page * s->geom.bytes;
        return call_seal;
    }
}

static sac_status measure_small(struct sac_op_bench *b, const struct bench_case *c, double seconds,
                                sac_op *out, sac_error *err)
{
    struct small_call call = {.bench = b, .c = c, .geom = geom_of(c)};
    const call_fn fn = plan_small(&call, c);
    const size_t n_constant = (size_t)c->n_row * c->shape->head_dim + c->shape->n_embd;
    const size_t n_page = (size_t)CHUNK_PAGES * call.geom.n_kv_head;
    struct call_memory memory = {0};
    for (int lay_out = 0; lay_out < 2; lay_out++) {
        if (lay_out) TRY(call_memory_alloc(&memory, err));
        call.constant = arena_take(&memory.arena, n_constant, sizeof *call.constant);
        call.tail = arena_take(&memory.arena, n_page, sizeof *call.tail);
        call.sealed = arena_take(&memory.arena, n_page, sizeof *call.sealed);
    }
    /* As cosines and sines this is a rotation by 45 degrees: rotating in place keeps magnitudes. */
    fill_constant(call.constant, n_constant, 0.70710678f);
    if (c->op == BENCH_SEAL)
        fill_bytes(b->cold, COLD_BYTES);
    else
        fill_floats((float *)(void *)b->cold, COLD_BYTES / sizeof(float));
    b->loaded = (struct bench_case){0};
    call.n_copy = (uint32_t)(COLD_BYTES / (call.from_bytes + call.to_bytes));
    struct timing t = {.call = fn, .arg = &call, .n_copy = call.n_copy};
    measure(&t, seconds, out);
    call_memory_free(&memory);
    return SAC_OK;
}

/* ---- Public functions ---- */

/* Work of one call. Attention is causal: row r of the run sees pos0 + r + 1 keys. Only bytes that
 * must be read count: writes proceed in parallel and are not limited by the read rate. */
static void count_work(const struct bench_case *c, sac_op *out)
{
    const struct bench_shape *s = c->shape;
    const struct page_geom g = geom_of(c);
    const double n_row = c->n_row, d = s->head_dim, n_kv = s->n_kv_head;
    switch (c->op) {
    case BENCH_LINEAR: {
        const struct bench_linear l = bench_case_linear(c);
        for (uint32_t i = 0; i < l.n_part; i++) {
            struct weight w;
            weight_init(&w, l.type, l.n_out[i], l.n_in);
            out->bytes += (double)weight_bytes(&w);
            out->flop += 2 * n_row * l.n_in * l.n_out[i];
        }
        break;
    }
    case BENCH_ATTN:
        out->flop = 4 * d * s->n_head * n_row * (c->n_tok - (n_row - 1) / 2);
        out->bytes = (double)g.bytes * n_kv * c->n_tok / PAGE_TOK;
        break;
    case BENCH_RMSNORM:
        out->flop = 4 * n_row * s->n_embd;
        out->bytes = n_row * s->n_embd * (double)sizeof(float);
        break;
    case BENCH_ROPE:
        out->flop = 3 * n_row * s->n_head * d;
        out->bytes = n_row * s->n_head * d * (double)sizeof(float);
        break;
    case BENCH_KV_WRITE: out->bytes = n_row * 2 * n_kv * d * (double)sizeof(float); break;
    case BENCH_SEAL: out->bytes = n_row / PAGE_TOK * n_kv * (double)g.tail_bytes; break;
    }
}

static void describe(const struct bench_case *c, sac_op *out)
{
    *out = (sac_op){.op = bench_case_op(c), .mode = bench_case_mode(c), .shape = c->shape->name};
    bench_case_describe(c, out->what, sizeof out->what);
    count_work(c, out);
}

bool sac_op_at(size_t i, sac_op *out)
{
    struct bench_case c;
    if (!bench_case_at(i, &c)) return false;
    describe(&c, out);
    return true;
}

void sac_op_bench_free(sac_op_bench *b)
{
    if (!b) return;
    workers_destroy(b->pool);
    mem_unmap(b->cold, COLD_BYTES);
    mem_free(b->weight);
    mem_free(b);
}

sac_status sac_op_bench_create(sac_op_bench **out, const sac_machine *machine, sac_error *err)
{
    sac_op_bench *b = mem_calloc(1, sizeof *b);
    if (!b) return error_set(err, SAC_ERR_MEMORY, "out of memory for a benchmark");
    b->machine = *machine;
    sac_status status = ops_init(&b->ops, err);
    if (status == SAC_OK) status = workers_create(&b->pool, machine->n_threads, err);
    if (status == SAC_OK && !(b->cold = mem_map(COLD_BYTES)))
        status = error_set(err, SAC_ERR_MEMORY, "no %zu MiB for the benchmark of operations",
                           COLD_BYTES >> 20);
    if (status != SAC_OK) {
        sac_op_bench_free(b);
        return status;
    }
    *out = b;
    return SAC_OK;
}

const char *sac_op_bench_isa(const sac_op_bench *b)
{
    return b->ops.isa;
}

sac_status sac_op_measure(sac_op_bench *b, size_t i, double seconds, sac_op *out, sac_error *err)
{
    struct bench_case c;
    sac_op found;
    if (!bench_case_at(i, &c))
        return error_set(err, SAC_ERR_ARG, "operation %zu: there are fewer", i);
    describe(&c, &found);
    set_limit(b, &c, &found);
    if (c.op == BENCH_LINEAR)
        TRY(measure_linear(b, &c, seconds, &found, err));
    else if (c.op == BENCH_ATTN)
        TRY(measure_attn(b, &c, seconds, &found, err));
    else
        TRY(measure_small(b, &c, seconds, &found, err));
    *out = found;
    return SAC_OK;
}
