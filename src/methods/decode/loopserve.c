/* loopserve.c: the tokens that the last generated tokens attend to, selected again every few steps,
 * LoopServe's progressive decoding (Li et al., 2025), Algorithm 3.
 *
 * Decided where the paper is silent: the first selection comes at the `first`th row that the method
 * serves, counting that of the prompt's last token; until then everything is read, or what the
 * prompt's last rows attended to, as in SnapKV, or columns and diagonals as in the prefill method;
 * sinks and the window are kept in addition to the budget; no pooling; one set per KV head, by the
 * sum over its query heads.
 *
 * Not in the paper: stagger spreads the selections of the layers over the steps between two, so
 * that every step costs the same; each layer still selects every `every` steps by its own last
 * queries. */
#include "methods/kept.h"
#include "methods/lines.h"
#include "methods/meter.h"
#include "methods/method_spec.h"
#include "methods/observe.h"
#include "methods/pick.h"

#include <string.h>

enum { WARM_DENSE, WARM_SNAPKV, WARM_LINES };

#define PARAMS(P)                                                                                  \
    P(BUDGET, budget, "1024", 1, "tokens per selection, in addition to sinks and recent ones")     \
    P(COUNT, every, "16", 1, 1024, "steps between selections, and rows that vote")                 \
    P(COUNT, first, "16", 1, 1 << 20, "answer tokens before the first selection")                  \
    P(CHOICE, warm, "dense", "dense|snapkv|lines",                                                 \
      "read before it: everything, the tokens to which the last prompt tokens attend, or the "     \
      "columns and diagonals")                                                                     \
    P(TOKENS, sink, "4", 0, 4096, "first tokens, always read")                                     \
    P(FLAG, stagger, "on", "layers select in different steps")
METHOD_PARAMS(loopserve, PARAMS)

struct loop_state {
    uint32_t n_seen;   /* context length */
    uint32_t n_out;    /* decode rows of this turn: the paper's n_o */
    uint32_t n_chosen; /* context length at the last selection; 0: none. Later tokens are read */
    uint32_t n_line;   /* context length when lines were selected; 0: none */
};

struct parts {
    struct loop_state *state;
    uint32_t *mask; /* [pages of a context] selected tokens: X of Algorithm 3 */
    /* With warm=lines, the same: columns, and the tokens where diagonals cross row n_line - 1. */
    uint32_t *column, *slash;
};

static size_t cut_state(struct parts *p, const struct method_shape *s, const void *param,
                        void *state)
{
    const struct loopserve_param *set = param;
    struct arena a = {.base = state, .capacity = SIZE_MAX};
    const size_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    const size_t n_line = set->warm == WARM_LINES ? n_page : 0;
    p->state = arena_take(&a, 1, sizeof *p->state);
    p->mask = arena_take(&a, n_page, sizeof *p->mask);
    p->column = arena_take(&a, n_line, sizeof *p->column);
    p->slash = arena_take(&a, n_line, sizeof *p->slash);
    return a.used;
}

static size_t loopserve_state_bytes(const struct method_shape *s, const void *param)
{
    struct parts p;
    return cut_state(&p, s, param, NULL);
}

static size_t loopserve_scratch_bytes(const struct method_shape *s, const void *param)
{
    struct observe o;
    (void)param;
    return observe_make(&o, s, NULL) +
           2 * ((size_t)s->n_ctx + PAGE_TOK) * sizeof(float); /* of lines */
}

static uint32_t loopserve_past_rows(const struct method_shape *s, const void *param)
{
    const struct loopserve_param *set = param;
    (void)s;
    return set->every;
}

static void loopserve_see(const struct method_lane *l)
{
    struct loop_state *s = l->state;
    if (l->is_prompt)
        *s = (struct loop_state){.n_seen = l->pos + l->n_row};
    else
        *s = (struct loop_state){l->pos + 1, s->n_out + 1, s->n_chosen, s->n_line};
}

/* Steps by which a layer's selections come after those of the first layer (stagger). */
static uint32_t phase(const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    if (!set->stagger) return 0;
    return l->layer * set->every / l->shape->geom->n_layer;
}

