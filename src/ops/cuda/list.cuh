/* list.cuh: makes the list that attention of prompt rows reads from one word of marks (bits of
 * tokens) for each page before a tile (private to this folder). The list equals that of
 * methods/plan.c for the same marks.
 *
 * One block makes one list: ranges of whole pages, then single tokens, each with a place from a
 * block-wide exclusive sum, so the order is that of the positions whatever the timing. */
#ifndef SAC_OPS_CUDA_LIST_CUH
#define SAC_OPS_CUDA_LIST_CUH

#include "ops/cuda/block.cuh"
#include "ops/plans.h"

#define LIST_PAGE_BITS 24u  /* a page with so many marked tokens is read whole, as in plan.c */
#define LIST_THREADS   256u /* of a block, at most */

/* The output buffers of one list. */
struct list_room {
    struct attn_range *range; /* [range_max] */
    uint32_t *tok;            /* [tok_max] */
    float *logw;              /* [tok_max] logs of weights, or NULL */
    uint32_t range_max, tok_max;
};

static __device__ inline struct list_room list_room_of(const struct op_prompt_lists &l, size_t list)
{
    return {l.range + list * l.range_max, l.tok + list * l.tok_max,
            l.logw ? l.logw + list * l.tok_max : NULL, l.range_max, l.tok_max};
}

/* Marks all lists of the KV head as failed, because a value was not finite. */
static __device__ inline void list_fail(const struct op_prompt_lists &l, uint32_t kv_head)
{
    l.failed[kv_head] = l.call;
}

static __device__ inline bool list_failed(const struct op_prompt_lists &l, uint32_t kv_head)
{
    return l.failed[kv_head] == l.call;
}

/* Three counters share a word, so that one scan does for all: tokens, beginnings and ends of
 * ranges. LIST_THREADS pages have at most 23 * 256, 256 and 256. */
#define LIST_BEGIN 13
#define LIST_END   22
#define LIST_TOK   ((1u << LIST_BEGIN) - 1)
#define LIST_RANGE ((1u << (LIST_END - LIST_BEGIN)) - 1)
static_assert((LIST_PAGE_BITS - 1) * LIST_THREADS <= LIST_TOK && LIST_THREADS <= LIST_RANGE,
              "counts have room");

template <typename Marks>
static __device__ void list_put(const struct list_room &to, const Marks &marks, uint32_t page,
                                uint32_t word, uint32_t at)
{
    for (; word && at < to.tok_max; word &= word - 1, at++) {
        const uint32_t t = (uint32_t)__ffs(word) - 1;
        to.tok[at] = page * PAGE_TOK + t;
        if (to.logw) to.logw[at] = marks.logw(page, t);
    }
}

/* Whether a page is read whole. Page n_page stands for the tile itself, which always is. */
template <typename Marks>
static __device__ bool list_is_whole(const Marks &marks, uint32_t n_page, uint32_t page)
{
    if (page >= n_page) return page == n_page;
    return (uint32_t)__popc(marks.word(page)) >= LIST_PAGE_BITS;
}

/* Writes the list as far as there is room; *out gets the full lengths. All threads of the block.
 * marks.word(page) gives the marks of page < n_page, marks.logw(page, t) the log weight of a token.
 */
template <typename Marks>
static __device__ void list_make(struct attn_list *out, const struct list_room &to,
                                 const Marks &marks, uint32_t n_page, uint32_t tile_pages,
                                 uint32_t *room)
{
    uint32_t n_tok = 0, n_begin = 0, n_end = 0, whole = 0, all;
    for (uint32_t first = 0; first <= n_page; first += blockDim.x) {
        const uint32_t page = first + threadIdx.x, word = page < n_page ? marks.word(page) : 0;
        const bool is_page = list_is_whole(marks, n_page, page);
        const bool begins = is_page && !(page > 0 && list_is_whole(marks, n_page, page - 1));
        const bool ends = is_page && !list_is_whole(marks, n_page, page + 1);
        const uint32_t left = is_page ? 0 : word;
        const uint32_t before = block_exclusive_sum(
            (uint32_t)__popc(left) | (uint32_t)begins << LIST_BEGIN | (uint32_t)ends << LIST_END,
            room, &all);
        const uint32_t range_at = n_begin + (before >> LIST_BEGIN & LIST_RANGE);
        const uint32_t end_at = n_end + (before >> LIST_END);
        if (left) list_put(to, marks, page, left, n_tok + (before & LIST_TOK));
        if (begins && range_at < to.range_max) to.range[range_at].begin = page;
        if (ends && end_at < to.range_max)
            to.range[end_at].end = page == n_page ? page + tile_pages : page + 1;
        n_tok += all & LIST_TOK;
        n_begin += all >> LIST_BEGIN & LIST_RANGE;
        n_end += all >> LIST_END;
        whole += page < n_page && is_page;
    }
    out->n_range = n_begin;
    out->n_tok = n_tok;
    out->n_before = block_sum(whole, room) * PAGE_TOK + n_tok;
}

/* Finishes the list; one thread. Any reason but PLAN_SPARSE makes it dense: one range with
 * everything. */
static __device__ inline void list_close(struct attn_list *out, const struct list_room &to,
                                         enum plan_reason why, uint32_t n_page, uint32_t tile_pages)
{
    if (why != PLAN_SPARSE) {
        to.range[0] = {0, n_page + tile_pages};
        out->n_range = 1;
        out->n_tok = 0;
        out->n_before = n_page * PAGE_TOK;
    }
    out->why = why;
    out->mass = -1;
}

#endif
