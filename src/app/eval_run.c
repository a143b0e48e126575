/* eval_run.c: see the header. The order is: wrong options are reported before a model is loaded,
 * the model is loaded before the folder is created, and every answer is in samples.jsonl before the
 * next question.
 *
 * A run's identity is a hash of the model and of every setting that changes a sample or an answer.
 * Methods are not included: more of them may be added to a folder later. */
#include "app/eval_run.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/provenance.h"
#include "app/source.h"
#include "app/units.h"

#include "base/folder.h"
#include "base/mem.h"
#include "base/textfile.h"
#include "eval/choices.h"
#include "eval/matrix.h"
#include "eval/rng.h"
#include "eval/runner.h"
#include "eval/summary.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLACK_TOK 64u /* unshared pages of a fork, rounded up */

static const char default_methods[] = "full";

enum format { FORMAT_TEXT, FORMAT_JSON };

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct eval_run, field), arg, help, __VA_ARGS__                      \
    }

const struct option_spec eval_run_specs[] = {
    OPT("--methods", OPTION_TEXT, methods, "LIST",
        "decode methods to compare, comma-separated, as NAME:key=value,key=value or "
        "PREFILL+DECODE; the others are compared with the first",
        .env = NULL),
    OPT("--matrix", OPTION_FLAG, matrix, NULL,
        "instead: a table of every prefill method with every decode method; --prefill and --decode "
        "take lists of methods to include",
        .env = NULL),
    OPT("--ctx", OPTION_TEXT, ctx, "LIST",
        "context lengths in tokens, answer included, comma-separated; 4k is 4096. Default: 4k; for "
        "a file, its samples up to 8k",
        .env = NULL),
    OPT("-n --samples", OPTION_U32, n_sample, "N",
        "samples per task, context and place; of a file the first N", .min = 1, .max = 100000),
    OPT("-np --parallel", OPTION_U32, n_parallel, "N",
        "samples processed together in one batch: the same answers in less time, with N times the "
        "memory for the KV cache; times of single answers are then left out",
        .min = 1, .max = 1024),
    OPT("-s --seed", OPTION_I64, seed, "N", "seed for the samples", .min = 0, .max = 0x1p53),
    OPT("--out", OPTION_TEXT, out, "DIR",
        "folder for samples.jsonl, summary.json and summary.md; samples of this run that are in it "
        "are not asked again. Without it only the summary is printed",
        .env = NULL),
    OPT("--raw", OPTION_FLAG, raw, NULL, "continue the text, without a chat template", .env = NULL),
    OPT("--chat-template", OPTION_TEXT, chat_template, "TEXT",
        "chat template, or the name of a built-in one, instead of the model's", .env = NULL),
    OPT("--decode-rows", OPTION_TEXT, rows, "N|question", QUESTION_HELP, .env = NULL),
    OPT("--gold-history", OPTION_FLAG, gold_history, NULL,
        "later turns of a conversation see the expected answers instead of the given ones",
        .env = NULL),
    OPT("--record", OPTION_FLAG, record, NULL,
        "measure the attention mass of what was read (mass_mean); times are then meaningless",
        .env = NULL),
    OPT("--allow-idle", OPTION_FLAG, allow_idle, NULL,
        "keep methods that selected nothing by score in the table", .env = NULL),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "no progress and no times on stderr", .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: a list with one object per method and group of samples", .env = NULL,
        .choices = "text|json"),
    {0},
};

/* Methods come in --methods; a default for other commands is none of an evaluation. */
const struct option_need eval_run_needs[] = {
    {"--prefill", "--matrix"}, {"--decode", "--matrix"}, {"--budget", ""}, {"--mass", ""}, {0}};

const struct option_spec eval_run_haystack_specs[] = {
    OPT("--haystack", OPTION_TEXT, haystack_file, "FILE",
        "text in which the needles are hidden (default: generated prose)", .env = NULL),
    {0},
};

struct eval_run eval_run_default(const char *command)
{
    return (struct eval_run){
        .command = command,
        .methods = default_methods,
        .n_sample = 1,
        .n_parallel = 1,
        .seed = 42,
        .rows = "question",
        .setup = setup_default(command),
    };
}

void eval_run_deinit(struct eval_run *r)
{
    haystack_deinit(&r->haystack);
    mem_free(r->cell);
    strbuf_deinit(&r->identity);
}

/* ---- Lists ---- */

