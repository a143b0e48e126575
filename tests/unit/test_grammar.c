/* test_grammar.c: GBNF to programs, texts through automata, and masks, which must say of every
 * token what its bytes say one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "grammar_make.h"

#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/rng.h"

#include <stdio.h>

static const char *const words[] = {"<|end|>",  "<|tool|>", "a",       "ab",
                                    "abc",      "b",        "ba",      "c",
                                    "\"",       "\":",      "\": \"",  "\",",
                                    "{\"",      "{",        "}",       "\"}",
                                    "]}",       "[",        "[[",      ", ",
                                    ",",        " ",        "  ",      "   ",
                                    "\n",       "1",        "12",      "123",
                                    "-1",       "true",     "tru",     "false",
                                    "null",     "\\",       "\\n",     "\\u00",
                                    "hello",    " world",   "\xc3",    "\xc3\xa4",
                                    "\xa4\xc3", "\xe2\x82", "\xac",    "\xe2\x82\xac!",
                                    "name",     "\"name\"", "\"age\"", "age",
                                    ": 1",      ": \"",     "x\"}",    "",
                                    NULL};

static const char json[] =
    "root ::= value\n"
    "value ::= object | array | string | number | \"true\" | \"false\" | \"null\"\n"
    "object ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\n"
    "pair ::= string ws \":\" ws value ws\n"
    "array ::= \"[\" ws (value ws (\",\" ws value ws)*)? \"]\"\n"
    "string ::= \"\\\"\" char* \"\\\"\"\n"
    "char ::= [^\"\\\\\\x00-\\x1f] | \"\\\\\" ([\"\\\\/bfnrt] | \"u\" [0-9a-fA-F]{4})\n"
    "number ::= \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)?\n"
    "ws ::= [ \\t\\n]*\n";

static struct grammar_vocab vocab;

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

/* ---- Texts ---- */

struct text_case {
    const char *gbnf, *yes[8], *no[8];
};

static void check_texts(const struct text_case *c)
{
    struct grammar_case g = grammar_open(c->gbnf, vocab.trie);
    for (size_t i = 0; i < 8 && c->yes[i]; i++)
        if (!grammar_matches(g.automaton, c->yes[i], strlen(c->yes[i])))
            fail_msg("%s refuses '%s'", c->gbnf, c->yes[i]);
    for (size_t i = 0; i < 8 && c->no[i]; i++)
        if (grammar_matches(g.automaton, c->no[i], strlen(c->no[i])))
            fail_msg("%s takes '%s'", c->gbnf, c->no[i]);
    grammar_close(&g);
}

