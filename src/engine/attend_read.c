/* attend_read.c: attention itself: one call of the op for all rows of the batch, which reads what
 * the reading names and, of each row's own page, the tokens up to the row. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>

void attend_read(sac_engine *e, const struct reading *r, uint32_t first, uint32_t end)
{
    const struct config *c = &e->model->config;
    assert(r->frames.base && r->n_decode <= r->n_run && end <= r->n_run);
    e->ops.attn(e->workers, &(struct op_attn){.geom = &e->pool.geom,
                                              .frames = r->frames,
                                              .n_head = c->n_head,
                                              .q = e->scratch.qkv,
                                              .q_stride = config_qkv_width(c),
                                              .out = e->scratch.attn,
                                              .out_stride = config_q_width(c),
                                              .lse = r->rest.lse,
                                              .rope = e->shape.rope,
                                              .scale = c->attn_scale,
                                              .softcap = c->attn_softcap,
                                              .window = r->window,
                                              .n_run = end - first,
                                              .run = r->run + first,
                                              .n_skip = e->prefill.n_skip,
                                              .scratch = e->scratch.attn_ops,
                                              .scratch_bytes = e->scratch.attn_bytes});
}
