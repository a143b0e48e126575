/* attn_warpgroups.cuh: attention of prompt rows by specialized warpgroups, on Hopper: blocks of 128
 * rows, heads of 64 or 128 channels, 16-bit pages, no segments (private to attn_prompt.cu).
 *
 * Warp specialization: warpgroup 2 is the producer. It walks over what the rows read and brings
 * tiles of keys and values to a ring in shared memory, each with a note of what the rows see of it.
 * Warpgroups 0 and 1 are consumers of 64 rows each. Stages are handed over by mbarriers: `full`, on
 * which the producer's four warps arrive, and `free`, on which the consumers' eight warps arrive.
 *
 * A consumer keeps its queries in registers, so that Q K^T reads half as much shared memory. It
 * issues S = Q K^T of the next tile before O += P V of this one, and computes the softmax of the
 * next while tensor cores multiply this one; the other consumer fills what is left
 * (FlashAttention-3, Shah et al. 2024, section 3.2). The operations on a row and their order are
 * those of attn_tile.cuh, so its bits are the same by either kernel.
 *
 * The producer has one warp on each scheduler, so the latency of its instructions limits it: with
 * 350 of them for a tile it took longer than the products, so the usual tile has a short path of
 * its own. q8 pages would have to be dequantized by it, which was no faster than by all warps
 * (attn_prompt_kernel). */
#ifndef SAC_OPS_CUDA_ATTN_WARPGROUPS_CUH
#define SAC_OPS_CUDA_ATTN_WARPGROUPS_CUH

#include "ops/cuda/attn_tile.cuh"

#define GROUP_ROWS    128u /* of a block */
#define GROUP_LOADERS 128u /* threads of the producer */
#define GROUP_THREADS (2 * 128 + GROUP_LOADERS)
#define TILES_AHEAD   3u /* in flight and not yet published */

/* What a consumer does about a tile. Of most tiles no more than this is read. */
enum tile_state { STATE_WHOLE, STATE_PARTIAL, STATE_WEIGHED, STATE_END };

struct tile_note { /* of a stage */
    enum tile_state state;
    struct key_tile tile; /* set unless all rows see all keys, as is `bad` */
    uint64_t bad;         /* as in tile_view */
};

/* Shared memory: a ring of n tiles; for each of them logs of weights, a note and two mbarriers; two
 * words for find_bad. */
template <int D> struct tile_ring {
    static constexpr uint32_t n = D == 128 ? 6 : 12;
    static constexpr uint32_t tile = KEYS * D * 4;
    static constexpr uint32_t logw = n * tile;
    static constexpr uint32_t note = logw + n * KEYS * (uint32_t)sizeof(float);
    static constexpr uint32_t bad = note + n * (uint32_t)sizeof(struct tile_note);
    static constexpr uint32_t full = bad + 8;
    static constexpr uint32_t free = full + n * 8;
    static constexpr uint32_t bytes = free + n * 8;
    static_assert(n >= TILES_AHEAD + 2, "a consumer keeps a tile until the next is there");
    static_assert(note % 8 == 0 && tile % 1024 == 0, "notes, panels");
};

#ifdef HAS_WGMMA

/* The stage of a tile, and the parity of the stage's uses. */
template <int D> struct ring_place {
    uint32_t stage, parity;
    __device__ __forceinline__ void move_on(void)
    {
        stage++;
        if (stage == tile_ring<D>::n) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ uint8_t *tile(uint8_t *smem) const
    {
        return smem + stage * tile_ring<D>::tile;
    }
    __device__ __forceinline__ float *logw(uint8_t *smem) const
    {
        return (float *)(smem + tile_ring<D>::logw) + stage * KEYS;
    }
    __device__ __forceinline__ struct tile_note *note(uint8_t *smem) const
    {
        return (struct tile_note *)(smem + tile_ring<D>::note) + stage;
    }
    __device__ __forceinline__ void wait_full(uint8_t *smem) const
    {
        mbarrier_wait(smem_address(smem) + tile_ring<D>::full + stage * 8, parity);
    }
    __device__ __forceinline__ void wait_free(uint8_t *smem) const
    {
        mbarrier_wait(smem_address(smem) + tile_ring<D>::free + stage * 8, parity ^ 1);
    }
    /* By all warps that have filled or read the stage; all lanes' accesses come before it. */
    __device__ __forceinline__ void arrive(uint8_t *smem, uint32_t barrier) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(smem) + barrier + stage * 8);
    }
};

