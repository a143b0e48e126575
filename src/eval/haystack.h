/* haystack.h: a long text that needles are hidden in: cut at words to a size, and opened between
 * sentences. Immutable after creation. */
#ifndef SAC_EVAL_HAYSTACK_H
#define SAC_EVAL_HAYSTACK_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

struct haystack {
    char *text; /* owned */
    size_t n_bytes;
    size_t *word_end; /* [n_word] offsets behind each word, owned */
    size_t n_word;
    uint64_t hash; /* of the text: names it in the identity of a run */
};

/* Copies `text`, which must hold a word. */
sac_status haystack_init(struct haystack *h, const char *text, size_t n_bytes, sac_error *err);
/* Generated prose, the same for a seed. */
sac_status haystack_init_prose(struct haystack *h, uint64_t seed, sac_error *err);
void haystack_deinit(struct haystack *h);

/* Appends the first `n` words with what stands between them; the text is repeated, a blank line
 * between, when it is too short. */
void haystack_words(const struct haystack *h, struct strbuf *out, size_t n);

/* Sentences begin at 0 and behind white space that follows '.', '!' or '?' (quotes and brackets may
 * stand between). `*out` [*out_n] is owned by the caller (mem_free). */
sac_status haystack_sentences(size_t **out, size_t *out_n, const char *text, size_t n_bytes,
                              sac_error *err);

/* Texts to put into a body, each before the byte `at`, in rising order of `at`. */
struct insertion {
    size_t at;
    const char *text;
};
/* Appends body and insertions, a blank on both sides of each where there is no white space. */
void haystack_insert(struct strbuf *out, const char *body, size_t n_bytes,
                     const struct insertion *in, size_t n);

#endif
