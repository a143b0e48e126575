/* http_request.c: see the header.
 *
 * A request proceeds as follows: its head is checked (access_control.c), its body is collected
 * within limits, and then the route either answers at once or queues an answer for the engine. With
 * a long body, this is done by the thread pool (thread_pool.h) while the connection is suspended.
 * While the engine has nothing to send, the connection is suspended, too, and the engine's thread
 * wakes it. A stream is written when MHD asks for bytes, from the pieces that have arrived by then;
 * a whole answer is written when all pieces have arrived. */
#include "serve/http_request.h"

#include "base/mem.h"
#include "base/workers.h"
#include "serve/access_control.h"
#include "serve/fields.h"
#include "serve/respond.h"
#include "serve/upload.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* Bodies up to this size are read before a refusal is sent: a client that is still sending may not
 * see it. */
#define DRAIN_BYTES (1u << 20)
/* Parsing a body of this size may take milliseconds, during which other connections would wait. */
#define POOL_BYTES (16u << 10)
/* Answers from this size on are limited, in total and in the time that the client takes to read
 * them: clients that read a few bytes now and then would fill the memory with them. */
#define LONG_ANSWER_BYTES (64u << 10)
#define READ_BYTES_S      (256u << 10) /* minimum rate at which a client reads */

struct http_request {
    struct http_request_head head;
    const struct route *route; /* NULL: unknown, or a file of the web page */
    char id[48];
    char *path; /* owned copy: MHD frees its own earlier */
    const char *method;
    uint64_t key, start_us, first_us;
    struct api_error error;
    struct strbuf body;
    uint64_t body_held;    /* bytes counted in the totals */
    uint64_t answer_held;  /* bytes counted in the totals */
    uint32_t read_s;       /* seconds, see http_request_read_s */
    struct answer *answer; /* a reference, or NULL */
    struct reply reply;
    struct json_pool json;      /* owned; tracks failed allocations: no incomplete JSON is sent */
    struct thread_pool_job job; /* the pool's until `made` is set */
    bool made;                  /* the answer is complete, queued or refused */
    bool closed;                /* streams: the last bytes are in `out` */
    struct strbuf out;          /* the answer; for streams, bytes that MHD has not fetched yet */
    size_t out_at;
    unsigned status; /* HTTP status; 0: nothing sent yet */
};

static struct respond_to answer_to(const struct http_request *req)
{
    return (struct respond_to){req->head.context, req->head.connection, req->id,
                               req->error.allowed};
}

static bool is_anthropic(const struct http_request *req)
{
    return req->route && req->route->dialect && req->route->dialect->anthropic;
}

static sac_status no_memory(struct http_request *req)
{
    return api_error_no_memory(&req->error);
}

/* After a failed allocation other errors may be its consequence: the refusal is 503, not the
 * client's fault. */
static enum MHD_Result refuse(struct http_request *req)
{
    const struct respond_to to = answer_to(req);
    if (req->json.failed || req->out.failed) (void)no_memory(req);
    req->status = api_error_status(&req->error);
    return respond_error(&to, &req->error, is_anthropic(req));
}

/* ---- Head and body ---- */

static sac_status check_state(const struct http_request *req, struct api_error *error)
{
    const int state = atomic_load(&req->head.context->state);
    if (req->route->flags & ROUTE_ALWAYS || state == CONTEXT_READY) return SAC_OK;
    return api_error_set(error, API_ERROR_UNAVAILABLE, NULL,
                         state == CONTEXT_LOADING ? "Loading model"
                                                  : "the server is shutting down");
}

static sac_status check_head(struct http_request *req)
{
    char allowed[ROUTE_ALLOWED_BYTES];
    struct api_error *error = &req->error;
    req->route = route_find(req->method, req->path, allowed);
    TRY(access_control_check(req->head.context, req->head.connection, req->route, &req->key,
                             error));
    if (req->route) return check_state(req, error);
    if (*allowed) {
        (void)api_error_set(error, API_ERROR_METHOD, NULL, "%.10s is not for %.100s", req->method,
                            req->path);
        snprintf(error->allowed, sizeof error->allowed, "%s", allowed);
        return SAC_ERR_ARG;
    }
    return api_error_set(error, API_ERROR_NOT_FOUND, NULL, "there is nothing at %.200s%s",
                         req->path,
                         strncmp(req->path, "/v1/v1/", 7) == 0
                             ? ": this client adds /v1 itself, so its base URL goes without"
                             : "");
}

