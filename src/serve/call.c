/* call.c: see the header.
 *
 * A call proceeds as follows: its head is checked (guard.c), its body is collected within limits,
 * and then the route either answers at once or queues an answer for the engine. With a long body,
 * this is done by the desk's threads (desk.h) while the connection is suspended. While the engine
 * has nothing to send, the connection is suspended, too, and the engine's thread wakes it. A stream
 * is written when MHD asks for bytes, from the pieces that have arrived by then; a whole answer is
 * written when all pieces have arrived. */
#include "serve/call.h"

#include "base/mem.h"
#include "base/workers.h"
#include "serve/fields.h"
#include "serve/guard.h"
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
#define DESK_BYTES (16u << 10)
/* Answers from this size on are limited, in total and in the time that the client takes to read
 * them: clients that read a few bytes now and then would fill the memory with them. */
#define LONG_ANSWER_BYTES (64u << 10)
#define READ_BYTES_S      (256u << 10) /* minimum rate at which a client reads */

struct call {
    struct call_head head;
    const struct route *route; /* NULL: unknown, or a file of the web page */
    char id[48];
    char *path; /* owned copy: MHD frees its own earlier */
    const char *method;
    uint64_t key, start_us, first_us;
    struct refusal refusal;
    struct strbuf body;
    uint64_t body_held;    /* bytes counted in the totals */
    uint64_t answer_held;  /* bytes counted in the totals */
    uint32_t read_s;       /* seconds, see call_read_s */
    struct answer *answer; /* a reference, or NULL */
    struct reply reply;
    struct json_pool json; /* owned; tracks failed allocations: no incomplete JSON is sent */
    struct desk_job job;   /* the desk's until `made` is set */
    bool made;             /* the answer is complete, queued or refused */
    bool closed;           /* streams: the last bytes are in `out` */
    struct strbuf out;     /* the answer; for streams, bytes that MHD has not fetched yet */
    size_t out_at;
    unsigned status; /* HTTP status; 0: nothing sent yet */
};

static struct respond_to answer_to(const struct call *call)
{
    return (struct respond_to){call->head.context, call->head.connection, call->id,
                               call->refusal.allowed};
}

static bool is_anthropic(const struct call *call)
{
    return call->route && call->route->dialect && call->route->dialect->anthropic;
}

static sac_status no_memory(struct call *call)
{
    return refusal_no_memory(&call->refusal);
}

/* After a failed allocation other errors may be its consequence: the refusal is 503, not the
 * client's fault. */
static enum MHD_Result refuse(struct call *call)
{
    const struct respond_to to = answer_to(call);
    if (call->json.failed || call->out.failed) (void)no_memory(call);
    call->status = refusal_status(&call->refusal);
    return respond_refusal(&to, &call->refusal, is_anthropic(call));
}

/* ---- Head and body ---- */

static sac_status check_state(const struct call *call, struct refusal *ref)
{
    const int state = atomic_load(&call->head.context->state);
    if (call->route->flags & ROUTE_ALWAYS || state == CONTEXT_READY) return SAC_OK;
    return refusal_set(ref, REFUSAL_UNAVAILABLE, NULL,
                       state == CONTEXT_LOADING ? "Loading model" : "the server is shutting down");
}

static sac_status check_head(struct call *call)
{
    char allowed[ROUTE_ALLOWED_BYTES];
    struct refusal *ref = &call->refusal;
    call->route = route_find(call->method, call->path, allowed);
    TRY(guard_check(call->head.context, call->head.connection, call->route, &call->key, ref));
    if (call->route) return check_state(call, ref);
    if (*allowed) {
        (void)refusal_set(ref, REFUSAL_METHOD, NULL, "%.10s is not for %.100s", call->method,
                          call->path);
        snprintf(ref->allowed, sizeof ref->allowed, "%s", allowed);
        return SAC_ERR_ARG;
    }
    return refusal_set(ref, REFUSAL_NOT_FOUND, NULL, "there is nothing at %.200s%s", call->path,
                       strncmp(call->path, "/v1/v1/", 7) == 0
                           ? ": this client adds /v1 itself, so its base URL goes without"
                           : "");
}

