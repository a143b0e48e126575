/* greedy.cu: columns and diagonals taken in rounds until they hold a share of the sampled rows'
 * attention (op_trace, OP_TRACE_GREEDY). A round is three launches over all lists: diagonals are
 * rated, then taken, and columns are both at once, as what they must reach is known by then; a
 * block for a part of a list's lines. Nobody waits: what a launch has found of a list is summed for
 * the next ones, and each launch sees by these sums whether the goal was reached before it, and
 * then does nothing. Rounds beyond those that are launched for all, and those of one part, are made
 * by a block for each list, with the same steps, as is the end: of the lines of the last round only
 * the best that are needed stay.
 *
 * What is left of a line, the attention in its cells that no taken line has, is a whole number, so
 * the lines of a round may lower it in any order. A line x of either kind crosses, in the row at
 * position r >= x, the line r - x of the other kind. So it crosses those of as many neighbouring
 * numbers as the run has rows, and a block counts the taken ones of these. */
#include "ops/cuda/cut.cuh"
#include "ops/cuda/trace.cuh"

#define THREADS 512u
#define PART    OP_TRACE_PART
#define LINES   (PART / THREADS) /* of a thread */
#define BATCH   4                /* cells that a thread has on their way at a time */

/* A list's lines of a kind, and the room of a block. */
struct greedy {
    uint32_t kind, head, n, pos0;
    trace_sum *left, *left_across; /* [n] of lines that are not taken, of this kind and the other */
    uint32_t *bits;                /* [words] taken lines */
    const uint32_t *bits_across;
    float *key; /* [n] of the lines that the last step of the kind took; 0: others */
    /* Shared memory. */
    uint32_t *word, *before; /* taken lines of the other kind, and how many are before a word */
    uint32_t word0;          /* number of the first of these */
    uint32_t *line, *n_line; /* [PART] taken in this step */
    uint32_t *room;          /* [32] */
    trace_sum *sum_room;     /* [32] */
};

/* What a step takes: lines before number n_first, or those whose key is at least `least`. */
struct greedy_pick {
    uint32_t n_first;
    float least;
};
static constexpr float nothing = INFINITY;

/* What a thread, or a block, has found in a step. */
struct greedy_found {
    trace_sum held, n_cell; /* by lines that it took */
    float best;             /* key of those that stay */
};

static __device__ inline uint32_t window_words(uint32_t n_row)
{
    return (n_row + PART) / 32 + 2;
}

static __device__ __forceinline__ void greedy_turn(struct greedy &g, const struct trace_call &c,
                                                   uint32_t kind)
{
    g.kind = kind;
    g.left = trace_sums(c, g.head, kind);
    g.left_across = trace_sums(c, g.head, !kind);
    g.bits = trace_taken(c, 0, g.head, kind);
    g.bits_across = trace_taken(c, 0, g.head, !kind);
    g.key = c.rank + ((size_t)g.head * TRACE_KINDS + kind) * c.stride;
}

static __device__ __forceinline__ struct greedy greedy_open(const struct trace_call &c,
                                                            uint32_t head, uint32_t kind,
                                                            uint32_t *room, trace_sum *sum_room,
                                                            uint32_t *n_line)
{
    struct greedy g = {};
    g.head = head;
    g.n = c.n;
    g.pos0 = c.op.rows.pos;
    greedy_turn(g, c, kind);
    g.word = (uint32_t *)kernel_shared();
    g.before = g.word + window_words(g.n - g.pos0);
    g.line = g.before + window_words(g.n - g.pos0);
    g.n_line = n_line;
    g.room = room;
    g.sum_room = sum_room;
    return g;
}

/* ---- Keys ---- */

