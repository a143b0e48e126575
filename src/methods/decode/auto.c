/* auto.c: progressive keys, and weights for sampled tokens. Of a key with eight bits per channel,
 * two bits are read first: they predict a token's share of the attention nearly as well as exact
 * scores.
 *
 * Step by step, for each KV head:
 *  1. All tokens are scored by the first plane of their keys (two bits per channel), which gives
 *     each one's share of the softmax, mean over the query heads.
 *  2. Tokens are sampled by these shares: those above a cut always, the others with a probability
 *     whose inverse is their weight. Sums over what is read thus estimate the sums over everything,
 *     whereas a list that ends at the cut would lose the rest. The exact keys of sampled tokens
 *     count, so wrong shares cost precision but do not cause bias. The first page and the most
 *     recent pages are always read.
 *  3. If that is more than `most` of the context, everything is read, which costs less.
 *
 * The cut follows from `mass`. A list that holds this share of the attention leaves 1 - mass out,
 * and its answer is off by that times the distance between what it has and what it has not. Here
 * the cut is the highest at which (cut * mass below the cut), which bounds the variance of the
 * estimate, is at most (NOISE * (1 - mass))^2, in units of the values' own spread: a standard error
 * of a fifth of what the list would leave out. A higher mass never reads less, and 1 reads all.
 *
 * Sampling depends on positions, and the same sequence selects the same tokens. Every step samples
 * anew (docs/performance/ has the cost of reusing older selections, and of levels of pages above),
 * unless `draw` is steady: then pages are drawn by random numbers of their own (ops/steady.h), so
 * that a step mostly reads pages that the previous one has read, and fewer of them, which matters
 * if most are on disk. In a q8 page the plane is part of the key, so nothing is stored in addition.
 * For 16-bit pages the same bytes (min, step, plane) are side data. */
#include "methods/batch.h"
#include "methods/pick.h"
#include "methods/plane.h"

enum { DRAW_FRESH, DRAW_STEADY };
#define NOISE 0.2 /* standard error, relative to the mass that a list would leave out */

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.95",                                                                         \
      "accuracy: that of a list with this share of the attention; 1 reads everything")             \
    P(SHARE, most, "0.5", "above this share of the context, everything is read")                   \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")    \
    P(CHOICE, draw, "fresh", "fresh|steady",                                                       \
      "sampled tokens: new ones in every step, or mostly those of the previous step")
METHOD_PARAMS(auto, PARAMS)

/* ---- Selection ---- */

static double error_of(const struct auto_param *set)
{
    return NOISE * (1 - set->mass);
}

static struct batch_draw draw_of(const struct method_lane *l)
{
    const struct auto_param *set = l->param;
    return (struct batch_draw){.variance = error_of(set) * error_of(set),
                               .most = set->most,
                               .steady = set->draw == DRAW_STEADY};
}

static void auto_choose(const struct method_batch *b)
{
    const struct auto_param *set = b->lane[0].param;
    for (uint32_t i = 0; i < b->n; i++)
        if (error_of(b->lane[i].param) <= 0 || b->lane[i].layer < set->dense)
            pick_dense(&b->pick[i]);
    batch_shares_to_draw(b, plane_of);
    batch_draw(b, &(struct batch_ends){PAGE_TOK, set->recent, BATCH_PAGE}, draw_of);
}

static const char *auto_refuses(const void *param)
{
    const struct auto_param *set = param;
    return set->draw == DRAW_STEADY ? "draw=steady" : NULL;
}

static const struct method_decode hooks = {
    .refuses = auto_refuses,
    .side_bytes = plane_side_bytes,
    .scratch_bytes = batch_shares_bytes,
    .seal = plane_seal,
    .note = plane_note,
    .choose = auto_choose,
};

const struct method auto_method = {
    METHOD_DECODE(auto,
                  "tokens sampled by two-bit key scores and reweighted by inverse probability"),
    .about =
        "The first two bits of each key channel predict a token's share of the attention nearly as "
        "well as whole keys do, at a tenth of the bytes. Tokens with large shares are always read. "
        "A few of the others are sampled by their shares and get larger weights, so that attention "
        "is estimated and not truncated. --mass sets the accuracy: the bound on the standard error "
        "of the estimate is a fifth of what a list of that mass leaves out, and 1 reads "
        "everything. Flat heads read more, sharp ones less, and the number of tokens read hardly "
        "grows with the context. All tokens stay in the cache, so a question asked late can still "
        "be answered. With a q8 cache the two bits are part of the stored key and cost no memory. "
        "draw=steady (not on a GPU) samples tokens from few pages, mostly those of the previous "
        "step: it is as accurate, and made for contexts that do not fit in memory.",
    .weighs = true,
    .token_grain = true,
    .facts = {.part = "mass=0.5,most=1", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
