/* offload.c: see the header.
 *
 * Invariant: a page that the host has written since the device last read the list is in `renewed`,
 * once, and the device processes this list before its next launch that reads pages. No frame and no
 * card of a page's old content is thus taken for the new one. */
#include "kv/offload.h"

#include "kv/tier.h"

#include <assert.h>

#define RENEW_MAX (1u << 16) /* pages per launch */

uint32_t offload_least(const struct page_geom *geom, uint32_t n_new_max)
{
    return n_new_max + 2 * geom->n_kv_head;
}

/* Transient frames take what a sequence reads of a layer, but at most half of the frames. */
bool offload_divide(struct offload *o, const struct page_geom *geom,
                    const struct offload_size *size)
{
    struct offload_map *m = &o->map;
    if (size->n_frame < offload_least(geom, size->n_new_max)) return false;
    m->n_frame = size->n_frame;
    m->n_new = size->n_new_max;
    m->n_head = (size->n_frame - size->n_new_max) / geom->n_kv_head;
    m->n_pass = size->n_seen_max < m->n_head / 2 ? size->n_seen_max : m->n_head / 2;
    m->card_bytes = tier_card_bytes(geom);
    o->page_bytes = geom->bytes;
    o->n_page = size->n_page;
    o->n_lane = geom->n_layer * geom->n_kv_head;
    o->n_kv_head = geom->n_kv_head;
    return true;
}

void offload_plan(struct offload *o, struct arena *a)
{
    struct offload_map *m = &o->map;
    const size_t n_wanted = (size_t)o->n_kv_head * m->n_head;
    m->below = o->pages;
    m->base = arena_take_tensor(a, m->n_frame, o->page_bytes);
    m->held = arena_take_tensor(a, o->n_page, sizeof *m->held);
    m->page = arena_take_tensor(a, m->n_frame, sizeof *m->page);
    m->used = arena_take_tensor(a, m->n_frame, sizeof *m->used);
    m->hand = arena_take_tensor(a, o->n_kv_head, sizeof *m->hand);
    m->lane = arena_take_tensor(a, o->n_lane, sizeof *m->lane);
    m->wanted = arena_take_tensor(a, n_wanted, sizeof *m->wanted);
    m->into = arena_take_tensor(a, n_wanted, sizeof *m->into);
    m->n_move = arena_take_tensor(a, o->n_kv_head, sizeof *m->n_move);
    m->card = arena_take_tensor(a, o->n_page, m->card_bytes);
    o->renewed = arena_take(a, o->n_page, sizeof *o->renewed);
    o->is_renewed = arena_take(a, o->n_page, sizeof *o->is_renewed);
    o->lane = arena_take(a, o->n_lane, sizeof *o->lane);
}

uint8_t *offload_new_page(const struct offload *o, uint32_t n)
{
    assert(n < o->map.n_new);
    return o->map.base + n * o->page_bytes;
}

void offload_store(struct offload *o, const struct ops *ops, struct workers *workers,
                   const struct page_geom *geom, const uint32_t *place, uint32_t n)
{
    assert(n <= o->map.n_new);
    o->n_stored += n;
    ops->offload.store(workers, &(struct op_offload_store){
                                    .map = &o->map, .geom = geom, .page = place, .n_page = n});
}

void offload_note(struct offload *o, const uint8_t *at)
{
    const uint32_t place = (uint32_t)((size_t)(at - o->pages) / o->page_bytes);
    assert(at >= o->pages && place < o->n_page);
    if (o->is_renewed[place]) return;
    o->is_renewed[place] = true;
    o->renewed[o->n_renewed++] = place;
}

void offload_settle(struct offload *o, const struct ops *ops, struct workers *workers,
                    const struct page_geom *geom)
{
    if (!o) return;
    for (uint32_t i = 0; i < o->n_renewed; i += RENEW_MAX) {
        const uint32_t n = o->n_renewed - i < RENEW_MAX ? o->n_renewed - i : RENEW_MAX;
        ops->offload.renew(workers,
                           &(struct op_offload_renew){
                               .map = &o->map, .geom = geom, .page = o->renewed + i, .n_page = n});
    }
    for (uint32_t i = 0; i < o->n_renewed; i++) o->is_renewed[o->renewed[i]] = false;
    o->n_renewed = 0;
}

void offload_fetch_counts(struct offload *o, const struct backend *backend)
{
    if (o) backend_down(backend, o->lane, o->map.lane, o->n_lane * sizeof *o->lane);
}
