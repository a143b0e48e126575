/* pool.c: page ownership. It touches keys and values only in a fork (copy of the tail) and a
 * truncation.
 *
 * Invariants, checked by pool_check in tests after each operation:
 *  1. refs[id] = the number of live table entries that name id, plus that of its holds.
 *  2. id is on its part's free stack if and only if refs[id] = 0; n_free is the stack's height.
 *  3. Table entries at or beyond n_tok / PAGE_TOK hold PAGE_NONE, and so do those of dropped pages
 *     below.
 *  4. Without a tier, a page has a frame of its part while refs > 0, no two pages share a frame,
 *     and the other frames are on their stack; with one, the tier owns the frames. Only pool_page,
 *     page_frame and the code that moves pages know which frame a page has.
 *  5. A page with refs > 1 is sealed: only pool_reserve returns writable pages, with refs 1. */
#include "kv/pool.h"

#include "kv/mirror.h"

#include <assert.h>
#include <string.h>

static size_t n_lane(const struct pool *p)
{
    return (size_t)p->geom.n_layer * p->geom.n_kv_head;
}

/* ---- Parts ---- */

static uint32_t part_of_page(const struct pool *p, page_id id)
{
    uint32_t i = p->n_part - 1;
    assert(id < p->n_page);
    while (id < p->part[i].id0) i--;
    return i;
}

/* The number of the part that has a layer. */
static uint32_t part_of_layer(const struct pool *p, uint32_t layer)
{
    uint32_t i = p->n_part - 1;
    assert(layer < p->geom.n_layer);
    while (layer < p->part[i].layer0) i--;
    return i;
}

const struct pool_part *pool_part_of(const struct pool *p, uint32_t layer)
{
    return &p->part[part_of_layer(p, layer)];
}

static void divide(struct pool *p, const struct pool_size *size)
{
    const uint32_t n_index = p->n_page / pool_pages_per_index(p);
    uint32_t layer = 0;
    page_id id = 0;
    assert(size->n_span > 0 && size->n_span <= POOL_PARTS_MAX);
    assert(size->n_span == 1 || p->n_page % pool_pages_per_index(p) == 0);
    p->n_part = size->n_span;
    for (uint32_t i = 0; i < p->n_part; i++) {
        const struct pool_span *span = &size->span[i];
        const uint32_t n_page =
            p->n_part == 1 ? p->n_page : n_index * span->n_layer * p->geom.n_kv_head;
        assert(span->n_layer > 0 || i + 1 < p->n_part);
        p->part[i] = (struct pool_part){.layer0 = layer,
                                        .n_layer = span->n_layer,
                                        .id0 = id,
                                        .n_page = n_page,
                                        .n_free = n_page,
                                        .device = span->device};
        layer += span->n_layer;
        id += n_page;
    }
    assert(layer == p->geom.n_layer);
}

static void plan_part(struct pool *p, struct pool_part *part, struct arena *a)
{
    const size_t n_tail = (size_t)p->n_seq * p->geom.n_kv_head * part->n_layer;
    const size_t n_frame = p->tier ? p->n_frame : part->n_page;
    part->frames = p->offload ? p->offload->pages : arena_take(a, n_frame, p->geom.bytes);
    part->tails = arena_take(a, n_tail, p->geom.tail_bytes);
    if (part->device) mirror_plan(p, part, a);
}

/* The stacks give ascending ids, so pages that are reserved together are adjacent. */
static void fill_stacks(struct pool *p)
{
    for (uint32_t i = 0; i < p->n_part; i++) {
        const struct pool_part *part = &p->part[i];
        for (uint32_t j = 0; j < part->n_page; j++) {
            p->free_ids[part->id0 + j] = part->id0 + part->n_page - 1 - j;
            if (p->free_frames) p->free_frames[part->id0 + j] = part->n_page - 1 - j;
        }
    }
}

/* ---- Memory ---- */

static void plan_tier(struct pool *p, struct tier *tier, struct arena *a)
{
    *tier = (struct tier){.geom = p->geom,
                          .n_page = p->n_page,
                          .n_frame = p->n_frame,
                          .frames = p->part[0].frames,
                          .frame_of = p->frame_of};
    tier_plan(tier, a);
}

