/* observe.h: the tokens to which the queries of some rows attend: the softmax share of each token,
 * summed over the rows and the query heads of the KV head. SnapKV and related methods select by it
 * once, LoopServe every few tokens.
 *
 * The rows are past ones, whose queries the engine has kept, and optionally the lane's own. A row
 * sees the tokens up to its own, and none of a page that an evicting method has freed. */
#ifndef SAC_METHODS_OBSERVE_H
#define SAC_METHODS_OBSERVE_H

#include "methods/method.h"

#define OBSERVE_ROWS 4u /* scored at a time: their logits of all tokens should stay in L2 */

#define OBSERVE_NEVER (-1e30f) /* a finite score, which the softmax turns into 0 */

/* Scratch, laid out by the code that measures it. Stride: tokens of a context, rounded up. */
struct observe {
    size_t stride;
    float *sum;   /* [stride] the result: shares of tokens 0 .. pos */
    float *vote;  /* [stride] */
    float *score; /* [OBSERVE_ROWS * group, stride] */
    float *q;     /* [OBSERVE_ROWS * group, head_dim] */
    float *k;     /* [PAGE_TOK, head_dim] */
    float *lse;   /* [OBSERVE_ROWS * group] */
    void *rest;   /* scratch after these */
};

size_t observe_make(struct observe *o, const struct method_shape *s, void *scratch);

/* Fills o->sum from rows begin .. end - 1; the lane's own row is pos, the others are past. False:
 * something is not finite. */
bool observe_rows(const struct observe *o, const struct method_lane *l, uint32_t begin,
                  uint32_t end);
/* Counts what observe_rows would read, for a device that does the same. */
void observe_count(const struct method_lane *l, uint32_t begin, uint32_t end);
/* Scores of at most OBSERVE_ROWS rows from `begin` on, of all their heads: row i's head g at
 * o->score + (i * group + g) * stride, tokens 0 .. pos; OBSERVE_NEVER where a row does not see a
 * token. */
void observe_scores(const struct observe *o, const struct method_lane *l, uint32_t begin,
                    uint32_t n_row);
/* observe_scores in two steps: the rows' queries are gathered, then any workers score ranges of
 * pages, the query's own being the last page, each with its own `k` [PAGE_TOK, head_dim]. */
void observe_queries(const struct observe *o, const struct method_lane *l, uint32_t begin,
                     uint32_t n_row);
void observe_pages(const struct observe *o, const struct method_lane *l, uint32_t begin,
                   uint32_t n_row, struct attn_range pages, float *k);
/* Scores the tokens of `mask`, whose last word is the own page's, for the lane's own row: lists
 * them in tok, ascending, with head g's score of tok[i] at o->score + g * stride + i. Returns their
 * number. */
uint32_t observe_tokens(const struct observe *o, const struct method_lane *l, const uint32_t *mask,
                        uint32_t *tok);

/* Softmax shares of tokens 0 .. n - 1, mean over the first n_q queries that were scored, in
 * o->vote. False: something is not finite. */
bool observe_vote(const struct observe *o, const struct method_lane *l, uint32_t n_q, uint32_t n);

#endif
