/* decode_device.c: decode methods on a device, which both selects and attends. The lists are made
 * and read on the device. The host enqueues the slots of a selection (ops/lanes.h) and never waits
 * for them, so it learns their outcome only after the step.
 *
 * Invariants:
 *  1. In a layer that has methods, every lane of a decode row has a count, whether a method was
 *     called for it or not. The counts are copied back with the logits and added to the counters
 *     after the same wait.
 *  2. A run whose lanes are all known on the host to be dense has no lists: it has the bits and the
 *     launches of dense attention. A layer with only such runs costs the device nothing, and its
 *     counts are known on the host.
 *  3. A row of a sequence that lacks pages, for example one joined of documents, reads by a list
 *     made here: all pages that are left. No method selects for it. If a method has dropped the
 *     pages, what is left is marked, because other lanes of the row may read less.
 *
 * Not here: methods that run on the host, and selection by methods that evict (decode_votes.c). */
#include "engine/decode.h"
#include "engine/engine.h"
#include "engine/lane.h"
#include "methods/batch.h"

#include <assert.h>
#include <string.h>

static void plan_choices(const sac_engine *e, struct arena *a, struct decode_choices *c)
{
    const size_t n_seq = e->params.n_seq_max, n_layer = e->pool.geom.n_layer;
    c->known = arena_take(a, n_layer * n_seq * e->pool.geom.n_kv_head, sizeof *c->known);
    c->chosen = arena_take(a, n_layer * n_seq, sizeof *c->chosen);
    c->listed = arena_take(a, n_layer, sizeof *c->listed);
    c->pending = false;
}

void decode_device_plan(sac_engine *e, struct arena *a)
{
    struct decode_device *w = &e->decode.device;
    const size_t n_seq = e->params.n_seq_max, n_layer = e->pool.geom.n_layer;
    const size_t n = n_layer * n_seq * e->pool.geom.n_kv_head;
    w->count = arena_take(a, n, sizeof *w->count);
    plan_choices(e, a, &w->now);
    plan_choices(e, a, &e->ahead.choices);
    const size_t n_kv_head = e->pool.geom.n_kv_head;
    const size_t n_left = e->params.compose || e->decode.evicts ? n_seq : 0;
    w->left = arena_take(a, n_left * n_kv_head * e->pool.max_page, sizeof *w->left);
    w->left_ptr = arena_take(a, n_left * (n_kv_head + 1), sizeof *w->left_ptr);
    decode_votes_plan(e, a);
}

/* Whether a method that keeps its state on a device may estimate unread tokens. Such methods have
 * only one place. */
static bool rests(const sac_engine *e)
{
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    for (uint32_t i = 0; i < specs->n; i++) {
        const struct method *m = specs->spec[i].method;
        if (m->has_rest && m->decode->device) return true;
    }
    return false;
}

static struct reading_rest plan_rest(const sac_engine *e, struct arena *a)
{
    const size_t n_head = e->model->config.n_head, n = e->params.n_seq_max * n_head;
    return (struct reading_rest){
        .log = arena_take_tensor(a, n, sizeof(float)),
        .value = arena_take_tensor(a, n * e->pool.geom.head_dim, sizeof(float)),
        .lse = arena_take_tensor(a, e->batch.n_row_max * n_head, sizeof(float))};
}

void decode_device_plan_rooms(sac_engine *e, struct arena *a)
{
    struct decode *d = &e->decode;
    d->device.rest = rests(e) ? plan_rest(e, a) : (struct reading_rest){0};
    const size_t n_lane = (size_t)e->pool.geom.n_layer * e->pool.geom.n_kv_head;
    d->made = arena_take_tensor(a, n_lane * e->params.n_seq_max, sizeof *d->made);
}

/* The index of a layer's first lane in arrays of all layers. */
static size_t first_lane(const sac_engine *e, uint32_t layer)
{
    return (size_t)layer * e->params.n_seq_max * e->pool.geom.n_kv_head;
}

/* ---- Sequences that lack pages ---- */

/* Makes a run whose sequence lacks pages read those that are present, and sets the counts of its
 * lanes. */
