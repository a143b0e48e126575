/* depot.c: see the header.
 *
 * Invariant: a page that the host has written since the device last read the list is in `renewed`,
 * once, and the device processes this list before its next launch that reads pages. No frame and no
 * card of a page's old content is thus taken for the new one. */
#include "kv/depot.h"

#include "kv/tier.h"

#include <assert.h>

#define RENEW_MAX (1u << 16) /* pages per launch */

uint32_t depot_least(const struct page_geom *geom, uint32_t n_new_max)
{
    return n_new_max + 2 * geom->n_kv_head;
}

/* Transient frames take what a sequence reads of a layer, but at most half of the frames. */
bool depot_divide(struct depot *d, const struct page_geom *geom, const struct depot_size *size)
{
    struct depot_map *m = &d->map;
    if (size->n_frame < depot_least(geom, size->n_new_max)) return false;
    m->n_frame = size->n_frame;
    m->n_new = size->n_new_max;
    m->n_head = (size->n_frame - size->n_new_max) / geom->n_kv_head;
    m->n_pass = size->n_seen_max < m->n_head / 2 ? size->n_seen_max : m->n_head / 2;
    m->card_bytes = tier_card_bytes(geom);
    d->page_bytes = geom->bytes;
    d->n_page = size->n_page;
    d->n_lane = geom->n_layer * geom->n_kv_head;
    d->n_kv_head = geom->n_kv_head;
    return true;
}

void depot_plan(struct depot *d, struct arena *a)
{
    struct depot_map *m = &d->map;
    const size_t n_wanted = (size_t)d->n_kv_head * m->n_head;
    m->below = d->pages;
    m->base = arena_take_tensor(a, m->n_frame, d->page_bytes);
    m->held = arena_take_tensor(a, d->n_page, sizeof *m->held);
    m->page = arena_take_tensor(a, m->n_frame, sizeof *m->page);
    m->used = arena_take_tensor(a, m->n_frame, sizeof *m->used);
    m->hand = arena_take_tensor(a, d->n_kv_head, sizeof *m->hand);
    m->lane = arena_take_tensor(a, d->n_lane, sizeof *m->lane);
    m->wanted = arena_take_tensor(a, n_wanted, sizeof *m->wanted);
    m->into = arena_take_tensor(a, n_wanted, sizeof *m->into);
    m->n_move = arena_take_tensor(a, d->n_kv_head, sizeof *m->n_move);
    m->card = arena_take_tensor(a, d->n_page, m->card_bytes);
    d->renewed = arena_take(a, d->n_page, sizeof *d->renewed);
    d->is_renewed = arena_take(a, d->n_page, sizeof *d->is_renewed);
    d->lane = arena_take(a, d->n_lane, sizeof *d->lane);
}

uint8_t *depot_new_page(const struct depot *d, uint32_t n)
{
    assert(n < d->map.n_new);
    return d->map.base + n * d->page_bytes;
}

void depot_store(struct depot *d, const struct ops *ops, struct workers *workers,
                 const struct page_geom *geom, const uint32_t *place, uint32_t n)
{
    assert(n <= d->map.n_new);
    d->n_stored += n;
    ops->depot.store(workers, &(struct op_depot_store){
                                  .map = &d->map, .geom = geom, .page = place, .n_page = n});
}

void depot_note(struct depot *d, const uint8_t *at)
{
    const uint32_t place = (uint32_t)((size_t)(at - d->pages) / d->page_bytes);
    assert(at >= d->pages && place < d->n_page);
    if (d->is_renewed[place]) return;
    d->is_renewed[place] = true;
    d->renewed[d->n_renewed++] = place;
}

void depot_settle(struct depot *d, const struct ops *ops, struct workers *workers,
                  const struct page_geom *geom)
{
    if (!d) return;
    for (uint32_t i = 0; i < d->n_renewed; i += RENEW_MAX) {
        const uint32_t n = d->n_renewed - i < RENEW_MAX ? d->n_renewed - i : RENEW_MAX;
        ops->depot.renew(workers,
                         &(struct op_depot_renew){
                             .map = &d->map, .geom = geom, .page = d->renewed + i, .n_page = n});
    }
    for (uint32_t i = 0; i < d->n_renewed; i++) d->is_renewed[d->renewed[i]] = false;
    d->n_renewed = 0;
}

void depot_fetch_counts(struct depot *d, const struct backend *backend)
{
    if (d) backend_down(backend, d->lane, d->map.lane, d->n_lane * sizeof *d->lane);
}