/* The page is public: users enter their API key on it. */
static bool send_page(struct http_request *req, enum MHD_Result *out_result)
{
    const struct respond_to to = answer_to(req);
    bool found = false;
    if (req->head.context->config->no_page || strcmp(req->method, "GET") != 0) return false;
    *out_result = respond_page(&to, req->path, &found);
    if (found) req->status = 200;
    return found;
}

/* Whether the client would still be sending its body when a refusal arrives. */
static bool has_long_body(const struct http_request *req)
{
    const char *length = MHD_lookup_connection_value(req->head.connection, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (req->error.kind == API_ERROR_FRAMING) return true; /* the end of the body is unknown */
    return length && (strlen(length) > 9 || strtoul(length, NULL, 10) > DRAIN_BYTES);
}

struct http_request *http_request_begin(const struct http_request_head *head,
                                        enum MHD_Result *out_result)
{
    struct http_request *req = mem_calloc(1, sizeof *req);
    char *path = mem_strndup(head->path, strcspn(head->path, "?"));
    if (!req || !path) {
        const struct respond_to to = {head->context, head->connection, "", ""};
        mem_free(req);
        mem_free(path);
        *out_result = respond_no_memory(&to, false);
        return NULL;
    }
    req->head = *head;
    req->path = path;
    req->method = strcmp(head->method, "HEAD") == 0 ? "GET" : head->method;
    req->start_us = clock_us();
    reply_random_id(req->id, "req-");
    atomic_fetch_add(&head->totals->n_call, 1);
    *out_result = MHD_YES;
    json_enter(&req->json);
    if (check_head(req) != SAC_OK && has_long_body(req)) *out_result = refuse(req);
    json_leave();
    return req;
}

enum MHD_Result http_request_body(struct http_request *req, const char *data, size_t n)
{
    const struct server_limits *limits = &req->head.context->config->limits;
    struct http_request_totals *totals = req->head.totals;
    if (req->error.kind != API_ERROR_NONE || !req->route) return MHD_YES; /* discard */
    if (req->body.n + n > limits->body_bytes) {
        (void)api_error_set(&req->error, API_ERROR_LARGE, NULL,
                            "the body has more than %u bytes, which is what the server takes",
                            limits->body_bytes);
    } else if (atomic_load(&totals->body_bytes) + n > (uint64_t)limits->bodies_mib << 20) {
        (void)api_error_set(&req->error, API_ERROR_UNAVAILABLE, NULL,
                            "the server reads too many requests at once");
    } else {
        atomic_fetch_add(&totals->body_bytes, n);
        req->body_held += n;
        strbuf_add(&req->body, data, n);
    }
    if (req->body.failed) (void)no_memory(req);
    if (req->error.kind != API_ERROR_NONE) strbuf_deinit(&req->body);
    return MHD_YES;
}

static void free_body(struct http_request *req)
{
    strbuf_deinit(&req->body);
    atomic_fetch_sub(&req->head.totals->body_bytes, req->body_held);
    req->body_held = 0;
}

/* ---- Generated answers ---- */

static void suspend(void *user)
{
    struct http_request *req = user;
    MHD_suspend_connection(req->head.connection);
}

static void resume(void *user)
{
    struct http_request *req = user;
    MHD_resume_connection(req->head.connection);
}

static void take_piece(struct http_request *req, const struct answer_piece *p)
{
    struct reply *r = &req->reply;
    if (p->kind == ANSWER_PING || p->kind == ANSWER_TAKEN) return;
    reply_take(r, p);
    if (p->kind == ANSWER_TOKEN && !req->first_us) req->first_us = p->us;
}

static void write_piece(struct http_request *req, const struct answer_piece *p)
{
    if (p->kind == ANSWER_PING)
        strbuf_adds(&req->out, ": ping\n\n");
    else if (p->kind != ANSWER_TAKEN)
        req->reply.dialect->piece(&req->reply, p, &req->out);
}

/* A client that left, or a piece that could not be allocated, cancels the answer. Both look like a
 * shutdown in the pieces, so the flags decide what the error is. */
static void set_end_reason(struct http_request *req)
{
    if (atomic_load(&req->answer->left))
        (void)api_error_set(&req->reply.failed, API_ERROR_LEFT, NULL, "the client has left");
    if (atomic_load(&req->answer->lost)) (void)api_error_no_memory(&req->reply.failed);
}

/* Done before the client learns that the answer has ended, because it may ask for the record at
 * once. */
static void store_reading(struct http_request *req)
{
    struct strbuf text = {0};
    if (!req->answer->request.attention) return;
    json_print(&text, reply_attention(&req->reply));
    readings_put(req->head.context->readings, req->reply.id, req->key, &text);
}

static void close_stream(struct http_request *req)
{
    struct reply *r = &req->reply;
    req->closed = true;
    set_end_reason(req);
    if (r->failed.kind != API_ERROR_NONE) {
        if (r->dialect->anthropic) strbuf_adds(&req->out, "event: error\n");
        strbuf_adds(&req->out, "data: ");
        api_error_print(&r->failed, r->dialect->anthropic, &req->out);
        strbuf_adds(&req->out, "\n\n");
        return;
    }
    store_reading(req);
    if (r->dialect->close) r->dialect->close(r, &req->out);
}

/* Formats the pieces that have arrived; false: there were none, and the connection is suspended. */
static bool fill_stream(struct http_request *req)
{
    while (req->out.n == 0 && !req->closed) {
        bool done = false;
        struct answer_piece *first = engine_loop_take(req->head.context->loop, req->answer, &done);
        if (!first && !done) return false;
        for (const struct answer_piece *p = first; p; p = p->next) {
            take_piece(req, p);
            write_piece(req, p);
        }
        answer_pieces_free(first);
        if (done) close_stream(req);
        req->closed |= req->out.failed;
    }
    return true;
}

/* The bytes to send; after a failed allocation, an error event in their place. */
static const char *stream_text(const struct http_request *req, size_t *out_n)
{
    const char *text = req->out.data;
    *out_n = req->out.n;
    if (!req->out.failed) return text;
    text = is_anthropic(req) ? "event: error\ndata: " API_ERROR_NO_MEMORY_ANTHROPIC "\n\n"
                             : "data: " API_ERROR_NO_MEMORY "\n\n";
    *out_n = strlen(text);
    return text;
}

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max)
{
    struct http_request *req = user;
    size_t n;
    (void)pos;
    (void)stream_text(req, &n);
    if (req->out_at == n) {
        if (req->closed) return MHD_CONTENT_READER_END_OF_STREAM;
        strbuf_reset(&req->out);
        req->out_at = 0;
        json_enter(&req->json);
        const bool filled = fill_stream(req);
        json_leave();
        if (!filled) return 0;
    }
    const char *text = stream_text(req, &n);
    n = n - req->out_at < max ? n - req->out_at : max;
    memcpy(buf, text + req->out_at, n);
    req->out_at += n;
    return (ssize_t)n;
}

