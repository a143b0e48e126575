/* serve.c: `saccade serve`: the options of the server, the model, the engine; the rest is
 * src/serve. Names of options are llama.cpp's, with vLLM's as second spellings. */
#include "app/app.h"
#include "app/interrupt.h"
#include "app/pathsize.h"
#include "app/setup.h"
#include "app/setup_sampling.h"
#include "eval/prompt.h"
#include "serve/embed.h"
#include "serve/server.h"

#include <stdio.h>
#include <string.h>

#define COMMAND "serve"

struct serve_options {
    const char *host, *api_key_file, *cors_origins, *tls_key_file, *tls_cert_file, *alias;
    const char *template_name, *template_file;
    uint32_t port, n_seq, n_http_thread, ping_s, drain_s;
    int32_t n_predict;
    int64_t n_kv_tok;
    const char *store, *context, *cache_disk, *slot_dir;
    struct publisher_options events;
    uint32_t n_doc, store_mib;
    float tbt_target_ms;
    struct option_list api_key, also_decode, also_prefill;
    struct server_limits limits;
    int log_format;
    float audit_share;
    int pooling;
    bool embeddings, log_prompts, no_page, no_prefix_cache, quiet;
};

enum { LOG_TEXT, LOG_JSON };
#define POOLINGS                                                                                   \
    "mean|last|cls|none" /* in the order of api_request.h, from API_REQUEST_POOLING_MEAN */

struct serve {
    struct serve_options opt;
    struct setup setup;
    struct setup_sampling sampling;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct server_config config;
    struct server *server;
    sac_model *model;
    sac_engine *engine;
    struct strbuf template_text;
    char alias[256];
    char cache[PATHSIZE_PATH_BYTES]; /* --cache-disk, parsed */
    uint64_t cache_bytes;
    const char *decode[SAC_METHODS_MAX], *prefill[SAC_METHODS_MAX]; /* the first is the default */
    uint32_t n_decode, n_prefill;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct serve_options, field), arg, help, __VA_ARGS__                 \
    }

