/* pool.h: the KV pages of all layers, heads and sequences: one fixed pool of sealed pages with
 * reference counts, and per sequence a block table and the 16-bit tail (design D3).
 *
 * A sequence of n tokens has n / PAGE_TOK sealed pages for every (layer, KV head) in its table,
 * unless it has dropped some, and the last n % PAGE_TOK tokens in its tail. Sealed pages never
 * change, so a fork shares them and copies the tail: copy on write without writes. Layers computed
 * by devices follow layers of the program: there is one kind of id, and one memory for each part.
 * One thread at a time. */
#ifndef SAC_KV_POOL_H
#define SAC_KV_POOL_H

#include "base/mem.h"
#include "kv/offload.h"
#include "kv/tier.h"
#include "ops/backend.h"
#include "ops/page.h"

#define POOL_PARTS_MAX 17 /* the host's, and those of 16 devices */

/* Consecutive layers whose pages and tails are in one memory. An id determines its part. */
struct pool_part {
    uint32_t layer0, n_layer;
    page_id id0;
    uint32_t n_page, n_free;
    uint8_t *frames; /* [n_page][geom.bytes]; with a tier [n_frame][geom.bytes] */
    uint8_t *tails;  /* [n_seq][n_layer][n_kv_head][geom.tail_bytes] */
    /* borrowed: the backend that owns this memory; NULL: the host */
    const struct backend *device;
    /* For devices, which do not read page tables (mirror.c): [n_seq][n_layer][n_kv_head][max_page]
     * frames of the tables' pages; otherwise NULL. */
    uint32_t *mirror;
};

struct pool {
    struct page_geom geom;
    uint32_t n_page, n_free;               /* total of all parts */
    struct pool_part part[POOL_PARTS_MAX]; /* [n_part] ordered by layer; the first may be empty */
    uint32_t n_part;
    uint32_t n_frame;         /* n_page, or fewer with a tier */
    struct tier *tier;        /* borrowed; NULL: every page is in memory */
    struct offload *offload;  /* borrowed; NULL: every page is in the computing device's memory */
    uint32_t n_seq, max_page; /* sequences; table entries for each (layer, KV head) of one */
    uint32_t *frame_of; /* [n_page] the page's frame in its part; PAGE_NONE: free, or evicted to the
                           tier */
    uint32_t *free_frames; /* [n_page] stacks, indexed as free_ids; NULL: kept by the tier */
    page_id *tables;       /* [n_seq][n_layer][n_kv_head][max_page] */
    page_id *free_ids;     /* [n_page] one stack per part, starting at its id0 */
    uint32_t *refs;        /* [n_page] */
    uint32_t *holds;       /* [n_page] references that do not come from a table (prefix.h) */
    uint32_t n_only_held;  /* pages referenced by holds only */
    /* If a part is on a device, otherwise NULL: */
    uint32_t *mirrored; /* [n_seq] entries of each lane that are current in the mirrors */
    uint32_t *changes;  /* [n_layer * n_kv_head * max_page] scratch */
    uint8_t *bounce;    /* one page in transit, sealed or tail */
    uint8_t *crowd;     /* several sealed pages (mirror.h) */
};

/* The layers after those of the previous part. */
struct pool_span {
    uint32_t n_layer;
    const struct backend *device; /* borrowed; NULL: host memory */
    struct arena *arena;          /* that device's memory */
};

struct pool_size {
    uint32_t n_page, n_seq, max_page;
    const struct pool_span *span; /* [n_span], covers all layers */
    uint32_t n_span;
    uint32_t n_frame;  /* with a tier: pages in memory at the same time */
    struct tier *tier; /* not started yet; NULL: all pages are in memory */
    /* Already divided. Frames are then in pinned host memory, and the device has a cache of them.
     * NULL: no offloading. */
    struct offload *offload;
};

/* Allocates all memory from `a`: measures if a->base is NULL, otherwise lays out. `geom` is
 * complete. */
void pool_init(struct pool *p, const struct page_geom *geom, const struct pool_size *size,
               struct arena *a);

