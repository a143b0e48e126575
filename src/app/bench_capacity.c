/* bench_capacity.c: `saccade bench capacity`: how many requests per second a method serves before
 * the time between tokens exceeds its limit. The parts are capacity_*.c.
 *
 * One engine holds all methods. Prompts are computed once, before the clock of any trial runs, and
 * then taken from the index of prefixes (unless --cold): the comparison is about decoding. The
 * limits are 5 and 25 idle iterations, as in the paper on Progressive Sparse Attention; an idle
 * iteration is a dense one, alone, with all pages in memory. */
#include "app/bench.h"

#include "app/app.h"
#include "app/bench_setup.h"
#include "app/capacity.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/output.h"
#include "app/progress.h"

#include "base/textfile.h"
#include "base/workers.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define COMMAND       "bench capacity"
#define N_REQUEST_MIN 8u /* of a trial: with fewer, a 99th percentile means little */
#define N_REQUEST_MAX 65536u

static const double limit_iterations[CAPACITY_LIMITS] = {5, 25};
static const char *const limit_name[CAPACITY_LIMITS] = {"strict", "relaxed"};

struct capacity_options {
    const char *methods, *lengths, *plot, *trials;
    uint32_t n_prompt, n_context, n_output, n_seq, n_trial, sparse_min_ctx;
    int64_t seed;
    float duration_s, burstiness, wait_ms, idle_ms, target_ms, factor, seconds;
    float read_gb_s, gflop_s, fetch_gb_s;
    int clock, format;
    bool cold;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct capacity_options, field), arg, help, __VA_ARGS__              \
    }

static const struct option_spec setup_part[] = {
    BENCH_MODEL,
    BENCH_THREADS,
    BENCH_BATCH,
    BENCH_DEVICE,
    BENCH_TYPE_K,
    BENCH_TYPE_V,
    BENCH_SETUP("--kv-fast", OPTION_TEXT, kv_fast, "SIZE",
                "memory for the KV cache (40M, 2G); pages that do not fit go to --kv-disk or, on a "
                "GPU, to host memory",
                .env = NULL),
    BENCH_SETUP("--kv-disk", OPTION_TEXT, kv_disk, "FILE:SIZE",
                "scratch file for pages, and its size", .env = NULL),
    BENCH_SETUP("--kv-policy", OPTION_CHOICE, kv_policy, NULL, "which pages leave memory first",
                .env = NULL, .choices = "stale|lru"),
    BENCH_SETUP("--kv-no-ahead", OPTION_FLAG, kv_no_ahead, NULL,
                "fetch pages only when they are needed, never ahead of time", .env = NULL),
    BENCH_SETUP("--kv-admit", OPTION_CHOICE, kv_admit, NULL,
                "which requests decode together: those whose recently used pages fit into "
                "--kv-fast, while others wait; or all",
                .env = NULL, .choices = "working-set|all"),
    {0},
};

static const struct option_spec load_part[] = {
    OPT("--methods", OPTION_TEXT, methods, "LIST",
        "methods of 'saccade methods', NAME:key=value,..., comma-separated; PREFILL+DECODE",
        .env = NULL),
    OPT("--lengths", OPTION_TEXT, lengths, "MIN:MAX",
        "prompt lengths in tokens: drawn between two, log-uniformly; or one of a list N,N,...",
        .env = NULL),
    OPT("--num-prompts", OPTION_U32, n_prompt, "N",
        "different prompts; each hides a number and asks for it", .env = NULL, .min = 1,
        .max = 4096),
    OPT("--num-contexts", OPTION_U32, n_context, "N",
        "contexts that requests use in turn, each with pages of its own: those beyond the number "
        "of prompts are copies, so that nothing more is computed; 0: as many as prompts",
        .env = NULL, .max = 1u << 20),
    OPT("--output-len", OPTION_U32, n_output, "N", "tokens of each answer", .env = NULL, .min = 2,
        .max = 1u << 20),
    OPT("-np --parallel", OPTION_U32, n_seq, "N", "maximum answers computed concurrently",
        .env = NULL, .min = 1, .max = 1024),
    OPT("--sparse-min-ctx", OPTION_U32, sparse_min_ctx, "N",
        "use dense attention for contexts shorter than N tokens", .env = NULL),
    OPT("--burstiness", OPTION_F32, burstiness, "F",
        "1: arrivals form a Poisson process; less: bursts; more: more regular", .env = NULL,
        .min = 0.001, .max = 1e6),
    OPT("--cold", OPTION_FLAG, cold, NULL,
        "compute prompts on arrival (default: once, in advance, so that their pages exist)",
        .env = NULL),
    OPT("--seed", OPTION_I64, seed, "N", "seed for lengths, texts and arrivals", .env = NULL,
        .min = 0, .max = 0x1p53),
    {0},
};

