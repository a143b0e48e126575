/* queue.cu: recording and issuing of launches, and CUDA graphs of series that repeat (queue.cuh).
 *
 * A series is an array of commands (kernels and copies) with the bytes of their arguments; two
 * series are the same if both are equal. The queue holds the series being recorded, series seen
 * once lately (SEEN), and series with an instantiated graph (GRAPHS). At the end of a step
 * (queue_end) a series that has a graph starts it; one that was seen before is captured into a
 * graph, which replaces the one started longest ago; any other is issued command by command.
 * Several series alternate where layers select in different steps, or where batches change.
 *
 * Invariants:
 *  1. A series that was flushed before the end of its step (`was_flushed`) becomes no graph: what
 *     was issued between its parts is not recorded in it.
 *  2. Whenever the host may block, every sum of a team that is on one stream is on all streams of
 *     the team, because its kernel waits for the others. So the series of a team are issued
 *     together; whatever may block (loading a kernel, instantiating a graph) comes before the first
 *     of them; and series without a graph are issued in turns, from sum to sum, because a full
 *     stream blocks the host until launches have completed. */
#include "ops/cuda/queue.cuh"

#include <stdlib.h>

#define COMMANDS_MAX 4096u
#define BYTES_MAX    ((size_t)4 << 20)
#define SMEM_ANY     32768u /* dynamic shared memory that a kernel may use without an attribute */
#define SMEM_STATIC  16384u /* static shared memory is less, in kernels that use dynamic */
#define SEEN         160u   /* methods select in turns of up to 16 steps; with params.kv_on_host */
#define GRAPHS       160u   /* a step is one series for each layer */
#define CARVEOUT     100    /* percent of an SM's memory that is shared memory, not L1 */
#define KERNELS_MAX  512u   /* a power of two, above the number of kernels */

struct command_series {
    struct queue_command *command; /* [COMMANDS_MAX]; NULL until first used */
    uint8_t *bytes;                /* [BYTES_MAX] of arguments */
    uint32_t n_command;
    size_t n_byte;
};

struct allowed {
    const void *kernel; /* NULL: an empty slot */
    size_t bytes;
};

struct step_graph {
    struct command_series series;
    cudaGraphExec_t exec; /* NULL: none */
    uint64_t started;     /* the step that started it last */
};

struct cuda_queue {
    struct command_series now, seen[SEEN];
    struct step_graph graph[GRAPHS];
    uint64_t n_step;
    uint32_t next_seen;                  /* the oldest entry of `seen` */
    struct allowed allowed[KERNELS_MAX]; /* a hash table by kernel */
    bool was_flushed;
    struct step_graph *ready; /* the graph of the recorded series; NULL: issue the commands */
};

struct down_args {
    void *dst;
    const void *src;
    size_t bytes;
};

/* ---- Recording ---- */

static bool open_series(struct command_series *series)
{
    series->command = (struct queue_command *)calloc(COMMANDS_MAX, sizeof *series->command);
    series->bytes = (uint8_t *)calloc(1, BYTES_MAX);
    if (series->command && series->bytes) return true;
    free(series->command);
    free(series->bytes);
    *series = {};
    return false;
}

sac_status queue_reserve(struct cuda_device *d)
{
    return d->queue->now.n_command == COMMANDS_MAX ? queue_flush(d) : SAC_OK;
}

void queue_set_waits_for_team(struct cuda_device *d)
{
    struct command_series *series = &d->queue->now;
    series->command[series->n_command - 1].waits_for_team = true;
}

struct queue_command *queue_add(struct cuda_device *d)
{
    struct command_series *series = &d->queue->now;
    device_forget_ahead(d);
    if (!series->command && !open_series(series)) {
        device_fail(d, SAC_ERR_MEMORY, "no memory to record launches");
        return NULL;
    }
    if (queue_reserve(d) != SAC_OK) return NULL;
    struct queue_command *c = &series->command[series->n_command++];
    memset(c, 0, sizeof *c);
    return c;
}