bool eval_run_word(const char **at, char *word, size_t bytes)
{
    if (!*at) return false;
    const size_t n = strcspn(*at, ",");
    snprintf(word, bytes, "%.*s", (int)n, *at);
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return true;
}

int eval_run_contexts(const struct eval_run *r, const char *otherwise, uint32_t ctx[EVAL_CTX_MAX],
                      uint32_t *out_n)
{
    char word[32];
    uint64_t v;
    const char *at = r->ctx ? r->ctx : otherwise;
    for (*out_n = 0; eval_run_word(&at, word, sizeof word); ++*out_n) {
        if (!units_tokens(word, &v) || v < 256 || v > 16777216)
            return options_usage_error(r->command,
                                       "option '--ctx': '%s' is no number of tokens "
                                       "from 256 to 16m",
                                       word);
        if (*out_n == EVAL_CTX_MAX)
            return options_usage_error(r->command, "option '--ctx': more than %u", EVAL_CTX_MAX);
        ctx[*out_n] = (uint32_t)v;
    }
    return OPTIONS_GO_ON;
}

int eval_run_depths(const struct eval_run *r, const char *text, double depth[EVAL_CTX_MAX],
                    uint32_t *out_n)
{
    char word[32], *end;
    for (*out_n = 0; eval_run_word(&text, word, sizeof word); ++*out_n) {
        const double v = strtod(word, &end);
        if (end == word || *end || !(v >= 0 && v <= 100))
            return options_usage_error(r->command, "option '--depths': '%s' is not in 0 to 100",
                                       word);
        if (*out_n == EVAL_CTX_MAX)
            return options_usage_error(r->command, "option '--depths': more than %u", EVAL_CTX_MAX);
        depth[*out_n] = v;
    }
    return OPTIONS_GO_ON;
}

/* ---- The plan ---- */

int eval_run_haystack(struct eval_run *r)
{
    struct strbuf text = {0};
    sac_error err = {0};
    sac_status status;
    if (!r->haystack_file) {
        status = haystack_init_prose(&r->haystack, (uint64_t)r->seed, &err);
    } else {
        status = source_read(&text, r->haystack_file, false, &err);
        if (status == SAC_OK) {
            status = haystack_init(&r->haystack, text.data, text.n, &err);
            if (status != SAC_OK) status = error_prefix(&err, status, "%s", r->haystack_file);
        }
        strbuf_deinit(&text);
    }
    strbuf_addf(&r->identity, "haystack %llx\n", (unsigned long long)r->haystack.hash);
    return status == SAC_OK ? OPTIONS_GO_ON : setup_failed(r->command, status, err.msg);
}

int eval_run_plan_one(struct eval_run *r, const struct task_cell *cell)
{
    if (r->n_cell == r->cell_room) {
        const size_t room = r->cell_room ? 2 * r->cell_room : 64;
        struct task_cell *grown = mem_realloc(r->cell, room * sizeof *grown);
        if (!grown) return setup_failed(r->command, SAC_ERR_MEMORY, "out of memory");
        r->cell = grown;
        r->cell_room = room;
    }
    r->cell[r->n_cell++] = *cell;
    return OPTIONS_GO_ON;
}

int eval_run_plan(struct eval_run *r, const struct task_cell *cell)
{
    struct task_cell one = *cell;
    int code = OPTIONS_GO_ON;
    for (one.index = 0; code == OPTIONS_GO_ON && one.index < r->n_sample; one.index++)
        code = eval_run_plan_one(r, &one);
    return code;
}

/* ---- The run ---- */

struct session {
    struct eval_run *r;
    struct question_rows rows; /* for --decode-rows */
    struct matrix matrix;      /* for --matrix */
    struct subjects subjects;
    sac_model *model;
    sac_engine *engine;
    struct samples *samples;
    struct task_text text;
    struct summary summary;
    struct progress bar;
    char label[96];
};

static bool on_progress(void *user, const struct runner_progress *p)
{
    struct session *s = user;
    snprintf(s->label, sizeof s->label, "%zu/%zu %.40s %u", p->n_done + 1, p->n_cell, p->cell->task,
             p->cell->ctx);
    progress_update(&s->bar, p->share);
    return interrupt_pending();
}

