/* keys.h: the API keys of the server. A lookup takes the same time whether the key exists or not,
 * and wherever it differs. Any thread may call any function. */
#ifndef SAC_SERVE_KEYS_H
#define SAC_SERVE_KEYS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keys;

/* Copies `key` [n]. `file` (or NULL) has one key per line; `#` starts a comment. */
sac_status keys_create(struct keys **out, const char *const *key, size_t n, const char *file,
                       sac_error *err);
void keys_destroy(struct keys *k);
/* Reads the file again; after an error the old keys remain valid. */
sac_status keys_reload(struct keys *k, sac_error *err);
/* Whether requests need a key. */
bool keys_wanted(struct keys *k);
/* Returns an id of the key, which is stable and may be logged; 0: unknown key. */
uint64_t keys_find(struct keys *k, const char *key);

#endif
