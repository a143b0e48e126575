/* test_tool_parser.c: calls found in the text of answers, in pieces of all sizes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "must.h"

#include "base/strbuf.h"
#include "grammar/tool_parser.h"

#include <string.h>

/* Events as a line: text as it is, {NAME:ARGS} for a call. */
static void on_event(void *user, const struct tool_parser_event *e)
{
    struct strbuf *const out = user;
    if (e->kind == TOOL_PARSER_BEGIN) strbuf_addf(out, "{%u %s:", e->index, e->name);
    if (e->kind == TOOL_PARSER_TEXT || e->kind == TOOL_PARSER_ARGS) strbuf_add(out, e->text, e->n);
    if (e->kind == TOOL_PARSER_END) strbuf_adds(out, "}");
}

/* `offered`: NULL for all. */
static void parse_offered(struct strbuf *out, enum tool_parser_family family, char *offered,
                          const char *text, size_t step)
{
    struct tool_parser *t;
    sac_error err;
    const size_t n = strlen(text);
    strbuf_reset(out);
    strbuf_add(out, "", 0);
    must(tool_parser_create(&t, family, on_event, out, &err), &err);
    if (offered) tool_parser_offer(t, &offered, 1);
    for (size_t i = 0; i < n; i += step) {
        char piece[4096];
        const size_t bytes = n - i < step ? n - i : step;
        memcpy(piece, text + i, bytes);
        must(tool_parser_feed(t, piece, bytes, &err), &err);
    }
    must(tool_parser_finish(t, &err), &err);
    tool_parser_free(t);
}

static void parse(struct strbuf *out, enum tool_parser_family family, const char *text, size_t step)
{
    parse_offered(out, family, NULL, text, step);
}

static const struct {
    enum tool_parser_family family;
    const char *text, *events;
} cases[] = {
    {TOOL_PARSER_HERMES, "No tool.", "No tool."},
    {TOOL_PARSER_HERMES,
     "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n"
     "</tool_call>",
     "I look.\n{0 f:{\"a\": [1, \"}\"]}}"},
    {TOOL_PARSER_HERMES,
     "<tool_call>{\"arguments\": {}, \"name\": \"f\"}</tool_call>\n<tool_call>\n{"
     "\"name\":\"g\",\"arguments\":{\"b\":\"\\\"\"}}</tool_call> done",
     "{0 f:{}}{1 g:{\"b\":\"\\\"\"}} done"},
    {TOOL_PARSER_HERMES,
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
     "{0 f:{\"a\":1}}"},
    {TOOL_PARSER_HERMES, "a <tool_cal b <tool_call> c", "a <tool_cal b <tool_call> c"},
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": 1}</tool_call>",
     "<tool_call>{\"name\": 1}</tool_call>"},
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": \"f\"", "<tool_call>{\"name\": \"f\""},
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1",
     "{0 f:{\"a\": 1}"},
    {TOOL_PARSER_HERMES, "x <tool_call", "x <tool_call"},
    {TOOL_PARSER_LLAMA3, "{\"name\": \"f\", \"parameters\": {\"q\": \"x\"}}",
     "{0 f:{\"q\": \"x\"}}"},
    {TOOL_PARSER_LLAMA3,
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", "
     "\"parameters\": {}}",
     "{0 f:{}}{1 g:{}}"},
    {TOOL_PARSER_LLAMA3,
     "<|python_tag|>search.call(query=\"a 'b'\", n=3, deep=True, l=['x', {'k': None}])",
     "{0 search.call:{\"query\": \"a 'b'\", \"n\": 3, \"deep\": true, \"l\": "
     "[\"x\",{\"k\":null}]}}"},
    {TOOL_PARSER_LLAMA3, "<|python_tag|>import os\nprint(\"x\")",
     "{0 python:{\"code\":\"import os\\nprint(\\\"x\\\")\"}}"},
    {TOOL_PARSER_LLAMA3, "{\"answer\": 1} is JSON", "{\"answer\": 1} is JSON"},
    {TOOL_PARSER_LLAMA3, "It is {\"name\": \"f\", \"parameters\": {}}",
     "It is {\"name\": \"f\", \"parameters\": {}}"},
    {TOOL_PARSER_MISTRAL,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"x\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "{0 f:{\"a\": 1}}{1 g:{}}"},
    {TOOL_PARSER_MISTRAL, "Text[TOOL_CALLS]f[ARGS]{\"a\": {}}[TOOL_CALLS]g{}",
     "Text{0 f:{\"a\": {}}}{1 g:{}}"},
    {TOOL_PARSER_MISTRAL, "[TOOL_CALLS]", "[TOOL_CALLS]"},
    {TOOL_PARSER_GEMMA, "```tool_code\n{\"name\": \"f\", \"parameters\": {\"a\": 1}}\n```",
     "{0 f:{\"a\":1}}"},
    {TOOL_PARSER_GEMMA, "Sure:\n```tool_code\nprint(f(a=1, b=\"x\"))\n```\nThat is it.",
     "Sure:\n{0 f:{\"a\": 1, \"b\": \"x\"}}\nThat is it."},
    {TOOL_PARSER_GEMMA, "[f(a=-1.5), g()]", "{0 f:{\"a\": -1.5}}{1 g:{}}"},
    {TOOL_PARSER_GEMMA, "```json\n[1, 2]\n``` is a list", "```json\n[1, 2]\n``` is a list"},
    {TOOL_PARSER_GEMMA, "[a link] is text", "[a link] is text"},
    {TOOL_PARSER_GEMMA, "```tool_code\nf(a=", "```tool_code\nf(a="},
    {TOOL_PARSER_HERMES, "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{0 f:{\"a\": 1}}"},
    {TOOL_PARSER_HERMES, "```json\n{\"name\": \"f\", \"arguments\": {}}\n```", "{0 f:{}}"},
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": \"f\"}</tool_call>", "{0 f:{}}"},
    {TOOL_PARSER_HERMES,
     "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}", "{0 f:{}}"},
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": 3}</tool_call>"},
    {TOOL_PARSER_HERMES, "<tool_call>", "<tool_call>"},
    {TOOL_PARSER_MISTRAL,
     "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
     "{0 f:{\"a\": 1}}{1 g:{}}"},
    {TOOL_PARSER_MISTRAL, "[1, {\"name\": 2}]", "[1, {\"name\": 2}]"},
    {TOOL_PARSER_MISTRAL, "[", "["},
    {TOOL_PARSER_MISTRAL, "[[[{\"name\": \"f\"}]]]", "[[[{\"name\": \"f\"}]]]"},
};

