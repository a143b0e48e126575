/* eval_docs.c: `saccade eval docs`: questions over documents that were computed separately, asked
 * with each context method, by the place of the evidence.
 *
 * A question depends only on seed, index and place, so several processes may run parts of an
 * evaluation, into one file or several, which are then read together. */
#include "app/app.h"
#include "app/docs.h"
#include "app/eval.h"
#include "app/eval_docs_ask.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/provenance.h"
#include "app/source.h"
#include "base/folder.h"
#include "base/mem.h"
#include "eval/docsum.h"
#include "eval/task.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define COMMAND   "eval docs"
#define LINES     "docs.jsonl"
#define PATH_SIZE 4096u

enum format { FORMAT_TEXT, FORMAT_JSON, FORMAT_JSONL };

struct docs_eval_options {
    const char *methods, *tasks, *store, *out;
    struct option_list filler, read;
    uint32_t n_document, n_tok, n_sample, first, n_duplicate, n_distractor;
    int64_t seed;
    bool keep, quiet, raw, cold;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct docs_eval_options, field), arg, help, __VA_ARGS__             \
    }

static const struct option_spec specs[] = {
    OPT("--methods", OPTION_TEXT, methods, "LIST",
        "context methods, NAME:key=value,..., or CONTEXT+DECODE, comma-separated; the others are "
        "compared with the first",
        .env = NULL),
    OPT("--tasks", OPTION_TEXT, tasks, "LIST",
        "docs_facts (one document answers), docs_hop (two are needed)", .env = NULL),
    OPT("--docs", OPTION_U32, n_document, "N", "documents per question", .min = 1,
        .max = MULTIDOC_MAX),
    OPT("--doc-tokens", OPTION_U32, n_tok, "N",
        "mean tokens per document; each has up to 30 % more or fewer", .min = 128, .max = 1048576),
    OPT("--duplicates", OPTION_U32, n_duplicate, "N",
        "documents without evidence that occur twice, if there are that many", .max = MULTIDOC_MAX),
    OPT("--distractors", OPTION_U32, n_distractor, "N",
        "documents without evidence that almost answer the question", .max = MULTIDOC_MAX),
    OPT("--filler", OPTION_LIST, filler, "FILE",
        "text whose passages fill every second document; repeatable", .env = NULL),
    OPT("-n --samples", OPTION_U32, n_sample, "N", "questions per task and place", .min = 1,
        .max = 100000),
    OPT("--first", OPTION_U32, first, "N",
        "index of the first question, so that several processes can share the work",
        .max = 1000000),
    OPT("-s --seed", OPTION_I64, seed, "N", "seed for the documents", .min = 0, .max = 0x1p53),
    OPT("--store", OPTION_TEXT, store, "DIR", DOCS_STORE_HELP, .env = NULL),
    OPT("--keep", OPTION_FLAG, keep, NULL,
        "leave the documents in the store; by default each is removed once its question is "
        "answered",
        .env = NULL),
    OPT("--cold", OPTION_FLAG, cold, NULL,
        "also measure reading the documents with nothing of their files in memory", .env = NULL),
    OPT("--raw", OPTION_FLAG, raw, NULL, "no chat template", .env = NULL),
    OPT("--out", OPTION_TEXT, out, "DIR",
        "folder whose docs.jsonl gets a line for each answer; questions answered there are not "
        "asked again",
        .env = NULL),
    OPT("--read", OPTION_LIST, read, "FILE",
        "ask nothing and report the results of this docs.jsonl; repeatable", .env = NULL),
    OPT("-q --quiet", OPTION_FLAG, quiet, NULL, "no progress on stderr", .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL,
        "json: a list with one object per task, method and place; jsonl: one per answer",
        .choices = "text|json|jsonl"),
    {0},
};

struct docs_eval {
    struct docs_eval_options opt;
    struct setup setup;
    struct eval_docs_methods methods;
    struct multidoc_args args;
    struct multidoc_filler filler;
    struct eval_docs_asking asking;
    struct docrows rows; /* from the file, and new ones */
    struct docrow question;
    int fd; /* docs.jsonl; -1: none */
    struct progress bar;
    uint32_t n_asked, n_all;
};

/* ---- Rows ---- */

/* Appends with a single write, so that lines of several processes do not mix. */
static sac_status write_line(const struct docs_eval *e, const char *line, size_t n, sac_error *err)
{
    if (e->fd < 0) return SAC_OK;
    const ssize_t done = write(e->fd, line, n);
    if (done == (ssize_t)n) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot write %s/" LINES ": %s", e->opt.out,
                     done < 0 ? strerror(errno) : "the disk is full");
}