static void list_left(sac_engine *e, uint32_t layer, uint32_t run_i, struct attn_run *run,
                      struct reading_lane *lane)
{
    const struct decode_device *w = &e->decode.device;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, seq_i = e->batch.run[run_i].seq_i;
    const size_t max_page = e->pool.max_page;
    uint32_t *page = w->left + run_i * n_kv_head * max_page, n = 0;
    uint32_t *ptr = w->left_ptr + (size_t)run_i * (n_kv_head + 1);
    const page_id *table = pool_table(&e->pool, seq_i, layer);
    if (!e->seqs[seq_i].has_gaps || decode_method(e, run_i)->evicts) return;
    assert(e->params.compose && !decode_method(e, run_i)->decode);
    for (uint32_t h = 0; h < n_kv_head; h++, table += max_page) {
        ptr[h] = n;
        for (uint32_t p = 0; p < e->batch.run[run_i].pos0 / PAGE_TOK; p++)
            if (table[p] != PAGE_NONE) page[n++] = p;
        lane[h].dense = true;
        lane[h].n_page = n - ptr[h];
        lane[h].kv_bytes = lane[h].n_page * (uint64_t)e->pool.geom.bytes;
    }
    ptr[n_kv_head] = n;
    run->select = page;
    run->select_ptr = ptr;
}

static void list_all_left(sac_engine *e, const struct reading *r)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    for (uint32_t i = 0; i < r->n_decode; i++)
        list_left(e, r->layer, i, &r->run[i], &r->lane[i * (size_t)n_kv_head]);
}

/* ---- Selection ---- */

/* Whether a method may select for one of the rows. */
static bool any_asks(const sac_engine *e, const struct reading *r)
{
    for (uint32_t i = 0; i < r->n_decode; i++)
        if (decode_method(e, i)->decode) return true;
    return false;
}

static struct method_pick make_pick(const sac_engine *e, uint32_t item_i, const struct method *m)
{
    const struct decode *d = &e->decode;
    const size_t first = (size_t)item_i * e->pool.max_page, head = (size_t)item_i * e->shape.group;
    const struct reading_rest *rest = &d->device.rest;
    const bool may_rest = m->has_rest && rest->log;
    return (struct method_pick){.mask = d->mask + first,
                                .rest_log = may_rest ? rest->log + head : NULL,
                                .rest_value =
                                    may_rest ? rest->value + head * e->pool.geom.head_dim : NULL,
                                .tok = m->weighs ? d->tok + first * PAGE_TOK : NULL,
                                .logw = m->weighs ? d->logw + first * PAGE_TOK : NULL};
}

/* Makes all lanes, in the rooms of their own numbers. Lanes for which no method is called are
 * dense. Returns the number of the others. */
static uint32_t make_lanes(sac_engine *e, struct reading *r, uint32_t n)
{
    struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    uint32_t n_asked = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct method *m = decode_method(e, i / n_kv_head);
        d->lane[i] =
            lane_make(e, r, (struct lane_at){METHOD_SET_DECODE, i / n_kv_head, i % n_kv_head, i});
        d->pick[i] = make_pick(e, i, m);
        const bool asked = m->decode && d->lane[i].pos >= PAGE_TOK &&
                           d->lane[i].pos + 1 >= d->lane[i].sparse_min_ctx;
        d->pick[i].dense = !asked;
        d->device.now.known[first_lane(e, r->layer) + i].asked = asked;
        n_asked += asked;
    }
    return n_asked;
}

static void begin_lanes(sac_engine *e, uint32_t layer, uint32_t n)
{
    struct decode *d = &e->decode;
    struct op_lane_begin *list = (struct op_lane_begin *)(void *)d->list;
    for (uint32_t i = 0; i < n; i++)
        list[i] = (struct op_lane_begin){.mask = d->pick[i].mask,
                                         .n_page = d->lane[i].pos / PAGE_TOK,
                                         .result = &d->result[i],
                                         .count = d->made + first_lane(e, layer) + i};
    e->ops.lanes.begin(e->workers, list, n);
}

