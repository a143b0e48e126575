/* program.c: see the header. Instructions, byte ranges and rules grow in three lists; indices stay.
 */
#include "grammar/program.h"

#include "base/mem.h"
#include "grammar/program_check.h"

#include <assert.h>
#include <string.h>

#define NEXT PROGRAM_NONE /* target of an edge that completes the character being emitted */

/* Makes room for one more in a list with a cap; false: the cap is reached or memory is
 * exhausted. */
static bool reserve(struct program *p, void **list, size_t *room, size_t n, size_t bytes)
{
    if (p->failed || p->full) return false;
    if (n < *room) return true;
    const size_t more = *room ? 2 * *room : 64;
    void *const grown = mem_realloc(*list, more * bytes);
    if (!grown) {
        p->failed = true;
        return false;
    }
    *list = grown;
    *room = more;
    return true;
}

uint32_t program_emit(struct program *p, enum program_op op, uint32_t a, uint32_t b)
{
    if (p->n_code == PROGRAM_CODE_MAX) p->full = true;
    void *list = p->code;
    if (!reserve(p, &list, &p->code_room, p->n_code, sizeof *p->code)) return 0;
    p->code = list;
    p->code[p->n_code] = (struct program_code){op, a, b};
    return p->n_code++;
}

static void add_edge(struct program *p, uint8_t lo, uint8_t hi, uint32_t next)
{
    if (p->n_edge == PROGRAM_CODE_MAX) p->full = true;
    void *list = p->edge;
    if (!reserve(p, &list, &p->edge_room, p->n_edge, sizeof *p->edge)) return;
    p->edge = list;
    p->edge[p->n_edge++] = (struct program_edge){lo, hi, next};
}

/* The byte sequences of a character set, in ascending order. */
struct sequences {
    struct charset_bytes *item; /* owned, [n] */
    size_t n, room;
    uint32_t tail[CHARSET_UTF8_MAX]; /* instruction that reads that many continuation bytes */
};

static void add_sequences(struct program *p, struct sequences *s, struct charset_range range)
{
    struct charset_bytes piece[CHARSET_SPLIT_MAX];
    const size_t n = charset_split(piece, range);
    for (size_t i = 0; i < n; i++) {
        void *list = s->item;
        if (!reserve(p, &list, &s->room, s->n, sizeof *s->item)) return;
        s->item = list;
        s->item[s->n++] = piece[i];
    }
}

/* Emits sequences [begin, end), which share the bytes before `at`. Sequences with the same byte
 * range at `at` are adjacent; other ranges are disjoint. Continuations are emitted before the edges
 * that lead to them, so that the edges of an instruction are contiguous. Recursion is at most four
 * deep. */
static uint32_t emit_level(struct program *p, struct sequences *s, size_t begin, size_t end,
                           size_t at)
{
    uint32_t next[256];
    uint8_t lo[256], hi[256];
    uint32_t n = 0;
    const uint32_t self = program_emit(p, PROGRAM_SET, 0, 0);
    assert(at < CHARSET_UTF8_MAX);
    for (size_t i = begin; i < end && !p->failed && !p->full;) {
        const struct charset_bytes *const first = &s->item[i];
        size_t last = i + 1;
        while (last < end && s->item[last].lo[at] == first->lo[at]) last++;
        const size_t left = first->n - at - 1;
        bool any = last == i + 1;
        assert(at < first->n && first->n <= CHARSET_UTF8_MAX);
        for (size_t b = at + 1; b < CHARSET_UTF8_MAX; b++)
            any = any && (b >= first->n || (first->lo[b] == 0x80 && first->hi[b] == 0xbf));
        assert(n < 256);
        lo[n] = first->lo[at];
        hi[n] = first->hi[at];
        if (left == 0) {
            next[n] = NEXT;
        } else if (any && s->tail[left] != NEXT) {
            next[n] = s->tail[left];
        } else {
            next[n] = emit_level(p, s, i, last, at + 1);
            if (any) s->tail[left] = next[n];
        }
        n++;
        i = last;
    }
    if (p->failed || p->full) return self;
    p->code[self].a = p->n_edge;
    p->code[self].b = n;
    for (uint32_t i = 0; i < n; i++) add_edge(p, lo[i], hi[i], next[i]);
    return self;
}

