/* bounds.h: the tokens that an answer may contain, whatever its form: vLLM's "allowed_token_ids"
 * and "bad_words". Read from a request on an HTTP thread, then constant and shared by all its
 * answers. */
#ifndef SAC_SERVE_BOUNDS_H
#define SAC_SERVE_BOUNDS_H

#include "serve/json.h"
#include "serve/refusal.h"

#define BOUNDS_WORDS_MAX 256u /* bad words */
#define BOUNDS_TOK_MAX   32u  /* tokens of one of them */

struct bounds;

/* `*out` is NULL where the body has neither field; bounds_free. */
sac_status bounds_read(struct bounds **out, const cJSON *body, const sac_model *model,
                       struct refusal *ref);
void bounds_free(struct bounds *b);
/* Words of a mask over the vocabulary (sac_guide). */
size_t bounds_mask_words(const struct bounds *b);
/* Takes from `mask` what may not follow the answer's last tokens `said` [n_said]; of an answer of
 * BOUNDS_TOK_MAX tokens and more, so many. */
void bounds_apply(const struct bounds *b, const int32_t *said, size_t n_said, uint64_t *mask);

#endif
