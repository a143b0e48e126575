/* strtab.h: texts with the ids 0, 1, 2, ..., and a lookup from a text to its id.
 *
 * Contract: texts are bytes, not NUL terminated, and copied. Reading is thread safe once no more
 * texts are added. */
#ifndef SAC_MODEL_STRTAB_H
#define SAC_MODEL_STRTAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STRTAB_NONE UINT32_MAX

struct strtab_slot {
    uint32_t tag; /* upper half of the hash, which avoids most comparisons */
    uint32_t id;  /* STRTAB_NONE: empty */
};

struct strtab {
    char *text;               /* owned, [text_capacity]: all texts, concatenated */
    uint32_t *end;            /* owned, [capacity]: where text i ends and i + 1 starts */
    struct strtab_slot *slot; /* owned, [slot_mask + 1], at most half full */
    size_t text_capacity;
    uint32_t n, capacity, slot_mask;
};

/* Makes room for `n` texts of `bytes` in all. False: no memory, or too much for 32-bit offsets. */
bool strtab_reserve(struct strtab *t, size_t n, size_t bytes);
void strtab_deinit(struct strtab *t); /* also of a zeroed table */

/* Appends a text as id `t->n`; of equal texts the first one is found. With `findable` false the
 * text only takes an id. False: as for strtab_reserve. */
bool strtab_add(struct strtab *t, const char *s, size_t n, bool findable);
uint32_t strtab_find(const struct strtab *t, const char *s, size_t n); /* or STRTAB_NONE */

static inline const char *strtab_get(const struct strtab *t, uint32_t id, size_t *out_n)
{
    const uint32_t at = id ? t->end[id - 1] : 0;
    *out_n = t->end[id] - at;
    return t->text + at;
}

/* ---- The hash, shared by all tables of this folder ---- */

static inline uint64_t strtab_mix(uint64_t a, uint64_t b)
{
    const unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

/* Up to 8 bytes as a number that differs for all texts of one length, without reading outside of
 * [s, s + n). */
static inline uint64_t strtab_load(const char *s, size_t n)
{
    const uint8_t *const u = (const uint8_t *)s;
    if (n >= 4) {
        uint32_t lo, hi;
        memcpy(&lo, s, 4);
        memcpy(&hi, s + n - 4, 4);
        return lo | (uint64_t)hi << 32;
    }
    return n ? (uint64_t)u[0] | (uint64_t)u[n / 2] << 8 | (uint64_t)u[n - 1] << 16 : 0;
}

static inline uint64_t strtab_load8(const char *s)
{
    uint64_t w;
    memcpy(&w, s, sizeof w);
    return w;
}

static inline uint64_t strtab_hash(const char *s, size_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ n;
    for (; n > 8; s += 8, n -= 8) h = strtab_mix(h ^ strtab_load8(s), 0xa0761d6478bd642fu);
    return strtab_mix(h ^ strtab_load(s, n), 0xe7037ed1a0b428dbu);
}

/* memcmp(a, b, n) == 0 without the call for the lengths that words have. */
static inline bool strtab_equal(const char *a, const char *b, size_t n)
{
    if (n > 16) return memcmp(a, b, n) == 0;
    if (n > 8)
        return strtab_load8(a) == strtab_load8(b) &&
               strtab_load8(a + n - 8) == strtab_load8(b + n - 8);
    return strtab_load(a, n) == strtab_load(b, n);
}

#endif
