/* state_repair.h: makes the checksums of a patched saved sequence right again: what a checksum
 * keeps out is not what a test of hostile bytes is for. */
#ifndef SAC_TESTS_STATE_REPAIR_H
#define SAC_TESTS_STATE_REPAIR_H

#include <stdint.h>
#include <string.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

enum { STATE_HEAD_CHECK = 112 + 2 * 256, STATE_HEAD = STATE_HEAD_CHECK + 8 };

static inline void state_repair_one(uint8_t *at, const uint8_t *bytes, size_t n)
{
    const uint64_t sum = XXH3_64bits(bytes, n);
    memcpy(at, &sum, sizeof sum);
}

/* Where its pages begin, which are the rest. */
static inline size_t state_page_at(const uint8_t *bytes)
{
    uint64_t at;
    memcpy(&at, bytes + STATE_HEAD_CHECK - sizeof at, sizeof at);
    return at;
}

/* `good` [n] says where the parts really lie. */
static inline void state_repair(uint8_t *bytes, const uint8_t *good, size_t n)
{
    uint64_t n_page;
    const size_t at = state_page_at(good);
    memcpy(&n_page, good + STATE_HEAD_CHECK - 16, sizeof n_page);
    const size_t page = n_page ? (n - at) / n_page : 0;
    for (size_t i = 0; i < n_page; i++)
        state_repair_one(bytes + at - 8 * (n_page + 1 - i), bytes + at + i * page, page);
    state_repair_one(bytes + STATE_HEAD_CHECK, bytes, STATE_HEAD_CHECK);
    state_repair_one(bytes + at - 8, bytes, at - 8);
}

#endif
