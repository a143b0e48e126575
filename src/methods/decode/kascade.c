/* kascade.c: the best tokens by exact scores in a few anchor layers; the layers above each anchor
 * read what it has selected, Kascade (Deshmukh et al., 2025).
 *
 * As in the paper and its code: shares of a softmax, summed over the query heads of a KV head; the
 * first layer reads everything and is an anchor; a layer uses the next anchor below it, and each of
 * its heads uses that head of the anchor whose tokens hold most of the head's attention. Anchors
 * are those that maximize the sum of these similarities over all layers.
 *
 * Decided here: similarities are measured in the sequence itself, from the queries of the prompt's
 * last `window` rows, at the first decode row (paper: offline, on a set of other texts, weighted by
 * how much a layer changes its input). In that row every layer selects for itself; anchors are
 * fixed at the next. Layers that were not called then (they have a window) or not measured (a
 * number was not finite) are no anchors, and one that finds no selection for its row below it makes
 * its own. A lane tries once: what all lanes read of each other is written in that row alone. */
#include "methods/meter.h"
#include "methods/method_spec.h"
#include "methods/observe.h"
#include "methods/pick.h"
#include "methods/rule.h"

#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "10%", 1,                                                                    \
      "tokens that an anchor layer selects for itself and the layers above it")                    \
    P(COUNT, anchors, "5", 1, 1024, "layers that score all keys, the first included")              \
    P(COUNT, dense, "1", 0, 1024, "first layers, which use dense attention")                       \
    P(COUNT, window, "32", 1, 1024,                                                                \
      "last prompt tokens from which the similarity of layers is measured")
METHOD_PARAMS(kascade, PARAMS)

struct kascade_state {
    uint32_t n_measured; /* context length when similarities were measured; 0: not yet */
    uint32_t measured;   /* 1: the lane's were; 0: something was not finite */
    uint32_t n_chosen;   /* context length when the mask was selected; 0: never */
    uint32_t has_anchor; /* 1: the next two are set */
    uint32_t anchor;     /* the layer whose selection the lane reads; its own, or above: its own */
    uint32_t head;       /* the KV head of that layer */
};

/* The parts of a lane's state. */
struct kascade {
    struct kascade_state *own;
    /* [n_layer, n_kv_head] of lower layers: the attention that the lane keeps when it reads the
     * tokens of that head, relative to its own selection. */
    float *similarity;
    uint32_t *mask; /* [pages of a context] the selected tokens */
};

