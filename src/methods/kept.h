/* kept.h: selections that are made at some steps and kept for the steps between, in the form that a
 * device makes and keeps (ops/observe.h): the tokens to which the queries of the last rows attend
 * most, or columns and diagonals. A method's `away` is built from these; the marks are in the
 * device's part of its state. For other methods the host selects, from the device's sums of
 * attention. */
#ifndef SAC_METHODS_KEPT_H
#define SAC_METHODS_KEPT_H

#include "methods/batch.h"

/* What a lane does, at its place in the batch's `target`. */
enum kept_step {
    KEPT_READ, /* what it has chosen */
    KEPT_CHOOSE,
    KEPT_READ_LINES, /* the same with columns and diagonals */
    KEPT_CHOOSE_LINES,
    KEPT_SUM, /* lets its rows vote, and leaves the sums of tokens at the start of its scratch */
};

/* A choice that is to be made. */
struct kept {
    uint32_t *mask;  /* of tokens: [pos / PAGE_TOK + 1] on the device; NULL: lines, or sums */
    uint32_t row0;   /* rows from it to the last one that votes, */
    uint32_t end;    /* before this one; they are always read */
    uint32_t sink;   /* tokens before it are, too; at most row0 */
    uint32_t budget; /* tokens in between, or lines of both kinds together, that are taken */
};

size_t kept_scratch_bytes(const struct method_shape *s, const void *param);

/* Makes the selections of the lanes that have one to make. */
void kept_choose(const struct method_batch *b, struct kept (*want)(const struct method_lane *l));

/* Tokens selected among n_tok; those in [begin, end) count as selected. */
struct kept_made {
    uint32_t *mask;
    uint32_t n_tok, begin, end;
};

/* Marks them, and all tokens from n_tok on, for lanes that read tokens. */
void kept_read(const struct method_batch *b, struct kept_made (*made)(const struct method_lane *l));

/* Lines selected for n_tok tokens; the first and the most recent tokens are always read. */
struct kept_lines {
    uint32_t *column, *slash; /* [pages of n_tok] */
    uint32_t n_tok, sink, recent;
};

/* Marks them for lanes that read lines. */
void kept_read_lines(const struct method_batch *b,
                     struct kept_lines (*made)(const struct method_lane *l));

#endif
