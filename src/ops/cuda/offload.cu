/* offload.cu: transfers of pages between frames on the GPU and host memory (ops/offload.h,
 * op_offload_*).
 *
 * A fetch is two launches. In the first, one block of SEARCH_THREADS for each KV head goes through
 * everything that the rows of the layer are about to read, collects the pages without a frame
 * (request_*), and assigns frames to them (assign_*). In the second, COPY_BLOCKS blocks a head copy
 * those pages over the bus. Lists are read on the device, so the host waits for nothing. Visits of
 * pages (visit.cu) fetch their first round in the same way before they read keys.
 *
 * Eviction counts time in turns: a layer has one for each step with decode rows. A frame's rank is
 * the number of turns of its page's layer in which the page was not read; the highest rank is
 * evicted first, and rank 0 never. A page of a later layer that was read in the step before has
 * missed no turn, so what one step reads of all layers stays as long as there is anything else. The
 * first n_pass frames of a head are transit frames: when no other frame is free, missing pages pass
 * through them.
 *
 * Ties go to the lower frame, and slots in the lists come from block-wide exclusive sums, so which
 * page gets which frame does not depend on timing. Where a page lies never changes results, only
 * speed.
 *
 * Invariants, between launches:
 *  1. held[p] = f + 1 if and only if page[f] = p + 1.
 *  2. A page without a frame has its bytes in host memory; one with a frame has them in both.
 *  3. A frame of a KV head holds a page of that head. */
#include "ops/cuda/offload.cuh"

#include "ops/cuda/block.cuh"
#include "ops/cuda/queue.cuh"

#include "ops/offload.h"

#define THREADS        128u
#define SEARCH_THREADS 512u       /* of the block that searches for a KV head */
#define EACH           8u         /* pages, or frames, of a thread at a time */
#define RANKS          16u        /* of frames: the highest is evicted first, 0 never */
#define COPY_BLOCKS    16u        /* for each KV head */
#define TOKENS_WORTH   8u         /* tokens of a page for which it is always fetched */
#define HASH_BITS      6u         /* for fewer, the chance is tokens / 2^HASH_BITS */
#define REQUESTED      UINT32_MAX /* in held: the page is in the list of those to fetch */

/* ---- Copies ---- */

/* Copies a page by one block. A thread has four loads in flight, as the bus has a long latency. */
static __device__ void copy_page(uint8_t *to, const uint8_t *from, size_t bytes)
{
    const uint32_t n = (uint32_t)(bytes / sizeof(uint4));
    for (uint32_t i = threadIdx.x; i < n; i += 4 * THREADS) {
        uint4 piece[4];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (i + j * THREADS < n) piece[j] = ((const uint4 *)from)[i + j * THREADS];
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            if (i + j * THREADS < n) ((uint4 *)to)[i + j * THREADS] = piece[j];
    }
}

/* Empties the first n frames. */
static __global__ void __launch_bounds__(THREADS)
    clear_kernel(const struct offload_map m, uint32_t n)
{
    kernel_begin();
    const uint32_t f = blockIdx.x * THREADS + threadIdx.x;
    if (f >= n || m.page[f] == 0) return;
    m.held[m.page[f] - 1] = 0;
    m.page[f] = 0;
}

struct offload_pages {
    struct offload_map map;
    size_t page_bytes;
    const uint32_t *page; /* [number of pages] */
};

/* Takes a page's frame away from it. */
static __device__ void forget(const struct offload_map &m, uint32_t page)
{
    if (m.held[page]) m.page[m.held[page] - 1] = 0;
    m.held[page] = 0;
}

/* Stores frame blockIdx.x as a page in host memory, and its card in the array of cards.
 * clear_kernel has run before, so a frame freed here is never one that another block fills. */
static __global__ void __launch_bounds__(THREADS) store_kernel(const struct offload_pages c)
{
    kernel_begin();
    const struct offload_map &m = c.map;
    const uint32_t f = blockIdx.x, page = c.page[f];
    const uint8_t *from = m.base + f * c.page_bytes;
    if (threadIdx.x == 0) {
        forget(m, page);
        m.held[page] = f + 1;
        m.page[f] = page + 1;
    }
    copy_page(m.below + page * c.page_bytes, from, c.page_bytes);
    copy_page(m.card + page * m.card_bytes, from, m.card_bytes);
}

