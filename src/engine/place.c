/* place.c: see the header.
 *
 * Invariant: the engine's fields that belong to a place change only here, so nothing of a place
 * remains when it is left. */
#include "engine/place.h"

#include "base/mem.h"
#include "engine/engine.h"
#include "engine/layer.h"

#include <assert.h>

struct place *place_last(sac_engine *e)
{
    return &e->place[e->n_place - 1];
}

uint32_t place_first_device(const sac_engine *e)
{
    return place_has_host(e) ? 1 : 0;
}

uint32_t place_n_device(const sac_engine *e)
{
    return e->n_place - place_first_device(e);
}

bool place_has_host(const sac_engine *e)
{
    return e->place[0].backend.is_host;
}

bool place_has_device(const sac_engine *e)
{
    return !e->place[e->n_place - 1].backend.is_host && !e->params.kv_on_host;
}

uint32_t place_of(const sac_engine *e, uint32_t layer)
{
    return e->params.kv_on_host ? 0 : place_linear(e, layer);
}

uint32_t place_of_output(const sac_engine *e)
{
    const bool in_part = e->params.n_device_layer <= e->model->config.n_layer;
    return e->params.n_device_layer > 0 && in_part ? 0 : e->n_place - 1;
}

uint32_t place_linear(const sac_engine *e, uint32_t layer)
{
    uint32_t i = 0;
    while (layer >= e->place[i].end) i++;
    assert(i < e->n_place);
    return i;
}

static void load(sac_engine *e, uint32_t i)
{
    const struct place *p = &e->place[i];
    const struct place_rooms *r = &p->rooms;
    assert(i < e->n_place);
    e->at = i;
    e->backend = p->backend;
    e->ops = p->backend.ops;
    e->weights = p->weights;
    e->scratch = p->scratch;
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        e->method_set[kind].worker = r->worker[kind];
    e->decode.mask = r->mask;
    e->decode.page = r->page;
    e->decode.tok = r->tok;
    e->decode.logw = r->logw;
    e->decode.result = r->result;
    e->decode.made = r->made;
    e->prefill.device.rooms = r->prefill;
    e->side.data = r->side;
    e->side.n_page = r->n_side_page;
}

void place_begin(sac_engine *e)
{
    load(e, 0);
}

void place_enter(sac_engine *e, uint32_t i)
{
    if (i != e->at) load(e, i);
}

/* ---- Memory ---- */

/* Host memory for a step's input [n]: on a host `mine`, which it computes on; otherwise the first
 * place's, from which all devices upload it. */
static float *take_input(const sac_engine *e, struct arena *a, float *mine, float *first, size_t n)
{
    if (e->backend.is_host) return mine;
    return e->at > 0 ? first : arena_take(a, n, sizeof(float));
}

/* Whether the current place computes attention, and so has the methods' scratch. */
static bool attends_here(const sac_engine *e)
{
    return e->at == 0 || !e->params.kv_on_host;
}

static void plan_ops_scratch(sac_engine *e, struct arena *a)
{
    struct scratch *s = &e->scratch;
    layer_scratch_bytes(e, &s->linear_bytes, &s->attn_bytes);
    if (!attends_here(e)) s->attn_bytes = 0;
    s->linear = arena_take_tensor(a, 1, s->linear_bytes);
    s->attn_ops = arena_take_tensor(a, 1, s->attn_bytes);
}

