/* bench_serve.c: `saccade bench serve`: the options of a load test of any OpenAI server. The plan,
 * the client and the report are load_*.c; names and definitions are those of vLLM's `bench
 * serve`. */
#include "app/bench.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/load.h"
#include "app/options.h"
#include "app/output.h"
#include "app/setup.h"

#include "base/input.h"
#include "base/mem.h"

#include <cjson/cJSON.h>
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMMAND   "bench serve"
#define TEXT_MOST (256u << 20)

enum { OUTPUT_TEXT, OUTPUT_JSON };

struct serve_options {
    const char *base_url, *model, *api_key, *text, *extra_body;
    struct option_list goodput;
    uint32_t n_chat, n_turn, n_running_max, n_input, n_output, n_prefix_tok, n_prefix, n_warm;
    uint32_t timeout_s;
    int64_t seed;
    float rate, burstiness, range_ratio, bytes_per_tok, temperature, think_s;
    int backend, format;
    bool ignore_eos, detailed;
};

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct serve_options, field), arg, help, __VA_ARGS__                 \
    }

static const struct option_spec target_specs[] = {
    OPT("--base-url", OPTION_TEXT, base_url, "URL", "address of the server, with or without /v1",
        .env = NULL),
    OPT("--backend", OPTION_CHOICE, backend, NULL, "route: /v1/completions or /v1/chat/completions",
        .env = NULL, .choices = "openai|openai-chat"), /* in the order of enum load_backend */
    OPT("--model", OPTION_TEXT, model, "NAME",
        "model name in requests (default: the first of /v1/models)", .env = NULL),
    OPT("--api-key", OPTION_TEXT, api_key, "KEY", "sent as Authorization: Bearer",
        .env = "BENCH_API_KEY"),
    OPT("--extra-body", OPTION_TEXT, extra_body, "JSON",
        "object whose members are added to each request: {\"sparse\": {\"dense\": true}}",
        .env = NULL),
    OPT("--temperature --temp", OPTION_F32, temperature, "F", "sampling temperature", .env = NULL,
        .max = 100),
    OPT("--ignore-eos", OPTION_FLAG, ignore_eos, NULL,
        "answers have the requested length, where the server knows this field", .env = NULL),
    OPT("--request-timeout", OPTION_U32, timeout_s, "S", "seconds allowed per request", .env = NULL,
        .min = 1, .max = 864000),
    {0},
};

static const struct option_spec load_specs[] = {
    OPT("--num-prompts", OPTION_U32, n_chat, "N", "requests, or chats with --num-turns",
        .env = NULL, .min = 1, .max = 1000000),
    OPT("--request-rate", OPTION_F32, rate, "F",
        "requests that arrive per second, answered or not; 0: all at once", .env = NULL,
        .max = 1e6),
    OPT("--burstiness", OPTION_F32, burstiness, "F",
        "1: a Poisson process; less: bursts; more: more regular", .env = NULL, .min = 0.001,
        .max = 1e6, .needs = "--request-rate"),
    OPT("--max-concurrency", OPTION_U32, n_running_max, "N",
        "maximum concurrent requests, others are held back; 0: no limit", .env = NULL,
        .max = 65536),
    OPT("--seed", OPTION_I64, seed, "N", "seed for arrivals, lengths and texts", .env = NULL,
        .min = 0, .max = 0x1p53),
    OPT("--input-len --random-input-len", OPTION_U32, n_input, "N",
        "new tokens in each turn's request", .env = NULL, .min = 1, .max = 1u << 24),
    OPT("--output-len --random-output-len", OPTION_U32, n_output, "N",
        "maximum tokens of an answer", .env = NULL, .min = 1, .max = 1u << 24),
    OPT("--range-ratio --random-range-ratio", OPTION_F32, range_ratio, "F",
        "draw lengths from (1 - F) to (1 + F) of these", .env = NULL, .max = 0.999),
    OPT("--prefix-len --random-prefix-len", OPTION_U32, n_prefix_tok, "N",
        "tokens of a prefix that chats share", .env = NULL, .max = 1u << 24),
    OPT("--num-prefixes", OPTION_U32, n_prefix, "N", "different shared prefixes, used in turn",
        .env = NULL, .min = 1, .max = 1u << 20, .needs = "--prefix-len"),
    OPT("--num-turns", OPTION_U32, n_turn, "N",
        "turns of a chat; each contains the previous turns and their answers", .env = NULL,
        .min = 1, .max = 1000),
    OPT("--think-time", OPTION_F32, think_s, "S", "seconds between an answer and the next turn",
        .env = NULL, .max = 86400, .needs = "--num-turns"),
    OPT("--text", OPTION_TEXT, text, "FILE",
        "text whose passages form the prompts (default: common words, one token each)",
        .env = NULL),
    OPT("--bytes-per-token", OPTION_F32, bytes_per_tok, "F", "bytes per token of that text",
        .env = NULL, .min = 0.1, .max = 1000, .needs = "--text"),
    OPT("--num-warmups", OPTION_U32, n_warm, "N", "warm-up requests, which do not count",
        .env = NULL, .max = 1000),
    {0},
};

