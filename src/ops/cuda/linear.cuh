/* linear.cuh: what linear.cu, narrow.cu and blas.cu share: rows on their way into the matrix units,
 * and what becomes of the sums. */
#ifndef SAC_OPS_CUDA_LINEAR_CUH
#define SAC_OPS_CUDA_LINEAR_CUH

#include "ops/cuda/device.cuh"
#include "ops/weight_layout.h"

#include <cuda_fp16.h>

#define LINEAR_THREADS 256u /* of a block that packs rows or multiplies them by packed weights */

/* Rows as they come, normalised on the way if `norm` is set. */
struct linear_input {
    const float *x;
    size_t x_stride;
    uint32_t n_in, width;
    const float *norm; /* [n_in] or NULL */
    float eps;
    bool wide; /* x, norm and all rows are aligned to 16 bytes, and n_in is a multiple of 4 */
};

/* Decode rows are packed in strips of 128 inputs (four weight blocks), those of 8 rows beside each other:
 *     u8 [tile of 8 rows][strip][row of the tile][STRIP_BYTES]
 * where the last tile has the rows that are left. A row's strip is
 *     f16 x[4][4][2][4]      block, lane t, step s: inputs 32 block + 16 s + 4 t + 0, 2, 1, 3: one load of
 *                            a lane; those of step 1 over 16, as codes are times 16 there (weights.cuh)
 *     f16 sum[4][2][2]       of each block's two steps, {high, low}[step], without the 16; low is what
 *                            rounding has left
 *     32 bytes               of no use: so two rows lie in different banks
 * Sums are of the halves above, for what all weights of a block have in common (narrow.cu). */
#define STRIP       128u
#define STRIP_SUMS  256u /* where the sums begin */
#define STRIP_BYTES 320u
#define TILE_ROWS  8u

/* Rows as the matrix units take them: f16 times a power of two of the row's own, so that none
 * overflows and small ones keep their bits. */
struct linear_rows {
    const struct linear_input *input; /* set: not packed yet, which is for the multiplying kernel */
    __half *x;    /* prompt rows: [n_row, width], width a multiple of 32, zeros behind n_in */
    uint8_t *strips; /* decode rows: in strips, likewise */
    float *scale; /* [n_row] what the sums are multiplied by */
    float *part; /* [n_row * part_row] room for sums of pieces of rows of weights; NULL: none */
    uint32_t part_row, n_row, width;
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

/* Whether the kernel for decode rows packs so many by itself. */
bool narrow_packs(uint32_t n_row, uint32_t width);
/* Decode rows (narrow.cu) times n matrices, at most LINEAR_PARTS_MAX; a GLU alone. */
sac_status narrow_run(struct cuda_device *d, const struct linear_rows *rows,
                      const struct narrow_use *use, uint32_t n);
/* Groups begin .. begin + n - 1 of `w` in f16, times the outputs' shrink: out [n * 16, width]. */
sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w,
                         uint32_t begin, uint32_t n);

/* out [n_row, n_out] f32, rows `stride` apart = x [n_row, width] w [n_out, width]^T (blas.cu). */
sac_status blas_multiply(struct cuda_device *d, float *out, size_t stride,
                         const struct linear_rows *rows, const __half *w, uint32_t n_out);

/* ---- Packing ---- */

/* Sums and maxima over a block of n_warp warps, in a fixed order; all threads get them. */
template <uint32_t n_warp>
static __device__ inline float2 linear_reduce(float sum, float most)
{
    __shared__ float2 part[n_warp];
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
    }
    __syncthreads(); /* nobody reads the parts of the row before any more */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(sum, most);
    __syncthreads();
    float2 all = part[0];
    for (uint32_t i = 1; i < n_warp; i++) {
        all.x += part[i].x;
        all.y = fmaxf(all.y, part[i].y);
    }
    return all;
}

/* The power of two that puts `most` between 2^9 and 2^10, so that the rest keeps 23 octaves. */
static __device__ inline float linear_scale_for(float most)
{
    int exponent;
    if (!(most > 0) || isinf(most)) return 1;
    frexpf(most, &exponent);
    exponent = 10 - exponent;
    return ldexpf(1.0f, exponent < -100 ? -100 : exponent > 100 ? 100 : exponent);
}

/* Four values from i on; zeros behind the end. */
template <bool wide>
static __device__ inline float4 linear_load4(const float *x, uint32_t i, uint32_t n)
{
    if (wide) return i < n ? *(const float4 *)(x + i) : make_float4(0, 0, 0, 0);
    float4 v;
    v.x = i < n ? x[i] : 0.0f;
    v.y = i + 1 < n ? x[i + 1] : 0.0f;
    v.z = i + 2 < n ? x[i + 2] : 0.0f;
    v.w = i + 3 < n ? x[i + 3] : 0.0f;
    return v;
}

static __device__ inline float4 linear_times(float4 v, float4 w)
{
    return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
}

/* Four inputs from i on of a row, within its strips from `to` on, `stride` bytes apart. All lanes of
 * the warp, which has a strip. */
