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

/* bytes_max 0: none is kept. */
sac_status readings_create(struct readings **out, size_t bytes_max, sac_error *err);
void readings_destroy(struct readings *r);
/* Takes over `text`. Older ones go for it; what is larger than all room is not kept. */
void readings_put(struct readings *r, const char *id, uint64_t key, struct strbuf *text);
/* Appends the text; false: none of this id and key. */
bool readings_get(struct readings *r, const char *id, uint64_t key, struct strbuf *out);

#endif
