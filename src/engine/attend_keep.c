/* attend_keep.c: the last step of attention keeps what later steps need of this layer. The page
 * that a chunk leaves unfilled becomes the sequence's tail, and the queries of the last rows go to
 * past_queries.c. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>

static void keep_tails(const sac_engine *e, const struct reading *r)
{
    const struct page_geom *g = &e->pool.geom;
    for (uint32_t i = 0; i < r->n_run; i++) {
        const struct attn_run *run = &r->run[i];
        const uint32_t end = run->pos0 + run->n_row;
        assert(end > run->pos0);
        if (end / PAGE_TOK == run->pos0 / PAGE_TOK || end % PAGE_TOK == 0) continue;
        for (uint32_t h = 0; h < g->n_kv_head; h++)
            backend_copy(&e->backend, attn_own_page(run, g, run->pos0, h),
                         attn_own_page(run, g, end, h), g->tail_bytes);
    }
}

void attend_keep(sac_engine *e, const struct reading *r)
{
    keep_tails(e, r);
    past_queries_keep(e, r);
}
