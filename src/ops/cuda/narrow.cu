/* narrow.cu: packed weights times a few rows, bound by the bytes of the weights; and the unpacking
 * of a matrix for many rows.
 *
 * A block of 8 warps computes one group of 16 outputs for up to 16 rows, or a piece of the inputs of
 * such a group where there are too few groups to fill the GPU. Warp w takes the units w, w + 8, ...
 * of a few weight blocks each, so that the warps together read a stretch of memory. A warp keeps
 * units on their way into shared memory while it multiplies others; the first of them are under way
 * before the launch before has ended. Sums are made by the matrix units (weights.cuh) and added up
 * over the warps in their order, then, by the last block of a group to be done, over the pieces in
 * theirs. Pieces depend on the matrices and the GPU alone, and a row is a column of the mma's second
 * operand: nothing depends on which rows are together. A few rows are packed here (linear.cuh), into
 * shared memory, by every block anew.
 *
 * Invariant: weights have been in the device's memory since before the launch before this one. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/weights.cuh"

#define WARPS  8u
#define ROWS_8 8u /* rows of one mma */

static_assert(WARPS * 32 == LINEAR_THREADS, "blocks pack rows");

#define UNIT_MAX     4u     /* weight blocks that are fetched together; divides LAYOUT_BLOCKS */
#define STAGES_MAX   4u     /* units of a warp that are on their way or at work */
#define RING_MAX     65536u /* bytes of all warps' units */
#define PACKS_ROWS   4u     /* that a block packs at most, */
#define PACKS_VALUES 16384u /* and all of them together: 32 KiB of shared memory */
#define PACKS_BLOCKS 16u    /* of a multiprocessor: more pack for longer than a launch takes */
#define FULL_BLOCKS  2u     /* of a multiprocessor that are enough to keep it busy */

/* What a warp keeps of weights of n_mat matrices in shared memory. Scales of single weight blocks
 * come with these; what a chunk has in common comes whole with every unit. */
template <int type, uint32_t n_mat> struct narrow_ring {
    static constexpr struct weight_layout l = weight_layout_of(static_cast<enum quant_type>(type));
    static constexpr bool own_scales = l.scale == SCALE_D || l.scale == SCALE_DM;
    static constexpr uint32_t own = own_scales ? layout_scale_bytes(l, 1) : 0;
    static constexpr uint32_t common = own_scales ? 0 : layout_scale_bytes(l, LAYOUT_BLOCKS);
    static constexpr uint32_t block = layout_block_bytes(l);
    static constexpr uint32_t bytes(uint32_t n) { return common + n * (own + block); }
    static constexpr uint32_t stages_of(uint32_t n) { return RING_MAX / WARPS / n_mat / bytes(n); }
    static constexpr uint32_t unit = stages_of(4) >= 2 ? UNIT_MAX : stages_of(2) >= 2 ? 2 : 1;
    static constexpr uint32_t scales = common + unit * own;
    static constexpr uint32_t mat = bytes(unit), stage = n_mat * mat;
    static constexpr uint32_t stages =
        stages_of(unit) < STAGES_MAX ? stages_of(unit) : STAGES_MAX;
    static_assert(stages >= 2, "nothing would be under way");
};

struct narrow_part {
    const uint8_t *w, *up; /* packed; `up` NULL but for a GLU */
    size_t group_bytes;
    uint32_t group0; /* the part's first block of threads */
    enum quant_type type;
    struct linear_end end;
};

struct narrow_args {
    /* Rows that are not packed yet: instead of x and x_scale; its x is NULL if they are. It stands
     * first, and nothing at the end is padded, as GCC 12 clears bytes at the wrong place for padding
     * behind an array. */
    struct linear_input input;
    struct narrow_part part[LINEAR_PARTS_MAX];
    uint32_t n_part;
    uint32_t n_block, piece; /* blocks of a row of weights, and of a piece of it */
    uint32_t n_row, width, row0;
    uint32_t warp_bytes, ring_bytes; /* of shared memory: of a warp's ring, of all and the sums */
    const __half *x;
    const float *x_scale;
    float *sum;      /* [pieces][n_row][groups * 16], if there are two pieces or more */
    uint32_t *tally; /* of the launch's places, blockIdx.z aside */
};

