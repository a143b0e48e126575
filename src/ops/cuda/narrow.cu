/* narrow.cu: y = epilogue(W x) for a few rows x and packed weights W (decode), bound by the bytes
 * of W. (narrow_unpack.cu unpacks W for many rows.)
 *
 * A block of 8 warps computes groups of 16 outputs, one after another (persistent), for up to 16
 * rows. Where there are too few groups to fill the GPU, the inputs of a group are cut into pieces
 * (split k), a block each. Grid: blocks for groups; tiles of rows; pieces. Warp w takes units w, w
 * + 8, ... of a few weight blocks, so that the warps together read contiguous memory. Each warp has
 * its own cp.async pipeline in shared memory (narrow_ring.cuh), which continues into the next group
 * and is filled before kernel_begin, while the previous kernel ends. Products are m16n8k16 with
 * outputs as rows and x as columns (narrow_unit.cuh).
 *
 * Sums are added over the warps in their order, and over the pieces in theirs by the last block of
 * a group to finish. Pieces depend on the matrices and the GPU alone, and a row is a column of its
 * own, so no result depends on which rows are together.
 *
 * x per_unit in strips (linear.cuh). Few short rows stay in shared memory while the block runs, and
 * the block may pack them itself: each warp the strips that it multiplies, without waiting for
 * others. The strips of other rows are loaded with the units. A single row that the block packs is
 * `alone`: four blocks of it take the place of eight rows in B.
 *
 * Invariant: weights are in device memory since before the previous kernel. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/narrow_load.cuh"
#include "ops/cuda/narrow_ring.cuh"
#include "ops/cuda/narrow_unit.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/weights.cuh"

static_assert(WARPS * 32 == LINEAR_THREADS, "blocks pack rows");

#define PACKS_ROWS    4u     /* rows that a block packs itself, at most */
#define PACKS_VALUES  8192u  /* and values of these together: more take longer than a launch */
#define PACKS_ALONE   16384u /* the same for a single row */
#define STAYS_MAX    40960u /* bytes of rows that stay in shared memory */
#define IN_PLACE      1u     /* rows are read from global memory: shared memory is too small */
#define OWN_BYTES     1024u  /* bytes of static shared memory */
#define FULL_BLOCKS   2u     /* blocks of a multiprocessor that keep it busy */

/* Resident blocks of a multiprocessor, for __launch_bounds__. */
static constexpr uint32_t blocks_wanted(uint32_t n_tile)
{
    return n_tile == 1 ? 3 : 2;
}

/* ---- Sums [n_mat][n_tile][4], in the layout of narrow_unit.cuh ---- */

/* Where a lane's rows are (row g of each tile) for the warp's first unit, and the distance to its
 * next. Missing rows are read as row 0, missing tiles as tile 0. */
template <uint32_t n_tile> struct narrow_rows {
    const uint8_t *row[n_tile];
    uint32_t by[n_tile];
};

/* The rows where they are read from global memory. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline struct narrow_rows<n_tile> rows_in_place(const struct narrow_args &a,
                                                                  const struct narrow_job<n_mat> &job)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    const uint32_t g = threadIdx.x % 32 / 4;
    struct narrow_rows<n_tile> rows;
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t n = tile_rows(job, i);
        rows.by[i] = ring::stride * STRIP_BYTES / UNIT_MAX * n;
        rows.row[i] = tile_strip(a, job, i, job.first / UNIT_MAX) + (g < n ? g : 0) * STRIP_BYTES;
        if (n == 0) rows.row[i] = rows.row[0], rows.by[i] = rows.by[0];
    }
    return rows;
}

/* The rows in shared memory. ring_rows: after the weights of the ring's first stage; kept: the
 * resident rows. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline struct narrow_rows<n_tile> find_rows(const struct narrow_job<n_mat> &job,
                                                              const uint8_t *ring_rows,
                                                              const uint8_t *kept, bool stays) {
    using ring = narrow_ring<type, n_tile, n_mat>;
    const uint32_t g = threadIdx.x % 32 / 4, skip = (job.first - job.begin) / UNIT_MAX;
    struct narrow_rows<n_tile> rows;
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t n = tile_rows(job, i), tile = i * TILE_ROWS * STRIP_BYTES;
        rows.by[i] = stays ? ring::stride * STRIP_BYTES / UNIT_MAX * n : 0;
        rows.row[i] = stays ? kept + tile * strips_of(job.end - job.begin) + skip * n * STRIP_BYTES
                            : ring_rows + tile;
        rows.row[i] += (g < n ? g : 0) * STRIP_BYTES;
        if (n == 0) rows.row[i] = rows.row[0], rows.by[i] = rows.by[0];
        keep_in_register(rows.by[i]);
    }
    return rows;
}

/* Adds the warp's unit u at `at`; the last unit of a row may have fewer blocks. */
template <int type, uint32_t n_tile, uint32_t n_mat, bool alone>
static __device__ inline void add_unit(float sum[n_mat][n_tile][4],
                                       const struct narrow_job<n_mat> &job,
                                       const struct pair_shrink shrink[n_mat], const uint8_t *at,
                                       const struct narrow_x<n_tile> &x, uint32_t u)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++, at += ring::mat) {
        const struct block_place place = {at, at + ring::scales,
                                          ring::own_scales ? 0 : job.first % LAYOUT_BLOCKS};
        if (u < job.n_whole) /* uniform in the warp */
            add_blocks<type, n_tile, alone, ring::unit>(sum[m], place, shrink[m], x, 0);
        else
            add_blocks<type, n_tile, alone, 0>(sum[m], place, shrink[m], x,
                                        job.end - job.first - u * ring::stride);
    }
}

