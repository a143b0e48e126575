/* allowed_tokens.h: the tokens that an answer may contain, whatever its form: vLLM's
 * "allowed_token_ids" and "bad_words". Read from a request on an HTTP thread, then constant and
 * shared by all its answers. */
#ifndef SAC_SERVE_ALLOWED_TOKENS_H
#define SAC_SERVE_ALLOWED_TOKENS_H

#include "serve/api_error.h"
#include "serve/json.h"

#define ALLOWED_TOKENS_WORDS_MAX 256u /* bad words of a request */
#define ALLOWED_TOKENS_WORD_TOK  32u  /* tokens of a bad word */

struct allowed_tokens;

/* `*out` is NULL if the body has neither field; free it with allowed_tokens_free. */
sac_status allowed_tokens_read(struct allowed_tokens **out, const cJSON *body,
                               const sac_model *model, struct api_error *error);
void allowed_tokens_free(struct allowed_tokens *b);
/* 64-bit words of a mask over the vocabulary (sac_guide). */
size_t allowed_tokens_mask_words(const struct allowed_tokens *b);
/* Clears the tokens in `mask` that must not follow `said`, the last n_said (up to
 * ALLOWED_TOKENS_WORD_TOK) tokens of the answer. */
void allowed_tokens_apply(const struct allowed_tokens *b, const int32_t *said, size_t n_said,
                          uint64_t *mask);

#endif