/* One step of two outputs' weights: [output][pair of inputs]. */
static __device__ inline void mma(float c[4], const uint32_t w[2][2], uint2 x)
{
    const uint32_t a[4] = {w[0][0], w[1][0], w[0][1], w[1][1]};
    mma_16816<HALF_F16>(c, a, x.x, x.y);
}

/* The same weight of all inputs. */
static __device__ inline void mma_alike(float c[4], uint32_t w0, uint32_t w1, uint2 x)
{
    const uint32_t a[4] = {w0, w1, w0, w1};
    mma_16816<HALF_F16>(c, a, x.x, x.y);
}

/* What one block of threads multiplies. */
template <uint32_t n_mat> struct narrow_job {
    const __half *x; /* [n_row, x_stride] from block `x_begin` on, there or in shared memory */
    uint32_t x_stride, x_begin;
    uint32_t row0, begin, end; /* the first row; weight blocks */
    const uint8_t *group[n_mat];
    struct pair_shrink shrink[n_mat];
    uint32_t first;             /* block of the warp's first unit; the next are STRIDE apart */
    uint32_t n_quick;           /* its units that are whole, in whole chunks */
    const uint8_t *lane[n_mat]; /* where this lane's copies begin in the first unit: scales, */
    uint32_t to_code;           /* and so much behind them codes */
};

/* ---- Weights on their way ---- */

static __device__ inline void copy_bytes(uint8_t *to, const uint8_t *from, uint32_t n)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32 * 16; i < n; i += 512)
        copy_async16(smem_address(to + i), from + i);
}

/* So many, possibly none, that no loop is left; `from` is the lane's own place. */
template <uint32_t n> static __device__ inline void copy_known(uint8_t *to, const uint8_t *from)
{
    const uint32_t lane = threadIdx.x % 32 * 16, at = smem_address(to) + lane;
#pragma unroll
    for (uint32_t i = 0; i + 512 <= n; i += 512) copy_async16(at + i, from + i);
    constexpr uint32_t rest = n / 512 * 512;
    if constexpr (n > rest)
        if (lane < n - rest) copy_async16(at + rest, from + rest);
}

/* Blocks from a warp's unit to its next: whole chunks, so that both lie in the same place of one. */
template <int type, uint32_t n_mat> static __device__ constexpr uint32_t stride(void)
{
    static_assert(WARPS * narrow_ring<type, n_mat>::unit % LAYOUT_BLOCKS == 0, "whole chunks");
    return WARPS * narrow_ring<type, n_mat>::unit;
}

/* What a warp knows of its units once and for all. */
template <int type, uint32_t n_mat>
static __device__ inline void find_units(struct narrow_job<n_mat> &job, uint32_t n_block)
{
    using ring = narrow_ring<type, n_mat>;
    const uint32_t lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    job.first = job.begin + warp * ring::unit;
    const uint32_t c = job.first / LAYOUT_BLOCKS, b = job.first % LAYOUT_BLOCKS;
    const uint32_t end = min(job.end, n_block / LAYOUT_BLOCKS * LAYOUT_BLOCKS);
    job.n_quick = end < job.first + ring::unit
                      ? 0
                      : (end - job.first - ring::unit) / stride<type, n_mat>() + 1;
    job.to_code = layout_scale_bytes(ring::l, LAYOUT_BLOCKS) + b * (ring::block - ring::own);
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
        job.lane[m] = job.group[m] + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(ring::l) +
                      b * ring::own + lane * 16;
}

/* Up to n blocks from block0 on, of a unit that is not whole or of a chunk that is not. */
template <int type>
static __device__ inline void bring_rest(uint8_t *to, uint32_t to_code, const uint8_t *group,
                                               uint32_t n_block, uint32_t block0, uint32_t n)
{
    using ring = narrow_ring<type, 1>;
    const uint32_t c = block0 / LAYOUT_BLOCKS, b = block0 % LAYOUT_BLOCKS;
    const uint32_t scales = layout_scale_bytes(ring::l, layout_chunk_blocks(n_block, c));
    const uint8_t *chunk = group + LAYOUT_HEAD + (size_t)c * layout_full_chunk_bytes(ring::l);
    copy_bytes(to, chunk + b * ring::own, ring::common + n * ring::own);
    copy_bytes(to + to_code, chunk + scales + b * ring::block, n * ring::block);
}

