/* reading.h: what one answer read of its prompt: which passages of which message, for the answer
 * and for each of its tokens, and the share of dense attention's mass that was read.
 *
 * Records arrive on the engine's thread while the answer is generated; when it has ended, the HTTP
 * side continues. A row that is recomputed because its request was preempted counts once. */
#ifndef SAC_SERVE_READING_H
#define SAC_SERVE_READING_H

#include "base/strbuf.h"
#include "eval/passages.h"

#include <stdbool.h>

struct cJSON;
struct reading;

/* Whose text a passage is. Messages and documents stand in the prompt in this order: the first
 * n_before messages, the documents, the other messages. No role at all: the text beside the
 * documents is not of messages. */
struct reading_names {
    const char *const *role; /* [n_role] of messages */
    const char *const *document;
    uint32_t n_role, n_document, n_before;
};

/* Means and extremes over the rows that chose a token. Masses are shares of dense attention's
 * softmax mass that lie on tokens which were read, means over layers and KV heads. */
struct reading_sums {
    uint64_t n_row;
    double mass_sum, mass_min;
    double error_sum, error_max; /* |output - dense output| / |dense output| of a row */
};

/* `passages` are those of the prompt, found and not recorded to; borrowed, for they are the same
 * for all answers to it. `by_token`: what each token read is kept, too. NULL: out of memory. */
struct reading *reading_create(const struct passages *passages, bool by_token);
void reading_free(struct reading *r);

/* A sac_read_fn; `user` is the struct reading. */
void reading_take(void *user, const sac_read_record *record);
/* The row whose records came last has chosen `tok`. */
void reading_token(struct reading *r, int32_t tok);

struct reading_sums reading_sums(const struct reading *r);
/* {"rows", "mass_mean", "mass_min", "output_error_mean", "output_error_max"}; no row: NULL. */
struct cJSON *reading_sums_json(const struct reading *r);
/* Adds "passages" and, if they were kept, "generated" to an object; once, and nothing is taken
 * afterwards. */
void reading_json(struct reading *r, const sac_model *model, const struct reading_names *names,
                  struct cJSON *to);

#endif
