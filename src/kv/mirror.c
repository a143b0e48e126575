/* mirror.c: see the header.
 *
 * Invariant: the address of a byte tells whose memory it is in: the pool's own part is the host's,
 * whatever computes elsewhere. Entry i of a lane's table is up to date on the device if i <
 * mirrored[seq_i] and i is below the number of the sequence's pages. A step therefore uploads only
 * the entries that it adds, one per PAGE_TOK tokens, and a whole table only after a load. */
#include "kv/mirror.h"

#include "base/minmax.h"

#include <assert.h>
#include <string.h>

static size_t n_lane(const struct pool *p, const struct pool_part *part)
{
    return (size_t)part->n_layer * p->geom.n_kv_head;
}

static bool holds(const struct pool *p, const struct pool_part *part, const uint8_t *at)
{
    const size_t n_tail = p->n_seq * n_lane(p, part);
    const uint8_t *frames = part->frames, *tails = part->tails;
    return (at >= frames && at < frames + (size_t)part->n_page * p->geom.bytes) ||
           (at >= tails && at < tails + n_tail * p->geom.tail_bytes);
}

/* The backend that owns the memory; NULL: the host, where no device computes. Memory outside all
 * parts holds the state of methods, which is on a device only if the last part is. */
static const struct backend *owner(const struct pool *p, const uint8_t *at)
{
    uint32_t i = 0;
    while (i + 1 < p->n_part && !holds(p, &p->part[i], at)) i++;
    return p->part[i].device;
}

void mirror_plan(const struct pool *p, struct pool_part *part, struct arena *device)
{
    const size_t n_entry = n_lane(p, part) * p->max_page;
    part->mirror = arena_take(device, p->n_seq * n_entry, sizeof *part->mirror);
}

void mirror_plan_ways(struct pool *p, struct arena *a)
{
    const size_t n_entry = (size_t)pool_pages_per_index(p) * p->max_page;
    if (!p->part[p->n_part - 1].device) return;
    p->mirrored = arena_take(a, p->n_seq, sizeof *p->mirrored);
    p->changes = arena_take(a, n_entry, sizeof *p->changes);
    p->bounce = arena_take(a, 2, mem_larger(p->geom.bytes, p->geom.tail_bytes));
    p->crowd = arena_take(a, MIRROR_PAGES, p->geom.bytes);
}

void mirror_note(struct pool *p, uint32_t seq_i, uint32_t page_i)
{
    if (p->mirrored && p->mirrored[seq_i] > page_i) p->mirrored[seq_i] = page_i;
}

void mirror_fork(struct pool *p, uint32_t dst, uint32_t src, uint32_t n_page)
{
    if (!p->mirrored || p->mirrored[src] == 0) return;
    for (uint32_t i = 0; i < p->n_part; i++) {
        const struct pool_part *part = &p->part[i];
        const size_t n_entry = n_lane(p, part) * p->max_page;
        if (part->device)
            backend_copy(part->device, part->mirror + dst * n_entry, part->mirror + src * n_entry,
                         n_entry * sizeof *part->mirror);
    }
    p->mirrored[dst] = min_u32(p->mirrored[src], n_page);
}

static void update_part(const struct pool *p, const struct pool_part *part, uint32_t seq_i,
                        uint32_t n_page)
{
    const uint32_t first = p->mirrored[seq_i], n = n_page - first;
    const page_id *table = pool_table(p, seq_i, part->layer0);
    for (size_t lane = 0; lane < n_lane(p, part); lane++)
        for (uint32_t i = 0; i < n; i++) {
            const page_id id = table[lane * p->max_page + first + i];
            p->changes[lane * n + i] = id == PAGE_NONE ? PAGE_NONE : p->frame_of[id];
        }
    uint32_t *to = part->mirror + seq_i * n_lane(p, part) * p->max_page + first;
    backend_up_rows(part->device, to, p->max_page * sizeof *to, p->changes, n * sizeof *to,
                    n_lane(p, part));
}

void mirror_update(struct pool *p, uint32_t seq_i, uint32_t n_page)
{
    if (!p->mirrored || p->mirrored[seq_i] >= n_page) return;
    assert(n_page <= p->max_page);
    for (uint32_t i = 0; i < p->n_part; i++)
        if (p->part[i].device) update_part(p, &p->part[i], seq_i, n_page);
    p->mirrored[seq_i] = n_page;
}

void mirror_is_right(struct pool *p, uint32_t seq_i, uint32_t n_page)
{
    if (p->mirrored && p->mirrored[seq_i] < n_page) p->mirrored[seq_i] = n_page;
}

const uint32_t *mirror_of(const struct pool *p, uint32_t seq_i, uint32_t layer)
{
    const struct pool_part *part = pool_part_of(p, layer);
    if (!part->device) return NULL;
    const size_t lane =
        seq_i * n_lane(p, part) + (size_t)(layer - part->layer0) * p->geom.n_kv_head;
    return part->mirror + lane * p->max_page;
}

