/* bench.c: `saccade bench`: the options, and the loops over models, threads, depths and tests.
 * bench_test.c runs a test, bench_row.c reports it.
 *
 * Option names are those of llama-bench, so that its users and scripts know them. The machine's
 * limits are measured first, before a model is in memory. */
#include "app/bench.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/options.h"
#include "app/peak_memory.h"
#include "app/setup.h"
#include "app/setup_method.h"
#include "app/setup_tier.h"
#include "app/units.h"

#include "base/workers.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND    "bench"
#define LIST_MAX   32u
#define TOKENS_MAX (1u << 24)

struct bench_options {
    struct option_list models, pairs, methods, prefills;
    const char *prompts, *gens, *depths, *threads;
    uint32_t n_rep, n_batch, n_seq, n_top, sparse_min_ctx;
    const char *device;
    int32_t n_gpu_layers;
    int kv_on_host, device_rows; /* indices into SETUP_KV_DEVICES, SETUP_SPLIT_MODES */
    const char *tensor_split;
    int fill, type_k, type_v, format;
    const char *budget;
    float mass;
    const char *kv_fast, *kv_disk;
    int kv_policy;
    bool kv_no_ahead, depth_own;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct bench_options, field), arg, help, __VA_ARGS__                 \
    }

static const struct option_spec specs[] = {
    OPT("-m --model", OPTION_LIST, models, "FILE",
        "GGUF file, or the name of a fetched model; repeatable", .env = NULL),
    OPT("-p --n-prompt", OPTION_TEXT, prompts, "N[,N]",
        "prompt tokens, one test each; 0: none (default: 512)", .env = NULL),
    OPT("-n --n-gen", OPTION_TEXT, gens, "N[,N]",
        "generated tokens, one test each; 0: none (default: 128)", .env = NULL),
    OPT("-pg", OPTION_LIST, pairs, "P,N",
        "a test of P prompt tokens followed by N generated ones; repeatable", .env = NULL),
    OPT("-d --n-depth", OPTION_TEXT, depths, "N[,N]",
        "context lengths before a test starts; each test runs at all of them (default: 0)",
        .env = NULL),
    OPT("--depth-fill", OPTION_CHOICE, fill, NULL,
        "how the context of --depth is filled: computed, or noise, which only costs the time to "
        "store it and allows any length; output after noise is meaningless",
        .env = NULL, .choices = "computed|noise", .needs = "-d"),
    OPT("--depth-own", OPTION_FLAG, depth_own, NULL,
        "give each sequence of --decode-batch its own context of other tokens; without it they "
        "share one, like several answers to one prompt",
        .env = NULL, .needs = "-d"),
    OPT("-r --repetitions", OPTION_U32, n_rep, "N", "repetitions of each test", .env = NULL,
        .min = 1, .max = BENCH_REPS_MAX),
    OPT("-t --threads", OPTION_TEXT, threads, "N[,N]",
        "threads, all tests for each; 0: one per available CPU (default: 0)", .env = NULL),
    OPT("-b --batch-size", OPTION_U32, n_batch, "N", SETUP_BATCH_HELP, .env = NULL, .max = 65536),
    OPT("--device", OPTION_TEXT, device, "NAME", SETUP_DEVICE_HELP, .env = NULL),
    OPT("-ngl --gpu-layers --n-gpu-layers", OPTION_I32, n_gpu_layers, "N", SETUP_LAYERS_HELP,
        .env = NULL, .min = -1, .max = INT32_MAX),
    OPT("--kv-device", OPTION_CHOICE, kv_on_host, NULL, SETUP_KV_DEVICE_HELP, .env = NULL,
        .choices = SETUP_KV_DEVICES),
    OPT("-sm --split-mode", OPTION_CHOICE, device_rows, NULL, SETUP_SPLIT_MODE_HELP, .env = NULL,
        .choices = SETUP_SPLIT_MODES),
    OPT("-ts --tensor-split", OPTION_TEXT, tensor_split, "A,B,...", SETUP_SPLIT_HELP, .env = NULL),
    OPT("-ctk --cache-type-k", OPTION_CHOICE, type_k, NULL, "type of the keys in the KV cache",
        .env = NULL, .choices = SETUP_KV_CHOICES),
    OPT("-ctv --cache-type-v", OPTION_CHOICE, type_v, NULL,
        "type of the values in the KV cache; q8 requires q8 keys", .env = NULL,
        .choices = SETUP_KV_CHOICES),
    OPT("--decode-batch", OPTION_U32, n_seq, "N",
        "sequences that generate together (batch size); tok/s counts all of them", .env = NULL,
        .min = 1, .max = 256),
    OPT("--top-k", OPTION_U32, n_top, "N",
        "logits that a generated token needs for its sampling: the N largest; 0: all", .env = NULL,
        .max = UINT32_MAX),
    OPT("--prefill", OPTION_LIST, prefills, "SPEC",
        "prefill method, as for --decode; repeatable, prompt tests run with each. The text is "
        "random: on real text a method skips other shares (default: dense)",
        .env = NULL),
    OPT("--decode", OPTION_LIST, methods, "SPEC",
        "decode method, NAME:key=value,... of 'saccade methods'; repeatable, generation tests run "
        "with each (default: full)",
        .env = NULL),
    OPT("--budget", OPTION_TEXT, budget, "N",
        "budget of the methods: tokens, or a share of the context (5%)", .env = NULL),
    OPT("--mass", OPTION_F32, mass, "F",
        "share of the attention that the methods should keep; 0: their defaults", .env = NULL,
        .max = 1),
    OPT("--sparse-min-ctx", OPTION_U32, sparse_min_ctx, "N",
        "use dense attention for contexts shorter than N tokens", .env = NULL),
    OPT("--kv-fast", OPTION_TEXT, kv_fast, "SIZE",
        "memory for the KV cache (40M, 2G); pages that do not fit go to --kv-disk or, on a GPU, to "
        "host memory",
        .env = NULL),
    OPT("--kv-disk", OPTION_TEXT, kv_disk, "FILE:SIZE", "scratch file for pages, and its size",
        .env = NULL),
    OPT("--kv-policy", OPTION_CHOICE, kv_policy, NULL, "which pages leave memory first",
        .env = NULL, .choices = "stale|lru"),
    OPT("--kv-no-ahead", OPTION_FLAG, kv_no_ahead, NULL,
        "fetch pages only when they are needed, never ahead of time", .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "format of the table", .env = NULL,
        .choices = TABLE_PRINTER_FORMATS),
    {0},
};