void *queue_add_arg(struct cuda_device *d, struct queue_command *c, size_t bytes)
{
    struct command_series *series = &d->queue->now;
    const size_t at = (series->n_byte + 15) / 16 * 16;
    if (c->n_arg == QUEUE_ARGS_MAX || at + bytes > BYTES_MAX) {
        device_fail(d, SAC_ERR_MEMORY, "more arguments of launches than there is room for");
        return NULL;
    }
    memset(series->bytes + series->n_byte, 0, at + bytes - series->n_byte);
    c->arg[c->n_arg++] = (uint32_t)at;
    series->n_byte = at + bytes;
    return series->bytes + at;
}

const void *queue_before(const struct cuda_device *d, uint32_t n, const void *kernel)
{
    const struct command_series *series = &d->queue->now;
    if (series->n_command <= n) return NULL;
    const struct queue_command *c = &series->command[series->n_command - 1 - n];
    return c->kernel == kernel ? series->bytes + c->arg[0] : NULL;
}

const void *queue_last(const struct cuda_device *d, const void *kernel)
{
    return queue_before(d, 0, kernel);
}

void queue_drop_last(struct cuda_device *d)
{
    struct command_series *series = &d->queue->now;
    series->n_byte = series->command[--series->n_command].arg[0];
}

void queue_set_activations_only(struct cuda_device *d)
{
    struct command_series *series = &d->queue->now;
    series->command[series->n_command - 1].activations_only = true;
}

/* With programmatic dependent launch a kernel's blocks may start when all blocks of the previous
 * kernel have passed kernel_begin, and those have passed it only when everything before that kernel
 * has completed. So only the last two launches may still be running. */
bool queue_allows_early_loads(const struct cuda_device *d)
{
    const struct command_series *series = &d->queue->now;
    for (uint32_t i = 1; i <= 2 && i <= series->n_command; i++)
        if (!series->command[series->n_command - i].activations_only) return false;
    return true;
}

sac_status queue_down(struct cuda_device *d, void *dst, const void *src, size_t bytes)
{
    const struct down_args a = {dst, src, bytes};
    struct queue_command *c = queue_add(d);
    void *to = c ? queue_add_arg(d, c, sizeof a) : NULL;
    if (!to) return d->status;
    c->name = "copy from the GPU";
    memcpy(to, &a, sizeof a);
    return SAC_OK;
}

/* ---- Issuing ---- */

/* Allows a kernel as much dynamic shared memory as there is. The limit is the same for all launches
 * of a kernel, as a captured launch is checked against the latest value. All kernels ask for the
 * same carveout, so that no SM has to drain to be divided anew. The driver refuses too large a sum
 * of static and dynamic shared memory, but not for a GPU that is imitated. */
