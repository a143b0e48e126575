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

/* Origins of the texts in a prompt, in order: the first n_before messages, the documents, the other
 * messages. n_role 0: the texts beside the documents are not messages. */
struct reading_names {
    const char *const *role; /* [n_role], of messages */
    const char *const *document;
    uint32_t n_role, n_document, n_before;
};

/* Statistics over the rows that chose a token. Masses are shares of dense attention's softmax mass
 * on the tokens that were read, averaged over layers and KV heads. */
struct reading_sums {
    uint64_t n_row;
    double mass_sum, mass_min;
    double error_sum, error_max; /* relative error of a row's output: |output - dense| / |dense| */
};

/* Starts a record for one choice. `passages` are borrowed and shared by all choices of a prompt.
 * `by_token`: also keep what each token read. NULL: out of memory. */
struct reading *reading_create(const struct passages *passages, bool by_token);
void reading_free(struct reading *r);

/* A sac_read_fn; `user` is the struct reading. */
void reading_take(void *user, const sac_read_record *record);
/* The row of the latest records has chosen `tok`. */
void reading_token(struct reading *r, int32_t tok);

struct reading_sums reading_sums(const struct reading *r);
/* {"rows", "mass_mean", "mass_min", "output_error_mean", "output_error_max"}; NULL: there are no
 * rows. */
struct cJSON *reading_sums_json(const struct reading *r);
/* Adds "passages" and, if kept, "generated" to `to`. Call it once, after the last record. */
void reading_json(struct reading *r, const sac_model *model, const struct reading_names *names,
                  struct cJSON *to);

#endif