struct list {
    uint32_t item[LIST_MAX];
    size_t n;
};

struct bench {
    struct bench_options opt;
    struct list prompts, gens, depths, threads;
    struct list pairs[OPTION_LIST_MAX]; /* of two values */
    struct setup tier;                  /* only its tier settings are used */
    char prefill_spec[SAC_METHODS_MAX][256], decode_spec[SAC_METHODS_MAX][256];
    sac_machine machine[LIST_MAX]; /* per thread count */
    struct table_printer printer;
    /* The current model. */
    sac_model *model;
    const char *model_name, *device;
    float split[SETUP_SPLIT_MAX]; /* [n_split] */
    uint32_t n_split;
    double load_s;
    bool has_peak;
    struct bench_rig rig;
    struct bench_result result;
};

/* ---- Options ---- */

/* Parses "512,2k"; a usage error names the option and the mistake. */
static int parse_list(const char *option, const char *text, uint32_t max, struct list *out)
{
    *out = (struct list){0};
    for (const char *at = text;; at++) {
        char word[32];
        uint64_t v;
        at += strspn(at, " ");
        const char *end = at + strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(end - at), at);
        if (!units_tokens(word, &v))
            return options_usage_error(
                COMMAND, "option '%s': '%.60s' is not a list of whole numbers", option, text);
        if (v > max)
            return options_usage_error(COMMAND, "option '%s': %s is out of range 0 to %u", option,
                                       word, max);
        if (out->n == LIST_MAX)
            return options_usage_error(COMMAND, "option '%s': more than %u numbers", option,
                                       LIST_MAX);
        out->item[out->n++] = (uint32_t)v;
        if (!*end) return OPTIONS_GO_ON;
        at = end;
    }
}

static int parse_pairs(struct bench *b)
{
    for (size_t i = 0; i < b->opt.pairs.n; i++) {
        struct list *pair = &b->pairs[i];
        const char *text = b->opt.pairs.item[i];
        const int code = parse_list("-pg", text, TOKENS_MAX, pair);
        if (code != OPTIONS_GO_ON) return code;
        if (pair->n != 2 || !pair->item[0] || !pair->item[1])
            return options_usage_error(COMMAND, "option '-pg': '%.60s' is not of the form P,N",
                                       text);
    }
    return OPTIONS_GO_ON;
}

