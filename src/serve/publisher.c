/* publisher.c: see the header.
 *
 * The sockets belong to the thread from its start to its end. It sleeps in zmq_poll, which looks at
 * the replay socket and at a file descriptor by which publisher_send wakes it. */
#include "serve/publisher.h"

#include "base/mem.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define LIBRARY "libzmq.so.5"

/* Constants from ZeroMQ's header, which is not needed at build time. */
enum { TYPE_PUB = 1, TYPE_ROUTER = 6 };
enum {
    OPTION_RCVMORE = 13,
    OPTION_LINGER = 17,
    OPTION_SNDHWM = 23,
    OPTION_LAST_ENDPOINT = 32,
    OPTION_IPV6 = 42
};
enum { FLAG_DONTWAIT = 1, FLAG_SNDMORE = 2, POLL_IN = 1 };

#define LINGER_MS     1000   /* as in vLLM */
#define UNSENT_MAX    100000 /* messages queued per subscriber, as in vLLM */
#define ENDPOINT_MAX  256
#define IDENTITY_MAX  255 /* ZeroMQ's limit */
#define ANSWERS_MAX   16  /* replays in a row: a flood of requests must not stop events */
#define NUMBER_BYTES  8
#define NUMBER_OF_END UINT64_MAX

struct poll_item {
    void *socket;
    int fd;
    short events, revents;
};

struct zmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*setsockopt)(void *socket, int option, const void *value, size_t n);
    int (*getsockopt)(void *socket, int option, void *value, size_t *n);
    int (*bind)(void *socket, const char *endpoint);
    int (*connect)(void *socket, const char *endpoint);
    int (*send)(void *socket, const void *bytes, size_t n, int flags);
    int (*recv)(void *socket, void *bytes, size_t n, int flags);
    int (*poll)(struct poll_item *item, int n, long timeout);
    int (*error)(void);
    const char *(*error_text)(int error);
};

struct message {
    struct message *next;
    uint64_t number;
    size_t n;
    char *payload; /* owned */
};

struct publisher {
    struct zmq zmq;
    void *context, *pub, *router; /* owned; router may be NULL */
    char endpoint[ENDPOINT_MAX], replay[ENDPOINT_MAX];
    char *topic; /* owned */
    int wake_fd;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock;
    struct message *queue, **end; /* lock */
    uint64_t n_message;           /* lock */
    bool stop;                    /* lock */
    struct message **kept;        /* owned by the thread: ring buffer [n_kept], indexed by number */
    uint32_t n_kept;
};

/* ---- The library ---- */

static sac_status find(void *library, const char *name, void *out, sac_error *err)
{
    void *symbol = dlsym(library, name);
    memcpy(out, &symbol, sizeof symbol); /* ISO C has no cast from object to function pointers */
    return symbol ? SAC_OK : error_set(err, SAC_ERR_UNSUPPORTED, LIBRARY " has no %s", name);
}

/* The library is never unloaded, because its threads may still run. */
static sac_status load(struct zmq *z, sac_error *err)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char *why = dlerror();
        return error_set(err, SAC_ERR_NOT_FOUND,
                         "KV events need ZeroMQ, which cannot be loaded: %s; Debian's package is "
                         "libzmq5",
                         why ? why : LIBRARY);
    }
    TRY(find(library, "zmq_ctx_new", &z->ctx_new, err));
    TRY(find(library, "zmq_ctx_term", &z->ctx_term, err));
    TRY(find(library, "zmq_socket", &z->socket, err));
    TRY(find(library, "zmq_close", &z->close, err));
    TRY(find(library, "zmq_setsockopt", &z->setsockopt, err));
    TRY(find(library, "zmq_getsockopt", &z->getsockopt, err));
    TRY(find(library, "zmq_bind", &z->bind, err));
    TRY(find(library, "zmq_connect", &z->connect, err));
    TRY(find(library, "zmq_send", &z->send, err));
    TRY(find(library, "zmq_recv", &z->recv, err));
    TRY(find(library, "zmq_poll", &z->poll, err));
    TRY(find(library, "zmq_errno", &z->error, err));
    return find(library, "zmq_strerror", &z->error_text, err);
}

/* ---- Sockets ---- */

static void set_option(const struct zmq *z, void *socket, int option, int value)
{
    (void)z->setsockopt(socket, option, &value, sizeof value);
}

/* vLLM's rule: bind to local and wildcard addresses, connect to others. */
static bool is_local(const char *endpoint)
{
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strstr(endpoint, "//0.0.0.0:") ||
           strncmp(endpoint, "ipc://", 6) == 0;
}

