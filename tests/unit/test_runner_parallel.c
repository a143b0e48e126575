/* test_runner_parallel.c: samples that are asked side by side give the rows that they give one
 * after the other, in the same order, in fewer steps; what is complete is kept when the run ends
 * early. A made-up model of single bytes answers noise. */
#include "base/mem.h"
#include "base/strbuf.h"
#include "eval/runner.h"
#include "must.h"
#include "tiny_model.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_CELL = 7, N_SUBJECT = 5, CTX = 512, FIRST_TOK = 40, BROKEN = 4, PATH = 64 };
static const char methods[] = "full,topk:budget=40,snapkv:budget=96,sparge:top=0.5+full,"
                              "quest:budget=64";
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

struct plan {
    uint32_t n_turn;
    bool breaks; /* sample BROKEN cannot be made */
};

static uint32_t document_length(uint32_t index)
{
    return 150 + 31 * (index % 3);
}

/* The first sample has the longest answer, so others are complete before it. */
static sac_status make_sample(const void *arg, const struct task_text *t,
                              const struct task_cell *cell, struct task_sample *out, sac_error *err)
{
    const struct plan *plan = arg;
    const uint32_t n = document_length(cell->index);
    (void)t;
    if (plan->breaks && cell->index == BROKEN)
        return error_set(err, SAC_ERR_FORMAT, "it is broken");
    for (uint32_t i = 0; i < plan->n_turn; i++) {
        struct task_turn *turn = task_add_turn(out);
        char user[CTX];
        for (uint32_t k = 0; k < n; k++) user[k] = (char)('a' + (k * k + cell->index + i) % 23);
        memcpy(user + n, question, sizeof question);
        turn->user =
            mem_strndup(user + (i ? n - 20 : 0), i ? 20 + sizeof question : n + sizeof question);
        turn->question_at = i ? 20 : n;
        turn->new_tok = cell->index == 0 ? FIRST_TOK : 3 + cell->index;
        strlist_add(&turn->expected, "here");
    }
    out->metric = METRIC_ANY_MATCH;
    out->raw = true;
    return SAC_OK;
}

struct outcome {
    sac_status status;
    sac_error err;
    sac_engine_stats stats;
};

/* Stops when so many rows are complete or, with 0, never. */
struct watch {
    const struct samples *samples;
    uint32_t n_call, stop_at;
};

static bool on_progress(void *user, const struct runner_progress *p)
{
    struct watch *w = user;
    assert_true(p->n_done < p->n_cell && p->share >= 0 && p->share <= 1);
    return w->stop_at && ++w->n_call == w->stop_at;
}

static struct outcome run(const char *path, const struct plan *plan, uint32_t n_parallel,
                          uint32_t stop_at)
{
    struct outcome out = {0};
    struct subjects subjects;
    struct samples *samples;
    struct runner_times times;
    struct task_cell cell[N_CELL];
    sac_engine *e;
    must(subjects_parse(&subjects, methods, &out.err), &out.err);
    must(samples_open(&samples, path, 1, &out.err), &out.err);
    sac_engine_params params = sac_engine_params_default();
    params.n_ctx = CTX;
    params.n_seq_max = 2 * n_parallel;
    params.n_kv_tok = (uint64_t)n_parallel * 2 * CTX;
    params.n_threads = 1;
    params.decode = subjects.decode;
    params.n_decode = subjects.n_decode;
    params.prefill = subjects.prefill;
    params.n_prefill = subjects.n_prefill;
    params.sparse_min_ctx = 0;
    params.record = true;
    must(sac_engine_create(&e, model, &params, &out.err), &out.err);
    for (uint32_t i = 0; i < N_CELL; i++)
        cell[i] = (struct task_cell){.task = "made", .ctx = CTX, .depth = 50, .index = i};
    const struct task_text text = {.model = model, .raw = true};
    const struct task_source source = {.make = make_sample,
                                       .arg = plan,
                                       .cell = cell,
                                       .n_cell = N_CELL,
                                       .single_turn = plan->n_turn == 1};
    struct watch watch = {.samples = samples, .stop_at = stop_at};
    const struct runner_params p = {.engine = e,
                                    .n_parallel = n_parallel,
                                    .text = &text,
                                    .source = &source,
                                    .subjects = &subjects,
                                    .samples = samples,
                                    .rows = {.all = true},
                                    .record = true,
                                    .on_progress = on_progress,
                                    .user = &watch};
    out.status = runner_run(&p, &times, &out.err);
    out.stats = sac_engine_get_stats(e);
    samples_close(samples);
    subjects_deinit(&subjects);
    sac_engine_free(e);
    return out;
}

