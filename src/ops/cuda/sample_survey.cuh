/* sample_survey.cuh: the survey of sample.cu: decides for each key before a tile whether the tile's
 * rows read it, from the mean square of its attention probability over the sampled rows (private to
 * this folder).
 *
 * For a set (the n_query sampled queries of a tile and head) and a key: square = sum over queries
 * of exp2(2 (q k - start)), smoothed within the page by `spread`; the key's step below `least`
 * follows from the bits of the square (ops/survey.h), and the key is taken if the step is below the
 * limit of its place. Steps also give the weight. A block has the queries of up to SURVEY_SLOTS /
 * set_slots sets, and walks over pages of all KV heads. This file has the kernel for GPUs without
 * wgmma: every warp scores all queries of the block against the keys of one page at a time.
 * sample_wgmma.cuh has that for Hopper. */
#ifndef SAC_OPS_CUDA_SAMPLE_SURVEY_CUH
#define SAC_OPS_CUDA_SAMPLE_SURVEY_CUH

#include "ops/cuda/list.cuh"
#include "ops/cuda/queue.cuh"
#include "ops/cuda/rows.cuh"
#include "ops/cuda/wgmma.cuh"
#include "ops/plans.h"
#include "ops/survey.h"

#define SURVEY_WARPS   12u
#define SURVEY_THREADS (SURVEY_WARPS * 32)
#define SURVEY_SLOTS   8u /* tiles of 64 queries in a block (wgmma) */
#define SURVEY_PAGES   4u /* pages of a unit; blocks get equal numbers of units */

struct sample_tile {
    uint32_t n_page;        /* pages before the tile */
    uint32_t n_sum;         /* pages that its sums read: */
    uint32_t n_far;         /* n_far of them are page 0 and those at equal distances, */
    uint32_t stride, phase; /* phase, phase + stride, ...; */
    uint32_t near;          /* the others are the last ones, from `near` on */
    float weight;           /* of the pages at equal distances */
};

struct sample_call {
    struct op_sample op; /* geom is not valid */
    const struct sample_tile *tile;
    const uint32_t *seed; /* [n_tile * n_head] */
    const int32_t *limit; /* by survey_limits */
    struct rows_pages pages;
    uint32_t group;
    float least; /* by survey_least */
    float by;    /* from a product to twice the exponent of 2 */
};

#ifdef HAS_WGMMA
/* Packs a piece of a query for the survey: wgmma takes keys in their natural order, mma in that of
 * rows.cuh. */
template <int F, int D>
static __device__ __forceinline__ uint4 survey_pack_piece(const float *q, uint32_t piece,
                                                          uint4 permuted)
{
    constexpr int H = rows_size<F, D>::half;
    const float *x = q + piece * 8;
    if constexpr (D > 128) return permuted;
    return make_uint4(half_pack<H>(x[0], x[1]), half_pack<H>(x[2], x[3]), half_pack<H>(x[4], x[5]),
                      half_pack<H>(x[6], x[7]));
}
#else
template <int F, int D>
static __device__ __forceinline__ uint4 survey_pack_piece(const float *, uint32_t, uint4 permuted)
{
    return permuted;
}
#endif

/* How the survey is divided. The sets of a KV head are those of its query heads, tile by tile. A
 * column is n_set of them; its n_block blocks share all pages of all KV heads. */
struct survey_split {
    uint32_t n_set, n_column, n_block;
};

struct survey_set {
    uint32_t list, n_page, seed, none;
};

/* Slots of 64 queries for one set, a power of two. */
static __host__ __device__ inline uint32_t set_slots(uint32_t n_query)
{
    return n_query <= 64 ? 1 : n_query <= 128 ? 2 : 4;
}

/* Shared memory without wgmma: queries [n_set][n_query, D], starts [n_set][n_query], squares
 * [SURVEY_WARPS][n_set][PAGE_TOK], sets [n_set], limits. */
template <int D> struct survey_smem {
    uint32_t n_set, n_query;
    __host__ __device__ uint32_t start(void) const
    {
        return n_set * n_query * (D * 2);
    }
    __host__ __device__ uint32_t square(void) const
    {
        return start() + n_set * n_query * (uint32_t)sizeof(float);
    }
    __host__ __device__ uint32_t set(void) const
    {
        return square() + SURVEY_WARPS * n_set * PAGE_TOK * (uint32_t)sizeof(float);
    }
    __host__ __device__ uint32_t limit(void) const
    {
        return set() + n_set * (uint32_t)sizeof(struct survey_set);
    }
    __host__ __device__ uint32_t bytes(void) const
    {
        return limit() + (SURVEY_PERIOD + PAGE_TOK) * (uint32_t)sizeof(int32_t);
    }
};

/* Shared memory with wgmma: queries [SURVEY_SLOTS][64, D]; a ring of n tiles of keys [64, D]; for
 * q8 the codes of keys [4 warps][2 pages]; sets; limits; and for each stage of the ring two
 * mbarriers, `full` and `free`. */
