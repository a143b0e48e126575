/* registered.c: see the header. A caller's code only selects pages by their cards. Everything that
 * all methods must do is done here: reading the first and last pages, keeping the budget, counting
 * what is read, and reading densely where cards are not finite.
 *
 * A built-in method is a constant whose hooks take no user pointer, because they need none. A
 * registered method does, so there is a fixed number of slots, each with hooks that know their
 * slot. A slot is written once, by sac_method_register, and never again, because engines hold
 * pointers to it.
 *
 * Cards are side data: [n_card, head_dim] f32, computed when a page is sealed or loaded. For a
 * selection they are copied into one contiguous array, which any language can read. */
#include "methods/registered.h"

#include "base/mem.h"
#include "base/status.h"
#include "methods/method_spec.h"
#include "methods/pick.h"

#include "saccade_method.h"

#include <ctype.h>
#include <string.h>

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens in selected pages, in addition to those always read")     \
    P(COUNT, dense, "0", 0, 1024, "first layers, which use dense attention")                       \
    P(TOKENS, sink, "32", 0, 4096, "first tokens, always read; rounded up to whole pages")         \
    P(TOKENS, recent, "32", 0, 4096,                                                               \
      "most recent tokens before the query's own page, always read; rounded up to whole pages")
METHOD_PARAMS(registered, PARAMS)

#define BOX_CARDS 2u /* without a function for cards: the minimum and maximum of each channel */
#define CARDS_MAX 64u

struct place {
    sac_method_def def;
    char name[32], summary[160];
    struct method_decode hooks;
    struct method method;
};

static struct place places[SAC_METHODS_REGISTERED_MAX];
static uint32_t n_place;

/* ---- Cards ---- */

static size_t card_bytes(const struct place *m, const struct method_shape *s)
{
    assert(m->def.n_card > 0 && m->def.n_card <= CARDS_MAX);
    return (size_t)m->def.n_card * s->geom->head_dim * sizeof(float);
}

static void make_box(float *card, const float *k, uint32_t d)
{
    memcpy(card, k, d * sizeof *card);
    memcpy(card + d, k, d * sizeof *card);
    for (uint32_t t = 1; t < PAGE_TOK; t++)
        for (uint32_t c = 0; c < d; c++) {
            const float x = k[(size_t)t * d + c];
            card[c] = x < card[c] ? x : card[c];
            card[d + c] = x > card[d + c] ? x : card[d + c];
        }
}

static void seal(const struct place *m, uint8_t *side, const struct method_shape *s, const float *k)
{
    const uint32_t d = s->geom->head_dim;
    float *card = (float *)(void *)side;
    float bad = 0;
    if (m->def.card)
        m->def.card(m->def.user, card, k, d);
    else
        make_box(card, k, d);
    /* A key that is not finite makes the card NaN, whatever the caller computed, so that selections
     * notice it. */
    for (size_t i = 0; i < (size_t)PAGE_TOK * d; i++) bad += k[i] - k[i];
    card[0] += bad;
}

/* ---- Selection ---- */

struct work {
    float *card;    /* [pages of a context, n_card, head_dim] */
    uint32_t *page; /* [pages of a context] */
};

static size_t work_make(struct work *w, const struct place *m, const struct method_shape *s,
                        void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const size_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    w->card = arena_take(&a, n_page, card_bytes(m, s));
    w->page = arena_take(&a, n_page, sizeof *w->page);
    return a.used;
}

/* False: a card is not finite. */
static bool gather_cards(const struct work *w, const struct place *m, const struct method_lane *l)
{
    const size_t bytes = card_bytes(m, l->shape), n = bytes / sizeof *w->card;
    float bad = 0;
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        float *card = w->card + i * n;
        memcpy(card, pick_side(l, i, bytes), bytes);
        for (size_t c = 0; c < n; c++) bad += card[c] - card[c];
    }
    return bad == 0;
}

/* Takes the listed pages, the most wanted first, until the budget is spent. False: a page does not
 * exist. */
static bool take_pages(struct method_pick *out, const struct method_lane *l, const uint32_t *page,
                       uint32_t n)
{
    const uint32_t n_page = pick_page_count(l);
    const struct registered_param *set = l->param;
    uint32_t left = pick_units(method_spec_budget(set->budget, l->pos + 1), PAGE_TOK);
    for (uint32_t i = 0; i < n; i++)
        if (page[i] >= n_page) return false;
    pick_end_pages(out, l, set->sink, set->recent);
    for (uint32_t i = 0; i < n && left; i++) {
        if (out->mask[page[i]]) continue; /* it is read anyway */
        pick_page(out, page[i]);
        left--;
    }
    return true;
}

