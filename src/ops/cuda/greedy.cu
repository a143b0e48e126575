/* greedy.cu: columns and diagonals taken in rounds until they hold a share of the sampled rows'
 * attention (op_trace, OP_TRACE_GREEDY), by a block for each list of lines, which goes on for as
 * many rounds as it takes: nobody waits for it.
 *
 * What is left of a line, the attention in its cells that no taken line has, is a whole number, so
 * the lines of a round may lower it in any order. A line x of either kind crosses, in the row at
 * position r >= x, the line r - x of the other kind. */
#include "ops/cuda/cut.cuh"
#include "ops/cuda/trace.cuh"

#define THREADS 1024u

struct greedy {
    const struct trace_call &c;
    struct trace_rows rows;
    uint32_t head, n, pos0;
    trace_sum *left[TRACE_KINDS];   /* [n] of lines that are not taken */
    float *key[TRACE_KINDS];        /* [n] below 0: taken */
    uint32_t *bits[TRACE_KINDS];    /* [words] taken lines */
    uint32_t *before[TRACE_KINDS];  /* [words] how many of those before a word */
    uint32_t *line;                 /* [n] those of a round, in any order */
    uint32_t *room;                 /* shared [32] */
    trace_sum *sum_room, *sum_bin;  /* the same of sums */
    uint32_t *n_line;               /* shared: of `line` */
    trace_sum covered, goal, n_cell;
};

static __device__ void greedy_open(struct greedy &g, uint32_t head)
{
    const struct trace_call &c = g.c;
    g.head = head;
    g.n = c.n;
    g.pos0 = c.op.rows.pos;
    for (uint32_t k = 0; k < TRACE_KINDS; k++) {
        g.left[k] = trace_sums(c, head, k);
        g.key[k] = c.rank + ((size_t)head * TRACE_KINDS + k) * c.stride;
        g.bits[k] = trace_taken(c, 0, head, k);
        g.before[k] = trace_taken(c, 1, head, k);
        for (uint32_t i = threadIdx.x; i < c.stride / 32; i += THREADS) g.bits[k][i] = 0;
    }
    g.line = c.line + (size_t)head * c.stride;
    g.covered = g.n_cell = 0;
    __syncthreads();
}

/* ---- Keys ---- */

static __device__ void count_taken(const struct greedy &g, uint32_t kind)
{
    uint32_t n_before = 0, all;
    for (uint32_t first = 0; first < g.c.stride / 32; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const bool is = i < g.c.stride / 32;
        const uint32_t n = is ? (uint32_t)__popc(g.bits[kind][i]) : 0;
        const uint32_t before = block_before(n, g.room, &all);
        if (is) g.before[kind][i] = n_before + before;
        n_before += all;
    }
    __syncthreads();
}

/* Taken lines of a kind, number x included. */
static __device__ inline uint32_t taken_to(const struct greedy &g, uint32_t kind, uint32_t x)
{
    return g.before[kind][x / 32] + (uint32_t)__popc(g.bits[kind][x / 32] & ~0u >> (31 - x % 32));
}

static __device__ inline uint32_t cells(const struct greedy &g, uint32_t line)
{
    return g.n - max(g.pos0, line);
}

/* Cells of a line that taken ones of the other kind have, by the last count of those. */
static __device__ inline uint32_t crossings(const struct greedy &g, uint32_t kind, uint32_t line)
{
    const uint32_t all = taken_to(g, !kind, g.n - 1 - line);
    return line < g.pos0 ? all - taken_to(g, !kind, g.pos0 - 1 - line) : all;
}

static __device__ inline uint32_t free_cells(const struct greedy &g, uint32_t kind, uint32_t line)
{
    const uint32_t n = cells(g, line), n_cross = crossings(g, kind, line);
    return n > n_cross ? n - n_cross : 0;
}