static sac_status on_row(void *user, const struct docrow *row, const char *answer, sac_error *err)
{
    struct docs_eval *e = user;
    if (docrows_has(&e->rows, row)) return SAC_OK; /* of the first method, which is the reference */
    cJSON *o = docrow_json(row);
    cJSON_AddStringToObject(o, "answer", answer);
    char *text = cJSON_PrintUnformatted(o);
    cJSON_Delete(o);
    struct strbuf line = {0};
    if (text) strbuf_addf(&line, "%s\n", text);
    cJSON_free(text);
    sac_status status = line.n && !line.failed
                            ? write_line(e, line.data, line.n, err)
                            : error_set(err, SAC_ERR_MEMORY, "out of memory for an answer");
    if (status == SAC_OK && e->opt.format == FORMAT_JSONL && !output_write(line.data, line.n))
        status = error_set(err, SAC_ERR_CANCELLED, "the output is gone");
    strbuf_deinit(&line);
    return status == SAC_OK ? docrows_add(&e->rows, row, err) : status;
}

/* Removes an incomplete last line of an interrupted process, unless another process writes: writers
 * hold a shared lock. */
static sac_status mend_lines(struct docs_eval *e, const char *path, sac_error *err)
{
    const bool alone = flock(e->fd, LOCK_EX | LOCK_NB) == 0;
    TRY(docrows_read(&e->rows, path, err));
    if (e->rows.was_cut && (!alone || ftruncate(e->fd, (off_t)e->rows.whole_bytes) != 0))
        return error_set(err, SAC_ERR_IO, "%s ends inside a line, and another process writes it",
                         path);
    return flock(e->fd, LOCK_SH) == 0
               ? SAC_OK
               : error_set(err, SAC_ERR_IO, "cannot lock %s: %s", path, strerror(errno));
}

static sac_status open_lines(struct docs_eval *e, sac_error *err)
{
    char path[PATH_SIZE];
    if (!e->opt.out) return SAC_OK;
    TRY(folder_make(e->opt.out, 0777, err));
    if (snprintf(path, sizeof path, "%s/" LINES, e->opt.out) >= (int)sizeof path)
        return error_set(err, SAC_ERR_ARG, "the folder's path is too long");
    e->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (e->fd < 0) return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    return mend_lines(e, path, err);
}

/* ---- Questions ---- */

static sac_status ask_task(struct docs_eval *e, const char *task, sac_error *err)
{
    char label[64];
    snprintf(e->question.task, sizeof e->question.task, "%s", task);
    for (uint32_t i = 0; i < e->opt.n_sample; i++)
        for (uint32_t p = 0; multidoc_place(p); p++) {
            snprintf(e->question.place, sizeof e->question.place, "%s", multidoc_place(p));
            e->question.index = e->opt.first + i;
            snprintf(label, sizeof label, "%u/%u %s", e->n_asked + 1, e->n_all, task);
            progress_begin(&e->bar, label);
            progress_update(&e->bar, (double)e->n_asked++ / e->n_all);
            const sac_status status = eval_docs_ask(&e->asking, &e->question, err);
            progress_end(&e->bar);
            TRY(status);
            if (interrupt_pending()) return error_set(err, SAC_ERR_CANCELLED, "interrupted");
        }
    return SAC_OK;
}

/* Iterates over --tasks, which check_tasks has checked. */
static const char *next_task(const char **at, char out[32])
{
    const size_t n = strcspn(*at, ",");
    if (n == 0) return NULL;
    snprintf(out, 32, "%.*s", (int)n, *at);
    *at += n + ((*at)[n] == ',');
    return out;
}

static sac_status ask_all(struct docs_eval *e, sac_error *err)
{
    char task[32];
    TRY(docs_open(&e->asking.store, e->opt.store, "eval", DOCS_ADD, err));
    TRY(open_lines(e, err));
    const sac_engine_params params = setup_engine_params(&e->setup, 0, 1);
    if (e->opt.out) TRY(provenance_write(e->opt.out, &e->setup, e->asking.model, &params, err));
    for (const char *at = e->opt.tasks; next_task(&at, task);) e->n_all += 3 * e->opt.n_sample;
    for (const char *at = e->opt.tasks; next_task(&at, task);) TRY(ask_task(e, task, err));
    return SAC_OK;
}

static sac_status read_all(struct docs_eval *e, sac_error *err)
{
    for (size_t i = 0; i < e->opt.read.n; i++)
        TRY(docrows_read(&e->rows, e->opt.read.item[i], err));
    return SAC_OK;
}

/* ---- Preparation and clean-up ---- */

static int check_tasks(const char *tasks)
{
    char task[32];
    uint32_t n = 0;
    for (const char *at = tasks; *at;) {
        uint32_t i = 0;
        if (!next_task(&at, task)) break;
        while (multidoc_name(i) && strcmp(multidoc_name(i), task) != 0) i++;
        if (!multidoc_name(i))
            return options_usage_error(
                COMMAND, "option '--tasks': no task '%s': there are docs_facts and docs_hop", task);
        n++;
    }
    return n ? OPTIONS_GO_ON : options_usage_error(COMMAND, "option '--tasks': none is named");
}

