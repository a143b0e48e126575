/* matcher.h: one text matched against a grammar: the tokens that may come next, and the step over
 * the token that came. The contract is that of automaton.h: one thread for an automaton and its
 * matchers. */
#ifndef SAC_GRAMMAR_MATCHER_H
#define SAC_GRAMMAR_MATCHER_H

#include "grammar/automaton.h"

sac_status matcher_create(struct matcher **out, struct automaton *automaton, sac_error *err);
void matcher_free(struct matcher *t);

/* Bit t % 64 of word t / 64 of `*out_mask` tells whether token t may follow. Valid until the next
 * call with this automaton. End-of-generation tokens are allowed where the grammar may end; after
 * one was accepted the mask is empty. */
sac_status matcher_mask(struct matcher *t, const uint64_t **out_mask, sac_error *err);
/* SAC_ERR_ARG: the token may not follow. */
sac_status matcher_accept(struct matcher *t, int32_t tok, sac_error *err);
/* The same for bytes; on failure nothing is accepted. */
sac_status matcher_accept_bytes(struct matcher *t, const char *bytes, size_t n, sac_error *err);
/* Whether the text may end here. */
bool matcher_can_end(const struct matcher *t);

#endif
