/* server.c: see the header. Starts the parts, waits for signals, and stops the parts in turn.
 *
 * SIGTERM or SIGINT: new requests are refused (503), running ones are completed. A second signal,
 * or --drain-timeout, aborts those that still run. SIGHUP: the file of keys is read again. */
#include "serve/server.h"

#include "base/mem.h"
#include "base/workers.h"
#include "serve/context.h"
#include "serve/doc_library.h"
#include "serve/embed.h"
#include "serve/http.h"
#include "serve/kv_events.h"
#include "serve/slots.h"

#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TICK_NS        250000000L
#define LINGER_US      5000000u /* to send the last bytes at shutdown */
#define LINGER_STEP_NS 10000000L

struct server {
    struct context context;
    struct http *http;
    struct doc_library *library; /* used by the engine's thread; or NULL */
    struct slots *slots;         /* likewise */
    struct kv_events *events;    /* likewise */
    pthread_t ticker;
    bool has_ticker;
    _Atomic bool stop_ticker;
    uint64_t drain_us; /* ticker's thread; start of draining, 0: not draining */
};

struct server_config server_config_default(void)
{
    return (struct server_config){
        .host = "127.0.0.1",
        .port = 8080,
        .sampling = sac_sampling_default(),
        .n_http_thread = 2,
        .ping_s = 15,
        .drain_s = 600,
        .events = {.topic = "", .n_kept = 10000},
        .limits =
            {
                .n_connection = 1024,
                .n_per_address = 256,
                .url_bytes = 8192,
                .header_bytes = 16384,
                .n_header = 64,
                .body_bytes = 32u << 20,
                .bodies_mib = 256,
                .header_s = 10,
                .body_s = 60,
                .idle_s = 60,
                .n_queue = 64,
                .unread_kib = 1024,
                .readings_mib = 64,
            },
    };
}

/* ---- systemd ---- */

/* Notifies the service manager, if there is one. */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (!path || strlen(path) >= sizeof a.sun_path) return;
    memcpy(a.sun_path, path, strlen(path));
    if (*path == '@') a.sun_path[0] = 0;
    const socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&a, n);
    close(fd);
}

/* ---- Signals and deadlines ---- */

static void begin_drain(struct server *s)
{
    struct context *c = &s->context;
    const struct engine_loop_view view = engine_loop_view(c->loop);
    const bool again = s->drain_us != 0;
    atomic_store(&c->state, CONTEXT_DRAINING);
    if (!again) s->drain_us = clock_us();
    const uint32_t n = view.n_running + view.n_waiting;
    if (n == 0)
        server_log_message(c->log, "shuts down");
    else if (again)
        server_log_message(c->log, "ends %u answer%s now", n, n == 1 ? "" : "s");
    else
        server_log_message(c->log, "shuts down when %u answer%s given", n,
                           n == 1 ? " is" : "s are");
    if (!again) notify("STOPPING=1");
    engine_loop_drain(c->loop, again);
}

static void reload_keys(struct server *s)
{
    sac_error err = {0};
    if (api_keys_reload(s->context.api_keys, &err) == SAC_OK)
        server_log_message(s->context.log, "API keys read again");
    else
        server_log_message(s->context.log, "the API keys stay as they were: %s", err.msg);
}

static void tick(struct server *s)
{
    const struct server_config *c = s->context.config;
    http_tick(s->http);
    if (c->ping_s) engine_loop_tick(s->context.loop, c->ping_s * (uint64_t)1000000);
    if (s->drain_us && clock_us() - s->drain_us > c->drain_s * (uint64_t)1000000)
        engine_loop_drain(s->context.loop, true);
}

static void signal_set(sigset_t *set)
{
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
}

static void *ticker_main(void *user)
{
    struct server *s = user;
    const struct timespec pause = {.tv_nsec = TICK_NS};
    sigset_t set;
    signal_set(&set);
    while (!atomic_load(&s->stop_ticker)) {
        const int sig = sigtimedwait(&set, NULL, &pause);
        if (sig == SIGHUP) reload_keys(s);
        if (sig == SIGTERM || sig == SIGINT) begin_drain(s);
        tick(s);
    }
    return NULL;
}

