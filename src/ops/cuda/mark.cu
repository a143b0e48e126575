/* mark.cu: what is read: marks and lists, for all lanes of a list (lanes.h); draws are draw.cu's. A
 * block makes the choice of a lane. Items are compared as integers and counted, so choices are
 * those of the CPU for the same scores. */
#include "ops/cuda/choose.cuh"
#include "ops/cuda/cut.cuh"

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
    if (!b.list) return d->status;
    return queue_launch(d, "begin of a choice", begin_kernel, dim3(choose_parts(b, FEW), n), FEW, 0,
                        b);
}

struct choose_begin choose_take_begin(struct cuda_device *d)
{
    struct choose_begin b = {};
    const void *last = queue_last(d, kernel_entry(begin_kernel));
    if (!last) return b;
    memcpy(&b, last, sizeof b);
    queue_drop_last(d);
    return b;
}

/* ---- Ends ---- */

static __global__ void __launch_bounds__(FEW) ends_kernel(const struct op_lane_ends *list)
{
    kernel_begin();
    const struct op_lane_ends &op = list[blockIdx.y];
    const uint32_t p = blockIdx.x * FEW + threadIdx.x;
    if (p < op.n_page) op.mask[p] |= choose_bits(p, 0, op.begin) | choose_bits(p, op.end, UINT32_MAX);
}

sac_status cuda_lane_ends(struct cuda_device *d, const struct op_lane_ends *op, uint32_t n)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < n; i++) most = choose_larger(most, op[i].n_page);
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

/* A block makes a lane's list. Numbers of pages and of tokens are added up together, as one. */
static __global__ void __launch_bounds__(THREADS)
    list_kernel(const struct page_lines all_lines, const struct op_lane_list *list)
{
    kernel_begin();
    __shared__ unsigned long long room[32];
    __shared__ uint32_t room32[32];
    __shared__ struct page_lines lines; /* lanes look up different words */
    const struct op_lane_list &op = list[blockIdx.x];
    const struct op_lane_result r = *op.result;
    const bool dense = op.dense || r.n_bad || r.n_over;
    uint32_t n_page = 0, n_tok = op.weighs && !dense ? r.n_tok : 0;
    for (uint32_t i = threadIdx.x; i < sizeof lines / 4; i += THREADS)
        ((uint32_t *)&lines)[i] = ((const uint32_t *)&all_lines)[i];
    __syncthreads();
    uint32_t n_line = op.weighs ? token_lines(lines, op.tok, n_tok) : 0;
    for (uint32_t first = 0; first < op.n_page; first += THREADS) {
        const uint32_t p = first + threadIdx.x;
        const uint32_t word = p >= op.n_page ? 0 : dense ? ~0u : op.mask[p];
        const bool whole = word == ~0u;
        uint32_t left = whole ? 0 : word;
        unsigned long long all;
        const unsigned long long mine = (unsigned long long)whole << 32 | (uint32_t)__popc(left);
        const unsigned long long before = block_before(mine, room, &all);
        if (whole && !dense) op.page[n_page + (uint32_t)(before >> 32)] = p;
        uint32_t at = n_tok + (uint32_t)before;
        for (; left; left &= left - 1) op.tok[at++] = p * PAGE_TOK + (uint32_t)__ffs(left) - 1;
        n_page += (uint32_t)(all >> 32);
        n_tok += (uint32_t)all;
        n_line += page_lines_of(lines, word);
    }
    n_line = block_sum(n_line, room32);
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
