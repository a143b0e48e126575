/* attend_seal.c: pages that the batch has filled go into the pool in sealed form, and methods note
 * what they want to know of them (side.c). From here on these pages never change. */
#include "engine/attend.h"

#include "engine/engine.h"

#include <assert.h>

void attend_seal(sac_engine *e, const struct reading *r)
{
    const struct attend *t = &e->attend;
    const struct page_geom *g = &e->pool.geom;
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_run; i++) {
        const struct attn_run *run = &r->run[i];
        const uint32_t first = run->pos0 / PAGE_TOK;
        const uint32_t n_full = (run->pos0 + run->n_row) / PAGE_TOK - first;
        for (uint32_t j = 0; j < n_full; j++)
            for (uint32_t h = 0; h < g->n_kv_head; h++, n++) {
                const page_id id = run->table[h * run->table_stride + first + j];
                assert(id != PAGE_NONE);
                t->seal_from[n] = attn_own_page(run, g, (first + j) * PAGE_TOK, h);
                t->seal_id[n] = id;
                t->seal_to[n] = pool_page(&e->pool, id);
            }
    }
    assert(n <= (size_t)t->n_new_page_max * g->n_kv_head);
    if (n == 0) return;
    e->ops.seal(
        e->workers,
        &(struct op_seal){.geom = g, .n_page = n, .tail = t->seal_from, .sealed = t->seal_to});
    side_seal(e, t->seal_id, n);
}
