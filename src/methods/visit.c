/* visit.c: see the header. A team is the set of lanes that visit the same pages: a KV head, or all
 * KV heads of a layer. Descriptors are made once. If pages are in tiers, all teams go through their
 * rounds together: the pages of a round are held while all workers visit them, and released before
 * more are requested. */
#include "methods/visit.h"

#include "methods/meter.h"
#include "methods/pick.h"

#include <assert.h>
#include <string.h>

struct visit_scratch visit_scratch_of(const struct method_shape *s, bool by_token, size_t n_own,
                                      void *scratch)
{
    struct visit_scratch r;
    struct arena a = {.base = scratch, .capacity = SIZE_MAX, .used = n_own};
    select_scratch_make(&r.scratch, s, by_token, scratch);
    r.vote = by_token ? batch_share_sums(s, scratch) : r.scratch.vote;
    const size_t n_page = (size_t)s->n_ctx / PAGE_TOK + 1, n_part = n_page * s->group;
    const size_t n_block = (n_page / OP_VISIT_BLOCK + 1) * s->group;
    /* The scores of tokens have become votes before the first page is visited, so their memory is
     * reused. */
    r.weight = by_token ? r.scratch.score : arena_take(&a, n_part * PAGE_TOK, sizeof *r.weight);
    r.page_most = arena_take(&a, n_part, sizeof *r.page_most);
    r.page_sum = arena_take(&a, n_part, sizeof *r.page_sum);
    r.page_log = arena_take(&a, (size_t)OP_VISIT_ROUND * s->group, sizeof *r.page_log);
    r.block = arena_take(&a, n_block * (s->geom->head_dim + 1), sizeof *r.block);
    r.sum = arena_take(&a, n_part, sizeof *r.sum);
    r.spare = arena_take(&a, r.scratch.stride, sizeof *r.spare);
    r.told = arena_take(&a, r.scratch.stride, sizeof *r.told);
    r.state = arena_take(&a, 1, sizeof *r.state);
    r.bytes = a.used;
    return r;
}

/* ---- Descriptors ---- */

static struct op_lane_visit lane_visit(const struct method_batch *b, uint32_t i,
                                       const struct visit_want *want)
{
    const struct method_lane *l = &b->lane[i];
    const struct visit_rule rule = want->rule(l);
    const struct visit_scratch r = want->scratch(l);
    const struct attn_range open =
        batch_between(l, &(struct batch_ends){PAGE_TOK, rule.recent, BATCH_PAGE});
    const uint32_t first = min_u32(open.begin, open.end) / PAGE_TOK;
    if (!b->on_device) memset(r.state, 0, sizeof *r.state); /* a device clears its own state */
    return (struct op_lane_visit){.geom = l->shape->geom,
                                  .frames = l->frames,
                                  .layer = l->layer,
                                  .kv_head = l->kv_head,
                                  .page = l->page,
                                  .segment = l->segment,
                                  .n_segment = l->n_segment,
                                  .rope = l->shape->rope,
                                  .own = l->own,
                                  .n_own = l->pos % PAGE_TOK + 1,
                                  .n_page = pick_page_count(l),
                                  .group = l->shape->group,
                                  .q = l->q,
                                  .scale = l->scale,
                                  .softcap = l->softcap,
                                  .begin = first,
                                  .end = max_u32(first, open.end / PAGE_TOK),
                                  .vote = r.vote,
                                  .order = r.scratch.list,
                                  .spare = r.spare,
                                  .told = r.told,
                                  .weight = r.weight,
                                  .page_most = r.page_most,
                                  .page_sum = r.page_sum,
                                  .page_log = r.page_log,
                                  .block = r.block,
                                  .sum = r.sum,
                                  .value = b->pick[i].rest_value,
                                  .value_log = b->pick[i].rest_log,
                                  .mask = b->pick[i].mask,
                                  .result = &b->result[i],
                                  .state = r.state,
                                  .proof = want->proof ? want->proof(l) : NULL,
                                  .n_member = 1,
                                  .mass = rule.mass,
                                  .step = rule.step,
                                  .ahead = rule.step * rule.ahead,
                                  .rest = rule.rest,
                                  .by_mean = rule.by_mean,
                                  .until = UINT32_MAX,
                                  .last = b->on_device ? NULL : rule.last};
}

/* Makes the descriptors, those of a team adjacent, with their lanes' numbers in `target`; returns
 * their number. */
static uint32_t list_lanes(const struct method_batch *b, const struct visit_want *want)
{
    struct op_lane_visit *list = b->list;
    uint32_t n = 0, leader = 0, row = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct method_lane *l = &b->lane[i];
        const bool joins = n > 0 && want->rule(l).by_layer && l->row == row;
        list[n] = lane_visit(b, i, want);
        meter_read(l, l->own, (size_t)list[n].n_own * l->shape->geom->head_dim * 2);
        if (joins) {
            assert(list[n].n_page == list[leader].n_page);
            list[leader].n_member++;
            list[n].n_member = 0;
        } else {
            leader = n;
        }
        row = l->row;
        b->target[n++] = i;
    }
    return n;
}

/* ---- Tiers ---- */

