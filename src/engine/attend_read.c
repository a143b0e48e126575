/* attend_read.c: attention itself: one call of the operation for all rows of the batch. It reads
 * the pages named by the reading and, in each row's own page, the tokens up to the row.
 *
 * If a run reads more pages than the memory above the disk holds, it is computed alone, and its
 * pages are fetched and released during the computation. The operation splits such a run into parts
 * that depend only on the run. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>
#include <string.h>

static bool take_pages(void *user, const page_id *id, uint32_t n)
{
    sac_engine *e = user;
    const sac_status status = tier_acquire(e->pool.tier, id, n);
    if (status == SAC_OK) return true;
    if (tier_holds(status)) tier_release(e->pool.tier, id, n);
    __atomic_store_n(&e->attend.missed, (uint8_t)status, __ATOMIC_RELAXED);
    return false;
}

static void give_pages(void *user, const page_id *id, uint32_t n)
{
    const sac_engine *e = user;
    tier_release(e->pool.tier, id, n);
}

static void fetch_ahead(void *user, const page_id *id, uint32_t n)
{
    const sac_engine *e = user;
    tier_prefetch(e->pool.tier, TIER_PART, id, n);
}

/* Zeroes the output of a run whose pages could not be read. */
static void forget(const sac_engine *e, const struct attn_run *run)
{
    const size_t width = config_q_width(&e->model->config);
    memset(e->scratch.attn + run->row0 * width, 0, run->n_row * width * sizeof *e->scratch.attn);
}

void attend_read(sac_engine *e, const struct reading *r, uint32_t first, uint32_t end)
{
    const struct config *c = &e->model->config;
    const struct attn_pager pager = {take_pages, give_pages, fetch_ahead, e};
    assert(r->frames.base && r->n_decode <= r->n_run && end <= r->n_run);
    e->ops.attn(e->workers, &(struct op_attn){.geom = &e->pool.geom,
                                              .frames = r->frames,
                                              .pager = r->streams ? &pager : NULL,
                                              .n_head = c->n_head,
                                              .q = e->scratch.qkv,
                                              .q_stride = config_qkv_width(c),
                                              .q_ends = !e->record.job && !past_queries_keeps(e, r),
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
    if (e->attend.missed) forget(e, &r->run[first]);
}
