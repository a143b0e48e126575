/* sample_wgmma.cuh: the survey of sample_survey.cuh with Hopper's warpgroups, and its launch
 * (private to sample.cu).
 *
 * Warp specialization: warpgroup 2 is the producer, which brings keys to a ring of tiles in shared
 * memory (by cp.async, or dequantized from q8), and warpgroups 0 and 1 are consumers, each with
 * four slots of 64 queries that stay in shared memory. Stages are handed over by mbarriers: `full`,
 * on which the producer's four warps arrive, and `free`, on which the consumers' warps arrive. A
 * tile has 64 keys: 16 of each of four pages, row 16 w + r being of page w. So a warp of a consumer
 * has one page, and the two tiles of a unit give a lane four neighbouring keys.
 *
 * Tensor cores and exponentials take equally long, so a consumer issues the wgmma of two slots (a
 * half) and computes exponentials of the other two meanwhile. What is subtracted from the exponents
 * stays in registers. Sums over the queries are in a fixed order. */
#ifndef SAC_OPS_CUDA_SAMPLE_WGMMA_CUH
#define SAC_OPS_CUDA_SAMPLE_WGMMA_CUH

#include "ops/cuda/sample_survey.cuh"

#ifdef HAS_WGMMA

/* Tiles in flight that are not yet published. Consumers that alternate units keep the second tile
 * of one until the first tile of their next is published, three tiles later. */
#define SURVEY_AHEAD 2u

/* The stage of a tile, counted from the block's first, and the parity of its uses. */
struct survey_stage {
    uint32_t stage, parity;
};

template <int F, int D>
static __device__ __forceinline__ struct survey_stage survey_stage_of(uint32_t tile)
{
    constexpr uint32_t n = survey_ring<F, D>::n;
    return {tile % n, tile / n % 2};
}

/* ---- The producer ---- */

/* Which key of a page is row r of its 16 in the first or second tile of a unit. */
static __device__ __forceinline__ uint32_t tile_key(uint32_t r, uint32_t second)
{
    return r % 8 * 4 + r / 8 + 2 * second;
}

/* Starts the copies of 16 keys of a page to rows row0 to row0 + 15 of a tile; by a warp. A lane has
 * the same piece in every R-th row; the offsets of the other rows do not disturb the swizzle. */
template <int D>
static __device__ __forceinline__ void load_keys_async(uint32_t tile, const uint8_t *page,
                                                       uint32_t row0, uint32_t second)
{
    constexpr uint32_t R = 32 / (D / 8);
    const uint32_t r = threadIdx.x % 32 / (D / 8), piece = threadIdx.x % (D / 8);
    const uint32_t to = tile + query_at<D>(row0 + r, piece);
    const uint8_t *const from = page + tile_key(r, second) * (D * 2) + piece * 16;
#pragma unroll
    for (uint32_t k = 0; k < 16; k += R)
        cp_async16((to ^ k % 8 * 16) + k / 8 * (D * 16) + k % 8 * 128,
                   from + tile_key(k, 0) * (D * 2));
}

/* Dequantizes 16 keys of a q8 page in shared memory into a tile; a lane has the same part of each
 * of its keys. */
template <int D>
static __device__ __forceinline__ void dequantize_keys(uint8_t *tile, const uint8_t *page,
                                                       uint32_t row0, uint32_t second)
{
    using at = page_at<FORM_Q8, D>;
    constexpr uint32_t R = 32 / (D / 16), N = 16 / R;
    const uint32_t r = threadIdx.x % 32 / (D / 16), part = threadIdx.x % (D / 16);
    const uint32_t to = query_at<D>(row0 + r, part / 2) + part % 2 * 8;
    uint32_t hi[N], mid[N], lo[N][2];
    const uint8_t *const high = page + at::k_hi2 + tile_key(r, second) * (D / 4) + part * 4;
    const uint8_t *const low = page + at::k_low + tile_key(r, second) * (D * 3 / 4) + part * 4;
#pragma unroll
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t key = tile_key(i * R, 0);
        hi[i] = *(const uint32_t *)(high + key * (D / 4));
        mid[i] = *(const uint32_t *)(low + key * (D * 3 / 4));
        lo[i][0] = *(const uint32_t *)(low + key * (D * 3 / 4) + D / 4);
        lo[i][1] = *(const uint32_t *)(low + key * (D * 3 / 4) + D / 2);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t c = s * (D / 4) + part * 4;
        const uint2 min = *(const uint2 *)(page + at::k_min + c * 2);
        const uint2 by = *(const uint2 *)(page + at::k_step + c * 2);
#pragma unroll
        for (uint32_t i = 0; i < N; i++) {
            const uint32_t codes = q8_codes(hi[i], mid[i], lo[i][s % 2], s);
            const uint32_t row = i * R, piece = s * (D / 32);
            uint8_t *const at_row = tile + piece / 8 * 1024 + row / 8 * (D * 16) + row % 8 * 128;
            *(uint2 *)(at_row + (to ^ (piece ^ row) % 8 * 16)) = make_uint2(
                h2_fma(by.x, q8_pair(codes, 0), min.x), h2_fma(by.y, q8_pair(codes, 2), min.y));
        }
    }
}

