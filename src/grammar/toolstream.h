/* toolstream.h: calls of tools, found in the text of an answer while it comes.
 *
 * Each family of models writes calls in a way of its own; a parser is told which
 * (toolstream_of_vocabulary) and gets the text in pieces of any size, those of control tokens
 * included (sac_token_piece with `special`). What is no call is passed on as text; only what may
 * become the beginning of a call is held back. A call that turns out not to be one (broken JSON, no
 * name, a name that toolstream_offer does not list) is given back as text, so nothing is lost.
 * Texts of a call are limited to TOOLSTREAM_BYTES_MAX, then they are text. An answer may begin with
 * the JSON of a call without its marker: models forget it, and where it is a control token the text
 * of an answer lacks it.
 *
 * Arguments are the text of a JSON object, which breaks off where the answer does. One thread at a
 * time. */
#ifndef SAC_GRAMMAR_TOOLSTREAM_H
#define SAC_GRAMMAR_TOOLSTREAM_H

#include "base/status.h"
#include "grammar/trie.h"

#define TOOLSTREAM_BYTES_MAX (1u << 20)
#define TOOLSTREAM_NAME_MAX  128u

enum toolstream_family {
    TOOLSTREAM_HERMES,  /* <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen */
    TOOLSTREAM_LLAMA3,  /* {"name": ..., "parameters": {...}}, <|python_tag|>code or the same */
    TOOLSTREAM_MISTRAL, /* [TOOL_CALLS][{"name": ..., "arguments": {...}}] or NAME[ARGS]{...} */
    TOOLSTREAM_GEMMA,   /* ```tool_code with Llama's JSON or a Python call */
};

enum toolstream_kind {
    TOOLSTREAM_TEXT,  /* `text` outside calls */
    TOOLSTREAM_BEGIN, /* call number `index` of the answer begins; its `name` is known */
    TOOLSTREAM_ARGS,  /* `text` is the next part of its arguments */
    TOOLSTREAM_END,   /* the call is complete */
};

struct toolstream_event {
    enum toolstream_kind kind;
    uint32_t index;
    const char *name; /* TOOLSTREAM_BEGIN */
    const char *text; /* [n], not NUL-terminated; valid during the callback */
    size_t n;
};
typedef void (*toolstream_fn)(void *user, const struct toolstream_event *event);

struct toolstream;

enum toolstream_family toolstream_of_vocabulary(const struct trie *trie);

sac_status toolstream_create(struct toolstream **out, enum toolstream_family family,
                             toolstream_fn fn, void *user, sac_error *err);
void toolstream_free(struct toolstream *t);
/* Treats calls of names other than `name` [n] (borrowed) as text. By default all names are
 * accepted. */
void toolstream_offer(struct toolstream *t, char *const *name, uint32_t n);
sac_status toolstream_feed(struct toolstream *t, const char *text, size_t n, sac_error *err);
/* Ends the answer: what was held back is sent as a call or as text. */
sac_status toolstream_finish(struct toolstream *t, sac_error *err);
/* Number of calls so far; if there are any, the finish reason is "tool_calls". */
uint32_t toolstream_count(const struct toolstream *t);

#endif
