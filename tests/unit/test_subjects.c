/* test_subjects.c: lists of methods as the command line writes them, their pairs, and the table
 * that shows what the pairs scored. */
#include "eval/matrix.h"
#include "eval/subjects.h"

#include <cjson/cJSON.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void methods_are_parted_at_the_right_commas(void **state)
{
    (void)state;
    struct subjects s;
    sac_error err = {0};
    assert_int_equal(subjects_parse(&s, "full", NULL), SAC_OK);
    assert_int_equal(s.n, 1);
    subjects_deinit(&s);
    if (subjects_parse(&s, "dense,streaming:sink=64,budget=128,dense+full", &err) != SAC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.decode[0], "full");
    assert_string_equal(s.item[0].name, "dense");
    assert_string_equal(s.decode[1], "streaming:sink=64,budget=128");
    assert_int_equal(s.n_decode, 2);
    assert_int_equal(s.item[2].decode_i, 0);
    subjects_deinit(&s);
    if (subjects_parse(&s, "a-shape:sink=4,window=64+quest:budget=9,full,a-shape", &err) != SAC_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(s.n, 3);
    assert_int_equal(s.n_prefill, 3);
    assert_string_equal(s.prefill[0], "a-shape:sink=4,window=64");
    assert_string_equal(s.decode[0], "quest:budget=9");
    assert_string_equal(s.prefill[s.item[1].prefill_i], "dense");
    assert_string_equal(s.decode[s.item[1].decode_i], "full");
    assert_string_equal(s.prefill[s.item[2].prefill_i], "a-shape");
    assert_int_equal(s.item[2].decode_i, s.item[1].decode_i);
    subjects_deinit(&s);
    static const char *const bad[] = {"",         "full,",        "full,full", "nothing",
                                      "full:x=1", "nothing+full", "dense+"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_not_equal(subjects_parse(&s, bad[i], &err), SAC_OK);
        subjects_deinit(&s);
    }
}

static void lists_are_crossed(void **state)
{
    (void)state;
    struct subjects s;
    sac_error err = {0};
    sac_method_info m;
    uint32_t n_prefill = 0, n_decode = 0;
    if (subjects_cross(&s, "a-shape:sink=4,window=64,dense", "full,quest:budget=9", &err) != SAC_OK)
        fail_msg("%s", err.msg);
    static const char *const names[] = {"a-shape:sink=4,window=64+full", "dense+full",
                                        "a-shape:sink=4,window=64+quest:budget=9",
                                        "dense+quest:budget=9"};
    assert_int_equal(s.n, 4);
    for (uint32_t i = 0; i < s.n; i++) {
        assert_string_equal(s.item[i].name, names[i]);
        assert_int_equal(s.item[i].prefill_i, i % 2);
        assert_int_equal(s.item[i].decode_i, i / 2);
    }
    subjects_deinit(&s);
    for (size_t i = 0; sac_method_at(i, &m); i++) {
        n_prefill += strcmp(m.kind, "prefill") == 0;
        n_decode += strcmp(m.kind, "decode") == 0;
    }
    assert_int_equal(subjects_cross(&s, NULL, NULL, &err), SAC_OK);
    assert_int_equal(s.n_prefill, n_prefill);
    assert_int_equal(s.n_decode, n_decode);
    assert_int_equal(s.n, n_prefill * n_decode);
    subjects_deinit(&s);
    assert_int_equal(subjects_cross(&s, "dense,nothing", NULL, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, "nothing"));
    subjects_deinit(&s);
    assert_int_equal(subjects_cross(&s, NULL, "full,full", &err), SAC_ERR_ARG);
    subjects_deinit(&s);
}

static void a_matrix_shows_scores_and_refusals(void **state)
{
    (void)state;
    struct matrix m;
    struct strbuf text = {0};
    assert_int_equal(matrix_make(&m, "dense,a-shape", "full,streaming", NULL), SAC_OK);
    snprintf(m.refusal[3].msg, sizeof m.refusal[3].msg, "it is too wide");
    struct summary_row row[3] = {
        {.score = {.mean = 1, .n = 2}, .planned_share = 1, .share_read = 1, .traffic.share = 1},
        {.score = {.mean = 0.5, .n = 2},
         .planned_share = 0.25,
         .share_read = 1,
         .traffic.share = 1},
        {.score = {.mean = 0, .n = 2},
         .planned_share = 1,
         .share_read = 0.125,
         .traffic.share = 0.25},
    };
    for (int i = 0; i < 3; i++) {
        row[i].ctx = 4096;
        snprintf(row[i].task, sizeof row[i].task, "needle");
        snprintf(row[i].method, sizeof row[i].method, "%s", m.pairs.item[i].name);
    }
    const struct summary s = {row, 3};
    matrix_markdown(&m, &s, &text);
    assert_string_equal(text.data, "\nneedle, 4096 tokens, scores in % of 2 samples:\n\n"
                                   "| decode | read | bytes | dense | a-shape |\n"
                                   "|---|--:|--:|--:|--:|\n"
                                   "| cells computed | | | 100.0 | 25.0 |\n"
                                   "| full | 100.0 | 100.0 | 100 | 50 |\n"
                                   "| streaming | 12.5 | 25.0 | 0 | refused |\n"
                                   "\nrefused: a-shape+streaming: it is too wide\n");
    cJSON *list = cJSON_CreateArray();
    matrix_add_refusals(&m, list);
    assert_int_equal(cJSON_GetArraySize(list), 1);
    cJSON_Delete(list);
    strbuf_deinit(&text);
    matrix_deinit(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(methods_are_parted_at_the_right_commas),
        cmocka_unit_test(lists_are_crossed),
        cmocka_unit_test(a_matrix_shows_scores_and_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
