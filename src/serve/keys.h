/* keys.h: the API keys of the server. A lookup takes the same time whether the key exists or not,
 * and wherever it differs. Any thread may call any function. */
#ifndef SAC_SERVE_KEYS_H
#define SAC_SERVE_KEYS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct keys;

/* `key` [n] are copied; `file` (or NULL) has one key a line, `#` begins a comment. */
sac_status keys_create(struct keys **out, const char *const *key, size_t n, const char *file,
                       sac_error *err);
void keys_destroy(struct keys *k);
/* Reads the file again; on an error the old keys stay in force. */
sac_status keys_reload(struct keys *k, sac_error *err);
/* Is any key asked for? */
bool keys_wanted(struct keys *k);
/* 0: no such key. Else a number that stands for the key as long as it exists, in logs too. */
uint64_t keys_find(struct keys *k, const char *key);

#endif