/* The status of a stream is sent only after the engine has accepted the request, so that a refusal
 * can have its own status. */
static enum MHD_Result begin_stream(struct http_request *req)
{
    const struct respond_to to = answer_to(req);
    struct reply *r = &req->reply;
    bool done = false;
    struct answer_piece *first = engine_loop_take(req->head.context->loop, req->answer, &done);
    if (!first && !done) return MHD_YES;
    if (r->dialect->open) r->dialect->open(r, &req->out);
    for (const struct answer_piece *p = first; p; p = p->next) {
        take_piece(req, p);
        write_piece(req, p);
    }
    answer_pieces_free(first);
    set_end_reason(req);
    req->error = r->failed;
    if (req->error.kind != API_ERROR_NONE || req->out.failed) return refuse(req);
    req->status = 200;
    return respond_stream(&to, read_stream, req);
}

/* Counts a long answer in the totals; refuses it if they become too large. */
static sac_status hold_answer(struct http_request *req)
{
    const uint64_t max = (uint64_t)req->head.context->config->limits.bodies_mib << 20;
    const uint64_t n = req->out.n;
    if (n < LONG_ANSWER_BYTES) return SAC_OK;
    req->answer_held = n;
    if (atomic_fetch_add(&req->head.totals->answer_bytes, n) + n <= max) return SAC_OK;
    strbuf_deinit(&req->out);
    return api_error_set(&req->error, API_ERROR_UNAVAILABLE, NULL,
                         "the answer has %llu bytes, and all that are being sent may have %llu",
                         (unsigned long long)n, (unsigned long long)max);
}

