/* lane.c: one layer and KV head of a run of rows, as methods of both kinds see it. A lane points
 * into the engine's memory and owns nothing. It is valid from the moment the layer's pages are
 * sealed until the layer's reading ends. */
#include "engine/lane.h"

#include <assert.h>

/* The fields that methods of both kinds see. */
static struct method_lane view(const sac_engine *e, const struct reading *r, uint32_t run_i,
                               uint32_t kv_head)
{
    const struct attn_run *run = &r->run[run_i];
    const struct config *c = &e->model->config;
    const uint32_t end = run->pos0 + run->n_row;
    const size_t group = c->n_head / c->n_kv_head, d = c->head_dim;
    const size_t stride = config_qkv_width(c);
    struct method_lane lane = {
        .shape = &e->shape,
        .ops = &e->ops,
        .layer = r->layer,
        .kv_head = kv_head,
        .pos = run->pos0,
        .n_row = run->n_row,
        .is_prompt = run->kind == ROW_PROMPT,
        .q = e->scratch.qkv + run->row0 * stride + kv_head * group * d,
        .q_stride = stride,
        .scale = c->attn_scale,
        .softcap = c->attn_softcap,
        .frames = pool_frames(&e->pool, r->layer),
        .tier = e->pool.tier,
        .cards = pool_cards(&e->pool, r->layer),
        .lost = &e->attend.lost[run_i],
        .segment = run->segment,
        .n_segment = run->n_segment,
        .id = run->table + kv_head * run->table_stride,
        .n_sealed = end / PAGE_TOK,
        .own = attn_own_page(run, &e->pool.geom, end - 1, kv_head),
        .lines = &e->attend.lines,
    };
    lane.page = lane.id;
    if (run->frame) { /* a device addresses pages by their frames */
        lane.page = run->frame + kv_head * run->table_stride;
        lane.frames.of = lane.cards.of = NULL;
    }
    return lane;
}

struct method_lane lane_make(const sac_engine *e, const struct reading *r, struct lane_at at)
{
    const struct method_set *c = &e->method_set[at.kind];
    const uint32_t seq_i = e->batch.run[at.run_i].seq_i;
    const struct method_set_entry *m = method_set_entry(e, at.kind, seq_i);
    const bool decodes = at.kind == METHOD_SET_DECODE;
    assert(at.run_i < r->n_run && at.kv_head < e->pool.geom.n_kv_head);
    const size_t lane0 = decodes ? (size_t)r->layer * e->pool.geom.n_kv_head : 0;
    struct method_lane lane = view(e, r, at.run_i, at.kv_head);
    lane.repeated = decodes ? repeat_of(&e->repeat, seq_i) : NULL;
    lane.param = seq_params_spec(e, at.kind, seq_i)->param;
    lane.row = at.run_i;
    lane.sparse_min_ctx = seq_params_min_ctx(e, seq_i);
    lane.side = side_base(&e->side, m->side);
    lane.side_stride = m->side.bytes;
    lane.layer_state = method_set_state(e, at.kind, seq_i, lane0);
    lane.state = method_set_state(e, at.kind, seq_i, lane0 + at.kv_head);
    lane.device_state = method_set_device_state(e, at.kind, seq_i, lane0 + at.kv_head);
    lane.state_stride = c->state_stride;
    lane.scratch = c->worker + at.room_i * c->worker_bytes;
    if (decodes && m->spec->method->decode) lane.family = m->spec->method->decode->family;
    if (decodes)
        lane.past = past_queries_view(e, seq_i, lane0 + at.kv_head, lane.pos);
    else
        lane.table = prefill_table(e, seq_i);
    if (decodes && at.run_i < r->n_decode)
        lane.meter = &r->lane[at.run_i * (size_t)e->pool.geom.n_kv_head + at.kv_head].meter;
    if (decodes) compact_lane(e, seq_i, &lane);
    return lane;
}
