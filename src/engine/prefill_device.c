/* prefill_device.c: prefill methods on a device, which both selects and attends. A method declares
 * what it needs (method_prefill.sample, .blocks, .trace, .antidiag). The lists are made and read on
 * the device and the host never waits, so it learns their outcome only after the step.
 *
 * Invariants:
 *  1. The lists of all runs of a batch and all layers are counted once, after the next wait, which
 *     may be in a later step. What is needed to count them is kept for each step until then.
 *  2. A layer's lists and masks overwrite those of the layer before. Attention has read those by
 *     then, because the queue executes in order. The counts are kept for each layer.
 *
 * Not here: plans made on the host (prefill.c), wherever attention is computed. */
#include "engine/engine.h"
#include "engine/lane.h"
#include "engine/prefill.h"

#include <assert.h>

bool prefill_may_be_on_device(const sac_engine *e, const struct method_prefill *hooks)
{
    return place_has_device(e) &&
           (hooks->sample || hooks->blocks || hooks->trace || hooks->antidiag);
}

/* Whether a method has scratch of its own; the others use that of marked lists. */
static bool has_own_room(const struct method_prefill *hooks)
{
    return hooks->trace || hooks->antidiag;
}

bool prefill_is_on_device(const sac_engine *e, const struct method_prefill *hooks)
{
    return !e->backend.is_host && prefill_may_be_on_device(e, hooks);
}

static size_t room_bytes(const sac_engine *e, const struct method_spec *spec)
{
    const struct method_prefill *hooks = spec->method->prefill;
    const size_t n_head = e->model->config.n_head, n_tok = e->params.n_ctx;
    if (hooks->trace)
        return op_trace_bytes(n_head, hooks->trace_rows(&e->shape, spec->param), n_tok);
    return op_antidiag_bytes(n_head, e->shape.n_row_max, n_tok,
                             hooks->antidiag_stride(spec->param));
}

void prefill_device_size(sac_engine *e, const struct method_spec *spec, size_t run_list,
                         size_t list)
{
    struct prefill_device *w = &e->prefill.device;
    const struct method_prefill *hooks = spec->method->prefill;
    w->list_max = mem_larger(w->list_max, list);
    if (has_own_room(hooks)) {
        w->room_bytes = mem_larger(w->room_bytes, room_bytes(e, spec));
        if (hooks->trace_pools)
            w->pool_bytes = mem_larger(w->pool_bytes,
                                       op_trace_pool_bytes(&e->pool.geom, e->model->config.n_head,
                                                           e->shape.n_row_max, e->params.n_ctx));
        if (hooks->trace)
            w->trace_rows =
                (uint32_t)mem_larger(w->trace_rows, hooks->trace_rows(&e->shape, spec->param));
        return;
    }
    w->run_list_max = mem_larger(w->run_list_max, run_list);
    if (hooks->blocks)
        w->fused_bytes = mem_larger(w->fused_bytes,
                                    method_hook_bytes(hooks->state_bytes, &e->shape, spec->param));
}

static void plan_step(const sac_engine *e, struct prefill_step *s, struct arena *a)
{
    const size_t n = e->prefill.device.list_max, n_seq = n ? e->params.n_seq_max : 0;
    *s = (struct prefill_step){
        .list = arena_take(a, n * e->pool.geom.n_layer, sizeof *s->list),
        .plan = arena_take(a, n_seq, sizeof *s->plan),
        .seq_i = arena_take(a, n_seq, sizeof *s->seq_i),
        .first = arena_take(a, n ? n_seq + 1 : 0, sizeof *s->first),
    };
}

void prefill_device_plan(sac_engine *e, struct arena *a)
{
    struct prefill_device *w = &e->prefill.device;
    w->segment = arena_take(a, w->run_list_max, sizeof *w->segment);
    w->before = arena_take(a, w->list_max ? e->params.n_seq_max : 0, sizeof *w->before);
    w->row = arena_take(a, w->trace_rows, 2 * sizeof *w->row);
    w->size = arena_take(a, w->trace_rows ? e->model->config.n_head : 0,
                         OP_TRACE_SIZES * sizeof *w->size);
    for (uint32_t i = 0; i < PREFILL_STEPS; i++) plan_step(e, &w->step[i], a);
    w->n_step = 0;
    w->call = 0;
}

