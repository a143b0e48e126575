/* linear.cuh: what linear.cu, narrow.cu and blas.cu share: packing of input rows to f16, and the
 * epilogues that turn sums into outputs. */
#ifndef SAC_OPS_CUDA_LINEAR_CUH
#define SAC_OPS_CUDA_LINEAR_CUH

#include "ops/cuda/device.cuh"
#include "ops/cuda/machine.cuh"
#include "ops/gelu.h"
#include "ops/weight_layout.h"

#include <cuda_fp16.h>

#define LINEAR_THREADS 256u /* of a block that packs rows or multiplies packed weights */

/* Input rows in f32, with an RMS norm applied on the way if `norm` is set. */
struct linear_input {
    const float *x;
    size_t x_stride;
    uint32_t n_in, width;
    const float *norm; /* [n_in] or NULL */
    float eps;
    bool wide; /* all rows, x and norm are aligned to 16 bytes, and n_in % 4 == 0 */
};

/* Decode rows are packed in strips of 128 inputs (four weight blocks), the strips of up to 8 rows
 * side by side, where the last tile has the remaining rows:
 *     u8 [tile of 8 rows][strip][row of the tile][STRIP_BYTES]
 *
 * The strip of a row is
 *     f16 x[4][4][2][4]  [block][lane t][step s]: inputs 32 block + 16 s + 4 t + 0, 2, 1, 3; a
 *                        lane's are one load; those of step 1 are over 16, as codes are times
 *                        16 there (weights.cuh)
 *     f16 sum[4][2][2]   [block][high, low][step]: sums of these inputs, without the division by
 *                        16; low is the residual of high
 *     f32 scale          factor of sums over the strip, the inverse of its own power of two
 *     28 bytes           padding, so that two rows are in different banks
 *
 * The sums are multiplied by what all weights of a block share (narrow_unit.cuh). The factor of a
 * norm is applied to the final sums, so a strip is packed by one warp that needs nothing else. */
#define STRIP       128u
#define STRIP_SUMS  256u /* offset of the sums */
#define STRIP_SCALE 288u /* offset of the scale */
#define STRIP_BYTES 320u
#define TILE_ROWS   8u

/* Rows in f16, times a power of two of the row (or strip), so that none overflows and small values
 * keep their bits. */
struct linear_rows {
    const struct linear_input *input; /* not NULL: not packed yet, the multiplying kernel does it */
    __half *x;       /* prompt rows: [n_row, width], width a multiple of 32, zeros beyond n_in */
    uint8_t *strips; /* decode rows, in strips */
    float *scale;    /* [n_row] factors of the sums */
    float *part;     /* [n_row * part_row] scratch for sums of pieces (split k); NULL: none */
    uint32_t part_row, n_row, width;
};

/* The epilogue of a matrix: where its sums go, and how. */
struct linear_end {
    enum linear_epilogue epilogue;
    const float *bias; /* [n_out] or NULL */
    float *y;
    size_t y_stride;
    uint32_t n_out;
};

/* One matrix, or the two of a GLU, and its epilogue. */
struct narrow_use {
    const struct weight *w, *up; /* of equal type and shape; `up` is NULL except for a GLU */
    struct linear_end end;
};

/* Whether the kernel for decode rows packs so many rows itself. */
bool narrow_packs(uint32_t n_row, uint32_t width);
/* Multiplies decode rows by n matrices, LINEAR_PARTS_MAX at most; a GLU must be alone
 * (narrow.cu). */
sac_status narrow_run(struct cuda_device *d, const struct linear_rows *rows,
                      const struct narrow_use *use, uint32_t n);
/* Unpacks n groups of `w` from `begin` on to f16, times the outputs' shrink: out [n * 16,
 * width]. */
sac_status narrow_unpack(struct cuda_device *d, __half *out, const struct weight *w, uint32_t begin,
                         uint32_t n);

/* Sums of prompt rows: f32, or f16 times linear_half_by. */
struct linear_sums {
    const struct linear_rows *rows;
    void *at; /* [n_row, stride] */
    size_t stride;
    bool halves;
};

/* Sums of outputs first to first + n_out - 1: x [n_row, width] times w [n_out, width]^T
 * (blas.cu). */
sac_status blas_multiply(struct cuda_device *d, const struct linear_sums *to, uint32_t first,
                         const __half *w, uint32_t n_out);

/* The power of two by which sums in f16 are scaled. Packed inputs are below 2^10 and weights below
 * 2^15, so no finite sum of `width` products times this reaches 2^15. That bound is for rows and
 * weights that are all as large as their largest; others are smaller, and keep their bits down to
 * 2^-29 of it. */
