/* pick.h: shared helpers of methods: marking tokens, selecting the best of many scores, reading
 * keys of a lane, and the exact scores that definitions and tests use.
 *
 * What a budget counts, the same for all methods: tokens selected by score. The row's own page,
 * first tokens and most recent tokens that a method always reads come first and in addition, as in
 * most papers. Methods whose paper counts differently follow their paper and say so: budgets of
 * streaming, h2o, raas and tova are all tokens kept or read, those of snapkv and its relatives
 * include the window, that of kvzip is a mean over the model. A budget of the whole context or more
 * reads everything.
 *
 * Orders are deterministic: higher score first, then lower index; NaN counts as -infinity. */
#ifndef SAC_METHODS_PICK_H
#define SAC_METHODS_PICK_H

#include "base/half.h"
#include "base/minmax.h"
#include "methods/method.h"

#include <assert.h>
#include <math.h>

/* Pages before the own page of a decode row, and the tokens in them: the candidates. */
static inline uint32_t pick_page_count(const struct method_lane *l)
{
    return l->pos / PAGE_TOK;
}

/* The queries [group, head_dim] for the keys of a page, and of all pages before *end: the lane's
 * own, or rotated ones in `room` (ops/segment.h). Needed for scores by anything but the keys that
 * functions of this header return. */
const float *pick_query(float *room, const struct method_lane *l, uint32_t page, uint32_t *end);

/* ---- Tokens that are always read: no budget counts them ---- */

/* Marks tokens [begin, end), clipped to the mask. */
void pick_range(struct method_pick *out, const struct method_lane *l, uint32_t begin, uint32_t end);
/* Marks the first `n_sink` tokens and then the `n_recent` that end at the row, counting the row
 * itself. */
void pick_ends(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
               uint32_t n_recent);
/* Pages needed for so many tokens. */
static inline uint32_t pick_whole_pages(uint32_t n_tok)
{
    return (n_tok + PAGE_TOK - 1) / PAGE_TOK;
}
/* For methods that read whole pages: marks the pages of the first n_sink tokens, and as many of the
 * most recent pages before the row's own as n_recent tokens need. */
void pick_end_pages(struct method_pick *out, const struct method_lane *l, uint32_t n_sink,
                    uint32_t n_recent);
/* For methods that weight tokens: lists a token with its own weight. */
static inline void pick_certain(struct method_pick *out, uint32_t tok)
{
    assert(out->n_tok == 0 || out->tok[out->n_tok - 1] < tok);
    out->logw[out->n_tok] = 0;
    out->tok[out->n_tok++] = tok;
}

/* ---- Tokens that are selected: counted in n_chosen unless already marked ---- */

static inline bool pick_has(const struct method_pick *out, uint32_t tok)
{
    return out->mask[tok / PAGE_TOK] >> tok % PAGE_TOK & 1u;
}

/* Selects the tokens of a page whose bits are set. */
static inline void pick_bits(struct method_pick *out, uint32_t page, uint32_t bits)
{
    out->n_chosen += (uint32_t)__builtin_popcount(bits & ~out->mask[page]);
    out->mask[page] |= bits;
}

static inline void pick_token(struct method_pick *out, uint32_t tok)
{
    pick_bits(out, tok / PAGE_TOK, 1u << tok % PAGE_TOK);
}

static inline void pick_page(struct method_pick *out, uint32_t page)
{
    pick_bits(out, page, UINT32_MAX);
}

/* Marks the tokens of an earlier selection, `mask` [n_page]; only those in [begin, end) count as
 * selected. */
void pick_kept(struct method_pick *out, const uint32_t *mask, uint32_t n_page, uint32_t begin,
               uint32_t end);

/* For methods that weight tokens: lists a selected token with its log-weight. */
static inline void pick_weighed(struct method_pick *out, uint32_t tok, float logw)
{
    pick_certain(out, tok);
    out->logw[out->n_tok - 1] = logw;
    out->n_chosen++;
}

/* Counts n tokens that are already in the lists. */
static inline void pick_listed(struct method_pick *out, uint32_t n)
{
    out->n_tok += n;
    out->n_chosen += n;
}

/* Makes the lane dense. */
static inline void pick_dense(struct method_pick *out)
{
    out->dense = true;
}