/* Returns NaNs if a key in the warp's 16 rows is not finite; else `all`. */
template <int H, int D>
static __device__ __forceinline__ uint32_t poison_by_keys(const uint8_t *rows, uint32_t all)
{
#pragma unroll
    for (uint32_t i = 0; i < 16 * D * 2; i += 32 * 16) {
        const uint4 x = *(const uint4 *)(rows + i + threadIdx.x % 32 * 16);
        all = poison_unless_finite<H>(
            poison_unless_finite<H>(poison_unless_finite<H>(poison_unless_finite<H>(all, x.x), x.y),
                                    x.z),
            x.w);
    }
    return all;
}

/* Publishes the oldest tile in flight to the consumers; by a warp of the producer, for its rows. */
template <int F, int D>
static __device__ __forceinline__ void publish_tile(uint32_t tile, uint32_t &poisoned, bool looks)
{
    using room = survey_ring<F, D>;
    uint8_t *const shared = kernel_shared();
    const uint32_t stage = tile % room::n;
    fence_proxy_async();
    __syncwarp();
    if (looks)
        poisoned = poison_by_keys<rows_size<F, D>::half, D>(
            shared + room::keys + stage * room::tile + threadIdx.x / 32 % 4 * 16 * (D * 2),
            poisoned);
    if (threadIdx.x % 32 == 0) mbarrier_arrive(smem_address(shared + room::full) + stage * 8);
}

/* The producer: keys of all tiles of the block, in order. */
template <int F, int D>
static __device__ __forceinline__ void survey_produce(struct survey_block b,
                                                      const struct sample_call &c)
{
    using room = survey_ring<F, D>;
    const uint32_t warp = threadIdx.x / 32 % 4, smem = smem_address(kernel_shared());
    uint32_t n = 0, n_published = 0;
    for (struct survey_span part; survey_next_span(part, b);) {
        uint32_t poisoned = 0, page = part.begin + warp;
        const uint8_t *keys = sealed_keys(c.pages, part.kv_head, page);
        for (; page < part.end; page += SURVEY_PAGES) {
            const uint32_t next = min(page + SURVEY_PAGES, part.end - 1);
            const uint8_t *const next_keys = sealed_keys(c.pages, part.kv_head, next);
#pragma unroll 1
            for (uint32_t second = 0; second < 2; second++) {
                const struct survey_stage at = survey_stage_of<F, D>(n++);
                mbarrier_wait(smem + room::free + at.stage * 8, at.parity ^ 1);
                load_keys_async<D>(smem + room::keys + at.stage * room::tile, keys, warp * 16,
                                   second);
                cp_async_commit();
                if (n - n_published <= SURVEY_AHEAD) continue;
                cp_async_wait<SURVEY_AHEAD>();
                publish_tile<F, D>(n_published++, poisoned, b.looks);
            }
            keys = next_keys;
        }
        cp_async_wait<0>();
        while (n_published < n) publish_tile<F, D>(n_published++, poisoned, b.looks);
        if (poisoned) list_fail(c.op.lists, part.kv_head);
    }
}

/* Starts the copies of the codes of a page's keys, as one commit group, empty after the last page;
 * by a warp. */
template <int D>
static __device__ __forceinline__ void load_codes_async(uint8_t *to, const struct sample_call &c,
                                                        const struct survey_span &part,
                                                        uint32_t page)
{
    if (page < part.end) {
        const uint8_t *const keys = sealed_keys(c.pages, part.kv_head, page);
        for (uint32_t i = threadIdx.x % 32 * 16; i < survey_ring<FORM_Q8, D>::codes; i += 32 * 16)
            cp_async16(smem_address(to) + i, keys + i);
    }
    cp_async_commit();
}

