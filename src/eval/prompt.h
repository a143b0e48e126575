/* prompt.h: from messages or raw text to the tokens of a prompt. */
#ifndef SAC_EVAL_PROMPT_H
#define SAC_EVAL_PROMPT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The caller owns `*out_tok` (sac_free). A BOS that the model wants occurs exactly once, whether or
 * not the text begins with it; nothing is appended to the text. */
sac_status prompt_tokens(const sac_model *model, const char *text, size_t n_bytes,
                         int32_t **out_tok, size_t *out_n, sac_error *err);

/* Renders the messages with a chat template (NULL: the model's own) up to the start of the
 * assistant's answer, and encodes the result; control tokens spelled out in messages stay text. */
sac_status prompt_chat(const sac_model *model, const sac_message *msgs, size_t n_msg,
                       const char *chat_template, int32_t **out_tok, size_t *out_n, sac_error *err);

/* How a user's text becomes a prompt. */
struct prompt_form {
    const char *system;        /* system message, or NULL */
    const char *chat_template; /* NULL: the model's own */
    bool raw;                  /* the text itself, after a BOS if the model wants one */
};

/* Renders one user message, or takes the text as it is. Only a raw text may contain zero bytes. */
sac_status prompt_form_tokens(const sac_model *model, const struct prompt_form *form,
                              const struct strbuf *text, int32_t **out_tok, size_t *out_n,
                              sac_error *err);

/* The tokens with which all prompts of a form begin; possibly none. */
sac_status prompt_head(const sac_model *model, const struct prompt_form *form, int32_t **out_tok,
                       size_t *out_n, sac_error *err);

/* The template of --chat-template (returned as it is) or of the file of --chat-template-file
 * (stored in `buf`); *out is NULL if neither is given. */
sac_status prompt_template(const char **out, const char *name_or_text, const char *file,
                           struct strbuf *buf, sac_error *err);

#endif
