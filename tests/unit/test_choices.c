/* test_choices.c: what tables say of choices by score, and which of their rows are refused. */
#include "eval/choices.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void means_are_over_choices_that_left_something_out(void **state)
{
    (void)state;
    const sac_reads before = {.n_select = 10, .n_select_dense = 4, .n_tok_chosen = 100};
    const sac_reads after = {.n_select = 40, .n_select_dense = 14, .n_tok_chosen = 740};
    assert_true(choices_mean(&before, &after, true) == 32); /* 640 tokens of 20 choices */
    assert_true(isnan(choices_mean(&before, &after, false)));
    assert_true(isnan(choices_mean(&after, &after, true)));
    const sac_reads dense = {.n_select = 50, .n_select_dense = 24, .n_tok_chosen = 740};
    assert_true(isnan(choices_mean(&after, &dense, true)));
}

static void methods_say_whether_they_choose(void **state)
{
    (void)state;
    static const char *const yes[] = {"quest", "quest:budget=64", "snapkv:budget=3",
                                      "psa:mass=0.5"};
    static const char *const no[] = {"full", "streaming:budget=64", "duo", "quests", "dense"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) assert_true(choices_are_made(yes[i]));
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) assert_false(choices_are_made(no[i]));
}

static void idle_rows_are_named(void **state)
{
    (void)state;
    struct strbuf idle = {0};
    sac_error err;
    choices_add_idle(&idle, 3.5, "quest", 4096);
    choices_add_idle(&idle, (double)NAN, "full", 4096);
    assert_int_equal(choices_refuse_idle(&idle, &err), SAC_OK);
    choices_add_idle(&idle, 0, "snapkv:budget=16", 4096);
    choices_add_idle(&idle, 0, "raas:budget=64", 8192);
    assert_int_equal(choices_refuse_idle(&idle, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "'snapkv:budget=16' at 4096 tokens, 'raas:budget=64' at 8192"));
    assert_null(strstr(err.msg, "quest"));
    strbuf_deinit(&idle);
}

static void a_number_a_dash_or_a_word(void **state)
{
    (void)state;
    struct strbuf text = {0};
    choices_print(&text, 81.25);
    strbuf_adds(&text, " ");
    choices_print(&text, (double)NAN);
    strbuf_adds(&text, " ");
    choices_print(&text, 0);
    assert_string_equal(text.data, "81.2 - nothing");
    strbuf_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(means_are_over_choices_that_left_something_out),
        cmocka_unit_test(methods_say_whether_they_choose),
        cmocka_unit_test(idle_rows_are_named),
        cmocka_unit_test(a_number_a_dash_or_a_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