/* The producer for q8: a warp has the codes of its next two pages in flight. */
template <int D>
static __device__ __forceinline__ void survey_produce_q8(struct survey_block b,
                                                         const struct sample_call &c)
{
    using room = survey_ring<FORM_Q8, D>;
    const uint32_t warp = threadIdx.x / 32 % 4, free = smem_address(kernel_shared()) + room::free;
    uint8_t *const codes = kernel_shared() + room::code + warp * 2 * room::codes;
    uint32_t n = 0;
    for (struct survey_span part; survey_next_span(part, b);) {
        uint32_t poisoned = 0;
        for (uint32_t i = 0; i < 2; i++)
            load_codes_async<D>(codes + (n / 2 + i) % 2 * room::codes, c, part,
                                part.begin + warp + i * SURVEY_PAGES);
#pragma unroll 1
        for (uint32_t page = part.begin + warp; page < part.end; page += SURVEY_PAGES) {
            uint8_t *const from = codes + n / 2 % 2 * room::codes;
            cp_async_wait<1>();
            __syncwarp(); /* the copies of all lanes have arrived */
#pragma unroll 1
            for (uint32_t second = 0; second < 2; second++) {
                const struct survey_stage at = survey_stage_of<FORM_Q8, D>(n);
                mbarrier_wait(free + at.stage * 8, at.parity ^ 1);
                dequantize_keys<D>(kernel_shared() + room::keys + at.stage * room::tile, from,
                                   warp * 16, second);
                publish_tile<FORM_Q8, D>(n++, poisoned, b.looks);
            }
            load_codes_async<D>(from, c, part, page + 2 * SURVEY_PAGES);
        }
        cp_async_wait<0>();
        if (poisoned) list_fail(c.op.lists, part.kv_head);
    }
}

/* ---- Queries of a consumer ---- */

/* A consumer's slots. */
struct survey_slots {
    uint32_t group;
    uint32_t n_part; /* of a set */
    bool alone; /* all sets fit into one consumer's slots; both have them and take units in turn */
};

/* Loads a consumer's queries for a KV head, and to registers what is subtracted from their
 * exponents: infinity where a slot has no query. */
template <int F, int D>
static __device__ __forceinline__ void
load_slots(float (&start)[4][8][2], const struct survey_slots &o, const struct survey_block &b,
           const struct sample_call &c, uint32_t kv_head)
{
    using room = survey_ring<F, D>;
    const uint32_t n_query = c.op.n_query, thread = threadIdx.x % 128;
    const uint32_t query = smem_address(kernel_shared()) + o.group * 4 * room::tile;
    struct survey_set *const sets =
        (struct survey_set *)(kernel_shared() + room::set) + o.group * 4;
    warpgroup_sync(o.group); /* the last KV head's queries have been read */
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = (o.alone ? 0 : o.group * 4 / o.n_part) + i / o.n_part;
        const uint32_t row0 = (i & (o.n_part - 1)) * 64;
        const uint32_t n = n_query > row0 ? min(n_query - row0, 64) : 0;
        const struct survey_set set = survey_set_of(c, kv_head, b.set0 + min(s, b.n_set - 1));
        const size_t first = (size_t)set.list * n_query + row0;
        const uint8_t *const packed = (const uint8_t *)(c.op.query + first * D);
        for (uint32_t x = thread * 16; x < room::tile; x += 128 * 16)
            if (x < n * (D * 2))
                cp_async16(query + i * room::tile + x, packed + x);
            else
                store_zero16(query + i * room::tile + x);
        if (thread == 0) sets[i] = {set.list, s < b.n_set ? set.n_page : 0, set.seed, 0};
#pragma unroll
        for (uint32_t k = 0; k < 16; k++) {
            const uint32_t row = k / 2 * 8 + thread % 4 * 2 + k % 2;
            start[i][k / 2][k % 2] = row < n ? 2 * c.op.start[first + row] : INFINITY;
        }
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    warpgroup_sync(o.group);
}

/* ---- The consumers ---- */

