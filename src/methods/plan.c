/* plan.c: the marks of a prefill plan, and the lists that attention gets from them.
 *
 * Invariants of compiled lists, on which attention relies (struct attn_plan) and which
 * tests/unit/test_plan.c checks: ranges are ascending, disjoint and not adjacent; tokens are
 * ascending, outside the ranges, and in pages before the tile; the tile's own pages are in a
 * range. */
#include "methods/plan.h"

#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* A page with at least so many marked tokens is read whole: a single token costs more than a token
 * of a page, and the additional tokens improve the answer. */
#define PAGE_BITS 24

#define LOG_STEP ((float)(M_LN2 / PLAN_OCTAVE)) /* ln of one step of a weight */

/* ---- Marking ---- */

static void mark_range(uint32_t *mask, uint32_t begin, uint32_t end)
{
    assert(begin < end);
    const uint32_t first = begin / PAGE_TOK, last = (end - 1) / PAGE_TOK;
    const uint32_t head = UINT32_MAX << begin % PAGE_TOK;
    const uint32_t tail = UINT32_MAX >> (PAGE_TOK - 1 - (end - 1) % PAGE_TOK);
    if (first == last) {
        mask[first] |= head & tail;
        return;
    }
    mask[first] |= head;
    memset(mask + first + 1, 0xff, (last - first - 1) * sizeof *mask);
    mask[last] |= tail;
}

void plan_range(struct plan *p, uint32_t tile, uint32_t part, uint32_t begin, uint32_t end)
{
    end = min_u32(end, plan_tile_tok(p, tile));
    if (begin < end) mark_range(plan_mask(p, tile, part), begin, end);
}

void plan_ends(struct plan *p, uint32_t tile, uint32_t part, uint32_t n_sink, uint32_t n_window)
{
    /* From the start of the aligned tile, so that a cut tile reads no less than a whole one. */
    const uint32_t first = plan_tile_tok(p, tile);
    plan_range(p, tile, part, 0, n_sink);
    if (n_window > 1)
        plan_range(p, tile, part, first + 1 > n_window ? first + 1 - n_window : 0, first);
}

bool plan_has(const struct plan *p, uint32_t tile, uint32_t part, uint32_t tok)
{
    if (p->dense || p->list_dense[(size_t)tile * p->n_part + part]) return true;
    if (tok >= plan_tile_tok(p, tile)) return true;
    return plan_mask(p, tile, part)[tok / PAGE_TOK] >> tok % PAGE_TOK & 1;
}

/* ---- Lists ---- */

/* A list that is counted first, and then built. */
struct list {
    struct attn_range *range; /* NULL: only counted */
    uint32_t *tok;
    float *logw; /* or NULL */
    uint32_t n_range, n_tok, range_max, tok_max;
    uint32_t page_end; /* end of its last range */
    bool full;         /* it exceeds range_max or tok_max */
};

static void add_pages(struct list *l, uint32_t page, uint32_t end)
{
    const bool follows = l->n_range && l->page_end == page;
    assert(l->n_range == 0 || l->page_end <= page);
    if (!follows && l->n_range == l->range_max) {
        l->full = true;
        return;
    }
    l->n_range += !follows;
    l->page_end = end;
    if (!l->range) return;
    if (!follows) l->range[l->n_range - 1].begin = page;
    l->range[l->n_range - 1].end = end;
}

/* `weight` [PAGE_TOK] of the page's tokens, or NULL. */
static void add_tokens(struct list *l, uint32_t page, uint32_t bits, const uint8_t *weight)
{
    const uint32_t n = (uint32_t)__builtin_popcount(bits);
    if (l->n_tok + n > l->tok_max) {
        l->full = true;
        return;
    }
    if (!l->range) {
        l->n_tok += n;
        return;
    }
    assert(l->n_tok == 0 || l->tok[l->n_tok - 1] < page * PAGE_TOK); /* ascending */
    assert(!weight || l->logw);
    for (; bits; bits &= bits - 1) {
        const uint32_t t = (uint32_t)__builtin_ctz(bits);
        if (weight) l->logw[l->n_tok] = (float)weight[t] * LOG_STEP;
        l->tok[l->n_tok++] = page * PAGE_TOK + t;
    }
}

static enum plan_reason list_reason(const struct plan *p, uint32_t tile, uint32_t part)
{
    return p->dense ? p->dense : (enum plan_reason)p->list_dense[(size_t)tile * p->n_part + part];
}

/* Builds one list; returns why it is dense. */
static enum plan_reason make_list(struct list *l, const struct plan *p, uint32_t tile,
                                  uint32_t part)
{
    const uint32_t n_page = plan_tile_tok(p, tile) / PAGE_TOK;
    const uint32_t *mask = plan_mask(p, tile, part);
    const uint8_t *weight = p->weight ? p->weight + (size_t)(mask - p->mask) * PAGE_TOK : NULL;
    enum plan_reason why = list_reason(p, tile, part);
    for (uint32_t i = 0; i < n_page && !why && !l->full; i++) {
        if (mask[i] == 0) continue;
        if (__builtin_popcount(mask[i]) >= PAGE_BITS)
            add_pages(l, i, i + 1);
        else
            add_tokens(l, i, mask[i], weight ? weight + (size_t)i * PAGE_TOK : NULL);
    }
    if (l->full) why = PLAN_OVERFLOW;
    if (why) l->n_range = l->n_tok = 0;
    l->range_max++; /* for the tile's own pages */
    add_pages(l, why ? 0 : n_page, n_page + p->tile_tok / PAGE_TOK);
    return why;
}

