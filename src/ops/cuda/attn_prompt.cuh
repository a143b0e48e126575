/* attn_prompt.cuh: what a block of prompt rows reads, and how it gets there: jobs, lists and their
 * pieces, the walk over tiles of keys, queries, asynchronous loads, dequantization of q8, and
 * masks. Part of attn_prompt.cu, which explains blocks and does the arithmetic. */
#ifndef SAC_OPS_CUDA_ATTN_PROMPT_CUH
#define SAC_OPS_CUDA_ATTN_PROMPT_CUH

#include "ops/cuda/attn.cuh"
#include "ops/cuda/wgmma.cuh"

#include <math_constants.h>

#define KEYS     64u /* of a tile */
#define N_TILE_8 8   /* accumulator tiles of 8 keys */

#define ROWS_FEW     64u /* of a block: one warpgroup; other blocks have two */
#define PIECES_MAX   8u  /* of a list, each of at least piece_least() tiles */
#define FEW_HEADS    16u /* models with more query heads get longer pieces */
#define MERGE_BLOCKS 8u  /* that merge the pieces of one list */
#define ALIGN_PAGES  16u /* dense lists are cut like lists of tiles of up to so many pages */
#define ALIGN_TILES  (ALIGN_PAGES / 2)
/* From this position on no block has idle rows for heads that do not exist, if lists are for enough
 * rows. */
#define FAR_TOK 4096u

struct prompt_job {        /* one run */
    const uint32_t *frame; /* [n_kv_head, stride] */
    size_t stride;
    const uint8_t *own0, *own;
    const struct attn_range *range; /* NULL: dense */
    const uint32_t *range_ptr, *tok, *tok_ptr;
    const uint32_t *n_before; /* pages that the ranges name before the list's tile */
    const float *logw;
    const struct attn_list *made; /* or: made on the device, with a buffer each */
    uint32_t range_max, tok_max;
    const struct segment_view *segment;
    uint32_t n_segment, row0, n_row, pos0;
    uint32_t tile_tok, n_lane; /* of the plan; lists of a tile */
    uint32_t n_page, n_head;   /* of a block */
    uint32_t slot_bits, at0; /* a block has 2^slot_bits rows of a page and head, from row at0 on */
    uint32_t n_kv_head, group, n_block_head; /* n_block_head: blocks for the heads of a KV head */
    uint32_t block0, n_block;                /* blocks of n_page pages by position */
    uint32_t n_piece, part0;                 /* of a list, at most; first part [block][n_piece] */
};

/* Warps of a block of R rows. With 128 channels the accumulators leave registers for four warps of
 * 32 rows. Smaller heads have eight warps of 16 rows: exponentials take as long as products there,
 * and warps at different stages keep both units busy. */
template <int D, int R> struct prompt_warps {
    static constexpr int m = D == 128 ? R / 64 : 1; /* 16-row tiles of a warp */
    static constexpr int n = R / (16 * m), threads = n * 32;
    static_assert(m == 1 || n == 4, "a warp's tiles are 64 rows apart");
};

/* Sizes with S stages: two, or one where shared memory is too small. */
template <int F, int D, int R, int S = 2> struct prompt_size {
    static constexpr int m = prompt_warps<D, R>::m, rows = R;
    static constexpr int tile = (int)KEYS * D * 4; /* K, then V, in 16 bits */
    /* Two q8 pages, rounded up so that two stages keep the alignment of the 16-bit tile after
     * them. */
    static constexpr int raw = F == FORM_Q8 ? (2 * page_at<F, D>::bytes + 511) / 512 * 512 : 0;
    /* With a single stage, q8 pages are dequantized directly from global memory. */
    static constexpr int stage = F == FORM_Q8 ? (S == 1 ? 0 : raw) : tile;
    static constexpr int query = rows * D * 2, stages = S * stage;
    static_assert((query + stages) % 1024 == 0 && tile % 1024 == 0, "panels of wgmma.cuh");
    /* After the stages: the 16-bit tile of q8; logs of weights for two tiles; two words for
     * find_bad. */
    static constexpr int logw = query + stages + (F == FORM_Q8 ? tile : 0);
    static constexpr int bad = logw + 2 * (int)(KEYS * sizeof(float)), smem = bad + 64;
    /* Blocks of a multiprocessor, for __launch_bounds__. */
    static constexpr int together = smem > 113 * 1024 ? 1 : D < 128 && R == 64 ? 4 : 2;
};