void pool_init(struct pool *p, const struct page_geom *geom, const struct pool_size *size,
               struct arena *a)
{
    const uint32_t n_page = size->n_page, n_seq = size->n_seq, max_page = size->max_page;
    *p = (struct pool){.geom = *geom,
                       .n_page = n_page,
                       .n_free = n_page,
                       .n_frame = size->tier ? size->n_frame : n_page,
                       .n_seq = n_seq,
                       .max_page = max_page,
                       .tier = size->tier,
                       .offload = size->offload};
    divide(p, size);
    for (uint32_t i = 0; i < p->n_part; i++)
        plan_part(p, &p->part[i], p->part[i].device ? size->span[i].arena : a);
    if (p->offload) offload_plan(p->offload, a);
    p->frame_of = arena_take(a, n_page, sizeof *p->frame_of);
    p->free_frames = size->tier ? NULL : arena_take(a, n_page, sizeof *p->free_frames);
    p->tables = arena_take(a, n_seq * n_lane(p) * max_page, sizeof *p->tables);
    p->free_ids = arena_take(a, n_page, sizeof *p->free_ids);
    p->refs = arena_take(a, n_page, sizeof *p->refs);
    p->holds = arena_take(a, n_page, sizeof *p->holds);
    if (size->tier) plan_tier(p, size->tier, a);
    mirror_plan_ways(p, a);
    if (!a->base) return;
    fill_stacks(p);
    for (uint32_t i = 0; i < n_page; i++) p->frame_of[i] = PAGE_NONE;
    memset(p->refs, 0, n_page * sizeof *p->refs);
    memset(p->holds, 0, n_page * sizeof *p->holds);
    for (size_t i = 0; i < n_seq * n_lane(p) * max_page; i++) p->tables[i] = PAGE_NONE;
}

uint32_t pool_pages_per_index(const struct pool *p)
{
    return p->geom.n_layer * p->geom.n_kv_head;
}

uint32_t pool_free_indices(const struct pool *p)
{
    uint32_t n = p->n_page;
    for (uint32_t i = 0; i < p->n_part; i++) {
        const struct pool_part *part = &p->part[i];
        const uint32_t n_free =
            part->n_layer ? part->n_free / (part->n_layer * p->geom.n_kv_head) : n;
        n = n_free < n ? n_free : n;
    }
    return n;
}

uint32_t pool_first_layer(const struct pool *p, page_id id)
{
    return p->part[part_of_page(p, id)].layer0;
}

page_id *pool_table(const struct pool *p, uint32_t seq_i, uint32_t layer)
{
    assert(seq_i < p->n_seq && layer < p->geom.n_layer);
    return p->tables + (seq_i * n_lane(p) + (size_t)layer * p->geom.n_kv_head) * p->max_page;
}

uint8_t *pool_tail(const struct pool *p, uint32_t seq_i, uint32_t layer)
{
    const struct pool_part *part = pool_part_of(p, layer);
    assert(seq_i < p->n_seq);
    return part->tails + ((size_t)seq_i * part->n_layer + layer - part->layer0) *
                             p->geom.n_kv_head * p->geom.tail_bytes;
}

uint8_t *pool_own_end(const struct pool *p)
{
    const struct pool_part *own = &p->part[0];
    if (own->device) return NULL;
    return own->tails + (size_t)p->n_seq * own->n_layer * p->geom.n_kv_head * p->geom.tail_bytes;
}

uint8_t *pool_page(const struct pool *p, page_id id)
{
    assert(p->frame_of[id] != PAGE_NONE);
    return p->part[part_of_page(p, id)].frames + (size_t)p->frame_of[id] * p->geom.bytes;
}

struct page_frames pool_frames(const struct pool *p, uint32_t layer)
{
    uint8_t *base = pool_part_of(p, layer)->frames;
    if (!p->offload) return (struct page_frames){.base = base, .of = p->frame_of};
    const struct offload_map *m = &p->offload->map;
    return (struct page_frames){
        .base = m->base, .of = p->frame_of, .held = m->held, .below = m->below, .offload = m};
}

struct page_cards pool_cards(const struct pool *p, uint32_t layer)
{
    if (p->tier) return (struct page_cards){.base = p->tier->cards, .stride = p->tier->card_bytes};
    if (p->offload)
        return (struct page_cards){p->offload->map.card, p->frame_of, p->offload->map.card_bytes};
    return (struct page_cards){pool_part_of(p, layer)->frames, p->frame_of, p->geom.bytes};
}

