/* dialogue.h: the messages of a chat request, from the JSON of any API to the tokens of a prompt.
 * A zeroed struct is empty. Texts are copies. */
#ifndef SAC_SERVE_DIALOGUE_H
#define SAC_SERVE_DIALOGUE_H

#include "serve/api_request.h"

struct dialogue {
    sac_message *msg; /* owned, [n], with its strings */
    size_t n, room;
    size_t n_lead;      /* messages added before the request's: 0 or 1 */
    char *tools, *vars; /* owned; JSON for the template, or NULL */
    bool open_end;      /* no assistant turn is opened */
    bool goes_on;       /* the answer continues the last message */
};

void dialogue_deinit(struct dialogue *d);
/* Adds a message; content and extra_json may be NULL. */
sac_status dialogue_add(struct dialogue *d, const char *role, const char *content,
                        const char *extra_json, struct api_error *error);
/* Whether the message contains tool calls. */
bool dialogue_has_calls(const sac_message *m);
/* Appends a message to `list`, which owns it; the caller adds the content. */
cJSON *dialogue_add_message(cJSON *list, const char *role);
/* Reads "messages", "chat_template_kwargs" and related fields of a chat completion. */
sac_status dialogue_read(struct dialogue *d, const cJSON *body, struct api_error *error);
/* Reads "tools" and "tool_choice". If the template does not support tools, they are described in
 * the system message, and calls and results are written in Hermes' format. */
sac_status dialogue_tools(struct dialogue *d, struct api_request *a, const cJSON *body,
                          const struct api_request_rules *rules, struct api_error *error);
/* Appends the text of a message's content: a string, or a list of text parts joined by newlines. */
sac_status dialogue_content(struct strbuf *out, const cJSON *content, struct api_error *error);
/* Renders the dialogue with the template and adds its tokens to `a` as a prompt. */
sac_status dialogue_to_prompt(const struct dialogue *d, struct api_request *a,
                              const struct api_request_rules *rules, struct api_error *error);
/* Renders it to text; the caller frees `*out_text` (sac_free). */
sac_status dialogue_render(const struct dialogue *d, const struct api_request_rules *rules,
                           char **out_text, struct api_error *error);

#endif
