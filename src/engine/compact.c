/* compact.c: see the header.
 *
 * Invariants:
 *  1. A page of a layer is gone for all its KV heads or for none: compose.c drops pages this way,
 *     and state.c refuses anything else. One list of page indices therefore serves all heads.
 *  2. Pages are dropped before the first row behind them is computed. The index of a page among
 *     those that are left therefore never changes, and what methods know about it stays valid. */
#include "engine/compact.h"

#include "engine/engine.h"

#include <assert.h>

void compact_plan(sac_engine *e, struct arena *a)
{
    struct compact *c = &e->compact;
    const size_t n_seq = e->params.compose ? e->params.n_seq_max : 0;
    c->n_gap = arena_take(a, n_seq, sizeof *c->n_gap);
    c->page = arena_take(a, n_seq * e->pool.geom.n_kv_head * e->pool.max_page, sizeof *c->page);
    c->index = arena_take(a, n_seq * e->pool.max_page, sizeof *c->index);
    c->view = arena_take(a, n_seq * SEGMENT_MAX, sizeof *c->view);
}

bool compact_has_gaps(const sac_engine *e, uint32_t seq_i)
{
    return e->seqs[seq_i].has_gaps &&
           !method_set_entry(e, METHOD_SET_DECODE, seq_i)->spec->method->evicts;
}

uint32_t compact_tokens(const sac_engine *e, uint32_t seq_i, uint32_t layer, uint32_t n_tok)
{
    const page_id *table = pool_table(&e->pool, seq_i, layer);
    uint32_t n_gap = 0;
    if (!compact_has_gaps(e, seq_i)) return n_tok;
    for (uint32_t p = 0; p < n_tok / PAGE_TOK; p++) n_gap += table[p] == PAGE_NONE;
    return n_tok - n_gap * PAGE_TOK;
}

/* Each segment ends after its last page that is present. */
static void shorten_segments(struct segment_view *to, const struct attn_run *run,
                             const uint32_t *index, uint32_t n)
{
    for (uint32_t i = 0, at = 0; i < run->n_segment; i++) {
        while (at < n && index[at] < run->segment[i].end) at++;
        to[i] = run->segment[i];
        to[i].end = at;
    }
}

static void compact_run(sac_engine *e, const struct attn_run *run, uint32_t seq_i)
{
    const struct compact *c = &e->compact;
    const size_t max_page = e->pool.max_page, n_kv_head = e->pool.geom.n_kv_head;
    const uint32_t n_page = (run->pos0 + run->n_row) / PAGE_TOK;
    uint32_t *index = c->index + seq_i * max_page, n = 0;
    for (uint32_t p = 0; p < n_page; p++)
        if (run->table[p] != PAGE_NONE) index[n++] = p;
    c->n_gap[seq_i] = n_page - n;
    if (n == n_page) return;
    for (size_t h = 0; h < n_kv_head; h++) {
        page_id *page = c->page + (seq_i * n_kv_head + h) * max_page;
        for (uint32_t i = 0; i < n; i++) {
            page[i] = run->table[h * run->table_stride + index[i]];
            assert(page[i] != PAGE_NONE);
        }
    }
    shorten_segments(c->view + (size_t)seq_i * SEGMENT_MAX, run, index, n);
}

void compact_layer(sac_engine *e, const struct reading *r)
{
    for (uint32_t i = 0; i < r->n_run && e->params.compose; i++) {
        const uint32_t seq_i = e->batch.run[i].seq_i;
        e->compact.n_gap[seq_i] = 0;
        if (compact_has_gaps(e, seq_i)) compact_run(e, &r->run[i], seq_i);
    }
}

void compact_lane(const sac_engine *e, uint32_t seq_i, struct method_lane *lane)
{
    const struct compact *c = &e->compact;
    const uint32_t n_gap = e->params.compose ? c->n_gap[seq_i] : 0, n_tok = n_gap * PAGE_TOK;
    if (n_gap == 0) return;
    lane->pos -= n_tok;
    lane->n_sealed -= n_gap;
    lane->page = lane->id =
        c->page + ((size_t)seq_i * e->pool.geom.n_kv_head + lane->kv_head) * e->pool.max_page;
    lane->segment = c->view + (size_t)seq_i * SEGMENT_MAX;
    /* All rows whose queries are kept come after the missing pages. */
    lane->past.begin -= n_tok;
    lane->past.end -= n_tok;
    lane->past.shift = n_tok;
}

void compact_back(const sac_engine *e, uint32_t seq_i, uint32_t *page, uint32_t n_page,
                  uint32_t *tok, uint32_t n_tok)
{
    if (!e->params.compose || e->compact.n_gap[seq_i] == 0) return;
    const uint32_t *index = e->compact.index + (size_t)seq_i * e->pool.max_page;
    for (uint32_t i = 0; i < n_page; i++) page[i] = index[page[i]];
    for (uint32_t i = 0; i < n_tok; i++)
        tok[i] = index[tok[i] / PAGE_TOK] * PAGE_TOK + tok[i] % PAGE_TOK;
}
