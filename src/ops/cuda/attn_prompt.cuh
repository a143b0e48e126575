/* attn_prompt.cuh: what a block of prompt rows reads, tile by tile, and how tiles come to shared
 * memory: jobs, lists and their pieces, queries, copies on their way, q8 as f16, and which keys a
 * row sees. Of attn_prompt.cu and attn_tile.cuh alone, which say what a block is and multiply. */
#ifndef SAC_OPS_CUDA_ATTN_PROMPT_CUH
#define SAC_OPS_CUDA_ATTN_PROMPT_CUH

#include "ops/cuda/attn.cuh"
#include "ops/cuda/wgmma.cuh"

#include <math_constants.h>

#define KEYS     64u /* of a tile */
#define N_TILE_8 8   /* 8 keys each */

#define PIECES_MAX   8u  /* of a list, each of piece_least() tiles or more */
#define FEW_HEADS    16u /* of a model; one of more has longer pieces */
#define MERGE_BLOCKS 8u  /* that merge the pieces of one list */
#define MERGE_THREADS 256u
#define ALIGN_PAGES  8u  /* of rows: a list of a tile that divides them is cut as dense rows are */
/* From this position on no block has rows of heads that are not there, if lists have rows enough.
 */
#define FAR_TOK 4096u

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
    uint32_t tile_tok, n_lane; /* of the plan: lists of a tile */
    uint32_t n_page, n_head;   /* pages and heads of a block */
    uint32_t slot_bits, at0;   /* log2 of a page's rows that it takes of a head, from this one on */
    uint32_t n_kv_head, group, n_block_head; /* blocks of a KV head */
    uint32_t block0, n_block; /* first block of positions, n_page pages each, and how many */
    uint32_t n_piece, part0;  /* of a list at most; where sums of pieces begin: [block][n_piece] */
};

/* Small heads have eight warps of 16 rows: exponents take as long as products there, and warps that
 * wait for one another's are what keeps both units busy. So have 128 channels in 16 bits, whose
 * warps multiply the next tile while they make weights of this one (piped), and keep their queries
 * in registers, as shared memory hardly brings both operands in time. q8, which is unpacked between
 * two tiles, leaves registers for four warps of 32 rows, two blocks of a multiprocessor in turns. */
template <int F, int D> struct prompt_warps {
    static constexpr bool piped = F != FORM_Q8 && D == 128;
    static constexpr int m = D == 128 && !piped ? 2 : 1; /* tiles of 16 rows of a warp */
    static constexpr int n = D < 128 || piped ? 8 : 4, threads = n * 32, rows = n * 16 * m;
};

template <int F, int D> struct prompt_size {
    static constexpr bool piped = prompt_warps<F, D>::piped;
    static constexpr int m = prompt_warps<F, D>::m, rows = prompt_warps<F, D>::rows;
    static constexpr int pairs = rows / (int)PAGE_TOK;
    static constexpr int half = (int)KEYS * D * 2, tile = 2 * half; /* K, then V, in 16 bits */
    /* Two q8 pages, up to half of what 16-bit tiles behind two of them are aligned to. */
    static constexpr int raw = F == FORM_Q8 ? (2 * page_at<F, D>::bytes + 511) / 512 * 512 : 0;
    static constexpr int stage = F == FORM_Q8 ? raw : tile, n_stage = piped ? 3 : 2;
    static constexpr int query = piped ? 0 : rows * D * 2;
    static constexpr int all = query + n_stage * stage;
    static_assert(all % 1024 == 0 && tile % 1024 == 0, "panels of wgmma.cuh");
    /* Behind the stages 16-bit tiles of q8; then logs of weights of all tiles that are there or on
     * their way, and two words (find_bad). */
    static constexpr int logw = all + (F == FORM_Q8 ? tile : 0);
    static constexpr int bad = logw + n_stage * (int)(KEYS * sizeof(float)), smem = bad + 64;
    static constexpr int blocks = !piped && smem <= 113 * 1024 ? 2 : 1; /* of a multiprocessor */
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
    uint32_t i0;         /* this lane has the entry i0 + lane: a look at each would be waited for */
    struct attn_range held;
    uint32_t page, end;  /* pages of the entry still to come */
    uint32_t tok, n_tok; /* the same for the list of tokens */
    uint32_t own, own_end;
    uint32_t limit; /* pages from here on are before no row's own */
    bool turns;     /* some keys wait for a turned query */
};

