/* sample.cuh: the survey of sample.cu: which keys of the pages before some tiles are taken for these
 * (private to this folder). A block has the sampled rows of some tiles and heads, and a warp of it
 * scores all of them against the keys of a page and decides for each key. */
#ifndef SAC_OPS_CUDA_SAMPLE_CUH
#define SAC_OPS_CUDA_SAMPLE_CUH

#include "ops/cuda/list.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/cuda/wgmma.cuh"
#include "ops/plans.h"
#include "ops/survey.h"

#define TAKE_WARPS   12u /* three warpgroups: one multiplies while others make exponentials */
#define TAKE_THREADS (TAKE_WARPS * 32)
#define TAKE_WAVES   4u /* of blocks that take, on all of a GPU */

struct sample_tile {
    uint32_t n_page;        /* before it */
    uint32_t n_sum;         /* pages of its sums: */
    uint32_t n_far;         /* as many of these are the first one and those at equal distances, */
    uint32_t stride, phase; /* and the others are the last pages, */
    uint32_t near;          /* from this one on */
    float weight;           /* of the ones at equal distances */
};

struct sample_call {
    struct op_sample op; /* geom is not there */
    const struct sample_tile *tile;
    const uint32_t *seed; /* [n_tile * n_head] */
    const int32_t *limit; /* survey_limits */
    struct rows_pages pages;
    uint32_t group;
    float least; /* survey_least */
};

/* What this thread has stored is for matrix instructions behind the next barrier. */
static __device__ __forceinline__ void sample_publish(void)
{
#ifdef WGMMA_HERE
    wgmma_publish();
#endif
}

/* How takes are cut: a block has up to n_head heads of a KV head and n_tile tiles, a set of queries
 * each, so that a key is read once for all of them, and up to `span` pages. */
struct take_cut {
    uint32_t n_head, n_tile, n_head_part, n_tile_part, span;
};

struct take_set {
    uint32_t list, n_page, seed, none;
};

/* Shared memory: queries [n_set][n_query, D], starts [n_set][n_query], squares [TAKE_WARPS][n_set]
 * [PAGE_TOK], sets [n_set], limits. */
template <int D> struct take_room {
    uint32_t n_set, n_query;
    __host__ __device__ uint32_t start(void) const { return n_set * n_query * (D * 2); }
    __host__ __device__ uint32_t square(void) const
    {
        return start() + n_set * n_query * (uint32_t)sizeof(float);
    }
    __host__ __device__ uint32_t set(void) const
    {
        return square() + TAKE_WARPS * n_set * PAGE_TOK * (uint32_t)sizeof(float);
    }
    __host__ __device__ uint32_t limit(void) const
    {
        return set() + n_set * (uint32_t)sizeof(struct take_set);
    }
    __host__ __device__ uint32_t bytes(void) const
    {
        return limit() + (SURVEY_PERIOD + PAGE_TOK) * (uint32_t)sizeof(int32_t);
    }
};

struct take_block {
    uint32_t kv_head, head0, n_head, tile0, n_tile, n_set;
    uint32_t begin, end; /* pages */
    bool looks;          /* at whether keys are finite: of all pages that some block has */
    /* Shared memory. */
    uint8_t *query;
    float *start;
    float *square; /* [n_set][PAGE_TOK] of a page, the warp's own */
    struct take_set *set;
    int32_t *limit;
};

/* The block's part; false: it has none. Blocks that read the same keys follow each other, so that
 * these come from the cache. */
template <int D>
static __device__ bool take_find(struct take_block &b, const struct sample_call &c,
                                 const struct take_cut &cut)
{
    const uint32_t tile_part = blockIdx.x % cut.n_tile_part, x = blockIdx.x / cut.n_tile_part;
    const uint32_t first = x % cut.n_head_part * cut.n_head;
    b.kv_head = x / cut.n_head_part;
    b.head0 = b.kv_head * c.group + first;
    b.n_head = min(cut.n_head, c.group - first);
    b.tile0 = tile_part * cut.n_tile;
    b.n_tile = min(cut.n_tile, c.op.rows.n_tile - b.tile0);
    b.n_set = b.n_head * b.n_tile;
    b.begin = blockIdx.y * cut.span;
    b.end = min(b.begin + cut.span, c.tile[b.tile0 + b.n_tile - 1].n_page);
    b.looks = b.tile0 + b.n_tile == c.op.rows.n_tile;
    const struct take_room<D> room = {cut.n_head * cut.n_tile, c.op.n_query};
    b.query = kernel_shared();
    b.start = (float *)(b.query + room.start());
    b.square = (float *)(b.query + room.square()) + threadIdx.x / 32 * room.n_set * PAGE_TOK;
    b.set = (struct take_set *)(b.query + room.set());
    b.limit = (int32_t *)(b.query + room.limit());
    return b.begin < b.end;
}

