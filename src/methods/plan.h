/* plan.h: what a prefill method writes: for each tile of prompt rows, the tokens that it reads.
 *
 * The engine calls a method once for each chunk of a prompt, layer and KV head ("lane"): the
 * chunk's queries after RoPE are lane->q, its positions lane->pos .. pos + n_row - 1, and all keys
 * up to its last row are in the lane's pages, including those of the chunk. Past turns are keys
 * like others.
 *
 * Rows are planned by tiles of tile_tok positions, aligned in the sequence, so the chunk's first
 * and last tile may be cut: see plan_row0 and plan_row_end. A tile has n_part lists: one for all
 * query heads of the KV head, or (method_prefill.by_head) one for each of them.
 *
 * A list is a bit mask over the tokens before the tile. Marking a token twice, or overlapping
 * ranges, has no effect: nothing is read or counted twice. In addition every row reads the tile's
 * own tokens up to itself (the diagonal block). What is not marked is not read. Marks at or after
 * the tile's first token are ignored, so methods need not clip ranges.
 *
 * plan_compile turns masks into the lists that attention reads. It may read more than was marked,
 * never less: pages that are marked almost entirely are read whole, and a list with too many single
 * tokens for its room is read densely and counted (PLAN_OVERFLOW).
 *
 * To read everything: plan_tile_dense for a list, plan_dense for the lane, with the reason. */
#ifndef SAC_METHODS_PLAN_H
#define SAC_METHODS_PLAN_H

#include "methods/method.h"
#include "ops/plans.h"

#include <assert.h>
#include <math.h>

#define PLAN_OCTAVE OP_SURVEY_OCTAVE /* steps of a weight per factor of two */

/* One lane's plan under construction. Masks are zero before the method is called. */
struct plan {
    uint32_t pos, end;      /* positions of the chunk's rows: [pos, end) */
    uint32_t n_after;       /* rows of the prompt after the chunk; 0: this is its last chunk */
    uint32_t tile_tok;      /* a multiple of PAGE_TOK */
    uint32_t tile0, n_tile; /* tile i holds positions (tile0 + i) * tile_tok and up */
    uint32_t n_part;        /* lists per tile: 1, or the group's query heads */
    uint32_t n_word; /* words of a mask; word w: tokens w * PAGE_TOK and up, lowest bit first */
    uint32_t *mask;  /* [n_tile][n_part][n_word] */
    /* For methods that weight tokens, else NULL: [n_tile][n_part][n_word * PAGE_TOK] a marked token
     * counts 2^(weight / PLAN_OCTAVE) times. Entries of other tokens are arbitrary, also in pages
     * that are marked almost entirely: these are read whole and count once. */
    uint8_t *weight;
    uint8_t *list_dense;    /* [n_tile][n_part] enum plan_reason */
    enum plan_reason dense; /* of the whole lane */
    float skip;             /* as in struct attn_plan; the same for all lanes of a run */
    /* For reports, if the method knows it: the softmax mass that the lists are estimated to keep,
     * as a sum over n_mass estimates. */
    double mass;
    uint32_t n_mass;
};

/* Lanes of one run: all KV heads of its layer. */
struct plan_batch {
    struct workers *workers; /* NULL: the caller is the only one */
    uint32_t n;
    const struct method_lane *lane; /* [n] */
    struct plan *plan;              /* [n] of equal tiles; those that are dense are left alone */
    uint8_t *room;                  /* worker i's [scratch_bytes] at room + i * room_stride */
    size_t room_stride;
};

/* ---- Where things are ---- */

/* First token of a tile: tokens before it are candidates, those from it on are read anyway. */
static inline uint32_t plan_tile_tok(const struct plan *p, uint32_t tile)
{
    return (p->tile0 + tile) * p->tile_tok;
}

