/* project.h: keys along a few directions: the principal axes of some vectors of a head, computed
 * once for a sequence, and each key's coordinates along the first of them, in the sequence's state.
 * loki uses the axes of the keys, infinigen those of the queries; both score tokens by them. */
#ifndef SAC_METHODS_PROJECT_H
#define SAC_METHODS_PROJECT_H

#include "methods/select_scratch.h"

struct project {
    struct project_state {
        uint32_t n_tok;  /* tokens whose coordinates exist; 0: there are no axes yet */
        uint32_t n_axis; /* in use */
    } * state;
    float *axis;     /* [head_dim, head_dim] rows, the strongest first */
    uint16_t *coord; /* [n_ctx rounded up to pages, head_dim] f16, the first n_axis of a row */
};

/* Number of axes for a share of all: rounded down, at least one. */
uint32_t project_rank(double share, uint32_t width);
/* With NULL, measures; otherwise names the parts of a state. */
size_t project_make(struct project *p, const struct method_shape *s, void *state);

/* The principal axes of x [n, width] about zero; `about_mean`: about their mean. `square` has room
 * for [width, width] doubles. False: not finite. */
bool project_axes(float *axis, const float *x, uint32_t n, uint32_t width, bool about_mean,
                  double *square);

/* Scratch: that of select_scratch.h, followed by what finding axes needs. */
struct project_work {
    struct select_scratch r;
    float *y;       /* [PAGE_TOK, head_dim] */
    float *sample;  /* [n_sample] the caller's */
    double *square; /* [head_dim, head_dim] */
};

size_t project_work_make(struct project_work *w, const struct method_shape *s, size_t n_sample,
                         void *scratch);

/* A method's hook that computes a lane's axes (project_axes), with w->sample as scratch. False: not
 * finite. */
typedef bool (*project_learn_fn)(const struct project *p, const struct method_lane *l,
                                 const struct project_work *w);

/* Everything before a selection: sets up `p` and `w`, computes the axes if there are none, and
 * scores all tokens before the own page by their coordinates, which are computed if missing:
 * w->r.score, and their softmax shares, mean over the query heads, in w->r.vote. False: something
 * is not finite, and `out` says so. */
bool project_ask(struct project *p, struct project_work *w, const struct method_lane *l,
                 size_t n_sample, project_learn_fn learn, struct method_pick *out);

/* Tokens from n_tok on are gone. */
void project_cut(void *state, const struct method_shape *s, uint32_t n_tok);
/* method_decode.sound */
bool project_sound(const struct method_loaded *l);

#endif