struct prompt_block { /* the same in all threads */
    const struct attn_call *call;
    const struct prompt_job *job;
    const uint32_t *frame;           /* of the KV head */
    uint32_t kv_head, head0, n_head; /* query heads */
    uint32_t page0, page_end;        /* own pages are page0 .. page_end - 1 */
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

/* A block has `slot` rows of each of its heads and pages: where row `row` of it stands, and of
 * which of its heads it is. */
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
template <int F, int D> __device__ __forceinline__ uint32_t warp_row(int m)
{
    return (uint32_t)m * (16 * prompt_warps<F, D>::n) + threadIdx.x / 32 * 16;
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

/* The next entries of the ranges, one of each lane. */
__device__ __forceinline__ void walk_hold(struct prompt_walk &w, const struct prompt_job &job)
{
    const uint32_t i = w.i + threadIdx.x % 32;
    w.i0 = w.i;
    if (i < w.n) w.held = job.range[i];
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
    w.turns = job.n_segment > 0;
    w.i = l.range, w.n = l.range_end;
    if (job.range) {
        walk_skip(w, job, 2 * pair);
        walk_hold(w, job);
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
        if (w.i - w.i0 >= 32) walk_hold(w, job);
        const uint32_t at = w.i++ - w.i0;
        w.page = __shfl_sync(~0u, w.held.begin, at);
        w.end = min(__shfl_sync(~0u, w.held.end, at), w.limit);
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
    if (w.n_pair > 0 && !w.turns && w.page + 1 < w.end) { /* most are such, and found soon */
        t.kind = TILE_PAGES;
        t.n = 2;
        w.n_pair--;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            t.page[i] = w.page++;
            t.place[i] = place_find(b.call->frames, b.frame[t.page[i]]);
        }
        return t;
    }
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

/* The query of a block's row; NULL: it has none. */
__device__ __forceinline__ const float *query_find(const struct prompt_block &b, uint32_t row,
                                                   uint32_t head_dim)
{
    const struct prompt_job &job = *b.job;
    const uint32_t pos = slot_pos(b, row), head = slot_head(b, row);
    if (head >= b.n_head || pos < job.pos0 || pos - job.pos0 >= job.n_row) return NULL;
    return b.call->q + (job.row0 + pos - job.pos0) * b.call->q_stride +
           (size_t)(b.head0 + head) * head_dim;
}

/* NULL: keys are not turned. */
__device__ __forceinline__ const struct segment_view *segment_find(const struct prompt_block &b,
                                                                   uint32_t segment)
{
    return segment < b.job->n_segment ? &b.job->segment[segment] : NULL;
}

template <int F, int D>
__device__ void put_query(uint8_t *smem, const struct prompt_block &b, uint32_t segment)
{
    using size = prompt_size<F, D>;
    constexpr int H = page_at<F, D>::half;
    const struct segment_view *s = segment_find(b, segment);
    for (uint32_t i = threadIdx.x; i < size::rows * (D / 8); i += prompt_warps<F, D>::threads) {
        const uint32_t row = i / (D / 8), piece = i % (D / 8);
        const float *q = query_find(b, row, D);
        float x[8] = {};
        for (uint32_t c = 0; q && c < 8; c++) x[c] = attn_turned(q, piece * 8 + c, s, b.call->rope);
        *(uint4 *)(smem + tile_at(size::rows, row, piece)) =
            make_uint4(half_pack<H>(x[0], x[1]), half_pack<H>(x[2], x[3]), half_pack<H>(x[4], x[5]),
                       half_pack<H>(x[6], x[7]));
    }
}

/* The warp's 16 rows as A of step k. */
template <int F, int D>
__device__ void take_query(uint32_t (&a)[D / 16][4], const struct prompt_block &b,
                           uint32_t segment)
{
    constexpr int H = page_at<F, D>::half;
    const struct segment_view *s = segment_find(b, segment);
    const uint32_t row = warp_row<F, D>(0) + threadIdx.x % 32 / 4, j = threadIdx.x % 4;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const float *q = query_find(b, row + 8 * i, D);
#pragma unroll
        for (uint32_t k = 0; k < D / 16; k++)
#pragma unroll
            for (uint32_t high = 0; high < 2; high++) {
                const uint32_t c = k * 16 + high * 8 + j * 2;
                const float x = q ? attn_turned(q, c, s, b.call->rope) : 0.0f;
                const float y = q ? attn_turned(q, c + 1, s, b.call->rope) : 0.0f;
                a[k][high * 2 + i] = half_pack<H>(x, y);
            }
    }
}

/* ---- Tiles on their way ---- */

/* Halves of a tile: keys or values. A page's 16-bit rows to keys n0 .. n0 + 31. */
template <int F, int D>
__device__ __forceinline__ void bring_rows(uint8_t *half, uint32_t n0, const uint8_t *rows)
{
    constexpr uint32_t n = prompt_warps<F, D>::threads;
#pragma unroll
    for (uint32_t k = 0; k < PAGE_TOK * (D / 8) / n; k++) { /* as often by all threads */
        const uint32_t i = threadIdx.x + k * n, row = n0 + i / (D / 8), piece = i % (D / 8);
        copy_async16(smem_address(half) + tile_at(KEYS, row, piece), rows + i * 16);
    }
}

/* No keys from n0 on. */
template <int F, int D> __device__ void bring_none(uint8_t *half, uint32_t n0)
{
    for (uint32_t i = n0 * (D / 8) + threadIdx.x; i < KEYS * (D / 8);
         i += prompt_warps<F, D>::threads)
        store_zero16(smem_address(half) + tile_at(KEYS, i / (D / 8), i % (D / 8)));
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

/* Places of the pages of a tile's tokens of which this thread brings pieces: every so many-th. */
template <int F, int D> struct token_rows {
    static constexpr uint32_t each = prompt_warps<F, D>::threads / (D / 8), n = KEYS / each;
    uint32_t place[n];
};

/* The token that is row p * each of this thread's. */
template <int F, int D>
__device__ __forceinline__ uint32_t token_at(const struct key_tile &t, uint32_t p)
{
    constexpr uint32_t each = token_rows<F, D>::each;
    return __shfl_sync(~0u, t.place[p * each / 32], (threadIdx.x / (D / 8) + p * each) % 32);
}

template <int F, int D>
__device__ __forceinline__ struct token_rows<F, D> find_tokens(const struct prompt_block &b,
                                                               const struct key_tile &t)
{
    struct token_rows<F, D> r = {};
    if (t.kind != TILE_TOKENS) return r;
#pragma unroll /* what is looked up is on its way together */
    for (uint32_t p = 0; p < r.n; p++)
        r.place[p] = place_find(b.call->frames, b.frame[token_at<F, D>(t, p) / PAGE_TOK]);
    return r;
}

template <int F, int D>
__device__ __forceinline__ void bring_tokens(uint8_t *half, uint32_t at,
                                             const struct prompt_block &b,
                                             const struct key_tile &t,
                                             const struct token_rows<F, D> &r)
{
    const uint32_t piece = threadIdx.x % (D / 8);
#pragma unroll
    for (uint32_t p = 0; p < r.n; p++) {
        const uint32_t row = threadIdx.x / (D / 8) + p * r.each;
        const uint32_t in_page = token_at<F, D>(t, p) % PAGE_TOK * (D * 2) + piece * 16 + at;
        if (row < t.n)
            copy_async16(smem_address(half) + tile_at(KEYS, row, piece),
                         sealed_page<F, D>(b, r.place[p]) + in_page);
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

/* A tile's 16-bit rows, `at` bytes behind its keys; r are those of its tokens, if it has any. */
template <int F, int D>
__device__ __forceinline__ void bring_half(uint8_t *half, uint32_t at, const struct prompt_block &b,
                                           const struct key_tile &t,
                                           const struct token_rows<F, D> &r)
{
    static_assert(page_at<F, D>::v == page_at<F, D>::tail_v, "own pages lie as sealed ones do");
    if (t.kind == TILE_END) return;
    if (t.kind == TILE_TOKENS) {
        bring_tokens<F, D>(half, at, b, t, r);
        bring_none<F, D>(half, t.n);
        return;
    }
#pragma unroll
    for (uint32_t p = 0; p < 2; p++) {
        if (p >= t.n) break;
        const uint8_t *from =
            t.kind == TILE_OWN ? own_page<D>(b, t.page[p]) : sealed_page<F, D>(b, t.place[p]);
        bring_rows<F, D>(half, p * PAGE_TOK, from + at);
    }
    bring_none<F, D>(half, t.n * PAGE_TOK);
}

/* Starts the copies of a tile's keys, and of logs of their weights, or of its values, to a stage. */
template <int F, int D>
__device__ __forceinline__ void bring_keys(uint8_t *smem, uint32_t stage,
                                           const struct prompt_block &b, const struct key_tile &t,
                                           const struct token_rows<F, D> &r)
{
    using size = prompt_size<F, D>;
    if (t.kind == TILE_TOKENS) bring_logw((float *)(smem + size::logw) + stage * KEYS, b, t);
    bring_half<F, D>(smem + stage * size::tile, 0, b, t, r);
}

template <int F, int D>
__device__ __forceinline__ void bring_values(uint8_t *smem, uint32_t stage,
                                             const struct prompt_block &b, const struct key_tile &t,
                                             const struct token_rows<F, D> &r)
{
    using size = prompt_size<F, D>;
    bring_half<F, D>(smem + stage * size::tile + size::half, page_at<F, D>::v, b, t, r);
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
            for (uint32_t k = threadIdx.x * 16; k < bytes; k += prompt_warps<F, D>::threads * 16)
                copy_async16(smem_address(stage) + p * at::bytes + k, from + k);
        }
    } else {
        const struct token_rows<F, D> r = find_tokens<F, D>(b, t);
        bring_half<F, D>(stage, 0, b, t, r);
        bring_half<F, D>(stage + size::half, at::v, b, t, r);
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
        for (uint32_t i = threadIdx.x; i < PAGE_TOK * (D / 8); i += prompt_warps<FORM_Q8, D>::threads) {
            const uint32_t to = tile_at(KEYS, i / (D / 8), i % (D / 8));
            *(uint4 *)(tile + to) = *(const uint4 *)(stage + i * 16);
            *(uint4 *)(tile + KEYS * D * 2 + to) =
                *(const uint4 *)(stage + page_at<FORM_Q8, D>::tail_v + i * 16);
        }
    } else if (t.kind == TILE_PAGES) {
        n = t.n * PAGE_TOK;
        for (uint32_t i = threadIdx.x; i < n * part; i += prompt_warps<FORM_Q8, D>::threads) {
            const uint32_t row = i / part;
            unpack_token<D>(tile, row, stage + row / PAGE_TOK * page_at<FORM_Q8, D>::bytes,
                            row % PAGE_TOK, i % part);
        }
    } else {
        for (uint32_t i = threadIdx.x; i < n * part; i += prompt_warps<FORM_Q8, D>::threads) {
            const uint32_t row = i / part, tok = b.job->tok[t.page[0] + row];
            unpack_token<D>(tile, row, token_page<FORM_Q8, D>(b, tok), tok % PAGE_TOK, i % part);
        }
    }
    bring_none<FORM_Q8, D>(tile, n);
    bring_none<FORM_Q8, D>(tile + KEYS * D * 2, n);
}

/* ---- A tile that is not seen by all rows ---- */

/* Keys whose values are not all finite, as bits; their values become zeros. All threads. */
template <int F, int D> __device__ uint64_t find_bad(uint8_t *values, uint32_t *bad)
{
    constexpr uint32_t exponent = page_at<F, D>::half == HALF_F16 ? 0x7c00u : 0x7f80u;
    if (threadIdx.x < 2) bad[threadIdx.x] = 0;
    __syncthreads();
    uint4 *const v = (uint4 *)values; /* eight of a row in each panel */
    for (uint32_t i = threadIdx.x; i < KEYS * (D / 8); i += prompt_warps<F, D>::threads) {
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
    for (uint32_t i = threadIdx.x; i < KEYS * (D / 8); i += prompt_warps<F, D>::threads)
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
    const uint32_t last = b.page_end * PAGE_TOK - 1, window = b.call->window;
    return window == 0 || last < window || t.page[0] * PAGE_TOK >= last - window + 1;
}

/* `logw`: where logs of weights of its tokens lie, if they have any. */
__device__ __forceinline__ struct tile_view tile_view_of(const struct prompt_block &b,
                                                         const struct key_tile &t,
                                                         const float *logw)
{
    const bool weighs = t.kind == TILE_TOKENS && b.job->logw;
    return {&b, &t, weighs ? logw : NULL, t.kind == TILE_END || seen_by_all(b, t), 0};
}

#endif
