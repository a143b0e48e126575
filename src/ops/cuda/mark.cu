/* mark.cu: what is read: marks, draws and lists, for all lanes of a list (lanes.h). A block makes
 * the choice of a lane. Items are compared as integers and counted, so choices are those of the CPU
 * for the same scores; only the sums that a draw's cut is found by are added in another order. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"

#define THREADS 1024u
#define WARPS   (THREADS / 32)
#define FEW     256u
#define SMEM_OWN 16384u /* of shared memory that a kernel's own variables take at most */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- Begin ---- */

static __global__ void __launch_bounds__(FEW) begin_kernel(const struct op_lane_begin *list)
{
    kernel_begin();
    const struct op_lane_begin &op = list[blockIdx.y];
    const uint32_t i = blockIdx.x * FEW + threadIdx.x;
    if (i < op.n_page) op.mask[i] = 0;
    if (i == 0) *op.result = {};
}

sac_status cuda_lane_begin(struct cuda_device *d, const struct op_lane_begin *op, uint32_t n)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < n; i++) most = larger(most, op[i].n_page);
    const struct op_lane_begin *list = choose_stage(d, op, n);
    if (!list) return d->status;
    return queue_launch(d, "begin of a choice", begin_kernel, dim3((most + FEW - 1) / FEW, n), FEW,
                        0, list);
}

/* ---- Ends ---- */

/* Bits of a page's tokens [begin, end), positions of the sequence. */
static __device__ inline uint32_t page_bits(uint32_t page, uint32_t begin, uint32_t end)
{
    const uint32_t first = page * PAGE_TOK;
    const uint32_t lo = begin > first ? begin - first : 0;
    const uint32_t hi = end > first ? min(end - first, PAGE_TOK) : 0;
    return lo < hi ? ~0u >> (PAGE_TOK - hi) & ~0u << lo : 0;
}

static __global__ void __launch_bounds__(FEW) ends_kernel(const struct op_lane_ends *list)
{
    kernel_begin();
    const struct op_lane_ends &op = list[blockIdx.y];
    const uint32_t p = blockIdx.x * FEW + threadIdx.x;
    if (p < op.n_page) op.mask[p] |= page_bits(p, 0, op.begin) | page_bits(p, op.end, UINT32_MAX);
}

sac_status cuda_lane_ends(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = larger(most, op[i].n_page);
    const struct op_lane_ends *list = choose_stage(d, op, n);
    if (!list || most == 0) return d->status;
    return queue_launch(d, "ends of a choice", ends_kernel, dim3((most + FEW - 1) / FEW, n), FEW, 0,
                        list);
}

/* ---- The best items ---- */

static __device__ inline uint32_t item_begin(const struct op_lane_take &op, uint32_t i)
{
    if (op.item_tok == 1) return i;
    return i % op.n_page * PAGE_TOK + i / op.n_page * op.item_tok;
}

/* Takes the values of items outside; returns how many are left. */
static __device__ uint32_t leave_out(const struct op_lane_take &op, uint32_t n, uint32_t *room)
{
    uint32_t n_left = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t tok = item_begin(op, i);
        const bool in = tok >= op.begin && tok + op.item_tok <= op.end;
        if (!in) op.value[i] = -INFINITY;
        n_left += in;
    }
    return block_sum(n_left, room);
}

/* Marks what the cut takes, ties by their index; returns how many bits are new. */
static __device__ uint32_t mark_cut(const struct op_lane_take &op, uint32_t n, struct op_cut cut,
                                    uint32_t *room)
{
    uint32_t n_new = 0, n_tie = 0, all;
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t i = first + threadIdx.x, key = i < n ? cut_key(op.value[i]) : 0;
        const bool tie = i < n && key == cut.key;
        const uint32_t before = n_tie + block_before(tie, room, &all);
        n_tie += all;
        const bool taken = i < n && (key > cut.key || (tie && before < cut.n_tie));
        if (op.item_tok == 1) { /* pages are whole, so a warp has a page's tokens */
            const uint32_t word = __ballot_sync(~0u, taken);
            if (threadIdx.x % 32 == 0 && word) op.mask[i / PAGE_TOK] |= word;
            n_new += taken;
        } else if (taken) {
            const uint32_t tok = item_begin(op, i), page = tok / PAGE_TOK;
            const uint32_t bits = page_bits(page, tok, tok + op.item_tok);
            n_new += __popc(bits & ~atomicOr(&op.mask[page], bits));
        }
    }
    return block_sum(n_new, room);
}