/* Reads pages that are in their frames. */
static sac_status read_part(const struct pool *p, const page_id *id, uint32_t n, float *k, float *v,
                            sac_error *err)
{
    struct mirror_part m = {.id = id, .n = n, .width = p->geom.bytes};
    const size_t floats = (size_t)PAGE_TOK * p->geom.head_dim;
    TRY(mirror_get(p, &m, err));
    for (uint32_t i = 0; i < n; i++)
        page_read(k ? k + i * floats : NULL, v ? v + i * floats : NULL, &p->geom,
                  mirror_seen(p, &m, i), PAGE_SEALED, PAGE_TOK);
    return SAC_OK;
}

sac_status pool_read(const struct pool *p, const page_id *id, uint32_t n, float *k, float *v,
                     sac_error *err)
{
    const size_t floats = (size_t)PAGE_TOK * p->geom.head_dim;
    for (uint32_t i = 0, part; i < n; i += part) {
        part = p->tier ? 1 : n - i < MIRROR_PAGES ? n - i : MIRROR_PAGES;
        const sac_status held = tier_acquire(p->tier, id + i, part);
        sac_status status = SAC_OK;
        if (held == SAC_OK)
            status = read_part(p, id + i, part, k ? k + i * floats : NULL,
                               v ? v + i * floats : NULL, err);
        if (tier_holds(held)) tier_release(p->tier, id + i, part);
        if (held != SAC_OK) return tier_explain(p->tier, held, err);
        TRY(status);
    }
    return SAC_OK;
}

/* Adds a reference from a table entry. */
static void ref(struct pool *p, page_id id)
{
    assert(p->refs[id] > 0);
    p->n_only_held -= pool_is_only_held(p, id);
    p->refs[id]++;
}

static void unref(struct pool *p, page_id id)
{
    struct pool_part *part = &p->part[part_of_page(p, id)];
    assert(p->refs[id] > 0);
    p->refs[id]--;
    p->n_only_held += pool_is_only_held(p, id);
    if (p->refs[id] > 0) return;
    tier_drop(p->tier, id);
    if (p->free_frames) { /* else the tier has taken the frame, under its lock */
        p->free_frames[part->id0 + part->n_free] = p->frame_of[id];
        p->frame_of[id] = PAGE_NONE;
    }
    p->free_ids[part->id0 + part->n_free++] = id;
    p->n_free++;
}

/* Takes a free page of a lane and a frame; with a tier, the page gets a frame when it is
 * written. */
static page_id take_page(struct pool *p, size_t lane)
{
    const uint32_t layer = (uint32_t)(lane / p->geom.n_kv_head);
    struct pool_part *part = &p->part[part_of_layer(p, layer)];
    const uint32_t top = part->id0 + --part->n_free;
    const page_id id = p->free_ids[top];
    assert(p->refs[id] == 0);
    p->n_free--;
    p->refs[id] = 1;
    if (p->free_frames) p->frame_of[id] = p->free_frames[top];
    tier_born(p->tier, id, layer);
    return id;
}

bool pool_reserve(struct pool *p, uint32_t seq_i, uint32_t first, uint32_t n)
{
    assert((size_t)first + n <= p->max_page);
    if (n > pool_free_indices(p)) return false;
    mirror_note(p, seq_i, first);
    page_id *table = pool_table(p, seq_i, 0);
    for (size_t lane = 0; lane < n_lane(p); lane++)
        for (uint32_t i = first; i < first + n; i++) {
            assert(table[lane * p->max_page + i] == PAGE_NONE);
            table[lane * p->max_page + i] = take_page(p, lane);
        }
    return true;
}

void pool_release(struct pool *p, uint32_t seq_i, uint32_t first, uint32_t n)
{
    assert((size_t)first + n <= p->max_page);
    page_id *table = pool_table(p, seq_i, 0);
    mirror_note(p, seq_i, first);
    /* In reverse, so that the stack hands them out again in ascending order. */
    for (size_t lane = n_lane(p); lane-- > 0;)
        for (uint32_t i = first + n; i-- > first;) {
            if (table[lane * p->max_page + i] == PAGE_NONE) continue; /* dropped earlier */
            unref(p, table[lane * p->max_page + i]);
            table[lane * p->max_page + i] = PAGE_NONE;
        }
}

