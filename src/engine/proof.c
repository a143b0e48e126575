/* proof.c: certificates of decode rows. If p is the share of the softmax mass that was certainly
 * read, then output = p seen + (1 - p) rest, so the output is (1 - p) |rest - seen| away from
 * `seen`, and no value in `rest` is longer than a known norm. */
#include "engine/proof.h"

#include "engine/engine.h"

#include <assert.h>
#include <math.h>

double proof_relative(double off, double norm)
{
    if (!(off > 0)) return 0;
    return norm > 0 ? sqrt(off / norm) : 1;
}

double proof_part(const struct reading_lane *lane, double norm)
{
    assert(lane->mass_proved <= 1);
    const double part = (1 - (double)lane->mass_proved) * ((double)lane->rest_norm + sqrt(norm));
    return part * part;
}

/* A bound for all query heads of a lane together. */
static double bound_of(const struct reading_lane *lane, const float *out, uint32_t group,
                       uint32_t d)
{
    double off = 0, all = 0;
    for (uint32_t g = 0; g < group; g++, out += d) {
        double norm = 0;
        for (uint32_t c = 0; c < d; c++) norm += (double)out[c] * (double)out[c];
        off += proof_part(lane, norm);
        all += norm;
    }
    return proof_relative(off, all);
}

void proof_count(sac_engine *e, const struct reading *r)
{
    const struct config *c = &e->model->config;
    const uint32_t n_kv_head = c->n_kv_head, group = c->n_head / n_kv_head;
    const uint32_t n_lane = r->lane ? r->n_decode * n_kv_head : 0;
    for (uint32_t i = 0; i < n_lane; i++) {
        const size_t row = r->run[i / n_kv_head].row0;
        sac_reads *t = &e->batch.run[i / n_kv_head].reads;
        const float *out =
            e->scratch.attn + (row * n_kv_head + i % n_kv_head) * group * c->head_dim;
        if (!(r->lane[i].mass_proved > 0)) continue;
        const double bound = bound_of(&r->lane[i], out, group, c->head_dim);
        t->out_bound += bound;
        if (bound > t->out_bound_max) t->out_bound_max = bound;
    }
}
