/* reuse.c: see the header.
 *
 * Invariants:
 *  1. n_page <= n_pure / PAGE_TOK, and n_pure <= n_done. The sequence's table names the pages of
 *     its nodes, so none of them leaves the index while the sequence exists. A sequence that has
 *     dropped pages is not indexed.
 *  2. If two sequences have computed the same page in parallel, the second takes the first one's
 *     page at the end of the step: their bits are equal (design D7), and no text is stored
 *     twice. */
#include "engine/reuse.h"

#include "engine/engine.h"
#include "engine/resident.h"
#include "engine/reuse_disk.h"
#include "engine/reuse_watch.h"

#include <assert.h>
#include <string.h>

sac_status reuse_init(sac_engine *e, sac_error *err)
{
    /* Recorders must see each row, and learning needs all rows. */
    e->reuse.on = e->params.prefix_cache && !e->params.record && !e->params.learn;
    return e->reuse.on ? sha256_open(&e->reuse.sha, err) : SAC_OK;
}

void reuse_plan(sac_engine *e, struct arena *a)
{
    prefix_init(&e->reuse.index, &e->pool, e->reuse.on, a);
}

void reuse_deinit(sac_engine *e)
{
    reuse_disk_close(e->reuse.disk);
    if (e->reuse.on) sha256_close(&e->reuse.sha);
}

/* ---- The nodes of a sequence ---- */

static void begin_at_root(struct reuse_seq *r)
{
    memcpy(r->key, r->root, SHA256_BYTES);
    r->n_page = 0;
    r->node = PREFIX_NONE;
}

void reuse_salt_digest(const sac_engine *e, const char *salt, uint8_t out[SHA256_BYTES])
{
    if (e->reuse.on)
        sha256_digest(&e->reuse.sha, out, NULL, salt ? salt : "", salt ? strlen(salt) : 0);
}

void reuse_root(const sac_engine *e, const uint8_t digest[SHA256_BYTES], uint8_t out[SHA256_BYTES])
{
    sha256_digest(&e->reuse.sha, out, digest, &e->model->fingerprint, sizeof e->model->fingerprint);
}

void reuse_use_salt(sac_engine *e, uint32_t seq_i, const uint8_t digest[SHA256_BYTES])
{
    struct reuse_seq *r = &e->seqs[seq_i].reuse;
    if (!e->reuse.on) return;
    reuse_root(e, digest, r->root);
    begin_at_root(r);
}

void reuse_use_owner(sac_engine *e, uint32_t seq_i, void *owner)
{
    e->seqs[seq_i].reuse.owner = owner;
}

void reuse_reset(sac_engine *e, uint32_t seq_i)
{
    uint8_t none[SHA256_BYTES];
    /* A prompt of one token is computed without a lookup. */
    e->seqs[seq_i].reuse = (struct reuse_seq){.node = PREFIX_NONE,
                                              .end = e->reuse.on ? SAC_REUSE_SHORT : SAC_REUSE_OFF};
    reuse_salt_digest(e, NULL, none);
    reuse_use_salt(e, seq_i, none);
}

void reuse_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    e->seqs[dst].reuse = e->seqs[src].reuse;
}

/* The key of the next page, and its node if it is in the index. */
static uint32_t find_next(const sac_engine *e, uint32_t seq_i, uint8_t key[SHA256_BYTES])
{
    const struct seq *s = &e->seqs[seq_i];
    const int32_t *tok = s->tok + (size_t)s->reuse.n_page * PAGE_TOK;
    assert((s->reuse.n_page + 1) * PAGE_TOK <= s->n_all);
    sha256_digest(&e->reuse.sha, key, s->reuse.key, tok, PAGE_TOK * sizeof *tok);
    return prefix_find(&e->reuse.index, s->reuse.node, key, tok);
}

static void step_to(struct reuse_seq *r, const uint8_t key[SHA256_BYTES], uint32_t node)
{
    assert(node != PREFIX_NONE);
    memcpy(r->key, key, SHA256_BYTES);
    r->node = node;
    r->n_page++;
}

void reuse_cut(sac_engine *e, uint32_t seq_i, uint32_t n_old)
{
    struct seq *s = &e->seqs[seq_i];
    struct reuse_seq *r = &s->reuse;
    /* A sealed page that becomes a tail again keeps its rounded keys. */
    const bool rounds = s->n_done / PAGE_TOK < n_old / PAGE_TOK;
    const uint32_t n_exact = rounds ? s->n_done / PAGE_TOK * PAGE_TOK : s->n_done;
    uint8_t key[SHA256_BYTES];
    uint32_t node;
    if (r->n_pure > n_exact) r->n_pure = n_exact;
    if (r->n_page <= r->n_pure / PAGE_TOK) return;
    begin_at_root(r);
    /* If a text was lost and recomputed, the index contains pages that are not the sequence's. */
    while (r->n_page < r->n_pure / PAGE_TOK && (node = find_next(e, seq_i, key)) != PREFIX_NONE &&
           prefix_is_at(&e->reuse.index, node, (struct pool_place){seq_i, r->n_page}))
        step_to(r, key, node);
}

