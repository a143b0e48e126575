/* linear_narrow.h: the interface of narrow linear kernels: linear_avx512.c lays out the activations
 * and iterates over the weights, linear_narrow_amx.c provides kernels for several rows at once.
 * Included only by files compiled for AVX-512. */
#ifndef SAC_OPS_CPU_ROW_DECODE_H
#define SAC_OPS_CPU_ROW_DECODE_H

#include "ops/cpu/linear_avx512.h"
#include "ops/cpu/linear_decode.h"

#define NARROW_STREAMS   4u /* maximum number of groups that are read in parallel */
#define NARROW_TILE_ROWS 8u /* rows of a tile of activations */

/* How a call reads the weights: from n_stream groups in parallel, each with prefetches ahead_bytes
 * ahead. */
struct narrow_reading {
    uint32_t n_stream, ahead_bytes;
};

struct narrow_block { /* 32 inputs of a row: x = scale * v, v = 256 * hi + lo */
    int8_t hi[32], lo[32];
    float scale;
    float sum, half_sum[2]; /* scale * the sum of v: over all 32, over the first and last 16 */
    int32_t isum, half_isum[2];
    int32_t pad;
};

/* The same 32 inputs of eight rows; hi and lo together are the left operand of a tile product. */
struct narrow_tile {
    _Alignas(64) int8_t hi[NARROW_TILE_ROWS][32];
    int8_t lo[NARROW_TILE_ROWS][32];
    float scale[NARROW_TILE_ROWS], sum[NARROW_TILE_ROWS], half_sum[2][NARROW_TILE_ROWS];
    int32_t isum_128[NARROW_TILE_ROWS]; /* 128 * the sum of v */
};

/* Arguments of a kernel for ng groups and mr rows. */
struct narrow_chunk {
    const uint8_t *w;               /* the chunk of the first group */
    size_t group_bytes;             /* from one group to the next */
    uint32_t nb;                    /* blocks in the chunk */
    const struct narrow_block *act; /* of the first row and block, or */
    const float *x;                 /* for plain floats */
    size_t stride;                  /* from one row to the next, in elements of either */
    float *acc;                     /* [ng, mr, 16], in and out */
    size_t acc_stride;              /* from one group to the next */
    size_t ahead_bytes;             /* prefetch distance */
};
typedef void (*narrow_fn)(const struct narrow_chunk *c);

/* Prefetches the weights ahead_bytes after offset `at` in all groups. The end of a group is
 * followed by the group that is read next. */
INLINE void narrow_prefetch(const struct narrow_chunk *c, size_t at, const uint32_t bytes,
                            const uint32_t ng)
{
    const char *p = (const char *)c->w + at + c->ahead_bytes;
#pragma GCC unroll 4
    for (uint32_t g = 0; g < ng; g++, p += c->group_bytes)
#pragma GCC unroll 32
        for (uint32_t i = 0; i < bytes; i += 64) _mm_prefetch(p + i, _MM_HINT_T0);
}

/* Arguments of a tile kernel, for one or two groups and NARROW_TILE_ROWS rows. */
struct narrow_tiled {
    const uint8_t *w;   /* the first chunk of the first group */
    size_t group_bytes; /* from one group to the next */
    uint32_t n_block;
    const struct narrow_tile *x; /* [n_block] */
    float *acc;                  /* [groups, NARROW_TILE_ROWS, 16], out */
    size_t acc_stride;           /* from one group to the next */
};
typedef void (*narrow_tiled_fn)(const struct narrow_tiled *k);

/* Tile kernels. Their results equal those of linear_avx512.c bit for bit. */
struct narrow_tiles {
    void (*begin)(void); /* begin and end enclose the kernel calls, on the thread that makes them */
    void (*end)(void);
    const narrow_tiled_fn (*kernel)[2]; /* [type][groups - 1]; NULL: no kernel for this type */
};

/* What differs between instruction sets. */
struct narrow_set {
    struct narrow_reading reading[4]; /* for 1, 2 to 3, 4 to 7, and more rows */
    const struct narrow_tiles *tiles; /* or NULL */
};

/* Runs the layer with the kernels of linear_avx512.c, and with `set->tiles` where that pays. */
void linear_narrow_run(struct workers *pool, const struct op_linear *op,
                       const struct narrow_set *set);

#endif
