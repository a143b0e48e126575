/* greedy.cu: columns and diagonals taken greedily until they hold a share of the sampled rows'
 * attention (op_trace, OP_TRACE_GREEDY, for loopserve).
 *
 * In a round, all lines whose key (attention left per free cell) is at least beta times the best
 * are taken, first diagonals, then columns; the attention that a taken line holds is subtracted
 * from the lines that cross it. Line x of a kind crosses, in the row at position r >= x, line r - x
 * of the other kind. One block of 1024 threads has a list of lines, or a cluster of up to eight
 * blocks on Hopper, each with a part of the lines of both kinds. The kernel runs as many rounds as
 * a list needs, without the host; blocks of a cluster exchange their results through distributed
 * shared memory. A round is short and bound by latency, so loads are issued in batches, and a
 * thread remembers the best key of its lines and skips them when none can be taken.
 *
 * Attention is in fixed point, so the lines of a round may be subtracted in any order. Shared
 * memory: bits of the taken lines of the other kind and their prefix counts, [n_word] each. */
#include "ops/cuda/cut.cuh"
#include "ops/cuda/trace.cuh"

#define THREADS      1024u
#define JOIN_THREADS 256u
#define BATCH        8u    /* lines, or cells, of a thread in flight */
#define OWN_BYTES    4096u /* bytes of static shared memory */

/* What a step finds. */
struct greedy_found {
    trace_sum held, n_cell; /* of the lines taken */
    float best;             /* key of the lines left */
};

/* What the blocks of a cluster exchange. */
struct greedy_exchange {
    trace_sum held, n_cell, best; /* best: the bits of the key */
};

/* A list's lines of one kind, and the block's buffers. */
struct greedy {
    uint32_t kind, head, n, pos0, n_word;
    uint32_t begin, end;           /* the block's lines, whole words but for the last one's */
    trace_sum *left, *left_across; /* [n] attention left of lines, of this kind and of the other */
    uint32_t *bits;                /* [n_word] bits of taken lines */
    const uint32_t *bits_across;
    float *key;     /* [n] 0 for lines that were taken when keys were made */
    uint32_t *line; /* [end - begin] lines of a step, in any order */
    /* In shared memory: */
    uint32_t *word, *before;          /* [n_word] taken lines of the other kind, and earlier ones */
    uint32_t *n_line;                 /* entries of `line` */
    uint32_t *room;                   /* [32] */
    trace_sum *sum_room;              /* [32] */
    trace_sum *sum_bin;               /* [CUT_BINS] */
    struct greedy_found *found;       /* [32] */
    struct greedy_exchange *exchange; /* [2], used alternately */
    uint32_t turn;
};

/* ---- Reductions ---- */

static __device__ __forceinline__ struct greedy_found found_add(struct greedy_found a,
                                                                const struct greedy_found &b)
{
    return {a.held + b.held, a.n_cell + b.n_cell, fmaxf(a.best, b.best)};
}

/* Reduces over a warp; all lanes get the result. */
static __device__ __forceinline__ struct greedy_found found_by_warp(struct greedy_found x)
{
    for (int by = 16; by > 0; by /= 2)
        x = found_add(x, {__shfl_xor_sync(~0u, x.held, by), __shfl_xor_sync(~0u, x.n_cell, by),
                          __shfl_xor_sync(~0u, x.best, by)});
    return x;
}

/* Reduces over all blocks of the list; all threads get the result. Also a barrier: what was written
 * before is visible to all of them after. */
static __device__ __forceinline__ struct greedy_found found_by_all(struct greedy &g,
                                                                   const struct greedy_found &mine)
{
    const uint32_t lane = threadIdx.x % 32;
    struct greedy_exchange *exchange = &g.exchange[g.turn];
    struct greedy_found x = found_by_warp(mine);
    if (lane == 0) g.found[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x < 32) {
        x = found_by_warp(g.found[lane]);
        if (lane == 0) *exchange = {x.held, x.n_cell, __float_as_uint(x.best)};
    }
    cluster_sync();
    x = {0, 0, 0};
    if (lane < cluster_size()) {
        x.held = cluster_load(&exchange->held, lane);
        x.n_cell = cluster_load(&exchange->n_cell, lane);
        x.best = __uint_as_float((uint32_t)cluster_load(&exchange->best, lane));
    }
    g.turn = !g.turn; /* a block that comes to the next exchange has read this one */
    return found_by_warp(x);
}

