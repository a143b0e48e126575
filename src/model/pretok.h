/* pretok.h: cuts text into the words that byte-level BPE merges within, by the regular expressions
 * that a model was trained with (`tokenizer.ggml.pre`). */
#ifndef SAC_MODEL_PRETOK_H
#define SAC_MODEL_PRETOK_H

#include "base/status.h"

struct pretok; /* compiled patterns, immutable: any number of threads may use it */

/* What a pre-tokeniser's name implies beyond its patterns. */
struct pretok_traits {
    bool ignore_merges; /* a word that is a token becomes that token without merging */
    bool add_bos;       /* unless the file says otherwise */
    bool no_bos;        /* no default BOS token */
};

/* `key` names the source in messages. An unknown name is SAC_ERR_UNSUPPORTED; the message lists
 * known ones. */
sac_status pretok_create(struct pretok **out, const char *name, size_t n_name, const char *key,
                         sac_error *err);
void pretok_destroy(struct pretok *p);
struct pretok_traits pretok_get_traits(const struct pretok *p);
/* One name of row `i` of the table, NULL after the last; for tests. */
const char *pretok_name_at(size_t i);

/* Matching state of one call of tokenizer_encode. */
struct pretok_run;
sac_status pretok_run_create(struct pretok_run **out, const struct pretok *p, sac_error *err);
void pretok_run_destroy(struct pretok_run *r);

/* Called for every word, in order; the words cover the text. */
typedef void (*pretok_word_fn)(void *user, size_t at, size_t n);
/* `text` must be strictly valid UTF-8. */
sac_status pretok_split(struct pretok_run *r, const char *text, size_t n, pretok_word_fn fn,
                        void *user, sac_error *err);

#endif