/* Issues the products of a tile of keys with two slots, as one wgmma group. */
template <int H, int D>
static __device__ __forceinline__ void issue_half(float (&s)[16][4], uint64_t keys, uint64_t query)
{
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        const uint32_t at = i / 4 * 1024 + i % 4 * 32;
        wgmma_ss<H>(s, wgmma_descriptor_at(keys, at), wgmma_descriptor_at(query, at), i > 0);
    }
    wgmma_commit();
}

/* Squares of this thread's two keys, summed over its queries of each of two slots. */
static __device__ __forceinline__ void add_squares(float (&sum)[2][2], float (&s)[16][4],
                                                   const float (&start)[4][8][2], int slot0,
                                                   float by)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i][0] = sum[i][1] = 0;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i][e / 2] +=
                    share_square(n * 4 + e, s[i * 8 + n][e], by, start[slot0 + i][n][e % 2]);
        /* Keeps the compiler from moving this past the next wait. */
        asm volatile("" : "+f"(sum[i][0]), "+f"(sum[i][1])::"memory");
    }
}

/* Sums over four lanes, each of which has parts of four slots; lane j gets slot j's. */
static __device__ __forceinline__ float slot_sum(const float (&low)[2][2],
                                                 const float (&high)[2][2], int key)
{
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const float a = odd ? low[1][key] : low[0][key], b = odd ? high[1][key] : high[0][key];
    const float x = a + __shfl_xor_sync(~0u, odd ? low[0][key] : low[1][key], 1);
    const float y = b + __shfl_xor_sync(~0u, odd ? high[0][key] : high[1][key], 1);
    return (upper ? y : x) + __shfl_xor_sync(~0u, upper ? x : y, 2);
}

/* Marks four keys of a page for the sets of a consumer's slots. */
template <int F, int D>
static __device__ __forceinline__ void mark_slots(float (&square)[4], const struct survey_slots &o,
                                                  const struct sample_call &c, uint32_t page)
{
    using room = survey_ring<F, D>;
    const struct survey_set *const set = (const struct survey_set *)(kernel_shared() + room::set);
    for (uint32_t lanes = 1; lanes < o.n_part; lanes *= 2)
#pragma unroll
        for (int k = 0; k < 4; k++) square[k] += __shfl_xor_sync(~0u, square[k], lanes);
    mark_keys<4>(square, set[o.group * 4 + threadIdx.x % 4], page,
                 (const int32_t *)(kernel_shared() + room::limit), c,
                 (threadIdx.x & (o.n_part - 1)) == 0);
}

/* A consumer: products of one half run while exponentials of the other are computed, across tiles.
 * After the last tile the pipeline issues one product again, whose result is not used. */
template <int F, int D>
static __device__ __forceinline__ void
survey_consume(struct survey_block b, const struct sample_call &c, const struct survey_slots &o)
{
    using room = survey_ring<F, D>;
    constexpr int H = rows_size<F, D>::half;
    const uint32_t smem = smem_address(kernel_shared());
    const uint64_t low = wgmma_descriptor(smem + o.group * 4 * room::tile, 16, D * 16);
    const uint64_t high = wgmma_descriptor_at(low, 2 * room::tile);
    const uint64_t keys = wgmma_descriptor(smem + room::keys, 16, D * 16);
    uint32_t tile0 = 0; /* first tile of the span */
    for (struct survey_span part; survey_next_span(part, b);) {
        float start[4][8][2], s0[16][4], s1[16][4], square[4] = {};
        const uint32_t n = (part.end - part.begin) / SURVEY_PAGES * 2;
        load_slots<F, D>(start, o, b, c, part.kv_head);
        uint32_t i = o.alone ? o.group * 2 : 0;
        if (i < n) {
            struct survey_stage at = survey_stage_of<F, D>(tile0 + i);
            mbarrier_wait(smem + room::full + at.stage * 8, at.parity);
            issue_half<H, D>(s0, wgmma_descriptor_at(keys, at.stage * room::tile), low);
            uint32_t page = part.begin + i / 2 * SURVEY_PAGES + threadIdx.x / 32 % 4;
            for (bool first = true;; first = false) {
                float sum0[2][2], sum1[2][2];
                const uint32_t next = i + (o.alone && i % 2 ? 3 : 1);
                const struct survey_stage to = survey_stage_of<F, D>(tile0 + (next < n ? next : i));
                wgmma_wait<0>();
                wgmma_fence_operand(s0);
                issue_half<H, D>(s1, wgmma_descriptor_at(keys, at.stage * room::tile), high);
                if (i % 2 == 0 && !first) {
                    mark_slots<F, D>(square, o, c, page);
                    page += o.alone ? 2 * SURVEY_PAGES : SURVEY_PAGES;
                }
                add_squares(sum0, s0, start, 0, c.by);
                mbarrier_wait(smem + room::full + to.stage * 8, to.parity);
                issue_half<H, D>(s0, wgmma_descriptor_at(keys, to.stage * room::tile), low);
                wgmma_wait<1>();
                wgmma_fence_operand(s1);
                if (threadIdx.x % 32 == 0) mbarrier_arrive(smem + room::free + at.stage * 8);
                add_squares(sum1, s1, start, 2, c.by);
                square[0] = square[2], square[1] = square[3];
                square[2] = slot_sum(sum0, sum1, 0), square[3] = slot_sum(sum0, sum1, 1);
                at = to;
                if (next >= n) break;
                i = next;
            }
            wgmma_wait<0>();
            wgmma_fence_operand(s0);
            mark_slots<F, D>(square, o, c, page);
        }
        tile0 += n;
    }
}