/* Adds --budget and --mass to the methods' specifications, in `spec` [SAC_METHODS_MAX], and makes
 * the list refer to them. */
static int make_specs(const struct bench_options *opt, const char *kind, struct option_list *list,
                      char (*spec)[256], bool *has_own_budget)
{
    const struct setup setup = {.command = COMMAND, .budget = opt->budget, .mass = opt->mass};
    if (list->n > SAC_METHODS_MAX)
        return options_usage_error(COMMAND, "option '--%s': at most %u methods", kind,
                                   SAC_METHODS_MAX);
    for (size_t i = 0; i < list->n; i++) {
        const int code = setup_method_spec(&setup, kind, list->item[i], spec[i]);
        if (code != OPTIONS_GO_ON) return code;
        if (strcmp(spec[i], list->item[i]) != 0) *has_own_budget = true;
        list->item[i] = spec[i];
    }
    return OPTIONS_GO_ON;
}

static int check_methods(struct bench *b)
{
    bool has_own_budget = false;
    int code = make_specs(&b->opt, "prefill", &b->opt.prefills, b->prefill_spec, &has_own_budget);
    if (code == OPTIONS_GO_ON)
        code = make_specs(&b->opt, "decode", &b->opt.methods, b->decode_spec, &has_own_budget);
    if (code == OPTIONS_GO_ON && (b->opt.budget || b->opt.mass > 0) && !has_own_budget)
        return options_usage_error(COMMAND, "--%s: no method of --prefill or --decode has it",
                                   b->opt.budget ? "budget" : "mass");
    return code;
}

static uint32_t max_of(const struct list *l)
{
    uint32_t max = 0;
    for (size_t i = 0; i < l->n; i++) max = l->item[i] > max ? l->item[i] : max;
    return max;
}

static int parse(struct bench *b)
{
    const struct bench_options *o = &b->opt;
    b->tier = (struct setup){.command = COMMAND,
                             .device = o->device,
                             .n_gpu_layers = o->n_gpu_layers,
                             .kv_on_host = o->kv_on_host,
                             .kv_fast = o->kv_fast,
                             .kv_disk = o->kv_disk,
                             .kv_policy = o->kv_policy,
                             .kv_no_ahead = o->kv_no_ahead};
    int code = parse_list("-p", o->prompts, TOKENS_MAX, &b->prompts);
    if (code == OPTIONS_GO_ON) code = parse_list("-n", o->gens, TOKENS_MAX, &b->gens);
    if (code == OPTIONS_GO_ON) code = parse_list("-d", o->depths, TOKENS_MAX, &b->depths);
    if (code == OPTIONS_GO_ON) code = parse_list("-t", o->threads, 4096, &b->threads);
    if (code == OPTIONS_GO_ON) code = parse_pairs(b);
    if (code == OPTIONS_GO_ON) code = check_methods(b);
    if (code == OPTIONS_GO_ON) code = setup_tier(&b->tier);
    if (code != OPTIONS_GO_ON) return code;
    if (o->models.n == 0) return options_usage_error(COMMAND, "a model is missing (-m FILE)");
    if (!max_of(&b->prompts) && !max_of(&b->gens) && !o->pairs.n)
        return options_usage_error(COMMAND, "no test: -p and -n are 0, and there is no -pg");
    return OPTIONS_GO_ON;
}

/* ---- Memory ---- */

/* Number of sequences that hold a depth. */
static uint32_t n_base(const struct bench_options *o)
{
    return o->depth_own ? o->n_seq : 1;
}

