/* setup.c: see the header. The names of options are those of llama.cpp, with vLLM's as second
 * spellings, so that users type what they know. */
#include "app/setup.h"

#include "app/app.h"
#include "app/interrupt.h"
#include "app/logfile.h"
#include "app/models.h"
#include "app/progress.h"
#include "app/setup_method.h"
#include "app/setup_tier.h"
#include "app/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define OPT(names, type, field, arg, help, ...)                                                    \
    {                                                                                              \
        names, type, offsetof(struct setup, field), arg, help, __VA_ARGS__                         \
    }

#define GPU    "--device|-ngl"
#define METHOD "--prefill|--decode|--context"

const struct option_spec setup_specs[] = {
    OPT("-m --model", OPTION_TEXT, model, "FILE",
        "GGUF file, or the name of a fetched model (folder: $SACCADE_MODELS)", .env = "MODEL"),
    OPT("-c --ctx-size --max-model-len", OPTION_U32, n_ctx, "N",
        "context length in tokens (8k is 8192); 0: the model's trained length, and of 'run' and "
        "'docs add' no more than needed",
        .env = "CTX_SIZE", .tokens = true),
    OPT("-t --threads", OPTION_U32, n_threads, "N", "threads; 0: one per available CPU",
        .env = "THREADS", .max = 4096),
    OPT("-b --batch-size -ub --ubatch-size --max-num-batched-tokens", OPTION_U32, n_batch, "N",
        SETUP_BATCH_HELP, .env = "BATCH", .max = 65536),
    OPT("--device", OPTION_TEXT, device, "NAME", SETUP_DEVICE_HELP, .env = "DEVICE"),
    OPT("-ngl --gpu-layers --n-gpu-layers", OPTION_I32, n_gpu_layers, "N", SETUP_LAYERS_HELP,
        .env = "N_GPU_LAYERS", .min = -1, .max = INT32_MAX),
    OPT("--kv-device", OPTION_CHOICE, kv_on_host, NULL, SETUP_KV_DEVICE_HELP, .env = "KV_DEVICE",
        .choices = SETUP_KV_DEVICES, .needs = GPU, .told = true),
    OPT("-sm --split-mode", OPTION_CHOICE, device_rows, NULL, SETUP_SPLIT_MODE_HELP,
        .env = "SPLIT_MODE", .choices = SETUP_SPLIT_MODES, .needs = GPU, .told = true),
    OPT("-ts --tensor-split", OPTION_TEXT, tensor_split, "A,B,...", SETUP_SPLIT_HELP,
        .env = "TENSOR_SPLIT", .needs = GPU, .told = true),
    OPT("--gpu-memory-utilization", OPTION_F32, gpu_share, "F",
        "share of the GPU's free memory to use; what weights, pages and steps leave of it holds "
        "f16 copies of weights, for faster prompts",
        .env = "GPU_MEMORY_UTILIZATION", .min = 0.01, .max = 1, .needs = GPU),
    OPT("-ctk --cache-type-k", OPTION_CHOICE, type_k, NULL, "type of the keys in the KV cache",
        .env = "CACHE_TYPE_K", .choices = SETUP_KV_CHOICES, .without = "--kv-cache-dtype"),
    OPT("-ctv --cache-type-v", OPTION_CHOICE, type_v, NULL,
        "type of the values in the KV cache; q8 requires q8 keys", .env = "CACHE_TYPE_V",
        .choices = SETUP_KV_CHOICES, .without = "--kv-cache-dtype"),
    OPT("--kv-cache-dtype", OPTION_CHOICE, kv, NULL, "type of both keys and values",
        .choices = SETUP_KV_CHOICES),
    OPT("--kv-fast", OPTION_TEXT, kv_fast, "SIZE",
        "memory for the KV cache (40M, 2G); pages that do not fit go to --kv-disk or, on a GPU, to "
        "host memory",
        .env = "KV_FAST", .needs = "--kv-disk|" GPU, .told = true),
    OPT("--kv-disk", OPTION_TEXT, kv_disk, "FILE:SIZE",
        "scratch file for pages that do not fit into --kv-fast, and its size, which is reserved at "
        "start",
        .env = "KV_DISK"),
    OPT("--kv-policy", OPTION_CHOICE, kv_policy, NULL,
        "which pages leave memory first: those that will be needed last, or the least recently "
        "used",
        .env = "KV_POLICY", .choices = "stale|lru", .needs = "--kv-disk", .told = true),
    OPT("--kv-no-ahead", OPTION_FLAG, kv_no_ahead, NULL,
        "fetch pages only when they are needed, never ahead of time", .env = "KV_NO_AHEAD",
        .needs = "--kv-disk", .told = true),
    OPT("--kv-admit", OPTION_CHOICE, kv_admit, NULL,
        "which requests decode together: those whose recently used pages fit into --kv-fast, while "
        "others wait; or all. On a GPU all decode",
        .env = "KV_ADMIT", .choices = "working-set|all", .needs = "--kv-disk", .told = true),
    OPT("--rope-scaling", OPTION_CHOICE, rope, NULL,
        "RoPE scaling; linear and yarn use --rope-scale; model: as in the file",
        .env = "ROPE_SCALING_TYPE", .choices = "model|none|linear|yarn"),
    OPT("--rope-scale", OPTION_F32, rope_scale, "F",
        "factor by which the context is extended; 0: the file's, if it has one",
        .env = "ROPE_SCALE", .max = 1e6),
    OPT("--rope-freq-base", OPTION_F32, rope_freq_base, "F", "RoPE base frequency; 0: the file's",
        .env = "ROPE_FREQ_BASE", .max = 1e12),
    OPT("--yarn-orig-ctx", OPTION_U32, yarn_orig_ctx, "N",
        "trained context length, for YaRN; 0: the file's", .env = "YARN_ORIG_CTX", .tokens = true),
    OPT("--override-pre", OPTION_TEXT, pre, "NAME",
        "pre-tokenizer to use instead of the one that the file names", .env = "OVERRIDE_PRE"),
    OPT("--prefill", OPTION_TEXT, prefill, "SPEC",
        "attention method for the prompt: NAME:key=value,... ('saccade methods' lists them)",
        .env = "PREFILL"),
    OPT("--decode", OPTION_TEXT, decode, "SPEC",
        "attention method for new tokens: NAME:key=value,... ('saccade methods' lists them)",
        .env = "DECODE"),
    OPT("--budget", OPTION_TEXT, budget, "N",
        "budget of the method: tokens, or a share of the context (5%)", .env = "BUDGET",
        .needs = METHOD, .told = true),
    OPT("--mass", OPTION_F32, mass, "F",
        "share of the attention that the method should keep; 0: the method's default",
        .env = "MASS", .max = 1, .needs = METHOD, .told = true),
    OPT("--sparse-min-ctx", OPTION_U32, sparse_min_ctx, "N",
        "use dense attention for contexts shorter than N tokens", .env = "SPARSE_MIN_CTX",
        .tokens = true),
    OPT("--no-screen", OPTION_FLAG, no_screen, NULL,
        "keep no compact form of the output matrix: less memory, slower generation",
        .env = "NO_SCREEN"),
    OPT("--mlock", OPTION_FLAG, mlock, NULL, "lock the weights in memory", .env = "MLOCK"),
    OPT("--color", OPTION_CHOICE, colour, NULL,
        "colours; auto: on a terminal, unless NO_COLOR is set", .env = NULL,
        .choices = "auto|always=on|never=off"),
    OPT("--log-file", OPTION_TEXT, log_file, "FILE",
        "also write to FILE what goes to stderr after the model starts to load", .env = "LOG_FILE"),
    OPT("-v --verbose", OPTION_FLAG, verbose, NULL, "report on stderr what was loaded and planned",
        .env = NULL),
    {0},
};
struct setup setup_default(const char *command)
{
    const sac_engine_params e = sac_engine_params_default();
    return (struct setup){
        .command = command,
        .n_ctx = e.n_ctx,
        .n_gpu_layers = -1,
        .gpu_share = 0.9f,
        .n_threads = e.n_threads,
        .kv = -1,
        .type_k = (int)e.type_k,
        .type_v = (int)e.type_v,
        .rope = SAC_ROPE_MODEL,
        .sparse_min_ctx = e.sparse_min_ctx,
    };
}