#define HELD_MAX 2048u /* maximum number of pages that are visited together */

struct visit {
    const struct method_batch *b; /* target: the lane of each descriptor */
    struct op_lane_visit *list;
    uint32_t n;             /* descriptors of teams that need more pages */
    uint32_t n_held;        /* pages that are held for the current round */
    page_id held[HELD_MAX]; /* their ids */
};

static const struct method_lane *lane_of(const struct visit *d, uint32_t i)
{
    return &d->b->lane[d->b->target[i]];
}

/* Lists the pages at ranks [from, end) of a team's order, for all its lanes; returns their
 * number. */
static uint32_t list_pages(const struct op_lane_visit *op, uint32_t from, uint32_t end, page_id *id)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < op->n_member; k++)
        for (uint32_t i = from; i < end; i++) id[n++] = op[k].page[op->order[i]];
    return n;
}

/* The pages before this rank of the order are requested now: those of the round, and of the next
 * `ahead` steps. */
static uint32_t places_due(const struct op_lane_visit *op)
{
    const struct op_visited *s = op->state;
    if (op->ahead == 0) return 0;
    return max_u32(s->plan, s->look + min_u32(op->ahead, op->n_page - s->look));
}

/* Starts prefetching a team's pages that are due, from rank `from` on. */
static void fetch_ahead(struct visit *d, uint32_t i, uint32_t from)
{
    const struct op_lane_visit *op = &d->list[i];
    const uint32_t due = places_due(op), room = (HELD_MAX - d->n_held) / op->n_member;
    page_id *id = d->held + d->n_held; /* free until more pages are held */
    if (from >= due) return;
    tier_prefetch(lane_of(d, i)->tier, TIER_VISIT, id,
                  list_pages(op, from, min_u32(due, from + room), id));
}

/* Acquires pages in addition to those that are held. Without workers, other threads visit with
 * teams of their own: a thread that holds no page may wait for them to release some, but a thread
 * that holds some must not, or both could wait forever. */
static sac_status acquire(const struct visit *d, struct tier *t, uint32_t n)
{
    const page_id *id = d->held + d->n_held;
    return d->b->workers || d->n_held > 0 ? tier_acquire_more(t, d->b->workers, id, n)
                                          : tier_acquire(t, id, n);
}

/* Acquires as many pages of a team's next round as memory can hold beside those held; these will be
 * visited. False: none. If none is held either, the row fails. */
static bool hold_round(struct visit *d, uint32_t i)
{
    struct op_lane_visit *op = &d->list[i];
    const struct method_lane *l = lane_of(d, i);
    const uint32_t most = min_u32(HELD_MAX, l->tier->n_frame) - d->n_held, at = op->state->at;
    uint32_t n = min_u32(op->state->plan - at, most / op->n_member);
    page_id *id = d->held + d->n_held;
    sac_status status = SAC_ERR_CONTEXT;
    for (; n > 0; n = d->n_held == 0 ? n / 2 : 0) {
        status = acquire(d, l->tier, list_pages(op, at, at + n, id));
        if (tier_holds(status)) break;
    }
    if (status != SAC_OK && (n > 0 || d->n_held == 0))
        __atomic_store_n(l->lost, (uint8_t)status, __ATOMIC_RELAXED);
    op->until = at + n;
    d->n_held += n * op->n_member;
    return n > 0;
}

/* Removes the teams that have ended from the list. */
static void drop_ended(struct visit *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0, n_member; i < d->n; i += n_member) {
        n_member = d->list[i].n_member;
        if (d->list[i].state->done || __atomic_load_n(lane_of(d, i)->lost, __ATOMIC_RELAXED))
            continue;
        for (uint32_t k = i; k < i + n_member; k++, n++) {
            d->list[n] = d->list[k];
            d->b->target[n] = d->b->target[k];
        }
    }
    d->n = n;
}

/* A round of as many teams as fit in memory together; the others follow. */
static void visit_rounds(struct visit *d)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < d->n; i += d->list[i].n_member)
        fetch_ahead(d, i, d->list[i].state->at);
    while (n < d->n && hold_round(d, n)) n += d->list[n].n_member;
    for (uint32_t i = 0; i < n; i += d->list[i].n_member) fetch_ahead(d, i, d->list[i].until);
    d->b->ops->lanes.visit(d->b->workers, d->b->ops, d->list, n);
    tier_release(d->b->lane[0].tier, d->held, d->n_held);
    d->n_held = 0;
}

static void visit_teams(const struct method_batch *b, uint32_t n)
{
    struct visit d = {.b = b, .list = b->list, .n = n};
    for (uint32_t i = 0; i < n; i++) d.list[i].until = 0;
    b->ops->lanes.visit(b->workers, b->ops, d.list, n);
    for (drop_ended(&d); d.n > 0; drop_ended(&d)) visit_rounds(&d);
}

void visit_choose(const struct method_batch *b, const struct visit_want *want)
{
    const uint32_t n = list_lanes(b, want);
    if (n == 0) return;
    if (b->lane[0].tier)
        visit_teams(b, n);
    else
        b->ops->lanes.visit(b->workers, b->ops, b->list, n);
}