/* All that the block reads of its groups comes nearer at once, so that memory stays at work while rows
 * are packed; from there the rings are filled sooner. */
template <int type, uint32_t n_mat>
static __device__ inline void fetch_groups(const struct narrow_job<n_mat> &job, uint32_t n_block)
{
    constexpr uint32_t chunk = layout_full_chunk_bytes(narrow_ring<type, n_mat>::l);
    const uint32_t c = job.begin / LAYOUT_BLOCKS, whole = n_block / LAYOUT_BLOCKS;
    const uint32_t end = min((job.end + LAYOUT_BLOCKS - 1) / LAYOUT_BLOCKS, whole);
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
        if (threadIdx.x == m && end > c)
            fetch_stretch(job.group[m] + LAYOUT_HEAD + (size_t)c * chunk, (end - c) * chunk);
}

/* The warp's unit i, if there is one, into its ring: scales, then blocks. */
template <int type, uint32_t n_mat>
static __device__ inline void bring(uint8_t *mine, const struct narrow_args &a,
                                    const struct narrow_job<n_mat> &job, uint32_t i)
{
    using ring = narrow_ring<type, n_mat>;
    constexpr uint32_t each = stride<type, n_mat>() / LAYOUT_BLOCKS;
    uint8_t *to = mine + i % ring::stages * ring::stage;
    const uint32_t block0 = job.first + i * stride<type, n_mat>();
    if (i < job.n_quick) {
        const size_t by = (size_t)i * (each * layout_full_chunk_bytes(ring::l));
#pragma unroll
        for (uint32_t m = 0; m < n_mat; m++) {
            const uint8_t *from = job.lane[m] + by;
            copy_known<ring::scales>(to + m * ring::mat, from);
            copy_known<ring::unit * ring::block>(to + m * ring::mat + ring::scales,
                                                 from + job.to_code);
        }
    } else if (block0 < job.end) {
        for (uint32_t m = 0; m < n_mat; m++)
            bring_rest<type>(to + m * ring::mat, ring::scales, job.group[m], a.n_block, block0,
                             min(ring::unit, job.end - block0));
    }
    copy_commit();
}

/* ---- Sums ---- */

/* Rows' inputs of n weight blocks: [block][tile][step], four of them. */
template <uint32_t n, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void load_x(uint2 x[n][n_tile][2], const struct narrow_args &a,
                                     const struct narrow_job<n_mat> &job, uint32_t block0)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t row = job.row0 + i * ROWS_8 + g;
        const __half *p =
            job.x + (size_t)row * job.x_stride + (block0 - job.x_begin) * LAYOUT_BLOCK + 4 * t;
#pragma unroll
        for (uint32_t k = 0; k < 2 * n; k++)
            x[k / 2][i][k % 2] =
                row < a.n_row ? *reinterpret_cast<const uint2 *>(p + 16 * k) : make_uint2(0, 0);
    }
}

/* Sums [n_mat][n_tile][4] are as an mma leaves them: c[0], c[1] of output 2g and rows 2t, 2t + 1,
 * c[2], c[3] of output 2g + 1. */

/* c += by * add, told, as compilers choose apart. */
static __device__ inline void add_times(float c[4], float2 by, const float add[4])
{
    c[0] = __fmaf_rn(by.x, add[0], c[0]);
    c[1] = __fmaf_rn(by.x, add[1], c[1]);
    c[2] = __fmaf_rn(by.y, add[2], c[2]);
    c[3] = __fmaf_rn(by.y, add[3], c[3]);
}

