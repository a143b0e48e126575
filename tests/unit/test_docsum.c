/* test_docsum.c: lines of docs.jsonl: written and read they are the same, of several files they are
 * one evaluation; means are over the right ones, differences of pairs; broken lines are told. */
#include "base/mem.h"
#include "base/textfile.h"
#include "eval/docsum.h"
#include "must.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[64];

static int make_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, P_tmpdir "/saccade_docsum_XXXXXX");
    const int fd = mkstemp(path);
    return fd >= 0 ? close(fd) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(path);
}

static struct docrow row_of(const char *method, const char *place, uint32_t index, double score)
{
    struct docrow r = {.n_document = 4, .n_tok = 1360, .index = index, .seed = 7, .n_layer = 2};
    snprintf(r.model, sizeof r.model, "tiny");
    snprintf(r.kv, sizeof r.kv, "f16");
    snprintf(r.task, sizeof r.task, "docs_facts");
    snprintf(r.place, sizeof r.place, "%s", place);
    snprintf(r.method, sizeof r.method, "%s", method);
    for (unsigned f = 0; f < DOCROW_FIELDS; f++) r.value[f] = 10 * f + index;
    r.value[DOCROW_SCORE] = score;
    r.layer_error[0] = index;
    r.layer_error[1] = 0.5;
    return r;
}

static char *line_of(const struct docrow *r)
{
    cJSON *o = docrow_json(r);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    return text;
}

static void put(const char *text)
{
    sac_error err;
    must(textfile_write(path, text, strlen(text), &err), &err);
}

static void rows_come_back_as_they_were(void **state)
{
    (void)state;
    struct docrows rows = {0};
    struct docrow r = row_of("samkv:update=fusion", "middle", 3, 1);
    sac_error err;
    r.value[DOCROW_KL] = (double)NAN;
    r.has_filler = true;
    char *line = line_of(&r), text[4096];
    snprintf(text, sizeof text, "%s\n\n%s\n{\"model\": \"ti", line, line);
    put(text);
    must(docrows_read(&rows, path, &err), &err);
    must(docrows_read(&rows, path, &err), &err); /* the same again: taken once */
    assert_int_equal(rows.n, 1);
    assert_true(rows.was_cut);
    assert_int_equal(rows.whole_bytes, 2 * strlen(line) + 3);
    assert_true(docrows_has(&rows, &r));
    assert_string_equal(rows.row[0].method, r.method);
    assert_true(rows.row[0].has_filler);
    assert_true(isnan(rows.row[0].value[DOCROW_KL]));
    for (unsigned f = 0; f < DOCROW_FIELDS; f++)
        if (f != DOCROW_KL) assert_true(rows.row[0].value[f] == r.value[f]);
    assert_int_equal(rows.row[0].n_layer, 2);
    assert_true(rows.row[0].layer_error[0] == 3);
    /* Another index, seed, place, method, number of documents or type of keys is another row. */
    r.seed++;
    assert_false(docrows_has(&rows, &r));
    r = rows.row[0];
    r.kv[0] = 'q';
    assert_false(docrows_has(&rows, &r));
    cJSON_free(line);
    docrows_deinit(&rows);
}

static const struct docsum_row *find(const struct docsum *s, const char *method, const char *place)
{
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->row[i].first->method, method) == 0 && strcmp(s->row[i].place, place) == 0)
            return &s->row[i];
    fail_msg("no row of %s, %s", method, place);
    return NULL;
}

