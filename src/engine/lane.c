/* lane.c: one layer and KV head of a run of rows, as methods of both kinds see it: decode.c and
 * prefill.c add what is the method's own. A view points into the engine's memory and owns nothing;
 * it holds from the layer's seal to the end of the layer's reading. */
#include "engine/lane.h"

struct method_lane lane_view(const sac_engine *e, const struct reading *r, uint32_t run_i,
                             uint32_t kv_head)
{
    const struct attn_run *run = &r->run[run_i];
    const struct config *c = &e->model->config;
    const uint32_t end = run->pos0 + run->n_row;
    const size_t group = c->n_head / c->n_kv_head, d = c->head_dim;
    const size_t stride = config_qkv_width(c);
    return (struct method_lane){
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
        .pool = e->pool.pages,
        .page = run->table + kv_head * run->table_stride,
        .n_sealed = end / PAGE_TOK,
        .own = attn_own_page(run, &e->pool.geom, end - 1, kv_head),
    };
}