static inline float linear_half_by(uint32_t width)
{
    float by = 0x1p-10f;
    for (uint32_t n = 1; n < width; n *= 2) by /= 2;
    return by;
}

/* ---- Packing ---- */

/* Sum and maximum over a block of n_warp warps, in a fixed order; all threads get them. */
template <uint32_t n_warp> static __device__ inline float2 linear_reduce(float sum, float most)
{
    __shared__ float2 part[n_warp];
    for (int i = 16; i > 0; i /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
    }
    __syncthreads(); /* the last row's parts have been read */
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(sum, most);
    __syncthreads();
    float2 all = part[0];
    for (uint32_t i = 1; i < n_warp; i++) {
        all.x += part[i].x;
        all.y = fmaxf(all.y, part[i].y);
    }
    return all;
}

/* The power of two that brings `most` into [2^9, 2^10), which leaves 23 octaves for small values;
 * its exponent is within 100. 1 for zeros and for values that are not finite. */
static __device__ inline float linear_scale_for(float most)
{
    const uint32_t exponent = __float_as_uint(most) >> 23;
    const uint32_t turned = 263u - min(max(exponent, 36u), 236u);
    return most == 0 || exponent >= 255 ? 1.0f : __uint_as_float(turned << 23);
}

/* 1 / scale, for a power of two. */
static __device__ inline float linear_inverse(float scale)
{
    return __uint_as_float((254u << 23) - __float_as_uint(scale));
}

/* Four values from i on; zeros beyond n. */
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

/* sum + the squares of v, with explicit FMAs, because compilers choose differently in different
 * callers. */
static __device__ inline float linear_add_square(float4 v, float sum)
{
    sum = __fmaf_rn(v.x, v.x, __fmaf_rn(v.y, v.y, sum));
    return __fmaf_rn(v.z, v.z, __fmaf_rn(v.w, v.w, sum));
}

#define STRIPS_TOGETHER 4u /* that a warp packs side by side, so that their latencies overlap */

/* Packs the first n of these strips, `stride` bytes apart; a lane has four inputs of each. */
static __device__ inline void linear_pack_some(uint8_t *to, uint32_t stride,
                                               const float4 v[STRIPS_TOGETHER], uint32_t n)
{
    const uint32_t lane = threadIdx.x % 32, block = lane / 8, s = lane / 4 % 2, t = lane % 4;
    const float by = s ? 1.0f / 16 : 1, back = s ? 16 : 1;
    float scale[STRIPS_TOGETHER], sum[STRIPS_TOGETHER];
#pragma unroll
    for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) {
        const float most =
            fmaxf(fmaxf(fabsf(v[k].x), fabsf(v[k].y)), fmaxf(fabsf(v[k].z), fabsf(v[k].w)));
        scale[k] = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most)));
    }
#pragma unroll
    for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) {
        scale[k] = linear_scale_for(scale[k]);
        const float all = scale[k] * by; /* a power of two: only the conversion to f16 rounds */
        __half2 h[2] = {__floats2half2_rn(v[k].x * all, v[k].z * all),
                        __floats2half2_rn(v[k].y * all, v[k].w * all)};
        const float2 a = __half22float2(h[0]), b = __half22float2(h[1]);
        sum[k] = ((a.x + a.y) + (b.x + b.y)) * back;
        if (k < n)
            *reinterpret_cast<uint2 *>(to + k * stride + 64 * block + 16 * t + 8 * s) =
                *reinterpret_cast<const uint2 *>(h);
    }
#pragma unroll
    for (uint32_t by = 1; by < 4; by *= 2)
#pragma unroll
        for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) sum[k] += __shfl_xor_sync(~0u, sum[k], by);
#pragma unroll
    for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) {
        if (k >= n || t > 0) continue;
        const __half high = __float2half_rn(sum[k]);
        __half *const sums = reinterpret_cast<__half *>(to + k * stride + STRIP_SUMS + 8 * block);
        sums[s] = high;
        sums[2 + s] = __float2half_rn(sum[k] - __half2float(high));
        if (lane == 0)
            *reinterpret_cast<float *>(to + k * stride + STRIP_SCALE) = linear_inverse(scale[k]);
    }
}

/* The strips of a row that a warp packs: first, first + step, ... before `end`. */
struct linear_strips {
    uint8_t *to;     /* where the first one goes */
    uint32_t stride; /* bytes between neighbouring strips of the row */
    uint32_t first, step, end;
};

