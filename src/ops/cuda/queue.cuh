/* queue.cuh: the queue of recorded launches (queue.cu).
 *
 * A decode step is several hundred launches, and issuing them one by one takes the host longer than
 * the GPU needs for the work. So a launcher only records its launch. The series of recorded
 * launches is issued when something waits: launch by launch, or, if the same series has occurred
 * before, as one CUDA graph. Two steps of the same shape differ only in their descriptors, which
 * one copy brings to the GPU ahead of the series. */
#ifndef SAC_OPS_CUDA_QUEUE_CUH
#define SAC_OPS_CUDA_QUEUE_CUH

#include "ops/cuda/device.cuh"
#include "ops/cuda/machine.cuh"

#include <string.h>

#define QUEUE_ARGS_MAX 8

struct queue_command {
    const void *kernel; /* NULL: a copy to pinned host memory, described by the argument */
    const char *name;   /* named in messages of failures */
    uint32_t grid[3], n_thread, n_arg;
    bool activations_only; /* it writes neither pages nor lists nor tables of these */
    bool waits_for_team;   /* it is a sum, and waits for that of the other GPUs */
    size_t smem;
    uint32_t arg[QUEUE_ARGS_MAX]; /* offsets of the arguments in the series' bytes */
};

/* Appends a zeroed command. NULL: there is no room, and the device remembers the failure. */
struct queue_command *queue_add(struct cuda_device *d);
/* Reserves room for an argument of the command, with the same result. */
void *queue_add_arg(struct cuda_device *d, struct queue_command *c, size_t bytes);

template <typename P> static bool queue_put(struct cuda_device *d, struct queue_command *c, P value)
{
    __builtin_clear_padding(&value); /* series are compared bytewise */
    void *to = queue_add_arg(d, c, sizeof value);
    if (to) memcpy(to, &value, sizeof value);
    return to != NULL;
}

/* Records a launch; arguments are converted to the kernel's parameter types and copied. */
template <typename... P, typename... A>
static sac_status queue_launch(struct cuda_device *d, const char *name, void (*kernel)(P...),
                               dim3 grid, uint32_t n_thread, size_t smem, const A &...args)
{
    struct queue_command *c = queue_add(d);
    if (!c) return d->status;
    c->kernel = kernel_entry(kernel);
    c->name = name;
    c->grid[0] = grid.x;
    c->grid[1] = grid.y;
    c->grid[2] = grid.z;
    c->n_thread = n_thread;
    c->smem = smem;
    const bool fits = (queue_put<P>(d, c, args) && ...);
    return fits ? SAC_OK : d->status;
}

/* The first argument of the last recorded launch, or of the one n before it, if that is a launch of
 * `kernel`, else NULL. A launcher that can do the work of the previous launch, too, reads its
 * arguments here and drops it. */
const void *queue_last(const struct cuda_device *d, const void *kernel);
const void *queue_before(const struct cuda_device *d, uint32_t n, const void *kernel);
void queue_drop_last(struct cuda_device *d);

/* Says that the last recorded launch writes activations only: neither pages, nor lists, nor tables
 * that say where these are. */
void queue_set_activations_only(struct cuda_device *d);
/* Whether the next kernel may read pages and lists before kernel_begin: true if the last two
 * recorded launches write activations only, or those of them that exist. */
bool queue_allows_early_loads(const struct cuda_device *d);
/* Makes room, so that the next launch is recorded without a flush in between. */
sac_status queue_reserve(struct cuda_device *d);
/* Says that the last recorded launch is one of a team's sum: its kernel waits for other GPUs. */
void queue_set_waits_for_team(struct cuda_device *d);

/* Records a copy to pinned memory of the program. */
sac_status queue_down(struct cuda_device *d, void *dst, const void *src, size_t bytes);

/* Issues everything recorded, here and on all other devices of the team. Until the next queue_end
 * the step counts as flushed and becomes no graph. */
sac_status queue_flush(struct cuda_device *d);
/* Ends a step: a series that has occurred before is started as a graph. */
sac_status queue_end(struct cuda_device *d);
/* queue_end in two parts: queue_prepare finds or instantiates the graphs, queue_go starts them. */
sac_status queue_prepare(struct cuda_device *d);
sac_status queue_go(struct cuda_device *d);
/* Drops everything recorded. */
void queue_clear(struct cuda_device *d);

sac_status queue_open(struct cuda_queue **out);
void queue_close(struct cuda_queue *q); /* NULL is allowed */

#endif