/* All threads; a barrier must follow. One thread, constant addresses: checkers of races see one
 * writer. */
template <int D> static __device__ __forceinline__ void ring_init(uint8_t *smem)
{
    using room = tile_ring<D>;
    if (threadIdx.x > 0) return;
    for (uint32_t i = 0; i < room::n; i++) { /* arrivals by warps */
        mbarrier_init(smem_address(smem) + room::full + i * 8, GROUP_LOADERS / 32);
        mbarrier_init(smem_address(smem) + room::free + i * 8, 8);
    }
}

/* ---- The producer ---- */

template <int D> struct produced {
    ring_place<D> next, oldest; /* the tile to be brought, and the oldest in flight */
    uint32_t n_flight;
    uint32_t partial; /* bit i: not all rows see all of the tile i before the last one */
};

/* Publishes the oldest tile in flight, whose copies by this thread have arrived. */
template <int F, int D>
static __device__ __forceinline__ void publish_tile(struct produced<D> &o, uint8_t *smem)
{
    fence_proxy_async();
    if (o.partial >> (o.n_flight - 1) & 1) {
        load_sync<GROUP_LOADERS>(); /* the copies by all threads have arrived */
        const uint64_t bad = find_bad<F, D, GROUP_LOADERS>(o.oldest.tile(smem),
                                                           (uint32_t *)(smem + tile_ring<D>::bad));
        if (load_thread<GROUP_LOADERS>() == 0) o.oldest.note(smem)->bad = bad;
        load_sync<GROUP_LOADERS>(); /* the next tile's may come */
    }
    o.oldest.arrive(smem, tile_ring<D>::full);
    o.oldest.move_on();
    o.n_flight--;
}

static __device__ __forceinline__ enum tile_state state_of(const struct prompt_block &b,
                                                           const struct key_tile &t)
{
    if (t.kind == TILE_END) return STATE_END;
    if (t.kind == TILE_TOKENS && b.job->logw) return STATE_WEIGHED;
    return seen_by_all(b, t) ? STATE_WHOLE : STATE_PARTIAL;
}

/* Starts the copies of a tile as one commit group, and notes what it is. */
template <int F, int D>
static __device__ __forceinline__ void bring_tile(struct produced<D> &o, uint8_t *smem,
                                                  const struct prompt_block &b,
                                                  const struct key_tile &t)
{
    const enum tile_state state = state_of(b, t);
    struct tile_note *const note = o.next.note(smem);
    const bool is_first = load_thread<GROUP_LOADERS>() == 0;
    o.next.wait_free(smem);
    if (is_first) note->state = state;
    o.partial *= 2;
    if (likely(t.kind == TILE_PAGES && state == STATE_WHOLE)) {
        load_pages_async<D, GROUP_LOADERS>(o.next.tile(smem), sealed_page<F, D>(b, t.place[0]),
                                           sealed_page<F, D>(b, t.place[1]), page_at<F, D>::v);
    } else {
        if (is_first) note->tile = t, note->bad = 0;
        o.partial += state != STATE_END && !seen_by_all(b, t);
        load_logw_async<GROUP_LOADERS>(o.next.logw(smem), b, t);
        load_half_tile_async<F, D, GROUP_LOADERS>(o.next.tile(smem), b, t);
    }
    cp_async_commit();
    o.next.move_on();
    o.n_flight++;
}

/* Brings all tiles of the walk, and after them one of kind TILE_END. The walk is one tile ahead, so
 * that its lookups overlap with the copies of a tile. */
template <int F, int D>
static __device__ __forceinline__ void produce_tiles(uint8_t *smem, const struct prompt_block &b,
                                                     struct prompt_walk &walk)
{
    struct produced<D> o = {
    };
    struct key_tile t = walk_next(walk, b, 2);
    for (bool more = true; more;) {
        const struct key_tile then = walk_next(walk, b, 2);
        more = t.kind != TILE_END;
        bring_tile<F, D>(o, smem, b, t);
        t = then;
        if (o.n_flight <= TILES_AHEAD) continue;
        cp_async_wait<TILES_AHEAD>();
        publish_tile<F, D>(o, smem);
    }
    cp_async_wait<0>();
    while (o.n_flight > 0) publish_tile<F, D>(o, smem);
}

