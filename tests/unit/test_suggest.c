/* test_suggest.c: which name is near to a mistyped word, and that others are not offered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/suggest.h"

#include <string.h>

static const char *hint(const char *word, const char *const *names)
{
    static char buf[SUGGEST_HINT_BYTES];
    struct suggest s = suggest_begin(word, strlen(word));
    for (; *names; names++) suggest_try(&s, *names, strlen(*names));
    return suggest_hint(&s, buf);
}

static void test_hints(void **state)
{
    (void)state;
    static const char *const names[] = {"run",   "chat", "perplexity", "--top-k",
                                        "quest", "-ngl", NULL};
    assert_string_equal(hint("rnu", names), " (did you mean 'run'?)");
    assert_string_equal(hint("chta", names), " (did you mean 'chat'?)");
    assert_string_equal(hint("Perplexty", names), " (did you mean 'perplexity'?)");
    assert_string_equal(hint("--top_k", names), " (did you mean '--top-k'?)");
    assert_string_equal(hint("qest", names), " (did you mean 'quest'?)");
    assert_string_equal(hint("fly", names), "");
    assert_string_equal(hint("", names), "");
    assert_string_equal(hint("x", names), "");
    char longest[200];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    assert_string_equal(hint(longest, names), "");
    const char *const far[] = {longest, NULL};
    assert_string_equal(hint("aaaa", far), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hints)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
