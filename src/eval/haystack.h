/* haystack.h: a long text in which needles are hidden: cut to a size at word boundaries, and split
 * between sentences. Immutable after creation. */
#ifndef SAC_EVAL_HAYSTACK_H
#define SAC_EVAL_HAYSTACK_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdint.h>

struct haystack {
    char *text; /* owned */
    size_t n_bytes;
    size_t *word_end; /* [n_word] offsets of the ends of words, owned */
    size_t n_word;
    uint64_t hash; /* of the text: identifies it in a run */
};

/* Copies `text`, which must contain a word. */
sac_status haystack_init(struct haystack *h, const char *text, size_t n_bytes, sac_error *err);
/* Generated prose, the same for a seed. */
sac_status haystack_init_prose(struct haystack *h, uint64_t seed, sac_error *err);
void haystack_deinit(struct haystack *h);

/* Appends the first `n` words of the text, with what separates them; a text that is too short is
 * repeated, after a blank line. */
void haystack_words(const struct haystack *h, struct strbuf *out, size_t n);

/* Sentences begin at 0 and after white space that follows '.', '!' or '?' (possibly with quotes and
 * brackets between). The caller owns `*out` [*out_n] (mem_free). */
sac_status haystack_sentences(size_t **out, size_t *out_n, const char *text, size_t n_bytes,
                              sac_error *err);

/* Texts to insert into a body, each before the byte `at`, in ascending order of `at`. */
struct insertion {
    size_t at;
    const char *text;
};
/* Appends body and insertions, with a blank on both sides of each where there is no white space. */
void haystack_insert(struct strbuf *out, const char *body, size_t n_bytes,
                     const struct insertion *in, size_t n);

#endif
