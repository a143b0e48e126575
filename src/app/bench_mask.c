/* bench_mask.c: `saccade bench mask`: the cost of a grammar beside that of the step that it
 * constrains.
 *
 * Answers are generated that follow a schema. The engine requests a mask from the grammar before
 * each token and passes the token to it afterwards. Both are timed where they happen; the rest of
 * the time from token to token is the step. The first answer meets each state of the grammar for
 * the first time, later ones find most of their masks in the cache: the two are reported
 * separately. */
#include "app/bench.h"

#include "app/app.h"
#include "app/bench_setup.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/output.h"
#include "app/structure.h"

#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COMMAND "bench mask"

/* A typical object of applications: strings, a bounded number, a list, a nested object. */
static const char typical[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":60},\"age\":{"
    "\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"email\":{\"type\":\"string\"},\"tags\":{"
    "\"type\":\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5},\"address\":{\"type\":"
    "\"object\",\"properties\":{\"street\":{\"type\":\"string\"},\"city\":{\"type\":\"string\"},"
    "\"kind\":{\"enum\":[\"home\",\"work\",\"other\"]}},\"required\":[\"street\",\"city\"]},"
    "\"notes\":{\"type\":\"string\"}},\"required\":[\"name\",\"age\",\"tags\",\"address\"]}";

struct mask_options {
    uint32_t n_gen, n_answer;
    int format;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct mask_options, field), arg, help, __VA_ARGS__                  \
    }

static const struct option_spec setup_part[] = {
    BENCH_MODEL,
    BENCH_THREADS,
    BENCH_DEVICE,
    {0},
};

static const struct option_spec answers_part[] = {
    OPT("-n --n-gen", OPTION_U32, n_gen, "N", "maximum tokens of an answer", .env = NULL, .min = 2,
        .max = 65536),
    OPT("--answers", OPTION_U32, n_answer, "N", "answers, each with its own seed", .env = NULL,
        .min = 2, .max = 1000),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "format of the table", .env = NULL,
        .choices = TABLE_PRINTER_FORMATS),
    {0},
};

/* Microseconds per token, [n] of [n_gen * n_answer]. */
struct mask_times {
    double *mask, *step; /* owned */
    size_t n;
};

