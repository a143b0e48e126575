/* narrow.cu: packed weights times a few rows, bound by the bytes of the weights; and the unpacking
 * of a matrix for many rows.
 *
 * A block of 8 warps computes one group of 16 outputs for up to 16 rows. Warp w takes the units w,
 * w + 8, ... of 4 weight blocks, so that the warps together read a stretch of memory; sums are made
 * by the matrix units (weights.cuh) and added up over the warps in their order. Nothing depends on
 * which rows are together: a row is a column of the mma's second operand. A few rows are packed here
 * (linear.cuh), into shared memory, by every block anew. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/weights.cuh"

#define WARPS  8u
#define ROWS_8 8u /* rows of one mma */
#define UNIT   4u /* weight blocks whose loads are under way together; divides LAYOUT_BLOCKS */

static_assert(WARPS * 32 == LINEAR_THREADS, "blocks pack rows");

#define AHEAD_BYTES  32768u /* of weights that a block fetches before its turn */
#define PACKS_ROWS   4u     /* that a block packs at most, */
#define PACKS_VALUES 16384u /* and all of them together: 32 KiB of shared memory */
#define PACKS_BLOCKS 16u    /* of a multiprocessor: more pack for longer than a launch takes */

struct narrow_part {
    const uint8_t *w, *up; /* packed; `up` NULL but for a GLU */
    uint32_t group0;       /* the part's first block of threads */
    struct linear_end end;
};

struct narrow_args {
    /* Rows that are not packed yet: instead of x and x_scale; its x is NULL if they are. It stands
     * first, as GCC 12 clears bytes at the wrong place for padding behind an array. */
    struct linear_input input;
    struct narrow_part part[LINEAR_PARTS_MAX];
    uint32_t n_part, n_block; /* blocks of a row of weights */
    size_t group_bytes;
    const __half *x;
    const float *x_scale;
    uint32_t n_row, width;
};

static __device__ inline void mma(float c[4], const __half2 a[2][2], uint2 b)
{
    const uint32_t *r0 = reinterpret_cast<const uint32_t *>(a[0]);
    const uint32_t *r1 = reinterpret_cast<const uint32_t *>(a[1]);
    const uint32_t rows[4] = {r0[0], r1[0], r0[1], r1[1]};
    mma_16816<HALF_F16>(c, rows, b.x, b.y);
}

/* What one block of threads multiplies. */
struct narrow_job {
    const __half *x; /* [n_row, width], there or in shared memory */
    const uint8_t *group[2];
    struct pair_shrink shrink[2];
};

/* Rows' inputs of a weight block: [tile][step], four of them. */
template <uint32_t n_tile>
static __device__ inline void load_x(uint2 x[n_tile][2], const struct narrow_args &a,
                                     const __half *rows, uint32_t row0, uint32_t block, uint32_t g,
                                     uint32_t t)
{
#pragma unroll
    for (uint32_t i = 0; i < n_tile; i++) {
        const uint32_t row = row0 + i * ROWS_8 + g;
        const __half *p = rows + (size_t)row * a.width + block * LAYOUT_BLOCK + 4 * t;
#pragma unroll
        for (uint32_t s = 0; s < 2; s++)
            x[i][s] = row < a.n_row ? *reinterpret_cast<const uint2 *>(p + 16 * s)
                                    : make_uint2(0, 0);
    }
}

/* sum [n_mat][n_tile][4], as an mma leaves them, over a unit of the lane's. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __device__ inline void add_unit(float sum[n_mat][n_tile][4], const struct narrow_args &a,
                                       const struct narrow_job &job, uint32_t row0, uint32_t block0)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    struct block_place place[n_mat];
    struct chunk_scale k[n_mat];
#pragma unroll
    for (uint32_t m = 0; m < n_mat; m++) {
        place[m] = find_block<type>(job.group[m], a.n_block, block0);
        k[m] = load_chunk<type>(place[m].chunk, g, job.shrink[m]);
    }
#pragma unroll
    for (uint32_t i = 0; i < UNIT; i++) {
        uint2 x[n_tile][2];
        if (block0 + i >= a.n_block) return; /* the same for all lanes */
        load_x<n_tile>(x, a, job.x, row0, block0 + i, g, t);
#pragma unroll
        for (uint32_t m = 0; m < n_mat; m++) {
            const block_w w = unpack_block<type>(place[m], i, k[m], g, t, job.shrink[m]);
#pragma unroll
            for (uint32_t s = 0; s < 2; s++) {
                const __half2 pair[2][2] = {{w.w[0][s][0], w.w[0][s][1]},
                                            {w.w[1][s][0], w.w[1][s][1]}};
#pragma unroll
                for (uint32_t j = 0; j < n_tile; j++) mma(sum[m][j], pair, x[j][s]);
            }
        }
    }
}