static void choose(const struct place *m, const struct method_lane *l, struct method_pick *out)
{
    const struct registered_param *set = l->param;
    struct work w;
    if (method_spec_budget(set->budget, l->pos + 1) > l->pos || l->layer < set->dense) {
        pick_dense(out);
        return;
    }
    work_make(&w, m, l->shape, l->scratch);
    if (!gather_cards(&w, m, l)) {
        pick_not_finite(out);
        return;
    }
    const sac_choice choice = {.layer = l->layer,
                               .kv_head = l->kv_head,
                               .pos = l->pos,
                               .head_dim = l->shape->geom->head_dim,
                               .n_query = l->shape->group,
                               .n_page = pick_page_count(l),
                               .n_card = m->def.n_card,
                               .scale = l->scale,
                               .query = l->q,
                               .card = w.card};
    const uint32_t n = m->def.choose(m->def.user, &choice, w.page);
    if (n > choice.n_page || !take_pages(out, l, w.page, n)) pick_dense(out);
}

/* ---- Places ---- */

#define EACH_PLACE(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)

#define HOOKS(i)                                                                                   \
    static size_t side_bytes_##i(const struct method_shape *s, const void *param)                  \
    {                                                                                              \
        (void)param;                                                                               \
        return card_bytes(&places[i], s);                                                          \
    }                                                                                              \
    static size_t scratch_bytes_##i(const struct method_shape *s, const void *param)               \
    {                                                                                              \
        struct work w;                                                                             \
        (void)param;                                                                               \
        return work_make(&w, &places[i], s, NULL);                                                 \
    }                                                                                              \
    static void seal_##i(uint8_t *side, const struct method_shape *s, const void *param,           \
                         const float *k)                                                           \
    {                                                                                              \
        (void)param;                                                                               \
        seal(&places[i], side, s, k);                                                              \
    }                                                                                              \
    static void select_##i(const struct method_lane *l, struct method_pick *out)                   \
    {                                                                                              \
        choose(&places[i], l, out);                                                                \
    }

EACH_PLACE(HOOKS)

#define ENTRY(i)                                                                                   \
    {.side_bytes = side_bytes_##i,                                                                 \
     .scratch_bytes = scratch_bytes_##i,                                                           \
     .seal = seal_##i,                                                                             \
     .select = select_##i},

static const struct method_decode place_hooks[] = {EACH_PLACE(ENTRY)};

_Static_assert(sizeof place_hooks / sizeof place_hooks[0] == SAC_METHODS_REGISTERED_MAX,
               "every place has hooks");

const struct method *registered_at(size_t i)
{
    return i < n_place ? &places[i].method : NULL;
}

/* A name must fit into "NAME:key=value,...", which is joined by '+' and ','. */
static bool is_name(const char *s, size_t room)
{
    const size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-') return false;
    return n > 0 && n < room;
}

sac_status sac_method_register(const sac_method_def *def, sac_error *err)
{
    struct place *m = &places[n_place];
    if (n_place == SAC_METHODS_REGISTERED_MAX)
        return error_set(err, SAC_ERR_ARG, "%u methods are registered, no more can be",
                         SAC_METHODS_REGISTERED_MAX);
    if (!is_name(def->name, sizeof m->name))
        return error_set(err, SAC_ERR_ARG,
                         "'%.40s' is no name for a method: 1 to %zu letters, digits, '_' and '-'",
                         def->name, sizeof m->name - 1);
    if (method_find("decode", def->name))
        return error_set(err, SAC_ERR_ARG, "there is a decode method '%s' already", def->name);
    if (strlen(def->summary) >= sizeof m->summary)
        return error_set(err, SAC_ERR_ARG, "method '%s': a summary of %zu bytes, at most %zu",
                         def->name, strlen(def->summary), sizeof m->summary - 1);
    if (!def->choose)
        return error_set(err, SAC_ERR_ARG, "method '%s' has no function that chooses", def->name);
    if (def->card ? def->n_card == 0 || def->n_card > CARDS_MAX : def->n_card != 0)
        return error_set(err, SAC_ERR_ARG,
                         "method '%s': %u rows of a card; with a function that makes cards 1 to "
                         "%u, without one 0",
                         def->name, def->n_card, CARDS_MAX);
    m->def = *def;
    if (!def->card) m->def.n_card = BOX_CARDS;
    memcpy(m->name, def->name, strlen(def->name) + 1);
    memcpy(m->summary, def->summary, strlen(def->summary) + 1);
    m->hooks = place_hooks[n_place];
    m->method =
        (struct method){.kind = "decode",
                        .name = m->name,
                        .summary = m->summary,
                        .about = "Registered by the program at run time. It scores pages by the "
                                 "cards that it keeps of them and reads the best first.",
                        .params = &registered_params,
                        .decode = &m->hooks};
    n_place++;
    return SAC_OK;
}