/* Over a block of plain floats, block i behind the place. */
template <int type, uint32_t n_tile>
static __device__ inline void add_floats(float sum[n_tile][4], const struct block_place &place,
                                         const struct pair_shrink &shrink,
                                         const uint2 x[n_tile][2], uint32_t i)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const block_w w = unpack_block<type>(place, i, {}, g, t, shrink);
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        uint32_t pair[2][2];
        memcpy(pair[0], w.w[0][s], sizeof pair[0]);
        memcpy(pair[1], w.w[1][s], sizeof pair[1]);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) mma(sum[j], pair, x[j][s]);
    }
}

/* Over a block of codes: what its factors make of the sums of codes less their offset, and what is
 * more of all weights. */
template <int type, uint32_t n_tile>
static __device__ inline void add_codes(float sum[n_tile][4], float least[n_tile][4],
                                        const struct block_place &place,
                                        const uint2 x[n_tile][2], uint32_t i)
{
    constexpr struct weight_layout l = narrow_ring<type, 1>::l;
    constexpr uint32_t offset = (uint32_t)code_offset<type>(), less = 0x80008000u | offset << 16 | offset;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const struct block_codes codes = load_codes<type>(place, i, g, t);
    struct block_factor f;
    float part[n_tile][4];
#pragma unroll
    for (uint32_t s = 0; s < 2; s++) {
        uint32_t pair[2][2];
        tiny_halves(pair[0], codes.of[0][s]);
        tiny_halves(pair[1], codes.of[1][s]);
        if (s == 0 || layout_halves(l)) f = load_factor<type>(place.chunk, place.b + i, g, s);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) {
            if (s == 0 || layout_halves(l))
                part[j][0] = part[j][1] = part[j][2] = part[j][3] = 0;
            if (offset > 0) mma_alike(part[j], less, less, x[j][s]);
            mma(part[j], pair, x[j][s]);
            if (layout_has_min(l)) mma_alike(least[j], f.least[0], f.least[1], x[j][s]);
            if (s == 1 || layout_halves(l)) add_times(sum[j], f.factor, part[j]);
        }
    }
}

/* Over n blocks of one matrix from number `i` of a unit on. */
template <int type, uint32_t n, uint32_t n_tile>
static __device__ inline void add_blocks(float sum[n_tile][4], const struct block_place &place,
                                         const struct pair_shrink &shrink,
                                         const uint2 x[n][n_tile][2], uint32_t i)
{
    if constexpr (narrow_ring<type, 1>::l.low_bits >= 16) {
#pragma unroll
        for (uint32_t b = 0; b < n; b++)
            add_floats<type, n_tile>(sum, place, shrink, x[b], i + b);
    } else {
        const uint32_t g = threadIdx.x % 32 / 4;
        float code[n_tile][4] = {}, least[n_tile][4] = {};
#pragma unroll
        for (uint32_t b = 0; b < n; b++)
            add_codes<type, n_tile>(code, least, place, x[b], i + b);
        const struct chunk_factor k = load_chunk_factor<type>(place.chunk, g);
#pragma unroll
        for (uint32_t j = 0; j < n_tile; j++) {
            add_times(sum[j], k.code, code[j]);
            if (layout_has_min(narrow_ring<type, 1>::l)) add_times(sum[j], k.least, least[j]);
        }
    }
}

/* Over a unit that is on its way to `at`. Of a whole one the blocks are unpacked in the order that
 * the compiler likes; the last of a row may have fewer. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void add_unit(float sum[n_mat][n_tile][4], const struct narrow_args &a,
                                       const struct narrow_job<n_mat> &job, const uint8_t *at,
                                       uint32_t block0)
{
    using ring = narrow_ring<type, n_mat>;
    const bool is_whole = block0 + ring::unit <= job.end; /* the same for all lanes */
    uint2 x[ring::unit][n_tile][2];
    if (is_whole) load_x<ring::unit, n_tile, n_mat>(x, a, job, block0);
    copy_wait<ring::stages - 1>();
    __syncwarp();
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++, at += ring::mat) {
        const struct block_place place = {at, at + ring::scales,
                                          ring::own_scales ? 0 : block0 % LAYOUT_BLOCKS};
        if (is_whole) {
            add_blocks<type, ring::unit, n_tile>(sum[m], place, job.shrink[m], x, 0);
            continue;
        }
#pragma unroll 1
        for (uint32_t i = 0; block0 + i < job.end; i++) {
            load_x<1, n_tile, n_mat>(x, a, job, block0 + i);
            add_blocks<type, 1, n_tile>(sum[m], place, job.shrink[m], x, i);
        }
    }
}