/* Pages needed per page index of a sequence: one for each layer and KV head. */
uint32_t pool_pages_per_index(const struct pool *p);
/* How many page indices can be reserved. */
uint32_t pool_free_indices(const struct pool *p);

/* The part that holds a layer. */
const struct pool_part *pool_part_of(const struct pool *p, uint32_t layer);
/* The first layer to which a page may belong: ids are shared by the layers of one memory. */
uint32_t pool_first_layer(const struct pool *p, page_id id);

page_id *pool_table(const struct pool *p, uint32_t seq_i, uint32_t layer);
/* The tail pages of a layer: [n_kv_head][geom.tail_bytes]. Those of the next layer of its part
 * follow. */
uint8_t *pool_tail(const struct pool *p, uint32_t seq_i, uint32_t layer);
/* End of the pages and tails of layers in host memory, which the arena begins with; NULL: there are
 * none. */
uint8_t *pool_own_end(const struct pool *p);
/* The bytes of a page that is in memory: with a tier, one that is open or acquired. */
uint8_t *pool_page(const struct pool *p, page_id id);
/* Where the pages of a layer are. Ids are permanent; frames are valid until a page moves, between
 * steps. */
struct page_frames pool_frames(const struct pool *p, uint32_t layer);
/* The same for the leading part of q8 pages (the card), which no tier removes from memory. */
struct page_cards pool_cards(const struct pool *p, uint32_t layer);
/* Reads keys and values [n, PAGE_TOK, head_dim] of sealed pages, wherever they are; either may be
 * NULL. */
sac_status pool_read(const struct pool *p, const page_id *id, uint32_t n, float *k, float *v,
                     sac_error *err);

/* Fills the table entries [first, first + n) of a sequence with free pages, adjacent ones for each
 * (layer, head) while the pool is unfragmented. False, with nothing changed, if the pool has too
 * few. */
bool pool_reserve(struct pool *p, uint32_t seq_i, uint32_t first, uint32_t n);

/* Releases the entries [first, first + n). */
void pool_release(struct pool *p, uint32_t seq_i, uint32_t first, uint32_t n);

/* Releases the page of one (layer, KV head) before its sequence ends, because it will not be read
 * again through this table. The entry becomes PAGE_NONE. */
void pool_drop(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i);
/* Whether no (layer, KV head) has dropped page `page_i` of the sequence. */
bool pool_has(const struct pool *p, uint32_t seq_i, uint32_t page_i);

struct pool_place {
    uint32_t seq_i, page_i;
};

page_id pool_entry(const struct pool *p, struct pool_place at, uint32_t lane);
/* Replaces the entry's page, releasing the previous one. */
void pool_put(struct pool *p, struct pool_place at, uint32_t lane, page_id id);
/* Adds a reference that keeps the page until it is released, whatever tables name it. */
void pool_hold(struct pool *p, page_id id);
void pool_let(struct pool *p, page_id id);
/* Whether no table names the page. */
bool pool_is_only_held(const struct pool *p, page_id id);

/* Shares up to n_page existing entries of one sequence with another. */
void pool_share(struct pool *p, struct pool_place dst, struct pool_place src, uint32_t n_page);

/* Makes the page of one (layer, KV head) private to the sequence, with undefined content: a shared
 * page is replaced by a free one. False, with nothing changed, if there is none. */
bool pool_renew(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i);

/* Shares src's first n_page entries with dst, which is empty, and copies its tail. */
void pool_fork(struct pool *p, uint32_t dst, uint32_t src, uint32_t n_page);

/* Cuts a sequence from n_old to n_new tokens: pages are released, and a page that is cut becomes
 * the tail (it must exist). Fails, with nothing changed, if a page cannot be read. */
sac_status pool_truncate(struct pool *p, uint32_t seq_i, uint32_t n_old, uint32_t n_new,
                         sac_error *err);

/* Tests: every page's reference count equals the table entries that name it plus its holds, given
 * the tokens of each sequence, and free pages have none. */
bool pool_check(const struct pool *p, const uint32_t *n_tok);

#endif