/* The page is public: users enter their API key on it. */
static bool send_page(struct call *call, enum MHD_Result *out_result)
{
    const struct respond_to to = answer_to(call);
    bool found = false;
    if (call->head.context->config->no_page || strcmp(call->method, "GET") != 0) return false;
    *out_result = respond_page(&to, call->path, &found);
    if (found) call->status = 200;
    return found;
}

/* Whether the client would still be sending its body when a refusal arrives. */
static bool has_long_body(const struct call *call)
{
    const char *length = MHD_lookup_connection_value(call->head.connection, MHD_HEADER_KIND,
                                                     MHD_HTTP_HEADER_CONTENT_LENGTH);
    if (call->refusal.kind == REFUSAL_FRAMING) return true; /* the end of the body is unknown */
    return length && (strlen(length) > 9 || strtoul(length, NULL, 10) > DRAIN_BYTES);
}

struct call *call_begin(const struct call_head *head, enum MHD_Result *out_result)
{
    struct call *call = mem_calloc(1, sizeof *call);
    char *path = mem_strndup(head->path, strcspn(head->path, "?"));
    if (!call || !path) {
        const struct respond_to to = {head->context, head->connection, "", ""};
        mem_free(call);
        mem_free(path);
        *out_result = respond_no_memory(&to, false);
        return NULL;
    }
    call->head = *head;
    call->path = path;
    call->method = strcmp(head->method, "HEAD") == 0 ? "GET" : head->method;
    call->start_us = clock_us();
    reply_random_id(call->id, "req-");
    atomic_fetch_add(&head->totals->n_call, 1);
    *out_result = MHD_YES;
    json_enter(&call->json);
    if (check_head(call) != SAC_OK && has_long_body(call)) *out_result = refuse(call);
    json_leave();
    return call;
}

enum MHD_Result call_body(struct call *call, const char *data, size_t n)
{
    const struct server_limits *limits = &call->head.context->config->limits;
    struct call_totals *totals = call->head.totals;
    if (call->refusal.kind != REFUSAL_NONE || !call->route) return MHD_YES; /* discard */
    if (call->body.n + n > limits->body_bytes) {
        (void)refusal_set(&call->refusal, REFUSAL_LARGE, NULL,
                          "the body has more than %u bytes, which is what the server takes",
                          limits->body_bytes);
    } else if (atomic_load(&totals->body_bytes) + n > (uint64_t)limits->bodies_mib << 20) {
        (void)refusal_set(&call->refusal, REFUSAL_UNAVAILABLE, NULL,
                          "the server reads too many requests at once");
    } else {
        atomic_fetch_add(&totals->body_bytes, n);
        call->body_held += n;
        strbuf_add(&call->body, data, n);
    }
    if (call->body.failed) (void)no_memory(call);
    if (call->refusal.kind != REFUSAL_NONE) strbuf_deinit(&call->body);
    return MHD_YES;
}

static void free_body(struct call *call)
{
    strbuf_deinit(&call->body);
    atomic_fetch_sub(&call->head.totals->body_bytes, call->body_held);
    call->body_held = 0;
}

/* ---- Generated answers ---- */

static void suspend(void *user)
{
    struct call *call = user;
    MHD_suspend_connection(call->head.connection);
}

static void resume(void *user)
{
    struct call *call = user;
    MHD_resume_connection(call->head.connection);
}

static void take_piece(struct call *call, const struct answer_piece *p)
{
    struct reply *r = &call->reply;
    if (p->kind == ANSWER_PING || p->kind == ANSWER_TAKEN) return;
    reply_take(r, p);
    if (p->kind == ANSWER_TOKEN && !call->first_us) call->first_us = p->us;
}

static void write_piece(struct call *call, const struct answer_piece *p)
{
    if (p->kind == ANSWER_PING)
        strbuf_adds(&call->out, ": ping\n\n");
    else if (p->kind != ANSWER_TAKEN)
        call->reply.dialect->piece(&call->reply, p, &call->out);
}

