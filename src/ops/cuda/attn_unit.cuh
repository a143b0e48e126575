/* attn_unit.cuh: one unit of attention for a decode row: 16 keys and values, or a q8 page of 32,
 * from global memory through shared memory into a warp's online softmax. The arithmetic of
 * attn_decode.cu.
 *
 * Up to 8 query heads of one KV head are rows 0 to 7 of m16n8k16; rows 8 to 15 hold their
 * residuals, and likewise for the probabilities, so products are nearly of f32 at no cost: the rows
 * would be idle. K of q8 pages is rounded to f16 once, V's codes times scale too. Single tokens of
 * q8 pages, and the own page, are 16-bit rows.
 *
 * The channels are permuted so that each lane reads wide words: lane 4 g + j takes channels
 * chan(step, j) to + 3 of a key in each step of 16 channels, and, as a column of V, the channels
 * from g D / 8 on. A key or value that is not finite makes the row NaN; one that the row does not
 * see (window, after the row) contributes nothing. */
#ifndef SAC_OPS_CUDA_ATTN_UNIT_CUH
#define SAC_OPS_CUDA_ATTN_UNIT_CUH

#include "ops/cuda/attn.cuh"
#include "ops/cuda/heads.cuh"

#include <math_constants.h>

#define UNIT_TOK 16u
#define HEADS    8u

struct decode_job {                 /* a row and up to HEADS query heads of one KV head */
    const uint32_t *frame;          /* of the KV head's pages */
    uint8_t *own;                   /* the row's own page */
    const uint32_t *page;           /* [n_page]; NULL: page0, page0 + 1, ... */
    const uint32_t *tok;            /* [n_tok] single tokens */
    const float *logw;              /* [n_tok] or NULL */
    const struct attn_count *count; /* lengths of lists selected on the device; NULL: known */
    const struct segment_view *segment;
    uint32_t n_segment, n_page, page0, n_tok;
    uint32_t row, head0, n_head, kv_head, pos;
    uint32_t n_unit, n_split, split_unit, part0; /* part0: the job's first split in the scratch */
    uint32_t n_warp, split_most;                 /* warps of a block; splits that fill the GPU */
    uint32_t n_block;                            /* blocks that share the splits */
    bool is_first;                               /* the first job of its row and KV head */
};

/* The row in f32: queries of the job's heads, then the new key and value if their write is pending.
 * The padding avoids bank conflicts between heads. */
template <int D> struct decode_rows {
    float of[HEADS + 2][D + 1];
};

/* Warps of a block. Small heads need more, so that enough bytes are in flight on a
 * multiprocessor. */
static __host__ __device__ constexpr int decode_warps(uint32_t head_dim)
{
    return head_dim <= 64 ? 8 : 4;
}

#define WARPS_FEW 2 /* for heads of 256 channels where shared memory is small */

/* Layout of a warp's sums in shared memory, in floats: for each head eighths of its channels,
 * padded so that the lanes of a warp store without bank conflicts, then maxima and sums of all
 * heads. */
template <int D> struct decode_merge {
    static constexpr int eighth = D / 8 + 4, head = 8 * eighth + 1;
    static constexpr int piece = (int)HEADS * head + 2 * (int)HEADS;
    /* The index of channel i % D of head i / D. */
    static __device__ constexpr uint32_t at(uint32_t i)
    {
        return i / D * head + i % D / (D / 8) * eighth + i % (D / 8);
    }
    static constexpr uint32_t max = HEADS * head, sum = max + HEADS;
    static constexpr uint32_t part = HEADS * D + 2 * HEADS; /* of a split in the scratch */
};

/* Sizes of a block of W warps. */
template <int F, int D, int W = decode_warps(D)> struct decode_size {
    /* Pipeline stages of a warp. Small heads have small units, and few for a warp, so they have
     * more. */
    static constexpr int stages = D > 64 ? 2 : 4;
    static constexpr int unit_page = F == FORM_Q8 ? 1 : 2; /* units of a page */
    static constexpr int stage = F == FORM_Q8 ? page_at<F, D>::bytes : (int)UNIT_TOK * D * 4;
    static constexpr int warps = W;
    static constexpr int merge = warps * decode_merge<D>::piece * 4;
    static constexpr int query = D > 128 ? warps *D * 32 : 0; /* too large for registers */
};