/* Sends the complete answer in `out`. */
static enum MHD_Result send_whole(struct http_request *req, const char *type)
{
    const struct respond_to to = answer_to(req);
    const size_t n = req->out.n;
    if (hold_answer(req) != SAC_OK) return refuse(req);
    if (n >= LONG_ANSWER_BYTES)
        req->read_s = req->head.context->config->limits.body_s + (uint32_t)(n / READ_BYTES_S);
    req->status = 200;
    return respond_text(&to, 200, type, &req->out);
}

/* Called after the answer was queued, and whenever the connection is resumed. */
static enum MHD_Result wait_for_all(struct http_request *req)
{
    struct reply *r = &req->reply;
    bool done = false;
    struct answer_piece *first;
    while ((first = engine_loop_take(req->head.context->loop, req->answer, &done))) {
        for (const struct answer_piece *p = first; p; p = p->next) {
            take_piece(req, p);
            if (p->kind == ANSWER_TOKEN && r->dialect->keep) r->dialect->keep(r, p);
        }
        answer_pieces_free(first);
    }
    if (!done) return MHD_YES;
    set_end_reason(req);
    req->error = r->failed;
    if (req->error.kind != API_ERROR_NONE) return refuse(req);
    store_reading(req);
    r->dialect->whole(r, &req->out);
    return req->out.failed ? refuse(req) : send_whole(req, NULL);
}

/* ---- Running the route ---- */

/* The last component of the path, as {"name": ...}. */
static sac_status parse_rest(struct http_request *req, cJSON **out)
{
    char *name = mem_strdup(req->path + strlen(req->route->path));
    *out = cJSON_CreateObject();
    if (name && *out) {
        const size_t n = MHD_http_unescape(name);
        json_add_text(*out, "name", name, n);
    }
    mem_free(name);
    return name && !req->json.failed ? SAC_OK : no_memory(req);
}

static sac_status parse_body(struct http_request *req, cJSON **out)
{
    const struct json_limits limits = json_limits_default();
    sac_error err = {0};
    const char *text = req->body.data ? req->body.data : "";
    const sac_status status = json_parse(out, text, req->body.n, &limits, &err);
    if (status != SAC_OK) return api_error_of(&req->error, status, NULL, err.msg);
    if (cJSON_IsObject(*out)) return SAC_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return api_error_set(&req->error, API_ERROR_REQUEST, NULL, "the body is not a JSON object");
}

/* Adds the slot's number (from the path) and the action (from the query) to the body. */
static sac_status parse_slot(struct http_request *req, cJSON **out)
{
    const char *action =
        MHD_lookup_connection_value(req->head.connection, MHD_GET_ARGUMENT_KIND, "action");
    if (req->body.n)
        TRY(parse_body(req, out));
    else
        *out = cJSON_CreateObject();
    cJSON_DeleteItemFromObjectCaseSensitive(*out, "id_slot");
    cJSON_DeleteItemFromObjectCaseSensitive(*out, "action");
    cJSON_AddStringToObject(*out, "id_slot", req->path + strlen(req->route->path));
    cJSON_AddStringToObject(*out, "action", action ? action : "");
    return req->json.failed ? no_memory(req) : SAC_OK;
}

static int client_fd(const struct http_request *req)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->head.connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

