/* loopserve.c: the tokens that the last generated tokens look at, chosen anew every few steps,
 * LoopServe's progressive decoding (Li et al., 2025), Algorithm 3.
 *
 * Decided where the paper is silent (letters of the design notes): the first choice comes when
 * `first` tokens of the answer are there, the row at hand counted (a); until then everything is
 * read, or what the prompt's last rows looked at, as SnapKV has it (b); sinks and the window are
 * kept besides the budget (c); no pooling (d); one set for a KV head, by the sum over its query
 * heads (e). Not in the paper: stagger spreads the choices of the layers over the steps between
 * two, so that a step costs the same as any other; each layer still chooses every `every` steps by
 * its own last queries. */
#include "methods/observe.h"
#include "methods/pick.h"
#include "methods/spec.h"

enum { BUDGET, EVERY, FIRST, WARM, SINK, STAGGER };
enum { WARM_DENSE, WARM_SNAPKV };

static const sac_method_param params[] = {
    {"budget", SAC_PARAM_BUDGET, "1024", 1, 1 << 24, NULL,
     "tokens that a choice takes, besides sinks and newest ones"},
    {"every", SAC_PARAM_INT, "16", 1, 1024, NULL, "steps between choices, and rows that vote"},
    {"first", SAC_PARAM_INT, "16", 1, 1 << 20, NULL, "tokens of an answer before the first choice"},
    {"warm", SAC_PARAM_CHOICE, "dense", 0, 0, "dense|snapkv",
     "until then: everything, or what the prompt's last rows vote for"},
    {"sink", SAC_PARAM_INT, "4", 0, 4096, NULL, "first tokens that are always read"},
    {"stagger", SAC_PARAM_CHOICE, "on", 0, 0, "on|off", "layers choose at different steps"},
};

/* Followed by the mask of a context's pages. */
struct loop_state {
    uint32_t n_seen;   /* tokens so far */
    uint32_t n_out;    /* of them, generated in this turn */
    uint32_t n_chosen; /* tokens that the mask governs; 0: there is none. Later ones are read */
};

static size_t loopserve_state_bytes(const struct method_shape *s, const double *param)
{
    (void)param;
    return sizeof(struct loop_state) + (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * sizeof(uint32_t);
}

static size_t loopserve_scratch_bytes(const struct method_shape *s, const double *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL);
}

static uint32_t loopserve_past_rows(const struct method_shape *s, const double *param)
{
    (void)s;
    return (uint32_t)param[EVERY];
}

static void loopserve_see(const struct method_lane *l)
{
    struct loop_state *s = l->state;
    if (l->is_prompt)
        *s = (struct loop_state){.n_seen = l->pos + l->n_row};
    else
        *s = (struct loop_state){l->pos + 1, s->n_out + 1, s->n_chosen};
}

/* Steps that a layer is behind the first one. */
static uint32_t phase(const struct method_lane *l)
{
    if (l->param[STAGGER] > 0) return 0;
    return l->layer * (uint32_t)l->param[EVERY] / l->shape->geom->n_layer;
}

static bool is_due(const struct method_lane *l, const struct loop_state *s)
{
    const uint32_t first = (uint32_t)l->param[FIRST] + phase(l), every = (uint32_t)l->param[EVERY];
    if (s->n_out < first) return l->param[WARM] > 0 && s->n_chosen == 0;
    return s->n_chosen == 0 || (s->n_out - first) % every == 0;
}

/* The best tokens by the votes of the last rows, the row at hand among them. */
static bool choose(const struct method_lane *l, struct loop_state *s, uint32_t budget)
{
    const uint32_t n = l->pos + 1, every = (uint32_t)l->param[EVERY];
    const uint32_t begin = pick_max(l->past.begin, n > every ? n - every : 0);
    const uint32_t sink = pick_min((uint32_t)l->param[SINK], begin);
    uint32_t *mask = (uint32_t *)(void *)(s + 1);
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    if (!observe_rows(&o, l, begin, n)) return false;
    for (uint32_t t = 0; t < sink; t++) o.sum[t] = -1;
    struct pick_cut cut = pick_best(o.sum, begin, pick_min(budget, begin - sink));
    for (uint32_t i = 0; i <= l->pos / PAGE_TOK; i++) mask[i] = 0;
    for (uint32_t t = 0; t < n; t++)
        if (t < sink || t >= begin || pick_takes(&cut, o.sum[t]))
            mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    s->n_chosen = n;
    return true;
}

static void loopserve_select(const struct method_lane *l, struct method_pick *out)
{
    const uint32_t budget = spec_budget(l->param[BUDGET], l->pos + 1),
                   every = (uint32_t)l->param[EVERY];
    struct loop_state *s = l->state;
    const uint32_t *mask = (const uint32_t *)(const void *)(s + 1);
    if (budget > l->pos) {
        pick_dense(out);
        return;
    }
    if (is_due(l, s)) {
        if (!choose(l, s, budget)) {
            pick_not_finite(out);
            return;
        }
        out->side_bytes = observe_read(l, l->pos + 1 - pick_min(every, l->pos + 1), l->pos + 1);
    }
    if (s->n_chosen == 0) {
        pick_dense(out);
        return;
    }
    const uint32_t n_page = pick_page_count(l);
    for (uint32_t i = 0; i < n_page && i * PAGE_TOK < s->n_chosen; i++) out->mask[i] = mask[i];
    pick_range(out, l, s->n_chosen, l->pos + 1);
}

/* What was chosen with tokens that are gone is forgotten. */
static void loopserve_cut(void *state, const struct method_shape *s, const double *param,
                          uint32_t n_tok)
{
    struct loop_state *x = state;
    (void)s;
    (void)param;
    const uint32_t n_gone = x->n_seen > n_tok ? x->n_seen - n_tok : 0;
    *x = (struct loop_state){.n_seen = x->n_seen - n_gone,
                             .n_out = x->n_out > n_gone ? x->n_out - n_gone : 0,
                             .n_chosen = x->n_chosen > n_tok ? 0 : x->n_chosen};
}

static bool loopserve_sound(const struct method_loaded *l)
{
    const struct loop_state *x = l->state;
    return x->n_seen <= l->n_tok && x->n_out <= x->n_seen && x->n_chosen <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = loopserve_state_bytes,
    .scratch_bytes = loopserve_scratch_bytes,
    .past_rows = loopserve_past_rows,
    .see = loopserve_see,
    .select = loopserve_select,
    .cut = loopserve_cut,
    .sound = loopserve_sound,
};

const struct method loopserve_decode_method = {
    .kind = "decode",
    .name = "loopserve",
    .summary = "tokens that the last generated tokens look at, chosen anew every few steps",
    .paper = "Li et al., LoopServe: An Adaptive Dual-phase LLM Inference Acceleration System for "
             "Multi-Turn Dialogues",
    .about = "Every few tokens the queries of the newest ones vote for what is read until the next "
             "choice, "
             "so the set follows the answer and does not hang on the question's place in the "
             "prompt. All "
             "keys stay; a late needle is found at the next choice. Choosing reads all keys, once "
             "for many "
             "steps.",
    .param = params,
    .n_param = sizeof params / sizeof params[0],
    .token_grain = true,
    .decode = &hooks,
};
