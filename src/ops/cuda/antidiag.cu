/* antidiag.cu: blocks of keys for tiles of prompt rows by sums of antidiagonals (op_antidiag, for
 * xattention). Rows and keys are taken in groups of `stride`; the score of two groups is the mean
 * product of the row group's last row with the key group's first key, the last but one with the
 * second, and so on.
 *
 * antidiag_sums_kernel: a warp scores the row groups of a tile, of several query heads, against the
 * key groups of a block of 128 tokens: m16n8k16 with row groups as rows and key groups as columns,
 * accumulated over the rows of a group. Queries are in shared memory, keys go to registers
 * (rows.cuh). It keeps only the softmax sum of each row group over the block. antidiag_list_kernel:
 * a block for each tile and query head turns these into attention masses, takes the best blocks by
 * a radix select, and makes the list.
 *
 * Masses are compared and added in fixed point, so a list depends on its tile alone. */
#include "ops/cuda/cut.cuh"
#include "ops/cuda/list.cuh"
#include "ops/cuda/rows.cuh"

#define WARPS      8u
#define THREADS    (WARPS * 32)
#define TILE       OP_ANTIDIAG_TILE
#define TILE_PAGES (TILE / PAGE_TOK)
#define GROUPS_MAX (TILE / 4)
#define SIXTEENS   4 /* 16-row tiles of row groups in a block of threads, at most */
#define QUERY_MAX                                                                                  \
    98304u /* bytes of dynamic shared memory, which all GPUs have; one head needs less */
#define MASS_ONE 0x1p40f /* masses in fixed point */

struct antidiag_call {
    struct op_antidiag op; /* geom is not valid */
    struct rows_pages pages;
    uint32_t group;
    uint32_t n_row_group; /* row groups of a tile, and key groups of a block */
    uint32_t n_block;     /* blocks up to the last tile */
    struct exp_sum *sum;  /* [list][n_row_group][n_block] */
    float *mass;          /* [list][n_block]; later 1 for blocks that are read, else 0 */
};

/* A tile's rows, for one or several query heads. */
struct antidiag_place {
    uint32_t tile, kv_head, head;
    uint32_t n_head;     /* heads from `head` on */
    uint32_t block;      /* the tile's own block */
    size_t list;         /* of `head`; the others' follow */
    uint32_t begin, end; /* row groups of the tile that have rows */
};

static __device__ struct antidiag_place antidiag_place_of(const struct antidiag_call &c,
                                                          uint32_t tile, uint32_t head)
{
    struct antidiag_place p;
    p.tile = tile;
    p.head = head;
    p.kv_head = head / c.group;
    p.n_head = 1;
    p.block = c.op.rows.tile0 + tile;
    p.list = (size_t)tile * c.op.rows.n_head + head;
    const uint32_t first = p.block * TILE, end = min(first + TILE, c.op.rows.end);
    p.begin = (max(first, c.op.rows.pos) - first) / c.op.stride;
    p.end = (end - 1 - first) / c.op.stride + 1;
    return p;
}

/* ---- Sums of exponentials ---- */

/* In shared memory, rows r of all row groups of all heads are together; this is their number. */
static __device__ __forceinline__ uint32_t antidiag_pitch(const struct antidiag_call &c,
                                                          uint32_t n_head)
{
    return n_head * c.n_row_group;
}

/* Packs queries into shared memory, a group's last row first, zeros for rows outside the run. All
 * threads. */
template <int F, int D>
static __device__ void antidiag_pack(uint8_t *query, const struct antidiag_call &c,
                                     const struct antidiag_place &p)
{
    const uint32_t pitch = antidiag_pitch(c, p.n_head), s = c.op.stride;
    for (uint32_t i = threadIdx.x; i < s * pitch * (D / 8); i += THREADS) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8), r = row / pitch;
        const uint32_t head = row % pitch / c.n_row_group, at = row % pitch % c.n_row_group;
        const uint32_t pos = p.block * TILE + at * s + s - 1 - r;
        uint4 x = make_uint4(0, 0, 0, 0);
        if (pos >= c.op.rows.pos && pos < c.op.rows.end)
            x = pack_piece<F, D>(rows_query<D>(c.op.rows, pos - c.op.rows.pos, p.head + head),
                                 piece);
        *(uint4 *)(query + query_at<D>(row, piece)) = x;
    }
    __syncthreads();
}