static __global__ void __launch_bounds__(THREADS) renew_kernel(const struct offload_pages c)
{
    kernel_begin();
    const struct offload_map &m = c.map;
    const uint32_t page = c.page[blockIdx.x];
    if (threadIdx.x == 0) forget(m, page);
    copy_page(m.card + page * m.card_bytes, m.below + page * c.page_bytes, m.card_bytes);
}

/* Stages the list of pages. page is NULL if there was no room, and the failure is remembered. */
static struct offload_pages pages_of(struct cuda_device *d, const struct offload_map *map,
                                     const struct page_geom *geom, const uint32_t *page,
                                     uint32_t n_page)
{
    struct offload_pages c;
    memset(&c, 0, sizeof c);
    c.map = *map;
    c.page_bytes = geom->bytes;
    c.page = (const uint32_t *)stage_put(d, page, n_page * sizeof *page);
    return c;
}

sac_status cuda_offload_store(struct cuda_device *d, const struct op_offload_store *op)
{
    if (op->n_page == 0) return SAC_OK;
    if (op->n_page > op->map->n_new)
        return device_fail(d, SAC_ERR_MEMORY, "more new pages than there are frames for them");
    TRY(queue_launch(d, "clearing of frames", clear_kernel, (op->n_page + THREADS - 1) / THREADS,
                     THREADS, 0, *op->map, op->n_page));
    const struct offload_pages c = pages_of(d, op->map, op->geom, op->page, op->n_page);
    if (!c.page) return d->status;
    return queue_launch(d, "storing of pages", store_kernel, op->n_page, THREADS, 0, c);
}

sac_status cuda_offload_renew(struct cuda_device *d, const struct op_offload_renew *op)
{
    if (op->n_page == 0) return SAC_OK;
    const struct offload_pages c = pages_of(d, op->map, op->geom, op->page, op->n_page);
    if (!c.page) return d->status;
    return queue_launch(d, "renewal of pages", renew_kernel, op->n_page, THREADS, 0, c);
}

/* ---- Fetching: requests ---- */

struct fetch_run {
    const uint32_t *page; /* [n_kv_head, stride], as attn_run.frame */
    size_t stride;
    struct attn_chosen chosen;
    uint32_t page0, n_page; /* read if there is no selection */
};

struct fetch_call {
    struct offload_map map;
    uint32_t layer, n_layer;
    uint32_t n_run;
    bool prompts; /* the runs are of prompt rows */
    const struct fetch_run *run;
};

struct visits_list {
    const uint32_t *page;  /* of a lane, as one row of fetch_run.page */
    const uint32_t *order; /* [n_page] indices in the order of the visits */
    const uint32_t *n;     /* how many the first round visits */
    uint32_t n_page;
};

struct visits_call {
    struct offload_map map;
    uint32_t layer, n_layer;
    const struct visits_list *list;
    const uint32_t *ptr; /* [n_kv_head + 1]: the lists of head h start at ptr[h] */
};

struct fetch_request { /* of a KV head; the same in all threads but for the last three */
    const struct offload_map *map;
    struct offload_lane *lane;
    uint32_t *wanted, *into, *room;
    uint32_t first;               /* frame of the head */
    uint32_t clock, now, n_layer; /* now: a time as in offload_map.used */
    uint32_t n_wanted;            /* at most n_head, the head's frames */
    uint32_t n_hit, n_miss, n_tok;
};

/* An empty request, in the layer's turn that ends next. */
static __device__ struct fetch_request request_begin(const struct offload_map *m, uint32_t h,
                                                     uint32_t layer, uint32_t n_layer,
                                                     uint32_t *room)
{
    struct fetch_request a;
    a.map = m;
    a.lane = m->lane + layer * gridDim.x + h;
    a.wanted = m->wanted + (size_t)h * m->n_head;
    a.into = m->into + (size_t)h * m->n_head;
    a.room = room;
    a.first = m->n_new + h * m->n_head;
    a.clock = a.lane->clock + 1;
    a.now = a.clock * n_layer + layer;
    a.n_layer = n_layer;
    a.n_wanted = a.n_hit = a.n_miss = a.n_tok = 0;
    return a;
}

