/* raas.c: pages unused for a long time are evicted, RaaS (Hu et al., 2025).
 *
 * For long chains of thought: milestone tokens are attended to for a while and then never again.
 * Every step renews the timestamps of the pages whose estimated share of the attention is above
 * `stamp`; when there are more pages than the budget holds, the one with the oldest timestamp is
 * evicted. The estimate is Quest's, softmax shares of the boxes' bounds, mean over the query heads.
 * As in the paper all pages of the prompt are kept; prompt=age treats them like any other, for
 * prompts longer than the budget. Decided here: among pages with equal timestamps the one with the
 * smallest estimate is evicted. */
#include "methods/box.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens kept in the cache")                                       \
    P(SHARE, stamp, "0.0001", "estimated share of the attention that renews a page's timestamp")   \
    P(CHOICE, prompt, "keep", "keep|age", "pages of the prompt are kept, or age too")
METHOD_PARAMS(raas, PARAMS)

/* Followed by a timestamp for each page of a context: the position of the last row that renewed it,
 * or GONE for an evicted page. */
struct raas_state {
    uint32_t n_prompt; /* tokens up to the end of the last prompt */
    uint32_t n_page;   /* pages that have a timestamp */
    uint32_t n_gone;   /* evicted pages */
};
#define GONE UINT32_MAX

static size_t raas_state_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return sizeof(struct raas_state) + (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK * sizeof(uint32_t);
}

/* Side data as quest's, with page=32. */
static size_t raas_side_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return box_bytes(s, BOX_BOUND);
}

static void raas_seal(uint8_t *side, const struct method_shape *s, const void *param,
                      const float *k)
{
    (void)param;
    box_seal(side, s, BOX_BOUND, k);
}

static void raas_see(const struct method_lane *l)
{
    struct raas_state *s = l->state;
    if (l->is_prompt)
        s->n_prompt = l->pos + l->n_row;
    else if (s->n_prompt == 0)
        s->n_prompt = l->pos;
}

/* Lists the pages that are not evicted in r->list, with their estimated shares of the attention in
 * r->vote. False: not finite. */
static bool estimate(const struct select_scratch *r, const struct method_lane *l,
                     const uint32_t *stamp, uint32_t *n_live)
{
    struct method_lane live = *l;
    uint32_t n = 0;
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        if (stamp[i] == GONE) continue;
        r->list[n] = i;
        r->id[n++] = l->page[i];
    }
    assert(n <= pick_page_count(l));
    live.page = r->id;
    live.pos = n * PAGE_TOK;
    *n_live = n;
    box_score(r, &live, BOX_BOUND);
    return box_vote(r, &live);
}

/* Whether a page is a prompt's, and therefore never evicted (prompt=keep). */
static bool is_kept(const struct method_lane *l, uint32_t page)
{
    const struct raas_param *set = l->param;
    const struct raas_state *s = l->state;
    return set->prompt == 0 && page * PAGE_TOK < s->n_prompt;
}

/* The index in r->list of the page to evict next: that with the oldest timestamp, of several the
 * one with the smallest estimate. UINT32_MAX: none may be evicted. */
static uint32_t oldest(const struct select_scratch *r, const struct method_lane *l,
                       const uint32_t *stamp, uint32_t n_live)
{
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < n_live; i++) {
        const uint32_t page = r->list[i];
        if (is_kept(l, page) || stamp[page] == GONE) continue;
        if (best == UINT32_MAX || stamp[page] < stamp[r->list[best]] ||
            (stamp[page] == stamp[r->list[best]] && r->vote[i] < r->vote[best]))
            best = i;
    }
    return best;
}