static void texts_are_those_of_the_grammar(void **state)
{
    (void)state;
    static const struct text_case cases[] = {
        {"root ::= \"ab\"", {"ab"}, {"", "a", "abc", "b"}},
        {"root ::= \"a\" | \"bc\" | \"\"", {"a", "bc", ""}, {"b", "abc"}},
        {"root ::= \"ab\"*", {"", "ab", "abab"}, {"a", "aba"}},
        {"root ::= \"ab\"+", {"ab", "abab"}, {"", "a"}},
        {"root ::= \"ab\"? \"c\"", {"c", "abc"}, {"ac", "abab"}},
        {"root ::= \"a\"{2}", {"aa"}, {"a", "aaa"}},
        {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"", "a"}},
        {"root ::= \"a\"{1,3}", {"a", "aa", "aaa"}, {"", "aaaa"}},
        {"root ::= \"a\"{0}\"b\"", {"b"}, {"ab"}},
        {"root ::= \"a\" { 1 , 2 }", {"a", "aa"}, {"aaa"}},
        {"root ::= (\"a\"{2}){2,3} \"b\"", {"aaaab", "aaaaaab"}, {"aab", "aaab", "aaaaab"}},
        {"root ::= [a-c]", {"a", "b", "c"}, {"d", "", "ab"}},
        {"root ::= [^a-c]", {"d", "\xc3\xa4", "\xf4\x8f\xbf\xbf"}, {"a", "\xc3", "\xed\xa0\x80"}},
        {"root ::= [a-]", {"a", "-"}, {"b"}},
        {"root ::= [\\x41\\u00e4\\U0001F600\\]]",
         {"A", "\xc3\xa4", "\xf0\x9f\x98\x80", "]"},
         {"B"}},
        {"root ::= .", {"a", "\xe2\x82\xac", "\n"}, {"", "ab", "\x80"}},
        {"root ::= a-1 # a comment\na-1 ::= \"x\" (\n \"y\" |\n \"z\")", {"xy", "xz"}, {"x"}},
        {"\n# first\nroot ::=\n  \"a\" |\n  b\nb ::= \"b\" b | \"c\"\n", {"a", "bbc"}, {"bb"}},
        {"root ::= \"(\" root \")\" | \"x\"", {"x", "((x))"}, {"(x", "x)"}},
        {"root ::= (\"a\"*)* \"b\"", {"b", "aab"}, {"a"}},
        {"root ::= (\"\" | \"a\"){3}", {"", "a", "aaa"}, {"aaaa"}},
        {"root ::= n n \"x\"\nn ::= \"\" | \"y\"", {"x", "yx", "yyx"}, {"yyyx"}},
        {"root ::= \"\\x0a\\t\\\\\\\"\\n\"", {"\n\t\\\"\n"}, {"n"}},
        {"root ::= [\xc3\xa4-\xc3\xb6]+", {"\xc3\xa4", "\xc3\xb6\xc3\xa5"}, {"\xc3\xb7", "\xc3"}},
        {"root ::= [\\u0080-\\U0010FFFF]", {"\xc2\x80", "\xe0\xa0\x80", "\xf0\x90\x80\x80"}, {"a"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) check_texts(&cases[i]);
}

/* Every code point against a class whose ends lie in all lengths of UTF-8. */
static void classes_hold_their_code_points(void **state)
{
    (void)state;
    static const struct {
        const char *gbnf;
        uint32_t lo, hi;
    } cases[] = {{"root ::= [\\x05-\\u07fe]", 5, 0x7fe},
                 {"root ::= [\\u0101-\\uffee]", 0x101, 0xffee},
                 {"root ::= [\\u3fff-\\U0010abcd]", 0x3fff, 0x10abcd},
                 {"root ::= [z-\\U00100001]", 'z', 0x100001}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct grammar_case g = grammar_open(cases[i].gbnf, vocab.trie);
        for (uint32_t cp = 0; cp <= CHARSET_LAST; cp += cp < 0x1100 ? 1 : 61) {
            if (cp >= 0xd800 && cp < 0xe000) continue;
            char bytes[CHARSET_UTF8_MAX];
            const size_t n = charset_put(bytes, cp);
            if (grammar_matches(g.automaton, bytes, n) != (cp >= cases[i].lo && cp <= cases[i].hi))
                fail_msg("%s: U+%X", cases[i].gbnf, cp);
        }
        grammar_close(&g);
    }
}

/* ---- Refusals ---- */

static void refusals_name_place_and_rule(void **state)
{
    (void)state;
    static const struct {
        const char *gbnf, *says;
    } cases[] = {
        {"", "no rule 'root'"},
        {"a ::= \"x\"", "no rule 'root'"},
        {"root := \"x\"", "line 1, column 6: expected '::='"},
        {"root ::= \"x", "line 1, column 10: a literal without its end"},
        {"root ::= \"a\"\nb ::= [a", "line 2, column 7: a class without"},
        {"root ::= [b-a]", "column 11: a range that ends before"},
        {"root ::= []", "no character is in"},
        {"root ::= [^\\x00-\\U0010ffff]", "no character is in"},
        {"root ::= (\"a\"", "column 10: a group without"},
        {"root ::= \"a\")", "column 13: expected a literal"},
        {"root ::= \"\xc3\xa4\" %", "column 14: expected a literal"},
        {"root ::= \"\\q\"", "column 11: unknown escape"},
        {"root ::= \"\\x1\"", "2 hexadecimal digits"},
        {"root ::= \"\\ud800\"", "U+D800 is not a character"},
        {"root ::= \"\\U00110000\"", "U+110000 is not a character"},
        {"root ::= \"a\"{", "a number is missing"},
        {"root ::= \"a\"{3,2}", "{3,2}: the most is less"},
        {"root ::= \"a\"{1", "without its '}'"},
        {"root ::= \"a\"{4097}", "a repetition of more than 4096"},
        {"root ::= \"a\"**", "column 14: a repetition of a repetition"},
        {"root ::= nowhere", "column 10: rule 'nowhere' is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule 'root' is defined twice"},
        {"root ::= root \"a\" | \"b\"", "left recursion: rule 'root' begins with itself"},
        {"root ::= x\nx ::= y \"a\"\ny ::= \"\" x",
         "left recursion: rule 'x' begins with itself, by "
         "way of 'y'"},
        {"root ::= e root \"a\" | \"b\"\ne ::= \"\" | \"e\"", "left recursion: rule 'root'"},
        {"root ::= (root)* \"a\"", "left recursion: rule 'root'"},
        {"root ::= (\"a\" root){2}", "rule 'root' can never end"},
        {"root ::= \"a\" | (root \"a\"){2}", "left recursion: rule 'root'"},
        {"root ::= \"a\" root", "rule 'root' can never end"},
        {"root ::= \"a\" | b\nb ::= \"x\" b", "rule 'b' can never end"},
        {"root ::= \"\xff\"", "column 11: the text is not valid UTF-8"},
        {"root ::= <[12]>", "tokens by number"},
        {"root ::= <x", "without its '>'"},
        {"root ::= <<x>", "without its '>'"},
        {"root ::= <<>", "without its '>'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct program *p = NULL;
        sac_error err = {0};
        const sac_status status =
            gbnf_parse(&p, cases[i].gbnf, strlen(cases[i].gbnf), &gbnf_limits_given, &err);
        if (status == SAC_OK) fail_msg("'%s' is taken", cases[i].gbnf);
        if (!strstr(err.msg, cases[i].says))
            fail_msg("'%s': '%s', not '%s'", cases[i].gbnf, err.msg, cases[i].says);
    }
}

static void refuse_made(struct strbuf *text, const char *says)
{
    struct program *p = NULL;
    sac_error err = {0};
    assert_false(text->failed);
    assert_int_equal(gbnf_parse(&p, text->data, text->n, &gbnf_limits_given, &err),
                     SAC_ERR_CONTEXT);
    if (!strstr(err.msg, says)) fail_msg("'%s', not '%s'", err.msg, says);
    strbuf_reset(text);
}

static void bombs_are_refused(void **state)
{
    (void)state;
    struct strbuf text = {0};
    strbuf_adds(&text, "root ::= ");
    for (int i = 0; i < 60000; i++) strbuf_adds(&text, "(");
    refuse_made(&text, "parentheses more than 64 deep");
    strbuf_adds(&text, "root ::= \"a\"\n");
    for (int i = 0; i < 4200; i++) strbuf_addf(&text, "r%d ::= \"a\"\n", i);
    refuse_made(&text, "more than 4096 rules");
    strbuf_adds(&text, "root ::= ");
    for (int i = 0; i < 5000; i++) strbuf_adds(&text, "[a]{4096} ");
    refuse_made(&text, "the grammar is too large");
    for (int i = 0; i < 70000; i++) strbuf_adds(&text, "#");
    refuse_made(&text, "70000 bytes, at most 65536");
    strbuf_deinit(&text);
}

/* Repetitions within repetitions add up. */
static void nested_repetitions_are_small(void **state)
{
    (void)state;
    struct grammar_case g = grammar_open("root ::= ((\"a\"{4000}){4000}){4000}", vocab.trie);
    assert_true(g.automaton->program->n_code < 15000);
    grammar_close(&g);
}

/* ---- Masks ---- */

static bool allows(const uint64_t *mask, uint32_t tok)
{
    return mask[tok / 64] >> tok % 64 & 1;
}

/* What the mask says of every token, against its bytes one by one. Returns the tokens allowed. */
static uint32_t check_mask(struct matcher *t)
{
    static uint64_t mask[64];
    const uint64_t *fresh;
    uint32_t n = 0;
    sac_error err;
    must(matcher_mask(t, &fresh, &err), &err);
    memcpy(mask, fresh, t->automaton->mask_words * sizeof *mask);
    for (uint32_t tok = 0; tok < vocab.n; tok++) {
        const uint32_t was = t->config;
        const bool yes = matcher_accept(t, (int32_t)tok, &err) == SAC_OK;
        t->config = was;
        t->over = false;
        if (yes != allows(mask, tok))
            fail_msg("token %u '%.*s': mask %d, bytes %d", tok, (int)vocab.tok[tok].n,
                     vocab.tok[tok].bytes, allows(mask, tok), yes);
        n += yes;
    }
    return n;
}

/* A walk at random through a grammar; every place's mask is checked. */
static void walk_and_check(struct grammar_case *g, struct rng *rng, int n_step)
{
    for (int step = 0; step < n_step; step++) {
        const uint64_t *mask;
        sac_error err;
        const uint32_t n = check_mask(g->matcher);
        if (n == 0) fail_msg("nothing may follow");
        uint64_t skip = rng_below(rng, n);
        uint32_t tok = 0;
        must(matcher_mask(g->matcher, &mask, &err), &err);
        while (!allows(mask, tok) || skip-- > 0) tok++;
        must(matcher_accept(g->matcher, (int32_t)tok, &err), &err);
        if (g->matcher->over) break;
    }
}

static const char *const mask_grammars[] = {
    json,
    "root ::= [a-c]{0,7} \"\\\"\" | \"abc\" root",
    "root ::= (\"a\" | \"ab\" | \"abc\"){1,9} [^a]*",
    "root ::= \"<\" <|tool|> (\"a\" | <|tool|>)* \">\"",
    "root ::= \"{\" ws \"\\\"name\\\"\" ws \":\" ws s ws \"}\"\ns ::= \"\\\"\" c{2,5} \"\\\"\"\n"
    "c ::= [^\"\\\\]\nws ::= \" \"{0,2}",
    "root ::= [^\\x00-\\x7f]+ | \"\xe2\x82\xac\" . \"x\"",
};

static void masks_are_what_bytes_say(void **state)
{
    (void)state;
    struct rng rng = rng_stream("grammar", 0, 1, 0);
    for (size_t i = 0; i < sizeof mask_grammars / sizeof mask_grammars[0]; i++)
        for (int round = 0; round < 12; round++) {
            struct grammar_case g = grammar_open(mask_grammars[i], vocab.trie);
            walk_and_check(&g, &rng, 25);
            grammar_close(&g);
        }
}

/* Two texts in one automaton, with all tables emptied between their steps, go on as they were. */
static void forgetting_keeps_places(void **state)
{
    (void)state;
    struct grammar_case g = grammar_open(json, vocab.trie);
    struct matcher *other;
    sac_error err;
    must(matcher_create(&other, g.automaton, &err), &err);
    const char *const one = "{\"name\": [1, {\"a\": \"hello", *const two = "[[[[12, -1";
    must(matcher_accept_bytes(g.matcher, one, strlen(one), &err), &err);
    must(matcher_accept_bytes(other, two, strlen(two), &err), &err);
    for (int i = 0; i < 3; i++) {
        const uint32_t n_node = g.automaton->n_node;
        automaton_forget(g.automaton);
        assert_true(g.automaton->n_node <= n_node);
        check_mask(g.matcher);
        check_mask(other);
    }
    must(matcher_accept_bytes(g.matcher, "\"}]}", 4, &err), &err);
    must(matcher_accept_bytes(other, "]]]]", 4, &err), &err);
    assert_true(matcher_can_end(g.matcher) && matcher_can_end(other));
    matcher_free(other);
    grammar_close(&g);
}

/* Brackets of two kinds have so many ways to nest that a long text fills the tables many times
 * over, in a fixed memory. */
static void long_texts_do_not_grow(void **state)
{
    (void)state;
    struct grammar_case g =
        grammar_open("root ::= (\"(\" root \")\" | \"[\" root \"]\" | [a-z])*", vocab.trie);
    struct rng rng = rng_stream("grammar", 0, 2, 0);
    const uint64_t before = mem_count();
    char closing[64];
    int depth = 0;
    for (int i = 0; i < 400000; i++) {
        sac_error err;
        char c = 'x';
        const uint64_t turn = rng_below(&rng, 4);
        if (turn < 2 && depth < 60) {
            c = turn ? '(' : '[';
            closing[depth++] = turn ? ')' : ']';
        } else if (depth > 0) {
            c = closing[--depth];
        }
        must(matcher_accept_bytes(g.matcher, &c, 1, &err), &err);
    }
    assert_int_equal(mem_count(), before);
    assert_true(g.automaton->n_forgotten > 0);
    grammar_close(&g);
}

/* Brackets may nest so deep and no deeper: the way down is closed, not the text. */
static void depth_has_an_end(void **state)
{
    (void)state;
    struct grammar_case g = grammar_open("root ::= \"[\" root \"]\" | \"x\"", vocab.trie);
    sac_error err;
    size_t n = 0;
    while (n < 5000 && matcher_accept_bytes(g.matcher, "[", 1, &err) == SAC_OK) n++;
    assert_int_equal(n, AUTOMATON_DEPTH_MAX);
    must(matcher_accept_bytes(g.matcher, "x", 1, &err), &err);
    while (n-- > 0) must(matcher_accept_bytes(g.matcher, "]", 1, &err), &err);
    assert_true(matcher_can_end(g.matcher));
    grammar_close(&g);
}

static void ambiguity_has_an_end(void **state)
{
    (void)state;
    struct strbuf text = {0};
    struct program *p;
    struct automaton *m;
    struct matcher *t;
    sac_error err;
    strbuf_adds(&text, "root ::= ");
    for (int i = 0; i < 3000; i++) strbuf_adds(&text, "[a]? ");
    must(gbnf_parse(&p, text.data, text.n, &gbnf_limits_given, &err), &err);
    must(automaton_create(&m, p, vocab.trie, &err), &err);
    assert_int_equal(matcher_create(&t, m, &err), SAC_ERR_CONTEXT);
    assert_non_null(strstr(err.msg, "too ambiguous"));
    automaton_free(m);
    strbuf_deinit(&text);
}

static void control_tokens_go_by_name(void **state)
{
    (void)state;
    struct grammar_case g = grammar_open("root ::= <|tool|> \"a\"", vocab.trie);
    struct program *p;
    struct automaton *m;
    const uint64_t *mask;
    sac_error err;
    const char lacking[] = "root ::= <|lacking|>", end[] = "root ::= \"a\" <|end|>";
    must(matcher_mask(g.matcher, &mask, &err), &err);
    assert_int_equal(mask[0], 2); /* <|tool|> and nothing else, the text "<" neither */
    must(matcher_accept(g.matcher, 1, &err), &err);
    assert_int_equal(matcher_accept(g.matcher, 0, &err), SAC_ERR_ARG);
    must(matcher_accept(g.matcher, 2, &err), &err);
    must(matcher_accept(g.matcher, 0, &err), &err);
    must(matcher_mask(g.matcher, &mask, &err), &err);
    for (uint32_t w = 0; w < g.automaton->mask_words; w++) assert_int_equal(mask[w], 0);
    assert_int_equal(matcher_accept(g.matcher, 2, &err), SAC_ERR_ARG);
    grammar_close(&g);
    g = grammar_open("root ::= <<<|tool|>>>", vocab.trie);
    must(matcher_accept(g.matcher, 1, &err), &err);
    grammar_close(&g);
    must(gbnf_parse(&p, lacking, strlen(lacking), &gbnf_limits_given, &err), &err);
    assert_int_equal(automaton_create(&m, p, vocab.trie, &err), SAC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "<|lacking|>"));
    must(gbnf_parse(&p, end, strlen(end), &gbnf_limits_given, &err), &err);
    assert_int_equal(automaton_create(&m, p, vocab.trie, &err), SAC_ERR_NOT_FOUND);
    assert_non_null(strstr(err.msg, "one that ends it is not named"));
}

static void no_memory_is_told(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n++) {
        struct program *p = NULL;
        struct automaton *m = NULL;
        struct matcher *t = NULL;
        sac_error err = {0};
        mem_fail_after(n);
        sac_status status = gbnf_parse(&p, json, strlen(json), &gbnf_limits_given, &err);
        if (status == SAC_OK) status = automaton_create(&m, p, vocab.trie, &err);
        if (status == SAC_OK) status = matcher_create(&t, m, &err);
        mem_fail_after(0);
        if (status == SAC_OK) {
            matcher_free(t);
            automaton_free(m);
            assert_true(n > 20);
            break;
        }
        assert_int_equal(status, SAC_ERR_MEMORY);
        automaton_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_those_of_the_grammar),
        cmocka_unit_test(classes_hold_their_code_points),
        cmocka_unit_test(refusals_name_place_and_rule),
        cmocka_unit_test(bombs_are_refused),
        cmocka_unit_test(nested_repetitions_are_small),
        cmocka_unit_test(masks_are_what_bytes_say),
        cmocka_unit_test(forgetting_keeps_places),
        cmocka_unit_test(long_texts_do_not_grow),
        cmocka_unit_test(depth_has_an_end),
        cmocka_unit_test(ambiguity_has_an_end),
        cmocka_unit_test(control_tokens_go_by_name),
        cmocka_unit_test(no_memory_is_told),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
