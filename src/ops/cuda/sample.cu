/* sample.cu: plans of prompt rows by sampling (op_sample, for --prefill auto; ops/plans.h): for
 * each tile of OP_SAMPLE_TILE rows and query head, which keys are read, and with what weights.
 *
 * Launches of a layer:
 *  1. sample_sums_kernel: a block has a tile, up to two query heads of a KV head, and some of the
 *     n_query sampled rows. It scores them against the tile's own pages and some of the pages
 *     before it, and estimates each row's softmax denominator (start). Warps take pages in turn.
 *  2. survey_kernel (sample_survey.cuh, sample_wgmma.cuh): scores the sampled rows against all keys
 *     and decides for each key whether it is taken.
 *  3. sample_list_kernel: a block makes one list.
 *  4. If a tile is audited: sample_audit_kernel computes an exact softmax of one row by parts of
 *     the pages, sample_audit_merge_kernel adds the parts and reports the attention mass that the
 *     lists hold.
 * Products are m16n8k16 of packed queries in shared memory and keys in registers (rows.cuh).
 *
 * A list depends on its tile alone: which pages a warp adds up, and in which order, is fixed. */
#include "ops/cuda/list.cuh"
#include "ops/cuda/sample_wgmma.cuh"

#define WARPS       8u
#define THREADS     (WARPS * 32)
#define SUM_WARPS   16u
#define SUM_THREADS (SUM_WARPS * 32)
#define SUM_HEADS   2u /* query heads of a KV head that a block sums together: keys are read once */
#define SUM_FILL    2u /* blocks of a multiprocessor, at most, if samples are divided to have them */
#define AUDIT_ROWS  16u /* query heads of a KV head that a block audits together */
#define AUDIT_SPAN  16u /* pages of an audit's part, at least */
#define AUDIT_PARTS 128u
#define TILE_PAGES  (OP_SAMPLE_TILE / PAGE_TOK)
#define LOG_STEP    (LN2 / OP_SURVEY_OCTAVE)

/* ---- Rows of a tile ---- */

struct sample_place { /* a tile's rows, and the list of one head */
    uint32_t tile, head, kv_head;
    size_t list;
    uint32_t first;       /* position of the tile */
    uint32_t row0, n_row; /* its rows in the run */
};

static __device__ struct sample_place place_of(const struct sample_call &c, uint32_t tile,
                                               uint32_t head)
{
    struct sample_place p;
    p.tile = tile;
    p.head = head;
    p.kv_head = head / c.group;
    p.list = (size_t)tile * c.op.rows.n_head + head;
    p.first = (c.op.rows.tile0 + tile) * OP_SAMPLE_TILE;
    p.row0 = p.first > c.op.rows.pos ? p.first - c.op.rows.pos : 0;
    p.n_row = min(p.first + OP_SAMPLE_TILE, c.op.rows.end) - c.op.rows.pos - p.row0;
    return p;
}

/* The run's row that is sample i: the last of each of n_query equal parts. */
static __device__ uint32_t sampled_row(const struct sample_call &c, const struct sample_place &p,
                                       uint32_t i)
{
    const uint32_t end = p.n_row * (i + 1) / c.op.n_query;
    return p.row0 + (end ? end - 1 : 0);
}

/* ---- Sums ---- */

/* A block's query heads, all of one KV head, and its samples of each: from sample0 on. */
struct sum_block {
    struct sample_place p; /* of the first head */
    uint32_t n_head, sample0, n_sample;
    /* In shared memory: */
    uint8_t *query;      /* [n_head][n_sample, D] */
    struct exp_sum *own; /* [n_head][TILE_PAGES][n_sample] */
    float *part;         /* [n_head][SUM_WARPS][n_sample], reuses the space of `own` */
    float *base;         /* [n_head][n_sample] */
};

