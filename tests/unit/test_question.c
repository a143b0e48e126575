/* test_question.c: which rows of a prompt a decode method serves: what the option means, which
 * methods change it, and where a question begins. Tokens are bytes here. */
#include "eval/question.h"

#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void the_option_is_read(void **state)
{
    (void)state;
    struct question_rows rows;
    sac_error err;
    assert_int_equal(question_parse(&rows, "question", &err), SAC_OK);
    assert_true(rows.all);
    assert_string_equal(question_name(&rows), "question");
    assert_int_equal(question_parse(&rows, "12", &err), SAC_OK);
    assert_true(!rows.all && rows.n == 12);
    assert_string_equal(question_name(&rows), "last");
    static const char *const wrong[] = {"0", "-1", "", "1.5", "questions", "4294967296", "12k"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(question_parse(&rows, wrong[i], &err), SAC_ERR_ARG);
        assert_non_null(strstr(err.msg, "neither 'question' nor a number from 1"));
    }
}

static void methods_that_need_the_question_see_it(void **state)
{
    (void)state;
    const struct question_rows question = {.all = true}, five = {.n = 5};
    const struct {
        const char *prefill, *decode;
        bool all;
    } cases[] = {
        {"dense", "full", true},
        {"dense", "quest:budget=512", true},
        {"dense", "streaming", true},
        {"dense", "infinigen", true}, /* its directions are those of any text */
        {"auto", "auto", true},
        {"auto:mass=0.9", "full", false}, /* the prefill method is judged */
        {"dense", "snapkv:budget=5%", false},
        {"dense", "adakv", false},
        {"dense", "pyramidkv", false},
        {"dense", "h2o", false},
        {"dense", "lfps", false},
        {"dense", "loopserve:warm=snapkv", false},
        {"dense", "duo", false},
        {"dense", "raas", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct question_rows rows =
            question_in_force(question, cases[i].prefill, cases[i].decode);
        if (rows.all != cases[i].all) fail_msg("%s+%s", cases[i].prefill, cases[i].decode);
        if (!rows.all) assert_int_equal(rows.n, 1);
        /* A number is what it says, for every method. */
        const struct question_rows given =
            question_in_force(five, cases[i].prefill, cases[i].decode);
        assert_true(!given.all && given.n == 5);
    }
}

static void the_last_token_is_always_a_decode_row(void **state)
{
    (void)state;
    const struct question_rows question = {.all = true}, one = {.n = 1}, many = {.n = 99};
    assert_int_equal(question_rows_begin(&question, 20, 13), 13);
    assert_int_equal(question_rows_begin(&question, 20, 20), 19);
    assert_int_equal(question_rows_begin(&question, 20, 0), 0);
    assert_int_equal(question_rows_begin(&one, 20, 13), 19);
    assert_int_equal(question_rows_begin(&one, 1, 0), 0);
    assert_int_equal(question_rows_begin(&many, 20, 13), 0);
}

/* A prompt in bytes; `joins` makes one token of the blank before a question and its first byte. */
struct prompt {
    const char *document;
    bool joins;
};

static sac_status encode(const void *arg, const char *question, int32_t **out_tok, size_t *out_n,
                         sac_error *err)
{
    const struct prompt *p = arg;
    const size_t n_document = strlen(p->document), n = strlen(question);
    const size_t n_joined = p->joins && n ? 1 : 0;
    int32_t *tok = mem_alloc((n_document + n + 2) * sizeof *tok);
    (void)err;
    *out_n = 0;
    for (size_t i = 0; i < n_document - n_joined; i++) tok[(*out_n)++] = p->document[i];
    if (n_joined) tok[(*out_n)++] = 1000 + question[0];
    for (size_t i = n_joined; i < n; i++) tok[(*out_n)++] = question[i];
    tok[(*out_n)++] = '>'; /* what the template puts behind */
    *out_tok = tok;
    return SAC_OK;
}

static void a_question_begins_where_another_would_differ(void **state)
{
    (void)state;
    const struct {
        struct prompt prompt;
        const char *question;
        size_t begin;
    } cases[] = {
        {{"doc ", false}, "Who?", 4}, {{"doc ", true}, "Who?", 3}, {{"doc ", false}, "A 1?", 4},
        {{"doc ", false}, "1 A?", 4}, {{"doc ", false}, "", 4},    {{"", false}, "Who?", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct question_text text = {encode, &cases[i].prompt};
        int32_t *tok;
        size_t n, begin = 99;
        assert_int_equal(encode(&cases[i].prompt, cases[i].question, &tok, &n, NULL), SAC_OK);
        assert_int_equal(question_find(&begin, tok, n, &text, NULL), SAC_OK);
        assert_int_equal(begin, cases[i].begin);
        mem_free(tok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_option_is_read),
        cmocka_unit_test(methods_that_need_the_question_see_it),
        cmocka_unit_test(the_last_token_is_always_a_decode_row),
        cmocka_unit_test(a_question_begins_where_another_would_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
