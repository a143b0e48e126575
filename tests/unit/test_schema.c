/* test_schema.c: JSON schemas to grammars: texts that they take and refuse, and what is refused by
 * name. Random schemas are judged by tests/truth/test_schema.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar_make.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "grammar/schema.h"

static const char *const no_words[] = {NULL};
static struct grammar_vocab vocab;

static int setup(void **state)
{
    (void)state;
    vocab = grammar_vocab_make(no_words);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    trie_free(vocab.trie);
    return 0;
}

static struct automaton *open_schema(const char *schema)
{
    struct strbuf gbnf = {0};
    struct program *p;
    struct automaton *m;
    sac_error err;
    must(schema_gbnf(&gbnf, "root", schema, strlen(schema), &err), &err);
    must(gbnf_parse(&p, gbnf.data, gbnf.n, &gbnf_limits_made, &err), &err);
    must(automaton_create(&m, p, vocab.trie, &err), &err);
    strbuf_deinit(&gbnf);
    return m;
}

struct schema_case {
    const char *schema, *yes[8], *no[8];
};

static const struct schema_case schema_cases[] = {
    {"{}", {"{}", "{\"a\": [1, -2.5e3, null, \"\\u00e4\"]}"}, {"1", "[]", "{\"a\"}", "{} "}},
    {"true", {"1", "[]", "{}", "\"a\"", "null"}, {"", "nul", "01", "\"\\ud800\""}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":"
     "\"null\"},\"c\":true},\"required\":[\"b\"]}",
     {"{\"a\":1,\"b\":null}", "{\"b\":null}", "{\n  \"b\": null,\n  \"c\": {}\n}",
      "{\"a\":-7,\"b\":null,\"c\":[]}"},
     {"{\"a\":1}", "{}", "{\"b\":null,\"a\":1}", "{\"b\":null,}", "{,\"b\":null}",
      "{\"b\":null,\"d\":1}"}},
    {"{\"properties\":{\"ab\":{},\"abc\":{}},\"additionalProperties\":{\"type\":\"integer\"}}",
     {"{}", "{\"a\":1}", "{\"ab\":\"x\",\"abd\":2,\"\":3}", "{\"abcd\":1}"},
     {"{\"a\":\"x\"}", "{\"abd\":1,\"ab\":\"x\"}", "{\"abd\":1,\"ab\":2}", "{\"\\u0061b\":1}"}},
    {"{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":1,\"maxItems\":2}",
     {"[true]", "[true, false]"},
     {"[]", "[1]", "[true,true,true]"}},
    {"{\"type\":\"array\",\"prefixItems\":[{\"const\":1},{\"const\":2}],\"items\":{\"const\":"
     "3},\"minItems\":1,\"maxItems\":4}",
     {"[1]", "[1,2]", "[1,2,3]", "[1,2,3,3]"},
     {"[]", "[2]", "[1,3]", "[1,2,3,3,3]"}},
    {"{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
     {"\"a\"", "\"\xe2\x82\xac\\n\"", "\"\\u00e4x\""},
     {"\"\"", "\"abc\"", "\"a", "\"\n\""}},
    {"{\"type\":\"string\",\"pattern\":\"^a+(b|\\\\d{2})$\"}",
     {"\"ab\"", "\"aa12\""},
     {"\"b\"", "\"a1\"", "\"ab \""}},
    {"{\"type\":\"string\",\"pattern\":\"b\"}", {"\"b\"", "\"abc\""}, {"\"ac\"", "\"\""}},
    {"{\"type\":\"string\",\"format\":\"date\"}",
     {"\"2024-02-29\"", "\"2000-02-29\"", "\"1999-12-31\"", "\"0400-02-29\""},
     {"\"2023-02-29\"", "\"1900-02-29\"", "\"0000-02-29\"", "\"2023-04-31\"", "\"2023-13-01\"",
      "\"2023-00-10\""}},
    {"{\"type\":\"integer\",\"minimum\":-12,\"exclusiveMaximum\":105}",
     {"-12", "-9", "0", "9", "10", "99", "104"},
     {"-13", "105", "-0", "007", "1.0", "1e1"}},
    {"{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":12.25}",
     {"0.51", "0.6", "1", "12", "12.25", "12.2", "3.75"},
     {"0.5", "0.50", "0.49", "12.26", "12.250001", "13", "-1"}},
    {"{\"type\":\"number\",\"minimum\":0.25,\"maximum\":2}",
     {"0.25", "0.3", "1", "2", "2.0"},
     {"0.2", "0", "0.249", "2.01"}},
    {"{\"type\":\"number\",\"minimum\":-1.5}",
     {"-1.5", "-1.49", "-0.1", "0", "1000000", "2.5"},
     {"-1.51", "-2"}},
    {"{\"enum\":[1,\"a\\\"\",null,[1,{\"b\":2}]]}",
     {"1", "\"a\\\"\"", "null", "[1,{\"b\":2}]"},
     {"2", "\"a\""}},
    {"{\"type\":[\"string\",\"null\"],\"enum\":[1,\"a\",null]}", {"\"a\"", "null"}, {"1"}},
    {"{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"next\":{"
     "\"anyOf\":[{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"next\"]}}}",
     {"{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"},
     {"{\"next\":{}}"}},
    {"{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":3},\"c\":{}},"
     "\"required\":["
     "\"a\"]},{\"properties\":{\"a\":{\"maximum\":5},\"b\":{}},\"additionalProperties\":false}"
     "],\"type\":\"object\"}",
     {"{\"a\":3}", "{\"a\":5,\"b\":1}"},
     {"{}", "{\"a\":6}", "{\"a\":2}", "{\"a\":4,\"c\":1}"}},
    {"{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1},\"b\":{\"const\":2}},\"anyOf\":["
     "{\"required\":[\"a\"]},{\"required\":[\"b\"]}]}",
     {"{\"a\":1}", "{\"b\":2}", "{\"a\":1,\"b\":2}"},
     {"{}"}},
};

static void texts_are_those_of_the_schema(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schema_cases / sizeof schema_cases[0]; i++) {
        const struct schema_case *const c = &schema_cases[i];
        struct automaton *const m = open_schema(c->schema);
        for (size_t k = 0; k < 8 && c->yes[k]; k++)
            if (!grammar_matches(m, c->yes[k], strlen(c->yes[k])))
                fail_msg("%s refuses %s", c->schema, c->yes[k]);
        for (size_t k = 0; k < 8 && c->no[k]; k++)
            if (grammar_matches(m, c->no[k], strlen(c->no[k])))
                fail_msg("%s takes %s", c->schema, c->no[k]);
        automaton_free(m);
    }
}

static void refusals_name_keyword_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *schema, *says;
    } cases[] = {
        {"", "not JSON"},
        {"{\"a\":}", "not JSON, at byte 5"},
        {"{} x", "not JSON"},
        {"[1]", "a schema is an object, true or false"},
        {"false", "allows nothing"},
        {"{\"type\":\"int\"}", "an unknown 'type'"},
        {"{\"properties\":{\"a\":{\"not\":{}}}}", "schema, #/properties/a: 'not' is not supported"},
        {"{\"if\":{}}", "'if' is not supported"},
        {"{\"type\":\"array\",\"uniqueItems\":true}", "'uniqueItems'"},
        {"{\"type\":\"array\",\"items\":[{}]}", "use 'prefixItems'"},
        {"{\"type\":\"object\",\"patternProperties\":{\"a\":{}}}", "'patternProperties'"},
        {"{\"type\":\"object\",\"minProperties\":2}", "'minProperties'"},
        {"{\"type\":\"integer\",\"multipleOf\":5}", "'multipleOf'"},
        {"{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no number lies between"},
        {"{\"type\":\"integer\",\"minimum\":\"3\"}", "'minimum' is not a number"},
        {"{\"type\":\"integer\",\"minimum\":9007199254740994}", "beyond 2^53"},
        {"{\"type\":\"string\",\"maxLength\":-1}", "not a whole number"},
        {"{\"type\":\"string\",\"maxLength\":1e9}", "'maxLength' is more than 65536"},
        {"{\"type\":\"string\",\"pattern\":\"(?=a)\"}", "'pattern': a group that looks around"},
        {"{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", "references back"},
        {"{\"type\":\"string\",\"pattern\":\"a^b\"}", "an anchor that is not at an end"},
        {"{\"type\":\"string\",\"pattern\":\"(a\"}", "a group without its end"},
        {"{\"type\":\"string\",\"pattern\":\"a)\"}", "a ')' too many"},
        {"{\"type\":\"string\",\"pattern\":\"[a\"}", "the end is missing"},
        {"{\"type\":\"string\",\"pattern\":\"a**\"}", "a repetition of a repetition"},
        {"{\"type\":\"string\",\"pattern\":\"^a{3}$\",\"minLength\":4}", "'minLength' or"},
        {"{\"type\":\"string\",\"format\":\"regex\"}", "the format 'regex' is not supported"},
        {"{\"enum\":[\"a\"],\"minLength\":1}", "'minLength' beside 'enum'"},
        {"{\"const\":1,\"type\":\"string\"}", "no value of 'enum' and 'const'"},
        {"{\"$ref\":\"http:\"}", "only '#' and '#/...' are supported"},
        {"{\"$ref\":\"#/$defs/a\"}", "leads nowhere"},
        {"{\"oneOf\":[{\"type\":\"integer\"},{\"type\":\"number\"}]}",
         "'oneOf': alternatives 0 and 1 may both be valid"},
        {"{\"allOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]}", "exclude each other"},
        {"{\"properties\":{\"a\":{}},\"required\":[\"b\"]}", "'b' is required and not among"},
        {"{\"a\":1,\"a\":2}", "'a' stands twice"},
        {"{\"const\":\"\\u0000\"}", "\\u0000 is not supported"},
        {"{\"const\":1e999}", "a number is too large"},
        {"{\"allOf\":[{\"$ref\":\"#\"}]}", "refers to itself"},
        {"{\"\":1,\"allOf\":[{\"\":2},{\"nullable\":true}]}", "'nullable' is not supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct strbuf gbnf = {0};
        sac_error err = {0};
        const char *const s = cases[i].schema;
        if (schema_gbnf(&gbnf, "root", s, strlen(s), &err) == SAC_OK) fail_msg("%s is taken", s);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("%s: '%s', not '%s'", s, err.msg, cases[i].says);
        strbuf_deinit(&gbnf);
    }
}

/* A schema that is nothing but itself is a grammar without an end. */
static void circles_are_refused(void **state)
{
    (void)state;
    static const char *const circles[] = {
        "{\"$ref\":\"#\"}", "{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}"};
    for (size_t i = 0; i < sizeof circles / sizeof circles[0]; i++) {
        struct strbuf gbnf = {0};
        struct program *p;
        sac_error err = {0};
        must(schema_gbnf(&gbnf, "root", circles[i], strlen(circles[i]), &err), &err);
        assert_int_not_equal(gbnf_parse(&p, gbnf.data, gbnf.n, &gbnf_limits_made, &err), SAC_OK);
        assert_non_null(strstr(err.msg, "rule 'root"));
        strbuf_deinit(&gbnf);
    }
}

