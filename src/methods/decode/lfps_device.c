/* lfps_device.c: LFPS on a device, by slots of ops/recall.h, with one thread block per table. The
 * host knows from positions alone when a lane learns and what its tables cover, and never waits. */
#include "methods/decode/lfps.h"

#include "methods/batch.h"
#include "methods/meter.h"

static size_t lfps_head_bytes(const struct method_shape *s, const void *param)
{
    (void)s;
    (void)param;
    return sizeof(struct lfps_state);
}

/* A lane's scratch in the device's memory. */
struct device_scratch {
    struct op_recall_room step;
    double *sum;                /* of op_lane_settle */
    float *spare;               /* of op_lane_observe, which takes one table after the other */
    struct op_lane_result *met; /* whether all was finite while the tables were filled */
};

static size_t make_device_scratch(struct device_scratch *r, const struct method_shape *s,
                                  uint32_t n_table, void *scratch)
{
    struct arena a = {.base = scratch, .capacity = SIZE_MAX};
    const uint32_t n_page = (s->n_ctx + PAGE_TOK - 1) / PAGE_TOK;
    const size_t stride = (size_t)n_page * PAGE_TOK;
    r->step.n_word = n_page;
    r->step.stride = stride;
    r->step.made = arena_take(&a, 1, sizeof *r->step.made);
    r->step.cand = arena_take(&a, (size_t)n_table * n_page, sizeof *r->step.cand);
    r->step.tok = arena_take(&a, n_table * stride, sizeof *r->step.tok);
    r->step.score = arena_take(&a, s->group * stride, sizeof *r->step.score);
    r->step.weight = arena_take(&a, n_table * stride, sizeof *r->step.weight);
    r->sum = arena_take(&a, op_settle_room(n_page, s->geom->head_dim, s->group), sizeof *r->sum);
    r->spare = arena_take(&a, op_observe_spare(n_page, s->group / n_table), sizeof *r->spare);
    r->met = arena_take(&a, 1, sizeof *r->met);
    return a.used;
}

static size_t lfps_device_bytes(const struct method_shape *s, const void *param)
{
    struct device_scratch r;
    return make_device_scratch(&r, s, lfps_rule_of(s, param).n_table, NULL);
}

/* A lane whose tables are in the device's memory. */
struct device_lane {
    const struct method_lane *lane;
    struct lfps_rule rule;
    struct lfps_state *state; /* in the host's memory */
    struct op_memory memory;  /* the rest, in the device's */
    struct device_scratch room;
};

static struct device_lane open_on_device(const struct method_lane *l)
{
    struct device_lane w = {.lane = l, .rule = lfps_rule_of(l->shape, l->param), .state = l->state};
    struct parts p;
    lfps_table_state(&p, l->shape, w.rule.n_table, l->device_state);
    make_device_scratch(&w.room, l->shape, w.rule.n_table, l->scratch);
    w.memory = p.memory;
    return w;
}

/* Zeroes all tables, which are adjacent in memory, and the result. */
static struct op_lane_begin put_empty(const struct device_lane *w)
{
    const struct op_memory *m = &w->memory;
    const float *end = m->sla + m->n_table * (m->n_tok + PAGE_TOK);
    return (struct op_lane_begin){.mask = (uint32_t *)(void *)m->ver,
                                  .n_page = (uint32_t)(end - m->ver),
                                  .result = w->room.met};
}