/* A tile of 64 keys. */
enum tile_kind { TILE_END, TILE_PAGES, TILE_TOKENS, TILE_OWN };

struct key_tile {
    enum tile_kind kind;
    uint32_t page[2], n; /* pages; or n tokens from index page[0] of the list on */
    uint32_t place[2];   /* of sealed pages; or tokens number lane and lane + 32 */
    uint32_t segment;
};

/* The part of a list before the rows' tile: n_tile tiles, n_pair of them page pairs. */
struct prompt_list {
    uint32_t range, range_end, tok, tok_end;
    uint32_t n_pair, n_tile;
    uint32_t n_piece, len; /* pieces, and tiles of each but the last */
};

struct prompt_walk {     /* position in what a block reads; the same in all threads */
    uint32_t n_pair;     /* page pairs left, before the tokens */
    bool is_last;        /* the last piece, which has the rest as well */
    uint32_t i, n;       /* next entry of the list's ranges, and their end */
    uint32_t page, end;  /* pages left in the current range */
    uint32_t tok, n_tok; /* tokens left */
    uint32_t own, own_end;
    uint32_t limit; /* pages from here on are no row's past */
};

struct prompt_block { /* the same in all threads */
    const struct attn_call *call;
    const struct prompt_job *job;
    const uint32_t *frame;           /* of the KV head */
    uint32_t kv_head, head0, n_head; /* query heads */
    uint32_t page0; /* the block's rows are in pages page0 to page0 + job.n_page - 1 */
};

struct tile_view { /* a tile and what its rows see */
    const struct prompt_block *b;
    const struct key_tile *t;
    const float *logw; /* [KEYS] in shared memory, or NULL */
    bool whole;        /* all rows see all keys; else: */
    uint64_t bad;      /* bits of keys whose V was not finite */
};

/* What a warp has of its M 16-row tiles, 64 rows of the block apart. */
template <int D, int M> struct prompt_warp {
    static constexpr int m = M;
    float acc[M][D / 8][4];
    float max[M][2], sum[M][2]; /* rows g, g + 8 */
    uint32_t poison;            /* bit 2 m + i: the row has seen a value that is not finite */
};

/* The position of row `row` of a block; of each page and head a block has 2^slot_bits rows. */
__device__ __forceinline__ uint32_t slot_pos(const struct prompt_block &b, uint32_t row)
{
    const struct prompt_job &job = *b.job;
    const uint32_t page = b.page0 + (row >> job.slot_bits) % job.n_page;
    return page * PAGE_TOK + job.at0 + (row & ((1u << job.slot_bits) - 1));
}

/* Which of the block's heads that row belongs to. */
__device__ __forceinline__ uint32_t slot_head(const struct prompt_block &b, uint32_t row)
{
    return (row >> b.job->slot_bits) / b.job->n_page;
}

/* Makes this thread's stores to shared memory visible to wgmma after the next barrier. */
__device__ __forceinline__ void publish_shared(void)
{
#ifdef HAS_WGMMA
    fence_proxy_async();
#endif
}

/* The byte offset of 16-byte piece `piece` of a row in a tile of n rows: panels of eight pieces
 * (128 bytes), swizzled by the row, so that neither ldmatrix of eight rows nor a store of one row
 * has bank conflicts. */
__device__ __forceinline__ uint32_t tile_at(uint32_t n, uint32_t row, uint32_t piece)
{
    return piece / 8 * (n * 128) + row * 128 + ((piece % 8) ^ (row & 7)) * 16;
}

/* The first of the 16 rows of the block that this thread's warp has in its tile m. */
__device__ __forceinline__ uint32_t warp_row(int m)
{
    return (uint32_t)m * 64 + threadIdx.x / 32 * 16;
}

/* ---- Lists and the walk over them ---- */

/* The index of the block's list. */
__device__ __forceinline__ uint32_t list_index(const struct prompt_block &b)
{
    const struct prompt_job &job = *b.job;
    const uint32_t tile = b.page0 * PAGE_TOK / job.tile_tok - job.pos0 / job.tile_tok;
    return tile * job.n_lane + (job.n_lane == job.n_kv_head ? b.kv_head : b.head0);
}

