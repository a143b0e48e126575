/* bench_cuda_linear.c: how fast a GPU multiplies decode rows by packed weights (`make bench-cuda`).
 *
 *     bench_cuda_linear LIBRARY [-o md|json]
 *
 * The linear layers of Llama-3.1-8B as the engine calls them, in the types of Q4_K_M and Q8_0
 * files, and those of Qwen2.5-0.5B, whose Q4_K_M files have Q5_0 and Q8_0. Weights are cold: calls
 * walk through copies that are larger together than the GPU's cache. The limit is a copy within the
 * GPU's memory, bytes read and written, measured in the same run. Times are of calls queued behind
 * each other, medians of several such queues. */
#include "../check/random_rows.h"
#include "base/mem.h"
#include "cuda_bench.h"

#include <string.h>

#define COLD_BYTES ((size_t)512 << 20)

enum { COPIES_MAX = 64, ROWS_MAX = 16 };

struct layer {
    const char *name;
    uint32_t n_in, n_out, n_part;
    enum linear_epilogue epilogue;
    bool normed;
};

static const struct layer layers_8b[] = {{"q", 4096, 4096, 1, LINEAR_STORE, true},
                                         {"k, v", 4096, 1024, 2, LINEAR_STORE, true},
                                         {"attention's output", 4096, 4096, 1, LINEAR_ADD, false},
                                         {"gate and up", 4096, 14336, 2, LINEAR_GLU_SILU, true},
                                         {"down", 14336, 4096, 1, LINEAR_ADD, false},
                                         {"logits", 4096, 128256, 1, LINEAR_STORE, false}};
static const struct layer layers_half_b[] = {{"0.5B, q", 896, 896, 1, LINEAR_STORE, true},
                                             {"gate and up", 896, 4864, 2, LINEAR_GLU_SILU, true},
                                             {"down", 4864, 896, 1, LINEAR_ADD, false},
                                             {"logits", 896, 151936, 1, LINEAR_STORE, false}};

struct call {
    struct op_linear op;
    struct weight w[COPIES_MAX * LINEAR_PARTS_MAX]; /* of copy i: n_part from i * n_part on */
    uint32_t n_copy;
};

static void multiply(const struct bench *b, const void *call, uint32_t i)
{
    const struct call *c = call;
    struct op_linear op = c->op;
    for (uint32_t p = 0; p < op.n_part; p++) op.part[p].w = &c->w[i % c->n_copy * op.n_part + p];
    b->api->linear(b->dev, &op);
}

/* Rows of the file, of which the first RANDOM_ROWS are random and the others the same again. */
static void fill_rows(uint8_t *to, const struct weight *w)
{
    enum { RANDOM_ROWS = 1024 };
    const size_t row = quant_row_bytes(w->type, w->n_in);
    uint64_t seed = 7;
    random_rows(to, w->type, (size_t)RANDOM_ROWS * w->n_in, &seed);
    for (uint32_t i = RANDOM_ROWS; i < w->n_out; i++)
        memcpy(to + i * row, to + i % RANDOM_ROWS * row, row);
}

/* The same numbers in every copy: caches know addresses. */
static void make_weights(const struct bench *b, struct call *c, const struct layer *l,
                         enum quant_type type, struct workers *pool)
{
    struct weight w;
    weight_init(&w, type, l->n_out, l->n_in);
    const size_t bytes = weight_bytes(&w), n_row = quant_row_bytes(type, l->n_in) * l->n_out;
    uint8_t *rows = mem_map(n_row);
    w.data = mem_map(bytes);
    if (!rows || !w.data) die("out of memory");
    fill_rows(rows, &w);
    weight_pack(pool, &w, rows);
    c->n_copy = (uint32_t)(COLD_BYTES / (bytes * l->n_part)) + 1;
    if (c->n_copy > COPIES_MAX) c->n_copy = COPIES_MAX;
    for (uint32_t i = 0; i < c->n_copy * l->n_part; i++) {
        c->w[i] = w;
        c->w[i].data = take(b, bytes);
        if (i)
            b->api->copy(b->dev, c->w[i].data, c->w[0].data, bytes);
        else
            b->api->up(b->dev, c->w[i].data, w.data, bytes);
    }
    wait_done(b);
    mem_unmap(w.data, bytes);
    mem_unmap(rows, n_row);
}

static float *make_floats(const struct bench *b, size_t n)
{
    float *host = malloc(n * sizeof *host), *x = take(b, n * sizeof *x);
    uint64_t seed = 3;
    if (!host) die("out of memory");
    for (size_t i = 0; i < n; i++) host[i] = random_unit(&seed);
    b->api->up(b->dev, x, host, n * sizeof *x);
    free(host);
    return x;
}

