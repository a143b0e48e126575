/* test_tool_grammar.c: answers that the grammar of a list of tools takes, and that the parser of
 * calls finds what the grammar let through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar_make.h"

#include "grammar/tool_grammar.h"
#include "grammar/tool_parser.h"

static const char *const words[] = {"<|end|>", NULL};
static struct grammar_vocab vocab;

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get\",\"parameters\":{\"type\":\"object\","
    "\"properties\":{\"n\":{\"$ref\":\"#/$defs/n\"}},\"required\":[\"n\"],\"$defs\":{\"n\":{"
    "\"type\":\"integer\"}}}}},{\"name\":\"put\"}]";

static int setup(void **state)
{
    (void)state;
    vocab = grammar_vocab_make(words);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    trie_free(vocab.trie);
    return 0;
}

static void count_calls(void *user, const struct tool_parser_event *e)
{
    *(unsigned *)user += e->kind == TOOL_PARSER_END;
}

static unsigned calls_in(enum tool_parser_family family, const char *text)
{
    struct tool_parser *t;
    unsigned n = 0;
    sac_error err;
    must(tool_parser_create(&t, family, count_calls, &n, &err), &err);
    must(tool_parser_feed(t, text, strlen(text), &err), &err);
    must(tool_parser_finish(t, &err), &err);
    tool_parser_free(t);
    return n;
}

#define HERMES(call)  "<tool_call>\n" call "\n</tool_call>"
#define MISTRAL(call) "[TOOL_CALLS][" call "]"
#define GEMMA(call)   "```tool_code\n" call "\n```"
#define GET           "{\"name\": \"get\", \"arguments\": {\"n\": 3}}"
#define PUT           "{\"name\": \"put\", \"arguments\": {}}"
#define GET_LLAMA     "{\"name\": \"get\", \"parameters\": {\"n\": 3}}"

static const struct tool_case {
    enum tool_parser_family family;
    enum tool_grammar_choice choice;
    bool parallel;
    const char *text;
    bool yes;
    unsigned n_call;
} cases[] = {
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, false, HERMES(GET), true, 1},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, false, HERMES(PUT), true, 1},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_NAMED, false, HERMES(GET), true, 1},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_NAMED, false, HERMES(PUT), false, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, false, HERMES(GET) "\n" HERMES(PUT), false, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, true, HERMES(GET) "\n" HERMES(PUT), true, 2},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, false, "text", false, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_REQUIRED, false,
     HERMES("{\"name\": \"get\", \"arguments\": {\"n\": \"3\"}}"), false, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_AUTO, false, "Any <tool_cal text", true, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_AUTO, false, "", true, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_AUTO, false,
     "First <<<tool_<tool_call>\n" GET "\n</tool_call>", true, 1},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_AUTO, false, "<tool_call>\nno call", false, 0},
    {TOOL_PARSER_HERMES, TOOL_GRAMMAR_AUTO, true, HERMES(GET) "\n" HERMES(GET), true, 2},
    {TOOL_PARSER_LLAMA3, TOOL_GRAMMAR_REQUIRED, true, GET_LLAMA, true, 1},
    {TOOL_PARSER_LLAMA3, TOOL_GRAMMAR_AUTO, false, GET_LLAMA, true, 1},
    {TOOL_PARSER_LLAMA3, TOOL_GRAMMAR_AUTO, false, "Text {", true, 0},
    {TOOL_PARSER_LLAMA3, TOOL_GRAMMAR_AUTO, false, "{\"a\": 1}", false, 0},
    {TOOL_PARSER_MISTRAL, TOOL_GRAMMAR_REQUIRED, true, MISTRAL(GET ", " PUT), true, 2},
    {TOOL_PARSER_MISTRAL, TOOL_GRAMMAR_AUTO, false, "[TOOL[TOOL_CALLS] [" GET "]", true, 1},
    {TOOL_PARSER_GEMMA, TOOL_GRAMMAR_REQUIRED, false, GEMMA(GET_LLAMA), true, 1},
    {TOOL_PARSER_GEMMA, TOOL_GRAMMAR_AUTO, true, "````" GEMMA(GET_LLAMA) "\n" GEMMA(GET_LLAMA),
     true, 2},
};

static struct automaton *open_set(const struct tool_grammar *set, const struct trie *trie)
{
    struct program *p;
    struct automaton *m;
    sac_error err;
    must(tool_grammar_compile(&p, set, &err), &err);
    must(automaton_create(&m, p, trie, &err), &err);
    return m;
}

static void grammar_and_parser_agree(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct tool_case *const c = &cases[i];
        const struct tool_grammar set = {.family = c->family,
                                         .choice = c->choice,
                                         .tools_json = tools,
                                         .name = "get",
                                         .parallel = c->parallel,
                                         .trie = vocab.trie};
        struct automaton *const m = open_set(&set, vocab.trie);
        if (grammar_matches(m, c->text, strlen(c->text)) != c->yes)
            fail_msg("case %zu: '%s'", i, c->text);
        if (c->yes) assert_int_equal(calls_in(c->family, c->text), c->n_call);
        automaton_free(m);
    }
}

/* A marker that is a control token of the model comes as that token, not as its letters. */
static void markers_may_be_control_tokens(void **state)
{
    (void)state;
    static const char *const with_marker[] = {"<|end|>", "[TOOL_CALLS]", NULL};
    struct grammar_vocab v = grammar_vocab_make(with_marker);
    trie_free(v.trie);
    sac_error err;
    v.tok[1].control = true;
    must(trie_create(&v.trie, v.tok, v.n, &err), &err);
    assert_int_equal(tool_parser_of_vocabulary(v.trie), TOOL_PARSER_MISTRAL);
    const struct tool_grammar set = {.family = TOOL_PARSER_MISTRAL,
                                     .choice = TOOL_GRAMMAR_AUTO,
                                     .tools_json = tools,
                                     .trie = v.trie};
    struct automaton *const m = open_set(&set, v.trie);
    struct matcher *t;
    must(matcher_create(&t, m, &err), &err);
    must(matcher_accept_bytes(t, "So [TOOL_CALLS] ", 16, &err), &err);
    must(matcher_accept(t, 1, &err), &err);
    assert_int_equal(matcher_accept_bytes(t, "no", 2, &err), SAC_ERR_ARG);
    must(matcher_accept_bytes(t, "[" GET "]", strlen("[" GET "]"), &err), &err);
    must(matcher_accept(t, 0, &err), &err);
    matcher_free(t);
    automaton_free(m);
    trie_free(v.trie);
}

