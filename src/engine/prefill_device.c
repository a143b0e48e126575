/* prefill_device.c: prefill methods where a device chooses and attends. A method says what it wants
 * (method_prefill.sample); the lists are made there and read there, and the program never waits, so
 * it does not know what came of them before the step is over.
 *
 * Invariants:
 *  1. Lists of all runs of a batch and all layers are counted once, behind the next wait, which may
 *     be that of a later step: until then what they are counted by is kept for each step.
 *  2. A layer's lists and masks take the place of those of the layer before: attention has read
 *     them by then, the queue being in order. What was made of them is kept for each layer.
 * Not here: plans that the host makes (prefill.c), whoever attends. */
#include "engine/engine.h"
#include "engine/lane.h"
#include "engine/prefill.h"

#include <assert.h>

bool prefill_is_away(const sac_engine *e, const struct method_prefill *hooks)
{
    return !e->backend.is_host && hooks->sample;
}

static void plan_step(const sac_engine *e, struct prefill_step *s, struct arena *a)
{
    const size_t n = e->prefill.away.list_max, n_seq = n ? e->params.n_seq_max : 0;
    *s = (struct prefill_step){
        .list = arena_take(a, n * e->pool.geom.n_layer, sizeof *s->list),
        .plan = arena_take(a, n_seq, sizeof *s->plan),
        .seq_i = arena_take(a, n_seq, sizeof *s->seq_i),
        .first = arena_take(a, n ? n_seq + 1 : 0, sizeof *s->first),
    };
}

void prefill_device_plan(sac_engine *e, struct arena *a)
{
    struct prefill_away *w = &e->prefill.away;
    const struct page_geom *g = &e->pool.geom;
    const size_t n_run = w->run_list_max, n = w->list_max;
    const uint32_t n_query = OP_SAMPLE_TILE;
    w->mask = arena_take_tensor(a, n_run * e->pool.max_page, sizeof *w->mask);
    w->weight = arena_take_tensor(a, n_run * e->pool.max_page, PAGE_TOK);
    w->query = arena_take_tensor(a, n_run * n_query * g->head_dim, sizeof *w->query);
    w->start = arena_take_tensor(a, n_run * n_query, sizeof *w->start);
    w->failed = arena_take_tensor(a, n ? g->n_kv_head : 0, sizeof *w->failed);
    w->range = arena_take_tensor(a, n * e->prefill.range_max, sizeof *w->range);
    w->tok = arena_take_tensor(a, n * e->prefill.tok_max, sizeof *w->tok);
    w->logw = arena_take_tensor(a, n * e->prefill.tok_max, sizeof *w->logw);
    w->made = arena_take_tensor(a, n * g->n_layer, sizeof *w->made);
    for (uint32_t i = 0; i < PREFILL_STEPS; i++) plan_step(e, &w->step[i], a);
    w->n_step = 0;
    w->call = 0;
}

void prefill_device_begin(sac_engine *e)
{
    struct prefill_away *w = &e->prefill.away;
    struct prefill_step *s = &w->step[w->n_step];
    assert(prefill_device_has_room(e));
    s->n_plan = 0;
    if (w->list_max) s->first[0] = 0;
}

