/* device.cu: GPUs are found and opened here, memory is allocated, steps are kept back, and the
 * table of the interface is filled (api.h). Transfers are stage.cu's.
 *
 * Invariant: the first failure is kept until `wait` reports it; later ones are likely its
 * consequences. */
#include "ops/cuda/queue.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RING_BYTES ((size_t)64 << 20)
#define MAJOR_MIN  8u /* the first with bf16 mma and cp.async */

/* A library for checks (cmake/cuda.cmake) contains the code for GPUs of this compute capability,
 * and reports the GPU that runs it as one of them, so that the host plans for its limits. 0: no
 * imitation. */
#ifdef SAC_CUDA_AS
#define IMITATES ((uint32_t)SAC_CUDA_AS)
#else
#define IMITATES 0u
#endif

/* ---- Failures ---- */

__attribute__((format(printf, 3, 4))) static sac_status fail(sac_error *err, sac_status code,
                                                             const char *format, ...)
{
    va_list args;
    if (!err) return code;
    va_start(args, format);
    vsnprintf(err->msg, sizeof err->msg, format, args);
    va_end(args);
    return code;
}

void device_use(const struct cuda_device *d)
{
    cudaSetDevice((int)d->index); /* cannot fail: it worked when the device was opened */
}

sac_status device_fail(struct cuda_device *d, sac_status code, const char *what)
{
    if (d->status != SAC_OK) return code;
    d->status = code;
    snprintf(d->message, sizeof d->message, "%s", what);
    return code;
}

sac_status device_check(struct cuda_device *d, cudaError_t code, const char *what)
{
    char text[sizeof d->message];
    if (code == cudaSuccess) return SAC_OK;
    snprintf(text, sizeof text, "%s: %s", what, cudaGetErrorString(code));
    return device_fail(d, code == cudaErrorMemoryAllocation ? SAC_ERR_MEMORY : SAC_ERR_IO, text);
}

sac_status device_fits(struct cuda_device *d, size_t bytes, const char *what)
{
    char text[sizeof d->message];
    if (bytes <= d->smem_max) return SAC_OK;
    snprintf(text, sizeof text,
             "%s: %zu KiB of shared memory are needed, and a block of this GPU has %zu: use "
             "--device cpu",
             what, (bytes + 1023) >> 10, d->smem_max >> 10);
    return device_fail(d, SAC_ERR_UNSUPPORTED, text);
}

/* ---- Finding ---- */

static sac_status count(uint32_t *out, sac_error *err)
{
    int n = 0, driver = 0;
    const cudaError_t code = cudaGetDeviceCount(&n);
    *out = 0;
    cudaDriverGetVersion(&driver);
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return fail(err, SAC_ERR_NOT_FOUND,
                    "no NVIDIA driver is loaded: install one (nvidia-smi must list the GPU), or "
                    "use --device cpu");
    if (code == cudaErrorInsufficientDriver)
        return fail(err, SAC_ERR_UNSUPPORTED,
                    "the NVIDIA driver serves CUDA %d.%d and %d.%d is needed: install a newer one, "
                    "or use --device cpu",
                    driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                    CUDART_VERSION % 1000 / 10);
    if (code == cudaErrorNoDevice || (code == cudaSuccess && n == 0))
        return fail(err, SAC_ERR_NOT_FOUND,
                    "the NVIDIA driver sees no GPU (nvidia-smi must list one; CUDA_VISIBLE_DEVICES "
                    "can hide it): use --device cpu");
    if (code != cudaSuccess)
        return fail(err, SAC_ERR_IO, "CUDA does not start: %s", cudaGetErrorString(code));
    *out = (uint32_t)n;
    return SAC_OK;
}

static void imitate(struct cuda_info *out)
{
    char name[sizeof out->name];
    out->major = IMITATES / 10;
    out->minor = IMITATES % 10;
    snprintf(name, sizeof name, "imitation of %u.%u on %.80s", out->major, out->minor, out->name);
    memcpy(out->name, name, sizeof name);
}

/* Shared memory of a block of A100, of B200 and of smaller GPUs. */
static size_t imitated_shared(void)
{
    return (size_t)(IMITATES == 80 ? 163 : IMITATES == 100 ? 227 : 99) << 10;
}

