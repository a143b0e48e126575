/* saccade_tier.h: pages of keys and values in two tiers: memory for those that were read of late, a
 * file for all. Where a GPU computes, its memory has those that were read of late, and the
 * machine's has all. Contract as in saccade.h. No result depends on where a page is. */
#ifndef SACCADE_TIER_H
#define SACCADE_TIER_H

#include "saccade.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which pages leave memory. */
typedef enum sac_tier_policy {
    SAC_TIER_STALE = 0, /* those not used in the last step; then seldom chosen ones of the layer
                           that comes again last */
    SAC_TIER_LRU,       /* those used longest ago */
} sac_tier_policy;

/* Which requests decode in a step; how sequences that no request drives are stepped is the
 * caller's. */
typedef enum sac_tier_admit {
    SAC_TIER_ADMIT_SETS = 0, /* those whose pages of the last steps fit into memory together; the
                                others wait for their turn, and nothing of them is computed again */
    SAC_TIER_ADMIT_ALL,      /* all, whatever that makes each other fetch */
} sac_tier_admit;

/* sac_engine_params.tier; all of it is copied. */
struct sac_tier_params {
    const char *file; /* must not be there yet; its room is reserved at once, it has no name while
                         it is used, and what it holds ends with the engine. NULL with a GPU,
                         which has no tier of its own on a disk; it knows SAC_TIER_STALE alone,
                         fetches nothing ahead, and lets all decode */
    uint64_t file_bytes; /* that it may take, at most: all pages must fit */
    uint64_t fast_bytes; /* of pages in memory, with a GPU in its own */
    sac_tier_policy policy;
    bool no_ahead; /* pages are fetched when they are asked for, never before */
    sac_tier_admit admit;
};

typedef struct sac_tier_stats {
    uint64_t fast_bytes, card_bytes, file_bytes; /* planned: frames in memory; what methods choose
                                                    by, always in memory; the file, with a GPU
                                                    the pinned memory of all pages */
    uint64_t n_hit, n_fetch;        /* pages asked for that were in memory, that were not. With a
                                       GPU as of the last step; and some of the latter are read
                                       where they are, and brought nowhere */
    uint64_t n_fetch_early;         /* of n_fetch: chosen, and on their way while other KV heads'
                                       pages were being chosen */
    uint64_t n_ahead, n_ahead_used; /* fetched before they were asked for; of these asked for */
    uint64_t n_ahead_cancelled; /* let go before their fetch began: it came too late, or stood in
                                   the way of pages that were asked for */
    uint64_t n_read, n_write;   /* transfers, of one page or of neighbours */
    uint64_t bytes_fetched, bytes_written;
    uint64_t
        bytes_between;  /* of those fetched: of pages between two that were wanted, thrown away */
    uint64_t n_failed;  /* pages that could not be read or written */
    uint64_t wait_us;   /* that threads have waited for the file */
    uint64_t set_bytes; /* of pages that requests have used of late which decode, as counted last */
    uint32_t n_held;    /* requests that wait to decode, for want of room for such pages */
    uint64_t n_hold;    /* times that one began to */
    uint32_t n_layer;   /* whose pages sac_tier_get_layer counts */
    const char *backend; /* "io_uring", "threads", or "machine" with a GPU; NULL: there are no
                            tiers, and all is zero */
} sac_tier_stats;

SAC_API sac_tier_stats sac_tier_get_stats(const sac_engine *engine);
/* Pages of one layer that were asked for and were in memory, and that were not. */
SAC_API void sac_tier_get_layer(const sac_engine *engine, uint32_t layer, uint64_t *out_hit,
                                uint64_t *out_fetch);

#ifdef __cplusplus
}
#endif

#endif
