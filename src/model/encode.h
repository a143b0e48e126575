/* encode.h: what the two kinds of tokenizers share while they encode: the growing list of ids and
 * the cache of words. One `struct encode` exists for one call of tokenizer_encode. */
#ifndef SAC_MODEL_ENCODE_H
#define SAC_MODEL_ENCODE_H

#include "base/status.h"
#include "model/merge.h"

#define ENCODE_WORD_MAX 64u /* bytes; longer words are rarely repeated */

struct encode_slot {
    const char *word; /* borrowed from the text; NULL: empty */
    uint32_t id_at;   /* index of its ids at their first occurrence */
    uint16_t tag;     /* a part of the hash, which avoids most comparisons with other words */
    uint8_t n, n_id;  /* bytes and ids of the word */
};

struct encode {
    int32_t *id; /* owned, [capacity] */
    size_t n, capacity;
    struct merge merge;
    struct encode_slot *slot; /* owned, [slot_mask + 1], NULL: no cache */
    size_t slot_mask;
    bool failed; /* out of memory: ids are missing */
};

/* The cache is sized for n_text bytes in total. The words must stay in memory until
 * encode_deinit. */
void encode_init(struct encode *e, size_t n_text);
void encode_deinit(struct encode *e);

void encode_put(struct encode *e, int32_t id);
/* If the word was encoded before, appends its ids again; otherwise false, with *out_hash for
 * encode_remember. */
bool encode_repeat(struct encode *e, const char *word, size_t n, uint64_t *out_hash);
/* Records that the ids from index id_at on, any number of them, are those of the word. */
void encode_remember(struct encode *e, const char *word, size_t n, uint64_t hash, size_t id_at);

#endif