static __device__ inline void linear_put_strip(uint8_t *to, uint32_t stride, uint32_t i, float4 v)
{
    const uint32_t block = i % STRIP / LAYOUT_BLOCK, s = i % LAYOUT_BLOCK / 16, t = i % 16 / 4;
    const float by = s ? 1.0f / 16 : 1;
    const __half2 h[2] = {__floats2half2_rn(v.x * by, v.z * by), __floats2half2_rn(v.y * by, v.w * by)};
    const float2 a = __half22float2(h[0]), b = __half22float2(h[1]);
    float sum = ((a.x + a.y) + (b.x + b.y)) / by;
    to += i / STRIP * stride;
    __half2 *const x = (__half2 *)(to + 64 * block + 16 * t + 8 * s);
    x[0] = h[0];
    x[1] = h[1];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    if (t > 0) return;
    const __half high = __float2half_rn(sum);
    __half *const sums = (__half *)(to + STRIP_SUMS + 8 * block);
    sums[s] = high;
    sums[2 + s] = __float2half_rn(sum - __half2float(high));
}

/* Where a row goes: as it is, or in strips `stride` bytes apart. */
struct linear_place {
    void *at;
    uint32_t stride; /* 0: as it is */
};

template <uint32_t n_thread, bool wide>
static __device__ inline void linear_pack_as(const struct linear_place &to, float *out_scale,
                                             const struct linear_input &a, uint32_t row,
                                             uint32_t begin, uint32_t end)
{
    const float *x = a.x + row * a.x_stride;
    float sum = 0, most = 0;
#pragma unroll 4 /* loads that are under way together */
    for (uint32_t i = 4 * threadIdx.x; i < a.n_in; i += 4 * n_thread) {
        float4 v = linear_load4<wide>(x, i, a.n_in);
        sum = __fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, sum)); /* told, as compilers choose apart */
        sum = __fmaf_rn(v.z, v.z, __fmaf_rn(v.w, v.w, sum));
        if (a.norm) v = linear_times(v, linear_load4<wide>(a.norm, i, a.n_in));
        most = fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
    }
    const float2 all = linear_reduce<n_thread / 32>(sum, most);
    const float inverse = a.norm ? 1.0f / sqrtf(all.x / (float)a.n_in + a.eps) : 1.0f;
    const float scale = linear_scale_for(all.y * inverse);
    for (uint32_t i = begin + 4 * threadIdx.x; i < end; i += 4 * n_thread) {
        float4 v = linear_load4<wide>(x, i, a.n_in);
        v = linear_times(v, make_float4(inverse, inverse, inverse, inverse));
        if (a.norm) v = linear_times(v, linear_load4<wide>(a.norm, i, a.n_in));
        v = linear_times(v, make_float4(scale, scale, scale, scale));
        if (to.stride) {
            linear_put_strip((uint8_t *)to.at, to.stride, i - begin, v);
            continue;
        }
        __half2 *out = (__half2 *)((__half *)to.at + i - begin);
        out[0] = __floats2half2_rn(v.x, v.y);
        out[1] = __floats2half2_rn(v.z, v.w);
    }
    if (threadIdx.x == 0) *out_scale = 1.0f / scale;
}

/* Values begin .. end - 1 of one row's width (whole strips, if it goes there) by a block of n_thread,
 * and what its sums are multiplied by. The same bits wherever it is done: with a norm, whose sum has an
 * order, by LINEAR_THREADS. A thread takes four values at a time. */
template <uint32_t n_thread = LINEAR_THREADS>
static __device__ inline void linear_pack(const struct linear_place &to, float *out_scale,
                                          const struct linear_input &a, uint32_t row,
                                          uint32_t begin, uint32_t end)
{
    if (a.wide)
        linear_pack_as<n_thread, true>(to, out_scale, a, row, begin, end);
    else
        linear_pack_as<n_thread, false>(to, out_scale, a, row, begin, end);
}

/* ---- Ends ---- */

static __device__ inline float linear_silu(float x)
{
    return x / (1.0f + expf(-x));
}

static __device__ inline float linear_gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
}

/* What a sum becomes, where y was `old`; `up` is a GLU's second one. */
static __device__ inline float linear_value(const struct linear_end &end, uint32_t out, float v,
                                            float up, float old)
{
    if (end.bias) v += end.bias[out];
    switch (end.epilogue) {
    case LINEAR_STORE: break;
    case LINEAR_ADD: return old + v;
    case LINEAR_GLU_SILU: return linear_silu(v) * up;
    case LINEAR_GLU_GELU: return linear_gelu(v) * up;
    }
    return v;
}

/* The same to its row and output in y. */
static __device__ inline void linear_finish(const struct linear_end &end, uint32_t row,
                                            uint32_t out, float v, float up)
{
    float *y = end.y + row * end.y_stride + out;
    *y = linear_value(end, out, v, up, end.epilogue == LINEAR_ADD ? *y : 0.0f);
}

#endif
