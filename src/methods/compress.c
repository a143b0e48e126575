/* compress.c: see the header.
 *
 * A lane's state: struct compress_state, the mask of kept tokens, and the votes, which `see` writes
 * for all heads of the layer and `select` only reads. A second prompt (another turn) makes the next
 * decode row select again, among the tokens that were kept and those added since. A dropped token
 * stays dropped, because its page may have been freed. */
#include "methods/compress.h"

#include "base/mem.h"
#include "methods/evict_state.h"
#include "methods/kept.h"
#include "methods/meter.h"
#include "methods/method_spec.h"
#include "methods/observe.h"
#include "methods/pick.h"

#include <string.h>

/* FRESH: prompt rows have come since the last selection. */
enum phase { FRESH, VOTED, CHOSEN };

struct compress_state {
    uint32_t phase;
    uint32_t n_known;   /* the mask covers the tokens before it; later ones are all kept */
    uint32_t n_dropped; /* of them, evicted */
    uint32_t n_vote;    /* context length when the window voted */
    uint32_t n_window;  /* rows that voted */
    uint32_t n_heard;   /* context length when rows that repeat it voted; 0: never */
    bool not_finite;
};

static struct compress_state *cut_state(struct evict_state *v, const struct method_shape *s,
                                        void *state)
{
    evict_state_make(v, s, state, sizeof(struct compress_state));
    return v->head;
}

size_t compress_state_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return evict_state_bytes(s, sizeof(struct compress_state));
}

size_t compress_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    const size_t n_tok = s->n_ctx + PAGE_TOK, own = observe_make(&o, s, NULL);
    const size_t every_head = s->geom->n_kv_head * n_tok * sizeof(float);
    (void)param;
    return own > every_head ? own : every_head;
}

uint32_t compress_past_rows(const struct method_shape *s, const void *param)
{
    const struct compress_param *set = param;
    (void)s;
    return set->window;
}

/* Each token's softmax shares, summed over the window's rows and the query heads: computed here, or
 * by a device. NULL: not finite. */
static const float *window_sums(const struct observe *o, const struct method_lane *l, uint32_t n)
{
    if (!l->looked) return observe_rows(o, l, n, l->pos) ? o->sum : NULL;
    observe_count(l, n, l->pos);
    for (uint32_t t = 0; t < n; t++)
        if (!isfinite(l->looked[t])) return NULL;
    return l->looked;
}

bool compress_shares(const struct method_lane *l, float *vote, uint32_t n)
{
    const float share = 1.0f / (float)l->shape->group;
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    const float *sum = window_sums(&o, l, n);
    for (uint32_t t = 0; sum && t < n; t++) vote[t] = sum[t] * share;
    return sum;
}

static void pool_votes(float *vote, const struct compress_param *set, const float *sum, uint32_t n)
{
    const int32_t half = (int32_t)set->kernel / 2;
    const bool by_max = set->pool > 0;
    for (uint32_t t = 0; t < n; t++) {
        float best = 0, all = 0;
        const uint32_t begin = t > (uint32_t)half ? t - (uint32_t)half : 0;
        const uint32_t end = min_u32(n, t + (uint32_t)half + 1);
        for (uint32_t i = begin; i < end; i++) {
            all += sum[i];
            best = fmaxf(best, sum[i]);
        }
        vote[t] = by_max ? best : all / (float)(2 * half + 1);
    }
}

bool compress_pooled(const struct method_lane *l, float *vote, uint32_t n)
{
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    if (!compress_shares(l, o.vote, n)) return false;
    pool_votes(vote, l->param, o.vote, n);
    return true;
}

uint32_t compress_page(float *k, float *v, const struct method_lane *l, uint32_t page)
{
    assert(page <= pick_page_count(l));
    if (page == pick_page_count(l)) return pick_own(k, v, l);
    if (l->page[page] == PAGE_NONE) return 0;
    if (v)
        pick_keys_values(k, v, l, page);
    else
        pick_keys(k, l, page);
    return PAGE_TOK;
}

/* Finds the first token of the lane's window. False: the budget covers everything, or the queries
 * of the rows that vote are not available. */
static bool find_window(const struct method_lane *l, uint32_t *begin)
{
    const struct compress_param *set = l->param;
    const struct compress_policy *policy = l->family;
    const uint32_t n = l->pos, budget = method_spec_budget(set->budget, n);
    *begin = n - min_u32(n, min_u32(set->window, budget));
    if (!policy->mute) *begin = min_u32(n, max_u32(l->past.begin, *begin));
    return budget < n && (policy->mute || *begin < n);
}