/* Softmax sums of a head's sampled rows over one page of the tile itself; by a warp. */
template <int F, int D>
__device__ void sum_own(struct exp_sum *to, uint32_t query, const struct sample_call &c,
                        const struct sum_block &b, uint32_t page)
{
    const struct sample_place &p = b.p;
    constexpr int N = rows_size<F, D>::n;
    const float by = c.op.rows.scale * LOG2E;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
    const uint32_t n_own = c.op.rows.pos + p.row0 + p.n_row - p.first;
    for (uint32_t r = threadIdx.x % 32; r < b.n_sample; r += 32) to[r] = exp_sum_none();
    __syncwarp();
    if (page * PAGE_TOK >= n_own) return;
    for (int part = 0; part < rows_size<F, D>::parts; part++) {
        uint32_t k[N][D / 16][2];
        const uint32_t t0 = part * N * 8;
        load_keys<F, D>(k, c.pages, p.kv_head, p.first / PAGE_TOK + page, t0);
        for (uint32_t m = 0; m < b.n_sample / 16; m++) {
            float s[N][4];
            dots<F, D>(s, query, m, k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t r = m * 16 + i * 8 + g;
                const uint32_t row = sampled_row(c, p, b.sample0 + r);
                const uint32_t n_seen = c.op.rows.pos + row - p.first + 1;
                float x[2 * N];
                uint32_t seen = 0;
#pragma unroll
                for (int n = 0; n < 2 * N; n++) {
                    x[n] = s[n / 2][2 * i + n % 2] * by;
                    seen |= (uint32_t)(page * PAGE_TOK + t0 + n / 2 * 8 + j * 2 + n % 2 < n_seen)
                            << n;
                }
                const struct exp_sum sum = power_sum<N>(x, seen);
                if (j == 0) to[r] = power_sum_add(to[r], sum);
            }
        }
    }
}

/* Adds a head's sums over some keys of a page before the tile, relative to its base and times
 * `weight`; by a warp. */
template <int F, int D, int N>
__device__ void sum_keys(const struct sum_block &b, uint32_t head, const struct sample_call &c,
                         const uint32_t (&k)[N][D / 16][2], float weight)
{
    const float by = c.op.rows.scale * LOG2E;
    const float *const base = b.base + head * b.n_sample;
    float *const to = b.part + (head * SUM_WARPS + threadIdx.x / 32) * b.n_sample;
    const uint32_t query = smem_address(b.query) + head * b.n_sample * (D * 2);
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
    for (uint32_t m = 0; m < b.n_sample / 16; m++) {
        float s[N][4], sum[2] = {0, 0};
        dots<F, D>(s, query, m, k);
        const float less[2] = {base[m * 16 + g], base[m * 16 + g + 8]};
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) sum[e / 2] += exp2_fast(fmaf(s[n][e], by, -less[e / 2]));
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float all = four_sum(sum[e]);
            if (j == 0) to[m * 16 + e * 8 + g] += weight * all;
        }
    }
}

/* Sums over the pages before the tile, of which each warp has every SUM_WARPS-th: [n_head][n_query]
 * for each warp. */
template <int F, int D>
__device__ void sum_before(const struct sum_block &b, const struct sample_call &c)
{
    constexpr int N = rows_size<F, D>::n;
    const struct sample_tile t = c.tile[b.p.tile];
    const uint32_t warp = threadIdx.x / 32;
    for (uint32_t h = 0; h < b.n_head; h++)
        for (uint32_t r = threadIdx.x % 32; r < b.n_sample; r += 32)
            b.part[(h * SUM_WARPS + warp) * b.n_sample + r] = 0;
    __syncwarp();
    for (uint32_t i = warp; i < t.n_sum; i += SUM_WARPS) {
        const bool is_far = i > 0 && i < t.n_far;
        const uint32_t page = i >= t.n_far ? t.near + i - t.n_far
                              : i > 0      ? t.phase + (i - 1) * t.stride
                                           : 0;
        for (int part = 0; part < rows_size<F, D>::parts; part++) {
            uint32_t k[N][D / 16][2];
            load_keys<F, D>(k, c.pages, b.p.kv_head, page, part * N * 8);
            for (uint32_t h = 0; h < b.n_head; h++)
                sum_keys<F, D>(b, h, c, k, is_far ? t.weight : 1);
        }
    }
}

/* Packs the queries of the sampled rows, to shared memory and to global memory for the survey. */
template <int F, int D>
__device__ void pack_queries(const struct sum_block &b, const struct sample_call &c)
{
    const uint32_t n = b.n_sample * (D / 8);
    for (uint32_t i = threadIdx.x; i < b.n_head * n; i += SUM_THREADS) {
        const uint32_t h = i / n, r = i % n / (D / 8), piece = i % (D / 8);
        const uint32_t sample = b.sample0 + r;
        const float *q = rows_query<D>(c.op.rows, sampled_row(c, b.p, sample), b.p.head + h);
        const uint4 x = pack_piece<F, D>(q, piece);
        uint4 *const packed = (uint4 *)(c.op.query + (b.p.list + h) * c.op.n_query * D);
        ((uint4 *)b.query)[h * n + query_at<D>(r, piece) / 16] = x;
        packed[query_at<D>(sample, piece) / 16] = survey_pack_piece<F, D>(q, piece, x);
    }
}