static size_t cut_state(struct kascade *x, const struct method_shape *s, const void *state)
{
    struct arena a = {.base = (void *)(uintptr_t)state, .capacity = SIZE_MAX};
    x->own = arena_take(&a, 1, sizeof *x->own);
    x->similarity =
        arena_take(&a, (size_t)s->geom->n_layer * s->geom->n_kv_head, sizeof *x->similarity);
    x->mask = arena_take(&a, (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK, sizeof *x->mask);
    return a.used;
}

static size_t kascade_state_bytes(const struct method_shape *s, const void *param)
{
    struct kascade x;
    (void)param;
    return cut_state(&x, s, NULL);
}

static struct kascade state_of(const struct method_lane *l, uint32_t layer, uint32_t head)
{
    struct kascade x;
    cut_state(&x, l->shape, method_layer_state(l, layer, head));
    return x;
}

static uint32_t kascade_past_rows(const struct method_shape *s, const void *param)
{
    const struct kascade_param *set = param;
    (void)s;
    return set->window;
}

/* ---- Similarity of layers ---- */

static double marked_sum(const float *share, const uint32_t *mask, uint32_t n_page)
{
    double sum = 0;
    for (uint32_t p = 0; p < n_page; p++)
        for (uint32_t left = mask[p]; left; left &= left - 1)
            sum += (double)share[p * PAGE_TOK + (uint32_t)__builtin_ctz(left)];
    return sum;
}

static bool was_measured(const struct kascade *x, uint32_t n_tok)
{
    return x->own->n_measured == n_tok && x->own->measured;
}

/* Selects the lane's tokens by the attention of the prompt's last rows, for the layers above to
 * compare with, and computes its similarity to the heads of all lower layers that were measured at
 * this row. The row's own page, which is always read, counts on both sides. False: something is not
 * finite. */
static bool measure_heads(const struct kascade *x, const struct method_lane *l, uint32_t budget)
{
    const struct kascade_param *set = l->param;
    const uint32_t n_kv_head = l->shape->geom->n_kv_head, n_page = pick_page_count(l);
    const uint32_t end = l->pos + 1, first = end - min_u32(end, set->window);
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    if (!observe_rows(&o, l, min_u32(l->pos, max_u32(first, l->past.begin)), end)) return false;
    struct pick_cut cut = pick_best(o.sum, n_page * PAGE_TOK, budget);
    memset(x->mask, 0, n_page * sizeof *x->mask);
    for (uint32_t t = 0; t < n_page * PAGE_TOK; t++)
        if (pick_takes(&cut, o.sum[t])) x->mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    double own = 0;
    for (uint32_t t = n_page * PAGE_TOK; t < end; t++) own += (double)o.sum[t];
    const double best = own + marked_sum(o.sum, x->mask, n_page);
    for (uint32_t i = 0; i < l->layer * n_kv_head; i++) {
        const struct kascade below = state_of(l, i / n_kv_head, i % n_kv_head);
        x->similarity[i] = 0;
        if (!was_measured(&below, end) || best <= 0) continue;
        x->similarity[i] = (float)((own + marked_sum(o.sum, below.mask, n_page)) / best);
    }
    return true;
}

/* ---- Anchors ---- */

/* The layers whose heads were all measured at the same row, and the dynamic program that places
 * anchors among them. */
struct layers {
    uint32_t n, n_anchor;
    uint32_t *layer;   /* [n] ascending */
    float *similarity; /* [n, n] of layer j > i to layer i: the mean over j's heads */
    float *best;       /* [n_anchor, n] entry (k, i): the largest sum of similarities over layers i
                          and above, if i is an anchor and at most k more come above it */
    uint32_t *next;    /* [n_anchor, n] the next of these anchors; n: there is none */
};

static size_t cut_layers(struct layers *a, uint32_t n_layer, uint32_t n_anchor, void *scratch)
{
    struct arena room = {.base = scratch, .capacity = SIZE_MAX};
    const size_t n = n_layer;
    a->n_anchor = min_u32(n_anchor, n_layer);
    a->layer = arena_take(&room, n, sizeof *a->layer);
    a->similarity = arena_take(&room, n * n, sizeof *a->similarity);
    a->best = arena_take(&room, n * a->n_anchor, sizeof *a->best);
    a->next = arena_take(&room, n * a->n_anchor, sizeof *a->next);
    return room.used;
}

static size_t kascade_scratch_bytes(const struct method_shape *s, const void *param)
{
    const struct kascade_param *set = param;
    struct observe o;
    struct select_scratch r;
    struct layers a;
    const size_t seen = observe_make(&o, s, NULL), scored = select_scratch_make(&r, s, true, NULL);
    return mem_larger(mem_larger(seen, scored),
                      cut_layers(&a, s->geom->n_layer, set->anchors, NULL));
}

/* The largest similarity of a head to a head of a lower layer, which is put into *head: head `from`
 * unless another is more similar. */
static float best_head(const struct kascade *x, uint32_t n_kv_head, uint32_t layer, uint32_t from,
                       uint32_t *head)
{
    const float *similarity = x->similarity + (size_t)layer * n_kv_head;
    *head = from;
    for (uint32_t h = 0; h < n_kv_head; h++)
        if (similarity[h] > similarity[*head]) *head = h;
    return similarity[*head];
}

static bool is_measured(const struct method_lane *l, uint32_t layer, uint32_t n_tok)
{
    bool all = true;
    for (uint32_t h = 0; h < l->shape->geom->n_kv_head; h++) {
        const struct kascade x = state_of(l, layer, h);
        all = all && was_measured(&x, n_tok);
    }
    return all;
}

static void measure_layers(struct layers *a, const struct method_lane *l)
{
    const uint32_t n_kv_head = l->shape->geom->n_kv_head;
    const uint32_t n_measured = state_of(l, l->layer, l->kv_head).own->n_measured;
    a->n = 0;
    for (uint32_t i = 0; i < l->shape->geom->n_layer; i++)
        if (is_measured(l, i, n_measured)) a->layer[a->n++] = i;
    for (uint32_t i = 0; i < a->n; i++)
        for (uint32_t j = i + 1; j < a->n; j++) {
            float sum = 0;
            for (uint32_t h = 0; h < n_kv_head; h++) {
                const struct kascade x = state_of(l, a->layer[j], h);
                uint32_t head;
                sum += best_head(&x, n_kv_head, a->layer[i], h, &head);
                meter_bytes(l, meter_lines(0, n_kv_head * sizeof *x.similarity));
            }
            a->similarity[i * a->n + j] = sum / (float)n_kv_head;
        }
}

/* Fills entry (k, i) of best and next, from the entries of k - 1: the next anchor is layer j, or
 * there is none. */
static void extend_path(const struct layers *a, uint32_t k, uint32_t i)
{
    float sum = 1, *best = &a->best[k * a->n + i];
    uint32_t *next = &a->next[k * a->n + i];
    *best = -1;
    *next = a->n;
    for (uint32_t j = i + 1; j < a->n; sum += a->similarity[i * a->n + j++]) {
        const float with = k > 0 ? sum + a->best[(k - 1) * a->n + j] : -1;
        if (with <= *best) continue;
        *best = with;
        *next = j;
    }
    if (sum < *best) return;
    *best = sum;
    *next = a->n;
}

/* The anchor of a layer when n_anchor anchors, the first layer among them, are placed for the
 * largest sum of similarities. */
static uint32_t anchor_of(const struct layers *a, uint32_t layer)
{
    uint32_t at = 0;
    for (uint32_t k = 0; k < a->n_anchor; k++)
        for (uint32_t i = a->n; i-- > 0;) extend_path(a, k, i);
    for (uint32_t k = a->n_anchor; k-- > 0;) {
        const uint32_t next = a->next[k * a->n + at];
        if (next == a->n || a->layer[next] > layer) break;
        at = next;
    }
    return a->layer[at];
}

/* Sets the anchor layer, and its head, whose selections the lane reads from now on. */
static void set_anchor(const struct kascade *x, const struct method_lane *l)
{
    const struct kascade_param *set = l->param;
    struct layers a;
    cut_layers(&a, l->shape->geom->n_layer, set->anchors, l->scratch);
    measure_layers(&a, l);
    x->own->anchor = a.n > 0 ? anchor_of(&a, l->layer) : l->layer;
    x->own->head = l->kv_head;
    if (x->own->anchor < l->layer)
        best_head(x, l->shape->geom->n_kv_head, x->own->anchor, l->kv_head, &x->own->head);
    x->own->has_anchor = 1;
}

/* ---- Selection ---- */

/* Marks the tokens that the lane's anchor has selected for this row; false: it has not. */
static bool reuse(const struct kascade *x, const struct method_lane *l, struct method_pick *out)
{
    const uint32_t n_page = pick_page_count(l);
    if (!x->own->has_anchor || x->own->anchor >= l->layer) return false;
    const struct kascade anchor = state_of(l, x->own->anchor, x->own->head);
    if (anchor.own->n_chosen != l->pos + 1) return false;
    pick_kept(out, anchor.mask, n_page, 0, n_page * PAGE_TOK);
    return true;
}

static void kascade_select(const struct method_lane *l, struct method_pick *out)
{
    const struct kascade_param *set = l->param;
    const uint32_t budget = rule_budget(out, l, set->budget, 0), n_page = pick_page_count(l);
    const struct kascade x = state_of(l, l->layer, l->kv_head);
    struct select_scratch r;
    if (budget == 0) return;
    meter_build(l);
    if (x.own->measured && !x.own->has_anchor) set_anchor(&x, l);
    if (x.own->n_measured == 0) {
        x.own->n_measured = l->pos + 1;
        x.own->measured = measure_heads(&x, l, budget);
    }
    if (!x.own->measured && x.own->n_measured == l->pos + 1) {
        pick_not_finite(out);
        return;
    }
    meter_choose(l);
    const bool serves = x.own->has_anchor && x.own->anchor == l->layer;
    if (l->layer < set->dense && !serves) {
        pick_dense(out);
        return;
    }
    if (reuse(&x, l, out)) return;
    select_scratch_make(&r, l->shape, true, l->scratch);
    pick_all_logits(r.score, r.stride, l);
    if (!rule_shares(out, l, &r, n_page * PAGE_TOK)) return;
    rule_tokens(out, l, &r, budget, 0, 0);
    if (serves) {
        memcpy(x.mask, out->mask, n_page * sizeof *x.mask);
        x.own->n_chosen = l->pos + 1;
    }
    if (l->layer < set->dense) pick_dense(out);
}

static bool kascade_sound(const struct method_loaded *l)
{
    const struct kascade_state *x = l->state;
    return x->n_measured <= l->n_tok && x->measured <= 1 && x->has_anchor <= 1 &&
           x->head < l->shape->geom->n_kv_head;
}

static const struct method_decode hooks = {
    .state_bytes = kascade_state_bytes,
    .scratch_bytes = kascade_scratch_bytes,
    .past_rows = kascade_past_rows,
    .select = kascade_select,
    .sound = kascade_sound,
};

static const sac_method_deviation deviations[] = {
    {"anchors and heads are found offline, on a set of questions over several documents",
     "in the sequence itself, from the last 32 prompt tokens; every layer selects for itself in "
     "the first decode row",
     "no per-model table is needed", NULL},
    {"layers are weighted by how much they change their input", "all weigh the same",
     "a method sees keys and queries, not the input and output of a layer", NULL},
    {"10 % of the tokens and 128 at least", "10 %", "a budget is one number in all methods",
     "none from 1,280 tokens on"},
    {"prefill uses the same method, by tiles of rows", "answers only",
     "prefill has methods of its own", NULL},
};

const struct method kascade_method = {
    METHOD_DECODE(
        kascade, "top-k tokens by exact scores of a few anchor layers, reused by the layers above"),
    .paper = "Deshmukh et al., Kascade: A Practical Sparse Attention Method for Long-Context LLM "
             "Inference, arXiv 2512.16391",
    .about = "A few anchor layers score every key exactly and select the best tokens. Each layer "
             "above reads the selection of the anchor below it, head by head from the anchor's "
             "head that matches best. Selection thus reads the keys of five layers where topk "
             "reads those of all. All tokens stay in the cache, so a question asked late can still "
             "be answered, as far as layers attend to the same tokens. Where the paper is silent, "
             "the authors' code was followed (github.com/microsoft/kascade).",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .facts = {.part = "dense=0,anchors=2"},
    .decode = &hooks,
};