/* Counts taken lines that those of a part may cross. All threads. */
static __device__ __forceinline__ void count_window(struct greedy &g, uint32_t part)
{
    const uint32_t x0 = part * PART, n_near = x0 + PART;
    g.word0 = (g.pos0 > n_near ? g.pos0 - n_near : 0) / 32;
    const uint32_t n_word = (g.n - 1 - x0) / 32 + 1 - g.word0;
    uint32_t n_before = 0, all;
    for (uint32_t first = 0; first < n_word; first += THREADS) {
        const uint32_t i = first + threadIdx.x;
        const uint32_t word = i < n_word ? g.bits_across[g.word0 + i] : 0;
        const uint32_t before = block_before((uint32_t)__popc(word), g.room, &all);
        if (i < n_word) {
            g.word[i] = word;
            g.before[i] = n_before + before;
        }
        n_before += all;
    }
    __syncthreads();
}

/* Lines of the window up to number x. */
static __device__ inline uint32_t taken_to(const struct greedy &g, uint32_t x)
{
    const uint32_t i = x / 32 - g.word0;
    return g.before[i] + (uint32_t)__popc(g.word[i] & ~0u >> (31 - x % 32));
}

/* Cells of a line that no taken line has. */
static __device__ inline uint32_t free_cells(const struct greedy &g, uint32_t line)
{
    const uint32_t n = g.n - max(g.pos0, line);
    uint32_t n_cross = taken_to(g, g.n - 1 - line);
    if (line < g.pos0) n_cross -= taken_to(g, g.pos0 - 1 - line);
    return n > n_cross ? n - n_cross : 0;
}

static __device__ inline float key_of(trace_sum left, uint32_t n_free)
{
    return (float)left * (1 / TRACE_ONE) / (float)max(1u, n_free);
}

/* ---- Steps ---- */

/* Notes the lines of a warp that are taken, neighbours beside each other. */
static __device__ inline void note_lines(const struct greedy &g, uint32_t taken, uint32_t line)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t at = 0;
    if (taken == 0) return;
    if (lane == 0) at = atomicAdd(g.n_line, (uint32_t)__popc(taken));
    at = __shfl_sync(~0u, at, 0);
    if (taken >> lane & 1) g.line[at + (uint32_t)__popc(taken & ((1u << lane) - 1))] = line;
}

/* Lowers what is left of the lines that cross those which were noted. */
static __device__ __forceinline__ void
lower_lines(const struct greedy &g, const struct trace_call &c, const struct trace_rows &rows)
{
    const uint32_t n_line = *g.n_line, n = n_line * rows.n;
    for (uint32_t first = threadIdx.x; first < n; first += BATCH * THREADS) {
        trace_sum p[BATCH];
        uint32_t cross[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const uint32_t i = first + (uint32_t)k * THREADS;
            p[k] = cross[k] = 0;
            if (i >= n) continue;
            const uint32_t line = g.line[i % n_line], row = i / n_line, at = rows.at[row];
            if (at < line) continue;
            cross[k] = at - line;
            const uint32_t column = g.kind == TRACE_SLASH ? cross[k] : line;
            p[k] = trace_whole(trace_weight(c, g.head, rows.n, row)[column]);
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (p[k] > 0) atomicAdd(&g.left_across[cross[k]], (trace_sum)0 - p[k]);
    }
}

/* Rates the lines of a part, and takes some. All threads; the found is the thread's. */
static __device__ __forceinline__ struct greedy_found
take_part(struct greedy &g, const struct trace_call &c, const struct trace_rows &rows,
          uint32_t part, const struct greedy_pick &pick)
{
    struct greedy_found found = {0, 0, 0};
    trace_sum left[LINES];
    uint32_t was[LINES];
#pragma unroll
    for (uint32_t i = 0; i < LINES; i++) { /* on their way while lines are counted */
        const uint32_t x = part * PART + i * THREADS + threadIdx.x;
        left[i] = x < g.n ? g.left[x] : 0;
        was[i] = g.bits[x / 32];
    }
    if (threadIdx.x == 0) *g.n_line = 0;
    count_window(g, part);
#pragma unroll
    for (uint32_t i = 0; i < LINES; i++) {
        const uint32_t x = part * PART + i * THREADS + threadIdx.x;
        const bool may = x < g.n && !(was[i] >> x % 32 & 1);
        const uint32_t n_free = may ? free_cells(g, x) : 0;
        const float key = may ? key_of(left[i], n_free) : 0;
        const bool takes = may && (x < pick.n_first || key >= pick.least);
        const uint32_t taken = __ballot_sync(~0u, takes);
        if (pick.least < nothing && x < g.n) g.key[x] = takes ? key : 0;
        if (threadIdx.x % 32 == 0 && taken) g.bits[x / 32] = was[i] | taken;
        note_lines(g, taken, x);
        if (takes) {
            found.held += left[i];
            found.n_cell += n_free;
        } else {
            found.best = fmaxf(found.best, key);
        }
    }
    __syncthreads();
    lower_lines(g, c, rows);
    return found;
}

/* Nothing of a part is taken. */
static __device__ void leave_part(const struct greedy &g, uint32_t part)
{
    for (uint32_t x = part * PART + threadIdx.x; x < min((part + 1) * PART, g.n); x += THREADS)
        g.key[x] = 0;
}

static __device__ float block_max(float x, uint32_t *room)
{
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
    __syncthreads();
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = __float_as_uint(x);
    __syncthreads();
    x = threadIdx.x % 32 < THREADS / 32 ? __uint_as_float(room[threadIdx.x % 32]) : 0;
    for (int by = 16; by > 0; by /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, by));
    return x;
}

