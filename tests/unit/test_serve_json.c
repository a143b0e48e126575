/* test_serve_json.c: JSON from strangers within limits; keys. */
#include "must.h"

#include "serve/api_keys.h"
#include "serve/json.h"

#include <string.h>

static sac_status parse(const char *text, const struct json_limits *limits)
{
    cJSON *value = NULL;
    sac_error err = {0};
    const sac_status status = json_parse(&value, text, strlen(text), limits, &err);
    assert_int_equal(status == SAC_OK, value != NULL);
    assert_int_equal(status != SAC_OK, err.msg[0] != 0);
    cJSON_Delete(value);
    return status;
}

static void test_limits(void **state)
{
    (void)state;
    const struct json_limits l = {.depth = 3, .values = 8, .members = 2};
    assert_int_equal(parse("[[[1]]]", &l), SAC_OK);
    assert_int_equal(parse("[[[[1]]]]", &l), SAC_ERR_ARG);
    assert_int_equal(parse("\"[[[[[[[[[[\"", &l), SAC_OK); /* in a text nothing counts */
    assert_int_equal(parse("\"\\\"[[[[[[[[[[\"", &l), SAC_OK);
    assert_int_equal(parse("{\"a\":1,\"b\":2}", &l), SAC_OK);
    assert_int_equal(parse("{\"a\":1,\"b\":2,\"c\":3}", &l), SAC_ERR_ARG);
    assert_int_equal(parse("[{\"a\":1,\"b\":2},{\"a\":1}]", &l), SAC_OK);
    assert_int_equal(parse("[1,2,3,4,5,6,7,8]", &l), SAC_OK);
    assert_int_equal(parse("[1,2,3,4,5,6,7,8,9,10]", &l), SAC_ERR_ARG);
}

static void test_no_json(void **state)
{
    (void)state;
    const struct json_limits l = json_limits_default();
    static const char *const wrong[] = {"",
                                        "{",
                                        "]",
                                        "{}{}",
                                        "{} x",
                                        "\"\xff\"",
                                        "\"\xed\xa0\x80\"",
                                        "\"\xc0\x80\"",
                                        "\"\\u0000\"",
                                        "\x01{}",
                                        "\"",
                                        "\"\\",
                                        "nul",
                                        "\"\xf5\x80\x80\x80\"",
                                        "{\"a\":1,\"b\":{},\"a\":2}",
                                        "[{\"x\":{\"a\":1,\"\\u0061\":1}}]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(parse(wrong[i], &l), SAC_ERR_FORMAT);
    assert_int_equal(parse("{\"a\":{\"a\":1},\"A\":[{\"a\":2},{\"a\":3}]}", &l), SAC_OK);
    assert_int_equal(parse(" {\"a\": \"\\\\u0000 \xf0\x9f\x98\x80\"}\r\n", &l), SAC_OK);
}

static void test_texts_of_any_bytes(void **state)
{
    (void)state;
    cJSON *text = json_text("a\0b\xff\xe4\xb8", 6);
    assert_string_equal(text->valuestring, "a\xef\xbf\xbd"
                                           "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    cJSON_Delete(text);
}

static void test_keys(void **state)
{
    (void)state;
    static const char *const some[] = {"one", "another-key"};
    char long_key[300];
    struct api_keys *k = NULL;
    sac_error err = {0};
    must(api_keys_create(&k, NULL, 0, NULL, &err), &err);
    assert_false(api_keys_wanted(k));
    assert_int_equal(api_keys_find(k, "one"), 0);
    api_keys_destroy(k);
    must(api_keys_create(&k, some, 2, NULL, &err), &err);
    assert_true(api_keys_wanted(k));
    assert_true(api_keys_find(k, "one") && api_keys_find(k, "another-key"));
    assert_true(api_keys_find(k, "one") != api_keys_find(k, "another-key"));
    static const char *const wrong[] = {"", "on", "one ", "onf", "anotherkey", "One"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(api_keys_find(k, wrong[i]), 0);
    memset(long_key, 'x', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = 0;
    assert_int_equal(api_keys_find(k, long_key), 0);
    api_keys_destroy(k);
    const char *const bad[] = {long_key};
    assert_int_equal(api_keys_create(&k, bad, 1, NULL, NULL), SAC_ERR_ARG);
    const char *const empty[] = {""};
    assert_int_equal(api_keys_create(&k, empty, 1, NULL, NULL), SAC_ERR_ARG);
    assert_int_equal(api_keys_create(&k, NULL, 0, "no/such/file", NULL), SAC_ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_json),
        cmocka_unit_test(test_texts_of_any_bytes),
        cmocka_unit_test(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
