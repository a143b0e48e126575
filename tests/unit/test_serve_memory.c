/* test_serve_memory.c: the server without memory. Every allocation of one request's life fails in
 * turn, alone and with all that follow: the client gets its whole answer, or 503, or (where a
 * stream has begun) an error as its last event, never half of an answer that looks whole; the
 * server goes on, nothing is left behind. A server of its own runs in this process, with a tiny
 * model. */
#include "base/mem.h"
#include "must.h"
#include "serve/server.h"
#include "tiny_model.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

enum { REPLY_MAX = 1 << 20, FEW = 200 };

struct world {
    sac_model *model;
    sac_engine *engine;
    struct server_config config;
    struct server *server;
    pthread_t thread;
    char store[64];
    uint16_t port;
    sac_status ended;
};

static struct world w;

/* ---- A server ---- */

static void *serve(void *user)
{
    sac_error err = {0};
    (void)user;
    w.ended = server_run(w.server, w.model, w.engine, &err);
    return NULL;
}

static int start(void **state)
{
    sac_error err = {0};
    sac_engine_params p = sac_engine_params_default();
    sigset_t set;
    (void)state;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &set, NULL); /* the server's own thread waits for it */
    w.model = tiny_open(&(struct tiny){.seed = 3});
    p.n_ctx = 1024;
    p.n_seq_max = 4; /* two answers, two documents */
    p.n_threads = 1;
    p.watch = p.compose = true;
    must(sac_engine_create(&w.engine, w.model, &p, &err), &err);
    snprintf(w.store, sizeof w.store, P_tmpdir "/saccade-serve-XXXXXX");
    assert_non_null(mkdtemp(w.store));
    w.config = server_config_default();
    w.config.port = 0;
    w.config.quiet = true;
    w.config.n_http_thread = 1;
    w.config.n_answer = 2;
    w.config.n_doc_max = 2;
    w.config.store = w.store;
    w.config.model_name = "tiny";
    w.config.chat_template = "chatml";
    w.config.ping_s = 0;
    w.config.limits.readings_mib = 0; /* or what is in use grows, as it may */
    must(server_start(&w.server, &w.config, &err), &err);
    w.port = (uint16_t)strtoul(strrchr(server_url(w.server), ':') + 1, NULL, 10);
    return pthread_create(&w.thread, NULL, serve, NULL);
}

static int stop(void **state)
{
    char command[128];
    (void)state;
    kill(getpid(), SIGTERM);
    pthread_join(w.thread, NULL);
    server_stop(w.server);
    sac_engine_free(w.engine);
    sac_model_free(w.model);
    snprintf(command, sizeof command, "rm -r '%s'", w.store);
    return system(command) != 0 || w.ended != SAC_OK;
}

/* ---- A client, whose memory is not counted ---- */

struct request {
    const char *method, *path, *body;
    bool stream;
};

/* The whole answer, with its head. */
static void ask(const struct request *r, char *reply)
{
    static char head[512];
    const struct sockaddr_in to = {.sin_family = AF_INET,
                                   .sin_port = htons(w.port),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct timeval patience = {.tv_sec = 60};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    size_t n = 0;
    assert_true(fd >= 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    const int n_head = snprintf(
        head, sizeof head,
        "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
        r->method, r->path, strlen(r->body));
    assert_int_equal(send(fd, head, (size_t)n_head, MSG_NOSIGNAL), n_head);
    (void)!send(fd, r->body, strlen(r->body), MSG_NOSIGNAL);
    for (ssize_t got; (got = recv(fd, reply + n, REPLY_MAX - 1 - n, 0)) != 0; n += (size_t)got)
        if (got < 0) break;
    close(fd);
    reply[n] = 0;
}

static size_t n_events(const char *reply)
{
    size_t n = 0;
    for (const char *at = reply; (at = strstr(at, "data: {")); at++) n++;
    return n;
}

/* What is said, without what differs each time: ids, times, whether a document was there. */
static const char *said(const char *reply, size_t *out_n)
{
    static const char *const parts[][2] = {{"\"choices\":", "\"usage\""},
                                           {"\"text\":", "\"usage\""},
                                           {"\"object\":\"doc", "\"created\""},
                                           {"\"content\":", "\"usage\""}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        const char *begin = strstr(reply, parts[i][0]);
        const char *end = begin ? strstr(begin, parts[i][1]) : NULL;
        *out_n = end ? (size_t)(end - begin) : 0;
        if (end) return begin;
    }
    return NULL;
}

static bool is_whole(const struct request *r, const char *reply, const char *want)
{
    size_t n, n_want;
    if (r->stream) return n_events(reply) == n_events(want) && !strstr(reply, "\"error\":{");
    const char *a = said(reply, &n), *b = said(want, &n_want);
    if (!b) return strlen(reply) == strlen(want);
    return a && n == n_want && memcmp(a, b, n) == 0;
}

/* ---- Failures ---- */

static void wait_for(const char *path, const char *words)
{
    static char reply[REPLY_MAX];
    const struct request r = {"GET", path, "", false};
    do ask(&r, reply);
    while (!strstr(reply, words));
}

static void wait_idle(void)
{
    wait_for("/metrics", "saccade_num_requests_running{model_name=\"tiny\"} 0\n");
}

/* What is held when connections that have ended are gone, too: they end in threads of their own. */
static uint64_t held_at_rest(void)
{
    uint64_t held = mem_held();
    for (int still = 0; still < 100; still++) {
        usleep(1000);
        if (mem_held() != held) still = 0;
        held = mem_held();
    }
    return held;
}

static void check(const struct request *r, const char *reply, const char *want, uint64_t n)
{
    if (strncmp(reply, "HTTP/1.1 503 ", 13) == 0 && strstr(reply, "memory")) return;
    if (strncmp(reply, "HTTP/1.1 200 ", 13) == 0 && is_whole(r, reply, want)) return;
    if (r->stream && strncmp(reply, "HTTP/1.1 200 ", 13) == 0 &&
        (strstr(reply, "out of memory\"}}\n\n") || strstr(reply, "\"code\":null}}\n\n")))
        return;
    fail_msg("%s, allocation %llu: %.4000s", r->path, (unsigned long long)n, reply);
}

/* Every step-th allocation, or each one of a request that needs few, until the request needs no
 * more of them. */
static void starve(const struct request *r, void (*arm)(uint64_t n), uint64_t step)
{
    static char want[REPLY_MAX], reply[REPLY_MAX];
    uint64_t n = 1, n_asked = mem_count();
    ask(r, want);
    if (mem_count() - n_asked < FEW) step = 1;
    if (strncmp(want, "HTTP/1.1 200 ", 13) != 0) fail_msg("%s: %.2000s", r->path, want);
    do {
        const uint64_t before = mem_count();
        arm(n);
        ask(r, reply);
        arm(0);
        n_asked = mem_count() - before;
        check(r, reply, want, n);
        if (n % 16 == 0) wait_idle();
        n += step;
    } while (n_asked >= n - step);
    wait_idle();
    ask(r, reply);
    check(r, reply, want, 0);
    assert_non_null(strstr(reply, "200 OK"));
}

#define PLAIN "\"max_tokens\":3,\"temperature\":0,\"ignore_eos\":true,"
#define SCHEMA                                                                                     \
    "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",1]}},\"required\":[\"a\"]}"
