/* test_allowed_tokens.c: which tokens a request allows, over a vocabulary of bytes. */
#include "base/mem.h"
#include "serve/allowed_tokens.h"
#include "tiny_model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { N_WORD = TINY_VOCAB / 64 };

static sac_model *model;

static int open_model(void **state)
{
    (void)state;
    model = tiny_open(&(struct tiny){.seed = 4});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static sac_status read_allowed(const char *json, struct allowed_tokens **out,
                               struct api_error *error)
{
    cJSON *body = cJSON_Parse(json);
    assert_non_null(body);
    const sac_status status = allowed_tokens_read(out, body, model, error);
    cJSON_Delete(body);
    return status;
}

/* May `tok` follow the text? */
static bool may(const struct allowed_tokens *b, const char *said, int tok)
{
    uint64_t mask[N_WORD];
    int32_t last[ALLOWED_TOKENS_WORD_TOK];
    const size_t n = strlen(said);
    assert_int_equal(allowed_tokens_mask_words(b), N_WORD);
    memset(mask, 0xff, sizeof mask);
    for (size_t i = 0; i < n; i++) last[i] = (unsigned char)said[i];
    allowed_tokens_apply(b, last, n, mask);
    return mask[tok / 64] >> tok % 64 & 1;
}

static void only_what_is_allowed(void **state)
{
    (void)state;
    struct allowed_tokens *b;
    struct api_error error = {0};
    assert_int_equal(read_allowed("{\"allowed_token_ids\":[0,65,255]}", &b, &error), SAC_OK);
    for (int tok = 0; tok < TINY_VOCAB; tok++)
        assert_int_equal(may(b, "x", tok), tok == 0 || tok == 65 || tok == 255);
    allowed_tokens_free(b);
    assert_int_equal(read_allowed("{\"allowed_token_ids\":[],\"bad_words\":[]}", &b, &error),
                     SAC_OK);
    assert_null(b);
}

/* The last token of a word may not come behind the others, and behind nothing else is it missed. */
static void no_bad_word_is_finished(void **state)
{
    (void)state;
    struct allowed_tokens *b;
    struct api_error error = {0};
    assert_int_equal(read_allowed("{\"bad_words\":[\" cat\",\"q\"]}", &b, &error), SAC_OK);
    assert_false(may(b, "a ca", 't'));
    assert_false(may(b, "conca", 't'));
    assert_true(may(b, "a", 't'));
    assert_true(may(b, "ca ", 't'));
    assert_true(may(b, "", 't'));
    assert_true(may(b, "ca", 'r'));
    assert_true(may(b, "", 'c'));
    assert_false(may(b, "", 'q'));
    assert_false(may(b, "anything", 'q'));
    allowed_tokens_free(b);
}

static void what_is_no_list_is_named(void **state)
{
    static const struct {
        const char *json, *param;
    } cases[] = {
        {"{\"allowed_token_ids\":[256]}", "allowed_token_ids"},
        {"{\"allowed_token_ids\":[-1]}", "allowed_token_ids"},
        {"{\"allowed_token_ids\":[0.5]}", "allowed_token_ids"},
        {"{\"allowed_token_ids\":{}}", "allowed_token_ids"},
        {"{\"bad_words\":\"x\"}", "bad_words"},
        {"{\"bad_words\":[\"x\",\"  \"]}", "bad_words"},
        {"{\"bad_words\":[\"x\",1]}", "bad_words"},
        {"{\"bad_words\":[\"0123456789012345678901234567890123\"]}", "bad_words"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct allowed_tokens *b;
        struct api_error error = {0};
        assert_int_equal(read_allowed(cases[i].json, &b, &error), SAC_ERR_ARG);
        assert_string_equal(error.param, cases[i].param);
        assert_null(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_allowed),
        cmocka_unit_test(no_bad_word_is_finished),
        cmocka_unit_test(what_is_no_list_is_named),
    };
    return cmocka_run_group_tests(tests, open_model, free_model);
}
