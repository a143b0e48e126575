/* bounds.h: the tokens that an answer may contain, whatever its form: vLLM's "allowed_token_ids"
 * and "bad_words". Read from a request on an HTTP thread, then constant and shared by all its
 * answers. */
#ifndef SAC_SERVE_BOUNDS_H
#define SAC_SERVE_BOUNDS_H

#include "serve/json.h"
#include "serve/refusal.h"

#define BOUNDS_WORDS_MAX 256u /* bad words of a request */
#define BOUNDS_TOK_MAX   32u  /* tokens of a bad word */

struct bounds;

/* `*out` is NULL if the body has neither field; free it with bounds_free. */
sac_status bounds_read(struct bounds **out, const cJSON *body, const sac_model *model,
                       struct refusal *ref);
void bounds_free(struct bounds *b);
/* 64-bit words of a mask over the vocabulary (sac_guide). */
size_t bounds_mask_words(const struct bounds *b);
/* Clears the tokens in `mask` that must not follow `said`, the last n_said (up to BOUNDS_TOK_MAX)
 * tokens of the answer. */
void bounds_apply(const struct bounds *b, const int32_t *said, size_t n_said, uint64_t *mask);

#endif
