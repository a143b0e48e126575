/* merge.h: the loop that byte-level BPE and SentencePiece-style BPE share: merge the neighbouring
 * pair with the smallest key, the leftmost of equal ones, until no pair can be merged. */
#ifndef SAC_MODEL_MERGE_H
#define SAC_MODEL_MERGE_H

#include "model/heap.h"

#define MERGE_NONE UINT32_MAX

struct merge_symbol {
    uint32_t at, n; /* bytes [at, at + n) of the word; n is 0 once merged into the left neighbour */
    uint32_t id;    /* the caller's; a merge sets it to the result of the pair function */
    uint32_t prev, next; /* private */
};

/* The key of two neighbours, MERGE_NONE if they do not merge; `*out_id` is what they become. */
typedef uint32_t (*merge_pair_fn)(const void *ctx, const struct merge_symbol *left,
                                  const struct merge_symbol *right, uint32_t *out_id);

/* Scratch, reused from word to word. */
struct merge {
    merge_pair_fn pair;
    const void *ctx;             /* borrowed, for `pair` */
    struct merge_symbol *symbol; /* owned, [capacity] */
    size_t n, capacity;
    struct heap heap;
    bool failed; /* no memory: the result is not complete */
};

void merge_clear(struct merge *m);
void merge_add(struct merge *m, struct merge_symbol s); /* `at`, `n` > 0 and `id` are set */
/* Merges; symbol[0 .. n) are what is left, in order. */
void merge_run(struct merge *m);
void merge_deinit(struct merge *m);

#endif
