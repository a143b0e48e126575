/* psa.c: pages from the most to the least promising until an estimate says that enough of the
 * attention has been seen, Progressive Sparse Attention (Zhou et al., 2025), Algorithm 1.
 *
 * What is seen is kept as ln A, the log-sum-exp of all logits read, for each query head; `lmin` is
 * the smallest log-sum-exp of a page visited. With n pages left the coverage is estimated as A / (A
 * + n exp(lmin)). Decided here (the paper is silent): first come the sink page, the newest pages
 * and the row's own, which count for A but not for lmin; the order is that of arkvale's digest,
 * shared by the heads of a KV head (box_vote); the heads stop together, when the last has enough.
 * Visiting is exact, and a page is visited once: its keys and values are read together, and what
 * attention would make of them is kept (partial.h). So a page costs what attention pays for it, and
 * is counted so. Only the keys of the row's own page are read twice. */
#include "methods/box.h"
#include "methods/meter.h"
#include "methods/partial.h"
#include "methods/pick.h"
#include "ops/page_lines.h"

#define PARAMS(P)                                                                                  \
    P(SHARE, mass, "0.95", "share of the attention that is to be seen")                            \
    P(CHOICE, rest, "min", "min|last",                                                             \
      "mass of a page not seen: the least of those seen, or the mean of the last step's")          \
    P(COUNT, step, "1", 1, 64, "pages between two looks at the estimate")                          \
    P(COUNT, dense, "0", 0, 1024, "first layers that read everything")                             \
    P(TOKENS, recent, "64", 0, 4096,                                                               \
      "newest tokens before the row's own page that are always read, up to whole pages")
METHOD_PARAMS(psa, PARAMS)

static size_t psa_side_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return box_bytes(s, BOX_MEAN);
}

static void psa_seal(uint8_t *side, const struct method_shape *s, const void *param, const float *k)
{
    (void)param;
    box_seal(side, s, BOX_MEAN, k);
}

/* ln(exp(a) + exp(b)); -infinity is an empty sum. */
static float log_add(float a, float b)
{
    const float hi = fmaxf(a, b), lo = fminf(a, b);
    return lo == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}

enum { BATCH = 64 }; /* pages that are put in order at a time */

struct progress {
    struct partial part;          /* of the pages visited */
    float *v;                     /* [PAGE_TOK, head_dim] */
    float seen[METHOD_GROUP_MAX]; /* ln A */
    float rest[METHOD_GROUP_MAX]; /* ln of the mass expected of a page not seen */
    bool finite;
    uint32_t order[BATCH], n_order, at; /* best pages not visited yet, the next at `at` */
};

/* Sees some keys for all query heads: their logits [group, PAGE_TOK], and in page_lse [group] the
 * logs of the sums. */
static void see_keys(struct progress *p, const struct method_lane *l, const float *k,
                     uint32_t n_tok, float *logit, float *page_lse)
{
    float share[PAGE_TOK];
    pick_group_logits(logit, PAGE_TOK, l, k, n_tok);
    l->ops->vote(&(struct op_vote){.score = logit,
                                   .score_stride = PAGE_TOK,
                                   .n = n_tok,
                                   .group = l->shape->group,
                                   .vote = share,
                                   .lse = page_lse});
    for (uint32_t g = 0; g < l->shape->group; g++) {
        p->seen[g] = log_add(p->seen[g], page_lse[g]);
        p->finite = p->finite && isfinite(p->seen[g]);
    }
}

/* Reads a page that is marked. */
static void visit(struct progress *p, const struct method_lane *l, const struct room *r,
                  uint32_t page)
{
    float logit[METHOD_GROUP_MAX * PAGE_TOK];
    pick_visit(r->k, p->v, l, page);
    see_keys(p, l, r->k, PAGE_TOK, logit, r->lse);
    partial_add(&p->part, l, logit, p->v);
}

static void visit_mandatory(struct progress *p, const struct method_lane *l, const struct room *r,
                            struct method_pick *out)
{
    const struct psa_param *set = l->param;
    const uint32_t n = pick_page_count(l);
    for (uint32_t g = 0; g < l->shape->group; g++) {
        p->seen[g] = -INFINITY;
        p->rest[g] = INFINITY;
    }
    float logit[METHOD_GROUP_MAX * PAGE_TOK];
    const uint32_t n_own = pick_own(r->k, NULL, l);
    see_keys(p, l, r->k, n_own, logit, r->lse);
    pick_end_pages(out, l, PAGE_TOK, set->recent);
    for (uint32_t i = 0; i < n; i++) {
        if (!out->mask[i]) continue;
        visit(p, l, r, i);
        r->vote[i] = -1;
    }
}

static bool has_enough(const struct progress *p, const struct method_lane *l, uint32_t n_left)
{
    const struct psa_param *set = l->param;
    if (n_left == 0) return true;
    for (uint32_t g = 0; g < l->shape->group; g++) {
        const double others = n_left * exp((double)(p->rest[g] - p->seen[g]));
        if (!(1 / (1 + others) > set->mass)) return false;
    }
    return true;
}

/* The next page in order: by its vote, then by its number. Votes of pages that are in order or
 * visited are -1. */
