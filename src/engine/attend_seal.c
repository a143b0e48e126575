/* attend_seal.c: pages that the batch has filled are sealed into the pool, and methods compute
 * their side data (side.c). Sealed pages never change. A tier below the pool begins to copy them to
 * disk; offloading copies them to host memory immediately.
 *
 * If no frame can be freed for a run's pages because no other page could be copied to disk, only
 * that run's sequence fails. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>

/* Lists the pages that a run fills after the n pages of earlier runs; returns the new number. */
static uint32_t name_pages(const sac_engine *e, const struct attn_run *run, uint32_t n)
{
    const struct attend *t = &e->attend;
    const struct page_geom *g = &e->pool.geom;
    const uint32_t first = run->pos0 / PAGE_TOK, n0 = n;
    const uint32_t n_full = (run->pos0 + run->n_row) / PAGE_TOK - first;
    for (uint32_t j = 0; j < n_full; j++)
        for (uint32_t h = 0; h < g->n_kv_head; h++, n++) {
            t->seal_id[n] = run->table[h * run->table_stride + first + j];
            t->seal_from[n] = attn_own_page(run, g, (first + j) * PAGE_TOK, h);
            assert(t->seal_id[n] != PAGE_NONE);
        }
    return n - n0;
}

/* Seals into frames of the device, from which the pages are copied to host memory. */
static void seal_on_device(sac_engine *e, uint32_t n)
{
    struct attend *t = &e->attend;
    const struct pool *p = &e->pool;
    for (uint32_t i = 0; i < n; i++) {
        t->seal_to[i] = offload_new_page(p->offload, i);
        t->seal_place[i] = p->frame_of[t->seal_id[i]];
    }
    e->ops.seal(e->workers,
                &(struct op_seal){
                    .geom = &p->geom, .n_page = n, .tail = t->seal_from, .sealed = t->seal_to});
    offload_store(p->offload, &e->ops, e->workers, &p->geom, t->seal_place, n);
}

static void seal_here(const sac_engine *e, uint32_t n)
{
    const struct attend *t = &e->attend;
    for (uint32_t i = 0; i < n; i++) t->seal_to[i] = pool_page(&e->pool, t->seal_id[i]);
    e->ops.seal(e->workers, &(struct op_seal){.geom = &e->pool.geom,
                                              .n_page = n,
                                              .tail = t->seal_from,
                                              .sealed = t->seal_to});
}

void attend_seal(sac_engine *e, const struct reading *r)
{
    struct attend *t = &e->attend;
    const struct page_geom *g = &e->pool.geom;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_run; i++) {
        if (engine_is_broken(e, i)) continue;
        const uint32_t n_new = name_pages(e, &r->run[i], n);
        const sac_status status = tier_open(e->pool.tier, t->seal_id + n, n_new);
        if (status != SAC_OK)
            engine_break(e, i, status);
        else
            n += n_new;
    }
    assert(n <= (size_t)t->n_new_page_max * g->n_kv_head);
    if (n == 0) return;
    if (e->pool.offload)
        seal_on_device(e, n);
    else
        seal_here(e, n);
    side_seal(e, t->seal_id, n);
    tier_close(e->pool.tier, t->seal_id, n);
}
