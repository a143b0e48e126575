/* linear_tile_tmpl.h: the end of linear_avx2.c and linear_neon.c: weights of plain floats, a kernel
 * for each type, and the entries of the table of operations.
 *
 * Included once by a file that has defined
 *     FUSED                                         attributes of functions with k.fused
 *     quant_tile (k, t)                             the result of a tile
 *     unpack_line (low, high, line, type)           16 bits: inputs k and k + 2 as f32 [16] each
 *     dense_rows (panel, t, c, r0, n_row)           adds chunk c; DENSE_ROWS or 1 of them
 *     isa_of (single)                                all but `kernels`; `single`: for layers of a
 * single row It defines linear_plain, linear_fused, linear_scratch. */
#ifndef SAC_OPS_CPU_LINEAR_TILE_TMPL_H
#define SAC_OPS_CPU_LINEAR_TILE_TMPL_H

#include "ops/cpu/linear_tile.h"

#include <string.h>

/* ---- Unquantised weights ---- */

/* Returns a chunk of nb blocks as f32 [inputs, 16]: in place if it is f32, otherwise in
 * `buffer`. */
INLINE const float *dense_panel(float *buffer, const uint8_t *src, uint32_t nb,
                                enum quant_type type)
{
    if (type == QUANT_F32) return (const float *)(const void *)src;
    const uint32_t n_line = nb * layout_block_bytes(weight_layout_of(type)) / LAYOUT_LINE;
    for (uint32_t i = 0; i < n_line; i++) {
        const uint8_t *line = src + LAYOUT_LINE * i;
        float *low = buffer + (i / 2 * 4 + i % 2) * WEIGHT_GROUP;
        __builtin_prefetch(line + LINEAR_TILE_AHEAD);
        unpack_line(low, low + 2 * WEIGHT_GROUP, line, type);
    }
    return buffer;
}

INLINE void dense_tile(enum quant_type type, const struct linear_tile *t)
{
    const uint8_t *src = t->group + LAYOUT_HEAD;
    _Alignas(64) float buffer[LAYOUT_CHUNK * WEIGHT_GROUP];
    memset(t->acc, 0, t->n_row * sizeof *t->acc);
    for (uint32_t c = 0; c < t->n_chunk; c++) {
        const float *panel = dense_panel(buffer, src, layout_chunk_blocks(t->n_block, c), type);
        uint32_t r = 0;
        for (; r + DENSE_ROWS <= t->n_row; r += DENSE_ROWS) dense_rows(panel, t, c, r, DENSE_ROWS);
        for (; r < t->n_row; r++) dense_rows(panel, t, c, r, 1);
        src += layout_full_chunk_bytes(weight_layout_of(type));
    }
}

/* ---- One kernel per type ---- */

#define EACH_QUANT(use)                                                                            \
    use(Q4_0) use(Q4_1) use(Q5_0) use(Q5_1) use(Q8_0) use(Q2_K) use(Q3_K) use(Q4_K) use(Q5_K)      \
        use(Q6_K) use(IQ4_NL) use(IQ4_XS)
#define EACH_DENSE(use) use(F32) use(F16) use(BF16)

#define QUANT_KERNELS(type)                                                                        \
    static void plain_##type(const struct linear_tile *t)                                          \
    {                                                                                              \
        quant_tile((struct linear_kernel){weight_layout_of(QUANT_##type), false}, t);              \
    }                                                                                              \
    FUSED static void fused_##type(const struct linear_tile *t)                                    \
    {                                                                                              \
        quant_tile((struct linear_kernel){weight_layout_of(QUANT_##type), true}, t);               \
    }
#define DENSE_KERNEL(type)                                                                         \
    static void dense_##type(const struct linear_tile *t)                                          \
    {                                                                                              \
        dense_tile(QUANT_##type, t);                                                               \
    }
EACH_QUANT(QUANT_KERNELS)
EACH_DENSE(DENSE_KERNEL)

/* clang-format off */
#define PLAIN_ENTRY(type) [QUANT_##type] = plain_##type,
#define FUSED_ENTRY(type) [QUANT_##type] = fused_##type,
#define DENSE_ENTRY(type) [QUANT_##type] = dense_##type,
/* clang-format on */
static const linear_tile_fn plain_kernels[] = {EACH_QUANT(PLAIN_ENTRY) EACH_DENSE(DENSE_ENTRY)};
static const linear_tile_fn fused_kernels[] = {EACH_QUANT(FUSED_ENTRY) EACH_DENSE(DENSE_ENTRY)};

/* ---- The table ---- */

static void run(struct workers *pool, const struct op_linear *op, const linear_tile_fn *kernels)
{
    struct linear_tile_isa isa = isa_of(op->n_row == 1);
    isa.kernels = kernels;
    linear_tile_run(pool, op, &isa);
}

static void linear_plain(struct workers *pool, const struct op_linear *op)
{
    run(pool, op, plain_kernels);
}

static void linear_fused(struct workers *pool, const struct op_linear *op)
{
    run(pool, op, fused_kernels);
}

static size_t linear_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_worker;
    (void)n_out_sum;
    return linear_tile_scratch(isa_of(n_row == 1).chunk_bytes, n_row, n_in);
}

#endif
