/* evict.h: frees the pages that evicting decode methods do not keep, and plans the reads of
 * sequences that lack pages. */
#ifndef SAC_ENGINE_EVICT_H
#define SAC_ENGINE_EVICT_H

#include "engine/attend.h"

/* What prompt rows of sequences that lack pages read: plans of one tile and n_kv_head lists. All
 * NULL if no method evicts. */
struct evict {
    struct attn_plan *plan;   /* [n_seq_max] */
    struct attn_range *range; /* [n_seq_max][n_kv_head * (max_page / 2 + 1)] */
    uint32_t *range_ptr;      /* [n_seq_max][n_kv_head + 1] */
};

/* Part of plan_memory, after that of the decode methods. */
void evict_plan(sac_engine *e, struct arena *a);

/* Frees what no decode row of the batch will ever read again (for devices decode_votes.c has done
 * so), and determines what prompt rows read of sequences that lack pages; after the selections of a
 * layer and before its attention. */
void evict_pages(sac_engine *e, struct reading *r);

struct evict_at {
    uint32_t run_i, kv_head;
};

/* Frees a lane's pages without a marked token, among the first n_page. */
void evict_lane(sac_engine *e, const struct reading *r, struct evict_at at, const uint32_t *mask,
                uint32_t n_page);

/* What prompt rows of a run read if its table lacks pages: all present pages, one tile, one list
 * per head. `range` [n_kv_head * (max_page / 2 + 1)], `ptr` [n_kv_head + 1]. */
struct attn_plan evict_bridge(const sac_engine *e, const struct attn_run *run,
                              struct attn_range *range, uint32_t *ptr);

#endif
