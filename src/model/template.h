/* template.h: chat templates. A bounded interpreter of the Jinja subset that templates of models
 * use. Templates are hostile input: no I/O, and limits on parse depth, steps, recursion and output
 * (TEMPLATE_*). The result equals that of the `jinja2` package with trim_blocks and lstrip_blocks
 * as the transformers library sets them. */
#ifndef SAC_MODEL_TEMPLATE_H
#define SAC_MODEL_TEMPLATE_H

#include "base/status.h"

#include <stdint.h>

#define TEMPLATE_DEPTH_MAX  64u
#define TEMPLATE_STEPS_MAX  1000000u
#define TEMPLATE_OUTPUT_MAX ((size_t)4 << 20)

struct tokenizer;

struct template_input {
    const sac_message *msgs; /* [n_msg] */
    size_t n_msg;
    const char *tools_json; /* JSON array or NULL */
    const char *vars_json;  /* JSON object of further variables or NULL */
    bool add_generation_prompt;
    const char *bos, *eos; /* texts of the tokens, "" if none */
    int64_t now;           /* seconds since 1970, for strftime_now */
    /* Guards the strings of messages and tools (tokenizer_guard), for tokenizer_encode_guarded;
     * NULL: the text is for people to read. */
    const struct tokenizer *guard;
};

/* Renders template text. `*out_text` is owned by the caller (mem_free). A template that calls
 * raise_exception gives SAC_ERR_ARG with its message; a syntax error SAC_ERR_FORMAT with the line.
 */
sac_status template_render(const char *source, size_t n, const struct template_input *in,
                           char **out_text, sac_error *err);

/* The source of a built-in template (chatml, llama2, llama3, mistral, gemma, phi3, phi4, deepseek),
 * or NULL. `template_builtin_at` lists their names, NULL after the last. */
const char *template_builtin(const char *name);
const char *template_builtin_at(size_t i);

#endif
