/* prefix.h: the index of sealed pages by content (docs/design.md, D13).
 *
 * A node is one page index of a text: the pages of all layers and KV heads that hold its PAGE_TOK
 * tokens, following the tokens of its parent. Its key is a digest of those tokens and of all before
 * them; whoever computes keys decides what else they depend on (a model, a tenant). A node holds
 * references of its own, so its pages outlive the sequences that made them, until room is needed:
 * then leaves are evicted, least recently used first. Keys only find: a hit is a node with the same
 * parent and the same tokens. One thread at a time; memory is planned, nothing is allocated. */
#ifndef SAC_KV_PREFIX_H
#define SAC_KV_PREFIX_H

#include "base/mem.h"
#include "base/sha256.h"
#include "kv/pool.h"

#define PREFIX_NONE UINT32_MAX /* no node; as a parent: the start of a text */

struct prefix_node {
    uint8_t key[SHA256_BYTES];
    uint32_t parent, n_child;
    uint32_t next;         /* next in the bucket, or in the free list */
    uint32_t older, newer; /* neighbours in the list of leaves */
    uint64_t used;         /* value of `tick` at the last use; 0: the node is free */
    bool wanted;           /* to be stored elsewhere before it is evicted */
    bool lost;             /* its pages could not be read: lookups skip it */
    bool reachable;        /* a lookup from the start of its text finds it */
};

struct prefix {
    struct pool *pool; /* borrowed */
    uint32_t n_node, n_bucket, n_lane;
    uint32_t n_used;
    struct prefix_node *node; /* [n_node] */
    int32_t *tok;             /* [n_node][PAGE_TOK] */
    page_id *page;            /* [n_node][n_lane] */
    uint32_t *bucket;         /* [n_bucket], a power of two */
    uint32_t free;            /* head of the free list */
    uint32_t oldest, newest;  /* ends of the list of leaves, ordered by last use */
    uint64_t tick, n_evicted;
    uint32_t n_wanted;
    /* Called just before a reachable node becomes unreachable; may be NULL. */
    void (*gone)(void *user, uint32_t node);
    void *user;
};

/* Allocates all memory from `a`, after that of the pool; if `on` is false, there is room for no
 * node. */
void prefix_init(struct prefix *x, struct pool *pool, bool on, struct arena *a);

/* The node of these PAGE_TOK tokens after `parent`, or PREFIX_NONE. */
uint32_t prefix_find(const struct prefix *x, uint32_t parent, const uint8_t *key,
                     const int32_t *tok);
/* A new node for a page of a sequence, present in all lanes. PREFIX_NONE: no room. */
uint32_t prefix_add(struct prefix *x, uint32_t parent, const uint8_t *key, const int32_t *tok,
                    struct pool_place from);
/* The sequence's entry refers to the node's page from now on. The entry is empty, or names a page
 * with the same bits, which is released. */
void prefix_take(struct prefix *x, uint32_t node, struct pool_place to);
/* The text that ends with this node could not be read: lookups no longer find any of its nodes.
 * Their pages are kept until room is needed. */
void prefix_lose(struct prefix *x, uint32_t node);
/* Whether the sequence's page is that of the node. */
bool prefix_is_at(const struct prefix *x, uint32_t node, struct pool_place at);
/* Evicts the least recently used leaf that has a page which nobody else holds. False: there is none
 * that was last used before `tick`. */
bool prefix_shrink(struct prefix *x, uint64_t tick);
/* Marks a text that ends with this node as wanted elsewhere, or not; eviction clears the mark. */
void prefix_want(struct prefix *x, uint32_t node, bool wanted);
/* The least recently used wanted node, which would be evicted first; or PREFIX_NONE. */
uint32_t prefix_next_wanted(const struct prefix *x);
/* The nodes from the start of a text to this one: `out` [n_max]; returns their number. */
uint32_t prefix_chain(const struct prefix *x, uint32_t node, uint32_t *out, uint32_t n_max);

#endif
