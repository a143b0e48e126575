/* h2o.c: heavy hitters, the tokens with the largest attention summed over all queries, and the
 * most recent ones, H2O (Zhang et al., NeurIPS 2023).
 *
 * As in the authors' dropping class: the most recent tokens are kept, and the best of the
 * others; each step adds the softmax shares over the tokens kept, then the least of the others
 * makes room. Decided here: one set per KV head, by the sum over its query heads. Attention does
 * not return its weights, so the sums of a prompt are recomputed after it, from the queries of
 * all its rows: memory for the queries of a whole context, and as many products again as the
 * prompt's attention had. With window=N only the last N rows count, the "tail" form of most
 * ports. Weights of a step are computed here once more from the kept keys, whose pages are read
 * whole for it, and counted. */
#include "methods/evict_state.h"
#include "methods/meter.h"
#include "methods/method_spec.h"
#include "methods/observe.h"
#include "methods/pick.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "20%", 1, "tokens kept in the cache")                                        \
    P(SHARE, heavy, "0.5",                                                                         \
      "share of the budget for heavy hitters; the rest is for the most recent tokens")             \
    P(COUNT, window, "0", 0, 1 << 20, "last prompt tokens whose attention counts; 0: all")         \
    P(CHOICE, norm, "sum", "sum|mean",                                                             \
      "attention as a sum, or averaged over the rows that could see the token")
METHOD_PARAMS(h2o, PARAMS)

struct h2o_state {
    uint32_t n_known; /* tokens that the mask covers; 0: nothing has been evicted */
    uint32_t n_row;   /* rows whose attention the sums include */
    bool learnt;      /* the sums include the prompt's rows */
};

static struct h2o_state *cut_state(struct evict_state *v, const struct method_shape *s, void *state)
{
    evict_state_make(v, s, state, sizeof(struct h2o_state));
    return v->head;
}

static size_t h2o_state_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return evict_state_bytes(s, sizeof(struct h2o_state));
}

/* The scratch of observe.h, followed by the list of the kept tokens. */
static size_t h2o_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL) + (s->n_ctx + PAGE_TOK) * sizeof(uint32_t);
}

static uint32_t h2o_past_rows(const struct method_shape *s, const void *param)
{
    const struct h2o_param *set = param;
    return set->window > 0 ? min_u32(set->window, s->n_ctx) : s->n_ctx;
}

static void h2o_see(const struct method_lane *l)
{
    struct h2o_state *s = l->state;
    if (l->is_prompt) s->learnt = false;
}

/* Sets the accumulated attention to that of the prompt's rows. False: not finite. */
static bool sum_prompt(const struct evict_state *v, const struct method_lane *l,
                       const struct observe *o)
{
    const uint32_t n = l->pos, window = h2o_past_rows(l->shape, l->param);
    const uint32_t begin = max_u32(l->past.begin, n > window ? n - window : 0);
    if (begin < n && !observe_rows(o, l, begin, n)) return false;
    for (uint32_t t = 0; t < n; t++) v->value[t] = begin < n ? o->sum[t] : 0;
    assert(begin <= n);
    struct h2o_state *s = v->head;
    s->n_row = n - begin;
    s->learnt = true;
    return true;
}

/* The accumulated attention of a token; with norm=mean, per row that could attend to it. */
static float rank_value(const struct evict_state *v, const struct method_lane *l, uint32_t tok)
{
    const struct h2o_param *set = l->param;
    const struct h2o_state *s = v->head;
    const uint32_t n_seen = min_u32(s->n_row, l->pos - tok);
    return set->norm > 0 ? v->value[tok] / (float)max_u32(n_seen, 1) : v->value[tok];
}

/* The part of the budget for the most recent tokens, the row's own included. */
static uint32_t count_recent(const struct method_lane *l, uint32_t budget)
{
    const struct h2o_param *set = l->param;
    const uint32_t n_heavy = (uint32_t)(set->heavy * budget);
    return min_u32(max_u32(budget - n_heavy, 1), l->pos + 1);
}

/* Reduces the kept tokens to `budget`: the most recent ones, and the heavy hitters of the others.
 * `value` has room for all tokens. */
