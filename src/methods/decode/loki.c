/* loki.c: tokens scored along the keys' principal axes, Loki (Singhania et al., NeurIPS 2024).
 *
 * Keys lie near a subspace of few dimensions: their first `rank` coordinates along their principal
 * axes score all tokens, and of the best the whole keys and values are read. The paper finds the
 * axes offline, on a separate text, for each layer and head; here they are those of the prompt's
 * own keys, after rotation by position, found at the first decode row. Keys stay unchanged, with
 * the coordinates stored beside them (the paper stores rotated keys and reads a part of them). */
#include "methods/pick.h"
#include "methods/project.h"
#include "methods/rule.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "25%", 1, "tokens selected, in addition to those always read")               \
    P(SHARE, rank, "0.25", "share of the axes used for scoring, rounded down to whole ones")       \
    P(TOKENS, recent, "32", 0, 4096, "most recent tokens, always read")
METHOD_PARAMS(loki, PARAMS)

#define SAMPLE_MAX 1024u /* keys, evenly spaced in the prompt, that determine the axes */

static size_t loki_state_bytes(const struct method_shape *s, const void *param)
{
    struct project p;
    (void)param;
    return project_make(&p, s, NULL);
}

static size_t loki_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct project_work w;
    (void)param;
    return project_work_make(&w, s, SAMPLE_MAX * (size_t)s->geom->head_dim, NULL);
}

/* Finds the principal axes of the prompt's keys. False: not finite. */
static bool learn(const struct project *p, const struct method_lane *l,
                  const struct project_work *w)
{
    const struct loki_param *set = l->param;
    const uint32_t d = l->shape->geom->head_dim, n = pick_page_count(l) * PAGE_TOK;
    const uint32_t step = (n + SAMPLE_MAX - 1) / SAMPLE_MAX;
    uint32_t n_sample = 0;
    for (uint32_t page = 0; page < pick_page_count(l); page++) {
        pick_keys(w->r.k, l, page);
        for (uint32_t t = (step - page * PAGE_TOK % step) % step; t < PAGE_TOK; t += step)
            memcpy(w->sample + n_sample++ * (size_t)d, w->r.k + (size_t)t * d,
                   d * sizeof *w->sample);
    }
    p->state->n_axis = project_rank(set->rank, d);
    return project_axes(p->axis, w->sample, n_sample, d, true, w->square);
}

static void loki_select(const struct method_lane *l, struct method_pick *out)
{
    const struct loki_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0);
    struct project p;
    struct project_work w;
    if (budget == 0) return;
    if (!project_ask(&p, &w, l, SAMPLE_MAX * (size_t)l->shape->geom->head_dim, learn, out)) return;
    rule_tokens(out, l, &w.r, budget, 0, set->recent);
}

static void loki_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    (void)param;
    project_cut(state, s, n_tok);
}

static const struct method_decode hooks = {
    .state_bytes = loki_state_bytes,
    .scratch_bytes = loki_scratch_bytes,
    .select = loki_select,
    .cut = loki_cut,
    .sound = project_sound,
};

static const sac_method_deviation deviations[] = {
    {"principal axes are found offline on a text, for each layer and head",
     "they are those of the prompt's own keys, found at the first new token",
     "no per-model table is needed", NULL},
    {"keys are stored in the rotated basis", "coordinates are stored beside the keys",
     "other methods and dense rows read keys unchanged", "memory for another copy of the keys"},
    {"no tokens are always read", "the most recent 32 are; recent=0 leaves them to their scores",
     "they were computed last and have no sealed page yet", NULL},
};

const struct method loki_method = {
    METHOD_DECODE(loki, "tokens scored along the principal axes of the keys"),
    .paper =
        "Singhania et al., Loki: Low-rank Keys for Efficient Sparse Attention, arXiv 2406.02542",
    .about = "Scores all tokens by a few coordinates of their keys, along the principal axes of "
             "the prompt's keys, then reads the best tokens in full. All tokens stay in the cache, "
             "so a question asked late can still be answered, as far as these axes show it.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.n_forced = 31},
    .meets_segments = true,
    .decode = &hooks,
};