/* Adds the softmax weights of up to OP_OBSERVE_ROWS prompt rows to a table (Eq. 4). */
static struct op_lane_observe put_rows(const struct device_lane *w, uint32_t table, uint32_t row0,
                                       uint32_t end)
{
    const struct method_lane *l = w->lane;
    const uint32_t d = l->shape->geom->head_dim, n_head = l->shape->group / w->rule.n_table;
    const size_t head = (size_t)table * n_head * d;
    const struct op_memory *m = &w->memory;
    return (struct op_lane_observe){.keys = {l->shape->geom, l->frames, l->page, l->own},
                                    .rows = {l->q + head, l->past.q + head, l->past.n_slot, l->pos,
                                             n_head, (size_t)l->shape->group * d},
                                    .row0 = row0,
                                    .n_row = min_u32(OP_OBSERVE_ROWS, end - row0),
                                    .first = w->rule.sink,
                                    .scale = l->scale,
                                    .softcap = l->softcap,
                                    .adds = true,
                                    .spare = w->room.spare,
                                    .sum = m->ver + table * m->n_tok,
                                    .slash = m->sla + table * (m->n_tok + PAGE_TOK) + m->n_tok - 1 -
                                             l->pos,
                                    .end = UINT32_MAX,
                                    .result = w->room.met};
}

/* The entries are sums of the weights of n rows and heads; `unit` makes each table sum to 1 / (2 (1
 * - decay)) (Eq. 4). */
static struct op_lane_settle put_settle(const struct device_lane *w)
{
    const struct method_lane *l = w->lane;
    const struct attn_range past = lfps_table_past(l, &w->rule);
    const uint32_t n = (past.end - past.begin) * (l->shape->group / w->rule.n_table);
    const size_t width = (size_t)l->shape->group * l->shape->geom->head_dim;
    return (struct op_lane_settle){
        .to = w->memory,
        .keys = {l->shape->geom, l->frames, l->page, l->own},
        .q = past.end > l->pos ? l->q : method_past_query(&l->past, past.end - 1, width),
        .row = past.end - 1,
        .pos = l->pos,
        .group = l->shape->group,
        .sink = w->rule.sink,
        .scale = l->scale,
        .softcap = l->softcap,
        .unit = (float)(1 / (2 * n * (1 - w->rule.decay))),
        .sum = w->room.sum,
        .made = w->room.met};
}

/* Counts the keys and values that filling the tables reads; of the keys as the host reads them. */
static void count_learning(const struct device_lane *w)
{
    const struct method_lane *l = w->lane;
    const struct attn_range past = lfps_table_past(l, &w->rule);
    meter_build(l);
    observe_count(l, past.begin, past.end);
    meter_bytes(l, (uint64_t)pick_page_count(l) * l->shape->geom->bytes);
    meter_choose(l);
}

/* The next lane from i on whose tables are not filled yet, as `target` says. */
static uint32_t next_learner(const struct method_batch *b, uint32_t i)
{
    while ((i = batch_next(b, i)) < b->n && !b->target[i]) i++;
    return i;
}

/* Adds rows number `from` and following of each lane that learns to its table `table`; false: no
 * rows are left. */
static bool learn_rows(const struct method_batch *b, uint32_t table, uint32_t from)
{
    struct op_lane_observe *list = b->list;
    uint32_t n = 0;
    for (uint32_t i = next_learner(b, 0); i < b->n; i = next_learner(b, i + 1)) {
        const struct device_lane w = open_on_device(&b->lane[i]);
        const struct attn_range past = lfps_table_past(w.lane, &w.rule);
        if (past.begin + from < past.end)
            list[n++] = put_rows(&w, table, past.begin + from, past.end);
    }
    if (n > 0) b->ops->lanes.observe(b->workers, list, n);
    return n > 0;
}

static void learn_on_device(const struct method_batch *b)
{
    struct op_lane_begin *empty = b->list;
    struct op_lane_settle *settle = b->list;
    const uint32_t n_table = lfps_rule_of(b->lane->shape, b->lane->param).n_table;
    uint32_t n = 0;
    for (uint32_t i = next_learner(b, 0); i < b->n; i = next_learner(b, i + 1)) {
        const struct device_lane w = open_on_device(&b->lane[i]);
        empty[n++] = put_empty(&w);
        count_learning(&w);
    }
    if (n == 0) return;
    b->ops->lanes.begin(b->workers, empty, n);
    for (uint32_t table = 0; table < n_table; table++)
        for (uint32_t from = 0; learn_rows(b, table, from);) from += OP_OBSERVE_ROWS;
    n = 0;
    for (uint32_t i = next_learner(b, 0); i < b->n; i = next_learner(b, i + 1)) {
        const struct device_lane w = open_on_device(&b->lane[i]);
        settle[n++] = put_settle(&w);
        w.state->n_mean = pick_page_count(w.lane) * PAGE_TOK;
    }
    b->ops->lanes.settle(b->workers, settle, n);
}

