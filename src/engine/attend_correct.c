/* attend_correct.c: adds a method's estimate of what a decode row did not read: one more entry of
 * the softmax per query head, whose weight and value the method has stored in the reading. It is
 * merged into the attention output. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>
#include <math.h>

void attend_merge(float *out, float lse, const float *value, float value_log, uint32_t d)
{
    if (value_log == -INFINITY) return;
    const float share = 1 / (1 + expf(lse - value_log));
    for (uint32_t c = 0; c < d; c++) out[c] += share * (value[c] - out[c]);
}

void attend_correct(sac_engine *e, const struct reading *r)
{
    const struct config *c = &e->model->config;
    const uint32_t group = c->n_head / c->n_kv_head, d = c->head_dim;
    if (r->on_device) decode_device_correct(e, r);
    if (r->on_device || !r->rest.log) return;
    assert(r->lane && r->rest.value && r->rest.lse);
    for (uint32_t i = 0; i < r->n_decode * c->n_kv_head; i++) {
        const size_t row = r->run[i / c->n_kv_head].row0;
        if (r->lane[i].dense) continue;
        for (uint32_t g = 0; g < group; g++) {
            const size_t head = (row * c->n_kv_head + i % c->n_kv_head) * group + g;
            const size_t at = (size_t)i * group + g;
            attend_merge(e->scratch.attn + head * d, r->rest.lse[head], r->rest.value + at * d,
                         r->rest.log[at], d);
        }
    }
}
