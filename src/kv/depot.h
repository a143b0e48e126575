/* depot.h: pages of a pool on which a device computes and whose memory does not hold them all
 * (ops/depot.h): pinned host memory has every sealed page at the place that the pool assigns, and
 * the device fetches what it reads. The program reads and writes pages here; the device manages its
 * own frames. NULL is a pool without one: nothing is done. */
#ifndef SAC_KV_DEPOT_H
#define SAC_KV_DEPOT_H

#include "base/mem.h"
#include "ops/backend.h"
#include "ops/depot.h"
#include "ops/page.h"

struct depot {
    struct depot_map map;
    uint8_t *pages; /* [n_page][geom.bytes] borrowed; set before the arrays are laid out */
    size_t page_bytes;
    uint32_t n_page, n_lane;
    uint32_t n_kv_head;
    uint32_t *renewed; /* [n_page] pages that the program has written since the last settling */
    uint32_t n_renewed;
    bool *is_renewed;        /* [n_page] */
    struct depot_lane *lane; /* [n_lane] counts of the device up to the last step */
    uint64_t n_stored;       /* pages */
};

struct depot_size {
    uint32_t n_page, n_frame; /* n_frame: of the device */
    uint32_t n_new_max;       /* pages that a step can seal in a layer */
    uint32_t n_seen_max;      /* that a sequence can read of a layer and KV head */
};

/* How n_frame frames are divided; false: fewer than depot_least requires. */
bool depot_divide(struct depot *d, const struct page_geom *geom, const struct depot_size *size);
uint32_t depot_least(const struct page_geom *geom, uint32_t n_new_max);
/* Arrays, as in pool_init, which calls it. */
void depot_plan(struct depot *d, struct arena *a);

/* Where the step's n-th new page is sealed, on the device. */
uint8_t *depot_new_page(const struct depot *d, uint32_t n);
/* The pages [n] at these places have been sealed there. */
void depot_store(struct depot *d, const struct ops *ops, struct workers *workers,
                 const struct page_geom *geom, const uint32_t *place, uint32_t n);
/* The program has written at `at`, in a page. */
void depot_note(struct depot *d, const uint8_t *at);
/* Before the device reads pages: informs it of those that were written. */
void depot_settle(struct depot *d, const struct ops *ops, struct workers *workers,
                  const struct page_geom *geom);
/* After a step's launches: counts are copied back, and are valid after the wait. */
void depot_fetch_counts(struct depot *d, const struct backend *backend);

#endif
