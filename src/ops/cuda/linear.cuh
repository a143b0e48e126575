/* linear.cuh: what linear.cu, narrow.cu and blas.cu share. */
#ifndef SAC_OPS_CUDA_LINEAR_CUH
#define SAC_OPS_CUDA_LINEAR_CUH

#include "ops/cuda/device.cuh"

#include <cuda_fp16.h>

/* Rows as the matrix units take them: f16 times a power of two of the row's own, so that none
 * overflows and small ones keep their bits. */
struct linear_rows {
    __half *x;    /* [n_row, width], width a multiple of 32, zeros behind n_in */
    float *scale; /* [n_row] what the sums are multiplied by */
    uint32_t n_row, width;
};

/* Where a row's sums go. */
struct linear_end {
    enum linear_epilogue epilogue;
    const float *bias; /* [n_out] or NULL */
    float *y;
    size_t y_stride;
    uint32_t n_out;
};

/* One matrix, or the two of a GLU, and where its sums go. */
struct narrow_use {
    const struct weight *w, *up; /* of the same type and shape; `up` NULL but for a GLU */
    struct linear_end end;
};

/* Decode rows (narrow.cu) times n matrices of one type, at most LINEAR_PARTS_MAX; a GLU alone. */
sac_status narrow_run(struct cuda_device *d, const struct linear_rows *rows,
                      const struct narrow_use *use, uint32_t n);
/* Groups begin .. begin + n - 1 of `w` in f16, times the outputs' shrink: out [n * 16, width]. */
sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                         uint32_t begin, uint32_t n);

/* out [n_row, n_out] f32 = x [n_row, width] w [n_out, width]^T (blas.cu). */
sac_status blas_multiply(struct cuda_device *d, float *out, const struct linear_rows *rows,
                         const __half *w, uint32_t n_out);

static __device__ inline float linear_silu(float x)
{
    return x / (1.0f + expf(-x));
}

static __device__ inline float linear_gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* One sum: its row and output are the place in y; `up` is a GLU's second one. */
static __device__ inline void linear_finish(const struct linear_end &end, uint32_t row,
                                            uint32_t out, float v, float up)
{
    if (end.bias) v += end.bias[out];
    float *y = end.y + row * end.y_stride + out;
    switch (end.epilogue) {
    case LINEAR_STORE: *y = v; break;
    case LINEAR_ADD: *y += v; break;
    case LINEAR_GLU_SILU: *y = linear_silu(v) * up; break;
    case LINEAR_GLU_GELU: *y = linear_gelu(v) * up; break;
    }
}

#endif
