/* context.h: what a context method is: it says how documents, each computed separately, become one
 * context: which of their pages are kept, and which tokens are recomputed. The engine does both
 * (compose.c, refresh.c); a method only fills masks.
 *
 * Contract: hooks are pure functions of their arguments, allocate nothing and are called on one
 * thread. Pages are those of the composed sequence: first the head, then one document after the
 * other, each in whole pages. */
#ifndef SAC_METHODS_CONTEXT_H
#define SAC_METHODS_CONTEXT_H

#include "methods/method.h"

#define CONTEXT_DOC_MAX 128u

struct context_doc {
    uint32_t begin, end; /* pages */
};

/* Data stored about a document when it is computed (engine/doc_stats.c), for one layer. Its text is
 * cut into blocks of CONTEXT_BLOCK tokens; the last may be shorter. Vectors are those before
 * rotation. */
#define CONTEXT_BLOCK 64u
struct context_stats {
    const float *query;  /* [n_head, head_dim] mean over the last two blocks */
    const float *key;    /* [n_block, n_kv_head, head_dim] means */
    const float *anchor; /* [n_kv_head, head_dim] mean over the first and the last two blocks */
    /* Of each block's representative, the token to which rows after the block attend most: their
     * mean attention, the exponent of its decay with distance (a power law), and its index from the
     * start of the text. */
    const float *mass, *slope, *token; /* [n_block] */
};

struct context_view {
    const struct method_shape *shape;
    const void *param; /* as in struct method_lane */
    uint32_t n_layer, n_page, n_doc;
    const struct context_doc *doc;     /* [n_doc] */
    const struct context_stats *stats; /* [n_doc, n_layer], or NULL: the method needs none */
    /* [n_layer, n_page * PAGE_TOK] attention of the question to each token (engine/mass.h), or
     * NULL */
    const float *mass;
    const uint32_t *done; /* [n_page] tokens recomputed in earlier rounds */
    /* [n_layer, n_head, head_dim] mean over the question's tokens that ask, or NULL: likewise */
    const float *query;
    uint32_t n_head;
};

struct context_plan {
    /* [n_layer, n_page] bit t of a word: keys and values of token t of the page are recomputed in
     * this layer. A token is computed up to the last layer that has its bit. Initially zero. */
    uint32_t *refresh;
    /* [n_layer, n_page] whether the page is read by later tokens. Initially all true; pages of the
     * head, and any page in a layer with a window of its own, are kept in any case. */
    bool *resident;
    float *spare; /* [2 * n_page * PAGE_TOK + 4 * n_head * head_dim] scratch */
};

/* Distance of recomputed keys and values from those of the document: sums of squares over all KV
 * heads, 0 for a token that was not recomputed. */
struct context_change {
    const float *k, *v; /* [n_page * PAGE_TOK] */
};

/* Who computes the question's tokens, except the last, which the caller always computes. */
enum context_question {
    CONTEXT_QUESTION_NONE,  /* the caller, after what the method has kept */
    CONTEXT_QUESTION_APART, /* it was computed like a document, after the head and nothing else */
    CONTEXT_QUESTION_HERE,  /* the engine, over the resident pages; then all are recomputed */
};

/* How new keys and values replace old ones: theta new + (1 - theta) old, theta being their cosine
 * over all KV heads of a token or over each. */
enum context_fusion { CONTEXT_FUSION_NONE, CONTEXT_FUSION_TOKEN, CONTEXT_FUSION_HEAD };

struct method_context {
    bool computes_all; /* no document is used: all tokens are computed as a prompt */
    /* Where documents are placed: the position of each one's first token, and of what follows them
     * all. The initial values are those of consecutive documents. NULL: they are kept. */
    void (*place)(const struct context_view *v, int32_t *begin, int32_t *end);
    enum context_question (*question)(const void *param); /* NULL: CONTEXT_QUESTION_NONE */
    const char *decode; /* the decode method that it requires, or NULL: any */
    /* Whether `plan` needs statistics and the question's queries; these come from rows that see
     * what `probe` leaves resident. NULL: it needs neither, and frees no page. */
    bool (*probe)(const struct context_view *v, struct context_plan *out);
    /* How many of the question's last tokens make up its query, and read; NULL, 0, or more than
     * there are: all of them. */
    uint32_t (*asks)(const void *param);
    void (*plan)(const struct context_view *v, struct context_plan *out); /* NULL: as it is */
    enum context_fusion (*fuses)(const void *param); /* NULL: CONTEXT_FUSION_NONE */
    /* Layers [*first, *end) for which `plan` needs the question's attention to the stored
     * documents; NULL, or *first = *end: none. If all of them have only a window, it gets those of
     * all layers. */
    void (*reads)(const struct context_view *v, uint32_t *first, uint32_t *end);
    uint32_t (*rounds)(const void *param); /* rounds of reading and planning; NULL: one */
    /* Whether `observe` needs this layer's changes before its attention; it may clear bits of later
     * layers, and set none. */
    bool (*watches)(const struct context_view *v, uint32_t layer);
    void (*observe)(const struct context_view *v, struct context_plan *plan, uint32_t layer,
                    const struct context_change *change);
};

/* The bits of a layer. */
static inline uint32_t *context_refresh(const struct context_view *v, const struct context_plan *p,
                                        uint32_t layer)
{
    return p->refresh + (size_t)layer * v->n_page;
}

/* Sets the bits of the tokens [begin, end) of the sequence in a layer. */
void context_mark(const struct context_view *v, struct context_plan *p, uint32_t layer,
                  uint32_t begin, uint32_t end);

/* The layers in which a question looks for its answer (docs/performance/stored_documents.md):
 * neither the first ones, which attend to words, nor the last ones. */
#define CONTEXT_READ_FROM 0.25
#define CONTEXT_READ_TO   0.85

/* The layer at a part of all. */
static inline uint32_t context_layer_at(const struct context_view *v, double part)
{
    return (uint32_t)(part * v->n_layer + 0.5);
}

/* Tokens of all documents. */
uint32_t context_tokens(const struct context_view *v);

/* How many of the tokens of `word` [n_page], the largest values first, together hold this share of
 * the sum. `spare` as below. */
uint32_t context_count_share(const struct context_view *v, const uint32_t *word, const float *value,
                             double share, float *spare);

/* Keeps, of the bits of `word` [n_page], those of the n largest values, the lower token first among
 * equals. `spare` [n_page * PAGE_TOK] is scratch. */
void context_keep_best(const struct context_view *v, uint32_t *word, const float *value, uint32_t n,
                       float *spare);

#endif
