/* server.h: `saccade serve` behind its options: HTTP on one side, an engine on the other.
 *
 * server_start opens the port and answers health probes while the caller loads the model;
 * server_run serves with it, on the calling thread, until SIGTERM or SIGINT. Threads: a few for
 * HTTP, as many for long texts and files, one for signals and deadlines, and the caller's, which
 * alone touches the engine. */
#ifndef SAC_SERVE_SERVER_H
#define SAC_SERVE_SERVER_H

#include "serve/ask.h"
#include "serve/publisher.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server_limits {
    uint32_t n_connection, n_per_address; /* n_per_address 0: no limit */
    uint32_t url_bytes;                   /* of the path with its query */
    uint32_t header_bytes, n_header;
    uint32_t body_bytes;
    uint32_t bodies_mib;               /* of all requests that are being read */
    uint32_t header_s, body_s, idle_s; /* to send the headers; the body; between requests */
    uint32_t n_queue;                  /* answers that wait, beside those that are computed */
    uint32_t unread_kib;               /* of a stream that its client does not read */
    uint32_t n_prompt;                 /* tokens; 0: the context's */
    uint32_t n_predict;                /* tokens; 0: the context's */
    uint32_t readings_mib;             /* of what answers read, for those who ask later */
};

struct server_config {
    const char *host;
    uint32_t port; /* 0: any that is free */
    const char *const *api_key;
    size_t n_api_key;
    const char *api_key_file; /* or NULL; read again on SIGHUP */
    const char *cors_origins; /* "https://a.example,https://b.example" or "*"; NULL: none */
    const char *tls_key_file, *tls_cert_file; /* or NULL */
    const char *model_name;                   /* what the API calls the model */
    const char *chat_template;                /* NULL: the model's own */
    sac_sampling sampling;                    /* where a request says nothing */
    struct server_limits limits;
    uint32_t n_http_thread;
    uint32_t n_answer;    /* that are computed at once; the engine has n_doc_max sequences more */
    const char *store;    /* folder of documents, or NULL */
    const char *context;  /* how they are joined where a request says nothing, or NULL */
    uint64_t store_bytes; /* of the store, at most; 0: any number */
    uint32_t n_doc_max;   /* documents in a prompt; 0: there is no store */
    enum ask_pooling pooling;        /* of embeddings, for which the engine has EMBED_SEQS (embed.h)
                                         sequences more; ASK_POOLING_OFF: none are made */
    const char *slot_dir;            /* folder of saved slots, or NULL; the engine has n_answer + 1
                                         sequences more for them */
    const char *cache;               /* folder that keeps what was read beyond restarts, or NULL */
    uint64_t cache_bytes;            /* of it, at most */
    struct publisher_options events; /* of what the cache has; endpoint NULL: none */
    double audit_share; /* of answers, whose reading is held against dense attention; 0 to 1 */
    uint32_t ping_s;    /* a stream that is silent for longer gets a comment; 0: never */
    uint32_t drain_s;   /* answers that still run after this long are cut off */
    bool log_json, log_prompts, no_page, quiet;
};

struct server_config server_config_default(void);

struct server;

/* Borrows `config` until server_stop. */
sac_status server_start(struct server **out, const struct server_config *config, sac_error *err);
/* Where it listens: "http://127.0.0.1:8080". */
const char *server_url(const struct server *s);
/* Returns when the last answer was sent. Model and engine stay the caller's. */
sac_status server_run(struct server *s, const sac_model *model, sac_engine *engine, sac_error *err);
void server_stop(struct server *s);

#endif