__device__ __forceinline__ void list_lengths(struct prompt_list &l, const struct prompt_block &b)
{
    const struct prompt_job &job = *b.job;
    if (!job.range) {
        l.n_pair = b.page0 / ALIGN_PAGES * ALIGN_TILES;
        return;
    }
    const uint32_t list = list_index(b);
    if (job.made) {
        const struct attn_list made = job.made[list];
        l.range = list * job.range_max, l.range_end = l.range + made.n_range;
        l.tok = list * job.tok_max, l.tok_end = l.tok + made.n_tok;
        l.n_pair = (made.n_before - made.n_tok) / PAGE_TOK / 2;
        return;
    }
    l.range = job.range_ptr[list], l.range_end = job.range_ptr[list + 1];
    if (job.tok) l.tok = job.tok_ptr[list], l.tok_end = job.tok_ptr[list + 1];
    l.n_pair = job.n_before[list] / 2;
}

/* Tiles of a piece, at least. Models with few heads have few blocks, so their lists are cut
 * finer. */
static inline __host__ __device__ uint32_t piece_least(const struct prompt_job &job)
{
    const uint32_t n = job.n_kv_head * job.group / FEW_HEADS;
    return PROMPT_PIECE * (n > 1 ? n : 1);
}

/* The block's list and its pieces. Lists that meet segments, and windows, which are short, are not
 * cut. */
__device__ struct prompt_list list_of(const struct prompt_block &b)
{
    struct prompt_list l = {};
    list_lengths(l, b);
    if (b.job->n_segment || b.call->window) l.n_pair = 0;
    l.n_piece = l.len = 1;
    if (b.job->n_segment || b.call->window) return l;
    l.n_tile = l.n_pair + (l.tok_end - l.tok + KEYS - 1) / KEYS;
    /* The same for all lists of these rows. */
    const uint32_t alike = l.n_tile / ALIGN_TILES * ALIGN_TILES;
    l.n_piece = min(PIECES_MAX, alike / piece_least(*b.job) + 1);
    l.len = (alike + l.n_piece - 1) / l.n_piece;
    return l;
}

/* Skips n_skip pages of the ranges, which have that many. */
__device__ void walk_skip(struct prompt_walk &w, const struct prompt_job &job, uint32_t n_skip)
{
    const uint32_t lane = threadIdx.x % 32;
    while (n_skip > 0 && w.i < w.n) {
        const struct attn_range none = {0, 0};
        const struct attn_range r = w.i + lane < w.n ? job.range[w.i + lane] : none;
        uint32_t up_to = r.end - r.begin;
        for (uint32_t by = 1; by < 32; by *= 2) {
            const uint32_t before = __shfl_up_sync(~0u, up_to, by);
            if (lane >= by) up_to += before;
        }
        const uint32_t beyond = __ballot_sync(~0u, up_to > n_skip);
        const uint32_t at = beyond ? (uint32_t)__ffs(beyond) - 1 : 31;
        const uint32_t page = r.end - (up_to - n_skip); /* in the lane that reaches beyond */
        const uint32_t first = __shfl_sync(~0u, page, at), end = __shfl_sync(~0u, r.end, at);
        const uint32_t all = __shfl_sync(~0u, up_to, 31);
        w.i += at + 1;
        if (beyond) {
            w.page = first;
            w.end = min(end, w.limit);
            return;
        }
        n_skip -= all;
    }
}

/* The walk over piece `piece` of what the block reads. */
__device__ struct prompt_walk walk_begin(const struct prompt_block &b, const struct prompt_list &l,
                                         uint32_t piece)
{
    const struct prompt_job &job = *b.job;
    struct prompt_walk w = {};
    const uint32_t last = (job.pos0 + job.n_row - 1) / PAGE_TOK; /* page of the run's last row */
    const uint32_t most = l.n_tile / ALIGN_TILES * ALIGN_TILES;
    const uint32_t begin = min(piece * l.len, most);
    w.is_last = piece + 1 == l.n_piece;
    const uint32_t end = w.is_last ? l.n_tile : min(begin + l.len, most);
    const uint32_t pair = min(begin, l.n_pair);
    w.n_pair = min(end, l.n_pair) - pair;
    w.tok = min(l.tok_end, l.tok + (begin - pair) * KEYS);
    w.n_tok = min(l.tok_end, l.tok + (end - min(end, l.n_pair)) * KEYS);
    if (w.is_last) w.n_tok = l.tok_end;
    w.own_end = min(b.page0 + job.n_page, last + 1);
    w.own = max(b.page0, job.pos0 / PAGE_TOK);
    w.limit = w.own_end - 1;
    w.i = l.range, w.n = l.range_end;
    if (job.range) {
        walk_skip(w, job, 2 * pair);
        return w;
    }
    const uint32_t pos = b.page0 * PAGE_TOK, window = b.call->window;
    w.page = window > 0 && pos >= window ? (pos - window + 1) / PAGE_TOK : 2 * pair;
    w.end = w.limit;
    return w;
}