/* Calls of "x", which is not offered, are text in every form. */
static const struct {
    enum tool_parser_family family;
    const char *text;
} strangers[] = {
    {TOOL_PARSER_HERMES, "<tool_call>{\"name\": \"x\", \"arguments\": {}}</tool_call>"},
    {TOOL_PARSER_HERMES, "{\"arguments\": {}, \"name\": \"x\"}"},
    {TOOL_PARSER_LLAMA3, "{\"name\": \"x\", \"parameters\": {}}"},
    {TOOL_PARSER_LLAMA3, "<|python_tag|>import os"},
    {TOOL_PARSER_MISTRAL, "[TOOL_CALLS]x[ARGS]{}"},
    {TOOL_PARSER_GEMMA, "```tool_code\nx(a=1)\n```"},
};

static void calls_are_found_in_any_pieces(void **state)
{
    (void)state;
    struct strbuf out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t step = 1; step <= 4096; step = step < 40 ? step + 1 : 4096 + (step == 4096)) {
            parse(&out, cases[i].family, cases[i].text, step);
            if (strcmp(out.data, cases[i].events) != 0)
                fail_msg("'%s' in pieces of %zu: '%s', not '%s'", cases[i].text, step, out.data,
                         cases[i].events);
        }
    strbuf_deinit(&out);
}

static void calls_of_strangers_are_text(void **state)
{
    (void)state;
    struct strbuf out = {0};
    char own[] = "f", stranger[] = "x";
    for (size_t i = 0; i < sizeof strangers / sizeof strangers[0]; i++)
        for (size_t step = 1; step < 40; step++) {
            parse_offered(&out, strangers[i].family, own, strangers[i].text, step);
            assert_string_equal(out.data, strangers[i].text);
        }
    parse_offered(&out, strangers[0].family, stranger, strangers[0].text, 1);
    assert_string_equal(out.data, "{0 x:{}}");
    strbuf_deinit(&out);
}

/* Text goes out at once, arguments while they come. */
static void nothing_is_held_back_without_need(void **state)
{
    (void)state;
    struct strbuf out = {0};
    struct tool_parser *t;
    sac_error err;
    static const char *const piece[] = {"Hello", " <to", "ol_call>{\"name\": \"f\", ",
                                        "\"arguments\": {\"a\": ", "\"long"};
    static const char *const after[] = {"Hello", "Hello ", "Hello ",
                                        "Hello {0 f:{\"a\": ", "Hello {0 f:{\"a\": \"long"};
    must(tool_parser_create(&t, TOOL_PARSER_HERMES, on_event, &out, &err), &err);
    for (size_t i = 0; i < 5; i++) {
        must(tool_parser_feed(t, piece[i], strlen(piece[i]), &err), &err);
        assert_string_equal(out.data, after[i]);
    }
    assert_int_equal(tool_parser_count(t), 0);
    must(tool_parser_finish(t, &err), &err);
    assert_int_equal(tool_parser_count(t), 1);
    tool_parser_free(t);
    strbuf_deinit(&out);
}

/* Brackets without end and calls without end are text, or end. */
static void bombs_end(void **state)
{
    (void)state;
    struct strbuf out = {0}, text = {0};
    strbuf_adds(&text, "<tool_call>{\"name\":\"f\",\"x\":");
    for (int i = 0; i < 3000; i++) strbuf_adds(&text, "[");
    parse(&out, TOOL_PARSER_HERMES, text.data, 1000);
    assert_string_equal(out.data, text.data);
    strbuf_reset(&text);
    for (int i = 0; i < 2000; i++) strbuf_adds(&text, "<tool_call>");
    parse(&out, TOOL_PARSER_HERMES, text.data, 7);
    assert_string_equal(out.data, text.data);
    strbuf_reset(&text);
    strbuf_adds(&text, "<tool_call>{\"name\":\"f\",\"x\":\"");
    for (int i = 0; i < 1200; i++) strbuf_addf(&text, "%1000d", i);
    parse(&out, TOOL_PARSER_HERMES, text.data, 4096);
    assert_int_equal(out.n, text.n);
    strbuf_deinit(&out);
    strbuf_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_are_found_in_any_pieces),
        cmocka_unit_test(calls_of_strangers_are_text),
        cmocka_unit_test(nothing_is_held_back_without_need),
        cmocka_unit_test(bombs_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
