/* attend_write.c: the first step of attention stores the new keys and values, in 16 bits, in the
 * rows' own pages: first the tail that the sequence already has, then the pages that the chunk
 * begins. */
#include "engine/attend.h"

#include "engine/engine.h"

void attend_write(sac_engine *e, struct reading *r)
{
    const struct config *c = &e->model->config;
    float *k = e->scratch.qkv + config_q_width(c);
    e->ops.kv_write(e->workers, &(struct op_kv_write){.geom = &e->pool.geom,
                                                      .n_run = r->n_run,
                                                      .run = r->run,
                                                      .k = k,
                                                      .v = k + config_kv_width(c),
                                                      .kv_stride = config_qkv_width(c)});
}
