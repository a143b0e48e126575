/* select_scratch.h: the scratch memory of a selection, laid out by the same code that measures it.
 */
#ifndef SAC_METHODS_SELECT_SCRATCH_H
#define SAC_METHODS_SELECT_SCRATCH_H

#include "base/mem.h"
#include "methods/method.h"

/* Scores of items, pages or tokens before the own page; stride is their maximum, rounded up. */
struct select_scratch {
    size_t stride;
    float *score;   /* [group, stride] */
    float *vote;    /* [stride] */
    float *qa, *qb; /* [group, head_dim] */
    float *k;       /* [PAGE_TOK, head_dim] */
    float *lse;     /* [group] */
    page_id *id;    /* [pages of a context] */
    uint32_t *list; /* the same */
};

/* Lays out `scratch`, or only measures it (NULL); returns its bytes. */
static inline size_t select_scratch_make(struct select_scratch *r, const struct method_shape *s,
                                         bool by_token, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK, d = s->geom->head_dim;
    r->stride = ((by_token ? n_page * PAGE_TOK : n_page) + 15) & ~(size_t)15;
    r->score = arena_take(&a, s->group * r->stride, sizeof(float));
    r->vote = arena_take(&a, r->stride, sizeof(float));
    r->qa = arena_take(&a, s->group * d, sizeof(float));
    r->qb = arena_take(&a, s->group * d, sizeof(float));
    r->k = arena_take(&a, PAGE_TOK * d, sizeof(float));
    r->lse = arena_take(&a, s->group, sizeof(float));
    r->id = arena_take(&a, n_page, sizeof *r->id);
    r->list = arena_take(&a, n_page, sizeof *r->list);
    return a.used;
}

/* Turns the first n scores of each query head into softmax shares, mean over the heads, in vote;
 * lse has the heads' denominators. False: a score is not finite. */
static inline bool select_scratch_vote(const struct select_scratch *r, const struct method_lane *l,
                                       uint32_t n)
{
    return l->ops->vote(&(struct op_vote){.score = r->score,
                                          .score_stride = r->stride,
                                          .n = n,
                                          .group = l->shape->group,
                                          .vote = r->vote,
                                          .lse = r->lse});
}

static inline size_t select_scratch_page_bytes(const struct method_shape *s, const void *param)
{
    struct select_scratch r;
    (void)param;
    return select_scratch_make(&r, s, false, NULL);
}

static inline size_t select_scratch_token_bytes(const struct method_shape *s, const void *param)
{
    struct select_scratch r;
    (void)param;
    return select_scratch_make(&r, s, true, NULL);
}

#endif