/* `bytes`: of the weights. */
static void show(struct bench *b, const struct layer *l, enum quant_type type, uint32_t n_row,
                 double bytes, double us)
{
    const double rate = bytes / us * 1e-6, limit = b->copy_rate;
    if (b->json)
        printf("%s{\"op\": \"linear\", \"layer\": \"%s\", \"weights\": \"%s\", \"rows\": %u, "
               "\"us\": %.2f, \"rate\": %.3f, \"unit\": \"TB/s\", \"of_copy\": %.3f}",
               b->n_result ? ",\n  " : "[\n  ", l->name, quant_name(type), n_row, us, rate,
               rate / limit);
    else
        printf("| %s | %s | %u | %.1f | %.2f | %.0f |\n", l->name, quant_name(type), n_row, us,
               rate, 100 * rate / limit);
    fflush(stdout);
    b->n_result++;
}

static void bench_layer(struct bench *b, const struct layer *l, enum quant_type type,
                        struct workers *pool)
{
    static struct call c;
    make_weights(b, &c, l, type, pool);
    c.op = (struct op_linear){.x = make_floats(b, (size_t)ROWS_MAX * l->n_in),
                              .x_stride = l->n_in,
                              .n_in = l->n_in,
                              .norm = l->normed ? make_floats(b, l->n_in) : NULL,
                              .norm_eps = 1e-5f,
                              .kind = ROW_DECODE,
                              .epilogue = l->epilogue,
                              .n_part = l->n_part};
    c.op.scratch_bytes = b->api->linear_scratch(1, ROWS_MAX, l->n_in, l->n_part * l->n_out);
    c.op.scratch = take(b, c.op.scratch_bytes);
    for (uint32_t p = 0; p < l->n_part; p++) {
        c.op.part[p].y = make_floats(b, (size_t)ROWS_MAX * l->n_out);
        c.op.part[p].y_stride = l->n_out;
    }
    const double bytes = (double)weight_bytes(&c.w[0]) * l->n_part;
    static const uint32_t n_row[] = {1, 4, 8, ROWS_MAX};
    for (size_t i = 0; i < sizeof n_row / sizeof n_row[0]; i++) {
        c.op.n_row = n_row[i];
        const double us = time_us(b, multiply, &c, 2 * c.n_copy > 20 ? 2 * c.n_copy : 20);
        show(b, l, type, c.op.n_row, bytes, us);
    }
    for (uint32_t i = 0; i < c.n_copy * l->n_part; i++) b->api->give(b->dev, c.w[i].data);
    for (uint32_t p = 0; p < l->n_part; p++) b->api->give(b->dev, c.op.part[p].y);
    b->api->give(b->dev, c.op.scratch);
    b->api->give(b->dev, (void *)c.op.norm);
    b->api->give(b->dev, (void *)c.op.x);
}

static void copy_half(const struct bench *b, const void *memory, uint32_t i)
{
    uint8_t *const *half = memory;
    (void)i;
    b->api->copy(b->dev, half[1], half[0], COLD_BYTES);
}

/* TB/s of a copy, bytes read and written. */
static double measure_copy(const struct bench *b)
{
    uint8_t *half[2] = {(uint8_t *)make_floats(b, COLD_BYTES / sizeof(float)), take(b, COLD_BYTES)};
    const double us = time_us(b, copy_half, half, 8);
    b->api->give(b->dev, half[0]);
    b->api->give(b->dev, half[1]);
    return 2 * (double)COLD_BYTES / us * 1e-6;
}

int main(int argc, char **argv)
{
    static const enum quant_type types_8b[] = {QUANT_Q4_K, QUANT_Q6_K, QUANT_Q8_0};
    static const enum quant_type types_half_b[] = {QUANT_Q5_0, QUANT_Q8_0};
    sac_error err;
    struct workers *pool;
    if (argc < 2) die("usage: bench_cuda_linear LIBRARY [-o md|json]");
    struct bench b = bench_open(argv[1]);
    b.json = argc > 3 && strcmp(argv[2], "-o") == 0 && strcmp(argv[3], "json") == 0;
    if (workers_create(&pool, workers_default_count(), &err) != SAC_OK) die(err.msg);
    b.copy_rate = measure_copy(&b);
    if (!b.json)
        printf(
            "%s, a copy moves %.2f TB/s\n\n| layer | weights | rows | us | TB/s | %% of a copy |\n"
            "|---|---|---|---|---|---|\n",
            b.info.name, b.copy_rate);
    for (size_t t = 0; t < sizeof types_8b / sizeof types_8b[0]; t++)
        for (size_t l = 0; l < sizeof layers_8b / sizeof layers_8b[0]; l++)
            bench_layer(&b, &layers_8b[l], types_8b[t], pool);
    for (size_t t = 0; t < sizeof types_half_b / sizeof types_half_b[0]; t++)
        for (size_t l = 0; l < sizeof layers_half_b / sizeof layers_half_b[0]; l++)
            bench_layer(&b, &layers_half_b[l], types_half_b[t], pool);
    if (b.json) printf("\n]\n");
    workers_destroy(pool);
    b.api->close(b.dev);
    return 0;
}
