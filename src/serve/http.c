/* http.c: see the header. libmicrohttpd parses HTTP on a few threads and waits for all connections
 * with epoll. Two limits that it lacks are enforced by us: the time in which a client must send a
 * request, however slowly it sends, is limited here, the sizes in http_request.c.
 *
 * A connection past its deadline is shut down, not closed: its socket belongs to MHD, which then
 * sees the end and cleans up. */
#include "serve/http.h"

#include "base/input.h"
#include "base/mem.h"
#include "base/workers.h"
#include "serve/http_request.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* MHD's memory per connection, for headers and part of the body. */
#define MEMORY_MIN_BYTES 16384
#define QUERY_MAX        64u /* arguments of a query string */
#define SYSTEMD_FD       3   /* the first socket that systemd passes */

struct peer {
    struct peer *next, **link; /* `link` points to the pointer to this */
    int fd;
    uint64_t deadline_us; /* 0: none */
};

struct http {
    struct context *context; /* borrowed */
    struct MHD_Daemon *daemon;
    struct http_request_totals totals;
    pthread_mutex_t lock;
    struct peer *peer; /* lock */
    int fd;            /* listening socket; owned by MHD after the start */
    struct strbuf tls_key, tls_cert;
    char url[320];
};

/* ---- Deadlines ---- */

static void set_deadline(struct http *h, struct MHD_Connection *connection, uint32_t seconds)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct peer *p = info ? info->socket_context : NULL;
    if (!p) return;
    pthread_mutex_lock(&h->lock);
    p->deadline_us = seconds ? clock_us() + seconds * (uint64_t)1000000 : 0;
    pthread_mutex_unlock(&h->lock);
}

static void open_peer(struct http *h, struct MHD_Connection *connection, void **out)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct peer *p = mem_calloc(1, sizeof *p);
    *out = p;
    if (!p || !info) return; /* our deadline is missing, MHD's idle timeout still applies */
    p->fd = info->connect_fd;
    p->deadline_us = clock_us() + h->context->config->limits.header_s * (uint64_t)1000000;
    pthread_mutex_lock(&h->lock);
    p->next = h->peer;
    p->link = &h->peer;
    if (p->next) p->next->link = &p->next;
    h->peer = p;
    pthread_mutex_unlock(&h->lock);
}

static void close_peer(struct http *h, struct peer *p)
{
    if (!p) return;
    pthread_mutex_lock(&h->lock);
    if (p->link) {
        *p->link = p->next;
        if (p->next) p->next->link = p->link;
    }
    pthread_mutex_unlock(&h->lock);
    mem_free(p);
}

static void on_connection(void *user, struct MHD_Connection *connection, void **socket_context,
                          enum MHD_ConnectionNotificationCode code)
{
    if (code == MHD_CONNECTION_NOTIFY_STARTED)
        open_peer(user, connection, socket_context);
    else
        close_peer(user, *socket_context);
}

void http_tick(struct http *h)
{
    const uint64_t now_us = clock_us();
    pthread_mutex_lock(&h->lock);
    for (struct peer *p = h->peer; p; p = p->next) {
        if (p->deadline_us == 0 || p->deadline_us > now_us) continue;
        shutdown(p->fd, SHUT_RDWR);
        p->deadline_us = 0;
    }
    pthread_mutex_unlock(&h->lock);
}

uint32_t http_n_call(struct http *h)
{
    return atomic_load(&h->totals.n_call);
}

/* ---- Calls ---- */

static enum MHD_Result on_request(void *user, struct MHD_Connection *connection, const char *path,
                                  const char *method, const char *version, const char *data,
                                  size_t *n_data, void **req)
{
    struct http *h = user;
    enum MHD_Result result;
    (void)version;
    if (!*req) {
        const struct http_request_head head = {h->context, &h->totals, connection, method, path};
        set_deadline(h, connection, h->context->config->limits.body_s);
        *req = http_request_begin(&head, &result);
        return result;
    }
    if (*n_data) {
        result = http_request_body(*req, data, *n_data);
        *n_data = 0;
        return result;
    }
    set_deadline(h, connection, 0);
    result = http_request_go_on(*req);
    set_deadline(h, connection, http_request_read_s(*req));
    return result;
}