static void means_are_of_their_own_rows(void **state)
{
    (void)state;
    struct docrows rows = {0};
    struct docsum sum;
    sac_error err;
    const struct docrow all[] = {
        row_of("recompute", "first", 0, 1),  row_of("epic", "first", 0, 1),
        row_of("recompute", "first", 1, 1),  row_of("epic", "first", 1, 0),
        row_of("recompute", "middle", 0, 0), row_of("epic", "middle", 0, 1),
        row_of("epic", "middle", 2, 1), /* nobody to compare with */
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        must(docrows_add(&rows, &all[i], &err), &err);
    must(docsum_make(&sum, &rows, &err), &err);
    assert_int_equal(sum.n, 6); /* two methods; first, middle, all */
    assert_string_equal(sum.base, "recompute");
    assert_int_equal(find(&sum, "recompute", "all")->diff.n, 0);
    const struct docsum_row *first = find(&sum, "epic", "first"),
                            *middle = find(&sum, "epic", "middle"),
                            *both = find(&sum, "epic", "all");
    assert_true(first->score.mean == 0.5 && first->score.n == 2);
    assert_true(first->diff.mean == -0.5 && first->diff.n == 2);
    assert_true(first->diff.low == -1 && first->diff.high == 0);
    assert_true(middle->score.n == 2 && middle->diff.n == 1 && middle->diff.mean == 1);
    assert_true(both->score.mean == 0.75 && both->diff.n == 3 && both->diff.mean == 0);
    assert_true(first->mean[DOCROW_TTFT] == 10 * DOCROW_TTFT + 0.5);
    double layer[DOCROW_LAYER_MAX];
    assert_int_equal(docsum_layers(&rows, first->first, layer), 2);
    assert_true(layer[0] == 0.75 && layer[1] == 0.5); /* of indices 0, 1, 0 and 2 */
    cJSON *list = docsum_json(&sum);
    assert_int_equal(cJSON_GetArraySize(list), 4); /* places alone */
    cJSON_Delete(list);
    docsum_deinit(&sum);
    docrows_deinit(&rows);
}

/* Three questions about one set of documents are no three samples: the interval is as wide as that
 * of one question a set. */
static void questions_about_the_same_documents_are_drawn_together(void **state)
{
    (void)state;
    static const char *const places[] = {"first", "middle", "last"};
    struct docsum_row got[2];
    for (size_t n_place = 1; n_place <= 3; n_place += 2) {
        struct docrows rows = {0};
        struct docsum sum;
        sac_error err;
        for (uint32_t index = 0; index < 10; index++)
            for (size_t p = 0; p < n_place; p++) {
                const struct docrow exact = row_of("recompute", places[p], index, 1);
                const struct docrow other = row_of("epic", places[p], index, index % 2);
                must(docrows_add(&rows, &exact, &err), &err);
                must(docrows_add(&rows, &other, &err), &err);
            }
        must(docsum_make(&sum, &rows, &err), &err);
        got[n_place / 2] = *find(&sum, "epic", "all");
        assert_int_equal(got[n_place / 2].diff.n, 10 * n_place);
        docsum_deinit(&sum);
        docrows_deinit(&rows);
    }
    assert_true(got[0].diff.high - got[0].diff.low > 0.4);
    assert_true(got[0].diff.low == got[1].diff.low && got[0].diff.high == got[1].diff.high);
    assert_true(got[0].score.low == got[1].score.low && got[0].score.high == got[1].score.high);
}

static void broken_lines_are_told(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"[]", "not a JSON object"},
        {"{\"model\": 3}", "'model'"},
        {"{\"model\": \"m\", \"kv\": \"f16\", \"task\": \"t\", \"place\": \"p\", \"method\": "
         "\"x\"}",
         "'documents'"},
        {"{\"model\": \"m\", \"kv\": \"0123456789abcdef\"}", "longer than 15"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct docrows rows = {0};
        sac_error err;
        char text[512], where[80];
        snprintf(text, sizeof text, "\n%s\n", bad[i][0]);
        snprintf(where, sizeof where, "%s:2", path);
        put(text);
        assert_int_equal(docrows_read(&rows, path, &err), SAC_ERR_FORMAT);
        assert_non_null(strstr(err.msg, where));
        assert_non_null(strstr(err.msg, bad[i][1]));
        docrows_deinit(&rows);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_back_as_they_were),
        cmocka_unit_test(means_are_of_their_own_rows),
        cmocka_unit_test(questions_about_the_same_documents_are_drawn_together),
        cmocka_unit_test(broken_lines_are_told),
    };
    return cmocka_run_group_tests(tests, make_file, remove_file);
}
