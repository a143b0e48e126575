/* segment.h: what a sequence consists of: its own pages, and sealed pages of other sequences that
 * were attached to it without copying (docs/design.md, D12).
 *
 * A segment is a run of pages of a sequence whose keys were rotated at positions counted from one
 * origin, `offset` before the sequence's own: a key that was rotated at position x is at position x
 * + offset, and a query at position p is rotated back by `offset` to meet it. What a sequence
 * computes itself has offset 0.
 *
 * Limits. Segments meet at page boundaries: a sequence must end with a full page where something is
 * attached, and whole pages are attached. If the last page of a text is not full, either the text
 * is padded with meaningless tokens before it is computed, or its last tokens are appended to the
 * new sequence and computed there. Inside a segment with a nonzero offset a sequence can be cut
 * only at page boundaries. Everything in attached pages is before all rows computed after them, and
 * visible to all of these. */
#ifndef SAC_ENGINE_SEGMENT_H
#define SAC_ENGINE_SEGMENT_H

#include "base/mem.h"
#include "ops/segment.h"

#include "saccade.h"

#define SEGMENT_MAX 128u /* maximum segments of a sequence */

struct segment {
    uint32_t end; /* page after the last; the first one follows the previous segment */
    int32_t offset;
};

/* The segments of a sequence up to the last one with an offset: an ordinary sequence has none. */
struct segments {
    uint32_t *n;               /* [n_seq_max] */
    struct segment *list;      /* [n_seq_max][SEGMENT_MAX] */
    struct segment_view *view; /* [n_seq_max, 2, SEGMENT_MAX] for global and for local layers */
    float *turn;               /* [n_seq_max, 2, SEGMENT_MAX, n_rot] cosines, then sines */
};

struct segment_source {
    sac_seq seq;
    uint32_t first, n_tok; /* the part of it that is attached, in whole pages */
    /* Converts positions of `seq` to positions of the sequence that gets them: with its length
     * minus `first` they directly follow its own. */
    int32_t offset;
};

/* Part of plan_memory. */
void segment_plan(sac_engine *e, struct arena *a);

/* Appends pages of another sequence as if this one had computed them: they are shared, only the ids
 * of the tokens are copied. Methods have learned nothing from these tokens, and the queries of
 * their rows are not kept. SAC_ERR_ARG if one of the two does not end, or begin, with a page, if
 * pages have been dropped, if tokens are pending, and for a decode method that cannot select among
 * segments; SAC_ERR_CONTEXT if they do not fit. */
sac_status segment_attach(sac_engine *e, sac_seq to, const struct segment_source *from,
                          sac_error *err);

/* The segments of a sequence, [e->segments.n[seq_i]]. */
const struct segment *segment_list(const sac_engine *e, uint32_t seq_i);
/* Gives a new sequence the segments [n] with which it was saved; they are valid (segment_sound). */
void segment_restore(sac_engine *e, uint32_t seq_i, const struct segment *list, uint32_t n);
/* Whether a list is valid for a sequence of n_page full pages. */
bool segment_sound(const struct segment *list, uint32_t n, uint32_t n_page);

/* A new sequence; a copy; a cut to n_page pages. */
void segment_reset(sac_engine *e, uint32_t seq_i);
void segment_fork(sac_engine *e, uint32_t dst, uint32_t src);
void segment_cut(sac_engine *e, uint32_t seq_i, uint32_t n_page);

/* The segments before that of a page, as seen by a query rotated at its position within the page's
 * own segment: `out` [SEGMENT_MAX], `turn` [SEGMENT_MAX][n_rot]. Returns their number. */
uint32_t segment_views_from(const sac_engine *e, uint32_t seq_i, uint32_t page, bool local,
                            struct segment_view *out, float *turn);

/* The offset of a page. */
int32_t segment_offset(const sac_engine *e, uint32_t seq_i, uint32_t page);
/* What attention sees of a sequence's segments; `local` layers have frequencies of their own. */
const struct segment_view *segment_view_of(const sac_engine *e, uint32_t seq_i, bool local);

#endif
