/* queue.cuh: launches on their way to the stream (queue.cu). A step of decode rows is several
 * hundred launches, and starting them one by one takes the host longer than the GPU needs for the
 * work. So launches are noted, and go to the stream when something waits: one by one, or, if the
 * same series of launches has come before, as one CUDA graph. What differs between two steps of the
 * same shape is in the descriptors, which go up in one copy ahead of the series. */
#ifndef SAC_OPS_CUDA_QUEUE_CUH
#define SAC_OPS_CUDA_QUEUE_CUH

#include "ops/cuda/device.cuh"
#include "ops/cuda/machine.cuh"

#include <string.h>

#define QUEUE_ARGS_MAX 8

struct queue_command {
    const void *kernel; /* NULL: a copy to the program's memory, which the argument tells */
    const char *name;   /* for failures */
    uint32_t grid[3], n_thread, n_arg;
    bool activations_only; /* it writes activations alone */
    bool waits_for_team; /* it waits for the launch of the same sum on all others of the team */
    size_t smem;
    uint32_t arg[QUEUE_ARGS_MAX]; /* where in the series's bytes the arguments lie */
};

/* Room for one more command, zeroed; NULL: there is none, which is remembered as a failure. */
struct queue_command *queue_add(struct cuda_device *d);
/* The same for an argument; adds it to the command. */
void *queue_add_arg(struct cuda_device *d, struct queue_command *c, size_t bytes);

template <typename P>
static bool queue_put(struct cuda_device *d, struct queue_command *c, P value)
{
    __builtin_clear_padding(&value); /* equal launches are told by their bytes */
    void *to = queue_add_arg(d, c, sizeof value);
    if (to) memcpy(to, &value, sizeof value);
    return to != NULL;
}

/* Notes a launch. */
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

/* The last launch of the series, or the one n before it: its first argument if it is of this
 * kernel, else NULL; and takes the last one back, when another launch does its work, too. */
const void *queue_last(const struct cuda_device *d, const void *kernel);
const void *queue_before(const struct cuda_device *d, uint32_t n, const void *kernel);
void queue_drop_last(struct cuda_device *d);

/* The last launch writes activations alone: neither pages, nor lists, nor where these are. */
void queue_set_activations_only(struct cuda_device *d);
/* Whether the next launch may read pages and lists before it begins, as the last two are such, or
 * those that are there. */
bool queue_allows_early_loads(const struct cuda_device *d);
/* Makes sure that the next launch is noted without a flush. */
sac_status queue_reserve(struct cuda_device *d);
/* The last launch of the series is one of a sum: its kernel waits for other GPUs. */
void queue_set_waits_for_team(struct cuda_device *d);

/* Notes a copy to pinned memory of the program's. */
sac_status queue_down(struct cuda_device *d, void *dst, const void *src, size_t bytes);

/* Everything noted goes to the stream, here and on all others of the team; what follows goes there by
 * itself, too. */
sac_status queue_flush(struct cuda_device *d);
/* The same at the end of a step: a series that has come before goes as a graph. */
sac_status queue_end(struct cuda_device *d);
/* The same in two parts: graphs are found or made, and rows go. */
sac_status queue_prepare(struct cuda_device *d);
sac_status queue_go(struct cuda_device *d);
/* Forgets what is noted. */
void queue_clear(struct cuda_device *d);

sac_status queue_open(struct cuda_queue **out);
void queue_close(struct cuda_queue *q); /* NULL is nothing */

#endif
