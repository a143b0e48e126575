/* depot.cu: pages between a device's frames and the depot below them (depot.h).
 *
 * A fetch is two launches: a block for each KV head looks through what the rows of the layer are
 * about to read and says which missing page comes into which frame, then many blocks copy. Lists
 * are the device's, and the host waits for none of it.
 *
 * Invariants, between launches:
 *  1. held[p] = f + 1 if and only if page[f] = p + 1.
 *  2. A page that has no frame has its bytes below; one that has has them in both.
 *  3. A frame of a share holds a page of that layer and KV head. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/place.cuh"
#include "ops/cuda/queue.cuh"

#include "ops/depot.h"

#define THREADS      128u
#define EACH         8u         /* pages or frames that a thread looks at together */
#define COPIERS      16u        /* blocks that copy pages of a KV head */
#define TOKENS_WORTH 8u         /* single tokens of a page for which it always comes */
#define DICE_BITS    6u         /* of the chance of others */
#define WANTED       UINT32_MAX /* in held: it is in the list of those to come */

/* ---- Copies ---- */

/* A thread asks for four pieces before it waits for the first: the bus is far. */
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

/* What lay in the window has no frame any more. */
static __global__ void __launch_bounds__(THREADS) clear_kernel(const struct depot_map m)
{
    kernel_begin();
    const uint32_t f = blockIdx.x * THREADS + threadIdx.x;
    if (f >= m.n_window || m.page[f] == 0) return;
    m.held[m.page[f] - 1] = 0;
    m.page[f] = 0;
}

static sac_status clear_window(struct cuda_device *d, const struct depot_map *m)
{
    return queue_launch(d, "clearing of the window", clear_kernel,
                        (m->n_window + THREADS - 1) / THREADS, THREADS, 0, *m);
}

struct depot_pages {
    struct depot_map map;
    size_t page_bytes;
    const uint32_t *page; /* [pages] */
};

/* The frame that a page has had is free. */
static __device__ void forget(const struct depot_map &m, uint32_t page)
{
    if (m.held[page]) m.page[m.held[page] - 1] = 0;
    m.held[page] = 0;
}

