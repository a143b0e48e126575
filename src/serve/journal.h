/* journal.h: the server's log on stderr: a line for each request, with its id, and without any of
 * its text unless requested. Any thread may call any function. */
#ifndef SAC_SERVE_JOURNAL_H
#define SAC_SERVE_JOURNAL_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct journal;

struct journal_options {
    bool json;  /* one JSON object per line */
    bool quiet; /* log only problems, not requests */
};

/* A request that was answered, or whose client disconnected. */
struct journal_entry {
    const char *id, *method, *path, *client;
    unsigned status;
    uint64_t key; /* 0: none */
    double ms;
    /* Only for generating routes; n_choice 0: none. */
    uint32_t n_choice, n_prompt, n_cached, n_disk, n_predicted; /* n_disk: part of n_cached */
    double first_ms;    /* time to the first token; 0: none */
    const char *reuse;  /* why the cached prefix of the prompt ended; or NULL */
    const char *finish; /* "stop", "length", "cancelled", "slow", "error", ... */
    const char *error;  /* or NULL */
    const char *prompt; /* or NULL: not logged */
};

sac_status journal_create(struct journal **out, const struct journal_options *options,
                          sac_error *err);
void journal_destroy(struct journal *j);
void journal_request(struct journal *j, const struct journal_entry *e);
/* Whether `name` is to be logged: true once per name, for the first JOURNAL_NAMES_MAX names. */
#define JOURNAL_NAMES_MAX 32u
bool journal_is_new(struct journal *j, const char *name);
__attribute__((format(printf, 2, 3))) void journal_say(struct journal *j, const char *fmt, ...);

#endif