static uint64_t run_hash(const struct session *s)
{
    const sac_model_info info = sac_model_get_info(s->model);
    const sac_engine_params e = sac_engine_get_params(s->engine);
    struct strbuf text = {0};
    strbuf_addf(&text, "%s\n%s %s %llu %llu\n%d %d %d %g %g %u\n%d %s %d %lld %u\n%s\n",
                s->r->command, info.name, info.file_type, (unsigned long long)info.file_bytes,
                (unsigned long long)info.n_params, (int)e.type_k, (int)e.type_v, s->r->setup.rope,
                (double)s->r->setup.rope_scale, (double)s->r->setup.rope_freq_base,
                s->r->setup.yarn_orig_ctx, s->text.raw,
                s->text.chat_template ? s->text.chat_template : "", s->r->gold_history,
                (long long)s->r->seed, s->r->setup.sparse_min_ctx, s->r->rows);
    /* Recording affects times, so samples with and without it must not mix. --parallel is left out:
     * such samples have no times, and nothing else differs. */
    if (s->r->record) strbuf_adds(&text, "record\n");
    strbuf_add(&text, s->r->identity.data ? s->r->identity.data : "", s->r->identity.n);
    const uint64_t hash = rng_hash(text.data ? text.data : "", text.n);
    strbuf_deinit(&text);
    return hash;
}

static sac_status open_samples(struct session *s, sac_error *err)
{
    struct strbuf path = {0};
    if (!s->r->out) return samples_open(&s->samples, NULL, run_hash(s), err);
    TRY(folder_make(s->r->out, 0777, err));
    strbuf_addf(&path, "%s/samples.jsonl", s->r->out);
    const sac_status status = path.failed
                                  ? error_set(err, SAC_ERR_MEMORY, "out of memory for a path")
                                  : samples_open(&s->samples, path.data, run_hash(s), err);
    strbuf_deinit(&path);
    return status;
}

static cJSON *rows_json(const struct session *s)
{
    cJSON *list = summary_json(&s->summary);
    if (s->r->matrix) matrix_add_refusals(&s->matrix, list);
    return list;
}

static sac_status write_summary(const struct session *s, sac_error *err)
{
    const sac_model_info info = sac_model_get_info(s->model);
    struct strbuf page = {0};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "command", s->r->command);
    cJSON_AddStringToObject(o, "model", info.name);
    cJSON_AddStringToObject(o, "file_type", info.file_type);
    cJSON_AddNumberToObject(o, "seed", (double)s->r->seed);
    cJSON_AddNumberToObject(o, "parallel", s->r->n_parallel);
    cJSON_AddItemToObject(o, "rows", rows_json(s));
    char *json = cJSON_Print(o);
    cJSON_Delete(o);
    strbuf_addf(&page,
                "# saccade %s: %s\n\nSeed %lld; scores in percent, intervals by bootstrap.\n\n",
                s->r->command, info.name, (long long)s->r->seed);
    if (s->r->n_parallel > 1)
        strbuf_addf(&page,
                    "Asked %u samples at a time: their answers have no times. Where there are "
                    "some, they are of samples that were asked one after the other.\n\n",
                    s->r->n_parallel);
    if (s->r->matrix) matrix_markdown(&s->matrix, &s->summary, &page);
    summary_markdown(&s->summary, &page);
    sac_status status = json && !page.failed
                            ? SAC_OK
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for a summary");
    if (status == SAC_OK)
        status = textfile_write_in(s->r->out, "summary.json", json, strlen(json), err);
    if (status == SAC_OK)
        status = textfile_write_in(s->r->out, "summary.md", page.data, page.n, err);
    const sac_engine_params engine = sac_engine_get_params(s->engine);
    if (status == SAC_OK)
        status = provenance_write(s->r->out, &s->r->setup, s->model, &engine, err);
    cJSON_free(json);
    strbuf_deinit(&page);
    return status;
}

static int print_summary(const struct session *s)
{
    struct strbuf page = {0};
    if (s->r->format == FORMAT_JSON) return output_json(rows_json(s));
    if (s->r->matrix)
        matrix_markdown(&s->matrix, &s->summary, &page);
    else
        summary_markdown(&s->summary, &page);
    if (!page.failed) output_write(page.data, page.n);
    strbuf_deinit(&page);
    return EXIT_OK;
}

/* After the table: fails if a method never selected, because its rows say nothing about it. */
static sac_status refuse_idle(const struct session *s, sac_error *err)
{
    struct strbuf idle = {0};
    for (size_t i = 0; i < s->summary.n && !s->r->allow_idle; i++)
        choices_add_idle(&idle, s->summary.row[i].chosen, s->summary.row[i].method,
                         s->summary.row[i].ctx);
    const sac_status status = choices_refuse_idle(&idle, err);
    strbuf_deinit(&idle);
    return status;
}

