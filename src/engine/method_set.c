/* method_set.c: see the header.
 *
 * Invariants:
 *  1. The state is zero for a new sequence and after a change of methods. A fork copies it; a cut
 *     calls the method's own hook or, without one, zeroes it.
 *  2. A sequence from which a decode method has dropped pages stays with that method. A sequence
 *     that has lost pages by joining stays with methods that drop none. */
#include "engine/method_set.h"

#include "engine/engine.h"

#include <assert.h>
#include <string.h>

static const char *const kind_name[METHOD_SET_KINDS] = {"decode", "prefill"};
static const char *const dense_name[METHOD_SET_KINDS] = {"full", "dense"};

static struct method_set_hooks hooks_of(const struct method *m)
{
    const struct method_decode *d = m->decode;
    const struct method_prefill *p = m->prefill;
    if (d)
        return (struct method_set_hooks){d->state_bytes, d->side_bytes, d->scratch_bytes, d->seal,
                                         d->seal_value,  d->note,       d->cut,           d->sound};
    if (p)
        return (struct method_set_hooks){.state_bytes = p->state_bytes,
                                         .side_bytes = p->side_bytes,
                                         .scratch_bytes = p->scratch_bytes,
                                         .seal = p->seal,
                                         .note = p->note,
                                         .cut = p->cut,
                                         .sound = p->sound};
    return (struct method_set_hooks){0};
}

/* Parses the specifications `*text` [*n] of the engine's parameters and makes them point to
 * copies. */
static sac_status init_kind(struct method_set *c, enum method_set_kind kind,
                            const char *const **text, uint32_t *n, sac_error *err)
{
    TRY(method_spec_list_parse(&c->specs, kind_name[kind], *n ? *text : &dense_name[kind],
                               *n ? *n : 1, err));
    for (uint32_t i = 0; i < c->specs.n; i++) {
        c->method[i].spec = &c->specs.spec[i];
        c->method[i].hooks = hooks_of(c->specs.spec[i].method);
    }
    *text = c->specs.text;
    *n = c->specs.n;
    return SAC_OK;
}

sac_status method_set_init(sac_engine *e, sac_error *err)
{
    sac_engine_params *p = &e->params;
    struct method_set *c = e->method_set;
    const uint32_t group = e->model->config.n_head / e->model->config.n_kv_head;
    TRY(init_kind(&c[METHOD_SET_DECODE], METHOD_SET_DECODE, &p->decode, &p->n_decode, err));
    TRY(init_kind(&c[METHOD_SET_PREFILL], METHOD_SET_PREFILL, &p->prefill, &p->n_prefill, err));
    /* Sequences joined of documents may lack pages, so what is read must be listed, even if it is
     * everything. */
    if (p->compose && group <= METHOD_GROUP_MAX) c[METHOD_SET_DECODE].specs.is_dense = false;
    if (group <= METHOD_GROUP_MAX) return SAC_OK;
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        if (!c[kind].specs.is_dense)
            return error_set(err, SAC_ERR_UNSUPPORTED,
                             "the model has %u query heads for each KV head: %s methods but %s "
                             "work with %u at most",
                             group, kind_name[kind], dense_name[kind], METHOD_GROUP_MAX);
    return SAC_OK;
}

size_t method_set_rooms(const sac_engine *e)
{
    const size_t n_all = (size_t)e->params.n_seq_max * e->pool.geom.n_kv_head;
    const size_t n_here = (size_t)workers_count(e->workers) * decode_joined(e);
    return mem_larger(place_has_host(e) ? n_here : 0, place_has_device(e) ? n_all : 0);
}

/* How a device selects for the method; NULL: the host selects. */
static const struct method_device *device_of(const sac_engine *e, const struct method *m)
{
    return m->decode && !e->backend.is_host ? m->decode->device : NULL;
}

/* Bytes of a lane's state on the device. */
static size_t device_bytes(const sac_engine *e, const struct method_device *device,
                           size_t state_bytes)
{
    return device->votes ? e->pool.max_page * sizeof(uint32_t) : state_bytes;
}

size_t method_set_scratch_bytes(const sac_engine *e, const struct method_set_entry *m,
                                const void *param)
{
    const struct method *method = m->spec->method;
    const struct method_device *device = device_of(e, method);
    if (method->prefill && prefill_may_be_on_device(e, method->prefill) && !place_has_host(e))
        return 0; /* the scratch belongs to a place (place.c) */
    return method_hook_bytes(device ? device->scratch_bytes : m->hooks.scratch_bytes, &e->shape,
                             param);
}