static const struct option_spec search_part[] = {
    OPT("--duration", OPTION_F32, duration_s, "S",
        "seconds during which the requests of a trial arrive; at least 8 arrive, and a trial that "
        "exceeds its limit ends early",
        .env = NULL, .min = 0.01, .max = 86400),
    OPT("--max-trials", OPTION_U32, n_trial, "N", "maximum trials per method and limit",
        .env = NULL, .min = 1, .max = 64),
    OPT("--seconds", OPTION_F32, seconds, "S",
        "maximum seconds of the machine's clock per method and limit; a trial that is undecided "
        "then does not count; 0: no limit",
        .env = NULL, .max = 1e6),
    OPT("--factor", OPTION_F32, factor, "F", "factor by which the result may be too low",
        .env = NULL, .min = 1.01, .max = 16),
    OPT("--idle-ms", OPTION_F32, idle_ms, "MS",
        "duration of an idle iteration; 0: measured: dense, alone, all pages in memory",
        .env = NULL, .max = 1e6),
    OPT("--wait-ms", OPTION_F32, wait_ms, "MS",
        "a load also counts as too large if half of the requests wait longer than this for their "
        "first rows and their turn to decode; 0: a tenth of the time in which the requests of a "
        "trial arrive",
        .env = NULL, .max = 1e9),
    OPT("--tbt-target-ms", OPTION_F32, target_ms, "MS",
        "the scheduler's target time between tokens; 0: each limit, while it is searched",
        .env = NULL, .max = 1e6),
    OPT("--clock", OPTION_CHOICE, clock, NULL,
        "wall: the machine's clock; model: each step is charged for what it reads, computes and "
        "fetches, one after the other, so that the result does not depend on the machine",
        .env = NULL, .choices = "wall|model"),
    OPT("--read-gb-s", OPTION_F32, read_gb_s, "F", "memory bandwidth of the modelled machine",
        .env = NULL, .min = 1e-3, .max = 1e6),
    OPT("--gflop-s", OPTION_F32, gflop_s, "F", "its arithmetic speed", .env = NULL, .min = 1e-3,
        .max = 1e9),
    OPT("--fetch-gb-s", OPTION_F32, fetch_gb_s, "F", "its disk bandwidth", .env = NULL, .min = 1e-3,
        .max = 1e6),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "format of the table", .env = NULL,
        .choices = TABLE_PRINTER_FORMATS),
    OPT("--plot", OPTION_TEXT, plot, "FILE.svg", "file for a drawing of all trials", .env = NULL),
    OPT("--trials", OPTION_TEXT, trials, "FILE.csv", "file for a table of all trials", .env = NULL),
    {0},
};

struct capacity {
    struct capacity_options opt;
    struct setup setup;
    struct capacity_lengths lengths;
    struct subjects subjects;
    sac_model *model;
    struct capacity_load load;
    struct capacity_clock clock;
    struct capacity_setting setting;
    struct table_printer printer;
    struct strbuf trials;
    struct capacity_marks marks;
    struct progress bar;
    size_t n_trial; /* completed trials */
    /* The search in progress. */
    struct capacity_site site;
    struct capacity_alone alone;
    struct capacity_result result;
    uint32_t limit_i;
    double start[CAPACITY_LIMITS]; /* the result of the previous methods, or 0 */
    bool has_copies;
    uint64_t until_us; /* 0: no time limit */
};

/* ---- Engines ---- */

static bool on_step(void *user)
{
    struct capacity *c = user;
    const double most = (double)c->subjects.n * CAPACITY_LIMITS * c->opt.n_trial;
    progress_update(&c->bar, (double)c->n_trial / most);
    return interrupt_pending();
}

static sac_engine_params engine_params(struct capacity *c, uint32_t n_seq)
{
    const struct capacity_load *load = &c->load;
    const uint64_t each = (uint64_t)load->n_most + load->n_output + 128; /* no page has more */
    sac_engine_params p = setup_engine_params(&c->setup, (uint32_t)each, n_seq);
    p.n_kv_tok = each * n_seq;
    p.sparse_min_ctx = c->opt.sparse_min_ctx;
    return p;
}

/* Measures one dense request alone on an idle engine, with a prompt of middle length and without a
 * tier. */
