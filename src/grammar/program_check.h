/* program_check.h: the conditions that a program must fulfil before an automaton may run it. */
#ifndef SAC_GRAMMAR_PROGRAM_CHECK_H
#define SAC_GRAMMAR_PROGRAM_CHECK_H

#include "grammar/program.h"

/* Computes p->cost, and refuses rules that can never end and left recursion, naming the rule. Call
 * it before tail calls become jumps. */
sac_status program_check(struct program *p, sac_error *err);

#endif