static sac_status read_filler(struct docs_eval *e, sac_error *err)
{
    struct strbuf text = {0};
    sac_status status = SAC_OK;
    if (e->opt.filler.n == 0) return SAC_OK;
    for (size_t i = 0; status == SAC_OK && i < e->opt.filler.n; i++) {
        if (i > 0) strbuf_adds(&text, "\n\n");
        status = source_read(&text, e->opt.filler.item[i], false, err);
    }
    if (status == SAC_OK) status = multidoc_filler_init(&e->filler, text.data, text.n, err);
    strbuf_deinit(&text);
    e->args.filler = &e->filler;
    return status == SAC_OK ? SAC_OK : error_prefix(err, status, "option '--filler'");
}

/* Prepares everything except the model. */
static int prepare(struct docs_eval *e)
{
    sac_error err = {0};
    int code = check_tasks(e->opt.tasks);
    if (code != OPTIONS_GO_ON) return code;
    if (eval_docs_parse(&e->methods, e->opt.methods, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--methods': %s", err.msg);
    const sac_status status = read_filler(e, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    if (e->setup.decode)
        return options_usage_error(COMMAND, "decode methods are named in --methods: "
                                            "CONTEXT+DECODE");
    e->args.seed = (uint64_t)e->opt.seed;
    e->args.n_document = e->opt.n_document;
    e->args.n_tok = e->opt.n_tok;
    e->args.n_duplicate = e->opt.n_duplicate;
    e->args.n_distractor = e->opt.n_distractor;
    return OPTIONS_GO_ON;
}

static void name_question(struct docs_eval *e)
{
    char kv[16];
    const sac_engine_params params = setup_engine_params(&e->setup, 0, 1);
    struct docrow *q = &e->question;
    snprintf(q->model, sizeof q->model, "%s", sac_model_get_info(e->asking.model).name);
    snprintf(q->kv, sizeof q->kv, "%s", provenance_kv(&params, kv));
    q->n_document = e->opt.n_document;
    q->n_tok = e->opt.n_tok;
    q->seed = e->opt.seed;
    q->has_filler = e->args.filler != NULL;
}

static int print_results(const struct docs_eval *e)
{
    struct docsum sum = {0};
    struct strbuf text = {0};
    sac_error err = {0};
    if (e->opt.format == FORMAT_JSONL) return EXIT_OK;
    const sac_status status = docsum_make(&sum, &e->rows, &err);
    if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
    int code = EXIT_OK;
    if (e->opt.format == FORMAT_JSON)
        code = output_json(docsum_json(&sum));
    else if (docsum_text(&sum, &text), text.n)
        output_write(text.data, text.n);
    strbuf_deinit(&text);
    docsum_deinit(&sum);
    return code;
}

static int run(struct docs_eval *e)
{
    sac_error err = {0};
    sac_status status = SAC_OK;
    int code = prepare(e);
    if (code != OPTIONS_GO_ON) return code;
    if (e->opt.read.n) {
        status = read_all(e, &err);
    } else {
        interrupt_install();
        code = setup_load(&e->setup, &e->asking.model);
        if (code != OPTIONS_GO_ON) return code;
        name_question(e);
        e->asking.raw = e->opt.raw || task_text_of(e->asking.model).raw;
        status = ask_all(e, &err);
    }
    code = print_results(e); /* results so far, even after an error */
    return status == SAC_OK ? code : setup_failed(COMMAND, status, err.msg);
}

int eval_cmd_docs(int argc, char **argv)
{
    struct docs_eval *e = mem_calloc(1, sizeof *e);
    if (!e) return setup_failed(COMMAND, SAC_ERR_MEMORY, "out of memory");
    e->opt = (struct docs_eval_options){.methods = "recompute,reuse,epic,cacheblend,samkv,auto",
                                        .tasks = "docs_facts,docs_hop",
                                        .n_document = 4,
                                        .n_tok = 1360,
                                        .n_duplicate = 1,
                                        .n_distractor = 1,
                                        .n_sample = 4,
                                        .seed = 42};
    e->setup = setup_default(COMMAND);
    e->fd = -1;
    e->asking = (struct eval_docs_asking){.methods = &e->methods,
                                          .args = &e->args,
                                          .setup = &e->setup,
                                          .known = &e->rows,
                                          .on_row = on_row,
                                          .user = e};
    const struct option_group groups[] = {{"Questions", specs, &e->opt},
                                          {"Model", setup_specs, &e->setup}};
    /* Decode methods come in --methods. */
    static const struct option_need needs[] = {{"--decode", ""}, {0}};
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary =
            "Asks about documents that were computed separately and joined by each context method. "
            "Reports scores by the place of the evidence, shares kept and recomputed, time to "
            "first token and its parts, and the distance to the first method.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
        .need = needs,
    };
    int code = options_parse(&o, argc, argv);
    e->asking.keep = e->opt.keep;
    e->asking.cold = e->opt.cold;
    e->asking.folder = e->opt.store;
    if (code == OPTIONS_GO_ON) code = run(e);
    if (e->fd >= 0) close(e->fd);
    sac_engine_free(e->asking.reader);
    sac_docs_close(e->asking.store);
    sac_model_free(e->asking.model);
    multidoc_filler_deinit(&e->filler);
    docrows_deinit(&e->rows);
    mem_free(e);
    return code;
}