/* Whether this answer is among the share that is compared with dense attention. */
static bool is_sampled(double share)
{
    uint32_t random = UINT32_MAX;
    if (share <= 0) return false;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    return (double)random < share * 0x1p32;
}

static sac_status queue_answer(struct http_request *req, const cJSON *body)
{
    struct context *c = req->head.context;
    struct api_request request = {0};
    fields_check(body, c->log);
    sac_status status = req->route->dialect->read(&request, body, &c->rules, &req->error);
    struct answer *a = status == SAC_OK ? answer_create(&request) : NULL;
    api_request_deinit(&request);
    if (status != SAC_OK) return status;
    if (!a || reply_init(&req->reply, req->route->dialect, a, &c->rules, c->model_name) != SAC_OK) {
        answer_free(a);
        return no_memory(req);
    }
    a->key = req->key;
    a->sampled = is_sampled(c->config->audit_share);
    a->fd = client_fd(req);
    a->eager = a->request.stream;
    a->sleep = suspend;
    a->wake = resume;
    a->user = req;
    req->answer = a;
    return engine_loop_submit(c->loop, a, &req->error);
}

static sac_status reply_at_once(struct http_request *req, const cJSON *body, struct strbuf *out)
{
    const struct route_call asked = {.context = req->head.context,
                                     .key = req->key,
                                     .rest = req->path + strlen(req->route->path),
                                     .body = body};
    return req->route->reply(&asked, out, &req->error);
}

static bool has_file(const struct http_request *req)
{
    const unsigned flags = req->route ? req->route->flags : 0;
    return flags & ROUTE_FILE && (!(flags & ROUTE_BODY) || upload_is_file(req->head.connection));
}

/* Computes the answer, or queues it for the engine. */
static void run_route(struct http_request *req)
{
    const unsigned flags = req->route->flags;
    cJSON *body = NULL;
    sac_status status = SAC_OK;
    if (has_file(req))
        status = upload_read(&body, req->head.connection, &req->body,
                             req->head.context->config->limits.body_bytes, &req->error);
    else if (flags & ROUTE_SLOT)
        status = parse_slot(req, &body);
    else if (flags & ROUTE_BODY)
        status = parse_body(req, &body);
    else if (req->route->dialect)
        status = parse_rest(req, &body);
    if (status == SAC_OK && req->route->dialect)
        (void)queue_answer(req, body);
    else if (status == SAC_OK)
        (void)reply_at_once(req, body, &req->out);
    cJSON_Delete(body);
    free_body(req);
    req->made = true;
}

static enum MHD_Result send_made(struct http_request *req)
{
    if (req->error.kind != API_ERROR_NONE || req->out.failed || req->json.failed)
        return refuse(req);
    if (req->route->dialect)
        return req->answer->request.stream ? begin_stream(req) : wait_for_all(req);
    return send_whole(req, req->route->type);
}

/* Runs on a thread of the pool. The server may have begun to shut down since the request was
 * queued. */
static void run_in_pool(void *user)
{
    struct http_request *req = user;
    json_enter(&req->json);
    req->made = check_state(req, &req->error) != SAC_OK;
    if (!req->made) run_route(req);
    json_leave();
    resume(req);
}

/* Hands a request whose body may take long to parse to the pool; true: it is suspended. Files go
 * there whatever their size, because a packed file may expand ten thousand times and PDFs are
 * converted by another program. */
static bool submit_to_pool(struct http_request *req)
{
    if (req->body.n < POOL_BYTES && !has_file(req)) return false;
    req->job = (struct thread_pool_job){.sleep = suspend, .work = run_in_pool, .user = req};
    return thread_pool_submit(req->head.context->thread_pool, &req->job);
}

static enum MHD_Result continue_call(struct http_request *req)
{
    enum MHD_Result result;
    const struct respond_to to = answer_to(req);
    if (req->status) return MHD_YES;
    if (req->made) return send_made(req);
    if (strcmp(req->method, "OPTIONS") == 0) {
        req->status = 204;
        return respond_preflight(&to);
    }
    if (!req->route && req->error.kind != API_ERROR_HEADER && send_page(req, &result))
        return result;
    if (req->error.kind != API_ERROR_NONE) return refuse(req);
    if (submit_to_pool(req)) return MHD_YES;
    run_route(req);
    return send_made(req);
}

