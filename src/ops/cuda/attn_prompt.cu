/* attn_prompt.cu: attention of prompt rows over pages with plans, by the matrix instructions of
 * compute capability 8.0, or by Hopper's where they are and heads are of 128 channels at most.
 *
 * A block has rows of one KV head: `pairs` of a page of positions and a query head, 32 rows each.
 * It walks over what its rows read in tiles of 64 keys: two pages of its list, in the list's order,
 * or 64 single tokens, and at last own pages. Tiles are cut by the list alone and blocks by
 * positions in the sequence, and keys that a row does not see have weight 0, so a row's sums are
 * the same however a prompt is cut into chunks and whichever rows are computed beside it.
 *
 * Lists differ in length, and the longest would be waited for. So a list of many tiles is cut into
 * pieces, by its length alone, a block each: full pairs of pages before the rows' tile, then
 * tokens, in equal parts; what else there is, own pages among it, is the last piece's. Sums of
 * pieces go to scratch, and another launch merges them in their order.
 *
 * The next tile is on its way into shared memory while this one is multiplied. Pages in q8 arrive
 * as they are and become f16 there. Queries and weights are rounded to 16 bits, sums are of f32. A
 * row that sees a value that is not finite in a tile that is not seen by all becomes NaN as a
 * whole. */
#include "ops/cuda/attn.cuh"
#include "ops/cuda/wgmma.cuh"

#include <math_constants.h>

#define KEYS     64u /* of a tile */
#define N_TILE_8 8   /* 8 keys each */

#define PIECES_MAX   8u /* of a list, each of piece_least() tiles or more */
#define FEW_HEADS    16u /* of a model; one of more has longer pieces */
#define MERGE_BLOCKS 8u /* that merge the pieces of one list */
#define ALIGN_PAGES  8u /* of rows: a list of a tile that divides them is cut as dense rows are */
/* From this position on no block has rows of heads that are not there, if lists have rows enough. */
#define FAR_TOK      4096u

struct prompt_job {        /* a run */
    const uint32_t *frame; /* [n_kv_head, stride] */
    size_t stride;
    const uint8_t *own0, *own;
    const struct attn_range *range; /* NULL: dense */
    const uint32_t *range_ptr, *tok, *tok_ptr;
    const uint32_t *n_before; /* pages that ranges name before the list's tile */
    const float *logw;
    const struct attn_list *made; /* in place of the four: each list has a room of its own */
    uint32_t range_max, tok_max;
    const struct segment_view *segment;
    uint32_t n_segment, row0, n_row, pos0;
    uint32_t tile_tok, n_lane;               /* of the plan: lists of a tile */
    uint32_t n_page, n_head;                 /* pages and heads of a block */
    uint32_t slot_bits, at0; /* log2 of a page's rows that it takes of a head, from this one on */
    uint32_t n_kv_head, group, n_block_head; /* blocks of a KV head */
    uint32_t block0, n_block; /* first block of positions, n_page pages each, and how many */
    uint32_t n_piece, part0;  /* of a list at most; where sums of pieces begin: [block][n_piece] */
};

/* Sums of 128 channels leave registers for four warps alone, of 32 rows each. Small heads have
 * eight of 16 rows: exponents take as long as products there, and warps that wait for one another's
 * are what keeps both units busy. */
template <int D> struct prompt_warps {
    static constexpr int m = D == 128 ? 2 : 1; /* tiles of 16 rows of a warp */
    static constexpr int n = D < 128 ? 8 : 4, threads = n * 32, rows = n * 16 * m;
};

template <int F, int D> struct prompt_size {
    static constexpr int m = prompt_warps<D>::m, rows = prompt_warps<D>::rows;
    static constexpr int pairs = rows / (int)PAGE_TOK;
    static constexpr int tile = (int)KEYS * D * 4; /* K, then V, in 16 bits */
    /* Two q8 pages, up to half of what 16-bit tiles behind two of them are aligned to. */
    static constexpr int raw = F == FORM_Q8 ? (2 * page_at<F, D>::bytes + 511) / 512 * 512 : 0;
    static constexpr int stage = F == FORM_Q8 ? raw : tile;
    static constexpr int query = rows * D * 2;
    static_assert((query + 2 * stage) % 1024 == 0 && tile % 1024 == 0, "panels of wgmma.cuh");
    /* Behind the stages 16-bit tiles of q8; then logs of weights of both tiles that are there or on
     * their way, and two words (find_bad). */
    static constexpr int logw = query + 2 * stage + (F == FORM_Q8 ? tile : 0);
    static constexpr int bad = logw + 2 * (int)(KEYS * sizeof(float)), smem = bad + 64;
};

/* 64 keys that are read together. */
enum tile_kind { TILE_END, TILE_PAGES, TILE_TOKENS, TILE_OWN };

struct key_tile {
    enum tile_kind kind;
    uint32_t page[2], n; /* pages; or tokens n from number page[0] of the list on */
    uint32_t place[2];   /* of sealed pages; or, of the list's tokens, this lane's and lane + 32 */
    uint32_t segment;
};

struct prompt_list { /* what rows of a block read before their tile; n of it are tiles of pairs */
    uint32_t range, range_end, tok, tok_end;
    uint32_t n_pair, n_tile;
    uint32_t n_piece, len; /* pieces, and tiles of each but the last */
};

struct prompt_walk {     /* where a block is in what its rows read; the same in all threads */
    uint32_t n_pair;     /* tiles of pairs still to come before tokens */
    bool is_last;        /* the rest comes behind them */
    uint32_t i, n;       /* entry of the list of ranges and its end */
    uint32_t page, end;  /* pages of the entry still to come */
    uint32_t tok, n_tok; /* the same for the list of tokens */
    uint32_t own, own_end;
    uint32_t limit; /* pages from here on are before no row's own */
};

struct prompt_block { /* the same in all threads */
    const struct attn_call *call;
    const struct prompt_job *job;
    const uint32_t *frame;           /* of the KV head */
    uint32_t kv_head, head0, n_head; /* query heads */
    uint32_t page0;                  /* own pages are page0 .. page0 + job.n_page - 1 */
};

struct tile_view { /* a tile as a block sees it */
    const struct prompt_block *b;
    const struct key_tile *t;
    const float *logw; /* [KEYS] in shared memory, or NULL: they have none */
    bool whole;        /* all rows see all its keys; else */
    uint64_t bad;      /* keys whose values were not finite, as bits */
};

