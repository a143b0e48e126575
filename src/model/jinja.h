/* jinja.h: the parts of the template interpreter, private to src/model/jinja_*.c and template.c.
 *
 * One `struct jinja` is one render: it owns the pool that every token, node and value lives in, the
 * output, and the budgets. Values are 16 bytes, passed by value, and immutable once built (as in
 * the immutable sandbox that templates are written for); only namespaces change. Strings are UTF-8
 * bytes with a length, not NUL terminated, counted and indexed by code point as Python does.
 *
 * Contract: functions that can fail return a status and have written the message, with the line of
 * the template, to `j->err`. Whatever a template can make long is paid for by `jinja_step`,
 * whatever it can make large by the pool's limit, and nesting of values is bounded when they are
 * built, so recursive walks over values need no check of their own. */
#ifndef SAC_MODEL_JINJA_H
#define SAC_MODEL_JINJA_H

#include "model/template.h"

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define JINJA_SOURCE_MAX  ((size_t)1 << 20)
#define JINJA_MEMORY_MAX  ((size_t)64 << 20)
#define JINJA_NEST_MAX    800u /* nested evaluations, limited by the C stack */
#define JINJA_VALUE_DEPTH 128u /* lists in lists */
#define JINJA_JSON_DEPTH  64u
#define JINJA_RANGE_MAX   100000 /* jinja2's own limit for the sandbox */
#define JINJA_STEP_BYTES  64u    /* bytes of work that cost one step */
#define JINJA_ARG_MAX     5u     /* named parameters of a built-in */

/* ---- Values ---- */

enum jinja_kind {
    JINJA_MISSING, /* an argument that was not given; never seen by templates */
    JINJA_UNDEFINED,
    JINJA_NONE,
    JINJA_BOOL,
    JINJA_INT,
    JINJA_FLOAT,
    JINJA_STRING,
    JINJA_LIST,
    JINJA_TUPLE,
    JINJA_DICT,
    JINJA_NAMESPACE,
    JINJA_LOOP,
    JINJA_MACRO,
    JINJA_BUILTIN, /* a global function */
    JINJA_METHOD,  /* a built-in bound to its subject */
};

struct jinja_value {
    uint8_t kind; /* enum jinja_kind */
    bool markup;  /* string marked safe: `+` escapes what it is joined to */
    uint32_t n;   /* bytes of a string, or of an undefined value's name */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* [n] */
        struct jinja_list *list;
        struct jinja_dict *dict; /* namespaces too */
        struct jinja_loop *loop;
        const struct jinja_macro *macro;
        const struct jinja_builtin *builtin;
        const struct jinja_method *method;
    };
};

struct jinja_list {
    struct jinja_value *items; /* [n] */
    uint32_t n, capacity, depth;
};

struct jinja_pair {
    struct jinja_value key, value;
};

/* In order of insertion. `slots` holds pair index + 1, or 0 if free, and exists from 9 pairs on. */
struct jinja_dict {
    struct jinja_pair *pairs; /* [n] */
    uint32_t *slots;          /* [n_slot], a power of two */
    uint32_t n, capacity, n_slot, depth;
};

struct jinja_loop {
    const struct jinja_list *items;
    uint32_t at;
};

struct jinja_scope {
    const struct jinja_scope *parent;
    struct jinja_dict vars;
};

struct jinja_macro {
    const struct jinja_node *node;
    struct jinja_scope *scope; /* where it was defined */
};

/* ---- A render ---- */

struct jinja_pool {
    struct jinja_block *top;
    size_t used, max;
    bool full; /* the last allocation failed because of `max` */
};

enum jinja_flow { JINJA_FLOW_NEXT, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE };

struct jinja {
    struct jinja_pool pool;
    struct strbuf out;
    size_t out_max;
    uint64_t steps_left;
    uint32_t line;  /* line that is being evaluated */
    uint32_t nest;  /* nested evaluations */
    uint32_t calls; /* nested macro calls */
    enum jinja_flow flow;
    int64_t now;
    const struct tokenizer *guard; /* borrowed; NULL: input is not guarded */
    sac_error *err;
};

/* A function, filter, test or method. Parameters after the subject are bound by position or name;
 * one whose name ends in '?' is optional. A `variadic` one gets its arguments unbound. */
struct jinja_args {
    const struct jinja_value *pos; /* [n_pos] as written */
    uint32_t n_pos;
    const struct jinja_dict *kw; /* or NULL */
};

struct jinja_call {
    const struct jinja_builtin *builtin;
    struct jinja_value self;
    struct jinja_value arg[JINJA_ARG_MAX]; /* JINJA_MISSING if not given */
    struct jinja_args args;
};
typedef sac_status (*jinja_fn)(struct jinja *j, const struct jinja_call *c,
                               struct jinja_value *out);