/* A client that left, or a piece that could not be allocated, cancels the answer. Both look like a
 * shutdown in the pieces, so the flags decide what the error is. */
static void set_end_reason(struct call *call)
{
    if (atomic_load(&call->answer->left))
        (void)refusal_set(&call->reply.failed, REFUSAL_LEFT, NULL, "the client has left");
    if (atomic_load(&call->answer->lost)) (void)refusal_no_memory(&call->reply.failed);
}

/* Done before the client learns that the answer has ended, because it may ask for the record at
 * once. */
static void store_reading(struct call *call)
{
    struct strbuf text = {0};
    if (!call->answer->ask.attention) return;
    json_print(&text, reply_attention(&call->reply));
    readings_put(call->head.context->readings, call->reply.id, call->key, &text);
}

static void close_stream(struct call *call)
{
    struct reply *r = &call->reply;
    call->closed = true;
    set_end_reason(call);
    if (r->failed.kind != REFUSAL_NONE) {
        if (r->dialect->anthropic) strbuf_adds(&call->out, "event: error\n");
        strbuf_adds(&call->out, "data: ");
        refusal_print(&r->failed, r->dialect->anthropic, &call->out);
        strbuf_adds(&call->out, "\n\n");
        return;
    }
    store_reading(call);
    if (r->dialect->close) r->dialect->close(r, &call->out);
}

/* Formats the pieces that have arrived; false: there were none, and the connection is suspended. */
static bool fill_stream(struct call *call)
{
    while (call->out.n == 0 && !call->closed) {
        bool done = false;
        struct answer_piece *first = loop_take(call->head.context->loop, call->answer, &done);
        if (!first && !done) return false;
        for (const struct answer_piece *p = first; p; p = p->next) {
            take_piece(call, p);
            write_piece(call, p);
        }
        answer_pieces_free(first);
        if (done) close_stream(call);
        call->closed |= call->out.failed;
    }
    return true;
}

/* The bytes to send; after a failed allocation, an error event in their place. */
static const char *stream_text(const struct call *call, size_t *out_n)
{
    const char *text = call->out.data;
    *out_n = call->out.n;
    if (!call->out.failed) return text;
    text = is_anthropic(call) ? "event: error\ndata: " REFUSAL_NO_MEMORY_ANTHROPIC "\n\n"
                              : "data: " REFUSAL_NO_MEMORY "\n\n";
    *out_n = strlen(text);
    return text;
}

static ssize_t read_stream(void *user, uint64_t pos, char *buf, size_t max)
{
    struct call *call = user;
    size_t n;
    (void)pos;
    (void)stream_text(call, &n);
    if (call->out_at == n) {
        if (call->closed) return MHD_CONTENT_READER_END_OF_STREAM;
        strbuf_reset(&call->out);
        call->out_at = 0;
        json_enter(&call->json);
        const bool filled = fill_stream(call);
        json_leave();
        if (!filled) return 0;
    }
    const char *text = stream_text(call, &n);
    n = n - call->out_at < max ? n - call->out_at : max;
    memcpy(buf, text + call->out_at, n);
    call->out_at += n;
    return (ssize_t)n;
}

/* The status of a stream is sent only after the engine has accepted the request, so that a refusal
 * can have its own status. */
static enum MHD_Result begin_stream(struct call *call)
{
    const struct respond_to to = answer_to(call);
    struct reply *r = &call->reply;
    bool done = false;
    struct answer_piece *first = loop_take(call->head.context->loop, call->answer, &done);
    if (!first && !done) return MHD_YES;
    if (r->dialect->open) r->dialect->open(r, &call->out);
    for (const struct answer_piece *p = first; p; p = p->next) {
        take_piece(call, p);
        write_piece(call, p);
    }
    answer_pieces_free(first);
    set_end_reason(call);
    call->refusal = r->failed;
    if (call->refusal.kind != REFUSAL_NONE || call->out.failed) return refuse(call);
    call->status = 200;
    return respond_stream(&to, read_stream, call);
}

