/* grid.h: the threads of a kernel's launch, on one thread of a CPU. Blocks run one after another.
 * The threads of a block are fibers: each runs until it must wait for others, at a barrier of the
 * block or at an exchange of its warp, and then the next one runs. So a launch is deterministic,
 * and what a kernel may not do ends the program with a message: threads that wait at different
 * barriers, lanes of a warp at different exchanges, or for lanes that have left.
 *
 * Shared memory is full of NaNs when a block begins. The environment variable SAC_GRID_ORDER
 * "backward" runs blocks, and the threads of each, from the last to the first: a kernel whose
 * result changes lacks a barrier. */
#ifndef SAC_TESTS_GRID_H
#define SAC_TESTS_GRID_H

#include <functional>
#include <stddef.h>
#include <stdint.h>

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
/* Of the fiber that runs. */
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

#define GRID_SHARED_MAX  ((size_t)232448) /* of a block, as on a GPU */
#define GRID_THREADS_MAX 1024u

/* A launch under way. It runs where it is told to go on, until it is done, and then is no more, or
 * until all its threads that could run pause. */
struct grid;
enum grid_state { GRID_DONE, GRID_MOVED, GRID_STUCK /* none has come any further */ };
struct grid *grid_launch(dim3 size, uint32_t n_thread, size_t shared,
                         const std::function<void()> &kernel);
enum grid_state grid_go_on(struct grid *g);

/* The running block's shared memory, and a place in it as a number. */
uint8_t *grid_shared(void);
uint32_t grid_shared_address(const void *p);
void *grid_shared_at(uint32_t address, size_t bytes);

/* What every thread must come to, once: a kernel that ends without it is told of. */
void grid_begin(void);
/* __syncthreads of a source line. */
void grid_barrier(int line);

/* A thread that looks again and again for what another device writes does so between looks: the
 * others go on, and when all of them pause, other streams do. Until then __shared__ memory, which
 * launches of a kernel have in common, holds nothing. */
void grid_pause(void);

/* What lanes of a warp do together: each brings `bytes` (GRID_WORDS words at most), the last one
 * calls `join`, if there is one, and then each may look at all words, until its next exchange. */
#define GRID_WORDS 12
enum grid_exchange { GRID_SYNC, GRID_SHUFFLE, GRID_VOTE, GRID_MMA, GRID_TILES };
typedef uint32_t grid_words[GRID_WORDS]; /* of a lane */
const grid_words *grid_meet(enum grid_exchange kind, uint32_t mask, const void *mine, size_t bytes,
                            void (*join)(grid_words *of_lane) = NULL);
uint32_t grid_lane(void);

#endif
