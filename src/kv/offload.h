/* offload.h: KV cache offloading to host memory (ops/offload.h), for a pool whose device cannot
 * hold all pages: pinned host memory has every sealed page at the place that the pool assigns, and
 * the device fetches what it reads. The program reads and writes pages here; the device manages its
 * own frames. NULL is a pool without offloading: nothing is done. */
#ifndef SAC_KV_OFFLOAD_H
#define SAC_KV_OFFLOAD_H

#include "base/mem.h"
#include "ops/backend.h"
#include "ops/offload.h"
#include "ops/page.h"

struct offload {
    struct offload_map map;
    uint8_t *pages; /* [n_page][geom.bytes] borrowed; set before the arrays are laid out */
    size_t page_bytes;
    uint32_t n_page, n_lane;
    uint32_t n_kv_head;
    uint32_t *renewed; /* [n_page] pages written by the host since the last offload_settle */
    uint32_t n_renewed;
    bool *is_renewed;          /* [n_page] */
    struct offload_lane *lane; /* [n_lane] the device's counters up to the last step */
    uint64_t n_stored;         /* pages */
};

struct offload_size {
    uint32_t n_page, n_frame; /* n_frame: on the device */
    uint32_t n_new_max;       /* pages that a step can seal in a layer */
    uint32_t n_seen_max;      /* pages that a sequence can read of a layer and KV head */
};

/* Divides n_frame frames among their uses; false: fewer than offload_least requires. */
bool offload_divide(struct offload *o, const struct page_geom *geom,
                    const struct offload_size *size);
uint32_t offload_least(const struct page_geom *geom, uint32_t n_new_max);
/* Allocates the arrays; called by pool_init. */
void offload_plan(struct offload *o, struct arena *a);

/* Where the step's n-th new page is sealed, in device memory. */
uint8_t *offload_new_page(const struct offload *o, uint32_t n);
/* The step's n new pages have been sealed; `place` [n] are their places among the host's pages. */
void offload_store(struct offload *o, const struct ops *ops, struct workers *workers,
                   const struct page_geom *geom, const uint32_t *place, uint32_t n);
/* The host has written at `at`, inside a page. */
void offload_note(struct offload *o, const uint8_t *at);
/* Call before the device reads pages: tells it which pages were written. */
void offload_settle(struct offload *o, const struct ops *ops, struct workers *workers,
                    const struct page_geom *geom);
/* Call after a step's launches: copies the counters back; they are valid after the wait. */
void offload_fetch_counts(struct offload *o, const struct backend *backend);

#endif