void program_emit_set(struct program *p, const struct charset *set)
{
    struct sequences s = {.tail = {NEXT, NEXT, NEXT, NEXT}};
    const uint32_t first_edge = p->n_edge;
    assert(set->n > 0 || set->failed);
    p->failed |= set->failed;
    for (size_t i = 0; i < set->n; i++) add_sequences(p, &s, set->range[i]);
    if (s.n > 0) emit_level(p, &s, 0, s.n, 0);
    for (uint32_t i = first_edge; i < p->n_edge; i++)
        if (p->edge[i].next == NEXT) p->edge[i].next = p->n_code;
    mem_free(s.item);
}

void program_emit_bytes(struct program *p, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        program_emit(p, PROGRAM_SET, p->n_edge, 1);
        add_edge(p, (uint8_t)bytes[i], (uint8_t)bytes[i], p->n_code);
    }
}

uint32_t program_add_rule(struct program *p, const char *name, size_t n)
{
    if (p->n_rule == PROGRAM_RULE_MAX) p->full = true;
    void *list = p->rule;
    if (!reserve(p, &list, &p->rule_room, p->n_rule, sizeof *p->rule)) return 0;
    p->rule = list;
    char *const copy = name ? mem_strndup(name, n) : NULL;
    if (name && !copy) {
        p->failed = true;
        return 0;
    }
    p->rule[p->n_rule] = (struct program_rule){.name = copy, .entry = PROGRAM_NONE};
    return p->n_rule++;
}

void program_add_control(struct program *p, const char *name, size_t n)
{
    for (uint32_t i = 0; i < p->n_control; i++)
        if (strncmp(p->control[i], name, n) == 0 && p->control[i][n] == '\0') return;
    void *list = p->control;
    if (!reserve(p, &list, &p->control_room, p->n_control, sizeof *p->control)) return;
    p->control = list;
    p->control[p->n_control] = mem_strndup(name, n);
    if (p->control[p->n_control])
        p->n_control++;
    else
        p->failed = true;
}

void program_free(struct program *p)
{
    if (!p) return;
    for (uint32_t i = 0; i < p->n_rule; i++) mem_free(p->rule[i].name);
    for (uint32_t i = 0; i < p->n_control; i++) mem_free(p->control[i]);
    mem_free(p->code);
    mem_free(p->edge);
    mem_free(p->rule);
    mem_free(p->cost);
    mem_free(p->control);
    mem_free(p);
}

/* The target of a chain of jumps. A cycle of jumps would be an empty loop; following stops after
 * the number of instructions. */
static uint32_t follow(const struct program *p, uint32_t pc)
{
    for (uint32_t i = 0; i < p->n_code && p->code[pc].op == PROGRAM_JUMP; i++) pc = p->code[pc].a;
    return pc;
}

/* Shortens chains of jumps, and turns calls in tail position into jumps. */
static void shorten(struct program *p)
{
    for (uint32_t i = 0; i < p->n_code; i++) {
        struct program_code *const c = &p->code[i];
        if (c->op == PROGRAM_CALL) {
            c->b = follow(p, c->b);
            if (p->code[c->b].op == PROGRAM_RETURN)
                *c = (struct program_code){PROGRAM_JUMP, p->rule[c->a].entry, 0};
        } else if (c->op == PROGRAM_SPLIT) {
            c->a = follow(p, c->a);
            c->b = follow(p, c->b);
        }
    }
    for (uint32_t i = 0; i < p->n_edge; i++) p->edge[i].next = follow(p, p->edge[i].next);
}

/* Two bytes are in one class if no edge distinguishes them, so classes begin where edges begin or
 * end. */
static void find_classes(struct program *p)
{
    bool begins[257] = {false};
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_edge; i++) {
        begins[p->edge[i].lo] = true;
        begins[p->edge[i].hi + 1] = true;
    }
    for (uint32_t b = 0; b < 256; b++) {
        if (b > 0 && begins[b]) n++;
        p->byte_class[b] = (uint8_t)n;
    }
    p->n_class = n + 1;
}

sac_status program_finish(struct program *p, sac_error *err)
{
    if (p->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a grammar");
    if (p->full)
        return error_set(err, SAC_ERR_CONTEXT,
                         "the grammar is too large: %u instructions and %u rules are the most",
                         PROGRAM_CODE_MAX, PROGRAM_RULE_MAX);
    TRY(program_check(p, err));
    shorten(p);
    find_classes(p);
    return SAC_OK;
}
