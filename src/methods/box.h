/* box.h: summaries of a page's keys as one or two vectors, and scores of all pages by them.
 *
 * BOX_BOUND: [min, max] of each channel. The score, sum of max(q min, q max), is never below the
 * best dot product of the page (Quest). A q8 page already contains it: its codes range from min to
 * min + 255 step. BOX_MEAN: the centre of that box and the mean distance of the keys from it
 * (ArkVale's cuboid-mean). The score is not a bound, and ranks pages better. BOX_HALVES: a
 * BOX_BOUND for each half of the page, for papers with pages of 16 tokens; always stored
 * separately, because a q8 page has one minimum and step for all its tokens. BOX_VECTOR: one vector
 * defined by the method (its `seal` calls box_put); the score is its product with the query. */
#ifndef SAC_METHODS_BOX_H
#define SAC_METHODS_BOX_H

#include "methods/batch.h"

enum box { BOX_BOUND, BOX_MEAN, BOX_HALVES, BOX_VECTOR };
#define BOX_HALF_TOK (PAGE_TOK / 2)

/* Parameters of methods that select by such scores: all have a budget, and some of the others. */
struct box_param {
    struct param_budget budget;
    uint32_t dense, sink, recent; /* layers; tokens */
    uint32_t page;                /* quest: 0, pages of 16 tokens; 1, of 32 */
    uint32_t heads;               /* quest: 0, a group selects together; 1, each query head */
    uint32_t reduce;              /* arkvale: 0, softmax shares; 1, raw scores */
};

/* Side data of a page. */
size_t box_bytes(const struct method_shape *s, enum box kind);
size_t box_vector_bytes(const struct method_shape *s, const void *param);
void box_put(uint8_t *side, const struct method_shape *s, const float *vector);
void box_seal(uint8_t *side, const struct method_shape *s, enum box kind, const float *k);

/* box_seal as a backend's note; vectors have none. */
enum op_note_kind box_note(enum box kind);

/* The nearest f16 at or below x, or (up) at or above it. */
uint16_t box_half(float x, bool up);

/* Raw scores (times the lane's scale) of the pages before the own: r->score[g * r->stride + page].
 * For halves: those of all first halves, then those of all second ones. */
void box_score(const struct select_scratch *r, const struct method_lane *l, enum box kind);
/* The pages' shares of a softmax over these scores, mean over the query heads, in r->vote. False if
 * a score is not finite. */
bool box_vote(const struct select_scratch *r, const struct method_lane *l);

/* Both for all lanes that are not dense; a score that is not finite is reported in the result. */
void box_votes(const struct method_batch *b, enum box kind);

/* The whole selection of a method with struct box_param: sinks and recent pages, and of the other
 * pages or halves the best within the budget, by softmax shares, or (`reduce`) the sum of the query
 * heads' scores, or (`heads`) each query head's own scores, where all heads read what any of them
 * has selected. Needs the scratch of select_scratch_page_bytes, for halves of
 * select_scratch_token_bytes. */
void box_choose(const struct method_batch *b, enum box kind);
void box_choose_vectors(const struct method_batch *b);

/* The hooks of a method with BOX_VECTOR, all except `seal`. */
#define BOX_VECTOR_HOOKS                                                                           \
    .side_bytes = box_vector_bytes, .scratch_bytes = select_scratch_page_bytes,                    \
    .choose = box_choose_vectors

#endif
