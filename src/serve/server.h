/* server.h: `saccade serve` behind its options: HTTP on one side, an engine on the other.
 *
 * server_start opens the port and answers health probes while the caller loads the model;
 * server_run serves with it, on the calling thread, until SIGTERM or SIGINT. Threads: a few for
 * HTTP, as many for long texts and files, one for signals and deadlines, and the caller's, which
 * alone touches the engine. */
#ifndef SAC_SERVE_SERVER_H
#define SAC_SERVE_SERVER_H

#include "serve/api_request.h"
#include "serve/publisher.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct server_limits {
    uint32_t n_connection, n_per_address; /* n_per_address 0: no limit */
    uint32_t url_bytes;                   /* path and query */
    uint32_t header_bytes, n_header;
    uint32_t body_bytes;
    uint32_t bodies_mib;               /* total of all bodies in memory, and of all long answers */
    uint32_t header_s, body_s, idle_s; /* timeouts for headers, body and idle connections */
    uint32_t n_queue;                  /* answers that may wait for computation */
    uint32_t unread_kib;               /* unread bytes of a stream */
    uint32_t n_prompt;                 /* tokens; 0: the context length */
    uint32_t n_predict;                /* tokens; 0: the context length */
    uint32_t readings_mib;             /* attention records kept for later requests */
};

struct server_config {
    const char *host;
    uint32_t port; /* 0: chosen by the system */
    const char *const *api_key;
    size_t n_api_key;
    const char *api_key_file; /* or NULL; read again on SIGHUP */
    const char *cors_origins; /* "https://a.example,https://b.example" or "*"; NULL: none */
    const char *tls_key_file, *tls_cert_file; /* or NULL */
    const char *model_name;                   /* the name in the API */
    const char *chat_template;                /* NULL: the model's */
    sac_sampling sampling;                    /* defaults */
    struct server_limits limits;
    uint32_t n_http_thread;
    uint32_t n_answer;    /* computed at once; the engine has n_doc_max additional sequences */
    const char *store;    /* folder of stored documents, or NULL */
    const char *context;  /* default method that joins documents, or NULL */
    uint64_t store_bytes; /* maximum size of the store; 0: no limit */
    uint32_t n_doc_max;   /* documents per prompt; 0: no store */
    enum api_request_pooling pooling; /* for embeddings, which need EMBED_SEQS (embed.h) additional
                                 sequences; API_REQUEST_POOLING_OFF: none */
    const char *slot_dir; /* folder of saved slots, or NULL; needs n_answer + 1 more sequences */
    const char *cache;    /* folder of the prompt cache on disk, or NULL */
    uint64_t cache_bytes; /* its maximum size */
    struct publisher_options events; /* KV cache events; endpoint NULL: none */
    double audit_share;              /* share of answers compared with dense attention, 0 to 1 */
    uint32_t ping_s;                 /* interval of pings on silent streams; 0: none */
    uint32_t drain_s;                /* time after which a shutdown cancels running answers */
    bool log_json, log_prompts, no_page, quiet;
};

struct server_config server_config_default(void);

struct server;

/* Borrows `config` until server_stop. */
sac_status server_start(struct server **out, const struct server_config *config, sac_error *err);
/* "http://127.0.0.1:8080", with the actual port. */
const char *server_url(const struct server *s);
/* Returns after the last response. Borrows model and engine. */
sac_status server_run(struct server *s, const sac_model *model, sac_engine *engine, sac_error *err);
void server_stop(struct server *s);

#endif