void eval_run_note_whole(const struct strbuf *list, const char *command, const struct setup *setup)
{
    if (list->n > 0 && !list->failed)
        fprintf(stderr,
                "saccade %s: contexts below --sparse-min-ctx (%u) are read whole, so these rows "
                "are of dense attention: %s\n",
                command, setup->sparse_min_ctx, list->data);
}

static void note_whole(const struct session *s)
{
    struct strbuf whole = {0};
    for (size_t i = 0; i < s->summary.n; i++) {
        const struct summary_row *row = &s->summary.row[i];
        if (row->ctx <= s->r->setup.sparse_min_ctx && !(row->planned_share < 1))
            choices_add_whole(&whole, row->share_read, row->method, row->ctx);
    }
    eval_run_note_whole(&whole, s->r->command, &s->r->setup);
    strbuf_deinit(&whole);
}

/* Sized for --parallel samples at once, each as long as the longest. */
static sac_status create_engine(struct session *s, uint32_t n_ctx, bool single_turn, sac_error *err)
{
    const uint32_t n = s->r->n_parallel;
    sac_engine_params p = setup_engine_params(&s->r->setup, n_ctx, 2 * n);
    /* A fork shares the pages of the prompt. In a conversation, a template may render earlier turns
     * differently, and then nothing is shared. */
    p.n_kv_tok = n * (single_turn ? (uint64_t)n_ctx + SLACK_TOK : 2 * (uint64_t)n_ctx);
    p.record = s->r->record;
    if (s->r->matrix) TRY(matrix_probe(&s->matrix, &s->subjects, s->model, &p, err));
    p.decode = s->subjects.decode;
    p.n_decode = s->subjects.n_decode;
    p.prefill = s->subjects.prefill;
    p.n_prefill = s->subjects.n_prefill;
    TRY(sac_engine_create(&s->engine, s->model, &p, err));
    /* A GPU's memory was checked when it was allocated. */
    if (p.device && strcmp(p.device, "cpu") != 0) return SAC_OK;
    return setup_check_memory(s->r->command, s->engine, err);
}

/* Sized for the longest cell. */
static sac_status make_engine(struct session *s, bool single_turn, sac_error *err)
{
    const uint32_t n = s->r->n_parallel;
    uint32_t n_ctx = 0;
    for (size_t i = 0; i < s->r->n_cell; i++)
        if (s->r->cell[i].ctx > n_ctx) n_ctx = s->r->cell[i].ctx;
    if (s->r->setup.n_ctx && s->r->setup.n_ctx < n_ctx)
        return error_set(err, SAC_ERR_ARG, "a sample of %u tokens in a context of %u (-c)", n_ctx,
                         s->r->setup.n_ctx);
    const sac_status status = create_engine(s, n_ctx, single_turn, err);
    if (status == SAC_ERR_MEMORY && n > 1)
        return error_prefix(err, status, "%u samples of %u tokens at once (--parallel)", n, n_ctx);
    if (status == SAC_OK) setup_warn_of_context(s->r->command, s->model, n_ctx);
    return status;
}

static sac_status ask_all(struct session *s, const struct eval_maker *maker, sac_error *err)
{
    struct runner_times times = {0};
    const struct task_source source = {
        .make = maker->make,
        .arg = maker->arg,
        .cell = s->r->cell,
        .n_cell = s->r->n_cell,
        .single_turn = maker->single_turn,
    };
    const struct runner_params params = {
        .engine = s->engine,
        .n_parallel = s->r->n_parallel,
        .text = &s->text,
        .source = &source,
        .subjects = &s->subjects,
        .samples = s->samples,
        .seed = (uint64_t)s->r->seed,
        .rows = s->rows,
        .gold_history = s->r->gold_history,
        .record = s->r->record,
        .on_progress = on_progress,
        .user = s,
    };
    progress_begin(&s->bar, s->label);
    if (s->r->quiet) s->bar.on = false;
    const sac_status status = runner_run(&params, &times, err);
    progress_end(&s->bar);
    if (!s->r->quiet && times.model_s > 0)
        fprintf(stderr, "model %.1f s, everything else %.2f s (%.1f %%)\n", times.model_s,
                times.own_s, 100 * times.own_s / (times.model_s + times.own_s));
    return status;
}