static void plan_kind(sac_engine *e, struct arena *a, struct method_set *c)
{
    const size_t before = a->used;
    c->state_stride = c->device_stride = c->worker_bytes = 0;
    for (uint32_t i = 0; i < c->specs.n; i++) {
        struct method_set_entry *m = &c->method[i];
        const struct method_set_hooks *h = &m->hooks;
        const void *param = m->spec->param;
        m->state_bytes = method_hook_bytes(h->state_bytes, &e->shape, param);
        m->side = side_add(
            e, &(struct side_user){.seal = h->seal,
                                   .seal_value = h->seal_value,
                                   .note = h->note,
                                   .shape = &e->shape,
                                   .param = param,
                                   .bytes = method_hook_bytes(h->side_bytes, &e->shape, param)});
        const struct method_device *device = device_of(e, m->spec->method);
        assert(!m->state_bytes || h->sound);
        m->head_bytes =
            device ? method_hook_bytes(device->head_bytes, &e->shape, param) : m->state_bytes;
        c->state_stride = mem_larger(c->state_stride, m->head_bytes);
        if (device)
            c->device_stride =
                mem_larger(c->device_stride, device_bytes(e, device, m->state_bytes));
        c->worker_bytes = mem_larger(c->worker_bytes, method_set_scratch_bytes(e, m, param));
    }
    c->state = arena_take(a, e->params.n_seq_max * c->n_lane, c->state_stride);
    c->device_state = c->device_stride
                          ? arena_take_tensor(a, e->params.n_seq_max * c->n_lane, c->device_stride)
                          : NULL;
    e->stats.side_bytes += a->used - before;
}

void method_set_plan(sac_engine *e, struct arena *a)
{
    const struct page_geom *g = &e->pool.geom;
    struct method_set *c = e->method_set;
    e->shape =
        (struct method_shape){.model = e->model->name,
                              .geom = g,
                              .group = e->model->config.n_head / g->n_kv_head,
                              .rope = {.n_rot = e->model->config.rope.n_rot,
                                       .interleaved = e->model->config.arch->rope_interleaved},
                              .inv_freq = e->rope[0].inv_freq,
                              .n_ctx = e->params.n_ctx,
                              .n_row_max = e->prefill.chunk_tok};
    c[METHOD_SET_DECODE].n_lane = (size_t)g->n_layer * g->n_kv_head;
    c[METHOD_SET_PREFILL].n_lane = g->n_kv_head;
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++) plan_kind(e, a, &c[kind]);
    if (!c[METHOD_SET_DECODE].specs.is_dense) decode_plan(e, a);
    if (!c[METHOD_SET_PREFILL].specs.is_dense) prefill_plan(e, a);
}

void method_set_plan_rooms(sac_engine *e, struct arena *a)
{
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++) {
        struct method_set *c = &e->method_set[kind];
        c->worker = arena_take_tensor(a, method_set_rooms(e), c->worker_bytes);
    }
    if (!e->method_set[METHOD_SET_DECODE].specs.is_dense) decode_plan_rooms(e, a);
    if (!e->backend.is_host) prefill_device_plan_rooms(e, a);
}

const struct method_set_entry *method_set_entry(const sac_engine *e, enum method_set_kind kind,
                                                uint32_t seq_i)
{
    assert(e->seqs[seq_i].method_i[kind] < e->method_set[kind].specs.n);
    return &e->method_set[kind].method[e->seqs[seq_i].method_i[kind]];
}

uint8_t *method_set_state(const sac_engine *e, enum method_set_kind kind, uint32_t seq_i,
                          size_t lane_i)
{
    const struct method_set *c = &e->method_set[kind];
    assert(seq_i < e->params.n_seq_max && lane_i < c->n_lane);
    return c->state + (seq_i * c->n_lane + lane_i) * c->state_stride;
}

uint8_t *method_set_device_state(const sac_engine *e, enum method_set_kind kind, uint32_t seq_i,
                                 size_t lane_i)
{
    const struct method_set *c = &e->method_set[kind];
    assert(seq_i < e->params.n_seq_max && lane_i < c->n_lane);
    return c->device_state ? c->device_state + (seq_i * c->n_lane + lane_i) * c->device_stride
                           : NULL;
}

void method_set_forget(sac_engine *e, enum method_set_kind kind, uint32_t seq_i)
{
    const size_t bytes = e->method_set[kind].n_lane * e->method_set[kind].state_stride;
    if (bytes) memset(method_set_state(e, kind, seq_i, 0), 0, bytes);
}

void method_set_reset(sac_engine *e, uint32_t seq_i)
{
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        method_set_forget(e, (enum method_set_kind)kind, seq_i);
    past_queries_reset(e, seq_i);
}

