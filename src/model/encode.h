/* encode.h: what the two kinds of tokenizers share while they encode: the growing list of ids and
 * the cache of words. One `struct encode` exists for one call of tokenizer_encode. */
#ifndef SAC_MODEL_ENCODE_H
#define SAC_MODEL_ENCODE_H

#include "base/status.h"
#include "model/merge.h"

#define ENCODE_WORD_MAX 64u /* bytes; longer words are rarely met again */

struct encode_slot {
    const char *word; /* borrowed from the text; NULL: empty */
    uint32_t id_at;   /* where its ids were written first */
    uint16_t tag;     /* of the hash: spares most comparisons with another word */
    uint8_t n, n_id;  /* bytes and ids of the word */
};

struct encode {
    int32_t *id; /* owned, [capacity] */
    size_t n, capacity;
    struct merge merge;
    struct encode_slot *slot; /* owned, [slot_mask + 1], NULL: no cache */
    size_t slot_mask;
    bool failed; /* no memory: ids are missing */
};

/* `n_text`, the bytes to encode in all, sets the size of the cache. The words' text must stay in
 * place until encode_deinit. */
void encode_init(struct encode *e, size_t n_text);
void encode_deinit(struct encode *e);

void encode_put(struct encode *e, int32_t id);
/* If the word was encoded before, writes its ids again and is true. Else `*out_hash` is for
 * encode_remember. */
bool encode_repeat(struct encode *e, const char *word, size_t n, uint64_t *out_hash);
/* The ids written since `id_at` are those of the word, of which there may be any number. */
void encode_remember(struct encode *e, const char *word, size_t n, uint64_t hash, size_t id_at);

#endif
