/* offload.h: KV cache offloading, for a device whose memory does not hold all pages. Every sealed
 * page is in host memory, which the device reads over its bus; frames in the device's own memory
 * hold copies of recently read pages. Kernels look up in `held` where a page is, so attention reads
 * the same bytes whatever has a frame, and nothing ever has to be resident.
 *
 * The first n_new frames take pages that a step seals in a layer. The others are divided among
 * the KV heads, n_head each, shared by all layers of a head: a layer that reads more has more of
 * them. A block of a kernel can thus manage one KV head alone, in a fixed order, and where pages
 * are does not depend on timing. The first n_pass frames of a head are for transient pages: what
 * finds no other room goes there and is replaced by what the next layers bring.
 *
 * Pages are identified by their numbers in host memory: page i's bytes are at below + i *
 * geom.bytes. */
#ifndef SAC_OPS_OFFLOAD_H
#define SAC_OPS_OFFLOAD_H

#include "ops/ops.h"

#define OFFLOAD_PAGES_MAX (1u << 26) /* kernels have 31 bits for a page and a token of it */

/* A (layer, KV head) and what its rows have requested so far. */
struct offload_lane {
    uint32_t clock;         /* fetches for decode rows */
    uint64_t n_hit, n_miss; /* pages found in a frame, pages not found */
    uint64_t n_tok;         /* tokens read over the bus; a page counts PAGE_TOK */
};

/* In memory of the device, except `below`, which both access. Zeroed, no page has a frame. */
struct offload_map {
    uint8_t *base, *below;
    uint32_t *held; /* [pages] a page's frame plus one; 0: none */
    uint32_t n_frame, n_new, n_head, n_pass;
    uint32_t *page;            /* [n_frame] the page in a frame plus one; 0: none */
    uint32_t *used;            /* [n_frame] clock * n_layer + layer of the last fetch to read it */
    uint32_t *hand;            /* [n_kv_head] the next of its frames to examine */
    struct offload_lane *lane; /* [n_layer, n_kv_head] */
    uint32_t *wanted, *into;   /* scratch: [n_kv_head][n_head] pages to fetch, and their frames */
    uint32_t *n_move;          /* scratch: [n_kv_head] */
    uint8_t *card;             /* [pages] the first bytes of each, for methods; always resident */
    size_t card_bytes;         /* 0: methods store what they need */
};

/* Page i of the list has been sealed into frame i: copies it to host memory; pages that were in
 * these frames lose them. */
struct op_offload_store {
    const struct offload_map *map;
    const struct page_geom *geom;
    const uint32_t *page; /* [n_page] at most n_new, none twice */
    uint32_t n_page;
};

/* The program has written these pages in host memory: drops the stale copies in frames. */
struct op_offload_renew {
    const struct offload_map *map;
    const struct page_geom *geom;
    const uint32_t *page; /* [n_page] none twice */
    uint32_t n_page;
};

/* Copies what runs are about to read of a layer into frames, as far as there is room. For decode
 * rows, pages that were not read in the layer's last turn are evicted first, the oldest before
 * others; then transient ones; never a page that is read now. Pages of which few single tokens are
 * read are copied only occasionally. For prompt rows: everything that they see, in transient
 * frames. */
struct op_offload_fetch {
    const struct offload_map *map;
    const struct page_geom *geom;
    uint32_t layer;
    uint32_t window; /* as in op_attn */
    uint32_t n_run;
    const struct attn_run *run; /* with lists, if any, selected by the device */
};

#endif