/* Behind clear_kernel, so what is forgotten here lies in shares. */
static __global__ void __launch_bounds__(THREADS) store_kernel(const struct depot_pages c)
{
    kernel_begin();
    const struct depot_map &m = c.map;
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

static __global__ void __launch_bounds__(THREADS) renew_kernel(const struct depot_pages c)
{
    kernel_begin();
    const struct depot_map &m = c.map;
    const uint32_t page = c.page[blockIdx.x];
    if (threadIdx.x == 0) forget(m, page);
    copy_page(m.card + page * m.card_bytes, m.below + page * c.page_bytes, m.card_bytes);
}

/* The list goes up; NULL: there is no room, which is remembered. */
static struct depot_pages pages_of(struct cuda_device *d, const struct depot_map *map,
                                   const struct page_geom *geom, const uint32_t *page,
                                   uint32_t n_page)
{
    struct depot_pages c;
    memset(&c, 0, sizeof c);
    c.map = *map;
    c.page_bytes = geom->bytes;
    c.page = (const uint32_t *)stage_put(d, page, n_page * sizeof *page);
    return c;
}

sac_status cuda_depot_store(struct cuda_device *d, const struct op_depot_store *op)
{
    if (op->n_page == 0) return SAC_OK;
    if (op->n_page > op->map->n_window)
        return device_fail(d, SAC_ERR_MEMORY, "more new pages than the window has frames");
    TRY(clear_window(d, op->map));
    const struct depot_pages c = pages_of(d, op->map, op->geom, op->page, op->n_page);
    if (!c.page) return d->status;
    return queue_launch(d, "storing of pages", store_kernel, op->n_page, THREADS, 0, c);
}

sac_status cuda_depot_renew(struct cuda_device *d, const struct op_depot_renew *op)
{
    if (op->n_page == 0) return SAC_OK;
    const struct depot_pages c = pages_of(d, op->map, op->geom, op->page, op->n_page);
    if (!c.page) return d->status;
    return queue_launch(d, "renewal of pages", renew_kernel, op->n_page, THREADS, 0, c);
}

/* ---- Fetching: what is missing ---- */

struct fetch_run {
    const uint32_t *page; /* [n_kv_head, stride] as attn_run.frame */
    size_t stride;
    struct attn_chosen chosen;
    uint32_t page0, n_page; /* what is read where nothing is chosen */
    bool decodes;
};

struct fetch_call {
    struct depot_map map;
    size_t page_bytes;
    uint32_t lane0, n_wanted_max; /* of the layer; of the lists in `wanted` and `into` */
    uint32_t n_new, n_run;
    bool decodes; /* some run does */
    const struct fetch_run *run;
};

struct asked { /* of a KV head; the same in all threads but for the last three */
    const struct depot_map *map;
    uint32_t *wanted, *into, *room;
    uint32_t clock, n_wanted, n_most;
    uint32_t n_hit, n_miss, n_tok; /* of this thread */
};

/* Whether a missing page comes of which so many tokens are read. One of few comes now and then, by a
 * dice that knows the page and the fetch alone: what comes so costs half of what is read of such
 * pages in place, at most, and a page that is read in every step comes soon. */
static __device__ bool is_worth(uint32_t page, uint32_t n_tok, uint32_t clock)
{
    uint32_t dice = (page * 0x9e3779b1u) ^ (clock * 0x85ebca6bu);
    dice = (dice ^ dice >> 15) * 0x2c1b3c6du;
    return n_tok >= TOKENS_WORTH || dice >> (32 - DICE_BITS) < n_tok;
}

/* EACH pages, or none, of each thread, n_tok of whose tokens are read; no two are the same. */
static __device__ void ask(struct asked &a, const uint32_t page[EACH], const uint32_t n_tok[EACH])
{
    uint32_t at[EACH], n_comes = 0, n;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) at[j] = page[j] == PAGE_NONE ? 0 : a.map->held[page[j]];
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++)
        n_comes += page[j] != PAGE_NONE && at[j] == 0 && is_worth(page[j], n_tok[j], a.clock);
    uint32_t k = a.n_wanted + block_before(n_comes, a.room, &n);
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        const bool misses = page[j] != PAGE_NONE && at[j] == 0;
        const bool comes = misses && is_worth(page[j], n_tok[j], a.clock) && k < a.n_most;
        if (at[j] && at[j] != WANTED) a.map->used[at[j] - 1] = a.clock;
        if (comes) {
            a.map->held[page[j]] = WANTED;
            a.wanted[k++] = page[j];
        }
        a.n_hit += at[j] != 0;
        a.n_miss += misses;
        a.n_tok += misses && !comes ? n_tok[j] : 0;
    }
    a.n_wanted = min(a.n_wanted + n, a.n_most);
    __syncthreads(); /* what is wanted now is not missing to the next */
}

/* Pages of a list [n], or, if there is none, those from page0 on. */
static __device__ void ask_pages(struct asked &a, const uint32_t *page, const uint32_t *list,
                                 uint32_t page0, uint32_t n)
{
    uint32_t at[EACH], n_tok[EACH];
    for (uint32_t i0 = 0; i0 < n; i0 += EACH * THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint32_t i = i0 + j * THREADS + threadIdx.x;
            at[j] = i < n ? page[list ? list[i] : page0 + i] : PAGE_NONE;
            n_tok[j] = PAGE_TOK;
        }
        ask(a, at, n_tok);
    }
}

/* How many of a list of ascending tokens are of token i's page, if it is the first of these. */
static __device__ uint32_t run_of_tokens(const uint32_t *tok, uint32_t i, uint32_t n)
{
    uint32_t end = i;
    if (i > 0 && tok[i - 1] / PAGE_TOK == tok[i] / PAGE_TOK) return 0;
    while (end < n && tok[end] / PAGE_TOK == tok[i] / PAGE_TOK) end++;
    return end - i;
}

static __device__ void ask_tokens(struct asked &a, const uint32_t *page, const uint32_t *tok,
                                  uint32_t n)
{
    uint32_t at[EACH], n_tok[EACH];
    for (uint32_t i0 = 0; i0 < n; i0 += EACH * THREADS) {
#pragma unroll
        for (uint32_t j = 0; j < EACH; j++) {
            const uint32_t i = i0 + j * THREADS + threadIdx.x;
            n_tok[j] = i < n ? run_of_tokens(tok, i, n) : 0;
            at[j] = n_tok[j] ? page[tok[i] / PAGE_TOK] : PAGE_NONE;
        }
        ask(a, at, n_tok);
    }
}