/* ---- Creation and destruction ---- */

static sac_status open_events(struct server *s, sac_error *err)
{
    const struct publisher_options *o = &s->context.config->events;
    if (!o->endpoint) return SAC_OK;
    TRY(kv_events_create(&s->events, o, err));
    const struct publisher *p = kv_events_publisher(s->events);
    const char *replay = publisher_replay(p);
    server_log_message(s->context.log, "KV events: %s, topic '%s'%s%s", publisher_endpoint(p),
                       o->topic, replay ? ", replay at " : "", replay ? replay : "");
    return SAC_OK;
}

static sac_status create_parts(struct context *c, sac_error *err)
{
    const struct server_config *config = c->config;
    const struct server_log_options log = {config->log_json, config->quiet};
    TRY(server_log_create(&c->log, &log, err));
    TRY(metrics_create(&c->metrics, err));
    TRY(readings_create(&c->readings, (size_t)config->limits.readings_mib << 20, err));
    TRY(thread_pool_create(&c->thread_pool, config->n_http_thread, err));
    return api_keys_create(&c->api_keys, config->api_key, config->n_api_key, config->api_key_file,
                           err);
}

static sac_status check_config(const struct server_config *c, sac_error *err)
{
    if (!c->tls_key_file != !c->tls_cert_file)
        return error_set(err, SAC_ERR_ARG, "TLS needs both: --ssl-key-file and --ssl-cert-file");
    if (c->limits.n_connection < c->n_http_thread)
        return error_set(err, SAC_ERR_ARG, "fewer connections (%u) than threads for them (%u)",
                         c->limits.n_connection, c->n_http_thread);
    return SAC_OK;
}

sac_status server_start(struct server **out, const struct server_config *config, sac_error *err)
{
    struct server *s = mem_calloc(1, sizeof *s);
    sigset_t set, before;
    json_install();
    if (!s) return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    s->context.config = config;
    s->context.start_s = (int64_t)time(NULL);
    /* Threads inherit the mask, so that only the ticker receives the signals. Until it runs,
     * SIGTERM and SIGINT terminate the process by default. */
    signal_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, &before);
    sac_status status = check_config(config, err);
    if (status == SAC_OK) status = create_parts(&s->context, err);
    if (status == SAC_OK) status = open_events(s, err);
    if (status == SAC_OK) status = http_start(&s->http, &s->context, err);
    sigaddset(&before, SIGHUP);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (status == SAC_OK)
        *out = s;
    else
        server_stop(s);
    return status;
}

const char *server_url(const struct server *s)
{
    return http_url(s->http);
}

static sac_status start_parts(struct server *s, const sac_model *model, sac_engine *engine,
                              sac_error *err)
{
    struct context *c = &s->context;
    const struct server_config *config = c->config;
    sac_engine_params params = sac_engine_get_params(engine);
    params.n_seq_max = config->n_answer;
    const struct engine_loop_limits limits = {.n_running = config->n_answer,
                                              .n_queue = config->limits.n_queue,
                                              .unread_bytes_max = (size_t)config->limits.unread_kib
                                                                  << 10};
    TRY(engine_loop_create(&c->loop, &limits, c->metrics, err));
    TRY(trie_of_model(&c->trie, model, err));
    c->rules = (struct api_request_rules){.model = model,
                                          .trie = c->trie,
                                          .engine = params,
                                          .sampling = config->sampling,
                                          .chat_template = config->chat_template,
                                          .n_doc_max = config->n_doc_max,
                                          .pooling = config->pooling,
                                          .n_slot = config->slot_dir ? config->n_answer : 0,
                                          .n_prompt_max = config->limits.n_prompt,
                                          .n_predict_max = config->limits.n_predict};
    c->model_name = config->model_name;
    sigset_t set;
    signal_set(&set);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    if (pthread_create(&s->ticker, NULL, ticker_main, s) != 0)
        return error_set(err, SAC_ERR_MEMORY, "the system gives no thread");
    s->has_ticker = true;
    return SAC_OK;
}