/* Rows and their scales as the matrix units take them; `to` and `room` are shared memory for them. */
template <uint32_t n_mat>
static __device__ inline const float *find_rows(struct narrow_job<n_mat> &job,
                                                const struct narrow_args &a, __half *to,
                                                float *room)
{
    if (!a.input.x) {
        job.x = a.x;
        job.x_stride = a.width;
        job.x_begin = 0;
        return a.x_scale;
    }
    job.x = to;
    job.x_stride = (job.end - job.begin) * LAYOUT_BLOCK;
    job.x_begin = job.begin;
    for (uint32_t row = 0; row < a.n_row; row++)
        linear_pack(to + (size_t)row * job.x_stride, room + row, a.input, row,
                    job.begin * LAYOUT_BLOCK, job.end * LAYOUT_BLOCK);
    __syncthreads();
    return room;
}

/* What the block reads of model parameters beside weights comes nearer. */
static __device__ inline void fetch_beside(const struct narrow_args &a,
                                           const struct narrow_part &part, uint32_t group)
{
    if (a.input.x && a.input.norm && threadIdx.x * 32 < a.input.n_in)
        fetch_ahead(a.input.norm + threadIdx.x * 32);
    const uint32_t out = group * WEIGHT_GROUP + threadIdx.x;
    if (part.end.bias && threadIdx.x < WEIGHT_GROUP && out < part.end.n_out)
        fetch_near(part.end.bias + out);
}

/* What the block's sums are added to comes before they are there, as they take longer. */
template <uint32_t n_tile>
static __device__ inline void fetch_old(const struct narrow_args &a, const struct linear_end &end,
                                        uint32_t row0, uint32_t group)
{
    const uint32_t r = threadIdx.x / WEIGHT_GROUP, row = row0 + r;
    const uint32_t out = group * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (end.epilogue == LINEAR_ADD && r < n_tile * ROWS_8 && row < a.n_row && out < end.n_out)
        fetch_near(end.y + row * end.y_stride + out);
}

/* ---- Ends ---- */

/* The sums of all warps for row r and output o of the block. */
template <uint32_t n_tile, uint32_t n_mat> struct narrow_sums {
    float of[WARPS][n_mat][n_tile * ROWS_8][WEIGHT_GROUP + 1];
};

template <bool is_float, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void put_sums(struct narrow_sums<n_tile, n_mat> *to,
                                       const float sum[n_mat][n_tile][4],
                                       const struct narrow_job<n_mat> &job)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
#pragma unroll
        for (uint32_t i = 0; i < n_tile; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                to->of[threadIdx.x / 32][m][i * ROWS_8 + 2 * t + j % 2][2 * g + j / 2] =
                    is_float ? sum[m][i][j] / job.shrink[m].f[j / 2] : sum[m][i][j];
}

/* Puts a piece's sums where the last block finds them; that one gets those of all pieces. */
static __device__ inline bool merge_pieces(float *v, const struct narrow_args &a, uint32_t row,
                                           bool is_mine)
{
    const size_t n_sum = (size_t)gridDim.x * WEIGHT_GROUP, stride = a.n_row * n_sum;
    float *at = a.sum + row * n_sum + blockIdx.x * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (is_mine) at[blockIdx.z * stride] = *v;
    if (!block_is_last(a.tally + blockIdx.y * gridDim.x + blockIdx.x, gridDim.z)) return false;
    *v = 0;
    for (uint32_t i = 0; i < gridDim.z && is_mine; i++) *v += __ldcg(at + i * stride);
    return true;
}