/* Makes the lane dense because a score is NaN or infinite. */
static inline void pick_not_finite(struct method_pick *out)
{
    out->dense = out->not_finite = true;
}

/* How many units of n_tok tokens fit a budget, at least one. */
static inline uint32_t pick_units(uint32_t budget, uint32_t n_tok)
{
    return max_u32(budget / n_tok, 1);
}

/* ---- The best of many ---- */

/* The threshold of a selection: items above it are taken, and the first n_tie that equal it. */
struct pick_cut {
    uint32_t key; /* its sort key (pick_key) */
    uint32_t n_tie;
};

/* The threshold of the k largest values. */
struct pick_cut pick_best(const float *value, uint32_t n, uint32_t k);
/* The threshold of the fewest items that hold `share` of the sum of all. No value is negative. */
struct pick_cut pick_share(const float *value, uint32_t n, double share);
/* An integer that orders as the value does; 0 for NaN. */
static inline uint32_t pick_key(float value)
{
    const uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0; /* NaN */
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Whether an item is taken; call for all items in ascending order. */
static inline bool pick_takes(struct pick_cut *cut, float value)
{
    const uint32_t key = pick_key(value);
    if (key != cut->key) return key > cut->key;
    if (cut->n_tie == 0) return false;
    cut->n_tie--;
    return true;
}

/* Selects the n best tokens before the own page that are not marked yet. `value` [tokens], none
 * negative, is overwritten where marked; `spare` [tokens] is scratch. */
void pick_tokens(struct method_pick *out, const struct method_lane *l, float *value,
                 uint32_t *spare, uint32_t n);

/* ---- Keys ---- */

/* Pages stay in memory from pick_hold to pick_let. The functions below that read keys do both
 * themselves. False: they cannot be loaded, and the row will fail. */
bool pick_hold(const struct method_lane *l, uint32_t page, uint32_t n_page);
void pick_let(const struct method_lane *l, uint32_t page, uint32_t n_page);

/* Keys of a sealed page of the lane [PAGE_TOK, head_dim], as attention reads them. All of these
 * functions count what they read. */
void pick_keys(float *k, const struct method_lane *l, uint32_t page);
void pick_values(float *v, const struct method_lane *l, uint32_t page);
void pick_keys_values(float *k, float *v, const struct method_lane *l, uint32_t page);
/* Keys and values of the row's own page, up to the row; returns their number. `v` may be NULL. */
uint32_t pick_own(float *k, float *v, const struct method_lane *l);
/* The same of tokens first .. first + n - 1 of the own page, none after the row. */
void pick_own_rows(float *k, float *v, const struct method_lane *l, uint32_t first, uint32_t n);
/* Keys of the tokens of a page whose bits are set in `tok`, packed; returns their number. The page
 * may be the own one, which is the last. Other tokens are not read. */
uint32_t pick_some_keys(float *k, const struct method_lane *l, uint32_t page, uint32_t tok);
/* Prefetches what pick_some_keys will read. */
void pick_fetch_keys(const struct method_lane *l, uint32_t page, uint32_t tok);
/* The first n bytes of side data of a page. */
const uint8_t *pick_side(const struct method_lane *l, uint32_t page, size_t n);
/* Keys as by pick_keys of tokens first .. end - 1, first being the start of a page and end at most
 * that of the chunk, whose last tokens may be in no sealed page; `k` has room for whole pages. */
void pick_span(float *k, const struct method_lane *l, uint32_t first, uint32_t end);
/* A key of the lane's first page: a component that all keys share changes no softmax, but would
 * drown their differences in the 8 bits of bf16. Uses k [PAGE_TOK, head_dim]. False: no page is
 * sealed yet. */
bool pick_centre(float *centre, float *k, const struct method_lane *l);
/* Logits of `n_tok` keys [n_tok, head_dim] for all query heads, softcap included:
 * out[g * stride + t]. */
void pick_group_logits(float *out, size_t stride, const struct method_lane *l, const float *k,
                       uint32_t n_tok);
/* Exact logits of all tokens before the own page, score[g * stride + token]: the descriptor for a
 * slot, or the scores themselves. */
struct op_lane_logits pick_lane_logits(float *score, size_t stride, const struct method_lane *l);
void pick_all_logits(float *score, size_t stride, const struct method_lane *l);

#endif
