/* program.h: a grammar as a program over bytes: what GBNF is compiled to and what an automaton
 * runs.
 *
 * A program is a list of instructions; each rule has an entry and ends in PROGRAM_RETURN. The state
 * of a text is a stack of instructions: the current one and, beneath it, those at which its callers
 * continue. No rule begins with itself, each can end, and a call in tail position is a jump, so
 * stacks grow with the nesting of a text and not with its length. Immutable once finished: threads
 * may share it.
 *
 * A control token of the vocabulary is spelled as its name between two bytes 0xff, which occur in
 * no text. */
#ifndef SAC_GRAMMAR_PROGRAM_H
#define SAC_GRAMMAR_PROGRAM_H

#include "base/status.h"
#include "grammar/charset.h"

#define PROGRAM_CODE_MAX 262144u /* instructions, and byte ranges */
#define PROGRAM_RULE_MAX 65536u  /* rules, including anonymous ones */
#define PROGRAM_MARK     0xffu   /* the byte that surrounds names of control tokens */
#define PROGRAM_COST_MAX (1u << 30)
#define PROGRAM_NONE     UINT32_MAX

enum program_op {
    PROGRAM_RETURN = 0,
    PROGRAM_SET,   /* read one byte: edges a to a + b are disjoint ranges with targets */
    PROGRAM_JUMP,  /* continue at a */
    PROGRAM_SPLIT, /* continue at a and at b */
    PROGRAM_CALL,  /* call rule a, then continue at b */
};

struct program_code {
    uint32_t op; /* enum program_op */
    uint32_t a, b;
};

struct program_edge {
    uint8_t lo, hi;
    uint32_t next;
};

struct program_rule {
    char *name;     /* owned; NULL: anonymous, part of a repeated rule */
    uint32_t entry; /* PROGRAM_NONE: not defined yet */
    size_t where;   /* offset of its first mention, for messages */
};

struct program {
    struct program_code *code; /* owned, [n_code] */
    struct program_edge *edge; /* owned, [n_edge] */
    struct program_rule *rule; /* owned, [n_rule] */
    uint32_t *cost;            /* owned, [n_code]: minimum bytes from here to the return */
    uint32_t n_code, n_edge, n_rule, root;
    uint8_t byte_class[256]; /* bytes that no edge distinguishes have one class */
    uint32_t n_class;
    char **control; /* owned, [n_control]: names of control tokens in the grammar */
    uint32_t n_control;
    size_t code_room, edge_room, rule_room, control_room;
    bool failed; /* out of memory */
    bool full;   /* a limit was reached */
};

void program_free(struct program *p);

/* ---- Construction: appends set `failed` or `full`, which program_finish reports ---- */

/* Returns the index of the new instruction, or some index if it could not be appended. */
uint32_t program_emit(struct program *p, enum program_op op, uint32_t a, uint32_t b);
/* Emits instructions that match one character of a normalised, non-empty set and fall through. */
void program_emit_set(struct program *p, const struct charset *set);
void program_emit_bytes(struct program *p, const char *bytes, size_t n);
/* Adds a rule without code; `name` (or NULL) is copied. */
uint32_t program_add_rule(struct program *p, const char *name, size_t n);
/* Registers a control token that the grammar uses. */
void program_add_control(struct program *p, const char *name, size_t n);

/* Checks and completes the program: every rule is defined and can end, and there is no left
 * recursion. */
sac_status program_finish(struct program *p, sac_error *err);

#endif