/* Sized for the largest test; forks share the pages of the depth. */
static sac_engine_params engine_params(const struct bench *b, uint32_t n_threads)
{
    const struct bench_options *o = &b->opt;
    uint32_t most = max_of(&b->prompts);
    if (max_of(&b->gens) > most) most = max_of(&b->gens);
    for (size_t i = 0; i < o->pairs.n; i++) {
        const uint32_t sum = b->pairs[i].item[0] + b->pairs[i].item[1];
        if (sum > most) most = sum;
    }
    const uint32_t depth = max_of(&b->depths), page = 128; /* upper bound of the page size */
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = depth + most;
    p.n_seq_max = o->n_seq + n_base(o);
    p.n_kv_tok = (uint64_t)n_base(o) * (depth + page) + (uint64_t)o->n_seq * (most + 2 * page);
    p.n_batch = o->n_batch;
    p.device = b->device;
    p.device_split = b->split;
    p.n_device_split = b->n_split;
    p.n_device_layer = o->n_gpu_layers > 0 ? (uint32_t)o->n_gpu_layers : 0;
    p.device_rows = o->device_rows;
    p.kv_on_host = o->kv_on_host;
    p.n_threads = n_threads;
    p.type_k = (sac_kv_type)o->type_k;
    p.type_v = (sac_kv_type)o->type_v;
    p.decode = o->methods.item;
    p.n_decode = (uint32_t)o->methods.n;
    p.prefill = o->prefills.item;
    p.n_prefill = (uint32_t)o->prefills.n;
    p.sparse_min_ctx = o->sparse_min_ctx;
    p.tier = b->tier.tier.fast_bytes ? &b->tier.tier : NULL;
    return p;
}

/* ---- Loops ---- */

static sac_status run_test(struct bench *b, const struct bench_test *test,
                           const sac_machine *machine, sac_error *err)
{
    TRY(bench_rig_run(&b->rig, test, b->opt.n_rep, &b->result, err));
    const struct bench_row row = {
        .model = b->model_name,
        .info = sac_model_get_info(b->model),
        .params = sac_engine_get_params(b->rig.engine),
        .isa = sac_engine_get_stats(b->rig.engine).isa,
        .method = b->opt.methods.n ? b->opt.methods.item[test->method] : "full",
        .prefill = b->opt.prefills.n ? b->opt.prefills.item[test->prefill] : "dense",
        .machine = machine,
        .fill = b->rig.fills_noise ? " noise" : "",
        .depth_own = b->opt.depth_own,
        .load_s = b->load_s,
        .peak_rss = b->has_peak ? peak_memory_bytes() : 0,
        .test = *test,
        .result = &b->result,
    };
    bench_row_print(&b->printer, &row);
    return SAC_OK;
}

/* Runs a test with each decode method. */
static sac_status run_methods(struct bench *b, struct bench_test test, const sac_machine *machine,
                              sac_error *err)
{
    const uint32_t n = b->opt.methods.n ? (uint32_t)b->opt.methods.n : 1;
    for (test.method = 0; test.method < n; test.method++) TRY(run_test(b, &test, machine, err));
    return SAC_OK;
}

/* Runs a test with each prefill method. */
static sac_status run_prefills(struct bench *b, struct bench_test test, const sac_machine *machine,
                               sac_error *err)
{
    const uint32_t n = b->opt.prefills.n ? (uint32_t)b->opt.prefills.n : 1;
    for (test.prefill = 0; test.prefill < n; test.prefill++) TRY(run_test(b, &test, machine, err));
    return SAC_OK;
}

static sac_status run_depth(struct bench *b, uint32_t depth, const sac_machine *machine,
                            sac_error *err)
{
    struct bench_test test = {.depth = depth, .n_seq = 1};
    for (size_t i = 0; i < b->prompts.n; i++) {
        test.n_prompt = b->prompts.item[i];
        if (test.n_prompt) TRY(run_prefills(b, test, machine, err));
    }
    test.n_prompt = 0;
    test.n_seq = b->opt.n_seq;
    test.n_top = b->opt.n_top;
    for (size_t i = 0; i < b->gens.n; i++) {
        test.n_gen = b->gens.item[i];
        if (test.n_gen) TRY(run_methods(b, test, machine, err));
    }
    for (size_t i = 0; i < b->opt.pairs.n; i++) {
        test.n_prompt = b->pairs[i].item[0];
        test.n_gen = b->pairs[i].item[1];
        TRY(run_methods(b, test, machine, err));
    }
    return SAC_OK;
}

static sac_status run_threads(struct bench *b, const sac_machine *machine, sac_error *err)
{
    const sac_engine_params params = engine_params(b, machine->n_threads);
    sac_status status = bench_rig_open(&b->rig, b->model, n_base(&b->opt), &params, err);
    b->rig.fills_noise = b->opt.fill == 1;
    for (size_t i = 0; status == SAC_OK && i < b->depths.n; i++)
        status = run_depth(b, b->depths.item[i], machine, err);
    bench_rig_close(&b->rig);
    return status;
}