/* Rows [plan_row0, plan_row_end) of the chunk, counted from lane->pos, are in a tile. */
static inline uint32_t plan_row0(const struct plan *p, uint32_t tile)
{
    const uint32_t at = plan_tile_tok(p, tile);
    return at > p->pos ? at - p->pos : 0;
}

static inline uint32_t plan_row_end(const struct plan *p, uint32_t tile)
{
    const uint32_t at = plan_tile_tok(p, tile + 1);
    return (at < p->end ? at : p->end) - p->pos;
}

/* The mask of a list; bits of words before plan_tile_tok / PAGE_TOK count. */
static inline uint32_t *plan_mask(const struct plan *p, uint32_t tile, uint32_t part)
{
    assert(tile < p->n_tile && part < p->n_part);
    return p->mask + ((size_t)tile * p->n_part + part) * p->n_word;
}

/* ---- Marking ---- */

static inline void plan_token(struct plan *p, uint32_t tile, uint32_t part, uint32_t tok)
{
    if (tok < plan_tile_tok(p, tile))
        plan_mask(p, tile, part)[tok / PAGE_TOK] |= 1u << tok % PAGE_TOK;
}

/* Tokens [begin, end); nothing if begin >= end. */
void plan_range(struct plan *p, uint32_t tile, uint32_t part, uint32_t begin, uint32_t end);
/* The first n_sink tokens, and for each row of the tile the n_window tokens that end with the
 * row. */
void plan_ends(struct plan *p, uint32_t tile, uint32_t part, uint32_t n_sink, uint32_t n_window);

static inline void plan_tile_dense(struct plan *p, uint32_t tile, uint32_t part,
                                   enum plan_reason why)
{
    assert(tile < p->n_tile && part < p->n_part);
    p->list_dense[(size_t)tile * p->n_part + part] = (uint8_t)why;
}

static inline void plan_dense(struct plan *p, enum plan_reason why)
{
    p->dense = why;
}

/* Reports the mass that `n` lists keep by the method's own estimate, as their sum. It is rounded so
 * that sums are exact: the same however a plan is split. */
static inline void plan_estimate(struct plan *p, double mass, uint32_t n)
{
    p->mass += floor(mass * 0x1p30 + 0.5) * 0x1p-30;
    p->n_mass += n;
}

/* Whether the token is marked, or read because the list is dense. For tests and methods that look
 * back. */
bool plan_has(const struct plan *p, uint32_t tile, uint32_t part, uint32_t tok);

/* ---- From masks to lists: the engine's side ---- */

/* Cells are pairs of a query row and a key, of one query head. */
struct plan_stats {
    uint64_t n_cell;      /* causal ones of the rows */
    uint64_t n_cell_read; /* of these, planned */
    uint64_t n_list;
    uint64_t n_dense[PLAN_REASONS]; /* lists that read everything, by reason */
};

/* Memory for the lists of one run: list (tile * n_head + h) * n_part + part, tile by tile, as
 * struct attn_plan needs them. A list has at most tok_max single tokens and range_max ranges. */
struct plan_lists {
    struct attn_plan plan; /* made by plan_compile; points at the arrays below */
    uint32_t tok_max, range_max;
    struct attn_range *range;      /* [n_list * range_max] */
    uint32_t *tok;                 /* [n_list * tok_max] */
    float *tok_logw;               /* the same, or NULL: no method weights tokens */
    uint32_t *range_ptr, *tok_ptr; /* [n_list + 1] */
};

/* Adds a list of a tile, which reads n_before tokens before it. */
void plan_count(struct plan_stats *s, const struct plan *p, uint32_t tile, uint64_t n_before,
                enum plan_reason why);

/* `p` [n_head] are the plans of one run for each KV head, of equal tiles and parts; lists that were
 * too long become dense in them. Adds to `s`. Each list is made by one worker. */
void plan_compile(struct plan_lists *out, const struct plan *p, uint32_t n_head,
                  struct plan_stats *s, struct workers *workers);

#endif