static __device__ float block_max(float x, struct greedy &g)
{
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
    __syncthreads();
    if (threadIdx.x % 32 == 0) g.room[threadIdx.x / 32] = __float_as_uint(x);
    __syncthreads();
    x = __uint_as_float(g.room[threadIdx.x % 32]);
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
    return x;
}

/* Keys of all lines of a kind; returns the best. */
static __device__ float make_keys(struct greedy &g, uint32_t kind)
{
    float best = 0;
    count_taken(g, !kind);
    for (uint32_t x = threadIdx.x; x < g.n; x += THREADS) {
        const float left = (float)g.left[kind][x] * (1 / TRACE_ONE);
        const float key =
            trace_has(g.bits[kind], x) ? -1.0f : left / (float)max(1u, free_cells(g, kind, x));
        g.key[kind][x] = key;
        best = fmaxf(best, key);
    }
    return block_max(best, g);
}

/* ---- Takes ---- */

/* Takes the lines of a kind that pick (line) says, and lowers what is left of those that cross
 * them. Crossings are those of the last keys of this kind. Returns the best key that stays. */
template <typename Pick>
static __device__ float take_lines(struct greedy &g, uint32_t kind, const Pick &pick)
{
    trace_sum held = 0, n_cell = 0;
    float best = 0;
    if (threadIdx.x == 0) *g.n_line = 0;
    __syncthreads();
    for (uint32_t first = 0; first < g.n; first += THREADS) {
        const uint32_t x = first + threadIdx.x;
        const bool is = x < g.n && pick(x);
        const uint32_t word = __ballot_sync(~0u, is);
        if (x < g.n && !is) best = fmaxf(best, g.key[kind][x]);
        if (!is) continue;
        held += g.left[kind][x];
        n_cell += free_cells(g, kind, x);
        g.line[atomicAdd(g.n_line, 1u)] = x;
        if ((word & ((1u << x % 32) - 1)) == 0) g.bits[kind][x / 32] |= word;
    }
    g.covered += block_sum(held, g.sum_room);
    g.n_cell += block_sum(n_cell, g.sum_room);
    const uint32_t n = *g.n_line * g.rows.n;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t line = g.line[i / g.rows.n], row = i % g.rows.n, at = g.rows.at[row];
        if (at < line) continue;
        const uint32_t cross = at - line, column = kind == TRACE_SLASH ? cross : line;
        const trace_sum p = trace_whole(trace_weight(g.c, g.head, g.rows.n, row)[column]);
        if (p > 0) atomicAdd(&g.left[!kind][cross], (trace_sum)0 - p);
    }
    __syncthreads();
    return block_max(best, g);
}

static __device__ void take_first(struct greedy &g, uint32_t kind, uint32_t n_first)
{
    count_taken(g, !kind);
    take_lines(g, kind, [&](uint32_t x) { return x < n_first; });
}

/* ---- The last round ---- */

/* Takes lines of a kind from the best on until the goal is reached, the first of equal ones first:
 * all that have the last key are more than that. */
static __device__ void take_last(struct greedy &g, uint32_t kind)
{
    trace_sum n_before = 0, all;
    const struct cut_by_sum cut = cut_find_sum(
        g.key[kind], g.n, g.goal - g.covered, [&](uint32_t x) { return g.left[kind][x]; },
        {g.sum_bin, g.sum_room, g.room});
    /* Of those that have the last key, the keys of all that are not needed are taken away. */
    for (uint32_t first = 0; first < g.n; first += THREADS) {
        const uint32_t x = first + threadIdx.x;
        const bool same = x < g.n && g.key[kind][x] == cut.value;
        const trace_sum before =
            n_before + block_before(same ? g.left[kind][x] : 0, g.sum_room, &all);
        n_before += all;
        if (same && before >= cut.need) g.key[kind][x] = 0;
    }
    __syncthreads();
    take_lines(g, kind, [&](uint32_t x) { return g.key[kind][x] >= cut.value; });
}