/* ---- Rows ---- */

/* Brings the rows of the piece to shared memory, where they stay; a warp brings the strips that it
 * multiplies. Rows that are not packed yet are packed on the way, and `square` [n_row][WARPS] gets
 * their sums of squares for a norm. */
template <uint32_t n_tile, uint32_t n_mat, bool alone>
static __device__ inline void keep_rows(const struct narrow_args &a,
                                        const struct narrow_job<n_mat> &job, uint8_t *to,
                                        float *square)
{
    const uint32_t strip0 = job.begin / UNIT_MAX, n = strips_of(job.end - job.begin);
    const uint32_t warp = threadIdx.x / 32;
    const bool packs = alone || a.input.x;
    for (uint32_t row = 0; packs && row < job.n_row; row++) {
        const uint32_t stride = job.n_row * STRIP_BYTES;
        float sum = linear_pack_strips({to + warp * stride + row * STRIP_BYTES, stride, strip0 + warp,
                                        WARPS, strip0 + n}, a.input, row);
        if (!a.input.norm) continue;
        if (gridDim.z > 1)
            sum = linear_squares(a.input, row); /* the piece has only some of the inputs */
        sum = linear_warp_sum(sum);
        if (threadIdx.x % 32 == 0) square[row * WARPS + warp] = sum;
    }
    if constexpr (!alone) {
        for (uint32_t i = 0; i < n_tile && !packs; i++) {
            const uint8_t *from = tile_strip(a, job, i, strip0);
            const uint32_t bytes = tile_rows(job, i) * STRIP_BYTES;
            for (uint32_t s = warp; s < n; s += WARPS)
                copy_bytes(to + s * bytes, from + s * bytes, bytes);
            to += TILE_ROWS * n * STRIP_BYTES;
        }
    }
}

/* Loads the strips of the units that are in flight already. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void load_first_strips(const struct narrow_args &a,
                                                const struct narrow_job<n_mat> &job, uint8_t *at)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    for (uint32_t i = 0; i + 1 < ring::stages && job.n_unit > 0; i++) {
        if (i / job.n_unit * gridDim.x + blockIdx.x >= a.n_group) break;
        load_strips<n_tile>(at + i * a.stage + ring::weights, a, job,
                            job.first + i % job.n_unit * ring::stride);
    }
}

/* Prefetches the parameters that the block reads beside the weights: norm and bias. */
static __device__ inline void prefetch_parameters(const struct narrow_args &a,
                                                  const struct narrow_part &part, uint32_t group)
{
    if (a.input.x && a.input.norm && threadIdx.x * 32 < a.input.n_in)
        prefetch_l2(a.input.norm + threadIdx.x * 32);
    const uint32_t out = group * WEIGHT_GROUP + threadIdx.x;
    if (part.end.bias && threadIdx.x < WEIGHT_GROUP && out < part.end.n_out)
        prefetch_l1(part.end.bias + out);
}

