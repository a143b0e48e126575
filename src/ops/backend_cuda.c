/* backend_cuda.c: GPUs as a backend: finds and loads libsaccade_cuda.so, checks that it belongs to
 * this build, and fills the op table with calls of its launchers. Slots that select for a single
 * lane stay empty: host methods that call them are refused before an engine is created. Only `dots`
 * is the CPU's, for what the host computes from data that it has copied back.
 *
 * Results of launchers are not checked here: the device remembers the first failure, and
 * backend_wait returns it. The library stays loaded, as CUDA's own state does. */
#include "ops/backend.h"
#include "ops/cuda/api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libsaccade_cuda.so"

/* ---- The library ---- */

static void *open_in(const char *folder, size_t n_folder, const char *below)
{
    char path[4096];
    const int n = snprintf(path, sizeof path, "%.*s%s" LIBRARY, (int)n_folder, folder, below);
    return n > 0 && (size_t)n < sizeof path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

static sac_status open_library(void **out, sac_error *err)
{
    Dl_info here;
    const char *named = getenv("SACCADE_CUDA"), *why;
    if (named && *named) {
        *out = dlopen(named, RTLD_NOW | RTLD_LOCAL);
    } else {
        *out = NULL;
        const bool is_known = dladdr((void *)&open_library, &here) && here.dli_fname;
        const char *slash = is_known ? strrchr(here.dli_fname, '/') : NULL;
        const size_t n = slash ? (size_t)(slash - here.dli_fname) + 1 : 0;
        if (n) *out = open_in(here.dli_fname, n, "");
        if (!*out && n) *out = open_in(here.dli_fname, n, "../lib/");
        if (!*out) *out = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    }
    if (*out) return SAC_OK;
    why = dlerror();
    return error_set(err, SAC_ERR_NOT_FOUND,
                     "the library for GPUs cannot be loaded: %s; 'make cuda' builds it, and "
                     "SACCADE_CUDA=FILE says where it is",
                     why ? why : LIBRARY);
}

static sac_status find_api(const struct cuda_api **out, sac_error *err)
{
    void *library;
    TRY(open_library(&library, err));
    cuda_api_fn get;
    void *symbol = dlsym(library, CUDA_API_SYMBOL);
    memcpy(&get, &symbol, sizeof get); /* C has no cast from data to functions */
    *out = symbol ? get() : NULL;
    if (!*out || (*out)->abi != CUDA_ABI)
        return error_set(err, SAC_ERR_UNSUPPORTED,
                         "the library for GPUs is of another build than this program: 'make cuda' "
                         "builds both");
    return SAC_OK;
}

/* ---- Operations ---- */

static const struct backend *of(const struct workers *pool)
{
    return workers_queue(pool);
}

static void linear(struct workers *pool, const struct op_linear *op)
{
    (void)of(pool)->api->linear(of(pool)->device, op);
}

static void attn(struct workers *pool, const struct op_attn *op)
{
    (void)of(pool)->api->attn(of(pool)->device, op);
}

static void kv_write(struct workers *pool, const struct op_kv_write *op)
{
    (void)of(pool)->api->kv_write(of(pool)->device, op);
}

static void seal(struct workers *pool, const struct op_seal *op)
{
    (void)of(pool)->api->seal(of(pool)->device, op);
}

static void rmsnorm(struct workers *pool, const struct op_rmsnorm *op)
{
    (void)of(pool)->api->rmsnorm(of(pool)->device, op);
}

static void rope(struct workers *pool, const struct op_rope *op)
{
    (void)of(pool)->api->rope(of(pool)->device, op);
}

static void add(struct workers *pool, const struct op_add *op)
{
    (void)of(pool)->api->add(of(pool)->device, op);
}

static void top(struct workers *pool, const struct op_top *op)
{
    (void)of(pool)->api->top(of(pool)->device, op);
}

static void unseal(struct workers *pool, const struct op_unseal *op)
{
    (void)of(pool)->api->unseal(of(pool)->device, op);
}

static void mass(struct workers *pool, const struct op_mass *op)
{
    (void)of(pool)->api->mass(of(pool)->device, op);
}

/* ---- Selection ---- */

static void lane_boxes(struct workers *pool, const struct ops *ops, const struct op_lane_boxes *op,
                       uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_boxes(of(pool)->device, op, n);
}

static void lane_logits(struct workers *pool, const struct ops *ops,
                        const struct op_lane_logits *op, uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_logits(of(pool)->device, op, n);
}

static void lane_shares(struct workers *pool, const struct ops *ops,
                        const struct op_lane_shares *op, uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_shares(of(pool)->device, op, n);
}

static void lane_vote(struct workers *pool, const struct ops *ops, const struct op_lane_vote *op,
                      uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_vote(of(pool)->device, op, n);
}

static void lane_fold(struct workers *pool, const struct ops *ops, const struct op_lane_fold *op,
                      uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_fold(of(pool)->device, op, n);
}

static void lane_ends(struct workers *pool, const struct ops *ops, const struct op_lane_ends *op,
                      uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_ends(of(pool)->device, op, n);
}

static void lane_take(struct workers *pool, const struct ops *ops, const struct op_lane_take *op,
                      uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_take(of(pool)->device, op, n);
}

static void lane_draw(struct workers *pool, const struct ops *ops, const struct op_lane_draw *op,
                      uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_draw(of(pool)->device, op, n);
}

static void lane_visit(struct workers *pool, const struct ops *ops, const struct op_lane_visit *op,
                       uint32_t n)
{
    (void)ops;
    (void)of(pool)->api->lane_visit(of(pool)->device, op, n);
}

static void lane_begin(struct workers *pool, const struct op_lane_begin *op, uint32_t n)
{
    (void)of(pool)->api->lane_begin(of(pool)->device, op, n);
}

static void lane_list(struct workers *pool, const struct op_lane_list *op, uint32_t n)
{
    (void)of(pool)->api->lane_list(of(pool)->device, op, n);
}

static void lane_observe(struct workers *pool, const struct op_lane_observe *op, uint32_t n)
{
    (void)of(pool)->api->lane_observe(of(pool)->device, op, n);
}

static void lane_keep(struct workers *pool, const struct op_lane_keep *op, uint32_t n)
{
    (void)of(pool)->api->lane_keep(of(pool)->device, op, n);
}

static void lane_lines(struct workers *pool, const struct op_lane_lines *op, uint32_t n)
{
    (void)of(pool)->api->lane_lines(of(pool)->device, op, n);
}

static void past(struct workers *pool, const struct op_past *op, uint32_t n)
{
    (void)of(pool)->api->past(of(pool)->device, op, n);
}

static void lane_recall(struct workers *pool, const struct op_lane_recall *op, uint32_t n)
{
    (void)of(pool)->api->lane_recall(of(pool)->device, op, n);
}

static void lane_settle(struct workers *pool, const struct op_lane_settle *op, uint32_t n)
{
    (void)of(pool)->api->lane_settle(of(pool)->device, op, n);
}

static void lane_rest(struct workers *pool, const struct op_lane_rest *op, uint32_t n)
{
    (void)of(pool)->api->lane_rest(of(pool)->device, op, n);
}

static void note(struct workers *pool, const struct op_note *op)
{
    (void)of(pool)->api->note(of(pool)->device, op);
}

static void sample(struct workers *pool, const struct op_sample *op)
{
    (void)of(pool)->api->sample(of(pool)->device, op);
}

static void blocks(struct workers *pool, const struct op_blocks *op)
{
    (void)of(pool)->api->blocks(of(pool)->device, op);
}

static void trace(struct workers *pool, const struct op_trace *op)
{
    (void)of(pool)->api->trace(of(pool)->device, op);
}

static void antidiag(struct workers *pool, const struct op_antidiag *op)
{
    (void)of(pool)->api->antidiag(of(pool)->device, op);
}

/* ---- Offloading ---- */

static void offload_store(struct workers *pool, const struct op_offload_store *op)
{
    (void)of(pool)->api->offload_store(of(pool)->device, op);
}

static void offload_renew(struct workers *pool, const struct op_offload_renew *op)
{
    (void)of(pool)->api->offload_renew(of(pool)->device, op);
}

static void offload_fetch(struct workers *pool, const struct op_offload_fetch *op)
{
    (void)of(pool)->api->offload_fetch(of(pool)->device, op);
}

/* ---- Opening ---- */

static void write_name(char out[160], uint32_t index, const struct cuda_info *info)
{
    snprintf(out, 160, "cuda:%u %s", index, info->name);
}

sac_status backend_name_cuda(char out[160], uint32_t index, sac_error *err)
{
    const struct cuda_api *api;
    struct cuda_info info;
    TRY(find_api(&api, err));
    TRY(api->info(&info, index, err));
    write_name(out, index, &info);
    return SAC_OK;
}

sac_status backend_open_cuda(struct backend *out, uint32_t index, sac_error *err)
{
    struct cuda_info info;
    struct ops here;
    TRY(ops_init(&here, err));
    TRY(find_api(&out->api, err));
    TRY(out->api->info(&info, index, err));
    TRY(out->api->open(&out->device, index, err));
    write_name(out->name, index, &info);
    out->index = index;
    out->bytes_free = info.bytes_free;
    out->ops = (struct ops){.isa = "cuda",
                            .linear = linear,
                            .attn = attn,
                            .kv_write = kv_write,
                            .seal = seal,
                            .rmsnorm = rmsnorm,
                            .rope = rope,
                            .add = add,
                            .top = top,
                            .lanes = {.boxes = lane_boxes,
                                      .logits = lane_logits,
                                      .shares = lane_shares,
                                      .vote = lane_vote,
                                      .fold = lane_fold,
                                      .ends = lane_ends,
                                      .take = lane_take,
                                      .draw = lane_draw,
                                      .visit = lane_visit,
                                      .begin = lane_begin,
                                      .list = lane_list,
                                      .observe = lane_observe,
                                      .keep = lane_keep,
                                      .lines = lane_lines,
                                      .past = past,
                                      .recall = lane_recall,
                                      .settle = lane_settle,
                                      .rest = lane_rest,
                                      .note = note,
                                      .sample = sample,
                                      .blocks = blocks,
                                      .trace = trace,
                                      .antidiag = antidiag},
                            .offload = {offload_store, offload_renew, offload_fetch},
                            .docs = {unseal, mass},
                            .dots = here.dots,
                            .linear_scratch = out->api->linear_scratch,
                            .attn_scratch = out->api->attn_scratch};
    return SAC_OK;
}