template <bool wide>
static __device__ inline float linear_pack_as(const struct linear_strips &strips,
                                              const struct linear_input &a, uint32_t row)
{
    const uint32_t step = strips.step, stop = min(a.n_in, strips.end * STRIP);
    uint8_t *to = strips.to;
    float square = 0;
    for (uint32_t s = strips.first; s < strips.end; s += STRIPS_TOGETHER * step) {
        const uint32_t at = s * STRIP + threadIdx.x % 32 * 4, n = stop - min(stop, at);
        const float *const x = a.x + row * a.x_stride + at, *const norm = a.norm + at;
        float4 v[STRIPS_TOGETHER], w[STRIPS_TOGETHER];
#pragma unroll
        for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) {
            v[k] = linear_load4<wide>(x, k * step * STRIP, n);
            w[k] = a.norm ? linear_load4<wide>(norm, k * step * STRIP, n) : make_float4(1, 1, 1, 1);
        }
#pragma unroll
        for (uint32_t k = 0; k < STRIPS_TOGETHER; k++) {
            square = linear_add_square(v[k], square);
            v[k] = linear_times(v[k], w[k]);
        }
        linear_pack_some(to, step * strips.stride, v, (strips.end - s - 1) / step + 1);
        to += STRIPS_TOGETHER * step * strips.stride;
    }
    return square;
}

/* Packs strips; the bits do not depend on which warp does it. Returns the lane's sum of squares. */
static __device__ inline float linear_pack_strips(const struct linear_strips &strips,
                                                  const struct linear_input &a, uint32_t row)
{
    return a.wide ? linear_pack_as<true>(strips, a, row) : linear_pack_as<false>(strips, a, row);
}

/* Sum over a warp in a fixed order. */
static __device__ inline float linear_warp_sum(float sum)
{
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    return sum;
}

/* A lane's sum of squares over strips w, w + LINEAR_THREADS / 32, ... for warp w. */
static __device__ inline float linear_squares(const struct linear_input &a, uint32_t row)
{
    const float *x = a.x + row * a.x_stride;
    float square = 0;
#pragma unroll 4
    for (uint32_t i = 4 * threadIdx.x; i < a.n_in; i += 4 * LINEAR_THREADS)
        square = linear_add_square(
            a.wide ? linear_load4<true>(x, i, a.n_in) : linear_load4<false>(x, i, a.n_in), square);
    return square;
}

/* The norm's factor of a row, from its warps' sums of squares, added in their order. */
static __device__ inline float linear_norm_factor(const float *square, const struct linear_input &a)
{
    float all = 0;
    if (!a.norm) return 1;
    for (uint32_t i = 0; i < LINEAR_THREADS / 32; i++) all += square[i];
    return 1.0f / sqrtf(all / (float)a.n_in + a.eps);
}

/* The factors by which a row goes to f16: .x before the norm's weights, .y after. Reduces over the
 * block: squares, and the largest value after the norm. */
static __device__ inline float2 linear_row_factors(float square, float most,
                                                   const struct linear_input &a)
{
    const float2 all = linear_reduce<LINEAR_THREADS / 32>(square, most);
    const float inverse = a.norm ? 1.0f / sqrtf(all.x / (float)a.n_in + a.eps) : 1.0f;
    return make_float2(inverse, linear_scale_for(all.y * inverse));
}

/* Stores four values of a row in f16. */
static __device__ __forceinline__ void linear_put4(__half *to, float4 v, float4 norm, float2 factor)
{
    v = linear_times(v, make_float4(factor.x, factor.x, factor.x, factor.x));
    v = linear_times(v, norm);
    v = linear_times(v, make_float4(factor.y, factor.y, factor.y, factor.y));
    __half2 h[2] = {__floats2half2_rn(v.x, v.y), __floats2half2_rn(v.z, v.w)};
    *(uint2 *)to = *reinterpret_cast<const uint2 *>(h);
}

