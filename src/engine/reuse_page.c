/* reuse_page.c: see the header. Pages are ordered by lane: layer by layer, and within a layer by KV
 * head. */
#include "engine/reuse_page.h"

#include "engine/engine.h"
#include "kv/mirror.h"

#include <string.h>

sac_status reuse_page_fetch(sac_engine *e, uint32_t node, uint8_t *to)
{
    struct pool *p = &e->pool;
    const uint32_t n_lane = e->reuse.index.n_lane;
    for (uint32_t lane = 0; lane < n_lane; lane++, to += p->geom.bytes) {
        const page_id id = e->reuse.index.page[(size_t)node * n_lane + lane];
        const sac_status held = tier_acquire(p->tier, &id, 1);
        uint8_t *bytes = NULL;
        const sac_status status =
            held == SAC_OK ? mirror_fetch(p, &bytes, pool_page(p, id), p->geom.bytes, NULL) : held;
        if (status == SAC_OK) memcpy(to, bytes, p->geom.bytes);
        if (tier_holds(held)) tier_release(p->tier, &id, 1);
        TRY(status);
    }
    return SAC_OK;
}

/* Writes the bytes of a layer's pages at one page index, and computes their side data. */
static sac_status place_layer(sac_engine *e, struct pool_place at, uint32_t layer,
                              const uint8_t *bytes)
{
    struct pool *p = &e->pool;
    const uint32_t n = p->geom.n_kv_head;
    page_id *id = e->attend.seal_id;
    for (uint32_t h = 0; h < n; h++) id[h] = pool_entry(p, at, layer * n + h);
    TRY(tier_open(p->tier, id, n));
    for (uint32_t h = 0; h < n; h++) {
        uint8_t *page = pool_page(p, id[h]), *room = mirror_room(p, page);
        memcpy(room, bytes + h * p->geom.bytes, p->geom.bytes);
        mirror_store(p, page, p->geom.bytes);
    }
    if (e->side.page_bytes) side_seal(e, id, n);
    tier_close(p->tier, id, n);
    return SAC_OK;
}

bool reuse_page_place(sac_engine *e, uint32_t seq_i, uint32_t n_page, const uint8_t *bytes)
{
    const uint32_t first = e->seqs[seq_i].reuse.n_page, n_layer = e->pool.geom.n_layer;
    const size_t layer_bytes = e->pool.geom.n_kv_head * (size_t)e->pool.geom.bytes;
    sac_status status = SAC_OK;
    reuse_make_room(e, n_page);
    if (!pool_reserve(&e->pool, seq_i, first, n_page)) return false;
    for (uint32_t i = 0; i < n_page * n_layer && status == SAC_OK; i++)
        status = place_layer(e, (struct pool_place){seq_i, first + i / n_layer}, i % n_layer,
                             bytes + i * layer_bytes);
    if (status != SAC_OK) pool_release(&e->pool, seq_i, first, n_page);
    return status == SAC_OK;
}