static __device__ __forceinline__ void greedy_select_kind(struct greedy &g,
                                                          const struct trace_call &c, uint32_t kind)
{
    g.kind = kind;
    g.left = trace_sums(c, g.head, kind);
    g.left_across = trace_sums(c, g.head, !kind);
    g.bits = trace_taken(c, 0, g.head, kind);
    g.bits_across = trace_taken(c, 0, g.head, !kind);
    g.key = c.rank + ((size_t)g.head * TRACE_KINDS + kind) * c.stride;
}

/* ---- Keys ---- */

/* Loads the bits of the taken lines of the other kind, and their prefix counts. */
static __device__ __forceinline__ void count_across(const struct greedy &g)
{
    uint32_t n_before = 0, all;
    for (uint32_t first = 0; first < g.n_word; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const uint32_t word = i < g.n_word ? g.bits_across[i] : 0;
        const uint32_t before = block_exclusive_sum((uint32_t)__popc(word), g.room, &all);
        if (i < g.n_word) {
            g.word[i] = word;
            g.before[i] = n_before + before;
        }
        n_before += all;
    }
    __syncthreads();
}

/* The number of taken lines of the other kind up to line x. */
static __device__ inline uint32_t taken_to(const struct greedy &g, uint32_t x)
{
    return g.before[x / 32] + (uint32_t)__popc(g.word[x / 32] & ~0u >> (31 - x % 32));
}

/* Cells of a line that lie on no taken line of the other kind, by the counts loaded last. */
static __device__ inline uint32_t free_cells(const struct greedy &g, uint32_t line)
{
    const uint32_t n = g.n - max(g.pos0, line);
    uint32_t n_cross = taken_to(g, g.n - 1 - line);
    if (line < g.pos0) n_cross -= taken_to(g, g.pos0 - 1 - line);
    return n > n_cross ? n - n_cross : 0;
}

/* Makes the keys of the block's lines of a kind; returns the best of this thread's. */
static __device__ __forceinline__ float make_keys(struct greedy &g, const struct trace_call &c,
                                                  uint32_t kind)
{
    float best = 0;
    greedy_select_kind(g, c, kind);
    count_across(g);
    for (uint32_t first = g.begin + threadIdx.x; first < g.end; first += BATCH * THREADS) {
        trace_sum left[BATCH];
        uint32_t word[BATCH];
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++) {
            const uint32_t x = first + k * THREADS;
            left[k] = x < g.end ? g.left[x] : 0;
            word[k] = x < g.end ? g.bits[x / 32] : ~0u;
        }
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++) {
            const uint32_t x = first + k * THREADS;
            if (x >= g.end) continue;
            const bool is_taken = word[k] >> x % 32 & 1;
            const float by = (float)max(1u, free_cells(g, x));
            const float key = is_taken ? 0 : (float)left[k] * (1 / TRACE_ONE) / by;
            g.key[x] = key;
            best = fmaxf(best, key);
        }
    }
    return best;
}

/* ---- Taking of lines ---- */

/* Marks the taken lines of a warp and appends them to `line`, neighbours side by side. */
static __device__ __forceinline__ void note_lines(const struct greedy &g, uint32_t taken,
                                                  uint32_t line)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t at = 0;
    if (taken == 0) return;
    if (lane == 0) {
        at = atomicAdd(g.n_line, (uint32_t)__popc(taken));
        g.bits[line / 32] |= taken;
    }
    at = __shfl_sync(~0u, at, 0);
    if (taken >> lane & 1) g.line[at + (uint32_t)__popc(taken & ((1u << lane) - 1))] = line;
}

/* Subtracts the attention of the appended lines from the lines that cross them. */
static __device__ __forceinline__ void
lower_lines(const struct greedy &g, const struct trace_call &c, const struct trace_rows &rows)
{
    const uint32_t n_line = *g.n_line, n = n_line * rows.n;
    for (uint32_t first = threadIdx.x; first < n; first += BATCH * THREADS) {
        trace_sum p[BATCH];
        uint32_t cross[BATCH];
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++) {
            const uint32_t i = first + k * THREADS;
            p[k] = cross[k] = 0;
            if (i >= n) continue;
            const uint32_t line = g.line[i % n_line], row = i / n_line, at = rows.at[row];
            if (at < line) continue;
            cross[k] = at - line;
            const uint32_t column = g.kind == TRACE_SLASH ? cross[k] : line;
            p[k] = trace_whole(trace_weight(c, g.head, rows.n, row)[column]);
        }
#pragma unroll
        for (uint32_t k = 0; k < BATCH; k++)
            if (p[k] > 0) atomicAdd(&g.left_across[cross[k]], (trace_sum)0 - p[k]);
    }
}

/* Takes the first n_first lines of the current kind and those whose key is at least `least`; best
 * is the best of this thread's keys. All threads get the result. */