static void refusals_name_the_tool(void **state)
{
    (void)state;
    static const struct {
        const char *tools, *says;
    } bad[] = {{"{}", "not a list"},
               {"[]", "the list is empty"},
               {"[{\"name\":\"\"}]", "tool 0 has no 'name'"},
               {"[{\"name\":\"f\",\"parameters\":{\"not\":{}}}]", "tool 'f': schema, #: 'not'"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct program *p;
        sac_error err = {0};
        const struct tool_grammar set = {.choice = TOOL_GRAMMAR_REQUIRED,
                                         .tools_json = bad[i].tools};
        assert_int_not_equal(tool_grammar_compile(&p, &set, &err), SAC_OK);
        if (!strstr(err.msg, bad[i].says)) fail_msg("'%s', not '%s'", err.msg, bad[i].says);
    }
    struct program *p;
    sac_error err = {0};
    const struct tool_grammar set = {
        .choice = TOOL_GRAMMAR_NAMED, .tools_json = tools, .name = "none"};
    assert_int_equal(tool_grammar_compile(&p, &set, &err), SAC_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest all[] = {
        cmocka_unit_test(grammar_and_parser_agree),
        cmocka_unit_test(markers_may_be_control_tokens),
        cmocka_unit_test(refusals_name_the_tool),
    };
    return cmocka_run_group_tests(all, setup, teardown);
}