/* B fragments of keys tok, tok + 1, ...; zeros for keys outside the run. */
template <int F, int D, int N>
static __device__ __forceinline__ void antidiag_keys(uint32_t (&k)[N][D / 16][2],
                                                     const struct antidiag_call &c,
                                                     uint32_t kv_head, uint32_t tok)
{
    if (tok < c.op.rows.end)
        load_keys_by<1, F, D>(k, c.pages, kv_head, tok / PAGE_TOK, tok % PAGE_TOK);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            if (tok + n >= c.op.rows.end) k[n][i / 2][i % 2] = 0;
    __syncwarp(); /* lanes may have diverged */
}

/* Scores of all row groups against eight key groups, of which this thread loads number `group` of
 * the sequence; s[m] is an accumulator fragment. */
template <int F, int D>
static __device__ __forceinline__ void antidiag_dots(float (&s)[SIXTEENS][4], uint32_t query,
                                                     const struct antidiag_call &c,
                                                     const struct antidiag_place &p, uint32_t group)
{
    constexpr int N = rows_size<F, D>::n;
    const uint32_t pitch = antidiag_pitch(c, p.n_head), n_m = (pitch + 15) / 16;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < SIXTEENS * 4; i++) s[i / 4][i % 4] = 0;
    for (uint32_t r = 0; r < c.op.stride; r += N) {
        uint32_t k[N][D / 16][2];
        antidiag_keys<F, D>(k, c, p.kv_head, group * c.op.stride + r);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < D / 16; i++)
#pragma unroll
                for (uint32_t m = 0; m < SIXTEENS; m++) {
                    uint32_t a[4];
                    if (m >= n_m) continue;
                    ldmatrix_x4(a, query + query_at<D>((r + n) * pitch + m * 16 + lane % 16,
                                                       i * 2 + lane / 16));
                    mma_16816<rows_size<F, D>::half>(s[m], a, k[n][i][0], k[n][i][1]);
                }
    }
}

/* Dynamic shared memory: queries, and eight rows more, because a 16-row tile that is not full is
 * read whole. */
static size_t antidiag_bytes(const struct antidiag_call *c, uint32_t n_head, uint32_t head_dim)
{
    return (size_t)(c->op.stride * n_head * c->n_row_group + 8) * head_dim * 2;
}

/* A warp has a block of keys, for up to n_head heads of a KV head and a tile. */
template <int F, int D>
__global__ void __launch_bounds__(THREADS)
    antidiag_sums_kernel(const struct antidiag_call c, uint32_t n_head)
{
    kernel_begin();
    const uint32_t n_kv_head = c.op.rows.n_head / c.group, n_part = (c.group + n_head - 1) / n_head;
    const uint32_t lane = blockIdx.y / n_part, part = blockIdx.y % n_part * n_head;
    struct antidiag_place p =
        antidiag_place_of(c, lane / n_kv_head, lane % n_kv_head * c.group + part);
    p.n_head = min(n_head, c.group - part);
    const uint32_t block = blockIdx.x * WARPS + threadIdx.x / 32;
    const uint32_t g = threadIdx.x % 32 / 4, j = threadIdx.x % 4;
    const float by = c.op.rows.scale / (float)c.op.stride * LOG2E;
    uint8_t *const query = kernel_shared();
    if (blockIdx.x * WARPS > p.block) return;
    antidiag_pack<F, D>(query, c, p);
    if (block > p.block) return;
    struct exp_sum sum[SIXTEENS * 2];
#pragma unroll
    for (int i = 0; i < SIXTEENS * 2; i++) sum[i] = exp_sum_none();
    for (uint32_t first = block * c.n_row_group; first < (block + 1) * c.n_row_group; first += 8) {
        float s[SIXTEENS][4];
        antidiag_dots<F, D>(s, smem_address(query), c, p, first + g);
#pragma unroll
        for (int i = 0; i < SIXTEENS * 2; i++) {
            const float x[2] = {s[i / 2][i % 2 * 2] * by, s[i / 2][i % 2 * 2 + 1] * by};
            const uint32_t own = p.block * c.n_row_group + (i * 8 + g) % c.n_row_group;
            const uint32_t seen = (first + 2 * j <= own) | (uint32_t)(first + 2 * j < own) << 1;
            sum[i] = power_sum_add(sum[i], power_sum<1>(x, seen));
        }
    }
#pragma unroll
    for (int i = 0; i < SIXTEENS * 2; i++) {
        const uint32_t row = i * 8 + g, at = row % c.n_row_group;
        if (j > 0 || row >= antidiag_pitch(c, p.n_head) || at < p.begin || at >= p.end) continue;
        const size_t list = p.list + row / c.n_row_group;
        c.sum[(list * c.n_row_group + at) * c.n_block + block] = sum[i];
        if (!isfinite(sum[i].sum)) list_fail(c.op.lists, p.kv_head);
    }
}