static void raas_select(const struct method_lane *l, struct method_pick *out)
{
    const struct raas_param *set = l->param;
    const uint32_t budget = method_spec_budget(set->budget, l->pos + 1),
                   n_page = pick_page_count(l);
    struct raas_state *s = l->state;
    uint32_t *stamp = (uint32_t *)(void *)(s + 1), n_live = 0;
    struct select_scratch r;
    if (budget > l->pos && s->n_gone == 0) {
        pick_dense(out);
        return;
    }
    for (; s->n_page < n_page; s->n_page++) stamp[s->n_page] = s->n_page * PAGE_TOK;
    select_scratch_make(&r, l->shape, false, l->scratch);
    if (!estimate(&r, l, stamp, &n_live)) {
        pick_not_finite(out);
        return;
    }
    for (uint32_t i = 0; i < n_live; i++)
        if (r.vote[i] > (float)set->stamp) stamp[r.list[i]] = l->pos;
    const uint32_t own = l->pos % PAGE_TOK + 1,
                   n_can = budget > own ? (budget - own) / PAGE_TOK : 0;
    for (uint32_t n = n_live, i; n > n_can; n--) {
        if ((i = oldest(&r, l, stamp, n_live)) == UINT32_MAX) break;
        assert(!is_kept(l, r.list[i]));
        stamp[r.list[i]] = GONE;
        s->n_gone++;
    }
    assert(s->n_page >= n_page);
    if (s->n_gone == 0) {
        pick_dense(out);
        return;
    }
    for (uint32_t i = 0; i < n_page; i++) {
        if (stamp[i] == GONE) continue;
        if (is_kept(l, i))
            pick_range(out, l, i * PAGE_TOK, (i + 1) * PAGE_TOK);
        else
            pick_page(out, i);
    }
}

static void raas_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct raas_state *x = state;
    uint32_t *stamp = (uint32_t *)(void *)(x + 1);
    (void)s;
    (void)param;
    x->n_prompt = min_u32(x->n_prompt, n_tok);
    x->n_page = min_u32(x->n_page, n_tok / PAGE_TOK);
    x->n_gone = 0;
    for (uint32_t i = 0; i < x->n_page; i++) {
        x->n_gone += stamp[i] == GONE;
        if (stamp[i] != GONE) stamp[i] = min_u32(stamp[i], n_tok);
    }
}

/* Every freed page must have the timestamp GONE, because scoring reads all others. */
static bool raas_sound(const struct method_loaded *l)
{
    const struct raas_state *x = l->state;
    const uint32_t *stamp = (const uint32_t *)(const void *)(x + 1);
    if (x->n_page > l->n_tok / PAGE_TOK) return false;
    for (uint32_t i = 0; i < l->n_tok / PAGE_TOK; i++)
        if (l->page[i] == PAGE_NONE && (i >= x->n_page || stamp[i] != GONE || x->n_gone == 0))
            return false;
    return true;
}

static const struct method_decode hooks = {
    .state_bytes = raas_state_bytes,
    .side_bytes = raas_side_bytes,
    .scratch_bytes = select_scratch_page_bytes,
    .seal = raas_seal,
    .see = raas_see,
    .select = raas_select,
    .cut = raas_cut,
    .sound = raas_sound,
};

static const sac_method_deviation deviations[] = {
    {"pages of 16 tokens", "of 32", "cache pages are freed as a whole", NULL},
    {"the better half of the pages, or those above a threshold, get the new timestamp",
     "those above the threshold", "the paper has both", NULL},
    {"silent on pages with equal timestamps", "the one with the smallest estimate is evicted",
     "ties must be broken", NULL},
    {"pages of the prompt are never evicted", "the same; prompt=age evicts them too",
     "prompts here are often longer than the budget", NULL},
};

const struct method raas_method = {
    METHOD_DECODE(raas,
                  "pages that recent steps attended to; those unused for longest are evicted"),
    .paper =
        "Hu et al., Efficient Long-Decoding Inference with Reasoning-Aware Attention Sparsity, "
        "arXiv 2502.11147",
    .about =
        "Made for long answers: when the budget is full, the page that no step has attended to for "
        "the longest time is evicted, so memory and time are bounded by the budget. The whole "
        "prompt is kept unless prompt=age. A page that is needed again after its eviction is lost.",
    METHOD_DEVIATIONS(deviations),
    .evicts = true,
    .needs_question = true,
    .facts = {.part = "prompt=age", .budget = METHOD_BUDGET_LIVES, .n_late = METHOD_NEVER},
    .decode = &hooks,
};
