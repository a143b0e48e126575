/* top.cu: the k largest of n logits of each row, in descending order, with their token ids
 * (op_top), so that the logits need not be copied to the host.
 *
 * Grid: pieces of OP_TOP_PIECE logits by rows. A block keeps the keys of its piece in registers and
 * finds its k largest one after another, each by a block-wide maximum of the keys below the last
 * one. The last block of a row to finish (block_is_last) does the same with the candidates of all
 * pieces. A 64-bit key is the order of the value, then the inverted id: all keys differ, so the
 * order is total. */
#include "ops/cuda/block.cuh"
#include "ops/cuda/cut.cuh"
#include "ops/cuda/queue.cuh"

#define THREADS 256u
#define EACH    (OP_TOP_PIECE / THREADS)    /* keys of a thread, in registers */
#define MERGED  (OP_TOP_ROOM_MAX / THREADS) /* candidates of a thread in the merge */

static_assert(EACH * THREADS == OP_TOP_PIECE && MERGED * THREADS == OP_TOP_ROOM_MAX, "no rest");

typedef unsigned long long top_key; /* 0 sorts last: no key */

static __device__ inline top_key key_of(float value, uint32_t id)
{
    return (top_key)cut_key(value) << 32 | ~id;
}

static __device__ inline top_key block_max(top_key x, top_key *room)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = 16; i > 0; i /= 2) x = max(x, __shfl_xor_sync(~0u, x, i));
    __syncthreads(); /* the last call's readers are done */
    if (lane == 0) room[warp] = x;
    __syncthreads();
    for (uint32_t w = 0; w < THREADS / 32; w++) x = max(x, room[w]);
    return x;
}

/* The largest of the block's keys below `last`; all threads get it. */
template <uint32_t n>
static __device__ inline top_key next_key(const top_key key[n], top_key last, top_key *room)
{
    top_key best = 0;
#pragma unroll
    for (uint32_t i = 0; i < n; i++)
        if (key[i] < last && key[i] > best) best = key[i];
    return block_max(best, room);
}

static __global__ void __launch_bounds__(THREADS)
    top_kernel(const struct op_top op, uint32_t *tally)
{
    kernel_begin();
    __shared__ top_key room[THREADS / 32];
    const uint32_t row = blockIdx.y, n_all = gridDim.x * op.k;
    top_key *all = (top_key *)op.spare + (size_t)row * n_all, last = ~(top_key)0;
    top_key key[EACH];
#pragma unroll
    for (uint32_t i = 0; i < EACH; i++) {
        const uint32_t id = blockIdx.x * OP_TOP_PIECE + i * THREADS + threadIdx.x;
        key[i] = id < op.n ? key_of(op.x[row * op.stride + id], id) : 0;
    }
    for (uint32_t j = 0; j < op.k; j++) {
        last = next_key<EACH>(key, last, room);
        if (threadIdx.x == 0) all[blockIdx.x * op.k + j] = last;
    }
    if (!block_is_last(tally + row, gridDim.x)) return;
    top_key found[MERGED];
#pragma unroll
    for (uint32_t i = 0; i < MERGED; i++)
        found[i] = i * THREADS + threadIdx.x < n_all ? __ldcg(all + i * THREADS + threadIdx.x) : 0;
    last = ~(top_key)0;
    for (uint32_t j = 0; j < op.k; j++) {
        last = next_key<MERGED>(found, last, room);
        if (threadIdx.x > 0) continue;
        const uint32_t id = ~(uint32_t)last;
        op.out[(size_t)row * op.k + j] = {id, op.x[row * op.stride + id]};
    }
}

sac_status cuda_top(struct cuda_device *d, const struct op_top *op)
{
    const uint32_t n_piece = op->n / OP_TOP_PIECE + 1;
    if (op->n_row == 0 || op->k == 0) return SAC_OK;
    if (op->n_row > TALLY || op->k > op->n || n_piece * op->k > OP_TOP_ROOM_MAX)
        return device_fail(d, SAC_ERR_ARG, "more of the largest values than there is room for");
    return queue_launch(d, "largest values", top_kernel, dim3(n_piece, op->n_row), THREADS, 0, *op,
                        d->tally);
}
