/* attn_call.h: what the two shapes of work of attn.h share (private): the arguments of a call,
 * pages in the form that kernels get, and pages that are acquired and released during a call. */
#ifndef SAC_OPS_CPU_ATTN_CALL_H
#define SAC_OPS_CPU_ATTN_CALL_H

#include "ops/cpu/attn.h"

#include "base/align.h"
#include "base/minmax.h"

/* A unit of work: a tile, or one of its stretches. */
struct attn_unit {
    uint32_t item;
    uint8_t part, n_part;
    uint16_t left; /* in the first part of a tile: number of unfinished parts; atomic */
};

struct attn_call {
    const struct op_attn *op;
    const struct attn_kernel *k;
    uint8_t *worker_mem;
    size_t worker_bytes, rotated_at; /* of each worker; offset of its rotated queries */
    uint32_t group;
    /* WIDE */
    uint32_t n_sub;         /* subs of a full tile */
    uint32_t n_head_sub;    /* subs of a full tile of a single query head */
    struct attn_unit *unit; /* in the order of execution */
    uint8_t *octave;        /* [n_unit] leading zero bits of their costs */
    uint8_t *sums;          /* [n_slot, sums_bytes] sums of stretches that are separate units */
    size_t sums_bytes;
    uint32_t n_slot;
    /* NARROW; a lane is one KV head of one run */
    uint32_t *lane_item; /* [n_run * n_kv_head + 1] first chunk of each lane, over all runs */
    uint32_t *lane_left; /* [n_run * n_kv_head] number of unfinished chunks; atomic */
    float *partial;      /* [n_slot, partial_floats] */
    size_t partial_floats;
    uint32_t lane0, lane1; /* [lane0, lane1): the lanes that are computed now */
};

/* First position that the row at `pos` sees. */
static inline uint32_t first_visible(const struct op_attn *op, uint32_t pos)
{
    return op->window > 0 && pos >= op->window ? pos - op->window + 1 : 0;
}

static inline struct attn_page own_page(const struct op_attn *op, const struct attn_run *run,
                                        uint32_t h, uint32_t pos)
{
    return (struct attn_page){.bytes = attn_own_page(run, op->geom, pos, h),
                              .form = PAGE_TAIL,
                              .end = pos % PAGE_TOK + 1};
}

static inline struct attn_page sealed_page(const struct op_attn *op, const struct attn_run *run,
                                           uint32_t h, uint32_t page)
{
    const page_id id = run->table[h * run->table_stride + page];
    return (struct attn_page){
        .bytes = page_frame(op->geom, op->frames, id), .form = PAGE_SEALED, .end = PAGE_TOK};
}

/* A page gathered from the first PAGE_TOK of n tokens. */
static inline struct attn_page gathered_page(const struct op_attn *op, const struct attn_run *run,
                                             uint32_t h, const uint32_t *tok, uint32_t n)
{
    return (struct attn_page){.bytes = op->frames.base,
                              .frames = &op->frames,
                              .form = PAGE_SEALED,
                              .end = min_u32(PAGE_TOK, n),
                              .tok = tok,
                              .n_tok = n,
                              .table = run->table + h * run->table_stride};
}

/* ---- Acquiring and releasing pages ---- */

static inline bool take_pages(const struct op_attn *op, const page_id *id, uint32_t n)
{
    return !op->pager || n == 0 || op->pager->take(op->pager->user, id, n);
}

static inline void give_pages(const struct op_attn *op, const page_id *id, uint32_t n)
{
    if (op->pager && n > 0) op->pager->give(op->pager->user, id, n);
}

/* Lists the pages of n ascending tokens, each once; returns their number. */
static inline uint32_t name_token_pages(const page_id *table, const uint32_t *tok, uint32_t n,
                                        page_id *id)
{
    uint32_t n_id = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || tok[i] / PAGE_TOK != tok[i - 1] / PAGE_TOK)
            id[n_id++] = table[tok[i] / PAGE_TOK];
    return n_id;
}

/* ---- WIDE (attn_wide.c) ---- */

/* Bytes of a worker's memory for a tile of any kind. *out_n_q: number of its queries. */
size_t attn_wide_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group,
                       uint32_t *out_n_q);
/* Maximum number of units for n_row rows; number of slots for the sums of stretches, and bytes of a
 * slot. */
uint32_t attn_unit_count(uint32_t n_worker, uint32_t n_row, uint32_t n_head);
uint32_t attn_slot_count(uint32_t n_worker);
size_t attn_sums_bytes(const struct attn_kernel *k, const struct page_geom *g, uint32_t group);
/* Computes the prompt rows of all runs. */
void attn_wide_runs(struct workers *pool, struct attn_call *c);

#endif