static cudaError_t set_shared(const struct cuda_device *d, const struct queue_command *c,
                              size_t bytes)
{
    struct cudaFuncAttributes own;
    cudaError_t code =
        cudaFuncSetAttribute(c->kernel, cudaFuncAttributePreferredSharedMemoryCarveout, CARVEOUT);
    if (code != cudaSuccess || bytes == 0) return code;
    code = cudaFuncGetAttributes(&own, c->kernel);
    if (code != cudaSuccess) return code;
    if (own.sharedSizeBytes + bytes > d->smem_max) return cudaErrorInvalidValue;
    return cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Asks the driver once for each kernel and size, as the call takes as long as a launch. */
static cudaError_t allow_shared(struct cuda_device *d, const struct queue_command *c)
{
    const size_t most = d->smem_max - SMEM_STATIC;
    const size_t bytes = c->smem <= SMEM_ANY ? 0 : c->smem > most ? c->smem : most;
    size_t i = (uintptr_t)c->kernel / 16 % KERNELS_MAX;
    struct allowed *a = d->queue->allowed;
    for (size_t n = 1; a[i].kernel && a[i].kernel != c->kernel && n < KERNELS_MAX; n++)
        i = (i + 1) % KERNELS_MAX;
    if (a[i].kernel == c->kernel && a[i].bytes >= bytes) return cudaSuccess;
    const cudaError_t code = set_shared(d, c, bytes);
    if (code == cudaSuccess) a[i] = (struct allowed){c->kernel, bytes};
    return code;
}

/* Also makes the driver load the kernels, for which it may block. */
static sac_status allow_series(struct cuda_device *d)
{
    const struct command_series *series = &d->queue->now;
    for (uint32_t i = 0; i < series->n_command; i++)
        if (series->command[i].kernel)
            TRY(device_check(d, allow_shared(d, &series->command[i]), series->command[i].name));
    return SAC_OK;
}

/* On compute capability 9.0 a kernel that follows a kernel may start while that one ends
 * (kernel_begin). A kernel after a copy waits for it. */
static cudaError_t issue_kernel(struct cuda_device *d, const struct queue_command *c, void **args,
                                bool behind_kernel)
{
    cudaLaunchAttribute early;
    cudaLaunchConfig_t config = {};
    memset(&early, 0, sizeof early);
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(c->grid[0], c->grid[1], c->grid[2]);
    config.blockDim = dim3(c->n_thread);
    config.dynamicSmemBytes = c->smem;
    config.stream = d->stream;
    config.attrs = &early;
    config.numAttrs = behind_kernel && d->major >= 9 ? 1 : 0;
    return cudaLaunchKernelExC(&config, c->kernel, args);
}

static cudaError_t issue(struct cuda_device *d, const struct command_series *series, uint32_t i)
{
    void *args[QUEUE_ARGS_MAX];
    const struct queue_command *c = &series->command[i];
    for (uint32_t k = 0; k < c->n_arg; k++) args[k] = series->bytes + c->arg[k];
    if (c->kernel) return issue_kernel(d, c, args, i > 0 && series->command[i - 1].kernel);
    const struct down_args *a = (const struct down_args *)args[0];
    return cudaMemcpyAsync(a->dst, a->src, a->bytes, cudaMemcpyDeviceToHost, d->stream);
}

/* Issues commands up to the team's next sum, and the sum. */
static sac_status issue_up_to_sum(struct cuda_device *d, uint32_t *at)
{
    const struct command_series *series = &d->queue->now;
    device_use(d);
    for (bool waits_for_team = false; *at < series->n_command && !waits_for_team; ++*at) {
        waits_for_team = series->command[*at].waits_for_team;
        TRY(device_check(d, issue(d, series, *at), series->command[*at].name));
    }
    return SAC_OK;
}

/* Issues the series of all devices of the team. */
static sac_status issue_all(struct cuda_device *d)
{
    uint32_t at[TEAM_MAX] = {};
    for (bool left = true; left;) {
        left = false;
        for (uint32_t i = 0; i < d->n_team; i++) {
            TRY(issue_up_to_sum(d->team[i], &at[i]));
            left |= at[i] < d->team[i]->queue->now.n_command;
        }
    }
    return SAC_OK;
}

static void clear(struct command_series *series)
{
    series->n_command = 0;
    series->n_byte = 0;
}

void queue_clear(struct cuda_device *d)
{
    clear(&d->queue->now);
}

static sac_status begin_flush(struct cuda_device *d)
{
    d->queue->was_flushed = true;
    device_use(d);
    TRY(stage_send_early(d));
    return allow_series(d);
}

sac_status queue_flush(struct cuda_device *d)
{
    sac_status status = SAC_OK;
    if (device_is_ahead(d)) return SAC_OK;
    for (uint32_t i = 0; i < d->n_team && status == SAC_OK; i++) status = begin_flush(d->team[i]);
    if (status == SAC_OK) status = issue_all(d);
    for (uint32_t i = 0; i < d->n_team; i++) clear(&d->team[i]->queue->now);
    return status;
}

/* ---- Graphs ---- */

static bool same(const struct command_series *a, const struct command_series *b)
{
    return a->n_command == b->n_command && a->n_byte == b->n_byte &&
           memcmp(a->command, b->command, a->n_command * sizeof *a->command) == 0 &&
           memcmp(a->bytes, b->bytes, a->n_byte) == 0;
}

static void swap(struct command_series *a, struct command_series *b)
{
    const struct command_series was = *a;
    *a = *b;
    *b = was;
}

static struct step_graph *find_graph(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < GRAPHS; i++)
        if (q->graph[i].exec && same(&q->now, &q->graph[i].series)) return &q->graph[i];
    return NULL;
}

/* Whether the recorded series was seen before; it is then removed from `seen`. */
static bool forget_seen(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < SEEN; i++) {
        if (!same(&q->now, &q->seen[i])) continue;
        clear(&q->seen[i]);
        return true;
    }
    return false;
}