/* Brings what the block has in shared memory. All threads. */
template <int D>
static __device__ void take_open(const struct take_block &b, const struct sample_call &c)
{
    const uint32_t n_query = c.op.n_query;
    for (uint32_t s = 0; s < b.n_set; s++) {
        const uint32_t tile = b.tile0 + s / b.n_head;
        const uint32_t list = tile * c.op.rows.n_head + b.head0 + s % b.n_head;
        const uint8_t *packed = (const uint8_t *)(c.op.query + (size_t)list * n_query * D);
        const uint32_t to = smem_address(b.query + s * n_query * (D * 2));
        for (uint32_t i = threadIdx.x * 16; i < n_query * (D * 2); i += TAKE_THREADS * 16)
            copy_async16(to + i, packed + i);
        for (uint32_t r = threadIdx.x; r < n_query; r += TAKE_THREADS)
            b.start[s * n_query + r] = 2 * c.op.start[(size_t)list * n_query + r];
        if (threadIdx.x == 0) b.set[s] = {list, c.tile[tile].n_page, c.seed[list], 0};
    }
    copy_commit();
    for (uint32_t i = threadIdx.x; i < SURVEY_PERIOD + PAGE_TOK; i += TAKE_THREADS)
        b.limit[i] = c.limit[i];
    copy_wait<0>();
    sample_publish();
    __syncthreads();
}

/* 2^x but for 1e-4 of it, by the units that multiply: those for exponentials make no more of them
 * than matrix instructions make products of 128 channels in the same time. The coefficients are
 * those of the least largest relative error between -1/2 and 1/2. */
static __device__ __forceinline__ float exp2_multiplied(float x)
{
    const float round = 0x1.8p23f;
    const float near = fminf(fmaxf(x, -126), 126), z = near + round, f = near - (z - round);
    const float y = fmaf(fmaf(fmaf(0.05517167f, f, 0.24261112f), f, 0.69326099f), f, 0.99992807f);
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(z) << 23));
}

/* The square of a share, the i-th that a thread makes; `by` and `start` are twice what makes an
 * exponent of it. */
static __device__ __forceinline__ float share_square(int i, float dot, float by, float start)
{
    const float x = fmaf(dot, by, -start);
    return i % 8 == 7 ? exp2_multiplied(x) : exp2_fast(x);
}

/* Squares of the shares of a page's keys, of all sets; by a warp. */
template <int F, int D>
static __device__ bool page_squares(const struct take_block &b, const struct sample_call &c,
                                    uint32_t page)
{
    constexpr int N = rows_size<F, D>::n;
    const float by = 2 * c.op.rows.scale * LOG2E;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4, n_query = c.op.n_query;
    bool finite = true;
    for (int part = 0; part < rows_size<F, D>::parts; part++) {
        uint32_t k[N][D / 16][2];
        load_keys<F, D>(k, c.pages, b.kv_head, page, part * N * 8);
        if (b.looks) finite = finite && keys_finite<F, D>(k);
        for (uint32_t set = 0; set < b.n_set; set++) {
            const uint32_t query = smem_address(b.query) + set * n_query * (D * 2);
            float sum[2 * N] = {};
            for (uint32_t m = 0; m < n_query / 16; m++) {
                float s[N][4];
                dots<F, D>(s, query, m, k);
                const float *less = b.start + set * n_query + m * 16 + g;
                const float start[2] = {less[0], less[8]};
#pragma unroll
                for (int n = 0; n < N; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        sum[2 * n + e % 2] += share_square(n * 4 + e, s[n][e], by, start[e / 2]);
            }
#pragma unroll
            for (int i = 0; i < 2 * N; i++) {
                for (int step = 4; step < 32; step *= 2)
                    sum[i] += __shfl_xor_sync(~0u, sum[i], step);
                const uint32_t key = part * N * 8 + i / 2 * 8 + j * 2 + i % 2;
                if (g == 0) b.square[set * PAGE_TOK + key] = sum[i];
            }
        }
    }
    return finite;
}

/* From squares to marks, of a page in all sets that see it: a lane has four keys of a set. */
static __device__ void take_page(const struct take_block &b, const struct sample_call &c,
                                 uint32_t page)
{
    const uint32_t key = threadIdx.x % 8 * 4;
    const int32_t least = (int32_t)__float_as_uint(c.least);
    for (uint32_t first = 0; first < b.n_set; first += 4) {
        const uint32_t i = first + threadIdx.x % 32 / 8, at_i = min(i, b.n_set - 1);
        const struct take_set set = b.set[at_i];
        const float4 four = *(const float4 *)(b.square + at_i * PAGE_TOK + key);
        const float square[4] = {four.x, four.y, four.z, four.w};
        const int32_t *limit = b.limit + survey_place(set.seed, page) + key;
        float all = (four.x + four.y) + (four.z + four.w);
        for (int by = 1; by < 8; by *= 2) all += __shfl_xor_sync(~0u, all, by);
        uint32_t weights = 0, word = 0;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const float x = square[k] + c.op.spread * (all / PAGE_TOK - square[k]);
            const int32_t below = (least - (int32_t)__float_as_uint(x)) >> SURVEY_SHIFT;
            const int32_t step = below > 0 ? below : 0;
            weights |= ((uint32_t)step & 0xff) << 8 * k;
            word |= (uint32_t)(step < limit[k]) << k;
        }
        word <<= key;
        for (int by = 1; by < 8; by *= 2) word |= __shfl_xor_sync(~0u, word, by);
        if (i >= b.n_set || page >= set.n_page) continue;
        if (!isfinite(all)) list_fail(c.op.lists, b.kv_head);
        const size_t at = (size_t)set.list * c.op.n_word + page;
        *(uint32_t *)(c.op.weight + at * PAGE_TOK + key) = weights;
        if (key == 0) c.op.mask[at] = word;
    }
}

