/* steady.h: the rule of steady draws (struct op_draw), the same for the plain definition and
 * vectors.
 *
 * What stands for others changes from row to row no more than its chance does, and lies in few
 * pages: so most pages that a row reads have been read by the row before.
 *  1. A page is drawn when the largest chance of its tokens, value / cut, is above a number of its
 *     own: the known way to keep samples alike is to keep their random numbers (permanent random
 *     numbers; Brewer, Early and Joyce, 1972).
 *  2. Of a page that is drawn each token is taken with a chance of its own, and then it weighs as
 *     much more as both together are rare. That of the largest value is 1. The others' are
 *     STEADY_MORE times what would give them value / cut in all, or 1: a token costs little where
 *     its page is read.
 *  3. Numbers of a page's tokens lie STEADY_TURN apart, of a circle that begins anywhere. So as
 *     many of equal chances are taken as there should be, to one or two.
 *  4. Numbers follow from the lane, the page and the row's position, and are others every
 *     STEADY_ROWS rows, for each page at a row of its own: no error lasts for a whole answer.
 *
 * Every token's weight is right in the mean. What differs is the noise: a page's tokens are taken
 * together or not at all, so the variance of a sum over all tokens may be above the bound of a
 * draw; that of a mean of values is above it as far as values of one page are alike. */
#ifndef SAC_OPS_STEADY_H
#define SAC_OPS_STEADY_H

#include "ops/ops.h"

#define STEADY_MORE 1.5f
#define STEADY_ROWS 64u
#define STEADY_TURN 0x9e3779b9u /* of 2^32: the golden ratio */

/* How far the numbers of a page's tokens lie from that of its first one. */
#define STEADY_FOUR(i)                                                                             \
    (i) * STEADY_TURN, ((i) + 1) * STEADY_TURN, ((i) + 2) * STEADY_TURN, ((i) + 3) * STEADY_TURN
static const uint32_t steady_turns[PAGE_TOK] = {
    STEADY_FOUR(0u),  STEADY_FOUR(4u),  STEADY_FOUR(8u),  STEADY_FOUR(12u),
    STEADY_FOUR(16u), STEADY_FOUR(20u), STEADY_FOUR(24u), STEADY_FOUR(28u)};

struct steady_number {
    uint32_t page, token; /* of 2^32; `token` is the first one's */
};

static inline struct steady_number steady_number(const struct op_draw *op, uint32_t page)
{
    const uint32_t turn = (op->pos + (page * STEADY_TURN) % STEADY_ROWS) / STEADY_ROWS;
    uint64_t x = (uint64_t)op->key << 32 | page;
    x += UINT64_C(0x9e3779b97f4a7c15) * (turn + 1); /* and splitmix64's last step: */
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

/* Takes the items of one page, [begin, end), to place `at` and on; returns how many. */
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
