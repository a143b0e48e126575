/* shape.h: the form that an answer must have: a grammar, a JSON schema, or a tool call. Read from a
 * request on an HTTP thread, followed token by token on the engine's thread. */
#ifndef SAC_SERVE_SHAPE_H
#define SAC_SERVE_SHAPE_H

#include "serve/ask.h"

/* "response_format", "json_schema" and "grammar". A form that `a` has already (a call that must
 * come) goes with none of them. */
sac_status shape_read(struct ask *a, const cJSON *body, const struct ask_rules *rules,
                      struct refusal *ref);
/* A call of one of `tools`, OpenAI's list as text, or of the one named `only` (NULL: any). */
sac_status shape_call(struct ask *a, const char *tools, const char *only,
                      const struct ask_rules *rules, struct refusal *ref);

/* One text that follows the form and keeps within its bounds; one of the two may be NULL. */
struct shape_text;
sac_status shape_text_create(struct shape_text **out, struct machine *machine,
                             const struct bounds *bounds, sac_error *err);
void shape_text_free(struct shape_text *t); /* before the machine and the bounds */
/* What keeps a request to the form; borrows `t`. */
sac_guide shape_text_guide(struct shape_text *t);
/* Why the form let nothing more follow, SAC_OK if it did; `t` may be NULL. */
sac_status shape_text_status(const struct shape_text *t, const char **out_why);

#endif