/* ---- The consumers ---- */

/* What a consumer's rows see of a published tile. */
template <int F, int D>
static __device__ __forceinline__ struct tile_view
view_of(const struct prompt_block &b, const ring_place<D> &at, uint8_t *smem, enum tile_state state)
{
    const struct tile_note *const note = at.note(smem);
    const bool weighs = state == STATE_WEIGHED;
    return {&b, &note->tile, weighs ? at.logw(smem) : NULL,
            state == STATE_WHOLE || (weighs && note->tile.n == KEYS),
            state == STATE_WHOLE ? 0 : note->bad};
}

/* The queries of a warp's 16 rows as A fragments. */
template <int H, int D>
static __device__ __forceinline__ void load_queries(uint32_t (&q)[D / 16][4],
                                                    const struct prompt_block &b)
{
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float *from;
        const bool is = query_find(b, warp_row(0) + i * 8 + g, D, &from);
#pragma unroll
        for (int k = 0; k < D / 8; k++) {
            const float2 x = is ? *(const float2 *)(from + k * 8 + j * 2) : make_float2(0, 0);
            q[k / 2][k % 2 * 2 + i] = half_pack<H>(x.x, x.y);
        }
    }
}

/* Issues S = Q K^T of a tile, as one wgmma group. */
template <int H, int D>
static __device__ __forceinline__ void issue_scores(float (&s)[N_TILE_8][4],
                                                    const uint32_t (&q)[D / 16][4], uint32_t tile)
{
    const uint64_t keys = wgmma_descriptor(tile, 16);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_rs_rows<H>(s, q[k], wgmma_descriptor_at(keys, k / 4 * (KEYS * 128) + k % 4 * 32),
                         k > 0);
    wgmma_commit();
}

/* Issues O += P V of a tile, as one wgmma group. */
template <int H, int D>
static __device__ __forceinline__ void
issue_values(float (&acc)[D / 8][4], const uint32_t (&p)[KEYS / 16][4], uint32_t tile)
{
    const uint64_t values = wgmma_descriptor(tile + KEYS * D * 2, KEYS * 128);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < (int)KEYS / 16; k++)
        wgmma_rs<H>(acc, p[k], wgmma_descriptor_at(values, k * (16 * 128)));
    wgmma_commit();
}

/* All tiles of the walk. Of two neighbouring tiles, the scores of the second and the values of the
 * first are in flight together. */
template <int F, int D>
static __device__ __forceinline__ void consume_tiles(struct prompt_warp<D, 1> &w, uint8_t *smem,
                                                     const struct prompt_block &b)
{
    constexpr int H = page_at<F, D>::half;
    float s[N_TILE_8][4];
    uint32_t q[D / 16][4], p[KEYS / 16][4];
    ring_place<D> at = {0, 0};
    load_queries<H, D>(q, b);
    at.wait_full(smem);
    enum tile_state state = at.note(smem)->state;
    if (state == STATE_END) return;
    issue_scores<H, D>(s, q, smem_address(at.tile(smem)));
    wgmma_wait<0>();
    wgmma_fence_operand(s);
    tile_softmax(w, s, view_of<D>(b, at, smem, state), 0);
    for (;;) {
        ring_place<D> next = at;
        next.move_on();
        tile_pack<H>(p, s);
        next.wait_full(smem);
        state = next.note(smem)->state;
        if (state == STATE_END) break;
        issue_scores<H, D>(s, q, smem_address(next.tile(smem)));
        issue_values<H, D>(w.acc[0], p, smem_address(at.tile(smem)));
        wgmma_wait<1>();
        wgmma_fence_operand(s);
        const struct row_factors f = tile_softmax(w, s, view_of<D>(b, next, smem, state), 0);
        wgmma_fence_operand(s); /* or the compiler would move the softmax behind the next wait */
        wgmma_wait<0>();
        wgmma_fence_operand(w.acc[0]);
        at.arrive(smem, tile_ring<D>::free);
        if (f.any()) rescale_values(w, f, 0);
        at = next;
    }
    issue_values<H, D>(w.acc[0], p, smem_address(at.tile(smem)));
    wgmma_wait<0>();
    wgmma_fence_operand(w.acc[0]);
}

#endif
#endif
