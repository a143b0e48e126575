/* bench_linear.c: rates of the linear layers per type, shape, rows and mode, with their share of
 * the limits that were measured in the same run. For developers; `saccade bench ops` is for users.
 *
 *     bench_linear [threads [isa [type [mode]]]]     e.g. bench_linear 2 amx Q4_K wide
 *
 * Weights are cold: calls walk through matrices of 256 MiB together. Best of several rounds. */
#include "../check/random_rows.h"
#include "base/mem.h"
#include "ops/machine.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>

#define COLD_BYTES ((size_t)256 << 20)
#define MAX_COPY   1024
#define ROUNDS     7

struct shape {
    uint32_t n_in, n_out;
};

static const struct shape shapes[] = {{576, 1536}, {896, 4864}, {1536, 8960}, {8960, 1536}};

static const enum quant_type types[] = {QUANT_Q4_0, QUANT_Q4_1, QUANT_Q5_0,   QUANT_Q5_1,
                                        QUANT_Q8_0, QUANT_Q2_K, QUANT_Q3_K,   QUANT_Q4_K,
                                        QUANT_Q5_K, QUANT_Q6_K, QUANT_IQ4_NL, QUANT_IQ4_XS,
                                        QUANT_F16,  QUANT_BF16, QUANT_F32};

struct bench {
    struct workers *pool;
    struct ops ops;
    struct machine_limits limits;
};

static void die(const char *what, const sac_error *err)
{
    fprintf(stderr, "bench_linear: %s: %s\n", what, err ? err->msg : "out of memory");
    exit(1);
}

static double best_seconds(const struct bench *b, const struct op_linear *op, struct weight *copies,
                           uint32_t n_copy)
{
    double best = 1e30;
    uint32_t at = 0;
    for (int round = 0; round < ROUNDS; round++) {
        const uint64_t start = clock_us();
        uint64_t end = start;
        uint32_t n = 0;
        while (end - start < 20000) {
            struct op_linear call = *op;
            call.part[0].w = &copies[at++ % n_copy];
            b->ops.linear(b->pool, &call);
            n++;
            end = clock_us();
        }
        const double seconds = 1e-6 * (double)(end - start) / n;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void bench_rows(const struct bench *b, struct weight *copies, uint32_t n_copy,
                       enum row_kind kind, uint32_t n_row)
{
    const struct weight *w = &copies[0];
    const size_t n_x = (size_t)n_row * w->n_in, n_y = (size_t)n_row * w->n_out;
    const size_t scratch = b->ops.linear_scratch(workers_count(b->pool), n_row, w->n_in, w->n_out);
    float *x = mem_map(n_x * sizeof *x), *y = mem_map(n_y * sizeof *y);
    void *work = mem_map(scratch);
    if (!x || !y || !work) die("buffers", NULL);
    uint64_t seed = 7;
    for (size_t i = 0; i < n_x; i++) x[i] = random_unit(&seed);
    struct op_linear op = {.x = x,
                           .x_stride = w->n_in,
                           .n_row = n_row,
                           .n_in = w->n_in,
                           .kind = kind,
                           .n_part = 1,
                           .part = {{.y = y, .y_stride = w->n_out}},
                           .scratch = work,
                           .scratch_bytes = scratch};
    const double s = best_seconds(b, &op, copies, n_copy);
    const double gb = (double)weight_bytes(w) / s * 1e-9;
    const double gflop = 2.0 * (double)n_y * w->n_in / s * 1e-9;
    printf("| %s | %u,%u | %u | %s | %.1f | %.1f | %.0f | %.0f |\n", quant_name(w->type), w->n_in,
           w->n_out, n_row, kind == ROW_DECODE ? "narrow" : "wide", s * 1e6, gb,
           100 * gb / b->limits.read_gb, gflop);
    fflush(stdout);
    mem_unmap(x, n_x * sizeof *x);
    mem_unmap(y, n_y * sizeof *y);
    mem_unmap(work, scratch);
}

static void bench_shape(const struct bench *b, enum quant_type type, struct shape shape,
                        const char *mode)
{
    static struct weight copies[MAX_COPY];
    struct weight w;
    weight_init(&w, type, shape.n_out, shape.n_in);
    uint32_t n_copy = (uint32_t)(COLD_BYTES / weight_bytes(&w)) + 1;
    if (n_copy > MAX_COPY) n_copy = MAX_COPY;
    const size_t file_bytes = quant_row_bytes(type, shape.n_in) * shape.n_out;
    uint8_t *src = mem_map(file_bytes), *data = mem_map(n_copy * weight_bytes(&w));
    if (!src || !data) die("weights", NULL);
    uint64_t seed = 1;
    random_rows(src, type, file_bytes / quant_block_bytes(type) * quant_block_elems(type), &seed);
    const uint64_t start = clock_us();
    for (uint32_t i = 0; i < n_copy; i++) {
        copies[i] = w;
        copies[i].data = data + i * weight_bytes(&w);
        weight_pack(b->pool, &copies[i], src);
    }
    const double pack_s = 1e-6 * (double)(clock_us() - start);
    printf("| %s | %u,%u | pack | | | %.2f | | |\n", quant_name(type), shape.n_in, shape.n_out,
           (double)file_bytes * n_copy / pack_s * 1e-9);
    static const uint32_t narrow[] = {1, 2, 4, 8, 12, 16}, wide[] = {16, 64, 128, 512, 2048};
    for (size_t i = 0; i < sizeof narrow / sizeof narrow[0]; i++)
        if (strcmp(mode, "wide") != 0) bench_rows(b, copies, n_copy, ROW_DECODE, narrow[i]);
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (strcmp(mode, "narrow") != 0) bench_rows(b, copies, n_copy, ROW_PROMPT, wide[i]);
    mem_unmap(src, file_bytes);
    mem_unmap(data, n_copy * weight_bytes(&w));
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    sac_error err = {0};
    const uint32_t n = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0;
    const char *only = argc > 3 ? argv[3] : "", *mode = argc > 4 ? argv[4] : "";
    if (workers_create(&b.pool, n, &err) != SAC_OK) die("threads", &err);
    if (ops_init_isa(&b.ops, argc > 2 ? argv[2] : "", &err) != SAC_OK) die("isa", &err);
    if (machine_measure(&b.limits, b.pool, &err) != SAC_OK) die("limits", &err);
    printf("%s, %u threads; limits: read %.1f GB/s, VNNI %.0f GOP/s, bf16 %.0f, AMX %.0f "
           "GFLOP/s\n\n",
           b.ops.isa, workers_count(b.pool), b.limits.read_gb, b.limits.avx512_int8,
           b.limits.avx512_bf16, b.limits.amx_bf16);
    printf("| type | K,N | rows | mode | us | GB/s | %% of read limit | GFLOP/s |\n");
    printf("|---|---|---|---|---|---|---|---|\n");
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            if ((!*only || strcmp(only, quant_name(types[t])) == 0) &&
                shapes[s].n_in % quant_block_elems(types[t]) == 0)
                bench_shape(&b, types[t], shapes[s], mode);
    workers_destroy(b.pool);
    return 0;
}
