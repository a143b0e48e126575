/* decode_votes.c: decode methods that drop tokens by votes, on a device. Once after each prompt,
 * the device sums the attention of the prompt's last rows, the host waits for these sums, one layer
 * after the other, and selects by the method's own code (struct method_votes). No other step waits.
 *
 * Invariants:
 *  1. The mask of kept tokens is part of the host's state. The device's copy is uploaded whenever
 *     the mask changes: by a selection or a load. A fork copies both, and bits behind a cut are
 *     ignored.
 *  2. Pages without kept tokens are freed with the selection, before the layer's attention. The
 *     device's copy of the page table is updated in the next step. */
#include "engine/decode.h"
#include "engine/engine.h"
#include "engine/evict.h"
#include "engine/lane.h"
#include "methods/batch.h"

#include <assert.h>

static const struct method_votes *votes_of(const sac_engine *e, uint32_t seq_i)
{
    const struct method_decode *hooks =
        method_set_entry(e, METHOD_SET_DECODE, seq_i)->spec->method->decode;
    return hooks && hooks->device && !e->backend.is_host ? hooks->device->votes : NULL;
}

size_t decode_votes_bytes(const sac_engine *e, const struct method_spec *spec)
{
    const struct method_decode *hooks = spec->method->decode;
    if (!place_has_device(e) || !hooks || !hooks->device || !hooks->device->votes) return 0;
    return method_hook_bytes(hooks->scratch_bytes, &e->shape, spec->param);
}

void decode_votes_plan(sac_engine *e, struct arena *a)
{
    struct decode_votes *v = &e->decode.votes;
    const struct method_spec_list *specs = &e->method_set[METHOD_SET_DECODE].specs;
    const size_t n_kv_head = e->pool.geom.n_kv_head;
    v->scratch_bytes = 0;
    for (uint32_t i = 0; i < specs->n; i++)
        v->scratch_bytes = mem_larger(v->scratch_bytes, decode_votes_bytes(e, &specs->spec[i]));
    v->stride = v->scratch_bytes ? (size_t)e->pool.max_page * PAGE_TOK : 0;
    v->looked = arena_take(a, n_kv_head * v->stride, sizeof *v->looked);
    v->scratch = arena_take(a, workers_count(e->workers), v->scratch_bytes);
    v->changed = arena_take(a, n_kv_head, sizeof *v->changed);
}

/* ---- Sums ---- */

static bool is_due(const sac_engine *e, const struct reading *r, uint32_t run_i,
                   const struct method_votes *votes)
{
    for (uint32_t h = 0; h < e->pool.geom.n_kv_head; h++) {
        const struct method_lane lane =
            lane_make(e, r, (struct lane_at){METHOD_SET_DECODE, run_i, h, 0});
        if (votes->due(&lane)) return true;
    }
    return false;
}

/* Copies the sums of a run's lanes from the device. False: the device has failed, which the step
 * will report. */
static bool look(sac_engine *e, const struct reading *r, uint32_t run_i,
                 const struct method_votes *votes)
{
    struct decode *d = &e->decode;
    const uint32_t n = e->pool.geom.n_kv_head;
    sac_error err;
    for (uint32_t h = 0; h < n; h++) {
        d->lane[h] = lane_make(e, r, (struct lane_at){METHOD_SET_DECODE, run_i, h, h});
        d->pick[h] = (struct method_pick){0};
    }
    votes->look(&(struct method_batch){.ops = &e->ops,
                                       .workers = e->workers,
                                       .n = n,
                                       .lane = d->lane,
                                       .pick = d->pick,
                                       .result = d->result,
                                       .on_device = true,
                                       .target = d->target,
                                       .list = d->list});
    for (uint32_t h = 0; h < n; h++)
        backend_down(&e->backend, d->votes.looked + h * d->votes.stride, d->lane[h].scratch,
                     (d->lane[h].pos + 1) * sizeof *d->votes.looked);
    return backend_wait(&e->backend, &err) == SAC_OK;
}