/* Of the block's threads; all of them get it. */
static __device__ __forceinline__ struct greedy_found found_by_all(const struct greedy &g,
                                                                   const struct greedy_found &mine)
{
    struct greedy_found all;
    all.held = block_sum(mine.held, g.sum_room);
    all.n_cell = block_sum(mine.n_cell, g.sum_room);
    all.best = block_max(mine.best, g.room);
    return all;
}

/* What the first n steps have taken together; `last`, of these, is the last that took any. All
 * lanes of a warp. */
struct greedy_state {
    trace_sum covered, n_cell;
    uint32_t last;
};

static __device__ __forceinline__ struct greedy_state state_after(const struct trace_step *step,
                                                                  uint32_t n)
{
    struct greedy_state s = {0, 0, 0};
    for (uint32_t i = threadIdx.x % 32; i < n; i += 32) {
        s.covered += step[i].held;
        s.n_cell += step[i].n_cell;
        if (step[i].held > 0) s.last = i;
    }
    for (int by = 16; by > 0; by /= 2) {
        s.covered += __shfl_xor_sync(~0u, s.covered, by);
        s.n_cell += __shfl_xor_sync(~0u, s.n_cell, by);
        s.last = max(s.last, __shfl_xor_sync(~0u, s.last, by));
    }
    return s;
}

static __device__ inline struct trace_step *steps_of(const struct trace_call &c, uint32_t head)
{
    return c.step + (size_t)head * OP_TRACE_STEPS;
}

static __device__ inline trace_sum goal_of(const struct trace_call &c, uint32_t head)
{
    return (trace_sum)ceil(c.op.mass * (double)*trace_told(c, TRACE_WHOLE, head));
}

/* Whether there is more to take: no list that reads too much comes to read less. */
static __device__ inline bool goes_on(const struct trace_call &c, const struct greedy_state &s,
                                      trace_sum goal)
{
    return s.covered < goal && (double)s.n_cell <= c.op.most;
}

/* ---- Launches of steps ---- */

enum { FIRST_SLASHES, FIRST_COLUMNS, ROUND }; /* steps; a round is RATE, SLASHES, COLUMNS */
enum { RATE, SLASHES, COLUMNS, ROUND_STEPS };

static __device__ inline uint32_t step_kind(uint32_t step)
{
    if (step < ROUND) return step == FIRST_SLASHES ? TRACE_SLASH : TRACE_COLUMN;
    return (step - ROUND) % ROUND_STEPS == COLUMNS ? TRACE_COLUMN : TRACE_SLASH;
}