/* Whether a missing page is worth a copy if n_tok of its tokens are read. With TOKENS_WORTH or more
 * it is. With fewer it is fetched now and then, by a hash of page and turn: such fetches cost at
 * most half of what reading these pages in place costs, and a page that every step reads is fetched
 * soon. */
static __device__ bool is_worth_fetching(uint32_t page, uint32_t n_tok, uint32_t clock)
{
    uint32_t hash = (page * 0x9e3779b1u) ^ (clock * 0x85ebca6bu);
    hash = (hash ^ hash >> 15) * 0x2c1b3c6du;
    return n_tok >= TOKENS_WORTH || hash >> (32 - HASH_BITS) < n_tok;
}

/* Requests EACH pages of each thread, all different, or PAGE_NONE. Pages that have a frame are
 * marked as read now; missing ones that are worth it are appended to the list. */
static __device__ void request_pages_of(struct fetch_request &a, const uint32_t page[EACH],
                                        const uint32_t n_tok[EACH])
{
    uint32_t at[EACH], n_comes = 0, n;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) at[j] = page[j] == PAGE_NONE ? 0 : a.map->held[page[j]];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        n_comes +=
            page[j] != PAGE_NONE && at[j] == 0 && is_worth_fetching(page[j], n_tok[j], a.clock);
    uint32_t k = a.n_wanted + block_exclusive_sum(n_comes, a.room, &n);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        const bool misses = page[j] != PAGE_NONE && at[j] == 0;
        const bool comes =
            misses && is_worth_fetching(page[j], n_tok[j], a.clock) && k < a.map->n_head;
        if (at[j] && at[j] != REQUESTED) a.map->used[at[j] - 1] = a.now;
        if (comes) {
            a.map->held[page[j]] = REQUESTED;
            a.wanted[k++] = page[j];
        }
        a.n_hit += at[j] != 0;
        a.n_miss += misses;
        a.n_tok += misses && !comes ? n_tok[j] : 0;
    }
    a.n_wanted = min(a.n_wanted + n, a.map->n_head);
    __syncthreads(); /* later calls see the new entries of `held` */
}

/* Requests the pages of a list [n], or without one n pages from page0 on. */
static __device__ void request_pages(struct fetch_request &a, const uint32_t *page,
                                     const uint32_t *list, uint32_t page0, uint32_t n)
{
    uint32_t at[EACH], n_tok[EACH];
    for (uint32_t i0 = 0; i0 < n; i0 += EACH * SEARCH_THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint32_t i = i0 + j * SEARCH_THREADS + threadIdx.x;
            at[j] = i < n ? page[list ? list[i] : page0 + i] : PAGE_NONE;
            n_tok[j] = PAGE_TOK;
        }
        request_pages_of(a, at, n_tok);
    }
}

/* The number of tokens of an ascending list that lie in token i's page, if i is the first of them,
 * else 0. */
static __device__ uint32_t run_of_tokens(const uint32_t *tok, uint32_t i, uint32_t n)
{
    uint32_t end = i;
    if (i > 0 && tok[i - 1] / PAGE_TOK == tok[i] / PAGE_TOK) return 0;
    while (end < n && tok[end] / PAGE_TOK == tok[i] / PAGE_TOK) end++;
    return end - i;
}

static __device__ void request_tokens(struct fetch_request &a, const uint32_t *page,
                                      const uint32_t *tok, uint32_t n)
{
    uint32_t at[EACH], n_tok[EACH];
    for (uint32_t i0 = 0; i0 < n; i0 += EACH * SEARCH_THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint32_t i = i0 + j * SEARCH_THREADS + threadIdx.x;
            n_tok[j] = i < n ? run_of_tokens(tok, i, n) : 0;
            at[j] = n_tok[j] ? page[tok[i] / PAGE_TOK] : PAGE_NONE;
        }
        request_pages_of(a, at, n_tok);
    }
}

