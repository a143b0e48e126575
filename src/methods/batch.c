/* batch.c: see the header. Descriptors are made here and nowhere else; lanes that are dense already
 * are left out of the lists. */
#include "methods/batch.h"

#include "methods/meter.h"
#include "methods/pick.h"
#include "methods/rule.h"
#include "ops/page_lines.h"

#include <assert.h>

/* ---- Any method ---- */

struct lane_call {
    const struct method_decode *hooks;
    const struct method_batch *b;
};

static void select_lane(void *arg, uint32_t i, uint32_t worker_i)
{
    const struct lane_call *c = arg;
    (void)worker_i;
    c->hooks->select(&c->b->lane[i], &c->b->pick[i]);
}

static void read_result(const struct method_lane *l, struct method_pick *pick,
                        const struct op_lane_result *r)
{
    const struct page_geom *g = l->shape->geom;
    if (pick->dense) return;
    if (r->n_bad) pick_not_finite(pick);
    const uint64_t n_visited =
        ((uint64_t)r->n_visit + r->n_beside) * page_all_keys(g) + r->n_value * page_all_values(g);
    if (r->n_bad) meter_bytes(l, n_visited);
    if (!r->n_bad && r->n_beside > 0 && l->meter) l->meter->bytes[METER_ATTEND] += n_visited;
    meter_bytes(l, 64 * (uint64_t)r->n_line);
    pick->attended = r->attended;
    pick->mass_proved = r->mass_proved;
    pick->rest_norm = r->rest_norm;
    if (r->n_over) pick_dense(pick);
    pick->n_tok = r->n_tok;
    pick->n_chosen = r->n_chosen;
}

void batch_choose(const struct method_decode *hooks, const struct method_batch *b)
{
    struct lane_call c = {.hooks = hooks, .b = b};
    void (*const all)(const struct method_batch *) =
        hooks->choose ? hooks->choose : hooks->select_lanes;
    assert(!hooks->choose + !hooks->select + !hooks->select_lanes == 2 && b->n > 0);
    if (b->on_device && hooks->device) {
        hooks->device->choose(b);
    } else if (all) {
        all(b);
        for (uint32_t i = 0; i < b->n && !b->on_device; i++)
            read_result(&b->lane[i], &b->pick[i], &b->result[i]);
    } else {
        workers_for(b->workers, b->n, select_lane, &c);
    }
}

uint32_t batch_next(const struct method_batch *b, uint32_t i)
{
    while (i < b->n && b->pick[i].dense) i++;
    return i;
}

void batch_budgets(const struct method_batch *b, uint32_t n_dense)
{
    for (uint32_t i = 0; i < b->n; i++) {
        const struct param_budget *budget = b->lane[i].param;
        b->target[i] = rule_budget(&b->pick[i], &b->lane[i], *budget, n_dense);
    }
}

static uint32_t item_count(const struct method_lane *l, enum batch_item item)
{
    const uint32_t n = pick_page_count(l);
    return item == BATCH_TOKEN ? n * PAGE_TOK : item == BATCH_HALF ? 2 * n : n;
}

static uint32_t item_tokens(enum batch_item item)
{
    return item == BATCH_TOKEN ? 1 : item == BATCH_HALF ? PAGE_TOK / 2 : PAGE_TOK;
}

static struct select_scratch scratch_of(const struct method_lane *l, enum batch_item item)
{
    struct select_scratch r;
    select_scratch_make(&r, l->shape, item != BATCH_PAGE, l->scratch);
    assert(item_count(l, item) <= r.stride);
    return r;
}

/* ---- Scores ---- */

void batch_logits(const struct method_batch *b)
{
    struct op_lane_logits *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct select_scratch r = scratch_of(&b->lane[i], BATCH_TOKEN);
        /* With a tier one lane after another: their pages may not fit in memory together. */
        if (b->lane[i].tier)
            pick_all_logits(r.score, r.stride, &b->lane[i]);
        else
            list[n++] = pick_lane_logits(r.score, r.stride, &b->lane[i]);
    }
    if (n > 0) b->ops->lanes.logits(b->workers, b->ops, list, n);
}

/* ---- Shares ---- */

void batch_vote(const struct method_batch *b, enum batch_item item)
{
    struct op_lane_vote *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct select_scratch r = scratch_of(&b->lane[i], item);
        list[n++] = (struct op_lane_vote){.at = {.score = r.score,
                                                 .score_stride = r.stride,
                                                 .n = item_count(&b->lane[i], item),
                                                 .group = b->lane[i].shape->group,
                                                 .vote = r.vote,
                                                 .lse = r.lse},
                                          .result = &b->result[i]};
    }
    if (n > 0) b->ops->lanes.vote(b->workers, b->ops, list, n);
}

