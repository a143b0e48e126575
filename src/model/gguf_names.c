/* gguf_names.c: open addressing with linear probes, at most half full.
 *
 * Invariants: the number of slots is a power of two and at least twice the number of items, so a
 * probe always ends at a free slot; a slot holds item index + 1. Built once, then read-only. */
#include "model/gguf_names.h"

#include "base/mem.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* FNV-1a from a secret seed, then mixed, because the low bits of FNV depend on few input bits. */
static uint64_t hash(uint64_t seed, const char *name)
{
    uint64_t h = seed;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return h ^ h >> 32;
}

static const char *item_name(const struct gguf_names *x, size_t i)
{
    const char *name;
    memcpy(&name, (const uint8_t *)x->items + i * x->stride, sizeof name);
    return name;
}

/* The slot that holds `name`, or the free one into which it belongs. */
static size_t probe(const struct gguf_names *x, const char *name)
{
    size_t at = hash(x->seed, name) & x->mask;
    while (x->slots[at] && strcmp(item_name(x, x->slots[at] - 1), name) != 0)
        at = (at + 1) & x->mask;
    return at;
}

sac_status gguf_names_init(struct gguf_names *x, const void *items, size_t n, size_t stride,
                           size_t *out_twin, sac_error *err)
{
    assert(n < UINT32_MAX / 4 && stride >= sizeof(const char *));
    *x = (struct gguf_names){.items = items, .stride = stride};
    *out_twin = GGUF_NAMES_NONE;
    if (getrandom(&x->seed, sizeof x->seed, 0) != (ssize_t)sizeof x->seed)
        return error_set(err, SAC_ERR_IO, "no random bytes from the system: %s", strerror(errno));
    size_t n_slot = 16;
    while (n_slot < 2 * n) n_slot *= 2;
    x->slots = mem_calloc(n_slot, sizeof *x->slots);
    if (!x->slots) return error_set(err, SAC_ERR_MEMORY, "no memory to index %zu names", n);
    x->mask = n_slot - 1;
    for (size_t i = 0; i < n; i++) {
        const size_t at = probe(x, item_name(x, i));
        if (x->slots[at]) {
            *out_twin = i;
            gguf_names_deinit(x);
            return SAC_OK;
        }
        x->slots[at] = (uint32_t)i + 1;
    }
    return SAC_OK;
}

void gguf_names_deinit(struct gguf_names *x)
{
    mem_free(x->slots);
    *x = (struct gguf_names){0};
}

size_t gguf_names_find(const struct gguf_names *x, const char *name)
{
    if (!x->slots) return GGUF_NAMES_NONE; /* never built */
    const uint32_t slot = x->slots[probe(x, name)];
    return slot ? slot - 1 : GGUF_NAMES_NONE;
}