template <int F, int D>
static __device__ __forceinline__ void survey_by_warpgroups(const struct survey_block &b,
                                                            const struct sample_call &c)
{
    using room = survey_ring<F, D>;
    const uint32_t smem = smem_address(kernel_shared()), n_part = set_slots(c.op.n_query);
    const struct survey_slots o = {warpgroup_index(), n_part,
                                   F != FORM_Q8 && b.n_set * n_part <= SURVEY_SLOTS / 2};
    int32_t *const limit = (int32_t *)(kernel_shared() + room::limit);
    for (uint32_t i = threadIdx.x; i < SURVEY_PERIOD + PAGE_TOK; i += SURVEY_THREADS)
        limit[i] = c.limit[i];
    if (threadIdx.x == 0) /* one thread, constant addresses: checkers of races see one writer */
        for (uint32_t i = 0; i < room::n; i++) { /* arrivals by warps */
            mbarrier_init(smem + room::full + i * 8, 4);
            mbarrier_init(smem + room::free + i * 8, o.alone ? 4 : 8);
        }
    __syncthreads();
    if (o.group == 2) {
        setmaxnreg_dec<40>();
        if constexpr (F == FORM_Q8)
            survey_produce_q8<D>(b, c);
        else
            survey_produce<F, D>(b, c);
    } else {
        setmaxnreg_inc<232>();
        survey_consume<F, D>(b, c, o);
    }
}

#endif

/* ---- The launch ---- */

template <int F, int D>
__global__ void __launch_bounds__(SURVEY_THREADS, 1)
    survey_kernel(const struct sample_call c, const struct survey_split cut)
{
    kernel_begin();
    struct survey_block b = survey_find_block(c, cut);
    if (b.at >= b.end) return;
#ifdef HAS_WGMMA
    if constexpr (D <= 128) {
        survey_by_warpgroups<F, D>(b, c);
        return;
    }
#endif
    survey_by_warps<F, D>(b, c, cut);
}

static uint32_t part_of(uint32_t n, uint32_t parts) /* the largest of `parts` equal parts */
{
    return (n + parts - 1) / parts;
}

/* Dynamic shared memory of a block with n_set sets. */
template <int F, int D>
static uint32_t survey_bytes(const struct cuda_device *d, uint32_t n_set, uint32_t n_query)
{
    const uint32_t bytes = survey_smem<D>{n_set, n_query}.bytes();
    return d->major == 9 && D <= 128 ? max(bytes, survey_ring<F, D>::bytes) : bytes;
}

/* As many sets in a block as fit into shared memory. */
template <int F, int D>
static struct survey_split survey_split_of(const struct cuda_device *d, const struct sample_call *c)
{
    const uint32_t n_set = c->op.rows.n_tile * c->group, n_query = c->op.n_query;
    struct survey_split cut = {SURVEY_SLOTS / set_slots(n_query), 0, 1};
    while (cut.n_set > 1 && survey_bytes<F, D>(d, cut.n_set, n_query) > d->smem_max) cut.n_set--;
    cut.n_column = part_of(n_set, cut.n_set);
    if (cut.n_column < d->n_sm) cut.n_block = d->n_sm / cut.n_column;
    return cut;
}

#endif