#define TOOLS                                                                                      \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":" SCHEMA "}}]"

static const struct request requests[] = {
    {"GET", "/health", "", false},
    {"GET", "/v1/models", "", false},
    {"POST", "/tokenize", "{\"content\":\"ab\",\"with_pieces\":true}", false},
    {"POST", "/v1/completions",
     "{" PLAIN
     "\"prompt\":[\"ab\",\"c\"],\"logprobs\":2,\"stop\":[\"zz\"],\"return_token_ids\":true,"
     "\"logit_bias\":{\"7\":1},\"cache_salt\":\"s\",\"sparse\":{\"dense\":true},\"echo\":false}",
     false},
    {"POST", "/v1/completions",
     "{" PLAIN "\"prompt\":\"abcdefg\",\"truncate_prompt_tokens\":4,\"min_tokens\":2,"
     "\"stop_token_ids\":[7],\"bad_words\":[\"zz\"],\"allowed_token_ids\":[65,66]}",
     false},
    {"POST", "/v1/chat/completions",
     "{" PLAIN "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
     "\"content\":\"b\"}],\"continue_final_message\":true}",
     false},
    {"POST", "/v1/completions",
     "{" PLAIN "\"prompt\":\"ab\",\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
     true},
    {"POST", "/v1/chat/completions",
     "{" PLAIN "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"response_format\":{\"type\":"
     "\"json_schema\",\"json_schema\":{\"schema\":" SCHEMA "}},\"return_attention\":\"tokens\"}",
     false},
    {"POST", "/v1/chat/completions",
     "{" PLAIN
     "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]}],"
     "\"stream\":true,\"logprobs\":true,\"top_logprobs\":2," TOOLS "}",
     true},
    {"POST", "/v1/chat/completions",
     "{" PLAIN "\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
     "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]},"
     "{\"role\":\"tool\",\"content\":\"b\"}]," TOOLS "}",
     false},
    {"POST", "/v1/messages",
     "{\"max_tokens\":3,\"temperature\":0,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],"
     "\"stream\":true}",
     true},
    {"POST", "/v1/responses", "{\"max_output_tokens\":3,\"temperature\":0,\"input\":\"a\"}", false},
    {"POST", "/completion", "{" PLAIN "\"prompt\":\"ab\",\"return_tokens\":true}", false},
    {"POST", "/extract", "one two three", false},
    {"POST", "/v1/documents", "{\"name\":\"d\",\"text\":\"one two three\"}", false},
    {"GET", "/v1/documents", "", false},
    {"POST", "/v1/chat/completions",
     "{" PLAIN "\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"documents\":[\"d\"]}",
     false},
};

static void no_failure_is_fatal_hidden_or_leaves_anything(void **state)
{
    static char reply[REPLY_MAX];
    const size_t n = sizeof requests / sizeof requests[0];
    const uint64_t step = getenv("SAC_TEST_LONG") ? 1 : 5;
    (void)state;
    wait_for("/health", "200 OK");
    for (size_t i = 0; i < n; i++) ask(&requests[i], reply);
    wait_idle();
    const uint64_t before = held_at_rest();
    for (size_t i = 0; i < n; i++) {
        starve(&requests[i], mem_fail_at, step);
        starve(&requests[i], mem_fail_after, 4 * step);
    }
    wait_idle();
    assert_in_range(held_at_rest(), 0, before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_failure_is_fatal_hidden_or_leaves_anything),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