void pool_drop(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i)
{
    page_id *id = pool_table(p, seq_i, layer) + (size_t)kv_head * p->max_page + page_i;
    mirror_note(p, seq_i, page_i);
    if (*id != PAGE_NONE) unref(p, *id);
    *id = PAGE_NONE;
}

bool pool_renew(struct pool *p, uint32_t seq_i, uint32_t layer, uint32_t kv_head, uint32_t page_i)
{
    page_id *id = pool_table(p, seq_i, layer) + (size_t)kv_head * p->max_page + page_i;
    assert(*id != PAGE_NONE);
    if (p->refs[*id] > 1 && pool_part_of(p, layer)->n_free == 0) return false;
    if (p->refs[*id] > 1) {
        mirror_note(p, seq_i, page_i);
        unref(p, *id);
        *id = take_page(p, (size_t)layer * p->geom.n_kv_head);
        return true;
    }
    tier_drop(p->tier, *id); /* the old content need not be kept: the page will be overwritten */
    tier_born(p->tier, *id, layer);
    return true;
}

bool pool_has(const struct pool *p, uint32_t seq_i, uint32_t page_i)
{
    const page_id *table = pool_table(p, seq_i, 0);
    for (size_t lane = 0; lane < n_lane(p); lane++)
        if (table[lane * p->max_page + page_i] == PAGE_NONE) return false;
    return true;
}

static page_id *entry_at(const struct pool *p, struct pool_place at, uint32_t lane)
{
    assert(at.page_i < p->max_page && lane < n_lane(p));
    return pool_table(p, at.seq_i, 0) + (size_t)lane * p->max_page + at.page_i;
}

page_id pool_entry(const struct pool *p, struct pool_place at, uint32_t lane)
{
    return *entry_at(p, at, lane);
}

void pool_put(struct pool *p, struct pool_place at, uint32_t lane, page_id id)
{
    mirror_note(p, at.seq_i, at.page_i);
    page_id *entry = entry_at(p, at, lane);
    ref(p, id);
    if (*entry != PAGE_NONE) unref(p, *entry);
    *entry = id;
}

void pool_hold(struct pool *p, page_id id)
{
    assert(id < p->n_page && p->refs[id] > 0);
    p->refs[id]++;
    p->holds[id]++;
}

void pool_let(struct pool *p, page_id id)
{
    assert(id < p->n_page && p->holds[id] > 0);
    p->n_only_held -= pool_is_only_held(p, id);
    p->holds[id]--;
    unref(p, id);
}

bool pool_is_only_held(const struct pool *p, page_id id)
{
    return p->holds[id] > 0 && p->refs[id] == p->holds[id];
}

void pool_share(struct pool *p, struct pool_place dst, struct pool_place src, uint32_t n_page)
{
    assert(dst.seq_i != src.seq_i && (size_t)dst.page_i + n_page <= p->max_page &&
           (size_t)src.page_i + n_page <= p->max_page);
    page_id *to = pool_table(p, dst.seq_i, 0) + dst.page_i;
    const page_id *from = pool_table(p, src.seq_i, 0) + src.page_i;
    mirror_note(p, dst.seq_i, dst.page_i);
    for (size_t lane = 0; lane < n_lane(p); lane++)
        for (uint32_t i = 0; i < n_page; i++) {
            const page_id id = from[lane * p->max_page + i];
            assert(to[lane * p->max_page + i] == PAGE_NONE);
            if (id == PAGE_NONE) continue;
            to[lane * p->max_page + i] = id;
            ref(p, id);
        }
}

void pool_fork(struct pool *p, uint32_t dst, uint32_t src, uint32_t n_page)
{
    pool_share(p, (struct pool_place){dst, 0}, (struct pool_place){src, 0}, n_page);
    mirror_fork(p, dst, src, n_page);
    for (uint32_t i = 0; i < p->n_part; i++) {
        const struct pool_part *part = &p->part[i];
        const size_t bytes = (size_t)part->n_layer * p->geom.n_kv_head * p->geom.tail_bytes;
        if (bytes) mirror_copy(p, part->tails + dst * bytes, part->tails + src * bytes, bytes);
    }
}

