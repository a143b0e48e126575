/* blas.cpp: products of 16-bit matrices in the place of src/ops/cuda/blas.cu and its library. */
#include "ops/cuda/linear.cuh"
#include "ops/cuda/queue.cuh"

sac_status blas_open(struct cuda_blas **out, sac_error *err)
{
    (void)err;
    *out = NULL;
    return SAC_OK;
}

void blas_close(struct cuda_blas *b)
{
    (void)b;
}

struct product {
    void *out; /* [n_row, stride] f32 or halves, from the first output on */
    size_t stride;
    const __half *x, *w;
    uint32_t width, n_out;
    bool halves;
};

/* A thread computes one output of a row. */
static void multiply(const struct product p)
{
    kernel_begin();
    const uint32_t o = blockIdx.x * blockDim.x + threadIdx.x;
    const size_t at = (size_t)blockIdx.y * p.stride + o;
    if (o >= p.n_out) return;
    float sum = 0;
    for (uint32_t i = 0; i < p.width; i++)
        sum += __half2float(p.x[(size_t)blockIdx.y * p.width + i]) *
               __half2float(p.w[(size_t)o * p.width + i]);
    if (p.halves)
        ((__half *)p.out)[at] = __float2half_rn(sum * linear_half_by(p.width));
    else
        ((float *)p.out)[at] = sum;
}

sac_status blas_multiply(struct cuda_device *d, const struct linear_sums *to, uint32_t first,
                         const __half *w, uint32_t n_out)
{
    struct product p;
    memset(&p, 0, sizeof p);
    p.out = (uint8_t *)to->at + first * (to->halves ? sizeof(__half) : sizeof(float));
    p.stride = to->stride;
    p.x = to->rows->x;
    p.w = w;
    p.width = to->rows->width;
    p.n_out = n_out;
    p.halves = to->halves;
    return queue_launch(d, "product of matrices", multiply,
                        dim3((n_out + 63) / 64, to->rows->n_row), 64, 0, p);
}