__device__ __forceinline__ bool walk_page(struct prompt_walk &w, const struct prompt_job &job)
{
    while (w.page >= w.end && w.i < w.n) {
        const struct attn_range r = job.range[w.i++];
        w.page = r.begin;
        w.end = min(r.end, w.limit);
    }
    return w.page < w.end;
}

__device__ __forceinline__ uint32_t walk_segment(const struct prompt_job &job, uint32_t page)
{
    return job.n_segment ? attn_segment_of(job.segment, job.n_segment, page) : 0;
}

/* The usual tile: two neighbouring pages of a range. */
__device__ __forceinline__ struct key_tile walk_pair(struct prompt_walk &w,
                                                     const struct prompt_block &b)
{
    const uint32_t *const frame = b.frame + w.page;
    const struct key_tile t = {
        TILE_PAGES,
        {w.page, w.page + 1},
        2,
        {place_find(b.call->frames, frame[0]), place_find(b.call->frames, frame[1])},
        0};
    w.page += 2;
    w.n_pair--;
    return t;
}

/* The next tile. own_max: own pages that fit into a tile. */
__device__ __forceinline__ struct key_tile walk_next(struct prompt_walk &w,
                                                     const struct prompt_block &b, uint32_t own_max)
{
    const struct prompt_job &job = *b.job;
    if (likely(w.n_pair > 0 && w.page + 2 <= w.end)) return walk_pair(w, b);
    struct key_tile t = {};
    if (w.n_pair == 0 && w.tok == w.n_tok && !w.is_last) return t;
    if ((w.n_pair > 0 || w.tok == w.n_tok) && walk_page(w, job)) {
        t.kind = TILE_PAGES;
        if (w.n_pair > 0) w.n_pair--;
        t.page[0] = w.page++;
        t.n = 1;
        t.segment = walk_segment(job, t.page[0]);
        t.place[0] = place_find(b.call->frames, b.frame[t.page[0]]);
        if (walk_page(w, job) && walk_segment(job, w.page) == t.segment) {
            t.place[1] = place_find(b.call->frames, b.frame[w.page]);
            t.page[1] = w.page++;
            t.n = 2;
        }
    } else if (w.tok < w.n_tok) {
        t.kind = TILE_TOKENS;
        t.page[0] = w.tok;
        for (uint32_t i = 0; i < 2; i++)
            t.place[i] = job.tok[min(w.tok + threadIdx.x % 32 + i * 32, w.n_tok - 1)];
        t.segment = job.n_segment ? walk_segment(job, job.tok[w.tok] / PAGE_TOK) : 0;
        const uint32_t most = min(KEYS, w.n_tok - w.tok);
        t.n = job.n_segment ? 1 : most;
        while (t.n < most && walk_segment(job, job.tok[w.tok + t.n] / PAGE_TOK) == t.segment) t.n++;
        w.tok += t.n;
    } else if (w.own < w.own_end) {
        t.kind = TILE_OWN;
        t.page[0] = w.own++;
        t.n = 1;
        t.segment = walk_segment(job, t.page[0]);
        if (own_max > 1 && w.own < w.own_end && walk_segment(job, w.own) == t.segment) {
            t.page[1] = w.own++;
            t.n = 2;
        }
    }
    return t;
}

/* ---- Queries ---- */

/* Whether the run has row `row` of the block; *q becomes its query. */
__device__ __forceinline__ bool query_find(const struct prompt_block &b, uint32_t row, int head_dim,
                                           const float **q)
{
    const struct prompt_job &job = *b.job;
    const uint32_t pos = slot_pos(b, row), head = slot_head(b, row);
    *q = b.call->q + (job.row0 + pos - job.pos0) * b.call->q_stride +
         (size_t)(b.head0 + head) * head_dim;
    return head < b.n_head && pos >= job.pos0 && pos - job.pos0 < job.n_row;
}

