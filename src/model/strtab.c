/* strtab.c: append-only string table with open addressing and linear probing.
 *
 * The table is at most half full, so probing for a missing text ends soon. It grows only while a
 * vocabulary is loaded; lookups never change anything. */
#include "model/strtab.h"

#include "base/mem.h"

#include <assert.h>

static void insert_slot(struct strtab *t, uint64_t hash, uint32_t id)
{
    uint32_t i = (uint32_t)hash & t->slot_mask;
    while (t->slot[i].id != STRTAB_NONE) i = (i + 1) & t->slot_mask;
    t->slot[i] = (struct strtab_slot){(uint32_t)(hash >> 32), id};
}

/* Rebuilds the slots for `capacity` texts, keeping which ids can be found. */
static bool grow_slots(struct strtab *t, uint32_t capacity)
{
    uint64_t n_slot = 16;
    while (n_slot < 2 * (uint64_t)capacity) n_slot *= 2;
    struct strtab_slot *const old = t->slot;
    const size_t n_old = old ? (size_t)t->slot_mask + 1 : 0;
    if (n_slot <= n_old) return true;
    t->slot = mem_alloc(n_slot * sizeof *t->slot);
    if (!t->slot) {
        t->slot = old;
        return false;
    }
    t->slot_mask = (uint32_t)(n_slot - 1);
    memset(t->slot, 0xff, n_slot * sizeof *t->slot);
    for (size_t i = 0; i < n_old; i++) {
        if (old[i].id == STRTAB_NONE) continue;
        size_t n;
        const char *s = strtab_get(t, old[i].id, &n);
        insert_slot(t, strtab_hash(s, n), old[i].id);
    }
    mem_free(old);
    return true;
}

bool strtab_reserve(struct strtab *t, size_t n, size_t bytes)
{
    if (n > INT32_MAX || bytes > UINT32_MAX) return false;
    if (n > t->capacity) {
        uint32_t *const end = mem_realloc(t->end, n * sizeof *end);
        if (!end) return false;
        t->end = end;
        t->capacity = (uint32_t)n;
        if (!grow_slots(t, t->capacity)) return false;
    }
    if (bytes > t->text_capacity) {
        char *const text = mem_realloc(t->text, bytes);
        if (!text) return false;
        t->text = text;
        t->text_capacity = bytes;
    }
    return true;
}

void strtab_deinit(struct strtab *t)
{
    mem_free(t->text);
    mem_free(t->end);
    mem_free(t->slot);
    *t = (struct strtab){0};
}

bool strtab_add(struct strtab *t, const char *s, size_t n, bool findable)
{
    const size_t used = t->n ? t->end[t->n - 1] : 0;
    if (t->n == t->capacity && !strtab_reserve(t, 2 * (size_t)t->capacity + 16, used)) return false;
    if (n > t->text_capacity - used && !strtab_reserve(t, t->n, 2 * (used + n))) return false;
    if (n) memcpy(t->text + used, s, n);
    if (findable && strtab_find(t, s, n) == STRTAB_NONE) insert_slot(t, strtab_hash(s, n), t->n);
    t->end[t->n++] = (uint32_t)(used + n);
    return true;
}

uint32_t strtab_find(const struct strtab *t, const char *s, size_t n)
{
    if (t->n == 0) return STRTAB_NONE;
    const uint64_t hash = strtab_hash(s, n);
    const uint32_t tag = (uint32_t)(hash >> 32);
    for (uint32_t i = (uint32_t)hash & t->slot_mask;; i = (i + 1) & t->slot_mask) {
        const struct strtab_slot slot = t->slot[i];
        if (slot.id == STRTAB_NONE) return STRTAB_NONE;
        if (slot.tag != tag) continue;
        size_t n_have;
        const char *have = strtab_get(t, slot.id, &n_have);
        if (n_have == n && strtab_equal(have, s, n)) return slot.id;
    }
}
