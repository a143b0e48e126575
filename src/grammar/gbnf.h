/* gbnf.h: GBNF, the notation for grammars that llama.cpp's users know, to a program.
 *
 *     root  ::= "yes" | "no" ("," [ \t]* reason)?     # comments run to the end of the line
 *     reason ::= [^\n"]{1,80}
 *
 * Literals and classes take the escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH, `.` is
 * any character, repetitions are ? * + {m} {m,} {m,n}. A rule ends with its line; behind `::=` and
 * `|` and within parentheses it may go on. <name> is the control token of that name, brackets
 * included, <<NAME>> the one that is called NAME. The text is
 * hostile input: messages name line and column. */
#ifndef SAC_GRAMMAR_GBNF_H
#define SAC_GRAMMAR_GBNF_H

#include "grammar/program.h"

#define GBNF_DEPTH_MAX 64u /* nesting of parentheses */

struct gbnf_limits {
    size_t text_bytes;
    uint32_t n_rule; /* named rules */
    uint32_t repeat; /* numbers in {m,n} */
};

/* For grammars from users: 64 KiB, 4,096 rules, 4,096 repetitions. */
extern const struct gbnf_limits gbnf_limits_given;
/* For grammars generated from schemas, which have limits of their own. */
extern const struct gbnf_limits gbnf_limits_made;

/* The caller owns `*out` (program_free). The start rule is 'root'. */
sac_status gbnf_parse(struct program **out, const char *text, size_t n,
                      const struct gbnf_limits *limits, sac_error *err);

#endif
