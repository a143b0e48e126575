/* api_keys.h: the API keys of the server. A lookup takes the same time whether the key exists or
 * not, and wherever it differs. Any thread may call any function. */
#ifndef SAC_SERVE_API_KEYS_H
#define SAC_SERVE_API_KEYS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_keys;

/* Copies `key` [n]. `file` (or NULL) has one key per line; `#` starts a comment. */
sac_status api_keys_create(struct api_keys **out, const char *const *key, size_t n,
                           const char *file, sac_error *err);
void api_keys_destroy(struct api_keys *k);
/* Reads the file again; after an error the old keys remain valid. */
sac_status api_keys_reload(struct api_keys *k, sac_error *err);
/* Whether requests need a key. */
bool api_keys_wanted(struct api_keys *k);
/* Returns an id of the key, which is stable and may be logged; 0: unknown key. */
uint64_t api_keys_find(struct api_keys *k, const char *key);

#endif
