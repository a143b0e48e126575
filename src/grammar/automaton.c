/* automaton.c: see the header.
 *
 * Invariants:
 *  1. A node's parent has a smaller index than the node, and the nodes of a config are ascending,
 *     so tables are compacted in place in one walk from their beginnings.
 *  2. Nodes of configs are at instructions that read a byte, or are AUTOMATON_OPEN or
 * AUTOMATON_END.
 *  3. A call that fails leaves valid tables: what was added is complete. */
#include "grammar/automaton.h"

#include "base/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NODE_ROOM   (1u << 16)
#define NODE_HASH   (2 * NODE_ROOM)
#define CONFIG_ROOM (1u << 14) /* fewer if rows of transitions are long */
#define CONFIG_HASH (2 * CONFIG_ROOM)
#define TRANS_ROOM  (1u << 20) /* entries of all rows together */
#define LIST_ROOM   (1u << 18)
#define CLOSURE_MAX 8192u /* pairs in one closure */
#define SEEN_HASH   (2 * CLOSURE_MAX)

static uint32_t hash_pair(uint32_t a, uint32_t b)
{
    const uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

/* ---- Nodes ---- */

static void insert_node(struct automaton *m, uint32_t node)
{
    uint32_t i = hash_pair(m->node[node].pc, m->node[node].parent) & (NODE_HASH - 1);
    while (m->node_hash[i] != AUTOMATON_UNKNOWN) i = (i + 1) & (NODE_HASH - 1);
    m->node_hash[i] = node;
}

uint32_t automaton_push(struct automaton *m, uint32_t pc, uint32_t parent)
{
    uint32_t i = hash_pair(pc, parent) & (NODE_HASH - 1);
    for (; m->node_hash[i] != AUTOMATON_UNKNOWN; i = (i + 1) & (NODE_HASH - 1)) {
        const struct automaton_node *const held = &m->node[m->node_hash[i]];
        if (held->pc == pc && held->parent == parent) return m->node_hash[i];
    }
    if (m->n_node == NODE_ROOM) {
        m->full = true;
        return AUTOMATON_UNKNOWN;
    }
    m->node[m->n_node] = (struct automaton_node){pc, parent, m->node[parent].depth + 1, 0};
    m->node_hash[i] = m->n_node;
    return m->n_node++;
}

/* ---- Configs ---- */

static uint32_t hash_nodes(const uint32_t *node, uint32_t n)
{
    uint64_t h = n;
    for (uint32_t i = 0; i < n; i++) h = (h ^ node[i]) * 0x9e3779b97f4a7c15u + (h >> 29);
    return (uint32_t)(h >> 32) ^ (uint32_t)h;
}

static void insert_config(struct automaton *m, uint32_t config)
{
    const struct automaton_config *const c = &m->config[config];
    uint32_t i = hash_nodes(m->list + c->first, c->n) & (CONFIG_HASH - 1);
    while (m->config_hash[i] != AUTOMATON_UNKNOWN) i = (i + 1) & (CONFIG_HASH - 1);
    m->config_hash[i] = config;
}

static uint32_t *row(const struct automaton *m, uint32_t config)
{
    return m->trans + (size_t)config * m->program->n_class;
}

static uint32_t add_config(struct automaton *m, const uint32_t *node, uint32_t n)
{
    if (m->n_config == m->config_room || LIST_ROOM - m->n_list < n) {
        m->full = true;
        return AUTOMATON_UNKNOWN;
    }
    const uint32_t config = m->n_config++;
    m->config[config] = (struct automaton_config){m->n_list, n, AUTOMATON_UNKNOWN};
    if (n > 0) memcpy(m->list + m->n_list, node, n * sizeof *node);
    m->n_list += n;
    memset(row(m, config), 0xff, m->program->n_class * sizeof *m->trans); /* AUTOMATON_UNKNOWN */
    insert_config(m, config);
    return config;
}

static int compare_nodes(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The config of the nodes in `found`, which may be unsorted and repeated. */
static uint32_t config_of_found(struct automaton *m)
{
    uint32_t *const node = m->found, n = 0;
    qsort(node, m->n_found, sizeof *node, compare_nodes);
    for (uint32_t i = 0; i < m->n_found; i++)
        if (n == 0 || node[n - 1] != node[i]) node[n++] = node[i];
    if (n == 0) return AUTOMATON_DEAD;
    if (n > AUTOMATON_STACKS_MAX) {
        m->wide = true;
        return AUTOMATON_UNKNOWN;
    }
    uint32_t i = hash_nodes(node, n) & (CONFIG_HASH - 1);
    for (; m->config_hash[i] != AUTOMATON_UNKNOWN; i = (i + 1) & (CONFIG_HASH - 1)) {
        const struct automaton_config *const held = &m->config[m->config_hash[i]];
        if (held->n == n && memcmp(m->list + held->first, node, n * sizeof *node) == 0)
            return m->config_hash[i];
    }
    return add_config(m, node, n);
}

/* ---- Closures: the stacks that are reachable without reading a byte ---- */

static void begin_closure(struct automaton *m)
{
    m->n_work = m->n_found = 0;
    m->epoch++;
    assert(m->epoch != 0);
}

/* Adds a pair to the closure unless it is in it. */
static void add_pair(struct automaton *m, uint32_t pc, uint32_t parent)
{
    uint32_t i = hash_pair(pc, parent) & (SEEN_HASH - 1);
    for (; m->seen[i].epoch == m->epoch; i = (i + 1) & (SEEN_HASH - 1))
        if (m->seen[i].pc == pc && m->seen[i].parent == parent) return;
    if (m->n_work == CLOSURE_MAX) {
        m->wide = true;
        return;
    }
    m->seen[i] = m->work[m->n_work++] = (struct automaton_seen){pc, parent, m->epoch};
}

static void follow(struct automaton *m, uint32_t pc, uint32_t parent)
{
    const struct program_code *const c = &m->program->code[pc];
    uint32_t node = parent;
    switch (c->op) {
    case PROGRAM_SET:
        node = automaton_push(m, pc, parent);
        m->found[m->n_found++] = node;
        break;
    case PROGRAM_JUMP: add_pair(m, c->a, parent); break;
    case PROGRAM_SPLIT:
        add_pair(m, c->a, parent);
        add_pair(m, c->b, parent);
        break;
    case PROGRAM_CALL:
        if (m->node[parent].depth >= AUTOMATON_DEPTH_MAX) break;
        node = automaton_push(m, c->b, parent);
        if (!m->full) add_pair(m, m->program->rule[c->a].entry, node);
        break;
    default:
        assert(c->op == PROGRAM_RETURN);
        if (parent <= AUTOMATON_END)
            m->found[m->n_found++] = parent;
        else
            add_pair(m, m->node[parent].pc, m->node[parent].parent);
    }
}

/* Follows all pairs added; they stay in `work`, which is a queue. */
static uint32_t end_closure(struct automaton *m)
{
    for (uint32_t i = 0; i < m->n_work && !m->full && !m->wide; i++)
        follow(m, m->work[i].pc, m->work[i].parent);
    m->effort += m->n_work;
    if (m->effort > AUTOMATON_EFFORT_MAX) m->wide = true;
    if (m->full || m->wide) return AUTOMATON_UNKNOWN;
    return config_of_found(m);
}

uint32_t automaton_enter(struct automaton *m, uint32_t pc, uint32_t parent)
{
    begin_closure(m);
    add_pair(m, pc, parent);
    return end_closure(m);
}

uint32_t automaton_place(struct automaton *m, uint32_t node)
{
    begin_closure(m);
    m->found[m->n_found++] = node;
    return end_closure(m);
}

uint32_t automaton_step(struct automaton *m, uint32_t config, uint32_t byte_class)
{
    const struct automaton_config c = m->config[config];
    const struct program *const p = m->program;
    const uint8_t byte = m->byte_of[byte_class];
    begin_closure(m);
    for (uint32_t i = 0; i < c.n; i++) {
        const struct automaton_node node = m->node[m->list[c.first + i]];
        if (m->list[c.first + i] <= AUTOMATON_END) continue;
        const struct program_code *const set = &p->code[node.pc];
        for (uint32_t e = set->a; e < set->a + set->b; e++) {
            if (byte < p->edge[e].lo || byte > p->edge[e].hi) continue;
            add_pair(m, p->edge[e].next, node.parent);
            break;
        }
    }
    const uint32_t next = end_closure(m);
    if (next != AUTOMATON_UNKNOWN) row(m, config)[byte_class] = next;
    return next;
}

/* ---- Compaction ---- */

static void clear_tables(struct automaton *m)
{
    memset(m->node_hash, 0xff, NODE_HASH * sizeof *m->node_hash);
    memset(m->config_hash, 0xff, CONFIG_HASH * sizeof *m->config_hash);
    m->n_mask = m->n_local = m->n_tok = m->n_dep = 0;
}

/* The nodes and the dead config that always exist. */
static void add_fixed(struct automaton *m)
{
    clear_tables(m);
    m->node[AUTOMATON_OPEN] = (struct automaton_node){PROGRAM_NONE, AUTOMATON_OPEN, 0, 0};
    m->node[AUTOMATON_END] = (struct automaton_node){PROGRAM_NONE, AUTOMATON_END, 0, 0};
    m->n_node = 2;
    m->n_config = m->n_list = 0;
    add_config(m, NULL, 0);
    memset(row(m, AUTOMATON_DEAD), 0, m->program->n_class * sizeof *m->trans);
}

/* Marks what living matchers refer to: moved[i] becomes 1 for what is kept. */
static void mark_living(struct automaton *m, uint32_t *node_moved, uint32_t *config_moved)
{
    memset(m->moved, 0, (NODE_ROOM + CONFIG_ROOM) * sizeof *m->moved);
    node_moved[AUTOMATON_OPEN] = node_moved[AUTOMATON_END] = config_moved[AUTOMATON_DEAD] = 1;
    for (const struct matcher *t = m->matchers; t; t = t->next) {
        const struct automaton_config *const c = &m->config[t->config];
        config_moved[t->config] = 1;
        for (uint32_t i = 0; i < c->n; i++)
            for (uint32_t n = m->list[c->first + i]; !node_moved[n]; n = m->node[n].parent)
                node_moved[n] = 1;
    }
}

/* Moves marked nodes to the front; moved[i] becomes the new index. */
static void pack_nodes(struct automaton *m, uint32_t *moved)
{
    uint32_t n = AUTOMATON_END + 1;
    moved[AUTOMATON_OPEN] = AUTOMATON_OPEN;
    moved[AUTOMATON_END] = AUTOMATON_END;
    for (uint32_t i = n; i < m->n_node; i++) {
        if (!moved[i]) continue;
        const struct automaton_node was = m->node[i];
        moved[i] = n;
        m->node[n] = (struct automaton_node){was.pc, moved[was.parent], was.depth, 0};
        insert_node(m, n++);
    }
    m->n_node = n;
}

static void pack_configs(struct automaton *m, const uint32_t *node_moved, uint32_t *moved)
{
    uint32_t n = 0, n_list = 0;
    for (uint32_t i = 0; i < m->n_config; i++) {
        if (!moved[i]) continue;
        const struct automaton_config was = m->config[i];
        for (uint32_t k = 0; k < was.n; k++)
            m->list[n_list + k] = node_moved[m->list[was.first + k]];
        m->config[n] = (struct automaton_config){n_list, was.n, AUTOMATON_UNKNOWN};
        n_list += was.n;
        memset(row(m, n), i == AUTOMATON_DEAD ? 0 : 0xff, m->program->n_class * sizeof *m->trans);
        moved[i] = n;
        insert_config(m, n++);
    }
    m->n_config = n;
    m->n_list = n_list;
}

void automaton_forget(struct automaton *m)
{
    uint32_t *const node_moved = m->moved, *const config_moved = m->moved + NODE_ROOM;
    mark_living(m, node_moved, config_moved);
    clear_tables(m);
    pack_nodes(m, node_moved);
    pack_configs(m, node_moved, config_moved);
    for (struct matcher *t = m->matchers; t; t = t->next) t->config = config_moved[t->config];
    m->full = false;
    m->n_forgotten++;
}

sac_status automaton_refuse(const struct automaton *m, sac_error *err)
{
    if (m->full)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the grammar's tables are full: its texts nest too deeply or can be read "
                         "in too many ways");
    return error_set(err, SAC_ERR_CONTEXT,
                     "the grammar is too ambiguous: a text may be read in %u ways at once, and a "
                     "token may take %u steps",
                     AUTOMATON_STACKS_MAX, AUTOMATON_EFFORT_MAX);
}

/* ---- Creation and destruction ---- */

static bool take_memory(struct automaton *m)
{
    const uint32_t n_class = m->program->n_class;
    m->config_room = TRANS_ROOM / n_class < CONFIG_ROOM ? TRANS_ROOM / n_class : CONFIG_ROOM;
    m->mask_words = (m->trie->n_tok + 63) / 64;
    m->node = mem_alloc(NODE_ROOM * sizeof *m->node);
    m->config = mem_alloc(m->config_room * sizeof *m->config);
    m->node_hash = mem_alloc(NODE_HASH * sizeof *m->node_hash);
    m->config_hash = mem_alloc(CONFIG_HASH * sizeof *m->config_hash);
    m->list = mem_alloc(LIST_ROOM * sizeof *m->list);
    m->trans = mem_alloc((size_t)m->config_room * n_class * sizeof *m->trans);
    m->moved = mem_alloc((NODE_ROOM + CONFIG_ROOM) * sizeof *m->moved);
    m->seen = mem_calloc(SEEN_HASH, sizeof *m->seen);
    m->work = mem_alloc(CLOSURE_MAX * sizeof *m->work);
    m->found = mem_alloc((CLOSURE_MAX + 1) * sizeof *m->found);
    m->mask = mem_alloc((size_t)AUTOMATON_MASKS * m->mask_words * sizeof *m->mask);
    m->local = mem_alloc(AUTOMATON_LOCALS * sizeof *m->local);
    m->tok = mem_alloc(AUTOMATON_TOKS * sizeof *m->tok);
    m->dep = mem_alloc(AUTOMATON_DEPS * sizeof *m->dep);
    m->path = mem_alloc(((size_t)m->trie->depth_max + 1) * sizeof *m->path);
    return m->node && m->config && m->node_hash && m->config_hash && m->list && m->trans &&
           m->moved && m->seen && m->work && m->found && m->mask && m->local && m->tok && m->dep &&
           m->path;
}

static sac_status check_control(const struct automaton *m, sac_error *err)
{
    for (uint32_t i = 0; i < m->program->n_control; i++)
        if (!trie_has_control(m->trie, m->program->control[i]))
            return error_set(err, SAC_ERR_NOT_FOUND,
                             "grammar: the model has no control token '%.64s' that may stand "
                             "within an answer; one that ends it is not named",
                             m->program->control[i]);
    return SAC_OK;
}

sac_status automaton_create(struct automaton **out, struct program *program,
                            const struct trie *trie, sac_error *err)
{
    struct automaton *const m = mem_calloc(1, sizeof *m);
    sac_status status = SAC_ERR_MEMORY;
    if (!m) {
        program_free(program);
        return error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    }
    m->program = program;
    m->trie = trie;
    TRY_FAIL(check_control(m, err));
    if (!take_memory(m)) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
        goto fail;
    }
    for (uint32_t b = 256; b-- > 0;) m->byte_of[program->byte_class[b]] = (uint8_t)b;
    add_fixed(m);
    *out = m;
    return SAC_OK;
fail:
    automaton_free(m);
    return status;
}

void automaton_free(struct automaton *m)
{
    if (!m) return;
    assert(!m->matchers);
    program_free(m->program);
    mem_free(m->node);
    mem_free(m->config);
    mem_free(m->node_hash);
    mem_free(m->config_hash);
    mem_free(m->list);
    mem_free(m->trans);
    mem_free(m->moved);
    mem_free(m->seen);
    mem_free(m->work);
    mem_free(m->found);
    mem_free(m->mask);
    mem_free(m->local);
    mem_free(m->tok);
    mem_free(m->dep);
    mem_free(m->path);
    mem_free(m);
}
