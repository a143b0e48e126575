/* depot.h: pages of a device whose memory does not hold them all. Every sealed page lies in the
 * depot, the machine's memory, which a device reads over its bus; frames of the device's own memory
 * hold copies of those that were read of late. Kernels ask `held` where a page is, so whatever has
 * a frame, attention reads the same bytes, and nothing ever has to be resident.
 *
 * The first n_new frames take pages that a step seals in a layer. The others are dealt out to the
 * KV heads, n_head each, which all layers of a head share: a layer that reads more has more of
 * them. So a block of a kernel can look after a KV head alone, in a fixed order, and what is where
 * does not depend on timing. The first n_pass frames of a head let pages pass: what finds no other
 * room comes there and gives way to what the next layers bring.
 *
 * Pages are known by their numbers in the depot: page i's bytes are at below + i * geom.bytes. */
#ifndef SAC_OPS_DEPOT_H
#define SAC_OPS_DEPOT_H

#include "ops/ops.h"

#define DEPOT_PAGES_MAX (1u << 26) /* kernels have 31 bits for a page and a token of it */

/* A (layer, KV head) and what its rows have asked for so far. */
struct depot_lane {
    uint32_t clock;         /* fetches for decode rows */
    uint64_t n_hit, n_miss; /* pages that had a frame, that had none */
    uint64_t n_tok;         /* that came over the bus; a page is PAGE_TOK */
};

/* In memory of the device, but for `below`, which both reach. Zeroed, no page has a frame. */
struct depot_map {
    uint8_t *base, *below;
    uint32_t *held; /* [pages] one more than a page's frame; 0: none */
    uint32_t n_frame, n_new, n_head, n_pass;
    uint32_t *page;          /* [n_frame] one more than the page in a frame; 0: none */
    uint32_t *used;          /* [n_frame] clock * n_layer + layer of the fetch that read it last */
    uint32_t *hand;          /* [n_kv_head] of its frames the one that is looked at next */
    struct depot_lane *lane; /* [n_layer, n_kv_head] */
    uint32_t *wanted, *into; /* rooms: [n_kv_head][n_head] pages to come, and their frames */
    uint32_t *n_move;        /* room: [n_kv_head] */
    uint8_t *card;           /* [pages] the first bytes of each, for methods; they never leave */
    size_t card_bytes;       /* 0: methods note what they need */
};

/* Page i of the list has been sealed into frame i: it goes to the depot, and what lay in these
 * frames before has none any more. */
struct op_depot_store {
    const struct depot_map *map;
    const struct page_geom *geom;
    const uint32_t *page; /* [n_page] at most n_new, none twice */
    uint32_t n_page;
};

/* The program has written these pages of the depot: copies in frames are of others. */
struct op_depot_renew {
    const struct depot_map *map;
    const struct page_geom *geom;
    const uint32_t *page; /* [n_page] none twice */
    uint32_t n_page;
};

/* Brings what runs are about to read of a layer into frames, as far as there is room. Of decode
 * rows: pages that were not read when the turn of their layer came last give way first, those whose
 * turns are long past before others; then those that pass; one that is read now never. Pages of few
 * single tokens come only now and then. Of prompt rows: all that they see, among the pages that
 * pass. */
struct op_depot_fetch {
    const struct depot_map *map;
    const struct page_geom *geom;
    uint32_t layer;
    uint32_t window; /* as in op_attn */
    uint32_t n_run;
    const struct attn_run *run; /* with lists, if at all, that the device has chosen */
};

#endif
