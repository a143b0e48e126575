/* tokenselect.c: the best tokens by softmax votes of the heads, selected again only when the query
 * has changed, TokenSelect (Wu et al., 2024).
 *
 * Decided here: one set per KV head, where the paper has one for all heads of a layer. The
 * selection is kept in the sequence's state with the query that made it, and is reused while the
 * cosine of the new query with that one is at least `reuse`, and at most to the end of its page:
 * newer tokens are in the row's own page and read. A cut sequence selects again. */
#include "methods/pick.h"
#include "methods/rule.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "2048", 1, "tokens selected, in addition to those always read")              \
    P(NUMBER, reuse, "0.9", 0, 1,                                                                  \
      "least cosine similarity of queries that share a selection; 1: none")                        \
    P(TOKENS, sink, "128", 0, 4096, "first tokens, always read")                                   \
    P(TOKENS, recent, "512", 0, 4096, "most recent tokens, always read")
METHOD_PARAMS(tokenselect, PARAMS)

/* Followed by the query [group, head_dim] and the mask [pages of a context]. */
struct tokenselect_state {
    uint32_t pos; /* of the row that selected; 0: there is no selection */
};

static size_t query_floats(const struct method_shape *s)
{
    return (size_t)s->group * s->geom->head_dim;
}

static size_t tokenselect_state_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return sizeof(struct tokenselect_state) + query_floats(s) * sizeof(float) +
           (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * sizeof(uint32_t);
}

static double cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i];
        bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static void tokenselect_select(const struct method_lane *l, struct method_pick *out)
{
    const struct tokenselect_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0), n_page = pick_page_count(l);
    struct tokenselect_state *state = l->state;
    struct select_scratch r;
    float *query = (float *)(void *)(state + 1);
    uint32_t *mask = (uint32_t *)(void *)(query + query_floats(l->shape));
    if (budget == 0) return;
    const uint32_t sink = set->sink, recent = set->recent;
    const bool holds = state->pos > 0 && set->reuse < 1 &&
                       l->pos / PAGE_TOK == state->pos / PAGE_TOK &&
                       cosine(l->q, query, query_floats(l->shape)) >= set->reuse;
    assert(state->pos <= l->pos);
    if (holds) {
        pick_kept(out, mask, n_page, sink, state->pos + 1 > recent ? state->pos + 1 - recent : 0);
        return;
    }
    select_scratch_make(&r, l->shape, true, l->scratch);
    pick_all_logits(r.score, r.stride, l);
    if (!rule_shares(out, l, &r, n_page * PAGE_TOK)) return;
    rule_tokens(out, l, &r, budget, sink, recent);
    state->pos = l->pos;
    memcpy(query, l->q, query_floats(l->shape) * sizeof *query);
    memcpy(mask, out->mask, n_page * sizeof *mask);
}

static bool tokenselect_sound(const struct method_loaded *l)
{
    const struct tokenselect_state *x = l->state;
    return x->pos <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = tokenselect_state_bytes,
    .scratch_bytes = select_scratch_token_bytes,
    .select = tokenselect_select,
    .sound = tokenselect_sound,
};

static const sac_method_deviation deviations[] = {
    {"one set of tokens for all heads of a layer", "one per KV head", "keys are stored by KV head",
     NULL},
    {"a selection is reused as long as queries are similar", "and to the end of its page at most",
     "newer tokens are then in the query's own page, which is read", NULL},
    {"prefill is sparse too, by the mean query of a chunk", "answers only",
     "prefill has methods of its own", NULL},
};

const struct method tokenselect_method = {
    METHOD_DECODE(tokenselect,
                  "tokens that the heads vote for, reused while the query stays similar"),
    .paper = "Wu et al., TokenSelect: Efficient Long-Context Inference and Length Extrapolation "
             "for LLMs "
             "via Dynamic Token-Level KV Cache Selection, arXiv 2411.02886",
    .about = "Scores every key exactly, adds up the softmax shares of the heads and reads the best "
             "tokens. The next tokens reuse the selection while their queries are similar, at most "
             "to the end of a page. All tokens stay in the cache, so a question asked late can "
             "still be answered. A selection reads all keys.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "sink=4,recent=16", .n_forced = 4 + 15},
    .meets_segments = true,
    .decode = &hooks,
};