static const struct option_spec specs[] = {
    OPT("--host", OPTION_TEXT, host, "NAME",
        "address to listen on; 0.0.0.0: all of this machine's (default: 127.0.0.1)", .env = "HOST"),
    OPT("--port", OPTION_U32, port, "N", "port; 0: a free one, which is printed", .env = "PORT",
        .max = 65535),
    OPT("-np --parallel --max-num-seqs", OPTION_U32, n_seq, "N", "answers computed concurrently",
        .env = "PARALLEL", .min = 1, .max = 1024),
    OPT("--kv-tokens", OPTION_I64, n_kv_tok, "N",
        "total tokens of all answers; 0: a whole context for each", .env = "KV_TOKENS", .min = 0,
        .max = 0x1p40),
    OPT("--no-enable-prefix-caching --no-prefix-cache", OPTION_FLAG, no_prefix_cache, NULL,
        "compute each prompt in full, even if it shares a prefix with an earlier one",
        .env = "NO_PREFIX_CACHE"),
    OPT("--cache-disk", OPTION_TEXT, cache_disk, "PATH:SIZE",
        "folder for computed prompts, and its size; they survive a restart", .env = "CACHE_DISK",
        .without = "--no-prefix-cache"),
    OPT("--kv-events", OPTION_TEXT, events.endpoint, "ENDPOINT",
        "publish what the cache of prompts holds, as vLLM's KV events over ZeroMQ, for routers; "
        "such as tcp://*:5557",
        .env = "KV_EVENTS", .without = "--no-prefix-cache"),
    OPT("--kv-events-topic", OPTION_TEXT, events.topic, "TOPIC",
        "topic of these events; llm-d expects kv@ADDRESS:PORT@MODEL", .env = "KV_EVENTS_TOPIC",
        .needs = "--kv-events"),
    OPT("--kv-events-replay", OPTION_TEXT, events.replay, "ENDPOINT",
        "where routers get events that they missed; such as tcp://*:5558",
        .env = "KV_EVENTS_REPLAY", .needs = "--kv-events"),
    OPT("--kv-events-buffer", OPTION_U32, events.n_kept, "N",
        "messages that are kept for --kv-events-replay", .env = "KV_EVENTS_BUFFER", .min = 1,
        .max = 1u << 24, .needs = "--kv-events-replay"),
    OPT("--slot-save-path", OPTION_TEXT, slot_dir, "DIR",
        "folder for slots that clients save and restore (/slots/ID?action=save)",
        .env = "SLOT_SAVE_PATH"),
    OPT("--embeddings --embedding", OPTION_FLAG, embeddings, NULL,
        "make vectors of texts, too: /v1/embeddings", .env = "EMBEDDINGS"),
    OPT("--pooling", OPTION_CHOICE, pooling, NULL,
        "vector of a text: the mean of its tokens' hidden states, the last's, the first's (cls), "
        "or "
        "all of them; only with --embeddings",
        .env = "POOLING", .choices = POOLINGS, .needs = "--embeddings"),
    OPT("-a --alias --served-model-name", OPTION_TEXT, alias, "NAME",
        "model name in answers; default: its file's", .env = "ALIAS"),
    OPT("--also-decode", OPTION_LIST, also_decode, "SPEC",
        "further decode method that requests may choose; repeatable", .env = NULL),
    OPT("--also-prefill", OPTION_LIST, also_prefill, "SPEC",
        "further prefill method that requests may choose; repeatable", .env = NULL),
    OPT("--tbt-target-ms", OPTION_F32, tbt_target_ms, "MS",
        "target time between tokens: while answers are generated, prompts are processed in chunks "
        "small enough to meet it; 0: in large chunks",
        .env = "TBT_TARGET_MS", .min = 0, .max = 60000),
    OPT("--store", OPTION_TEXT, store, "DIR",
        "folder of stored documents that requests add and name", .env = "DOCS"),
    OPT("--max-documents", OPTION_U32, n_doc, "N", "documents per prompt", .env = "MAX_DOCUMENTS",
        .min = 1, .max = 64, .needs = "--store"),
    OPT("--store-size", OPTION_U32, store_mib, "SIZE",
        "size of the store in MiB, or with a unit (20G); the least recently used documents are "
        "removed first; 0: unlimited",
        .env = "STORE_SIZE", .unit_bytes = 1u << 20, .needs = "--store"),
    OPT("--context", OPTION_TEXT, context, "SPEC",
        "how several documents are joined if a request does not say", .env = "CONTEXT",
        .needs = "--store"),
    OPT("--audit-rate", OPTION_F32, audit_share, "SHARE",
        "share of answers that are compared with dense attention, for the metrics",
        .env = "AUDIT_RATE", .min = 0, .max = 1),
    OPT("--chat-template", OPTION_TEXT, template_name, "NAME|TEXT",
        "name of a built-in template, or template text, to use instead of the model's own",
        .env = "CHAT_TEMPLATE"),
    OPT("--chat-template-file", OPTION_TEXT, template_file, "FILE", "file with a chat template",
        .env = "CHAT_TEMPLATE_FILE"),
    {0},
};

static const struct option_spec access_specs[] = {
    OPT("--api-key", OPTION_LIST, api_key, "KEY", "API key that clients must send; repeatable",
        .env = NULL),
    OPT("--api-key-file", OPTION_TEXT, api_key_file, "FILE",
        "file of API keys, one per line; reread on SIGHUP", .env = "API_KEY_FILE"),
    OPT("--cors-origins", OPTION_TEXT, cors_origins, "LIST",
        "origins whose pages may use the server (CORS), comma-separated; *: all",
        .env = "CORS_ORIGINS"),
    OPT("--ssl-key-file --ssl-keyfile", OPTION_TEXT, tls_key_file, "FILE",
        "private key (PEM), which enables TLS", .env = "SSL_KEY_FILE"),
    OPT("--ssl-cert-file --ssl-certfile", OPTION_TEXT, tls_cert_file, "FILE", "certificate (PEM)",
        .env = "SSL_CERT_FILE"),
    OPT("--no-page --no-webui", OPTION_FLAG, no_page, NULL, "do not serve the page at /",
        .env = "NO_PAGE"),
    OPT("--log-format", OPTION_CHOICE, log_format, NULL, "format of the request log on stderr",
        .env = "LOG_FORMAT", .choices = "text|json"),
    OPT("--log-prompts", OPTION_FLAG, log_prompts, NULL, "include prompts in the log",
        .env = "LOG_PROMPTS", .without = "--quiet"),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "do not log requests", .env = NULL),
    {0},
};

