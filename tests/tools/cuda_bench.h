/* cuda_bench.h: what the benchmarks of the CUDA library share: the library, its GPU, and time. */
#ifndef SAC_TESTS_CUDA_BENCH_H
#define SAC_TESTS_CUDA_BENCH_H

#include "ops/cuda/api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BENCH_TIMES = 5 };

struct bench {
    const struct cuda_api *api;
    struct cuda_device *dev;
    struct cuda_info info;
    double copy_rate; /* TB/s of a copy within its memory, if that was measured */
    bool json;
    uint32_t n_result;
};

static inline void die(const char *what)
{
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

static inline void wait_done(const struct bench *b)
{
    sac_error err;
    if (b->api->wait(b->dev, &err) != SAC_OK) die(err.msg);
}

static inline void *take(const struct bench *b, size_t bytes)
{
    void *p = b->api->take(b->dev, bytes);
    if (!p) die("the GPU has too little memory: set -n lower");
    return p;
}

static inline double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static inline int order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median time of a call of `run`, whose i-th one it is, in queues of n_call behind each other. */
static inline double time_us(const struct bench *b,
                             void (*run)(const struct bench *b, const void *op, uint32_t i),
                             const void *op, uint32_t n_call)
{
    double us[BENCH_TIMES];
    run(b, op, 0);
    wait_done(b);
    for (int i = 0; i < BENCH_TIMES; i++) {
        const double start = now_us();
        for (uint32_t j = 0; j < n_call; j++) run(b, op, j);
        wait_done(b);
        us[i] = (now_us() - start) / n_call;
    }
    qsort(us, BENCH_TIMES, sizeof us[0], order);
    return us[BENCH_TIMES / 2];
}

static inline const struct cuda_api *library(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!lib) die(dlerror());
    cuda_api_fn get;
    *(void **)&get = dlsym(lib, CUDA_API_SYMBOL);
    if (!get) die("the library has no table");
    if (get()->abi != CUDA_ABI) die("library and program are of different builds");
    return get();
}

/* The library at `path` and the first GPU; the program ends if there is none. */
static inline struct bench bench_open(const char *path)
{
    sac_error err;
    struct bench b = {.api = library(path)};
    if (b.api->open(&b.dev, 0, &err) != SAC_OK || b.api->info(&b.info, 0, &err) != SAC_OK)
        die(err.msg);
    return b;
}

#endif
