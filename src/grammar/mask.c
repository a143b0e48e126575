/* mask.c: the tokens that may follow, in two steps, each of which is cached.
 *
 * What a stack allows is mostly determined by its uppermost instructions; within any string of a
 * schema, for example, they are the same at every depth. A window of a stack, its uppermost nodes
 * above AUTOMATON_OPEN, is therefore walked through the trie of tokens once. Tokens that stay
 * within the window are allowed in all stacks with this window; subtrees that leave it are
 * recorded, to be walked from the nodes beneath. A window that too many tokens leave is extended by
 * one node. The mask of a state is the union over its stacks; a state with many stacks is walked as
 * a whole. */
#include "grammar/mask.h"

#include <string.h>

#define WINDOW_MAX   6u    /* nodes of a window; beyond this the whole stack is used */
#define LEAVING_MAX  2048u /* tokens that may leave a window */
#define TOGETHER_MIN 33u   /* from this number of stacks on, the config is walked as a whole */
#define SPARSE_MAX   512u  /* tokens of a window that are stored as a list */

#define LOCAL_LONGER 1u /* automaton_node.local: use a longer window */
#define LOCAL_FIRST  2u /* ... and from here on, an index into automaton.local */

static uint64_t *slot_of(const struct automaton *m, uint32_t slot)
{
    return m->mask + (size_t)slot * m->mask_words;
}

static uint32_t new_slot(struct automaton *m)
{
    if (m->n_mask == AUTOMATON_MASKS) {
        m->full = true;
        return AUTOMATON_UNKNOWN;
    }
    memset(slot_of(m, m->n_mask), 0, m->mask_words * sizeof *m->mask);
    return m->n_mask++;
}

static void allow(uint64_t *mask, int32_t tok)
{
    mask[tok / 64] |= (uint64_t)1 << tok % 64;
}

static void allow_node(const struct trie *t, uint32_t node, uint64_t *mask)
{
    for (uint32_t i = t->node[node].tok; i < t->node[node + 1].tok; i++) allow(mask, t->order[i]);
}

/* Records that subtree `node`, which ends in the window, may continue below it. */
static bool note_leaving(struct automaton *m, struct automaton_local *local, uint32_t node,
                         uint32_t *n_leaving)
{
    const struct trie_node *const n = &m->trie->node[node];
    for (uint32_t from = 1; from < n->depth; from++) {
        if (!automaton_holds(m, m->path[from], AUTOMATON_OPEN)) continue;
        *n_leaving += m->trie->node[n->end].tok - n->tok;
        if (*n_leaving > LEAVING_MAX) return true;
        if (m->n_dep == AUTOMATON_DEPS) {
            m->full = true;
            return false;
        }
        m->dep[m->n_dep++] = (struct automaton_dep){node, from};
        local->n_dep++;
    }
    return true;
}

/* Walks nodes [begin, end) of the trie, whose parent leads to `config`. With `local`, records what
 * leaves the window; if that is too much, the walk stops with local->slot AUTOMATON_UNKNOWN. */
static bool walk(struct automaton *m, uint32_t begin, uint32_t end, uint32_t config, uint64_t *mask,
                 struct automaton_local *local)
{
    const struct trie *const t = m->trie;
    uint32_t n_leaving = 0;
    if (begin == end) return true;
    m->path[t->node[begin].depth - 1] = config;
    for (uint32_t i = begin; i < end;) {
        const struct trie_node *const n = &t->node[i];
        const uint32_t next = automaton_next(m, m->path[n->depth - 1], n->byte);
        m->effort++;
        if (next == AUTOMATON_UNKNOWN) return false;
        if (next != AUTOMATON_DEAD) {
            m->path[n->depth] = next;
            allow_node(t, i++, mask);
            continue;
        }
        if (local && !note_leaving(m, local, i, &n_leaving)) return false;
        if (n_leaving > LEAVING_MAX) {
            local->slot = AUTOMATON_UNKNOWN;
            return true;
        }
        i = n->end;
    }
    return true;
}

/* ---- Windows ---- */

/* Converts the last slot, a mask with few tokens, to a list. */
static void make_sparse(struct automaton *m, struct automaton_local *local)
{
    const uint64_t *const mask = slot_of(m, local->slot);
    uint32_t n = 0;
    for (uint32_t w = 0; w < m->mask_words; w++) n += (uint32_t)__builtin_popcountll(mask[w]);
    if (n > SPARSE_MAX || AUTOMATON_TOKS - m->n_tok < n) return;
    local->first_tok = m->n_tok;
    for (uint32_t w = 0; w < m->mask_words; w++)
        for (uint64_t left = mask[w]; left; left &= left - 1)
            m->tok[m->n_tok++] = (int32_t)(w * 64 + (uint32_t)__builtin_ctzll(left));
    local->n_tok = n;
    local->slot = AUTOMATON_UNKNOWN;
    m->n_mask--;
}

