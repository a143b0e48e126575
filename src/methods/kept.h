/* kept.h: choices that are made now and then and kept for later steps, as a device makes and keeps
 * them (ops/observe.h): the tokens that the queries of the last rows look at most. A method's
 * `away` is put together from these; the marks lie in the device's part of its state. */
#ifndef SAC_METHODS_KEPT_H
#define SAC_METHODS_KEPT_H

#include "methods/batch.h"

/* A choice that is to be made. */
struct kept {
    uint32_t *mask;  /* [pos / PAGE_TOK + 1] on the device */
    uint32_t row0;   /* rows from it to the lane's own vote, and are kept */
    uint32_t sink;   /* tokens before it are kept, too; at most row0 */
    uint32_t budget; /* tokens in between that are taken */
};

size_t kept_scratch_bytes(const struct method_shape *s, const void *param);

/* For the lanes of which `due` has a bit of truth: makes their choice. */
void kept_choose(const struct method_batch *b, const uint32_t *due,
                 struct kept (*want)(const struct method_lane *l));

/* A choice that was made: for how many tokens; those of them in [begin, end) count as chosen. */
struct kept_made {
    uint32_t *mask;
    uint32_t n_tok, begin, end;
};

/* Marks what is kept, and all tokens behind n_tok. Lanes that are due have chosen just now. */
void kept_read(const struct method_batch *b, const uint32_t *due,
               struct kept_made (*made)(const struct method_lane *l));

#endif
