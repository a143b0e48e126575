/* test_stop.c: the filter of stop strings against its definition, and its words and bytes. */
#include "engine/stop.c"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

/* The filter against its definition: after each token, the text so far is cut before the first
 * complete stop string; nothing that is shown is ever taken back, and no more than needed is held.
 */
static void stop_filter_follows_its_definition(void **state)
{
    (void)state;
    uint32_t rng = 1;
    for (int round = 0; round < 20000; round++) {
        char words[3][8], text[64] = "", shown[64] = "";
        const char *list[3] = {words[0], words[1], words[2]};
        struct stop s;
        size_t n_word = 0, n_text = 0, n_shown = 0;
        for (; n_word < 3; n_word++) {
            size_t n = 0;
            do {
                rng = rng * 1664525u + 1013904223u;
                words[n_word][n++] = (char)('a' + (rng >> 30 & 1));
            } while (n < 7 && (rng >> 28 & 3));
            words[n_word][n] = 0;
        }
        assert_int_equal(stop_init(&s, list, n_word, 4, NULL), SAC_OK);
        const char *match = NULL;
        while (!match && n_text < 40) {
            rng = rng * 1664525u + 1013904223u;
            const size_t n = 1 + (rng >> 24) % 4;
            for (size_t i = 0; i < n; i++) text[n_text + i] = (char)('a' + (rng >> (25 + i) & 1));
            const size_t certain = stop_push(&s, text + n_text, n, &match);
            n_text += n;
            memcpy(shown + n_shown, s.held, certain);
            n_shown += certain;
            stop_consume(&s, certain);
            size_t first = n_text, hold = n_text;
            for (size_t at = n_text; at-- > 0;)
                for (size_t w = 0; w < n_word; w++) {
                    const size_t bytes = strlen(words[w]), left = n_text - at;
                    if (strncmp(text + at, words[w], bytes) == 0)
                        first = at;
                    else if (left < bytes && strncmp(text + at, words[w], left) == 0)
                        hold = at;
                }
            assert_true((match != NULL) == (first < n_text));
            assert_int_equal(n_shown, match ? first : hold);
            assert_memory_equal(shown, text, n_shown);
            if (match) assert_memory_equal(text + first, match, strlen(match));
        }
        stop_deinit(&s);
    }
}

/* What passes may hold stop strings, also where it is held back; one that begins there and ends
 * later counts. */
static void text_that_passes_ends_nothing(void **state)
{
    (void)state;
    static const char *const list[] = {"ab", "xabz"};
    struct stop s;
    const char *match;
    assert_int_equal(stop_init(&s, list, 2, 4, NULL), SAC_OK);
    s.passes = true;
    assert_int_equal(stop_push(&s, "abc", 3, &match), 3);
    assert_null(match);
    stop_consume(&s, 3);
    assert_int_equal(stop_push(&s, "xab", 3, &match), 0);
    assert_null(match);
    s.passes = false;
    assert_int_equal(stop_push(&s, "qa", 2, &match), 4);
    assert_null(match);
    stop_consume(&s, 4);
    assert_int_equal(stop_push(&s, "b", 1, &match), 0);
    assert_string_equal(match, "ab");
    stop_consume(&s, s.n_held);
    s.passes = true;
    assert_int_equal(stop_push(&s, "xa", 2, &match), 0);
    s.passes = false;
    assert_int_equal(stop_push(&s, "bz", 2, &match), 0);
    assert_string_equal(match, "xabz");
    stop_deinit(&s);
}

/* Characters that are cut by a token border come whole, invalid bytes as U+FFFD. */
static void characters_come_whole(void **state)
{
    (void)state;
    struct stop s;
    const char *match;
    assert_int_equal(stop_init(&s, NULL, 0, 4, NULL), SAC_OK);
    assert_int_equal(stop_push(&s, "a\xe2\x82", 3, &match), 1);
    assert_int_equal(stop_push(&s, "\xac\xff", 2, &match), 1 + 3 + 3);
    assert_memory_equal(s.held, "a\xe2\x82\xac\xef\xbf\xbd", 7);
    stop_consume(&s, 7);
    assert_int_equal(stop_push(&s, "\xf0\x9f", 2, &match), 0);
    assert_int_equal(stop_flush(&s) % 3, 0); /* nothing but U+FFFD */
    assert_true(s.n_held > 0);
    stop_deinit(&s);
}

/* The last token does not go on with the character that the ones before it began: what stands for
 * that and the token itself come at once, however short tokens are. */
static void the_last_token_has_room(void **state)
{
    (void)state;
    static const char *const list[] = {"stop"};
    struct stop s;
    const char *match;
    for (size_t n_stop = 0; n_stop < 2; n_stop++) {
        assert_int_equal(stop_init(&s, list, n_stop, 1, NULL), SAC_OK);
        for (const char *at = n_stop ? "sto\xf0\x9f\x90" : "\xf0\x9f\x90"; *at; at++)
            (void)stop_push(&s, at, 1, &match);
        (void)stop_push(&s, "a", 1, &match);
        assert_true(stop_flush(&s) >= 3 * n_stop + 3 + 1);
        assert_memory_equal(s.held, n_stop ? "sto" : "\xef\xbf\xbd", 3);
        stop_deinit(&s);
    }
}

static void empty_stop_strings_are_refused(void **state)
{
    (void)state;
    const char *const list[] = {"ok", ""};
    struct stop s;
    sac_error err = {0};
    assert_int_equal(stop_init(&s, list, 2, 4, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "stop string 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_filter_follows_its_definition),
        cmocka_unit_test(text_that_passes_ends_nothing),
        cmocka_unit_test(characters_come_whole),
        cmocka_unit_test(the_last_token_has_room),
        cmocka_unit_test(empty_stop_strings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