static const struct option_spec limit_specs[] = {
    OPT("-n --predict --n-predict --max-predict", OPTION_I32, n_predict, "N",
        "maximum tokens of an answer; 0, -1: up to the end of the context", .env = "N_PREDICT",
        .min = -1, .max = INT32_MAX),
    OPT("--max-prompt", OPTION_U32, limits.n_prompt, "N",
        "maximum tokens of a prompt; 0: the context length", .env = "MAX_PROMPT"),
    OPT("--queue", OPTION_U32, limits.n_queue, "N",
        "answers that may wait in the queue; further ones get 429", .env = "QUEUE", .max = 65536),
    OPT("--max-connections", OPTION_U32, limits.n_connection, "N", "concurrent connections",
        .env = "MAX_CONNECTIONS", .min = 1, .max = 65536),
    OPT("--max-connections-per-address", OPTION_U32, limits.n_per_address, "N",
        "connections per address; 0: no limit", .env = "MAX_CONNECTIONS_PER_ADDRESS", .max = 65536),
    OPT("--max-body", OPTION_U32, limits.body_bytes, "SIZE",
        "maximum bytes of a request's body, or with a unit (32M)", .env = "MAX_BODY", .min = 1024,
        .max = 1u << 30, .unit_bytes = 1),
    OPT("--max-bodies", OPTION_U32, limits.bodies_mib, "SIZE",
        "MiB of all bodies together, or with a unit (1G)", .env = "MAX_BODIES", .min = 1,
        .max = 1u << 20, .unit_bytes = 1u << 20),
    OPT("--max-url", OPTION_U32, limits.url_bytes, "BYTES",
        "maximum bytes of a request's path and query", .env = "MAX_URL", .min = 256,
        .max = 1u << 20),
    OPT("--max-header", OPTION_U32, limits.header_bytes, "BYTES",
        "maximum bytes of a request's headers", .env = "MAX_HEADER", .min = 1024, .max = 1u << 20),
    OPT("--max-header-lines", OPTION_U32, limits.n_header, "N", "maximum headers of a request",
        .env = "MAX_HEADER_LINES", .min = 8, .max = 1024),
    OPT("--header-timeout", OPTION_U32, limits.header_s, "S", "seconds to send the headers",
        .env = "HEADER_TIMEOUT", .min = 1, .max = 86400),
    OPT("--body-timeout", OPTION_U32, limits.body_s, "S", "seconds to send the body",
        .env = "BODY_TIMEOUT", .min = 1, .max = 86400),
    OPT("--timeout", OPTION_U32, limits.idle_s, "S",
        "seconds that a connection may be idle or not read its answer", .env = "TIMEOUT", .min = 1,
        .max = 86400),
    OPT("--max-unread", OPTION_U32, limits.unread_kib, "SIZE",
        "KiB, or with a unit (4M), of a stream that its client has not read; more ends the stream",
        .env = "MAX_UNREAD", .min = 16, .max = 1u << 20, .unit_bytes = 1024),
    OPT("--max-readings", OPTION_U32, limits.readings_mib, "SIZE",
        "MiB, or with a unit (1G), of reading records kept for /v1/attention; the oldest are "
        "dropped",
        .env = "MAX_READINGS", .max = 1u << 20, .unit_bytes = 1u << 20),
    OPT("--threads-http", OPTION_U32, n_http_thread, "N", "HTTP threads", .env = "THREADS_HTTP",
        .min = 1, .max = 64),
    OPT("--sse-ping-interval", OPTION_U32, ping_s, "S",
        "seconds of silence after which a stream gets a comment; 0: never",
        .env = "SSE_PING_INTERVAL", .max = 86400),
    OPT("--drain-timeout", OPTION_U32, drain_s, "S",
        "seconds for which answers may continue after SIGTERM", .env = "DRAIN_TIMEOUT",
        .max = 864000),
    {0},
};

/* ---- Methods ---- */

static bool is_there(const char *const *list, uint32_t n, const char *spec)
{
    for (uint32_t i = 0; i < n; i++)
        if (strcmp(list[i], spec) == 0) return true;
    return false;
}

/* Collects the default, other named methods, and the dense one, which is always available for
 * comparison. */
static int collect_methods(const char *kind, const char *first, const struct option_list *also,
                           const char **list, uint32_t *n)
{
    const char *dense = strcmp(kind, "decode") == 0 ? "full" : "dense";
    sac_error err = {0};
    list[(*n)++] = first && *first ? first : dense;
    for (size_t i = 0; i < also->n; i++) {
        if (sac_method_check(kind, also->item[i], &err) != SAC_OK)
            return options_usage_error(COMMAND, "option '--also-%s': %s", kind, err.msg);
        if (*n + 1 == SAC_METHODS_MAX)
            return options_usage_error(COMMAND, "option '--also-%s': more than %u methods", kind,
                                       SAC_METHODS_MAX - 2);
        if (!is_there(list, *n, also->item[i])) list[(*n)++] = also->item[i];
    }
    if (!is_there(list, *n, dense)) list[(*n)++] = dense;
    return OPTIONS_GO_ON;
}