static void refuse_text(const struct strbuf *text, const char *says)
{
    struct strbuf gbnf = {0};
    sac_error err = {0};
    assert_int_equal(schema_gbnf(&gbnf, "root", text->data, text->n, &err), SAC_ERR_CONTEXT);
    if (!strstr(err.msg, says)) fail_msg("'%s', not '%s'", err.msg, says);
    strbuf_deinit(&gbnf);
}

static void bombs_are_refused(void **state)
{
    (void)state;
    struct strbuf text = {0};
    for (int i = 0; i < 60000; i++) strbuf_adds(&text, "[");
    refuse_text(&text, "nested more than 64 deep");
    strbuf_reset(&text);
    for (int i = 0; i < 300000; i++) strbuf_adds(&text, " ");
    refuse_text(&text, "300000 bytes, at most 262144");
    strbuf_reset(&text);
    strbuf_adds(&text, "{\"enum\":[{");
    for (int i = 0; i < 3000; i++) strbuf_addf(&text, "%s\"k%d\":1", i ? "," : "", i);
    strbuf_adds(&text, "}]}");
    refuse_text(&text, "more than 2000 members");
    strbuf_reset(&text);
    /* Alternatives that must hold together with themselves, again and again. */
    strbuf_adds(&text, "{\"$defs\":{\"a\":{\"properties\":{\"x\":{\"allOf\":[{\"$ref\":"
                       "\"#/$defs/a\"},{\"$ref\":\"#/$defs/b\"}]}}},\"b\":{\"properties\":{\"x\":"
                       "{\"$ref\":\"#/$defs/b\"}}}},\"$ref\":\"#/$defs/a\"}");
    refuse_text(&text, "refers to itself");
    strbuf_deinit(&text);
}

