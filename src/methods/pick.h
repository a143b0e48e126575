/* pick.h: what methods share: marking tokens, choosing the best of many scores, reading keys of a
 * lane, and the exact scores that definitions and tests are made of.
 *
 * Orders are deterministic: higher score first, then lower index; NaN counts as -infinity. */
#ifndef SAC_METHODS_PICK_H
#define SAC_METHODS_PICK_H

#include "methods/method.h"

#include <math.h>

static inline uint32_t pick_min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t pick_max(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Pages before the own page of a decode row, and the tokens in them: what there is to choose from.
 */
static inline uint32_t pick_page_count(const struct method_lane *l)
{
    return l->pos / PAGE_TOK;
}

/* Marks tokens [begin, end), cut to what the mask holds. */
void pick_range(struct method_pick *out, const struct method_lane *l, uint32_t begin, uint32_t end);
/* Marks the first `n_sink` tokens and the `n_recent` behind them that end at the row, itself
 * counted. */
void pick_ends(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
               uint32_t n_recent);

static inline bool pick_has(const struct method_pick *out, uint32_t tok)
{
    return out->mask[tok / PAGE_TOK] >> tok % PAGE_TOK & 1u;
}

static inline void pick_token(struct method_pick *out, uint32_t tok)
{
    out->mask[tok / PAGE_TOK] |= 1u << tok % PAGE_TOK;
}

static inline void pick_page(struct method_pick *out, uint32_t page)
{
    out->mask[page] = UINT32_MAX;
}

/* Everything is read: the choice of a method that does not know better. */
static inline void pick_dense(struct method_pick *out)
{
    out->dense = true;
}

#endif
