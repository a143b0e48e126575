/* psa.c: pages in descending order of predicted attention until an estimate says that enough of the
 * attention has been seen, Progressive Sparse Attention (Zhou et al., 2025), Algorithm 1.
 *
 * What has been seen is kept as A, the sum of exp of all logits read, for each query head, and the
 * coverage is A / (A + R), where R stands for the remaining pages: each has as much as the least
 * page visited (rest=min, the paper's rule), or all together have what their votes, by which they
 * are ordered, predict relative to the votes of the pages visited (rest=vote, the default), which
 * does not depend on a single page. Decided here (the paper is silent): first come the sink page,
 * the most recent pages and the row's own, which has no vote; they count for A but are not the
 * least. Query heads read together, in one order of their softmax shares of arkvale's digest or of
 * the first bits of keys: those of a KV head, or (scope) of a layer, as if all KV heads of a token
 * were in one block. They stop together, when the least of their coverages or (stop) the mean is
 * enough. Visiting is exact, and a page is visited once (visit.h), so it costs what attention costs
 * for it, and is counted so, in addition to keys read in a round of which less was enough. Only the
 * keys of the row's own page are read twice. The number of pages that a row has visited is kept,
 * for the rounds of the next one. */
#include "methods/box.h"
#include "methods/pick.h"
#include "methods/plane.h"
#include "methods/visit.h"

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.9", "share of the attention to cover")                                       \
    P(CHOICE, stop, "mean", "min|mean",                                                            \
      "whose share must reach mass: the lowest of the query heads that read together, or their "   \
      "mean")                                                                                      \
    P(CHOICE, scope, "head", "head|layer",                                                         \
      "heads that read together: the query heads of a KV head, or all of a layer")                 \
    P(CHOICE, order, "plane", "box|plane",                                                         \
      "what ranks pages: ArkVale's digest, or the first two bits of their keys")                   \
    P(CHOICE, rest, "vote", "min|last|vote",                                                       \
      "assumed mass of unread pages: each as much as the least one read, or as the mean of the "   \
      "last step's; or what their scores predict")                                                 \
    P(COUNT, step, "1", 1, 64, "pages between two checks of the estimate")                         \
    P(COUNT, ahead, "2", 0, 64,                                                                    \
      "steps whose pages are fetched while others are read (with pages on disk)")                  \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
METHOD_PARAMS(psa, PARAMS)

/* Whether pages are ranked by the first bits of their keys, not by ArkVale's digest. */
static bool by_plane(const void *param)
{
    const struct psa_param *set = param;
    return set->order > 0;
}

static size_t psa_side_bytes(const struct method_shape *s, const void *param)
{
    return by_plane(param) ? plane_side_bytes(s, param) : box_bytes(s, BOX_MEAN);
}

static void psa_seal(uint8_t *side, const struct method_shape *s, const void *param, const float *k)
{
    if (by_plane(param))
        plane_seal(side, s, param, k);
    else
        box_seal(side, s, BOX_MEAN, k);
}

static enum op_note_kind psa_note(const struct method_shape *s, const void *param)
{
    return by_plane(param) ? plane_note(s, param) : box_note(BOX_MEAN);
}

/* Lays out a lane's scratch: that of the votes, then that of the visits. */
static struct visit_scratch make_scratch(const struct method_shape *s, const void *param,
                                         void *scratch)
{
    const size_t n_own =
        by_plane(param) ? batch_shares_bytes(s, param) : select_scratch_page_bytes(s, param);
    return visit_scratch_of(s, by_plane(param), n_own, scratch);
}

/* The number of pages that the last row has visited: the next row will visit about as many. */
static size_t psa_state_bytes(const struct method_shape *s, const void *param)
{
    (void)s, (void)param;
    return sizeof(uint32_t);
}

/* Any state is valid: results do not depend on it. */
static bool psa_sound(const struct method_loaded *l)
{
    (void)l;
    return true;
}

static size_t psa_scratch_bytes(const struct method_shape *s, const void *param)
{
    return make_scratch(s, param, NULL).bytes;
}

static bool psa_joins_heads(const void *param)
{
    const struct psa_param *set = param;
    return set->scope > 0;
}

static struct visit_scratch scratch_of(const struct method_lane *l)
{
    return make_scratch(l->shape, l->param, l->scratch);
}

static struct visit_rule rule_of(const struct method_lane *l)
{
    const struct psa_param *set = l->param;
    return (struct visit_rule){.mass = set->mass,
                               .step = set->step,
                               .ahead = set->ahead,
                               .recent = set->recent,
                               .rest = (enum op_rest)set->rest,
                               .by_mean = set->stop > 0,
                               .by_layer = set->scope > 0,
                               .last = l->state};
}