/* Waits until the last responses have been sent. */
static void wait_for_responses(struct server *s)
{
    const uint64_t start_us = clock_us();
    const struct timespec step = {.tv_nsec = LINGER_STEP_NS};
    while (http_n_call(s->http) > 0 && clock_us() - start_us < LINGER_US) nanosleep(&step, NULL);
}

static void cache_say(void *user, const char *line)
{
    const struct server *s = user;
    server_log_message(s->context.log, "cache on disk: %s", line);
}

static void cache_ready(void *user)
{
    const struct server *s = user;
    engine_loop_stored(s->context.loop);
}

/* A failure to open the cache is logged, not fatal. The cache has a subfolder of its own, so that
 * it does not evict documents stored in the same folder. */
static void open_cache(struct server *s, sac_engine *engine)
{
    const struct server_config *config = s->context.config;
    char dir[4096];
    sac_error err = {0};
    if (!config->cache) return;
    sac_cache_params params = {.dir = dir,
                               .bytes_max = config->cache_bytes,
                               .say = cache_say,
                               .ready = cache_ready,
                               .user = s};
    if (snprintf(dir, sizeof dir, "%s/prompts", config->cache) >= (int)sizeof dir)
        (void)error_set(&err, SAC_ERR_ARG, "the path is too long");
    else
        (void)!sac_cache_open(engine, &params, &err);
    const sac_cache_stats stats = sac_cache_get_stats(engine);
    if (stats.is_open)
        server_log_message(s->context.log, "cache on disk: %s has %llu entries, %llu of %llu MiB",
                           dir, (unsigned long long)stats.n_entry,
                           (unsigned long long)stats.bytes >> 20,
                           (unsigned long long)stats.bytes_max >> 20);
    else
        server_log_message(s->context.log, "cache on disk: %s; prompts are kept in memory alone",
                           err.msg);
}

sac_status server_run(struct server *s, const sac_model *model, sac_engine *engine, sac_error *err)
{
    const struct doc_library_options library = {.model = model,
                                                .log = s->context.log,
                                                .dir = s->context.config->store,
                                                .context = s->context.config->context,
                                                .bytes_max = s->context.config->store_bytes};
    const struct slots_options slots = {.dir = s->context.config->slot_dir,
                                        .n = s->context.config->n_answer};
    TRY(start_parts(s, model, engine, err));
    if (library.dir) TRY(doc_library_open(&s->library, engine, &library, err));
    if (s->context.config->pooling) TRY(embed_check(engine, err));
    if (slots.dir) TRY(slots_open(&s->slots, engine, &slots, err));
    open_cache(s, engine);
    atomic_store(&s->context.state, CONTEXT_READY);
    notify("READY=1");
    const struct engine_loop_parts parts = {
        .documents = s->library, .slots = s->slots, .events = s->events};
    const sac_status status = engine_loop_run(s->context.loop, engine, &parts, err);
    atomic_store(&s->context.state, CONTEXT_DRAINING);
    wait_for_responses(s);
    return status;
}

void server_stop(struct server *s)
{
    if (!s) return;
    atomic_store(&s->stop_ticker, true);
    if (s->has_ticker) pthread_join(s->ticker, NULL);
    thread_pool_close(
        s->context.thread_pool); /* resumes connections: HTTP must stop without suspended ones */
    http_stop(s->http);
    thread_pool_destroy(s->context.thread_pool);
    engine_loop_destroy(s->context.loop);
    kv_events_destroy(s->events);
    slots_close(s->slots);
    doc_library_close(s->library);
    trie_free(s->context.trie);
    api_keys_destroy(s->context.api_keys);
    metrics_destroy(s->context.metrics);
    readings_destroy(s->context.readings);
    server_log_destroy(s->context.log);
    mem_free(s);
}