void mirror_copy(const struct pool *p, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    const struct backend *device = owner(p, dst);
    if (device)
        backend_copy(device, dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

/* Whether the page is in memory that the host can access, too. */
static bool is_below(const struct pool *p, const uint8_t *at)
{
    const struct pool_part *part = &p->part[0];
    return p->offload && at >= part->frames &&
           at < part->frames + (size_t)part->n_page * p->geom.bytes;
}

void mirror_unseal(const struct pool *p, uint8_t *tail, uint8_t *sealed, uint32_t n_tok)
{
    const struct backend *device = owner(p, tail);
    if (!device) {
        page_unseal(&p->geom, tail, sealed, n_tok);
        return;
    }
    uint8_t *from, *to = p->bounce + mem_larger(p->geom.bytes, p->geom.tail_bytes);
    /* An error of the device will show again in the next step. */
    if (mirror_fetch(p, &from, sealed, p->geom.bytes, NULL) != SAC_OK) return;
    page_unseal(&p->geom, to, from, n_tok);
    backend_up(device, tail, to, p->geom.tail_bytes);
}

sac_status mirror_fetch(const struct pool *p, uint8_t **out, uint8_t *src, size_t bytes,
                        sac_error *err)
{
    const struct backend *device = owner(p, src);
    *out = src;
    if (!device) return SAC_OK;
    if (is_below(p, src)) return backend_wait(device, err);
    assert(bytes <= mem_larger(p->geom.bytes, p->geom.tail_bytes));
    *out = p->bounce;
    backend_down(device, p->bounce, src, bytes);
    return backend_wait(device, err);
}

uint8_t *mirror_room(const struct pool *p, uint8_t *dst)
{
    return !owner(p, dst) || is_below(p, dst) ? dst : p->bounce;
}

void mirror_store(const struct pool *p, uint8_t *dst, size_t bytes)
{
    const struct backend *device = owner(p, dst);
    if (is_below(p, dst))
        offload_note(p->offload, dst);
    else if (device)
        backend_up(device, dst, p->bounce, bytes);
}

/* ---- Several pages at once ---- */

/* The number of contiguous pages from page `first` on. */
static uint32_t count_adjacent(const struct pool *p, const struct mirror_part *m, uint32_t first)
{
    const page_id *id = m->id + first;
    const uint32_t frame = p->frame_of[*id], layer = pool_first_layer(p, *id);
    uint32_t n = 1;
    while (first + n < m->n && p->frame_of[id[n]] == frame + n &&
           pool_first_layer(p, id[n]) == layer)
        n++;
    return n;
}

/* Copies contiguous pages from the buffer to their frames. */
static void put_run(const struct pool *p, const struct mirror_part *m, uint32_t first, uint32_t n)
{
    uint8_t *to = pool_page(p, m->id[first]) + m->at, *from = m->room + first * m->pitch;
    const struct backend *device = owner(p, to);
    if (device) backend_up_rows(device, to, p->geom.bytes, from, m->width, n);
    for (uint32_t i = 0; i < n && !device; i++)
        memcpy(to + i * p->geom.bytes, from + i * m->pitch, m->width);
}

static void get_run(const struct pool *p, const struct mirror_part *m, uint32_t first, uint32_t n)
{
    const uint8_t *from = pool_page(p, m->id[first]);
    uint8_t *to = m->room + first * m->pitch;
    const struct backend *device = owner(p, from);
    if (device)
        backend_down(device, to, from, n * m->pitch);
    else
        memcpy(to, from, n * m->pitch);
}

static void give_room(const struct pool *p, struct mirror_part *m, size_t pitch)
{
    assert(m->n <= MIRROR_PAGES && m->at + m->width <= p->geom.bytes);
    m->room = p->mirrored && !p->offload ? p->crowd : NULL;
    m->pitch = pitch;
}

void mirror_begin(const struct pool *p, struct mirror_part *m)
{
    give_room(p, m, m->width);
}

void mirror_put(const struct pool *p, const struct mirror_part *m)
{
    for (uint32_t i = 0; i < m->n && p->offload; i++)
        offload_note(p->offload, pool_page(p, m->id[i]));
    for (uint32_t i = 0, n; i < m->n && m->room; i += n) {
        n = count_adjacent(p, m, i);
        put_run(p, m, i, n);
    }
}

sac_status mirror_get(const struct pool *p, struct mirror_part *m, sac_error *err)
{
    give_room(p, m, p->geom.bytes);
    for (uint32_t i = 0, n; i < m->n && m->room; i += n) {
        n = count_adjacent(p, m, i);
        get_run(p, m, i, n);
    }
    for (uint32_t i = 0; i < p->n_part; i++)
        if (p->part[i].device) TRY(backend_wait(p->part[i].device, err));
    return SAC_OK;
}

uint8_t *mirror_seen(const struct pool *p, const struct mirror_part *m, uint32_t i)
{
    if (!m->room) return pool_page(p, m->id[i]) + m->at;
    /* Whole pages were fetched. */
    return m->room + i * m->pitch + (m->pitch == p->geom.bytes ? m->at : 0);
}
