/* mark.cu: what is read: marks and lists, for all lanes of a list (lanes.h); draws are draw.cu's. A
 * block makes the choice of a lane. Items are compared as integers and counted, so choices are
 * those of the CPU for the same scores. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/marked.cuh"

#define THREADS 1024u
#define FEW     256u

/* ---- Begin ---- */

static __global__ void __launch_bounds__(FEW) begin_kernel(const struct choose_begin b)
{
    kernel_begin();
    choose_clear(b.list[blockIdx.y], blockIdx.x);
}

sac_status cuda_lane_begin(struct cuda_device *d, const struct op_lane_begin *op, uint32_t n)
{
    struct choose_begin b = {choose_stage(d, op, n), n, 1};
    for (uint32_t i = 0; i < n; i++) b.n_page = choose_larger(b.n_page, op[i].n_page);
    b.n_page = choose_reach(b.n_page);
    if (!b.list) return d->status;
    return queue_launch(d, "begin of a choice", begin_kernel, dim3(choose_parts(b, FEW), n), FEW, 0,
                        b);
}

struct choose_begin choose_take_begin(struct cuda_device *d)
{
    return choose_take<struct choose_begin>(d, kernel_entry(begin_kernel));
}

/* ---- Ends ---- */

static __global__ void __launch_bounds__(FEW) ends_kernel(const struct choose_ends ends)
{
    kernel_begin();
    choose_mark_ends(ends.list[blockIdx.y], blockIdx.x);
}

sac_status cuda_lane_ends(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n)
{
    struct choose_ends ends = {choose_stage(d, op, n), n, 0};
    for (uint32_t i = 0; i < n; i++) ends.n_page = choose_larger(ends.n_page, op[i].n_page);
    if (!ends.list || ends.n_page == 0) return d->status;
    ends.n_page = choose_reach(ends.n_page);
    return queue_launch(d, "ends of a choice", ends_kernel, dim3((ends.n_page + FEW - 1) / FEW, n),
                        FEW, 0, ends);
}

struct choose_ends choose_take_ends(struct cuda_device *d)
{
    return choose_take<struct choose_ends>(d, kernel_entry(ends_kernel));
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
            const uint32_t bits = choose_bits(page, tok, tok + op.item_tok);
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

/* ---- Lists ---- */

/* A block makes a lane's list. */
static __global__ void __launch_bounds__(THREADS)
    list_kernel(const struct page_lines all_lines, const struct op_lane_list *list)
{
    __shared__ struct op_lane_list op;
    __shared__ struct page_lines lines; /* lanes look up different words */
    __shared__ struct marked_room room;
    list_open_lines(&lines, all_lines);
    choose_open(&op, list + blockIdx.x);
    const struct op_lane_result r = *op.result;
    const bool dense = op.dense || r.n_bad || r.n_over;
    const uint32_t n_tok = op.weighs && !dense ? r.n_tok : 0;
    struct attn_count count = list_marked(op, r, dense, n_tok, lines, room);
    count.n_line += block_sum(list_tokens(lines, op.tok, n_tok), room.n);
    if (threadIdx.x == 0) *op.count = count;
}

sac_status cuda_lane_list(struct cuda_device *d, const struct op_lane_list *op, uint32_t n)
{
    const struct op_lane_list *list = choose_stage(d, op, n);
    if (!list || n == 0 || choose_list_drawn(d, op, list, n)) return d->status;
    return queue_launch(d, "lists of a choice", list_kernel, n, THREADS, 0, *op->lines, list);
}