static sac_status open_socket(struct publisher *p, int type, const char *endpoint, bool listens,
                              void **out, sac_error *err)
{
    const struct zmq *z = &p->zmq;
    *out = z->socket(p->context, type);
    if (!*out) return error_set(err, SAC_ERR_MEMORY, "ZeroMQ: %s", z->error_text(z->error()));
    set_option(z, *out, OPTION_LINGER, LINGER_MS);
    /* Of the replay socket: half of the mark may still count as unsent when all has been read, and
     * the other half must hold a complete replay and its end marker. */
    const int replay = 2 * ((int)p->n_kept + 1) + 2;
    set_option(z, *out, OPTION_SNDHWM, type == TYPE_PUB ? UNSENT_MAX : replay);
    set_option(z, *out, OPTION_IPV6, strchr(endpoint, '[') != NULL);
    if ((listens ? z->bind : z->connect)(*out, endpoint) != 0)
        return error_set(err, SAC_ERR_ARG, "KV events: cannot %s '%s': %s",
                         listens ? "listen at" : "connect to", endpoint, z->error_text(z->error()));
    return SAC_OK;
}

static void name_endpoint(const struct zmq *z, void *socket, char out[ENDPOINT_MAX])
{
    size_t n = ENDPOINT_MAX;
    if (z->getsockopt(socket, OPTION_LAST_ENDPOINT, out, &n) != 0) out[0] = 0;
}

static sac_status open_sockets(struct publisher *p, const struct publisher_options *o,
                               sac_error *err)
{
    p->context = p->zmq.ctx_new();
    if (!p->context) return error_set(err, SAC_ERR_MEMORY, "ZeroMQ: out of memory");
    TRY(open_socket(p, TYPE_PUB, o->endpoint, is_local(o->endpoint), &p->pub, err));
    name_endpoint(&p->zmq, p->pub, p->endpoint);
    if (!o->replay) return SAC_OK;
    TRY(open_socket(p, TYPE_ROUTER, o->replay, true, &p->router, err));
    name_endpoint(&p->zmq, p->router, p->replay);
    return SAC_OK;
}

/* ---- Sending ---- */

static void message_free(struct message *m)
{
    if (!m) return;
    mem_free(m->payload);
    mem_free(m);
}

static void put_number(uint64_t number, uint8_t out[NUMBER_BYTES])
{
    for (int i = 0; i < NUMBER_BYTES; i++) out[i] = (uint8_t)(number >> 8 * (NUMBER_BYTES - 1 - i));
}

/* Never blocks: messages beyond the high-water mark are dropped for that subscriber, who notices
 * the gap in the numbers. */
static void send_numbered(const struct zmq *z, void *socket, uint64_t number, const char *payload,
                          size_t n)
{
    uint8_t bytes[NUMBER_BYTES];
    put_number(number, bytes);
    (void)z->send(socket, bytes, sizeof bytes, FLAG_SNDMORE | FLAG_DONTWAIT);
    (void)z->send(socket, payload, n, FLAG_DONTWAIT);
}

static void store_message(struct publisher *p, struct message *m)
{
    struct message **at = p->n_kept ? &p->kept[m->number % p->n_kept] : NULL;
    message_free(at ? *at : m);
    if (at) *at = m;
}

/* Returns true if the publisher is to stop. */
static bool send_queue(struct publisher *p)
{
    pthread_mutex_lock(&p->lock);
    struct message *first = p->queue;
    const bool stop = p->stop;
    p->queue = NULL;
    p->end = &p->queue;
    pthread_mutex_unlock(&p->lock);
    for (struct message *m = first, *next; m; m = next) {
        next = m->next;
        (void)p->zmq.send(p->pub, p->topic, strlen(p->topic), FLAG_SNDMORE | FLAG_DONTWAIT);
        send_numbered(&p->zmq, p->pub, m->number, m->payload, m->n);
        store_message(p, m);
    }
    return stop;
}

/* ---- Replay ---- */

static void replay(const struct publisher *p, const uint8_t *who, size_t n_who, uint64_t from)
{
    const struct zmq *z = &p->zmq;
    uint32_t first = 0; /* index of the oldest message */
    for (uint32_t i = 1; i < p->n_kept && p->kept[i]; i++)
        if (p->kept[i]->number < p->kept[first]->number) first = i;
    for (uint32_t i = 0; i <= p->n_kept; i++) {
        const bool is_end = i == p->n_kept;
        const struct message *m = is_end ? NULL : p->kept[(first + i) % p->n_kept];
        if (!is_end && (!m || m->number < from)) continue;
        (void)z->send(p->router, who, n_who, FLAG_SNDMORE | FLAG_DONTWAIT);
        (void)z->send(p->router, "", 0, FLAG_SNDMORE | FLAG_DONTWAIT);
        send_numbered(z, p->router, is_end ? NUMBER_OF_END : m->number, is_end ? "" : m->payload,
                      is_end ? 0 : m->n);
    }
}