/* Where the second of the two ascending parts of a list of tokens begins: drawn ones stand before
 * those that are read in any case. */
static __device__ uint32_t second_part(const uint32_t *tok, uint32_t n, uint32_t *room)
{
    uint32_t at = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        if (i > 0 && tok[i] < tok[i - 1]) at = i;
    return block_sum(at, room);
}

static __device__ void ask_run(struct asked &a, const struct fetch_run &run, uint32_t h)
{
    const uint32_t *page = run.page + h * run.stride;
    const struct attn_count *count = run.chosen.count ? run.chosen.count + h : NULL;
    if (!count || count->dense) {
        ask_pages(a, page, NULL, run.page0, run.n_page);
        return;
    }
    ask_pages(a, page, run.chosen.page + h * run.chosen.stride, 0, count->n_page);
    if (count->n_tok == 0) return;
    const uint32_t *tok = run.chosen.tok + h * run.chosen.stride * PAGE_TOK;
    const uint32_t part = second_part(tok, count->n_tok, a.room);
    ask_tokens(a, page, tok, part);
    ask_tokens(a, page, tok + part, count->n_tok - part);
}

/* ---- Fetching: room ---- */

/* The k-th page that is wanted gets a frame; who had it loses it. */
static __device__ void put(const struct asked &a, uint32_t k, uint32_t f)
{
    const struct depot_map &m = *a.map;
    if (m.page[f]) m.held[m.page[f] - 1] = 0;
    m.page[f] = a.wanted[k] + 1;
    m.held[a.wanted[k]] = f + 1;
    m.used[f] = a.clock;
    a.into[k] = f;
}

/* Bit j: the frame j behind the i-th from the hand on holds nothing, or nothing that was read in
 * the last `age` fetches. */
static __device__ uint32_t find_old(const struct asked &a, uint32_t first, uint32_t hand,
                                    uint32_t i, uint32_t age)
{
    const struct depot_map &m = *a.map;
    uint32_t old = 0;
#pragma unroll
    for (uint32_t j = 0; j < EACH; j++) {
        const uint32_t f = first + (hand + i + j) % m.n_share;
        if (i + j < m.n_share && (m.page[f] == 0 || m.used[f] + age <= a.clock)) old |= 1u << j;
    }
    return old;
}

/* Frames of a share for what is wanted: from the hand on, first those whose pages the last fetch
 * has not read, then those that this one has not. Returns how many have got one. */
static __device__ uint32_t give_share(const struct asked &a, struct depot_lane *lane,
                                      uint32_t first)
{
    const uint32_t hand = lane->hand, n_share = a.map->n_share;
    uint32_t given = 0;
    for (uint32_t age = 2; age > 0 && given < a.n_wanted; age--)
        for (uint32_t i0 = 0; i0 < n_share && given < a.n_wanted; i0 += EACH * THREADS) {
            const uint32_t i = i0 + threadIdx.x * EACH;
            uint32_t old = find_old(a, first, hand, i, age), n;
            uint32_t k = given + block_before((uint32_t)__popc(old), a.room, &n);
            for (; old && k < a.n_wanted; old &= old - 1, k++) {
                const uint32_t at = (hand + i + (uint32_t)__ffs(old) - 1) % n_share;
                put(a, k, first + at);
                if (k + 1 == a.n_wanted) lane->hand = (at + 1) % n_share;
            }
            given = min(given + n, a.n_wanted);
        }
    __syncthreads();
    return given;
}

/* Those that have got none stay below. */
static __device__ void leave(struct asked &a, uint32_t given)
{
    for (uint32_t k = given + threadIdx.x; k < a.n_wanted; k += THREADS) {
        a.map->held[a.wanted[k]] = 0;
        a.n_tok += PAGE_TOK;
    }
    a.n_wanted = given;
    __syncthreads();
}

