/* test_eval_jsonl.c: the loaders read each suite's form, and name file, line and field of every
 * kind of bad line; samples.jsonl is read back, cut where an interruption left half a line, and
 * refused for another run. */
#include "eval/jsonl.h"
#include "eval/samples.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define LONGBENCH                                                                                  \
    "{\"input\": \"Who?\", \"context\": \"Ida did.\", \"answers\": [\"Ida\"], \"length\": 2, "     \
    "\"dataset\": \"hotpotqa\", \"language\": \"en\", \"all_classes\": null, \"_id\": \"x\"}\n"
#define TREC                                                                                       \
    "{\"input\": \"What is it?\", \"context\": \"Type: Food\", \"answers\": [\"Food\"], "          \
    "\"dataset\": \"trec_e\", \"all_classes\": [\"Food\", \"Animal\"]}\n"
#define RULER                                                                                      \
    "{\"index\": 0, \"input\": \"One key. What is it?\", \"outputs\": [\"123\", 456], "            \
    "\"length\": 4096, \"answer_prefix\": \" The key is\"}\n"
#define LOOPSERVE                                                                                  \
    "{\"id\": \"a\", \"type\": \"qa\", \"source\": \"s\", \"qpos\": \"middle\", \"metric\": "      \
    "\"f1\", \"seed\": 1, \"turns\": [{\"segments\": [{\"sid\": \"1\", \"text\": \"One.\"}, "      \
    "{\"sid\": \"2\", \"text\": \"Two.\"}], \"question\": \"Q?\", \"answers\": [\"A\"], "          \
    "\"support\": [\"2\"], \"support_turns\": [1], \"max_new\": 32, \"cut\": 1}, {\"segments\": "  \
    "[], \"question\": \"R?\", \"answers\": [\"B\"], \"support\": [\"1\"], \"max_new\": 8, "       \
    "\"cut\": 0}]}\n"
#define NEEDLE                                                                                     \
    "{\"needle\": \"Oz is green.\", \"retrieval_question\": \"How is Oz?\", "                      \
    "\"gold_standard_answer\": \"green\"}\n"

static sac_status open_text(struct jsonl **out, enum jsonl_format format, const char *text,
                            sac_error *err)
{
    const struct jsonl_params p = {.format = format,
                                   .path = "data/vt/validation.jsonl",
                                   .text = text,
                                   .n_bytes = strlen(text)};
    return jsonl_open(out, &p, err);
}

