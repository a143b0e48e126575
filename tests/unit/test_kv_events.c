/* test_kv_events.c: what is published byte by byte, against Python's msgpack; and that readers who
 * missed a batch for want of memory know too little, never too much. */
#include "serve/kv_events.h"
#include "serve/msgpack.h"

#include "base/mem.h"

#include "must.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- A publisher that writes down what it gets ---- */

static struct {
    uint8_t bytes[65536];
    size_t n, n_message;
} sent;

sac_status publisher_create(struct publisher **out, const struct publisher_options *options,
                            sac_error *err)
{
    (void)options, (void)err;
    *out = NULL;
    return SAC_OK;
}

void publisher_destroy(struct publisher *p)
{
    (void)p;
}

bool publisher_send(struct publisher *p, char *payload, size_t n)
{
    (void)p;
    assert_true(n <= sizeof sent.bytes);
    memcpy(sent.bytes, payload, n);
    sent.n = n;
    sent.n_message++;
    mem_free(payload);
    return true;
}

/* ---- Values ---- */

static void check_bytes(const void *bytes, size_t n, const char *hex)
{
    const uint8_t *b = bytes;
    char text[3];
    assert_int_equal(n, strlen(hex) / 2);
    for (size_t i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%02x", b[i]);
        if (memcmp(text, hex + 2 * i, 2) != 0) fail_msg("byte %zu is %s: %s", i, text, hex + 2 * i);
    }
}

static void values_are_those_of_msgpack(void **state)
{
    static const uint64_t numbers[] = {0,      127,     128,        255,          256,
                                       0xffff, 0x10000, 0xffffffff, 0x100000000u, UINT64_MAX};
    static const size_t lengths[] = {0, 31, 32, 255, 256, 65535, 65536};
    static const uint32_t counts[] = {0, 15, 16, 65535, 65536};
    struct strbuf b = {0};
    char text[65537];
    (void)state;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) msgpack_uint(&b, numbers[i]);
    check_bytes(b.data, b.n,
                "007fcc80ccffcd0100cdffffce00010000ceffffffffcf0000000100000000"
                "cfffffffffffffffff");
    strbuf_reset(&b);
    msgpack_nil(&b);
    msgpack_double(&b, 1764433825.5);
    check_bytes(b.data, b.n, "c0cb41da4ac7e8600000");
    strbuf_reset(&b);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        msgpack_array(&b, counts[i]);
        msgpack_map(&b, counts[i]);
    }
    check_bytes(b.data, b.n, "90809f8fdc0010de0010dcffffdeffffdd00010000df00010000");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        static const char *const head[] = {"a0",     "bf",     "d920",      "d9ff",
                                           "da0100", "daffff", "db00010000"};
        memset(text, 'x', lengths[i]);
        text[lengths[i]] = 0;
        strbuf_reset(&b);
        msgpack_text(&b, text);
        check_bytes(b.data, b.n - lengths[i], head[i]);
        assert_memory_equal(b.data + b.n - lengths[i], text, lengths[i]);
    }
    strbuf_deinit(&b);
}

/* ---- Batches ---- */

/* A page whose key is a number, of tokens that are all another. */
struct page {
    uint8_t key[32], before[32];
    int32_t tok[SAC_PAGE_TOK];
};

static void report(struct kv_events *k, uint64_t key, uint64_t before, int32_t tok, bool is_there)
{
    struct page p = {.key = {0xee}, .before = {0xee}}; /* what is cut off */
    for (int i = 0; i < 8; i++) {
        p.key[31 - i] = (uint8_t)(key >> 8 * i);
        p.before[31 - i] = (uint8_t)(before >> 8 * i);
    }
    for (uint32_t i = 0; i < SAC_PAGE_TOK; i++) p.tok[i] = tok;
    kv_events_page(
        k,
        &(sac_cache_page){
            .is_there = is_there, .key = p.key, .before = before ? p.before : NULL, .tok = p.tok},
        tok == 9 ? "salt" : NULL);
}

/* The events of the last batch, after its head and time; the rank, 0, is behind them. */
static void check_events(const char *events)
{
    char hex[8192];
    assert_true(sent.n > 11);
    check_bytes(sent.bytes, 2, "93cb");
    snprintf(hex, sizeof hex, "%s00", events);
    check_bytes(sent.bytes + 10, sent.n - 10, hex);
}