/* Documents need sequences while they are computed or joined, and pages besides those of the
 * answers. */
static void plan_documents(const struct serve *s, sac_engine_params *params)
{
    params->compose = true;
    if (params->n_kv_tok == 0) params->n_kv_tok = (uint64_t)params->n_ctx * (s->opt.n_seq + 1);
    params->n_seq_max = s->opt.n_seq + s->opt.n_doc;
}

/* Restored slots, and one that is being saved, need sequences, and a context's pages besides those
 * of the answers. */
static void plan_slots(const struct serve *s, sac_engine_params *params)
{
    if (params->n_kv_tok == 0) params->n_kv_tok = (uint64_t)params->n_ctx * s->opt.n_seq;
    if (s->opt.n_kv_tok == 0) params->n_kv_tok += params->n_ctx;
    params->n_seq_max += s->opt.n_seq + 1;
}

/* Texts to embed need sequences of their own. */
static void plan_embeddings(const struct serve *s, sac_engine_params *params)
{
    if (params->n_kv_tok == 0) params->n_kv_tok = (uint64_t)params->n_ctx * s->opt.n_seq;
    params->n_seq_max += EMBED_SEQS;
}

static sac_status create_engine(struct serve *s, sac_error *err)
{
    uint32_t n_ctx = s->setup.n_ctx;
    if (n_ctx == 0) n_ctx = sac_model_get_info(s->model).n_ctx_train;
    sac_engine_params params = setup_engine_params(&s->setup, n_ctx, s->opt.n_seq);
    params.n_kv_tok = (uint64_t)s->opt.n_kv_tok;
    params.decode = s->decode;
    params.n_decode = s->n_decode;
    params.prefix_cache = !s->opt.no_prefix_cache;
    params.watch = true;
    params.tbt_target_ms = s->opt.tbt_target_ms;
    if (s->opt.store) plan_documents(s, &params);
    if (s->opt.slot_dir) plan_slots(s, &params);
    if (s->opt.embeddings) plan_embeddings(s, &params);
    params.prefill = s->prefill;
    params.n_prefill = s->n_prefill;
    TRY(sac_engine_create(&s->engine, s->model, &params, err));
    setup_warn_of_context(COMMAND, s->model, n_ctx);
    return setup_check_memory(COMMAND, s->engine, err);
}

/* ---- Running ---- */

/* The model's name: --alias, or what -m was given, without folder and suffix. */
static void make_alias(struct serve *s)
{
    const char *model = s->setup.model, *slash = strrchr(model, '/');
    const char *name = s->opt.alias ? s->opt.alias : slash ? slash + 1 : model;
    snprintf(s->alias, sizeof s->alias, "%s", name);
    char *end = strstr(s->alias, ".gguf");
    if (!s->opt.alias && end && end[5] == 0) *end = 0;
}

static sac_status make_config(struct serve *s, sac_error *err)
{
    const struct serve_options *o = &s->opt;
    struct server_config *c = &s->config;
    c->host = o->host;
    c->port = o->port;
    c->api_key = o->api_key.item;
    c->n_api_key = o->api_key.n;
    c->api_key_file = o->api_key_file;
    c->cors_origins = o->cors_origins;
    c->tls_key_file = o->tls_key_file;
    c->tls_cert_file = o->tls_cert_file;
    c->model_name = s->alias;
    c->limits = o->limits;
    c->limits.n_predict = o->n_predict < 0 ? 0 : (uint32_t)o->n_predict;
    c->n_http_thread = o->n_http_thread;
    c->ping_s = o->ping_s;
    c->n_answer = o->n_seq;
    c->store = o->store;
    c->store_bytes = (uint64_t)o->store_mib << 20;
    c->context = o->context;
    c->cache = o->cache_disk ? s->cache : NULL;
    c->cache_bytes = s->cache_bytes;
    c->events = o->events;
    c->n_doc_max = o->store ? o->n_doc : 0;
    c->slot_dir = o->slot_dir;
    if (o->embeddings)
        c->pooling = (enum api_request_pooling)(API_REQUEST_POOLING_MEAN + o->pooling);
    c->audit_share = (double)o->audit_share;
    c->drain_s = o->drain_s;
    c->log_json = o->log_format == LOG_JSON;
    c->log_prompts = o->log_prompts;
    c->no_page = o->no_page;
    c->quiet = o->quiet;
    make_alias(s);
    TRY(setup_sampling_params(&s->sampling, &c->sampling, s->bias, err));
    return prompt_template(&c->chat_template, o->template_name, o->template_file, &s->template_text,
                           err);
}