struct mask_bench {
    struct mask_options opt;
    struct setup setup;
    struct structure structure;
    sac_model *model;   /* owned */
    sac_engine *engine; /* owned */
    struct mask_times times;
    size_t n_first;          /* of these, tokens of the first answer */
    sac_guide inner;         /* guide of the current answer's grammar */
    double guide_us, end_us; /* of the current token; the end of the previous one, 0: none */
    bool done;
    char failure[512];
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- One answer ---- */

static const uint64_t *timed_mask(void *user)
{
    struct mask_bench *b = user;
    const double begin = now_us();
    const uint64_t *mask = b->inner.mask(b->inner.user);
    b->guide_us += now_us() - begin;
    return mask;
}

/* An answer's first token ends the step that computes the prompt, so its time is left out. */
static void timed_chosen(void *user, int32_t tok)
{
    struct mask_bench *b = user;
    struct mask_times *t = &b->times;
    const double begin = now_us();
    b->inner.chosen(b->inner.user, tok);
    const double end = now_us();
    b->guide_us += end - begin;
    if (b->end_us > 0) {
        t->mask[t->n] = b->guide_us;
        t->step[t->n++] = end - b->end_us - b->guide_us;
    }
    b->end_us = end;
    b->guide_us = 0;
}

static bool on_event(void *user, const sac_event *e)
{
    struct mask_bench *b = user;
    if (e->kind == SAC_EVENT_DONE) {
        b->done = true;
        if (e->finish == SAC_FINISH_ERROR)
            snprintf(b->failure, sizeof b->failure, "%s", e->error ? e->error : "no token is left");
    }
    return interrupt_pending();
}

static sac_status run_answer(struct mask_bench *b, const int32_t *prompt, size_t n_prompt,
                             uint32_t seed, sac_error *err)
{
    sac_request r = sac_request_default();
    uint64_t id;
    uint32_t n_active;
    r.prompt = prompt;
    r.n_prompt = n_prompt;
    r.sampling.seed = seed;
    r.max_tokens = b->opt.n_gen;
    r.on_event = on_event;
    r.user = b;
    TRY(structure_begin(&b->structure, &r, err));
    b->inner = r.guide;
    b->guide_us = b->end_us = 0;
    b->done = false;
    r.guide.mask = timed_mask;
    r.guide.chosen = timed_chosen;
    r.guide.user = b;
    TRY(sac_submit(b->engine, &r, &id, err));
    while (!b->done) TRY(sac_run(b->engine, &n_active, err));
    if (interrupt_pending()) return SAC_ERR_CANCELLED;
    return b->failure[0] ? error_set(err, SAC_ERR_CONTEXT, "%s", b->failure) : SAC_OK;
}

static sac_status run_answers(struct mask_bench *b, sac_error *err)
{
    static const char text[] = "Here is the person as JSON:\n";
    int32_t *tok;
    size_t n;
    TRY(sac_tokenize(b->model, text, sizeof text - 1, SAC_TOK_ADD_SPECIAL, &tok, &n, err));
    sac_status status = SAC_OK;
    for (uint32_t i = 0; i < b->opt.n_answer && status == SAC_OK; i++) {
        status = run_answer(b, tok, n, i + 1, err);
        if (i == 0) b->n_first = b->times.n;
    }
    sac_free(tok);
    return status;
}

/* ---- The table ---- */

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts `us`. */
static double quantile(double *us, size_t n, double q)
{
    qsort(us, n, sizeof *us, compare);
    return us[(size_t)(q * (double)(n - 1))];
}

static double sum_of(const double *us, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += us[i];
    return sum;
}

static void print_row(struct mask_bench *b, struct table_printer *printer, const char *name,
                      size_t from, size_t to)
{
    double *mask = b->times.mask + from, *step = b->times.step + from;
    const size_t n = to - from;
    if (n == 0) return; /* the answer has only one token */
    const double share = sum_of(mask, n) / sum_of(step, n);
    const double mask_us = quantile(mask, n, 0.5), step_us = quantile(step, n, 0.5);
    const struct table_printer_cell cells[] = {
        {"answers", "answers", .text = name},
        {"n_token", "tokens", .number = (double)n},
        {"mask_us", "mask us", 1, .number = mask_us},
        {"mask_us_p99", "p99", 1, .number = quantile(mask, n, 0.99)},
        {"mask_us_max", "worst", 1, .number = quantile(mask, n, 1)},
        {"step_us", "step us", 1, .number = step_us},
        {"share_median", "mask of a step %", 2, .number = 100 * mask_us / step_us},
        {"share_sum", "of all steps %", 2, .number = 100 * share},
        {"n_threads", .number = sac_engine_get_params(b->engine).n_threads},
        {"isa", .text = sac_engine_get_stats(b->engine).isa},
    };
    table_printer_row(printer, cells, sizeof cells / sizeof cells[0]);
}

static sac_status run_all(struct mask_bench *b, sac_error *err)
{
    const size_t n = (size_t)b->opt.n_gen * b->opt.n_answer;
    const sac_engine_params params = setup_engine_params(&b->setup, b->opt.n_gen + 64, 1);
    TRY(sac_engine_create(&b->engine, b->model, &params, err));
    TRY(structure_open(&b->structure, b->model, err));
    b->times.mask = mem_calloc(n, sizeof(double));
    b->times.step = mem_calloc(n, sizeof(double));
    if (!b->times.mask || !b->times.step)
        return error_set(err, SAC_ERR_MEMORY, "no memory for the times of %zu tokens", n);
    TRY(run_answers(b, err));
    struct table_printer printer =
        table_printer_begin((enum table_printer_format)b->opt.format, "bench_mask");
    print_row(b, &printer, "the first", 0, b->n_first);
    print_row(b, &printer, "those behind it", b->n_first, b->times.n);
    table_printer_end(&printer);
    return SAC_OK;
}

static int run(struct mask_bench *b)
{
    sac_error err = {0};
    int code = structure_check(&b->structure, COMMAND, false);
    if (code == OPTIONS_GO_ON) code = setup_load(&b->setup, &b->model);
    sac_status status = SAC_OK;
    if (code == OPTIONS_GO_ON) status = run_all(b, &err);
    structure_close(&b->structure);
    sac_engine_free(b->engine);
    mem_free(b->times.mask);
    mem_free(b->times.step);
    sac_model_free(b->model);
    if (code != OPTIONS_GO_ON) return code;
    return status == SAC_OK ? output_finish(EXIT_OK) : setup_failed(COMMAND, status, err.msg);
}

int bench_mask(int argc, char **argv)
{
    struct mask_bench b = {.opt = {.n_gen = 128, .n_answer = 8}, .setup = setup_default(COMMAND)};
    const struct option_group groups[] = {
        {"Model", setup_part, &b.setup},
        {"What the answers follow (default: an object of nine fields)", structure_specs,
         &b.structure},
        {"Answers", answers_part, &b.opt},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Measures what a grammar or schema costs: the time of a mask over the model's "
                   "vocabulary, the time of a step, and the share of the mask.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    const int code = options_parse(&o, argc, argv);
    if (code != OPTIONS_GO_ON) return code;
    const struct structure *s = &b.structure;
    if (!s->grammar && !s->grammar_file && !s->schema && !s->schema_file)
        b.structure.schema = typical;
    interrupt_install();
    return run(&b);
}