#define EIGHT(hex)   hex hex hex hex hex hex hex hex
#define PAGE_OF(hex) EIGHT(hex) EIGHT(hex) EIGHT(hex) EIGHT(hex)
#define TYPE         "a474797065"
#define HASHES       "ac626c6f636b5f686173686573"
#define PARENT       "b1706172656e745f626c6f636b5f68617368"
#define TOKENS       "a9746f6b656e5f696473"
#define SIZE         "aa626c6f636b5f73697a6520"
#define LORA_ID      "a76c6f72615f6964c0"
#define MEDIUM       "a66d656469756da3475055"
#define LORA_NAME    "a96c6f72615f6e616d65c0"
#define EXTRA        "aa65787472615f6b657973"
#define STORED       "ab426c6f636b53746f726564"
#define REMOVED      "ac426c6f636b52656d6f766564"
#define CLEARED      "81" TYPE "b0416c6c426c6f636b73436c6561726564"

static struct kv_events *begin(void)
{
    struct kv_events *k;
    sac_error err = {0};
    sent.n_message = 0;
    must(kv_events_create(&k, &(struct publisher_options){0}, &err), &err);
    assert_int_equal(sent.n_message, 1);
    check_events("91" CLEARED);
    return k;
}

static void pages_become_events_of_runs(void **state)
{
    (void)state;
    struct kv_events *k = begin();
    /* Two pages of a text, and one of another with a salt. */
    report(k, 0xfedcba9876543210u, 0, 5, true);
    report(k, 200, 0xfedcba9876543210u, 300, true);
    report(k, 3, 0, 9, true);
    kv_events_flush(k);
    check_events("92"
                 "88" TYPE STORED HASHES "92cffedcba9876543210ccc8" PARENT "c0" TOKENS
                 "dc0040" PAGE_OF("05") PAGE_OF("cd012c") SIZE LORA_ID MEDIUM LORA_NAME
                 "89" TYPE STORED HASHES "9103" PARENT "c0" TOKENS "dc0020" PAGE_OF("09")
                     SIZE LORA_ID MEDIUM LORA_NAME EXTRA "9191a473616c74");
    /* A page behind one of an earlier batch; two that go; one more that comes. */
    report(k, 4, 200, 1, true);
    report(k, 3, 0, 9, false);
    report(k, 200, 0xfedcba9876543210u, 300, false);
    report(k, 5, 4, 1, true);
    kv_events_flush(k);
    check_events("93"
                 "88" TYPE STORED HASHES "9104" PARENT "ccc8" TOKENS "dc0020" PAGE_OF("01")
                     SIZE LORA_ID MEDIUM LORA_NAME
                 "83" TYPE REMOVED HASHES "9203ccc8" MEDIUM "88" TYPE STORED HASHES "9105" PARENT
                 "04" TOKENS "dc0020" PAGE_OF("01") SIZE LORA_ID MEDIUM LORA_NAME);
    assert_int_equal(sent.n_message, 3);
    kv_events_flush(k); /* nothing happened */
    assert_int_equal(sent.n_message, 3);
    /* What was not sent yet is no longer of interest. */
    report(k, 6, 0, 1, true);
    kv_events_destroy(k);
    assert_int_equal(sent.n_message, 4);
    check_events("91" CLEARED);
}

/* Whichever allocation fails: either the batch was sent, or the next one clears all first. */
static void a_lost_batch_clears_all(void **state)
{
    (void)state;
    uint32_t n_lost = 0;
    for (uint64_t at = 1;; at++) {
        struct kv_events *k = begin();
        const uint64_t before = mem_count();
        mem_fail_at(at);
        report(k, 1, 0, 5, true);
        report(k, 2, 1, 5, true);
        kv_events_flush(k);
        mem_fail_at(0);
        const bool was_lost = sent.n_message == 1, is_over = mem_count() - before < at;
        report(k, 3, 0, 1, false);
        kv_events_flush(k);
        if (was_lost)
            check_events("92" CLEARED "83" TYPE REMOVED HASHES "9103" MEDIUM);
        else
            check_events("91"
                         "83" TYPE REMOVED HASHES "9103" MEDIUM);
        kv_events_destroy(k);
        n_lost += was_lost;
        if (is_over) break;
    }
    assert_true(n_lost > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_msgpack),
        cmocka_unit_test(pages_become_events_of_runs),
        cmocka_unit_test(a_lost_batch_clears_all),
    };
    return cmocka_run_group_tests_name("test_kv_events", tests, NULL, NULL);
}