/* Nothing is taken yet. */
static __global__ void __launch_bounds__(THREADS)
    greedy_clear_kernel(const struct trace_call c, uint32_t share)
{
    kernel_begin();
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x, head = blockIdx.y * share;
    if (i < c.stride / 32)
        for (uint32_t k = 0; k < TRACE_KINDS; k++) trace_taken(c, 0, head, k)[i] = 0;
    if (i < OP_TRACE_STEPS) c.step[(size_t)head * OP_TRACE_STEPS + i] = {};
    if (i == 0) *trace_told(c, TRACE_WHOLE, head) = 0;
}

/* By the steps before it; false: there is nothing to do. What is read does not wait for another. */
static __device__ __forceinline__ bool pick_of(struct greedy_pick *out, const struct trace_call &c,
                                               uint32_t head, uint32_t step)
{
    const uint32_t of = step < ROUND ? 0 : (step - ROUND) % ROUND_STEPS;
    const uint32_t first = step < ROUND ? (uint32_t)ROUND : step - of;
    const struct trace_step *steps = steps_of(c, head);
    const struct greedy_state s = state_after(steps, step);
    const trace_sum goal = goal_of(c, head);
    /* Of the last columns and these diagonals. */
    const float best = __uint_as_float(max(steps[first - 1].best, steps[first].best));
    const bool failed = trace_failed(c, head);
    *out = {0, of > RATE ? c.op.beta * best : nothing};
    if (step == FIRST_SLASHES) out->n_first = c.op.band;
    if (step == FIRST_COLUMNS) out->n_first = c.op.sink;
    return !failed && (step < ROUND || goes_on(c, s, goal)) && out->least > 0;
}

/* Of all diagonals before any is lowered: of all attention. */
static __device__ void sum_part(const struct greedy &g, uint32_t part, trace_sum *to)
{
    trace_sum sum = 0;
    for (uint32_t x = part * PART + threadIdx.x; x < min((part + 1) * PART, g.n); x += THREADS)
        sum += g.left[x];
    sum = block_sum(sum, g.sum_room);
    if (threadIdx.x == 0) atomicAdd(to, sum);
}

/* Adds what the threads of a block have found in a part to what the step has. All threads. */
static __device__ __forceinline__ void tell_found(const struct greedy &g, struct greedy_found x,
                                                  struct trace_step *to, float *top)
{
    const uint32_t lane = threadIdx.x % 32, n_warp = THREADS / 32;
    __shared__ struct greedy_found of_warp[THREADS / 32];
    for (int turn = 0; turn < 2; turn++) { /* of the warps, then of all */
        for (int by = 16; by > 0; by /= 2) {
            x.held += __shfl_xor_sync(~0u, x.held, by);
            x.n_cell += __shfl_xor_sync(~0u, x.n_cell, by);
            x.best = fmaxf(x.best, __shfl_xor_sync(~0u, x.best, by));
        }
        if (turn > 0) break;
        if (lane == 0) of_warp[threadIdx.x / 32] = x;
        __syncthreads();
        if (threadIdx.x >= 32) return;
        x = lane < n_warp ? of_warp[lane] : greedy_found{0, 0, 0};
    }
    if (lane > 0) return;
    if (x.held > 0) atomicAdd(&to->held, x.held);
    if (x.n_cell > 0) atomicAdd(&to->n_cell, x.n_cell);
    if (x.best > 0) atomicMax(&to->best, __float_as_uint(x.best));
    if (g.kind == TRACE_SLASH) *top = x.best;
}

