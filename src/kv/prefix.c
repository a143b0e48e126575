/* prefix.c: see the header.
 *
 * Invariants:
 *  1. A used node is in the bucket of its key and holds one reference of each of its pages. No page
 *     is in two nodes: there is a node for each page index of the pool, so there is always room.
 *  2. A node's parent is used: only leaves go, and a node counts its children. */
#include "kv/prefix.h"

#include <assert.h>
#include <string.h>

void prefix_init(struct prefix *x, struct pool *pool, bool on, struct arena *a)
{
    *x = (struct prefix){.pool = pool, .n_lane = pool_pages_per_index(pool), .n_bucket = 1};
    x->n_node = on ? pool->n_page / x->n_lane : 0;
    while (x->n_bucket < x->n_node) x->n_bucket *= 2;
    x->node = arena_take(a, x->n_node, sizeof *x->node);
    x->tok = arena_take(a, (size_t)x->n_node * PAGE_TOK, sizeof *x->tok);
    x->page = arena_take(a, (size_t)x->n_node * x->n_lane, sizeof *x->page);
    x->bucket = arena_take(a, x->n_bucket, sizeof *x->bucket);
    x->free = PREFIX_NONE;
    if (!a->base) return;
    for (uint32_t i = 0; i < x->n_bucket; i++) x->bucket[i] = PREFIX_NONE;
    for (uint32_t i = x->n_node; i-- > 0; x->free = i) x->node[i].next = x->free;
}

static uint32_t *bucket_of(const struct prefix *x, const uint8_t *key)
{
    uint32_t hash;
    memcpy(&hash, key, sizeof hash);
    return &x->bucket[hash & (x->n_bucket - 1)];
}

uint32_t prefix_find(const struct prefix *x, uint32_t parent, const uint8_t *key,
                     const int32_t *tok)
{
    uint32_t i = *bucket_of(x, key);
    while (i != PREFIX_NONE && memcmp(x->node[i].key, key, SHA256_BYTES) != 0) i = x->node[i].next;
    if (i == PREFIX_NONE || x->node[i].parent != parent) return PREFIX_NONE;
    const bool same = memcmp(x->tok + (size_t)i * PAGE_TOK, tok, PAGE_TOK * sizeof *tok) == 0;
    return same ? i : PREFIX_NONE;
}

uint32_t prefix_add(struct prefix *x, uint32_t parent, const uint8_t *key, const int32_t *tok,
                    struct pool_place from)
{
    const uint32_t i = x->free;
    if (i == PREFIX_NONE) return PREFIX_NONE;
    struct prefix_node *n = &x->node[i];
    uint32_t *bucket = bucket_of(x, key);
    x->free = n->next;
    *n = (struct prefix_node){.parent = parent, .next = *bucket, .used = ++x->tick};
    *bucket = i;
    memcpy(n->key, key, SHA256_BYTES);
    memcpy(x->tok + (size_t)i * PAGE_TOK, tok, PAGE_TOK * sizeof *tok);
    for (uint32_t lane = 0; lane < x->n_lane; lane++) {
        const page_id id = pool_entry(x->pool, from, lane);
        x->page[(size_t)i * x->n_lane + lane] = id;
        pool_hold(x->pool, id);
    }
    if (parent != PREFIX_NONE) x->node[parent].n_child++;
    x->n_used++;
    return i;
}

void prefix_take(struct prefix *x, uint32_t node, struct pool_place to)
{
    assert(x->node[node].used);
    x->node[node].used = ++x->tick;
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        pool_put(x->pool, to, lane, x->page[(size_t)node * x->n_lane + lane]);
}

static void remove_node(struct prefix *x, uint32_t i)
{
    struct prefix_node *n = &x->node[i];
    uint32_t *at = bucket_of(x, n->key);
    assert(n->used && n->n_child == 0);
    while (*at != i) at = &x->node[*at].next;
    *at = n->next;
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        pool_let(x->pool, x->page[(size_t)i * x->n_lane + lane]);
    if (n->parent != PREFIX_NONE) x->node[n->parent].n_child--;
    x->n_wanted -= n->wanted;
    *n = (struct prefix_node){.next = x->free};
    x->free = i;
    x->n_used--;
    x->n_evicted++;
}

static uint32_t idle_lanes(const struct prefix *x, uint32_t node)
{
    uint32_t n = 0;
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        n += pool_is_only_held(x->pool, x->page[(size_t)node * x->n_lane + lane]);
    return n;
}

bool prefix_shrink(struct prefix *x, uint64_t tick)
{
    uint32_t oldest = PREFIX_NONE;
    for (uint32_t i = 0; i < x->n_node; i++) {
        const struct prefix_node *n = &x->node[i];
        if (!n->used || n->used >= tick || n->n_child > 0) continue;
        if (oldest != PREFIX_NONE && n->used > x->node[oldest].used) continue;
        if (idle_lanes(x, i) > 0) oldest = i;
    }
    if (oldest == PREFIX_NONE) return false;
    remove_node(x, oldest);
    return true;
}

void prefix_want(struct prefix *x, uint32_t node, bool wanted)
{
    assert(x->node[node].used);
    x->n_wanted += wanted;
    x->n_wanted -= x->node[node].wanted;
    x->node[node].wanted = wanted;
}

uint32_t prefix_next_wanted(const struct prefix *x)
{
    uint32_t oldest = PREFIX_NONE;
    for (uint32_t i = 0; i < x->n_node && x->n_wanted; i++) {
        const struct prefix_node *n = &x->node[i];
        if (!n->wanted) continue;
        if (oldest == PREFIX_NONE || n->used < x->node[oldest].used) oldest = i;
    }
    return oldest;
}

uint32_t prefix_chain(const struct prefix *x, uint32_t node, uint32_t *out, uint32_t n_max)
{
    uint32_t n = 0;
    for (uint32_t i = node; i != PREFIX_NONE; i = x->node[i].parent) n++;
    assert(n <= n_max);
    (void)n_max;
    for (uint32_t i = node, at = n; i != PREFIX_NONE; i = x->node[i].parent) out[--at] = i;
    return n;
}

uint32_t prefix_idle_pages(const struct prefix *x)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < x->n_node; i++)
        if (x->node[i].used) n += idle_lanes(x, i);
    return n;
}