/* Calls a method for adjacent lanes of one specification, whose scratch is contiguous. */
static void ask(sac_engine *e, uint32_t first, uint32_t n)
{
    struct decode *d = &e->decode;
    const struct method *m = decode_method(e, first / e->pool.geom.n_kv_head);
    const struct method_batch b = {.ops = &e->ops,
                                   .workers = e->workers,
                                   .n = n,
                                   .lane = d->lane + first,
                                   .pick = d->pick + first,
                                   .result = d->result + first,
                                   .on_device = true,
                                   .target = d->target + first,
                                   .list = d->list + first};
    if (m->decode && batch_next(&b, 0) < n) batch_choose(m->decode, &b);
}

static void ask_all(sac_engine *e, uint32_t n)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    for (uint32_t i = 0, end; i < n; i = end) {
        const uint32_t *method_i = e->seqs[e->batch.run[i / n_kv_head].seq_i].method_i;
        for (end = i + n_kv_head; end < n; end += n_kv_head)
            if (e->seqs[e->batch.run[end / n_kv_head].seq_i].method_i[METHOD_SET_DECODE] !=
                method_i[METHOD_SET_DECODE])
                break;
        ask(e, i, end - i);
    }
}

/* Whether the method of one of the rows has freed pages. */
static bool any_dropped(const sac_engine *e, const struct reading *r)
{
    for (uint32_t i = 0; i < r->n_decode; i++)
        if (e->seqs[e->batch.run[i].seq_i].has_gaps && decode_method(e, i)->evicts) return true;
    return false;
}

/* Makes a lane that is dense and lacks pages read those that are left. */
static void mark_left(sac_engine *e, const struct reading *r, uint32_t item_i)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, run_i = item_i / n_kv_head;
    const struct attn_run *run = &r->run[run_i];
    const page_id *table = run->table + item_i % n_kv_head * run->table_stride;
    struct method_pick *pick = &e->decode.pick[item_i];
    uint32_t *word = e->decode.device.left;
    const uint32_t n_page = run->pos0 / PAGE_TOK;
    if (!pick->dense || !e->seqs[e->batch.run[run_i].seq_i].has_gaps ||
        !decode_method(e, run_i)->evicts)
        return;
    for (uint32_t p = 0; p < n_page; p++) word[p] = table[p] == PAGE_NONE ? 0 : UINT32_MAX;
    backend_up(&e->backend, pick->mask, word, n_page * sizeof *word);
    pick->dense = false;
}

/* Records what the host knows of the selections that it has requested. */
static void note_choices(sac_engine *e, const struct reading *r, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct decode_known *known = &e->decode.device.now.known[first_lane(e, r->layer) + i];
        known->dense = e->decode.pick[i].dense;
        known->not_finite = e->decode.pick[i].not_finite;
        mark_left(e, r, i);
    }
}

static bool all_dense(const struct decode *d, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!d->pick[i].dense) return false;
    return true;
}

static void make_lists(sac_engine *e, const struct reading *r, uint32_t n)
{
    struct decode *d = &e->decode;
    d->device.now.listed[r->layer] = !all_dense(d, n);
    if (!d->device.now.listed[r->layer]) return;
    struct op_lane_list *list = (struct op_lane_list *)(void *)d->list;
    for (uint32_t i = 0; i < n; i++) {
        const size_t first = (size_t)i * e->pool.max_page;
        list[i] =
            (struct op_lane_list){.mask = d->pick[i].mask,
                                  .n_page = d->lane[i].pos / PAGE_TOK,
                                  .dense = d->pick[i].dense,
                                  .weighs = decode_method(e, i / e->pool.geom.n_kv_head)->weighs,
                                  .result = &d->result[i],
                                  .lines = &e->attend.lines,
                                  .page = d->page + first,
                                  .tok = d->tok ? d->tok + first * PAGE_TOK : NULL,
                                  .count = d->made + first_lane(e, r->layer) + i};
    }
    e->ops.lanes.list(e->workers, list, n);
}