/* A warp's online softmax. Row g of the fragments is query head g. */
template <int D> struct decode_warp {
    float acc[D / 8][4]; /* columns 2j and 2j + 1 of channel i of each eighth */
    float max, sum;      /* in exponents of 2; `sum` is over this lane's tokens */
    uint32_t q[D > 128 ? 1 : D / 16][4];
    uint4 *q_shared;                   /* [D / 16][32], where q does not fit into registers */
    uint32_t segment;                  /* whose offset q is rotated by; UINT32_MAX: none yet */
    const struct decode_rows<D> *rows; /* of the block */
};

/* ---- Channels ---- */

template <int F, int D> __device__ __forceinline__ uint32_t chan(int step, uint32_t j)
{
    if constexpr (F != FORM_Q8) return (uint32_t)(step / 2 * 32 + step % 2 * 4) + 8 * j;
    constexpr int u = D / 64; /* words of a plane */
    return (uint32_t)(step / u * (D / 4) + step % u * 4) + (uint32_t)(D / 16) * j;
}

/* XOR swizzle of the 16-byte pieces of row t, without bank conflicts for either access: in K, eight
 * lanes read pieces 0 to 3 of two neighbouring rows; in V, two pieces D / 64 apart of every second
 * row. */
template <int D> __device__ __forceinline__ uint32_t swizzle(uint32_t t)
{
    if constexpr (D == 256) return (t >> 1 & 3) | (t & 1) << 2;
    return (t >> 1 & 1) << (D == 64 ? 1 : 0) | ((t >> 2 ^ t) & 1) << 2;
}

/* ---- Queries ---- */

/* Loads queries, and a pending key and value, rotated, to shared memory; all threads, with all
 * loads in flight together. */
template <int D, int W>
__device__ void load_rows(struct decode_rows<D> *to, const struct attn_call &c,
                          const struct heads_pending &fresh, const struct decode_job &job)
{
    constexpr uint32_t n_thread = W * 32, n = (HEADS + 2) * D;
    constexpr uint32_t n_each = (n + n_thread - 1) / n_thread;
    const float *q = c.q + job.row * c.q_stride + (size_t)job.head0 * D;
    const size_t kv = job.row * fresh.stride + (size_t)job.kv_head * D;
    float x[n_each];
#pragma unroll
    for (uint32_t k = 0; k < n_each; k++) {
        const uint32_t i = k * n_thread + threadIdx.x, g = i / D, at = i % D;
        x[k] = 0;
        if (g < job.n_head)
            x[k] = heads_channel(fresh, q + g * D, job.row, at);
        else if (g == HEADS && fresh.k)
            x[k] = heads_channel(fresh, fresh.k + kv, job.row, at);
        else if (g == HEADS + 1 && fresh.k)
            x[k] = fresh.v[kv + at];
    }
#pragma unroll
    for (uint32_t k = 0; k < n_each; k++) {
        const uint32_t i = k * n_thread + threadIdx.x;
        if (i < n) to->of[i / D][i % D] = x[k];
    }
    __syncthreads();
}

template <int F, int D>
__device__ void decode_query(struct decode_warp<D> &w, const struct attn_call &c,
                             const struct decode_job &job, uint32_t segment)
{
    constexpr int H = page_at<F, D>::half;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, j = lane % 4;
    const float *q = w.rows->of[g];
    const struct segment_view *s = segment < job.n_segment ? &job.segment[segment] : NULL;
    const bool turns = s && s->cos;
#pragma unroll
    for (int step = 0; step < D / 16; step++) {
        float x[4];
        const uint32_t at = chan<F, D>(step, j);
        for (int i = 0; i < 4; i++) x[i] = q[at + i];
#pragma unroll 1 /* seldom taken, and unrolled loads would need a hundred registers */
        for (uint32_t i = 0; turns && i < 4; i++) {
            const float y = attn_rotated(q, at + i, s, c.rope);
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) x[k] = k == i ? y : x[k];
        }
        uint32_t a[4];
        a[0] = half_pack<H>(x[0], x[1]);
        a[1] = half_residual<H>(x[0], x[1], a[0]);
        a[2] = half_pack<H>(x[2], x[3]);
        a[3] = half_residual<H>(x[2], x[3], a[2]);
        if constexpr (D > 128)
            w.q_shared[step * 32 + lane] = make_uint4(a[0], a[1], a[2], a[3]);
        else
            for (int i = 0; i < 4; i++) w.q[step][i] = a[i];
    }
    w.segment = segment;
    __syncwarp();
}