static sac_status info(struct cuda_info *out, uint32_t index, sac_error *err)
{
    uint32_t n = 0;
    int driver = 0, runtime = 0;
    struct cudaDeviceProp prop;
    const sac_status status = count(&n, err);
    if (status != SAC_OK) return status;
    if (index >= n)
        return fail(err, SAC_ERR_NOT_FOUND, "there is no GPU %u: CUDA sees %u, counted from 0",
                    index, n);
    memset(out, 0, sizeof *out);
    cudaError_t code = cudaGetDeviceProperties(&prop, (int)index);
    if (code == cudaSuccess) code = cudaSetDevice((int)index);
    if (code == cudaSuccess) code = cudaMemGetInfo(&out->bytes_free, &out->bytes);
    if (code != cudaSuccess)
        return fail(err, SAC_ERR_IO, "GPU %u cannot be used: %s%s", index, cudaGetErrorString(code),
                    code == cudaErrorMemoryAllocation ? " (other programs fill its memory)" : "");
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(out->name, sizeof out->name, "%.127s", prop.name);
    out->index = index;
    out->major = (uint32_t)prop.major;
    out->minor = (uint32_t)prop.minor;
    out->n_sm = (uint32_t)prop.multiProcessorCount;
    out->driver = (uint32_t)driver;
    out->runtime = (uint32_t)runtime;
    if (IMITATES) imitate(out);
    return SAC_OK;
}

static sac_status check(const struct page_geom *geom, uint32_t n_head, sac_error *err)
{
    const uint32_t d = geom->head_dim;
    (void)n_head; /* any number is supported */
    if (d != 64 && d != 128 && d != 256)
        return fail(err, SAC_ERR_UNSUPPORTED,
                    "heads of %u: a GPU reads heads of 64, 128 and 256; use --device cpu", d);
    if (geom->type_k != geom->type_v)
        return fail(err, SAC_ERR_UNSUPPORTED,
                    "keys and values of different types: a GPU reads both as f16, bf16 or q8");
    return SAC_OK;
}

/* ---- Opening ---- */

static void close_device(struct cuda_device *d)
{
    if (!d) return;
    team_leave(d);
    device_use(d);
    if (d->stream) cudaStreamSynchronize(d->stream);
    blas_close(d->blas);
    queue_close(d->queue);
    if (d->ring) cudaFree(d->ring);
    if (d->tally) cudaFree(d->tally);
    if (d->draw_sums) cudaFree(d->draw_sums);
    if (d->ring_host) cudaFreeHost(d->ring_host);
    for (uint32_t i = 0; i < STAGING_BUFFERS; i++) {
        if (d->piece[i].host) cudaFreeHost(d->piece[i].host);
        if (d->piece[i].mirror) cudaFree(d->piece[i].mirror);
        if (d->piece[i].sent) cudaEventDestroy(d->piece[i].sent);
        if (d->piece[i].read) cudaEventDestroy(d->piece[i].read);
    }
    if (d->lost) cudaFreeHost(d->lost);
    if (d->reached) cudaEventDestroy(d->reached);
    if (d->staged) cudaEventDestroy(d->staged);
    if (d->before) cudaEventDestroy(d->before);
    if (d->sender) cudaStreamDestroy(d->sender);
    if (d->stream) cudaStreamDestroy(d->stream);
    free(d);
}

static cudaError_t open_parts(struct cuda_device *d)
{
    int smem = 0;
    cudaError_t code = cudaSetDevice((int)d->index);
    if (code == cudaSuccess)
        code =
            cudaDeviceGetAttribute(&smem, cudaDevAttrMaxSharedMemoryPerBlockOptin, (int)d->index);
    d->smem_max = IMITATES ? imitated_shared() : (size_t)smem;
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaStreamCreateWithFlags(&d->sender, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&d->staged, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&d->reached, cudaEventDisableTiming);
    if (code == cudaSuccess) code = cudaEventCreateWithFlags(&d->before, cudaEventDisableTiming);
    for (uint32_t i = 0; i < STAGING_BUFFERS && code == cudaSuccess; i++) {
        code = cudaEventCreateWithFlags(&d->piece[i].sent, cudaEventDisableTiming);
        if (code == cudaSuccess)
            code = cudaEventCreateWithFlags(&d->piece[i].read, cudaEventDisableTiming);
    }
    if (code == cudaSuccess)
        code = cudaHostAlloc((void **)&d->ring_host, RING_BYTES, cudaHostAllocDefault);
    if (code == cudaSuccess) code = cudaMalloc((void **)&d->ring, RING_BYTES);
    if (code == cudaSuccess)
        code = cudaHostAlloc((void **)&d->lost, sizeof *d->lost, cudaHostAllocMapped);
    if (code == cudaSuccess) *d->lost = 0;
    d->ring_bytes = d->ring_end = RING_BYTES;
    if (code == cudaSuccess) code = cudaMalloc((void **)&d->tally, TALLY * sizeof *d->tally);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(d->tally, 0, TALLY * sizeof *d->tally, d->stream);
    const size_t draw_bytes = (size_t)DRAW_LANES * DRAW_CUTS * sizeof *d->draw_sums;
    if (code == cudaSuccess) code = cudaMalloc((void **)&d->draw_sums, draw_bytes);
    if (code == cudaSuccess) code = cudaMemsetAsync(d->draw_sums, 0, draw_bytes, d->stream);
    return code;
}