static int run_model(struct bench *b, const char *name)
{
    struct setup setup = setup_default(COMMAND);
    setup.model = b->model_name = name;
    setup.n_threads = max_of(&b->threads);
    b->has_peak = peak_memory_reset();
    const uint64_t start = clock_us();
    setup.device = b->opt.device;
    setup.n_gpu_layers = b->opt.n_gpu_layers;
    setup.tensor_split = b->opt.tensor_split;
    setup.n_batch = b->opt.n_batch;
    const int code = setup_load(&setup, &b->model);
    if (code != OPTIONS_GO_ON) return code;
    b->device = setup.device;
    b->n_split = setup.n_split;
    memcpy(b->split, setup.split, sizeof b->split);
    b->load_s = (double)(clock_us() - start) * 1e-6;
    sac_status status = SAC_OK;
    sac_error err = {0};
    for (size_t i = 0; status == SAC_OK && i < b->threads.n; i++)
        status = run_threads(b, &b->machine[i], &err);
    sac_model_free(b->model);
    b->model = NULL;
    return status == SAC_OK ? OPTIONS_GO_ON : setup_failed(COMMAND, status, err.msg);
}

/* Done before the machine is measured, which takes a second per thread count. */
static sac_status check_device(const struct bench_options *o, sac_error *err)
{
    char first[160];
    const bool is_gpu = o->n_gpu_layers > 0 || (o->device && strncmp(o->device, "cuda", 4) == 0);
    return is_gpu ? sac_device_name(first, 1, err) : SAC_OK;
}

static int run_all(struct bench *b)
{
    sac_error err = {0};
    const sac_status there = check_device(&b->opt, &err);
    if (there != SAC_OK) return setup_failed(COMMAND, there, err.msg);
    for (size_t i = 0; i < b->threads.n; i++) {
        const sac_status status = sac_measure_machine(&b->machine[i], b->threads.item[i], &err);
        if (status != SAC_OK) return setup_failed(COMMAND, status, err.msg);
        char limits[256];
        bench_describe_machine(limits, sizeof limits, &b->machine[i]);
        if (b->opt.format == TABLE_PRINTER_MD)
            printf("%u thread%s; limits: %s\n%s", b->machine[i].n_threads,
                   b->machine[i].n_threads == 1 ? "" : "s", limits,
                   i + 1 == b->threads.n ? "\n" : "");
    }
    b->printer = table_printer_begin((enum table_printer_format)b->opt.format, "bench");
    int code = OPTIONS_GO_ON;
    for (size_t i = 0; code == OPTIONS_GO_ON && i < b->opt.models.n; i++)
        code = run_model(b, b->opt.models.item[i]);
    table_printer_end(&b->printer);
    if (code != OPTIONS_GO_ON) return code;
    bench_check_idle(COMMAND, &b->machine[b->threads.n - 1]);
    return EXIT_OK;
}

int app_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "capacity") == 0) return bench_capacity(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "mask") == 0) return bench_mask(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "ops") == 0) return bench_ops(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "plot") == 0) return bench_plot(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "prefix") == 0) return bench_prefix(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "serve") == 0) return bench_serve(argc - 1, argv + 1);
    const sac_engine_params defaults = sac_engine_params_default();
    struct bench b = {.opt = {.prompts = "512",
                              .gens = "128",
                              .depths = "0",
                              .threads = "0",
                              .n_rep = 5,
                              .n_seq = 1,
                              .n_top = 1,
                              .n_gpu_layers = -1,
                              .sparse_min_ctx = defaults.sparse_min_ctx}};
    const struct option_group group = {"Options", specs, &b.opt};
    struct options o = {
        .command = COMMAND,
        .usage = "-m MODEL [options]",
        .summary = "Measures prompt and generation speed of a model, and the share of this "
                   "machine's limits that it reaches; the limits are measured in the same run.",
        .commands =
            "  capacity    the largest load that a method serves within a latency limit\n  mask    "
            "    cost of a grammar relative to the steps that it constrains\n  ops         single "
            "operations in the shapes of a few models\n  plot        draw a table of "
            "measurements\n  prefix      prompts with a common prefix: pages and time to first "
            "token\n  serve       load test of an OpenAI server: latencies seen by clients\n",
        .group = &group,
        .n_group = 1,
    };
    int code = options_parse(&o, argc, argv);
    if (code == OPTIONS_GO_ON) code = parse(&b);
    for (size_t i = 0; code == OPTIONS_GO_ON && i < b.opt.models.n; i++)
        code = setup_check_model(COMMAND, b.opt.models.item[i]);
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    return run_all(&b);
}
