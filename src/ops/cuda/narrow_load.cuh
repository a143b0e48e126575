/* narrow_load.cuh: the arguments of narrow.cu's kernels, and the loads of weights and rows by a
 * warp (private to narrow.cu).
 *
 * A warp's pipeline holds ring::stages units (narrow_ring.cuh). load_next_unit starts the copies of
 * one unit as one cp.async commit group and moves on, over the end of a group of outputs to the
 * block's next one. Whole units in whole chunks, which are nearly all, are copied by unrolled loops
 * from addresses that are only incremented; others by load_partial_unit. */
#ifndef SAC_OPS_CUDA_NARROW_LOAD_CUH
#define SAC_OPS_CUDA_NARROW_LOAD_CUH

#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/narrow_ring.cuh"

struct narrow_part {
    const uint8_t *w, *up; /* packed; `up` NULL except for a GLU */
    size_t group_bytes;
    uint32_t group0; /* first group among those of all parts */
    enum quant_type type;
    struct linear_end end;
};

struct narrow_args {
    /* Rows that are not packed yet, in place of x and x_scale; input.x is NULL if they are. This
     * field is first, and nothing after an array is padded, because __builtin_clear_padding of GCC
     * 12 clears wrong bytes there. */
    struct linear_input input;
    struct narrow_part part[LINEAR_PARTS_MAX];
    uint32_t n_part, n_group; /* of all parts; a block has several groups only of a single part */
    uint32_t n_block, piece;  /* weight blocks of an output's inputs, and of a piece of them */
    uint32_t n_row, row0;
    uint32_t stage, warp_bytes, ring_bytes; /* shared memory: a stage, a warp's ring, all rings */
    uint32_t stays;   /* bytes of resident rows; 0: rows come with units; or IN_PLACE */
    const uint8_t *x; /* strips */
    const float *x_scale;
    float *sum;      /* [pieces][n_row][groups * 16], for two pieces or more */
    uint32_t *tally; /* one for each group and tile of the launch */
};

/* What a block multiplies, and the state of a warp's pipeline. */
template <uint32_t n_mat> struct narrow_job {
    uint32_t row0, n_row;        /* of the block */
    uint32_t begin, end;         /* weight blocks of the piece */
    uint32_t first;              /* of the warp's first unit */
    uint32_t n_fast, n_whole;    /* of its units, those within whole chunks; those that are whole */
    uint32_t n_unit;             /* all units */
    uint32_t next, n_left;       /* unit to load next; groups left, including its own */
    const uint8_t *group[n_mat]; /* the group of that unit */
    const uint8_t *lane[n_mat];  /* this lane's next source addresses: of scales, */
    uint32_t to_lane;            /* which start so far after a group, */
    uint32_t to_code;            /* and codes so far after them */
    uint32_t to;                 /* this lane's offset in the warp's ring */
};

/* ---- Loads of weights and rows ---- */

static __device__ inline void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t n)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32 * 16; i < n; i += 512)
        cp_async16(smem_address(to + i), from + i);
}

/* Copies n bytes, known at compile time, without a loop; both addresses are the lane's own. */
template <uint32_t n> static __device__ inline void copy_known(uint32_t at, const uint8_t *from)
{
    const uint32_t lane = threadIdx.x % 32 * 16;
#pragma unroll
    for (uint32_t i = 0; i + 512 <= n; i += 512) cp_async16(at + i, from + i);
    constexpr uint32_t rest = n / 512 * 512;
    if constexpr (n > rest)
        if (lane < n - rest) cp_async16(at + rest, from + rest);
}

/* The number of the warp's units, from block `first` on, that end before `end`. */
template <uint32_t unit> static __device__ inline uint32_t n_whole(uint32_t first, uint32_t end)
{
    return end < first + unit ? 0 : (end - first - unit) / (WARPS * unit) + 1;
}

