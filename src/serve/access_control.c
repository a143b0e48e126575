/* access_control.c: see the header.
 *
 * A server without keys that listens on this machine only can still be reached by every web page in
 * a local browser. Pages of another origin therefore must not post, and if no key protects the
 * server, the Host header must name this machine: otherwise a hostile name that resolves to
 * 127.0.0.1 would be accepted. */
#include "serve/access_control.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

/* ---- Sizes ---- */

/* Headers that must not be repeated: this server and a proxy in front of it might use different
 * ones. */
static const char *const unique_headers[] = {"Host", "Content-Length", "Transfer-Encoding",
                                             "Authorization", "x-api-key"};
#define N_SINGLE (sizeof unique_headers / sizeof unique_headers[0])

struct header_sum {
    size_t bytes, n;
    unsigned n_single[N_SINGLE];
    bool bad_name;
};

static enum MHD_Result add_header(void *user, enum MHD_ValueKind kind, const char *key,
                                  const char *value)
{
    struct header_sum *sum = user;
    (void)kind;
    sum->n++;
    sum->bytes += strlen(key) + (value ? strlen(value) : 0) + 4;
    sum->bad_name |= key[strcspn(key, " \t")] != 0;
    for (size_t i = 0; i < N_SINGLE; i++)
        sum->n_single[i] += strcasecmp(key, unique_headers[i]) == 0;
    return MHD_YES;
}

/* Refuses requests whose body has an ambiguous end. Otherwise a proxy and this server might
 * disagree on where the next request begins (request smuggling). */
static sac_status check_framing(struct MHD_Connection *connection, const struct header_sum *sum,
                                struct api_error *error)
{
    const char *coding = header(connection, MHD_HTTP_HEADER_TRANSFER_ENCODING);
    for (size_t i = 0; i < N_SINGLE; i++)
        if (sum->n_single[i] > 1)
            return api_error_set(error, API_ERROR_FRAMING, NULL, "the header '%s' stands twice",
                                 unique_headers[i]);
    if (sum->bad_name)
        return api_error_set(error, API_ERROR_FRAMING, NULL, "the name of a header holds a blank");
    if (!coding) return SAC_OK;
    if (strcasecmp(coding, "chunked") != 0)
        return api_error_set(error, API_ERROR_FRAMING, NULL,
                             "the Transfer-Encoding is '%.40s': allowed is chunked", coding);
    if (header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH))
        return api_error_set(error, API_ERROR_FRAMING, NULL,
                             "a body has a Content-Length or a Transfer-Encoding, not both");
    return SAC_OK;
}

static sac_status check_size(const struct context *c, struct MHD_Connection *connection,
                             struct api_error *error)
{
    const struct server_limits *limits = &c->config->limits;
    struct header_sum sum = {0};
    MHD_get_connection_values(connection, MHD_HEADER_KIND, add_header, &sum);
    if (sum.n > limits->n_header || sum.bytes > limits->header_bytes)
        return api_error_set(error, API_ERROR_HEADER, NULL,
                             "%zu header lines of %zu bytes: the server takes %u of %u", sum.n,
                             sum.bytes, limits->n_header, limits->header_bytes);
    TRY(check_framing(connection, &sum, error));
    const char *encoding = header(connection, MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (encoding && *encoding && strcasecmp(encoding, "identity") != 0)
        return api_error_set(error, API_ERROR_ENCODING, NULL,
                             "the body's Content-Encoding is '%.40s': this server takes plain ones",
                             encoding);
    const char *length = header(connection, MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (length && strtoull(length, NULL, 10) > limits->body_bytes)
        return api_error_set(error, API_ERROR_LARGE, NULL,
                             "the body has %.20s bytes, the server takes %u", length,
                             limits->body_bytes);
    return SAC_OK;
}

/* ---- Origins and hosts ---- */

static bool in_list(const char *list, const char *item)
{
    const size_t n = strlen(item);
    while (list && *list) {
        const size_t len = strcspn(list, ",");
        if ((len == 1 && *list == '*') || (len == n && strncmp(list, item, n) == 0)) return true;
        list += len + (list[len] == ',');
    }
    return false;
}

const char *access_control_cors_origin(const struct context *c, struct MHD_Connection *connection)
{
    const char *origin = header(connection, MHD_HTTP_HEADER_ORIGIN);
    return origin && in_list(c->config->cors_origins, origin) ? origin : NULL;
}

static sac_status check_origin(const struct context *c, struct MHD_Connection *connection,
                               struct api_error *error)
{
    const char *origin = header(connection, MHD_HTTP_HEADER_ORIGIN);
    const char *host = header(connection, MHD_HTTP_HEADER_HOST);
    if (!origin || in_list(c->config->cors_origins, origin)) return SAC_OK;
    const char *name = strstr(origin, "://");
    if (host && name && strcasecmp(name + 3, host) == 0) return SAC_OK;
    return api_error_set(error, API_ERROR_FORBIDDEN, NULL,
                         "pages of '%.100s' may not use this server: --cors-origins allows it",
                         origin);
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "127.0.0.1") == 0 || strcmp(host, "::1") == 0 ||
           strcmp(host, "localhost") == 0;
}

static bool is_own_name(const struct context *c, const char *host)
{
    char name[256];
    struct in6_addr address;
    const bool bracket = *host == '[';
    const size_t n = bracket ? strcspn(host + 1, "]") : strcspn(host, ":");
    if (n >= sizeof name) return false;
    memcpy(name, host + bracket, n);
    name[n] = 0;
    return strcasecmp(name, "localhost") == 0 || strcasecmp(name, c->config->host) == 0 ||
           inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1;
}

static sac_status check_host(const struct context *c, struct MHD_Connection *connection,
                             struct api_error *error)
{
    const char *host = header(connection, MHD_HTTP_HEADER_HOST);
    if (!host || !is_loopback(c->config->host) || is_own_name(c, host)) return SAC_OK;
    return api_error_set(error, API_ERROR_FORBIDDEN, NULL,
                         "the host '%.100s' is not this server: it listens on %.100s without a key",
                         host, c->config->host);
}

/* ---- Keys ---- */

static const char *key_of(struct MHD_Connection *connection)
{
    const char *bearer = header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0) return bearer + 7;
    return header(connection, "x-api-key");
}

static sac_status check_key(const struct context *c, struct MHD_Connection *connection,
                            const struct route *route, uint64_t *out_key, struct api_error *error)
{
    const char *key = key_of(connection);
    const bool wanted = api_keys_wanted(c->api_keys);
    *out_key = wanted && key ? api_keys_find(c->api_keys, key) : 0;
    if (!wanted) return check_host(c, connection, error);
    if (*out_key || (route && (route->flags & ROUTE_PUBLIC))) return SAC_OK;
    return api_error_set(error, API_ERROR_KEY, NULL,
                         key ? "the API key is not known"
                             : "an API key is missing: send 'Authorization: Bearer KEY'");
}

sac_status access_control_check(const struct context *c, struct MHD_Connection *connection,
                                const struct route *route, uint64_t *out_key,
                                struct api_error *error)
{
    *out_key = 0;
    TRY(check_size(c, connection, error));
    TRY(check_key(c, connection, route, out_key, error));
    /* GET has no side effects, and browsers keep the response from other origins. */
    if (route && strcmp(route->method, "GET") == 0) return SAC_OK;
    return check_origin(c, connection, error);
}
