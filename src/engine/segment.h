/* segment.h: what a sequence consists of: its own pages, and sealed pages of other sequences that
 * were attached to it, uncopied (docs/design.md, D12).
 *
 * A segment is some pages of a sequence whose keys were rotated at positions counted from one
 * place, `offset` before the sequence's own begin of counting: the key that was rotated at position
 * x stands at position x + offset, and a query at position p meets it turned back by `offset`. What
 * a sequence computes itself has offset 0.
 *
 * Limits. Joints lie between pages: a sequence must end with a full page where something is
 * attached, and whole pages are attached. A text whose last page is not full is either filled up
 * with tokens of no meaning before it is computed, or its last tokens are appended to the new
 * sequence and computed there. Inside a segment whose offset is not 0 a sequence can be cut between
 * pages only. Everything in attached pages lies before all rows that are computed behind them, and
 * is seen by all of these. */
#ifndef SAC_ENGINE_SEGMENT_H
#define SAC_ENGINE_SEGMENT_H

#include "base/mem.h"
#include "ops/segment.h"

#include "saccade.h"

#define SEGMENT_MAX 128u /* of a sequence */

struct segment {
    uint32_t end; /* page behind the last; the first follows the segment before */
    int32_t offset;
};

/* Of a sequence, the segments up to the last that has an offset: an ordinary one has none. */
struct segments {
    uint32_t *n;               /* [n_seq_max] */
    struct segment *list;      /* [n_seq_max][SEGMENT_MAX] */
    struct segment_view *view; /* [n_seq_max][2][SEGMENT_MAX] for global and for local layers */
    float *turn;               /* [n_seq_max][2][SEGMENT_MAX][n_rot] cosines, then sines */
};

struct segment_source {
    sac_seq seq;
    uint32_t first, n_tok; /* whole pages of it */
    /* From positions of `seq` to positions of the sequence that gets them: its length less `first`
     * puts them where they stand now. */
    int32_t offset;
};

/* Part of plan_memory. */
void segment_plan(sac_engine *e, struct arena *a);

/* Appends pages of another sequence to one, as if it had computed them: they are shared, nothing is
 * copied but the tokens' ids. Methods have learnt nothing from these tokens, and the queries of
 * their rows are not kept. SAC_ERR_ARG where one of the two does not end, or begin, with a page,
 * where pages have been dropped, where tokens are pending, and for a decode method that cannot
 * choose among segments; SAC_ERR_CONTEXT where they do not fit. */
sac_status segment_attach(sac_engine *e, sac_seq to, const struct segment_source *from,
                          sac_error *err);

/* Those of a sequence, [e->segments.n[seq_i]]. */
const struct segment *segment_list(const sac_engine *e, uint32_t seq_i);
/* Puts segments [n] at the begin of a fresh sequence, as they were saved: ends rise and offsets are
 * possible ones (segment_sound). */
void segment_restore(sac_engine *e, uint32_t seq_i, const struct segment *list, uint32_t n);
/* Whether a list may be that of a sequence of n_page full pages. */
bool segment_sound(const struct segment *list, uint32_t n, uint32_t n_page);

/* A fresh sequence, a copy, a cut to n_page pages. */
void segment_reset(sac_engine *e, uint32_t seq_i);
void segment_fork(sac_engine *e, uint32_t dst, uint32_t src);
void segment_cut(sac_engine *e, uint32_t seq_i, uint32_t n_page);

/* The segments before that of a page, as a query sees them that was rotated at its position within
 * the page's own segment: `out` [SEGMENT_MAX], `turn` [SEGMENT_MAX][n_rot]. Returns their number.
 */
uint32_t segment_views_from(const sac_engine *e, uint32_t seq_i, uint32_t page, bool local,
                            struct segment_view *out, float *turn);

/* The offset of a page. */
int32_t segment_offset(const sac_engine *e, uint32_t seq_i, uint32_t page);
/* What attention sees of a sequence's segments; `local` layers have frequencies of their own. */
const struct segment_view *segment_view_of(const sac_engine *e, uint32_t seq_i, bool local);

#endif