/* Stores the block's queries in 16 bits, turned for the keys of a segment. */
template <int F, int D, int R>
__device__ void store_query(uint8_t *smem, const struct prompt_block &b, uint32_t segment)
{
    constexpr int H = page_at<F, D>::half;
    const struct prompt_job &job = *b.job;
    const struct segment_view *const s = segment < job.n_segment ? &job.segment[segment] : NULL;
    for (uint32_t i = threadIdx.x; i < R * (D / 8); i += prompt_warps<D, R>::threads) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8);
        const float *q;
        float x[8] = {};
        if (query_find(b, row, D, &q))
            for (uint32_t c = 0; c < 8; c++) x[c] = attn_rotated(q, piece * 8 + c, s, b.call->rope);
        *(uint4 *)(smem + tile_at(R, row, piece)) =
            make_uint4(half_pack<H>(x[0], x[1]), half_pack<H>(x[2], x[3]), half_pack<H>(x[4], x[5]),
                       half_pack<H>(x[6], x[7]));
    }
}

/* ---- Loads of tiles ---- */

/* The number of this thread among the N that load: all threads of the block, or a warpgroup. */
template <int N> __device__ __forceinline__ uint32_t load_thread(void)
{
    return threadIdx.x % N;
}

/* Starts the copies of a page's 16-bit rows to keys n0 to n0 + 31 of a tile; by N threads. */
template <int D, int N>
__device__ void load_page_async(uint8_t *tile, uint32_t n0, const uint8_t *page, uint32_t v)
{
#pragma unroll /* the same number of iterations in all threads */
    for (uint32_t k = 0; k < PAGE_TOK * (D / 8) / N; k++) {
        const uint32_t i = load_thread<N>() + k * N, row = n0 + i / (D / 8), piece = i % (D / 8);
        const uint32_t to = smem_address(tile) + tile_at(KEYS, row, piece);
        cp_async16(to, page + i * 16);
        cp_async16(to + KEYS * D * 2, page + v + i * 16);
    }
}

/* The same for two pages, which fill the tile. A thread has the same piece of every step-th row, so
 * that all its addresses are a base and a constant. */
template <int D, int N>
__device__ __forceinline__ void load_pages_async(uint8_t *tile, const uint8_t *first,
                                                 const uint8_t *second, uint32_t v)
{
    constexpr uint32_t step = N / (D / 8);
    static_assert(step % 8 == 0, "the swizzle is the same in all rows of a thread");
    const uint32_t thread = load_thread<N>();
    const uint32_t to = smem_address(tile) + tile_at(KEYS, thread / (D / 8), thread % (D / 8));
    first += thread * 16, second += thread * 16;
    keep_in_register(first), keep_in_register(second);
#pragma unroll
    for (uint32_t row = 0; row < PAGE_TOK; row += step) {
        cp_async16(to + row * 128, first + row * (D * 2));
        cp_async16(to + (PAGE_TOK + row) * 128, second + row * (D * 2));
    }
#pragma unroll
    for (uint32_t row = 0; row < PAGE_TOK; row += step) {
        cp_async16(to + KEYS * D * 2 + row * 128, first + v + row * (D * 2));
        cp_async16(to + KEYS * D * 2 + (PAGE_TOK + row) * 128, second + v + row * (D * 2));
    }
}

/* Zeroes the keys from n0 on. */
template <int D, int N> __device__ void zero_keys(uint8_t *tile, uint32_t n0)
{
    for (uint32_t i = n0 * (D / 8) + load_thread<N>(); i < KEYS * (D / 8); i += N) {
        const uint32_t to = smem_address(tile) + tile_at(KEYS, i / (D / 8), i % (D / 8));
        store_zero16(to);
        store_zero16(to + KEYS * D * 2);
    }
}

template <int F, int D>
__device__ __forceinline__ const uint8_t *sealed_page(const struct prompt_block &b, uint32_t place)
{
    return place_bytes(b.call->frames, place, page_at<F, D>::bytes);
}

