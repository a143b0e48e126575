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
#include "kv/depot.h"
#include "kv/tier.h"
#include "ops/backend.h"
#include "ops/page.h"

#define POOL_PARTS_MAX 17 /* the program's, and those of 16 devices */

/* Consecutive layers whose pages and tails are in one memory. An id determines its part. */
struct pool_part {
    uint32_t layer0, n_layer;
    page_id id0;
    uint32_t n_page, n_free;
    uint8_t *frames; /* [n_page][geom.bytes] the bytes of pages; with a tier [n_frame] */
    uint8_t *tails;  /* [n_seq][n_layer][n_kv_head][geom.tail_bytes] */
    /* Borrowed: the owner of that memory; NULL: the program. */
    const struct backend *device;
    /* For a device, which looks no page up (mirror.c): [n_seq][n_layer][n_kv_head][max_page] frames
     * of the tables' pages; else NULL. */
    uint32_t *mirror;
};

struct pool {
    struct page_geom geom;
    uint32_t n_page, n_free;               /* of all parts */
    struct pool_part part[POOL_PARTS_MAX]; /* [n_part] ordered by layer; the first may be empty */
    uint32_t n_part;
    uint32_t n_frame;         /* n_page, unless there is a tier below */
    struct tier *tier;        /* NULL: every page is in memory. Borrowed */
    struct depot *depot;      /* NULL: and in that of the computing device. Borrowed */
    uint32_t n_seq, max_page; /* sequences; table entries for each (layer, KV head) of one */
    uint32_t *frame_of;       /* [n_page] the frame of its part that has a page's bytes;
                                 PAGE_NONE: none, it is free, or below */
    uint32_t *free_frames; /* [n_page], stacks as high as those of ids; NULL: the tier has them */
    page_id *tables;       /* [n_seq][n_layer][n_kv_head][max_page] */
    page_id *free_ids;     /* [n_page], a stack for each part, starting at its id0 */
    uint32_t *refs;        /* [n_page] */
    uint32_t *holds;       /* [n_page] of refs: those that belong to no table (prefix.h) */
    uint32_t n_only_held;  /* pages whose refs are all holds */
    /* If a part is a device's, else NULL: */
    uint32_t *mirrored; /* [n_seq] number of entries of each lane that are current in the mirrors */
    uint32_t *changes;  /* [n_layer * n_kv_head * max_page] scratch */
    uint8_t *bounce;    /* a page of either form in transit */
    uint8_t *crowd;     /* many sealed ones (mirror.h) */
};

/* Layers after those of the previous part. */
struct pool_span {
    uint32_t n_layer;
    const struct backend *device; /* borrowed; NULL: the program's memory */
    struct arena *arena;          /* of that device */
};

struct pool_size {
    uint32_t n_page, n_seq, max_page;
    const struct pool_span *span; /* [n_span] all layers */
    uint32_t n_span;
    uint32_t n_frame;  /* with a tier: pages in memory at once */
    struct tier *tier; /* not started yet; NULL: all pages are in memory */
    /* Divided; frames are then in its memory, and the device has some of its own. NULL: none. */
    struct depot *depot;
};

/* Allocates all memory from `a`: measures when a->base is NULL, then lays out. `geom` is
 * complete. */
void pool_init(struct pool *p, const struct page_geom *geom, const struct pool_size *size,
               struct arena *a);

/* Pages needed per page index of a sequence: one for each layer and KV head. */
uint32_t pool_pages_per_index(const struct pool *p);
/* So many can be reserved. */
uint32_t pool_free_indices(const struct pool *p);

/* The part that has a layer. */
const struct pool_part *pool_part_of(const struct pool *p, uint32_t layer);
/* The first of the layers to which a page may belong: those of one memory. */
uint32_t pool_first_layer(const struct pool *p, page_id id);

page_id *pool_table(const struct pool *p, uint32_t seq_i, uint32_t layer);
/* The tail pages of a layer: [n_kv_head][geom.tail_bytes]. Those of the next layer of its part
 * follow. */
uint8_t *pool_tail(const struct pool *p, uint32_t seq_i, uint32_t layer);
/* End of the pages and tails of the program's own layers, with which the arena begins; NULL: it has
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

/* Drops the entries [first, first + n). */
void pool_release(struct pool *p, uint32_t seq_i, uint32_t first, uint32_t n);

/* Frees the page of one (layer, KV head) before its sequence ends: nobody will read it again
 * through this table. Its entry is PAGE_NONE from now on. */
void pool_drop(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i);
/* No (layer, KV head) has dropped page `page_i` of the sequence. */
bool pool_has(const struct pool *p, uint32_t seq_i, uint32_t page_i);

struct pool_place {
    uint32_t seq_i, page_i;
};

page_id pool_entry(const struct pool *p, struct pool_place at, uint32_t lane);
/* The entry names this page from now on, and its previous page is released. */
void pool_put(struct pool *p, struct pool_place at, uint32_t lane, page_id id);
/* A page is kept, whatever tables name it, until it is released. */
void pool_hold(struct pool *p, page_id id);
void pool_let(struct pool *p, page_id id);
/* No table names it. */
bool pool_is_only_held(const struct pool *p, page_id id);

/* n_page entries of one sequence, as far as they exist, are shared with another. */
void pool_share(struct pool *p, struct pool_place dst, struct pool_place src, uint32_t n_page);

/* Makes the page of one (layer, KV head) the sequence's own, with any content: a free page replaces
 * one that others also hold. False, with nothing changed, if there is none. */
bool pool_renew(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i);

/* dst gets src's first n_page entries (shared) and its tail. dst is empty. */
void pool_fork(struct pool *p, uint32_t dst, uint32_t src, uint32_t n_page);

/* A sequence of n_old tokens is cut to n_new: pages are released, a cut page becomes the tail (and
 * must exist). Fails, with nothing changed, if a page cannot be read. */
sac_status pool_truncate(struct pool *p, uint32_t seq_i, uint32_t n_old, uint32_t n_new,
                         sac_error *err);

/* Tests: every page's reference count equals the table entries that name it plus its holds, given
 * the tokens of each sequence, and free pages have none. */
bool pool_check(const struct pool *p, const uint32_t *n_tok);

#endif
