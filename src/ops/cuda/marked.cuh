/* marked.cuh: turns the mask of a lane (a word of token bits for each page) into the lists of pages
 * and tokens that attention reads, and counts the cache lines of 64 bytes that they touch; by one
 * block (private to this folder). */
#ifndef SAC_OPS_CUDA_MARKED_CUH
#define SAC_OPS_CUDA_MARKED_CUH

#include "ops/cuda/block.cuh"
#include "ops/lanes.h"

struct marked_room { /* in shared memory */
    unsigned long long both[32];
    uint32_t n[32];
};

/* Copies the table to shared memory; a barrier must follow. */
static __device__ inline void list_load_lines(struct page_lines *to, const struct page_lines &from)
{
    for (uint32_t i = threadIdx.x; i < sizeof from / 4; i += blockDim.x)
        ((uint32_t *)to)[i] = ((const uint32_t *)&from)[i];
}

/* Lines touched by the tokens of a page, from a table (page_lines.h) that is indexed by eight
 * tokens' bits. */
static __device__ inline uint32_t count_lines(const uint8_t *lines, uint32_t tok)
{
    return lines[tok & 255] + lines[tok >> 8 & 255] + lines[tok >> 16 & 255] + lines[tok >> 24];
}

static __device__ inline uint32_t page_lines_of(const struct page_lines &l, uint32_t tok)
{
    if (tok == 0) return 0;
    uint32_t n = count_lines(l.k, tok) + count_lines(l.v, tok);
    for (uint32_t i = 0; i < l.n_scale; i++) n += (l.scale_tok[i] & tok) != 0;
    return n + (uint32_t)(l.k_page / 64);
}

/* This thread's share of the lines of an ascending list of single tokens. */
static __device__ inline uint32_t list_tokens(const struct page_lines &l, const uint32_t *tok,
                                              uint32_t n)
{
    uint32_t lines = 0;
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint32_t page = tok[i] / PAGE_TOK;
        if (i > 0 && tok[i - 1] / PAGE_TOK == page) continue; /* counted before */
        uint32_t word = 0;
        for (uint32_t j = i; j < n && tok[j] / PAGE_TOK == page; j++)
            word |= 1u << tok[j] % PAGE_TOK;
        lines += page_lines_of(l, word);
    }
    return lines;
}

/* Lists the mask: pages that are marked whole, and the tokens of others, appended after the n_tok
 * that are listed already. One exclusive sum of 64 bits gives both places. n_line counts lines of K
 * and V that will be read and lines that the selection has read. A thread takes EACH neighbouring
 * pages, few of which are marked as a rule. */
template <uint32_t EACH>
static __device__ inline struct attn_count
list_marked(const struct op_lane_list &op, const struct op_lane_result &r, bool dense,
            uint32_t n_tok, const struct page_lines &lines, struct marked_room &room)
{
    struct attn_count count = {};
    uint32_t n_page = 0, n_line = 0;
    for (uint32_t first = 0; first < op.n_page; first += blockDim.x * EACH) {
        const uint32_t p = first + threadIdx.x * EACH;
        uint32_t marked = 0;
        unsigned long long mine = 0, all;
#pragma unroll
        for (uint32_t k = 0; k < EACH; k++)
            marked |= (uint32_t)(p + k < op.n_page && (dense || op.mask[p + k])) << k;
        for (uint32_t left = marked; left; left &= left - 1) {
            const uint32_t word = dense ? ~0u : op.mask[p + (uint32_t)__ffs((int)left) - 1];
            mine += word == ~0u ? 1ull << 32 : (uint32_t)__popc(word);
            n_line += page_lines_of(lines, word);
        }
        const unsigned long long before = block_exclusive_sum(mine, room.both, &all);
        uint32_t page_at = n_page + (uint32_t)(before >> 32), at = n_tok + (uint32_t)before;
        for (uint32_t left = dense ? 0 : marked; left; left &= left - 1) {
            const uint32_t page = p + (uint32_t)__ffs((int)left) - 1, word = op.mask[page];
            if (word == ~0u) op.page[page_at++] = page;
            for (uint32_t tok = word == ~0u ? 0 : word; tok; tok &= tok - 1)
                op.tok[at++] = page * PAGE_TOK + (uint32_t)__ffs((int)tok) - 1;
        }
        n_page += (uint32_t)(all >> 32);
        n_tok += (uint32_t)all;
    }
    count.n_line = block_sum(n_line, room.n) + r.n_line;
    count.dense = dense;
    count.not_finite = r.n_bad > 0;
    count.n_page = n_page;
    count.n_tok = n_tok;
    count.n_chosen = dense ? 0 : r.n_chosen;
    count.n_bypass = dense ? 0 : r.n_bypass;
    count.n_line_scored = r.n_line_scored;
    return count;
}

#endif