template <int D>
__device__ __forceinline__ void decode_query_step(uint32_t a[4], const struct decode_warp<D> &w,
                                                  int step)
{
    if constexpr (D > 128) {
        const uint4 v = w.q_shared[step * 32 + threadIdx.x % 32];
        a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w;
    } else {
        for (int i = 0; i < 4; i++) a[i] = w.q[step][i];
    }
}

/* ---- Keys: B fragments of all steps ---- */

/* B fragments of key t from a unit of 16-bit rows. In q8 models a lane's channels are further
 * apart. */
template <int F, int D>
__device__ __forceinline__ void key_rows(uint32_t k[D / 8], const uint8_t *unit, uint32_t t,
                                         uint32_t j)
{
    const uint8_t *row = unit + t * (D * 2);
    const uint32_t turn = swizzle<D>(t);
    if constexpr (F == FORM_Q8) {
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            const uint32_t c = chan<F, D>(step, j);
            const uint2 v = *(const uint2 *)(row + ((c / 8) ^ turn) * 16 + c % 8 * 2);
            k[step * 2] = v.x, k[step * 2 + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int b = 0; b < D / 32; b++) {
            const uint4 v = *(const uint4 *)(row + (((uint32_t)b * 4 + j) ^ turn) * 16);
            k[b * 4] = v.x, k[b * 4 + 1] = v.y, k[b * 4 + 2] = v.z, k[b * 4 + 3] = v.w;
        }
    }
}

/* B fragments of key t from a q8 page, in shared or global memory. */
template <int D>
__device__ __forceinline__ void key_q8(uint32_t k[D / 8], const uint8_t *page, uint32_t t,
                                       uint32_t j)
{
    using at = page_at<FORM_Q8, D>;
    constexpr int N = D / 64; /* words of a plane */
    const uint32_t first = j * (D / 16);
    const uint8_t *low = page + at::k_low + t * (D * 3 / 4);
#pragma unroll
    for (int u = 0; u < N; u++) {
        const uint32_t hi = *(const uint32_t *)(page + at::k_hi2 + t * (D / 4) + first + 4 * u);
        const uint32_t mid = *(const uint32_t *)(low + first + 4 * u);
        const uint32_t lo[2] = {*(const uint32_t *)(low + D / 4 + first + 4 * u),
                                *(const uint32_t *)(low + D / 2 + first + 4 * u)};
#pragma unroll
        for (int s = 0; s < 4; s++) {
            const uint32_t codes = q8_codes(hi, mid, lo[s % 2], s), c = s * (D / 4) + first + 4 * u;
            const uint2 min = *(const uint2 *)(page + at::k_min + c * 2);
            const uint2 by = *(const uint2 *)(page + at::k_step + c * 2);
            k[(s * N + u) * 2] = h2_fma(by.x, q8_pair(codes, 0), min.x);
            k[(s * N + u) * 2 + 1] = h2_fma(by.y, q8_pair(codes, 2), min.y);
        }
    }
}

/* ---- Values: pairs of tokens for 8 channels ---- */

__device__ __forceinline__ void value_pairs(uint32_t b[8], uint4 x, uint4 y)
{
    const uint32_t a[4] = {x.x, x.y, x.z, x.w}, c[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        b[2 * i] = __byte_perm(a[i], c[i], 0x5410);
        b[2 * i + 1] = __byte_perm(a[i], c[i], 0x7632);
    }
}

/* Signed codes of two tokens times their scales, as pairs. */
__device__ __forceinline__ void value_pairs_q8(uint32_t b[8], uint2 x, uint2 y, uint32_t scales)
{
    const uint32_t a[2] = {x.x ^ 0x80808080u, x.y ^ 0x80808080u};
    const uint32_t c[2] = {y.x ^ 0x80808080u, y.y ^ 0x80808080u};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t lo = __byte_perm(a[i], c[i], 0x5140), hi = __byte_perm(a[i], c[i], 0x7362);
#pragma unroll
        for (int e = 0; e < 4; e++)
            b[4 * i + e] = h2_mul(q8_signed_pair(e < 2 ? lo : hi, e % 2 * 2), scales);
    }
}