/* Scratch: that of select_scratch.h by tokens, and what shares by planes need in addition. */
struct share_scratch {
    struct select_scratch scratch;
    size_t bytes;
    void *frame;
    float *sum;
    struct op_draw_piece *piece;
    struct op_draw_state *state;
    float *page;                  /* [pages of a context] */
    struct op_lane_shares *later; /* kept for batch_draw, on the host */
};

static struct share_scratch share_scratch_of(const struct method_shape *s, void *scratch)
{
    struct share_scratch r;
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    a.used = select_scratch_make(&r.scratch, s, true, scratch);
    const size_t n_piece = OP_LANE_PIECES((size_t)s->n_ctx / PAGE_TOK + 1);
    r.frame = arena_take(&a, OPS_SHARE_FRAME, 1);
    r.sum = arena_take(&a, n_piece * s->group, sizeof *r.sum);
    r.piece = arena_take(&a, OP_DRAW_PIECES((size_t)s->n_ctx), sizeof *r.piece);
    r.state = arena_take(&a, 1, sizeof *r.state);
    r.page = arena_take(&a, (size_t)s->n_ctx / PAGE_TOK + 1, sizeof *r.page);
    r.later = arena_take(&a, 1, sizeof *r.later);
    r.bytes = a.used;
    return r;
}

size_t batch_shares_bytes(const struct method_shape *s, const void *param)
{
    (void)param;
    return share_scratch_of(s, NULL).bytes;
}

static void make_shares(const struct method_batch *b,
                        struct op_share_planes (*plane)(const struct method_lane *l), bool later)
{
    struct op_lane_shares *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct share_scratch r = share_scratch_of(l->shape, l->scratch);
        const size_t d = l->shape->geom->head_dim;
        struct op_share_planes at = plane(l);
        at.page = l->page;
        at.n_page = pick_page_count(l);
        at.head_dim = (uint32_t)d;
        at.group = l->shape->group;
        at.q = l->q;
        at.scale = l->scale;
        at.share = r.scratch.vote;
        at.e = r.scratch.score;
        at.frame = r.frame;
        /* min, step and plane are contiguous, in a page as well. */
        meter_bytes(l, at.n_page * meter_lines(0, 4 * d + PAGE_TOK * d / 4));
        list[n] = (struct op_lane_shares){.at = at,
                                          .segment = l->segment,
                                          .n_segment = l->n_segment,
                                          .rope = l->shape->rope,
                                          .turned = r.scratch.qa,
                                          .lse = r.scratch.lse,
                                          .sum = r.sum,
                                          .result = &b->result[i],
                                          .later = later};
        if (later && !b->on_device) *r.later = list[n]; /* the next slot uses the list, too */
        n++;
    }
    if (n > 0) b->ops->lanes.shares(b->workers, b->ops, list, n);
}

void batch_shares(const struct method_batch *b,
                  struct op_share_planes (*plane)(const struct method_lane *l))
{
    make_shares(b, plane, false);
}

void batch_shares_to_draw(const struct method_batch *b,
                          struct op_share_planes (*plane)(const struct method_lane *l))
{
    make_shares(b, plane, true);
}

float *batch_share_sums(const struct method_shape *s, void *scratch)
{
    return share_scratch_of(s, scratch).page;
}

/* Sums the tokens' shares by page. `out` tells where the sums of a lane are written; NULL: to its
 * scores. */
static void sum_pages(const struct method_batch *b,
                      float *(*out)(const struct method_shape *s, void *scratch))
{
    struct op_lane_fold *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct select_scratch r = scratch_of(l, BATCH_TOKEN);
        list[n++] = (struct op_lane_fold){.in = r.vote,
                                          .n = pick_page_count(l),
                                          .n_part = PAGE_TOK,
                                          .step = PAGE_TOK,
                                          .part_step = 1,
                                          .out = out ? out(l->shape, l->scratch) : r.score};
    }
    if (n > 0) b->ops->lanes.fold(b->workers, b->ops, list, n);
}

void batch_sum_pages(const struct method_batch *b)
{
    sum_pages(b, NULL);
}

void batch_sum_shares(const struct method_batch *b)
{
    sum_pages(b, batch_share_sums);
}

void batch_sum_heads(const struct method_batch *b, enum batch_item item)
{
    struct op_lane_fold *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct select_scratch r = scratch_of(&b->lane[i], item);
        list[n++] = (struct op_lane_fold){.in = r.score,
                                          .n = item_count(&b->lane[i], item),
                                          .n_part = b->lane[i].shape->group,
                                          .step = 1,
                                          .part_step = r.stride,
                                          .out = r.vote};
    }
    if (n > 0) b->ops->lanes.fold(b->workers, b->ops, list, n);
}