static sac_status open_device(struct cuda_device **out, uint32_t index, sac_error *err)
{
    struct cuda_info i;
    sac_status status = info(&i, index, err);
    if (status != SAC_OK) return status;
    if (i.major < MAJOR_MIN)
        return fail(err, SAC_ERR_UNSUPPORTED,
                    "GPU %u (%s) has compute capability %u.%u and %u.0 is needed: use a newer GPU, "
                    "or --device cpu",
                    index, i.name, i.major, i.minor, MAJOR_MIN);
    struct cuda_device *d = (struct cuda_device *)calloc(1, sizeof *d);
    if (!d) return fail(err, SAC_ERR_MEMORY, "out of memory for a GPU");
    d->index = index;
    d->major = i.major;
    d->minor = i.minor;
    d->n_sm = i.n_sm;
    d->team[0] = d;
    d->n_team = 1;
    const cudaError_t code = open_parts(d);
    if (code != cudaSuccess) {
        status = fail(err, code == cudaErrorMemoryAllocation ? SAC_ERR_MEMORY : SAC_ERR_IO,
                      "GPU %u (%s) cannot be used: %s; %zu of %zu MiB are free", index, i.name,
                      cudaGetErrorString(code), i.bytes_free >> 20, i.bytes >> 20);
    } else if (queue_open(&d->queue) != SAC_OK) {
        status = fail(err, SAC_ERR_MEMORY, "out of memory for a GPU's queue");
    } else {
        status = blas_open(&d->blas, err);
    }
    if (status != SAC_OK) {
        close_device(d);
        return status;
    }
    *out = d;
    return SAC_OK;
}

/* ---- Memory ---- */

static void *take(struct cuda_device *d, size_t bytes)
{
    void *p = NULL;
    device_use(d);
    if (cudaMalloc(&p, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* reported as NULL */
        return NULL;
    }
    device_check(d, cudaMemsetAsync(p, 0, bytes, d->stream), "memory set to zero");
    return p;
}

static void give(struct cuda_device *d, void *p)
{
    if (!p) return;
    queue_flush(d);
    (void)team_settle(d);
    device_use(d);
    cudaFree(p);
}

static void *take_shared(struct cuda_device *d, size_t bytes)
{
    void *p = NULL;
    device_use(d);
    if (cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocMapped) != cudaSuccess) {
        cudaGetLastError(); /* reported as NULL */
        return NULL;
    }
    return p;
}

static void give_shared(struct cuda_device *d, void *p)
{
    if (!p) return;
    queue_flush(d);
    cudaStreamSynchronize(d->stream);
    cudaFreeHost(p);
}

static void pin(struct cuda_device *d, void *p, size_t bytes)
{
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
    const cudaError_t code = cudaHostRegister(p, bytes, flags);
    void *there = NULL;
    d->owns_pinned = code == cudaSuccess;
    if (!d->owns_pinned) cudaGetLastError();
    if (!d->owns_pinned && code != cudaErrorHostMemoryAlreadyRegistered) return; /* unpinned */
    d->pinned = (uint8_t *)p;
    d->n_pinned = bytes;
    device_use(d);
    d->writes_pinned = cudaHostGetDevicePointer(&there, p, 0) == cudaSuccess && there == p;
    if (!d->writes_pinned) cudaGetLastError();
}