void prefill_device_plan_rooms(sac_engine *e, struct arena *a)
{
    const struct prefill_device *w = &e->prefill.device;
    const struct page_geom *g = &e->pool.geom;
    struct prefill_rooms *r = &e->prefill.device.rooms;
    const size_t n_run = w->run_list_max, n = w->list_max;
    const uint32_t n_query = OP_SAMPLE_QUERIES;
    r->mask = arena_take_tensor(a, n_run * e->pool.max_page, sizeof *r->mask);
    r->weight = arena_take_tensor(a, n_run * e->pool.max_page, PAGE_TOK);
    r->query = arena_take_tensor(a, n_run * n_query * g->head_dim, sizeof *r->query);
    r->start = arena_take_tensor(a, n_run * n_query, 2 * sizeof *r->start);
    r->failed = arena_take_tensor(a, n ? g->n_kv_head : 0, sizeof *r->failed);
    r->range = arena_take_tensor(a, n * e->prefill.range_max, sizeof *r->range);
    r->tok = arena_take_tensor(a, n * e->prefill.tok_max, sizeof *r->tok);
    r->logw = arena_take_tensor(a, n_run ? n * e->prefill.tok_max : 0, sizeof *r->logw);
    r->made = arena_take_tensor(a, n * g->n_layer, sizeof *r->made);
    r->fused = arena_take_tensor(a, (size_t)e->params.n_seq_max * g->n_kv_head, w->fused_bytes);
    r->room = arena_take_tensor(a, w->room_bytes, 1);
    r->pool = arena_take_tensor(a, w->pool_bytes, 1);
}

void prefill_device_begin(sac_engine *e)
{
    struct prefill_device *w = &e->prefill.device;
    struct prefill_step *s = &w->step[w->n_step];
    assert(prefill_device_has_room(e));
    s->n_plan = 0;
    if (w->list_max) s->first[0] = 0;
}

/* A run for which lists are requested. */
struct device_run {
    struct method_lane lane; /* of the first KV head */
    struct plan plan;
    uint32_t layer, n_tok; /* n_tok: tokens of the prompt */
    struct op_prompt_rows rows;
    struct op_prompt_lists lists;
};

static struct op_prompt_rows rows_of(const sac_engine *e, const struct attn_run *run,
                                     const struct method_lane *l, const struct plan *p)
{
    return (struct op_prompt_rows){.geom = &e->pool.geom,
                                   .frames = pool_frames(&e->pool, l->layer),
                                   .frame = run->frame,
                                   .table_stride = run->table_stride,
                                   .own = l->own,
                                   .q = l->q,
                                   .q_stride = l->q_stride,
                                   .scale = l->scale,
                                   .n_head = e->model->config.n_head,
                                   .pos = p->pos,
                                   .end = p->end,
                                   .tile_tok = p->tile_tok,
                                   .tile0 = p->tile0,
                                   .n_tile = p->n_tile,
                                   .dense_to = l->sparse_min_ctx};
}

/* The lists of a layer from `first` on, with a number for this call. */
static struct op_prompt_lists lists_of(sac_engine *e, uint32_t layer, size_t first, bool has_logw)
{
    struct prefill_device *w = &e->prefill.device;
    const struct prefill *f = &e->prefill;
    return (struct op_prompt_lists){.failed = w->rooms.failed,
                                    .call = ++w->call,
                                    .range_max = f->range_max,
                                    .tok_max = f->tok_max,
                                    .range = w->rooms.range + first * f->range_max,
                                    .tok = w->rooms.tok + first * f->tok_max,
                                    .logw = has_logw ? w->rooms.logw + first * f->tok_max : NULL,
                                    .made = w->rooms.made + layer * w->list_max + first};
}