/* An entry for a new graph: the one started longest ago. */
static struct step_graph *oldest_graph(struct cuda_queue *q)
{
    struct step_graph *oldest = &q->graph[0];
    for (uint32_t i = 0; i < GRAPHS; i++)
        if (q->graph[i].started < oldest->started) oldest = &q->graph[i];
    if (oldest->exec) cudaGraphExecDestroy(oldest->exec);
    oldest->exec = NULL;
    return oldest;
}

/* Captures and instantiates the recorded series. */
static cudaError_t make_graph(struct cuda_device *d, struct step_graph *to)
{
    struct cuda_queue *q = d->queue;
    cudaGraph_t graph = NULL;
    cudaError_t code = cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed);
    if (code != cudaSuccess) return code;
    for (uint32_t i = 0; i < q->now.n_command && code == cudaSuccess; i++)
        code = issue(d, &q->now, i);
    const cudaError_t ended = cudaStreamEndCapture(d->stream, &graph);
    if (code == cudaSuccess) code = ended;
    if (code == cudaSuccess) code = cudaGraphInstantiate(&to->exec, graph, 0);
    if (graph) cudaGraphDestroy(graph);
    swap(&to->series, &q->now);
    return code;
}

static sac_status start(struct cuda_device *d)
{
    struct step_graph *g = d->queue->ready;
    if (!g) return SAC_OK;
    g->started = d->queue->n_step;
    clear(&d->queue->now);
    device_use(d);
    return device_check(d, cudaGraphLaunch(g->exec, d->stream), "graph of a step");
}

/* Finds or makes the graph of the recorded series. Without one it stays a series of commands. */
static sac_status begin_end(struct cuda_device *d)
{
    struct cuda_queue *q = d->queue;
    q->n_step++;
    device_use(d);
    TRY(stage_send(d));
    q->ready = q->was_flushed || q->now.n_command == 0 ? NULL : find_graph(q);
    if (q->ready) return SAC_OK;
    TRY(allow_series(d));
    if (q->was_flushed || q->now.n_command == 0 || !forget_seen(q)) return SAC_OK;
    q->ready = oldest_graph(q);
    return device_check(d, make_graph(d, q->ready), "instantiation of a step's graph");
}

/* Remembers a series that was issued as commands as seen once. */
static void finish_end(struct cuda_device *d)
{
    struct cuda_queue *q = d->queue;
    if (!q->was_flushed && q->now.n_command > 0) {
        swap(&q->seen[q->next_seen], &q->now);
        q->next_seen = (q->next_seen + 1) % SEEN;
    }
    q->was_flushed = false;
    clear(&q->now);
}

sac_status queue_prepare(struct cuda_device *d)
{
    sac_status status = SAC_OK;
    for (uint32_t i = 0; i < d->n_team && status == SAC_OK; i++) status = begin_end(d->team[i]);
    return status;
}

/* Starts what queue_prepare has made ready, unless that failed. */
static sac_status go(struct cuda_device *d, sac_status status)
{
    for (uint32_t i = 0; i < d->n_team && status == SAC_OK; i++) status = start(d->team[i]);
    if (status == SAC_OK) status = issue_all(d);
    for (uint32_t i = 0; i < d->n_team; i++) finish_end(d->team[i]);
    return status;
}

sac_status queue_go(struct cuda_device *d)
{
    return go(d, SAC_OK);
}

sac_status queue_end(struct cuda_device *d)
{
    return device_is_ahead(d) ? SAC_OK : go(d, queue_prepare(d));
}

/* ---- Opening ---- */

static void close_series(struct command_series *series)
{
    free(series->command);
    free(series->bytes);
}

void queue_close(struct cuda_queue *q)
{
    if (!q) return;
    for (uint32_t i = 0; i < GRAPHS; i++) {
        if (q->graph[i].exec) cudaGraphExecDestroy(q->graph[i].exec);
        close_series(&q->graph[i].series);
    }
    for (uint32_t i = 0; i < SEEN; i++) close_series(&q->seen[i]);
    close_series(&q->now);
    free(q);
}

sac_status queue_open(struct cuda_queue **out)
{
    struct cuda_queue *q = (struct cuda_queue *)calloc(1, sizeof *q);
    *out = q;
    return q ? SAC_OK : SAC_ERR_MEMORY;
}
