/* cuda_lib.h: the CUDA library as checks of single slots call it: the one that SAC_CHECK_CUDA names
 * (`make check-cuda`), else the one that runs on a CPU; and copies to and from its memory. */
#ifndef SAC_TESTS_CUDA_LIB_H
#define SAC_TESTS_CUDA_LIB_H

#include "../unit/must.h"
#include "base/mem.h"
#include "ops/cuda/api.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_TAKE_MAX = 256 };

static const struct cuda_api *api;
static struct cuda_device *device;
static struct ops ref;
static void *taken[N_TAKE_MAX];
static uint32_t n_taken;

static inline int open_library(void **state)
{
    (void)state;
    const char *path = getenv("SAC_CHECK_CUDA");
    void *library = dlopen(path ? path : CUDA_HOST, RTLD_NOW | RTLD_LOCAL);
    sac_error err;
    cuda_api_fn get;
    if (!library || ops_init_isa(&ref, "ref", &err) != SAC_OK) return -1;
    *(void **)&get = dlsym(library, CUDA_API_SYMBOL);
    api = get();
    return api->abi == CUDA_ABI && api->open(&device, 0, &err) == SAC_OK ? 0 : -1;
}

static inline int close_library(void **state)
{
    (void)state;
    api->close(device);
    return 0;
}

/* A copy there, until give_all. */
static inline void *put(const void *src, size_t bytes)
{
    assert_true(n_taken < N_TAKE_MAX);
    void *p = taken[n_taken++] = api->take(device, bytes);
    assert_non_null(p);
    api->up(device, p, src, bytes);
    return p;
}

/* Room there that holds anything, until give_all. */
static inline void *put_any(size_t bytes)
{
    void *any = mem_alloc(bytes);
    memset(any, 0xff, bytes);
    void *there = put(any, bytes);
    mem_free(any);
    return there;
}

static inline void get(void *dst, const void *src, size_t bytes)
{
    sac_error err;
    api->down(device, dst, src, bytes);
    must(api->wait(device, &err), &err);
}

static inline void give_all(void)
{
    for (uint32_t i = 0; i < n_taken; i++) api->give(device, taken[i]);
    n_taken = 0;
}

#endif