template <int F, int D> struct prompt_warp {
    float acc[prompt_size<F, D>::m][D / 8][4];
    float max[prompt_size<F, D>::m][2], sum[prompt_size<F, D>::m][2]; /* of rows g, g + 8 */
    uint32_t poison; /* bit 2 m + i: the row has seen a value that is not finite */
};

/* A block has `slot` rows of each of its heads and pages: where row `row` of it stands, and of which
 * of its heads it is. */
__device__ __forceinline__ uint32_t slot_pos(const struct prompt_block &b, uint32_t row)
{
    const struct prompt_job &job = *b.job;
    const uint32_t page = b.page0 + (row >> job.slot_bits) % job.n_page;
    return page * PAGE_TOK + job.at0 + (row & ((1u << job.slot_bits) - 1));
}

__device__ __forceinline__ uint32_t slot_head(const struct prompt_block &b, uint32_t row)
{
    return (row >> b.job->slot_bits) / b.job->n_page;
}

/* What this thread has stored is for matrix instructions behind the next barrier. */
__device__ __forceinline__ void publish(void)
{
#ifdef WGMMA_HERE
    wgmma_publish();
#endif
}

/* Where 16-byte piece `piece` of a row lies in a tile of n rows: panels of eight pieces, in each of
 * which pieces are permuted by the row so that neither eight rows nor a row meet in a bank. */
__device__ __forceinline__ uint32_t tile_at(uint32_t n, uint32_t row, uint32_t piece)
{
    return piece / 8 * (n * 128) + row * 128 + ((piece % 8) ^ (row & 7)) * 16;
}

/* Rows of this thread's warp are row + 0 .. 15 in the tile m of a block's rows. */
template <int D> __device__ __forceinline__ uint32_t warp_row(int m)
{
    return (uint32_t)m * (16 * prompt_warps<D>::n) + threadIdx.x / 32 * 16;
}

/* ---- What is read ---- */

/* The number of the block's list. */
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
        l.n_pair = b.page0 / ALIGN_PAGES * (ALIGN_PAGES / 2);
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

/* Tiles of a piece at least. Blocks of few heads are few, so lists are cut finer for them. */
static inline __host__ __device__ uint32_t piece_least(const struct prompt_job &job)
{
    const uint32_t n = job.n_kv_head * job.group / FEW_HEADS;
    return PROMPT_PIECE * (n > 1 ? n : 1);
}

/* Turned queries, and windows, which are short, are not cut. */
__device__ struct prompt_list list_of(const struct prompt_block &b)
{
    struct prompt_list l = {};
    list_lengths(l, b);
    if (b.job->n_segment || b.call->window) l.n_pair = 0;
    l.n_piece = l.len = 1;
    if (b.job->n_segment || b.call->window) return l;
    l.n_tile = l.n_pair + (l.tok_end - l.tok + KEYS - 1) / KEYS;
    const uint32_t alike = l.n_tile / 4 * 4; /* of lists of the same rows */
    l.n_piece = min(PIECES_MAX, alike / piece_least(*b.job) + 1);
    l.len = (alike + l.n_piece - 1) / l.n_piece;
    return l;
}

/* Leaves out n_skip pages of the ranges, all of which are there. */
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
        const uint32_t page = r.end - (up_to - n_skip); /* of the lane that goes beyond */
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

/* Piece `piece` of what a block reads. */
__device__ struct prompt_walk walk_begin(const struct prompt_block &b, const struct prompt_list &l,
                                         uint32_t piece)
{
    const struct prompt_job &job = *b.job;
    struct prompt_walk w = {};
    const uint32_t last = (job.pos0 + job.n_row - 1) / PAGE_TOK; /* page of the run's last row */
    const uint32_t most = l.n_tile / 4 * 4, begin = min(piece * l.len, most);
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

/* `own_max`: own pages of a tile. */
__device__ struct key_tile walk_next(struct prompt_walk &w, const struct prompt_block &b,
                                     uint32_t own_max)
{
    const struct prompt_job &job = *b.job;
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

template <int F, int D>
__device__ void put_query(uint8_t *smem, const struct prompt_block &b, uint32_t segment)
{
    using size = prompt_size<F, D>;
    constexpr int H = page_at<F, D>::half;
    const struct prompt_job &job = *b.job;
    const struct segment_view *s = segment < job.n_segment ? &job.segment[segment] : NULL;
    for (uint32_t i = threadIdx.x; i < size::rows * (D / 8); i += prompt_warps<D>::threads) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8);
        const uint32_t pos = slot_pos(b, row), head = slot_head(b, row);
        float x[8] = {};
        if (head < b.n_head && pos >= job.pos0 && pos - job.pos0 < job.n_row) {
            const float *q = b.call->q + (job.row0 + pos - job.pos0) * b.call->q_stride +
                             (size_t)(b.head0 + head) * D;
            for (uint32_t c = 0; c < 8; c++) x[c] = attn_turned(q, piece * 8 + c, s, b.call->rope);
        }
        *(uint4 *)(smem + tile_at(size::rows, row, piece)) =
            make_uint4(half_pack<H>(x[0], x[1]), half_pack<H>(x[2], x[3]), half_pack<H>(x[4], x[5]),
                       half_pack<H>(x[6], x[7]));
    }
}

/* ---- Tiles on their way ---- */

/* A page's 16-bit rows to keys n0 .. n0 + 31 of a tile. */
template <int D>
__device__ void bring_rows(uint8_t *tile, uint32_t n0, const uint8_t *page, uint32_t v)
{
    constexpr uint32_t n = prompt_warps<D>::threads;
#pragma unroll
    for (uint32_t k = 0; k < PAGE_TOK * (D / 8) / n; k++) { /* as often by all threads */
        const uint32_t i = threadIdx.x + k * n, row = n0 + i / (D / 8), piece = i % (D / 8);
        const uint32_t to = smem_address(tile) + tile_at(KEYS, row, piece);
        copy_async16(to, page + i * 16);
        copy_async16(to + KEYS * D * 2, page + v + i * 16);
    }
}