void method_set_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    for (int i = 0; i < METHOD_SET_KINDS; i++) {
        const enum method_set_kind kind = (enum method_set_kind)i;
        const size_t bytes = e->method_set[kind].n_lane * e->method_set[kind].state_stride;
        e->seqs[dst].method_i[kind] = e->seqs[src].method_i[kind];
        if (bytes)
            memcpy(method_set_state(e, kind, dst, 0), method_set_state(e, kind, src, 0), bytes);
        const size_t device_bytes = e->method_set[kind].n_lane * e->method_set[kind].device_stride;
        if (device_bytes)
            backend_copy(&e->backend, method_set_device_state(e, kind, dst, 0),
                         method_set_device_state(e, kind, src, 0), device_bytes);
    }
    e->seqs[dst].params = e->seqs[src].params;
    past_queries_fork(e, dst, src);
}

static void cut_kind(sac_engine *e, enum method_set_kind kind, uint32_t seq_i, uint32_t n_tok)
{
    const struct method_set_entry *m = method_set_entry(e, kind, seq_i);
    if (m->state_bytes == 0) return;
    if (!m->hooks.cut) {
        method_set_forget(e, kind, seq_i);
        return;
    }
    for (size_t i = 0; i < e->method_set[kind].n_lane; i++)
        m->hooks.cut(method_set_state(e, kind, seq_i, i), &e->shape,
                     seq_params_spec(e, kind, seq_i)->param,
                     kind == METHOD_SET_DECODE
                         ? compact_tokens(e, seq_i, (uint32_t)(i / e->pool.geom.n_kv_head), n_tok)
                         : n_tok);
}

void method_set_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    past_queries_cut(e, seq_i, n_tok);
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        cut_kind(e, (enum method_set_kind)kind, seq_i, n_tok);
}

void method_set_jump(sac_engine *e, uint32_t seq_i)
{
    for (int kind = 0; kind < METHOD_SET_KINDS; kind++)
        method_set_forget(e, (enum method_set_kind)kind, seq_i);
    past_queries_set_begin(e, seq_i, e->seqs[seq_i].n_done);
}

sac_status method_set_meets_documents(const sac_engine *e, const struct method *m, sac_error *err)
{
    if (method_reads_joined_on_device(m) || !place_has_device(e)) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "decode method %s does not choose among joined documents on a GPU: use full, "
                     "or --device cpu",
                     m->name);
}

sac_status method_set_meets_segments(const sac_engine *e, const struct method *m, sac_error *err)
{
    TRY(method_set_meets_documents(e, m, err));
    if (!m->decode || m->meets_segments) return SAC_OK;
    return error_set(err, SAC_ERR_UNSUPPORTED,
                     "decode method %s cannot choose in a sequence that texts were attached to",
                     m->name);
}

/* A sequence that has lost pages must keep the method that dropped them; one that lost them when it
 * was joined may use any method that drops none. */
static sac_status check_gaps(const sac_engine *e, uint32_t seq_i, const struct method_spec *next,
                             sac_error *err)
{
    const bool by_joining = compact_has_gaps(e, seq_i);
    if (by_joining) TRY(method_set_meets_documents(e, next->method, err));
    if (!e->seqs[seq_i].has_gaps || (by_joining && !next->method->evicts)) return SAC_OK;
    return error_set(
        err, SAC_ERR_ARG, "sequence %u cannot change to decode method %s: %s has dropped tokens",
        seq_i, next->text,
        by_joining ? "its context method" : seq_params_spec(e, METHOD_SET_DECODE, seq_i)->text);
}

static sac_status use_one(sac_engine *e, enum method_set_kind kind, sac_seq id, uint32_t method_i,
                          sac_error *err)
{
    const struct method_spec_list *specs = &e->method_set[kind].specs;
    struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    if (method_i >= specs->n)
        return error_set(err, SAC_ERR_ARG, "there is no %s method %u: the engine has %u",
                         kind_name[kind], method_i, specs->n);
    if (s->method_i[kind] == method_i) return SAC_OK;
    if (kind == METHOD_SET_DECODE) TRY(check_gaps(e, id, &specs->spec[method_i], err));
    if (kind == METHOD_SET_DECODE && e->segments.n[id] > 0)
        TRY(method_set_meets_segments(e, specs->spec[method_i].method, err));
    s->method_i[kind] = method_i;
    s->params.has_own[kind] = false;
    method_set_forget(e, kind, id);
    return SAC_OK;
}

static sac_status use(sac_engine *e, enum method_set_kind kind, sac_seq id, uint32_t method_i,
                      sac_error *err)
{
    ahead_forget(e);
    for (uint32_t i = 0; i < e->tp.n; i++) TRY(use_one(e->tp.of[i], kind, id, method_i, err));
    return SAC_OK;
}

sac_status sac_seq_use_decode(sac_engine *e, sac_seq id, uint32_t decode_i, sac_error *err)
{
    return use(e, METHOD_SET_DECODE, id, decode_i, err);
}

sac_status sac_seq_use_prefill(sac_engine *e, sac_seq id, uint32_t prefill_i, sac_error *err)
{
    return use(e, METHOD_SET_PREFILL, id, prefill_i, err);
}