static __global__ void __launch_bounds__(THREADS) take_kernel(const struct op_lane_take *list)
{
    kernel_begin();
    __shared__ uint32_t bin[CUT_BINS], room[32];
    const struct op_lane_take &op = list[blockIdx.x];
    const uint32_t n = op.n_page * (PAGE_TOK / op.item_tok);
    if (op.result->n_bad) return; /* everything is read */
    const uint32_t n_left = leave_out(op, n, room), need = min(op.target, n_left);
    if (need == 0) return;
    __syncthreads(); /* values are there */
    const struct op_cut cut = cut_find(op.value, n, need, bin, room);
    const uint32_t n_new = mark_cut(op, n, cut, room);
    if (threadIdx.x == 0) op.result->n_chosen += n_new;
}

sac_status cuda_lane_take(struct cuda_device *d, const struct op_lane_take *op, uint32_t n)
{
    const struct op_lane_take *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "the best items", take_kernel, n, THREADS, 0, list);
}

/* ---- Draws ---- */

/* Cuts that a draw can have: draw_ref.c halves the bits between the least one and 2 until they are
 * less than OP_DRAW_STEP apart, so the bits of cut i are DRAW_LEAST + i * DRAW_WIDTH. */
#define DRAW_CUTS  1024u
#define DRAW_LEAST 0x2b800000u /* OP_DRAW_LEAST */
#define DRAW_WIDTH ((0x40000000u - DRAW_LEAST) / DRAW_CUTS)
#define DRAW_HELD  49152u /* values that a block keeps in shared memory */
#define DRAW_LOADS 8u     /* of a thread that are under way together */

static_assert(DRAW_CUTS == THREADS, "a thread for each cut");
static_assert(DRAW_WIDTH <= OP_DRAW_STEP && 2 * DRAW_WIDTH > OP_DRAW_STEP, "as many as that");
static_assert(DRAW_WIDTH * DRAW_CUTS == 0x40000000u - DRAW_LEAST, "none is rounded");

/* Sums of the values between two cuts, in 2^-63: of those below cut 0, below cut 1 and so on. They
 * are whole numbers, so that it does not matter who adds first. */
struct draw_sums {
    uint32_t low[DRAW_CUTS], high[DRAW_CUTS];
};

/* In 2^-63, rounded down. */
static __device__ inline unsigned long long draw_whole(uint32_t bits)
{
    const uint32_t exponent = max(bits >> 23, 1u);
    const uint32_t digits = bits >> 23 ? (bits & 0x7fffffu) | 0x800000u : bits;
    return exponent >= 87 ? (unsigned long long)digits << (exponent - 87)
                          : digits >> min(87 - exponent, 31u);
}

static __device__ inline void draw_put(struct draw_sums *s, uint32_t i, unsigned long long x)
{
    const uint32_t low = (uint32_t)x, was = atomicAdd(&s->low[i], low);
    const uint32_t high = (uint32_t)(x >> 32) + (was + low < was);
    if (high) atomicAdd(&s->high[i], high);
}

/* Adds a value; returns it if it is below cut 0, as many may be, for the caller to add up. */
static __device__ inline unsigned long long draw_add(struct draw_sums *s, float value)
{
    const uint32_t bits = __float_as_uint(value);
    if (bits < DRAW_LEAST) return draw_whole(bits);
    const uint32_t i = 1 + (bits - DRAW_LEAST) / DRAW_WIDTH;
    if (i < DRAW_CUTS) draw_put(s, i, draw_whole(bits)); /* else below no cut, or no share */
    return 0;
}

/* As draw_ref.c finds it: the highest that the variance allows. */
static __device__ float find_draw_cut(const struct op_draw &op, const struct draw_sums &s,
                                      unsigned long long *room, uint32_t *room32)
{
    const uint32_t i = threadIdx.x, bits = DRAW_LEAST + i * DRAW_WIDTH;
    const unsigned long long mine = (unsigned long long)s.high[i] << 32 | s.low[i];
    unsigned long long all;
    const double below = (double)(block_before(mine, room, &all) + mine) * 0x1p-63;
    const bool may = i > 0 && (double)__uint_as_float(bits) * below <= op.variance;
    return __uint_as_float(DRAW_LEAST + block_sum((uint32_t)may, room32) * DRAW_WIDTH);
}

/* Values of a draw; the first of them are in shared memory, too. */
struct draw_view {
    const float *value, *held;
    uint32_t n, n_held;
    float cut, by;
};

