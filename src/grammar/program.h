/* program.h: a grammar as a program over bytes: what GBNF is compiled to and what a machine runs.
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

#define PROGRAM_CODE_MAX 262144u /* instructions, and byte ranges in them */
#define PROGRAM_RULE_MAX 65536u  /* rules, those without a name included */
#define PROGRAM_MARK     0xffu   /* the byte on both sides of a control token's name */
#define PROGRAM_COST_MAX (1u << 30)
#define PROGRAM_NONE     UINT32_MAX

enum program_op {
    PROGRAM_RETURN = 0,
    PROGRAM_SET,   /* one byte: edges a to a + b, disjoint ranges, say where to go on */
    PROGRAM_JUMP,  /* to a */
    PROGRAM_SPLIT, /* to a and to b */
    PROGRAM_CALL,  /* rule a, then b */
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
    char *name;     /* owned; NULL: a part of another rule that is repeated */
    uint32_t entry; /* PROGRAM_NONE: not defined yet */
    size_t where;   /* of its first mention in the text, for messages */
};

struct program {
    struct program_code *code; /* owned, [n_code] */
    struct program_edge *edge; /* owned, [n_edge] */
    struct program_rule *rule; /* owned, [n_rule] */
    uint32_t *cost;            /* owned, [n_code]: the fewest bytes from here to the return */
    uint32_t n_code, n_edge, n_rule, root;
    uint8_t byte_class[256]; /* bytes of one class lead to the same places everywhere */
    uint32_t n_class;
    char **control; /* owned, [n_control]: names of control tokens that the grammar asks for */
    uint32_t n_control;
    size_t code_room, edge_room, rule_room, control_room;
    bool failed; /* no memory */
    bool full;   /* a cap was reached */
};

void program_free(struct program *p);

/* ---- While it is made: appends set `failed` or `full`, which program_finish reports ---- */

/* The index of the new instruction; some index when it could not be appended. */
uint32_t program_emit(struct program *p, enum program_op op, uint32_t a, uint32_t b);
/* Instructions that match one character of a normalised set that is not empty, then fall
 * through. */
void program_emit_set(struct program *p, const struct charset *set);
void program_emit_bytes(struct program *p, const char *bytes, size_t n);
/* A rule without code; `name` is copied, NULL for none. */
uint32_t program_add_rule(struct program *p, const char *name, size_t n);
/* Notes that the grammar asks for a control token. */
void program_add_control(struct program *p, const char *name, size_t n);

/* Checks and completes it: every rule has code and can end, none begins with itself. */
sac_status program_finish(struct program *p, sac_error *err);

#endif
