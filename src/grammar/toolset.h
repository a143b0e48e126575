/* toolset.h: the grammar of an answer that may, or must, call tools.
 *
 *     toolset_compile(&program, &toolset, &err);   then as in constraint.h
 *
 * TOOLSET_REQUIRED and TOOLSET_NAMED: the answer is calls, with names and arguments that their
 * schemas allow, written as the family of the model writes them (tool_parser.h), so that
 * tool_parser_feed finds them. TOOLSET_AUTO: any text; once it begins a call, the call is held to
 * the same. "none" needs no grammar. */
#ifndef SAC_GRAMMAR_TOOLSET_H
#define SAC_GRAMMAR_TOOLSET_H

#include "base/strbuf.h"
#include "grammar/program.h"
#include "grammar/tool_parser.h"

#define TOOLSET_TOOLS_MAX 256u

enum toolset_choice { TOOLSET_AUTO, TOOLSET_REQUIRED, TOOLSET_NAMED };

struct toolset {
    enum tool_parser_family family;
    enum toolset_choice choice;
    const char *tools_json;  /* OpenAI's list: [{"type": "function", "function": {"name": ...,
                                "parameters": SCHEMA}}], or only the inner objects */
    const char *name;        /* for TOOLSET_NAMED: the tool to call */
    bool parallel;           /* allow several calls; Llama 3 writes only one */
    const struct trie *trie; /* to see whether the family's marker is a control token */
};

/* The grammar as GBNF text, for gbnf_parse with gbnf_limits_made. Messages name the tool. */
sac_status toolset_gbnf(struct strbuf *out, const struct toolset *set, sac_error *err);
sac_status toolset_compile(struct program **out, const struct toolset *set, sac_error *err);

#endif
