/* attn.h: the executor of attention that the kernels of the instruction sets share (private).
 *
 * attn.c determines who computes what, and in which order; a kernel computes on the data it is
 * given. There are two shapes of work.
 *
 * WIDE, many rows. A tile is up to ATTN_ROW_MAX rows, neighbours in the batch, of one run or of
 * runs that share tiles, times the query heads of one KV head: all of them share each panel of
 * keys, and each row's position determines which of its keys it sees. A panel is panel_tok tokens,
 * aligned to panel_tok in the sequence, packed by the kernel into the form that its arithmetic
 * needs. Per tile: wide_begin, wide_query, then for each panel wide_page for its pages and
 * wide_panel, then wide_end. Between panels, wide_fold ends a stretch: its sums are added to those
 * of the stretches before it, and the next stretch is summed on its own. Several workers can
 * therefore compute the stretches of one tile: each takes its sums with wide_save, and one of them
 * adds them in order after wide_begin: wide_load, wide_fold, and so on to wide_end. The result is
 * the same. The last panel of a row ends with the row's own page in 16-bit form. It is computed for
 * the rows of that page alone and leaves the sums of other rows unchanged, even where a kernel
 * computes them in one block. A run with a plan has the pages of its lists instead of all pages,
 * and before them panels gathered from single tokens. Where a segment of the run ends, a panel
 * ends, and wide_query gives the tile the queries for the next segment.
 *
 * NARROW, one row. Its pages are cut into chunks; `narrow` reduces one chunk for all query heads of
 * one KV head to a partial result, and attn.c merges the partial results in ascending order. A
 * chunk that spans several segments is reduced in as many parts.
 *
 * A row's result is independent of everything else (design D7), because panel and chunk boundaries
 * are positions in the sequence (in the list of pages), keys that a row does not see add exactly
 * +0, and a kernel treats each row on its own. */
#ifndef SAC_OPS_CPU_ATTN_H
#define SAC_OPS_CPU_ATTN_H

#include "base/align.h"
#include "ops/ops.h"

#include <math.h>

#define ATTN_SUB_MAX   8u /* maximum blocks of PAGE_TOK rows in a tile */
#define ATTN_ROW_MAX   (ATTN_SUB_MAX * PAGE_TOK)
#define ATTN_BLOCK_MAX 32u                   /* maximum queries that a kernel computes at a time */
#define ATTN_PANEL_MAX 8u                    /* pages of a panel */
#define ATTN_CHUNK_MAX (ATTN_TAKE_PAGES + 1) /* pages of a chunk, including the own one */
#define ATTN_AHEAD     4u /* pages after a chunk that the worker will most likely read next */

/* A page as a kernel reads it. Tokens [begin, end) are visible, the others may contain anything. If
 * `tok` is set, the page is gathered from single tokens: slot i holds token tok[i] of the sequence,
 * begin <= i < end. */
struct attn_page {
    const uint8_t *bytes;             /* gathered: any valid address, for prefetches */
    const struct page_frames *frames; /* of a gathered page */
    enum page_form form;
    uint32_t begin, end;
    bool hidden; /* some rows of the tile do not see it, but may be computed together with rows that
                    do */
    const uint32_t *tok;
    uint32_t n_tok;       /* length of the list from tok[0] on: `end`, and tokens to prefetch */
    const page_id *table; /* sealed pages of the KV head */
    const float *logw;    /* [end] added to the scores, or NULL */
};

/* Tokens first .. first + n - 1 of a page. */
struct attn_tokens {
    uint32_t first, n;
};

/* Pages that will be read next, prefetched into L2 line by line while others are computed. */
struct attn_ahead {
    const uint8_t *page[ATTN_PANEL_MAX];
    uint32_t n_page, page_lines; /* 64-byte lines of one page */
    uint32_t page_i, line;       /* the next fetch */
};

struct attn_tile {
    const struct op_attn *op;
    uint32_t kv_head;
    uint32_t head0, group; /* query heads head0 .. head0 + group - 1, all of the KV head or one */
    const float *q;        /* [n_row, group, head_dim], stride q_stride */
    size_t q_stride;
    uint32_t segment;     /* segment for which q is rotated */
    uint32_t row0, n_row; /* rows of the batch; query i is head i % group of row row0 + i / group */
    uint32_t pos[ATTN_ROW_MAX]; /* [n_row] ascending */
    struct attn_ahead ahead;
    uint32_t n_fold; /* number of completed stretches */
    uint64_t n_skip; /* pairs of a query and a key that wide_panel skipped */
    void *mem;       /* wide_bytes, 64-byte aligned */
};

/* Arguments of wide_panel: rows [row0, row1) of the tile and tokens [begin, end) of the panel,
 * multiples of PAGE_TOK. */
