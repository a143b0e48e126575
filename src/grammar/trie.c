/* trie.c: see the header. Tokens are sorted by their bytes; a node begins wherever a token
 * continues after its common prefix with the previous one. */
#include "grammar/trie.h"

#include "base/mem.h"
#include "grammar/program.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* A token to sort. */
struct item {
    const char *bytes;
    uint32_t n;
    int32_t tok;
};

static int compare_items(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order != 0) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->tok < y->tok ? -1 : x->tok > y->tok;
}

static bool is_spelt(const struct trie_token *t)
{
    return !t->ends && t->n > 0 && t->n <= TRIE_TOKEN_BYTES_MAX;
}

/* Concatenates the bytes of all tokens; control tokens are enclosed in marks. */
static bool copy_bytes(struct trie *t, const struct trie_token *tok)
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->n_tok; i++) n += tok[i].n + 2u;
    t->bytes = mem_alloc(n);
    t->begin = mem_alloc(((size_t)t->n_tok + 1) * sizeof *t->begin);
    t->ending = mem_alloc(t->n_tok * sizeof *t->ending);
    if (!t->bytes || !t->begin || !t->ending) return false;
    n = 0;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        t->begin[i] = (uint32_t)n;
        if (tok[i].ends) t->ending[t->n_ending++] = (int32_t)i;
        if (!is_spelt(&tok[i])) continue;
        t->n_order++;
        if (tok[i].control) t->bytes[n++] = (char)PROGRAM_MARK;
        memcpy(t->bytes + n, tok[i].bytes, tok[i].n);
        n += tok[i].n;
        if (tok[i].control) t->bytes[n++] = (char)PROGRAM_MARK;
    }
    t->begin[t->n_tok] = (uint32_t)n;
    return true;
}

static uint32_t shared_bytes(const struct item *a, const struct item *b)
{
    uint32_t n = 0;
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Ends the subtrees deeper than `depth` on the path. */
static void close_nodes(struct trie *t, const uint32_t *path, uint32_t *n_path, uint32_t depth)
{
    while (*n_path > depth) t->node[path[--*n_path]].end = t->n_node;
}

static void make_nodes(struct trie *t, const struct item *item)
{
    uint32_t path[TRIE_TOKEN_BYTES_MAX + 2], n_path = 0;
    for (uint32_t i = 0; i < t->n_order; i++) {
        const uint32_t shared = i > 0 ? shared_bytes(&item[i - 1], &item[i]) : 0;
        close_nodes(t, path, &n_path, shared);
        for (uint32_t d = shared; d < item[i].n; d++) {
            path[n_path++] = t->n_node;
            t->node[t->n_node++] = (struct trie_node){
                .tok = i, .depth = (uint16_t)(d + 1), .byte = (uint8_t)item[i].bytes[d]};
        }
        if (item[i].n > t->depth_max) t->depth_max = item[i].n;
        t->order[i] = item[i].tok;
    }
    close_nodes(t, path, &n_path, 0);
    t->node[t->n_node] = (struct trie_node){.end = t->n_node + 1, .tok = t->n_order};
}

/* A token belongs to the node where it ends. Nodes on the way there start their lists at the same
 * position as the next node, so their lists are empty. */
static bool build(struct trie *t)
{
    struct item *const item = mem_alloc(t->n_order * sizeof *item);
    size_t n_node = 0;
    uint32_t n = 0;
    if (!item) return false;
    for (uint32_t i = 0; i < t->n_tok; i++) {
        const uint32_t bytes = t->begin[i + 1] - t->begin[i];
        if (bytes > 0) item[n++] = (struct item){t->bytes + t->begin[i], bytes, (int32_t)i};
    }
    assert(n == t->n_order);
    qsort(item, n, sizeof *item, compare_items);
    for (uint32_t i = 0; i < n; i++)
        n_node += item[i].n - (i > 0 ? shared_bytes(&item[i - 1], &item[i]) : 0);
    t->node = mem_alloc((n_node + 1) * sizeof *t->node);
    t->order = mem_alloc(n * sizeof *t->order);
    if (t->node && t->order) make_nodes(t, item);
    mem_free(item);
    return t->node && t->order;
}

sac_status trie_create(struct trie **out, const struct trie_token *tok, uint32_t n_tok,
                       sac_error *err)
{
    if (n_tok == 0 || n_tok > TRIE_TOKEN_MAX)
        return error_set(err, SAC_ERR_ARG, "a vocabulary of %u tokens; 1 to %u are possible", n_tok,
                         TRIE_TOKEN_MAX);
    struct trie *const t = mem_calloc(1, sizeof *t);
    if (t) t->n_tok = n_tok;
    if (!t || !copy_bytes(t, tok) || !build(t)) {
        trie_free(t);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for the tokens of a grammar");
    }
    *out = t;
    return SAC_OK;
}

sac_status trie_of_model(struct trie **out, const sac_model *model, sac_error *err)
{
    const uint32_t n = sac_model_get_info(model).n_vocab;
    struct trie_token *const tok = mem_calloc(n, sizeof *tok);
    if (!tok) return error_set(err, SAC_ERR_MEMORY, "out of memory for the tokens of a grammar");
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes, plain;
        const char *const piece = sac_token_piece(model, (int32_t)i, true, &bytes);
        (void)sac_token_piece(model, (int32_t)i, false, &plain);
        tok[i] = (struct trie_token){.bytes = piece,
                                     .n = (uint32_t)bytes,
                                     .control = plain == 0 && bytes > 0,
                                     .ends = sac_token_is_eog(model, (int32_t)i)};
    }
    const sac_status status = trie_create(out, tok, n, err);
    mem_free(tok);
    return status;
}

void trie_free(struct trie *t)
{
    if (!t) return;
    mem_free(t->node);
    mem_free(t->order);
    mem_free(t->ending);
    mem_free(t->bytes);
    mem_free(t->begin);
    mem_free(t);
}

const char *trie_bytes(const struct trie *t, int32_t tok, uint32_t *out_n)
{
    assert(tok >= 0 && (uint32_t)tok < t->n_tok);
    *out_n = t->begin[tok + 1] - t->begin[tok];
    return t->bytes + t->begin[tok];
}

bool trie_has_control(const struct trie *t, const char *name)
{
    const size_t n = strlen(name);
    for (uint32_t i = 0; i < t->n_tok; i++) {
        uint32_t bytes;
        const char *const at = trie_bytes(t, (int32_t)i, &bytes);
        if (bytes == n + 2 && (uint8_t)at[0] == PROGRAM_MARK && memcmp(at + 1, name, n) == 0)
            return true;
    }
    return false;
}

bool trie_ends(const struct trie *t, int32_t tok)
{
    for (uint32_t i = 0; i < t->n_ending; i++)
        if (t->ending[i] == tok) return true;
    return false;
}