/* A warp takes of a page at a time. */
template <int F, int D>
static __device__ void take_by_warps(const struct take_block &b, const struct sample_call &c)
{
    for (uint32_t page = b.begin + threadIdx.x / 32; page < b.end; page += TAKE_WARPS) {
        if (!page_squares<F, D>(b, c, page)) list_fail(c.op.lists, b.kv_head);
        __syncwarp();
        take_page(b, c, page);
        __syncwarp();
    }
}

#ifdef WGMMA_HERE
/* ---- Takes by warpgroups ---- */

/* The warps of a warpgroup have a page each: 16 keys of each are A, 64 queries B. The next keys are
 * on their way while these are multiplied, and the next queries are multiplied while exponentials
 * are made of these. */
template <int D> using half_page = uint32_t[2][D / 16][2];

/* Products of keys with the 64 queries of a tile, in units of 16 bytes (wgmma_tile). */
template <int H, int D>
static __device__ __forceinline__ void begin_dots(float (&s)[8][4], const uint32_t (&a)[D / 16][4],
                                                  uint64_t query)
{
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < D / 16; i++)
        wgmma_dots_kept<H>(s, a[i], wgmma_further(query, i / 4 * 1024 + i % 4 * 32), i > 0);
    wgmma_commit();
}

/* Adds the squares of this thread's two keys and 64 queries. */
static __device__ __forceinline__ void add_squares(float (&sum)[2], float (&s)[8][4],
                                                   const float *start, float by)
{
    wgmma_done(s);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        const float2 less = *(const float2 *)(start + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e / 2] += share_square(n * 4 + e, s[n][e], by, e % 2 == 0 ? less.x : less.y);
    }
}

/* Where sums go, and how many queries have to be added first. */
struct square_put {
    float *to;
    uint32_t left, n_each; /* of 64 */
    float sum[2];
};

/* 64 more queries have been added. */
static __device__ __forceinline__ void put_squares(struct square_put &p)
{
    if (--p.left > 0) return;
    p.sum[0] = four_sum(p.sum[0]), p.sum[1] = four_sum(p.sum[1]);
    if (threadIdx.x % 4 == 0) p.to[0] = p.sum[0], p.to[8] = p.sum[1];
    p.sum[0] = p.sum[1] = 0;
    p.to += PAGE_TOK;
    p.left = p.n_each;
}