static __device__ __forceinline__ struct greedy_found
take_lines(struct greedy &g, const struct trace_call &c, const struct trace_rows &rows,
           uint32_t n_first, float least, float best)
{
    struct greedy_found found = {0, 0, best};
    if (threadIdx.x == 0) *g.n_line = 0;
    __syncthreads();
    if (__any_sync(~0u, n_first > 0 || best >= least)) {
        found.best = 0;
        for (uint32_t first = g.begin + threadIdx.x; first / 32 * 32 < g.end;
             first += BATCH * THREADS) {
            float key[BATCH];
#pragma unroll
            for (uint32_t k = 0; k < BATCH; k++) {
                const uint32_t x = first + k * THREADS;
                key[k] = x < g.end ? g.key[x] : 0;
            }
#pragma unroll
            for (uint32_t k = 0; k < BATCH; k++) {
                const uint32_t x = first + k * THREADS;
                const bool takes = x < g.end && (x < n_first || key[k] >= least);
                const uint32_t taken = __ballot_sync(~0u, takes);
                note_lines(g, taken, x);
                if (takes) {
                    found.held += g.left[x];
                    found.n_cell += free_cells(g, x);
                } else {
                    found.best = fmaxf(found.best, key[k]);
                }
            }
        }
    }
    __syncthreads();
    lower_lines(g, c, rows);
    return found_by_all(g, found);
}

/* ---- Rounds ---- */

/* Of the lines taken last, with keys of at least `least`, keeps only the fewest best that hold
 * `need`, of equal ones the first. By one block. */
static __device__ __forceinline__ struct greedy_found trim_lines(const struct greedy &g,
                                                                 float least, trace_sum need)
{
    const struct cut_room rooms = {g.sum_bin, g.sum_room, g.room};
    const auto left = [&](uint32_t x) { return g.left[x]; };
    struct greedy_found found = {0, 0, 0};
    for (uint32_t x = threadIdx.x; x < g.n; x += THREADS)
        if (g.key[x] < least) g.key[x] = 0;
    __syncthreads();
    const struct cut_by_sum cut = cut_find_sum(g.key, g.n, need, left, rooms);
    const uint32_t limit = cut_limit(g.key, g.n, cut, left, rooms);
    for (uint32_t x = threadIdx.x; x / 32 * 32 < g.n; x += THREADS) {
        const float key = x < g.n ? g.key[x] : 0;
        const bool stays = key > cut.value || (key == cut.value && x < limit);
        const uint32_t back = __ballot_sync(~0u, key > 0 && !stays);
        if (threadIdx.x % 32 == 0 && back) g.bits[x / 32] &= ~back;
        if (key > 0 && stays) {
            found.held += g.left[x];
            found.n_cell += free_cells(g, x);
        }
    }
    return {block_sum(found.held, g.sum_room), block_sum(found.n_cell, g.sum_room), 0};
}

/* The result for a list. */
struct greedy_result {
    trace_sum held, n_cell;
    bool reached;
};

static __device__ inline void greedy_add(struct greedy_result &t, const struct greedy_found &found)
{
    t.held += found.held;
    t.n_cell += found.n_cell;
}

/* Adds rounds to the first lines; column is the best key of the columns left. A list that reads too
 * much never comes to read less, so it ends the rounds. */
static __device__ __forceinline__ void take_rounds(struct greedy &g, const struct trace_call &c,
                                                   const struct trace_rows &rows,
                                                   struct greedy_result &t, float column,
                                                   trace_sum goal)
{
    while (t.held < goal && (double)t.n_cell <= c.op.most) { /* uniform in the block */
        float best = make_keys(g, c, TRACE_SLASH);
        const float least = c.op.beta * fmaxf(column, found_by_all(g, {0, 0, best}).best);
        if (!(least > 0)) return;
        for (int kind = TRACE_SLASH; kind >= TRACE_COLUMN; kind--) {
            if (kind == TRACE_COLUMN) best = make_keys(g, c, TRACE_COLUMN);
            const struct greedy_found found = take_lines(g, c, rows, 0, least, best);
            if (t.held + found.held >= goal) {
                if (cluster_rank() == 0) greedy_add(t, trim_lines(g, least, goal - t.held));
                t.reached = true;
                return;
            }
            greedy_add(t, found);
            column = found.best; /* of columns in the end */
        }
    }
}