/* The lines of a file, without times, and how many they are; of each a time is known or not. */
static size_t read_lines(char *line[N_CELL * N_SUBJECT * 2], const char *path, bool timed)
{
    static const char *const times[] = {"ttft_ms", "prompt_per_second", "predicted_per_second"};
    static char text[16384];
    FILE *f = fopen(path, "r");
    size_t n = 0;
    assert_non_null(f);
    while (fgets(text, sizeof text, f)) {
        cJSON *o = cJSON_Parse(text);
        assert_true(n < N_CELL * N_SUBJECT * 2);
        assert_true(cJSON_IsNull(cJSON_GetObjectItem(o, "ttft_ms")) == !timed);
        for (size_t i = 0; i < 3; i++) cJSON_DeleteItemFromObject(o, times[i]);
        line[n++] = cJSON_PrintUnformatted(o);
        cJSON_Delete(o);
    }
    fclose(f);
    return n;
}

static void free_lines(char **line, size_t n)
{
    for (size_t i = 0; i < n; i++) cJSON_free(line[i]);
}

static void make_path(char path[PATH])
{
    snprintf(path, PATH, P_tmpdir "/saccade_runner_XXXXXX");
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
}

/* Runs in one place and in several; the files agree. */
static void compare(uint32_t n_turn, uint32_t n_parallel)
{
    const struct plan plan = {.n_turn = n_turn};
    char path[2][PATH], *line[2][N_CELL * N_SUBJECT * 2];
    struct outcome out[2];
    size_t n[2];
    for (uint32_t i = 0; i < 2; i++) {
        make_path(path[i]);
        out[i] = run(path[i], &plan, i ? n_parallel : 1, 0);
        must(out[i].status, &out[i].err);
        n[i] = read_lines(line[i], path[i], i == 0);
        unlink(path[i]);
    }
    assert_int_equal(n[0], N_CELL * N_SUBJECT * n_turn);
    assert_int_equal(n[1], n[0]);
    for (size_t i = 0; i < n[0]; i++) assert_string_equal(line[0][i], line[1][i]);
    /* The same rows in fewer steps: of N samples several rows are in each. */
    assert_int_equal(out[0].stats.reads.n_decode_tok, out[1].stats.reads.n_decode_tok);
    assert_int_equal(out[0].stats.reads.n_prompt_tok, out[1].stats.reads.n_prompt_tok);
    assert_true(2 * out[1].stats.n_step < out[0].stats.n_step);
    assert_int_equal(out[1].stats.n_preempted, 0);
    for (uint32_t i = 0; i < 2; i++) free_lines(line[i], n[i]);
    if (n_turn > 1) return;
    /* Dense methods read a prompt once: first to the question, then to its last token. So does the
     * method of prompts, which reads all but that. */
    uint64_t n_prompt = 0;
    for (uint32_t i = 0; i < N_CELL; i++)
        n_prompt += 2 * (document_length(i) + (uint32_t)sizeof question - 2);
    assert_int_equal(out[1].stats.reads.n_prompt_tok, n_prompt);
}

static void side_by_side_is_one_after_the_other(void **state)
{
    (void)state;
    compare(1, 4);
    compare(1, 2 * N_CELL);
    compare(2, 3);
}

/* Whatever it was that ended the run, nothing complete is lost, and nothing is asked twice. */
static void go_on_after(const struct outcome *ended, const char *path, const struct plan *whole)
{
    char *line[2][N_CELL * N_SUBJECT * 2], other[PATH];
    const size_t n_kept = read_lines(line[0], path, false);
    assert_in_range(n_kept, 1, N_CELL * N_SUBJECT - 1);
    /* The first sample is not complete, but others are. */
    assert_int_equal(ended->stats.n_preempted, 0);
    size_t n_later = 0;
    for (size_t i = 0; i < n_kept; i++) n_later += !strstr(line[0][i], "\"index\":0,");
    assert_true(n_later > 0);
    free_lines(line[0], n_kept);
    struct outcome out = run(path, whole, 4, 0);
    must(out.status, &out.err);
    const size_t n = read_lines(line[0], path, false);
    assert_int_equal(n, N_CELL * N_SUBJECT);
    make_path(other);
    out = run(other, whole, 4, 0);
    must(out.status, &out.err);
    assert_int_equal(read_lines(line[1], other, false), n);
    for (size_t i = 0; i < n; i++) {
        size_t k = 0;
        while (k < n && strcmp(line[0][i], line[1][k]) != 0) k++;
        assert_true(k < n);
    }
    for (uint32_t i = 0; i < 2; i++) free_lines(line[i], n);
    unlink(other);
}

static void what_is_complete_is_kept(void **state)
{
    (void)state;
    const struct plan whole = {.n_turn = 1}, broken = {.n_turn = 1, .breaks = true};
    char path[PATH];
    make_path(path);
    struct outcome out = run(path, &whole, 4, FIRST_TOK);
    assert_int_equal(out.status, SAC_ERR_CANCELLED);
    go_on_after(&out, path, &whole);
    unlink(path);
    make_path(path);
    out = run(path, &broken, 4, 0);
    assert_int_equal(out.status, SAC_ERR_FORMAT);
    assert_string_equal(out.err.msg, "made, 512 tokens, depth 50 %, sample 4: it is broken");
    go_on_after(&out, path, &whole);
    unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(side_by_side_is_one_after_the_other),
        cmocka_unit_test(what_is_complete_is_kept),
    };
    return cmocka_run_group_tests(tests, load_model, free_model);
}