/* Where the second ascending run of a list of tokens begins: sampled tokens come before those that
 * are always read. */
static __device__ uint32_t second_run(const uint32_t *tok, uint32_t n, uint32_t *room)
{
    uint32_t at = 0;
    for (uint32_t i = threadIdx.x; i < n; i += SEARCH_THREADS)
        if (i > 0 && tok[i] < tok[i - 1]) at = i;
    return block_sum(at, room);
}

static __device__ void request_run(struct fetch_request &a, const struct fetch_run &run, uint32_t h)
{
    const uint32_t *page = run.page + h * run.stride;
    const struct attn_count *count = run.chosen.count ? run.chosen.count + h : NULL;
    if (!count || count->dense) {
        request_pages(a, page, NULL, run.page0, run.n_page);
        return;
    }
    request_pages(a, page, run.chosen.page + h * run.chosen.stride, 0, count->n_page);
    if (count->n_tok == 0) return;
    const uint32_t *tok = run.chosen.tok + h * run.chosen.stride * PAGE_TOK;
    const uint32_t part = second_run(tok, count->n_tok, a.room);
    request_tokens(a, page, tok, part);
    request_tokens(a, page, tok + part, count->n_tok - part);
}

/* ---- Fetching: frames ---- */

/* Gives frame f to the k-th requested page and takes it from the page that had it. */
static __device__ void assign_frame(const struct fetch_request &a, uint32_t k, uint32_t f)
{
    const struct offload_map &m = *a.map;
    if (m.page[f]) m.held[m.page[f] - 1] = 0;
    m.page[f] = a.wanted[k] + 1;
    m.held[a.wanted[k]] = f + 1;
    m.used[f] = a.now;
    a.into[k] = f;
}

/* A frame's rank: empty frames have the highest, others the number of turns that their page has
 * missed. In transit frames every page that this turn has not read may go. */
static __device__ uint32_t rank_of(const struct fetch_request &a, uint32_t f, bool transit)
{
    const struct offload_map &m = *a.map;
    const uint32_t since = a.now - m.used[f];
    if (m.page[f] == 0) return RANKS - 1;
    if (transit) return since > 0;
    return min(since / a.n_layer, RANKS - 2);
}

/* Assigns frames of a window of EACH * SEARCH_THREADS: those of the highest ranks that suffice, of
 * equal ranks the first ones. Returns how many pages have a frame now; *goes_on is set when the
 * window has no empty frames left for the next call. */
static __device__ uint32_t assign_window(const struct fetch_request &a, const uint32_t f[EACH],
                                         const uint32_t rank[EACH], uint32_t given, bool *goes_on)
{
    __shared__ uint32_t count[RANKS];
    const uint32_t need = a.n_wanted - given;
    uint32_t least = RANKS - 1, above = 0, n_tie = 0, n_take = 0, n;
    __syncthreads(); /* the last window's readers are done */
    if (threadIdx.x < RANKS) count[threadIdx.x] = 0;
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        if (rank[j] > 0) atomicAdd(&count[rank[j]], 1u);
    __syncthreads();
    while (least > 1 && above + count[least] < need) above += count[least--];
    *goes_on = least < RANKS - 1 || count[least] <= need;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) n_tie += rank[j] == least;
    uint32_t tie = above + block_exclusive_sum(n_tie, a.room, &n);
    bool takes[EACH];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        takes[j] = rank[j] > least || (rank[j] == least && tie < need);
        tie += rank[j] == least;
        n_take += takes[j];
    }
    uint32_t k = given + block_exclusive_sum(n_take, a.room, &n);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        if (takes[j]) assign_frame(a, k++, f[j]);
    return n;
}

/* Assigns frames of rank `least` or higher, window by window: of all frames of the head, starting
 * at its clock hand, or of the transit frames. Returns how many pages have a frame. */