/* A list has n_block consecutive blocks, a cluster; without clusters n_block is 1. */
template <uint32_t n_block>
static __global__ void CLUSTER_OF(n_block) __launch_bounds__(THREADS)
    trace_greedy_kernel(const struct trace_call c, const struct trace_rows rows, uint32_t share)
{
    kernel_begin();
    __shared__ uint32_t room[32], n_line;
    __shared__ trace_sum sum_room[32], sum_bin[CUT_BINS];
    __shared__ struct greedy_found found[32];
    __shared__ struct greedy_exchange exchange[2];
    struct greedy g = {};
    g.head = blockIdx.x / n_block * share;
    if (trace_failed(c, g.head)) return; /* all blocks of the list */
    g.n = c.n;
    g.pos0 = c.op.rows.pos;
    g.n_word = (c.n + 31) / 32;
    const uint32_t n_word = (g.n_word + cluster_size() - 1) / cluster_size();
    g.begin = min(cluster_rank() * n_word, g.n_word) * 32;
    g.end = min(g.begin + n_word * 32, g.n);
    g.line = c.line + (size_t)g.head * c.stride + g.begin;
    g.word = (uint32_t *)kernel_shared();
    g.before = g.word + g.n_word;
    g.n_line = &n_line;
    g.room = room;
    g.sum_room = sum_room;
    g.sum_bin = sum_bin;
    g.found = found;
    g.exchange = exchange;
    trace_sum total = 0;
    for (uint32_t k = 0; k < TRACE_KINDS; k++)
        for (uint32_t i = g.begin / 32 + threadIdx.x; i * 32 < g.end; i += THREADS)
            trace_taken(c, 0, g.head, k)[i] = 0;
    for (uint32_t x = g.begin + threadIdx.x; x < g.end; x += THREADS)
        total += trace_sums(c, g.head, TRACE_COLUMN)[x];
    total = found_by_all(g, {total, 0, 0}).held;
    const trace_sum goal = (trace_sum)ceil(c.op.mass * (double)total);
    struct greedy_result t = {};
    float best = make_keys(g, c, TRACE_SLASH);
    greedy_add(t, take_lines(g, c, rows, c.op.band, INFINITY, best));
    best = make_keys(g, c, TRACE_COLUMN);
    const struct greedy_found first = take_lines(g, c, rows, c.op.sink, INFINITY, best);
    greedy_add(t, first);
    t.reached = t.held >= goal;
    take_rounds(g, c, rows, t, first.best, goal);
    cluster_sync(); /* other blocks may still read `exchange` */
    if (cluster_rank() > 0 || threadIdx.x > 0) return;
    *trace_result(c, TRACE_HELD, g.head) = t.held;
    *trace_result(c, TRACE_CELLS, g.head) = t.n_cell;
    *trace_result(c, TRACE_WHOLE, g.head) = total;
    *trace_result(c, TRACE_REACHED, g.head) = t.reached;
}

/* ---- Heads that share their lines ---- */

/* Adds up the attention of a KV head's query heads, into that of the first one. */
static __global__ void __launch_bounds__(JOIN_THREADS)
    trace_join_kernel(const struct trace_call c, const struct trace_rows rows)
{
    kernel_begin();
    const uint32_t x = blockIdx.x * JOIN_THREADS + threadIdx.x, head = blockIdx.z * c.group;
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
    return queue_launch(
        d, "attention of heads that share lines", trace_join_kernel,
        dim3((c->n + JOIN_THREADS - 1) / JOIN_THREADS, rows->n, c->op.rows.n_head / c->group),
        JOIN_THREADS, 0, *c, *rows);
}

/* ---- The launcher ---- */

template <uint32_t n_block>
static sac_status launch(struct cuda_device *d, const struct trace_call *c,
                         const struct trace_rows *rows, size_t smem)
{
    const uint32_t share = c->op.by_group ? c->group : 1;
    return queue_launch(d, "lines taken in rounds", trace_greedy_kernel<n_block>,
                        dim3(c->op.rows.n_head / share * n_block), THREADS, smem, *c, *rows, share);
}

/* As many blocks for a list as there are multiprocessors for it, up to eight. */
sac_status trace_greedy(struct cuda_device *d, const struct trace_call *c,
                        const struct trace_rows *rows)
{
    const size_t smem = (c->n + 31) / 32 * 2 * sizeof(uint32_t);
    const uint32_t n_list = c->op.rows.n_head / (c->op.by_group ? c->group : 1);
    TRY(device_fits(d, OWN_BYTES + smem, "lines of so long a prompt"));
    if (d->major < 9 || 2 * n_list > d->n_sm) return launch<1>(d, c, rows, smem);
    if (4 * n_list > d->n_sm) return launch<2>(d, c, rows, smem);
    return 8 * n_list > d->n_sm ? launch<4>(d, c, rows, smem) : launch<8>(d, c, rows, smem);
}