static struct op_lane_recall put_step(const struct device_lane *w, const struct method_pick *pick,
                                      struct op_lane_result *result)
{
    const struct method_lane *l = w->lane;
    const struct lfps_param *set = l->param;
    const uint32_t every = set->refresh, pos = l->pos;
    return (struct op_lane_recall){.of = w->memory,
                                   .keys = {l->shape->geom, l->frames, l->page, l->own},
                                   .lines = l->lines,
                                   .q = l->q,
                                   .pos = pos,
                                   .group = l->shape->group,
                                   .scale = l->scale,
                                   .softcap = l->softcap,
                                   .sink = set->sink,
                                   .local = lfps_local_begin(l),
                                   .from = w->state->n_mean,
                                   .budget = method_spec_budget(set->budget, pos + 1 - set->sink),
                                   .bypass = (float)set->bypass,
                                   .a = set->a,
                                   .decay = set->decay,
                                   .all = every > 0 && (pos + l->layer + l->kv_head) % every == 0,
                                   .guard = set->guard,
                                   .room = w->room.step,
                                   .mask = pick->mask,
                                   .rest_log = set->rest == 0 ? pick->rest_log : NULL,
                                   .rest_value = pick->rest_value,
                                   .result = result};
}

/* Counts the tokens that are added to the means, and those from which rho (Eq. 6) is computed. */
static void count_step(const struct device_lane *w)
{
    const struct method_lane *l = w->lane;
    const struct lfps_param *set = l->param;
    const size_t row = 2 * (size_t)l->shape->geom->head_dim;
    meter_build(l);
    meter_bytes(l, 2 * row * (l->pos + 1 - w->state->n_mean));
    meter_choose(l);
    meter_bytes(l, row * (set->sink + l->pos - lfps_local_begin(l)));
}

static void step_on_device(const struct method_batch *b)
{
    struct op_lane_recall *list = b->list;
    struct op_lane_ends *ends = b->list;
    uint32_t n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct device_lane w = open_on_device(&b->lane[i]);
        list[n++] = put_step(&w, &b->pick[i], &b->result[i]);
        count_step(&w);
        *w.state = (struct lfps_state){w.lane->pos + 1, w.lane->pos + 1};
    }
    if (n == 0) return;
    b->ops->lanes.recall(b->workers, list, n);
    n = 0;
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct lfps_param *set = b->lane[i].param;
        ends[n++] = (struct op_lane_ends){.mask = b->pick[i].mask,
                                          .n_page = pick_page_count(&b->lane[i]),
                                          .begin = set->sink,
                                          .end = b->lane[i].pos - LFPS_LOCAL};
    }
    b->ops->lanes.ends(b->workers, b->ops, ends, n);
}

/* Tables that are not finite stay so until the next prompt, and their lane is dense: the host,
 * which could have them filled anew, does not wait to learn of it. */
static void lfps_choose_on_device(const struct method_batch *b)
{
    for (uint32_t i = batch_next(b, 0); i < b->n; i = batch_next(b, i + 1)) {
        const struct lfps_state *s = b->lane[i].state;
        if (lfps_reads_all(&b->lane[i])) pick_dense(&b->pick[i]);
        b->target[i] = s->n_learnt == 0;
    }
    learn_on_device(b);
    step_on_device(b);
}

const struct method_device lfps_device = {
    .head_bytes = lfps_head_bytes,
    .scratch_bytes = lfps_device_bytes,
    .choose = lfps_choose_on_device,
};
