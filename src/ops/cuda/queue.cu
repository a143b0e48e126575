/* queue.cu: see the header.
 *
 * Rows of commands: the one being noted, some that have come once of late, and those that graphs
 * were made of. At the end of a step a row that is a graph's starts the graph; one that has come
 * before becomes a graph, by capture, in the place of the one that has been started least lately; any
 * other is issued command by command. Two rows are the same if their commands and the bytes of their
 * arguments are. Several rows take turns where layers choose in different steps, or batches change.
 *
 * Invariant: a row that was flushed before the end of its step (`broken`) makes no graph: what lies
 * between its parts went to the stream without being noted. */
#include "ops/cuda/queue.cuh"

#include <stdlib.h>

#define COMMANDS_MAX 4096u
#define BYTES_MAX    ((size_t)4 << 20)
#define SMEM_ANY     32768u /* of shared memory that every kernel may ask for beside its own, */
#define SMEM_STATIC  16384u /* which is less than this where it asks for any */
#define SEEN         160u   /* rows that are remembered: turns may be 16 steps long, and a step that */
#define GRAPHS       160u   /* comes down in each layer (params.kv_on_host) has one for each */
#define CARVEOUT     100    /* percent of an SM's memory that is shared memory rather than cache */
#define KERNELS_MAX  512u   /* a power of two, more than there are */

struct command_row {
    struct queue_command *command; /* [COMMANDS_MAX]; NULL until there is one */
    uint8_t *bytes;                /* [BYTES_MAX] arguments */
    uint32_t n_command;
    size_t n_byte;
};

struct allowed {
    const void *kernel; /* NULL: nobody's place */
    size_t bytes;
};

struct step_graph {
    struct command_row row;
    cudaGraphExec_t exec; /* NULL: there is none */
    uint64_t started;     /* the step in which it was last */
};

struct cuda_queue {
    struct command_row now, seen[SEEN];
    struct step_graph graph[GRAPHS];
    uint64_t n_step;
    uint32_t next_seen; /* the oldest */
    struct allowed allowed[KERNELS_MAX]; /* by kernel: the shared memory that it may ask for */
    bool broken;
};

struct down_args {
    void *dst;
    const void *src;
    size_t bytes;
};

/* ---- Noting ---- */

static bool open_row(struct command_row *row)
{
    row->command = (struct queue_command *)calloc(COMMANDS_MAX, sizeof *row->command);
    row->bytes = (uint8_t *)calloc(1, BYTES_MAX);
    if (row->command && row->bytes) return true;
    free(row->command);
    free(row->bytes);
    *row = {};
    return false;
}

struct queue_command *queue_add(struct cuda_device *d)
{
    struct command_row *row = &d->queue->now;
    if (!row->command && !open_row(row)) {
        device_fail(d, SAC_ERR_MEMORY, "no memory to note launches");
        return NULL;
    }
    if (row->n_command == COMMANDS_MAX && queue_flush(d) != SAC_OK) return NULL;
    struct queue_command *c = &row->command[row->n_command++];
    memset(c, 0, sizeof *c);
    return c;
}

void *queue_add_arg(struct cuda_device *d, struct queue_command *c, size_t bytes)
{
    struct command_row *row = &d->queue->now;
    const size_t at = (row->n_byte + 15) / 16 * 16;
    if (c->n_arg == QUEUE_ARGS_MAX || at + bytes > BYTES_MAX) {
        device_fail(d, SAC_ERR_MEMORY, "more arguments of launches than there is room for");
        return NULL;
    }
    memset(row->bytes + row->n_byte, 0, at + bytes - row->n_byte);
    c->arg[c->n_arg++] = (uint32_t)at;
    row->n_byte = at + bytes;
    return row->bytes + at;
}

const void *queue_last(const struct cuda_device *d, const void *kernel)
{
    const struct command_row *row = &d->queue->now;
    if (row->n_command == 0) return NULL;
    const struct queue_command *c = &row->command[row->n_command - 1];
    return c->kernel == kernel ? row->bytes + c->arg[0] : NULL;
}

void queue_drop_last(struct cuda_device *d)
{
    struct command_row *row = &d->queue->now;
    row->n_byte = row->command[--row->n_command].arg[0];
}

void queue_set_apart(struct cuda_device *d)
{
    struct command_row *row = &d->queue->now;
    row->command[row->n_command - 1].apart = true;
}

/* Blocks come when those of the launch before are there, which come when those of the one before it
 * have begun, so when all that was before these two is done. */
