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
    uint32_t next;         /* of the same bucket, or of the free ones */
    uint32_t older, newer; /* of the leaves, if it is one */
    uint64_t used;         /* by the clock of `tick`; 0: the node is free */
    bool wanted;           /* a text that ends here should be kept elsewhere, too */
    bool lost;             /* its pages could not be read: it is no longer found */
    bool reachable;        /* a search from the start of its text finds it */
};

struct prefix {
    struct pool *pool; /* borrowed */
    uint32_t n_node, n_bucket, n_lane;
    uint32_t n_used;
    struct prefix_node *node; /* [n_node] */
    int32_t *tok;             /* [n_node][PAGE_TOK] */
    page_id *page;            /* [n_node][n_lane] */
    uint32_t *bucket;         /* [n_bucket], a power of two */
    uint32_t free;            /* the first */
    uint32_t oldest, newest;  /* of the leaves, by last use */
    uint64_t tick, n_evicted;
    uint32_t n_wanted;
    /* Told of a reachable node just before it is so no longer; NULL: nobody is. */
    void (*gone)(void *user, uint32_t node);
    void *user;
};

/* Allocates all memory from `a`, after that of the pool; with `on` false there is no room for any
 * node. */
void prefix_init(struct prefix *x, struct pool *pool, bool on, struct arena *a);

/* The node of these PAGE_TOK tokens after `parent`, or PREFIX_NONE. */
uint32_t prefix_find(const struct prefix *x, uint32_t parent, const uint8_t *key,
                     const int32_t *tok);
/* A new node for a page of a sequence, present in all lanes. PREFIX_NONE: no room. */
uint32_t prefix_add(struct prefix *x, uint32_t parent, const uint8_t *key, const int32_t *tok,
                    struct pool_place from);
/* The sequence's page becomes that of the node: its entry is empty, or names a page with the same
 * bits, which is released. */
void prefix_take(struct prefix *x, uint32_t node, struct pool_place to);
/* A text that ends with this node could not be read: none of its nodes is found any more. Their
 * holders keep them until room is needed. */
void prefix_lose(struct prefix *x, uint32_t node);
/* Whether the sequence's page is that of the node. */
bool prefix_is_at(const struct prefix *x, uint32_t node, struct pool_place at);
/* Evicts the least recently used leaf among those with a page that nobody else holds. False: there
 * is none last used before `tick`. */
bool prefix_shrink(struct prefix *x, uint64_t tick);
/* A text that ends with this node is wanted elsewhere, or no longer; if it leaves the index first,
 * it is not. */
void prefix_want(struct prefix *x, uint32_t node, bool wanted);
/* The least recently used of the wanted ones, which would be evicted first; or PREFIX_NONE. */
uint32_t prefix_next_wanted(const struct prefix *x);
/* The nodes from the start of a text to this one: `out` [n_max]; returns their number. */
uint32_t prefix_chain(const struct prefix *x, uint32_t node, uint32_t *out, uint32_t n_max);

#endif
