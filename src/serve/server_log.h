/* server_log.h: the server's log on stderr: a line for each request, with its id, and without any
 * of its text unless requested. Any thread may call any function. */
#ifndef SAC_SERVE_SERVER_LOG_H
#define SAC_SERVE_SERVER_LOG_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

struct server_log;

struct server_log_options {
    bool json;  /* one JSON object per line */
    bool quiet; /* log only problems, not requests */
};

/* A request that was answered, or whose client disconnected. */
struct server_log_entry {
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

sac_status server_log_create(struct server_log **out, const struct server_log_options *options,
                             sac_error *err);
void server_log_destroy(struct server_log *l);
void server_log_request(struct server_log *l, const struct server_log_entry *e);
/* Whether `name` is to be logged: true once per name, for the first SERVER_LOG_NAMES_MAX names. */
#define SERVER_LOG_NAMES_MAX 32u
bool server_log_is_new(struct server_log *l, const char *name);
__attribute__((format(printf, 2, 3))) void server_log_message(struct server_log *l, const char *fmt,
                                                              ...);

#endif