template <int F, int D> struct survey_ring {
    static constexpr uint32_t n = F == FORM_Q8 ? 3 : 6;
    static constexpr uint32_t codes = F == FORM_Q8 ? page_at<F, D>::v_scale : 0;
    static constexpr uint32_t tile = 64 * D * 2;
    static constexpr uint32_t keys = SURVEY_SLOTS * tile;
    static constexpr uint32_t code = keys + n * tile;
    static constexpr uint32_t set = code + 4 * 2 * codes;
    static constexpr uint32_t limit = set + SURVEY_SLOTS * (uint32_t)sizeof(struct survey_set);
    static constexpr uint32_t full = limit + (SURVEY_PERIOD + PAGE_TOK) * (uint32_t)sizeof(int32_t);
    static constexpr uint32_t free = full + n * 8;
    static constexpr uint32_t bytes = free + n * 8;
    static_assert(full % 8 == 0 && tile % 1024 == 0 && codes % 16 == 0, "barriers, panels, copies");
};

struct survey_block {
    uint32_t set0, n_set; /* of the sets of a KV head */
    uint32_t n_unit;      /* units of a KV head that some of the sets see */
    uint32_t at, end;     /* the block's units, counted over all KV heads */
    bool looks;           /* this column also checks that keys are finite: it sees all pages */
};

/* Consecutive pages of one KV head. */
struct survey_span {
    uint32_t kv_head, begin, end;
};

/* The block's part. Blocks that read the same keys are consecutive, so that they find them in the
 * L2 cache. */
static __device__ struct survey_block survey_find_block(const struct sample_call &c,
                                                        const struct survey_split &cut)
{
    struct survey_block b;
    const uint32_t n_all = c.op.rows.n_tile * c.group, i = blockIdx.x / cut.n_column;
    b.set0 = blockIdx.x % cut.n_column * cut.n_set;
    b.n_set = min(cut.n_set, n_all - b.set0);
    b.looks = b.set0 + b.n_set == n_all;
    b.n_unit = c.tile[(b.set0 + b.n_set - 1) / c.group].n_page / SURVEY_PAGES;
    const uint32_t n = c.op.rows.n_head / c.group * b.n_unit;
    b.at = (uint32_t)((uint64_t)n * i / cut.n_block);
    b.end = (uint32_t)((uint64_t)n * (i + 1) / cut.n_block);
    return b;
}

static __device__ bool survey_next_span(struct survey_span &to, struct survey_block &b)
{
    if (b.at >= b.end) return false;
    const uint32_t first = b.at % b.n_unit, n = min(b.n_unit - first, b.end - b.at);
    to = {b.at / b.n_unit, first * SURVEY_PAGES, (first + n) * SURVEY_PAGES};
    b.at += n;
    return true;
}

static __device__ struct survey_set survey_set_of(const struct sample_call &c, uint32_t kv_head,
                                                  uint32_t set)
{
    const uint32_t tile = set / c.group, head = kv_head * c.group + set % c.group;
    const uint32_t list = tile * c.op.rows.n_head + head;
    return {list, c.tile[tile].n_page, c.seed[list], 0};
}

/* 2^x with a relative error of 1e-4, in FMAs. For 128 channels the special function units make
 * exponentials no faster than tensor cores make the products, and instructions of either kind issue
 * more slowly while wgmma runs, so one of 16 exponentials is computed here instead. The
 * coefficients minimize the largest relative error on [-1/2, 1/2]. */
static __device__ __forceinline__ float exp2_multiplied(float x)
{
    const float round = 0x1.8p23f;
    const float near = fminf(fmaxf(x, -126), 126), z = near + round, f = near - (z - round);
    const float y = fmaf(fmaf(fmaf(0.05517167f, f, 0.24261112f), f, 0.69326099f), f, 0.99992807f);
    return __uint_as_float(__float_as_uint(y) + (__float_as_uint(z) << 23));
}

/* The square of an attention probability, the i-th of a thread. `by` and `start` are doubled. */
static __device__ __forceinline__ float share_square(int i, float dot, float by, float start)
{
    const float x = fmaf(dot, by, -start);
    return i % 16 == 15 ? exp2_multiplied(x) : exp2_fast(x);
}

/* From the squares of four keys to the marks of a page, for one set. Eight lanes, STEP apart, have
 * the page's 32 keys; all lanes of the warp call it. */
template <int STEP>
static __device__ __forceinline__ void
mark_keys(const float (&square)[4], const struct survey_set &set, uint32_t page,
          const int32_t *limits, const struct sample_call &c, bool is)
{
    const uint32_t key = threadIdx.x % 32 / STEP % 8 * 4;
    const int32_t least = (int32_t)__float_as_uint(c.least);
    const int32_t *limit = limits + survey_place(set.seed, page) + key;
    float all = (square[0] + square[1]) + (square[2] + square[3]);
    for (int by = STEP; by < 8 * STEP; by *= 2) all += __shfl_xor_sync(~0u, all, by);
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
    for (int by = STEP; by < 8 * STEP; by *= 2) word |= __shfl_xor_sync(~0u, word, by);
    if (!is || page >= set.n_page) return;
    if (!isfinite(all)) list_fail(c.op.lists, set.list % c.op.rows.n_head / c.group);
    const size_t at = (size_t)set.list * c.op.n_word + page;
    *(uint32_t *)(c.op.weight + at * PAGE_TOK + key) = weights;
    if (key == 0) c.op.mask[at] = word;
}