/* The answer is too short for the first selection (line 3 of Algorithm 3). */
static bool is_warming(const struct method_lane *l, const struct loop_state *s)
{
    const struct loopserve_param *set = l->param;
    return s->n_out < set->first + phase(l);
}

/* Columns and diagonals are read until the first selection. */
static bool by_lines(const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    return set->warm == WARM_LINES && is_warming(l, l->state);
}

/* Whether this step selects: at n_o = first and every `every` steps after it. */
static bool is_due(const struct method_lane *l, const struct loop_state *s)
{
    const struct loopserve_param *set = l->param;
    const uint32_t first = set->first + phase(l), every = set->every;
    if (is_warming(l, s)) return set->warm == WARM_SNAPKV && s->n_chosen == 0;
    return s->n_chosen == 0 || (s->n_out - first) % every == 0;
}

/* Eq. 7: the tokens with the most attention from the last `every` rows, the current one included;
 * and the sinks and the window of these rows. False: not finite. */
static bool choose(const struct parts *p, const struct method_lane *l, uint32_t budget)
{
    const struct loopserve_param *set = l->param;
    const uint32_t n = l->pos + 1, every = set->every;
    const uint32_t begin = max_u32(l->past.begin, n > every ? n - every : 0);
    const uint32_t sink = min_u32(set->sink, begin);
    assert(begin < n); /* the current row votes */
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    if (!observe_rows(&o, l, begin, n)) return false;
    for (uint32_t t = 0; t < sink; t++) o.sum[t] = -1;
    struct pick_cut cut = pick_best(o.sum, begin, min_u32(budget, begin - sink));
    for (uint32_t i = 0; i <= l->pos / PAGE_TOK; i++) p->mask[i] = 0;
    for (uint32_t t = 0; t < n; t++)
        if (t < sink || t >= begin || pick_takes(&cut, o.sum[t]))
            p->mask[t / PAGE_TOK] |= 1u << t % PAGE_TOK;
    p->state->n_chosen = n;
    return true;
}

/* For warm=lines: the columns and diagonals with the most attention from the last rows, the current
 * one included. Every row reads one token of each line, so the budget counts lines. False: not
 * finite. */
static bool choose_lines(const struct parts *p, const struct method_lane *l, uint32_t budget)
{
    const struct loopserve_param *set = l->param;
    const uint32_t n = l->pos + 1, every = set->every, group = l->shape->group;
    const uint32_t begin = max_u32(l->past.begin, n > every ? n - every : 0);
    struct observe o;
    observe_make(&o, l->shape, l->scratch);
    float *column = o.rest, *slash = column + n; /* that of distance d at n - 1 - d */
    assert(begin < n && n <= o.stride);
    memset(column, 0, 2 * (size_t)n * sizeof *column);
    for (uint32_t row = begin, n_row; row < n; row += n_row) {
        n_row = min_u32(OBSERVE_ROWS, n - row);
        observe_scores(&o, l, row, n_row);
        for (uint32_t i = 0; i < n_row; i++) {
            if (!l->ops->vote(&(struct op_vote){.score = o.score + (size_t)i * group * o.stride,
                                                .score_stride = o.stride,
                                                .n = row + i + 1,
                                                .group = group,
                                                .vote = o.vote,
                                                .lse = o.lse}))
                return false;
            lines_add(column, slash, n, o.vote, row + i);
        }
    }
    for (uint32_t t = 0; t < min_u32(set->sink, n); t++) column[t] = -1;
    for (uint32_t t = begin; t < n; t++) column[t] = slash[t] = -1; /* read in any case */
    struct pick_cut cut = pick_best(column, 2 * n, min_u32(budget, 2 * begin));
    memset(p->column, 0, (n + PAGE_TOK - 1) / PAGE_TOK * sizeof *p->column);
    memset(p->slash, 0, (n + PAGE_TOK - 1) / PAGE_TOK * sizeof *p->slash);
    for (uint32_t t = 0; t < n; t++)
        p->column[t / PAGE_TOK] |= (uint32_t)pick_takes(&cut, column[t]) << t % PAGE_TOK;
    for (uint32_t t = 0; t < n; t++)
        p->slash[t / PAGE_TOK] |= (uint32_t)pick_takes(&cut, slash[t]) << t % PAGE_TOK;
    p->state->n_line = n;
    return true;
}

