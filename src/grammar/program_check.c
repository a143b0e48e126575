/* program_check.c: two walks over a program, neither with recursion in C.
 *
 * Costs: the fewest bytes from an instruction to the return of its rule, by Knuth's generalisation
 * of Dijkstra's algorithm ("A generalization of Dijkstra's algorithm", 1977): instructions become
 * final in the order of their costs, and the users of each are visited once. An instruction that
 * never becomes final cannot end. A cost of 0 means that the path can be empty.
 *
 * Left recursion: rule r leads to rule s if s can be called before r has consumed a byte; a cycle
 * of such rules would call itself forever. */
#include "grammar/program_check.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

/* ---- Costs ---- */

struct use {
    uint32_t next, user; /* linked list of instructions whose cost depends on this one */
};

struct costs {
    struct program *p;
    uint32_t *first_use; /* owned, [n_code] */
    struct use *use;     /* owned, [n_use] */
    uint32_t *heap;      /* owned: heap of instructions, the cheapest first */
    bool *is_final;      /* owned, [n_code] */
    uint32_t n_use, n_heap;
};

static void add_use(struct costs *c, uint32_t pc, uint32_t user)
{
    c->use[c->n_use] = (struct use){c->first_use[pc], user};
    c->first_use[pc] = c->n_use++;
}

static void note_uses(struct costs *c)
{
    const struct program *const p = c->p;
    for (uint32_t pc = 0; pc < p->n_code; pc++) {
        const struct program_code *const i = &p->code[pc];
        c->first_use[pc] = PROGRAM_NONE;
        c->p->cost[pc] = PROGRAM_NONE;
        assert(i->op <= PROGRAM_CALL);
    }
    for (uint32_t pc = 0; pc < p->n_code; pc++) {
        const struct program_code *const i = &p->code[pc];
        if (i->op == PROGRAM_JUMP || i->op == PROGRAM_SPLIT) add_use(c, i->a, pc);
        if (i->op == PROGRAM_SPLIT || i->op == PROGRAM_CALL) add_use(c, i->b, pc);
        if (i->op == PROGRAM_CALL) add_use(c, p->rule[i->a].entry, pc);
        for (uint32_t e = 0; i->op == PROGRAM_SET && e < i->b; e++)
            add_use(c, p->edge[i->a + e].next, pc);
    }
}

static void heap_push(struct costs *c, uint32_t pc)
{
    const uint32_t *const cost = c->p->cost;
    uint32_t i = c->n_heap++;
    for (; i > 0 && cost[c->heap[(i - 1) / 2]] > cost[pc]; i = (i - 1) / 2)
        c->heap[i] = c->heap[(i - 1) / 2];
    c->heap[i] = pc;
}

static uint32_t heap_pop(struct costs *c)
{
    const uint32_t *const cost = c->p->cost;
    const uint32_t top = c->heap[0], moving = c->heap[--c->n_heap];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < c->n_heap; i = child) {
        if (child + 1 < c->n_heap && cost[c->heap[child + 1]] < cost[c->heap[child]]) child++;
        if (cost[c->heap[child]] >= cost[moving]) break;
        c->heap[i] = c->heap[child];
    }
    c->heap[i] = moving;
    return top;
}

/* The cost of `user` now that `pc` is final; PROGRAM_NONE: not known yet. The first known
 * alternative is the cheapest, because costs become final in ascending order. */
static uint32_t cost_of(const struct costs *c, uint32_t user, uint32_t pc)
{
    const struct program *const p = c->p;
    const struct program_code *const i = &p->code[user];
    if (i->op == PROGRAM_SET) return p->cost[pc] + 1;
    if (i->op != PROGRAM_CALL) return p->cost[pc];
    const uint32_t entry = p->rule[i->a].entry;
    if (!c->is_final[entry] || !c->is_final[i->b]) return PROGRAM_NONE;
    return p->cost[entry] + p->cost[i->b];
}

static void settle(struct costs *c)
{
    struct program *const p = c->p;
    for (uint32_t pc = 0; pc < p->n_code; pc++) {
        if (p->code[pc].op != PROGRAM_RETURN) continue;
        p->cost[pc] = 0;
        heap_push(c, pc);
    }
    while (c->n_heap > 0) {
        const uint32_t pc = heap_pop(c);
        if (c->is_final[pc]) continue;
        c->is_final[pc] = true;
        for (uint32_t u = c->first_use[pc]; u != PROGRAM_NONE; u = c->use[u].next) {
            const uint32_t user = c->use[u].user;
            if (c->is_final[user] || p->cost[user] != PROGRAM_NONE) continue;
            uint32_t cost = cost_of(c, user, pc);
            if (cost == PROGRAM_NONE) continue;
            if (cost > PROGRAM_COST_MAX) cost = PROGRAM_COST_MAX;
            p->cost[user] = cost;
            heap_push(c, user);
        }
    }
}

static sac_status find_costs(struct program *p, sac_error *err)
{
    struct costs c = {.p = p};
    sac_status status = SAC_OK;
    const size_t n_use = 2 * (size_t)p->n_code + p->n_edge;
    p->cost = mem_calloc(p->n_code, sizeof *p->cost);
    c.first_use = mem_calloc(p->n_code, sizeof *c.first_use);
    c.use = mem_calloc(n_use, sizeof *c.use);
    c.heap = mem_calloc(n_use + p->n_code, sizeof *c.heap);
    c.is_final = mem_calloc(p->n_code, sizeof *c.is_final);
    if (!p->cost || !c.first_use || !c.use || !c.heap || !c.is_final) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
        goto fail;
    }
    note_uses(&c);
    settle(&c);