/* Prefetches the outputs to which the block will add. */
template <uint32_t n_mat>
static __device__ inline void prefetch_old(const struct narrow_job<n_mat> &job,
                                           const struct linear_end &end, uint32_t group)
{
    const uint32_t r = threadIdx.x / WEIGHT_GROUP;
    const uint32_t out = group * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (end.epilogue == LINEAR_ADD && r < job.n_row && out < end.n_out)
        prefetch_l1(end.y + (job.row0 + r) * end.y_stride + out);
}

/* ---- Reduction and epilogue ---- */

/* Sums of all warps for a group: [warp][matrix][row][SUM_STRIDE], padded against bank conflicts. */
#define SUM_STRIDE (WEIGHT_GROUP + 1)

template <bool is_float, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void store_sums(float *to, const float sum[n_mat][n_tile][4],
                                         const struct pair_shrink shrink[n_mat], uint32_t n_row)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++)
#pragma unroll
        for (uint32_t i = 0; i < n_tile; i++)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t r = i * TILE_ROWS + 2 * t + j % 2;
                const uint32_t at = ((threadIdx.x / 32 * n_mat + m) * n_row + r) * SUM_STRIDE;
                if (r < n_row)
                    to[at + 2 * g + j / 2] =
                        is_float ? sum[m][i][j] / shrink[m].f[j / 2] : sum[m][i][j];
            }
}

/* Stores a piece's sums; in the last block to arrive, replaces them by the sum over all pieces in
 * their order and returns true. */
static __device__ inline bool merge_pieces(float *v, const struct narrow_args &a, uint32_t row,
                                           bool is_mine)
{
    const size_t n_sum = (size_t)a.n_group * WEIGHT_GROUP, stride = a.n_row * n_sum;
    float *at = a.sum + row * n_sum + blockIdx.x * WEIGHT_GROUP + threadIdx.x % WEIGHT_GROUP;
    if (is_mine) at[blockIdx.z * stride] = *v;
    if (!block_is_last(a.tally + blockIdx.y * a.n_group + blockIdx.x, gridDim.z)) return false;
    *v = 0;
    for (uint32_t i = 0; i < gridDim.z && is_mine; i++) *v += __ldcg(at + i * stride);
    return true;
}

/* Adds a group's sums over the warps, and over pieces, and runs the epilogue. */
template <uint32_t n_mat, bool alone>
static __device__ inline void finish_group(const float *all, const struct narrow_args &a,
                                           const struct narrow_job<n_mat> &job,
                                           const struct linear_end &end, const float *square,
                                           uint32_t group)
{
    const uint32_t r = threadIdx.x / WEIGHT_GROUP, o = threadIdx.x % WEIGHT_GROUP;
    const uint32_t row = job.row0 + r, out = group * WEIGHT_GROUP + o;
    const bool is_mine = r < job.n_row;
    float v[2] = {0, 0};
    for (uint32_t m = 0; m < n_mat && is_mine; m++)
        for (uint32_t w = 0; w < WARPS; w++)
            v[m] += all[((w * n_mat + m) * job.n_row + r) * SUM_STRIDE + o];
    if (gridDim.z > 1 && !merge_pieces(v, a, row, is_mine)) return;
    if (!is_mine || out >= end.n_out) return;
    const float by = alone || a.input.x ? linear_norm_factor(square + row * WARPS, a.input) : a.x_scale[row];
    linear_finish(end, row, out, v[0] * by, v[1] * by);
}

/* Sets up the block's first group, of part p, and the warp's ring. */
template <uint32_t n_tile, uint32_t n_mat, bool alone>
static __device__ inline struct narrow_job<n_mat> find_job(const struct narrow_args &a, uint32_t p,
                                                           uint8_t *mine)
{
    struct narrow_job<n_mat> job;
    job.row0 = alone ? 0 : a.row0 + blockIdx.y * n_tile * TILE_ROWS;
    job.n_row = alone ? 1 : min(a.n_row - job.row0, n_tile * TILE_ROWS);
    job.begin = blockIdx.z * a.piece;
    job.end = min(job.begin + a.piece, a.n_block);
    job.n_left = (a.n_group - blockIdx.x - 1) / gridDim.x + 1;
    job.to = smem_address(mine) + threadIdx.x % 32 * 16;
    keep_in_register(job.to);
    for (uint32_t m = 0; m < n_mat; m++)
        job.group[m] = (m ? a.part[p].up : a.part[p].w) +
                       (blockIdx.x - a.part[p].group0) * a.part[p].group_bytes;
    return job;
}

/* Buffers for the sums of a group: two, so that the next group's can be written while these are
 * read, or one for many rows. */
