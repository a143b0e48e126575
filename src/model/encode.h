/* encode.h: what the two kinds of tokenizers share while they encode: the growing list of ids and
 * the cache of words. One `struct encode` lives through one call of tokenizer_encode. */
#ifndef SAC_MODEL_ENCODE_H
#define SAC_MODEL_ENCODE_H

#include "base/status.h"
#include "model/merge.h"

#define ENCODE_WORD_MAX 64u /* bytes; longer words are rarely met again */

struct encode_slot {
    const char *word; /* borrowed from the text; NULL: empty */
    uint32_t n;       /* bytes of the word */
    uint32_t n_id;
    size_t id_at; /* where its ids were written first */
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
/* If the word was encoded before, writes its ids again and is true. Else `*out_slot` is where
 * encode_remember notes it, or NULL for words that are not kept. */
bool encode_repeat(struct encode *e, const char *word, size_t n, struct encode_slot **out_slot);
/* The ids written since `id_at` are those of the word. */
void encode_remember(struct encode *e, struct encode_slot *slot, const char *word, size_t n,
                     size_t id_at);

#endif
