/* attn.cuh: what the attention kernels of decode rows and prompt rows share: the call's arguments
 * on the device, segments and RoPE between them, logits, and dequantization of q8 codes. */
#ifndef SAC_OPS_CUDA_ATTN_CUH
#define SAC_OPS_CUDA_ATTN_CUH

#include "ops/cuda/mma.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"

/* Forms of sealed pages that kernels are instantiated for; K and V have the same type. */
enum attn_form { FORM_F16, FORM_BF16, FORM_Q8 };

/* The offsets of page.h at compile time. Every part is a multiple of 64 bytes for these D. */
template <int F, int D> struct page_at {
    static constexpr int half = F == FORM_BF16 ? HALF_BF16 : HALF_F16; /* tail pages, too */
    static constexpr int rows = (int)PAGE_TOK * D * 2; /* bytes of a page's K or V in 16 bits */
    static constexpr int tail_v = rows, tail_bytes = 2 * rows;
    static constexpr int k_min = 0, k_step = D * 2, k_hi2 = 2 * D * 2;
    static constexpr int k_low = k_hi2 + (int)PAGE_TOK * D / 4;
    static constexpr int v_scale = k_low + (int)PAGE_TOK * D * 3 / 4;
    static constexpr int n_block = D / (int)PAGE_VBLOCK;
    static constexpr int v8 = v_scale + ((int)PAGE_TOK * n_block * 2 + 63) / 64 * 64;
    static constexpr int v = F == FORM_Q8 ? v8 : rows;
    static constexpr int bytes = F == FORM_Q8 ? v8 + (int)PAGE_TOK * D : 2 * rows;
};

struct attn_call { /* op_attn as kernels get it */
    struct page_frames frames;
    const float *q;
    size_t q_stride, out_stride;
    float *out, *lse;
    struct segment_rope rope;
    float scale, softcap;
    uint32_t n_head, window;
};

static inline struct attn_call attn_call_of(const struct op_attn *op)
{
    struct attn_call c;
    c.frames = op->frames;
    c.q = op->q;
    c.q_stride = op->q_stride;
    c.out_stride = op->out_stride;
    c.out = op->out;
    c.lse = op->lse;
    c.rope = op->rope;
    c.scale = op->scale;
    c.softcap = op->softcap;
    c.n_head = op->n_head;
    c.window = op->window;
    return c;
}

/* Hints that x is true. The likely code is laid out together, because a kernel stalls on
 * instruction fetches from far away. */
static __host__ __device__ __forceinline__ bool likely(bool x)
{
    return __builtin_expect(x, true);
}

/* The form of a geometry's pages; -1: there is no kernel for it. */
int attn_form_of(const struct page_geom *g);
/* Stages a run's segments with their angles; NULL if it has none. */
const struct segment_view *attn_stage_segments(struct cuda_device *d, const struct op_attn *op,
                                               const struct attn_run *run);
size_t attn_segment_bytes(const struct op_attn *op, const struct attn_run *run);

/* Launchers for each kind of run. */
sac_status attn_decode(struct cuda_device *d, const struct op_attn *op);
sac_status attn_prompt(struct cuda_device *d, const struct op_attn *op);
size_t attn_decode_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                           uint32_t n_tok_max);

size_t attn_prompt_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row);

/* The index of the segment that holds a page, as segment_of. */
__device__ __forceinline__ uint32_t attn_segment_of(const struct segment_view *s, uint32_t n,
                                                    uint32_t page)
{
    uint32_t i = 0;
    while (i < n && s[i].end <= page) i++;
    return i;
}

/* Channel c of a query, rotated by the offset of the segment whose keys it meets. */
__device__ __forceinline__ float
attn_rotated(const float *q, uint32_t c, const struct segment_view *s, struct segment_rope rope)
{
    if (!s || !s->cos || c >= rope.n_rot) return q[c];
    const uint32_t half = rope.n_rot / 2;
    const uint32_t i = rope.interleaved ? c / 2 : c < half ? c : c - half;
    const bool second = rope.interleaved ? c & 1 : c >= half;
    const uint32_t a = rope.interleaved ? 2 * i : i, b = rope.interleaved ? a + 1 : i + half;
    return second ? q[a] * s->sin[i] + q[b] * s->cos[i] : q[a] * s->cos[i] - q[b] * s->sin[i];
}

/* A logit from a dot product: scaled, soft-capped, times log2(e), so that 2^x is its
 * exponential. */
__device__ __forceinline__ float attn_exponent(const struct attn_call &c, float dot)
{
    const float score = dot * c.scale;
    return (likely(c.softcap <= 0) ? score : c.softcap * tanhf(score / c.softcap)) * LOG2E;
}

/* ---- q8 codes as f16 ---- */

/* Codes of four channels as bytes, for channels of quarter s: 2 bits from hi and 2 from mid, at bit
 * 2s of each byte, and 4 bits from low. */
__device__ __forceinline__ uint32_t q8_codes(uint32_t hi, uint32_t mid, uint32_t low, int s)
{
    const uint32_t h = hi << (6 - 2 * s);
    const uint32_t m = s == 3 ? mid >> 2 : mid << (4 - 2 * s);
    const uint32_t l = s < 2 ? low : low >> 4;
    return bits_select(0xf0f0f0f0u, bits_select(0xc0c0c0c0u, h, m), l);
}

/* Unsigned bytes `at` and at + 1 as exact f16: the bytes become the low bits of 0x6400, which is
 * 1024, and 1024 is subtracted. */
__device__ __forceinline__ uint32_t q8_pair(uint32_t codes, int at)
{
    return h2_sub(__byte_perm(codes, 0x64646464u, at == 0 ? 0x4140 : 0x4342), 0x64006400u);
}

/* The same for signed bytes to which 128 was added. */
__device__ __forceinline__ uint32_t q8_signed_pair(uint32_t codes, int at)
{
    return h2_sub(__byte_perm(codes, 0x64646464u, at == 0 ? 0x4140 : 0x4342), 0x64806480u);
}

#endif