static constexpr uint32_t
sum_rooms(uint32_t n_tile)
{
    return n_tile == 1 ? 2 : 1;
}

/* A block's work for part p. Dynamic shared memory: rings of all warps, resident rows, sums of all
 * warps. square [row][WARPS]: sums of squares of rows that the block packs. */
template <int type, uint32_t n_tile, uint32_t n_mat, bool alone>
static __device__ inline void narrow_block(const struct narrow_args &a, uint32_t p,
                                           float *square)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    uint8_t *const mine = kernel_shared() + threadIdx.x / 32 * a.warp_bytes;
    uint8_t *const x = kernel_shared() + a.ring_bytes;
    const bool in_place = !SMEM_IS_LARGE && !alone && a.stays == IN_PLACE;
    const bool stays = alone || (a.stays && !in_place), per_unit = !stays && !in_place;
    const uint8_t *group[n_mat];
    struct narrow_job<n_mat> job = find_job<n_tile, n_mat, alone>(a, p, mine);
    for (uint32_t m = 0; m < n_mat; m++) group[m] = job.group[m];
    find_units<type, n_tile>(job, a.n_block);
    for (uint32_t i = 0; i + 1 < ring::stages; i++)
        load_next_unit<type, n_tile>(mine, i * a.stage, a, job, false);
    prefetch_parameters(a, a.part[p], blockIdx.x - a.part[p].group0);
    if (a.n_part > 1)
        kernel_launch_dependents(); /* attention is next and can load pages meanwhile */
    kernel_begin();
    if (stays)
        keep_rows<n_tile, n_mat, alone>(a, job, x, square);
    else if (per_unit)
        load_first_strips<type, n_tile>(a, job, mine);
    if (!alone && !a.input.x) {
        cp_async_commit();
        cp_async_wait<0>();
    }
    if (ring::is_float) __syncthreads(); /* a strip is read by several warps */
    float *all = (float *)(x + (in_place ? 0 : a.stays));
    const uint32_t n_sum = WARPS * n_mat * job.n_row * SUM_STRIDE;
    const struct narrow_rows<n_tile> rows =
        in_place ? rows_in_place<type, n_tile>(a, job)
                 : find_rows<type, n_tile>(job, mine + ring::weights, x, stays);
    struct narrow_x<n_tile> here = {threadIdx.x % 32 / 4, threadIdx.x % 4, job.first % UNIT_MAX, {}};
    uint32_t at = 0, next = (ring::stages - 1) * a.stage; /* stage offsets */
    keep_in_register(here.g);
    keep_in_register(here.t);
    for (uint32_t i = blockIdx.x, turn = 0; i < a.n_group; i += gridDim.x, turn ^= 1) {
        const size_t by = gridDim.x * a.part[p].group_bytes;
        struct pair_shrink shrink[n_mat];
        float sum[n_mat][n_tile][4] = {};
#pragma unroll
        for (uint32_t m = 0; m < n_mat; m++) {
            if (ring::is_float) shrink[m] = load_shrink(group[m], threadIdx.x % 32 / 4);
            group[m] += by;
        }
        if (n_mat == 1) prefetch_old(job, a.part[p].end, i - a.part[p].group0);
#pragma unroll
        for (uint32_t k = 0; k < n_tile; k++) here.row[k] = rows.row[k];
        for (uint32_t u = 0; u < job.n_unit; u++) {
            cp_async_wait<ring::stages - 2>();
            __syncwarp(); /* all lanes have read the last unit, whose stage is reused */
            load_next_unit<type, n_tile>(mine, next, a, job, per_unit);
#pragma unroll
            for (uint32_t k = 0; k < n_tile; k++)
                if (per_unit) here.row[k] = rows.row[k] + at;
            add_unit<type, n_tile, n_mat, alone>(sum, job, shrink, mine + at, here, u);
#pragma unroll
            for (uint32_t k = 0; k < n_tile; k++) here.row[k] += rows.by[k];
            next = at;
            at = at + a.stage == ring::stages * a.stage ? 0 : at + a.stage;
        }
        float *const to = all + turn % sum_rooms(n_tile) * n_sum;
        store_sums<ring::is_float, n_tile, n_mat>(to, sum, shrink, job.n_row);
        __syncthreads();
        finish_group<n_mat, alone>(to, a, job, a.part[p].end, square, i - a.part[p].group0);
        if (a.n_part > 1) break; /* the next group may belong to another part */
        if (sum_rooms(n_tile) == 1) __syncthreads();
    }
}