static void evict(const struct evict_state *v, const struct method_lane *l, uint32_t budget,
                  float *value)
{
    struct h2o_state *s = v->head;
    const uint32_t n = l->pos + 1, n_recent = count_recent(l, budget), n_old = n - n_recent;
    uintptr_t line = 0;
    for (uint32_t t = 0; t < n_old; t++) {
        const bool is_kept = evict_state_has(v, s->n_known, t);
        if (is_kept) line = meter_entry(l, &v->value[t], line);
        value[t] = is_kept ? rank_value(v, l, t) : -1;
    }
    struct pick_cut cut = pick_best(value, n_old, budget - n_recent);
    for (uint32_t t = 0; t < n; t++)
        evict_state_set(v, t,
                        t >= n_old ? evict_state_has(v, s->n_known, t)
                                   : pick_takes(&cut, value[t]) && value[t] >= 0);
    s->n_known = n;
}

/* Adds the row's softmax shares over the kept tokens, its own included, to the accumulated
 * attention. False: not finite. */
static bool add_row(const struct evict_state *v, const struct method_lane *l,
                    const struct observe *o)
{
    uint32_t *tok = o->rest;
    uintptr_t line = 0;
    const uint32_t n = observe_tokens(o, l, v->mask, tok);
    if (!observe_vote(o, l, l->shape->group, n)) return false;
    for (uint32_t i = 0; i < n; i++) {
        line = meter_entry(l, &v->value[tok[i]], line);
        v->value[tok[i]] += (float)l->shape->group * o->vote[i];
    }
    ((struct h2o_state *)v->head)->n_row++;
    return true;
}

static void h2o_select(const struct method_lane *l, struct method_pick *out)
{
    const struct h2o_param *set = l->param;
    const uint32_t budget = method_spec_budget(set->budget, l->pos + 1);
    struct evict_state v;
    struct observe o;
    struct h2o_state *s = cut_state(&v, l->shape, l->state);
    if (budget > l->pos && s->n_known == 0) {
        pick_dense(out);
        return;
    }
    observe_make(&o, l->shape, l->scratch);
    if (!s->learnt) {
        meter_build(l);
        const bool finite = sum_prompt(&v, l, &o);
        meter_choose(l);
        if (!finite) {
            pick_not_finite(out);
            return;
        }
    }
    v.value[l->pos] = 0;
    evict(&v, l, budget, o.sum);
    if (!add_row(&v, l, &o)) {
        pick_not_finite(out);
        return;
    }
    pick_kept(out, v.mask, pick_page_count(l), 0, l->pos + 1 - count_recent(l, budget));
}

/* Evicted tokens stay so; the sums include rows that are gone, so they are computed anew. */
static void h2o_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct h2o_state *x = state;
    (void)s;
    (void)param;
    x->learnt = false;
    x->n_known = min_u32(x->n_known, n_tok);
}

static bool h2o_sound(const struct method_loaded *l)
{
    const struct h2o_state *x = l->state;
    uint8_t flag;
    memcpy(&flag, &x->learnt, 1);
    return flag <= 1 && x->n_known <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = h2o_state_bytes,
    .scratch_bytes = h2o_scratch_bytes,
    .past_rows = h2o_past_rows,
    .see = h2o_see,
    .select = h2o_select,
    .cut = h2o_cut,
    .sound = h2o_sound,
};

static const sac_method_deviation deviations[] = {
    {"attention of all rows is accumulated while the prompt is computed",
     "it is recomputed after the prompt, from the stored queries of all rows; window=N uses the "
     "last N only",
     "the attention kernel does not return its weights",
     "memory for the queries of a whole context and the time of a second prompt"},
    {"a set of tokens for each query head", "one per KV head, by the sum over its query heads",
     "keys are stored once for the group", NULL},
    {"one prompt", "after a further prompt all sums are recomputed, over the tokens still kept",
     "conversations have several", NULL},
};

const struct method h2o_method = {
    METHOD_DECODE(h2o, "heavy hitters (most accumulated attention) and the most recent tokens; the "
                       "rest is evicted"),
    .paper = "Zhang et al., H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large "
             "Language Models, arXiv 2306.14048",
    .about = "Accumulates the attention that each token receives. When the budget is reached it "
             "evicts the token with the least, and frees pages in which no token is left. Old "
             "tokens have had time to accumulate attention and stay; new ones are evicted. An "
             "evicted token cannot be read again. The attention of all prompt rows is computed a "
             "second time after the prompt, which takes memory for their queries and the time of "
             "another prompt; window=128 uses only the last rows, as most ports do.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .evicts = true,
    .needs_question = true,
    .facts = {.budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
