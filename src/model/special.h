/* special.h: finds tokens that are written out in a text (`<|im_end|>`, `<table>`) and cuts the
 * text at them. */
#ifndef SAC_MODEL_SPECIAL_H
#define SAC_MODEL_SPECIAL_H

#include "model/vocab.h"

struct special {
    const struct vocab *vocab; /* borrowed */
    uint32_t *id;              /* owned, [n], sorted by text */
    uint32_t n;
    uint32_t first[257];  /* texts that start with byte b: id[first[b] .. first[b + 1]) */
    uint64_t start[1024]; /* bit (b, c): a text may start with bytes b, c; a filter */
};

/* A piece of the text: a token, or bytes to encode. */
struct special_part {
    int32_t tok; /* VOCAB_NO_TOKEN: text */
    uint32_t at, n;
};

struct special_parts {
    struct special_part *part; /* owned by the caller (mem_free) */
    size_t n, capacity;
};

/* Takes the tokens that have one of the kinds `with` and none of `without`. Fills a zeroed `s`,
 * which needs special_deinit also after an error. */
sac_status special_init(struct special *s, const struct vocab *v, unsigned with, unsigned without,
                        sac_error *err);
void special_deinit(struct special *s);

/* Longer tokens are placed before shorter ones, wherever they are; equally long ones from left to
 * right. White space after a token that strips is in no part. `n` is below 2^31. */
sac_status special_cut(const struct special *s, const char *text, size_t n,
                       struct special_parts *out, sac_error *err);

/* Whether `text` [n > 0] begins with a token, or is itself the beginning of one. */
bool special_meets(const struct special *s, const char *text, size_t n);

#endif