int setup_failed(const char *command, sac_status status, const char *message)
{
    if (status == SAC_ERR_CANCELLED && interrupt_pending()) return EXIT_INTERRUPTED;
    fprintf(stderr, "saccade %s: %s\n", command, message);
    return status == SAC_ERR_ARG ? EXIT_USAGE : EXIT_RUNTIME;
}

int setup_check_model(const char *command, const char *model)
{
    char buf[4096], message[4352];
    const char *path = models_find(model, buf, sizeof buf);
    if (access(path, R_OK) == 0) return OPTIONS_GO_ON;
    models_explain(model, path, message, sizeof message);
    return setup_failed(command, SAC_ERR_NOT_FOUND, message);
}

/* Locks current memory, that is the weights; later pages, such as the KV cache, are not locked. */
static void lock_memory(const char *command)
{
    struct rlimit limit;
    if (mlockall(MCL_CURRENT | MCL_ONFAULT) == 0) return;
    const int why = errno;
    char most[48] = "no limit";
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        snprintf(most, sizeof most, "at most %llu KiB", (unsigned long long)limit.rlim_cur / 1024);
    fprintf(stderr,
            "saccade %s: the weights are not locked: %s; this user may lock %s ('ulimit -l'). "
            "'ulimit -l unlimited' raises it in a shell that may, a line 'USER - memlock "
            "unlimited' in /etc/security/limits.conf for a user, LimitMEMLOCK=infinity for a "
            "service\n",
            command, strerror(why), most);
}