/* No keys from n0 on. */
template <int D> __device__ void bring_none(uint8_t *tile, uint32_t n0)
{
    for (uint32_t i = n0 * (D / 8) + threadIdx.x; i < KEYS * (D / 8);
         i += prompt_warps<D>::threads) {
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

/* Token `tok`'s page. */
template <int F, int D>
__device__ __forceinline__ const uint8_t *token_page(const struct prompt_block &b, uint32_t tok)
{
    return place_page(b.call->frames, b.frame[tok / PAGE_TOK], page_at<F, D>::bytes);
}

template <int F, int D>
__device__ void bring_tokens(uint8_t *tile, const struct prompt_block &b, const struct key_tile &t)
{
    constexpr uint32_t n = prompt_warps<D>::threads, n_row = n / (D / 8), n_part = KEYS / n_row;
    const uint32_t row0 = threadIdx.x / (D / 8), piece = threadIdx.x % (D / 8);
    const uint8_t *k[n_part];
#pragma unroll /* what is looked up is on its way together */
    for (uint32_t p = 0; p < n_part; p++) {
        const uint32_t row = row0 + p * n_row;
        const uint32_t tok = __shfl_sync(~0u, t.place[p * n_row / 32], row % 32);
        k[p] = token_page<F, D>(b, tok) + tok % PAGE_TOK * (D * 2) + piece * 16;
    }
#pragma unroll
    for (uint32_t p = 0; p < n_part; p++) {
        const uint32_t to = smem_address(tile) + tile_at(KEYS, row0 + p * n_row, piece);
        if (row0 + p * n_row >= t.n) break;
        copy_async16(to, k[p]);
        copy_async16(to + KEYS * D * 2, k[p] + page_at<F, D>::v);
    }
}

/* Logs of the weights of a tile's tokens, if they have any. */
__device__ __forceinline__ void bring_logw(float *to, const struct prompt_block &b,
                                           const struct key_tile &t)
{
    const float *const logw = b.job->logw;
    if (logw && threadIdx.x < t.n)
        copy_async4(smem_address(to + threadIdx.x), logw + t.page[0] + threadIdx.x);
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

/* Starts the copies of tile `i` to its stage. */
template <int F, int D>
__device__ void bring(uint8_t *smem, uint32_t i, const struct prompt_block &b,
                      const struct key_tile &t)
{
    using at = page_at<F, D>;
    using size = prompt_size<F, D>;
    uint8_t *const stage = smem + size::query + i % 2 * size::stage;
    if (t.kind == TILE_TOKENS) bring_logw((float *)(smem + size::logw) + i % 2 * KEYS, b, t);
    if constexpr (F == FORM_Q8) {
        const uint32_t n = t.kind == TILE_PAGES ? t.n : t.kind == TILE_OWN ? 1 : 0;
#pragma unroll
        for (uint32_t p = 0; p < 2; p++) {
            if (p >= n) break;
            const bool own = t.kind == TILE_OWN;
            const uint8_t *from =
                own ? own_page<D>(b, t.page[p]) : sealed_page<F, D>(b, t.place[p]);
            const uint32_t bytes = own ? at::tail_bytes : at::bytes;
            for (uint32_t k = threadIdx.x * 16; k < bytes; k += prompt_warps<D>::threads * 16)
                copy_async16(smem_address(stage) + p * at::bytes + k, from + k);
        }
    } else if (t.kind == TILE_TOKENS) {
        bring_tokens<F, D>(stage, b, t);
        bring_none<D>(stage, t.n);
    } else if (t.kind != TILE_END) {
        static_assert(at::v == at::tail_v, "own pages lie as sealed ones do");
#pragma unroll
        for (uint32_t p = 0; p < 2; p++) {
            if (p >= t.n) break;
            const uint8_t *from = t.kind == TILE_OWN ? own_page<D>(b, t.page[p])
                                                     : sealed_page<F, D>(b, t.place[p]);
            bring_rows<D>(stage, p * PAGE_TOK, from, at::v);
        }
        bring_none<D>(stage, t.n * PAGE_TOK);
    }
    copy_commit();
}

/* ---- q8 to f16 ---- */

/* Token t of a q8 page to key `row` of a tile; thread `part` of D / 16 of them. */
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

template <int D>
__device__ void unpack(uint8_t *tile, const uint8_t *stage, const struct prompt_block &b,
                       const struct key_tile &t)
{
    constexpr uint32_t part = D / 16;
    uint32_t n = t.n;
    if (t.kind == TILE_OWN) {
        n = PAGE_TOK;
        for (uint32_t i = threadIdx.x; i < PAGE_TOK * (D / 8); i += prompt_warps<D>::threads) {
            const uint32_t to = tile_at(KEYS, i / (D / 8), i % (D / 8));
            *(uint4 *)(tile + to) = *(const uint4 *)(stage + i * 16);
            *(uint4 *)(tile + KEYS * D * 2 + to) =
                *(const uint4 *)(stage + page_at<FORM_Q8, D>::tail_v + i * 16);
        }
    } else if (t.kind == TILE_PAGES) {
        n = t.n * PAGE_TOK;
        for (uint32_t i = threadIdx.x; i < n * part; i += prompt_warps<D>::threads) {
            const uint32_t row = i / part;
            unpack_token<D>(tile, row, stage + row / PAGE_TOK * page_at<FORM_Q8, D>::bytes,
                            row % PAGE_TOK, i % part);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n * part; i += prompt_warps<D>::threads) {
            const uint32_t row = i / part, tok = b.job->tok[t.page[0] + row];
            unpack_token<D>(tile, row, token_page<FORM_Q8, D>(b, tok), tok % PAGE_TOK, i % part);
        }
    }
    bring_none<D>(tile, n);
}

/* ---- A tile that is not seen by all rows ---- */

/* Keys whose values are not all finite, as bits; their values become zeros. All threads. */
template <int F, int D> __device__ uint64_t find_bad(uint8_t *tile, uint32_t *bad)
{
    constexpr uint32_t exponent = page_at<F, D>::half == HALF_F16 ? 0x7c00u : 0x7f80u;
    if (threadIdx.x < 2) bad[threadIdx.x] = 0;
    __syncthreads();
    uint4 *const v = (uint4 *)(tile + KEYS * D * 2); /* eight of a row in each panel */
    for (uint32_t i = threadIdx.x; i < KEYS * (D / 8); i += prompt_warps<D>::threads) {
        const uint32_t w[4] = {v[i].x, v[i].y, v[i].z, v[i].w}, row = i / 8 % KEYS;
        bool is_bad = false;
#pragma unroll
        for (int k = 0; k < 4; k++)
            is_bad |= (w[k] & exponent) == exponent || (w[k] >> 16 & exponent) == exponent;
        if (is_bad) atomicOr(&bad[row / 32], 1u << row % 32);
    }
    __syncthreads();
    const uint64_t all = (uint64_t)bad[1] << 32 | bad[0];
    if (all == 0) return 0;
    for (uint32_t i = threadIdx.x; i < KEYS * (D / 8); i += prompt_warps<D>::threads)
        if (all >> (i / 8 % KEYS) & 1) v[i] = make_uint4(0, 0, 0, 0);
    publish();
    __syncthreads();
    return all;
}

/* Keys of a tile that a row at position pos sees, as bits. */
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
    const uint32_t last = (b.page0 + b.job->n_page) * PAGE_TOK - 1, window = b.call->window;
    return window == 0 || last < window || t.page[0] * PAGE_TOK >= last - window + 1;
}

/* ---- Products ---- */

/* Position of a row of this thread: row g + 8 i of tile m of its warp. */
template <int F, int D>
__device__ __forceinline__ uint32_t row_pos(const struct prompt_block &b, int m, int i)
{
    return slot_pos(b, warp_row<D>(m) + i * 8 + threadIdx.x % 32 / 4);
}

/* Softcaps and logs of weights: products of tile m's rows become exponents. */
__device__ __forceinline__ void tile_exponents(float (&s)[N_TILE_8][4], const struct attn_call &c,
                                               const float *logw)
{
    const float by = c.scale * LOG2E;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[n][e] = c.softcap > 0 ? attn_exponent(c, s[n][e]) : s[n][e] * by;
    if (!logw) return;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) {
        const float2 add = *(const float2 *)(logw + n * 8 + threadIdx.x % 4 * 2);
#pragma unroll
        for (int e = 0; e < 4; e++) s[n][e] += (e % 2 ? add.y : add.x) * LOG2E;
    }
}

template <int F, int D>
__device__ void tile_hide(struct prompt_warp<F, D> &w, float (&s)[N_TILE_8][4],
                          const struct tile_view &v, int m)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint64_t seen = seen_keys(*v.b, *v.t, row_pos<F, D>(*v.b, m, i));
        if (seen & v.bad) w.poison |= 1u << (2 * m + i);
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (!(seen >> (n * 8 + threadIdx.x % 4 * 2 + e) & 1))
                    s[n][2 * i + e] = -CUDART_INF_F;
    }
}

