/* small.cu: norm, rotation and addition of activations. */
#include "ops/cuda/queue.cuh"

#define THREADS 256u

/* ---- Norm: one warp for each group of a row ---- */

static __global__ void __launch_bounds__(THREADS) rmsnorm(const struct op_rmsnorm op)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t i = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const uint32_t row = i / op.n_group, group = i % op.n_group;
    if (row >= op.n_row) return;
    const float *x = op.x + row * op.x_stride + (size_t)group * op.width;
    float *y = op.y + row * op.y_stride + (size_t)group * op.width;
    float sum = 0;
    for (uint32_t j = lane; j < op.width; j += 32) sum += x[j] * x[j];
    for (int j = 16; j > 0; j /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, j);
    const float inverse = 1.0f / sqrtf(sum / (float)op.width + op.eps);
    for (uint32_t j = lane; j < op.width; j += 32) y[j] = x[j] * inverse * op.w[j];
}

sac_status cuda_rmsnorm(struct cuda_device *d, const struct op_rmsnorm *op)
{
    const uint32_t n = op->n_row * op->n_group;
    if (n == 0) return SAC_OK;
    return queue_launch(d, "norm", rmsnorm, (n + THREADS / 32 - 1) / (THREADS / 32), THREADS, 0,
                        *op);
}

/* ---- Rotation: one thread for each pair ---- */

static __global__ void __launch_bounds__(THREADS) rope(const struct op_rope op)
{
    const uint32_t half = op.n_rot / 2, i = blockIdx.x * THREADS + threadIdx.x;
    const uint32_t row = blockIdx.y, head = i / half, c = i % half;
    if (head >= op.n_head) return;
    float *x = op.x + row * op.x_stride + (size_t)head * op.head_dim;
    float *a = x + (op.interleaved ? 2 * c : c), *b = a + (op.interleaved ? 1 : half);
    const float cosine = op.cos[(size_t)row * half + c], sine = op.sin[(size_t)row * half + c];
    const float va = *a, vb = *b;
    *a = va * cosine - vb * sine;
    *b = va * sine + vb * cosine;
}

sac_status cuda_rope(struct cuda_device *d, const struct op_rope *op)
{
    const uint32_t n = op->n_head * (op->n_rot / 2);
    if (n == 0 || op->n_row == 0) return SAC_OK;
    const dim3 grid((n + THREADS - 1) / THREADS, op->n_row);
    return queue_launch(d, "rotation", rope, grid, THREADS, 0, *op);
}

/* ---- Addition ---- */

static __global__ void __launch_bounds__(THREADS) add(const float *x, float *y, size_t n)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step) y[i] += x[i];
}

sac_status cuda_add(struct cuda_device *d, const struct op_add *op)
{
    const size_t n_block = (op->n + THREADS - 1) / THREADS, most = 8 * (size_t)d->n_sm;
    if (op->n == 0) return SAC_OK;
    return queue_launch(d, "addition", add, (unsigned)(n_block < most ? n_block : most), THREADS, 0,
                        op->x, op->y, op->n);
}
