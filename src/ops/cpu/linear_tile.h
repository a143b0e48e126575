/* linear_tile.h: the frame of a linear layer around the kernels of one instruction set, shared by
 * AVX2 and NEON; linear_tile_tmpl.h ends their files.
 *
 * Rows are packed once, in tiles of LINEAR_TILE_ROWS. Inside a tile they are stored chunk by chunk
 * (256 inputs), so that a kernel unpacks a chunk of a weight group once and streams the rows past
 * it. An item is a few groups of outputs times one tile. The bits that a kernel computes for a row
 * must depend on the row alone; the same holds for the bias and the epilogue that the frame
 * adds. */
#ifndef SAC_OPS_CPU_LINEAR_TILE_H
#define SAC_OPS_CPU_LINEAR_TILE_H

#include "ops/cpu/linear.h"

#define LINEAR_TILE_ROWS  128u
#define LINEAR_TILE_AHEAD 256u /* prefetch distance of weights, in bytes */

/* 256 inputs of one row, for unquantised weights. */
struct linear_tile_dense {
    float x[LAYOUT_CHUNK];
};

/* Arguments of a kernel: one group of 16 outputs times the rows of a tile. */
struct linear_tile {
    const uint8_t *group; /* packed */
    uint32_t n_chunk, n_block, n_row;
    bool single;    /* this is the only row of the op */
    const void *xq; /* [n_chunk, n_row] quantised chunks, in the format of the instruction set */
    const struct linear_tile_dense *xf; /* [n_chunk, n_row] */
    float (*acc)[WEIGHT_GROUP];         /* [n_row] out; 64-byte aligned */
};
typedef void (*linear_tile_fn)(const struct linear_tile *t);

/* Compile-time constants of a kernel: the weight type, and whether the CPU has a fused multiply-add
 * of integers (VPDPWSSD, SDOT). */
struct linear_kernel {
    struct weight_layout l;
    bool fused;
};

/* Destination of 32 inputs of a row; NULL for a format that no part of the op needs. */
struct linear_tile_slot {
    void *xq; /* the chunk */
    struct linear_tile_dense *xf;
    uint32_t block_i; /* in the chunk */
};

/* Arguments of an epilogue for sixteen outputs of a row: y = epilogue(acc + bias, up + bias_up, old
 * y). */
struct linear_tile_finish {
    enum linear_epilogue epilogue;
    const float *bias, *bias_up; /* [16] */
};

/* What differs between instruction sets. */
struct linear_tile_isa {
    size_t chunk_bytes; /* of a quantised chunk, a multiple of 64 */
    float (*rms_scale)(const float *x, uint32_t n, float eps);
    /* Packs x [n], n <= 32, times scale times norm (unless NULL), padded with zeros to a block. */
    void (*pack_block)(const struct linear_tile_slot *slot, const float *x, uint32_t n, float scale,
                       const float *norm);
    const linear_tile_fn *kernels; /* [type] */
    void (*finish)(const struct linear_tile_finish *f, float *y, const float *acc, const float *up);
};

void linear_tile_run(struct workers *pool, const struct op_linear *op,
                     const struct linear_tile_isa *isa);
size_t linear_tile_scratch(size_t chunk_bytes, uint32_t n_row, uint32_t n_in);

#endif