bool queue_is_apart(const struct cuda_device *d)
{
    const struct command_row *row = &d->queue->now;
    for (uint32_t i = 1; i <= 2 && i <= row->n_command; i++)
        if (!row->command[row->n_command - i].apart) return false;
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

/* Lets a kernel have as much shared memory as there is. The same for all of its launches: those of a
 * graph are looked at by what was said last. And no kernel waits until an SM has divided its memory
 * between cache and shared memory in another way: all ask for the same. */
static cudaError_t set_shared(const struct queue_command *c, size_t bytes)
{
    const cudaError_t code =
        cudaFuncSetAttribute(c->kernel, cudaFuncAttributePreferredSharedMemoryCarveout, CARVEOUT);
    if (code != cudaSuccess || bytes == 0) return code;
    return cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* The driver is asked once for each kernel and size: it takes as long as a launch. */
static cudaError_t allow_shared(struct cuda_device *d, const struct queue_command *c)
{
    const size_t most = d->smem_max - SMEM_STATIC;
    const size_t bytes = c->smem <= SMEM_ANY ? 0 : c->smem > most ? c->smem : most;
    size_t i = (uintptr_t)c->kernel / 16 % KERNELS_MAX;
    struct allowed *a = d->queue->allowed;
    for (size_t n = 1; a[i].kernel && a[i].kernel != c->kernel && n < KERNELS_MAX; n++)
        i = (i + 1) % KERNELS_MAX;
    if (a[i].kernel == c->kernel && a[i].bytes >= bytes) return cudaSuccess;
    const cudaError_t code = set_shared(c, bytes);
    if (code == cudaSuccess) a[i] = (struct allowed){c->kernel, bytes};
    return code;
}

/* A kernel may begin while the one before it ends (kernel_begin), on GPUs that can; what follows a
 * copy waits for it. */
static cudaError_t issue_kernel(struct cuda_device *d, const struct queue_command *c,
                                void **args, bool behind_kernel)
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
    const cudaError_t code = allow_shared(d, c);
    if (code != cudaSuccess) return code;
    return cudaLaunchKernelExC(&config, c->kernel, args);
}

static cudaError_t issue(struct cuda_device *d, const struct command_row *row, uint32_t i)
{
    void *args[QUEUE_ARGS_MAX];
    const struct queue_command *c = &row->command[i];
    for (uint32_t k = 0; k < c->n_arg; k++) args[k] = row->bytes + c->arg[k];
    if (c->kernel) return issue_kernel(d, c, args, i > 0 && row->command[i - 1].kernel);
    const struct down_args *a = (const struct down_args *)args[0];
    return cudaMemcpyAsync(a->dst, a->src, a->bytes, cudaMemcpyDeviceToHost, d->stream);
}

static sac_status issue_row(struct cuda_device *d, const struct command_row *row)
{
    for (uint32_t i = 0; i < row->n_command; i++)
        if (device_check(d, issue(d, row, i), row->command[i].name) != SAC_OK) return d->status;
    return SAC_OK;
}

static void clear(struct command_row *row)
{
    row->n_command = 0;
    row->n_byte = 0;
}

sac_status queue_flush(struct cuda_device *d)
{
    struct cuda_queue *q = d->queue;
    q->broken = true;
    device_use(d);
    sac_status status = stage_send(d);
    if (status == SAC_OK) status = issue_row(d, &q->now);
    clear(&q->now);
    return status;
}

/* ---- Graphs ---- */

static bool same(const struct command_row *a, const struct command_row *b)
{
    return a->n_command == b->n_command && a->n_byte == b->n_byte &&
           memcmp(a->command, b->command, a->n_command * sizeof *a->command) == 0 &&
           memcmp(a->bytes, b->bytes, a->n_byte) == 0;
}

static void swap(struct command_row *a, struct command_row *b)
{
    const struct command_row was = *a;
    *a = *b;
    *b = was;
}

static struct step_graph *find_graph(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < GRAPHS; i++)
        if (q->graph[i].exec && same(&q->now, &q->graph[i].row)) return &q->graph[i];
    return NULL;
}

/* Whether the row at hand has come before; it is no longer one that has come once. */
static bool forget_seen(struct cuda_queue *q)
{
    for (uint32_t i = 0; i < SEEN; i++) {
        if (!same(&q->now, &q->seen[i])) continue;
        clear(&q->seen[i]);
        return true;
    }
    return false;
}

/* The place of a new graph. */
static struct step_graph *oldest_graph(struct cuda_queue *q)
{
    struct step_graph *oldest = &q->graph[0];
    for (uint32_t i = 0; i < GRAPHS; i++)
        if (q->graph[i].started < oldest->started) oldest = &q->graph[i];
    if (oldest->exec) cudaGraphExecDestroy(oldest->exec);
    oldest->exec = NULL;
    return oldest;
}

/* A graph of the row at hand. */
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
    swap(&to->row, &q->now);
    return code;
}

static sac_status start(struct cuda_device *d, struct step_graph *g)
{
    g->started = d->queue->n_step;
    return device_check(d, cudaGraphLaunch(g->exec, d->stream), "graph of a step");
}

sac_status queue_end(struct cuda_device *d)
{
    struct cuda_queue *q = d->queue;
    const bool broken = q->broken;
    struct step_graph *g;
    q->broken = false;
    q->n_step++;
    device_use(d);
    if (q->now.n_command == 0) return stage_send(d);
    sac_status status = stage_send(d);
    if (status != SAC_OK || broken) {
        if (status == SAC_OK) status = issue_row(d, &q->now);
    } else if ((g = find_graph(q))) {
        status = start(d, g);
    } else if (forget_seen(q)) {
        g = oldest_graph(q);
        status = device_check(d, make_graph(d, g), "making of a step's graph");
        if (status == SAC_OK) status = start(d, g);
    } else {
        status = issue_row(d, &q->now);
        swap(&q->seen[q->next_seen], &q->now);
        q->next_seen = (q->next_seen + 1) % SEEN;
    }
    clear(&q->now);
    return status;
}

/* ---- Opening ---- */

static void close_row(struct command_row *row)
{
    free(row->command);
    free(row->bytes);
}

void queue_close(struct cuda_queue *q)
{
    if (!q) return;
    for (uint32_t i = 0; i < GRAPHS; i++) {
        if (q->graph[i].exec) cudaGraphExecDestroy(q->graph[i].exec);
        close_row(&q->graph[i].row);
    }
    for (uint32_t i = 0; i < SEEN; i++) close_row(&q->seen[i]);
    close_row(&q->now);
    free(q);
}

sac_status queue_open(struct cuda_queue **out)
{
    struct cuda_queue *q = (struct cuda_queue *)calloc(1, sizeof *q);
    *out = q;
    return q ? SAC_OK : SAC_ERR_MEMORY;
}