/* The page of token `tok`. */
template <int F, int D>
__device__ __forceinline__ const uint8_t *token_page(const struct prompt_block &b, uint32_t tok)
{
    return place_page(b.call->frames, b.frame[tok / PAGE_TOK], page_at<F, D>::bytes);
}

template <int F, int D, int N>
__device__ void load_tokens_async(uint8_t *tile, const struct prompt_block &b,
                                  const struct key_tile &t)
{
    constexpr uint32_t n_row = N / (D / 8), n_part = KEYS / n_row;
    const uint32_t row0 = load_thread<N>() / (D / 8), piece = threadIdx.x % (D / 8);
    const uint8_t *k[n_part];
#pragma unroll /* all lookups in flight together */
    for (uint32_t p = 0; p < n_part; p++) {
        const uint32_t row = row0 + p * n_row;
        const uint32_t tok = __shfl_sync(~0u, t.place[p * n_row / 32], row % 32);
        k[p] = token_page<F, D>(b, tok) + tok % PAGE_TOK * (D * 2) + piece * 16;
    }
#pragma unroll
    for (uint32_t p = 0; p < n_part; p++) {
        const uint32_t to = smem_address(tile) + tile_at(KEYS, row0 + p * n_row, piece);
        if (row0 + p * n_row >= t.n) break;
        cp_async16(to, k[p]);
        cp_async16(to + KEYS * D * 2, k[p] + page_at<F, D>::v);
    }
}

/* Starts the copies of the tokens' log weights, if they have any. */
template <int N>
__device__ __forceinline__ void load_logw_async(float *to, const struct prompt_block &b,
                                                const struct key_tile &t)
{
    const float *const logw = b.job->logw;
    const uint32_t i = load_thread<N>();
    if (logw && t.kind == TILE_TOKENS && i < t.n)
        cp_async4(smem_address(to + i), logw + t.page[0] + i);
}

template <int D>
__device__ __forceinline__ const uint8_t *own_page(const struct prompt_block &b, uint32_t page)
{
    const struct prompt_job &job = *b.job;
    const uint32_t j = page - job.pos0 / PAGE_TOK;
    const size_t bytes = page_at<FORM_F16, D>::tail_bytes;
    return j == 0 ? job.own0 + b.kv_head * bytes
                  : job.own + ((size_t)(j - 1) * job.n_kv_head + b.kv_head) * bytes;
}

/* Starts the copies of a tile of 16-bit keys and values; by N threads. */
template <int F, int D, int N>
__device__ void load_half_tile_async(uint8_t *to, const struct prompt_block &b,
                                     const struct key_tile &t)
{
    using at = page_at<F, D>;
    static_assert(at::v == at::tail_v, "own pages lie as sealed ones do");
    if (t.kind == TILE_TOKENS) {
        load_tokens_async<F, D, N>(to, b, t);
        zero_keys<D, N>(to, t.n);
    } else if (t.kind != TILE_END) {
#pragma unroll
        for (uint32_t p = 0; p < 2; p++) {
            if (p >= t.n) break;
            const uint8_t *from =
                t.kind == TILE_OWN ? own_page<D>(b, t.page[p]) : sealed_page<F, D>(b, t.place[p]);
            load_page_async<D, N>(to, p * PAGE_TOK, from, at::v);
        }
        zero_keys<D, N>(to, t.n * PAGE_TOK);
    }
}

/* Starts the copies of the q8 pages of a tile, or of its own page, as they are; by N threads.
 * Single tokens are read where they lie. */
template <int D, int N>
__device__ __forceinline__ void load_code_tile_async(uint8_t *to, const struct prompt_block &b,
                                                     const struct key_tile &t)
{
    using at = page_at<FORM_Q8, D>;
    const bool own = t.kind == TILE_OWN;
    const uint32_t n = t.kind == TILE_PAGES ? t.n : own ? 1 : 0;
    const uint32_t bytes = own ? at::tail_bytes : at::bytes;
#pragma unroll
    for (uint32_t p = 0; p < 2; p++) {
        if (p >= n) break;
        const uint8_t *from =
            own ? own_page<D>(b, t.page[p]) : sealed_page<FORM_Q8, D>(b, t.place[p]);
        for (uint32_t k = load_thread<N>() * 16; k < bytes; k += N * 16)
            cp_async16(smem_address(to) + p * at::bytes + k, from + k);
    }
}