static bool on_load(void *user, double share)
{
    progress_update(user, share);
    return interrupt_pending();
}

static int begin_talking(const struct setup *s)
{
    sac_error err = {0};
    terminal_set_colour((enum terminal_colour)s->colour);
    const sac_status status = s->log_file ? logfile_open(s->log_file, &err) : SAC_OK;
    return status == SAC_OK ? OPTIONS_GO_ON : setup_failed(s->command, status, err.msg);
}

/* -ngl is llama.cpp's --device and number of layers; more layers than exist include the output. */
static int choose_device(struct setup *s)
{
    const bool is_gpu = s->device && strcmp(s->device, "cpu") != 0;
    const int32_t n = s->n_gpu_layers;
    if (n < 0) return OPTIONS_GO_ON;
    if (s->device && is_gpu != (n > 0))
        return options_usage_error(s->command, "-ngl %d and --device %s contradict each other", n,
                                   s->device);
    if (n > 0 && !s->device) s->device = "cuda";
    return OPTIONS_GO_ON;
}

/* Parses "3,1". */
static int parse_split(struct setup *s)
{
    s->n_split = 0;
    for (const char *at = s->tensor_split; at; s->n_split++) {
        char *end;
        if (s->n_split == SETUP_SPLIT_MAX)
            return options_usage_error(s->command, "-ts: more than %u shares", SETUP_SPLIT_MAX);
        s->split[s->n_split] = strtof(at, &end);
        if (end == at || (*end && *end != ','))
            return options_usage_error(s->command, "-ts: '%s' is no list of shares such as 3,1",
                                       s->tensor_split);
        at = *end ? end + 1 : NULL;
    }
    return OPTIONS_GO_ON;
}