static __device__ __forceinline__ float linear_most4(float most, float4 v)
{
    return fmaxf(fmaxf(most, fmaxf(fabsf(v.x), fabsf(v.y))), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* Four weights of the norm. */
template <bool wide>
static __device__ __forceinline__ float4 linear_norm4(const struct linear_input &a, uint32_t i)
{
    return a.norm ? linear_load4<wide>(a.norm, i, a.n_in) : make_float4(1, 1, 1, 1);
}

template <bool wide>
static __device__ inline void linear_pack_row_as(__half *to, float *out_scale,
                                                 const struct linear_input &a, uint32_t row)
{
    const float *x = a.x + row * a.x_stride;
    float sum = 0, most = 0;
#pragma unroll 4 /* loads in flight together */
    for (uint32_t i = 4 * threadIdx.x; i < a.n_in; i += 4 * LINEAR_THREADS) {
        const float4 v = linear_load4<wide>(x, i, a.n_in);
        sum = linear_add_square(v, sum);
        most = linear_most4(most, linear_times(v, linear_norm4<wide>(a, i)));
    }
    const float2 factor = linear_row_factors(sum, most, a);
    for (uint32_t i = 4 * threadIdx.x; i < a.width; i += 4 * LINEAR_THREADS)
        linear_put4(to + i, linear_load4<wide>(x, i, a.n_in), linear_norm4<wide>(a, i), factor);
    if (threadIdx.x == 0) *out_scale = 1.0f / factor.y;
}

/* Packs one prompt row of `width` values and stores the factor of its sums; by a block of
 * LINEAR_THREADS. A thread takes four values at a time. */
static __device__ inline void linear_pack_row(__half *to, float *out_scale,
                                              const struct linear_input &a, uint32_t row)
{
    if (a.wide)
        linear_pack_row_as<true>(to, out_scale, a, row);
    else
        linear_pack_row_as<false>(to, out_scale, a, row);
}

/* ---- Epilogues ---- */

static __device__ inline float linear_silu(float x)
{
    return __fdividef(x, 1.0f + exp2_fast(-1.4426950408889634f * x)); /* relative error 2^-20 */
}

static __device__ inline float linear_gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(GELU_SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
}

/* The output from a sum v, where y was `old`; `up` is the second sum of a GLU. */
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

/* Arguments of an epilogue launch (finish). */
struct finish_args {
    const void *sum[2]; /* [n_row, stride] in f32 or f16; the second for a GLU, or NULL */
    bool halves;
    float by; /* undoes linear_half_by */
    uint32_t stride, n, n_row;
    uint32_t first;         /* output of the first sum */
    const float *scale;     /* [n_row]; NULL: the sums are final */
    const uint8_t *head[2]; /* the group of the first output, which begins with its shrinks */
    size_t group_bytes[2];
    const uint8_t *exponent[2]; /* of a packed GLU: of the shrinks' inverses */
    struct linear_end end;
    bool wide; /* y is aligned to 16 bytes in all rows */
};

/* Four sums from index `at` on, a multiple of 4. */
static __device__ __forceinline__ float4 finish_values(const struct finish_args &a, int m,
                                                       size_t at)
{
    if (!a.halves) return *(const float4 *)((const float *)a.sum[m] + at);
    const uint2 four = *(const uint2 *)((const __half *)a.sum[m] + at);
    const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(&four.x));
    const float2 y = __half22float2(*reinterpret_cast<const __half2 *>(&four.y));
    return make_float4(x.x, x.y, y.x, y.y);
}

/* The factors of four outputs from o on: inverses of their shrinks, powers of two, by negating the
 * exponents. */
static __device__ __forceinline__ float4 finish_factor(const struct finish_args &a, int m,
                                                       uint32_t o)
{
    if (!a.scale || !a.sum[m]) return make_float4(1, 1, 1, 1);
    const uint8_t *head = a.head[m] + o / WEIGHT_GROUP * a.group_bytes[m];
    const uint4 shrink = *(const uint4 *)(head + o % WEIGHT_GROUP * sizeof(float));
    const uint32_t one = 127u << 23;
    return make_float4(__uint_as_float(2 * one - shrink.x), __uint_as_float(2 * one - shrink.y),
                       __uint_as_float(2 * one - shrink.z), __uint_as_float(2 * one - shrink.w));
}

/* The factor of all outputs of a row. */
static __device__ __forceinline__ float finish_scale(const struct finish_args &a, uint32_t row)
{
    return a.scale ? a.scale[row] * a.by : 1.0f;
}

static __device__ __forceinline__ float4 finish_times(float4 v, float4 by, float scale)
{
    return make_float4(v.x * by.x * scale, v.y * by.y * scale, v.z * by.z * scale,
                       v.w * by.w * scale);
}

/* Four scaled sums of a row from output o on. */
static __device__ __forceinline__ float4 finish_load(const struct finish_args &a, int m,
                                                     uint32_t row, uint32_t o, float4 by)
{
    if (!a.sum[m]) return make_float4(0, 0, 0, 0);
    return finish_times(finish_values(a, m, (size_t)row * a.stride + o), by, finish_scale(a, row));
}

/* The arguments of the launch recorded n_behind before the last one, if it is an epilogue of prompt
 * rows, else NULL. A launcher that reads its outputs next can do its work. */
const struct finish_args *linear_end_recorded(const struct cuda_device *d, uint32_t n_behind);

/* Stores the output of a row from its sums. */
static __device__ inline void linear_finish(const struct linear_end &end, uint32_t row,
                                            uint32_t out, float v, float up)
{
    float *y = end.y + row * end.y_stride + out;
    *y = linear_value(end, out, v, up, end.epilogue == LINEAR_ADD ? *y : 0.0f);
}

#endif