/* Rows and their scales as the matrix units take them. */
static __device__ inline const __half *find_rows(const float **out_scale,
                                                 const struct narrow_args &a, float *room)
{
    *out_scale = a.input.x ? room : a.x_scale;
    if (!a.input.x) return a.x;
    __half *x = (__half *)kernel_shared();
    for (uint32_t row = 0; row < a.n_row; row++)
        linear_pack(x + (size_t)row * a.width, room + row, a.input, row);
    __syncthreads();
    return x;
}

/* The block's weights, or what they begin with, are under way while the launch before ends. */
template <uint32_t n_mat>
static __device__ inline void fetch_weights(const struct narrow_args &a,
                                            const struct narrow_part &part, uint32_t group)
{
    const size_t n = min(a.group_bytes, (size_t)AHEAD_BYTES / n_mat);
    for (size_t i = threadIdx.x * 128u; i < n; i += WARPS * 32 * 128)
        for (uint32_t m = 0; m < n_mat; m++)
            fetch_ahead((m ? part.up : part.w) + group * a.group_bytes + i);
}

/* Shared memory: packed rows, if the kernel packs them. */
template <int type, uint32_t n_tile, uint32_t n_mat>
static __global__ void __launch_bounds__(WARPS * 32) narrow(const struct narrow_args a)
{
    __shared__ float part[WARPS][n_mat][n_tile * ROWS_8][WEIGHT_GROUP + 1];
    __shared__ float scale_room[PACKS_ROWS];
    const float *scale;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const uint32_t row0 = blockIdx.y * n_tile * ROWS_8;
    uint32_t p = 0;
    while (p + 1 < a.n_part && blockIdx.x >= a.part[p + 1].group0) p++;
    const uint32_t group = blockIdx.x - a.part[p].group0;
    struct narrow_job job;
    float sum[n_mat][n_tile][4] = {};
    fetch_weights<n_mat>(a, a.part[p], group);
    kernel_begin();
    job.x = find_rows(&scale, a, scale_room);
    for (uint32_t m = 0; m < n_mat; m++) {
        job.group[m] = (m ? a.part[p].up : a.part[p].w) + group * a.group_bytes;
        job.shrink[m] = load_shrink(job.group[m], g);
    }
    for (uint32_t block0 = warp * UNIT; block0 < a.n_block; block0 += WARPS * UNIT)
        add_unit<type, n_tile, n_mat>(sum, a, job, row0, block0);
    for (uint32_t m = 0; m < n_mat; m++)
        for (uint32_t i = 0; i < n_tile; i++)
            for (uint32_t j = 0; j < 4; j++)
                part[warp][m][i * ROWS_8 + 2 * t + j % 2][2 * g + j / 2] =
                    sum[m][i][j] / job.shrink[m].f[j / 2];
    __syncthreads();
    if (threadIdx.x >= n_tile * ROWS_8 * WEIGHT_GROUP) return;
    const uint32_t r = threadIdx.x / WEIGHT_GROUP, o = threadIdx.x % WEIGHT_GROUP;
    const uint32_t out = group * WEIGHT_GROUP + o;
    if (row0 + r >= a.n_row || out >= a.part[p].end.n_out) return;
    float v[2] = {0, 0};
    for (uint32_t m = 0; m < n_mat; m++) {
        for (uint32_t w = 0; w < WARPS; w++) v[m] += part[w][m][r][o];
        v[m] *= scale[row0 + r];
    }
    linear_finish(a.part[p].end, row0 + r, out, v[0], v[1]);
}

template <int type>
static sac_status launch(struct cuda_device *d, const struct narrow_args &a, uint32_t n_group)
{
    static const char name[] = "narrow linear layer";
    const size_t smem = a.input.x ? (size_t)a.n_row * a.width * sizeof(__half) : 0;
    const uint32_t n8 = (a.n_row + ROWS_8 - 1) / ROWS_8;
    const uint32_t n16 = (a.n_row + 2 * ROWS_8 - 1) / (2 * ROWS_8);
    if (a.part[0].up)
        return queue_launch(d, name, narrow<type, 1, 2>, dim3(n_group, n8), WARPS * 32, smem, a);
    if (n8 == 1)
        return queue_launch(d, name, narrow<type, 1, 1>, dim3(n_group, 1), WARPS * 32, smem, a);
    return queue_launch(d, name, narrow<type, 2, 1>, dim3(n_group, n16), WARPS * 32, smem, a);
}

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

/* A row per type: TYPE(call) names the template's argument. */
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
    memset(&a, 0, sizeof a);
    for (uint32_t i = 0; i < n; i++) {
        a.part[i].w = use[i].w->data;
        a.part[i].up = use[i].up ? use[i].up->data : NULL;
        a.part[i].group0 = n_group;
        a.part[i].end = use[i].end;
        n_group += use[i].w->n_group;
    }
    a.n_part = n;
    a.n_block = layout_n_block(w->n_in);
    a.group_bytes = w->group_bytes;
    a.x = rows->x;
    a.x_scale = rows->scale;
    a.n_row = rows->n_row;
    a.width = rows->width;
    if (rows->input) a.input = *rows->input;
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
