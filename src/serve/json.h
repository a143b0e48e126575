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
    uint32_t depth;   /* nesting of arrays and objects */
    uint32_t values;  /* total; each takes about 64 bytes when parsed */
    uint32_t members; /* of one object: lookups are linear */
};

struct json_limits json_limits_default(void);

/* The caller owns `*out` (cJSON_Delete). SAC_ERR_FORMAT: not JSON, or a name occurs twice in an
 * object, which other parsers might read differently; SAC_ERR_ARG: a limit is exceeded. */
sac_status json_parse(cJSON **out, const char *text, size_t n, const struct json_limits *limits,
                      sac_error *err);

/* The member; NULL if it is missing or null. */
const cJSON *json_get(const cJSON *object, const char *name);

/* Whether the value is an integer from 0 to `max`, which then goes to `*out`. */
bool json_index(const cJSON *value, int32_t max, int32_t *out);

/* Whether the member is the string `want`. */
bool json_says(const cJSON *object, const char *name, const char *want);
/* Adds a copy of from's member `name`, if present, to `to` under the name `as`. */
void json_copy(cJSON *to, const char *as, const cJSON *from, const char *name);

/* Adds any bytes as a string: NUL and bytes that are not UTF-8 become U+FFFD. */
void json_add_text(cJSON *object, const char *name, const char *text, size_t n);
cJSON *json_text(const char *text, size_t n);
/* As json_text; a failed buffer fails the pool. */
cJSON *json_text_of(const struct strbuf *text);

/* Appends the value on one line and frees it. The buffer fails if the value is NULL or the pool has
 * failed. */
void json_print(struct strbuf *out, cJSON *value);

/* ---- Memory ----
 *
 * Code that builds JSON with cJSON does not check for failed allocations: values would be missing
 * from a response, or leak. So each call has a pool. Between json_enter and json_leave all memory
 * that the thread takes through cJSON belongs to the pool, which also remembers whether an
 * allocation failed. If one did, json_print fails and with it the whole response; what was leaked
 * is freed with the pool. Outside of pools cJSON allocates as usual. */

struct json_pool {
    struct json_block *first; /* owned */
    bool failed;
};

/* Call once, before the first use of JSON in the process. */
void json_install(void);
void json_enter(struct json_pool *pool);
void json_leave(void);
/* Frees what is left; values of the pool become invalid. */
void json_pool_deinit(struct json_pool *pool);

/* Bytes of the UTF-8 character at `s` [n]; 0: not a valid one. */
size_t json_utf8_bytes(const char *s, size_t n);

#endif