static sac_status measure_idle(struct capacity *c, sac_error *err)
{
    sac_engine_params p = engine_params(c, 1);
    sac_engine *engine = NULL;
    struct capacity_alone alone = {0};
    size_t middle = 0;
    const double mean = (double)c->load.n_tok / (double)c->load.n_prompt;
    for (size_t i = 0; i < c->load.n_prompt; i++)
        if (fabs((double)c->load.prompt[i].n_tok - mean) <
            fabs((double)c->load.prompt[middle].n_tok - mean))
            middle = i;
    p.tier = NULL;
    TRY(sac_engine_create(&engine, c->model, &p, err));
    capacity_clock_use(&c->clock, engine);
    const struct capacity_site site = {
        .engine = engine, .clock = &c->clock, .load = &c->load, .stop = on_step, .user = c};
    const sac_status status = capacity_alone_run(&alone, &site, middle, middle + 1, err);
    c->setting.idle_ms = alone.gap_ms;
    capacity_alone_deinit(&alone);
    capacity_clock_use(&c->clock, NULL);
    sac_engine_free(engine);
    return status;
}

static sac_status open_engine(struct capacity *c, sac_error *err)
{
    sac_engine_params p = engine_params(c, c->opt.n_seq);
    p.prefix_cache = !c->opt.cold;
    if (!c->opt.cold) p.n_kv_tok += c->load.n_all + 32 * c->load.n_context;
    p.decode = c->subjects.decode;
    p.n_decode = c->subjects.n_decode;
    p.prefill = c->subjects.prefill;
    p.n_prefill = c->subjects.n_prefill;
    TRY(sac_engine_create(&c->site.engine, c->model, &p, err));
    c->setting.params = sac_engine_get_params(c->site.engine);
    capacity_clock_use(&c->clock, c->site.engine);
    return setup_check_memory(COMMAND, c->site.engine, err);
}

/* ---- One method ---- */

/* Whether `a` says more about the result: the largest rate that kept the limit, else the smallest
 * that broke it, else an undecided one. */
static bool is_better(const struct capacity_trial *a, const struct capacity_trial *b)
{
    if (a->is_open) return b->want.rate <= 0;
    if (b->want.rate <= 0 || a->is_kept != b->is_kept) return b->want.rate <= 0 || a->is_kept;
    return a->is_kept ? a->want.rate > b->want.rate : a->want.rate < b->want.rate;
}

static sac_status judge(void *user, double rate, enum capacity_verdict *out, sac_error *err)
{
    struct capacity *c = user;
    struct capacity_result *r = &c->result;
    const double limit_ms = c->setting.limit_ms[c->limit_i];
    const double n_request =
        fmin(fmax(ceil(rate * (double)c->opt.duration_s), N_REQUEST_MIN), N_REQUEST_MAX);
    const struct capacity_want want = {
        .rate = rate,
        .n_request = (size_t)n_request,
        .limit_ms = limit_ms,
        .target_ms = c->opt.target_ms > 0 ? (double)c->opt.target_ms : limit_ms,
        .wait_ms = c->opt.wait_ms > 0 ? (double)c->opt.wait_ms : 100 * n_request / rate,
        .until_us = c->until_us,
    };
    struct capacity_trial trial;
    snprintf(c->bar.note, sizeof c->bar.note, "%.20s, %s, %.3g/s", r->method,
             limit_name[c->limit_i], rate);
    TRY(capacity_trial_run(&trial, &c->site, &want, &c->alone, err));
    if (trial.n_failed && !r->n_trial)
        fprintf(stderr, "saccade " COMMAND ": %s: %s\n", r->method, trial.error);
    c->n_trial += !trial.is_open;
    r->n_trial += !trial.is_open;
    if (is_better(&trial, &r->best[c->limit_i])) r->best[c->limit_i] = trial;
    *out = trial.is_open ? CAPACITY_OPEN : trial.is_kept ? CAPACITY_KEPT : CAPACITY_BROKEN;
    if (!trial.is_open)
        capacity_trials_add(&c->trials, r->method, c->limit_i == CAPACITY_STRICT, &c->setting,
                            &trial);
    return SAC_OK;
}

static sac_status search(struct capacity *c, sac_error *err)
{
    struct capacity_result *r = &c->result;
    /* The search starts at one answer after the other, or at what the stricter limit or previous
     * methods allow. */
    double start = 1e3 / (c->setting.idle_ms * c->load.n_output);
    for (c->limit_i = 0; c->limit_i < CAPACITY_LIMITS; c->limit_i++) {
        struct capacity_found *found = &r->found[c->limit_i];
        const double before = c->start[c->limit_i];
        const struct capacity_search s = {.start = before > 0 ? before : start,
                                          .factor = (double)c->opt.factor,
                                          .n_most = c->opt.n_trial,
                                          .judge = judge,
                                          .user = c};
        c->until_us =
            c->opt.seconds > 0 ? clock_us() + (uint64_t)((double)c->opt.seconds * 1e6) : 0;
        TRY(capacity_search_run(found, &s, err));
        if (found->keeps > 0) c->start[c->limit_i] = start = found->keeps;
    }
    return SAC_OK;
}