struct attn_panel {
    uint32_t row0, row1;
    uint32_t pos; /* of the panel's token 0 */
    uint32_t begin, end;
    uint32_t n_tok; /* at most `end`: tokens after it are padding */
    bool masked;    /* false: every row sees every token */
    bool gathered;  /* single tokens: their `logw` decides what is visible, not `masked` */
    float skip;     /* as in struct attn_plan; 0 if a token is not visible */
};

struct attn_chunk {
    const struct op_attn *op;
    const float *q; /* [group, head_dim] */
    uint32_t group, n_page;
    struct attn_page page[ATTN_CHUNK_MAX];
    const uint8_t *ahead[ATTN_AHEAD]; /* pages to prefetch, or NULL */
    float *m;   /* [group] maximum score, in base 2, that l and acc are relative to */
    float *l;   /* [group] softmax denominator: sum of 2^(score - m), scores in units of log 2 */
    float *acc; /* [group, head_dim] sum of 2^(score - m) * value */
    void *mem;  /* narrow_bytes, 64-byte aligned */
};

struct attn_kernel {
    uint32_t tile_q; /* number of queries of a tile, if there is enough work */
    uint32_t (*panel_tok)(
        uint32_t head_dim); /* PAGE_TOK .. PAGE_TOK * ATTN_PANEL_MAX, power of 2 */
    size_t (*wide_bytes)(const struct page_geom *g, uint32_t n_q); /* n_q: of a whole tile */
    void (*wide_begin)(struct attn_tile *t);                       /* starts with empty sums */
    void (*wide_query)(struct attn_tile *t); /* t->q is for the next panels; the sums stay */
    void (*wide_page)(struct attn_tile *t, uint32_t slot, const struct attn_page *page);
    void (*wide_panel)(struct attn_tile *t, const struct attn_panel *p);
    void (*wide_fold)(struct attn_tile *t);
    size_t (*wide_sums)(const struct page_geom *g,
                        uint32_t n_q); /* bytes of the sums of a stretch, 64-byte aligned */
    void (*wide_save)(struct attn_tile *t, void *to); /* saves the sums; instead of wide_end */
    void (*wide_load)(struct attn_tile *t,
                      const void *from); /* loads the sums of the current stretch */
    void (*wide_end)(struct attn_tile *t);
    size_t (*narrow_bytes)(const struct page_geom *g, uint32_t group);
    void (*narrow)(const struct attn_chunk *c);
};

/* Sets kv_write and seal (attn_seal_avx2.c). */
void attn_fill_avx2_seal(struct ops *o);

/* The attn and attn_scratch slots for a kernel. */
void attn_execute(struct workers *pool, const struct op_attn *op, const struct attn_kernel *k);
size_t attn_execute_scratch(const struct attn_kernel *k, uint32_t n_worker,
                            const struct page_geom *geom, uint32_t n_head, uint32_t n_row,
                            uint32_t n_tok_max);

/* Computes which tokens [*lo, *hi) of the panel the row at `pos` sees. */
static inline void attn_visible(const struct op_attn *op, const struct attn_panel *p, uint32_t pos,
                                uint32_t *lo, uint32_t *hi)
{
    const uint32_t first = op->window > 0 && pos >= op->window ? pos - op->window + 1 : 0;
    *lo = first > p->pos ? first - p->pos : 0;
    *hi = pos >= p->pos ? pos - p->pos + 1 : 0;
    if (*hi > p->n_tok) *hi = p->n_tok;
}

/* Whether some row does not see all of the page. It must then be packed so that a weight of 0 adds
 * nothing, whatever the values are. */
static inline bool attn_is_guarded(const struct op_attn *op, const struct attn_page *p)
{
    return p->form == PAGE_TAIL || p->hidden || op->window > 0;
}

/* Queries of a tile, rounded up to ATTN_BLOCK_MAX. */
static inline uint32_t attn_tile_queries(const struct attn_tile *t)
{
    return (t->n_row * t->group + ATTN_BLOCK_MAX - 1) / ATTN_BLOCK_MAX * ATTN_BLOCK_MAX;
}

/* Number of lines that each of n_part blocks prefetches so that together they prefetch all of
 * them. */
static inline uint32_t attn_fetch_share(const struct attn_tile *t, uint32_t n_part)
{
    return t->ahead.n_page * t->ahead.page_lines / (n_part ? n_part : 1) + 1;
}

/* The n queries of a block, from query q of the tile on, of which [first, end) see a panel. The
 * others must not be changed. */
struct attn_block {
    uint32_t q, n, first, end;
};