/* ---- Attention to 16 tokens in shared memory ---- */

/* Dot products of head g and tokens t0 + 2j, + 1, + 8 and + 9. ROWS: the unit has 16-bit rows. */
template <int F, int D, bool ROWS>
__device__ __forceinline__ void unit_dots(float x[4], const struct decode_warp<D> &w,
                                          const uint8_t *unit, uint32_t t0)
{
    constexpr int H = page_at<F, D>::half;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float s[4] = {0, 0, 0, 0};
        uint32_t k[D / 8];
        if constexpr (ROWS)
            key_rows<F, D>(k, unit, t0 + i * 8 + g, j);
        else
            key_q8<D>(k, unit, t0 + i * 8 + g, j);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            uint32_t a[4];
            decode_query_step<D>(a, w, step);
            mma_16816<H>(s, a, k[step * 2], k[step * 2 + 1]);
        }
        x[2 * i] = s[0] + s[2];
        x[2 * i + 1] = s[1] + s[3];
    }
}

/* Raises the maximum of head g to cover the exponents x, and rescales the accumulators. Heads whose
 * maximum stays are multiplied by exactly 1, so heads do not affect each other. */
template <int D>
__device__ __forceinline__ void raise_max(struct decode_warp<D> &w, const float x[4])
{
    float max = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(w.max, fmaxf(max, __shfl_xor_sync(~0u, max, 2)));
    if (!__any_sync(~0u, max > w.max)) return;
    const float by = max > w.max ? exp2_fast(w.max - max) : 1.0f;
    w.sum *= by;
#pragma unroll
    for (int i = 0; i < D / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) w.acc[i][e] *= by;
    w.max = max;
}

/* Accumulates V of tokens t0 + 2j, ... with the probabilities in `a`. */
template <int F, int D, bool ROWS>
__device__ __forceinline__ void unit_values(struct decode_warp<D> &w, const uint32_t a[4],
                                            const uint8_t *unit, uint32_t t0)
{
    using at = page_at<F, D>;
    const uint32_t g = threadIdx.x % 32 / 4, t = t0 + threadIdx.x % 4 * 2;
    const uint32_t tok[4] = {t, t + 1, t + 8, t + 9};
    uint32_t scale[2] = {0, 0};
    if constexpr (!ROWS)
#pragma unroll
        for (int i = 0; i < 4; i++)
            scale[i / 2] |=
                (uint32_t) * (const uint16_t *)(unit + at::v_scale +
                                                (tok[i] * at::n_block + g * D / 256) * 2)
                << i % 2 * 16;
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
        uint32_t b[2][8];
        if constexpr (ROWS) {
            uint4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t piece = (g * (D / 64) + (uint32_t)c) ^ swizzle<D>(tok[i]);
                v[i] = *(const uint4 *)(unit + (UNIT_TOK + tok[i]) * (D * 2) + piece * 16);
            }
            value_pairs(b[0], v[0], v[1]);
            value_pairs(b[1], v[2], v[3]);
        } else {
            uint2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = *(const uint2 *)(unit + at::v + tok[i] * D + g * (D / 8) + c * 8);
            value_pairs_q8(b[0], v[0], v[1], scale[0]);
            value_pairs_q8(b[1], v[2], v[3], scale[1]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) mma_16816<at::half>(w.acc[c * 8 + i], a, b[0][i], b[1][i]);
    }
}

/* Adds 16 tokens with exponents x to the softmax. */
template <int F, int D, bool ROWS>
__device__ __forceinline__ void unit_add(struct decode_warp<D> &w, const float x[4],
                                         const uint8_t *unit, uint32_t t0)
{
    constexpr int H = page_at<F, D>::half;
    raise_max<D>(w, x);
    float p[4];
    const float less = w.max == -CUDART_INF_F ? 0.0f : w.max;
#pragma unroll
    for (int i = 0; i < 4; i++) p[i] = exp2_fast(x[i] - less);
    w.sum += (p[0] + p[1]) + (p[2] + p[3]);
    uint32_t a[4];
    a[0] = half_pack<H>(p[0], p[1]);
    a[1] = half_residual<H>(p[0], p[1], a[0]);
    a[2] = half_pack<H>(p[2], p[3]);
    a[3] = half_residual<H>(p[2], p[3], a[2]);
    unit_values<F, D, ROWS>(w, a, unit, t0);
}

