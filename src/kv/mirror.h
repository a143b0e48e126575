/* mirror.h: parts of a pool whose frames and tails are in a device's memory: what the device knows
 * of the tables, and how the program reads and writes bytes there. On a host all of it is plain
 * memory, and there is no mirror; offloaded pages are in host memory that both access, and the
 * program writes them while the device is idle. */
#ifndef SAC_KV_MIRROR_H
#define SAC_KV_MIRROR_H

#include "base/status.h"
#include "kv/pool.h"

/* Allocates the parts of pool_init: a device's part in its memory and, after all of them, the
 * host's. */
void mirror_plan(const struct pool *p, struct pool_part *part, struct arena *device);
void mirror_plan_ways(struct pool *p, struct arena *a);
/* A sequence's table entries from `page_i` on have changed. */
void mirror_note(struct pool *p, uint32_t seq_i, uint32_t page_i);
/* A sequence's first n_page entries were copied from another: entries that are current on the
 * device are copied there. */
void mirror_fork(struct pool *p, uint32_t dst, uint32_t src, uint32_t n_page);
/* Before a step: makes the first n_page entries of each lane current on the device. */
void mirror_update(struct pool *p, uint32_t seq_i, uint32_t n_page);
/* Marks the entries as current, after a step that has updated them. */
void mirror_is_right(struct pool *p, uint32_t seq_i, uint32_t n_page);
/* As attn_run.frame; NULL for a layer on the host. */
const uint32_t *mirror_of(const struct pool *p, uint32_t seq_i, uint32_t layer);

/* Copies between tails. */
void mirror_copy(const struct pool *p, uint8_t *dst, const uint8_t *src, size_t bytes);
/* See page_unseal. */
void mirror_unseal(const struct pool *p, uint8_t *tail, uint8_t *sealed, uint32_t n_tok);
/* Makes the bytes at `src` (at most a page) readable by the host; `*out` is valid until the next
 * call. */
sac_status mirror_fetch(const struct pool *p, uint8_t **out, uint8_t *src, size_t bytes,
                        sac_error *err);
/* Where the host writes the bytes that mirror_store then copies to `dst`. */
uint8_t *mirror_room(const struct pool *p, uint8_t *dst);
void mirror_store(const struct pool *p, uint8_t *dst, size_t bytes);

/* The same part of many resident pages. A copy to or from a device costs more than transferring a
 * page, so adjacent pages are copied together. */
#define MIRROR_PAGES 128u
struct mirror_part {
    const page_id *id;
    uint32_t n;       /* at most MIRROR_PAGES */
    size_t at, width; /* bytes [at, at + width) of each */
    /* Set by the calls below: where the host sees the parts, `pitch` apart; NULL: in their
     * frames. */
    uint8_t *room;
    size_t pitch;
};

/* Prepares writing all parts, at the places given by mirror_seen; mirror_put then copies them.
 * Nothing else may be begun or read in between. */
void mirror_begin(const struct pool *p, struct mirror_part *m);
void mirror_put(const struct pool *p, const struct mirror_part *m);
/* Reads the parts; they are valid until something else is begun or read. */
sac_status mirror_get(const struct pool *p, struct mirror_part *m, sac_error *err);
/* Part of page i. */
uint8_t *mirror_seen(const struct pool *p, const struct mirror_part *m, uint32_t i);

#endif
