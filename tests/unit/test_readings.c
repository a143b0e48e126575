/* test_readings.c: readings that are kept: whose they are, and that the oldest go for the newest.
 */
#include "serve/readings.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 40, BYTES = 100000 };

static void put(struct readings *r, uint32_t i, uint64_t key, size_t n)
{
    struct strbuf text = {0};
    char id[48];
    snprintf(id, sizeof id, "answer-%u", i);
    for (size_t k = 0; k < n; k++) strbuf_add(&text, "x", 1);
    strbuf_addf(&text, "%u", i);
    readings_put(r, id, key, &text);
    assert_null(text.data);
}

static bool has(struct readings *r, uint32_t i, uint64_t key)
{
    struct strbuf text = {0};
    char id[48], tail[16];
    snprintf(id, sizeof id, "answer-%u", i);
    const size_t n_tail = (size_t)snprintf(tail, sizeof tail, "%u", i);
    const bool found = readings_get(r, id, key, &text);
    if (found) assert_string_equal(text.data + text.n - n_tail, tail);
    if (!found) assert_int_equal(text.n, 0);
    strbuf_deinit(&text);
    return found;
}

static void oldest_go(void **state)
{
    (void)state;
    struct readings *r = NULL;
    assert_int_equal(readings_create(&r, BYTES, NULL), SAC_OK);
    for (uint32_t i = 0; i < N; i++) put(r, i, 7, BYTES / 10);
    for (uint32_t i = 0; i < N; i++) assert_int_equal(has(r, i, 7), i >= N - 9);
    put(r, N, 7, 2 * BYTES); /* too large for any room: nothing goes for it */
    assert_true(!has(r, N, 7) && has(r, N - 1, 7));
    for (uint32_t i = 0; i < N; i++) put(r, 100 + i, 7, 1);
    for (uint32_t i = 0; i < N; i++) assert_true(has(r, 100 + i, 7));
    readings_destroy(r);
}

static void keys_do_not_share(void **state)
{
    (void)state;
    struct readings *r = NULL;
    assert_int_equal(readings_create(&r, BYTES, NULL), SAC_OK);
    put(r, 1, 7, 10);
    assert_true(has(r, 1, 7));
    assert_false(has(r, 1, 8) || has(r, 1, 0) || has(r, 2, 7));
    readings_destroy(r);
    assert_int_equal(readings_create(&r, 0, NULL), SAC_OK);
    put(r, 1, 0, 1);
    assert_false(has(r, 1, 0));
    readings_destroy(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(oldest_go),
        cmocka_unit_test(keys_do_not_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