template <int F, int D> static size_t sums_bytes(uint32_t n_head, uint32_t n_query)
{
    static_assert(TILE_PAGES * sizeof(struct exp_sum) >= SUM_WARPS * sizeof(float),
                  "sums of pages before the tile reuse the space of its own");
    return n_head * n_query * (D * 2 + TILE_PAGES * sizeof(struct exp_sum) + sizeof(float));
}

/* How sums are divided: a block has n_head query heads of a KV head, in n_group groups, and
 * n_sample samples of each, in n_part parts. */
struct sum_split {
    uint32_t n_head, n_group, n_sample, n_part;
};

template <int F, int D>
__global__ void __launch_bounds__(SUM_THREADS)
    sample_sums_kernel(const struct sample_call c, const struct sum_split cut)
{
    kernel_begin();
    const uint32_t group = blockIdx.x / cut.n_part, first = group % cut.n_group * cut.n_head;
    struct sum_block b;
    b.p = place_of(c, blockIdx.y, group / cut.n_group * c.group + first);
    b.n_head = min(cut.n_head, c.group - first);
    b.sample0 = blockIdx.x % cut.n_part * cut.n_sample;
    b.n_sample = min(cut.n_sample, c.op.n_query - b.sample0);
    if (c.tile[b.p.tile].n_page == 0) return;
    const uint32_t n = b.n_sample;
    b.query = kernel_shared();
    b.own = (struct exp_sum *)(b.query + b.n_head * n * (D * 2));
    b.part = (float *)b.own;
    b.base = (float *)(b.own + b.n_head * TILE_PAGES * n);
    pack_queries<F, D>(b, c);
    __syncthreads();
    for (uint32_t i = threadIdx.x / 32; i < b.n_head * TILE_PAGES; i += SUM_WARPS)
        sum_own<F, D>(b.own + i * n, smem_address(b.query) + i / TILE_PAGES * n * (D * 2), c, b,
                      i % TILE_PAGES);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.n_head * n; i += SUM_THREADS) {
        const struct exp_sum *own = b.own + i / n * TILE_PAGES * n + i % n;
        struct exp_sum all = own[0];
        for (uint32_t w = 1; w < TILE_PAGES; w++) all = power_sum_add(all, own[w * n]);
        b.base[i] = all.max + log2f(all.sum);
    }
    __syncthreads();
    sum_before<F, D>(b, c);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < b.n_head * n; i += SUM_THREADS) {
        const float *part = b.part + i / n * SUM_WARPS * n + i % n;
        float all = 1;
        for (uint32_t w = 0; w < SUM_WARPS; w++) all += part[w * n];
        const float start = b.base[i] + log2f(all);
        c.op.start[(b.p.list + i / n) * c.op.n_query + b.sample0 + i % n] = start;
        if (!isfinite(start)) list_fail(c.op.lists, b.p.kv_head);
    }
}

/* ---- Lists ---- */

static __device__ inline bool is_forced(const struct sample_call &c, uint32_t n_page, uint32_t page)
{
    return page == 0 || page + c.op.n_recent >= n_page;
}

/* The marks of a list, including what is always read. */
struct sample_marks {
    const struct sample_call &c;
    uint32_t n_page;
    const uint32_t *mask; /* [n_word] */
    const uint8_t *weight;
    __device__ uint32_t word(uint32_t page) const
    {
        return is_forced(c, n_page, page) ? ~0u : mask[page];
    }
    __device__ float logw(uint32_t page, uint32_t t) const
    {
        return (float)weight[page * PAGE_TOK + t] * (float)LOG_STEP;
    }
};

static __device__ struct sample_marks marks_of(const struct sample_call &c, size_t list,
                                               uint32_t n_page)
{
    return {c, n_page, c.op.mask + list * c.op.n_word, c.op.weight + list * c.op.n_word * PAGE_TOK};
}