/* One row of this thread: exponents are s * by. Returns what its sums are to be multiplied by. */
template <int F, int D>
__device__ __forceinline__ float raise_max(struct prompt_warp<F, D> &w,
                                           const float (&s)[N_TILE_8][4], float by, int m, int i)
{
    float max = -CUDART_INF_F;
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) max = fmaxf(max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 1));
    max = fmaxf(max, __shfl_xor_sync(~0u, max, 2)) * by;
    const float old = w.max[m][i];
    if (!(max > old)) return 1.0f;
    w.max[m][i] = max;
    return exp2_fast(old - max);
}

/* Weights of tile m's rows as A, and sums so far on the new maximum's scale. */
template <int F, int D>
__device__ __forceinline__ void tile_weights(struct prompt_warp<F, D> &w,
                                             uint32_t (&p)[KEYS / 16][4], float (&s)[N_TILE_8][4],
                                             float by, int m)
{
    constexpr int H = page_at<F, D>::half;
    const float f0 = raise_max<F, D>(w, s, by, m, 0), f1 = raise_max<F, D>(w, s, by, m, 1);
    if (__any_sync(~0u, f0 != 1.0f || f1 != 1.0f)) {
#pragma unroll
        for (int c = 0; c < D / 8; c++) {
            w.acc[m][c][0] *= f0, w.acc[m][c][1] *= f0;
            w.acc[m][c][2] *= f1, w.acc[m][c][3] *= f1;
        }
        w.sum[m][0] *= f0, w.sum[m][1] *= f1;
    }
    const float less0 = w.max[m][0] == -CUDART_INF_F ? 0.0f : w.max[m][0];
    const float less1 = w.max[m][1] == -CUDART_INF_F ? 0.0f : w.max[m][1];
#pragma unroll
    for (int n = 0; n < N_TILE_8; n++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            s[n][e] = exp2_fast(fmaf(s[n][e], by, -less0));
            s[n][2 + e] = exp2_fast(fmaf(s[n][2 + e], by, -less1));
            w.sum[m][0] += s[n][e];
            w.sum[m][1] += s[n][2 + e];
        }
        p[n / 2][n % 2 * 2] = half_pack<H>(s[n][0], s[n][1]);
        p[n / 2][n % 2 * 2 + 1] = half_pack<H>(s[n][2], s[n][3]);
    }
}

/* From products to weights. */
template <int F, int D>
__device__ __forceinline__ void tile_softmax(struct prompt_warp<F, D> &w,
                                             uint32_t (&p)[KEYS / 16][4], float (&s)[N_TILE_8][4],
                                             const struct tile_view &v, int m)
{
    const struct attn_call &c = *v.b->call;
    float by = c.scale * LOG2E;
    if (c.softcap > 0 || v.logw) {
        tile_exponents(s, c, v.logw);
        by = 1;
    }
    if (!v.whole) tile_hide<F, D>(w, s, v, m);
    tile_weights<F, D>(w, p, s, by, m);
}

#ifdef WGMMA_HERE
/* By Hopper's instructions: one tile's weights are made while another's rows are multiplied, which
 * may be another warpgroup's. */
template <int F, int D>
__device__ __forceinline__ void attend_wgmma(struct prompt_warp<F, D> &w, uint32_t query,
                                             uint32_t keys, const struct tile_view &v)
{
    constexpr int H = page_at<F, D>::half;
    constexpr uint32_t panel = KEYS * 128, rows = prompt_size<F, D>::rows;
    constexpr int M = prompt_size<F, D>::m;
    const uint64_t values = wgmma_tile(keys + KEYS * D * 2, panel);
    const uint32_t mine = query + wgmma_group() * (M * 8192); /* rows of the warpgroup */
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    wgmma_begin();
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int k = 0; k < D / 16; k++)
            wgmma_dots<H>(s[m], wgmma_tile(mine + k / 4 * (rows * 128) + m * 8192 + k % 4 * 32, 16),
                          wgmma_tile(keys + k / 4 * panel + k % 4 * 32, 16), k > 0);
        wgmma_commit();
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        wgmma_wait<M - 1>();
        wgmma_done(s[m]);
        tile_softmax<F, D>(w, p[m], s[m], v, m);
        wgmma_begin();