/* Algorithm 1. Lines 5 and 6, criticality scores and ranks: pages are ranked by their softmax
 * shares, mean over the query heads. Lines 8 to 18, the loop over pages, are the slot `visit`
 * (ops/lanes.h, ops/cpu/lanes_visit.c). */
static void psa_choose(const struct method_batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct psa_param *set = b->lane[i].param;
        if (set->mass >= 1 || b->lane[i].layer < set->dense) pick_dense(&b->pick[i]);
    }
    if (by_plane(b->lane[0].param)) {
        batch_shares(b, plane_of);
        batch_sum_shares(b);
    } else {
        box_votes(b, BOX_MEAN);
    }
    visit_choose(b, &(struct visit_want){.rule = rule_of, .scratch = scratch_of});
}

static const struct method_decode hooks = {
    .state_bytes = psa_state_bytes,
    .side_bytes = psa_side_bytes,
    .scratch_bytes = psa_scratch_bytes,
    .seal = psa_seal,
    .note = psa_note,
    .choose = psa_choose,
    .joins_heads = psa_joins_heads,
    .sound = psa_sound,
};

static const sac_method_deviation deviations[] = {
    {"each remaining page is assumed to hold as much as the least page read",
     "all of them together are assumed to hold what their votes say in proportion to those of the "
     "pages read; rest=min is the paper's rule",
     "one page that holds less than predicted makes all remaining ones look empty",
     "RULER, 13 tasks, 4K to 32K, 208 samples: 0.7 points less than dense attention (-3.2 to +1.8) "
     "with 13 % of keys and values read; rest=min,mass=0.95 3.1 less (-6.1 to -0.3) with 14 % "
     "(qwen2.5-coder-0.5b, eval_results.md)"},
    {"pages are ranked by the metadata of other methods, a bounding box of their keys",
     "by the first two bits of each channel (order=plane), a tenth of a 16-bit page and not a byte "
     "more in a q8 page; order=box is ArkVale's digest",
     "the digest ranks pages so poorly that no stop rule makes up for it",
     "for 98 % of dense attention's score on RULER, 3.8 times fewer keys and values than arkvale; "
     "with order=box as many as arkvale or more at equal KL (qwen2.5-coder-0.5b, measured.md)"},
    {"silent on grouped-query attention; a token and layer has one share to reach",
     "the query heads of a KV head read together until the mean of their shares is enough; "
     "stop=min waits for the last head, scope=layer joins all KV heads of a layer",
     "heads with the same mass follow one curve, and the mean is the share that was asked for",
     "at the same mass stop=min reads 1.7 to 1.8 times as much, for a KL lower by as much "
     "(rest=min)"},
    {"blocks are loaded from the host while earlier ones are read, and a kernel stops the loading",
     "with pages on disk, those of a round and of the next `ahead` steps are fetched together; the "
     "first round is an eighth less than the last row has read, later ones are an eighth each, and "
     "no more than the votes call for",
     "the same on a CPU", "none on answers"},
    {"one pool of pages for all layers and requests, which the least recently used leave",
     "the same with pages on disk; --kv-policy lru is the paper's rule, stale the default",
     "once the pages of all layers no longer fit, the paper's rule evicts what is needed next",
     "none on answers"},
    {"silent on pages that are always read",
     "the first page, the most recent ones and the query's own count as read, but not as the least "
     "page",
     "a page that is not full would end the search at once", NULL},
};

const struct method psa_method = {
    METHOD_DECODE(psa,
                  "pages in order of predicted attention, until the wanted share of it is covered"),
    .paper =
        "Zhou et al., Progressive Sparse Attention: Algorithm and System Co-design for Efficient "
        "Attention in LLM Serving, arXiv 2503.00392",
    .about = "Has no budget. It reads pages in order of predicted attention and stops when the "
             "mass read is the wanted share of an estimate of the total, so flat heads read more "
             "and sharp ones less. Pages are ranked by the first bits of their keys, and these "
             "bits also estimate the mass of all unread pages together. With rest=min each unread "
             "page is instead assumed to hold as much as the least one read, which is optimistic "
             "where the ranking is wrong. All tokens stay in the cache, so a question asked late "
             "can still be answered. measured.md compares what it reads with arkvale.",
    METHOD_DEVIATIONS(deviations),
    .has_rest = true,
    .facts = {.part = "mass=0.5", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
