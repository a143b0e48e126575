/* team.cu: sums over several GPUs (op_sum): y (+)= sum of part[k] over the GPUs k of a team, in
 * their order, for tensor parallelism.
 *
 * One launch on each GPU, within its graph: it stores its part into the inboxes of all other GPUs,
 * polls its own inbox until all parts have arrived, and adds them in the order of the GPUs, so all
 * of them hold the same bits. A word of an inbox holds an f32 value and the number of the sum (the
 * tag). A value has arrived when its tag has, so neither fences nor flags are needed. Tags are
 * staged like all descriptors, so a graph that is started again reads new ones. Threads walk over
 * the values in a grid-stride loop; there is no shared memory.
 *
 * Invariants:
 *  1. A word is overwritten only after it was read. There are two inboxes, for even and odd tags; a
 *     GPU that writes for tag t + 2 has received all of t + 1, which each other GPU sent from a
 *     launch after the one that read t.
 *  2. A tag never equals that of an older word: before the first sum, and when tags start over at
 *     1, all inboxes are cleared with nothing in flight.
 *  3. All blocks of a launch are resident at the same time, so blocks that poll keep none out that
 *     has something to send. What other GPUs wait for has been issued (queue.cu).
 *  4. A sum that lacks a part ends: after WAIT_S seconds the waiting GPU records which one is
 *     missing (`lost`), writes NaN and goes on; later sums wait no more. */
#include "ops/cuda/queue.cuh"

#include <stdio.h>

#define THREADS  256u
#define BLOCKS   4u /* of an SM, all resident */
#define TAG_LAST 0xffffffffu
#define WAIT_S   10u /* longer than GPUs of one machine are ever apart in a step */

struct sum_call {
    struct op_sum op;
    uint64_t *inbox[TEAM_MAX]; /* [2, n, n_word] of each GPU */
    size_t n_word;
    const uint32_t *tag;
    uint32_t *lost;
    uint32_t i, n; /* this GPU's number in the team, and the team's size */
};

/* ---- The kernel ---- */

/* Polls for a part that had not arrived at the first load. */
static __device__ float late_part(const struct sum_call &c, uint32_t from, const uint64_t *at,
                                  uint32_t tag)
{
    uint64_t begin = 0;
    for (uint32_t k = 1;; k++) {
        const uint64_t word = word_load_system(at);
        if (word >> 32 == tag) return __uint_as_float((uint32_t)word);
        spin_pause();
        if (k % TEAM_POLLS > 0) continue;
        if (*(volatile uint32_t *)c.lost) return NAN;
        if (k == TEAM_POLLS) begin = clock_ns();
        if (clock_ns() - begin < WAIT_S * 1000000000ull) continue;
        *(volatile uint32_t *)c.lost = from + 1;
        return NAN;
    }
}

static __global__ void __launch_bounds__(THREADS, BLOCKS) sum_kernel(const struct sum_call c)
{
    const uint32_t tag = *c.tag;
    kernel_begin();
    const size_t slot = tag % 2 * c.n * c.n_word, step = (size_t)gridDim.x * THREADS;
    const size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x;
    const uint64_t *const own = c.inbox[c.i] + slot;
    for (size_t i = first; i < c.op.n; i += step) {
        const uint64_t word = (uint64_t)tag << 32 | __float_as_uint(c.op.part[i]);
        for (uint32_t k = 0; k < c.n; k++)
            if (k != c.i) word_store_system(c.inbox[k] + slot + c.i * c.n_word + i, word);
    }
    for (size_t i = first; i < c.op.n; i += step) {
        uint64_t word[TEAM_MAX];
        float sum = c.op.adds ? c.op.y[i] : -0.0f; /* neutral, even for -0 */
        const float mine = c.op.part[i];
#pragma unroll /* all loads in flight together */
        for (uint32_t k = 0; k < TEAM_MAX; k++)
            if (k < c.n && k != c.i) word[k] = word_load_system(own + k * c.n_word + i);
#pragma unroll
        for (uint32_t k = 0; k < TEAM_MAX; k++) {
            if (k >= c.n) continue;
            if (k == c.i)
                sum += mine;
            else if (word[k] >> 32 == tag)
                sum += __uint_as_float((uint32_t)word[k]);
            else
                sum += late_part(c, k, own + k * c.n_word + i, tag);
        }
        c.op.y[i] = sum;
    }
}