static __device__ uint32_t assign_frames(const struct fetch_request &a, uint32_t given,
                                         uint32_t least, bool transit)
{
    const uint32_t n = transit ? a.map->n_pass : a.map->n_head;
    uint32_t first = transit ? 0 : a.map->hand[blockIdx.x], f[EACH], rank[EACH];
    for (uint32_t seen = 0; seen < n && given < a.n_wanted; seen += EACH * SEARCH_THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint32_t i = threadIdx.x * EACH + j;
            f[j] = a.first + (first + i) % n;
            rank[j] = seen + i < n ? rank_of(a, f[j], transit) : 0;
            if (rank[j] < least) rank[j] = 0;
        }
        bool goes_on;
        given += assign_window(a, f, rank, given, &goes_on);
        if (goes_on) first = (first + min(EACH * SEARCH_THREADS, n - seen)) % n;
    }
    __syncthreads(); /* assignments are done, and all have read the hand */
    if (threadIdx.x == 0 && !transit) a.map->hand[blockIdx.x] = first;
    return given;
}

/* Finds frames for the request: of rank `least` or higher, then transit frames if allowed. Pages
 * without one stay in host memory. */
static __device__ void find_frames(struct fetch_request &a, uint32_t least, bool use_transit)
{
    const struct offload_map &m = *a.map;
    uint32_t given = assign_frames(a, 0, least, false);
    if (use_transit) given = assign_frames(a, given, 1, true);
    for (uint32_t k = given + threadIdx.x; k < a.n_wanted; k += SEARCH_THREADS) {
        m.held[a.wanted[k]] = 0; /* it is read in host memory */
        a.n_tok += PAGE_TOK;
    }
    a.n_wanted = given;
    if (threadIdx.x == 0) m.n_move[blockIdx.x] = given;
}

/* Ends the request of a KV head: the turn, if it ends, and the counters. */
static __device__ void request_end(const struct fetch_request &a, bool ends_turn)
{
    const uint32_t n_hit = block_sum(a.n_hit, a.room), n_miss = block_sum(a.n_miss, a.room);
    const uint32_t n_tok = block_sum(a.n_tok, a.room) + a.n_wanted * PAGE_TOK;
    if (threadIdx.x > 0) return;
    a.lane->clock = a.clock - !ends_turn;
    a.lane->n_hit += n_hit;
    a.lane->n_miss += n_miss;
    a.lane->n_tok += n_tok;
}

/* Prompt rows end no turn, so pages that they read in the step before carry the present time. They
 * are aged by one, so that they may pass on. */
static __device__ void age_transit_frames(const struct fetch_request &a)
{
    uint32_t *used = a.map->used + a.first;
    for (uint32_t i = threadIdx.x; i < a.map->n_pass; i += SEARCH_THREADS)
        if (used[i] == a.now) used[i]--;
    __syncthreads();
}

/* Requests what the rows of a layer read. Prompt rows take only empty and transit frames, so that
 * decode rows keep theirs. */
static __global__ void __launch_bounds__(SEARCH_THREADS, 1) fetch_kernel(const struct fetch_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    struct fetch_request a = request_begin(&c.map, blockIdx.x, c.layer, c.n_layer, room);
    if (c.prompts) age_transit_frames(a);
    for (uint32_t i = 0; i < c.n_run; i++) request_run(a, c.run[i], blockIdx.x);
    find_frames(a, c.prompts ? RANKS - 1 : 1, true);
    request_end(a, !c.prompts);
}

/* Requests what the first visits read, from frames that missed a turn: what the next layers read
 * stays. */
static __global__ void __launch_bounds__(SEARCH_THREADS, 1)
    visits_kernel(const struct visits_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    struct fetch_request a = request_begin(&c.map, blockIdx.x, c.layer, c.n_layer, room);
    for (uint32_t i = c.ptr[blockIdx.x]; i < c.ptr[blockIdx.x + 1]; i++)
        request_pages(a, c.list[i].page, c.list[i].order, 0, min(*c.list[i].n, c.list[i].n_page));
    find_frames(a, 1, false);
    a.n_hit = a.n_miss = a.n_tok = 0; /* attention requests and counts them again */
    request_end(a, false);
}