static sac_status run_method(struct capacity *c, const struct subject *subject, sac_error *err)
{
    c->site.prefill_i = subject->prefill_i;
    c->site.decode_i = subject->decode_i;
    c->result = (struct capacity_result){.method = subject->name, .alone = &c->alone};
    snprintf(c->bar.note, sizeof c->bar.note, "%.20s, alone", subject->name);
    sac_status status = capacity_alone_run(&c->alone, &c->site, 0, c->load.n_prompt, err);
    if (status == SAC_OK && !c->has_copies)
        status = capacity_load_copy(&c->load, c->site.engine, err);
    c->has_copies = c->has_copies || status == SAC_OK;
    if (status == SAC_OK) status = search(c, err);
    if (status == SAC_OK) {
        progress_end(&c->bar);
        capacity_row_print(&c->printer, &c->setting, &c->result, &c->marks);
        progress_begin(&c->bar, "capacity");
    }
    capacity_alone_deinit(&c->alone);
    return status;
}

/* A method that cannot answer even alone is reported and skipped. */
static sac_status run_methods(struct capacity *c, sac_error *err)
{
    c->site.clock = &c->clock;
    c->site.load = &c->load;
    c->site.stop = on_step;
    c->site.user = c;
    sac_status status = open_engine(c, err);
    for (uint32_t i = 0; status == SAC_OK && i < c->subjects.n; i++) {
        status = run_method(c, &c->subjects.item[i], err);
        if (status != SAC_ERR_CONTEXT) continue;
        fprintf(stderr, "saccade " COMMAND ": %s: %s\n", c->subjects.item[i].name, err->msg);
        status = SAC_OK;
    }
    capacity_clock_use(&c->clock, NULL);
    sac_engine_free(c->site.engine);
    return status;
}

/* ---- Entry point ---- */

static void print_head(const struct capacity *c)
{
    const struct capacity_setting *s = &c->setting;
    const double mean = (double)c->load.n_tok / (double)c->load.n_prompt;
    printf("%zu prompts in %zu contexts with pages of their own, mean %.0f tokens (%.1f MiB of "
           "keys and values), %u at once at most; seed %llu; clock: %s\n",
           c->load.n_prompt, c->load.n_context, mean, mean * s->kv_bytes / 0x1p20, c->opt.n_seq,
           (unsigned long long)c->load.seed, c->clock.is_model ? "model" : "wall");
    printf("one idle iteration: %.2f ms; p99 of the time between tokens: strict %.1f ms, relaxed "
           "%.1f ms\n\n",
           s->idle_ms, s->limit_ms[CAPACITY_STRICT], s->limit_ms[CAPACITY_RELAXED]);
}

/* Results are written however the run ended. */
static sac_status write_files(const struct capacity *c, sac_error *err)
{
    struct strbuf svg = {0};
    if (c->trials.failed)
        return error_set(err, SAC_ERR_MEMORY, "no memory for the table of trials");
    if (!c->n_trial) return SAC_OK;
    if (c->opt.trials) TRY(textfile_write(c->opt.trials, c->trials.data, c->trials.n, err));
    if (!c->opt.plot) return SAC_OK;
    sac_status status = capacity_plot(&svg, &c->trials, err);
    if (status == SAC_OK) status = textfile_write(c->opt.plot, svg.data, svg.n, err);
    strbuf_deinit(&svg);
    return status;
}

/* Bytes per token. */
static double kv_bytes(const struct capacity *c, const sac_model_info *m)
{
    const double q8 = 35.0 / 32, f16 = 2; /* q8 includes the steps and minima of a page */
    return (double)m->n_layer * m->n_kv_head * m->head_dim *
           ((c->setup.type_k == SAC_KV_Q8 ? q8 : f16) + (c->setup.type_v == SAC_KV_Q8 ? q8 : f16));
}