static const struct option_spec report_specs[] = {
    OPT("--goodput", OPTION_LIST, goodput, "NAME:MS",
        "count requests that meet ttft:MS, tpot:MS, e2el:MS; repeatable", .env = NULL),
    OPT("-o --output", OPTION_CHOICE, format, NULL, "format of the report", .env = NULL,
        .choices = "text|json"),
    OPT("--save-detailed", OPTION_FLAG, detailed, NULL,
        "with -o json: lists with the numbers of each request", .env = NULL),
    {0},
};

/* ---- Options ---- */

static int parse_goodput(struct load_goodput *out, const struct option_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        const char *item = list->item[i], *colon = strchr(item, ':');
        const size_t n = colon ? (size_t)(colon - item) : 0;
        double *limit = n != 4                          ? NULL
                        : strncmp(item, "ttft", 4) == 0 ? &out->ttft_ms
                        : strncmp(item, "tpot", 4) == 0 ? &out->tpot_ms
                        : strncmp(item, "e2el", 4) == 0 ? &out->e2el_ms
                                                        : NULL;
        char *end = NULL;
        errno = 0;
        const double ms = limit ? strtod(colon + 1, &end) : 0;
        if (!limit || errno || end == colon + 1 || *end || !(ms > 0 && ms < 1e12))
            return options_usage_error(
                COMMAND, "option '--goodput': '%.60s' is not ttft:MS, tpot:MS or e2el:MS", item);
        *limit = ms;
    }
    return OPTIONS_GO_ON;
}

static int check_extra(const char *extra)
{
    cJSON *json = extra ? cJSON_ParseWithOpts(extra, NULL, true) : NULL;
    const bool is_object = cJSON_IsObject(json);
    cJSON_Delete(json);
    if (extra && !is_object)
        return options_usage_error(COMMAND, "option '--extra-body': not a JSON object");
    return OPTIONS_GO_ON;
}

static struct load_params params_of(const struct serve_options *o, const struct strbuf *text)
{
    return (struct load_params){
        .seed = (uint64_t)o->seed,
        .n_chat = o->n_chat,
        .n_turn = o->n_turn,
        .rate = o->rate,
        .burstiness = o->burstiness,
        .n_input = o->n_input,
        .n_output = o->n_output,
        .range_ratio = o->range_ratio,
        .n_prefix_tok = o->n_prefix_tok,
        .n_prefix = o->n_prefix,
        .text = text->data,
        .n_text = text->n,
        .bytes_per_tok = o->bytes_per_tok,
    };
}

static struct load_target target_of(const struct serve_options *o)
{
    return (struct load_target){
        .base_url = o->base_url,
        .model = o->model,
        .api_key = o->api_key,
        .backend = (enum load_backend)o->backend,
        .extra_body = o->extra_body,
        .temperature = o->temperature,
        .ignore_eos = o->ignore_eos,
        .n_running_max = o->n_running_max,
        .think_s = o->think_s,
        .timeout_s = o->timeout_s,
    };
}

/* ---- Running ---- */

/* Warms the server up, and reports early an error that all requests would have. */
static sac_status warm_up(const struct load_target *target, const struct load_params *params,
                          uint32_t n, sac_error *err)
{
    struct load_request request = {.n_output = 2, .text = load_plan_other(params, 16)};
    const struct load_plan plan = {.request = &request, .n = 1};
    sac_status status = SAC_OK;
    if (!request.text) return error_set(err, SAC_ERR_MEMORY, "no memory for a prompt");
    for (uint32_t i = 0; status == SAC_OK && i < n; i++) {
        struct load_run run = {0};
        status = load_client_run(&run, target, &plan, err);
        if (status == SAC_OK && !run.sample[0].is_done)
            status = error_set(err, SAC_ERR_IO, "%s: the first request: %s", target->base_url,
                               run.sample[0].error ? run.sample[0].error : "no memory");
        load_run_deinit(&run);
    }
    mem_free(request.text);
    return status;
}