/* Adds the sequence's next page to the index, or replaces it by the page that is there. False: no
 * room. */
static bool keep_page(sac_engine *e, uint32_t seq_i)
{
    struct reuse_seq *r = &e->seqs[seq_i].reuse;
    const struct pool_place place = {seq_i, r->n_page};
    const int32_t *tok = e->seqs[seq_i].tok + (size_t)r->n_page * PAGE_TOK;
    uint8_t key[SHA256_BYTES];
    uint32_t node = find_next(e, seq_i, key);
    if (node != PREFIX_NONE) {
        prefix_take(&e->reuse.index, node, place);
    } else {
        node = prefix_add(&e->reuse.index, r->node, key, tok, place);
        if (node == PREFIX_NONE) return false;
        reuse_watch_added(e, node, r->owner);
    }
    step_to(r, key, node);
    return true;
}

/* ---- Reusing pages ---- */

/* How many pending prompt rows may take their pages from the index. */
static uint32_t count_takeable(const sac_engine *e, const struct seq *s, sac_reuse_end *why)
{
    uint32_t n = 0, n_silent = 0;
    for (; s->n_done + n < s->n_all && !(s->flags[s->n_done + n] & TOK_DECODE); n++)
        if (n_silent == n && !(s->flags[s->n_done + n] & (TOK_WANT | TOK_STATE))) n_silent++;
    const uint32_t n_least =
        s->n_done + n == s->n_all; /* rows that must be computed; decode rows may follow */
    *why = SAC_REUSE_SHORT;
    if (n < PAGE_TOK + n_least) return 0;
    *why = n_silent + 1 < n ? SAC_REUSE_LOGITS : SAC_REUSE_QUERIES;
    const uint32_t n_left = e->past.n_slot > n_least ? e->past.n_slot : n_least;
    if (n <= n_left) return 0;
    return n_silent < n - n_left ? n_silent : n - n_left;
}

/* Counts the next n pages, which are present, as computed. */
static void count_pages(sac_engine *e, struct seq *s, uint32_t n)
{
    s->n_done += n * PAGE_TOK;
    assert(s->reuse.n_page * PAGE_TOK == s->n_done && s->n_done < s->n_all);
    s->reuse.n_pure = s->n_done;
    s->reads.n_reused_tok += n * PAGE_TOK;
    e->stats.reads.n_reused_tok += n * PAGE_TOK;
}

/* Takes the next pages that the index has, up to token `end`. */
static void take_indexed(sac_engine *e, uint32_t seq_i, uint32_t end)
{
    struct seq *s = &e->seqs[seq_i];
    uint8_t key[SHA256_BYTES];
    uint32_t node;
    while (s->n_done + PAGE_TOK <= end && (node = find_next(e, seq_i, key)) != PREFIX_NONE) {
        prefix_take(&e->reuse.index, node, (struct pool_place){seq_i, s->reuse.n_page});
        step_to(&s->reuse, key, node);
        count_pages(e, s, 1);
    }
}

void reuse_keep_placed(sac_engine *e, uint32_t seq_i, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!keep_page(e, seq_i)) assert(!"the index has a node for each page index of the pool");
    count_pages(e, &e->seqs[seq_i], n);
}

/* Reads an entry's pages from the disk into the index. */
static bool take_entry(sac_engine *e, uint32_t seq_i, uint32_t n)
{
    struct seq *s = &e->seqs[seq_i];
    if (!reuse_disk_take(e, seq_i, n)) return false;
    reuse_keep_placed(e, seq_i, n);
    s->reads.n_disk_tok += n * PAGE_TOK;
    e->stats.reads.n_disk_tok += n * PAGE_TOK;
    return true;
}

/* Takes all pages that are available, but only one entry from the disk if decode rows wait; returns
 * why it ended, SAC_REUSE_ENDS if it has not. */