#pragma unroll
        for (int k = 0; k < (int)KEYS / 16; k++)
            wgmma_values<H>(w.acc[m], p[m][k], values + k * (16 * 128 / 16));
        wgmma_commit();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++) wgmma_done(w.acc[m]);
}
#endif

template <int F, int D>
__device__ __forceinline__ void tile_dots(float (&s)[prompt_size<F, D>::m][N_TILE_8][4],
                                          uint32_t query, uint32_t keys)
{
    constexpr int M = prompt_size<F, D>::m, H = page_at<F, D>::half;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N_TILE_8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[m][n][e] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            const uint32_t row = warp_row<D>(m) + lane % 16;
            load_tiles(a[m], query + tile_at(prompt_size<F, D>::rows, row, k * 2 + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < N_TILE_8; n += 2) {
            uint32_t b[4];
            const uint32_t row = n * 8 + lane / 16 * 8 + lane % 8;
            load_tiles(b, keys + tile_at(KEYS, row, k * 2 + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<H>(s[m][n], a[m], b[0], b[1]);
                mma_16816<H>(s[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

template <int F, int D>
__device__ __forceinline__ void tile_values(struct prompt_warp<F, D> &w,
                                            uint32_t (&p)[prompt_size<F, D>::m][KEYS / 16][4],
                                            uint32_t values)
{
    constexpr int M = prompt_size<F, D>::m, H = page_at<F, D>::half;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < (int)KEYS / 16; k++) {
        const uint32_t row = k * 16 + lane % 16;
#pragma unroll
        for (int c = 0; c < D / 8; c += 2) {
            uint32_t b[4];
            load_tiles_turned(b, values + tile_at(KEYS, row, c + lane / 16));
#pragma unroll
            for (int m = 0; m < M; m++) {
                mma_16816<H>(w.acc[m][c], p[m][k], b[0], b[1]);
                mma_16816<H>(w.acc[m][c + 1], p[m][k], b[2], b[3]);
            }
        }
    }
}

/* A tile in shared memory, in 16 bits: K, then V. */
template <int F, int D>
__device__ __forceinline__ void attend_tile(struct prompt_warp<F, D> &w, uint8_t *query,
                                            uint8_t *tile, const struct tile_view &v)
{
#ifdef WGMMA_HERE
    if constexpr (D <= 128) {
        attend_wgmma<F, D>(w, smem_address(query), smem_address(tile), v);
        return;
    }
#endif
    constexpr int M = prompt_size<F, D>::m;
    float s[M][N_TILE_8][4];
    uint32_t p[M][KEYS / 16][4];
    tile_dots<F, D>(s, smem_address(query), smem_address(tile));
#pragma unroll
    for (int m = 0; m < M; m++) tile_softmax<F, D>(w, p[m], s[m], v, m);
    tile_values<F, D>(w, p, smem_address(tile) + KEYS * D * 2);
}

/* Sums of a piece: values [rows, D], maxima [rows], sums [rows] of f32. */
template <int D> struct prompt_part {
    static constexpr int rows = prompt_size<FORM_F16, D>::rows;
    static constexpr size_t floats = (size_t)rows * (D + 2);
};

template <int F, int D>
__device__ __forceinline__ float row_sum(const struct prompt_warp<F, D> &w, int m, int i)
{
    float sum = w.sum[m][i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    return w.poison >> (2 * m + i) & 1 ? CUDART_NAN_F : sum;
}

template <int F, int D> __device__ void put_part(const struct prompt_warp<F, D> &w, float *part)
{
    const uint32_t j = threadIdx.x % 4;
    constexpr uint32_t rows = prompt_size<F, D>::rows;
    float *const max = part + rows * D, *const sums = max + rows;
#pragma unroll
    for (int m = 0; m < prompt_size<F, D>::m; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = warp_row<D>(m) + i * 8 + threadIdx.x % 32 / 4;
            const float sum = row_sum(w, m, i);
            if (j == 0) max[row] = w.max[m][i], sums[row] = sum;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(part + row * D + n * 8 + j * 2) =
                    make_float2(w.acc[m][n][2 * i], w.acc[m][n][2 * i + 1]);
        }
}

/* Whether a row of the block is one of the run's, and which of the batch it is. */
__device__ __forceinline__ bool row_find(const struct prompt_block &b, uint32_t row,
                                         uint32_t *out_at)
{
    const struct prompt_job &job = *b.job;
    const uint32_t pos = slot_pos(b, row);
    *out_at = job.row0 + pos - job.pos0;
    return slot_head(b, row) < b.n_head && pos >= job.pos0 && pos - job.pos0 < job.n_row;
}

template <int F, int D>
__device__ void put_rows(const struct prompt_warp<F, D> &w, const struct prompt_block &b)
{
    const struct attn_call &c = *b.call;
    const uint32_t j = threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < prompt_size<F, D>::m; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = warp_row<D>(m) + i * 8 + threadIdx.x % 32 / 4;
            const uint32_t head = slot_head(b, row);
            const float sum = row_sum(w, m, i), by = 1.0f / sum;
            uint32_t at;
            if (!row_find(b, row, &at)) continue;
            float *out = c.out + at * c.out_stride + (size_t)(b.head0 + head) * D + j * 2;
#pragma unroll
            for (int n = 0; n < D / 8; n++)
                *(float2 *)(out + n * 8) =
                    make_float2(w.acc[m][n][2 * i] * by, w.acc[m][n][2 * i + 1] * by);
            if (c.lse && j == 0)
                c.lse[at * c.n_head + b.head0 + head] = (w.max[m][i] + log2f(sum)) * LN2;
        }
}

/* Block x of a job; false: it has none. Blocks of one KV head follow each other, those that read
 * the most first. */
__device__ __forceinline__ bool block_find(struct prompt_block &b, const struct attn_call &call,
                                           const struct prompt_job &job, uint32_t x)
{
    const uint32_t of_head = x / job.n_block;
    if (of_head >= job.n_kv_head * job.n_block_head) return false;
    b.call = &call;
    b.job = &job;
    b.kv_head = of_head / job.n_block_head;
    b.frame = job.frame + b.kv_head * job.stride;
    const uint32_t first = of_head % job.n_block_head * job.n_head;
    b.head0 = b.kv_head * job.group + first;
    b.n_head = min(job.n_head, job.group - first);
    b.page0 = (job.block0 + job.n_block - 1 - x % job.n_block) * job.n_page;
    return true;
}

/* The sums of a piece of block x. */
template <int D>
__device__ __forceinline__ float *part_of(float *parts, const struct prompt_job &job, uint32_t x,
                                          uint32_t piece)
{
    return parts + (job.part0 + (size_t)x * job.n_piece + piece) * prompt_part<D>::floats;
}

template <int F, int D>
__global__ void __launch_bounds__(prompt_warps<D>::threads,
                                  prompt_size<F, D>::smem <= 113 * 1024 ? 2 : 1)
    attn_prompt_kernel(const struct attn_call call, const struct prompt_job *jobs, float *parts,
                       uint32_t block0)
{
    kernel_begin();
    using size = prompt_size<F, D>;
    uint8_t *const smem = kernel_shared();
    const struct prompt_job &job = jobs[blockIdx.y];
    struct prompt_block b;
    if (!block_find(b, call, job, block0 + blockIdx.x)) return;
    const struct prompt_list list = list_of(b);
    if (blockIdx.z >= list.n_piece) return;
    uint8_t *const query = smem, *const stage = smem + size::query;
    struct prompt_warp<F, D> w = {};
    for (int m = 0; m < size::m; m++) w.max[m][0] = w.max[m][1] = -CUDART_INF_F;
    struct prompt_walk walk = walk_begin(b, list, blockIdx.z);
    constexpr uint32_t own_max = F == FORM_Q8 ? 1 : 2; /* a tile of q8 has no room for two */
    struct key_tile now = walk_next(walk, b, own_max), next = walk_next(walk, b, own_max);
    uint32_t segment = now.segment;
    bring<F, D>(smem, 0, b, now);
    put_query<F, D>(query, b, segment);
    for (uint32_t i = 0; now.kind != TILE_END; i++) {
        uint8_t *at = stage + i % 2 * size::stage;
        copy_wait<0>();
        publish();
        __syncthreads(); /* the tile is there, and nobody reads the other stage any more */
        bring<F, D>(smem, i + 1, b, next);
        const struct key_tile then = walk_next(walk, b, own_max); /* looked up by when it is needed */
        if (now.segment != segment) put_query<F, D>(query, b, segment = now.segment);
        if constexpr (F == FORM_Q8) {
            unpack<D>(stage + 2 * size::stage, at, b, now);
            at = stage + 2 * size::stage;
        }
        if (F == FORM_Q8 || job.n_segment) {
            publish();
            __syncthreads();
        }
        const float *const logw = (const float *)(smem + size::logw) + i % 2 * KEYS;
        const bool weighs = now.kind == TILE_TOKENS && job.logw;
        struct tile_view v = {&b, &now, weighs ? logw : NULL, seen_by_all(b, now), 0};
        if (!v.whole) v.bad = find_bad<F, D>(at, (uint32_t *)(smem + size::bad));
        attend_tile<F, D>(w, query, at, v);
        now = next;
        next = then;
    }
    copy_wait<0>();
    if (list.n_piece == 1)
        put_rows<F, D>(w, b);
    else
        put_part<F, D>(w, part_of<D>(parts, job, block0 + blockIdx.x, blockIdx.z));
}

/* What a piece's sums count, on the scale of all. */
__device__ __forceinline__ float part_factor(float max, float most)
{
    return max == -CUDART_INF_F ? 0.0f : exp2_fast(max - most);
}

/* A thread merges four channels of a row. */
template <int D>
__global__ void __launch_bounds__(prompt_warps<D>::threads)
    merge_kernel(const struct attn_call call, const struct prompt_job *jobs, float *parts,
                 uint32_t block0)
{
    kernel_begin();
    constexpr uint32_t rows = prompt_part<D>::rows;
    const struct prompt_job &job = jobs[blockIdx.y];
    const uint32_t x = block0 + blockIdx.x;
    struct prompt_block b;
    if (!block_find(b, call, job, x)) return;
    const uint32_t n_piece = list_of(b).n_piece;
    const uint32_t first = blockIdx.z * prompt_warps<D>::threads + threadIdx.x;
    for (uint32_t i = first; i < rows * (D / 4) && n_piece > 1;
         i += MERGE_BLOCKS * prompt_warps<D>::threads) {
        const uint32_t row = i / (D / 4), c = i % (D / 4) * 4;
        uint32_t at;
        if (!row_find(b, row, &at)) continue;
        float most = -CUDART_INF_F, sum = 0, v[4] = {};
        for (uint32_t p = 0; p < n_piece; p++)
            most = fmaxf(most, part_of<D>(parts, job, x, p)[rows * D + row]);
        for (uint32_t p = 0; p < n_piece; p++) {
            const float *part = part_of<D>(parts, job, x, p);
            const float by = part_factor(part[rows * D + row], most);
            const float4 add = *(const float4 *)(part + row * D + c);
            sum += part[rows * (D + 1) + row] * by;
            v[0] += add.x * by, v[1] += add.y * by, v[2] += add.z * by, v[3] += add.w * by;
        }
        const uint32_t head = b.head0 + slot_head(b, row);
        const float by = 1.0f / sum;
        *(float4 *)(call.out + at * call.out_stride + (size_t)head * D + c) =
            make_float4(v[0] * by, v[1] * by, v[2] * by, v[3] * by);
        if (call.lse && c == 0) call.lse[at * call.n_head + head] = (most + log2f(sum)) * LN2;
    }
}

/* ---- The launcher ---- */

struct prompt_launch {
    struct attn_call call;
    const struct prompt_job *job; /* on the device */
    float *parts;
    uint32_t n_job, n_block_max, n_piece_max;
    uint32_t n_part; /* of all jobs */
    size_t n_room;   /* parts that scratch holds */
};

/* Pairs of a block of heads of this size. */
static uint32_t pairs_of(uint32_t head_dim)
{
    return head_dim > 128 ? prompt_size<FORM_F16, 256>::pairs : prompt_size<FORM_F16, 128>::pairs;
}

static size_t part_bytes(uint32_t head_dim)
{
    return (size_t)pairs_of(head_dim) * PAGE_TOK * (head_dim + 2) * sizeof(float);
}

/* Rows that meet turned keys are often scattered over a text, few of a page: a block has one page of
 * them, whatever its place, and of a page no more rows than the run needs. Tiles of keys follow from
 * the page alone, so what a row gets does not depend on that. */
static void job_scatter(struct prompt_job *j, const struct attn_plan *plan, uint32_t pairs)
{
    const uint32_t most = plan && plan->by_head ? 1 : j->group, first = j->pos0 % PAGE_TOK;
    uint32_t slot = PAGE_TOK;
    while (slot / 2 >= j->n_row && first + j->n_row <= PAGE_TOK) slot /= 2, j->slot_bits--;
    j->at0 = first < PAGE_TOK - slot ? first : PAGE_TOK - slot;
    j->n_page = j->n_head = 1;
    while (j->n_head < most && j->n_head < pairs * (PAGE_TOK / slot)) j->n_head *= 2;
}

/* Pages and heads that a block of so many pairs takes. */
static void job_shape(struct prompt_job *j, const struct attn_plan *plan, uint32_t pairs)
{
    const uint32_t most = plan && plan->by_head ? 1 : j->group;
    j->slot_bits = 5;
    j->at0 = 0;
    uint32_t page_max = pairs; /* of one list */
    while (plan && plan->tile_tok % (page_max * PAGE_TOK) != 0) page_max /= 2;
    j->n_head = 1;
    while (j->n_head < most && j->n_head < pairs) j->n_head *= 2;
    while (j->pos0 >= FAR_TOK && most % j->n_head != 0 && j->n_head * page_max > pairs)
        j->n_head /= 2;
    j->n_page = pairs / j->n_head < page_max ? pairs / j->n_head : page_max;
    if (j->n_segment > 0) job_scatter(j, plan, pairs);
    j->n_block_head = (j->group + j->n_head - 1) / j->n_head;
    j->block0 = j->pos0 / PAGE_TOK / j->n_page;
    j->n_block = (j->pos0 + j->n_row - 1) / PAGE_TOK / j->n_page - j->block0 + 1;
}

/* Pieces that a list of the job has at most, and its place in the scratch. */
static void job_pieces(struct prompt_job *j, uint32_t window, uint32_t *n_part)
{
    /* A page fills half a tile at most, whether it is listed whole or by its tokens. */
    const uint32_t n_page = (j->pos0 + j->n_row - 1) / PAGE_TOK, n_tile = n_page / 2 + 2;
    const uint32_t n_piece = n_tile / piece_least(*j) + 1;
    j->n_piece = n_piece < PIECES_MAX ? n_piece : PIECES_MAX;
    if (window > 0 || j->n_segment > 0) j->n_piece = 1;
    j->part0 = *n_part;
    if (j->n_piece > 1) *n_part += j->n_kv_head * j->n_block_head * j->n_block * j->n_piece;
}

size_t attn_prompt_scratch(const struct page_geom *geom, uint32_t n_head, uint32_t n_row)
{
    const uint32_t group = n_head / geom->n_kv_head, pairs = pairs_of(geom->head_dim);
    size_t n = 0;
    for (uint32_t heads = 1; heads <= pairs; heads *= 2) {
        const size_t n_block = n_row * heads / pairs / PAGE_TOK + 2;
        const size_t all = n_block * geom->n_kv_head * ((group + heads - 1) / heads);
        n = all > n ? all : n;
    }
    return n * PIECES_MAX * part_bytes(geom->head_dim);
}

static uint32_t list_count(const struct op_attn *op, const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    const uint32_t end = run->pos0 + run->n_row - 1;
    const uint32_t n_lane = p->by_head ? op->n_head : op->geom->n_kv_head;
    return (end / p->tile_tok - run->pos0 / p->tile_tok + 1) * n_lane;
}

/* Whether a run's lists are those of the run before it, which are in the ring: rows that are
 * scattered over a sequence are many short runs. */
static bool has_lists_of(const struct attn_run *run, const struct attn_run *before)
{
    return run->joins && before->kind == run->kind && run->plan == before->plan &&
           run->segment == before->segment && run->n_segment == before->n_segment;
}

static size_t list_bytes(const struct op_attn *op, const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    size_t bytes = attn_segment_bytes(op, run) + 6 * STAGE_ALIGN;
    if (!p || p->made) return bytes;
    const uint32_t n = list_count(op, run);
    bytes += 3 * (n + 1) * sizeof(uint32_t) + p->range_ptr[n] * sizeof(struct attn_range);
    return p->tok ? bytes + p->tok_ptr[n] * 2 * sizeof(uint32_t) : bytes;
}

/* Pages that each list's ranges name before its tile. */
static const uint32_t *stage_before(struct cuda_device *d, const struct prompt_job *j,
                                    const struct attn_plan *p, uint32_t n)
{
    void *host;
    const void *at = stage_take(d, n * sizeof(uint32_t), &host);
    for (uint32_t i = 0; at && i < n; i++) {
        const uint32_t tile = j->pos0 / p->tile_tok + i / j->n_lane;
        const uint32_t first = tile * (p->tile_tok / PAGE_TOK);
        uint32_t n_page = 0;
        for (uint32_t k = p->range_ptr[i]; k < p->range_ptr[i + 1]; k++) {
            const struct attn_range r = p->range[k];
            if (r.begin < first) n_page += (r.end < first ? r.end : first) - r.begin;
        }
        ((uint32_t *)host)[i] = n_page;
    }
    return (const uint32_t *)at;
}

static void stage_plan(struct cuda_device *d, struct prompt_job *j, const struct op_attn *op,
                       const struct attn_run *run)
{
    const struct attn_plan *p = run->plan;
    const uint32_t n = list_count(op, run);
    j->tile_tok = p->tile_tok;
    j->n_lane = p->by_head ? op->n_head : op->geom->n_kv_head;
    if (p->made) {
        j->range = p->range;
        j->tok = p->tok;
        j->logw = p->tok_logw;
        j->made = p->made;
        j->range_max = p->range_max;
        j->tok_max = p->tok_max;
        return;
    }
    /* A plan of no range is one all the same. */
    static const struct attn_range none = {0, 0};
    const uint32_t n_range = p->range_ptr[n];
    j->range = (const struct attn_range *)stage_put(d, n_range ? p->range : &none,
                                                    (n_range ? n_range : 1) * sizeof none);
    j->range_ptr = (const uint32_t *)stage_put(d, p->range_ptr, (n + 1) * sizeof(uint32_t));
    j->n_before = stage_before(d, j, p, n);
    if (!p->tok || p->tok_ptr[n] == 0) return;
    j->tok = (const uint32_t *)stage_put(d, p->tok, p->tok_ptr[n] * sizeof(uint32_t));
    j->tok_ptr = (const uint32_t *)stage_put(d, p->tok_ptr, (n + 1) * sizeof(uint32_t));
    if (p->tok_logw)
        j->logw = (const float *)stage_put(d, p->tok_logw, p->tok_ptr[n] * sizeof(float));
}

/* `before`: of a run that has the same lists, or NULL. */
static struct prompt_job job_make(struct cuda_device *d, const struct op_attn *op,
                                  const struct attn_run *run, uint32_t pairs,
                                  const struct prompt_job *before)
{
    const struct page_geom *g = op->geom;
    struct prompt_job j;
    memset(&j, 0, sizeof j);
    if (before) j = *before;
    j.frame = run->frame;
    j.stride = run->table_stride;
    j.own0 = run->own0;
    j.own = run->own;
    if (!before) j.segment = attn_stage_segments(d, op, run);
    j.n_segment = run->n_segment;
    j.row0 = run->row0;
    j.n_row = run->n_row;
    j.pos0 = run->pos0;
    j.n_kv_head = g->n_kv_head;
    j.group = op->n_head / g->n_kv_head;
    if (run->plan && !before) stage_plan(d, &j, op, run);
    job_shape(&j, run->plan, pairs);
    return j;
}

/* `n_block` blocks from block0 on of n_job jobs. */
template <int F, int D>
static sac_status launch_blocks(struct cuda_device *d, const struct prompt_launch *l,
                                uint32_t block0, uint32_t n_block)
{
    TRY(queue_launch(d, "attention of prompt rows", attn_prompt_kernel<F, D>,
                     dim3(n_block, l->n_job, l->n_piece_max), prompt_warps<D>::threads,
                     prompt_size<F, D>::smem, l->call, l->job, l->parts, block0));
    if (l->n_piece_max == 1) return SAC_OK;
    return queue_launch(d, "merging of pieces", merge_kernel<D>,
                        dim3(n_block, l->n_job, MERGE_BLOCKS), prompt_warps<D>::threads, 0, l->call,
                        l->job, l->parts, block0);
}

/* Where scratch does not hold the pieces of all, job by job, and of a job as many blocks as fit:
 * the same results. */
template <int F, int D>
static sac_status launch_few(struct cuda_device *d, const struct prompt_launch *all,
                             const struct prompt_job *host)
{
    for (uint32_t i = 0; i < all->n_job; i++) {
        const struct prompt_job *j = &host[i];
        struct prompt_launch l = *all;
        const uint32_t n = j->n_kv_head * j->n_block_head * j->n_block;
        const uint32_t most = j->n_piece > 1 ? (uint32_t)(l.n_room / j->n_piece) : n;
        if (most == 0) return device_fail(d, SAC_ERR_ARG, "attention beyond its scratch");
        l.job = all->job + i;
        l.n_job = 1;
        l.n_piece_max = j->n_piece;
        for (uint32_t first = 0; first < n; first += most) {
            l.parts = all->parts -
                      ((size_t)j->part0 + (size_t)first * j->n_piece) * prompt_part<D>::floats;
            TRY((launch_blocks<F, D>(d, &l, first, n - first < most ? n - first : most)));
        }
    }
    return SAC_OK;
}

template <int F, int D>
static sac_status launch(struct cuda_device *d, const struct prompt_launch *l,
                         const struct prompt_job *host)
{
    TRY(attn_fits(d, prompt_size<F, D>::smem));
    if (l->n_part > l->n_room) return launch_few<F, D>(d, l, host);
    return launch_blocks<F, D>(d, l, 0, l->n_block_max);
}

template <int F>
static sac_status launch_form(struct cuda_device *d, uint32_t head_dim,
                              const struct prompt_launch *l, const struct prompt_job *host)
{
    switch (head_dim) {
    case 64: return launch<F, 64>(d, l, host);
    case 128: return launch<F, 128>(d, l, host);
    case 256: return launch<F, 256>(d, l, host);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: this head size");
    }
}

sac_status attn_prompt(struct cuda_device *d, const struct op_attn *op)
{
    const uint32_t head_dim = op->geom->head_dim;
    size_t bytes = 0;
    struct prompt_launch l = {};
    for (uint32_t i = 0; i < op->n_run; i++) {
        const struct attn_run *run = &op->run[i];
        if (run->kind != ROW_PROMPT) continue;
        if (run->plan && run->plan->skip > 0)
            return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: plans that skip by weight");
        l.n_job++;
        if (i == 0 || !has_lists_of(run, run - 1)) bytes += list_bytes(op, run);
    }
    if (l.n_job == 0) return SAC_OK;
    const size_t job_bytes = l.n_job * sizeof(struct prompt_job);
    if (stage_reserve(d, bytes + job_bytes + STAGE_ALIGN) != SAC_OK) return d->status;
    void *host;
    l.call = attn_call_of(op);
    l.parts = (float *)op->scratch;
    l.n_room = op->scratch_bytes / part_bytes(head_dim);
    l.job = (const struct prompt_job *)stage_take(d, job_bytes, &host);
    if (!l.job) return d->status;
    struct prompt_job *job = (struct prompt_job *)host;
    for (uint32_t i = 0; i < op->n_run; i++) {
        if (op->run[i].kind != ROW_PROMPT) continue;
        const bool shares = i > 0 && has_lists_of(&op->run[i], &op->run[i - 1]);
        *job = job_make(d, op, &op->run[i], pairs_of(head_dim), shares ? job - 1 : NULL);
        job_pieces(job, op->window, &l.n_part);
        const uint32_t n = job->n_kv_head * job->n_block_head * job->n_block;
        if (n > l.n_block_max) l.n_block_max = n;
        if (job->n_piece > l.n_piece_max) l.n_piece_max = job->n_piece;
        job++;
    }
    if (d->status != SAC_OK) return d->status;
    const struct prompt_job *jobs = (const struct prompt_job *)host;
    switch (attn_form_of(op->geom)) {
    case FORM_F16: return launch_form<FORM_F16>(d, head_dim, &l, jobs);
    case FORM_BF16: return launch_form<FORM_BF16>(d, head_dim, &l, jobs);
    case FORM_Q8: return launch_form<FORM_Q8>(d, head_dim, &l, jobs);
    default: return device_fail(d, SAC_ERR_UNSUPPORTED, "attention: K and V of different types");
    }
}