/* A block's work for part p. Shared memory: the warps' rings, in whose place their sums come; packed
 * rows, if the kernel packs them, with their scales in `scale_room`. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void narrow_block(const struct narrow_args &a, uint32_t p,
                                           float *scale_room)
{
    using ring = narrow_ring<type, n_mat>;
    using sums = narrow_sums<n_tile, n_mat>;
    const uint32_t group = blockIdx.x - a.part[p].group0, g = threadIdx.x % 32 / 4;
    uint8_t *mine = kernel_shared() + threadIdx.x / 32 * a.warp_bytes;
    struct narrow_job<n_mat> job;
    float sum[n_mat][n_tile][4] = {};
    job.row0 = a.row0 + blockIdx.y * n_tile * ROWS_8;
    job.begin = blockIdx.z * a.piece;
    job.end = min(job.begin + a.piece, a.n_block);
    for (uint32_t m = 0; m < n_mat; m++) {
        job.group[m] = (m ? a.part[p].up : a.part[p].w) + group * a.part[p].group_bytes;
        job.shrink[m] = load_shrink(job.group[m], g);
    }
    find_units<type, n_mat>(job, a.n_block);
    for (uint32_t i = 0; i + 1 < ring::stages; i++) bring<type, n_mat>(mine, a, job, i);
    fetch_groups<type, n_mat>(job, a.n_block);
    fetch_beside(a, a.part[p], group);
    if (a.n_part > 1) kernel_yield(); /* attention is next, which has pages to bring */
    kernel_begin();
    if constexpr (n_mat == 1) fetch_old<n_tile>(a, a.part[p].end, job.row0, group);
    const float *scale = find_rows(job, a, (__half *)(kernel_shared() + a.ring_bytes), scale_room);
    for (uint32_t i = 0, block0 = job.first; block0 < job.end;
         i++, block0 += stride<type, n_mat>()) {
        bring<type, n_mat>(mine, a, job, i + ring::stages - 1);
        add_unit<type, n_tile, n_mat>(sum, a, job, mine + i % ring::stages * ring::stage, block0);
        __syncwarp();
    }
    copy_wait<0>();
    __syncthreads();
    sums *all = (sums *)kernel_shared();
    put_sums<ring::l.low_bits >= 16, n_tile, n_mat>(all, sum, job);
    __syncthreads();
    const uint32_t r = threadIdx.x / WEIGHT_GROUP, o = threadIdx.x % WEIGHT_GROUP;
    const uint32_t row = job.row0 + r, out = group * WEIGHT_GROUP + o;
    const bool is_mine = r < n_tile * ROWS_8 && row < a.n_row;
    float v[2] = {0, 0};
    for (uint32_t m = 0; m < n_mat && is_mine; m++)
        for (uint32_t w = 0; w < WARPS; w++) v[m] += all->of[w][m][r][o];
    if (gridDim.z > 1 && !merge_pieces(v, a, row, is_mine)) return;
    if (is_mine && out < a.part[p].end.n_out)
        linear_finish(a.part[p].end, row, out, v[0] * scale[row], v[1] * scale[row]);
}

/* A row per type: CALL(type) is what is done for it. */
#define FOR_TYPE(type, CALL)                                                                       \
    switch (type) {                                                                                \
    case QUANT_F32: CALL(QUANT_F32); break;                                                        \
    case QUANT_F16: CALL(QUANT_F16); break;                                                        \
    case QUANT_BF16: CALL(QUANT_BF16); break;                                                      \
    case QUANT_Q4_0: CALL(QUANT_Q4_0); break;                                                      \
    case QUANT_Q4_1: CALL(QUANT_Q4_1); break;                                                      \
    case QUANT_Q5_0: CALL(QUANT_Q5_0); break;                                                      \
    case QUANT_Q5_1: CALL(QUANT_Q5_1); break;                                                      \
    case QUANT_Q8_0: CALL(QUANT_Q8_0); break;                                                      \
    case QUANT_Q2_K: CALL(QUANT_Q2_K); break;                                                      \
    case QUANT_Q3_K: CALL(QUANT_Q3_K); break;                                                      \
    case QUANT_Q4_K: CALL(QUANT_Q4_K); break;                                                      \
    case QUANT_Q5_K: CALL(QUANT_Q5_K); break;                                                      \
    case QUANT_Q6_K: CALL(QUANT_Q6_K); break;                                                      \
    case QUANT_IQ4_NL: CALL(QUANT_IQ4_NL); break;                                                  \
    case QUANT_IQ4_XS: CALL(QUANT_IQ4_XS); break;                                                  \
    }

