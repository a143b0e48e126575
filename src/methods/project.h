/* project.h: keys seen through a few directions: the principal axes of some vectors of a head,
 * found once for a sequence, and each key's coordinates along the first of them, in the sequence's
 * state. loki takes the axes of the keys, infinigen those of the queries; both score tokens by
 * them. */
#ifndef SAC_METHODS_PROJECT_H
#define SAC_METHODS_PROJECT_H

#include "methods/method.h"

struct project {
    struct project_state {
        uint32_t n_tok;  /* whose coordinates are there; 0: there are no axes yet */
        uint32_t n_axis; /* in use, a multiple of 16 */
    } * state;
    float *axis;     /* [head_dim, head_dim] rows, the strongest first */
    uint16_t *coord; /* [n_ctx rounded up to pages, head_dim] f16, the first n_axis of a row */
};

/* Measures with NULL, else names the parts of a state. */
size_t project_make(struct project *p, const struct method_shape *s, void *state);

/* The principal axes of x [n, width] about zero; `about_mean`: about their mean. `square` has room
 * for [width, width] doubles. False: not finite. */
bool project_axes(float *axis, const float *x, uint32_t n, uint32_t width, bool about_mean,
                  double *square);

/* Coordinates of the tokens before the own page that have none yet. k: [PAGE_TOK, head_dim], y:
 * [PAGE_TOK, head_dim]. */
void project_keys(const struct project *p, const struct method_lane *l, float *k, float *y);

/* Scores of all tokens before the own page by n_axis coordinates, for the scaled queries q [group,
 * head_dim] in the axes' basis: score[g * stride + token]. */
void project_scores(const struct project *p, const struct method_lane *l, const float *q, float *y,
                    float *score, size_t stride);
/* x [n, head_dim] in the axes' basis. */
void project_turn(float *out, const struct project *p, const struct method_lane *l, const float *x,
                  uint32_t n);

/* Tokens from n_tok on are gone. */
void project_cut(void *state, const struct method_shape *s, uint32_t n_tok);
/* method_decode.sound */
bool project_sound(const struct method_loaded *l);

#endif