/* Counts a long answer in the totals; refuses it if they become too large. */
static sac_status hold_answer(struct call *call)
{
    const uint64_t max = (uint64_t)call->head.context->config->limits.bodies_mib << 20;
    const uint64_t n = call->out.n;
    if (n < LONG_ANSWER_BYTES) return SAC_OK;
    call->answer_held = n;
    if (atomic_fetch_add(&call->head.totals->answer_bytes, n) + n <= max) return SAC_OK;
    strbuf_deinit(&call->out);
    return refusal_set(&call->refusal, REFUSAL_UNAVAILABLE, NULL,
                       "the answer has %llu bytes, and all that are being sent may have %llu",
                       (unsigned long long)n, (unsigned long long)max);
}

/* Sends the complete answer in `out`. */
static enum MHD_Result send_whole(struct call *call, const char *type)
{
    const struct respond_to to = answer_to(call);
    const size_t n = call->out.n;
    if (hold_answer(call) != SAC_OK) return refuse(call);
    if (n >= LONG_ANSWER_BYTES)
        call->read_s = call->head.context->config->limits.body_s + (uint32_t)(n / READ_BYTES_S);
    call->status = 200;
    return respond_text(&to, 200, type, &call->out);
}

/* Called after the answer was queued, and whenever the connection is resumed. */
static enum MHD_Result wait_for_all(struct call *call)
{
    struct reply *r = &call->reply;
    bool done = false;
    struct answer_piece *first;
    while ((first = loop_take(call->head.context->loop, call->answer, &done))) {
        for (const struct answer_piece *p = first; p; p = p->next) {
            take_piece(call, p);
            if (p->kind == ANSWER_TOKEN && r->dialect->keep) r->dialect->keep(r, p);
        }
        answer_pieces_free(first);
    }
    if (!done) return MHD_YES;
    set_end_reason(call);
    call->refusal = r->failed;
    if (call->refusal.kind != REFUSAL_NONE) return refuse(call);
    store_reading(call);
    r->dialect->whole(r, &call->out);
    return call->out.failed ? refuse(call) : send_whole(call, NULL);
}

/* ---- Running the route ---- */

/* The last component of the path, as {"name": ...}. */
static sac_status parse_rest(struct call *call, cJSON **out)
{
    char *name = mem_strdup(call->path + strlen(call->route->path));
    *out = cJSON_CreateObject();
    if (name && *out) {
        const size_t n = MHD_http_unescape(name);
        json_add_text(*out, "name", name, n);
    }
    mem_free(name);
    return name && !call->json.failed ? SAC_OK : no_memory(call);
}

static sac_status parse_body(struct call *call, cJSON **out)
{
    const struct json_limits limits = json_limits_default();
    sac_error err = {0};
    const char *text = call->body.data ? call->body.data : "";
    const sac_status status = json_parse(out, text, call->body.n, &limits, &err);
    if (status != SAC_OK) return refusal_of(&call->refusal, status, NULL, err.msg);
    if (cJSON_IsObject(*out)) return SAC_OK;
    cJSON_Delete(*out);
    *out = NULL;
    return refusal_set(&call->refusal, REFUSAL_REQUEST, NULL, "the body is not a JSON object");
}

/* Adds the slot's number (from the path) and the action (from the query) to the body. */
static sac_status parse_slot(struct call *call, cJSON **out)
{
    const char *action =
        MHD_lookup_connection_value(call->head.connection, MHD_GET_ARGUMENT_KIND, "action");
    if (call->body.n)
        TRY(parse_body(call, out));
    else
        *out = cJSON_CreateObject();
    cJSON_DeleteItemFromObjectCaseSensitive(*out, "id_slot");
    cJSON_DeleteItemFromObjectCaseSensitive(*out, "action");
    cJSON_AddStringToObject(*out, "id_slot", call->path + strlen(call->route->path));
    cJSON_AddStringToObject(*out, "action", action ? action : "");
    return call->json.failed ? no_memory(call) : SAC_OK;
}