/* A run reads by lists unless all its lanes are known to be dense. */
static void point_run(const sac_engine *e, struct reading *r, uint32_t run_i)
{
    const struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, lane0 = run_i * n_kv_head;
    const size_t first = (size_t)lane0 * e->pool.max_page;
    bool dense = true;
    for (uint32_t h = 0; h < n_kv_head; h++) dense = dense && d->pick[lane0 + h].dense;
    d->device.now.chosen[(size_t)r->layer * e->params.n_seq_max + run_i] = !dense;
    if (dense) return;
    r->run[run_i].chosen = (struct attn_chosen){
        .count = d->made + first_lane(e, r->layer) + lane0,
        .page = d->page + first,
        .tok = d->tok ? d->tok + first * PAGE_TOK : NULL,
        .logw = decode_method(e, run_i)->weighs ? d->logw + first * PAGE_TOK : NULL,
        .stride = e->pool.max_page};
}

static void show_run(const sac_engine *e, const struct reading *r, uint32_t run_i)
{
    const struct method_decode *hooks = decode_method(e, run_i)->decode;
    for (uint32_t h = 0; h < e->pool.geom.n_kv_head && hooks && hooks->see; h++) {
        const struct method_lane lane =
            lane_make(e, r, (struct lane_at){METHOD_SET_DECODE, run_i, h, 0});
        hooks->see(&lane);
    }
}

/* Shows the rows to the methods, which count them. */
static void show_rows(sac_engine *e, const struct reading *r)
{
    for (uint32_t i = 0; i < r->n_run && e->decode.has_see; i++)
        if (!decode_votes_learn(e, r, i)) show_run(e, r, i);
}

void decode_device_choose(sac_engine *e, struct reading *r)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, n = r->n_decode * n_kv_head;
    r->lane = e->attend.lane;
    memset(r->lane, 0, n * sizeof *r->lane);
    show_rows(e, r);
    r->on_device = any_asks(e, r);
    if (!r->on_device) {
        for (uint32_t i = 0; i < n; i++) r->lane[i].dense = true;
        list_all_left(e, r);
        return;
    }
    const bool asks = make_lanes(e, r, n) > 0;
    if (asks || any_dropped(e, r)) begin_lanes(e, r->layer, n);
    if (asks) r->rest = e->decode.device.rest;
    if (asks) ask_all(e, n);
    note_choices(e, r, n);
    make_lists(e, r, n);
    for (uint32_t i = 0; i < r->n_decode; i++) point_run(e, r, i);
    list_all_left(e, r);
    for (uint32_t i = 0; i < n; i++) { /* what the selections read is known now */
        sac_reads *t = &e->batch.run[i / n_kv_head].reads;
        t->choose_bytes_read += r->lane[i].meter.bytes[METER_CHOOSE];
        t->build_bytes_read += r->lane[i].meter.bytes[METER_BUILD];
    }
    e->decode.device.now.pending = true;
}

/* ---- Estimates of what is not read ---- */

void decode_device_correct(sac_engine *e, const struct reading *r)
{
    const struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, group = e->shape.group;
    const size_t dim = e->pool.geom.head_dim;
    struct op_lane_rest *list = (struct op_lane_rest *)(void *)d->list;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_decode * n_kv_head && r->rest.log; i++) {
        const struct method *m = decode_method(e, i / n_kv_head);
        const size_t row = r->run[i / n_kv_head].row0;
        const size_t head = (row * n_kv_head + i % n_kv_head) * group;
        if (d->pick[i].dense || !m->has_rest || !m->decode->device) continue;
        list[n++] = (struct op_lane_rest){.out = e->scratch.attn + head * dim,
                                          .lse = r->rest.lse + head,
                                          .log = d->pick[i].rest_log,
                                          .value = d->pick[i].rest_value,
                                          .group = group,
                                          .head_dim = (uint32_t)dim,
                                          .result = &d->result[i]};
    }
    if (n > 0) e->ops.lanes.rest(e->workers, list, n);
}

/* ---- Counters ---- */

static bool any_listed(const sac_engine *e, const struct place *p)
{
    for (uint32_t l = p->layer0; l < p->end; l++)
        if (e->decode.device.now.listed[l]) return true;
    return false;
}

