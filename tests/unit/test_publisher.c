/* test_publisher.c: frames that go to subscribers and to who asks for those that were missed, with
 * sockets that write down what they get and give what a test has put there. */
#include "serve/publisher.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { N_KEPT = 4, FRAMES_MAX = 64, BYTES_MAX = 16 };

struct frame {
    const void *socket;
    char bytes[BYTES_MAX];
    size_t n;
    bool more;
};

static struct frame sent[FRAMES_MAX], coming[FRAMES_MAX];
static size_t n_sent, n_coming, n_taken;
static char pub, router; /* two addresses */

static int fake_send(void *socket, const void *bytes, size_t n, int flags)
{
    assert_true(n_sent < FRAMES_MAX && n <= BYTES_MAX);
    struct frame *f = &sent[n_sent++];
    *f = (struct frame){.socket = socket, .n = n, .more = flags & FLAG_SNDMORE};
    memcpy(f->bytes, bytes, n);
    assert_true(flags & FLAG_DONTWAIT);
    return (int)n;
}

/* As ZeroMQ: what does not fit is cut, and the whole length returned. */
static int fake_recv(void *socket, void *bytes, size_t n, int flags)
{
    assert_ptr_equal(socket, &router);
    assert_true(flags & FLAG_DONTWAIT);
    if (n_taken == n_coming) return -1;
    const struct frame *f = &coming[n_taken++];
    memcpy(bytes, f->bytes, f->n < n ? f->n : n);
    return (int)f->n;
}

static int fake_getsockopt(void *socket, int option, void *value, size_t *n)
{
    const int more = n_taken > 0 && coming[n_taken - 1].more;
    assert_ptr_equal(socket, &router);
    assert_int_equal(option, OPTION_RCVMORE);
    assert_int_equal(*n, sizeof more);
    memcpy(value, &more, sizeof more);
    return 0;
}

static struct publisher *open_publisher(uint32_t n_kept)
{
    struct publisher *p = mem_calloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->zmq.send = fake_send;
    p->zmq.recv = fake_recv;
    p->zmq.getsockopt = fake_getsockopt;
    p->pub = &pub;
    p->router = &router;
    p->end = &p->queue;
    p->wake_fd = -1;
    p->topic = mem_strdup("kv@");
    p->kept = mem_calloc(n_kept, sizeof(struct message *));
    p->n_kept = n_kept;
    n_sent = n_coming = n_taken = 0;
    return p;
}

static void close_publisher(struct publisher *p)
{
    p->pub = p->router = NULL; /* no sockets of a library's */
    publisher_destroy(p);
}

/* Messages whose payload is their number as a letter: 0 is "A". */
static void publish(struct publisher *p, uint32_t first, uint32_t n)
{
    for (uint32_t i = first; i < first + n; i++) {
        char *payload = mem_alloc(1);
        payload[0] = (char)('A' + i);
        assert_true(publisher_send(p, payload, 1));
    }
    assert_false(send_queue(p));
}

static void check_frame(size_t i, const void *socket, const char *bytes, size_t n, bool more)
{
    assert_true(i < n_sent);
    assert_ptr_equal(sent[i].socket, socket);
    assert_int_equal(sent[i].n, n);
    assert_memory_equal(sent[i].bytes, bytes, n);
    assert_int_equal(sent[i].more, more);
}

static void messages_are_numbered(void **state)
{
    struct publisher *p = open_publisher(0);
    (void)state;
    p->n_message = 0x0102030405060708;
    publish(p, 0, 2);
    assert_int_equal(n_sent, 6);
    for (size_t i = 0; i < 2; i++) {
        check_frame(3 * i, &pub, "kv@", 3, true);
        check_frame(3 * i + 1, &pub, i ? "\1\2\3\4\5\6\7\x9" : "\1\2\3\4\5\6\7\x8", 8, true);
        check_frame(3 * i + 2, &pub, i ? "B" : "A", 1, false);
    }
    close_publisher(p);
}

/* The frames of a replay of messages `from` to `to`, and its end. */
static void check_replay(uint64_t from, uint64_t to)
{
    size_t at = 0;
    for (uint64_t i = from; i <= to; i++, at += 4) {
        const char number[NUMBER_BYTES] = {0, 0, 0, 0, 0, 0, 0, (char)i}, letter = (char)('A' + i);
        const bool is_end = i == to;
        check_frame(at, &router, "who", 3, true);
        check_frame(at + 1, &router, "", 0, true);
        check_frame(at + 2, &router, is_end ? "\xff\xff\xff\xff\xff\xff\xff\xff" : number, 8, true);
        check_frame(at + 3, &router, is_end ? "" : &letter, is_end ? 0 : 1, false);
    }
    assert_int_equal(n_sent, at);
}

static void come(const char *bytes, size_t n, bool more)
{
    coming[n_coming] = (struct frame){.n = n, .more = more};
    memcpy(coming[n_coming++].bytes, bytes, n);
}

static void ask(struct publisher *p, uint64_t from)
{
    const char number[NUMBER_BYTES] = {0, 0, 0, 0, 0, 0, 0, (char)from};
    n_sent = n_coming = n_taken = 0;
    come("who", 3, true);
    come("", 0, true);
    come(number, NUMBER_BYTES, false);
    assert_true(answer_request(p));
    assert_false(answer_request(p));
}

static void the_last_are_sent_again_in_order(void **state)
{
    (void)state;
    for (uint32_t n = 0; n < 3 * N_KEPT; n++) {
        struct publisher *p = open_publisher(N_KEPT);
        const uint64_t first = n > N_KEPT ? n - N_KEPT : 0;
        publish(p, 0, n);
        for (uint64_t from = 0; from <= n + 1; from++) {
            ask(p, from);
            check_replay(from < first ? first : from > n ? n : from, n);
        }
        close_publisher(p);
    }
}

static void what_is_no_request_has_no_answer(void **state)
{
    static const struct {
        size_t n[4]; /* bytes of the frames behind the name */
        size_t n_frame;
    } bad[] = {{{8}, 1}, {{0, 4}, 2}, {{1, 8}, 2}, {{0, 8, 0}, 3}, {{0, 9}, 2}, {{0}, 0}};
    struct publisher *p = open_publisher(N_KEPT);
    (void)state;
    publish(p, 0, 2);
    n_sent = n_coming = 0;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        come("who", 3, bad[i].n_frame > 0);
        for (size_t k = 0; k < bad[i].n_frame; k++)
            come("\0\0\0\0\0\0\0\0\0", bad[i].n[k], k + 1 < bad[i].n_frame);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) assert_true(answer_request(p));
    assert_false(answer_request(p));
    assert_int_equal(n_taken, n_coming);
    assert_int_equal(n_sent, 0);
    ask(p, 1);
    check_replay(1, 2);
    close_publisher(p);
}

static void own_addresses_are_listened_at(void **state)
{
    (void)state;
    assert_true(is_local("tcp://*:5557"));
    assert_true(is_local("tcp://0.0.0.0:5557"));
    assert_true(is_local("tcp://[::]:5557"));
    assert_true(is_local("ipc:///tmp/x"));
    assert_false(is_local("tcp://127.0.0.1:5557"));
    assert_false(is_local("tcp://10.0.0.0:5557"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_are_numbered),
        cmocka_unit_test(the_last_are_sent_again_in_order),
        cmocka_unit_test(what_is_no_request_has_no_answer),
        cmocka_unit_test(own_addresses_are_listened_at),
    };
    return cmocka_run_group_tests_name("test_publisher", tests, NULL, NULL);
}
