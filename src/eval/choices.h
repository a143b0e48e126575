/* choices.h: how much a decode method selected by score, and the settings that selected nothing:
 * their rows say nothing about a selection, so a table with such a row is an error unless it was
 * requested. */
#ifndef SAC_EVAL_CHOICES_H
#define SAC_EVAL_CHOICES_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether a decode method, "NAME:key=value", ever selects by score. */
bool choices_are_made(const char *decode);
/* Tokens that one selection took by score: the mean over the selections between two readings of the
 * counters that were not dense. NAN: there was none, or the method does not select by score. */
double choices_mean(const sac_reads *before, const sac_reads *after, bool chooses);
/* The same for a table: "-" for NAN, "nothing" if a method that selects by score has selected
 * nothing. */
void choices_print(struct strbuf *out, double mean);

/* Adds a row of a table to the list of those that selected nothing, if it did. */
void choices_add_idle(struct strbuf *list, double mean, const char *method, uint32_t ctx);
/* An error that names the rows of the list, if it is not empty. */
sac_status choices_refuse_idle(const struct strbuf *list, sac_error *err);

/* Adds a row of a table, once, to the list of those in which a method read everything
 * (`share_read` is 1). Dense attention, which does so by definition, is left out. */
void choices_add_whole(struct strbuf *list, double share_read, const char *method, uint32_t ctx);

#endif
