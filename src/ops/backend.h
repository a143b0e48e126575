/* backend.h: where tensors are and what computes on them (docs/design.md, D15): memory, a queue,
 * and the op table on buffers of that memory. The CPU's memory is the program's own and its queue
 * is immediate. A GPU's is neither: to look at its memory, copy and wait.
 *
 * Operations find the queue by their `workers` (workers_use_queue), so callers pass the same two
 * arguments for any backend. One thread at a time uses a backend. */
#ifndef SAC_OPS_BACKEND_H
#define SAC_OPS_BACKEND_H

#include "ops/ops.h"

struct cuda_api;
struct cuda_device;

struct backend {
    struct ops ops;
    bool is_host;      /* its memory is the program's: copies are immediate, or not needed */
    uint32_t index;    /* number of a device */
    char name[160];    /* "cpu", "cuda:0 NVIDIA H100 80GB HBM3" */
    size_t bytes_free; /* free memory of a device when it was opened */
    const struct cuda_api *api;
    struct cuda_device *device; /* owned; NULL on the CPU */
};

/* `device`: "cpu" or NULL, "cuda", "cuda:1". The GPU library is searched at the path in the
 * environment variable SACCADE_CUDA, then next to the program or library that contains this code,
 * in ../lib from there, and in the system's paths. */
sac_status backend_open(struct backend *out, const char *device, sac_error *err);
void backend_close(struct backend *b); /* does nothing for a zeroed one */

/* Checks that it has kernels for pages of this geometry and n_head query heads. */
sac_status backend_check(const struct backend *b, const struct page_geom *geom, uint32_t n_head,
                         sac_error *err);

/* Zeroed memory for tensors; NULL: out of memory. */
void *backend_take(struct backend *b, size_t bytes);
void backend_give(struct backend *b, void *p, size_t bytes);

/* Host memory that both the program and a device can access; NULL: out of memory, or the CPU
 * computes. */
void *backend_take_shared(const struct backend *b, size_t bytes);
void backend_give_shared(const struct backend *b, void *p); /* does nothing for NULL */

/* A block of the program's memory to which copies from a device are fast; `unpin` before it is
 * freed. */
void backend_pin(const struct backend *b, void *p, size_t bytes);
void backend_unpin(const struct backend *b);

/* On a device: fills w->plain (weight.h), in order with the operations. */
void backend_unpack(const struct backend *b, const struct weight *w);

/* Copies from the program's memory to the backend's, in order with the operations; `src` can be
 * reused at once. Does nothing if both are the same. */
void backend_up(const struct backend *b, void *dst, const void *src, size_t bytes);
/* The same for rows of `width` bytes, contiguous in src and `pitch` apart in dst. */
void backend_up_rows(const struct backend *b, void *dst, size_t pitch, const void *src,
                     size_t width, size_t n_row);
/* Copies back; dst is valid after the next wait. */
void backend_down(const struct backend *b, void *dst, const void *src, size_t bytes);
/* Copies within the backend's memory; the ranges do not overlap. */
void backend_copy(const struct backend *b, void *dst, const void *src, size_t bytes);
/* Copies from the memory of one backend to that of another, at least one of which is a device, in
 * order with the operations of both; to the host, like backend_down. */
void backend_send(const struct backend *from, const struct backend *to, void *dst, const void *src,
                  size_t bytes);
/* Makes a team of n devices that add parts of up to n_word values (backend_sum), in this order;
 * `inbox[i]` is memory of b[i], [2, n, n_word]. From here on work queued on one of them may wait
 * for the others, without action by the caller. false: one of them cannot write to another's
 * memory. */
#define BACKEND_TEAM_MAX 16
bool backend_join(const struct backend *const *b, uint64_t *const *inbox, uint32_t n,
                  size_t n_word);
/* Queues the sum; to be called on all of a team, in the order in which they joined. */
void backend_sum(const struct backend *b, const struct op_sum *op);
/* Waits until everything is done except a step that is kept back; or returns the first failure. */
sac_status backend_wait(const struct backend *b, sac_error *err);

/* A step ahead: a device's next step is described while the previous one runs. It is everything
 * between begin and end, and starts with `go`; for a team it is a step of all, and only one is
 * called. If anything else is queued before that, the device discards it. `begin` false: nothing is
 * kept, and nothing has changed; `end` or `go` false: it has been discarded. */
bool backend_ahead_begin(const struct backend *b);
bool backend_ahead_end(const struct backend *b);
bool backend_ahead_go(const struct backend *b);
/* In a step ahead, like backend_up: the memory for bytes that are known by the time of `go`. */
void *backend_up_later(const struct backend *b, void *dst, size_t bytes);

/* Opens a GPU (backend_cuda.c): fills the table, the name and the device. */
sac_status backend_open_cuda(struct backend *out, uint32_t index, sac_error *err);
/* The name that the GPU would have; SAC_ERR_NOT_FOUND: there is none. */
sac_status backend_name_cuda(char out[160], uint32_t index, sac_error *err);

#endif