static uint32_t next_page(struct progress *p, const struct room *r, uint32_t n, uint32_t n_left)
{
    if (p->at < p->n_order) return p->order[p->at++];
    assert(n_left > 0 && n_left <= n);
    struct pick_cut cut = pick_best(r->vote, n, pick_min(BATCH, n_left));
    float vote[BATCH];
    p->n_order = 0;
    for (uint32_t page = 0; page < n; page++) {
        if (!pick_takes(&cut, r->vote[page])) continue;
        assert(p->n_order < BATCH);
        uint32_t i = p->n_order++;
        for (; i > 0 && vote[i - 1] < r->vote[page]; i--) {
            vote[i] = vote[i - 1];
            p->order[i] = p->order[i - 1];
        }
        vote[i] = r->vote[page];
        p->order[i] = page;
    }
    assert(p->n_order > 0);
    for (uint32_t i = 0; i < p->n_order; i++) r->vote[p->order[i]] = -1;
    p->at = 1;
    return p->order[0];
}

static void progress_to_mass(struct progress *p, const struct method_lane *l, const struct room *r,
                             struct method_pick *out)
{
    const struct psa_param *set = l->param;
    const uint32_t n = pick_page_count(l), group = l->shape->group;
    uint32_t n_left = 0;
    for (uint32_t i = 0; i < n; i++) n_left += !out->mask[i];
    while (p->finite && !has_enough(p, l, n_left)) {
        float last[METHOD_GROUP_MAX];
        const uint32_t n_step = pick_min(set->step, n_left);
        for (uint32_t g = 0; g < group; g++) last[g] = -INFINITY;
        for (uint32_t i = 0; i < n_step; i++) {
            const uint32_t page = next_page(p, r, n, n_left - i);
            pick_page(out, page);
            visit(p, l, r, page);
            for (uint32_t g = 0; g < group; g++) {
                last[g] = log_add(last[g], r->lse[g]);
                p->rest[g] = fminf(p->rest[g], r->lse[g]);
            }
        }
        for (uint32_t g = 0; g < group && set->rest > 0; g++)
            p->rest[g] = last[g] - logf((float)n_step);
        assert(n_step > 0 && n_step <= n_left);
        n_left -= n_step;
    }
}

/* Everything is read after all, and what was visited once more. */
static void give_up(const struct method_lane *l, struct method_pick *out)
{
    const struct page_geom *g = l->shape->geom;
    for (uint32_t i = 0; i < pick_page_count(l); i++)
        if (out->mask[i]) meter_bytes(l, page_all_keys(g) + page_all_values(g));
    pick_not_finite(out);
}

static size_t psa_scratch_bytes(const struct method_shape *s, const void *param)
{
    return room_page_bytes(s, param) + PAGE_TOK * (size_t)s->geom->head_dim * sizeof(float);
}

static void psa_select(const struct method_lane *l, struct method_pick *out)
{
    const struct psa_param *set = l->param;
    struct room r;
    struct progress p = {.finite = true};
    if (set->mass >= 1 || l->layer < set->dense) {
        pick_dense(out);
        return;
    }
    p.v = (float *)(void *)((uint8_t *)l->scratch + room_make(&r, l->shape, false, l->scratch));
    partial_begin(&p.part, l, out);
    box_score(&r, l, BOX_MEAN);
    p.finite = box_vote(&r, l);
    visit_mandatory(&p, l, &r, out);
    progress_to_mass(&p, l, &r, out);
    if (p.finite)
        partial_end(&p.part, l, out);
    else
        give_up(l, out);
}

static const struct method_decode hooks = {
    .side_bytes = psa_side_bytes,
    .scratch_bytes = psa_scratch_bytes,
    .seal = psa_seal,
    .select = psa_select,
};

static const sac_method_deviation deviations[] = {
    {"pages are loaded from the host while earlier ones are visited, with a kernel that stops the "
     "loading",
     "every page is in memory: no loading", "there is no second tier of memory",
     "none on answers; the paper's throughput cannot be compared"},
    {"one pool of pages for all layers and requests, those used longest ago leave it", "absent",
     "the same", "none on answers"},
    {"silent on heads that share keys",
     "pages are ordered by softmax shares, mean over the heads, and visited until the last head "
     "has enough",
     "a page that is read for one head costs nothing more for the others",
     "more pages at equal KL than a fixed number of them needs: measured_before.md, What the "
     "papers say "
     "of each other's methods"},
    {"silent on pages that are always read",
     "the first page, the newest ones and the row's own count as seen, and not for the least page",
     "a page that is not full would stop the visit at once", NULL},
};

const struct method psa_method = {
    .kind = "decode",
    .name = "psa",
    .summary = "pages in order of promise until the seen share of the attention is enough",
    .paper =
        "Zhou et al., Progressive Sparse Attention: Algorithm and System Co-design for Efficient "
        "Attention in LLM Serving, arXiv 2503.00392",
    .about =
        "Has no budget: it visits pages from the most promising on and stops when the mass seen is "
        "the wanted share of an estimate of all, so that flat heads read more and sharp ones less. "
        "The estimate takes every page not seen for the least of those seen. That is optimistic "
        "where the order is wrong. It finds late what it is asked for late.",
    .params = &psa_params,
    .deviation = deviations,
    .n_deviation = sizeof deviations / sizeof deviations[0],
    .chooses = true,
    .has_rest = true,
    .facts = {.part = "mass=0.5", .whole = "mass=1", .n_forced = 3 * PAGE_TOK},
    .meets_segments = true,
    .decode = &hooks,
};
