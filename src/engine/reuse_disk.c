/* reuse_disk.c: see the header.
 *
 * A text is a chain of entries, each of up to PREFIX_STORE_PAGES page indices. Reading and storing
 * walk it alike: at each boundary the longest entry that exists is the next one. A text that grows
 * from turn to turn thus adds entries and replaces none, and nothing is stored twice.
 *
 * Invariants:
 *  1. Pages from the disk are treated like freshly computed ones: side data is computed from their
 *     keys, and they enter the index, where other sequences find them.
 *  2. Nothing here waits for writes to the disk. Reading takes one entry at a time, so the caller
 *     (reuse.c) decides how many to read before the next step. */
#include "engine/reuse_disk.h"

#include "base/mem.h"
#include "base/workers.h"
#include "engine/engine.h"
#include "engine/reuse_page.h"
#include "kv/prefix_store.h"

#include <assert.h>
#include <string.h>

#define PAGES_MIN 8u /* a shorter text is computed sooner than a file is read */

struct reuse_disk {
    struct prefix_store *store; /* owned */
    uint64_t bytes_max;
    uint8_t (*key)[SHA256_BYTES]; /* owned, [max_page]: keys of the ends of a text's entries */
    uint32_t *chain;              /* owned, [max_page]: nodes of a text */
    int32_t *tok;                 /* owned, [PREFIX_STORE_PAGES][PAGE_TOK] */
    uint8_t tried[SHA256_BYTES];  /* key of the last entry that was given to the writer */
};

/* ---- Keys ---- */

/* The keys of the pages after the sequence's, up to the length of an entry. */
static uint32_t next_keys(const sac_engine *e, const struct seq *s, uint8_t key[][SHA256_BYTES])
{
    const uint8_t *before = s->reuse.key;
    uint32_t n = 0;
    for (; n < PREFIX_STORE_PAGES && (s->reuse.n_page + n + 1) * PAGE_TOK <= s->n_all;
         before = key[n++])
        sha256_digest(&e->reuse.sha, key[n], before,
                      s->tok + (size_t)(s->reuse.n_page + n) * PAGE_TOK, PAGE_TOK * sizeof *s->tok);
    return n;
}

/* The number of pages of the longest entry that follows the sequence and ends with one of these
 * keys; 0: there is none. */
static uint32_t find_longest(const sac_engine *e, const struct seq *s,
                             const uint8_t (*key)[SHA256_BYTES], uint32_t n)
{
    while (n > 0 && !prefix_store_has(e->reuse.disk->store, s->reuse.n_page, key[n - 1])) n--;
    return n;
}

/* ---- Reading ---- */

uint32_t reuse_disk_find(const sac_engine *e, uint32_t seq_i, uint32_t n_max)
{
    const struct seq *s = &e->seqs[seq_i];
    uint8_t key[PREFIX_STORE_PAGES][SHA256_BYTES];
    if (!e->reuse.disk || n_max == 0) return 0;
    const uint32_t n_key = next_keys(e, s, key);
    const uint32_t n = find_longest(e, s, (const uint8_t(*)[SHA256_BYTES])key, n_key);
    if (n > 0) prefix_store_read_ahead(e->reuse.disk->store, s->reuse.n_page, key[n - 1]);
    return n < n_max ? n : n_max;
}

bool reuse_disk_take(sac_engine *e, uint32_t seq_i, uint32_t n_page)
{
    const struct seq *s = &e->seqs[seq_i];
    uint8_t key[PREFIX_STORE_PAGES][SHA256_BYTES];
    const uint32_t n_key = next_keys(e, s, key);
    const uint32_t n = find_longest(e, s, (const uint8_t(*)[SHA256_BYTES])key, n_key);
    if (n < n_page) return false; /* another process has removed the entry since */
    const struct prefix_store_entry entry = {.key = key[n - 1],
                                             .first_page = s->reuse.n_page,
                                             .n_page = n,
                                             .tok = s->tok + (size_t)s->reuse.n_page * PAGE_TOK};
    const uint8_t *bytes = prefix_store_read(e->reuse.disk->store, &entry);
    return bytes && reuse_page_place(e, seq_i, n_page, bytes);
}

/* ---- Storing ---- */

void reuse_disk_want(sac_engine *e, uint32_t seq_i)
{
    const struct reuse_seq *r = &e->seqs[seq_i].reuse;
    if (!e->reuse.disk || !prefix_store_writable(e->reuse.disk->store)) return;
    if (r->n_page >= PAGES_MIN) prefix_want(&e->reuse.index, r->node, true);
}

/* Gives the pages [first, first + n) of the chain to the writer. False: they could not be read, or
 * a previous attempt has failed. */
static bool store_run(sac_engine *e, uint32_t first, uint32_t n)
{
    struct reuse_disk *d = e->reuse.disk;
    const struct prefix *x = &e->reuse.index;
    uint8_t *to = prefix_store_room(d->store, n);
    const uint8_t *key = x->node[d->chain[first + n - 1]].key;
    if (memcmp(d->tried, key, sizeof d->tried) == 0) return false;
    memcpy(d->tried, key, sizeof d->tried);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t node = d->chain[first + i];
        if (reuse_page_fetch(e, node, to) != SAC_OK) return false;
        to += x->n_lane * (size_t)e->pool.geom.bytes;
        memcpy(d->tok + (size_t)i * PAGE_TOK, x->tok + (size_t)node * PAGE_TOK,
               PAGE_TOK * sizeof *d->tok);
    }
    prefix_store_write(d->store, &(struct prefix_store_entry){
                                     .key = key, .first_page = first, .n_page = n, .tok = d->tok});
    return true;
}

