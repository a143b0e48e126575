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

/* of options that several tables list, each in a struct of its own */
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
    uint32_t n_ctx, n_batch, n_threads; /* 0: the library's choice */
    const char *device;                 /* NULL: what n_gpu_layers says */
    int32_t n_gpu_layers;               /* -1: as `device` says */
    int kv_on_host;                     /* of SETUP_KV_DEVICES */
    int device_rows;                    /* of SETUP_SPLIT_MODES */
    const char *tensor_split;           /* "A,B"; NULL: as free memory is */
    float split[SETUP_SPLIT_MAX];       /* what that comes to: [n_split] */
    uint32_t n_split;
    float gpu_share;
    int kv, type_k, type_v; /* enum sac_kv_type; kv is -1 or decides both */
    int rope;               /* enum sac_rope_scaling */
    float rope_scale, rope_freq_base;
    uint32_t yarn_orig_ctx;
    const char *prefill, *decode, *budget; /* NULL: dense, dense, the methods' own */
    float mass;                            /* 0: the methods' own */
    uint32_t sparse_min_ctx;
    const char *log_file;
    int colour; /* enum terminal_colour */
    bool no_screen, mlock, verbose;
    const char *kv_disk, *kv_fast; /* "PATH:SIZE", "SIZE"; NULL: all pages in memory */
    int kv_policy;                 /* enum sac_tier_policy */
    bool kv_no_ahead;
    int kv_admit;                      /* enum sac_tier_admit */
    char kv_file[PATHSIZE_PATH_BYTES]; /* what these come to */
    struct sac_tier_params tier;
    char prefill_spec[256], decode_spec[256]; /* what these come to */
    const char *context; /* how documents are joined, of setup_method_context; NULL: none are */
    char context_spec[256];
    const char *prefill_list[1], *decode_list[1]; /* for sac_engine_params: point at them */
};

/* A table for struct setup. */
extern const struct option_spec setup_specs[];

struct setup setup_default(const char *command);

/* Says early what setup_load would say later of a model file that is missing or not to be read. */
int setup_check_model(const char *command, const char *model);
/* Loads the model of `-m`: a path, or the name of a fetched model. Shows a progress bar. First it
 * makes the methods' specifications and has them checked, so that a wrong parameter is told at
 * once. */
int setup_load(struct setup *s, sac_model **out);

/* The engine's parameters for `n_seq` sequences of `n_ctx` tokens each; they borrow from `s`. */
sac_engine_params setup_engine_params(const struct setup *s, uint32_t n_ctx, uint32_t n_seq);

/* Tells on stderr that a context is longer than those the model was trained with. */
void setup_warn_of_context(const char *command, const sac_model *model, uint32_t n_ctx);

/* What the engine has planned, against the memory of the machine: more than there is is an error,
 * more than is free is told on stderr. */
sac_status setup_check_memory(const char *command, const sac_engine *engine, sac_error *err);

/* Prints "saccade COMMAND: message" to stderr and returns the exit code that fits the status. */
int setup_failed(const char *command, sac_status status, const char *message);

#endif
