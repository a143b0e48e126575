/* json.h: reads untrusted JSON within limits, and helps to write the server's own.
 *
 * cJSON reads and writes; this file bounds the work before it begins. A text is walked once without
 * allocating: its nesting, the number of its values and of the members of one object are counted,
 * and invalid UTF-8 and NUL characters are refused (cJSON would truncate a text at them). */
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

/* `*out` is the caller's (cJSON_Delete). SAC_ERR_FORMAT: no JSON, or an object has two members of
 * one name, of which another reader would take the other; SAC_ERR_ARG: beyond a limit. */
sac_status json_parse(cJSON **out, const char *text, size_t n, const struct json_limits *limits,
                      sac_error *err);

/* The member, NULL if it is missing or null: both mean that nothing was said. */
const cJSON *json_get(const cJSON *object, const char *name);

/* Is the value a whole number from 0 to `max`? Then it goes to `*out`. */
bool json_index(const cJSON *value, int32_t max, int32_t *out);

/* Is the member the text `want`? */
bool json_says(const cJSON *object, const char *name, const char *want);
/* Adds a copy of from's member `name` to another object, under the name `as`; if it is there. */
void json_copy(cJSON *to, const char *as, const cJSON *from, const char *name);

/* Adds a text of any bytes as a string: what is no UTF-8, and NUL, becomes U+FFFD. */
void json_add_text(cJSON *object, const char *name, const char *text, size_t n);
cJSON *json_text(const char *text, size_t n);
/* Of a buffer, whose failure is the pool's. */
cJSON *json_text_of(const struct strbuf *text);

/* Appends the value in one line and deletes it. A NULL value makes the buffer failed, and so does a
 * pool that has failed. */
void json_print(struct strbuf *out, cJSON *value);

/* ---- Memory ----
 *
 * What builds JSON goes on as if there were memory, and what it could not have would be missing
 * from an answer, or never freed. So each call has a pool: a thread works for it between json_enter
 * and json_leave, and what cJSON takes from there belongs to the pool, which knows whether anything
 * could not be had. Then json_print fails, and so does the answer as a whole; what was not freed
 * goes with the pool. Outside of a pool cJSON's memory is the program's, as ever. */

struct json_pool {
    struct json_block *first; /* owned */
    bool failed;
};

/* Once, before the first JSON of the process. */
void json_install(void);
void json_enter(struct json_pool *pool);
void json_leave(void);
/* Frees what is left; all values of the pool are gone. */
void json_pool_deinit(struct json_pool *pool);

/* Bytes of the UTF-8 character at `s` [n], 0 if none begins there. */
size_t json_utf8_bytes(const char *s, size_t n);

#endif
