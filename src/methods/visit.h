/* visit.h: selections that evaluate while they read: pages are visited one after another, the most
 * promising first, until enough of the attention is covered (slot `visit` of ops/lanes.h). The
 * attention output of these pages is kept, so a page is read once.
 *
 * With a tier below memory the pages of a round of all lanes are loaded before it is visited, and
 * those of the next steps are prefetched meanwhile. The visited pages do not depend on it. */
#ifndef SAC_METHODS_VISIT_H
#define SAC_METHODS_VISIT_H

#include "methods/batch.h"

struct visit_rule {
    double mass;
    uint32_t step, ahead; /* pages between two checks; steps that are prefetched */
    uint32_t recent;      /* most recent tokens before the own page, visited first */
    enum op_rest rest;
    bool by_mean;
    bool by_layer;  /* the KV heads of a row are a team */
    uint32_t *last; /* in a lane's state: as in op_lane_visit; or NULL */
};

/* Scratch of a lane: votes of pages are in room.vote. */
struct visit_room {
    struct room room;
    float *weight, *page_most, *page_sum; /* as in op_lane_visit */
    double *page_log;
    float *block;
    float *sum;               /* [pages + 1, group] */
    float *vote, *told;       /* [pages] */
    uint32_t *spare;          /* the same */
    struct op_visited *state; /* before: anything */
    size_t bytes;
};

/* With NULL, measures; otherwise cuts `scratch`, whose first n_own bytes are the method's: a room
 * by pages, or (by_token) one by tokens, whose first scores are the votes of pages. */
struct visit_room visit_room_of(const struct method_shape *s, bool by_token, size_t n_own,
                                void *scratch);

struct visit_want {
    struct visit_rule (*rule)(const struct method_lane *l);
    struct visit_room (*room)(const struct method_lane *l);
    /* Of a lane, in its scratch; NULL: none is proved. */
    const struct op_visit_proof *(*proof)(const struct method_lane *l);
};
/* Of lanes that are not dense. */
void visit_choose(const struct method_batch *b, const struct visit_want *want);

#endif
