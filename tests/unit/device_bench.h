/* device_bench.h: what tests of engines on a device share: two tiny models, one of them with
 * windows, a prompt for both, and steps until no row waits. */
#ifndef SAC_TESTS_DEVICE_BENCH_H
#define SAC_TESTS_DEVICE_BENCH_H

#include "engine/engine.h"
#include "must.h"
#include "tiny_model.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_DEVICE_PROMPT = 205 };

static sac_model *model, *windowed;
static int32_t prompt[N_DEVICE_PROMPT];

/* Models whose heads have `dim` channels (0: TINY_DIM), for engines on the device of `doc_library`.
 */
static inline int open_pair(const char *library, uint32_t dim)
{
    setenv("SACCADE_CUDA", library, 1);
    model = tiny_open(&(struct tiny){.seed = 1, .dim = dim});
    windowed = tiny_open(&(struct tiny){.seed = 2, .window = 48, .n_layer = 6, .dim = dim});
    for (int i = 0; i < N_DEVICE_PROMPT; i++) prompt[i] = (i * 37 + i / 9) % TINY_VOCAB;
    return model && windowed ? 0 : -1;
}

static inline int free_pair(void **state)
{
    (void)state;
    sac_model_free(model);
    sac_model_free(windowed);
    return 0;
}

/* Of a small engine on `device`; NULL: the CPU. */
static inline sac_engine_params device_params(const char *device, sac_kv_type type)
{
    sac_engine_params p = sac_engine_params_default();
    p.n_ctx = 512;
    p.n_seq_max = 3;
    p.n_batch = 64;
    p.n_threads = 2;
    p.type_k = p.type_v = type;
    p.device = device;
    return p;
}

static inline void append(sac_engine *e, sac_seq seq, const int32_t *tok, uint32_t n,
                          sac_row_kind kind)
{
    sac_error err;
    must(sac_seq_append(e, seq, tok, n, kind, SAC_WANT_LAST, &err), &err);
}

static inline void step_all(sac_engine *e, sac_row_fn hear, void *user)
{
    uint32_t n = 1;
    sac_error err;
    while (n) must(sac_step(e, hear, user, &n, &err), &err);
}

/* The divergence of one row's softmax from another's. */
static inline double divergence(const float *p, const float *q)
{
    double sum_p = 0, sum_q = 0, kl = 0;
    for (int i = 0; i < TINY_VOCAB; i++) sum_p += exp((double)p[i]), sum_q += exp((double)q[i]);
    for (int i = 0; i < TINY_VOCAB; i++) {
        const double a = (double)p[i] - log(sum_p), b = (double)q[i] - log(sum_q);
        kl += exp(a) * (a - b);
    }
    return kl;
}

/* A count of the library's, whose kernels run on a CPU. */
static inline uint32_t count_of(const char *path, const char *name)
{
    void *library = dlopen(path, RTLD_NOW);
    const uint32_t *n = library ? dlsym(library, name) : NULL;
    if (!n) fail_msg("no count %s", name);
    const uint32_t count = *n;
    dlclose(library); /* engines load it for good */
    return count;
}

static inline uint32_t graphs_started(const char *path)
{
    return count_of(path, "n_graph_started");
}

#endif