static int client_fd(const struct call *call)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->head.connection, MHD_CONNECTION_INFO_CONNECTION_FD);
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

static sac_status queue_answer(struct call *call, const cJSON *body)
{
    struct context *c = call->head.context;
    struct ask ask = {0};
    fields_check(body, c->journal);
    sac_status status = call->route->dialect->read(&ask, body, &c->rules, &call->refusal);
    struct answer *a = status == SAC_OK ? answer_create(&ask) : NULL;
    ask_deinit(&ask);
    if (status != SAC_OK) return status;
    if (!a ||
        reply_init(&call->reply, call->route->dialect, a, &c->rules, c->model_name) != SAC_OK) {
        answer_free(a);
        return no_memory(call);
    }
    a->key = call->key;
    a->sampled = is_sampled(c->config->audit_share);
    a->fd = client_fd(call);
    a->eager = a->ask.stream;
    a->sleep = suspend;
    a->wake = resume;
    a->user = call;
    call->answer = a;
    return loop_submit(c->loop, a, &call->refusal);
}

static sac_status reply_at_once(struct call *call, const cJSON *body, struct strbuf *out)
{
    const struct route_call asked = {.context = call->head.context,
                                     .key = call->key,
                                     .rest = call->path + strlen(call->route->path),
                                     .body = body};
    return call->route->reply(&asked, out, &call->refusal);
}

static bool has_file(const struct call *call)
{
    const unsigned flags = call->route ? call->route->flags : 0;
    return flags & ROUTE_FILE && (!(flags & ROUTE_BODY) || upload_is_file(call->head.connection));
}

/* Computes the answer, or queues it for the engine. */
static void run_route(struct call *call)
{
    const unsigned flags = call->route->flags;
    cJSON *body = NULL;
    sac_status status = SAC_OK;
    if (has_file(call))
        status = upload_read(&body, call->head.connection, &call->body,
                             call->head.context->config->limits.body_bytes, &call->refusal);
    else if (flags & ROUTE_SLOT)
        status = parse_slot(call, &body);
    else if (flags & ROUTE_BODY)
        status = parse_body(call, &body);
    else if (call->route->dialect)
        status = parse_rest(call, &body);
    if (status == SAC_OK && call->route->dialect)
        (void)queue_answer(call, body);
    else if (status == SAC_OK)
        (void)reply_at_once(call, body, &call->out);
    cJSON_Delete(body);
    free_body(call);
    call->made = true;
}

static enum MHD_Result send_made(struct call *call)
{
    if (call->refusal.kind != REFUSAL_NONE || call->out.failed || call->json.failed)
        return refuse(call);
    if (call->route->dialect)
        return call->answer->ask.stream ? begin_stream(call) : wait_for_all(call);
    return send_whole(call, call->route->type);
}

/* Runs on a thread of the desk. The server may have begun to shut down since the call was
 * queued. */
static void run_at_desk(void *user)
{
    struct call *call = user;
    json_enter(&call->json);
    call->made = check_state(call, &call->refusal) != SAC_OK;
    if (!call->made) run_route(call);
    json_leave();
    resume(call);
}

/* Hands a call whose body may take long to parse to the desk; true: the call is suspended. Files go
 * there whatever their size, because a packed file may expand ten thousand times and PDFs are
 * converted by another program. */
static bool submit_to_desk(struct call *call)
{
    if (call->body.n < DESK_BYTES && !has_file(call)) return false;
    call->job = (struct desk_job){.sleep = suspend, .work = run_at_desk, .user = call};
    return desk_submit(call->head.context->desk, &call->job);
}

static enum MHD_Result continue_call(struct call *call)
{
    enum MHD_Result result;
    const struct respond_to to = answer_to(call);
    if (call->status) return MHD_YES;
    if (call->made) return send_made(call);
    if (strcmp(call->method, "OPTIONS") == 0) {
        call->status = 204;
        return respond_preflight(&to);
    }
    if (!call->route && call->refusal.kind != REFUSAL_HEADER && send_page(call, &result))
        return result;
    if (call->refusal.kind != REFUSAL_NONE) return refuse(call);
    if (submit_to_desk(call)) return MHD_YES;
    run_route(call);
    return send_made(call);
}