/* The first tokens of the cut page become the tail, lane by lane. */
static sac_status cut_page(struct pool *p, uint32_t seq_i, uint32_t page_i, uint32_t n_tok,
                           sac_error *err)
{
    const page_id *id = pool_table(p, seq_i, 0) + page_i;
    for (size_t lane = 0; lane < n_lane(p); lane++, id += p->max_page) {
        const uint32_t n_head = p->geom.n_kv_head;
        uint8_t *tail = pool_tail(p, seq_i, (uint32_t)lane / n_head);
        const sac_status status = tier_acquire(p->tier, id, 1);
        if (status == SAC_OK)
            mirror_unseal(p, tail + lane % n_head * p->geom.tail_bytes, pool_page(p, *id), n_tok);
        if (tier_holds(status)) tier_release(p->tier, id, 1);
        if (status != SAC_OK) return tier_explain(p->tier, status, err);
    }
    return SAC_OK;
}

sac_status pool_truncate(struct pool *p, uint32_t seq_i, uint32_t n_old, uint32_t n_new,
                         sac_error *err)
{
    assert(n_new <= n_old);
    const uint32_t keep = n_new / PAGE_TOK, had = n_old / PAGE_TOK;
    if (keep == had) return SAC_OK; /* the cut is within the tail */
    assert(n_new % PAGE_TOK == 0 || pool_has(p, seq_i, keep));
    if (n_new % PAGE_TOK) TRY(cut_page(p, seq_i, keep, n_new % PAGE_TOK, err));
    pool_release(p, seq_i, keep, had - keep);
    return SAC_OK;
}

static bool lane_ends_at(const struct pool *p, const page_id *lane, uint32_t n_page)
{
    for (uint32_t i = n_page; i < p->max_page; i++)
        if (lane[i] != PAGE_NONE) return false;
    return true;
}

static uint64_t count_entries(const struct pool *p, page_id id)
{
    uint64_t n = 0;
    for (size_t i = 0; i < p->n_seq * n_lane(p) * p->max_page; i++) n += p->tables[i] == id;
    return n;
}

/* Every frame of a part is free or holds one page. */
static bool frames_are_apart(const struct pool *p, const struct pool_part *part)
{
    uint64_t sum = 0, all = 0, squares = 0, all_squares = 0;
    for (uint64_t i = 0; i < part->n_page; i++) {
        const bool is_used = p->refs[part->id0 + i] > 0;
        const uint64_t free = i < part->n_free ? p->free_frames[part->id0 + i] : 0;
        if (is_used && p->frame_of[part->id0 + i] >= part->n_page) return false;
        const uint64_t used = is_used ? p->frame_of[part->id0 + i] : 0;
        sum += free + used;
        squares += free * free + used * used;
        all += i;
        all_squares += i * i;
    }
    return sum == all && squares == all_squares;
}

static bool stack_is_sound(const struct pool *p, const struct pool_part *part)
{
    for (uint32_t i = 0; i < part->n_free; i++) {
        const page_id id = p->free_ids[part->id0 + i];
        if (id - part->id0 >= part->n_page || p->refs[id] != 0 || p->frame_of[id] != PAGE_NONE)
            return false;
    }
    return true;
}

bool pool_check(const struct pool *p, const uint32_t *n_tok)
{
    for (uint32_t s = 0; s < p->n_seq; s++)
        for (size_t lane = 0; lane < n_lane(p); lane++)
            if (!lane_ends_at(p, pool_table(p, s, 0) + lane * p->max_page, n_tok[s] / PAGE_TOK))
                return false;
    uint32_t n_unused = 0, n_free = 0, n_only_held = 0;
    for (page_id id = 0; id < p->n_page; id++) {
        if (count_entries(p, id) + p->holds[id] != p->refs[id]) return false;
        n_unused += p->refs[id] == 0;
        n_only_held += pool_is_only_held(p, id);
    }
    if (n_only_held != p->n_only_held) return false;
    for (uint32_t k = 0; k < p->n_part; k++) n_free += p->part[k].n_free;
    if (n_unused != p->n_free || p->n_free != n_free) return false;
    for (uint32_t k = 0; k < p->n_part; k++)
        if (!stack_is_sound(p, &p->part[k]) || (!p->tier && !frames_are_apart(p, &p->part[k])))
            return false; /* the tier's frames are checked by tier_check */
    return true;
}