static inline struct attn_block attn_block_of(const struct attn_tile *t, const struct attn_panel *p,
                                              uint32_t q, uint32_t size)
{
    const uint32_t from = p->row0 * t->group, to = p->row1 * t->group, all = t->n_row * t->group;
    struct attn_block b = {.q = q, .n = all - q < size ? all - q : size};
    b.first = from > q ? from - q : 0;
    b.end = to - q < b.n ? to - q : b.n;
    return b;
}

/* Log weights of the slots of a gathered page, in log 2; -inf hides empty slots. */
static inline void attn_logw(float logw[PAGE_TOK], const struct attn_page *p)
{
    for (uint32_t i = 0; i < PAGE_TOK; i++) {
        logw[i] = i < p->begin || i >= p->end ? -INFINITY : 0;
        if (p->logw && i >= p->begin && i < p->end) logw[i] = p->logw[i] * (float)M_LOG2E;
    }
}

/* Prefetches the next n lines, to L2 only: the fill buffers of L1 limit gathers from DRAM, and
 * non-temporal prefetches are slower than none on every machine measured. */
static inline void attn_fetch(struct attn_ahead *a, uint32_t n)
{
    for (; n > 0 && a->page_i < a->n_page; n--) {
        __builtin_prefetch(a->page[a->page_i] + a->line * (size_t)64, 0, 2);
        if (++a->line < a->page_lines) continue;
        a->line = 0;
        a->page_i++;
    }
}

/* Number of tokens of a gathered page's list, from slot i on, that are adjacent in one sealed
 * page. */
static inline uint32_t attn_neighbours(const struct attn_page *p, uint32_t i)
{
    uint32_t n = 1;
    while (i + n < p->end && p->tok[i + n] == p->tok[i] + n && p->tok[i + n] % PAGE_TOK != 0) n++;
    return n;
}

/* The sealed page that holds the token of slot i. */
static inline const uint8_t *attn_page_of(const struct page_geom *g, const struct attn_page *p,
                                          uint32_t i)
{
    return page_frame(g, *p->frames, p->table[p->tok[i] / PAGE_TOK]);
}

/* Seals the pages of an op: copies 16-bit formats, quantises q8 with `seal_q8`. */
typedef void (*attn_seal_fn)(const struct page_geom *g, const uint8_t *tail, uint8_t *page);
void attn_seal(struct workers *pool, const struct op_seal *op, attn_seal_fn seal_q8);

/* Always inlined, because gcc treats a function that only prefetches as one without effect and
 * removes its calls. */
#define ATTN_FETCH static inline __attribute__((always_inline)) void

ATTN_FETCH attn_fetch_bytes(const uint8_t *p, size_t bytes)
{
    const size_t skew = (uintptr_t)p % 64;
    for (size_t x = 0; x < bytes + skew; x += 64) __builtin_prefetch(p + x, 0, 2);
}

/* Prefetches the key of slot i, which may be after `end`. Prefetching doubles the speed of a gather
 * of 128-byte rows. Keys are prefetched while keys are read, and values while values are read:
 * memory cannot deliver both in the time of one of them. */
ATTN_FETCH attn_fetch_key(const struct page_geom *g, const struct attn_page *p, uint32_t i)
{
    if (i >= p->n_tok) return;
    const uint8_t *page = attn_page_of(g, p, i);
    const size_t d = g->head_dim, t = p->tok[i] % PAGE_TOK;
    if (g->type_k != SAC_KV_Q8) {
        attn_fetch_bytes(page + g->k + 2 * d * t, 2 * d);
        return;
    }
    if (i == 0 || p->tok[i - 1] / PAGE_TOK != p->tok[i] / PAGE_TOK)
        attn_fetch_bytes(page + g->k_min, g->k_step - g->k_min + 2 * d);
    attn_fetch_bytes(page + g->k_hi2 + d / 4 * t, d / 4);
    attn_fetch_bytes(page + g->k_low + d * 3 / 4 * t, d * 3 / 4);
}

/* Prefetches the value of slot i. */
ATTN_FETCH attn_fetch_value(const struct page_geom *g, const struct attn_page *p, uint32_t i)
{
    if (i >= p->n_tok) return;
    const uint8_t *page = attn_page_of(g, p, i);
    const size_t d = g->head_dim, t = p->tok[i] % PAGE_TOK;
    if (g->type_v != SAC_KV_Q8) {
        attn_fetch_bytes(page + g->v + 2 * d * t, 2 * d);
        return;
    }
    attn_fetch_bytes(page + g->v_scale + 2 * (d / PAGE_VBLOCK) * t, 2 * (d / PAGE_VBLOCK));
    attn_fetch_bytes(page + g->v + d * t, d);
}

#endif
