/* mask.h: the tokens that may follow a state. */
#ifndef SAC_GRAMMAR_MASK_H
#define SAC_GRAMMAR_MASK_H

#include "grammar/automaton.h"

/* The mask of a config, [mask_words], computed unless cached; NULL with `full` or `wide` set: a
 * limit was reached. Valid until the next call. */
const uint64_t *mask_of(struct automaton *m, uint32_t config);

#endif