static void plan_scratch(sac_engine *e, struct arena *a)
{
    const struct config *c = &e->model->config;
    const struct place *p = &e->place[e->at];
    const struct scratch *first = &e->place[0].scratch;
    struct scratch *s = &e->scratch;
    const size_t n = e->batch.n_row_max, n_angle = n * c->rope.n_rot / 2;
    const size_t n_qkv = n * config_qkv_width(c);
    s->x = arena_take_tensor(a, n * c->n_embd, sizeof(float));
    const bool has_tmp = c->arch->post_norm || e->tp.n_all > 1;
    s->tmp = arena_take_tensor(a, has_tmp ? e->tp.n_all * n * c->n_embd : 0, sizeof(float));
    const size_t n_inbox = e->tp.n_all > 1 ? 2 * e->tp.n_all * tensor_parallel_inbox_words(e) : 0;
    s->inbox = arena_take_tensor(a, n_inbox, sizeof *s->inbox);
    s->qkv = arena_take_tensor(a, n_qkv, sizeof(float));
    s->attn = arena_take_tensor(a, n * config_q_width(c), sizeof(float));
    s->ffn = arena_take_tensor(a, p->layer0 < p->end ? n * c->n_ff : 0, sizeof(float));
    if (p->layer0 < p->end && c->experts.n) moe_plan(e, a);
    s->x_in = take_input(e, a, s->x, first->x_in, n * c->n_embd);
    s->qkv_seen = e->backend.is_host ? s->qkv
                  : attends_here(e)  ? arena_take(a, n_qkv, sizeof(float))
                                     : first->qkv;
    for (int i = 0; i < 2; i++) {
        s->cos[i] = arena_take_tensor(a, n_angle, sizeof(float));
        s->sin[i] = arena_take_tensor(a, n_angle, sizeof(float));
        s->cos_in[i] = take_input(e, a, s->cos[i], first->cos_in[i], n_angle);
        s->sin_in[i] = take_input(e, a, s->sin[i], first->sin_in[i], n_angle);
    }
    const struct page_geom *g = &e->pool.geom;
    const size_t n_own = attends_here(e) ? (size_t)attend_new_pages(e) * g->n_kv_head : 0;
    s->own = arena_take_tensor(a, n_own, g->tail_bytes);
    plan_ops_scratch(e, a);
}

/* Saves the fields that `load` restores. */
static void keep(sac_engine *e)
{
    struct place *p = &e->place[e->at];
    const struct decode *d = &e->decode;
    p->scratch = e->scratch;
    p->rooms = (struct place_rooms){.mask = d->mask,
                                    .page = d->page,
                                    .tok = d->tok,
                                    .logw = d->logw,
                                    .result = d->result,
                                    .made = d->made,
                                    .prefill = e->prefill.device.rooms,
                                    .side = e->side.data,
                                    .n_side_page = e->side.n_page};
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        p->rooms.worker[kind] = e->method_set[kind].worker;
}

void place_plan(sac_engine *e, struct arena *a)
{
    struct arena *before = a->device;
    for (uint32_t i = 0; i < e->n_place; i++) {
        load(e, i);
        a->device = e->backend.is_host ? NULL : &e->place[i].arena;
        plan_scratch(e, a);
        if (attends_here(e)) method_set_plan_rooms(e, a);
        if (attends_here(e)) side_plan(e, a);
        if (i == place_of_output(e)) logits_plan(e, a);
        keep(e);
    }
    a->device = before;
    load(e, 0);
}

/* ---- A step ---- */

void place_cross(sac_engine *e, uint32_t i)
{
    const struct place *from = &e->place[e->at];
    const size_t n = (size_t)e->batch.n_row * e->model->config.n_embd;
    if (i == e->at) return;
    load(e, i);
    backend_send(&from->backend, &e->backend, e->scratch.x, from->scratch.x, n * sizeof(float));
    if (!e->backend.is_host) layer_send_angles(e);
}

void place_to_pages(sac_engine *e, uint32_t layer)
{
    struct place *from = &e->place[e->at];
    const uint32_t to = place_of(e, layer);
    const uint64_t start = clock_us();
    sac_error why;
    if (to == e->at) return;
    assert(e->scratch.qkv_seen == e->place[to].scratch.qkv);
    const sac_status status = layer_look(e, &why);
    if (status != SAC_OK && from->status == SAC_OK) {
        from->status = status;
        from->why = why;
    }
    load(e, to);
    e->stats.linear_us += clock_us() - start;
}

void place_from_pages(sac_engine *e, uint32_t layer)
{
    const float *attn = e->scratch.attn;
    const size_t n = e->batch.n_row * config_q_width(&e->model->config);
    const uint32_t to = place_linear(e, layer);
    if (to == e->at) return;
    load(e, to);
    backend_up(&e->backend, e->scratch.attn, attn, n * sizeof *attn);
}

sac_status place_wait(sac_engine *e, sac_error *err)
{
    sac_status first = SAC_OK;
    for (uint32_t i = 0; i < e->n_place; i++) {
        struct place *p = &e->place[i];
        sac_error why;
        sac_status status = backend_wait(&p->backend, &why);
        if (p->status != SAC_OK) {
            status = p->status;
            why = p->why;
        }
        p->status = SAC_OK;
        if (status != SAC_OK && first == SAC_OK) first = error_set(err, status, "%s", why.msg);
    }
    return first;
}
