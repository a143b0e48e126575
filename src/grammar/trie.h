/* trie.h: a vocabulary as a trie of bytes, so that tokens with a common prefix are processed
 * together. Built once per model, immutable, shared by machines and threads.
 *
 * Nodes are in pre-order, and each holds the index of the node after its own subtree: a walk is a
 * loop, and a rejected subtree is a jump. The root is not stored. */
#ifndef SAC_GRAMMAR_TRIE_H
#define SAC_GRAMMAR_TRIE_H

#include "base/status.h"

#define TRIE_TOKEN_BYTES_MAX 1024u /* longer tokens are never allowed by a grammar */
#define TRIE_TOKEN_MAX       (1u << 21)

struct trie_token {
    const char *bytes; /* [n] what it adds to a text; of a control token: its name */
    uint32_t n;
    bool control; /* never text; a grammar asks for it by name */
    bool ends;    /* ends a generation; allowed where the grammar may end */
};

struct trie_node {
    uint32_t end;   /* the first node behind the subtree */
    uint32_t tok;   /* the first of its tokens in `order`; the next node's `tok` ends them */
    uint16_t depth; /* bytes from the root, 1 for its children */
    uint8_t byte;
};

struct trie {
    struct trie_node *node; /* owned, [n_node + 1], the last one closes the lists of tokens */
    int32_t *order;         /* owned, [n_order]: tokens in the order of the nodes */
    int32_t *ending;        /* owned, [n_ending]: tokens that end a generation */
    char *bytes;            /* owned: bytes of all tokens that are spelt, with their marks */
    uint32_t *begin;        /* owned, [n_tok + 1]: where a token's are; none: it is never allowed */
    uint32_t n_node, n_order, n_ending, n_tok, depth_max;
};

sac_status trie_create(struct trie **out, const struct trie_token *tok, uint32_t n_tok,
                       sac_error *err);
/* The tokens of a model, as sac_token_piece tells them. */
sac_status trie_of_model(struct trie **out, const sac_model *model, sac_error *err);
void trie_free(struct trie *t);
bool trie_has_control(const struct trie *t, const char *name);
bool trie_ends(const struct trie *t, int32_t tok);

/* The bytes of a token as a grammar spells them, [*out_n]. */
const char *trie_bytes(const struct trie *t, int32_t tok, uint32_t *out_n);

#endif
