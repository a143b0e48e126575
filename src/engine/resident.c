/* resident.c: see the header.
 *
 * Invariant: each page of a resident document has one reference of its own (pool_hold), and none of
 * these pages is in the index of prompts, which holds computed pages; these were loaded. */
#include "engine/resident.h"

#include "base/mem.h"
#include "engine/doc_stats.h"
#include "engine/engine.h"

#include <string.h>

struct resident {
    struct resident *next;
    struct resident_key key;
    uint64_t used;
    struct doc_stats *stats; /* owned */
    int32_t *tok;            /* [n_tok], owned */
    uint32_t n_tok;
    page_id page[]; /* [n_lane][n_tok / PAGE_TOK] */
};

static size_t count_entries(const sac_engine *e, const struct resident *r)
{
    return (size_t)pool_pages_per_index(&e->pool) * (r->n_tok / PAGE_TOK);
}

static bool same_key(const struct resident_key *a, const struct resident_key *b)
{
    return memcmp(a->id, b->id, sizeof a->id) == 0 && a->device == b->device &&
           a->inode == b->inode && a->bytes == b->bytes && a->changed.tv_sec == b->changed.tv_sec &&
           a->changed.tv_nsec == b->changed.tv_nsec;
}

static void drop(sac_engine *e, struct resident **at)
{
    struct resident *r = *at;
    *at = r->next;
    for (size_t i = count_entries(e, r); i-- > 0;) pool_let(&e->pool, r->page[i]);
    mem_free(r->stats);
    mem_free(r->tok);
    mem_free(r);
}

void sac_docs_forget(sac_engine *e)
{
    while (e->residents) drop(e, &e->residents);
}

/* ---- Loading from resident pages ---- */

static struct doc_stats *copy_stats(const struct doc_stats *n)
{
    const size_t bytes = sizeof *n + n->n_float * sizeof n->value[0];
    struct doc_stats *copy = mem_alloc(bytes);
    if (copy) memcpy(copy, n, bytes);
    return copy;
}

static void name_pages(sac_engine *e, const struct resident *r, sac_seq seq)
{
    const uint32_t n_page = r->n_tok / PAGE_TOK, n_lane = pool_pages_per_index(&e->pool);
    for (uint32_t lane = 0; lane < n_lane; lane++)
        for (uint32_t i = 0; i < n_page; i++)
            pool_put(&e->pool, (struct pool_place){seq, i}, lane,
                     r->page[(size_t)lane * n_page + i]);
}

sac_status resident_take(sac_engine *e, const struct resident_key *key, sac_seq *out,
                         sac_error *err)
{
    struct resident *r = e->residents;
    sac_seq id;
    while (r && !same_key(&r->key, key)) r = r->next;
    if (!r) return SAC_ERR_NOT_FOUND;
    TRY(sac_seq_create(e, &id, err));
    struct seq *s = &e->seqs[id];
    s->stats = copy_stats(r->stats);
    if (!s->stats) {
        sac_seq_remove(e, id);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a document's statistics");
    }
    name_pages(e, r, id);
    memcpy(s->tok, r->tok, r->n_tok * sizeof *s->tok);
    memset(s->flags, 0, r->n_tok);
    s->n_done = s->n_all = r->n_tok;
    r->used = ++e->reuse.index.tick;
    *out = id;
    return SAC_OK;
}

/* ---- Making a document resident ---- */

/* Whether the sequence consists only of pages, tokens and statistics. */
static bool can_keep(const sac_engine *e, sac_seq id)
{
    const struct seq *s = &e->seqs[id];
    return e->params.compose && !e->pool.tier && !e->pool.offload && e->past.n_slot == 0 &&
           s->n_done == s->n_all && s->n_done % PAGE_TOK == 0 && !s->has_gaps &&
           e->segments.n[id] == 0 && s->stats;
}

static void hold_pages(sac_engine *e, struct resident *r, sac_seq id)
{
    const uint32_t n_page = r->n_tok / PAGE_TOK, n_lane = pool_pages_per_index(&e->pool);
    for (uint32_t lane = 0; lane < n_lane; lane++)
        for (uint32_t i = 0; i < n_page; i++) {
            const page_id page = pool_entry(&e->pool, (struct pool_place){id, i}, lane);
            r->page[(size_t)lane * n_page + i] = page;
            pool_hold(&e->pool, page);
        }
}

/* Drops an older state of the same document, which will not be requested again. */
static void drop_older(sac_engine *e, const struct resident_key *key)
{
    for (struct resident **at = &e->residents; *at;)
        if (memcmp((*at)->key.id, key->id, sizeof key->id) == 0)
            drop(e, at);
        else
            at = &(*at)->next;
}

void resident_keep(sac_engine *e, const struct resident_key *key, sac_seq id)
{
    const struct seq *s = &e->seqs[id];
    if (!can_keep(e, id)) return;
    const struct resident named = {.n_tok = s->n_done};
    struct resident *r = mem_calloc(1, sizeof *r + count_entries(e, &named) * sizeof *r->page);
    int32_t *tok = mem_alloc(s->n_done * sizeof *tok);
    struct doc_stats *stats = copy_stats(s->stats);
    if (!r || !tok || !stats) { /* without memory, the document is loaded from its file next time */
        mem_free(r);
        mem_free(tok);
        mem_free(stats);
        return;
    }
    memcpy(tok, s->tok, s->n_done * sizeof *tok);
    drop_older(e, key);
    *r = (struct resident){.next = e->residents,
                           .key = *key,
                           .used = ++e->reuse.index.tick,
                           .stats = stats,
                           .tok = tok,
                           .n_tok = s->n_done};
    hold_pages(e, r, id);
    e->residents = r;
}

/* ---- Eviction ---- */

/* Whether evicting the document would free a page. */
static bool is_idle(const sac_engine *e, const struct resident *r)
{
    const size_t n_entry = count_entries(e, r);
    size_t i = 0;
    while (i < n_entry && !pool_is_only_held(&e->pool, r->page[i])) i++;
    return i < n_entry;
}

/* The list entry of the document to evict first, or NULL. */
static struct resident **find_oldest(struct resident **list, const sac_engine *e)
{
    struct resident **oldest = NULL;
    for (struct resident **at = list; *at; at = &(*at)->next)
        if ((!oldest || (*at)->used < (*oldest)->used) && is_idle(e, *at)) oldest = at;
    return oldest;
}

uint64_t resident_oldest(const sac_engine *e)
{
    struct resident *list = e->residents, **oldest = find_oldest(&list, e);
    return oldest ? (*oldest)->used : UINT64_MAX;
}

void resident_drop_oldest(sac_engine *e)
{
    struct resident **oldest = find_oldest(&e->residents, e);
    if (oldest) drop(e, oldest);
}