static int run_session(struct session *s, const struct eval_maker *maker)
{
    struct eval_run *r = s->r;
    sac_error err = {0};
    const int code = setup_load(&r->setup, &s->model);
    if (code != OPTIONS_GO_ON) return code;
    s->text = task_text_of(s->model);
    if (r->chat_template) s->text = (struct task_text){s->model, r->chat_template, false};
    if (r->raw) s->text.raw = true;
    sac_status status = make_engine(s, maker->single_turn, &err);
    if (status == SAC_OK) status = open_samples(s, &err);
    if (status == SAC_OK) status = ask_all(s, maker, &err);
    const bool stopped = status == SAC_ERR_CANCELLED;
    if (stopped && !r->quiet && r->out)
        fprintf(stderr, "stopped; the same command goes on with what is in %s\n", r->out);
    if (status == SAC_OK || stopped)
        status = summary_make(&s->summary, s->samples, s->subjects.item[0].name, (uint64_t)r->seed,
                              &err);
    if (status == SAC_OK && r->out) status = write_summary(s, &err);
    if (status != SAC_OK) return setup_failed(r->command, status, err.msg);
    const int printed = print_summary(s);
    note_whole(s);
    if (!stopped) status = refuse_idle(s, &err);
    if (status != SAC_OK) return setup_failed(r->command, status, err.msg);
    return stopped ? EXIT_INTERRUPTED : printed;
}

int eval_run_list_only(const char *command, const struct setup *setup)
{
    const char *option = setup->budget ? "budget" : setup->mass > 0 ? "mass" : NULL;
    if (option)
        return options_usage_error(command, "--%s goes into --methods: NAME:%s=...", option,
                                   option);
    if (setup->decode || setup->prefill)
        return options_usage_error(command, "--methods names the methods here, not --%s",
                                   setup->decode ? "decode" : "prefill");
    return OPTIONS_GO_ON;
}

/* Determines the methods, as far as possible without a model. */
static int name_methods(struct session *s)
{
    struct eval_run *r = s->r;
    struct setup *setup = &r->setup;
    sac_error err = {0};
    if (!r->matrix) {
        const int code = eval_run_list_only(r->command, setup);
        if (code != OPTIONS_GO_ON) return code;
        return subjects_parse(&s->subjects, r->methods, &err) == SAC_OK
                   ? OPTIONS_GO_ON
                   : options_usage_error(r->command, "option '--methods': %s", err.msg);
    }
    if (r->methods != default_methods)
        return options_usage_error(r->command, "--matrix cannot be combined with --methods");
    if (setup->budget || setup->mass > 0)
        return options_usage_error(
            r->command, "--matrix does not take --%s: use NAME:%s=... in a list",
            setup->budget ? "budget" : "mass", setup->budget ? "budget" : "mass");
    if (matrix_make(&s->matrix, setup->prefill, setup->decode, &err) != SAC_OK)
        return options_usage_error(r->command, "option '--matrix': %s", err.msg);
    setup->prefill = setup->decode = NULL; /* the lists would each be taken for one method */
    return OPTIONS_GO_ON;
}

int eval_run_all(struct eval_run *r, const struct eval_maker *maker)
{
    struct session *s = mem_calloc(1, sizeof *s);
    if (!s) return setup_failed(r->command, SAC_ERR_MEMORY, "out of memory");
    s->r = r;
    int code = name_methods(s);
    sac_error err = {0};
    if (code == OPTIONS_GO_ON && question_parse(&s->rows, r->rows, &err) != SAC_OK)
        code = options_usage_error(r->command, "option '--decode-rows': %s", err.msg);
    if (code == OPTIONS_GO_ON && r->raw && r->chat_template)
        code = options_usage_error(r->command, "--raw cannot be combined with --chat-template");
    if (code == OPTIONS_GO_ON && r->gold_history && maker->single_turn)
        code = options_usage_error(
            r->command, "--gold-history is for conversations: these samples have one question");
    if (code == OPTIONS_GO_ON) {
        interrupt_install();
        code = run_session(s, maker);
    }
    summary_deinit(&s->summary);
    subjects_deinit(&s->subjects);
    matrix_deinit(&s->matrix);
    samples_close(s->samples);
    sac_engine_free(s->engine);
    sac_model_free(s->model);
    mem_free(s);
    return code;
}
