/* choices.h: how much a decode method chose by score, and the settings that chose nothing: their
 * rows say nothing about a choice, so a table with such a row is an error unless it was wanted. */
#ifndef SAC_EVAL_CHOICES_H
#define SAC_EVAL_CHOICES_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a decode method, "NAME:key=value", ever chooses by score. */
bool choices_are_made(const char *decode);
/* Tokens that one choice took by score, the mean over the choices made between two looks at the
 * counters that did not read everything. NAN: there was none, or the method does not choose. */
double choices_mean(const sac_reads *before, const sac_reads *after, bool chooses);
/* That number for a table: "-" where there is none, "nothing" where there was nothing to be
 * counted. */
void choices_print(struct strbuf *out, double mean);

/* Adds a row of a table to the list of those that chose nothing, if it did. */
void choices_add_idle(struct strbuf *list, double mean, const char *method, uint32_t ctx);
/* An error that names the rows of the list, if there are any. */
sac_status choices_refuse_idle(const struct strbuf *list, sac_error *err);

#endif
