/* attend_write.c: the first step of attention: new keys and values go, 16 bit, where the rows' own
 * pages are: the tail that the sequence has, and behind it pages that the chunk begins. */
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
