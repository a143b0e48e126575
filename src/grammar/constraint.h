/* constraint.h: an answer that follows a grammar: what a request of the engine needs.
 *
 *     trie_of_model(&trie, model, &err);                      once per model
 *     constraint_compile(&program, CONSTRAINT_SCHEMA, text, n, &err);
 *     automaton_create(&automaton, program, trie, &err);          once per grammar and thread
 *     constraint_create(&constraint, automaton, &err);          once per answer
 *     request.guide = constraint_guide(constraint);           before sac_submit
 *     ...                                                     after SAC_EVENT_DONE:
 *     constraint_free(constraint);
 *
 * Requests of one engine may share an automaton; all run on the engine's thread. An answer that
 * ended with SAC_FINISH_LENGTH is a beginning of a text of the grammar, not a whole one. */
#ifndef SAC_GRAMMAR_CONSTRAINT_H
#define SAC_GRAMMAR_CONSTRAINT_H

#include "grammar/matcher.h"

enum constraint_kind {
    CONSTRAINT_GBNF,   /* gbnf.h */
    CONSTRAINT_SCHEMA, /* schema.h */
};

struct constraint;

/* Checks and compiles a user's grammar or schema; `*out` is for automaton_create. */
sac_status constraint_compile(struct program **out, enum constraint_kind kind, const char *text,
                              size_t n, sac_error *err);

sac_status constraint_create(struct constraint **out, struct automaton *automaton, sac_error *err);
void constraint_free(struct constraint *c);
/* Valid as long as the constraint. It copies each mask, so other answers may use the automaton
 * while the engine reads it. */
sac_guide constraint_guide(struct constraint *c);
/* The error that ended the request because the grammar reached a limit; NULL: none. */
const char *constraint_failure(const struct constraint *c);

#endif