/* ---- Selection ---- */

struct learn_call {
    sac_engine *e;
    const struct reading *r;
    const struct method_votes *votes;
    uint32_t run_i;
    bool looked;
};

/* A lane with scratch in the host's memory. */
static struct method_lane host_lane(const struct learn_call *c, uint32_t kv_head, uint32_t worker_i)
{
    const struct decode_votes *v = &c->e->decode.votes;
    struct method_lane lane =
        lane_make(c->e, c->r, (struct lane_at){METHOD_SET_DECODE, c->run_i, kv_head, 0});
    lane.scratch = v->scratch + worker_i * v->scratch_bytes;
    lane.looked = c->looked ? v->looked + kv_head * v->stride : NULL;
    return lane;
}

static void see_head(void *arg, uint32_t h, uint32_t worker_i)
{
    const struct learn_call *c = arg;
    const struct method_lane lane = host_lane(c, h, worker_i);
    decode_method(c->e, c->run_i)->decode->see(&lane);
}

static void settle_head(void *arg, uint32_t h, uint32_t worker_i)
{
    const struct learn_call *c = arg;
    const struct method_lane lane = host_lane(c, h, worker_i);
    c->e->decode.votes.changed[h] = c->votes->settle(&lane);
}

static void bring_marks(const sac_engine *e, uint32_t seq_i, size_t lane_i,
                        const struct method_marks *m)
{
    backend_up(&e->backend, method_set_device_state(e, METHOD_SET_DECODE, seq_i, lane_i), m->word,
               (m->n_tok + PAGE_TOK - 1) / PAGE_TOK * sizeof *m->word);
}

/* Uploads a lane's selection to the device and frees pages. */
static void keep_choice(const struct learn_call *c, uint32_t kv_head)
{
    sac_engine *e = c->e;
    const uint32_t seq_i = e->batch.run[c->run_i].seq_i;
    const size_t lane_i = (size_t)c->r->layer * e->pool.geom.n_kv_head + kv_head;
    const struct method_marks m =
        c->votes->marks(&e->shape, seq_params_spec(e, METHOD_SET_DECODE, seq_i)->param,
                        method_set_state(e, METHOD_SET_DECODE, seq_i, lane_i));
    bring_marks(e, seq_i, lane_i, &m);
    evict_lane(e, c->r, (struct evict_at){c->run_i, kv_head}, m.word, m.n_tok / PAGE_TOK);
}

bool decode_votes_learn(sac_engine *e, const struct reading *r, uint32_t run_i)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    const struct method_votes *votes = votes_of(e, e->batch.run[run_i].seq_i);
    if (!votes || run_i >= r->n_decode) return false;
    struct learn_call c = {e, r, votes, run_i, is_due(e, r, run_i, votes)};
    /* Without sums there is nothing to compute */
    struct workers *workers = c.looked ? e->workers : NULL;
    if (c.looked && !look(e, r, run_i, votes)) return true;
    workers_for(workers, n_kv_head, see_head, &c);
    workers_for(workers, n_kv_head, settle_head, &c);
    for (uint32_t h = 0; h < n_kv_head; h++)
        if (e->decode.votes.changed[h]) keep_choice(&c, h);
    return true;
}

void decode_votes_show(const sac_engine *e, uint32_t seq_i)
{
    const struct method_set *c = &e->method_set[METHOD_SET_DECODE];
    const struct method_votes *votes = votes_of(e, seq_i);
    for (size_t i = 0; votes && i < c->n_lane; i++) {
        const struct method_marks m =
            votes->marks(&e->shape, seq_params_spec(e, METHOD_SET_DECODE, seq_i)->param,
                         method_set_state(e, METHOD_SET_DECODE, seq_i, i));
        bring_marks(e, seq_i, i, &m);
    }
}
