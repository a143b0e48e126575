/* noise.c: contexts for measurements: tokens whose keys and values are noise. What it costs to
 * store a context of a million tokens, to select from it, to fetch and to read it does not depend
 * on its content, and computing it would take hours.
 *
 * Rows are scheduled and stored like those of a prompt; only the layers that would compute their
 * keys and values are skipped. The noise depends only on the seed, the layer and the position. */
#include "engine/engine.h"
#include "engine/sched.h"

#include "saccade_machine.h"

struct noise {
    sac_engine *engine;
    uint64_t seed;
    uint32_t layer;
};

/* The finalizer of splitmix64. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* A row's query, key and value, uniform between -1 and 1. */
static void fill_row(void *arg, uint32_t row, uint32_t worker_i)
{
    const struct noise *n = arg;
    const sac_engine *e = n->engine;
    const size_t width = config_qkv_width(&e->model->config);
    float *x = e->scratch.qkv + row * width;
    uint64_t at = mix(n->seed ^ mix((uint64_t)n->layer << 32 | e->batch.pos[row]));
    (void)worker_i;
    for (size_t i = 0; i < width; i++) {
        at += 0x9e3779b97f4a7c15ull;
        x[i] = (float)(int32_t)(mix(at) >> 32) * 0x1p-31F;
    }
}

static void store(struct noise *n)
{
    sac_engine *e = n->engine;
    tier_begin(e->pool.tier);
    for (n->layer = 0; n->layer < e->pool.geom.n_layer; n->layer++) {
        workers_for(e->workers, e->batch.n_row, fill_row, n);
        attend_store(e, n->layer);
    }
    sched_commit(e);
}

static sac_status check(const sac_engine *e, const struct seq *s, sac_seq id, sac_error *err)
{
    TRY(engine_check_whole(s, id, err));
    if (place_has_device(e))
        return error_set(err, SAC_ERR_UNSUPPORTED, "%s stores no noise: only the CPU does",
                         e->device_name);
    if (e->params.prefix_cache || e->params.record || e->params.learn)
        return error_set(err, SAC_ERR_ARG,
                         "an engine with prefix_cache, record or learn stores no noise: others "
                         "would take it for what was computed");
    if (s->n_done != s->n_all)
        return error_set(err, SAC_ERR_ARG, "sequence %u has %u pending tokens: step before noise",
                         id, s->n_all - s->n_done);
    return SAC_OK;
}

sac_status sac_seq_append_noise(sac_engine *e, sac_seq id, const int32_t *tok, size_t n,
                                uint64_t seed, sac_error *err)
{
    struct noise noise = {.engine = e, .seed = seed};
    const struct seq *s = engine_seq(e, id, err);
    if (!s) return SAC_ERR_NOT_FOUND;
    TRY(check(e, s, id, err));
    TRY(sac_seq_append(e, id, tok, n, SAC_ROW_PROMPT, SAC_WANT_NONE, err));
    sac_status status = SAC_OK;
    e->only = id;
    while (status == SAC_OK && s->n_done < s->n_all) {
        status = sched_pick(e, err);
        if (status != SAC_OK) break;
        store(&noise);
        status = engine_check_whole(s, id, err);
    }
    e->only = SAC_SEQ_NONE;
    if (e->pool.tier) tier_settle(e->pool.tier);
    if (status != SAC_OK) e->seqs[id].n_all = s->n_done;
    return status;
}