static __device__ inline float draw_value(const struct draw_view &v, uint32_t i)
{
    return i >= v.n ? 0.0f : i < v.n_held ? v.held[i] : v.value[i];
}

static __device__ inline uint32_t draw_chance(const struct draw_view &v, float value)
{
    const float bits = value * v.by;
    return !(value < v.cut) ? 0 : bits < 0x1p32f ? (uint32_t)bits : UINT32_MAX;
}

/* Items [begin, end) that are taken, by a warp, of which lane k has the sum of the chances before
 * that are dealt to its lane of the draw; returns how many. `at` < UINT32_MAX: writes them there. */
static __device__ uint32_t walk_draw(const struct op_draw &op, const struct draw_view &v,
                                     uint32_t begin, uint32_t end, uint32_t sum, uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32;
    uint32_t n = 0;
#pragma unroll 4
    for (uint32_t first = begin; first < end; first += 32) {
        const uint32_t i = first + lane;
        const float value = draw_value(v, i);
        const uint32_t chance = draw_chance(v, value);
        const uint32_t other = __shfl_xor_sync(~0u, chance, (int)OP_DRAW_LANES);
        const uint32_t up_to = sum + (lane < OP_DRAW_LANES ? chance : other + chance);
        const bool below = value < v.cut, taken = i < end && (!below || up_to < chance);
        const uint32_t all = __ballot_sync(~0u, taken);
        const uint32_t to = at + n + (uint32_t)__popc(all & ((1u << lane) - 1));
        if (taken && at != UINT32_MAX) {
            op.item[to] = op.first + i;
            op.logw[to] = below ? logf(v.cut / value) : 0.0f;
        }
        sum += chance + other;
        n += (uint32_t)__popc(all);
    }
    return n;
}

/* Items that are taken, with their weights; returns how many. A warp has a stretch of them: first
 * all add up the chances of theirs, then they count, then they write. */
static __device__ uint32_t take_draw(const struct op_draw &op, const struct draw_view &v,
                                     uint32_t *room, uint32_t (*part)[OP_DRAW_LANES])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, k = lane % OP_DRAW_LANES;
    const uint32_t each = (v.n + WARPS * 32 - 1) / (WARPS * 32) * 32;
    const uint32_t begin = min(warp * each, v.n), end = min(begin + each, v.n);
    uint32_t sum = 0, all;
#pragma unroll 4
    for (uint32_t first = begin; first < end; first += 32)
        sum += draw_chance(v, draw_value(v, first + lane));
    sum += __shfl_xor_sync(~0u, sum, (int)OP_DRAW_LANES);
    if (lane < OP_DRAW_LANES) part[warp][k] = sum;
    __syncthreads();
    sum = (2 * k + 1) * (UINT32_MAX / (2 * OP_DRAW_LANES) + 1);
    for (uint32_t w = 0; w < warp; w++) sum += part[w][k];
    const uint32_t n = walk_draw(op, v, begin, end, sum, UINT32_MAX);
    const uint32_t before = block_before(lane == 0 ? n : 0, room, &all);
    walk_draw(op, v, begin, end, sum, __shfl_sync(~0u, before, 0));
    return all;
}

/* Shared memory: as many values as the launch has room for. */
static __global__ void __launch_bounds__(THREADS)
    draw_kernel(const struct op_lane_draw *list, uint32_t n_held)
{
    kernel_begin();
    __shared__ struct draw_sums sums;
    __shared__ unsigned long long room64[32];
    __shared__ uint32_t room[32], part[WARPS][OP_DRAW_LANES];
    const struct op_lane_draw &op = list[blockIdx.x];
    if (op.result->n_bad) return; /* everything is read */
    float *held = (float *)kernel_shared();
    struct draw_view v = {op.at.value, held, op.at.n, min(n_held, op.at.n), 0, 0};
    sums.low[threadIdx.x] = sums.high[threadIdx.x] = 0;
    __syncthreads();
    unsigned long long least = 0;
    for (uint32_t first = threadIdx.x; first < v.n; first += DRAW_LOADS * THREADS) {
        float value[DRAW_LOADS];
#pragma unroll
        for (uint32_t k = 0; k < DRAW_LOADS; k++)
            value[k] = first + k * THREADS < v.n ? v.value[first + k * THREADS] : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < DRAW_LOADS; k++) {
            if (first + k * THREADS < v.n_held) held[first + k * THREADS] = value[k];
            least += draw_add(&sums, value[k]);
        }
    }
    least = block_sum(least, room64);
    if (threadIdx.x == 0) draw_put(&sums, 0, least);
    __syncthreads();
    v.cut = find_draw_cut(op.at, sums, room64, room);
    v.by = 0x1p32f / v.cut;
    const uint32_t n = take_draw(op.at, v, room, part);
    if (threadIdx.x > 0) return;
    op.result->n_tok += n;
    op.result->n_chosen += n;
    op.result->n_over += n + op.n_more > op.most;
}

