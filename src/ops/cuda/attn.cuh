/* attn.cuh: what the attention kernels of decode and of prompt rows have in common: the call as it
 * goes to the device, segments there, scores and the reading of q8 codes. */
#ifndef SAC_OPS_CUDA_ATTN_CUH
#define SAC_OPS_CUDA_ATTN_CUH

#include "ops/cuda/mma.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"

/* Forms of sealed pages that kernels are made for; a page's other half is of the same type. */
enum attn_form { FORM_F16, FORM_BF16, FORM_Q8 };

/* Offsets of page.h, known at compile time. Every part is a multiple of 64 bytes for these D. */
template <int F, int D> struct page_at {
    static constexpr int half = F == FORM_BF16 ? HALF_BF16 : HALF_F16; /* and of tail pages */
    static constexpr int rows = (int)PAGE_TOK * D * 2;                 /* bytes of 16-bit rows */
    static constexpr int tail_v = rows, tail_bytes = 2 * rows;
    static constexpr int k_min = 0, k_step = D * 2, k_hi2 = 2 * D * 2;
    static constexpr int k_low = k_hi2 + (int)PAGE_TOK * D / 4;
    static constexpr int v_scale = k_low + (int)PAGE_TOK * D * 3 / 4;
    static constexpr int n_block = D / (int)PAGE_VBLOCK;
    static constexpr int v8 = v_scale + ((int)PAGE_TOK * n_block * 2 + 63) / 64 * 64;
    static constexpr int v = F == FORM_Q8 ? v8 : rows;
    static constexpr int bytes = F == FORM_Q8 ? v8 + (int)PAGE_TOK * D : 2 * rows;
};

struct attn_call { /* struct op_attn, for kernels */
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

/* What is mostly so: its code lies together, as a kernel waits for code that is not near. */
static __host__ __device__ __forceinline__ bool likely(bool x)
{
    return __builtin_expect(x, true);
}

/* The form of a geometry's pages, or -1: there is no kernel for it. */
int attn_form_of(const struct page_geom *g);
/* A copy of a run's segments, angles and all, in the ring; NULL if it has none. */
const struct segment_view *attn_stage_segments(struct cuda_device *d, const struct op_attn *op,
                                               const struct attn_run *run);
size_t attn_segment_bytes(const struct op_attn *op, const struct attn_run *run);

/* Launchers of one kind of runs each. */
sac_status attn_decode(struct cuda_device *d, const struct op_attn *op);
sac_status attn_prompt(struct cuda_device *d, const struct op_attn *op);
size_t attn_decode_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                           uint32_t n_tok_max);

size_t attn_prompt_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row);

/* The segment that holds a page, as segment_of says. */
__device__ __forceinline__ uint32_t attn_segment_of(const struct segment_view *s, uint32_t n,
                                                    uint32_t page)
{
    uint32_t i = 0;
    while (i < n && s[i].end <= page) i++;
    return i;
}

/* Channel c of a query as it waits_for_team a segment. */
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

/* A product of query and key as an exponent of 2. */
__device__ __forceinline__ float attn_exponent(const struct attn_call &c, float dot)
{
    const float score = dot * c.scale;
    return (likely(c.softcap <= 0) ? score : c.softcap * tanhf(score / c.softcap)) * LOG2E;
}

/* ---- Codes of q8 pages as halves ---- */

/* Codes of four channels, at 2 bits (hi, mid, from bit 2s of each byte) and 4 bits (low, from bit
 * 0 or 4), as bytes. */
__device__ __forceinline__ uint32_t q8_codes(uint32_t hi, uint32_t mid, uint32_t low, int s)
{
    const uint32_t h = hi << (6 - 2 * s);
    const uint32_t m = s == 3 ? mid >> 2 : mid << (4 - 2 * s);
    const uint32_t l = s < 2 ? low : low >> 4;
    return bits_select(0xf0f0f0f0u, bits_select(0xc0c0c0c0u, h, m), l);
}

/* Unsigned bytes `at` and at + 1 of codes as f16, exact: 0x6400 is 1024, of which a byte is the
 * last bits. */
__device__ __forceinline__ uint32_t q8_pair(uint32_t codes, int at)
{
    return h2_sub(__byte_perm(codes, 0x64646464u, at == 0 ? 0x4140 : 0x4342), 0x64006400u);
}

/* The same of signed bytes that 128 has been added to. */
__device__ __forceinline__ uint32_t q8_signed_pair(uint32_t codes, int at)
{
    return h2_sub(__byte_perm(codes, 0x64646464u, at == 0 ? 0x4140 : 0x4342), 0x64806480u);
}

#endif
