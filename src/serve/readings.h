/* readings.h: readings of answers, kept for GET /v1/attention/{id}: the newest ones, up to a total
 * size. They contain text of prompts, so only the key that made the request can access them. Any
 * thread may call any function. */
#ifndef SAC_SERVE_READINGS_H
#define SAC_SERVE_READINGS_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

struct readings;

/* bytes_max 0: nothing is kept. */
sac_status readings_create(struct readings **out, size_t bytes_max, sac_error *err);
void readings_destroy(struct readings *r);
/* Takes ownership of `text`. The oldest records make room; a text larger than bytes_max is
 * dropped. */
void readings_put(struct readings *r, const char *id, uint64_t key, struct strbuf *text);
/* Appends the text; false: there is none with this id and key. */
bool readings_get(struct readings *r, const char *id, uint64_t key, struct strbuf *out);

#endif
