/* prefix.c: see the header.
 *
 * Invariants:
 *  1. A used node is in the bucket of its key and holds one reference to each of its pages. No page
 *     is in two nodes. There is a node for each page index of the pool, so a free node can always
 *     be found.
 *  2. A node's parent is used: only leaves are evicted, and a node counts its children.
 *  3. Used leaves are in a list in order of their use: a full pool asks for the oldest one for each
 *     page of a prompt, and may have a hundred thousand.
 *  4. A text that was lost and computed again has nodes with the same keys; the new ones have
 *     another parent, or the old ones are marked as lost.
 *  5. A node can be found as long as the first node of its text can: a search does not go past a
 *     lost node, and a text is lost from its first node on. */
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
    x->free = x->oldest = x->newest = PREFIX_NONE;
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
    while (i != PREFIX_NONE && (x->node[i].lost || x->node[i].parent != parent ||
                                memcmp(x->node[i].key, key, SHA256_BYTES) != 0))
        i = x->node[i].next;
    if (i == PREFIX_NONE) return PREFIX_NONE;
    const bool same = memcmp(x->tok + (size_t)i * PAGE_TOK, tok, PAGE_TOK * sizeof *tok) == 0;
    return same ? i : PREFIX_NONE;
}

/* ---- Leaves ---- */

static uint32_t *newer_of(struct prefix *x, uint32_t i)
{
    return i == PREFIX_NONE ? &x->oldest : &x->node[i].newer;
}

static uint32_t *older_of(struct prefix *x, uint32_t i)
{
    return i == PREFIX_NONE ? &x->newest : &x->node[i].older;
}

static void unlink_leaf(struct prefix *x, uint32_t i)
{
    const struct prefix_node *n = &x->node[i];
    *newer_of(x, n->older) = n->newer;
    *older_of(x, n->newer) = n->older;
}

/* Links a leaf between two others; PREFIX_NONE: an end of the list. */
static void link_leaf(struct prefix *x, uint32_t i, uint32_t older, uint32_t newer)
{
    x->node[i].older = older;
    x->node[i].newer = newer;
    *newer_of(x, older) = *older_of(x, newer) = i;
}

/* Reinserts a node that has become a leaf, by its last use. Its place is near the oldest, because
 * its last child was one of them. */
static void return_leaf(struct prefix *x, uint32_t i)
{
    uint32_t newer = x->oldest;
    while (newer != PREFIX_NONE && x->node[newer].used < x->node[i].used)
        newer = x->node[newer].newer;
    link_leaf(x, i, *older_of(x, newer), newer);
}

/* ---- Nodes ---- */

uint32_t prefix_add(struct prefix *x, uint32_t parent, const uint8_t *key, const int32_t *tok,
                    struct pool_place from)
{
    const uint32_t i = x->free;
    if (i == PREFIX_NONE) return PREFIX_NONE;
    struct prefix_node *n = &x->node[i];
    uint32_t *bucket = bucket_of(x, key);
    x->free = n->next;
    *n = (struct prefix_node){.parent = parent, .next = *bucket, .used = ++x->tick};
    n->reachable = parent == PREFIX_NONE || x->node[parent].reachable;
    *bucket = i;
    memcpy(n->key, key, SHA256_BYTES);
    memcpy(x->tok + (size_t)i * PAGE_TOK, tok, PAGE_TOK * sizeof *tok);
    for (uint32_t lane = 0; lane < x->n_lane; lane++) {
        const page_id id = pool_entry(x->pool, from, lane);
        x->page[(size_t)i * x->n_lane + lane] = id;
        pool_hold(x->pool, id);
    }
    if (parent != PREFIX_NONE && x->node[parent].n_child++ == 0) unlink_leaf(x, parent);
    link_leaf(x, i, x->newest, PREFIX_NONE);
    x->n_used++;
    return i;
}

void prefix_take(struct prefix *x, uint32_t node, struct pool_place to)
{
    assert(x->node[node].used);
    x->node[node].used = ++x->tick;
    if (x->node[node].n_child == 0) {
        unlink_leaf(x, node);
        link_leaf(x, node, x->newest, PREFIX_NONE);
    }
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        pool_put(x->pool, to, lane, x->page[(size_t)node * x->n_lane + lane]);
}

static void take_from_reach(struct prefix *x, uint32_t i)
{
    if (x->node[i].reachable && x->gone) x->gone(x->user, i);
    x->node[i].reachable = false;
}

static uint32_t first_of(const struct prefix *x, uint32_t i)
{
    while (x->node[i].parent != PREFIX_NONE) i = x->node[i].parent;
    return i;
}

void prefix_lose(struct prefix *x, uint32_t node)
{
    for (uint32_t i = node; i != PREFIX_NONE; i = x->node[i].parent) {
        prefix_want(x, i, false);
        x->node[i].lost = true;
    }
    const uint32_t first = node == PREFIX_NONE ? PREFIX_NONE : first_of(x, node);
    if (first == PREFIX_NONE || !x->node[first].reachable) return;
    for (uint32_t i = 0; i < x->n_node; i++)
        if (x->node[i].reachable && first_of(x, i) == first) take_from_reach(x, i);
}

bool prefix_is_at(const struct prefix *x, uint32_t node, struct pool_place at)
{
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        if (pool_entry(x->pool, at, lane) != x->page[(size_t)node * x->n_lane + lane]) return false;
    return true;
}

static void remove_node(struct prefix *x, uint32_t i)
{
    struct prefix_node *n = &x->node[i];
    uint32_t *at = bucket_of(x, n->key);
    assert(n->used && n->n_child == 0);
    take_from_reach(x, i);
    while (*at != i) at = &x->node[*at].next;
    *at = n->next;
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        pool_let(x->pool, x->page[(size_t)i * x->n_lane + lane]);
    unlink_leaf(x, i);
    if (n->parent != PREFIX_NONE && --x->node[n->parent].n_child == 0) return_leaf(x, n->parent);
    x->n_wanted -= n->wanted;
    *n = (struct prefix_node){.next = x->free};
    x->free = i;
    x->n_used--;
    x->n_evicted++;
}

static bool has_idle_page(const struct prefix *x, uint32_t node)
{
    const page_id *page = x->page + (size_t)node * x->n_lane;
    for (uint32_t lane = 0; lane < x->n_lane; lane++)
        if (pool_is_only_held(x->pool, page[lane])) return true;
    return false;
}

bool prefix_shrink(struct prefix *x, uint64_t tick)
{
    for (uint32_t i = x->oldest; i != PREFIX_NONE; i = x->node[i].newer) {
        if (x->node[i].used >= tick) return false;
        if (!has_idle_page(x, i)) continue;
        remove_node(x, i);
        return true;
    }
    return false;
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