/* The number of tokens that the survey has taken. All threads. */
static __device__ uint32_t count_taken(const struct sample_marks &m, uint32_t *room)
{
    uint32_t n = 0;
    for (uint32_t page = threadIdx.x; page < m.n_page; page += THREADS) n += __popc(m.mask[page]);
    return block_sum(n, room);
}

/* The reason for a list to be dense that is known before it is made. */
static __device__ enum plan_reason dense_before(const struct sample_call &c,
                                                const struct sample_place &p)
{
    if (c.op.dense) return PLAN_LAYER;
    if (list_failed(c.op.lists, p.kv_head)) return PLAN_NAN;
    if (p.first + OP_SAMPLE_TILE <= c.op.rows.dense_to) return PLAN_SHORT;
    return c.op.rows.pos + p.row0 + p.n_row > c.op.dense_from ? PLAN_LAYER : PLAN_SPARSE;
}

static __global__ void __launch_bounds__(THREADS) sample_list_kernel(const struct sample_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct sample_place p = place_of(c, blockIdx.y, blockIdx.x);
    const uint32_t n_page = c.tile[p.tile].n_page, n = n_page * PAGE_TOK;
    struct attn_list list = {};
    enum plan_reason why = dense_before(c, p);
    if (why == PLAN_SPARSE) { /* uniform in the block */
        const struct sample_marks marks = marks_of(c, p.list, n_page);
        const uint32_t n_taken = count_taken(marks, room);
        list_make(&list, list_room_of(c.op.lists, p.list), marks, n_page, TILE_PAGES, room);
        if ((double)(n_taken + (c.op.n_recent + 1) * PAGE_TOK) > c.op.most * n)
            why = PLAN_NO_GAIN;
        else if (list.n_tok > c.op.lists.tok_max || list.n_range > c.op.lists.range_max)
            why = PLAN_OVERFLOW;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    list_close(&list, list_room_of(c.op.lists, p.list), why, n_page, TILE_PAGES);
    c.op.lists.made[p.list] = list;
}

/* ---- Audits ---- */

/* Softmax sums of a row, relative to 2^max: over all keys that it sees, and over those in its
 * list. */
struct kept_sum {
    float max, all, kept;
};

static __device__ inline struct kept_sum kept_sum_add(struct kept_sum a, struct kept_sum b)
{
    const float max = fmaxf(a.max, b.max);
    const float by_a = a.max == -INFINITY ? 0.0f : exp2_fast(a.max - max);
    const float by_b = b.max == -INFINITY ? 0.0f : exp2_fast(b.max - max);
    return {max, a.all * by_a + b.all * by_b, a.kept * by_a + b.kept * by_b};
}

static __device__ inline struct kept_sum kept_sum_from(struct kept_sum x, int lane_by)
{
    return {__shfl_xor_sync(~0u, x.max, lane_by), __shfl_xor_sync(~0u, x.all, lane_by),
            __shfl_xor_sync(~0u, x.kept, lane_by)};
}

/* Adds exponents x of keys 8 (i / 2) + 2 j + i % 2, with the bits of keys that are seen and of
 * those in the list. */
template <int N>
static __device__ void kept_sum_put(struct kept_sum &sum, const float (&x)[2 * N], uint32_t seen,
                                    uint32_t kept)
{
    const uint32_t j = threadIdx.x % 4;
    struct kept_sum add = {-INFINITY, 0, 0};
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        if (seen >> (i / 2 * 8 + j * 2 + i % 2) & 1) add.max = fmaxf(add.max, x[i]);
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        const uint32_t at = i / 2 * 8 + j * 2 + i % 2;
        if (!(seen >> at & 1)) continue;
        const float e = isfinite(x[i]) ? exp2_fast(x[i] - add.max) : NAN;
        add.all += e;
        if (kept >> at & 1) add.kept += e;
    }
    sum = kept_sum_add(sum, add);
}

/* What a block audits: a tile's row, up to 16 query heads of a KV head, and a part of the pages. */
struct audit_place {
    struct sample_place tile;  /* of the first head */
    uint32_t n_head, row, end; /* end: the number of keys that the row sees */
    uint32_t page0, page_end;
};

/* Pages of a part of n. There are AUDIT_PARTS parts at most, because their sums reuse the space of
 * queries. */
