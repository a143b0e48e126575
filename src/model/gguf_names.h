/* gguf_names.h: finds keys and tensors by name. An index over an array whose items begin with a
 * `const char *name`; the array must not move while the index is in use.
 *
 * Names come from hostile files, so the hash is seeded by the system: no one can prepare a file
 * whose names all collide. Order of iteration is the array's; the seed never shows. */
#ifndef SAC_MODEL_GGUF_NAMES_H
#define SAC_MODEL_GGUF_NAMES_H

#include "base/status.h"

#include <stdint.h>

#define GGUF_NAMES_NONE SIZE_MAX

struct gguf_names {
    const void *items; /* borrowed */
    size_t stride;     /* bytes from item to item */
    uint32_t *slots;   /* [mask + 1], owned: item index + 1, 0 for free */
    size_t mask;
    uint64_t seed;
};

/* Indexes `n` items. When a name occurs twice, `*out_twin` gets the index of the second one and the
 * index must not be used; else GGUF_NAMES_NONE. On failure nothing needs to be freed. */
sac_status gguf_names_init(struct gguf_names *x, const void *items, size_t n, size_t stride,
                           size_t *out_twin, sac_error *err);
void gguf_names_deinit(struct gguf_names *x);
/* Index of the item, or GGUF_NAMES_NONE. */
size_t gguf_names_find(const struct gguf_names *x, const char *name);

#endif