static sac_status run_all(struct capacity *c, sac_error *err)
{
    const struct capacity_load_params params = {.lengths = &c->lengths,
                                                .n_prompt = c->opt.n_prompt,
                                                .n_context = c->opt.n_context,
                                                .is_cold = c->opt.cold,
                                                .n_output = c->opt.n_output,
                                                .seed = (uint64_t)c->opt.seed,
                                                .burstiness = (double)c->opt.burstiness};
    const sac_model_info m = sac_model_get_info(c->model);
    c->clock.flop_per_row = 2 * ((double)m.n_params - (double)m.n_vocab * m.n_embd);
    c->setting.idle_ms = (double)c->opt.idle_ms;
    c->setting.factor = (double)c->opt.factor;
    c->setting.kv_bytes = kv_bytes(c, &m);
    TRY(capacity_load_make(&c->load, c->model, &params, err));
    if (c->setting.idle_ms <= 0) TRY(measure_idle(c, err));
    for (uint32_t i = 0; i < CAPACITY_LIMITS; i++)
        c->setting.limit_ms[i] = limit_iterations[i] * c->setting.idle_ms;
    capacity_trials_begin(&c->trials);
    progress_end(&c->bar);
    if (c->opt.format == TABLE_PRINTER_MD) print_head(c);
    c->printer = table_printer_begin((enum table_printer_format)c->opt.format, "bench_capacity");
    progress_begin(&c->bar, "capacity");
    const sac_status status = run_methods(c, err);
    progress_end(&c->bar);
    table_printer_end(&c->printer);
    if (c->opt.format == TABLE_PRINTER_MD) capacity_legend_print(&c->marks);
    sac_error why = {0};
    const sac_status written = write_files(c, &why);
    if (status != SAC_OK || written == SAC_OK) return status;
    return error_set(err, written, "%s", why.msg);
}

static int check(struct capacity *c)
{
    sac_error err = {0};
    struct capacity_options *o = &c->opt;
    if (o->cold && o->n_context)
        return options_usage_error(COMMAND, "--num-contexts are of pages that are there before: "
                                            "not with --cold");
    if (o->n_context && o->n_context < o->n_prompt)
        return options_usage_error(COMMAND,
                                   "--num-contexts %u: there are %u prompts, and each has "
                                   "one at least",
                                   o->n_context, o->n_prompt);
    if (!o->n_context) o->n_context = o->n_prompt;
    if (capacity_lengths_parse(&c->lengths, o->lengths, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--lengths': %s", err.msg);
    if (subjects_parse(&c->subjects, o->methods, &err) != SAC_OK)
        return options_usage_error(COMMAND, "option '--methods': %s", err.msg);
    c->clock = (struct capacity_clock){.is_model = o->clock == 1,
                                       .read_gb_s = (double)o->read_gb_s,
                                       .gflop_s = (double)o->gflop_s,
                                       .fetch_gb_s = (double)o->fetch_gb_s};
    c->setting = (struct capacity_setting){
        .model = c->setup.model, .lengths = o->lengths, .load = &c->load, .clock = &c->clock};
    return OPTIONS_GO_ON;
}

static int run(struct capacity *c)
{
    sac_error err = {0};
    int code = setup_load(&c->setup, &c->model);
    if (code != OPTIONS_GO_ON) return code;
    progress_begin(&c->bar, "capacity");
    const sac_status status = run_all(c, &err);
    progress_end(&c->bar);
    strbuf_deinit(&c->trials);
    capacity_load_deinit(&c->load);
    sac_model_free(c->model);
    return status == SAC_OK ? output_finish(EXIT_OK) : setup_failed(COMMAND, status, err.msg);
}

int bench_capacity(int argc, char **argv)
{
    struct capacity c = {.opt = {.methods = "dense,arkvale,infinigen,psa,psa_cert,auto",
                                 .lengths = "1024:4096",
                                 .n_prompt = 6,
                                 .n_output = 24,
                                 .n_seq = 16,
                                 .n_trial = 12,
                                 .seed = 1,
                                 .duration_s = 3,
                                 .burstiness = 1,
                                 .factor = 1.2F,
                                 .read_gb_s = 20,
                                 .gflop_s = 200,
                                 .fetch_gb_s = 2},
                         .setup = setup_default(COMMAND)};
    const struct option_group groups[] = {
        {"Model and memory", setup_part, &c.setup},
        {"Load", load_part, &c.opt},
        {"Search and report", search_part, &c.opt},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Finds, for each method, the largest request rate at which the 99th percentile "
                   "of the time between tokens stays below 5 (strict) and below 25 (relaxed) idle "
                   "iterations. Reports what was read and fetched and whether hidden numbers were "
                   "found. Trials are short unless --duration says otherwise; Ctrl-C keeps the "
                   "rows, trials and drawing so far.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    int code = options_parse(&o, argc, argv);
    if (code == OPTIONS_GO_ON) code = check(&c);
    if (code == OPTIONS_GO_ON) {
        interrupt_install();
        code = run(&c);
    }
    subjects_deinit(&c.subjects);
    return code;
}