static __host__ __device__ inline uint32_t audit_span(uint32_t n)
{
    const uint32_t least = (n + AUDIT_PARTS - 1) / AUDIT_PARTS;
    return least > AUDIT_SPAN ? least : AUDIT_SPAN;
}

static __device__ struct audit_place audit_place_of(const struct sample_call &c, uint32_t part)
{
    struct audit_place a;
    const uint32_t n_part = (c.group + AUDIT_ROWS - 1) / AUDIT_ROWS;
    const uint32_t first = blockIdx.y % n_part * AUDIT_ROWS;
    a.tile = place_of(c, c.op.audit + blockIdx.z * c.op.audit_step,
                      blockIdx.y / n_part * c.group + first);
    a.n_head = min(c.group - first, AUDIT_ROWS);
    a.row = a.tile.row0 + c.op.audit_row % a.tile.n_row;
    a.end = c.op.rows.pos + a.row + 1;
    const uint32_t n_page = (a.end + PAGE_TOK - 1) / PAGE_TOK, span = audit_span(n_page);
    a.page0 = part * span;
    a.page_end = min(a.page0 + span, n_page);
    return a;
}

/* [AUDIT_PARTS] for a list, in the space of its queries. */
static __device__ struct kept_sum *audit_sums(const struct sample_call &c, size_t list,
                                              uint32_t head_dim)
{
    return (struct kept_sum *)(c.op.query + list * c.op.n_query * head_dim);
}

/* The exact softmax sums of one row over some pages. Dynamic shared memory: the row's queries of 16
 * heads. */
