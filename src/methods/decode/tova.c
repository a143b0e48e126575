/* tova.c: every step evicts the token that the last row attended to least, TOVA (Oren et al., EMNLP
 * 2024).
 *
 * One set of tokens for all heads of a layer, by the mean of their softmax shares. After a prompt
 * its last row reduces it to the budget; from then on each row of the answer evicts the excess, as
 * a rule one token. So row p reads what rows up to p - 1 have left, and itself. The shares of row p
 * - 1 are computed when row p comes, from the keys of all pages with kept tokens, and counted. */
#include "methods/evict_state.h"
#include "methods/meter.h"
#include "methods/method_spec.h"
#include "methods/observe.h"
#include "methods/pick.h"

#include <string.h>

#define PARAMS(P) P(BUDGET, budget, "1024", 1, "tokens kept in the cache")
METHOD_PARAMS(tova, PARAMS)

struct tova_state {
    uint32_t n_known; /* tokens that the mask covers; 0: nothing has been evicted */
    uint32_t n_vote;  /* tokens that the previous row has voted on; 0: none */
    bool not_finite;
};

static struct tova_state *cut_state(struct evict_state *v, const struct method_shape *s,
                                    void *state)
{
    evict_state_make(v, s, state, sizeof(struct tova_state));
    return v->head;
}

static size_t tova_state_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return evict_state_bytes(s, sizeof(struct tova_state));
}

static size_t tova_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL);
}

static uint32_t tova_past_rows(const struct method_shape *s, const void *param)
{
    (void)s;
    (void)param;
    return 1;
}

/* Softmax shares of the previous row over the kept tokens; -1 for evicted ones. False: not
 * finite. */
static bool vote(const struct evict_state *v, const struct method_lane *l, const struct observe *o)
{
    const struct tova_state *s = v->head;
    const uint32_t n = l->pos;
    observe_scores(o, l, n - 1, 1);
    for (uint32_t g = 0; g < l->shape->group; g++)
        for (uint32_t t = 0; t < s->n_known; t++)
            if (!evict_state_has(v, s->n_known, t)) o->score[g * o->stride + t] = OBSERVE_NEVER;
    if (!observe_vote(o, l, l->shape->group, n)) return false;
    for (uint32_t t = 0; t < n; t++)
        v->value[t] = evict_state_has(v, s->n_known, t) ? o->vote[t] : -1;
    return true;
}

static void tova_see(const struct method_lane *l)
{
    const struct tova_param *set = l->param;
    struct evict_state v;
    struct observe o;
    struct tova_state *s = cut_state(&v, l->shape, l->state);
    s->n_vote = 0;
    s->not_finite = false;
    if (l->is_prompt || l->pos + 1 < l->sparse_min_ctx) return;
    const bool knows_row = l->past.begin < l->pos && l->past.end >= l->pos;
    if (!knows_row || method_spec_budget(set->budget, l->pos + 1) >= l->pos) return;
    observe_make(&o, l->shape, l->scratch);
    s->not_finite = !vote(&v, l, &o);
    s->n_vote = l->pos;
}

/* Sums the votes of the layer's heads, all of which keep the same tokens, into value [n]. Heads
 * whose votes are not finite, which are dense, are left out. */
static void sum_votes(float *value, const struct method_lane *l, uint32_t n)
{
    memset(value, 0, n * sizeof *value);
    for (uint32_t h = 0; h < l->shape->geom->n_kv_head; h++) {
        struct evict_state v;
        evict_state_of_head(&v, l, h, sizeof(struct tova_state));
        if (((const struct tova_state *)v.head)->not_finite) continue;
        meter_read(l, v.value, n * sizeof *value);
        for (uint32_t t = 0; t < n; t++) value[t] += v.value[t];
    }
}

/* Keeps the tokens with the most votes, as many as the budget allows. */
static void evict(const struct evict_state *v, const float *value, uint32_t n, uint32_t budget)
{
    struct pick_cut cut = pick_best(value, n, budget);
    for (uint32_t t = 0; t < n; t++)
        evict_state_set(v, t, pick_takes(&cut, value[t]) && value[t] >= 0);
}

static void tova_select(const struct method_lane *l, struct method_pick *out)
{
    const struct tova_param *set = l->param;
    struct evict_state v;
    struct observe o;
    struct tova_state *s = cut_state(&v, l->shape, l->state);
    observe_make(&o, l->shape, l->scratch);
    if (s->not_finite) {
        pick_not_finite(out);
        return;
    }
    if (s->n_vote > 0) {
        sum_votes(o.sum, l, l->pos);
        evict(&v, o.sum, l->pos, method_spec_budget(set->budget, l->pos + 1));
        s->n_known = l->pos;
    }
    if (s->n_known == 0) {
        pick_dense(out);
        return;
    }
    pick_kept(out, v.mask, min_u32(pick_page_count(l), pick_whole_pages(s->n_known)), 0,
              s->n_known);
    pick_range(out, l, s->n_known, l->pos + 1);
}

static void tova_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct tova_state *x = state;
    (void)s;
    (void)param;
    x->n_vote = 0;
    x->n_known = min_u32(x->n_known, n_tok);
}

static bool tova_sound(const struct method_loaded *l)
{
    const struct tova_state *x = l->state;
    uint8_t flag;
    memcpy(&flag, &x->not_finite, 1);
    return flag <= 1 && x->n_known <= l->n_tok && x->n_vote <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = tova_state_bytes,
    .scratch_bytes = tova_scratch_bytes,
    .past_rows = tova_past_rows,
    .see = tova_see,
    .select = tova_select,
    .cut = tova_cut,
    .sound = tova_sound,
};

static const sac_method_deviation deviations[] = {
    {"rows of the prompt evict tokens too, once the budget is full",
     "the whole prompt is computed, then its last row reduces it to the budget",
     "the prompt is computed before decode methods run",
     "other comparisons of the method do the same"},
};

const struct method tova_method = {
    METHOD_DECODE(tova,
                  "all but the tokens that the last row attended to least; each step evicts one"),
    .paper = "Oren et al., Transformers are Multi-State RNNs, arXiv 2401.06104",
    .about = "Memory is bounded by the budget from the end of the prompt on. The heads of a layer "
             "agree on one set of tokens, in which the least attended one makes room for the "
             "newest. An evicted token cannot be read again.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .needs_question = true,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
