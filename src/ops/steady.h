/* steady.h: steady sampling (struct op_draw): consecutive rows draw mostly the same pages. The rule
 * is defined here once for the plain C version and for vectors.
 *
 * The tokens drawn as a sample change from row to row only as much as their probabilities do, and
 * lie in few pages, so most pages that a row reads were read by the row before.
 *  1. A page is drawn if the largest probability of its tokens, value / cut, exceeds a random
 *     number of the page. Keeping random numbers is the known way to keep samples alike (permanent
 *     random numbers; Brewer, Early and Joyce, 1972).
 *  2. Each token of a drawn page is taken with a probability of its own, and its weight is the
 *     inverse of the product of both. The token with the largest value is taken with probability 1.
 *     The others have STEADY_MORE times the probability that would give them value / cut in all, at
 *     most 1: a token costs little once its page is read.
 *  3. The numbers of a page's tokens lie STEADY_TURN apart on a circle, from a random start. The
 *     number of tokens taken among those of equal probability is therefore the expected one, within
 *     one or two.
 *  4. The numbers are derived from the lane, the page and the row's position. They are renewed
 *     every STEADY_ROWS rows, at a different row for each page, so no sampling error lasts for a
 *     whole answer.
 *
 * Every token's weight has the right expectation. What differs from independent sampling is the
 * variance, because the tokens of a page are taken together or not at all: for a sum over all
 * tokens it may exceed the bound of a draw, and for a mean of values it does so to the degree that
 * the values of a page are alike. */
#ifndef SAC_OPS_STEADY_H
#define SAC_OPS_STEADY_H

#include "ops/ops.h"

#define STEADY_MORE 1.5f
#define STEADY_ROWS 64u
#define STEADY_TURN 0x9e3779b9u /* in units of 2^-32: the golden ratio */

/* Offset of a token's random number from that of the page's first token. */
#define STEADY_FOUR(i)                                                                             \
    (i) * STEADY_TURN, ((i) + 1) * STEADY_TURN, ((i) + 2) * STEADY_TURN, ((i) + 3) * STEADY_TURN
static const uint32_t steady_turns[PAGE_TOK] = {
    STEADY_FOUR(0u),  STEADY_FOUR(4u),  STEADY_FOUR(8u),  STEADY_FOUR(12u),
    STEADY_FOUR(16u), STEADY_FOUR(20u), STEADY_FOUR(24u), STEADY_FOUR(28u)};

struct steady_number {
    uint32_t page, token; /* in units of 2^-32; `token`: of the first token */
};

static inline struct steady_number steady_number(const struct op_draw *op, uint32_t page)
{
    const uint32_t turn = (op->pos + (page * STEADY_TURN) % STEADY_ROWS) / STEADY_ROWS;
    uint64_t x = (uint64_t)op->key << 32 | page;
    x += UINT64_C(0x9e3779b97f4a7c15) * (turn + 1); /* then the output function of splitmix64 */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    x ^= x >> 31;
    return (struct steady_number){(uint32_t)(x >> 32), (uint32_t)x};
}

/* Whether a page is drawn whose largest value is `most`. */
static inline bool steady_draws(struct steady_number number, float most, float cut)
{
    const float bits = most * (0x1p32f / cut);
    return most >= cut || bits >= 0x1p32f || number.page < (uint32_t)bits;
}

/* Takes items of one page, [begin, end), to place `at` and on; returns their number. */
typedef uint32_t steady_page(const struct op_draw *op, uint32_t begin, uint32_t end, float cut,
                             uint32_t at);

/* Takes a piece's items from place `at` on, page by page. */
static inline void steady_take(const struct op_draw *op, struct op_draw_piece *p, float cut,
                               uint32_t at, steady_page *take_page)
{
    const uint32_t at0 = at;
    for (uint32_t i = p->begin; i < p->end; i += PAGE_TOK)
        at += take_page(op, i, i + PAGE_TOK < p->end ? i + PAGE_TOK : p->end, cut, at);
    p->n_taken = at - at0;
}

#endif