/* Starts the copies of tile i to its stage, as one commit group. */
template <int F, int D, int R, int S>
__device__ void load_tile_async(uint8_t *smem, uint32_t i, const struct prompt_block &b,
                                const struct key_tile &t)
{
    using size = prompt_size<F, D, R, S>;
    constexpr int N = prompt_warps<D, R>::threads;
    uint8_t *const stage = smem + size::query + i % S * size::stage;
    load_logw_async<N>((float *)(smem + size::logw) + i % 2 * KEYS, b, t);
    if constexpr (F == FORM_Q8 && S > 1)
        load_code_tile_async<D, N>(stage, b, t);
    else if constexpr (F != FORM_Q8)
        load_half_tile_async<F, D, N>(stage, b, t);
    cp_async_commit();
}

/* ---- q8 to f16 ---- */

/* Dequantizes token t of a q8 page into key `row` of a tile; thread `part` of D / 16 that share
 * it. */
template <int D>
__device__ __forceinline__ void unpack_token(uint8_t *tile, uint32_t row, const uint8_t *page,
                                             uint32_t t, uint32_t part)
{
    using at = page_at<FORM_Q8, D>;
    uint8_t *k = tile, *v = k + KEYS * D * 2;
    const uint8_t *low = page + at::k_low + t * (D * 3 / 4);
    const uint32_t hi = *(const uint32_t *)(page + at::k_hi2 + t * (D / 4) + part * 4);
    const uint32_t mid = *(const uint32_t *)(low + part * 4);
    const uint32_t lo[2] = {*(const uint32_t *)(low + D / 4 + part * 4),
                            *(const uint32_t *)(low + D / 2 + part * 4)};
#pragma unroll
    for (int s = 0; s < 4; s++) {
        const uint32_t codes = q8_codes(hi, mid, lo[s % 2], s), c = s * (D / 4) + part * 4;
        const uint2 min = *(const uint2 *)(page + at::k_min + c * 2);
        const uint2 by = *(const uint2 *)(page + at::k_step + c * 2);
        *(uint2 *)(k + tile_at(KEYS, row, c / 8) + c % 8 * 2) = make_uint2(
            h2_fma(by.x, q8_pair(codes, 0), min.x), h2_fma(by.y, q8_pair(codes, 2), min.y));
    }
    const uint32_t c = part * 16;
    uint32_t scale = *(const uint16_t *)(page + at::v_scale + (t * at::n_block + c / 32) * 2);
    scale |= scale << 16;
    const uint4 q = *(const uint4 *)(page + at::v + t * D + c);
    const uint32_t code[4] = {q.x ^ 0x80808080u, q.y ^ 0x80808080u, q.z ^ 0x80808080u,
                              q.w ^ 0x80808080u};
    uint32_t x[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = h2_mul(q8_signed_pair(code[i / 2], i % 2 * 2), scale);
    *(uint4 *)(v + tile_at(KEYS, row, c / 8)) = make_uint4(x[0], x[1], x[2], x[3]);
    *(uint4 *)(v + tile_at(KEYS, row, c / 8 + 1)) = make_uint4(x[4], x[5], x[6], x[7]);
}

/* Page p of the tile in global memory. */
template <int D>
__device__ __forceinline__ const uint8_t *page_in_place(const struct prompt_block &b,
                                                        const struct key_tile &t, uint32_t p)
{
    return t.kind == TILE_OWN ? own_page<D>(b, t.page[p])
                              : sealed_page<FORM_Q8, D>(b, p == 0 ? t.place[0] : t.place[1]);
}

/* Dequantizes a q8 tile, from its stage or, with a single stage, from global memory. */
template <int D, int R, int S>
__device__ void unpack(uint8_t *tile, const uint8_t *stage, const struct prompt_block &b,
                       const struct key_tile &t)
{
    constexpr int N = prompt_warps<D, R>::threads;
    constexpr uint32_t part = D / 16;
    uint32_t n = t.n;
    if (t.kind == TILE_OWN) {
        n = PAGE_TOK;
        if constexpr (S == 1) stage = page_in_place<D>(b, t, 0);
        for (uint32_t i = threadIdx.x; i < PAGE_TOK * (D / 8); i += N) {
            const uint32_t to = tile_at(KEYS, i / (D / 8), i % (D / 8));
            *(uint4 *)(tile + to) = *(const uint4 *)(stage + i * 16);
            *(uint4 *)(tile + KEYS * D * 2 + to) =
                *(const uint4 *)(stage + page_at<FORM_Q8, D>::tail_v + i * 16);
        }
    } else if (t.kind == TILE_PAGES) {
        n = t.n * PAGE_TOK;
        for (uint32_t i = threadIdx.x; i < n * part; i += N) {
            const uint32_t row = i / part;
            const uint8_t *page = stage + row / PAGE_TOK * page_at<FORM_Q8, D>::bytes;
            if constexpr (S == 1) page = page_in_place<D>(b, t, row / PAGE_TOK);
            unpack_token<D>(tile, row, page, row % PAGE_TOK, i % part);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n * part; i += N) {
            const uint32_t row = i / part, tok = b.job->tok[t.page[0] + row];
            unpack_token<D>(tile, row, token_page<FORM_Q8, D>(b, tok), tok % PAGE_TOK, i % part);
        }
    }
    zero_keys<D, N>(tile, n);
}

/* ---- Masks ---- */

/* A barrier of the N threads that load. */
template <int N> __device__ __forceinline__ void load_sync(void)
{
#ifdef HAS_WGMMA
    if (N < blockDim.x) return warpgroup_sync(warpgroup_index());
#endif
    __syncthreads();
}

/* Bits of the keys whose V is not all finite; their V is zeroed. By N threads. */
template <int F, int D, int N> __device__ uint64_t find_bad(uint8_t *tile, uint32_t *bad)
{
    constexpr uint32_t exponent = page_at<F, D>::half == HALF_F16 ? 0x7c00u : 0x7f80u;
    if (load_thread<N>() < 2) bad[load_thread<N>()] = 0;
    load_sync<N>();
    uint4 *const v = (uint4 *)(tile + KEYS * D * 2); /* eight pieces of a row in each panel */
    for (uint32_t i = load_thread<N>(); i < KEYS * (D / 8); i += N) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w}, row = i / 8 % KEYS;
        bool is_bad = false;
#pragma unroll
        for (int k = 0; k < 4; k++)
            is_bad |= (w[k] & exponent) == exponent || (w[k] >> 16 & exponent) == exponent;
        if (is_bad) atomicOr(&bad[row / 32], 1u << row % 32);
    }
    load_sync<N>();
    const uint64_t all = (uint64_t)bad[1] << 32 | bad[0];
    if (all == 0) return 0;
    for (uint32_t i = load_thread<N>(); i < KEYS * (D / 8); i += N)
        if (all >> (i / 8 % KEYS) & 1) v[i] = make_uint4(0, 0, 0, 0);
    publish_shared();
    load_sync<N>();
    return all;
}

