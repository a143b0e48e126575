/* json.h: JSON from strangers, read within limits, and what the server's own JSON is made with.
 *
 * cJSON reads and writes; what stands here bounds the work before it begins. A text is walked once
 * without memory: its nesting, the number of its values and of the members of one object are
 * counted, bytes that are no UTF-8 and NUL characters are refused (cJSON would cut a text at them).
 */
#ifndef SAC_SERVE_JSON_H
#define SAC_SERVE_JSON_H

#include "base/status.h"
#include "base/strbuf.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct json_limits {
    uint32_t depth;   /* of arrays and objects in each other */
    uint32_t values;  /* in all; each takes about 64 bytes when read */
    uint32_t members; /* of one object: they are looked up one by one */
};

struct json_limits json_limits_default(void);

/* `*out` is the caller's (cJSON_Delete). SAC_ERR_FORMAT: no JSON; SAC_ERR_ARG: beyond a limit. */
sac_status json_parse(cJSON **out, const char *text, size_t n, const struct json_limits *limits,
                      sac_error *err);

/* The member, NULL if it is missing or null: both mean that nothing was said. */
const cJSON *json_get(const cJSON *object, const char *name);

/* Is the member the text `want`? */
bool json_says(const cJSON *object, const char *name, const char *want);
/* Adds a copy of from's member `name` to another object, under the name `as`; if it is there. */
void json_copy(cJSON *to, const char *as, const cJSON *from, const char *name);

/* Adds a text of any bytes as a string: what is no UTF-8, and NUL, becomes U+FFFD. */
void json_add_text(cJSON *object, const char *name, const char *text, size_t n);
cJSON *json_text(const char *text, size_t n);

/* Appends the value in one line and deletes it. A NULL value makes the buffer failed. */
void json_print(struct strbuf *out, cJSON *value);

/* Bytes of the UTF-8 character at `s` [n], 0 if none begins there. */
size_t json_utf8_bytes(const char *s, size_t n);

#endif