static void unpin(struct cuda_device *d)
{
    if (!d->pinned) return;
    queue_flush(d);
    cudaStreamSynchronize(d->stream);
    if (d->owns_pinned) cudaHostUnregister(d->pinned);
    d->pinned = NULL;
    d->n_pinned = 0;
}

/* ---- Copies between devices, and waits ---- */

static void copy(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    cuda_copy_rows(d, dst, bytes, src, bytes, 1);
}

bool device_reach(struct cuda_device *from, const struct cuda_device *to)
{
    int can = 0;
    const uint64_t bit = (uint64_t)1 << to->index % 64;
    if (from->asked & bit) return from->reaches & bit;
    from->asked |= bit;
    device_use(from);
    cudaDeviceCanAccessPeer(&can, (int)from->index, (int)to->index);
    if (can) cudaDeviceEnablePeerAccess((int)to->index, 0);
    cudaGetLastError(); /* it may have been enabled already */
    if (can) from->reaches |= bit;
    return can;
}

/* Makes `waits` continue only after what is queued on `d` so far. */
static cudaError_t follow(struct cuda_device *waits, struct cuda_device *d)
{
    device_use(d);
    const cudaError_t code = cudaEventRecord(d->reached, d->stream);
    device_use(waits);
    return code == cudaSuccess ? cudaStreamWaitEvent(waits->stream, d->reached, 0) : code;
}

/* The source's stream copies. It waits for the destination, which may still read what was there
 * before, and the destination waits for the copy. */
static void send(struct cuda_device *from, struct cuda_device *to, void *dst, const void *src,
                 size_t bytes)
{
    if (queue_end(to) != SAC_OK || queue_end(from) != SAC_OK) return;
    device_reach(from, to);
    cudaError_t code = follow(from, to);
    if (code == cudaSuccess)
        code = cudaMemcpyPeerAsync(dst, (int)to->index, src, (int)from->index, bytes, from->stream);
    if (code == cudaSuccess) code = follow(to, from);
    device_check(from, code, "copy to another GPU");
}

/* Waits for everything before the step that is kept back. */
static sac_status wait_before(struct cuda_device *d)
{
    d->ring_is_full = false;
    return device_check(d, cudaEventSynchronize(d->before), "the GPU's queue");
}

static sac_status wait(struct cuda_device *d, sac_error *err)
{
    const bool keeps = d->ahead == AHEAD_READY;
    if ((keeps ? wait_before(d) : stage_drain(d)) == SAC_OK) (void)team_check(d); /* remembered */
    const sac_status status = d->status;
    d->status = SAC_OK;
    return status == SAC_OK ? status : fail(err, status, "GPU %u: %s", d->index, d->message);
}

/* ---- The step that is kept back, of a device or a team ---- */

static void forget(struct cuda_device *d)
{
    for (uint32_t i = 0; i < d->n_team; i++) {
        struct cuda_device *of = d->team[i];
        queue_clear(of);
        of->tag = of->tag_before;
        of->ahead = AHEAD_NONE;
    }
}

void device_forget_ahead(struct cuda_device *d)
{
    if (d->ahead == AHEAD_READY) forget(d);
}

bool device_is_ahead(struct cuda_device *d)
{
    device_forget_ahead(d);
    if (d->ahead == AHEAD_NONE) return false;
    for (uint32_t i = 0; i < d->n_team; i++) {
        struct cuda_device *of = d->team[i];
        queue_clear(of);
        of->ring_used = of->ring_sent = of->ring_first;
        of->ahead = AHEAD_OVERFLOW;
    }
    return true;
}

static bool ahead_begin(struct cuda_device *d)
{
    bool can = queue_end(d) == SAC_OK;
    for (uint32_t i = 0; i < d->n_team && can; i++) can = stage_has_half(d->team[i]);
    for (uint32_t i = 0; i < d->n_team && can; i++) {
        struct cuda_device *of = d->team[i];
        device_use(of);
        can = device_check(of, cudaEventRecord(of->before, of->stream), "an event") == SAC_OK;
    }
    for (uint32_t i = 0; i < d->n_team && can; i++) {
        struct cuda_device *of = d->team[i];
        stage_use_other_half(of);
        of->tag_before = of->tag;
        of->ahead = AHEAD_RECORDING;
    }
    return can;
}

