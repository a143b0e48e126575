/* tool_parser.h: calls of tools, found in the text of an answer while it comes.
 *
 * Each family of models writes calls in a way of its own; a parser is told which
 * (tool_parser_of_vocabulary) and gets the text in pieces of any size, those of control tokens
 * included (sac_token_piece with `special`). What is no call is passed on as text; only what may
 * become the beginning of a call is held back. A call that turns out not to be one (broken JSON, no
 * name, a name that tool_parser_offer does not list) is given back as text, so nothing is lost.
 * Texts of a call are limited to TOOL_PARSER_BYTES_MAX, then they are text. An answer may begin
 * with the JSON of a call without its marker: models forget it, and where it is a control token the
 * text of an answer lacks it.
 *
 * Arguments are the text of a JSON object, which breaks off where the answer does. One thread at a
 * time. */
#ifndef SAC_GRAMMAR_TOOL_PARSER_H
#define SAC_GRAMMAR_TOOL_PARSER_H

#include "base/status.h"
#include "grammar/trie.h"

#define TOOL_PARSER_BYTES_MAX (1u << 20)
#define TOOL_PARSER_NAME_MAX  128u

enum tool_parser_family {
    TOOL_PARSER_HERMES, /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen */
    TOOL_PARSER_LLAMA3, /* {"name": ..., "parameters": {...}}, <|python_tag|>code or the same */
    TOOL_PARSER_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}] or NAME[ARGS]{...} */
    TOOL_PARSER_GEMMA,   /* ```tool_code with Llama's JSON or a Python call */
};

enum tool_parser_kind {
    TOOL_PARSER_TEXT,  /* `text` outside calls */
    TOOL_PARSER_BEGIN, /* call number `index` of the answer begins; its `name` is known */
    TOOL_PARSER_ARGS,  /* `text` is the next part of its arguments */
    TOOL_PARSER_END,   /* the call is complete */
};

struct tool_parser_event {
    enum tool_parser_kind kind;
    uint32_t index;
    const char *name; /* TOOL_PARSER_BEGIN */
    const char *text; /* [n], not NUL-terminated; valid during the callback */
    size_t n;
};
typedef void (*tool_parser_fn)(void *user, const struct tool_parser_event *event);

struct tool_parser;

enum tool_parser_family tool_parser_of_vocabulary(const struct trie *trie);

sac_status tool_parser_create(struct tool_parser **out, enum tool_parser_family family,
                              tool_parser_fn fn, void *user, sac_error *err);
void tool_parser_free(struct tool_parser *t);
/* Treats calls of names other than `name` [n] (borrowed) as text. By default all names are
 * accepted. */
void tool_parser_offer(struct tool_parser *t, char *const *name, uint32_t n);
sac_status tool_parser_feed(struct tool_parser *t, const char *text, size_t n, sac_error *err);
/* Ends the answer: what was held back is sent as a call or as text. */
sac_status tool_parser_finish(struct tool_parser *t, sac_error *err);
/* Number of calls so far; if there are any, the finish reason is "tool_calls". */
uint32_t tool_parser_count(const struct tool_parser *t);

#endif