/* The part that a block works for. */
static __device__ inline uint32_t find_part(const struct narrow_args &a)
{
    uint32_t p = 0;
    while (p + 1 < a.n_part && blockIdx.x >= a.part[p + 1].group0) p++;
    return p;
}

/* Parts of one type. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __global__ void __launch_bounds__(WARPS * 32) narrow(const struct narrow_args a)
{
    __shared__ float scale_room[PACKS_ROWS];
    narrow_block<type, n_tile, n_mat>(a, find_part(a), scale_room);
}

/* Parts of several types, as queries, keys and values often have. */
template <uint32_t n_tile>
static __global__ void __launch_bounds__(WARPS * 32) narrow_mixed(const struct narrow_args a)
{
    __shared__ float scale_room[PACKS_ROWS];
    const uint32_t p = find_part(a);
#define CALL(type) narrow_block<type, n_tile, 1>(a, p, scale_room)
    FOR_TYPE(a.part[p].type, CALL)
#undef CALL
}

/* Rows of one launch are n_tile times eight for a block; as many launches as the tally asks for. */
static sac_status launch_tiles(struct cuda_device *d, void (*kernel)(struct narrow_args),
                               struct narrow_args a, uint32_t n_group, uint32_t n_tile,
                               uint32_t warp_bytes)
{
    const uint32_t n_mat = a.part[0].up ? 2 : 1;
    const uint32_t sums = n_tile * n_mat * (uint32_t)sizeof(struct narrow_sums<1, 1>);
    a.warp_bytes = warp_bytes;
    a.ring_bytes = WARPS * warp_bytes > sums ? WARPS * warp_bytes : sums;
    const size_t packed = a.input.x ? (size_t)a.n_row * a.piece * LAYOUT_BLOCK * sizeof(__half) : 0;
    const uint32_t tile = n_tile * ROWS_8, n = (a.n_row + tile - 1) / tile;
    const uint32_t n_piece = (a.n_block + a.piece - 1) / a.piece;
    const uint32_t each = n_piece > 1 ? TALLY / n_group : n;
    for (uint32_t first = 0; first < n; first += each) {
        a.row0 = first * tile;
        TRY(queue_launch(d, "narrow linear layer", kernel,
                         dim3(n_group, n - first < each ? n - first : each, n_piece), WARPS * 32,
                         a.ring_bytes + packed, a));
        queue_set_apart(d);
    }
    return SAC_OK;
}

/* Pieces of a row of weights: enough blocks to fill the GPU, each with work for about all of its
 * warps. They depend on the matrices and the GPU alone, as sums do on them. */
static void cut_rows(struct narrow_args *a, const struct cuda_device *d, uint32_t n_group,
                     uint32_t part_row)
{
    const uint32_t n_unit = (a->n_block + UNIT_MAX - 1) / UNIT_MAX, most = (n_unit + WARPS / 4) / WARPS;
    uint32_t n = (FULL_BLOCKS * d->n_sm + n_group - 1) / n_group;
    n = n < most ? n : most;
    if (n * n_group * WEIGHT_GROUP > part_row) n = part_row / (n_group * WEIGHT_GROUP);
    if (!a->sum || n_group >= d->n_sm || n < 1) n = 1;
    a->piece = (n_unit + n - 1) / n * UNIT_MAX;
}

/* Of a warp's ring: no more stages than it has units of a piece. */
template <int type, uint32_t n_mat> static uint32_t ring_bytes(uint32_t piece)
{
    using ring = narrow_ring<type, n_mat>;
    const uint32_t n = (piece + WARPS * ring::unit - 1) / (WARPS * ring::unit);
    return (n < ring::stages ? n : ring::stages) * ring::stage;
}

template <int type>
static sac_status launch(struct cuda_device *d, const struct narrow_args &a, uint32_t n_group)
{
    const uint32_t glu = ring_bytes<type, 2>(a.piece), ring = ring_bytes<type, 1>(a.piece);
    if (a.part[0].up) return launch_tiles(d, narrow<type, 1, 2>, a, n_group, 1, glu);
    if (a.n_row <= ROWS_8) return launch_tiles(d, narrow<type, 1, 1>, a, n_group, 1, ring);
    return launch_tiles(d, narrow<type, 2, 1>, a, n_group, 2, ring);
}