/* The part to which the block's groups belong. */
static __device__ inline uint32_t find_part(const struct narrow_args &a)
{
    uint32_t p = 0;
    while (p + 1 < a.n_part && blockIdx.x >= a.part[p + 1].group0) p++;
    return p;
}

/* Types without codes treat a single row like several. */
template <int type> static constexpr bool is_alone(bool alone)
{
    return alone && !narrow_ring<type, 1, 1>::is_float;
}

/* Parts of one type. alone: a single row, which the block packs. */
template <int type, uint32_t n_tile, uint32_t n_mat, bool alone>
static __global__ void __launch_bounds__(WARPS * 32, blocks_wanted(n_tile))
    narrow(const struct narrow_args a)
{
    __shared__ float square[PACKS_ROWS * WARPS];
    narrow_block<type, n_tile, n_mat, alone>(a, find_part(a), square);
}

/* Parts of several types, as queries, keys and values often have. */
template <uint32_t n_tile, bool alone>
static __global__ void __launch_bounds__(WARPS * 32, blocks_wanted(n_tile))
    narrow_mixed(const struct narrow_args a)
{
    __shared__ float square[PACKS_ROWS * WARPS];
    const uint32_t p = find_part(a);
#define CALL(type) narrow_block<type, n_tile, 1, is_alone<type>(alone)>(a, p, square)
    WEIGHTS_FOR_TYPE(a.part[p].type, CALL)
#undef CALL
}

/* The shared memory of a kernel: bytes of a unit's weights, and stages of a warp. */
struct narrow_need {
    uint32_t weights, stages;
};

template <int type, uint32_t n_tile, uint32_t n_mat> static struct narrow_need need_of(void)
{
    using ring = narrow_ring<type, n_tile, n_mat>;
    return {ring::weights, ring::stages};
}

/* Blocks for one tile of rows: as many as are resident, each for several groups. */
static uint32_t n_block_of(const struct cuda_device *d, const struct narrow_args *a, uint32_t n_tile,
                           uint32_t n_piece, size_t smem)
{
    const uint32_t fit = (uint32_t)(d->smem_max / smem), wanted = blocks_wanted(n_tile);
    const uint32_t n_place = d->n_sm * (fit < 1 ? 1 : fit < wanted ? fit : wanted);
    return a->n_part > 1 || n_piece > 1 || a->n_group < n_place ? a->n_group : n_place;
}

/* Lays out the shared memory of a block with n_row rows; returns its bytes. */
static size_t lay_out(struct narrow_args *a, const struct cuda_device *d, uint32_t n_tile,
                      struct narrow_need need, uint32_t n_row)
{
    const uint32_t n_mat = a->part[0].up ? 2 : 1, strip = n_row * STRIP_BYTES;
    const uint32_t stays = (a->piece + UNIT_MAX - 1) / UNIT_MAX * strip;
    const size_t sums = sum_rooms(n_tile) * WARPS * n_mat * n_row * SUM_STRIDE * sizeof(float);
    const size_t ring = WARPS * need.stages * need.weights;
    const size_t rows = stays <= STAYS_MAX ? stays : WARPS * need.stages * strip;
    const bool in_place = !a->input.x && ring + rows + sums + OWN_BYTES > d->smem_max;
    const uint32_t kept = stays <= STAYS_MAX && !in_place ? stays : 0;
    a->stays = in_place ? IN_PLACE : kept;
    a->stage = need.weights + (a->stays ? 0 : strip);
    a->warp_bytes = need.stages * a->stage;
    a->ring_bytes = WARPS * a->warp_bytes;
    return a->ring_bytes + kept + sums;
}

/* Launches tiles of n_tile * 8 rows; in several launches where the tally has too few counters. */
static sac_status launch_tiles(struct cuda_device *d, void (*kernel)(struct narrow_args),
                               struct narrow_args a, uint32_t n_tile, struct narrow_need need)
{
    const uint32_t tile = n_tile * TILE_ROWS;
    const uint32_t n = (a.n_row + tile - 1) / tile, n_row = a.n_row < tile ? a.n_row : tile;
    const uint32_t n_piece = (a.n_block + a.piece - 1) / a.piece;
    const uint32_t each = n_piece > 1 ? TALLY / a.n_group : n;
    const size_t smem = lay_out(&a, d, n_tile, need, n_row);
    const uint32_t n_block = n_block_of(d, &a, n_tile, n_piece, smem);
    for (uint32_t first = 0; first < n; first += each) {
        a.row0 = first * tile;
        TRY(queue_launch(d, "narrow linear layer", kernel,
                         dim3(n_block, n - first < each ? n - first : each, n_piece), WARPS * 32,
                         smem, a));
        queue_set_activations_only(d);
    }
    return SAC_OK;
}

