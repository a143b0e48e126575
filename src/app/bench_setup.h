/* bench_setup.h: the options about model and memory that several benchmarks share, one macro each.
 * A benchmark lists those that apply to it. Unlike the options of setup_specs they are never taken
 * from the environment: a benchmark's command line shows everything on which its figures depend. */
#ifndef SAC_APP_BENCH_SETUP_H
#define SAC_APP_BENCH_SETUP_H

#include "app/setup.h"

#include <stddef.h>

#define BENCH_SETUP(names, type, field, arg, help, ...)                                            \
    {                                                                                              \
        names, type, offsetof(struct setup, field), arg, help, __VA_ARGS__                         \
    }

#define BENCH_MODEL                                                                                \
    BENCH_SETUP("-m --model", OPTION_TEXT, model, "FILE",                                          \
                "GGUF file, or the name of a fetched model", .env = NULL)
#define BENCH_THREADS                                                                              \
    BENCH_SETUP("-t --threads", OPTION_U32, n_threads, "N", "threads; 0: one per available CPU",   \
                .env = NULL, .max = 4096)
#define BENCH_BATCH                                                                                \
    BENCH_SETUP("-b --batch-size", OPTION_U32, n_batch, "N", SETUP_BATCH_HELP, .env = NULL,        \
                .max = 65536)
#define BENCH_DEVICE                                                                               \
    BENCH_SETUP("--device", OPTION_TEXT, device, "NAME", SETUP_DEVICE_HELP, .env = NULL)
#define BENCH_TYPE_K                                                                               \
    BENCH_SETUP("-ctk --cache-type-k", OPTION_CHOICE, type_k, NULL,                                \
                "type of the keys in the KV cache", .env = NULL, .choices = SETUP_KV_CHOICES)
#define BENCH_TYPE_V                                                                               \
    BENCH_SETUP("-ctv --cache-type-v", OPTION_CHOICE, type_v, NULL,                                \
                "type of the values in the KV cache; q8 requires q8 keys", .env = NULL,            \
                .choices = SETUP_KV_CHOICES)

#endif