/* ---- Marks ---- */

struct attn_range batch_between(const struct method_lane *l, const struct batch_ends *ends)
{
    const uint32_t n_page = pick_page_count(l), n_tok = n_page * PAGE_TOK;
    if (ends->item != BATCH_TOKEN)
        return (struct attn_range){min_u32(pick_whole_pages(ends->sink), n_page) * PAGE_TOK,
                                   (n_page - min_u32(pick_whole_pages(ends->recent), n_page)) *
                                       PAGE_TOK};
    const uint32_t recent = l->pos + 1 > ends->recent ? l->pos + 1 - ends->recent : 0;
    return (struct attn_range){min_u32(ends->sink, n_tok), min_u32(recent, n_tok)};
}

static struct op_lane_ends lane_ends(const struct method_batch *b, uint32_t i,
                                     const struct batch_ends *ends)
{
    const struct attn_range open = batch_between(&b->lane[i], ends);
    return (struct op_lane_ends){.mask = b->pick[i].mask,
                                 .n_page = pick_page_count(&b->lane[i]),
                                 .begin = open.begin,
                                 .end = open.end};
}

void batch_mark_ends(const struct method_batch *b, const struct batch_ends *ends)
{
    struct op_lane_ends *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1))
        list[n++] = lane_ends(b, i, ends);
    if (n > 0) b->ops->lanes.ends(b->workers, b->ops, list, n);
}

void batch_window(const struct method_batch *b, uint32_t sink)
{
    struct op_lane_ends *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const uint32_t first = min_u32(sink, b->target[i] - 1); /* one of them is the row's own */
        const struct batch_ends ends = {first, b->target[i] - first, BATCH_TOKEN};
        list[n++] = lane_ends(b, i, &ends);
    }
    if (n > 0) b->ops->lanes.ends(b->workers, b->ops, list, n);
}

/* Marks the best items by the scores of query head g, or by the shares of all query heads. */
static void take(const struct method_batch *b, const struct batch_ends *ends,
                 enum batch_value value, uint32_t g)
{
    struct op_lane_take *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct select_scratch r = scratch_of(&b->lane[i], ends->item);
        const struct attn_range open = batch_between(&b->lane[i], ends);
        const bool by_vote = value == BATCH_BY_VOTE;
        list[n++] =
            (struct op_lane_take){.value = by_vote ? r.vote : r.score + g * r.stride,
                                  .spare = (uint32_t *)(by_vote ? r.score : r.vote),
                                  .n_page = pick_page_count(&b->lane[i]),
                                  .item_tok = item_tokens(ends->item),
                                  .begin = open.begin,
                                  .end = open.end,
                                  .target = pick_units(b->target[i], item_tokens(ends->item)),
                                  .mask = b->pick[i].mask,
                                  .result = &b->result[i]};
    }
    if (n > 0) b->ops->lanes.take(b->workers, b->ops, list, n);
}

void batch_take(const struct method_batch *b, const struct batch_ends *ends, enum batch_value value)
{
    const uint32_t n = value == BATCH_BY_HEAD ? b->lane[0].shape->group : 1;
    batch_mark_ends(b, ends);
    for (uint32_t g = 0; g < n; g++) take(b, ends, value, g);
}

void batch_draw(const struct method_batch *b, const struct batch_ends *ends,
                struct batch_draw (*want)(const struct method_lane *l))
{
    struct op_lane_draw *list = b->list;
    uint32_t n = 0;
    batch_mark_ends(b, ends);
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const struct share_scratch r = share_scratch_of(l->shape, l->scratch);
        const struct attn_range open = batch_between(l, ends);
        const struct batch_draw w = want(l);
        const uint32_t n_open = open.begin < open.end ? open.end - open.begin : 0;
        const uint32_t n_tok = pick_page_count(l) * PAGE_TOK;
        list[n++] = (struct op_lane_draw){.at = {.value = r.scratch.vote + open.begin,
                                                 .n = n_open,
                                                 .first = open.begin,
                                                 .variance = w.variance,
                                                 .item = b->pick[i].tok,
                                                 .logw = b->pick[i].logw,
                                                 .steady = w.steady,
                                                 .key = l->layer << 16 | l->kv_head,
                                                 .pos = l->pos},
                                          .n_more = n_tok - n_open,
                                          .most = w.most * n_tok,
                                          .shares = b->on_device ? NULL : r.later,
                                          .piece = r.piece,
                                          .state = r.state,
                                          .result = &b->result[i]};
    }
    if (n > 0) b->ops->lanes.draw(b->workers, b->ops, list, n);
}
