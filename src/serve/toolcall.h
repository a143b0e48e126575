/* toolcall.h: calls of tools in what a model wrote, in the forms of the families that are loaded:
 *
 *   Hermes, Qwen   <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of times
 *   Llama 3        {"name": ..., "parameters": {...}}, alone or separated by ';'
 *   Mistral        [{"name": ..., "arguments": {...}}, ...]
 *   Gemma          either object or list, in a fence of three backticks
 *
 * Control tokens ([TOOL_CALLS], <|python_tag|>) do not reach the text of an answer; where they do,
 * as words, they are passed over. What names no tool that the request offers is text like any
 * other: a model that writes JSON is not calling anything. */
#ifndef SAC_SERVE_TOOLCALL_H
#define SAC_SERVE_TOOLCALL_H

#include "serve/json.h"

#define TOOLCALL_MAX 64u /* of one answer, and tools that a request offers */

struct toolcall {
    char id[32];
    char *name, *arguments; /* owned; a JSON object as text */
};

struct toolcall_list {
    struct toolcall call[TOOLCALL_MAX];
    size_t n;
    size_t n_content; /* bytes of the text that stand before the calls */
};

/* What is called in `text`; `name` [n_name] are the tools that there are. */
void toolcall_parse(struct toolcall_list *out, const char *text, size_t n, char *const *name,
                    size_t n_name);
void toolcall_deinit(struct toolcall_list *list);

/* Of a text that still grows, the bytes at its front that cannot become a part of a call. */
size_t toolcall_certain(const char *text, size_t n);

#endif