void decode_device_fetch(sac_engine *e)
{
    const struct decode_device *w = &e->decode.device;
    for (uint32_t i = place_first_device(e); i < e->n_place && w->now.pending; i++) {
        const struct place *p = &e->place[i];
        const size_t first = first_lane(e, p->layer0), n = first_lane(e, p->end) - first;
        if (any_listed(e, p))
            backend_down(&p->backend, w->count + first, p->rooms.made + first,
                         n * sizeof *w->count);
    }
}

/* Restores a lane of a layer's reading from the counts. */
static void fill_lane(const sac_engine *e, uint32_t layer, struct reading_lane *lane, size_t lane_i)
{
    const struct decode_device *w = &e->decode.device;
    const struct attn_count *count = &w->count[lane_i];
    const struct decode_known *known = &w->now.known[lane_i];
    if (!w->now.listed[layer]) {
        *lane = (struct reading_lane){
            .asked = known->asked, .dense = true, .not_finite = known->not_finite};
        return;
    }
    const uint32_t n_line = count->n_line + (count->dense ? 0 : count->n_line_tok);
    *lane = (struct reading_lane){.asked = known->asked,
                                  .dense = known->dense || count->dense,
                                  .not_finite = known->not_finite || count->not_finite,
                                  .n_page = count->n_page,
                                  .n_tok = count->n_tok,
                                  .n_chosen = count->n_chosen,
                                  .n_bypass = count->n_bypass,
                                  .meter.bytes[METER_CHOOSE] = 64 * (uint64_t)count->n_line_scored,
                                  .kv_bytes = 64 * (uint64_t)n_line};
}

static void count_layer(sac_engine *e, uint32_t layer)
{
    const struct decode *d = &e->decode;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, n_decode = e->batch.n_decode;
    struct reading r = {.layer = layer,
                        .n_run = n_decode,
                        .n_decode = n_decode,
                        .run = e->attend.run,
                        .lane = e->attend.lane};
    for (uint32_t i = 0; i < n_decode; i++) {
        const struct batch_run *in = &e->batch.run[i];
        uint32_t *page_ptr = d->page_ptr + i * (n_kv_head + 1);
        uint32_t *tok_ptr = d->tok_ptr + i * (n_kv_head + 1);
        page_ptr[0] = tok_ptr[0] = 0;
        for (uint32_t h = 0; h < n_kv_head; h++) {
            struct reading_lane *lane = &r.lane[i * n_kv_head + h];
            fill_lane(e, layer, lane, first_lane(e, layer) + i * n_kv_head + h);
            page_ptr[h + 1] = page_ptr[h] + lane->n_page;
            tok_ptr[h + 1] = tok_ptr[h] + lane->n_tok;
        }
        r.run[i] = (struct attn_run){
            .row0 = in->row0, .n_row = in->n_row, .pos0 = in->pos0, .kind = in->kind};
        list_left(e, layer, i, &r.run[i], &r.lane[i * (size_t)n_kv_head]);
        if (!d->device.now.chosen[(size_t)layer * e->params.n_seq_max + i]) continue;
        r.run[i].select = d->page;
        r.run[i].select_ptr = page_ptr;
        r.run[i].select_tok = d->tok;
        r.run[i].select_tok_ptr = tok_ptr;
    }
    attend_count(e, &r);
}

void decode_device_count(sac_engine *e)
{
    const struct config *c = &e->model->config;
    if (!e->decode.device.now.pending) return;
    e->decode.device.now.pending = false;
    for (uint32_t i = 0; i < e->batch.n_decode; i++) e->batch.run[i].reads = (sac_reads){0};
    for (uint32_t l = e->place[place_first_device(e)].layer0; l < c->n_layer; l++)
        if (!config_layer_is_local(c, l)) count_layer(e, l);
    for (uint32_t i = 0; i < e->batch.n_decode; i++) {
        reads_add(&e->seqs[e->batch.run[i].seq_i].reads, &e->batch.run[i].reads);
        reads_add(&e->stats.reads, &e->batch.run[i].reads);
    }
}