enum MHD_Result http_request_go_on(struct http_request *req)
{
    json_enter(&req->json);
    const enum MHD_Result result = continue_call(req);
    json_leave();
    return result;
}

uint32_t http_request_read_s(const struct http_request *req)
{
    return req->read_s;
}

/* ---- End of a request ---- */

static const char *client_text(const struct http_request *req, char buf[64])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(req->head.connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    const void *address = NULL;
    if (a && a->sa_family == AF_INET)
        address = &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    if (a && a->sa_family == AF_INET6)
        address = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return address && inet_ntop(a->sa_family, address, buf, 64) ? buf : "-";
}

static const char *finish_text(const struct http_request *req, bool sent)
{
    const struct reply *r = &req->reply;
    if (!req->answer || !r->choice || req->status >= 400) return sent ? NULL : "client left";
    if (atomic_load(&req->answer->slow)) return "client read too slowly";
    if (r->n_done < r->n_choice || !sent || r->failed.kind == API_ERROR_LEFT) return "client left";
    if (r->failed.kind != API_ERROR_NONE) return "error";
    if (req->answer->request.work != API_REQUEST_ANSWER) return NULL;
    return reply_finish(&r->choice[0]);
}

/* The prompt as text if it is to be logged, else NULL. */
static char *prompt_text(const struct http_request *req)
{
    char *text = NULL;
    size_t n;
    if (!req->head.context->config->log_prompts || !req->answer) return NULL;
    if (req->answer->request.work != API_REQUEST_ANSWER) return NULL;
    const struct api_request_prompt *p = &req->answer->request.prompt[0];
    if (sac_detokenize(req->head.context->rules.model, p->tok, p->n, true, &text, &n, NULL) !=
        SAC_OK)
        return NULL;
    return text;
}

static void log_call(const struct http_request *req, bool sent)
{
    const struct context *c = req->head.context;
    char client[64], *prompt = prompt_text(req);
    const bool failed = req->error.kind != API_ERROR_NONE && req->status >= 400;
    struct server_log_entry e = {
        .id = req->id,
        .method = req->method,
        .path = req->path,
        .client = client_text(req, client),
        .status = req->status ? req->status : 499, /* client disconnected, as usual */
        .key = req->key,
        .ms = (double)(clock_us() - req->start_us) * 1e-3,
        .first_ms = req->first_us ? (double)(req->first_us - req->start_us) * 1e-3 : 0,
        .finish = finish_text(req, sent),
        .error = failed ? req->error.message : NULL,
        .prompt = prompt,
    };
    if (req->answer && req->reply.choice && req->answer->request.work == API_REQUEST_ANSWER) {
        e.n_choice = req->reply.n_choice;
        if (req->reply.choice[0].timings.n_predicted)
            e.reuse = sac_reuse_end_text(req->reply.choice[0].timings.reuse_end);
        const struct reply_count n = reply_counts(&req->reply);
        e.n_prompt = n.prompt;
        e.n_cached = n.cached;
        e.n_disk = n.disk;
        e.n_predicted = n.predicted;
    }
    metrics_status(c->metrics, e.status);
    /* Health probes are frequent and not logged. */
    if (!req->route || !(req->route->flags & ROUTE_ALWAYS)) server_log_request(c->log, &e);
    sac_free(prompt);
}

void http_request_end(struct http_request *req, bool sent)
{
    struct context *c = req->head.context;
    json_enter(&req->json);
    log_call(req, sent);
    reply_deinit(&req->reply);
    json_leave();
    json_pool_deinit(&req->json);
    if (req->answer) engine_loop_leave(c->loop, req->answer);
    free_body(req);
    strbuf_deinit(&req->out);
    atomic_fetch_sub(&req->head.totals->answer_bytes, req->answer_held);
    atomic_fetch_sub(&req->head.totals->n_call, 1);
    mem_free(req->path);
    mem_free(req);
}