static sac_status report(const struct load_report *r, int format, sac_error *err)
{
    struct strbuf out = {0};
    sac_status status = SAC_OK;
    if (format == OUTPUT_JSON)
        status = load_report_json(r, &out, err);
    else
        load_report_text(r, &out);
    if (status == SAC_OK && out.failed)
        status = error_set(err, SAC_ERR_MEMORY, "no memory for a report");
    if (status == SAC_OK) output_write(out.data, out.n);
    strbuf_deinit(&out);
    return status;
}

static sac_status run_load(const struct serve_options *o, const struct load_target *target,
                           const struct load_params *params, const struct load_goodput *goodput,
                           sac_error *err)
{
    struct load_plan plan = {0};
    struct load_run run = {0};
    struct load_result result;
    const struct load_report r = {params, target, goodput, &run, &result, o->detailed};
    sac_status status = warm_up(target, params, o->n_warm, err);
    if (status == SAC_OK) status = load_plan_make(&plan, params, err);
    if (status == SAC_OK) status = load_client_run(&run, target, &plan, err);
    if (status == SAC_OK) status = load_result_make(&result, &run, goodput, err);
    if (status == SAC_OK) status = report(&r, o->format, err);
    if (status == SAC_OK && !result.n_done)
        status = error_set(err, SAC_ERR_IO, "no request was answered");
    load_run_deinit(&run);
    load_plan_deinit(&plan);
    return status;
}

static sac_status read_text(struct strbuf *text, const char *path, sac_error *err)
{
    TRY(input_read_most(text, path, TEXT_MOST, err));
    if (!text->n) return error_set(err, SAC_ERR_FORMAT, "%s: the text is empty", path);
    return SAC_OK;
}

static sac_status run_options(const struct serve_options *o, const struct load_goodput *goodput,
                              sac_error *err)
{
    struct strbuf text = {0};
    struct load_target target = target_of(o);
    char *name = NULL;
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(err, SAC_ERR_MEMORY, "libcurl does not start");
    sac_status status = o->text ? read_text(&text, o->text, err) : SAC_OK;
    if (status == SAC_OK && !target.model) {
        status = load_client_model(&name, &target, err);
        target.model = name;
    }
    if (status == SAC_OK) {
        const struct load_params params = params_of(o, &text);
        status = run_load(o, &target, &params, goodput, err);
    }
    mem_free(name);
    strbuf_deinit(&text);
    curl_global_cleanup();
    return status;
}

int bench_serve(int argc, char **argv)
{
    struct serve_options opt = {
        .base_url = "http://127.0.0.1:8080",
        .n_chat = 1000,
        .n_turn = 1,
        .burstiness = 1,
        .n_input = 1024,
        .n_output = 128,
        .n_prefix = 1,
        .bytes_per_tok = 4.5F,
        .n_warm = 1,
        .timeout_s = 6 * 3600,
    };
    const struct option_group groups[] = {
        {"Server", target_specs, &opt},
        {"Load", load_specs, &opt},
        {"Report", report_specs, &opt},
    };
    struct options o = {
        .command = COMMAND,
        .usage = "--base-url URL [options]",
        .summary =
            "Sends requests to an OpenAI server at their scheduled times, whether or not earlier "
            "ones are answered, and reports client latencies by the definitions and JSON names of "
            "vLLM's benchmark. The same options and seed produce the same load.",
        .group = groups,
        .n_group = sizeof groups / sizeof groups[0],
    };
    struct load_goodput goodput = {0};
    int code = options_parse(&o, argc, argv);
    if (code == OPTIONS_GO_ON) code = parse_goodput(&goodput, &opt.goodput);
    if (code == OPTIONS_GO_ON) code = check_extra(opt.extra_body);
    if (code == OPTIONS_GO_ON && opt.detailed && opt.format != OUTPUT_JSON)
        code = options_usage_error(COMMAND, "--save-detailed needs -o json");
    if (code != OPTIONS_GO_ON) return code;
    interrupt_install();
    sac_error err = {0};
    const sac_status status = run_options(&opt, &goodput, &err);
    return status == SAC_OK ? output_finish(EXIT_OK) : setup_failed(COMMAND, status, err.msg);
}
