/* infinigen.c: tokens scored along the few directions in which the queries are large, InfiniGen
 * (Lee et al., OSDI 2024).
 *
 * Queries are rotated into the basis of their principal axes, where few coordinates hold most of
 * them; keys are kept in the same basis, the `rank` strongest coordinates of each. A token is
 * wanted when its partial score is within `alpha` of the head's best; as many are read as the heads
 * want on average, at most `budget`. Decided here: the axes are those of the prompt's last `window`
 * queries, after rotation by position, found at the first decode row (the paper: of a sample text,
 * offline); one set per KV head, by softmax shares of the partial scores. The paper predicts the
 * query from the input of the previous layer, so that keys can be fetched in time; with all keys in
 * one memory there is nothing to fetch, and the query is the true one, so its results are upper
 * bounds of the paper's. */
#include "methods/pick.h"
#include "methods/project.h"
#include "methods/rule.h"

#include <assert.h>
#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "20%", 1, "tokens selected, at most")                                        \
    P(NUMBER, alpha, "5", 0, 100,                                                                  \
      "largest distance from the best score at which a token is selected")                         \
    P(SHARE, rank, "0.2", "share of the coordinates used for scoring, rounded down to whole ones") \
    P(COUNT, dense, "1", 0, 1024, "first layers, which use dense attention")                       \
    P(COUNT, window, "32", 1, 1024, "last prompt tokens whose queries determine the axes")
METHOD_PARAMS(infinigen, PARAMS)

static size_t infinigen_state_bytes(const struct method_shape *s, const void *param)
{
    struct project p;
    (void)param;
    return project_make(&p, s, NULL);
}

static size_t sample_floats(const struct method_shape *s, const void *param)
{
    const struct infinigen_param *set = param;
    return ((size_t)set->window + 1) * s->group * s->geom->head_dim;
}

static size_t infinigen_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct project_work w;
    return project_work_make(&w, s, sample_floats(s, param), NULL);
}

static uint32_t infinigen_past_rows(const struct method_shape *s, const void *param)
{
    const struct infinigen_param *set = param;
    (void)s;
    return set->window;
}

/* Finds the principal axes of the last `window` rows' queries. False: not finite. */
static bool learn(const struct project *p, const struct method_lane *l,
                  const struct project_work *w)
{
    const struct infinigen_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, group = l->shape->group;
    const uint32_t window = set->window;
    const size_t width = (size_t)group * d;
    uint32_t n = 0;
    for (uint32_t row = max_u32(l->past.begin, l->pos > window ? l->pos - window : 0); row < l->pos;
         row++)
        memcpy(w->sample + n++ * width, method_past_query(&l->past, row, width),
               width * sizeof *w->sample);
    memcpy(w->sample + n++ * width, l->q, width * sizeof *w->sample);
    p->state->n_axis = project_rank(set->rank, d);
    return project_axes(p->axis, w->sample, n * group, d, false, w->square);
}

/* The number of tokens whose score is within alpha of their head's best, mean over the heads. */
static uint32_t count_wanted(const struct select_scratch *r, const struct method_lane *l,
                             uint32_t n)
{
    const struct infinigen_param *set = l->param;
    uint64_t n_wanted = 0;
    assert(l->shape->group > 0);
    for (uint32_t g = 0; g < l->shape->group; g++) {
        const float *score = r->score + g * r->stride;
        float best = -INFINITY;
        for (uint32_t t = 0; t < n; t++) best = fmaxf(best, score[t]);
        for (uint32_t t = 0; t < n; t++) n_wanted += score[t] > best - (float)set->alpha;
    }
    return (uint32_t)(n_wanted / l->shape->group);
}

static void infinigen_select(const struct method_lane *l, struct method_pick *out)
{
    const struct infinigen_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, set->dense);
    const uint32_t n = pick_page_count(l) * PAGE_TOK;
    struct project p;
    struct project_work w;
    if (budget == 0) return;
    if (!project_ask(&p, &w, l, sample_floats(l->shape, set), learn, out)) return;
    const uint32_t n_wanted = min_u32(count_wanted(&w.r, l, n), budget);
    struct pick_cut cut = pick_best(w.r.vote, n, n_wanted);
    for (uint32_t t = 0; t < n; t++)
        if (pick_takes(&cut, w.r.vote[t])) pick_token(out, t);
}

static void infinigen_cut(void *state, const struct method_shape *s, const void *param,
                          uint32_t n_tok)
{
    (void)param;
    project_cut(state, s, n_tok);
}

static const struct method_decode hooks = {
    .state_bytes = infinigen_state_bytes,
    .scratch_bytes = infinigen_scratch_bytes,
    .past_rows = infinigen_past_rows,
    .select = infinigen_select,
    .cut = infinigen_cut,
    .sound = project_sound,
};

static const sac_method_deviation deviations[] = {
    {"the query is predicted from the previous layer, so that keys can be fetched in time",
     "scores use the true query", "all keys are in one memory",
     "accuracy is an upper bound of the paper's"},
    {"axes are found offline, from the queries of a sample text",
     "from the queries of the last 32 prompt tokens, after rotation",
     "models with rotary positions cannot fold the axes into their weights", NULL},
    {"every head of a layer fetches the same number of tokens",
     "each KV head takes as many as its query heads want on average",
     "the numbers need not be equal", NULL},
    {"rarely used tokens leave host memory", "nothing leaves", "there is no second memory tier",
     "none while the cache fits"},
};

const struct method infinigen_method = {
    METHOD_DECODE(infinigen,
                  "tokens scored along the few directions in which the queries are largest"),
    .paper = "Lee et al., InfiniGen: Efficient Generative Inference of Large Language Models with "
             "Dynamic KV Cache Management, arXiv 2406.19707",
    .about =
        "Scores all tokens by the few coordinates in which the queries at the end of the prompt "
        "are largest, and reads those whose score is near the best, so sharp heads read little. "
        "All tokens stay in the cache, so a question asked late can still be answered. The paper "
        "uses it to prefetch keys from a slower memory; here only the selection is implemented.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "dense=0", .keeps_found = true},
    .meets_segments = true,
    .decode = &hooks,
};