struct jinja_builtin {
    const char *name;
    jinja_fn fn;
    const char *params[JINJA_ARG_MAX];
    bool variadic;
};

struct jinja_method {
    struct jinja_value self;
    const struct jinja_builtin *builtin;
};

/* ---- jinja.c: memory, budgets, containers ---- */

/* Bytes aligned to 8, not zeroed; NULL if memory or the render's limit is exhausted, which
 * `jinja_no_memory` then reports. */
void *jinja_alloc(struct jinja *j, size_t bytes);
char *jinja_chars(struct jinja *j, size_t n);
/* Extends the string `s[n]` in place by `more` bytes, if it is the newest allocation; otherwise
 * NULL. */
char *jinja_extend(struct jinja *j, const char *s, size_t n, size_t more);
/* Reports that the last allocation failed. */
void jinja_report_memory(struct jinja *j);
static inline sac_status jinja_no_memory(struct jinja *j)
{
    jinja_report_memory(j);
    return j->pool.full ? SAC_ERR_FORMAT : SAC_ERR_MEMORY;
}
void jinja_free_all(struct jinja *j);

/* Writes the message with the line. The macro `jinja_fail` tells the compiler that it always
 * fails. */
__attribute__((format(printf, 2, 3))) void jinja_report(struct jinja *j, const char *fmt, ...);
#define jinja_fail(j, ...) (jinja_report(j, __VA_ARGS__), SAC_ERR_FORMAT)
/* Spends `n` steps of the budget. */
sac_status jinja_step(struct jinja *j, uint64_t n);
static inline sac_status jinja_step_bytes(struct jinja *j, size_t n)
{
    return jinja_step(j, 1 + n / JINJA_STEP_BYTES);
}

static inline struct jinja_value jinja_none(void)
{
    return (struct jinja_value){.kind = JINJA_NONE};
}
static inline struct jinja_value jinja_bool(bool b)
{
    return (struct jinja_value){.kind = JINJA_BOOL, .b = b};
}
static inline struct jinja_value jinja_int(int64_t i)
{
    return (struct jinja_value){.kind = JINJA_INT, .i = i};
}
static inline struct jinja_value jinja_float(double f)
{
    return (struct jinja_value){.kind = JINJA_FLOAT, .f = f};
}
static inline struct jinja_value jinja_str(const char *s, size_t n)
{
    return (struct jinja_value){.kind = JINJA_STRING, .n = (uint32_t)n, .s = s};
}
static inline struct jinja_value jinja_strz(const char *s)
{
    return jinja_str(s, strlen(s));
}
static inline struct jinja_value jinja_undefined(const char *name, size_t n)
{
    return (struct jinja_value){.kind = JINJA_UNDEFINED, .n = (uint32_t)n, .s = name};
}
static inline bool jinja_is_number(struct jinja_value v)
{
    return v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_BOOL;
}
static inline bool jinja_is_list(struct jinja_value v)
{
    return v.kind == JINJA_LIST || v.kind == JINJA_TUPLE;
}
static inline bool jinja_is_str(struct jinja_value v, const char *s)
{
    return v.kind == JINJA_STRING && v.n == strlen(s) && memcmp(v.s, s, v.n) == 0;
}

sac_status jinja_list_new(struct jinja *j, struct jinja_value *out, enum jinja_kind kind);
sac_status jinja_list_push(struct jinja *j, struct jinja_list *list, struct jinja_value v);
sac_status jinja_dict_new(struct jinja *j, struct jinja_value *out);
/* Fails when the key cannot be hashed. */
sac_status jinja_dict_set(struct jinja *j, struct jinja_dict *d, struct jinja_value key,
                          struct jinja_value v);
/* `*out` is the value or NULL. */
sac_status jinja_dict_get(struct jinja *j, const struct jinja_dict *d, struct jinja_value key,
                          struct jinja_value **out);

const char *jinja_kind_name(struct jinja_value v); /* as Python names the type */
bool jinja_truth(struct jinja_value v);
sac_status jinja_equal(struct jinja *j, struct jinja_value a, struct jinja_value b, bool *out);
/* -1, 0 or 1 in `*out`; fails for kinds that Python does not order. */
sac_status jinja_order(struct jinja *j, struct jinja_value a, struct jinja_value b, int *out);
/* The members of anything that can be iterated, in a list. */
sac_status jinja_members(struct jinja *j, struct jinja_value v, const struct jinja_list **out);

/* ---- jinja_text.c: strings, numbers as text ---- */

