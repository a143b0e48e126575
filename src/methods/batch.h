/* batch.h: the parts from which a selection for many lanes is put together. A method's `choose`
 * calls a few of them, one after another: scores, shares, marks. Each makes one call of a slot
 * (ops/lanes.h) for all lanes that are not dense, and counts what it reads.
 *
 * Scratch of a lane is cut by select_scratch.h: by tokens, or by pages. Scores are in its `score`,
 * shares in its `vote`; marking overwrites both. */
#ifndef SAC_METHODS_BATCH_H
#define SAC_METHODS_BATCH_H

#include "methods/select_scratch.h"

/* What is selected: single tokens, halves of pages, pages. */
enum batch_item { BATCH_TOKEN, BATCH_HALF, BATCH_PAGE };

/* Selects for all lanes, by the method's hook for batches or, one by one, its hook for lanes. */
void batch_choose(const struct method_decode *hooks, const struct method_batch *b);

/* The next lane from i on that is not dense; b->n: there is none. */
uint32_t batch_next(const struct method_batch *b, uint32_t i);

/* Sets each lane's target to its budget, the first of its parameters; a lane whose budget covers
 * the whole context, or whose layer is one of the first n_dense, is dense. */
void batch_budgets(const struct method_batch *b, uint32_t n_dense);

/* ---- Scores; those of boxes are made by box_choose ---- */

/* Exact logits of all tokens. */
void batch_logits(const struct method_batch *b);

/* ---- Shares: a score that is not finite makes its lane dense ---- */

/* Of a softmax over the scores, mean over the query heads. */
void batch_vote(const struct method_batch *b, enum batch_item item);
/* The same by the first planes of the keys (plane.h), in scratch of batch_shares_bytes; `plane`
 * tells where they are. */
void batch_shares(const struct method_batch *b,
                  struct op_share_planes (*plane)(const struct method_lane *l));
/* The same for batch_draw, which must follow, because it completes the shares. */
void batch_shares_to_draw(const struct method_batch *b,
                          struct op_share_planes (*plane)(const struct method_lane *l));
size_t batch_shares_bytes(const struct method_shape *s, const void *param);
/* Of pages: the sums over their tokens, in the scores of the first query head. */
void batch_sum_pages(const struct method_batch *b);
/* The same after batch_shares, in a part of its scratch. */
void batch_sum_shares(const struct method_batch *b);
float *batch_share_sums(const struct method_shape *s, void *scratch);
/* The plain sums of the query heads' scores instead of the shares. */
void batch_sum_heads(const struct method_batch *b, enum batch_item item);

/* ---- Marks ---- */

/* First and most recent tokens that are always read; whole pages unless items are tokens. */
struct batch_ends {
    uint32_t sink, recent; /* tokens, as param.h defines them */
    enum batch_item item;
};

/* Tokens of a lane between its ends. */
struct attn_range batch_between(const struct method_lane *l, const struct batch_ends *ends);
void batch_mark_ends(const struct method_batch *b, const struct batch_ends *ends);

/* Marks the first `sink` tokens, and as many of the most recent as the target leaves, counting the
 * row itself. */
void batch_window(const struct method_batch *b, uint32_t sink);

/* The values by which items are ranked. */
enum batch_value {
    BATCH_BY_VOTE,
    BATCH_BY_SCORE, /* of the first query head */
    BATCH_BY_HEAD,  /* each query head selects by its own scores, and all read what any has
                       selected */
};
/* Marks the best items between the ends, for as many tokens as the target says. */
void batch_take(const struct method_batch *b, const struct batch_ends *ends,
                enum batch_value value);

/* For methods that weight tokens: lists a draw of the tokens between the ends, by their shares, and
 * marks the ends. A lane that would read more than the share `most` of its context is dense. */
struct batch_draw {
    double variance, most;
    bool steady; /* ops/steady.h; on the host only */
};
void batch_draw(const struct method_batch *b, const struct batch_ends *ends,
                struct batch_draw (*want)(const struct method_lane *l));

#endif