/* Reports a chat template that is unknown or broken now, not at each request. */
static sac_status check_template(const struct serve *s, sac_error *err)
{
    if (!s->config.chat_template) return SAC_OK;
    const sac_message message = {.role = "user", .content = "?"};
    int32_t *tok = NULL;
    size_t n;
    TRY(prompt_chat(s->model, &message, 1, s->config.chat_template, &tok, &n, err));
    sac_free(tok);
    return SAC_OK;
}

static sac_status serve(struct serve *s, sac_error *err)
{
    TRY(check_template(s, err));
    TRY(create_engine(s, err));
    const sac_engine_params e = sac_engine_get_params(s->engine);
    fprintf(stderr, "saccade serve: %s at %s, %u answers of up to %u tokens at once\n", s->alias,
            server_url(s->server), s->opt.n_seq, e.n_ctx);
    return server_run(s->server, s->model, s->engine, err);
}

static int check_cache(struct serve *s)
{
    if (!s->opt.cache_disk) return OPTIONS_GO_ON;
    return pathsize_parse(&(struct pathsize){.command = COMMAND,
                                             .option = "--cache-disk",
                                             .form = "PATH:SIZE, such as /var/cache/saccade:20G",
                                             .value = s->opt.cache_disk,
                                             .out_path = s->cache,
                                             .out_bytes = &s->cache_bytes});
}

static int serve_all(struct serve *s)
{
    sac_error err = {0};
    if (!s->setup.model) return options_usage_error(COMMAND, "a model is missing (-m FILE)");
    int code = setup_check_model(COMMAND, s->setup.model);
    if (code == OPTIONS_GO_ON) code = check_cache(s);
    if (code != OPTIONS_GO_ON) return code;
    sac_status status = make_config(s, &err);
    if (status == SAC_OK) status = server_start(&s->server, &s->config, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    fprintf(stderr, "saccade serve: listening on %s, loading\n", server_url(s->server));
    if (s->opt.context && sac_method_check("context", s->opt.context, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--context': %s", err.msg);
    code = setup_load(&s->setup, &s->model);
    if (code == OPTIONS_GO_ON)
        code = collect_methods("decode", s->setup.decode ? s->setup.decode_spec : NULL,
                               &s->opt.also_decode, s->decode, &s->n_decode);
    if (code == OPTIONS_GO_ON)
        code = collect_methods("prefill", s->setup.prefill ? s->setup.prefill_spec : NULL,
                               &s->opt.also_prefill, s->prefill, &s->n_prefill);
    if (code != OPTIONS_GO_ON) return code;
    status = serve(s, &err);
    return status == SAC_OK ? EXIT_OK : setup_failed(COMMAND, status, err.msg);
}

static struct serve_options default_options(const struct server_config *c)
{
    return (struct serve_options){
        .host = c->host,
        .port = c->port,
        .n_seq = 4,
        .n_doc = 8,
        .n_http_thread = c->n_http_thread,
        .ping_s = c->ping_s,
        .drain_s = c->drain_s,
        .events = c->events,
        .limits = c->limits,
    };
}

int app_serve(int argc, char **argv)
{
    struct serve s = {
        .config = server_config_default(),
        .setup = setup_default(COMMAND),
        .sampling = setup_sampling_default(),
    };
    s.opt = default_options(&s.config);
    const struct option_group groups[] = {
        {"Server", specs, &s.opt},
        {"Access and log", access_specs, &s.opt},
        {"Limits", limit_specs, &s.opt},
        {"Model", setup_specs, &s.setup},
        {"Sampling", setup_sampling_specs, &s.sampling},
    };
    /* A method that joins documents has no part in the engine's. */
    static const struct option_need needs[] = {
        {"--budget", "--prefill|--decode"}, {"--mass", "--prefill|--decode"}, {0}};
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Serves a model to OpenAI clients, and a chat page. On SIGTERM running answers "
                   "may finish. Sampling options are the defaults for requests.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .need = needs,
    };
    int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    code = serve_all(&s);
    server_stop(s.server);
    sac_engine_free(s.engine);
    sac_model_free(s.model);
    strbuf_deinit(&s.template_text);
    return code;
}
