/* pattern.h: patterns of a model's heads for MInference: as text, and while they are being learned.
 *
 * The text has one line per head; empty lines and lines that begin with # are ignored:
 *     saccade minference 1
 *     model NAME
 *     layers N heads N
 *     LAYER HEAD lines COLUMNS SLASHES    (or: LAYER HEAD ends SINK WINDOW) */
#ifndef SAC_METHODS_PREFILL_PATTERN_H
#define SAC_METHODS_PREFILL_PATTERN_H

#include "methods/method.h"

enum pattern_family {
    PATTERN_LINES,  /* a columns and b slashes */
    PATTERN_ENDS,   /* the first a keys and the last b */
    PATTERN_BLOCKS, /* one of a blocks; only a candidate: tables have lines for it */
};

struct pattern {
    enum pattern_family family;
    uint32_t a, b;
};

/* The candidates of the authors' search. */
#define PATTERN_CANDIDATES 6u
extern const struct pattern pattern_candidates[PATTERN_CANDIDATES];

/* A head's entry of a table: a table that was read has `pattern`, one that is being learned the
 * rest. */
struct pattern_head {
    struct pattern pattern;
    double mass[PATTERN_CANDIDATES]; /* share of the attention that is kept, summed over rows */
    double n_row;
};

/* The index of the entry of query head `head` of the lane's KV head. */
static inline size_t pattern_entry(const struct method_lane *l, uint32_t head)
{
    const struct method_shape *s = l->shape;
    return ((size_t)l->layer * s->geom->n_kv_head + l->kv_head) * s->group + head;
}

/* For struct method_table. */
size_t pattern_table_bytes(const struct method_shape *s);
sac_status pattern_table_read(void *table, const struct method_shape *s, const char *text,
                              sac_error *err);
sac_status pattern_table_write(const void *table, const struct method_shape *s, struct strbuf *out,
                               sac_error *err);

#endif