/* Marks what the current row reads of the lines: diagonals have moved with it since they were
 * selected. */
static void mark_lines(const struct parts *p, const struct method_lane *l, struct method_pick *out)
{
    const struct loopserve_param *set = l->param;
    const uint32_t n_line = p->state->n_line, by = l->pos + 1 - n_line, every = set->every;
    const uint32_t n_word = (n_line + PAGE_TOK - 1) / PAGE_TOK;
    pick_ends(out, l, set->sink, by + every);
    assert(n_line > 0 && n_line <= l->pos + 1);
    for (uint32_t i = 0; i < pick_page_count(l); i++) {
        const uint32_t at = i - by / PAGE_TOK; /* wraps below page 0, and then exceeds n_word */
        const uint32_t here = at < n_word ? p->slash[at] : 0;
        const uint32_t below = at - 1 < n_word ? p->slash[at - 1] : 0;
        pick_bits(out, i,
                  (i < n_word ? p->column[i] : 0) |
                      (uint32_t)(((uint64_t)here << 32 | below) << by % PAGE_TOK >> 32));
    }
}

static void loopserve_select(const struct method_lane *l, struct method_pick *out)
{
    const struct loopserve_param *set = l->param;
    const uint32_t budget = method_spec_budget(set->budget, l->pos + 1), every = set->every;
    struct parts p;
    cut_state(&p, l->shape, l->param, l->state);
    const struct loop_state *s = p.state;
    const bool lines = by_lines(l);
    if (budget > l->pos) {
        pick_dense(out);
        return;
    }
    if (lines ? s->n_line == 0 : is_due(l, s)) {
        meter_build(l); /* the selection serves several rows */
        const bool finite = lines ? choose_lines(&p, l, budget) : choose(&p, l, budget);
        meter_choose(l);
        if (!finite) {
            pick_not_finite(out);
            return;
        }
    }
    if (lines) {
        mark_lines(&p, l, out);
        return;
    }
    if (s->n_chosen == 0) {
        pick_dense(out);
        return;
    }
    assert(s->n_chosen <= l->pos + 1);
    const uint32_t n_page = pick_page_count(l);
    const uint32_t n_kept = min_u32(n_page, (s->n_chosen + PAGE_TOK - 1) / PAGE_TOK);
    const uint32_t sink = set->sink;
    pick_kept(out, p.mask, n_kept, sink, s->n_chosen - min_u32(every, s->n_chosen));
    pick_range(out, l, s->n_chosen, l->pos + 1);
}

/* ---- The same on a device ---- */

static size_t loopserve_head_bytes(const struct method_shape *s, const void *param)
{
    (void)s;
    (void)param;
    return sizeof(struct loop_state);
}

/* A device's copy of the state, of which only the addresses of the masks are used. */
static struct parts device_parts(const struct method_lane *l)
{
    struct parts p;
    cut_state(&p, l->shape, l->param, l->device_state);
    return p;
}

/* The same selection as by `choose` or `choose_lines`. */
static struct kept want_kept(const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    const uint32_t n = l->pos + 1, every = set->every, budget = method_spec_budget(set->budget, n);
    const uint32_t row0 = max_u32(l->past.begin, n > every ? n - every : 0);
    const uint32_t sink = min_u32(set->sink, row0);
    const uint32_t n_most = by_lines(l) ? 2 * row0 : row0 - sink;
    return (struct kept){device_parts(l).mask, row0, n, sink, min_u32(budget, n_most)};
}

static struct kept_made made_kept(const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    const struct loop_state *s = l->state;
    const uint32_t every = set->every;
    return (struct kept_made){device_parts(l).mask, s->n_chosen, set->sink,
                              s->n_chosen - min_u32(every, s->n_chosen)};
}

static struct kept_lines made_lines(const struct method_lane *l)
{
    const struct loopserve_param *set = l->param;
    const struct loop_state *s = l->state;
    const struct parts p = device_parts(l);
    return (struct kept_lines){p.column, p.slash, s->n_line, set->sink,
                               l->pos + 1 - s->n_line + set->every};
}