/* Decode rows into the share, then prompt rows into this head's part of the window. */
static __global__ void __launch_bounds__(THREADS) fetch_kernel(const struct fetch_call c)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct depot_map &m = c.map;
    const uint32_t h = blockIdx.x, part = (m.n_window - c.n_new) / gridDim.x;
    struct depot_lane *lane = m.lane + c.lane0 + h;
    struct asked a;
    a.map = &m;
    a.wanted = m.wanted + (size_t)h * c.n_wanted_max;
    a.into = m.into + (size_t)h * c.n_wanted_max;
    a.room = room;
    a.clock = lane->clock + c.decodes;
    a.n_wanted = a.n_hit = a.n_miss = a.n_tok = 0;
    a.n_most = m.n_share;
    for (uint32_t i = 0; i < c.n_run; i++)
        if (c.run[i].decodes) ask_run(a, c.run[i], h);
    leave(a, give_share(a, lane, m.n_window + (c.lane0 + h) * m.n_share));
    const uint32_t before = a.n_wanted;
    a.n_most = before + part;
    for (uint32_t i = 0; i < c.n_run; i++)
        if (!c.run[i].decodes) ask_run(a, c.run[i], h);
    for (uint32_t k = before + threadIdx.x; k < a.n_wanted; k += THREADS)
        put(a, k, c.n_new + h * part + k - before);
    const uint32_t n_hit = block_sum(a.n_hit, room), n_miss = block_sum(a.n_miss, room);
    const uint32_t n_tok = block_sum(a.n_tok, room) + a.n_wanted * PAGE_TOK;
    if (threadIdx.x > 0) return;
    lane->clock = a.clock;
    lane->n_hit += n_hit;
    lane->n_miss += n_miss;
    lane->n_tok += n_tok;
    m.n_move[h] = a.n_wanted;
}

/* Blocks of a KV head take its pages in turns. */
static __global__ void __launch_bounds__(THREADS) move_kernel(const struct fetch_call c)
{
    kernel_begin();
    const struct depot_map &m = c.map;
    const uint32_t *wanted = m.wanted + (size_t)blockIdx.y * c.n_wanted_max;
    const uint32_t *into = m.into + (size_t)blockIdx.y * c.n_wanted_max;
    for (uint32_t k = blockIdx.x; k < m.n_move[blockIdx.y]; k += gridDim.x)
        copy_page(m.base + into[k] * c.page_bytes, m.below + wanted[k] * c.page_bytes,
                  c.page_bytes);
}

/* ---- The launcher ---- */

static struct fetch_run run_make(const struct op_depot_fetch *op, const struct attn_run *run)
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
    r.decodes = run->kind == ROW_DECODE;
    return r;
}

/* Whether a prompt row may ask for the window while the last layer's pages are in it. */
static bool needs_window(const struct op_depot_fetch *op)
{
    bool prompts = false;
    for (uint32_t i = 0; i < op->n_run; i++) prompts = prompts || op->run[i].kind != ROW_DECODE;
    return prompts && op->n_new == 0;
}

sac_status cuda_depot_fetch(struct cuda_device *d, const struct op_depot_fetch *op)
{
    const uint32_t n_kv_head = op->geom->n_kv_head;
    if (op->n_run == 0) return SAC_OK;
    if (needs_window(op)) TRY(clear_window(d, op->map));
    void *host;
    struct fetch_call c;
    memset(&c, 0, sizeof c);
    c.map = *op->map;
    c.page_bytes = op->geom->bytes;
    c.lane0 = op->layer * n_kv_head;
    c.n_wanted_max = depot_wanted_max(op->map, n_kv_head);
    c.n_new = op->n_new;
    c.n_run = op->n_run;
    c.run = (const struct fetch_run *)stage_take(d, op->n_run * sizeof *c.run, &host);
    if (!c.run) return d->status;
    for (uint32_t i = 0; i < op->n_run; i++) {
        ((struct fetch_run *)host)[i] = run_make(op, &op->run[i]);
        c.decodes = c.decodes || op->run[i].kind == ROW_DECODE;
    }
    TRY(queue_launch(d, "search for missing pages", fetch_kernel, n_kv_head, THREADS, 0, c));
    return queue_launch(d, "fetching of pages", move_kernel, dim3(COPIERS, n_kv_head), THREADS, 0,
                        c);
}