/* Sets the size of a piece: enough blocks to fill the GPU, each with work for most of its warps. It
 * depends on the matrices and the GPU alone, as the sums do. */
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

template <int type>
static sac_status launch(struct cuda_device *d, const struct narrow_args &a)
{
    const bool is_glu = a.part[0].up != NULL;
    constexpr bool alone = is_alone<type>(true);
    if (a.n_row == 1 && a.input.x)
        return is_glu ? launch_tiles(d, narrow<type, 1, 2, alone>, a, 1, need_of<type, 1, 2>())
                      : launch_tiles(d, narrow<type, 1, 1, alone>, a, 1, need_of<type, 1, 1>());
    if (a.n_row <= TILE_ROWS)
        return is_glu ? launch_tiles(d, narrow<type, 1, 2, false>, a, 1, need_of<type, 1, 2>())
                      : launch_tiles(d, narrow<type, 1, 1, false>, a, 1, need_of<type, 1, 1>());
    return is_glu ? launch_tiles(d, narrow<type, 2, 2, false>, a, 2, need_of<type, 2, 2>())
                  : launch_tiles(d, narrow<type, 2, 1, false>, a, 2, need_of<type, 2, 1>());
}

template <uint32_t n_tile> static struct narrow_need need_of_type(enum quant_type type)
{
#define CALL(type) return need_of<type, n_tile, 1>()
    WEIGHTS_FOR_TYPE(type, CALL)
#undef CALL
    return {};
}

template <uint32_t n_tile> static struct narrow_need need_of_parts(const struct narrow_args &a)
{
    struct narrow_need most = {};
    for (uint32_t i = 0; i < a.n_part; i++) {
        const struct narrow_need n = need_of_type<n_tile>(a.part[i].type);
        most.weights = n.weights > most.weights ? n.weights : most.weights;
        most.stages = n.stages > most.stages ? n.stages : most.stages;
    }
    return most;
}

template <uint32_t n_tile, bool alone>
static sac_status launch_mixed(struct cuda_device *d, const struct narrow_args &a)
{
    return launch_tiles(d, narrow_mixed<n_tile, alone>, a, n_tile, need_of_parts<n_tile>(a));
}

/* Whether parts of several types fit into one launch, which needs the largest unit of one type and
 * the most stages of another. */
static bool mixed_fits(const struct cuda_device *d, struct narrow_args a)
{
    const uint32_t n_tile = a.n_row <= TILE_ROWS ? 1 : 2, tile = n_tile * TILE_ROWS;
    const struct narrow_need need = n_tile == 1 ? need_of_parts<1>(a) : need_of_parts<2>(a);
    return lay_out(&a, d, n_tile, need, a.n_row < tile ? a.n_row : tile) + OWN_BYTES <= d->smem_max;
}

/* ---- Entry points ---- */

bool narrow_packs(uint32_t n_row, uint32_t width)
{
    return n_row == 1 ? width <= PACKS_ALONE : n_row <= PACKS_ROWS && n_row * width <= PACKS_VALUES;
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
    a.n_group = n_group;
    a.x = rows->strips;
    a.x_scale = rows->scale;
    a.sum = rows->part;
    a.tally = d->tally;
    a.n_row = rows->n_row;
    if (rows->input) a.input = *rows->input;
    cut_rows(&a, d, n_group, rows->part_row);
    if (mixed && !mixed_fits(d, a)) {
        for (uint32_t i = 0; i < n; i++) TRY(narrow_run(d, rows, use + i, 1));
        return SAC_OK;
    }
    if (mixed)
        return a.n_row == 1 && a.input.x ? launch_mixed<1, true>(d, a)
               : a.n_row <= TILE_ROWS    ? launch_mixed<1, false>(d, a)
                                         : launch_mixed<2, false>(d, a);
#define CALL(type) return launch<type>(d, a)
    WEIGHTS_FOR_TYPE(w->type, CALL)
#undef CALL
    return device_fail(d, SAC_ERR_UNSUPPORTED, "weights of this type");
}
