/* past_queries.c: see the header.
 *
 * Invariant: the queries of a row are added when its layer is done. Methods therefore see only the
 * rows before their own, and the result does not depend on how a prompt was cut into chunks. Layers
 * with a sliding window keep nothing, because no method is called there. */
#include "engine/past_queries.h"

#include "engine/engine.h"

#include <assert.h>
#include <string.h>

static size_t lane_count(const sac_engine *e)
{
    return (size_t)e->pool.geom.n_layer * e->pool.geom.n_kv_head;
}

void past_queries_plan(sac_engine *e, struct arena *a, uint32_t n_slot)
{
    struct past_queries *p = &e->past;
    const size_t n_seq = e->params.n_seq_max;
    p->n_slot = n_slot;
    p->floats = (size_t)(e->model->config.n_head / e->pool.geom.n_kv_head) * e->pool.geom.head_dim;
    p->q = arena_take_tensor(a, n_seq * lane_count(e) * n_slot, p->floats * sizeof *p->q);
    p->begin = arena_take(a, n_seq, sizeof *p->begin);
}

float *past_queries_ring(const sac_engine *e, uint32_t seq_i, size_t lane_i)
{
    const struct past_queries *p = &e->past;
    assert(p->n_slot > 0 && lane_i < lane_count(e));
    return p->q + (seq_i * lane_count(e) + lane_i) * p->n_slot * p->floats;
}

uint32_t past_queries_begin(const sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const struct past_queries *p = &e->past;
    if (p->n_slot == 0) return n_tok;
    const uint32_t oldest = n_tok > p->n_slot ? n_tok - p->n_slot : 0;
    return oldest > p->begin[seq_i] ? oldest : p->begin[seq_i];
}

void past_queries_set_begin(sac_engine *e, uint32_t seq_i, uint32_t begin)
{
    if (e->past.n_slot) e->past.begin[seq_i] = begin;
}

void past_queries_reset(sac_engine *e, uint32_t seq_i)
{
    past_queries_set_begin(e, seq_i, 0);
}

void past_queries_fork(sac_engine *e, uint32_t dst, uint32_t src)
{
    const struct past_queries *p = &e->past;
    if (p->n_slot == 0) return;
    p->begin[dst] = p->begin[src];
    const size_t bytes = lane_count(e) * p->n_slot * p->floats * sizeof *p->q;
    if (e->backend.is_host)
        memcpy(past_queries_ring(e, dst, 0), past_queries_ring(e, src, 0), bytes);
    else
        backend_copy(&e->backend, past_queries_ring(e, dst, 0), past_queries_ring(e, src, 0),
                     bytes);
}

/* The removed rows have overwritten the oldest ones. */
void past_queries_cut(sac_engine *e, uint32_t seq_i, uint32_t n_tok)
{
    const uint32_t begin = past_queries_begin(e, seq_i, e->seqs[seq_i].n_done);
    past_queries_set_begin(e, seq_i, begin < n_tok ? begin : n_tok);
}

struct method_past past_queries_view(const sac_engine *e, uint32_t seq_i, size_t lane_i,
                                     uint32_t end)
{
    const struct past_queries *p = &e->past;
    return (struct method_past){
        .q = p->n_slot ? past_queries_ring(e, seq_i, lane_i) : NULL,
        .n_slot = p->n_slot,
        .begin = past_queries_begin(e, seq_i, end),
        .end = end,
    };
}

/* The last rows of a run, as many as the ring holds. */
static struct op_past lane_past(const sac_engine *e, const struct reading *r, uint32_t run_i,
                                uint32_t kv_head)
{
    const struct past_queries *p = &e->past;
    const struct attn_run *run = &r->run[run_i];
    const size_t lane_i = (size_t)r->layer * e->pool.geom.n_kv_head + kv_head;
    const size_t stride = config_qkv_width(&e->model->config);
    const uint32_t n = run->n_row < p->n_slot ? run->n_row : p->n_slot, first = run->n_row - n;
    assert(r->window == 0 && n > 0);
    return (struct op_past){.q =
                                e->scratch.qkv + (run->row0 + first) * stride + kv_head * p->floats,
                            .q_stride = stride,
                            .past = past_queries_ring(e, e->batch.run[run_i].seq_i, lane_i),
                            .n_slot = p->n_slot,
                            .width = (uint32_t)p->floats,
                            .row0 = run->pos0 + first,
                            .n_row = n};
}

static void keep_lane(const struct op_past *op)
{
    for (uint32_t i = 0; i < op->n_row; i++)
        memcpy(op->past + (size_t)((op->row0 + i) % op->n_slot) * op->width,
               op->q + i * op->q_stride, op->width * sizeof *op->past);
}

/* One launch per layer. The lanes' selections are over, so their list of descriptors can be
 * reused. */
static void keep_on_device(sac_engine *e, const struct reading *r)
{
    struct op_past *list = (struct op_past *)(void *)e->decode.list;
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, n = r->n_run * n_kv_head;
    for (uint32_t i = 0; i < n; i++) list[i] = lane_past(e, r, i / n_kv_head, i % n_kv_head);
    e->ops.lanes.past(e->workers, list, n);
}

bool past_queries_keeps(const sac_engine *e, const struct reading *r)
{
    return e->past.n_slot > 0 && r->window == 0;
}

void past_queries_keep(sac_engine *e, const struct reading *r)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    if (!past_queries_keeps(e, r)) return;
    if (!e->backend.is_host) {
        keep_on_device(e, r);
        return;
    }
    for (uint32_t i = 0; i < r->n_run * n_kv_head; i++) {
        const struct op_past op = lane_past(e, r, i / n_kv_head, i % n_kv_head);
        keep_lane(&op);
    }
}