static void on_completed(void *user, struct MHD_Connection *connection, void **req,
                         enum MHD_RequestTerminationCode why)
{
    struct http *h = user;
    set_deadline(h, connection, h->context->config->limits.idle_s);
    if (*req) http_request_end(*req, why == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    *req = NULL;
}

/* Answers before libmicrohttpd parses further, and closes the connection; with TLS it only
 * closes. */
static void refuse_url(const struct http *h, struct MHD_Connection *connection, unsigned status,
                       const char *title, const char *code, const char *why)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    char text[512];
    if (!info) return;
    const int n = snprintf(text, sizeof text,
                           "HTTP/1.1 %u %s\r\nConnection: close\r\n"
                           "Content-Type: application/json\r\n\r\n"
                           "{\"error\":{\"message\":\"%s\",\"type\":\"invalid_request_error\","
                           "\"param\":null,\"code\":\"%s\"}}",
                           status, title, why, code);
    metrics_status(h->context->metrics, status);
    if (!h->context->config->tls_cert_file)
        (void)!send(info->connect_fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
    shutdown(info->connect_fd, SHUT_RDWR);
}

/* libmicrohttpd stores each query argument in the connection's memory and sends no response when
 * that is full, so longer queries than any route needs are refused before it parses them. */
static void *check_url(void *user, const char *url, struct MHD_Connection *connection)
{
    const struct http *h = user;
    const size_t n = strlen(url), n_max = h->context->config->limits.url_bytes;
    size_t n_arg = 0;
    char why[96];
    for (const char *at = strchr(url, '?'); at; at = strchr(at + 1, '&')) n_arg++;
    if (n > n_max) {
        snprintf(why, sizeof why, "the URL has %zu bytes, the server takes %zu", n, n_max);
        refuse_url(h, connection, 414, "URI Too Long", "url_too_long", why);
    } else if (n_arg > QUERY_MAX) {
        refuse_url(h, connection, 431, "Request Header Fields Too Large", "header_too_large",
                   "the query has too many arguments");
    }
    return NULL;
}

/* Paths are compared without unescaping: no route contains an escaped character. */
static size_t keep_escaped(void *user, struct MHD_Connection *connection, char *text)
{
    (void)user;
    (void)connection;
    return strlen(text);
}

/* ---- Starting and stopping ---- */

static void format_url(struct http *h)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[256] = "?", port[16] = "?";
    if (getsockname(h->fd, (struct sockaddr *)&a, &n) == 0)
        getnameinfo((struct sockaddr *)&a, n, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV);
    const bool v6 = strchr(host, ':') != NULL;
    snprintf(h->url, sizeof h->url, "%s://%s%s%s:%s",
             h->context->config->tls_cert_file ? "https" : "http", v6 ? "[" : "", host,
             v6 ? "]" : "", port);
}

/* Limits what an unread stream occupies in the kernel, in addition to `unread_kib` in the server:
 * by default the kernel buffers megabytes. Accepted sockets inherit the option. */
#define SEND_BUFFER (128 * 1024)

