/* tool_grammar.h: the grammar of an answer that may, or must, call tools.
 *
 *     tool_grammar_compile(&program, &tool_grammar, &err);   then as in constraint.h
 *
 * TOOL_GRAMMAR_REQUIRED and TOOL_GRAMMAR_NAMED: the answer is calls, with names and arguments that
 * their schemas allow, written as the family of the model writes them (tool_parser.h), so that
 * tool_parser_feed finds them. TOOL_GRAMMAR_AUTO: any text; once it begins a call, the call is held
 * to the same. "none" needs no grammar. */
#ifndef SAC_GRAMMAR_TOOL_GRAMMAR_H
#define SAC_GRAMMAR_TOOL_GRAMMAR_H

#include "base/strbuf.h"
#include "grammar/program.h"
#include "grammar/tool_parser.h"

#define TOOL_GRAMMAR_TOOLS_MAX 256u

enum tool_grammar_choice { TOOL_GRAMMAR_AUTO, TOOL_GRAMMAR_REQUIRED, TOOL_GRAMMAR_NAMED };

struct tool_grammar {
    enum tool_parser_family family;
    enum tool_grammar_choice choice;
    const char *tools_json;  /* OpenAI's list: [{"type": "function", "function": {"name": ...,
                                "parameters": SCHEMA}}], or only the inner objects */
    const char *name;        /* for TOOL_GRAMMAR_NAMED: the tool to call */
    bool parallel;           /* allow several calls; Llama 3 writes only one */
    const struct trie *trie; /* to see whether the family's marker is a control token */
};

/* The grammar as GBNF text, for gbnf_parse with gbnf_limits_made. Messages name the tool. */
sac_status tool_grammar_gbnf(struct strbuf *out, const struct tool_grammar *set, sac_error *err);
sac_status tool_grammar_compile(struct program **out, const struct tool_grammar *set,
                                sac_error *err);

#endif
