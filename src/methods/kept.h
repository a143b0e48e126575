/* kept.h: selections that are made at some steps and kept for the steps between, in the form that a
 * device makes and keeps (ops/observe.h): the tokens to which the queries of the last rows attend
 * most, or columns and diagonals. A method's `device` is built from these; the marks are in the
 * device's part of its state. For other methods the host selects, from the device's sums of
 * attention. */
#ifndef SAC_METHODS_KEPT_H
#define SAC_METHODS_KEPT_H

#include "methods/batch.h"

/* What a lane does in a step: an entry of the batch's `target`. */
enum kept_step {
    KEPT_READ,       /* reads the tokens of its last selection */
    KEPT_CHOOSE,     /* selects tokens, and reads them */
    KEPT_READ_LINES, /* the same with columns and diagonals */
    KEPT_CHOOSE_LINES,
    KEPT_SUM, /* sums the attention of its rows, and leaves the sums at the start of its scratch */
};

/* A selection that is to be made. */
struct kept {
    uint32_t *mask;     /* of tokens: [pos / PAGE_TOK + 1] on the device; NULL: lines, or sums */
    uint32_t row0, end; /* rows [row0, end) vote; their tokens are always read */
    uint32_t sink;      /* first tokens, always read; at most row0 */
    uint32_t budget;    /* tokens in between, or lines of both kinds together, to select */
};

size_t kept_scratch_bytes(const struct method_shape *s, const void *param);

/* Makes the selections, or sums, of the lanes whose step says so. */
void kept_choose(const struct method_batch *b, struct kept (*want)(const struct method_lane *l));

/* A selection among the first n_tok tokens; those of [begin, end) count in n_chosen. */
struct kept_made {
    uint32_t *mask;
    uint32_t n_tok, begin, end;
};

/* Marks them, and all tokens from n_tok on, for lanes that read tokens. */
void kept_read(const struct method_batch *b, struct kept_made (*made)(const struct method_lane *l));

/* Lines selected at a context of n_tok tokens; sinks and the most recent tokens are read too. */
struct kept_lines {
    uint32_t *column, *slash; /* [pages of n_tok] */
    uint32_t n_tok, sink, recent;
};

/* Marks them for lanes that read lines. */
void kept_read_lines(const struct method_batch *b,
                     struct kept_lines (*made)(const struct method_lane *l));

#endif