static sac_status try_listen(struct http *h, const struct addrinfo *a)
{
    const int on = 1, send_buffer = SEND_BUFFER;
    h->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (h->fd < 0) return SAC_ERR_IO;
    setsockopt(h->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(h->fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
    if (bind(h->fd, a->ai_addr, a->ai_addrlen) == 0 && listen(h->fd, SOMAXCONN) == 0) return SAC_OK;
    const int why = errno;
    close(h->fd);
    h->fd = -1;
    errno = why;
    return SAC_ERR_IO;
}

/* Uses the listening socket that systemd passed to this process, if any. */
static bool inherit_socket(struct http *h)
{
    const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");
    if (!pid || !n || strtol(pid, NULL, 10) != getpid() || strtol(n, NULL, 10) < 1) return false;
    h->fd = SYSTEMD_FD;
    return true;
}

static sac_status open_port(struct http *h, sac_error *err)
{
    const struct server_config *c = h->context->config;
    const struct addrinfo want = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    char port[16];
    if (inherit_socket(h)) return SAC_OK;
    snprintf(port, sizeof port, "%u", c->port);
    const int why = getaddrinfo(c->host, port, &want, &found);
    if (why) return error_set(err, SAC_ERR_NOT_FOUND, "--host %s: %s", c->host, gai_strerror(why));
    sac_status status = SAC_ERR_IO;
    for (const struct addrinfo *a = found; a && status != SAC_OK; a = a->ai_next)
        status = try_listen(h, a);
    if (status != SAC_OK)
        status = error_set(err, SAC_ERR_IO, "%s port %u: %s%s", c->host, c->port, strerror(errno),
                           errno == EADDRINUSE ? " (--port 0 takes one that is free)" : "");
    freeaddrinfo(found);
    return status;
}

static sac_status read_tls(struct http *h, sac_error *err)
{
    const struct server_config *c = h->context->config;
    if (!c->tls_cert_file) return SAC_OK;
    TRY(input_read(&h->tls_key, c->tls_key_file, err));
    TRY(input_read(&h->tls_cert, c->tls_cert_file, err));
    if (h->tls_key.n && h->tls_cert.n) return SAC_OK;
    return error_set(err, SAC_ERR_FORMAT, "the key or certificate of TLS is empty");
}

static sac_status start_daemon(struct http *h, sac_error *err)
{
    const struct server_config *c = h->context->config;
    const struct server_limits *l = &c->limits;
    const size_t memory = 2 * (size_t)l->header_bytes;
    struct MHD_OptionItem options[] = {
        {MHD_OPTION_LISTEN_SOCKET, h->fd, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)l->n_connection, NULL},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, (intptr_t)l->n_per_address, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)l->idle_s, NULL},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT,
         (intptr_t)(memory > MEMORY_MIN_BYTES ? memory : MEMORY_MIN_BYTES), NULL},
        {MHD_OPTION_THREAD_POOL_SIZE, (intptr_t)c->n_http_thread, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, h},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, h},
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)check_url, h},
        {MHD_OPTION_UNESCAPE_CALLBACK, (intptr_t)keep_escaped, NULL},
        {MHD_OPTION_END, 0, NULL}, /* replaced by the key if TLS is on */
        {MHD_OPTION_HTTPS_MEM_CERT, 0, h->tls_cert.data},
        {MHD_OPTION_END, 0, NULL},
    };
    struct MHD_OptionItem *const tls = &options[sizeof options / sizeof options[0] - 3];
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    if (c->tls_cert_file) {
        flags |= MHD_USE_TLS;
        *tls = (struct MHD_OptionItem){MHD_OPTION_HTTPS_MEM_KEY, 0, h->tls_key.data};
    }
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h, MHD_OPTION_ARRAY, options,
                                 MHD_OPTION_END);
    if (!h->daemon)
        return error_set(err, SAC_ERR_IO, "the HTTP server does not start%s",
                         c->tls_cert_file ? ": are key and certificate of TLS right?" : "");
    h->fd = -1;
    return SAC_OK;
}

sac_status http_start(struct http **out, struct context *context, sac_error *err)
{
    struct http *h = mem_calloc(1, sizeof *h);
    sac_status status;
    if (!h) return error_set(err, SAC_ERR_MEMORY, "out of memory for the server");
    h->context = context;
    h->fd = -1;
    pthread_mutex_init(&h->lock, NULL);
    TRY_FAIL(read_tls(h, err));
    TRY_FAIL(open_port(h, err));
    format_url(h);
    TRY_FAIL(start_daemon(h, err));
    *out = h;
    return SAC_OK;
fail:
    http_stop(h);
    return status;
}

const char *http_url(const struct http *h)
{
    return h->url;
}

void http_stop(struct http *h)
{
    if (!h) return;
    if (h->daemon) MHD_stop_daemon(h->daemon);
    if (h->fd >= 0) close(h->fd);
    pthread_mutex_destroy(&h->lock);
    strbuf_deinit(&h->tls_key);
    strbuf_deinit(&h->tls_cert);
    mem_free(h);
}