uint32_t jinja_text_decode(const char *s, size_t n, uint32_t *out_cp); /* bytes used, >= 1 */
uint32_t jinja_text_encode(uint32_t cp, char out[4]);
size_t jinja_text_length(const char *s, size_t n); /* code points */
size_t jinja_text_offset(const char *s, size_t n, size_t cp_i);
size_t jinja_text_space(const char *s, size_t n);      /* bytes of a space at the start, or 0 */
size_t jinja_text_space_last(const char *s, size_t n); /* bytes of a space at the end, or 0 */
bool jinja_text_same(const char *a, size_t n_a, const char *b, size_t n_b);
const char *jinja_text_find(const char *s, size_t n, const char *what, size_t n_what);
/* Strips spaces, or the characters of `chars`, from the start (bit 0) and the end (bit 1). */
struct jinja_value jinja_text_strip(struct jinja_value s, struct jinja_value chars, unsigned ends);
sac_status jinja_text_replace(struct jinja *j, struct jinja_value s, struct jinja_value from,
                              struct jinja_value to, int64_t count, struct jinja_value *out);
sac_status jinja_text_concat(struct jinja *j, struct jinja_value a, struct jinja_value b,
                             struct jinja_value *out);
/* Guards a string that came from outside, if the render asks for it (template_input.guard). */
sac_status jinja_text_guard(struct jinja *j, struct jinja_value *s);
sac_status jinja_text_escape(struct jinja *j, struct jinja_value s, struct jinja_value *out);
/* Changes ASCII letters only. */
sac_status jinja_text_case(struct jinja *j, struct jinja_value s, bool upper,
                           struct jinja_value *out);
/* Text of a value, as Python's str() and, at `repr`, repr(). */
sac_status jinja_text_str(struct jinja *j, struct jinja_value v, struct jinja_value *out);
sac_status jinja_text_repr(struct jinja *j, struct jinja_value v, struct jinja_value *out);
void jinja_text_float(double f, char out[40]);

/* Builds text in `j->out`, after what it holds, and moves it out as a value. */
size_t jinja_text_begin(const struct jinja *j);
sac_status jinja_text_add(struct jinja *j, const char *s, size_t n);
static inline sac_status jinja_text_adds(struct jinja *j, const char *s)
{
    return jinja_text_add(j, s, strlen(s));
}
sac_status jinja_text_end(struct jinja *j, size_t begin, struct jinja_value *out);

/* ---- jinja_json.c ---- */

/* Parses one JSON text; `what` names it in messages. Strings without escapes borrow from `s`. */
sac_status jinja_json_read(struct jinja *j, const char *s, size_t n, const char *what,
                           struct jinja_value *out);
struct jinja_json_style {
    int64_t indent; /* -1: on one line */
    bool ascii, sort_keys;
    struct jinja_value item_sep, key_sep;
};
sac_status jinja_json_write(struct jinja *j, struct jinja_value v,
                            const struct jinja_json_style *style, struct jinja_value *out);

/* ---- jinja_lex.c, jinja_parse.c ---- */

enum jinja_token_type {
    JINJA_TOK_DATA,
    JINJA_TOK_VAR_BEGIN,
    JINJA_TOK_VAR_END,
    JINJA_TOK_BLOCK_BEGIN,
    JINJA_TOK_BLOCK_END,
    JINJA_TOK_NAME,
    JINJA_TOK_CONST, /* string or number */
    JINJA_TOK_OP,
    JINJA_TOK_END,
};

#define JINJA_OP2(a, b) ((uint32_t)(a) | (uint32_t)(b) << 8)

struct jinja_token {
    enum jinja_token_type type;
    uint32_t line;
    uint32_t op; /* a character, or two as JINJA_OP2 */
    struct jinja_value value;
};

/* `*out_tok` ends with JINJA_TOK_END. */
sac_status jinja_lex(struct jinja *j, const char *source, size_t n, struct jinja_token **out_tok);