/* Walks the entries of the chain's text; returns how many of its pages they hold, and their
 * keys. */
static uint32_t walk_entries(const struct reuse_disk *d, const struct prefix *x, uint32_t n_chain,
                             uint32_t *out_n)
{
    uint32_t at = 0, n = 1;
    for (*out_n = 0; at < n_chain && n > 0; at += n) {
        n = n_chain - at < PREFIX_STORE_PAGES ? n_chain - at : PREFIX_STORE_PAGES;
        while (n > 0 && !prefix_store_has(d->store, at, x->node[d->chain[at + n - 1]].key)) n--;
        if (n > 0) memcpy(d->key[(*out_n)++], x->node[d->chain[at + n - 1]].key, SHA256_BYTES);
    }
    return at;
}

/* Gives the next piece of the text that ends with this node to the writer or, if all of it is on
 * disk, marks it as used. False: neither is possible, and the text is given up. */
static bool store_text(sac_engine *e, uint32_t node)
{
    struct reuse_disk *d = e->reuse.disk;
    struct prefix *x = &e->reuse.index;
    uint32_t n_entry;
    const uint32_t n_chain = prefix_chain(x, node, d->chain, e->pool.max_page);
    const uint32_t at = walk_entries(d, x, n_chain, &n_entry),
                   n = n_chain - at < PREFIX_STORE_PAGES ? n_chain - at : PREFIX_STORE_PAGES;
    if (n > 0 && store_run(e, at, n)) return true;
    prefix_want(x, node, false);
    memset(d->tried, 0, sizeof d->tried); /* the next text may try again */
    if (n_entry == 0) return false;
    prefix_store_touch(d->store, (const uint8_t(*)[SHA256_BYTES])d->key, n_entry);
    return true;
}

bool sac_cache_store(sac_engine *e)
{
    struct prefix *x = &e->reuse.index;
    if (!e->reuse.disk || !prefix_store_writable(e->reuse.disk->store)) return false;
    if (!prefix_store_is_idle(e->reuse.disk->store)) return true;
    while (x->n_wanted > 0)
        if (store_text(e, prefix_next_wanted(x))) return true;
    return false;
}

void sac_cache_flush(sac_engine *e, uint32_t ms)
{
    const uint64_t start = clock_us();
    if (!e->reuse.disk) return;
    while (sac_cache_store(e) && clock_us() - start < ms * (uint64_t)1000)
        prefix_store_wait(e->reuse.disk->store);
}

/* ---- Opening and closing ---- */

static sac_status open_store(struct reuse_disk *d, const sac_engine *e,
                             const sac_cache_params *params, sac_error *err)
{
    const struct page_geom *g = &e->pool.geom;
    const struct prefix_store_params store = {.dir = params->dir,
                                              .bytes_max = params->bytes_max,
                                              .form = {.model = e->model->fingerprint,
                                                       .model_name = e->model->name,
                                                       .isa = e->isa,
                                                       .type_k = (uint8_t)g->type_k,
                                                       .type_v = (uint8_t)g->type_v,
                                                       .page_tok = PAGE_TOK,
                                                       .n_lane = e->reuse.index.n_lane,
                                                       .page_bytes = g->bytes},
                                              .n_touch_max = e->pool.max_page,
                                              .say = params->say,
                                              .ready = params->ready,
                                              .user = params->user};
    d->bytes_max = params->bytes_max;
    d->key = mem_calloc(e->pool.max_page, sizeof *d->key);
    d->chain = mem_calloc(e->pool.max_page, sizeof *d->chain);
    d->tok = mem_calloc((size_t)PREFIX_STORE_PAGES * PAGE_TOK, sizeof *d->tok);
    if (!d->key || !d->chain || !d->tok)
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a cache on disk");
    return prefix_store_open(&d->store, &store, err);
}

sac_status sac_cache_open(sac_engine *e, const sac_cache_params *params, sac_error *err)
{
    if (!e->reuse.on)
        return error_set(err, SAC_ERR_ARG, "a cache on disk needs an engine with prefix_cache");
    TRY(tensor_parallel_refuse(e, "a cache on disk", err));
    if (e->reuse.disk) return error_set(err, SAC_ERR_ARG, "the engine has a cache on disk already");
    if (!params->dir || !*params->dir)
        return error_set(err, SAC_ERR_ARG, "the folder of the cache on disk has no name");
    struct reuse_disk *d = mem_calloc(1, sizeof *d);
    if (!d) return error_set(err, SAC_ERR_MEMORY, "out of memory for a cache on disk");
    const sac_status status = open_store(d, e, params, err);
    if (status == SAC_OK)
        e->reuse.disk = d;
    else
        reuse_disk_close(d);
    return status;
}

void reuse_disk_close(struct reuse_disk *d)
{
    if (!d) return;
    prefix_store_close(d->store);
    mem_free(d->key);
    mem_free(d->chain);
    mem_free(d->tok);
    mem_free(d);
}

sac_cache_stats sac_cache_get_stats(const sac_engine *e)
{
    const struct reuse_disk *d = e->reuse.disk;
    if (!d) return (sac_cache_stats){0};
    const struct prefix_store_stats s = prefix_store_get_stats(d->store);
    return (sac_cache_stats){.is_open = true,
                             .writable = prefix_store_writable(d->store),
                             .n_entry = s.n_entry,
                             .bytes = s.bytes,
                             .bytes_max = d->bytes_max,
                             .n_read = s.n_read,
                             .n_written = s.n_write,
                             .bytes_read = s.bytes_read,
                             .bytes_written = s.bytes_written,
                             .n_damaged = s.n_damaged,
                             .n_failed = s.n_failed,
                             .n_evicted = s.n_evicted};
}
