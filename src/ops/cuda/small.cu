/* small.cu: RMS norm, residual addition, and copies within the GPU.
 *
 * The norm gives a warp to each group of a row: y = x / sqrt(mean(x^2) + eps) * w, where the sum of
 * squares is strided over the lanes and reduced by shuffles, in one order. The others are
 * grid-stride loops; copies use 16-byte accesses where everything is aligned. All are bound by
 * memory or by the launch itself; none uses shared memory. */
#include "ops/cuda/queue.cuh"

#define THREADS 256u
#define AHEAD   8u /* values of a lane in flight together */

/* ---- Norm: one warp for each group of a row ---- */

static __global__ void __launch_bounds__(THREADS) rmsnorm(const struct op_rmsnorm op)
{
    kernel_begin();
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const uint32_t row = i / op.n_group, group = i % op.n_group;
    if (row >= op.n_row) return;
    const float *x = op.x + row * op.x_stride + (size_t)group * op.width;
    float *y = op.y + row * op.y_stride + (size_t)group * op.width;
    float sum = 0;
#pragma unroll 8 /* loads in flight together */
    for (uint32_t j = lane; j < op.width; j += 32) sum += x[j] * x[j];
    for (int j = 16; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
    const float inverse = 1.0f / sqrtf(sum / (float)op.width + op.eps);
    for (uint32_t j0 = lane; j0 < op.width; j0 += 32 * AHEAD) {
        float v[AHEAD]; /* y may alias x, and a store would hold up the next load */
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++) {
            const uint32_t j = j0 + 32 * k;
            v[k] = j < op.width ? x[j] * inverse * op.w[j] : 0.0f;
        }
#pragma unroll
        for (uint32_t k = 0; k < AHEAD; k++)
            if (j0 + 32 * k < op.width) y[j0 + 32 * k] = v[k];
    }
}

sac_status cuda_rmsnorm(struct cuda_device *d, const struct op_rmsnorm *op)
{
    const uint32_t n = op->n_row * op->n_group;
    if (n == 0) return SAC_OK;
    TRY(queue_launch(d, "norm", rmsnorm, (n + THREADS / 32 - 1) / (THREADS / 32), THREADS, 0, *op));
    queue_set_activations_only(d);
    return SAC_OK;
}

/* ---- Addition ---- */

static __global__ void __launch_bounds__(THREADS) add(const float *x, float *y, size_t n)
{
    kernel_begin();
    const size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) y[i] += x[i];
}

sac_status cuda_add(struct cuda_device *d, const struct op_add *op)
{
    const size_t n_block = (op->n + THREADS - 1) / THREADS, most = 8 * (size_t)d->n_sm;
    if (op->n == 0) return SAC_OK;
    TRY(queue_launch(d, "addition", add, (unsigned)(n_block < most ? n_block : most), THREADS, 0,
                     op->x, op->y, op->n));
    queue_set_activations_only(d);
    return SAC_OK;
}

/* ---- Copies ---- */

struct copy_rows {
    uint8_t *dst;
    const uint8_t *src;
    size_t dst_pitch, width, n_row; /* rows are contiguous in src */
};

/* T: the access size, 16 bytes where everything is aligned */
template <typename T>
static __global__ void __launch_bounds__(THREADS) copy(const struct copy_rows c)
{
    kernel_begin();
    const size_t width = c.width / sizeof(T), n = width * c.n_row;
    const size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        ((T *)(c.dst + i / width * c.dst_pitch))[i % width] = ((const T *)c.src)[i];
}

sac_status cuda_copy_rows(struct cuda_device *d, void *dst, size_t dst_pitch, const void *src,
                          size_t width, size_t n_row)
{
    const struct copy_rows c = {(uint8_t *)dst, (const uint8_t *)src, dst_pitch, width, n_row};
    const bool is_wide = (((uintptr_t)dst | (uintptr_t)src | dst_pitch | width) & 15) == 0;
    const size_t n = width * n_row / (is_wide ? 16 : 1);
    const size_t n_block = (n + THREADS - 1) / THREADS, most = 8 * (size_t)d->n_sm;
    if (n == 0) return SAC_OK;
    return queue_launch(d, "copy within the GPU", is_wide ? copy<uint4> : copy<uint8_t>,
                        (unsigned)(n_block < most ? n_block : most), THREADS, 0, c);
}