/* ---- Loads of units ---- */

struct decode_view { /* of a block */
    const struct attn_call *call;
    const struct heads_pending *fresh;
    const struct decode_job *job;
    uint32_t first;              /* position of the first token in the window */
    uint32_t n_staged, n_single; /* units of pages, and of single tokens */
};

/* A row of 16-bit keys or values is addressed by place * PAGE_TOK + token. */
#define ROW_NONE UINT32_MAX /* no row; else PLACE_BELOW marks host memory */

/* The page of such a row. */
__device__ __forceinline__ const uint8_t *row_page(const struct page_frames &frames, uint32_t row,
                                                   uint32_t page_bytes)
{
    return place_bytes(frames, (row & PLACE_BELOW) | (row & ~PLACE_BELOW) / PAGE_TOK, page_bytes);
}

/* Starts the copies of 16 rows of K and of V; lane t < 16 names row t; V is `v` bytes after K.
 * Missing rows are zeroed. */
template <int D>
__device__ __forceinline__ void stage_rows(uint32_t dst, const struct page_frames &frames,
                                           uint32_t row, uint32_t page_bytes, uint32_t v)
{
    const uint32_t lane = threadIdx.x % 32;
    constexpr uint32_t n_piece = D / 8; /* 16-byte pieces of a row */
#pragma unroll
    for (uint32_t i = 0; i < UNIT_TOK * n_piece; i += 32) {
        const uint32_t t = (i + lane) / n_piece, piece = (i + lane) % n_piece;
        const uint32_t from = __shfl_sync(~0u, row, t);
        const uint8_t *k =
            row_page(frames, from, page_bytes) + (from % PAGE_TOK) * (D * 2) + piece * 16;
        const uint32_t to = dst + t * (D * 2) + (piece ^ swizzle<D>(t)) * 16;
        if (from != ROW_NONE) {
            cp_async16(to, k);
            cp_async16(to + UNIT_TOK * D * 2, k + v);
        } else {
            store_zero16(to);
            store_zero16(to + UNIT_TOK * D * 2);
        }
    }
}

/* The row of single token i; ROW_NONE after the last and before the window. */
__device__ __forceinline__ uint32_t single_token(const struct decode_view &v, uint32_t i)
{
    const struct decode_job &job = *v.job;
    const uint32_t tok = i < job.n_tok ? job.tok[i] : 0;
    if (i >= job.n_tok || tok < v.first) return ROW_NONE;
    const uint32_t place = place_find(v.call->frames, job.frame[tok / PAGE_TOK]);
    return (place & PLACE_BELOW) | (place * PAGE_TOK + tok % PAGE_TOK);
}

template <int F, int D>
__device__ void stage_single(uint32_t dst, const struct decode_view &v, uint32_t unit)
{
    const uint32_t row = single_token(v, unit * UNIT_TOK + threadIdx.x % UNIT_TOK);
    stage_rows<D>(dst, v.call->frames, row, page_at<F, D>::bytes, page_at<F, D>::v);
}

