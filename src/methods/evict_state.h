/* evict_state.h: the state of methods that evict tokens: a header of the method's own, a mask of
 * the tokens that are kept, and a score per token, by which the next one to evict is found.
 *
 * All tokens from n_known (a field of the header) on are kept; before it the mask decides. */
#ifndef SAC_METHODS_EVICT_STATE_H
#define SAC_METHODS_EVICT_STATE_H

#include "base/mem.h"
#include "methods/method.h"

struct evict_state {
    void *head;
    uint32_t *mask; /* [pages of a context] */
    float *value;   /* [tokens of a context] */
};

/* Lays out a state whose header has head_bytes; returns its bytes. With state NULL it only
 * measures. */
static inline size_t evict_state_make(struct evict_state *v, const struct method_shape *s,
                                      void *state, size_t head_bytes)
{
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    const size_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    v->head = arena_take(&a, 1, head_bytes);
    v->mask = arena_take(&a, n_page, sizeof *v->mask);
    v->value = arena_take(&a, n_page * PAGE_TOK, sizeof *v->value);
    return a.used;
}

static inline size_t evict_state_bytes(const struct method_shape *s, size_t head_bytes)
{
    struct evict_state v;
    return evict_state_make(&v, s, NULL, head_bytes);
}

/* The state of KV head h of the lane's layer. */
static inline void evict_state_of_head(struct evict_state *v, const struct method_lane *l,
                                       uint32_t h, size_t head_bytes)
{
    evict_state_make(v, l->shape, (void *)(uintptr_t)(l->layer_state + h * l->state_stride),
                     head_bytes);
}

static inline bool evict_state_has(const struct evict_state *v, uint32_t n_known, uint32_t tok)
{
    return tok >= n_known || (v->mask[tok / PAGE_TOK] >> tok % PAGE_TOK & 1u);
}

static inline void evict_state_set(const struct evict_state *v, uint32_t tok, bool lives)
{
    const uint32_t bit = 1u << tok % PAGE_TOK;
    uint32_t *word = &v->mask[tok / PAGE_TOK];
    *word = lives ? *word | bit : *word & ~bit;
}

#endif
