/* screen.h: a short form of the output matrix W, which tells most tokens of a vocabulary apart from
 * the likeliest without reading their rows of W.
 *
 * Row r of W is s + e, with s in 5 bits and e what that leaves out. For a normalised state h,
 *     <W_r, h>  <=  <s, h> + sum over parts b of |e_b| |h_b|        (Cauchy and Schwarz)
 * whatever the parts of the inputs; they are chosen so that the few inputs that a model makes large
 * (as its output norm tells) do not multiply the errors of all others. So a token whose bound lies
 * below the k-th best of some exact logits is not among the k best. Norms are rounded up, and hold
 * what the kernels round: the statement is about the logits that they give. */
#ifndef SAC_MODEL_SCREEN_H
#define SAC_MODEL_SCREEN_H

#include "base/mem.h"
#include "ops/weight.h"

#define SCREEN_PARTS 4u
#define SCREEN_LARGE 128u /* inputs in all parts but the last, at most */

struct screen {
    struct weight w;                /* s, in the shape of W; n_group 0: there is no screen */
    uint32_t *large;                /* [n_large] inputs of all parts but the last, part by part */
    uint32_t end[SCREEN_PARTS - 1]; /* of each part in `large`; the last of these is n_large */
    float (*left)[SCREEN_PARTS][WEIGHT_GROUP]; /* [n_group] |e_b| of each row of the group */
    float *left_max;                           /* [n_group] the largest |e| */
};

/* |h_b|, and |h| */
struct screen_norms {
    float part[SCREEN_PARTS], all;
};

/* Lays out the screen of a matrix, or leaves it empty where it would save little: it is for
 * quantised types of 6 bits or more, and large vocabularies. */
void screen_plan(struct screen *s, const struct weight *w, struct arena *a);
/* Chooses the parts; `norm` [n_in] is the model's output norm. */
void screen_find_large(struct screen *s, const float *norm);
/* Then packs groups first .. first + n - 1, as far as they exist, from the rows of W in file order;
 * `src` points to the first group's. */
sac_status screen_pack(struct screen *s, struct workers *pool, uint32_t first, uint32_t n,
                       enum quant_type type, const void *src, sac_error *err);

/* `h` [n_in]; false: it is not finite. */
bool screen_find_norms(struct screen_norms *out, const struct screen *s, const float *h);
/* Whether a logit of the group may be `bar` or greater, given <s, h> of its rows [WEIGHT_GROUP]. */
bool screen_may_reach(const struct screen *s, uint32_t group_i, const struct screen_norms *norms,
                      const float *sketch, float bar);

#endif
