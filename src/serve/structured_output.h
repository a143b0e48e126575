/* structured_output.h: the form that an answer must have: a grammar, a JSON schema, or a tool call.
 * Read from a request on an HTTP thread, followed token by token on the engine's thread. */
#ifndef SAC_SERVE_STRUCTURED_OUTPUT_H
#define SAC_SERVE_STRUCTURED_OUTPUT_H

#include "serve/api_request.h"

/* Reads "response_format", "json_schema" and "grammar". At most one form is allowed, including a
 * forced tool call that `a` has already. */
sac_status structured_output_read(struct api_request *a, const cJSON *body,
                                  const struct api_request_rules *rules, struct api_error *error);
/* Forces a call of one of `tools` (OpenAI's list as JSON text), or of the tool named `only`. */
sac_status structured_output_force_call(struct api_request *a, const char *tools, const char *only,
                                        const struct api_request_rules *rules,
                                        struct api_error *error);

/* The state of one text that is constrained by a grammar, allowed tokens, or both. */
struct structured_output;
sac_status structured_output_create(struct structured_output **out, struct automaton *automaton,
                                    const struct allowed_tokens *allowed, sac_error *err);
void structured_output_free(
    struct structured_output *t); /* call before freeing the automaton and the tokens */
/* The guide that constrains a request; borrows `t`. */
sac_guide structured_output_guide(struct structured_output *t);
/* The error of the grammar, if it reached a limit; `t` may be NULL. */
sac_status structured_output_status(const struct structured_output *t, const char **out_why);

#endif