static sac_reuse_end take(sac_engine *e, uint32_t seq_i)
{
    struct seq *s = &e->seqs[seq_i];
    struct reuse_seq *r = &s->reuse;
    sac_reuse_end why;
    if (!e->reuse.on) return SAC_REUSE_OFF;
    if (method_set_entry(e, METHOD_SET_PREFILL, seq_i)->spec->method->prefill)
        return SAC_REUSE_METHOD;
    if (s->has_gaps || r->n_pure != s->n_done || r->n_page * PAGE_TOK != s->n_done)
        return SAC_REUSE_PAST;
    const uint32_t end = s->n_done + count_takeable(e, s, &why);
    if (end < s->n_done + PAGE_TOK) return why;
    for (uint32_t n, n_entry = 0;; n_entry++) {
        take_indexed(e, seq_i, end);
        if (s->n_done + PAGE_TOK > end) return SAC_REUSE_ALL;
        n = reuse_disk_find(e, seq_i, (end - s->n_done) / PAGE_TOK);
        if (n > 0 && n_entry > 0 && e->batch.n_decode > 0) return SAC_REUSE_ENDS;
        if (n == 0 || !take_entry(e, seq_i, n))
            return r->n_page ? SAC_REUSE_DIFFERS : SAC_REUSE_NEW;
    }
}

bool reuse_take(sac_engine *e, uint32_t seq_i)
{
    struct seq *s = &e->seqs[seq_i];
    const uint32_t before = s->n_done;
    const sac_reuse_end end = take(e, seq_i);
    if (s->n_done > before) past_queries_set_begin(e, seq_i, s->n_done);
    if (end == SAC_REUSE_ENDS) return false;
    if (s->n_done > before || s->reuse.asks) s->reuse.end = end;
    if (s->reuse.asks) e->stats.n_reuse_end[end]++;
    s->reuse.asks = false;
    return true;
}

sac_reuse_end reuse_end_of(const sac_engine *e, sac_seq id)
{
    const struct seq *s = engine_seq(e, id, NULL);
    return s ? s->reuse.end : SAC_REUSE_OFF;
}

/* ---- Indexing pages ---- */

void reuse_keep(sac_engine *e)
{
    const struct batch *b = &e->batch;
    for (uint32_t i = b->n_decode; i < b->n_run && e->reuse.on; i++) {
        const struct batch_run *run = &b->run[i];
        struct seq *s = &e->seqs[run->seq_i];
        if (repeat_of(&e->repeat, run->seq_i)) continue;
        if (s->broken) continue; /* what it has computed since does not match its tokens */
        const bool is_dense =
            !method_set_entry(e, METHOD_SET_PREFILL, run->seq_i)->spec->method->prefill;
        if (is_dense && !s->has_gaps && s->reuse.n_pure == run->pos0) s->reuse.n_pure += run->n_row;
        while (!s->has_gaps && (s->reuse.n_page + 1) * PAGE_TOK <= s->reuse.n_pure &&
               keep_page(e, run->seq_i))
            continue;
    }
}

void reuse_lose(sac_engine *e, uint32_t seq_i)
{
    const struct seq *s = &e->seqs[seq_i];
    /* Each share of a layer has its own index, and all of them must have the same texts. */
    if (e->tp.n_all == 1 && !s->has_gaps) prefix_lose(&e->reuse.index, s->reuse.node);
}

void reuse_make_room(sac_engine *e, uint32_t n_index)
{
    while (pool_free_indices(&e->pool) < n_index) {
        const uint64_t oldest = resident_oldest(e);
        if (prefix_shrink(&e->reuse.index, oldest)) continue;
        if (oldest == UINT64_MAX) return;
        resident_drop_oldest(e);
    }
}

/* ---- Public calls ---- */

sac_status sac_seq_use_salt(sac_engine *e, sac_seq id, const char *salt, sac_error *err)
{
    const struct seq *s = engine_seq(e, id, err);
    uint8_t digest[SHA256_BYTES];
    if (!s) return SAC_ERR_NOT_FOUND;
    if (s->n_all > 0)
        return error_set(err, SAC_ERR_ARG, "sequence %u has %u tokens: a salt is for an empty one",
                         id, s->n_all);
    reuse_salt_digest(e, salt, digest);
    for (uint32_t i = 0; i < e->tp.n; i++) reuse_use_salt(e->tp.of[i], id, digest);
    return SAC_OK;
}

const char *sac_reuse_end_text(sac_reuse_end end)
{
    static const char *const text[SAC_REUSE_ENDS] = {
        [SAC_REUSE_OFF] = "no pages are kept for others to use",
        [SAC_REUSE_ALL] = "all that could be taken was there",
        [SAC_REUSE_SHORT] = "the prompt is no longer than a page",
        [SAC_REUSE_NEW] = "no kept text begins like this one",
        [SAC_REUSE_DIFFERS] = "the kept texts that begin like this one go on differently",
        [SAC_REUSE_METHOD] = "what a sparse prompt computes depends on all of it",
        [SAC_REUSE_QUERIES] = "a decode method wants the queries of more rows than there are",
        [SAC_REUSE_LOGITS] = "the logits of prompt rows are wanted",
        [SAC_REUSE_PAST] =
            "it goes on inside a page, or after documents, an answer or a loaded state",
    };
    return (unsigned)end < SAC_REUSE_ENDS ? text[end] : "unknown";
}
