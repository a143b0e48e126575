/* compact.h: sequences of composed documents that have freed pages (compose.c), as decode methods
 * see them: without these pages. To a method such a sequence is a shorter one with consecutive
 * pages in every layer; its marks are translated to the pages as they are.
 *
 * A method that frees pages itself knows which are gone: it is never called for such a composed
 * sequence, and its own gaps are not covered here. */
#ifndef SAC_ENGINE_COMPACT_H
#define SAC_ENGINE_COMPACT_H

#include "engine/attend.h"
#include "methods/method.h"
#include "ops/segment.h"

/* For each sequence, renewed for each layer; all NULL in an engine that composes nothing. */
struct compact {
    uint32_t *n_gap;           /* [n_seq_max] number of missing pages; if 0, the rest is not set */
    page_id *page;             /* [n_seq_max, n_kv_head, max_page] the present pages */
    uint32_t *index;           /* [n_seq_max, max_page] their indices in the sequence */
    struct segment_view *view; /* [n_seq_max, SEGMENT_MAX] segments, shortened to present pages */
};

/* Part of plan_memory. */
void compact_plan(sac_engine *e, struct arena *a);

/* Whether a sequence lacks pages that its decode method did not free. */
bool compact_has_gaps(const sac_engine *e, uint32_t seq_i);
/* Determines which pages the runs of a layer have; called before lanes are made. */
void compact_layer(sac_engine *e, const struct reading *r);
/* Changes the lane of a run to what its method sees: the present pages only. */
void compact_lane(const sac_engine *e, uint32_t seq_i, struct method_lane *lane);
/* Translates the pages and tokens of a lane's selection to those of the sequence. */
void compact_back(const sac_engine *e, uint32_t seq_i, uint32_t *page, uint32_t n_page,
                  uint32_t *tok, uint32_t n_tok);
/* How many of the first n_tok tokens methods see in a layer. */
uint32_t compact_tokens(const sac_engine *e, uint32_t seq_i, uint32_t layer, uint32_t n_tok);

#endif