/* Dequantizes 16 single tokens of q8 pages into rows of f16, when they are used. */
template <int D>
__device__ void read_single(uint8_t *to, const struct decode_view &v, uint32_t unit)
{
    using at = page_at<FORM_Q8, D>;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll 1
    for (uint32_t row = g; row < UNIT_TOK; row += 8) {
        uint32_t k[D / 8] = {};
        const uint32_t from = single_token(v, unit * UNIT_TOK + row), t = from % PAGE_TOK;
        const uint8_t *page = row_page(v.call->frames, from, at::bytes);
        uint8_t *out = to + row * (D * 2);
        if (from != ROW_NONE) key_q8<D>(k, page, t, j);
#pragma unroll
        for (int step = 0; step < D / 16; step++) {
            const uint32_t c = chan<FORM_Q8, D>(step, j);
            *(uint2 *)(out + ((c / 8) ^ swizzle<D>(row)) * 16 + c % 8 * 2) =
                make_uint2(k[step * 2], k[step * 2 + 1]);
        }
        out += UNIT_TOK * D * 2;
        for (uint32_t c = j * 8; c < D; c += 32) { /* 8 channels of one scale block */
            uint2 codes = make_uint2(0, 0);
            uint32_t scale = 0, x[4];
            if (from != ROW_NONE) {
                codes = *(const uint2 *)(page + at::v + t * D + c);
                scale = *(const uint16_t *)(page + at::v_scale + (t * at::n_block + c / 32) * 2);
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = h2_mul(q8_signed_pair((i < 2 ? codes.x : codes.y) ^ 0x80808080u, i % 2 * 2),
                              scale | scale << 16);
            *(uint4 *)(out + ((c / 8) ^ swizzle<D>(row)) * 16) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
    __syncwarp();
}

/* Starts the copies of half of the own page. Rows that are not seen are zeroed, and so is the row's
 * own token while its write is pending. */
template <int D> __device__ void stage_own(uint32_t dst, const struct decode_view &v, uint32_t half)
{
    const struct decode_job &job = *v.job;
    const uint32_t t = half * UNIT_TOK + threadIdx.x % UNIT_TOK;
    const uint32_t pos = job.pos / PAGE_TOK * PAGE_TOK + t;
    const uint32_t end = v.fresh->k ? job.pos : job.pos + 1;
    const bool seen = pos < end && pos >= v.first;
    struct page_frames own = {};
    own.base = job.own;
    stage_rows<D>(dst, own, seen ? t : ROW_NONE, 0, page_at<FORM_F16, D>::tail_v);
}

/* Stores the pending key and value of the row in its unit, and in its page by one job of the KV
 * head. */
template <int F, int D>
__device__ void store_own(uint8_t *unit, const struct decode_view &v,
                          const struct decode_rows<D> &rows)
{
    const struct decode_job &job = *v.job;
    const uint32_t t = job.pos % UNIT_TOK;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < 2 * D; i += 32) {
        const uint32_t is_value = i / D, c = i % D;
        const uint16_t x =
            half_bits(rows.of[HEADS + is_value][c], F == FORM_BF16 ? SAC_KV_BF16 : SAC_KV_F16);
        uint8_t *row = unit + (is_value * UNIT_TOK + t) * (D * 2);
        *(uint16_t *)(row + ((c / 8) ^ swizzle<D>(t)) * 16 + c % 8 * 2) = x;
        uint8_t *page = job.own + is_value * page_at<F, D>::tail_v;
        if (job.is_first) ((uint16_t *)page)[job.pos % PAGE_TOK * D + c] = x;
    }
    __syncwarp();
}

template <int F, int D>
__device__ __forceinline__ void stage_page(uint32_t dst, const uint8_t *page, uint32_t half)
{
    const uint32_t lane = threadIdx.x % 32;
    if constexpr (F == FORM_Q8) {
        constexpr uint32_t n = page_at<F, D>::bytes / 16;
#pragma unroll
        for (uint32_t i = 0; i < n; i += 32)
            if (i + lane < n) cp_async16(dst + (i + lane) * 16, page + (i + lane) * 16);
    } else {
        constexpr uint32_t row = D / 8; /* 16-byte pieces */
        const uint8_t *k = page + half * (UNIT_TOK * D * 2);
#pragma unroll
        for (uint32_t i = 0; i < UNIT_TOK * row; i += 32) {
            const uint32_t t = (i + lane) / row, piece = (i + lane) % row;
            const uint32_t to = dst + t * (D * 2) + (piece ^ swizzle<D>(t)) * 16;
            cp_async16(to, k + (i + lane) * 16);
            cp_async16(to + UNIT_TOK * D * 2, k + page_at<F, D>::v + (i + lane) * 16);
        }
    }
}

/* Zeroes V of the first tokens of a unit, which the row does not see. */
template <int F, int D> __device__ void zero_hidden(uint8_t *unit, uint32_t n_hidden)
{
    using at = page_at<F, D>;
    const uint32_t lane = threadIdx.x % 32;
    const uint4 none = make_uint4(0, 0, 0, 0);
    if constexpr (F == FORM_Q8) {
        for (uint32_t i = lane; i < n_hidden * (D / 16); i += 32)
            *(uint4 *)(unit + at::v + i * 16) = none;
        for (uint32_t i = lane; i < n_hidden * at::n_block; i += 32)
            *(uint16_t *)(unit + at::v_scale + i * 2) = 0;
    } else {
        for (uint32_t i = lane; i < n_hidden * (D / 8); i += 32)
            *(uint4 *)(unit + UNIT_TOK * D * 2 + i * 16) = none;
    }
    __syncwarp();
}

/* ---- Units ---- */

/* Rotates the query for the segment of a page, if it is another one. */
template <int F, int D>
__device__ __forceinline__ void rotate_query_for(struct decode_warp<D> &w,
                                                 const struct decode_view &v, uint32_t page)
{
    const struct decode_job &job = *v.job;
    if (likely(job.n_segment == 0)) return;
    const uint32_t s = attn_segment_of(job.segment, job.n_segment, page);
    if (s != w.segment) decode_query<F, D>(w, *v.call, job, s);
}

/* Adds a unit of a page. */
template <int F, int D>
__device__ __forceinline__ void add_page(struct decode_warp<D> &w, const struct decode_view &v,
                                         uint8_t *unit, uint32_t page, uint32_t half)
{
    constexpr bool ROWS = F != FORM_Q8;
    constexpr uint32_t n = ROWS ? UNIT_TOK : PAGE_TOK;
    const uint32_t pos0 = page * PAGE_TOK + half * UNIT_TOK;
    if (pos0 + n <= v.first) return;
    if (!likely(pos0 >= v.first)) zero_hidden<F, D>(unit, v.first - pos0);
    rotate_query_for<F, D>(w, v, page);
#pragma unroll 1
    for (uint32_t t0 = 0; t0 < n; t0 += UNIT_TOK) {
        float x[4];
        unit_dots<F, D, ROWS>(x, w, unit, t0);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t pos = pos0 + t0 + threadIdx.x % 4 * 2 + i / 2 * 8 + i % 2;
            x[i] = pos < v.first ? -CUDART_INF_F : attn_exponent(*v.call, x[i]);
        }
        unit_add<F, D, ROWS>(w, x, unit, t0);
    }
}

/* Adds single tokens, or half of the own page. Tokens of several segments need a query for each. */
template <int F, int D>
__device__ void add_rows(struct decode_warp<D> &w, const struct decode_view &v, const uint8_t *unit,
                         uint32_t single, uint32_t half)
{
    const struct decode_job &job = *v.job;
    const uint32_t own = job.pos / PAGE_TOK, t = threadIdx.x % 4 * 2;
    const bool is_own = single == UINT32_MAX;
    uint32_t s[4];
    float x[4], add[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t at = single * UNIT_TOK + t + i / 2 * 8 + i % 2;
        uint32_t pos = own * PAGE_TOK + half * UNIT_TOK + t + i / 2 * 8 + i % 2;
        bool seen = pos <= job.pos;
        if (!is_own) pos = job.tok[min(at, job.n_tok - 1)], seen = at < job.n_tok;
        add[i] = is_own || !job.logw || !seen ? 0.0f : job.logw[at] * LOG2E;
        if (!seen || pos < v.first) add[i] = -CUDART_INF_F;
        s[i] = attn_segment_of(job.segment, job.n_segment, pos / PAGE_TOK);
        x[i] = -CUDART_INF_F;
    }
    uint32_t from = s[0], to = s[3];
    for (int by = 1; by < 4; by *= 2) {
        from = min(from, __shfl_xor_sync(~0u, from, by));
        to = max(to, __shfl_xor_sync(~0u, to, by));
    }
    for (; from <= to; from++) {
        float y[4];
        if (job.n_segment && from != w.segment) decode_query<F, D>(w, *v.call, job, from);
        unit_dots<F, D, true>(y, w, unit, 0);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (s[i] == from && add[i] > -CUDART_INF_F)
                x[i] = attn_exponent(*v.call, y[i]) + add[i];
    }
    unit_add<F, D, true>(w, x, unit, 0);
}

#endif
