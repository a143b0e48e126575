/* test_toolcall.c: calls of tools in what models of each family write, and what is no call. */
#include "base/strbuf.h"
#include "serve/toolcall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static char weather[] = "weather", add[] = "add";
static char *const tools[] = {weather, add};

struct expect {
    const char *text, *content; /* NULL: all of the text */
    const char *calls;          /* "name(arguments) ..." */
};

static void check(const struct expect *e)
{
    struct toolcall_list list;
    struct strbuf calls = {0};
    toolcall_parse(&list, e->text, strlen(e->text), tools, 2);
    for (size_t i = 0; i < list.n; i++)
        strbuf_addf(&calls, "%s(%s) ", list.call[i].name, list.call[i].arguments);
    strbuf_add(&calls, "", 0);
    assert_string_equal(calls.data, e->calls);
    const char *content = e->content ? e->content : e->text;
    assert_int_equal(list.n_content, strlen(content));
    assert_memory_equal(e->text, content, strlen(content));
    strbuf_deinit(&calls);
    toolcall_deinit(&list);
}

static void test_families(void **state)
{
    (void)state;
    static const struct expect cases[] = {
        {"<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
         "", "weather({\"city\":\"Rome\"}) "},
        {"I "
         "look.\n<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</"
         "tool_call>\n<tool_call>{\"name\":"
         "\"weather\",\"arguments\":{}}",
         "I look.", "add({\"a\":1}) weather({}) "},
        {"{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\"}}", "",
         "weather({\"city\":\"Rome\"}) "},
        {"<|python_tag|>{\"name\":\"add\",\"parameters\":{}}; {\"name\":\"add\",\"parameters\":{}}",
         "", "add({}) add({}) "},
        {"[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\": [1, 2]}, \"id\": \"x\"}]", "",
         "add({\"a\":[1,2]}) "},
        {"```json\n{\"name\": \"add\", \"parameters\": {\"a\": 1}}\n```", "", "add({\"a\":1}) "},
        {"{\"type\":\"function\",\"function\":{\"name\":\"add\",\"arguments\":\"{}\"}}", "",
         "add({}) "},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check(&cases[i]);
}

static void test_what_is_no_call(void **state)
{
    (void)state;
    static const struct expect cases[] = {
        {"", NULL, ""},
        {"Plain words.", NULL, ""},
        {"{\"name\": \"other\", \"arguments\": {}}", NULL, ""},
        {"{\"name\": \"add\", \"arguments\": 3}", NULL, ""},
        {"{\"name\": \"add\"", NULL, ""},
        {"[]", NULL, ""},
        {"{\"name\":\"add\"} and more", NULL, ""},
        {"<tool_call>{\"name\":\"other\"}</tool_call>", NULL, ""},
        {"<tool_call>", NULL, ""},
        {"```", NULL, ""},
        {"[[[[[[[[{\"name\":\"add\"}]]]]]]]]", NULL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check(&cases[i]);
}

/* A stream shows what cannot become a call, all of it in the end, and never takes back. */
static void test_streams_hold_back_calls(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t certain;
    } cases[] = {
        {"", 0},        {"Hel", 3},           {"{\"na", 0},          {"  [", 0},
        {"Hello <", 5}, {"Hello <tool_c", 5}, {"Hello <tool_x", 13}, {"a <tool_call>{", 1},
        {"``", 0},      {"```py", 0},         {"[TOOL", 0},          {"<|pyth", 0},
        {"x\n\n", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(toolcall_certain(cases[i].text, strlen(cases[i].text)), cases[i].certain);
    const char *text =
        "One moment. <b>Now</b>\n<tool_call>{\"name\":\"add\",\"arguments\":{}}</tool_call>";
    size_t shown = 0;
    for (size_t n = 0; n <= strlen(text); n++) {
        const size_t certain = toolcall_certain(text, n);
        assert_true(certain >= shown || certain + 1 >= shown);
        if (certain > shown) shown = certain;
    }
    assert_int_equal(shown, strlen("One moment. <b>Now</b>"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_what_is_no_call),
        cmocka_unit_test(test_streams_hold_back_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