/* Copies the fetched pages of KV head blockIdx.y; its blocks take them in turn. */
static __global__ void __launch_bounds__(THREADS)
    move_kernel(const struct offload_map m, size_t page_bytes)
{
    kernel_begin();
    const uint32_t *wanted = m.wanted + (size_t)blockIdx.y * m.n_head;
    const uint32_t *into = m.into + (size_t)blockIdx.y * m.n_head;
    for (uint32_t k = blockIdx.x; k < m.n_move[blockIdx.y]; k += gridDim.x)
        copy_page(m.base + into[k] * page_bytes, m.below + wanted[k] * page_bytes, page_bytes);
}

/* ---- Launchers ---- */

static sac_status launch_moves(struct cuda_device *d, const struct offload_map *m,
                               const struct page_geom *geom)
{
    return queue_launch(d, "fetching of pages", move_kernel, dim3(COPY_BLOCKS, geom->n_kv_head),
                        THREADS, 0, *m, geom->bytes);
}

static struct fetch_run run_make(const struct op_offload_fetch *op, const struct attn_run *run)
{
    const uint32_t end = (run->pos0 + run->n_row - 1) / PAGE_TOK;
    const bool windowed = op->window > 0 && run->pos0 >= op->window;
    const uint32_t seen = windowed ? (run->pos0 - op->window + 1) / PAGE_TOK : 0;
    struct fetch_run r;
    memset(&r, 0, sizeof r);
    r.page = run->frame;
    r.stride = run->table_stride;
    r.chosen = run->chosen;
    r.page0 = seen < end ? seen : end;
    r.n_page = end - r.page0;
    return r;
}

sac_status cuda_offload_fetch(struct cuda_device *d, const struct op_offload_fetch *op)
{
    const struct offload_map *m = op->map;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    if (op->n_run == 0) return SAC_OK;
    void *host;
    struct fetch_call c;
    memset(&c, 0, sizeof c);
    c.map = *m;
    c.layer = op->layer;
    c.n_layer = op->geom->n_layer;
    c.n_run = op->n_run;
    c.prompts = op->run->kind != ROW_DECODE;
    c.run = (const struct fetch_run *)stage_alloc(d, op->n_run * sizeof *c.run, &host);
    if (!c.run) return d->status;
    for (uint32_t i = 0; i < op->n_run; i++)
        ((struct fetch_run *)host)[i] = run_make(op, &op->run[i]);
    TRY(queue_launch(d, "search for missing pages", fetch_kernel, n_kv_head, SEARCH_THREADS, 0, c));
    return launch_moves(d, m, op->geom);
}

/* Groups the lanes' lists by KV head. */
static void sort_visits(struct visits_list *to, uint32_t *ptr, const struct op_lane_visit *op,
                        uint32_t n_lane)
{
    uint32_t n = 0;
    for (uint32_t h = 0; h < op->geom->n_kv_head; h++) {
        ptr[h] = n;
        for (uint32_t i = 0, leader = 0; i < n_lane; i++) {
            if (op[i].n_member > 0) leader = i;
            if (op[i].kv_head != h) continue;
            to[n].page = op[i].page;
            to[n].order = op[leader].order;
            to[n].n_page = op[i].n_page;
            to[n++].n = &op[leader].state->plan;
        }
    }
    ptr[op->geom->n_kv_head] = n;
}

sac_status offload_fetch_visits(struct cuda_device *d, const struct op_lane_visit *op, uint32_t n)
{
    const struct offload_map *m = op->frames.offload;
    const uint32_t n_kv_head = op->geom->n_kv_head;
    void *list, *ptr;
    struct visits_call c;
    if (!m) return SAC_OK;
    memset(&c, 0, sizeof c);
    c.map = *m;
    c.layer = op->layer;
    c.n_layer = op->geom->n_layer;
    c.list = (const struct visits_list *)stage_alloc(d, n * sizeof *c.list, &list);
    c.ptr = (const uint32_t *)stage_alloc(d, (n_kv_head + 1) * sizeof *c.ptr, &ptr);
    if (!c.list || !c.ptr) return d->status;
    sort_visits((struct visits_list *)list, (uint32_t *)ptr, op, n);
    TRY(queue_launch(d, "search for pages to visit", visits_kernel, n_kv_head, SEARCH_THREADS, 0,
                     c));
    return launch_moves(d, m, op->geom);
}
