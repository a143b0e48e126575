/* context.h: what a composer is: a method that says how documents, each computed alone, become one
 * context: which of their pages stay, which tokens are computed again. The engine does both
 * (compose.c, refresh.c); a composer only fills masks.
 *
 * Contract: hooks are pure functions of what they are handed, allocate nothing and are called on
 * one thread. Pages are those of the composed sequence: first the head, then document after
 * document, each in whole pages. */
#ifndef SAC_METHODS_CONTEXT_H
#define SAC_METHODS_CONTEXT_H

#include "methods/method.h"

struct context_doc {
    uint32_t begin, end; /* pages */
};

struct context_view {
    const struct method_shape *shape;
    const void *param; /* as in struct method_lane */
    uint32_t n_layer, n_page, n_doc;
    const struct context_doc *doc; /* [n_doc] */
};

struct context_plan {
    /* [n_layer, n_page] bit t of a word: keys and values of token t of the page are computed again
     * in this layer. A token is computed up to the last layer that has its bit. Zeroed before. */
    uint32_t *refresh;
    /* [n_layer, n_page] whether the page is read by those behind it. All true before; a page of the
     * head, and any in a layer with a window of its own, stays in any case. */
    bool *resident;
    float *spare; /* [n_page * PAGE_TOK] holds anything */
};

/* How far keys and values that were computed again are from those of the document: sums of squares
 * over all KV heads, 0 for a token that was not. */
struct context_change {
    const float *k, *v; /* [n_page * PAGE_TOK] */
};

struct method_context {
    bool computes_all; /* no document is used: all tokens are computed as a prompt */
    /* False: keys keep the positions at which they were computed. NULL: they get those at which
     * they stand. */
    bool (*aligns)(const void *param);
    void (*plan)(const struct context_view *v, struct context_plan *out); /* NULL: as it is */
    /* Whether `observe` wants to see this layer's changes before its attention; it may take bits of
     * this layer's successors away, and add none. */
    bool (*watches)(const struct context_view *v, uint32_t layer);
    void (*observe)(const struct context_view *v, struct context_plan *plan, uint32_t layer,
                    const struct context_change *change);
};

/* Words and flags of a layer. */
static inline uint32_t *context_refresh(const struct context_view *v, const struct context_plan *p,
                                        uint32_t layer)
{
    return p->refresh + (size_t)layer * v->n_page;
}

/* Sets the bits of the tokens [begin, end) of the sequence in a layer. */
void context_mark(const struct context_view *v, struct context_plan *p, uint32_t layer,
                  uint32_t begin, uint32_t end);

/* Tokens of all documents. */
uint32_t context_tokens(const struct context_view *v);

/* Keeps, of the bits of `word` [n_page], those of the n largest values, the lower token of equal
 * ones. `spare` [n_page * PAGE_TOK] holds anything. */
void context_keep_best(const struct context_view *v, uint32_t *word, const float *value, uint32_t n,
                       float *spare);

#endif