/* Whether a selection is due before the lane's row. Votes cost a scan of all keys, so there are
 * none while the context is too short for sparse attention. */
static bool is_due(const struct method_lane *l, const struct compress_state *s)
{
    return !l->is_prompt && s->phase == FRESH && l->pos + 1 >= l->sparse_min_ctx;
}

void compress_see(const struct method_lane *l)
{
    const struct compress_param *set = l->param;
    const struct compress_policy *policy = l->family;
    struct evict_state v;
    struct compress_state *s = cut_state(&v, l->shape, l->state);
    if (l->layer < set->dense) return;
    if (l->is_prompt) {
        s->phase = FRESH;
        return;
    }
    if (!is_due(l, s)) return;
    const uint32_t n = l->pos;
    uint32_t begin;
    s->phase = CHOSEN;
    s->n_vote = n;
    s->n_window = 0;
    s->not_finite = false;
    if (!find_window(l, &begin)) return;
    s->phase = VOTED;
    s->n_window = n - begin;
    meter_build(l);
    s->not_finite = !policy->vote(l, v.value, begin);
    meter_choose(l);
    for (uint32_t t = 0; t < begin; t++)
        if (!evict_state_has(&v, s->n_known, t)) v.value[t] = -1; /* evicted tokens stay so */
}

/* Copies the votes of all heads of the layer to v->all. */
static void gather_votes(const struct compress_votes *v)
{
    const struct method_lane *l = v->lane;
    for (uint32_t h = 0; h < l->shape->geom->n_kv_head; h++) {
        struct evict_state of_head;
        evict_state_of_head(&of_head, l, h, sizeof(struct compress_state));
        meter_read(l, of_head.value, v->n_tok * sizeof *v->all);
        memcpy(v->all + (size_t)h * v->n_tok, of_head.value, v->n_tok * sizeof *v->all);
    }
}

/* Sets the mask: the tokens with the most votes before the window, and the window. Rows that came
 * between vote and selection, for which the method was not called, are kept like all later ones. */
static void choose(const struct evict_state *live, const struct method_lane *l)
{
    const struct compress_param *set = l->param;
    const struct compress_policy *policy = l->family;
    struct compress_state *s = live->head;
    const uint32_t n = s->n_vote, budget = method_spec_budget(set->budget, n);
    assert(s->n_window <= budget && s->n_window <= n);
    struct compress_votes v = {
        .lane = l, .n_tok = n - s->n_window, .n_keep = budget - s->n_window, .all = l->scratch};
    if (policy->every_head) gather_votes(&v);
    const uint32_t n_keep = policy->keep ? policy->keep(&v) : v.n_keep;
    struct pick_cut cut = pick_best(live->value, v.n_tok, min_u32(n_keep, v.n_tok));
    s->n_dropped = 0;
    for (int pass = 0; pass < 2; pass++) /* to find the threshold, and to apply it */
        meter_read(l, live->value, v.n_tok * sizeof *live->value);
    for (uint32_t t = 0; t < v.n_tok; t++) {
        const bool keep = pick_takes(&cut, live->value[t]) && live->value[t] >= 0;
        evict_state_set(live, t, keep);
        s->n_dropped += !keep;
    }
    for (uint32_t t = v.n_tok; t < n; t++) evict_state_set(live, t, true);
    assert(s->n_dropped <= v.n_tok);
    s->n_known = n;
}

/* Selects if there are votes; whether it did. */
static bool settle(const struct method_lane *l)
{
    struct evict_state v;
    struct compress_state *s = cut_state(&v, l->shape, l->state);
    if (s->not_finite || s->phase != VOTED) return false;
    meter_build(l);
    choose(&v, l);
    meter_choose(l);
    s->phase = CHOSEN;
    return true;
}

/* The number of first tokens that were voted on and are not in the window. */
static uint32_t candidates(const struct compress_state *s)
{
    return min_u32(s->n_known, s->n_vote - s->n_window);
}

/* False: the lane is dense. */
static bool reads_in_part(const struct compress_state *s, struct method_pick *out)
{
    if (s->not_finite)
        pick_not_finite(out);
    else if (s->n_dropped == 0)
        pick_dense(out);
    return !out->dense;
}