fail:
    mem_free(c.first_use);
    mem_free(c.use);
    mem_free(c.heap);
    mem_free(c.is_final);
    return status;
}

/* Anonymous parts of rules are reported by the nearest preceding name. */
static const char *name_of(const struct program *p, uint32_t rule)
{
    while (rule > 0 && !p->rule[rule].name) rule--;
    return p->rule[rule].name ? p->rule[rule].name : "root";
}

static sac_status check_ends(const struct program *p, sac_error *err)
{
    for (uint32_t r = 0; r < p->n_rule; r++)
        if (p->cost[p->rule[r].entry] == PROGRAM_NONE)
            return error_set(err, SAC_ERR_FORMAT, "rule '%s' can never end", name_of(p, r));
    return SAC_OK;
}

/* ---- Left recursion ---- */

struct lefts {
    const struct program *p;
    uint32_t *pc;     /* owned, [n_code]: instructions to visit */
    uint32_t *seen;   /* owned, [n_code]: number + 1 of the last rule that visited it */
    uint32_t *callee; /* owned, [n_callee]: rules that a rule may begin with, of all rules */
    uint32_t *begin;  /* owned, [n_rule + 1]: index of a rule's first callee */
    uint32_t *at;     /* owned, [n_rule]: number of callees followed */
    uint32_t *path;   /* owned, [n_rule]: path of the depth-first search */
    uint8_t *state;   /* owned, [n_rule]: 0 new, 1 on the path, 2 done */
    uint32_t n_callee;
};

static void push_pc(struct lefts *l, uint32_t *n, uint32_t pc, uint32_t rule)
{
    if (l->seen[pc] == rule + 1) return;
    l->seen[pc] = rule + 1;
    l->pc[(*n)++] = pc;
}

/* Collects the rules that may be called before this rule reads a byte. Each instruction belongs to
 * one rule, so there are at most as many callees as instructions. */
static void note_callees(struct lefts *l, uint32_t rule)
{
    const struct program *const p = l->p;
    uint32_t n = 0;
    l->begin[rule] = l->n_callee;
    push_pc(l, &n, p->rule[rule].entry, rule);
    while (n > 0) {
        const struct program_code *const i = &p->code[l->pc[--n]];
        if (i->op == PROGRAM_JUMP || i->op == PROGRAM_SPLIT) push_pc(l, &n, i->a, rule);
        if (i->op == PROGRAM_SPLIT) push_pc(l, &n, i->b, rule);
        if (i->op != PROGRAM_CALL) continue;
        l->callee[l->n_callee++] = i->a;
        if (p->cost[p->rule[i->a].entry] == 0) push_pc(l, &n, i->b, rule);
    }
}

static sac_status report_cycle(const struct lefts *l, uint32_t n, uint32_t rule, sac_error *err)
{
    const char *const name = name_of(l->p, rule);
    for (uint32_t i = n; i-- > 0 && l->path[i] != rule;) {
        const char *const other = name_of(l->p, l->path[i]);
        if (strcmp(other, name) != 0)
            return error_set(err, SAC_ERR_UNSUPPORTED,
                             "left recursion: rule '%s' begins with itself, by way of '%s'", name,
                             other);
    }
    return error_set(err, SAC_ERR_UNSUPPORTED, "left recursion: rule '%s' begins with itself",
                     name);
}

static sac_status follow_from(struct lefts *l, uint32_t first, sac_error *err)
{
    uint32_t n = 0;
    if (l->state[first] != 0) return SAC_OK;
    l->path[n++] = first;
    l->state[first] = 1;
    while (n > 0) {
        const uint32_t rule = l->path[n - 1];
        if (l->begin[rule] + l->at[rule] == l->begin[rule + 1]) {
            l->state[rule] = 2;
            n--;
            continue;
        }
        const uint32_t next = l->callee[l->begin[rule] + l->at[rule]++];
        if (l->state[next] == 1) return report_cycle(l, n, next, err);
        if (l->state[next] == 2) continue;
        l->state[next] = 1;
        l->path[n++] = next;
    }
    return SAC_OK;
}

static sac_status check_left(const struct program *p, sac_error *err)
{
    struct lefts l = {.p = p};
    sac_status status = SAC_OK;
    l.pc = mem_calloc(p->n_code, sizeof *l.pc);
    l.seen = mem_calloc(p->n_code, sizeof *l.seen);
    l.callee = mem_calloc(p->n_code, sizeof *l.callee);
    l.begin = mem_calloc((size_t)p->n_rule + 1, sizeof *l.begin);
    l.at = mem_calloc(p->n_rule, sizeof *l.at);
    l.path = mem_calloc(p->n_rule, sizeof *l.path);
    l.state = mem_calloc(p->n_rule, sizeof *l.state);
    if (!l.pc || !l.seen || !l.callee || !l.begin || !l.at || !l.path || !l.state) {
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
        goto fail;
    }
    for (uint32_t r = 0; r < p->n_rule; r++) note_callees(&l, r);
    l.begin[p->n_rule] = l.n_callee;
    for (uint32_t r = 0; r < p->n_rule && status == SAC_OK; r++) status = follow_from(&l, r, err);
fail:
    mem_free(l.pc);
    mem_free(l.seen);
    mem_free(l.callee);
    mem_free(l.begin);
    mem_free(l.at);
    mem_free(l.path);
    mem_free(l.state);
    return status;
}

sac_status program_check(struct program *p, sac_error *err)
{
    for (uint32_t r = 0; r < p->n_rule; r++)
        if (p->rule[r].entry == PROGRAM_NONE)
            return error_set(err, SAC_ERR_FORMAT, "rule '%s' is not defined", name_of(p, r));
    TRY(find_costs(p, err));
    TRY(check_left(p, err));
    return check_ends(p, err);
}