static void each_form_is_read(void **state)
{
    (void)state;
    static const struct {
        enum jsonl_format format;
        const char *text, *task, *place;
    } cases[] = {
        {JSONL_LONGBENCH, LONGBENCH "\n" LONGBENCH, "hotpotqa", ""},
        {JSONL_LONGBENCH, TREC TREC, "trec_e", ""},
        {JSONL_RULER, RULER RULER, "vt", ""},
        {JSONL_LOOPSERVE, LOOPSERVE LOOPSERVE, "qa", "middle"},
        {JSONL_NEEDLE, NEEDLE NEEDLE, "needle_file", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct jsonl *j;
        struct task_cell cell;
        sac_error err = {0};
        if (open_text(&j, cases[i].format, cases[i].text, &err) != SAC_OK) fail_msg("%s", err.msg);
        assert_int_equal(jsonl_count(j), 2);
        jsonl_cell(j, 1, &cell);
        assert_string_equal(cell.task, cases[i].task);
        assert_string_equal(cell.place, cases[i].place);
        assert_int_equal(cell.index, 1);
        jsonl_close(j);
    }
}

/* Twenty-six kinds of bad line, each the second of its file. */
static const struct {
    enum jsonl_format format;
    const char *good, *bad, *field;
} bad_lines[] = {
    {JSONL_LONGBENCH, LONGBENCH, "{\"input\": ", "not a JSON object"},
    {JSONL_LONGBENCH, LONGBENCH, "[1, 2]", "not a JSON object"},
    {JSONL_LONGBENCH, LONGBENCH, "{}", "'dataset' is missing"},
    {JSONL_LONGBENCH, LONGBENCH, "{\"dataset\": 3}", "'dataset' is no text"},
    {JSONL_LONGBENCH, LONGBENCH, "{\"dataset\": \"qasper\"}", "'context' is missing"},
    {JSONL_LONGBENCH, LONGBENCH, "{\"dataset\": \"qasper\", \"context\": \"\", \"input\": \"\"}",
     "'context' is empty"},
    {JSONL_LONGBENCH, LONGBENCH, "{\"dataset\": \"qasper\", \"context\": \"c\"}",
     "'input' is missing"},
    {JSONL_LONGBENCH, LONGBENCH, "{\"dataset\": \"qasper\", \"context\": \"c\", \"input\": \"i\"}",
     "'answers' is missing"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"qasper\", \"context\": \"c\", \"input\": \"i\", \"answers\": \"a\"}",
     "'answers' is no list"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"qasper\", \"context\": \"c\", \"input\": \"i\", \"answers\": []}",
     "'answers' is an empty list"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"qasper\", \"context\": \"c\", \"input\": \"i\", \"answers\": [true]}",
     "'answers' holds something"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"dureader\", \"context\": \"c\", \"input\": \"i\", \"answers\": [\"a\"]}",
     "'dataset' names a set"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"trec\", \"context\": \"c\", \"input\": \"i\", \"answers\": [\"a\"], "
     "\"all_classes\": null}",
     "'all_classes' is no list"},
    {JSONL_LONGBENCH, LONGBENCH,
     "{\"dataset\": \"passage_retrieval_en\", \"context\": \"c\", \"input\": \"i\", "
     "\"answers\": [\"3\"]}",
     "'answers' names no"},
    {JSONL_RULER, RULER, "{\"input\": \"i\", \"outputs\": [\"1\"]}", "'index' is missing"},
    {JSONL_RULER, RULER, "{\"index\": -1, \"input\": \"i\", \"outputs\": [\"1\"]}",
     "'index' is out of range"},
    {JSONL_RULER, RULER, "{\"index\": \"0\", \"input\": \"i\", \"outputs\": [\"1\"]}",
     "'index' is no number"},
    {JSONL_RULER, RULER, "{\"index\": 0, \"input\": \"i\", \"answers\": [\"1\"]}",
     "'outputs' is missing"},
    {JSONL_RULER, RULER,
     "{\"index\": 0, \"input\": \"i\", \"outputs\": [\"1\"], \"answer_prefix\": 4}",
     "'answer_prefix' is no text"},
    {JSONL_LOOPSERVE, LOOPSERVE,
     "{\"id\": \"a\", \"type\": \"qa\", \"qpos\": \"front\", \"metric\": \"f1\"}",
     "'qpos' is none of"},
    {JSONL_LOOPSERVE, LOOPSERVE,
     "{\"id\": \"a\", \"type\": \"qa\", \"qpos\": \"end\", \"metric\": \"bleu\"}",
     "'metric' is none of"},
    {JSONL_LOOPSERVE, LOOPSERVE,
     "{\"id\": \"a\", \"type\": \"qa\", \"qpos\": \"end\", \"metric\": \"f1\", \"turns\": []}",
     "'turns' has none"},
    {JSONL_LOOPSERVE, LOOPSERVE,
     "{\"id\": \"a\", \"type\": \"qa\", \"qpos\": \"end\", \"metric\": \"f1\", \"turns\": "
     "[{\"segments\": [{\"sid\": \"1\", \"text\": \"t\"}], \"question\": \"q\", \"answers\": "
     "[\"a\"], \"support\": [\"2\"], \"max_new\": 8}]}",
     "'support' names a segment"},
    {JSONL_LOOPSERVE, LOOPSERVE,
     "{\"id\": \"a\", \"type\": \"qa\", \"qpos\": \"middle\", \"metric\": \"f1\", \"turns\": "
     "[{\"segments\": [{\"sid\": \"1\", \"text\": \"t\"}], \"question\": \"q\", \"answers\": "
     "[\"a\"], \"max_new\": 8}]}",
     "'cut' is missing"},
    {JSONL_NEEDLE, NEEDLE, "{\"question\": \"q\", \"answer\": \"a\"}", "'needle' is missing"},
    {JSONL_NEEDLE, NEEDLE, "{\"needle\": \"n\", \"answer\": \"a\"}",
     "'retrieval_question' is missing"},
};

static void bad_lines_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_lines / sizeof bad_lines[0]; i++) {
        struct jsonl *j = NULL;
        sac_error err = {0};
        char text[2048];
        snprintf(text, sizeof text, "%s%s\n", bad_lines[i].good, bad_lines[i].bad);
        assert_int_equal(open_text(&j, bad_lines[i].format, text, &err), SAC_ERR_FORMAT);
        assert_null(j);
        if (!strstr(err.msg, "data/vt/validation.jsonl:2: ") ||
            !strstr(err.msg, bad_lines[i].field))
            fail_msg("case %zu: '%s' does not say '%s'", i, err.msg, bad_lines[i].field);
    }
}

static void rows_come_back(void **state)
{
    (void)state;
    char path[] = "samples-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    struct samples *s;
    struct task_sample sample = {.n_turn = 1, .turn = {{.user = "Question"}}};
    const struct sample_text text = {.sample = &sample, .answer = "42 \"q\"\n", .seed = 7};
    const struct sample_row row = {
        .cell = {.task = "vt", .place = "end", .ctx = 4096, .depth = 33.3, .index = 3},
        .method = "full",
        .score = 0.25};
    strlist_add(&sample.turn[0].expected, "42");
    assert_int_equal(samples_open(&s, path, 1, NULL), SAC_OK);
    assert_int_equal(samples_add(s, &row, &text, NULL), SAC_OK);
    samples_close(s);
    /* What a killed process leaves. */
    assert_int_equal(lseek(fd, 0, SEEK_END) > 0, 1);
    assert_int_equal(write(fd, "{\"task\": \"v", 11), 11);
    assert_int_equal(samples_open(&s, path, 1, NULL), SAC_OK);
    assert_int_equal(samples_count(s), 1);
    assert_true(samples_has(s, &row.cell, "full", 0));
    assert_false(samples_has(s, &row.cell, "full", 1));
    assert_false(samples_has(s, &row.cell, "other", 0));
    assert_true(samples_row(s, 0)->score == 0.25);
    assert_int_equal(samples_add(s, &row, &text, NULL), SAC_OK);
    samples_close(s);
    assert_int_equal(samples_open(&s, path, 1, NULL), SAC_OK);
    assert_int_equal(samples_count(s), 2); /* the half line did not spoil the next one */
    samples_close(s);
    sac_error err = {0};
    assert_int_equal(samples_open(&s, path, 2, &err), SAC_ERR_ARG);
    assert_non_null(strstr(err.msg, ":1: made with another model"));
    strlist_deinit(&sample.turn[0].expected);
    close(fd);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_form_is_read),
        cmocka_unit_test(bad_lines_are_named),
        cmocka_unit_test(rows_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