/* ---- Masses ---- */

static __device__ inline struct exp_sum warp_power_sum(struct exp_sum x)
{
    for (int by = 16; by > 0; by /= 2) {
        const struct exp_sum other = {__shfl_xor_sync(~0u, x.max, by),
                                      __shfl_xor_sync(~0u, x.sum, by)};
        x = power_sum_add(x, other);
    }
    return x;
}

/* Masses of the blocks up to the tile's own. all [GROUPS_MAX] is in shared memory. All threads. */
static __device__ void make_masses(float *mass, struct exp_sum *all, const struct antidiag_call &c,
                                   const struct antidiag_place &p)
{
    const struct exp_sum *sum = c.sum + p.list * c.n_row_group * c.n_block;
    for (uint32_t i = p.begin + threadIdx.x / 32; i < p.end; i += WARPS) {
        struct exp_sum x = exp_sum_none();
        for (uint32_t b = threadIdx.x % 32; b <= p.block; b += 32)
            x = power_sum_add(x, sum[i * c.n_block + b]);
        x = warp_power_sum(x);
        if (threadIdx.x % 32 == 0) all[i] = x;
    }
    __syncthreads();
    for (uint32_t b = threadIdx.x; b <= p.block; b += THREADS) {
        float x = 0;
        for (uint32_t i = p.begin; i < p.end; i++) {
            const struct exp_sum one = sum[i * c.n_block + b];
            x += one.sum * exp2_fast(one.max - all[i].max) / all[i].sum;
        }
        mass[b] = x;
    }
    __syncthreads();
}

static __device__ inline cut_sum mass_whole(float mass)
{
    return (cut_sum)(mass * MASS_ONE);
}

/* Replaces masses by marks of the blocks that are read; returns the share that they hold. */
static __device__ float take_blocks(float *mass, const struct antidiag_call &c,
                                    const struct antidiag_place &p, const struct cut_room &r)
{
    const uint32_t n = p.block; /* blocks before the tile's own */
    const auto whole = [&](uint32_t b) { return mass_whole(mass[b]); };
    const double total = (double)(p.end - p.begin) * (double)MASS_ONE;
    cut_sum others = 0, kept = whole(n) + (n > 0 ? whole(0) : 0);
    __syncthreads();
    if (threadIdx.x == 0 && n > 0) mass[0] = 0;
    __syncthreads();
    for (uint32_t b = threadIdx.x; b < n; b += THREADS) others += whole(b);
    others = block_sum(others, r.sum);
    const double lacks = ceil(c.op.mass * total) - (double)kept;
    struct cut_by_sum cut = {INFINITY, 0};
    if (lacks > 0 && others > 0) {
        const cut_sum need = lacks < (double)others ? (cut_sum)lacks : others;
        cut = cut_find_sum(mass, n, need, whole, r);
    }
    const uint32_t limit = cut_limit(mass, n, cut, whole, r);
    cut_sum taken = 0;
    for (uint32_t b = threadIdx.x; b < n; b += THREADS) {
        const bool takes = mass[b] > cut.value || (mass[b] == cut.value && b < limit);
        if (takes) taken += whole(b);
        mass[b] = takes || b == 0;
    }
    kept += block_sum(taken, r.sum);
    return (float)((double)kept / total);
}

/* ---- Lists ---- */

struct antidiag_marks {
    const float *mass;
    __device__ uint32_t word(uint32_t page) const
    {
        return mass[page / TILE_PAGES] > 0 ? ~0u : 0;
    }
    __device__ float logw(uint32_t, uint32_t) const
    {
        return 0;
    }
};

