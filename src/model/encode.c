/* encode.c: ids and the word cache.
 *
 * Text repeats its words, and a word always has the same ids, so most words are looked up and
 * copied. The cache is direct mapped, lives for one call, and points at the word's first place in
 * the text and in the list of ids: it holds no bytes of its own and needs no eviction. */
#include "model/encode.h"

#include "base/mem.h"
#include "model/strtab.h"

#include <assert.h>

#define SLOTS_MIN 16u
#define SLOTS_MAX 32768u /* half a megabyte, which fits a core's own cache */

void encode_init(struct encode *e, size_t n_text)
{
    size_t n_slot = SLOTS_MIN;
    while (n_slot < SLOTS_MAX && n_slot < n_text / 16) n_slot *= 2;
    e->slot = mem_calloc(n_slot, sizeof *e->slot);
    e->slot_mask = n_slot - 1;
    e->failed = !e->slot;
}

void encode_deinit(struct encode *e)
{
    merge_deinit(&e->merge);
    mem_free(e->slot);
    mem_free(e->id);
    *e = (struct encode){0};
}

/* Room for `n` more ids. */
static bool reserve(struct encode *e, size_t n)
{
    if (n <= e->capacity - e->n) return true;
    const size_t capacity = 2 * e->capacity + n + 64;
    int32_t *const grown = mem_realloc(e->id, capacity * sizeof *grown);
    if (!grown) {
        e->failed = true;
        return false;
    }
    e->id = grown;
    e->capacity = capacity;
    return true;
}

void encode_put(struct encode *e, int32_t id)
{
    if (reserve(e, 1)) e->id[e->n++] = id;
}

bool encode_repeat(struct encode *e, const char *word, size_t n, uint64_t *out_hash)
{
    *out_hash = 0;
    if (n > ENCODE_WORD_MAX || e->failed) return false;
    const uint64_t hash = strtab_hash(word, n);
    *out_hash = hash;
    const struct encode_slot *const slot = &e->slot[hash & e->slot_mask];
    if (!slot->word || slot->n != n || slot->tag != (uint16_t)(hash >> 48)) return false;
    if (!strtab_equal(slot->word, word, n)) return false;
    if (!reserve(e, slot->n_id)) return true;
    for (size_t i = 0; i < slot->n_id; i++) e->id[e->n + i] = e->id[slot->id_at + i];
    e->n += slot->n_id;
    return true;
}

void encode_remember(struct encode *e, const char *word, size_t n, uint64_t hash, size_t id_at)
{
    assert(id_at <= e->n);
    const size_t n_id = e->n - id_at;
    if (n > ENCODE_WORD_MAX || n_id > UINT8_MAX || id_at > UINT32_MAX || e->failed) return;
    e->slot[hash & e->slot_mask] = (struct encode_slot){
        .word = word,
        .id_at = (uint32_t)id_at,
        .tag = (uint16_t)(hash >> 48),
        .n = (uint8_t)n,
        .n_id = (uint8_t)n_id,
    };
}
