/* mark.cu: masks and lists of lanes (op_lane_begin, _ends, _take, _list): clearing of masks,
 * marking of the forced ends, the top-k of scores or votes, and the lists that attention reads.
 * Sampling is in draw.cu.
 *
 * One block of 1024 threads has one lane, except for clearing. The top-k is a radix select over
 * integer keys (cut.cuh), with ties by index, so a choice is the CPU's for the same scores.
 * Adjacent launches are fused: a launch absorbs the recorded launches whose results only it reads
 * (votes, ends) and makes the list that would follow. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/marked.cuh"

#define THREADS  1024u
#define FEW_THREADS 256u
#define TOGETHER 4u /* items in flight for each thread */
#define MARKED   4u /* pages of a thread in list_marked */

/* ---- Begin ---- */

static __global__ void __launch_bounds__(FEW_THREADS) begin_kernel(const struct choose_begin b)
{
    kernel_begin();
    choose_clear(b.list[blockIdx.y], blockIdx.x, gridDim.x);
}

sac_status cuda_lane_begin(struct cuda_device *d, const struct op_lane_begin *op, uint32_t n)
{
    struct choose_begin b = {choose_stage(d, op, n), n, 1};
    for (uint32_t i = 0; i < n; i++) b.n_page = choose_larger(b.n_page, op[i].n_page);
    b.n_page = choose_round_up(b.n_page);
    if (!b.list) return d->status;
    return queue_launch(d, "clearing of masks", begin_kernel,
                        dim3((b.n_page + FEW_THREADS - 1) / FEW_THREADS, n), FEW_THREADS, 0, b);
}

struct choose_begin choose_absorb_begin(struct cuda_device *d)
{
    return choose_absorb<struct choose_begin>(d, kernel_entry(begin_kernel));
}

/* ---- Ends ---- */

static __global__ void __launch_bounds__(FEW_THREADS) ends_kernel(const struct choose_ends ends)
{
    kernel_begin();
    choose_mark_ends(ends.list[blockIdx.x]);
}

sac_status cuda_lane_ends(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n)
{
    const struct choose_ends ends = {choose_stage(d, op, n), n};
    if (!ends.list || n == 0) return d->status;
    return queue_launch(d, "forced ends", ends_kernel, n, FEW_THREADS, 0, ends);
}

struct choose_ends choose_absorb_ends(struct cuda_device *d)
{
    return choose_absorb<struct choose_ends>(d, kernel_entry(ends_kernel));
}

/* ---- The best items ---- */

/* First token of item i. No division, as a block has many items. */
static __device__ inline uint32_t item_begin(const struct op_lane_take &op, uint32_t i)
{
    if (op.item_tok == 1) return i;
    return i < op.n_page ? i * PAGE_TOK : (i - op.n_page) * PAGE_TOK + op.item_tok;
}

/* Descriptors of absorbed launches, [n] on the device each; NULL: none. */
struct absorbed {
    const struct op_lane_vote *vote; /* makes the values */
    const struct op_lane_ends *ends; /* marks ends in the same masks */
};

/* Computes values that votes are to make, and sets those of items outside [begin, end) to -inf.
 * Returns the number of items inside. */
static __device__ uint32_t leave_out(const struct op_lane_take &op, const struct op_lane_vote *vote,
                                     uint32_t n, uint32_t *room)
{
    uint32_t n_left = 0;
    for (uint32_t first = threadIdx.x; first < n; first += TOGETHER * THREADS) {
        float value[TOGETHER];
        if (vote) choose_votes<TOGETHER>(value, vote->at, first, THREADS);
#pragma unroll
        for (uint32_t k = 0; k < TOGETHER; k++) {
            const uint32_t i = first + k * THREADS, tok = item_begin(op, i);
            const bool in = tok >= op.begin && tok + op.item_tok <= op.end;
            if (i >= n) continue;
            if (!in || vote) op.value[i] = in ? value[k] : -INFINITY;
            n_left += in;
        }
    }
    return block_sum(n_left, room);
}

/* Marks the items above the cut, ties by their index. Returns how many bits are new. */
static __device__ uint32_t mark_cut(const struct op_lane_take &op, uint32_t n, struct op_cut cut,
                                    uint32_t *room)
{
    uint32_t n_new = 0, n_tie = 0, all;
    for (uint32_t first = 0; first < n; first += THREADS) {
        const uint32_t i = first + threadIdx.x, key = i < n ? cut_key(op.value[i]) : 0;
        const bool tie = i < n && key == cut.key;
        const uint32_t before = n_tie + block_exclusive_sum(tie, room, &all);
        n_tie += all;
        const bool taken = i < n && (key > cut.key || (tie && before < cut.n_tie));
        if (op.item_tok == 1) { /* n is a multiple of 32: a warp has the tokens of one page */
            const uint32_t word = __ballot_sync(~0u, taken);
            if (threadIdx.x % 32 == 0 && word) op.mask[i / PAGE_TOK] |= word;
            n_new += taken;
        } else if (taken) {
            const uint32_t tok = item_begin(op, i), page = tok / PAGE_TOK;
            const uint32_t bits = choose_bits(page, tok, tok + op.item_tok);
            n_new += __popc(bits & ~atomicOr(&op.mask[page], bits));
        }
    }
    return block_sum(n_new, room);
}