static __global__ void __launch_bounds__(THREADS) antidiag_list_kernel(const struct antidiag_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    __shared__ cut_sum sum_room[32], bin[CUT_BINS];
    __shared__ struct exp_sum all[GROUPS_MAX];
    const struct antidiag_place p = antidiag_place_of(c, blockIdx.y, blockIdx.x);
    const struct list_room to = list_room_of(c.op.lists, p.list);
    const uint32_t n_page = p.block * TILE_PAGES;
    struct attn_list list = {};
    enum plan_reason why = c.op.dense                           ? PLAN_LAYER
                           : list_failed(c.op.lists, p.kv_head) ? PLAN_NAN
                                                                : PLAN_SPARSE;
    float mass = -1;
    if (why == PLAN_SPARSE) { /* uniform in the block */
        const struct cut_room rooms = {bin, sum_room, room};
        float *of = c.mass + p.list * c.n_block;
        make_masses(of, all, c, p);
        mass = take_blocks(of, c, p, rooms);
        const struct antidiag_marks marks = {of};
        __syncthreads();
        list_make(&list, to, marks, n_page, TILE_PAGES, room);
        if (list.n_range > to.range_max) why = PLAN_OVERFLOW;
        if ((p.block + 1) * TILE <= c.op.rows.dense_to) why = PLAN_SHORT;
    }
    __syncthreads();
    if (threadIdx.x > 0) return;
    list_close(&list, to, why, n_page, TILE_PAGES);
    list.mass = mass;
    c.op.lists.made[p.list] = list;
}

/* ---- The launcher ---- */

/* Query heads of a block of threads: as many as fit, in equal parts. */
static uint32_t share_heads(const struct antidiag_call *c, uint32_t head_dim)
{
    uint32_t n_head = c->group;
    for (uint32_t n = 2; n_head > 1 && (antidiag_bytes(c, n_head, head_dim) > QUERY_MAX ||
                                        n_head * c->n_row_group > SIXTEENS * 16);
         n++)
        n_head = (c->group + n - 1) / n;
    return n_head;
}

template <int F, int D>
static sac_status launch(struct cuda_device *d, const struct antidiag_call *c)
{
    const uint32_t n_head = share_heads(c, D), n_part = (c->group + n_head - 1) / n_head;
    const size_t bytes = antidiag_bytes(c, n_head, D);
    if (!c->op.dense) {
        TRY(queue_launch(d, "sums of antidiagonals", antidiag_sums_kernel<F, D>,
                         dim3((c->n_block + WARPS - 1) / WARPS,
                              c->op.rows.n_tile * (c->op.rows.n_head / c->group) * n_part),
                         THREADS, bytes, *c, n_head));
    }
    return queue_launch(d, "lists of blocks", antidiag_list_kernel,
                        dim3(c->op.rows.n_head, c->op.rows.n_tile), THREADS, 0, *c);
}

template <int F>
static sac_status launch_form(struct cuda_device *d, uint32_t head_dim,
                              const struct antidiag_call *c)
{
    switch (head_dim) {
    case 64: return launch<F, 64>(d, c);
    case 128: return launch<F, 128>(d, c);
    case 256: return launch<F, 256>(d, c);
    default:
        return device_fail(d, SAC_ERR_UNSUPPORTED, "antidiagonals of prompt rows: this head size");
    }
}

sac_status cuda_antidiag(struct cuda_device *d, const struct op_antidiag *op)
{
    struct antidiag_call c;
    const size_t n_list = (size_t)op->rows.n_tile * op->rows.n_head;
    memset(&c, 0, sizeof c);
    c.op = *op;
    c.op.rows.geom = NULL;
    c.group = op->rows.n_head / op->rows.geom->n_kv_head;
    c.n_row_group = TILE / op->stride;
    c.n_block = op->rows.tile0 + op->rows.n_tile;
    c.pages = rows_pages_of(&op->rows);
    c.sum = (struct exp_sum *)op->room;
    c.mass = (float *)(c.sum + n_list * c.n_row_group * c.n_block);
    switch (attn_form_of(op->rows.geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, op->rows.geom->head_dim, &c);
    case FORM_BF16: return launch_form<FORM_BF16>(d, op->rows.geom->head_dim, &c);
    case FORM_Q8: return launch_form<FORM_Q8>(d, op->rows.geom->head_dim, &c);
    default:
        return device_fail(d, SAC_ERR_UNSUPPORTED, "antidiagonals of prompt rows: these pages");
    }
}