/* Bits of the keys that a row at position pos sees. */
__device__ __forceinline__ uint64_t seen_keys(const struct prompt_block &b,
                                              const struct key_tile &t, uint32_t pos)
{
    const uint32_t window = b.call->window, own = pos / PAGE_TOK;
    const uint32_t first = window > 0 && pos >= window ? pos - window + 1 : 0;
    if (t.kind == TILE_TOKENS) return t.n == KEYS ? ~0ull : (1ull << t.n) - 1;
    uint64_t seen = 0;
#pragma unroll
    for (uint32_t p = 0; p < 2; p++) {
        if (p >= t.n) break;
        const uint32_t at = t.page[p] * PAGE_TOK;
        uint32_t bits = t.kind == TILE_PAGES ? (t.page[p] < own ? ~0u : 0)
                        : t.page[p] == own   ? 0xffffffffu >> (31 - pos % PAGE_TOK)
                                             : 0;
        if (first > at) bits &= first - at < 32 ? ~0u << (first - at) : 0;
        seen |= (uint64_t)bits << p * 32;
    }
    return seen;
}

__device__ __forceinline__ bool seen_by_all(const struct prompt_block &b, const struct key_tile &t)
{
    if (t.kind == TILE_TOKENS) return t.n == KEYS;
    if (t.kind == TILE_OWN || t.n < 2 || t.page[1] >= b.page0) return false;
    const uint32_t window = b.call->window;
    if (window == 0) return true;
    const uint32_t last = (b.page0 + b.job->n_page) * PAGE_TOK - 1;
    return last < window || t.page[0] * PAGE_TOK >= last - window + 1;
}

#endif
