/* team.cu: sums of parts of several GPUs (op_sum), within the row of launches of each: no event, no
 * copy and no end of a graph stands between the parts and their sum.
 *
 * One launch on each GPU writes its part into all others' inboxes, waits for theirs in its own, and
 * adds up. A value travels in one word with the number of its sum (the tag), so it is there when its
 * tag is: nothing has to be published behind it, and no order of words counts. Tags are staged like
 * all descriptors, so that a graph that is started again reads new ones.
 *
 * Invariants:
 *  1. A word is overwritten only when it has been read. There are two inboxes, for even and odd tags;
 *     a GPU that writes for tag t + 2 has received all of t + 1, which each of the others sent in a
 *     launch behind the one that read t.
 *  2. A tag is never that of an older word: before the first sum, and where tags begin again at 1, all
 *     inboxes are cleared, with nothing under way.
 *  3. Blocks of a launch are all on the GPU at once, so that those which wait keep out none that has
 *     something to send. What others wait for is on other GPUs, and on its way (queue.cu).
 *  4. A sum that lacks a part ends: after a while the one who waits tells whom it lacks (`lost`),
 *     makes a NaN of it, and goes on; sums behind it wait no more. */
#include "ops/cuda/queue.cuh"

#include <stdio.h>

#define THREADS  256u
#define BLOCKS   4u /* of an SM */
#define TAG_LAST 0xffffffffu
#define WAIT_S   10u /* longer than GPUs of one machine are ever apart in a step */

struct sum_call {
    struct op_sum op;
    uint64_t *inbox[TEAM_MAX]; /* [2, n, n_word] */
    size_t n_word;
    const uint32_t *tag;
    uint32_t *lost;
    uint32_t i, n; /* its own number, of so many */
};

/* ---- The kernel ---- */

/* What has not come at the first look. */
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
        float sum = c.op.adds ? c.op.y[i] : -0.0f; /* which adds nothing, not even to a zero's sign */
        const float mine = c.op.part[i];
#pragma unroll /* looks that are under way together */
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

/* Before the first tag. */
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

/* On one of them. */
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

/* No flush comes between the launches of one sum: it would send off some of them. */
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
