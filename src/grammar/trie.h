/* trie.h: a vocabulary as a trie of bytes, so that tokens with a common prefix are processed
 * together. Built once per model, immutable, shared by automata and threads.
 *
 * Nodes are in pre-order, and each holds the index of the node after its own subtree: a walk is a
 * loop, and a rejected subtree is a jump. The root is not stored. */
#ifndef SAC_GRAMMAR_TRIE_H
#define SAC_GRAMMAR_TRIE_H

#include "base/status.h"

#define TRIE_TOKEN_BYTES_MAX 1024u /* longer tokens are never allowed */
#define TRIE_TOKEN_MAX       (1u << 21)

struct trie_token {
    const char *bytes; /* [n]: the token's text; for control tokens, the name */
    uint32_t n;
    bool control; /* never text; grammars refer to it by name */
    bool ends;    /* end-of-generation token, allowed where the grammar may end */
};

struct trie_node {
    uint32_t end;   /* first node after the subtree */
    uint32_t tok;   /* index of its first token in `order`; the next node's `tok` is the end */
    uint16_t depth; /* bytes from the root */
    uint8_t byte;
};

struct trie {
    struct trie_node *node; /* owned, [n_node + 1]; the last one ends the token lists */
    int32_t *order;         /* owned, [n_order]: tokens sorted by node */
    int32_t *ending;        /* owned, [n_ending]: end-of-generation tokens */
    char *bytes;            /* owned: bytes of all tokens, with marks */
    uint32_t *begin; /* owned, [n_tok + 1]: offset of a token's bytes; empty: never allowed */
    uint32_t n_node, n_order, n_ending, n_tok, depth_max;
};

sac_status trie_create(struct trie **out, const struct trie_token *tok, uint32_t n_tok,
                       sac_error *err);
/* Builds the trie of a model's vocabulary (sac_token_piece). */
sac_status trie_of_model(struct trie **out, const sac_model *model, sac_error *err);
void trie_free(struct trie *t);
bool trie_has_control(const struct trie *t, const char *name);
bool trie_ends(const struct trie *t, int32_t tok);

/* The bytes of a token in grammars, [*out_n]. */
const char *trie_bytes(const struct trie *t, int32_t tok, uint32_t *out_n);

#endif
