/* dialogue.h: the messages of a chat request, from the JSON of any API to the tokens of a prompt.
 * A zeroed struct is empty. Texts are copies. */
#ifndef SAC_SERVE_DIALOGUE_H
#define SAC_SERVE_DIALOGUE_H

#include "serve/ask.h"

struct dialogue {
    sac_message *msg; /* owned with its texts, [n] */
    size_t n, room;
    size_t n_lead;      /* of them, before those of the request: 0 or 1 */
    char *tools, *vars; /* owned; for the template, or NULL */
    bool open_end;      /* the assistant's turn is not opened */
    bool goes_on;       /* it is, and begins with the last message */
};

void dialogue_deinit(struct dialogue *d);
/* Adds a message; content and extra_json may be NULL. */
sac_status dialogue_add(struct dialogue *d, const char *role, const char *content,
                        const char *extra_json, struct refusal *ref);
/* Does it call tools? */
bool dialogue_has_calls(const sac_message *m);
/* Appends a message in the words of a chat completion; the list's, for its content to be added. */
cJSON *dialogue_add_message(cJSON *list, const char *role);
/* "messages", "chat_template_kwargs" and so on of a chat completion. */
sac_status dialogue_read(struct dialogue *d, const cJSON *body, struct refusal *ref);
/* "tools" and "tool_choice" of a chat completion. Templates that say nothing of tools are helped:
 * the tools are told in the system's message, calls and results in the words of Hermes. */
sac_status dialogue_tools(struct dialogue *d, struct ask *a, const cJSON *body,
                          const struct ask_rules *rules, struct refusal *ref);
/* The text of a message's content: a text, or a list of text parts, which lines join. `*out` is
 * appended to. */
sac_status dialogue_content(struct strbuf *out, const cJSON *content, struct refusal *ref);
/* Renders with the template and hands the tokens to the ask. */
sac_status dialogue_to_prompt(const struct dialogue *d, struct ask *a,
                              const struct ask_rules *rules, struct refusal *ref);
/* The same as text. `*out_text` is owned by the caller (sac_free). */
sac_status dialogue_render(const struct dialogue *d, const struct ask_rules *rules, char **out_text,
                           struct refusal *ref);

#endif