/* ---- The survey by warps ---- */

/* The shared memory of survey_by_warps. */
struct survey_view {
    uint32_t n_set;
    uint8_t *query;
    float *start;
    float *square; /* [n_set][PAGE_TOK] of the warp's page */
    struct survey_set *set;
    int32_t *limit;
};

/* Loads the queries and sets of a KV head; all threads. */
template <int D>
static __device__ void survey_load_queries(const struct survey_view &v,
                                           const struct survey_block &b,
                                           const struct sample_call &c, uint32_t kv_head)
{
    const uint32_t n_query = c.op.n_query;
    __syncthreads(); /* the last KV head's data has been read */
    for (uint32_t s = 0; s < b.n_set; s++) {
        const struct survey_set set = survey_set_of(c, kv_head, b.set0 + s);
        const uint8_t *packed = (const uint8_t *)(c.op.query + (size_t)set.list * n_query * D);
        const uint32_t to = smem_address(v.query + s * n_query * (D * 2));
        for (uint32_t i = threadIdx.x * 16; i < n_query * (D * 2); i += SURVEY_THREADS * 16)
            cp_async16(to + i, packed + i);
        for (uint32_t r = threadIdx.x; r < n_query; r += SURVEY_THREADS)
            v.start[s * n_query + r] = 2 * c.op.start[(size_t)set.list * n_query + r];
        if (threadIdx.x == 0) v.set[s] = set;
    }
    cp_async_commit();
    for (uint32_t i = threadIdx.x; i < SURVEY_PERIOD + PAGE_TOK; i += SURVEY_THREADS)
        v.limit[i] = c.limit[i];
    cp_async_wait<0>();
    __syncthreads();
}

/* Squares of a page's keys for all sets; by a warp. Returns whether the keys are finite. */
template <int F, int D>
static __device__ bool survey_page_squares(const struct survey_view &v, const struct sample_call &c,
                                           uint32_t kv_head, uint32_t page, bool looks)
{
    constexpr int N = rows_size<F, D>::n;
    const float by = 2 * c.op.rows.scale * LOG2E;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4, n_query = c.op.n_query;
    bool finite = true;
    for (int part = 0; part < rows_size<F, D>::parts; part++) {
        uint32_t k[N][D / 16][2];
        load_keys<F, D>(k, c.pages, kv_head, page, part * N * 8);
        if (looks) finite = finite && keys_finite<F, D>(k);
        for (uint32_t set = 0; set < v.n_set; set++) {
            const uint32_t query = smem_address(v.query) + set * n_query * (D * 2);
            float sum[2 * N] = {};
            for (uint32_t m = 0; m < n_query / 16; m++) {
                float s[N][4];
                dots<F, D>(s, query, m, k);
                const float *less = v.start + set * n_query + m * 16 + g;
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
                if (g == 0) v.square[set * PAGE_TOK + key] = sum[i];
            }
        }
    }
    return finite;
}

/* Marks a page for all sets that see it; a lane has four keys of a set. */
static __device__ void survey_mark_page(const struct survey_view &v, const struct sample_call &c,
                                        uint32_t page)
{
    const uint32_t key = threadIdx.x % 8 * 4;
    for (uint32_t first = 0; first < v.n_set; first += 4) {
        const uint32_t i = first + threadIdx.x % 32 / 8, at = min(i, v.n_set - 1);
        const float4 four = *(const float4 *)(v.square + at * PAGE_TOK + key);
        mark_keys<1>({four.x, four.y, four.z, four.w}, v.set[at], page, v.limit, c, i < v.n_set);
    }
}

/* The survey without wgmma: a warp has one page at a time. */
template <int F, int D>
static __device__ void survey_by_warps(struct survey_block &b, const struct sample_call &c,
                                       const struct survey_split &cut)
{
    const struct survey_smem<D> room = {
        cut.n_set, c.op.n_query
    };
    uint8_t *const at = kernel_shared();
    const struct survey_view v = {b.n_set,
                                  at,
                                  (float *)(at + room.start()),
                                  (float *)(at + room.square()) +
                                      threadIdx.x / 32 * room.n_set * PAGE_TOK,
                                  (struct survey_set *)(at + room.set()),
                                  (int32_t *)(at + room.limit())};
    for (struct survey_span part; survey_next_span(part, b);) {
        survey_load_queries<D>(v, b, c, part.kv_head);
        for (uint32_t page = part.begin + threadIdx.x / 32; page < part.end; page += SURVEY_WARPS) {
            if (!survey_page_squares<F, D>(v, c, part.kv_head, page, b.looks))
                list_fail(c.op.lists, part.kv_head);
            __syncwarp();
            survey_mark_page(v, c, page);
            __syncwarp();
        }
    }
}

#endif