void compress_select(const struct method_lane *l, struct method_pick *out)
{
    struct evict_state v;
    const struct compress_state *s = cut_state(&v, l->shape, l->state);
    settle(l);
    if (!reads_in_part(s, out)) return;
    assert(s->n_known <= l->pos + 1);
    pick_kept(out, v.mask, min_u32(pick_page_count(l), pick_whole_pages(s->n_known)), 0,
              candidates(s));
    pick_range(out, l, s->n_known, l->pos + 1);
}

/* ---- Selection with sums of attention from a device ---- */

static bool asks_for_sums(const struct method_lane *l)
{
    uint32_t begin;
    return is_due(l, l->state) && find_window(l, &begin);
}

static struct kept want_sums(const struct method_lane *l)
{
    struct kept k = {.end = l->pos};
    find_window(l, &k.row0);
    return k;
}

static void sum_on_device(const struct method_batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) b->target[i] = KEPT_SUM;
    kept_choose(b, want_sums);
}

static struct method_marks marks(const struct method_shape *shape, const void *param, void *state)
{
    struct evict_state v;
    const struct compress_state *s = cut_state(&v, shape, state);
    (void)param;
    return (struct method_marks){v.mask, s->n_dropped > 0 ? s->n_known : 0};
}

static struct kept_made made_on_device(const struct method_lane *l)
{
    const struct compress_state *s = l->state;
    return (struct kept_made){l->device_state, s->n_known, 0, candidates(s)};
}

static void choose_on_device(const struct method_batch *b)
{
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1))
        if (reads_in_part(b->lane[i].state, &b->pick[i])) b->target[i] = KEPT_READ;
    kept_read(b, made_on_device);
}

static const struct method_votes votes = {
    .due = asks_for_sums, .look = sum_on_device, .settle = settle, .marks = marks};

const struct method_device compress_device = {
    .head_bytes = compress_state_bytes,
    .scratch_bytes = kept_scratch_bytes,
    .votes = &votes,
    .choose = choose_on_device,
};

static struct compress_state *state_of(struct evict_state *v, const struct method_lane *l,
                                       uint32_t layer, uint32_t kv_head)
{
    return cut_state(v, l->shape, (void *)(uintptr_t)method_layer_state(l, layer, kv_head));
}

float *compress_heard_votes(const struct method_lane *l, uint32_t layer, uint32_t kv_head)
{
    struct evict_state v;
    state_of(&v, l, layer, kv_head);
    return v.value;
}

void compress_hear(const struct method_lane *l, uint32_t n_tok)
{
    struct evict_state v;
    cut_state(&v, l->shape, l->state)->n_heard = n_tok;
}

uint32_t compress_heard(const struct method_lane *l, uint32_t layer, uint32_t kv_head)
{
    struct evict_state v;
    return state_of(&v, l, layer, kv_head)->n_heard;
}

bool compress_hear_due(const struct method_shape *s, const void *param, const void *state,
                       uint32_t n_tok)
{
    const struct compress_param *set = param;
    const struct compress_state *x = state;
    (void)s;
    return x->phase == FRESH && x->n_heard != n_tok &&
           method_spec_budget(set->budget, n_tok) < n_tok;
}

bool compress_lives(const struct method_lane *l, uint32_t tok)
{
    struct evict_state v;
    const struct compress_state *s = cut_state(&v, l->shape, l->state);
    return evict_state_has(&v, s->n_known, tok);
}

void compress_cut(void *state, const struct method_shape *s, const void *param, uint32_t n_tok)
{
    struct compress_state *x = state;
    (void)s;
    (void)param;
    if (x->n_known > n_tok) x->n_known = n_tok;
    if (x->n_vote > n_tok) x->phase = FRESH;
    if (x->n_heard > n_tok) x->n_heard = 0;
}

bool compress_sound(const struct method_loaded *l)
{
    const struct compress_param *set = l->param;
    const struct compress_state *x = l->state;
    uint8_t flag;
    memcpy(&flag, &x->not_finite, 1);
    if (flag > 1 || x->n_known > l->n_tok || x->n_heard > l->n_tok) return false;
    if (x->phase == FRESH) return true;
    return x->n_vote <= l->n_tok && x->n_window <= x->n_vote && x->n_window <= set->window &&
           x->n_window <= method_spec_budget(set->budget, x->n_vote);
}