void prefill_device_choose(sac_engine *e, struct reading *r, uint32_t run_i, struct attn_plan *out)
{
    struct prefill_away *w = &e->prefill.away;
    struct prefill_step *s = &w->step[w->n_step];
    const struct page_geom *g = &e->pool.geom;
    const struct attn_run *run = &r->run[run_i];
    const struct method_lane lane = lane_make(e, r, (struct lane_at){CHOOSER_PREFILL, run_i, 0, 0});
    const struct method_prefill *hooks =
        chooser_method(e, CHOOSER_PREFILL, e->batch.run[run_i].seq_i)->spec->method->prefill;
    const struct plan p = prefill_shape(e, run_i);
    const uint32_t n_head = e->model->config.n_head, n_list = p.n_tile * n_head;
    const size_t first = s->first[s->n_plan];
    assert(p.tile_tok == OP_SAMPLE_TILE && p.n_part == e->shape.group);
    assert(n_list <= w->run_list_max && first + n_list <= w->list_max);
    struct op_sample op = {.geom = g,
                           .frames = pool_frames(&e->pool),
                           .frame = run->frame,
                           .table_stride = run->table_stride,
                           .own = lane.own,
                           .q = lane.q,
                           .q_stride = lane.q_stride,
                           .scale = lane.scale,
                           .n_head = n_head,
                           .pos = p.pos,
                           .end = p.end,
                           .tile0 = p.tile0,
                           .n_tile = p.n_tile,
                           .dense_to = lane.sparse_min_ctx,
                           .n_word = e->pool.max_page,
                           .mask = w->mask,
                           .weight = w->weight,
                           .query = w->query,
                           .start = w->start,
                           .failed = w->failed,
                           .call = ++w->call,
                           .range_max = e->prefill.range_max,
                           .tok_max = e->prefill.tok_max,
                           .range = w->range + first * e->prefill.range_max,
                           .tok = w->tok + first * e->prefill.tok_max,
                           .logw = w->logw + first * e->prefill.tok_max,
                           .made = w->made + r->layer * w->list_max + first};
    hooks->sample(&lane, p.end + p.n_after, &op);
    e->ops.lanes.sample(e->workers, &op);
    *out = (struct attn_plan){.tile_tok = p.tile_tok,
                              .by_head = true,
                              .range = op.range,
                              .tok = op.tok,
                              .tok_logw = op.logw,
                              .made = op.made,
                              .range_max = op.range_max,
                              .tok_max = op.tok_max};
    s->plan[s->n_plan] = p;
    s->seq_i[s->n_plan] = e->batch.run[run_i].seq_i;
    s->first[++s->n_plan] = (uint32_t)first + n_list;
}

/* ---- Counters ---- */

void prefill_device_fetch(sac_engine *e)
{
    struct prefill_away *w = &e->prefill.away;
    struct prefill_step *s = &w->step[w->n_step];
    if (!prefill_device_has_room(e) || s->n_plan == 0) return;
    backend_down(&e->backend, s->list, w->made,
                 e->pool.geom.n_layer * w->list_max * sizeof *s->list);
    w->n_step++;
}

bool prefill_device_has_room(const sac_engine *e)
{
    return e->prefill.away.n_step < PREFILL_STEPS;
}

/* One run's lists of a layer. */
static void count_run(const sac_engine *e, const struct prefill_step *s, sac_reads *t,
                      uint32_t layer, uint32_t plan_i)
{
    const struct attn_list *list = s->list + layer * e->prefill.away.list_max + s->first[plan_i];
    struct plan p = s->plan[plan_i];
    const uint32_t n_head = e->model->config.n_head;
    struct plan_stats stats = {0};
    for (uint32_t i = 0; i < p.n_tile * n_head; i++) {
        plan_count(&stats, &p, i / n_head, list[i].n_before, (enum plan_reason)list[i].why);
        t->kv_bytes_read +=
            ((uint64_t)list[i].n_before + p.tile_tok) * (e->pool.geom.bytes / PAGE_TOK);
        if (list[i].mass >= 0) plan_estimate(&p, (double)list[i].mass, 1);
    }
    prefill_count(e, t, &stats, p.n_part);
    t->plan_mass += p.mass;
    t->n_plan_mass += p.n_mass;
}

static void count_step(sac_engine *e, struct prefill_step *s)
{
    const struct config *c = &e->model->config;
    for (uint32_t i = 0; i < s->n_plan; i++) {
        sac_reads t = {0};
        for (uint32_t l = 0; l < c->n_layer; l++)
            if (!config_layer_is_local(c, l)) count_run(e, s, &t, l, i);
        reads_add(&e->seqs[s->seq_i[i]].reads, &t);
        reads_add(&e->stats.reads, &t);
    }
    s->n_plan = 0;
}

void prefill_device_count(sac_engine *e)
{
    struct prefill_away *w = &e->prefill.away;
    for (uint32_t i = 0; i < w->n_step; i++) count_step(e, &w->step[i]);
    w->n_step = 0;
}

void prefill_device_drop(sac_engine *e)
{
    e->prefill.away.n_step = 0;
}
