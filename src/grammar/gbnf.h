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

#define GBNF_DEPTH_MAX 64u /* parentheses within each other */

struct gbnf_limits {
    size_t text_bytes;
    uint32_t n_rule; /* rules with a name */
    uint32_t repeat; /* the numbers of {m,n} */
};

/* For grammars that users give: 64 KiB, 4,096 rules, 4,096 repetitions. */
extern const struct gbnf_limits gbnf_limits_given;
/* For those that are made of a schema, whose own limits come first. */
extern const struct gbnf_limits gbnf_limits_made;

/* `*out` is owned by the caller (program_free). A text begins with the rule 'root'. */
sac_status gbnf_parse(struct program **out, const char *text, size_t n,
                      const struct gbnf_limits *limits, sac_error *err);

#endif