/* Computes what a warp needs of its units in every group, and its first addresses. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void find_units(struct narrow_job<n_mat> &job, uint32_t n_block)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    const uint32_t lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    job.first = job.begin + warp * ring::unit;
    const uint32_t c = job.first / LAYOUT_BLOCKS, b = job.first % LAYOUT_BLOCKS;
    const uint32_t end = min(job.end, n_block / LAYOUT_BLOCKS * LAYOUT_BLOCKS);
    job.n_fast = n_whole<ring::unit>(job.first, end);
    job.n_whole = n_whole<ring::unit>(job.first, job.end);
    job.n_unit = job.end <= job.first ? 0 : (job.end - job.first - 1) / ring::stride + 1;
    job.next = 0;
    if (job.n_unit == 0) job.n_left = 0;
    job.to_lane = LAYOUT_HEAD + c * layout_full_chunk_bytes(ring::l) + b * ring::own + lane * 16;
    job.to_code = layout_scale_bytes(ring::l, LAYOUT_BLOCKS) + b * (ring::block - ring::own);
    keep_in_register(job.n_fast);
    keep_in_register(job.n_whole);
    keep_in_register(job.n_unit);
    keep_in_register(job.to_code);
    keep_in_register(job.to_lane);
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++) job.lane[m] = job.group[m] + job.to_lane;
}

/* Loads up to n blocks from block0 on: a unit, or a chunk, that is not whole. */
template <int type>
static __device__ inline void load_partial_unit(uint8_t *to, uint32_t to_code, const uint8_t *group,
                                                uint32_t n_block, uint32_t block0, uint32_t n)
{
    using ring = narrow_ring<type, 1, 1>;
    const uint32_t c = block0 / LAYOUT_BLOCKS, b = block0 % LAYOUT_BLOCKS;
    const uint32_t scales = layout_scale_bytes(ring::l, layout_chunk_blocks(n_block, c));
    const uint8_t *chunk = group + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(ring::l);
    copy_bytes(to, chunk + b * ring::own, ring::common + n * ring::own);
    copy_bytes(to + to_code, chunk + scales + b * ring::block, n * ring::block);
}

static __device__ inline uint32_t strips_of(uint32_t n_block)
{
    return (n_block + UNIT_MAX - 1) / UNIT_MAX;
}

/* Rows of the block's tile i. */
template <uint32_t n_mat>
static __device__ inline uint32_t tile_rows(const struct narrow_job<n_mat> &job, uint32_t i)
{
    return min(job.n_row - min(job.n_row, i * TILE_ROWS), TILE_ROWS);
}

template <uint32_t n_mat>
static __device__ inline const uint8_t *
tile_strip(const struct narrow_args &a, const struct narrow_job<n_mat> &job, uint32_t i, uint32_t s)
{
    const uint32_t row = job.row0 + i * TILE_ROWS;
    return a.x + ((size_t)row * strips_of(a.n_block) + s * tile_rows(job, i)) * STRIP_BYTES;
}

/* Loads the strips of the unit from block0 on, for all tiles. */
template <uint32_t n_tile, uint32_t n_mat>
static __device__ inline void load_strips(uint8_t *to, const struct narrow_args &a,
                                          const struct narrow_job<n_mat> &job, uint32_t block0)
{
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t n = tile_rows(job, i), lane = threadIdx.x % 32 * 16;
        const uint8_t *from = tile_strip(a, job, i, block0 / UNIT_MAX);
        uint8_t *tile = to + i * TILE_ROWS * STRIP_BYTES;
        if (n == TILE_ROWS)
            copy_known<TILE_ROWS * STRIP_BYTES>(smem_address(tile) + lane, from + lane);
        else
            copy_bytes(tile, from, n * STRIP_BYTES);
    }
}

/* Advances to the warp's next unit, possibly of its next group. */
template <uint32_t n_mat>
static __device__ inline void advance(const struct narrow_args &a, struct narrow_job<n_mat> &job)
{
    const size_t by = gridDim.x * a.part[0].group_bytes;
    if (++job.next < job.n_unit) return;
    job.next = 0;
    if (--job.n_left == 0) job.n_fast = 0;
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++) {
        job.group[m] += by;
        job.lane[m] = job.group[m] + job.to_lane;
    }
}

/* Loads the warp's next unit, if there is one, to the stage at offset `at`: scales, then codes; and
 * the rows' strips, if they come with units and may be read already. One commit group. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void load_next_unit(uint8_t *mine, uint32_t at,
                                             const struct narrow_args &a,
                                             struct narrow_job<n_mat> &job, bool has_x)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    const uint32_t block0 = job.first + job.next * ring::stride;
    if (job.next < job.n_fast) {
#pragma unroll
        for (uint32_t m = 0; m < n_mat; m++) {
            copy_known<ring::scales>(job.to + at + m * ring::mat, job.lane[m]);
            copy_known<ring::unit * ring::block>(job.to + at + m * ring::mat + ring::scales,
                                                 job.lane[m] + job.to_code);
            job.lane[m] += ring::stride / LAYOUT_BLOCKS * layout_full_chunk_bytes(ring::l);
        }
        if (has_x) load_strips<n_tile>(mine + at + ring::weights, a, job, block0);
        advance(a, job);
    } else if (job.n_left > 0) {
        for (uint32_t m = 0; m < n_mat; m++)
            load_partial_unit<type>(mine + at + m * ring::mat, ring::scales, job.group[m],
                                    a.n_block, block0, min(ring::unit, job.end - block0));
        if (has_x) load_strips<n_tile>(mine + at + ring::weights, a, job, block0);
        advance(a, job);
    }
    cp_async_commit();
}

#endif
