/* visit.h: selections that evaluate while they read: pages are visited one after another, the most
 * promising first, until enough of the attention is covered (slot `visit` of ops/lanes.h). The
 * attention output of these pages is kept, so a page is read once.
 *
 * With a tier below memory the pages of a round of all lanes are loaded before it is visited, and
 * those of the next steps are prefetched meanwhile. The visited pages do not depend on it. */
#ifndef SAC_METHODS_VISIT_H
#define SAC_METHODS_VISIT_H

#include "methods/batch.h"

/* When visiting ends, and in what steps it proceeds: parameters of psa and psa_cert. */
struct visit_rule {
    double mass;          /* coverage to reach: epsilon of Algorithm 1 */
    uint32_t step, ahead; /* pages between two checks; steps that are prefetched */
    uint32_t recent;      /* most recent tokens before the own page, visited first */
    enum op_rest rest;    /* how the mass of unvisited pages is estimated */
    bool by_mean;         /* the mean of the heads' coverages must reach `mass`, not the minimum */
    bool by_layer;        /* the KV heads of a row are a team */
    uint32_t *last;       /* in a lane's state: as in op_lane_visit; or NULL */
};

/* Scratch of a lane: votes of pages are in scratch.vote. */
struct visit_scratch {
    struct select_scratch scratch;
    float *weight, *page_most, *page_sum; /* as in op_lane_visit */
    double *page_log;
    float *block;
    float *sum;               /* [pages + 1, group] */
    float *vote, *told;       /* [pages] */
    uint32_t *spare;          /* the same */
    struct op_visited *state; /* need not be set before */
    size_t bytes;
};

/* Lays out `scratch`, whose first n_own bytes are the method's: scratch by pages, or (by_token)
 * that of batch_shares_bytes. With NULL it only measures. */
struct visit_scratch visit_scratch_of(const struct method_shape *s, bool by_token, size_t n_own,
                                      void *scratch);

/* What visit_choose asks a method about a lane. */
struct visit_want {
    struct visit_rule (*rule)(const struct method_lane *l);
    struct visit_scratch (*scratch)(const struct method_lane *l);
    /* Bounds of the scores, by which coverage is proved; NULL: it is estimated. */
    const struct op_visit_proof *(*proof)(const struct method_lane *l);
};
/* Selects for all lanes that are not dense, by the votes of their pages. */
void visit_choose(const struct method_batch *b, const struct visit_want *want);

#endif