sac_status cuda_lane_draw(struct cuda_device *d, const struct op_lane_draw *op, uint32_t n)
{
    uint32_t most = 0, held = THREADS;
    for (uint32_t i = 0; i < n; i++) most = larger(most, op[i].at.n);
    while (held < most && held < DRAW_HELD) held *= 2; /* few sizes: a graph lasts */
    const uint32_t room = (uint32_t)((d->smem_max - SMEM_OWN) / sizeof(float));
    held = held < DRAW_HELD ? held : DRAW_HELD;
    held = held < room ? held : room;
    const struct op_lane_draw *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "draw of tokens", draw_kernel, n, THREADS, held * sizeof(float), list,
                        held);
}

/* ---- Lists ---- */

/* page_lines.h: lines of eight tokens' rows by which of them are read, four times. */
static __device__ inline uint32_t count_lines(const uint8_t *lines, uint32_t tok)
{
    return lines[tok & 255] + lines[tok >> 8 & 255] + lines[tok >> 16 & 255] + lines[tok >> 24];
}

static __device__ uint32_t page_lines_of(const struct page_lines &l, uint32_t tok)
{
    uint32_t n = count_lines(l.k, tok) + count_lines(l.v, tok);
    for (uint32_t i = 0; i < l.n_scale; i++) n += (l.scale_tok[i] & tok) != 0;
    return tok ? n + (uint32_t)(l.k_page / 64) : 0;
}

/* Lines of tokens that are listed by themselves, ascending. */
static __device__ uint32_t token_lines(const struct page_lines &l, const uint32_t *tok, uint32_t n)
{
    uint32_t lines = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
        const uint32_t page = tok[i] / PAGE_TOK;
        if (i > 0 && tok[i - 1] / PAGE_TOK == page) continue; /* the first of a page counts it */
        uint32_t word = 0;
        for (uint32_t j = i; j < n && tok[j] / PAGE_TOK == page; j++)
            word |= 1u << tok[j] % PAGE_TOK;
        lines += page_lines_of(l, word);
    }
    return lines;
}

static __global__ void __launch_bounds__(THREADS)
    list_kernel(const struct page_lines lines, const struct op_lane_list *list)
{
    kernel_begin();
    __shared__ uint32_t room[32];
    const struct op_lane_list &op = list[blockIdx.x];
    const struct op_lane_result r = *op.result;
    const bool dense = op.dense || r.n_bad || r.n_over;
    uint32_t n_page = 0, n_tok = op.weighs && !dense ? r.n_tok : 0, n_line, all;
    n_line = op.weighs ? token_lines(lines, op.tok, n_tok) : 0;
    for (uint32_t first = 0; first < op.n_page; first += THREADS) {
        const uint32_t p = first + threadIdx.x;
        const uint32_t word = p >= op.n_page ? 0 : dense ? ~0u : op.mask[p];
        const uint32_t page_at = n_page + block_before(word == ~0u, room, &all);
        n_page += all;
        if (word == ~0u && !dense) op.page[page_at] = p;
        uint32_t left = word == ~0u ? 0 : word;
        uint32_t tok_at = n_tok + block_before((uint32_t)__popc(left), room, &all);
        n_tok += all;
        for (; left; left &= left - 1) op.tok[tok_at++] = p * PAGE_TOK + (uint32_t)__ffs(left) - 1;
        n_line += page_lines_of(lines, word);
    }
    n_line = block_sum(n_line, room);
    if (threadIdx.x > 0) return;
    struct attn_count count = {};
    count.dense = dense;
    count.not_finite = r.n_bad > 0;
    count.n_page = n_page;
    count.n_tok = n_tok;
    count.n_chosen = dense ? 0 : r.n_chosen;
    count.n_line = n_line + r.n_line;
    *op.count = count;
}

sac_status cuda_lane_list(struct cuda_device *d, const struct op_lane_list *op, uint32_t n)
{
    const struct op_lane_list *list = choose_stage(d, op, n);
    if (!list || n == 0) return d->status;
    return queue_launch(d, "lists of a choice", list_kernel, n, THREADS, 0, *op->lines, list);
}