/* Takes lines of a kind down to the key `least`. Returns the best key that stays. */
static __device__ float take_round(struct greedy &g, uint32_t kind, float least)
{
    trace_sum sum = 0;
    for (uint32_t x = threadIdx.x; x < g.n; x += THREADS)
        if (g.key[kind][x] >= least) sum += g.left[kind][x];
    sum = block_sum(sum, g.sum_room);
    if (g.covered + sum >= g.goal) {
        take_last(g, kind);
        return 0;
    }
    return take_lines(g, kind, [&](uint32_t x) { return g.key[kind][x] >= least; });
}

/* Adds lines to the first ones. False: no lines reach the goal. */
static __device__ bool take_rounds(struct greedy &g, float beta)
{
    float column = make_keys(g, TRACE_COLUMN);
    while (g.covered < g.goal) { /* the same for all threads */
        const float least = beta * fmaxf(column, make_keys(g, TRACE_SLASH));
        if (!(least > 0)) return false;
        take_round(g, TRACE_SLASH, least);
        if (g.covered >= g.goal) return true;
        make_keys(g, TRACE_COLUMN);
        column = take_round(g, TRACE_COLUMN, least);
    }
    return true;
}

/* What is told of a head: what its lines hold, why it reads everything, and the whole. */
static __global__ void __launch_bounds__(THREADS)
    trace_greedy_kernel(const struct trace_call c, const struct trace_rows rows, uint32_t share)
{
    kernel_begin();
    __shared__ uint32_t room[32], n_line;
    __shared__ trace_sum sum_room[32], sum_bin[CUT_BINS];
    const uint32_t head = blockIdx.x * share;
    if (trace_failed(c, head)) return;
    struct greedy g = {c, rows};
    g.room = room;
    g.sum_room = sum_room;
    g.sum_bin = sum_bin;
    g.n_line = &n_line;
    greedy_open(g, head);
    trace_sum total = 0;
    for (uint32_t x = threadIdx.x; x < g.n; x += THREADS) total += g.left[TRACE_COLUMN][x];
    total = block_sum(total, sum_room);
    g.goal = (trace_sum)ceil(c.op.mass * (double)total);
    take_first(g, TRACE_SLASH, c.op.band);
    take_first(g, TRACE_COLUMN, c.op.sink);
    const bool reached = take_rounds(g, c.op.beta);
    if (threadIdx.x > 0) return;
    trace_sum *told = c.held + head;
    told[0] = g.covered;
    told[c.op.rows.n_head] = reached && (double)g.n_cell <= c.op.most ? PLAN_SPARSE : PLAN_NO_GAIN;
    told[2 * c.op.rows.n_head] = total;
}

/* ---- Heads that share their lines ---- */

/* The attention of a KV head's query heads, their sum, in the place of the first one's. */
static __global__ void __launch_bounds__(THREADS)
    trace_join_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    const uint32_t x = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.z * c.group;
    uint16_t *to = trace_weight(c, head, rows.n, blockIdx.y);
    float sum = 0;
    if (x >= c.n) return;
    for (uint32_t h = 0; h < c.group; h++)
        sum += __uint_as_float((uint32_t)trace_weight(c, head + h, rows.n, blockIdx.y)[x] << 16);
    to[x] = half_bits(sum, SAC_KV_BF16);
}

sac_status trace_join(struct cuda_device *d, const struct trace_call *c,
                      const struct trace_rows *rows)
{
    return queue_launch(d, "attention of heads that share lines", trace_join_kernel,
                        dim3((c->n + THREADS - 1) / THREADS, rows->n, c->op.rows.n_head / c->group),
                        THREADS, 0, *c, *rows);
}

sac_status trace_greedy(struct cuda_device *d, const struct trace_call *c,
                        const struct trace_rows *rows)
{
    const uint32_t share = c->op.by_group ? c->group : 1;
    return queue_launch(d, "lines taken in rounds", trace_greedy_kernel,
                        dim3(c->op.rows.n_head / share), THREADS, 0, *c, *rows, share);
}
