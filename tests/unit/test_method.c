/* test_method.c: the list of methods is well formed and equals its public view. */
#include "methods/method.h"
#include "saccade.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void names_are_unique_and_found(void **state)
{
    (void)state;
    size_t n = 0;
    for (const struct method *m; (m = method_at(n)); n++) {
        assert_true(strcmp(m->kind, "prefill") == 0 || strcmp(m->kind, "decode") == 0);
        assert_true(m->name[0] && m->summary[0]);
        assert_ptr_equal(method_find(m->kind, m->name), m); /* a second one would be found later */
    }
    assert_true(n > 0);
    assert_null(method_find("prefill", "full"));
    assert_null(method_find("decode", "no-such-method"));
}

static void public_view_equals_the_list(void **state)
{
    (void)state;
    size_t i = 0;
    for (sac_method_info info; sac_method_at(i, &info); i++) {
        const struct method *m = method_at(i);
        assert_string_equal(info.kind, m->kind);
        assert_string_equal(info.name, m->name);
        assert_string_equal(info.summary, m->summary);
        assert_ptr_equal(info.paper, m->paper);
    }
    assert_null(method_at(i));
}

static void dense_attention_is_always_there(void **state)
{
    (void)state;
    assert_non_null(method_find("prefill", "dense"));
    assert_non_null(method_find("decode", "full"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_unique_and_found),
        cmocka_unit_test(public_view_equals_the_list),
        cmocka_unit_test(dense_attention_is_always_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