static void sample(sac_engine *e, const struct method_prefill *hooks, const struct device_run *r)
{
    const struct prefill_rooms *rooms = &e->prefill.device.rooms;
    struct op_sample op = {.rows = r->rows,
                           .lists = r->lists,
                           .n_word = e->pool.max_page,
                           .mask = rooms->mask,
                           .weight = rooms->weight,
                           .query = rooms->query,
                           .start = rooms->start};
    assert(r->plan.tile_tok == OP_SAMPLE_TILE && r->plan.n_part == e->shape.group);
    hooks->sample(&r->lane, r->n_tok, &op);
    e->ops.lanes.sample(e->workers, &op);
}

/* The number of the call for the same rows in the previous layer: layers of a step are
 * ascending. */
static uint32_t call_before(struct prefill_before *b, uint32_t layer, uint32_t call)
{
    const uint32_t before = layer > b->layer ? b->call : 0;
    *b = (struct prefill_before){layer, call};
    return before;
}

/* These methods use the scratch of a sample, which is large enough: for each list, 32 token weights
 * per page, OP_SAMPLE_QUERIES queries, and twice as many starts. */
static void choose_blocks(sac_engine *e, const struct method_prefill *hooks,
                          const struct device_run *r)
{
    struct prefill_device *w = &e->prefill.device;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    const size_t plan_i = w->step[w->n_step].n_plan;
    float *raw = (float *)(void *)w->rooms.weight;
    uint8_t *fused = w->rooms.fused + plan_i * n_kv_head * w->fused_bytes;
    struct op_blocks op = {.rows = r->rows,
                           .lists = r->lists,
                           .segment = w->segment,
                           .n_word = e->pool.max_page,
                           .query = (float *)(void *)w->rooms.query,
                           .sums = w->rooms.start,
                           .raw = raw,
                           .value = raw + w->run_list_max * e->pool.max_page,
                           .mask = w->rooms.mask,
                           .before = call_before(&w->before[plan_i], r->layer, r->lists.call),
                           .fused = (float *)(void *)fused,
                           .fused_stride = w->fused_bytes / sizeof(float)};
    hooks->blocks(&r->lane, r->n_tok, &op);
    assert(r->plan.n_part == 1 && op.n_segment * n_kv_head <= w->run_list_max);
    assert(op.n_segment * op.fused_row <= op.fused_stride);
    e->ops.lanes.blocks(e->workers, &op);
}

static void trace(sac_engine *e, const struct method_prefill *hooks, const struct device_run *r)
{
    const struct prefill_device *w = &e->prefill.device;
    struct op_trace op = {.rows = r->rows,
                          .lists = r->lists,
                          .softcap = r->lane.softcap,
                          .choose = {.at = w->row},
                          .judge = {.at = w->row + w->trace_rows},
                          .size = w->size,
                          .room = w->rooms.room,
                          .pool = w->rooms.pool};
    hooks->trace(&r->lane, r->n_tok, &op);
    assert(op.choose.n <= w->trace_rows && op.judge.n <= w->trace_rows);
    assert(r->plan.n_part == e->shape.group && op.n_size <= OP_TRACE_SIZES);
    e->ops.lanes.trace(e->workers, &op);
}

static void antidiag(sac_engine *e, const struct method_prefill *hooks, const struct device_run *r)
{
    struct op_antidiag op = {
        .rows = r->rows, .lists = r->lists, .room = e->prefill.device.rooms.room};
    hooks->antidiag(&r->lane, r->n_tok, &op);
    assert(r->plan.tile_tok == OP_ANTIDIAG_TILE && r->plan.n_part == e->shape.group);
    e->ops.lanes.antidiag(e->workers, &op);
}

static void choose(sac_engine *e, const struct method_prefill *hooks, const struct device_run *r)
{
    if (hooks->sample)
        sample(e, hooks, r);
    else if (hooks->trace)
        trace(e, hooks, r);
    else if (hooks->antidiag)
        antidiag(e, hooks, r);
    else
        choose_blocks(e, hooks, r);
}