/* A block for a part and a list. */
static __global__ void __launch_bounds__(THREADS)
    greedy_step_kernel(const struct trace_call c, const struct trace_rows rows, uint32_t share,
                       uint32_t step)
{
    kernel_begin();
    __shared__ uint32_t room[32], n_line;
    __shared__ trace_sum sum_room[32];
    const uint32_t head = blockIdx.y * share, part = blockIdx.x;
    struct greedy g = greedy_open(c, head, step_kind(step), room, sum_room, &n_line);
    struct greedy_pick pick;
    float *const top = &c.top_key[(size_t)head * (c.stride / PART) + part];
    const float best = step < ROUND ? 0 : *top; /* of diagonals */
    if (!pick_of(&pick, c, head, step))
        return; /* the same for all threads, and blocks of the list */
    if (g.kind == TRACE_SLASH && pick.least < nothing && best < pick.least) {
        leave_part(g, part);
        return;
    }
    if (step == FIRST_SLASHES) sum_part(g, part, trace_told(c, TRACE_WHOLE, head));
    tell_found(g, take_part(g, c, rows, part, pick), steps_of(c, head) + step, top);
}

/* ---- The end ---- */

/* A step of all parts by one block. */
static __device__ __forceinline__ struct greedy_found
take_all(struct greedy &g, const struct trace_call &c, const struct trace_rows &rows, uint32_t kind,
         const struct greedy_pick &pick)
{
    struct greedy_found mine = {0, 0, 0};
    greedy_turn(g, c, kind);
    for (uint32_t part = 0; part * PART < g.n; part++) {
        const struct greedy_found more = take_part(g, c, rows, part, pick);
        mine.held += more.held;
        mine.n_cell += more.n_cell;
        mine.best = fmaxf(mine.best, more.best);
        __syncthreads();
    }
    return found_by_all(g, mine);
}

/* Where a list is before the step that ends it, which took lines of a kind. */
struct greedy_end {
    struct greedy_state before;
    uint32_t kind; /* TRACE_KINDS: no such step */
    bool reached;
};

/* More rounds than were launched; `column` is the best that the last of these left. */
static __device__ __forceinline__ struct greedy_end
take_rounds(struct greedy &g, const struct trace_call &c, const struct trace_rows &rows,
            struct greedy_state s, float column, trace_sum goal)
{
    while (goes_on(c, s, goal)) {
        const float slash = take_all(g, c, rows, TRACE_SLASH, {0, nothing}).best;
        const float least = c.op.beta * fmaxf(column, slash);
        if (!(least > 0)) break;
        for (int kind = TRACE_SLASH; kind >= TRACE_COLUMN; kind--) {
            const struct greedy_state before = s;
            const struct greedy_found found = take_all(g, c, rows, (uint32_t)kind, {0, least});
            s.covered += found.held;
            s.n_cell += found.n_cell;
            if (s.covered >= goal) return {before, (uint32_t)kind, true};
            column = found.best; /* of columns, at last */
        }
    }
    return {s, TRACE_KINDS, false};
}

static __device__ __forceinline__ struct greedy_end end_of(struct greedy &g,
                                                           const struct trace_call &c,
                                                           const struct trace_rows &rows,
                                                           uint32_t n_step, trace_sum goal)
{
    const struct trace_step *steps = steps_of(c, g.head);
    struct greedy_state s = state_after(steps, n_step);
    if (s.covered < goal)
        return take_rounds(g, c, rows, s, __uint_as_float(steps[n_step - 1].best), goal);
    if (s.last < ROUND) return {s, TRACE_KINDS, true};
    s.covered -= steps[s.last].held;
    s.n_cell -= steps[s.last].n_cell;
    return {s, step_kind(s.last), true};
}