template <int F, int D>
__global__ void __launch_bounds__(THREADS) sample_audit_kernel(const struct sample_call c)
{
    kernel_begin();
    constexpr int N = 2; /* more tiles of 8 keys would not fit into registers */
    __shared__ struct kept_sum room[WARPS][AUDIT_ROWS];
    const struct audit_place a = audit_place_of(c, blockIdx.x);
    const uint32_t g = threadIdx.x % 32 / 4, n_page = c.tile[a.tile.tile].n_page;
    const float by = c.op.rows.scale * LOG2E;
    if (a.page0 >= a.page_end) return;
    uint8_t *const query = kernel_shared();
    for (uint32_t i = threadIdx.x; i < AUDIT_ROWS * (D / 8); i += THREADS) {
        const uint32_t h = min(i / (D / 8), a.n_head - 1); /* missing heads repeat the last one */
        const float *q = rows_query<D>(c.op.rows, a.row, a.tile.head + h);
        *(uint4 *)(query + query_at<D>(i / (D / 8), i % (D / 8))) =
            pack_piece<F, D>(q, i % (D / 8));
    }
    __syncthreads();
    struct kept_sum sum[2] = {{-INFINITY, 0, 0}, {-INFINITY, 0, 0}};
    for (uint32_t page = a.page0 + threadIdx.x / 32; page < a.page_end; page += WARPS) {
        const uint32_t n_seen = min(a.end - page * PAGE_TOK, PAGE_TOK), seen = ~0u >> (32 - n_seen);
        uint32_t kept[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const size_t list = a.tile.list + min(i * 8 + g, a.n_head - 1);
            kept[i] = page >= n_page || c.op.lists.made[list].why
                          ? ~0u
                          : marks_of(c, list, n_page).word(page);
        }
        for (int part = 0; part < 4 / N; part++) {
            uint32_t k[N][D / 16][2];
            float s[N][4];
            load_keys<F, D>(k, c.pages, a.tile.kv_head, page, part * N * 8);
            dots<F, D>(s, smem_address(query), 0, k);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float x[2 * N];
#pragma unroll
                for (int n = 0; n < 2 * N; n++) x[n] = s[n / 2][2 * i + n % 2] * by;
                kept_sum_put<N>(sum[i], x, seen >> part * N * 8, kept[i] >> part * N * 8);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        sum[i] = kept_sum_add(sum[i], kept_sum_from(sum[i], 1));
        sum[i] = kept_sum_add(sum[i], kept_sum_from(sum[i], 2));
        if (threadIdx.x % 4 == 0) room[threadIdx.x / 32][i * 8 + g] = sum[i];
    }
    __syncthreads();
    if (threadIdx.x >= a.n_head) return;
    struct kept_sum all = room[0][threadIdx.x];
    for (uint32_t w = 1; w < WARPS; w++) all = kept_sum_add(all, room[w][threadIdx.x]);
    audit_sums(c, a.tile.list + threadIdx.x, D)[blockIdx.x] = all;
}

/* Merges the parts; a thread has one of 16 heads. */
static __global__ void __launch_bounds__(32)
    sample_audit_merge_kernel(const struct sample_call c, uint32_t head_dim)
{
    kernel_begin();
    const struct audit_place a = audit_place_of(c, 0);
    const uint32_t n_page = (a.end + PAGE_TOK - 1) / PAGE_TOK, span = a.page_end - a.page0;
    if (threadIdx.x >= a.n_head) return;
    const size_t list = a.tile.list + threadIdx.x;
    const struct kept_sum *part = audit_sums(c, list, head_dim);
    struct kept_sum sum = part[0];
    for (uint32_t i = 1; i * span < n_page; i++) sum = kept_sum_add(sum, part[i]);
    const float mass = sum.kept / sum.all;
    c.op.lists.made[list].mass = isfinite(mass) ? mass : -1;
}

/* ---- The launcher ---- */

static struct sample_tile tile_make(const struct op_sample *op, uint32_t i)
{
    struct sample_tile t;
    memset(&t, 0, sizeof t);
    t.n_page = (op->rows.tile0 + i) * TILE_PAGES;
    t.near = t.n_page > OP_SURVEY_NEAR ? t.n_page - OP_SURVEY_NEAR : 0;
    t.stride = t.near < OP_SURVEY_FAR ? OP_SURVEY_STRIDE : 2 * OP_SURVEY_STRIDE;
    t.phase = t.stride / 2;
    if (t.near <= t.stride) /* all pages */
        t.near = 0;
    else
        t.n_far = 1 + (t.near - 1 - t.phase) / t.stride + 1;
    t.weight = survey_page_weight(t.n_page, t.phase);
    t.n_sum = t.n_far + t.n_page - t.near;
    return t;
}

/* Stages what the sampling rules derive from the call. */
static bool stage_rules(struct cuda_device *d, struct sample_call *c)
{
    const struct op_sample *op = &c->op;
    const uint32_t n_list = op->rows.n_tile * op->rows.n_head;
    void *tiles, *seeds, *limits;
    if (stage_reserve(d, op->rows.n_tile * sizeof *c->tile + n_list * sizeof *c->seed +
                             sizeof(int32_t) * (SURVEY_PERIOD + PAGE_TOK) + 3 * STAGE_ALIGN) !=
        SAC_OK)
        return false;
    c->tile = (const struct sample_tile *)stage_alloc(d, op->rows.n_tile * sizeof *c->tile, &tiles);
    c->seed = (const uint32_t *)stage_alloc(d, n_list * sizeof *c->seed, &seeds);
    c->limit =
        (const int32_t *)stage_alloc(d, sizeof(int32_t) * (SURVEY_PERIOD + PAGE_TOK), &limits);
    if (!c->tile || !c->seed || !c->limit) return false;
    for (uint32_t i = 0; i < op->rows.n_tile; i++)
        ((struct sample_tile *)tiles)[i] = tile_make(op, i);
    for (uint32_t i = 0; i < n_list; i++) {
        struct op_survey s; /* the fields that survey_seed reads */
        const uint32_t head = i % op->rows.n_head;
        s.seed = op->seed + head / c->group;
        s.n_page = &((const struct sample_tile *)tiles)[i / op->rows.n_head].n_page;
        ((uint32_t *)seeds)[i] = survey_seed(&s, 0, head % c->group);
    }
    survey_limits((int32_t *)limits);
    return true;
}

template <int F, int D> static sac_status audit(struct cuda_device *d, const struct sample_call *c)
{
    static_assert(AUDIT_PARTS * sizeof(struct kept_sum) <= OP_SURVEY_ROWS * D * sizeof(uint16_t),
                  "sums have room where queries were");
    const struct op_sample *op = &c->op;
    const uint32_t n_page = (op->rows.end + PAGE_TOK - 1) / PAGE_TOK;
    const uint32_t n_audit = (op->rows.n_tile - op->audit - 1) / op->audit_step + 1;
    const uint32_t n_head = op->rows.n_head / c->group * ((c->group + AUDIT_ROWS - 1) / AUDIT_ROWS);
    const uint32_t n_part = min(part_of(n_page, AUDIT_SPAN), AUDIT_PARTS); /* no tile has more */
    TRY(queue_launch(d, "audit of lists", sample_audit_kernel<F, D>, dim3(n_part, n_head, n_audit),
                     THREADS, AUDIT_ROWS * D * 2, *c));
    return queue_launch(d, "audited masses", sample_audit_merge_kernel, dim3(1, n_head, n_audit),
                        32, 0, *c, (uint32_t)D);
}

/* Blocks have fewer samples where all of them would not fit or would leave multiprocessors idle. */
template <int F, int D>
static struct sum_split sum_split_of(const struct cuda_device *d, const struct sample_call *c)
{
    const struct op_sample *op = &c->op;
    const uint32_t n_head = min(c->group, SUM_HEADS), n_group = part_of(c->group, n_head);
    const uint32_t n_block = op->rows.n_head / c->group * n_group * op->rows.n_tile;
    uint32_t n_sample = op->n_query;
    while (n_sample > OP_SURVEY_ROWS &&
           (sums_bytes<F, D>(n_head, n_sample) > d->smem_max ||
            n_block * part_of(op->n_query, n_sample) * 2 <= SUM_FILL * d->n_sm))
        n_sample = part_of(n_sample, 2 * OP_SURVEY_ROWS) * OP_SURVEY_ROWS;
    return {n_head, n_group, n_sample, part_of(op->n_query, n_sample)};
}

template <int F, int D> static sac_status launch(struct cuda_device *d, const struct sample_call *c)
{
    const struct op_sample *op = &c->op;
    const dim3 lists(op->rows.n_head, op->rows.n_tile);
    const uint32_t n_page = (op->rows.tile0 + op->rows.n_tile - 1) * TILE_PAGES;
    const struct sum_split by = sum_split_of<F, D>(d, c);
    const size_t sums = sums_bytes<F, D>(by.n_head, by.n_sample);
    if (n_page > 0 && !op->dense) {
        const struct survey_split cut = survey_split_of<F, D>(d, c);
        const size_t survey_smem_bytes = survey_bytes<F, D>(d, cut.n_set, op->n_query);
        const size_t least = sums > survey_smem_bytes ? sums : survey_smem_bytes;
        TRY(device_fits(d, least, "samples of so many rows, of heads of this size"));
        TRY(queue_launch(d, "sums of sampled rows", sample_sums_kernel<F, D>,
                         dim3(op->rows.n_head / c->group * by.n_group * by.n_part, op->rows.n_tile),
                         SUM_THREADS, sums, *c, by));
        TRY(queue_launch(d, "survey of keys", survey_kernel<F, D>, cut.n_column * cut.n_block,
                         SURVEY_THREADS, survey_smem_bytes, *c, cut));
    }
    TRY(queue_launch(d, "lists of prompt rows", sample_list_kernel, lists, THREADS, 0, *c));
    if (op->dense || op->audit >= op->rows.n_tile) return SAC_OK;
    return audit<F, D>(d, c);
}

template <int F>
static sac_status launch_form(struct cuda_device *d, uint32_t head_dim, const struct sample_call *c)
{
    switch (head_dim) {
    case 64: return launch<F, 64>(d, c);
    case 128: return launch<F, 128>(d, c);
    case 256: return launch<F, 256>(d, c);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "samples of rows: this head size");
    }
}

sac_status cuda_sample(struct cuda_device *d, const struct op_sample *op)
{
    struct sample_call c;
    struct op_survey rule;
    memset(&c, 0, sizeof c);
    c.op = *op;
    c.op.rows.geom = NULL;
    c.pages = rows_pages_of(&op->rows);
    c.group = op->rows.n_head / op->rows.geom->n_kv_head;
    rule.least = op->least;
    rule.n_query = op->n_query;
    c.least = survey_least(&rule);
    c.by = 2 * op->rows.scale * LOG2E;
    if (!stage_rules(d, &c)) return d->status;
    switch (attn_form_of(op->rows.geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, op->rows.geom->head_dim, &c);
    case FORM_BF16: return launch_form<FORM_BF16>(d, op->rows.geom->head_dim, &c);
    case FORM_Q8: return launch_form<FORM_Q8>(d, op->rows.geom->head_dim, &c);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "samples of rows: these pages");
    }
}