/* Computes node[window].local; false: a limit was reached. */
static bool compute_window(struct automaton *m, uint32_t window)
{
    struct automaton_local local = {.first_dep = m->n_dep};
    if (m->n_local == AUTOMATON_LOCALS) {
        m->full = true;
        return false;
    }
    const uint32_t config = automaton_place(m, window);
    if (config == AUTOMATON_UNKNOWN) return false;
    const uint32_t slot = new_slot(m);
    if (slot == AUTOMATON_UNKNOWN) return false;
    local.slot = slot;
    const bool walked = walk(m, 0, m->trie->n_node, config, slot_of(m, slot), &local);
    if (!walked || local.slot == AUTOMATON_UNKNOWN) {
        m->n_mask--;
        m->n_dep = local.first_dep;
        if (walked) m->node[window].local = LOCAL_LONGER;
        return walked;
    }
    make_sparse(m, &local);
    m->local[m->n_local] = local;
    m->node[window].local = LOCAL_FIRST + m->n_local++;
    return true;
}

/* The top n nodes of a stack, placed on AUTOMATON_OPEN, or the stack itself if it is not larger.
 * The rest of the stack goes to `out_beneath`. */
static uint32_t window_of(struct automaton *m, uint32_t node, uint32_t n, uint32_t *out_beneath)
{
    uint32_t pc[WINDOW_MAX], k = 0, at = node;
    for (; k < n && at > AUTOMATON_END; k++, at = m->node[at].parent) pc[k] = m->node[at].pc;
    *out_beneath = at;
    if (at == AUTOMATON_END) return node;
    uint32_t window = AUTOMATON_OPEN;
    while (k-- > 0 && window != AUTOMATON_UNKNOWN) window = automaton_push(m, pc[k], window);
    return window;
}

/* Adds the tokens that leave the window, given what is below it. */
static bool add_leaving(struct automaton *m, const struct automaton_local *local, uint32_t beneath,
                        uint64_t *mask)
{
    const struct trie *const t = m->trie;
    if (local->n_dep == 0) return true;
    const uint32_t start = automaton_enter(m, m->node[beneath].pc, m->node[beneath].parent);
    if (start == AUTOMATON_UNKNOWN) return false;
    for (uint32_t i = 0; i < local->n_dep; i++) {
        const struct automaton_dep dep = m->dep[local->first_dep + i];
        const struct trie_node *const n = &t->node[dep.node];
        uint32_t n_bytes, config = start;
        const char *const bytes = trie_bytes(t, t->order[n->tok], &n_bytes);
        for (uint32_t k = dep.from; k < n->depth && config != AUTOMATON_DEAD; k++) {
            config = automaton_next(m, config, (uint8_t)bytes[k]);
            if (config == AUTOMATON_UNKNOWN) return false;
        }
        if (config == AUTOMATON_DEAD) continue;
        allow_node(t, dep.node, mask);
        if (!walk(m, dep.node + 1, n->end, config, mask, NULL)) return false;
    }
    return true;
}

static bool add_stack(struct automaton *m, uint32_t node, uint64_t *mask)
{
    uint32_t window = node, beneath = AUTOMATON_END;
    for (uint32_t n = 1; n <= WINDOW_MAX + 1; n++) {
        /* The whole stack is a window that no token leaves. */
        window = n <= WINDOW_MAX ? window_of(m, node, n, &beneath) : node;
        if (window == AUTOMATON_UNKNOWN) return false;
        if (m->node[window].local == 0 && !compute_window(m, window)) return false;
        if (m->node[window].local != LOCAL_LONGER) break;
    }
    const struct automaton_local *const local = &m->local[m->node[window].local - LOCAL_FIRST];
    for (uint32_t i = 0; i < local->n_tok; i++) allow(mask, m->tok[local->first_tok + i]);
    if (local->slot != AUTOMATON_UNKNOWN) {
        const uint64_t *const from = slot_of(m, local->slot);
        for (uint32_t w = 0; w < m->mask_words; w++) mask[w] |= from[w];
    }
    return add_leaving(m, local, beneath, mask);
}

static bool fill(struct automaton *m, uint32_t config, uint64_t *mask)
{
    const struct automaton_config c = m->config[config];
    if (automaton_holds(m, config, AUTOMATON_END))
        for (uint32_t i = 0; i < m->trie->n_ending; i++) allow(mask, m->trie->ending[i]);
    if (c.n >= TOGETHER_MIN) return walk(m, 0, m->trie->n_node, config, mask, NULL);
    for (uint32_t i = 0; i < c.n; i++) {
        const uint32_t node = m->list[c.first + i];
        if (node > AUTOMATON_END && !add_stack(m, node, mask)) return false;
    }
    return true;
}

const uint64_t *mask_of(struct automaton *m, uint32_t config)
{
    if (m->config[config].mask == AUTOMATON_UNKNOWN) {
        const uint32_t slot = new_slot(m);
        if (slot == AUTOMATON_UNKNOWN || !fill(m, config, slot_of(m, slot))) return NULL;
        m->config[config].mask = slot;
    }
    return slot_of(m, m->config[config].mask);
}