/* Squares of 16 keys from t0 on, in all sets. */
template <int F, int D>
static __device__ __forceinline__ void half_squares(const half_page<D> &k, uint32_t t0,
                                                    const struct take_block &b,
                                                    const struct sample_call &c)
{
    constexpr int H = rows_size<F, D>::half;
    const float by = 2 * c.op.rows.scale * LOG2E;
    const uint64_t query = wgmma_tile(smem_address(b.query), 16, D * 16);
    const uint32_t n = b.n_set * (c.op.n_query / 64);
    struct square_put p = {b.square + t0 + threadIdx.x % 32 / 4, c.op.n_query / 64,
                           c.op.n_query / 64, {0, 0}};
    float s0[8][4], s1[8][4];
    uint32_t a[D / 16][4]; /* where they lie until the last product is done */
#pragma unroll
    for (int i = 0; i < D / 4; i++) keep(a[i / 4][i % 4] = k[i % 2][i / 4][i / 2 % 2]);
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += 2) {
        const uint32_t next = min(i + 1, n - 1);
        begin_dots<H, D>(s0, a, wgmma_further(query, i * (64 * D * 2)));
        begin_dots<H, D>(s1, a, wgmma_further(query, next * (64 * D * 2)));
        wgmma_wait<1>();
        add_squares(p.sum, s0, b.start + i * 64, by);
        put_squares(p);
        wgmma_wait<0>();
        wgmma_done(s1);
        if (next == i) break;
        add_squares(p.sum, s1, b.start + next * 64, by);
        put_squares(p);
    }
}

template <int F, int D>
static __device__ void take_by_groups(const struct take_block &b, const struct sample_call &c)
{
    const uint32_t warp = wgmma_group() * 4 + threadIdx.x / 32 % 4;
    const uint32_t t = threadIdx.x % 32 / 4;
    half_page<D> first, second;
    uint32_t page = min(b.begin + warp, b.end - 1);
    const uint8_t *keys = sealed_keys(c.pages, b.kv_head, page);
    load_sealed_keys<8, F, D>(first, keys, t);
    bool finite = true;
#pragma unroll 1
    for (uint32_t at = b.begin + wgmma_group() * 4; at < b.end; at += TAKE_WARPS) {
        const uint32_t next_page = min(page + TAKE_WARPS, b.end - 1);
        load_sealed_keys<8, F, D>(second, keys, t + 16);
        keys = sealed_keys(c.pages, b.kv_head, next_page);
        if (b.looks) finite = finite && keys_finite<F, D>(first);
        half_squares<F, D>(first, 0, b, c);
        load_sealed_keys<8, F, D>(first, keys, t);
        if (b.looks) finite = finite && keys_finite<F, D>(second);
        half_squares<F, D>(second, 16, b, c);
        __syncwarp();
        if (at + warp % 4 < b.end) take_page(b, c, page);
        __syncwarp();
        page = next_page;
    }
    if (!finite) list_fail(c.op.lists, b.kv_head);
}
#endif

template <int F, int D>
__global__ void __launch_bounds__(TAKE_THREADS, 1)
    sample_take_kernel(const struct sample_call c, const struct take_cut cut)
{
    kernel_begin();
    struct take_block b;
    if (!take_find<D>(b, c, cut)) return;
    take_open<D>(b, c);
#ifdef WGMMA_HERE
    if constexpr (D <= 128)
        if (c.op.n_query % 64 == 0) {
            take_by_groups<F, D>(b, c);
            return;
        }
#endif
    take_by_warps<F, D>(b, c);
}

/* ---- The launch ---- */

static uint32_t part_of(uint32_t n, uint32_t parts) /* the largest of equal ones */
{
    return (n + parts - 1) / parts;
}

/* As many heads as there is shared memory for, then as many tiles, in equal parts. */
template <int D>
static struct take_cut take_cut_of(const struct cuda_device *d, const struct sample_call *c,
                                   uint32_t n_page)
{
    const uint32_t n_tile = c->op.rows.n_tile, n_query = c->op.n_query;
    const auto fits = [&](uint32_t n_set) {
        return n_set == 1 || take_room<D>{n_set, n_query}.bytes() <= d->smem_max;
    };
    struct take_cut cut = {c->group, n_tile, 1, 1, 0};
    while (!fits(cut.n_head)) cut.n_head = part_of(c->group, ++cut.n_head_part);
    while (!fits(cut.n_head * cut.n_tile)) cut.n_tile = part_of(n_tile, ++cut.n_tile_part);
    cut.n_head_part = part_of(c->group, cut.n_head);
    cut.n_tile_part = part_of(n_tile, cut.n_tile);
    const uint32_t n_lane = c->op.rows.n_head / c->group * cut.n_head_part * cut.n_tile_part;
    const uint32_t n_span = n_lane < TAKE_WAVES * d->n_sm ? TAKE_WAVES * d->n_sm / n_lane : 1;
    cut.span = part_of(part_of(n_page, n_span), TAKE_WARPS) * TAKE_WARPS;
    return cut;
}

#endif
