/* evict.c: see the header.
 *
 * Invariants:
 *  1. Pages are freed after all selections of a layer and before its attention, which reads none of
 *     them: an evicting method marks everything that it will ever read again. From then on
 *     "everything" is what is left: for prompt rows by the plans made here, for decode rows by
 *     decode.c.
 *  2. While reads are recorded nothing is freed, because the shadow computation reads
 *     everything. */
#include "engine/evict.h"

#include "engine/engine.h"

#include <assert.h>

void evict_plan(sac_engine *e, struct arena *a)
{
    struct evict *v = &e->evict;
    const size_t n_kv_head = e->pool.geom.n_kv_head, n_range = e->pool.max_page / 2 + 1;
    const size_t n_plan = e->decode.evicts || e->params.compose ? e->params.n_seq_max : 0;
    v->plan = arena_take(a, n_plan, sizeof *v->plan);
    v->range = arena_take(a, n_plan * n_kv_head * n_range, sizeof *v->range);
    v->range_ptr = arena_take(a, n_plan * (n_kv_head + 1), sizeof *v->range_ptr);
}

void evict_lane(sac_engine *e, const struct reading *r, struct evict_at at, const uint32_t *mask,
                uint32_t n_page)
{
    struct batch_run *batch_run = &e->batch.run[at.run_i];
    const struct attn_run *run = &r->run[at.run_i];
    assert(r->window == 0); /* layers with a sliding window must not decide what is evicted */
    for (uint32_t p = 0; p < n_page; p++) {
        if (mask[p] || run->table[at.kv_head * run->table_stride + p] == PAGE_NONE) continue;
        pool_drop(&e->pool, batch_run->seq_i, r->layer, at.kv_head, p);
        batch_run->reads.n_page_dropped++;
        e->seqs[batch_run->seq_i].has_gaps = true;
    }
}

/* Frees the pages of a lane in which its method has marked nothing. */
static void drop_pages(sac_engine *e, const struct reading *r, uint32_t lane_i)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head;
    const struct evict_at at = {lane_i / n_kv_head, lane_i % n_kv_head};
    if (decode_method(e, at.run_i)->evicts && !r->lane[lane_i].dense)
        evict_lane(e, r, at, e->decode.mask + (size_t)lane_i * e->pool.max_page,
                   r->run[at.run_i].pos0 / PAGE_TOK);
}

struct attn_plan evict_bridge(const sac_engine *e, const struct attn_run *run,
                              struct attn_range *range, uint32_t *ptr)
{
    const uint32_t n_kv_head = e->pool.geom.n_kv_head, max_page = e->pool.max_page;
    const uint32_t n_page = (run->pos0 + run->n_row) / PAGE_TOK;
    uint32_t n = 0;
    for (uint32_t h = 0; h < n_kv_head; h++) {
        const page_id *table = run->table + h * run->table_stride;
        ptr[h] = n;
        for (uint32_t p = 0; p < n_page; p++) {
            if (table[p] == PAGE_NONE) continue;
            if (n > ptr[h] && range[n - 1].end == p)
                range[n - 1].end++;
            else
                range[n++] = (struct attn_range){p, p + 1};
        }
    }
    assert(n <= n_kv_head * (max_page / 2 + 1));
    ptr[n_kv_head] = n;
    /* No tile boundary may lie within the context, and the tile must be a multiple of the kernels'
     * tiles. */
    return (struct attn_plan){
        .tile_tok = (max_page + 63) / 64 * 64 * PAGE_TOK, .range = range, .range_ptr = ptr};
}

static void bridge_gaps(const sac_engine *e, struct attn_run *run, uint32_t plan_i)
{
    const struct evict *v = &e->evict;
    const size_t n_kv_head = e->pool.geom.n_kv_head;
    assert(plan_i < e->params.n_seq_max);
    v->plan[plan_i] =
        evict_bridge(e, run, v->range + plan_i * n_kv_head * (e->pool.max_page / 2 + 1),
                     v->range_ptr + plan_i * (n_kv_head + 1));
    run->plan = &v->plan[plan_i];
}

void evict_pages(sac_engine *e, struct reading *r)
{
    const bool drops = e->backend.is_host && !e->params.record;
    uint32_t n_plan = 0;
    if (!e->decode.evicts && !e->params.compose) return;
    for (uint32_t i = 0; i < r->n_decode * e->pool.geom.n_kv_head && drops; i++)
        drop_pages(e, r, i);
    for (uint32_t i = r->n_decode; i < r->n_run; i++)
        if (e->seqs[e->batch.run[i].seq_i].has_gaps) bridge_gaps(e, &r->run[i], n_plan++);
}