/* A kernel copies the bytes from the pinned ring itself: they are few, and a copy engine would take
 * longer to start. */
static void *up_later(struct cuda_device *d, void *dst, size_t bytes)
{
    void *room;
    if (stage_send(d) != SAC_OK || !stage_alloc(d, bytes, &room)) return NULL;
    d->ring_sent = d->ring_used;
    return cuda_copy_rows(d, dst, bytes, room, bytes, 1) == SAC_OK ? room : NULL;
}

static bool ahead_end(struct cuda_device *d)
{
    bool fits = d->ahead == AHEAD_RECORDING;
    for (uint32_t i = 0; i < d->n_team; i++) fits = fits && d->team[i]->status == SAC_OK;
    fits = fits && queue_prepare(d) == SAC_OK;
    for (uint32_t i = 0; i < d->n_team && fits; i++) d->team[i]->ahead = AHEAD_READY;
    if (!fits) forget(d);
    return fits;
}

/* A failure is reported by the next wait. */
static bool ahead_go(struct cuda_device *d)
{
    if (d->ahead != AHEAD_READY) return false;
    for (uint32_t i = 0; i < d->n_team; i++) d->team[i]->ahead = AHEAD_NONE;
    (void)queue_go(d);
    return true;
}

/* ---- The table ---- */

/* The signatures of struct ops, where n_worker is the number of threads of a CPU. */
static size_t linear_scratch(uint32_t n_worker, uint32_t n_row, uint32_t n_in, uint32_t n_out_sum)
{
    (void)n_worker;
    return cuda_linear_scratch(n_row, n_in, n_out_sum);
}

static size_t attn_scratch(uint32_t n_worker, const struct page_geom *geom, uint32_t n_head,
                           uint32_t n_row, uint32_t n_tok_max)
{
    (void)n_worker;
    return cuda_attn_scratch(geom, n_head, n_row, n_tok_max);
}

extern "C" __attribute__((visibility("default"))) const struct cuda_api *cuda_api_get(void)
{
    static const struct cuda_api api = {
        .abi = CUDA_ABI,
        .count = count,
        .info = info,
        .check = check,
        .open = open_device,
        .close = close_device,
        .take = take,
        .give = give,
        .take_shared = take_shared,
        .give_shared = give_shared,
        .pin = pin,
        .unpin = unpin,
        .up = stage_up,
        .up_rows = stage_up_rows,
        .down = stage_down,
        .copy = copy,
        .send = send,
        .join = cuda_join,
        .wait = wait,
        .ahead_begin = ahead_begin,
        .up_later = up_later,
        .ahead_end = ahead_end,
        .ahead_go = ahead_go,
        .linear = cuda_linear,
        .unpack = cuda_unpack,
        .attn = cuda_attn,
        .kv_write = cuda_kv_write,
        .seal = cuda_seal,
        .unseal = cuda_unseal,
        .mass = cuda_mass,
        .rmsnorm = cuda_rmsnorm,
        .rope = cuda_rope,
        .add = cuda_add,
        .top = cuda_top,
        .sum = cuda_sum,
        .lane_boxes = cuda_lane_boxes,
        .lane_logits = cuda_lane_logits,
        .lane_shares = cuda_lane_shares,
        .lane_vote = cuda_lane_vote,
        .lane_fold = cuda_lane_fold,
        .lane_ends = cuda_lane_ends,
        .lane_take = cuda_lane_take,
        .lane_draw = cuda_lane_draw,
        .lane_visit = cuda_lane_visit,
        .lane_begin = cuda_lane_begin,
        .lane_list = cuda_lane_list,
        .lane_observe = cuda_lane_observe,
        .lane_keep = cuda_lane_keep,
        .lane_lines = cuda_lane_lines,
        .past = cuda_past,
        .lane_recall = cuda_lane_recall,
        .lane_settle = cuda_lane_settle,
        .lane_rest = cuda_lane_rest,
        .note = cuda_note,
        .offload_store = cuda_offload_store,
        .offload_renew = cuda_offload_renew,
        .offload_fetch = cuda_offload_fetch,
        .sample = cuda_sample,
        .blocks = cuda_blocks,
        .trace = cuda_trace,
        .antidiag = cuda_antidiag,
        .linear_scratch = linear_scratch,
        .attn_scratch = attn_scratch,
    };
    return &api;
}
