/* setup.h: the options of model, memory and attention that commands share, and what they
 * determine: a loaded model, an engine's parameters.
 *
 * Functions that return int give OPTIONS_GO_ON, or an exit code after reporting the error on
 * stderr. Texts in the structs are borrowed from argv or the environment. */
#ifndef SAC_APP_SETUP_H
#define SAC_APP_SETUP_H

#include "app/options.h"
#include "app/pathsize.h"

#include "base/status.h"
#include "saccade_tier.h"

#define SETUP_SPLIT_MAX 64u

/* choices of options that several tables define for their own structs */
#define SETUP_KV_CHOICES "f16=auto|bf16|q8=q8_0" /* in the order of enum sac_kv_type */
#define SETUP_DEVICE_HELP                                                                          \
    "device that computes: cpu, cuda or cuda:N (an NVIDIA GPU), or several, cuda:0,cuda:1 (-sm "   \
    "says how they share the work; default: cpu)"
#define SETUP_SPLIT_MODE_HELP                                                                      \
    "how several GPUs share the model: layer, consecutive layers on each; row, a share of every "  \
    "layer on each, all computing at once"
#define SETUP_SPLIT_MODES "layer|row" /* in the order of false and true */
#define SETUP_SPLIT_HELP                                                                           \
    "shares of the layers for the GPUs of --device, in their order (default: by free memory)"
#define SETUP_LAYERS_HELP                                                                          \
    "layers on the GPU, the last ones; more than the model has (99): the output, too; 0: none; "   \
    "-1: as --device says"
#define SETUP_KV_DEVICE_HELP                                                                       \
    "where the KV cache is and attention runs: same, on the device of each layer; host, on the "   \
    "CPU for all layers"
#define SETUP_KV_DEVICES "same|host" /* in the order of false and true */
#define SETUP_BATCH_HELP                                                                           \
    "maximum tokens per step; 0: 128 per thread, 512 to 2048, 512 with methods that plan chunk "   \
    "by chunk, and on a GPU 2048"

/* Model, context and memory. */
struct setup {
    const char *command; /* for messages; not an option */
    const char *model, *pre;
    uint32_t n_ctx, n_batch, n_threads; /* 0: the library's default */
    const char *device;                 /* NULL: n_gpu_layers decides */
    int32_t n_gpu_layers;               /* -1: `device` decides */
    int kv_on_host;                     /* index into SETUP_KV_DEVICES */
    int device_rows;                    /* index into SETUP_SPLIT_MODES */
    const char *tensor_split;           /* "A,B"; NULL: by free memory */
    float split[SETUP_SPLIT_MAX];       /* parsed tensor_split, [n_split] */
    uint32_t n_split;
    float gpu_share;
    int kv, type_k, type_v; /* enum sac_kv_type; kv sets both unless it is -1 */
    int rope;               /* enum sac_rope_scaling */
    float rope_scale, rope_freq_base;
    uint32_t yarn_orig_ctx;
    const char *prefill, *decode, *budget; /* NULL: dense, dense, the methods' defaults */
    float mass;                            /* 0: the methods' default */
    uint32_t sparse_min_ctx;
    const char *log_file;
    int colour; /* enum terminal_colour */
    bool no_screen, mlock, verbose;
    const char *kv_disk, *kv_fast; /* "PATH:SIZE", "SIZE"; NULL: all pages in memory */
    int kv_policy;                 /* enum sac_tier_policy */
    bool kv_no_ahead;
    int kv_admit;                      /* enum sac_tier_admit */
    char kv_file[PATHSIZE_PATH_BYTES]; /* parsed kv_disk */
    struct sac_tier_params tier;
    char prefill_spec[256], decode_spec[256]; /* complete specifications of the methods */
    const char *context; /* method that joins documents, see setup_method_context; NULL: none */
    char context_spec[256];
    const char *prefill_list[1], *decode_list[1]; /* for sac_engine_params: the specifications */
};

/* Option table for struct setup. */
extern const struct option_spec setup_specs[];

struct setup setup_default(const char *command);

/* Reports a missing or unreadable model file before setup_load would. */
int setup_check_model(const char *command, const char *model);
/* Loads the model of `-m`, a path or the name of a fetched model, with a progress bar. Before that
 * it checks the methods' specifications, so that a mistake is reported at once. */
int setup_load(struct setup *s, sac_model **out);

/* Parameters for `n_seq` sequences of `n_ctx` tokens; they borrow from `s`. */
sac_engine_params setup_engine_params(const struct setup *s, uint32_t n_ctx, uint32_t n_seq);

/* Warns on stderr if the context is longer than the model was trained with. */
void setup_warn_of_context(const char *command, const sac_model *model, uint32_t n_ctx);

/* Compares the engine's memory with the machine's: more than exists is an error, more than is free
 * a warning on stderr. */
sac_status setup_check_memory(const char *command, const sac_engine *engine, sac_error *err);

/* Prints "saccade COMMAND: message" to stderr and returns the exit code for the status. */
int setup_failed(const char *command, sac_status status, const char *message);

#endif