enum jinja_node_kind {
    /* Expressions. `value`: constant or name; `list`: operands. */
    JINJA_NODE_CONST,
    JINJA_NODE_NAME,
    JINJA_NODE_LIST,
    JINJA_NODE_TUPLE,
    JINJA_NODE_DICT,    /* list: key, value, key, value */
    JINJA_NODE_ATTR,    /* a . value */
    JINJA_NODE_ITEM,    /* a [ b ] */
    JINJA_NODE_SLICE,   /* a [ list of start, stop, step; absent ones are CONST none ] */
    JINJA_NODE_CALL,    /* a ( list ) */
    JINJA_NODE_FILTER,  /* a | value ( list ), builtin */
    JINJA_NODE_TEST,    /* a is value ( list ), builtin */
    JINJA_NODE_KEYWORD, /* in lists of arguments: value = a; in parameters: default a or NULL */
    JINJA_NODE_SPREAD,  /* in lists of arguments: all of a; op '*', or '*' '*' for keywords */
    JINJA_NODE_NEG,
    JINJA_NODE_POS,
    JINJA_NODE_NOT,
    JINJA_NODE_BINARY, /* a op b */
    JINJA_NODE_AND,
    JINJA_NODE_OR,
    JINJA_NODE_COMPARE, /* a, then list of OPERAND */
    JINJA_NODE_OPERAND, /* op a */
    JINJA_NODE_CONCAT,  /* list, joined by ~ */
    JINJA_NODE_BLOCK,   /* the captured text that a block's filters start from */
    JINJA_NODE_COND,    /* b if a else c; c may be NULL */
    /* Statements. `body`: first statement. */
    JINJA_NODE_DATA,
    JINJA_NODE_OUTPUT,       /* a */
    JINJA_NODE_IF,           /* list of BRANCH */
    JINJA_NODE_BRANCH,       /* a (NULL: else), body */
    JINJA_NODE_FOR,          /* for b in a if c: body, orelse */
    JINJA_NODE_SET,          /* b = a */
    JINJA_NODE_SET_BLOCK,    /* b = body, a: filters over BLOCK or NULL */
    JINJA_NODE_FILTER_BLOCK, /* body, a: filters over BLOCK */
    JINJA_NODE_MACRO,        /* value ( list of KEYWORD ) body */
    JINJA_NODE_CALL_BLOCK,   /* output of the CALL a, where caller ( list ) gives body */
    JINJA_NODE_SCOPE,        /* list of SET, body */
    JINJA_NODE_BREAK,
    JINJA_NODE_CONTINUE,
};

struct jinja_node {
    enum jinja_node_kind kind;
    uint32_t line, op;
    struct jinja_value value;
    const struct jinja_builtin *builtin; /* NULL: unknown name, an error when it is reached */
    struct jinja_node *a, *b, *c, *list, *body, *orelse;
    struct jinja_node *next; /* in a list or body */
};

sac_status jinja_parse(struct jinja *j, const struct jinja_token *tok, struct jinja_node **out);

/* ---- jinja_op.c: operators, attributes, subscripts ---- */

sac_status jinja_op_binary(struct jinja *j, uint32_t op, struct jinja_value a, struct jinja_value b,
                           struct jinja_value *out);
sac_status jinja_op_compare(struct jinja *j, uint32_t op, struct jinja_value a,
                            struct jinja_value b, bool *out);
/* `a.name` and `a[key]`; undefined if there is none. */
sac_status jinja_op_attr(struct jinja *j, struct jinja_value a, struct jinja_value name,
                         struct jinja_value *out);
sac_status jinja_op_item(struct jinja *j, struct jinja_value a, struct jinja_value key,
                         struct jinja_value *out);
/* `part`: start, stop, step, each an int or none. */
sac_status jinja_op_slice(struct jinja *j, struct jinja_value a, const struct jinja_value part[3],
                          struct jinja_value *out);

/* ---- jinja_call.c: binding of arguments; the tables of built-ins ---- */

/* Calls `builtin` with arguments as written. */
sac_status jinja_call_builtin(struct jinja *j, const struct jinja_builtin *builtin,
                              struct jinja_value self, struct jinja_args args,
                              struct jinja_value *out);
/* Argument `i` with its type checked; the default where it is missing. */
sac_status jinja_call_int(struct jinja *j, const struct jinja_call *c, uint32_t i,
                          int64_t otherwise, int64_t *out);
sac_status jinja_call_text(struct jinja *j, const struct jinja_call *c, uint32_t i,
                           const char *otherwise, struct jinja_value *out);
bool jinja_call_flag(const struct jinja_call *c, uint32_t i, bool otherwise);
const struct jinja_builtin *jinja_call_find(const struct jinja_builtin *table,
                                            struct jinja_value name);

const struct jinja_builtin *jinja_filter_find(struct jinja_value name);
const struct jinja_builtin *jinja_test_find(struct jinja_value name);
const struct jinja_builtin *jinja_method_find(struct jinja_value self, struct jinja_value name);
const struct jinja_builtin *jinja_function_find(struct jinja_value name);

/* ---- jinja_eval.c ---- */

/* Runs the statements from `first` on in `scope`; their text is appended to `j->out`. */
sac_status jinja_eval(struct jinja *j, const struct jinja_node *first, struct jinja_scope *scope);

#endif