/* Sets what the lane does in this step, and advances its state; false: it is dense. */
static bool next_step(const struct method_lane *l, uint32_t *step)
{
    const struct loopserve_param *set = l->param;
    struct loop_state *s = l->state;
    const uint32_t n = l->pos + 1;
    const bool lines = by_lines(l), due = lines ? s->n_line == 0 : is_due(l, s);
    if (method_spec_budget(set->budget, n) > l->pos || (!due && !lines && s->n_chosen == 0))
        return false;
    if (due && lines) s->n_line = n;
    if (due && !lines) s->n_chosen = n;
    *step = due && lines ? KEPT_CHOOSE_LINES
            : due        ? KEPT_CHOOSE
            : lines      ? KEPT_READ_LINES
                         : KEPT_READ;
    return true;
}

static void loopserve_device(const struct method_batch *b)
{
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1))
        if (!next_step(&b->lane[i], &b->target[i])) pick_dense(&b->pick[i]);
    kept_choose(b, want_kept);
    kept_read(b, made_kept);
    kept_read_lines(b, made_lines);
}

static const struct method_device device = {
    .head_bytes = loopserve_head_bytes,
    .scratch_bytes = kept_scratch_bytes,
    .choose = loopserve_device,
};

/* Selections that contain removed tokens are dropped. */
static void loopserve_cut(void *state, const struct method_shape *s, const void *param,
                          uint32_t n_tok)
{
    struct loop_state *x = state;
    (void)s;
    (void)param;
    const uint32_t n_gone = x->n_seen > n_tok ? x->n_seen - n_tok : 0;
    *x = (struct loop_state){.n_seen = x->n_seen - n_gone,
                             .n_out = x->n_out > n_gone ? x->n_out - n_gone : 0,
                             .n_chosen = x->n_chosen > n_tok ? 0 : x->n_chosen,
                             .n_line = x->n_line > n_tok ? 0 : x->n_line};
}

static bool loopserve_sound(const struct method_loaded *l)
{
    const struct loop_state *x = l->state;
    return x->n_seen <= l->n_tok && x->n_out <= x->n_seen && x->n_chosen <= l->n_tok &&
           x->n_line <= l->n_tok;
}

static const struct method_decode hooks = {
    .state_bytes = loopserve_state_bytes,
    .scratch_bytes = loopserve_scratch_bytes,
    .past_rows = loopserve_past_rows,
    .see = loopserve_see,
    .select = loopserve_select,
    .device = &device,
    .cut = loopserve_cut,
    .sound = loopserve_sound,
};

static const sac_method_deviation deviations[] = {
    {"silent on what is read before the answer has 16 tokens",
     "everything; warm=snapkv and warm=lines read less", "short answers are exact then",
     "for 32 tokens after a 4K context, 70.4 % of the context is read on average "
     "(notes/measured_before.md)"},
    {"all layers select again in the same step",
     "layers take turns between two selections; stagger=off selects in all at once",
     "every step costs the same", NULL},
    {"a set of tokens for each query head", "one per KV head, by the sum over its query heads",
     "the same bytes serve all its query heads", NULL},
    {"silent on whether the budget includes the most recent tokens",
     "sinks and the most recent 16 are read in addition to it",
     "in the paper the window is what votes", NULL},
};

const struct method loopserve_decode_method = {
    METHOD_DECODE(
        loopserve,
        "tokens that the last generated tokens attend to, selected again every few steps"),
    .paper = "Li et al., LoopServe: An Adaptive Dual-phase LLM Inference Acceleration System for "
             "Multi-Turn Dialogues",
    .about =
        "Every few tokens the queries of the most recent ones vote for the tokens to read until "
        "the next selection, so the set follows the answer and does not depend on where the "
        "question stands in the prompt. All tokens stay in the cache; what is asked for late is "
        "found at the next selection. A selection reads all keys, but once for many steps.",
    METHOD_DEVIATIONS(deviations),
    .token_grain = true,
    .needs_question = true,
    .facts = {.part = "warm=snapkv", .n_forced = 4 + 16 + 15, .n_late = 15},
    .meets_segments = true,
    .decode = &hooks,
};