static uint32_t ring_bytes_of(enum quant_type type, uint32_t piece)
{
#define CALL(type) return ring_bytes<type, 1>(piece)
    FOR_TYPE(type, CALL)
#undef CALL
    return 0;
}

static sac_status launch_mixed(struct cuda_device *d, const struct narrow_args &a,
                               uint32_t n_group)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < a.n_part; i++) {
        const uint32_t bytes = ring_bytes_of(a.part[i].type, a.piece);
        most = bytes > most ? bytes : most;
    }
    if (a.n_row <= ROWS_8) return launch_tiles(d, narrow_mixed<1>, a, n_group, 1, most);
    return launch_tiles(d, narrow_mixed<2>, a, n_group, 2, most);
}

/* ---- Unpacking ---- */

/* One warp for each block of 32 inputs of a group. */
template <int type>
static __global__ void unpack(__half *out, const uint8_t *w, size_t group_bytes, uint32_t n_block)
{
    kernel_begin();
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t block = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32;
    if (block >= n_block) return;
    const uint8_t *data = w + (size_t)blockIdx.x * group_bytes;
    const struct pair_shrink shrink = load_shrink(data, g);
    const struct block_place place = find_block<type>(data, n_block, block);
    const struct chunk_scale k = load_chunk<type>(place.chunk, g, shrink);
    const block_w v = unpack_block<type>(place, 0, k, g, t, shrink);
    for (uint32_t r = 0; r < 2; r++)
        for (uint32_t s = 0; s < 2; s++) {
            const size_t row = (size_t)blockIdx.x * WEIGHT_GROUP + 2 * g + r;
            __half *to = out + (row * n_block + block) * LAYOUT_BLOCK + 16 * s + 4 * t;
            *reinterpret_cast<uint2 *>(to) = *reinterpret_cast<const uint2 *>(v.w[r][s]);
        }
}

template <int type>
static sac_status launch_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                                uint32_t begin, uint32_t n)
{
    const uint32_t n_block = layout_n_block(w->n_in);
    return queue_launch(d, "unpacking of weights", unpack<type>,
                        dim3(n, (n_block + WARPS - 1) / WARPS), WARPS * 32, 0, out,
                        w->data + begin * w->group_bytes, w->group_bytes, n_block);
}

bool narrow_packs(const struct cuda_device *d, uint32_t n_row, uint32_t width, uint32_t n_group)
{
    return n_row <= PACKS_ROWS && n_row * width <= PACKS_VALUES && n_group <= PACKS_BLOCKS * d->n_sm;
}

sac_status narrow_run(struct cuda_device *d, const struct linear_rows *rows,
                      const struct narrow_use *use, uint32_t n)
{
    const struct weight *w = use[0].w;
    struct narrow_args a;
    uint32_t n_group = 0;
    bool mixed = false;
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < n; i++) {
        a.part[i].w = use[i].w->data;
        a.part[i].up = use[i].up ? use[i].up->data : NULL;
        a.part[i].group_bytes = use[i].w->group_bytes;
        a.part[i].group0 = n_group;
        a.part[i].type = use[i].w->type;
        mixed = mixed || use[i].w->type != w->type;
        a.part[i].end = use[i].end;
        n_group += use[i].w->n_group;
    }
    a.n_part = n;
    a.n_block = layout_n_block(w->n_in);
    a.x = rows->x;
    a.x_scale = rows->scale;
    a.sum = rows->part;
    a.tally = d->tally;
    a.n_row = rows->n_row;
    a.width = rows->width;
    if (rows->input) a.input = *rows->input;
    cut_rows(&a, d, n_group, rows->part_row);
    if (mixed) return launch_mixed(d, a, n_group);
#define CALL(type) return launch<type>(d, a, n_group)
    FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}

sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                         uint32_t begin, uint32_t n)
{
#define CALL(type) return launch_unpack<type>(d, out, w, begin, n)
    FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}
