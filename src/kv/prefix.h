/* prefix.h: the index of sealed pages by content (docs/design.md, D13).
 *
 * A node is one page index of a text: the pages of all layers and KV heads that hold its PAGE_TOK
 * tokens, behind the tokens of its parent. Its key is a digest of those tokens and of all before
 * them; whoever computes keys decides what else they depend on (a model, a tenant). A node holds
 * references of its own, so its pages outlive the sequences that made them, until room is needed:
 * then leaves go, those used longest ago first. Keys only find: a hit is a node with the same
 * parent and the same tokens. One thread at a time; memory is planned, nothing is allocated. */
#ifndef SAC_KV_PREFIX_H
#define SAC_KV_PREFIX_H

#include "base/mem.h"
#include "base/sha256.h"
#include "kv/pool.h"

#define PREFIX_NONE UINT32_MAX /* no node; as a parent: a text's begin */

struct prefix_node {
    uint8_t key[SHA256_BYTES];
    uint32_t parent, n_child;
    uint32_t next;         /* of the same bucket, or of the free ones */
    uint32_t older, newer; /* of the leaves, if it is one */
    uint64_t used;         /* by the clock of `tick`; 0: the node is free */
    bool wanted;           /* a text ends here that is to be kept elsewhere, too */
    bool lost;             /* its pages could not be read: it is not found any more */
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
    uint32_t oldest, newest;  /* of the leaves, by when they were used */
    uint64_t tick, n_evicted;
    uint32_t n_wanted;
};

/* Takes all memory from `a`, behind that of the pool; with `on` false there is no room for any
 * node. */
void prefix_init(struct prefix *x, struct pool *pool, bool on, struct arena *a);

/* The node of these PAGE_TOK tokens behind `parent`, or PREFIX_NONE. */
uint32_t prefix_find(const struct prefix *x, uint32_t parent, const uint8_t *key,
                     const int32_t *tok);
/* A new node of a sequence's page, which is there in all lanes. PREFIX_NONE: no room. */
uint32_t prefix_add(struct prefix *x, uint32_t parent, const uint8_t *key, const int32_t *tok,
                    struct pool_place from);
/* The sequence's page becomes that of the node: an entry that is empty, or names a page with the
 * same bits, which is let go. */
void prefix_take(struct prefix *x, uint32_t node, struct pool_place to);
/* A text that ends with this node could not be read: none of its nodes is found any more. They stay
 * for who has them, until room is needed. */
void prefix_lose(struct prefix *x, uint32_t node);
/* Whether the sequence's page is that of the node. */
bool prefix_is_at(const struct prefix *x, uint32_t node, struct pool_place at);
/* Lets the leaf go that was used longest ago, of those with a page that nobody else holds. False:
 * there is none that was used before `tick`. */
bool prefix_shrink(struct prefix *x, uint64_t tick);
/* A text that ends with this node is wanted elsewhere, or is no more; one that leaves the index
 * before is not. */
void prefix_want(struct prefix *x, uint32_t node, bool wanted);
/* Of those that are wanted the one used longest ago, which would leave first; or PREFIX_NONE. */
uint32_t prefix_next_wanted(const struct prefix *x);
/* The nodes from a text's begin to this one: `out` [n_max], and how many. */
uint32_t prefix_chain(const struct prefix *x, uint32_t node, uint32_t *out, uint32_t n_max);

#endif
