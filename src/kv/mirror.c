/* mirror.c: see the header.
 *
 * Invariant: whose memory a place is, its address tells: what lies in the pool's own part is the
 * program's, whoever else computes. Entry i of a lane is right on the device if i < mirrored[seq_i]
 * and i is below the sequence's pages. So a step brings up the pages that it adds, one for each
 * PAGE_TOK tokens, and no table as a whole but after a fork or a load. */
#include "kv/mirror.h"

#include <assert.h>
#include <string.h>

/* Of the device's part. */
static size_t n_lane(const struct pool *p)
{
    return (size_t)p->part[1].n_layer * p->geom.n_kv_head;
}

/* Memory of the program alone, which no device computes on. */
static bool is_own(const struct pool *p, const uint8_t *at)
{
    const struct pool_part *own = &p->part[0];
    const size_t n_tail = (size_t)p->n_seq * own->n_layer * p->geom.n_kv_head;
    const uint8_t *frames = own->frames, *tails = own->tails;
    return !p->mirror || (at >= frames && at < frames + (size_t)own->n_page * p->geom.bytes) ||
           (at >= tails && at < tails + n_tail * p->geom.tail_bytes);
}

void mirror_plan(struct pool *p, struct arena *a)
{
    const size_t n_entry = n_lane(p) * p->max_page;
    p->mirror = arena_take_tensor(a, p->n_seq * n_entry, sizeof *p->mirror);
    p->mirrored = arena_take(a, p->n_seq, sizeof *p->mirrored);
    p->changes = arena_take(a, n_entry, sizeof *p->changes);
    p->bounce = arena_take(a, 2, mem_larger(p->geom.bytes, p->geom.tail_bytes));
    p->crowd = arena_take(a, MIRROR_PAGES, p->geom.bytes);
}

void mirror_note(struct pool *p, uint32_t seq_i, uint32_t page_i)
{
    if (p->mirrored && p->mirrored[seq_i] > page_i) p->mirrored[seq_i] = page_i;
}

void mirror_update(struct pool *p, uint32_t seq_i, uint32_t n_page)
{
    if (!p->mirror || p->mirrored[seq_i] >= n_page) return;
    const uint32_t first = p->mirrored[seq_i], n = n_page - first;
    const page_id *table = pool_table(p, seq_i, p->part[1].layer0);
    assert(n_page <= p->max_page);
    for (size_t lane = 0; lane < n_lane(p); lane++)
        for (uint32_t i = 0; i < n; i++) {
            const page_id id = table[lane * p->max_page + first + i];
            p->changes[lane * n + i] = id == PAGE_NONE ? PAGE_NONE : p->frame_of[id];
        }
    uint32_t *to = p->mirror + seq_i * n_lane(p) * p->max_page + first;
    backend_up_rows(p->backend, to, p->max_page * sizeof *to, p->changes, n * sizeof *to,
                    n_lane(p));
    p->mirrored[seq_i] = n_page;
}

const uint32_t *mirror_of(const struct pool *p, uint32_t seq_i, uint32_t layer)
{
    const uint32_t layer0 = p->part[1].layer0;
    if (!p->mirror || layer < layer0) return NULL;
    const size_t lane = seq_i * n_lane(p) + (size_t)(layer - layer0) * p->geom.n_kv_head;
    return p->mirror + lane * p->max_page;
}

void mirror_copy(const struct pool *p, uint8_t *dst, const uint8_t *src, size_t bytes)
{
    if (is_own(p, dst))
        memcpy(dst, src, bytes);
    else
        backend_copy(p->backend, dst, src, bytes);
}

/* A page that lies where the program, too, can reach it. */
static bool is_below(const struct pool *p, const uint8_t *at)
{
    const struct pool_part *part = &p->part[1];
    return p->depot && at >= part->frames &&
           at < part->frames + (size_t)part->n_page * p->geom.bytes;
}

void mirror_unseal(const struct pool *p, uint8_t *tail, uint8_t *sealed, uint32_t n_tok)
{
    if (is_own(p, tail)) {
        page_unseal(&p->geom, tail, sealed, n_tok);
        return;
    }
    uint8_t *from, *to = p->bounce + mem_larger(p->geom.bytes, p->geom.tail_bytes);
    /* A device that fails here fails in the next step, too. */
    if (mirror_fetch(p, &from, sealed, p->geom.bytes, NULL) != SAC_OK) return;
    page_unseal(&p->geom, to, from, n_tok);
    backend_up(p->backend, tail, to, p->geom.tail_bytes);
}

sac_status mirror_fetch(const struct pool *p, uint8_t **out, uint8_t *src, size_t bytes,
                        sac_error *err)
{
    *out = src;
    if (is_own(p, src)) return SAC_OK;
    if (is_below(p, src)) return backend_wait(p->backend, err);
    assert(bytes <= mem_larger(p->geom.bytes, p->geom.tail_bytes));
    *out = p->bounce;
    backend_down(p->backend, p->bounce, src, bytes);
    return backend_wait(p->backend, err);
}

uint8_t *mirror_room(const struct pool *p, uint8_t *dst)
{
    return is_own(p, dst) || is_below(p, dst) ? dst : p->bounce;
}

void mirror_store(const struct pool *p, uint8_t *dst, size_t bytes)
{
    if (is_below(p, dst))
        depot_note(p->depot, dst);
    else if (!is_own(p, dst))
        backend_up(p->backend, dst, p->bounce, bytes);
}

/* ---- Many pages ---- */

/* How many from page `first` on lie behind each other. */
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

/* Pages behind each other, from room to their frames. */
static void put_run(const struct pool *p, const struct mirror_part *m, uint32_t first, uint32_t n)
{
    uint8_t *to = pool_page(p, m->id[first]) + m->at, *from = m->room + first * m->pitch;
    if (!is_own(p, to)) backend_up_rows(p->backend, to, p->geom.bytes, from, m->width, n);
    for (uint32_t i = 0; i < n && is_own(p, to); i++)
        memcpy(to + i * p->geom.bytes, from + i * m->pitch, m->width);
}

static void get_run(const struct pool *p, const struct mirror_part *m, uint32_t first, uint32_t n)
{
    const uint8_t *from = pool_page(p, m->id[first]);
    uint8_t *to = m->room + first * m->pitch;
    if (is_own(p, from))
        memcpy(to, from, n * m->pitch);
    else
        backend_down(p->backend, to, from, n * m->pitch);
}

static void give_room(const struct pool *p, struct mirror_part *m, size_t pitch)
{
    assert(m->n <= MIRROR_PAGES && m->at + m->width <= p->geom.bytes);
    m->room = p->mirror && !p->depot ? p->crowd : NULL;
    m->pitch = pitch;
}

void mirror_begin(const struct pool *p, struct mirror_part *m)
{
    give_room(p, m, m->width);
}

void mirror_put(const struct pool *p, const struct mirror_part *m)
{
    for (uint32_t i = 0; i < m->n && p->depot; i++) depot_note(p->depot, pool_page(p, m->id[i]));
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
    return p->mirror ? backend_wait(p->backend, err) : SAC_OK;
}

uint8_t *mirror_seen(const struct pool *p, const struct mirror_part *m, uint32_t i)
{
    if (!m->room) return pool_page(p, m->id[i]) + m->at;
    /* What was fetched is whole pages. */
    return m->room + i * m->pitch + (m->pitch == p->geom.bytes ? m->at : 0);
}