void prefill_device_choose(sac_engine *e, struct reading *r, uint32_t run_i, struct attn_plan *out)
{
    const struct prefill_device *w = &e->prefill.device;
    struct prefill_step *s = &e->prefill.device.step[w->n_step];
    const uint32_t seq_i = e->batch.run[run_i].seq_i;
    const struct method_prefill *hooks =
        method_set_entry(e, METHOD_SET_PREFILL, seq_i)->spec->method->prefill;
    const struct plan p = prefill_shape(e, run_i);
    const uint32_t n_list = p.n_tile * e->pool.geom.n_kv_head * p.n_part,
                   first = s->first[s->n_plan];
    struct device_run run = {.lane =
                                 lane_make(e, r, (struct lane_at){METHOD_SET_PREFILL, run_i, 0, 0}),
                             .plan = p,
                             .layer = r->layer,
                             .n_tok = p.end + p.n_after,
                             .lists = lists_of(e, r->layer, first, !has_own_room(hooks))};
    run.rows = rows_of(e, &r->run[run_i], &run.lane, &p);
    assert(first + n_list <= w->list_max);
    assert(has_own_room(hooks) || n_list <= w->run_list_max);
    choose(e, hooks, &run);
    *out = (struct attn_plan){.tile_tok = p.tile_tok,
                              .by_head = p.n_part > 1,
                              .range = run.lists.range,
                              .tok = run.lists.tok,
                              .tok_logw = run.lists.logw,
                              .made = run.lists.made,
                              .range_max = run.lists.range_max,
                              .tok_max = run.lists.tok_max};
    s->plan[s->n_plan] = p;
    s->seq_i[s->n_plan] = seq_i;
    s->first[++s->n_plan] = first + n_list;
}

/* ---- Counters ---- */

void prefill_device_fetch(sac_engine *e)
{
    struct prefill_device *w = &e->prefill.device;
    struct prefill_step *s = &w->step[w->n_step];
    if (!prefill_device_has_room(e) || s->n_plan == 0) return;
    for (uint32_t i = place_first_device(e); i < e->n_place; i++) {
        const struct place *p = &e->place[i];
        const size_t first = p->layer0 * w->list_max, n = p->end * w->list_max - first;
        backend_down(&p->backend, s->list + first, p->rooms.prefill.made + first,
                     n * sizeof *s->list);
    }
    w->n_step++;
}

bool prefill_device_has_room(const sac_engine *e)
{
    return e->prefill.device.n_step < PREFILL_STEPS;
}

/* Counts the lists of one run in a layer. */
static void count_run(const sac_engine *e, const struct prefill_step *s, sac_reads *t,
                      uint32_t layer, uint32_t plan_i)
{
    const struct attn_list *list = s->list + layer * e->prefill.device.list_max + s->first[plan_i];
    struct plan p = s->plan[plan_i];
    const uint32_t n_each = e->pool.geom.n_kv_head * p.n_part; /* lists of a tile */
    struct plan_stats stats = {0};
    for (uint32_t i = 0; i < p.n_tile * n_each; i++) {
        plan_count(&stats, &p, i / n_each, list[i].n_before, (enum plan_reason)list[i].why);
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
        for (uint32_t l = e->place[place_first_device(e)].layer0; l < c->n_layer; l++)
            if (!config_layer_is_local(c, l)) count_run(e, s, &t, l, i);
        reads_add(&e->seqs[s->seq_i[i]].reads, &t);
        reads_add(&e->stats.reads, &t);
    }
    s->n_plan = 0;
}

void prefill_device_count(sac_engine *e)
{
    struct prefill_device *w = &e->prefill.device;
    for (uint32_t i = 0; i < w->n_step; i++) count_step(e, &w->step[i]);
    w->n_step = 0;
}

void prefill_device_drop(sac_engine *e)
{
    e->prefill.device.n_step = 0;
}
