/* note.cu: the summaries that methods keep beside a page's keys (enum op_note_kind): boxes, centres
 * or two-bit planes, bit for bit as the methods' hooks on a CPU.
 *
 * One block summarizes one page, a thread has a channel and goes through the page's tokens. Only
 * the two-bit codes pass through shared memory, as a byte of the plane has codes of four channels.
 */
#include "ops/cuda/choose.cuh"

#define THREADS 128u

struct note_call {
    struct page_geom geom;
    struct page_frames frames;
    const uint32_t *frame; /* [number of pages] */
    uint8_t *side;
    size_t stride;
    enum op_note_kind kind;
};

/* As f32_to_f16_canonical of the CPU. */
static __device__ uint16_t half_canonical(float x)
{
    return isnan(x) ? (uint16_t)0x7e00u : half_bits(x, SAC_KV_F16);
}

/* The f16 nearest to x that is not below it (up) or not above it, as box_half. */
static __device__ uint16_t half_beside(float x, bool up)
{
    const uint16_t h = half_canonical(x);
    const float rounded = choose_half(h, SAC_KV_F16);
    if (!(up ? rounded < x : rounded > x)) return h;
    if ((h & 0x7fffu) == 0) return up ? 1 : 0x8001u;
    return (uint16_t)(up == (x > 0) ? h + 1 : h - 1);
}

/* The box of channel c over tokens [t0, t1): minimum and width, or middle and mean deviation. a
 * [d], b [d]. */
static __device__ void note_box(uint16_t *a, const struct note_call &n, const uint8_t *page,
                                uint32_t c, uint32_t t0, uint32_t t1)
{
    uint16_t *b = a + n.geom.head_dim;
    float lo = choose_key(n.geom, page, t0, c), hi = lo, off = 0;
    for (uint32_t t = t0 + 1; t < t1; t++) {
        const float x = choose_key(n.geom, page, t, c);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
    }
    if (n.kind != OP_NOTE_MEAN) {
        a[c] = half_beside(lo, false);
        b[c] = half_beside(hi - choose_half(a[c], SAC_KV_F16), true);
        return;
    }
    const float mid = (lo + hi) / 2;
    for (uint32_t t = t0; t < t1; t++) off += fabsf(choose_key(n.geom, page, t, c) - mid);
    a[c] = half_canonical(mid);
    b[c] = half_canonical(off / (float)(t1 - t0));
}

/* Channel c as two-bit codes, code [PAGE_TOK][d], with minimum and step in f16. */
static __device__ void note_plane(uint8_t *side, uint8_t *code, const struct note_call &n,
                                  const uint8_t *page, uint32_t c)
{
    const uint32_t d = n.geom.head_dim;
    uint16_t *min = (uint16_t *)side, *step = min + d;
    float lo = choose_key(n.geom, page, 0, c), hi = lo, bad = 0;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const float x = choose_key(n.geom, page, t, c);
        lo = x < lo ? x : lo;
        hi = x > hi ? x : hi;
        bad += x - x;
    }
    min[c] = half_canonical(lo + bad);
    step[c] = half_canonical((hi - lo) / 255);
    const float by = choose_half(step[c], SAC_KV_F16);
    const float from = choose_half(min[c], SAC_KV_F16), cut = by > 0 ? 64 * by : INFINITY;
    for (uint32_t t = 0; t < PAGE_TOK; t++) {
        const float x = choose_key(n.geom, page, t, c) - from;
        code[t * d + c] = (uint8_t)((x >= cut) + (x >= 2 * cut) + (x >= 3 * cut));
    }
}

/* Dynamic shared memory: codes [PAGE_TOK, d]. */
static __global__ void __launch_bounds__(THREADS) note_kernel(const struct note_call n)
{
    kernel_begin();
    __shared__ uint32_t n_bad;
    const uint32_t d = n.geom.head_dim, frame = n.frame[blockIdx.x];
    const uint8_t *page = place_page(n.frames, frame, n.geom.bytes);
    uint8_t *side = n.side + (size_t)frame * n.stride, *code = kernel_shared();
    const uint32_t n_tok = n.kind == OP_NOTE_HALVES ? PAGE_TOK / 2 : PAGE_TOK;
    if (threadIdx.x == 0) n_bad = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < d; c += THREADS) {
        if (n.kind == OP_NOTE_PLANE) {
            note_plane(side, code, n, page, c);
            continue;
        }
        for (uint32_t t = 0; t < PAGE_TOK; t += n_tok)
            note_box((uint16_t *)side + (size_t)t / n_tok * 2 * d, n, page, c, t, t + n_tok);
        for (uint32_t t = 0; t < PAGE_TOK; t++)
            if (!isfinite(choose_key(n.geom, page, t, c))) atomicOr(&n_bad, 1u);
    }
    __syncthreads();
    if (n.kind != OP_NOTE_PLANE) { /* one key that is not finite makes all scores of the page NaN */
        if (threadIdx.x == 0 && n_bad) *(uint16_t *)side = 0x7e00u;
        return;
    }
    uint8_t *hi2 = side + 4 * (size_t)d;
    const uint32_t quarter = d / 4;
    for (uint32_t i = threadIdx.x; i < PAGE_TOK * quarter; i += THREADS) {
        const uint8_t *at = code + i / quarter * d + i % quarter;
        hi2[i] = (uint8_t)(at[0] | at[quarter] << 2 | at[2 * quarter] << 4 | at[3 * quarter] << 6);
    }
}

sac_status cuda_note(struct cuda_device *d, const struct op_note *op)
{
    struct note_call c;
    memset(&c, 0, sizeof c);
    c.geom = *op->geom;
    c.frames = op->frames;
    c.frame = (const uint32_t *)stage_put(d, op->frame, op->n_page * sizeof *op->frame);
    c.side = op->side;
    c.stride = op->stride;
    c.kind = op->kind;
    if (!c.frame || op->n_page == 0) return d->status;
    return queue_launch(d, "notes of pages", note_kernel, op->n_page, THREADS,
                        PAGE_TOK * c.geom.head_dim, c);
}