/* Counts rows of the tile times the tokens before it that are read, and the cells within the
 * tile. */
void plan_count(struct plan_stats *s, const struct plan *p, uint32_t tile, uint64_t n_before,
                enum plan_reason why)
{
    const uint64_t first = plan_tile_tok(p, tile);
    const uint64_t row0 = plan_row0(p, tile) + p->pos, row1 = plan_row_end(p, tile) + p->pos;
    const uint64_t n_row = row1 - row0;
    assert(row0 >= first && row1 > row0 && row1 - first <= p->tile_tok && n_before <= first);
    const uint64_t n_own = (row0 - first + 1 + row1 - first) * n_row / 2;
    s->n_cell += first * n_row + n_own;
    s->n_cell_read += n_before * n_row + n_own;
    s->n_list++;
    s->n_dense[why] += why != PLAN_SPARSE;
}

struct compile_call {
    struct plan_lists *out;
    const struct plan *p;
    struct plan_stats *stats;
    uint32_t n_head;
};

/* The plan and the position of list i. */
static const struct plan *list_plan(const struct compile_call *c, uint32_t i, uint32_t *out_tile,
                                    uint32_t *out_part)
{
    *out_part = i % c->p->n_part;
    *out_tile = i / c->p->n_part / c->n_head;
    return &c->p[i / c->p->n_part % c->n_head];
}

/* Stores a list's lengths in the pointers of the next list, and marks the plan if the list is too
 * long. */
static void count_list(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct compile_call *c = arg;
    struct plan_lists *out = c->out;
    uint32_t tile, part;
    const struct plan *p = list_plan(c, i, &tile, &part);
    struct list l = {.range_max = out->range_max - 1, .tok_max = out->tok_max};
    const enum plan_reason why = make_list(&l, p, tile, part);
    (void)worker_i;
    if (!p->dense) p->list_dense[(size_t)tile * p->n_part + part] = (uint8_t)why;
    out->range_ptr[i + 1] = l.n_range;
    out->tok_ptr[i + 1] = l.n_tok;
}

/* Sums of integers, so the order of the workers does not matter. */
static void add_stats(struct plan_stats *s, const struct plan_stats *one)
{
    __atomic_fetch_add(&s->n_cell, one->n_cell, __ATOMIC_RELAXED);
    __atomic_fetch_add(&s->n_cell_read, one->n_cell_read, __ATOMIC_RELAXED);
    __atomic_fetch_add(&s->n_list, one->n_list, __ATOMIC_RELAXED);
    for (int i = 0; i < PLAN_REASONS; i++)
        if (one->n_dense[i]) __atomic_fetch_add(&s->n_dense[i], one->n_dense[i], __ATOMIC_RELAXED);
}

/* Builds a list where its pointers say, and counts what it reads. */
static void compile_list(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct compile_call *c = arg;
    const struct plan_lists *out = c->out;
    uint32_t tile, part;
    const struct plan *p = list_plan(c, i, &tile, &part);
    const size_t tok0 = out->tok_ptr[i];
    struct list l = {.range = out->range + out->range_ptr[i],
                     .tok = out->tok + tok0,
                     .logw = p->weight ? out->tok_logw + tok0 : NULL,
                     .range_max = out->range_ptr[i + 1] - out->range_ptr[i],
                     .tok_max = out->tok_ptr[i + 1] - out->tok_ptr[i]};
    struct plan_stats one = {0};
    const enum plan_reason why = make_list(&l, p, tile, part);
    uint64_t n_before = l.n_tok;
    (void)worker_i;
    assert(why == list_reason(p, tile, part) && l.n_tok == l.tok_max);
    for (uint32_t r = 0; r < l.n_range; r++)
        n_before += (uint64_t)(l.range[r].end - l.range[r].begin) * PAGE_TOK;
    plan_count(&one, p, tile, n_before - p->tile_tok, why);
    add_stats(c->stats, &one);
}

void plan_compile(struct plan_lists *out, const struct plan *p, uint32_t n_head,
                  struct plan_stats *s, struct workers *workers)
{
    struct compile_call c = {.out = out, .p = p, .stats = s, .n_head = n_head};
    const uint32_t n = p->n_tile * n_head * p->n_part;
    assert(out->range_max >= 2);
    workers_for(workers, n, count_list, &c);
    out->range_ptr[0] = out->tok_ptr[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        out->range_ptr[i + 1] += out->range_ptr[i];
        out->tok_ptr[i + 1] += out->tok_ptr[i];
    }
    workers_for(workers, n, compile_list, &c);
    out->plan = (struct attn_plan){.tile_tok = p->tile_tok,
                                   .by_head = p->n_part > 1,
                                   .skip = p->skip,
                                   .range = out->range,
                                   .range_ptr = out->range_ptr,
                                   .tok = out->tok_ptr[n] ? out->tok : NULL,
                                   .tok_ptr = out->tok_ptr,
                                   .tok_logw = p->weight ? out->tok_logw : NULL};
}
