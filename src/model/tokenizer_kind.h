/* tokenizer_kind.h: the two kinds of tokenizers, as tokenizer.c uses them. */
#ifndef SAC_MODEL_TOKENIZER_KIND_H
#define SAC_MODEL_TOKENIZER_KIND_H

#include "model/encode.h"
#include "model/pretok.h"
#include "model/special.h"

/* bytes of one call: offsets are 32-bit, and escaping triples the length */
#define TOKENIZER_TEXT_MAX ((size_t)1 << 30)

/* ---- Byte-level BPE (tokenizer_bpe.c) ---- */

struct bpe_pair {
    uint32_t left, right; /* ids of `vocab.text`; left is STRTAB_NONE in an empty slot */
    uint32_t rank, id;    /* rank of the merge, and id of its result */
};

struct bpe {
    const struct vocab *vocab; /* borrowed */
    struct pretok *pretok;     /* owned */
    struct bpe_pair *pair;     /* owned, [pair_mask + 1], open addressing, at most half full */
    uint32_t pair_mask;
    uint32_t byte_id[256]; /* STRTAB_NONE: the vocabulary has no character for the byte */
};

/* Merges may name texts that are not tokens; they are added to `v->text`. Takes ownership of
 * `pretok`, also after an error. */
sac_status tokenizer_bpe_init(struct bpe *b, struct vocab *v, const struct gguf *g,
                              struct pretok *pretok, sac_error *err);
void tokenizer_bpe_deinit(struct bpe *b);
sac_status tokenizer_bpe_encode(const struct bpe *b, struct encode *e, const char *text,
                                const struct special_parts *parts, sac_error *err);

/* ---- SentencePiece-style BPE (tokenizer_spm.c) ---- */

struct spm {
    const struct vocab *vocab; /* borrowed */
    uint32_t *key;             /* owned, [n_tok]: smaller for a higher score */
    int32_t byte_id[256];
    bool glued[256]; /* some token has U+2581 after this byte */
};

sac_status tokenizer_spm_init(struct spm *s, const struct vocab *v, const struct gguf *g,
                              sac_error *err);
void tokenizer_spm_deinit(struct spm *s);
sac_status tokenizer_spm_encode(const struct spm *s, struct encode *e, const char *text,
                                const struct special_parts *parts, sac_error *err);

#endif