int setup_load(struct setup *s, sac_model **out)
{
    if (!s->model || !*s->model)
        return options_usage_error(s->command, "a model is missing (-m FILE)");
    int code = setup_method_specs(s);
    if (code == OPTIONS_GO_ON) code = setup_tier(s);
    if (code == OPTIONS_GO_ON) code = choose_device(s);
    if (code == OPTIONS_GO_ON) code = parse_split(s);
    if (code == OPTIONS_GO_ON) code = begin_talking(s);
    if (code == OPTIONS_GO_ON) code = setup_check_model(s->command, s->model);
    if (code != OPTIONS_GO_ON) return code;
    char buf[4096];
    const char *path = models_find(s->model, buf, sizeof buf);
    struct progress bar;
    sac_model_params params = sac_model_params_default();
    params.n_threads = s->n_threads;
    params.pre = s->pre;
    params.rope = (sac_rope_scaling)s->rope;
    params.rope_scale = s->rope_scale;
    params.rope_freq_base = s->rope_freq_base;
    params.yarn_orig_ctx = s->yarn_orig_ctx;
    params.screen = !s->no_screen;
    params.progress = on_load;
    params.progress_user = &bar;
    sac_error err = {0};
    progress_begin(&bar, "loading");
    const sac_status status = sac_model_load(out, path, &params, &err);
    progress_end(&bar);
    if (status != SAC_OK) return setup_failed(s->command, status, err.msg);
    if (s->mlock) lock_memory(s->command);
    if (s->verbose) {
        const sac_model_info i = sac_model_get_info(*out);
        fprintf(stderr,
                "model    %s: %s, %s, %u layers, %u+%u heads of %u, vocabulary %u, trained at %u "
                "tokens, %.1f M parameters, %.1f MiB\n",
                path, i.arch, i.file_type, i.n_layer, i.n_head, i.n_kv_head, i.head_dim, i.n_vocab,
                i.n_ctx_train, (double)i.n_params * 1e-6, (double)i.weight_bytes / 0x1p20);
    }
    return OPTIONS_GO_ON;
}

sac_engine_params setup_engine_params(const struct setup *s, uint32_t n_ctx, uint32_t n_seq)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = n_ctx;
    p.n_seq_max = n_seq;
    p.n_batch = s->n_batch;
    p.device = s->device;
    p.device_split = s->split;
    p.n_device_split = s->n_split;
    p.device_share = s->gpu_share;
    p.n_device_layer = s->n_gpu_layers > 0 ? (uint32_t)s->n_gpu_layers : 0;
    p.device_rows = s->device_rows;
    p.kv_on_host = s->kv_on_host;
    p.n_threads = s->n_threads;
    p.type_k = (sac_kv_type)(s->kv >= 0 ? s->kv : s->type_k);
    p.type_v = (sac_kv_type)(s->kv >= 0 ? s->kv : s->type_v);
    p.sparse_min_ctx = s->sparse_min_ctx;
    p.prefill = s->prefill_list;
    p.n_prefill = s->prefill ? 1 : 0;
    p.decode = s->decode_list;
    p.n_decode = s->decode ? 1 : 0;
    p.tier = s->tier.fast_bytes ? &s->tier : NULL;
    return p;
}

void setup_warn_of_context(const char *command, const sac_model *model, uint32_t n_ctx)
{
    const uint32_t trained = sac_model_get_info(model).n_ctx_train;
    if (n_ctx > trained)
        fprintf(stderr,
                "saccade %s: the context of %u is beyond the %u tokens that the model was trained "
                "with\n",
                command, n_ctx, trained);
}

/* A value of /proc/meminfo in kilobytes; 0: not available. */
static uint64_t meminfo_kb(const char *key)
{
    char line[128];
    uint64_t kb = 0;
    FILE *f = fopen("/proc/meminfo", "r");
    if (!f) return 0;
    while (!kb && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kb = strtoull(line + strlen(key) + 1, NULL, 10);
    fclose(f);
    return kb;
}

sac_status setup_check_memory(const char *command, const sac_engine *engine, sac_error *err)
{
    const sac_engine_stats s = sac_engine_get_stats(engine);
    const uint32_t n_ctx = sac_engine_get_params(engine).n_ctx;
    const double gib = 0x1p30, want = (double)(s.kv_bytes + s.side_bytes + s.scratch_bytes) / gib;
    const double all = (double)meminfo_kb("MemTotal") * 1024 / gib;
    const double left = (double)meminfo_kb("MemAvailable") * 1024 / gib;
    if (all > 0 && want > all)
        return error_set(err, SAC_ERR_MEMORY,
                         "a context of %u tokens needs %.1f GiB of memory, this machine has %.1f: "
                         "a smaller -c, or -ctk q8 -ctv q8",
                         n_ctx, want, all);
    if (all > 0 && want > left)
        fprintf(stderr,
                "saccade %s: when it is full, the context of %u tokens takes %.1f GiB of memory; "
                "%.1f are free: think of a smaller -c, or of -ctk q8 -ctv q8\n",
                command, n_ctx, want, left);
    return SAC_OK;
}
