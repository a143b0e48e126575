/* saccade_tier.h: KV pages in two tiers: memory for recently read ones, a file for all. With a GPU,
 * its memory has the recently read pages and host memory has all. Contract as in saccade.h. No
 * result depends on where a page is. */
#ifndef SACCADE_TIER_H
#define SACCADE_TIER_H

#include "saccade.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which pages leave memory. */
typedef enum sac_tier_policy {
    SAC_TIER_STALE = 0, /* pages not used in the last step; then seldom selected ones of the
                           layer that is needed last */
    SAC_TIER_LRU,       /* those used longest ago */
} sac_tier_policy;

/* Which requests decode in a step. Stepping sequences that belong to no request is up to the
 * caller. */
typedef enum sac_tier_admit {
    SAC_TIER_ADMIT_SETS = 0, /* those whose recently used pages fit into memory together; the
                                others wait, and nothing of them is recomputed */
    SAC_TIER_ADMIT_ALL,      /* all, however much they make each other fetch */
} sac_tier_admit;

/* sac_engine_params.tier; all of it is copied. */
struct sac_tier_params {
    const char *file;    /* must not exist yet; its size is reserved at once, it has no name while
                            in use, and its content ends with the engine. NULL with a GPU, which has
                            no disk tier; a GPU supports only SAC_TIER_STALE, does not prefetch, and
                            lets all decode */
    uint64_t file_bytes; /* maximum size: all pages must fit */
    uint64_t fast_bytes; /* of pages in memory; with a GPU, in its own memory */
    sac_tier_policy policy;
    bool no_ahead; /* fetch pages only when they are needed, never ahead of time */
    sac_tier_admit admit;
};

typedef struct sac_tier_stats {
    uint64_t fast_bytes, card_bytes, file_bytes; /* planned: frames in memory; data for
                                                    selection, always in memory; the file, or
                                                    with a GPU the pinned host memory of all
                                                    pages */
    uint64_t n_hit, n_fetch;        /* requested pages that were in memory, and that were not.
                                       With a GPU as of the last step; some of the latter are
                                       read in place instead of being copied */
    uint64_t n_fetch_early;         /* of n_fetch: selected, and in transit while other KV heads'
                                       pages were being selected */
    uint64_t n_ahead, n_ahead_used; /* prefetched; of these, requested later */
    uint64_t n_ahead_cancelled; /* cancelled before their fetch began: too late, or in the way of
                                   requested pages */
    uint64_t n_read, n_write;   /* transfers, of one page or of adjacent ones */
    uint64_t bytes_fetched, bytes_written;
    uint64_t bytes_between; /* of those fetched: between two wanted pages, discarded */
    uint64_t n_failed;      /* pages that could not be read or written */
    uint64_t wait_us;       /* time that threads have waited for the file */
    uint64_t set_bytes;     /* of recently used pages of decoding requests, as last counted */
    uint32_t n_held;        /* requests that wait to decode for lack of room for such pages */
    uint64_t n_hold;        /* times that one began to */
    uint32_t n_layer;       /* whose pages sac_tier_get_layer counts */
    const char *backend;    /* "io_uring", "threads", or "machine" with a GPU; NULL: there are no
                               tiers, and all is zero */
} sac_tier_stats;

SAC_API sac_tier_stats sac_tier_get_stats(const sac_engine *engine);
/* Pages of one layer that were requested and in memory, and that were not. */
SAC_API void sac_tier_get_layer(const sac_engine *engine, uint32_t layer, uint64_t *out_hit,
                                uint64_t *out_fetch);

#ifdef __cplusplus
}
#endif

#endif
