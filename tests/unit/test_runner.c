/* test_runner.c: the figures beside an answer, worked out from the places of its rows: how much of
 * what lay before a row its method read, over the rows that it served and no others. A made-up
 * model of single bytes answers noise. */
#include "base/mem.h"
#include "eval/runner.h"
#include "must.h"
#include "tiny_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_DOCUMENT = 217, NEW_TOK = 9, BUDGET = 60, SINK = 4 };
static const char question[] = "Where is it?";

static sac_model *model;

static int load_model(void **state)
{
    (void)state;
    setenv("SAC_CPU", "ref", 1);
    model = tiny_open(&(struct tiny){.seed = 3});
    return model ? 0 : -1;
}

static int free_model(void **state)
{
    (void)state;
    sac_model_free(model);
    return 0;
}

static sac_status make_sample(const void *arg, const struct task_text *t,
                              const struct task_cell *cell, struct task_sample *out, sac_error *err)
{
    struct task_turn *turn = task_add_turn(out);
    char user[N_DOCUMENT + sizeof question];
    (void)arg;
    (void)t;
    (void)cell;
    (void)err;
    for (uint32_t i = 0; i < N_DOCUMENT; i++) user[i] = (char)('a' + i * i % 23);
    memcpy(user + N_DOCUMENT, question, sizeof question);
    turn->user = mem_strdup(user);
    turn->question_at = N_DOCUMENT;
    turn->new_tok = NEW_TOK;
    strlist_add(&turn->expected, "here");
    out->metric = METRIC_ANY_MATCH;
    out->raw = true;
    return SAC_OK;
}

/* Tokens before the own page that `spec` reads in a row at `pos`. */
static uint32_t tokens_read(char method, uint32_t pos)
{
    const uint32_t before = pos / 32 * 32;
    if (method == 'f') return before;
    if (method == 't') return 20;
    const uint32_t recent = pos + 1 - (BUDGET - SINK); /* the first of the newest */
    return SINK + (recent < before ? before - recent : 0);
}

static double share(char method, uint32_t begin, uint32_t end)
{
    double read = 0, seen = 0;
    for (uint32_t pos = begin; pos < end; pos++) {
        read += tokens_read(method, pos);
        seen += pos / 32 * 32;
    }
    return read / seen;
}

static void figures_are_of_the_rows_that_were_served(void **state)
{
    (void)state;
    const struct question_rows rows[] = {{.all = true}, {.n = 5}};
    for (size_t i = 0; i < 2; i++) {
        struct subjects subjects;
        struct samples *samples;
        struct runner_times times;
        sac_engine *e;
        sac_error err;
        must(subjects_parse(&subjects,
                            "full,streaming:budget=60,sink=4,topk:budget=20,sink=0,recent=0", &err),
             &err);
        must(samples_open(&samples, NULL, 1, &err), &err);
        sac_engine_params params = sac_engine_params_default();
        params.n_ctx = 512;
        params.n_seq_max = 2;
        params.n_threads = 1;
        params.decode = subjects.decode;
        params.n_decode = subjects.n_decode;
        params.prefill = subjects.prefill;
        params.n_prefill = subjects.n_prefill;
        params.sparse_min_ctx = 0;
        params.record = true;
        must(sac_engine_create(&e, model, &params, &err), &err);
        const struct task_text text = {.model = model, .raw = true};
        const struct task_cell cell = {.task = "made", .ctx = 300};
        const struct task_source source = {
            .make = make_sample, .cell = &cell, .n_cell = 1, .single_turn = true};
        const struct runner_params p = {.engine = e,
                                        .n_parallel = 1,
                                        .text = &text,
                                        .source = &source,
                                        .subjects = &subjects,
                                        .samples = samples,
                                        .rows = rows[i],
                                        .record = true};
        must(runner_run(&p, &times, &err), &err);
        assert_int_equal(samples_count(samples), 3);
        for (size_t k = 0; k < 3; k++) {
            const struct sample_row *r = samples_row(samples, k);
            const char method = r->method[0];
            /* The last token is chosen and not computed. */
            const uint32_t end = r->prompt_n + r->predicted_n - 1,
                           n_row = i ? 5 : sizeof question - 1;
            assert_int_equal(r->prompt_n, N_DOCUMENT + sizeof question - 1);
            assert_true(r->predicted_n > 1 && r->predicted_n <= NEW_TOK);
            assert_int_equal(r->rows.n, n_row);
            assert_true(fabs(r->share_read - share(method, r->prompt_n - n_row, end)) < 1e-12);
            assert_true(r->planned_share == 1 && r->score == 0);
            assert_true(method == 't' ? r->chosen == 20 : isnan(r->chosen));
            assert_true(method == 'f' ? fabs(r->mass_mean - 1) < 1e-5
                                      : r->mass_mean > 0.05 && r->mass_mean < 0.995);
        }
        samples_close(samples);
        subjects_deinit(&subjects);
        sac_engine_free(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_of_the_rows_that_were_served),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