/* A block for each list: rounds that are left, and what of the last step's lines is needed. */
static __global__ void __launch_bounds__(THREADS)
    greedy_end_kernel(const struct trace_call c, const struct trace_rows rows, uint32_t share,
                      uint32_t n_step)
{
    kernel_begin();
    __shared__ uint32_t room[32], n_line;
    __shared__ trace_sum sum_room[32], bin[CUT_BINS];
    const uint32_t head = blockIdx.x * share;
    if (trace_failed(c, head)) return;
    struct greedy g = greedy_open(c, head, TRACE_SLASH, room, sum_room, &n_line);
    const trace_sum goal = goal_of(c, head);
    const struct greedy_end end = end_of(g, c, rows, n_step, goal);
    struct trace_end to = {0, 0, end.kind};
    if (end.kind < TRACE_KINDS) {
        greedy_turn(g, c, end.kind);
        const struct cut_room rooms = {bin, sum_room, room};
        const auto left = [&](uint32_t x) { return g.left[x]; };
        const struct cut_by_sum cut =
            cut_find_sum(g.key, g.n, goal - end.before.covered, left, rooms);
        to.key = cut.value;
        to.limit = cut_limit(g.key, g.n, cut, left, rooms);
    }
    if (threadIdx.x > 0) return;
    c.end[head] = to;
    *trace_told(c, TRACE_HELD, head) = end.before.covered;
    *trace_told(c, TRACE_CELLS, head) = end.before.n_cell;
    *trace_told(c, TRACE_REACHED, head) = end.reached;
}

/* A block for a part and a list: lines of the last step that are not needed are taken back. */
static __global__ void __launch_bounds__(THREADS)
    greedy_trim_kernel(const struct trace_call c, uint32_t share)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    __shared__ trace_sum sum_room[32];
    const uint32_t head = blockIdx.y * share, part = blockIdx.x;
    if (trace_failed(c, head)) return;
    const struct trace_end end = c.end[head];
    if (end.kind == TRACE_KINDS) return;
    struct greedy g = greedy_open(c, head, end.kind, room, sum_room, NULL);
    trace_sum held = 0, n_cell = 0;
    count_window(g, part);
    for (uint32_t i = threadIdx.x; i < PART; i += THREADS) {
        const uint32_t x = part * PART + i;
        const float key = x < g.n ? g.key[x] : 0;
        const bool stays = key > end.key || (key == end.key && x < end.limit);
        const uint32_t back = __ballot_sync(~0u, key > 0 && !stays);
        if (threadIdx.x % 32 == 0 && back) g.bits[x / 32] &= ~back;
        if (key > 0 && stays) {
            held += g.left[x];
            n_cell += free_cells(g, x);
        }
    }
    held = block_sum(held, sum_room);
    n_cell = block_sum(n_cell, sum_room);
    if (threadIdx.x > 0 || held == 0) return;
    atomicAdd(trace_told(c, TRACE_HELD, head), held);
    atomicAdd(trace_told(c, TRACE_CELLS, head), n_cell);
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

/* ---- The launcher ---- */

sac_status trace_greedy(struct cuda_device *d, const struct trace_call *c,
                        const struct trace_rows *rows)
{
    const uint32_t share = c->op.by_group ? c->group : 1, n_list = c->op.rows.n_head / share;
    const uint32_t n_word = (c->n - c->op.rows.pos + PART) / 32 + 2; /* window_words */
    const size_t smem = (2 * n_word + PART) * sizeof(uint32_t);
    const dim3 grid((c->n + PART - 1) / PART, n_list);
    const uint32_t n_step =
        c->n > PART ? OP_TRACE_STEPS : (uint32_t)ROUND; /* a part is one block's */
    TRY(attn_fits(d, smem));
    TRY(queue_launch(d, "no lines yet", greedy_clear_kernel,
                     dim3((unsigned)((c->stride / 32 + THREADS - 1) / THREADS), n_list), THREADS, 0,
                     *c, share));
    for (uint32_t step = 0; step < n_step; step++)
        TRY(queue_launch(d, "lines taken in rounds", greedy_step_kernel, grid, THREADS, smem, *c,
                         *rows, share, step));
    TRY(queue_launch(d, "the last of the lines", greedy_end_kernel, dim3(n_list), THREADS, smem, *c,
                     *rows, share, n_step));
    return queue_launch(d, "lines that are not needed", greedy_trim_kernel, grid, THREADS, smem, *c,
                        share);
}
