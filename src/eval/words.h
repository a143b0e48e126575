/* words.h: the vocabulary that generated tasks draw from. Indices out of range are a programmer's
 * error. */
#ifndef SAC_EVAL_WORDS_H
#define SAC_EVAL_WORDS_H

#include <stdint.h>

#define WORDS_N_CATEGORY 8u

uint32_t words_n_adjective(void);
const char *words_adjective(uint32_t i);
uint32_t words_n_verb(void);
const char *words_verb(uint32_t i);
uint32_t words_n_noun(void);
/* `*out_category` (or NULL) gets the kind of thing that the noun names. */
const char *words_noun(uint32_t i, uint32_t *out_category);
/* "animal", "food", ... */
const char *words_category(uint32_t category);

#endif
