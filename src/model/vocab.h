/* vocab.h: the tokens of a model's file: texts, kinds, scores, special ids, and the bytes that each
 * token represents in text. */
#ifndef SAC_MODEL_VOCAB_H
#define SAC_MODEL_VOCAB_H

#include "model/gguf.h"
#include "model/strtab.h"

#define VOCAB_NO_TOKEN (-1)

/* How the vocabulary spells text. */
enum vocab_spelling {
    VOCAB_BYTE_LEVEL, /* each byte is one printable character (GPT-2) */
    VOCAB_SPM,        /* blanks are U+2581, bytes without a token are <0xNN> */
};

/* Kinds of tokens; a token may be of several. */
enum {
    VOCAB_NORMAL = 1,
    VOCAB_UNKNOWN = 2,
    VOCAB_CONTROL = 4,
    VOCAB_USER = 8, /* found in text before everything else */
    VOCAB_BYTE = 16,
    VOCAB_EOG = 32,    /* ends a generation */
    VOCAB_STRIPS = 64, /* strips the white space after it in a text */
};

struct vocab {
    enum vocab_spelling spelling;
    uint32_t n_tok;
    struct strtab text; /* ids 0 .. n_tok - 1 as in the file; a tokenizer may add more after them */
    uint8_t *kind;      /* owned, [n_tok] VOCAB_* */
    float *score;       /* owned, [n_tok]; NULL for byte level */
    char *piece;        /* owned: bytes of all tokens, concatenated */
    uint32_t *piece_end; /* owned, [n_tok] */
    int32_t bos, eos, unk;
    bool add_bos, add_eos, add_space_prefix;
};

/* Defaults of the kind of tokenizer, where the file has no key. */
struct vocab_defaults {
    enum vocab_spelling spelling;
    int32_t bos, eos, unk; /* ignored if the vocabulary is smaller */
    bool add_bos, add_space_prefix;
};

/* Fills a zeroed `v`; it needs vocab_deinit even after an error. */
sac_status vocab_init(struct vocab *v, const struct gguf *g, const struct vocab_defaults *d,
                      sac_error *err);
void vocab_deinit(struct vocab *v);

/* VOCAB_NO_TOKEN if no token has this text. */
static inline int32_t vocab_find(const struct vocab *v, const char *s, size_t n)
{
    const uint32_t id = strtab_find(&v->text, s, n);
    return id < v->n_tok ? (int32_t)id : VOCAB_NO_TOKEN;
}

/* The character that stands for a byte in a byte-level vocabulary. */
uint32_t vocab_byte_char(uint8_t byte);

#endif