/* ---- Launching ---- */

sac_status team_settle(struct cuda_device *d)
{
    sac_status first = SAC_OK;
    for (uint32_t i = 0; i < d->n_team; i++) {
        struct cuda_device *of = d->team[i];
        device_use(of);
        const cudaError_t code = cudaStreamSynchronize(of->stream);
        const sac_status status = device_check(of, code, "the GPU's queue");
        if (first == SAC_OK) first = status;
    }
    return first;
}

/* Clears all inboxes, before tag 1. */
static sac_status clear_inboxes(struct cuda_device *d)
{
    TRY(queue_flush(d));
    TRY(team_settle(d));
    for (uint32_t i = 0; i < d->n_team; i++) {
        struct cuda_device *of = d->team[i];
        device_use(of);
        const size_t bytes = 2 * of->n_team * of->n_word * sizeof *of->inbox;
        TRY(device_check(of, cudaMemsetAsync(of->inbox, 0, bytes, of->stream), "inbox of sums"));
    }
    return team_settle(d);
}

/* Records the launch on device i of the team. */
static sac_status record_sum(struct cuda_device *d, uint32_t i, const struct op_sum *op)
{
    struct sum_call c;
    const size_t n_block = (op->n + THREADS - 1) / THREADS, most = BLOCKS * (size_t)d->n_sm;
    memset(&c, 0, sizeof c);
    c.op = *op;
    for (uint32_t k = 0; k < d->n_team; k++) c.inbox[k] = d->team[k]->inbox;
    c.n_word = d->n_word;
    c.tag = (const uint32_t *)stage_put(d, &d->tag, sizeof d->tag);
    c.lost = d->lost;
    c.i = i;
    c.n = d->n_team;
    if (!c.tag) return d->status;
    TRY(queue_launch(d, "sum of several GPUs", sum_kernel,
                     (unsigned)(n_block < most ? n_block : most), THREADS, 0, c));
    queue_set_waits_for_team(d);
    return SAC_OK;
}

/* Room is reserved on all devices first, as a flush between the launches of one sum would issue
 * some without the others. */
sac_status cuda_sum(struct cuda_device *d, const struct op_sum *op)
{
    if (op->n == 0) return SAC_OK;
    if (op->n > d->n_word) return device_fail(d, SAC_ERR_MEMORY, "a sum is larger than its inbox");
    for (uint32_t i = 0; i < d->n_team; i++) {
        TRY(stage_reserve(d->team[i], STAGE_ALIGN));
        TRY(queue_reserve(d->team[i]));
    }
    const uint32_t tag = d->tag == TAG_LAST ? 1 : d->tag + 1;
    if (tag == 1) TRY(clear_inboxes(d));
    for (uint32_t i = 0; i < d->n_team; i++) {
        d->team[i]->tag = tag;
        TRY(record_sum(d->team[i], i, &op[i]));
    }
    return SAC_OK;
}

sac_status team_check(struct cuda_device *d)
{
    char text[sizeof d->message];
    const uint32_t lost = *d->lost;
    if (lost == 0) return SAC_OK;
    *d->lost = 0;
    snprintf(text, sizeof text, "no part of a sum has come from GPU %u for %u s",
             d->team[lost - 1]->index, WAIT_S);
    return device_fail(d, SAC_ERR_IO, text);
}

/* ---- Joining ---- */

bool cuda_join(struct cuda_device *const *d, uint64_t *const *inbox, uint32_t n, size_t n_word)
{
    if (n > TEAM_MAX) return false;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            if (i != k && !device_reach(d[i], d[k])) return false;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(d[i]->team, d, n * sizeof *d);
        d[i]->n_team = n;
        d[i]->inbox = inbox[i];
        d[i]->n_word = n_word;
        d[i]->tag = TAG_LAST;
    }
    return true;
}

void team_leave(struct cuda_device *d)
{
    struct cuda_device *team[TEAM_MAX];
    const uint32_t n = d->n_team;
    memcpy(team, d->team, sizeof team);
    for (uint32_t i = 0; i < n; i++) {
        team[i]->team[0] = team[i];
        team[i]->n_team = 1;
    }
}