/* Whether another frame of the message follows. */
static bool has_more(const struct publisher *p)
{
    int more = 0;
    size_t n = sizeof more;
    return p->zmq.getsockopt(p->router, OPTION_RCVMORE, &more, &n) == 0 && more;
}

/* Answers one request; malformed ones are ignored. False: there was none. */
static bool answer_request(const struct publisher *p)
{
    uint8_t who[IDENTITY_MAX], number[NUMBER_BYTES], rest[1];
    uint64_t from = 0;
    const int n_who = p->zmq.recv(p->router, who, sizeof who, FLAG_DONTWAIT);
    if (n_who < 0) return false;
    bool good = has_more(p) && p->zmq.recv(p->router, rest, sizeof rest, FLAG_DONTWAIT) == 0;
    good = good && has_more(p) &&
           p->zmq.recv(p->router, number, sizeof number, FLAG_DONTWAIT) == NUMBER_BYTES;
    while (has_more(p)) {
        good = false;
        if (p->zmq.recv(p->router, rest, sizeof rest, FLAG_DONTWAIT) < 0) break;
    }
    for (int i = 0; i < NUMBER_BYTES && good; i++) from = from << 8 | number[i];
    if (good && n_who <= IDENTITY_MAX) replay(p, who, (size_t)n_who, from);
    return true;
}

/* ---- Creation and destruction ---- */

static void *publisher_main(void *user)
{
    struct publisher *p = user;
    bool stop = false;
    while (!stop) {
        struct poll_item item[] = {{.fd = p->wake_fd, .events = POLL_IN},
                                   {.socket = p->router, .events = POLL_IN}};
        uint64_t n_wake;
        if (p->zmq.poll(item, p->router ? 2 : 1, -1) < 0) continue; /* interrupted by a signal */
        if (item[0].revents) (void)!read(p->wake_fd, &n_wake, sizeof n_wake);
        stop = send_queue(p);
        for (int i = 0; p->router && i < ANSWERS_MAX && answer_request(p); i++) continue;
    }
    return NULL;
}

static void wake(const struct publisher *p)
{
    const uint64_t one = 1;
    (void)!write(p->wake_fd, &one, sizeof one);
}

static sac_status start(struct publisher *p, const struct publisher_options *o, sac_error *err)
{
    TRY(load(&p->zmq, err));
    p->n_kept = o->replay ? o->n_kept : 0;
    p->kept = mem_calloc(p->n_kept, sizeof(struct message *));
    p->topic = mem_strdup(o->topic);
    if (!p->kept || !p->topic) return error_set(err, SAC_ERR_MEMORY, "out of memory for KV events");
    TRY(open_sockets(p, o, err));
    p->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    p->has_thread = p->wake_fd >= 0 && thread_start(&p->thread, publisher_main, p);
    if (!p->has_thread) return error_set(err, SAC_ERR_MEMORY, "the system gives no thread");
    return SAC_OK;
}

sac_status publisher_create(struct publisher **out, const struct publisher_options *options,
                            sac_error *err)
{
    struct publisher *p = mem_calloc(1, sizeof *p);
    if (!p) return error_set(err, SAC_ERR_MEMORY, "out of memory for KV events");
    pthread_mutex_init(&p->lock, NULL);
    p->end = &p->queue;
    p->wake_fd = -1;
    const sac_status status = start(p, options, err);
    if (status == SAC_OK)
        *out = p;
    else
        publisher_destroy(p);
    return status;
}

void publisher_destroy(struct publisher *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread) {
        wake(p);
        pthread_join(p->thread, NULL);
    }
    if (p->pub) p->zmq.close(p->pub);
    if (p->router) p->zmq.close(p->router);
    if (p->context) p->zmq.ctx_term(p->context);
    if (p->wake_fd >= 0) close(p->wake_fd);
    for (uint32_t i = 0; p->kept && i < p->n_kept; i++) message_free(p->kept[i]);
    mem_free(p->kept);
    mem_free(p->topic);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

const char *publisher_endpoint(const struct publisher *p)
{
    return p->endpoint;
}

const char *publisher_replay(const struct publisher *p)
{
    return *p->replay ? p->replay : NULL;
}

bool publisher_send(struct publisher *p, char *payload, size_t n)
{
    struct message *m = mem_calloc(1, sizeof *m);
    if (!m) {
        mem_free(payload);
        return false;
    }
    *m = (struct message){.n = n, .payload = payload};
    pthread_mutex_lock(&p->lock);
    m->number = p->n_message++;
    *p->end = m;
    p->end = &m->next;
    pthread_mutex_unlock(&p->lock);
    wake(p);
    return true;
}