/* Marks the best items of a lane. All threads. */
static __device__ void take_best(const struct op_lane_take &op, const struct op_lane_vote *vote)
{
    __shared__ uint32_t bin[CUT_BINS], room[32];
    const uint32_t n = op.n_page * (PAGE_TOK / op.item_tok);
    if (op.result->n_bad) return; /* everything is read */
    const uint32_t n_left = leave_out(op, vote, n, room), need = min(op.target, n_left);
    if (need == 0) return;
    __syncthreads(); /* all values are written */
    const struct op_cut cut = cut_find(op.value, n, need, bin, room);
    const uint32_t n_new = mark_cut(op, n, cut, room);
    if (threadIdx.x == 0) op.result->n_chosen += n_new;
}

/* Makes a lane's list. All threads. */
static __device__ void make_list(const struct op_lane_list &op, const struct page_lines &lines,
                                 struct marked_room &room)
{
    const struct op_lane_result r = *op.result;
    const bool dense = op.dense || r.n_bad || r.n_over;
    const uint32_t n_tok = op.weighs && !dense ? r.n_tok : 0;
    struct attn_count count = list_marked<MARKED>(op, r, dense, n_tok, lines, room);
    count.n_line += block_sum(list_tokens(lines, op.tok, n_tok), room.n);
    if (threadIdx.x == 0) *op.count = count;
}

struct taken { /* arguments of a launch, [n] on the device each */
    const struct op_lane_take *take;
    uint32_t n;
    struct absorbed before;
    const struct op_lane_list *list; /* NULL: another launch makes lists */
};

/* One block chooses for one lane, and makes its list if that launch was absorbed. */
static __global__ void __launch_bounds__(THREADS)
    take_kernel(const struct taken of, const struct page_lines all_lines)
{
    __shared__ struct op_lane_take op;
    __shared__ struct op_lane_vote vote;
    __shared__ struct op_lane_list list;
    __shared__ struct page_lines lines;
    __shared__ struct marked_room room;
    list_load_lines(&lines, all_lines);
    if (of.before.vote) choose_copy(&vote, of.before.vote + blockIdx.x);
    if (of.list) choose_copy(&list, of.list + blockIdx.x);
    choose_open(&op, of.take + blockIdx.x);
    if (of.before.ends) choose_mark_ends(of.before.ends[blockIdx.x]);
    take_best(op, of.before.vote ? &vote : NULL);
    if (!of.list) return;
    __syncthreads(); /* all marks are written */
    make_list(list, lines, room);
}

static sac_status launch_take(struct cuda_device *d, const struct taken &of,
                              const struct page_lines &lines)
{
    return queue_launch(d, "the best items", take_kernel, of.n, THREADS, 0, of, lines);
}

/* Drops the last recorded launch if it marks the ends of these lanes, and returns its list. */
static const struct op_lane_ends *absorb_ends(struct cuda_device *d, const struct op_lane_take *op,
                                              uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(ends_kernel));
    struct choose_ends ends;
    if (!last) return NULL;
    memcpy(&ends, last, sizeof ends);
    const struct op_lane_ends *of = choose_staged(d, ends.list);
    if (ends.n != n) return NULL;
    for (uint32_t i = 0; i < n; i++)
        if (of[i].mask != op[i].mask || of[i].n_page != op[i].n_page) return NULL;
    queue_drop_last(d);
    return ends.list;
}

sac_status cuda_lane_take(struct cuda_device *d, const struct op_lane_take *op, uint32_t n)
{
    const struct op_lane_take *list = choose_stage(d, op, n);
    const struct page_lines no_lines = {};
    if (!list || n == 0) return d->status;
    struct taken of = {list, n, {}, NULL};
    of.before.ends = absorb_ends(d, op, n);
    if (of.before.ends) of.before.vote = choose_absorb_votes(d, op, n);
    return launch_take(d, of, no_lines);
}

/* ---- Lists ---- */

/* One block makes the list of one lane. */
static __global__ void __launch_bounds__(THREADS)
    list_kernel(const struct page_lines all_lines, const struct op_lane_list *list)
{
    __shared__ struct op_lane_list op;
    __shared__ struct page_lines lines; /* in shared memory, as threads look up different entries */
    __shared__ struct marked_room room;
    list_load_lines(&lines, all_lines);
    choose_open(&op, list + blockIdx.x);
    make_list(op, lines, room);
}

/* If the last recorded launch chooses for these lanes, replaces it by one that makes their lists,
 * too. */
static bool list_taken(struct cuda_device *d, const struct op_lane_list *op,
                       const struct op_lane_list *staged, uint32_t n)
{
    const void *last = queue_last(d, kernel_entry(take_kernel));
    struct taken of;
    if (!last) return false;
    memcpy(&of, last, sizeof of);
    const struct op_lane_take *take = choose_staged(d, of.take);
    if (of.n != n || of.list) return false;
    for (uint32_t i = 0; i < n; i++)
        if (take[i].mask != op[i].mask || take[i].result != op[i].result || op[i].dense)
            return false;
    queue_drop_last(d);
    of.list = staged;
    (void)launch_take(d, of, *op->lines); /* the device remembers a failure */
    return true;
}

sac_status cuda_lane_list(struct cuda_device *d, const struct op_lane_list *op, uint32_t n)
{
    const struct op_lane_list *list = choose_stage(d, op, n);
    if (!list || n == 0 || choose_list_drawn(d, op, list, n) || list_taken(d, op, list, n) ||
        choose_list_visited(d, op, list, n))
        return d->status;
    return queue_launch(d, "lists of selections", list_kernel, n, THREADS, 0, *op->lines, list);
}