static void write_enum(struct strbuf *text, int n)
{
    strbuf_adds(text, "{\"enum\":[");
    for (int i = 0; i < n; i++)
        strbuf_addf(text, "\"a value \xc3%c of %d\",", 0xa0 + i % 32, i * 7919 % 100000);
    strbuf_adds(text,
                "\"\",\"a\",\"a value\",\"a value\",1,12,null,\"\xe2\x82\xac\",\"\xe2\x82\xad\"]}");
}

/* More values than a text may be read in ways at once. */
static void many_values_are_a_tree(void **state)
{
    (void)state;
    static const char *const yes[] = {"\"\"",
                                      "\"a\"",
                                      "\"a value\"",
                                      "1",
                                      "12",
                                      "null",
                                      "\"\xe2\x82\xad\"",
                                      "\"a value \xc3\xa0 of 0\"",
                                      "\"a value \xc3\xa1 of 7919\""};
    static const char *const no[] = {
        "\"",  "\"a \"",       "\"a value \xc3\xa0 of 7919\"", "2",
        "nul", "\"\xe2\x82\"", "\"a value \xc3\xa0 of \"",     "\"a value \xc3\xa0 of 01\""};
    struct strbuf text = {0};
    write_enum(&text, 4000);
    struct automaton *m = open_schema(text.data);
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++)
        if (!grammar_matches(m, yes[i], strlen(yes[i]))) fail_msg("%s is not accepted", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++)
        if (grammar_matches(m, no[i], strlen(no[i]))) fail_msg("%s is accepted", no[i]);
    automaton_free(m);
    strbuf_deinit(&text);
}

static void no_memory_is_told(void **state)
{
    (void)state;
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\","
                                 "\"pattern\":\"^[a-c]+$\"},\"b\":{\"type\":\"number\",\"minimum\":"
                                 "0.5}},\"additionalProperties\":true}";
    for (uint64_t n = 1;; n++) {
        struct strbuf gbnf = {0};
        sac_error err = {0};
        mem_fail_after(n);
        const sac_status status = schema_gbnf(&gbnf, "root", schema, strlen(schema), &err);
        mem_fail_after(0);
        strbuf_deinit(&gbnf);
        if (status == SAC_OK) {
            assert_true(n > 10);
            return;
        }
        assert_int_equal(status, SAC_ERR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_schema),
        cmocka_unit_test(refusals_name_keyword_and_place),
        cmocka_unit_test(circles_are_refused),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(many_values_are_a_tree),
        cmocka_unit_test(no_memory_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
