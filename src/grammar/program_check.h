/* program_check.h: the conditions that a program must fulfil before a machine may run it. */
#ifndef SAC_GRAMMAR_PROGRAM_CHECK_H
#define SAC_GRAMMAR_PROGRAM_CHECK_H

#include "grammar/program.h"

/* Fills p->cost and refuses, by name, rules that can never end and rules that begin with
 * themselves. Before calls in the last place become jumps. */
sac_status program_check(struct program *p, sac_error *err);

#endif