enum MHD_Result call_go_on(struct call *call)
{
    json_enter(&call->json);
    const enum MHD_Result result = continue_call(call);
    json_leave();
    return result;
}

uint32_t call_read_s(const struct call *call)
{
    return call->read_s;
}

/* ---- End of a call ---- */

static const char *client_text(const struct call *call, char buf[64])
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(call->head.connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *a = info ? info->client_addr : NULL;
    const void *address = NULL;
    if (a && a->sa_family == AF_INET)
        address = &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    if (a && a->sa_family == AF_INET6)
        address = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return address && inet_ntop(a->sa_family, address, buf, 64) ? buf : "-";
}

static const char *finish_text(const struct call *call, bool sent)
{
    const struct reply *r = &call->reply;
    if (!call->answer || !r->choice || call->status >= 400) return sent ? NULL : "client left";
    if (atomic_load(&call->answer->slow)) return "client read too slowly";
    if (r->n_done < r->n_choice || !sent || r->failed.kind == REFUSAL_LEFT) return "client left";
    if (r->failed.kind != REFUSAL_NONE) return "error";
    if (call->answer->ask.work != ASK_ANSWER) return NULL;
    return reply_finish(&r->choice[0]);
}

/* The prompt as text if it is to be logged, else NULL. */
static char *prompt_text(const struct call *call)
{
    char *text = NULL;
    size_t n;
    if (!call->head.context->config->log_prompts || !call->answer) return NULL;
    if (call->answer->ask.work != ASK_ANSWER) return NULL;
    const struct ask_prompt *p = &call->answer->ask.prompt[0];
    if (sac_detokenize(call->head.context->rules.model, p->tok, p->n, true, &text, &n, NULL) !=
        SAC_OK)
        return NULL;
    return text;
}

static void log_call(const struct call *call, bool sent)
{
    const struct context *c = call->head.context;
    char client[64], *prompt = prompt_text(call);
    const bool failed = call->refusal.kind != REFUSAL_NONE && call->status >= 400;
    struct journal_entry e = {
        .id = call->id,
        .method = call->method,
        .path = call->path,
        .client = client_text(call, client),
        .status = call->status ? call->status : 499, /* client disconnected, as usual */
        .key = call->key,
        .ms = (double)(clock_us() - call->start_us) * 1e-3,
        .first_ms = call->first_us ? (double)(call->first_us - call->start_us) * 1e-3 : 0,
        .finish = finish_text(call, sent),
        .error = failed ? call->refusal.message : NULL,
        .prompt = prompt,
    };
    if (call->answer && call->reply.choice && call->answer->ask.work == ASK_ANSWER) {
        e.n_choice = call->reply.n_choice;
        if (call->reply.choice[0].timings.n_predicted)
            e.reuse = sac_reuse_end_text(call->reply.choice[0].timings.reuse_end);
        const struct reply_count n = reply_counts(&call->reply);
        e.n_prompt = n.prompt;
        e.n_cached = n.cached;
        e.n_disk = n.disk;
        e.n_predicted = n.predicted;
    }
    metrics_status(c->metrics, e.status);
    /* Health probes are frequent and not logged. */
    if (!call->route || !(call->route->flags & ROUTE_ALWAYS)) journal_request(c->journal, &e);
    sac_free(prompt);
}

void call_end(struct call *call, bool sent)
{
    struct context *c = call->head.context;
    json_enter(&call->json);
    log_call(call, sent);
    reply_deinit(&call->reply);
    json_leave();
    json_pool_deinit(&call->json);
    if (call->answer) loop_leave(c->loop, call->answer);
    free_body(call);
    strbuf_deinit(&call->out);
    atomic_fetch_sub(&call->head.totals->answer_bytes, call->answer_held);
    atomic_fetch_sub(&call->head.totals->n_call, 1);
    mem_free(call->path);
    mem_free(call);
}
