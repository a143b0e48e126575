/* grid.cpp: see the header. Fibers begin with makecontext, and change over by the compiler's own
 * setjmp and longjmp, which keep three registers and leave the others to the callers. */
#include "grid.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#define STACK_LEAVE(to)   __sanitizer_start_switch_fiber(NULL, (to).p, (to).bytes)
#define STACK_ENTER(from) __sanitizer_finish_switch_fiber(NULL, &(from).p, &(from).bytes)
#else
#define STACK_LEAVE(to)   ((void)(to))
#define STACK_ENTER(from) ((void)(from))
#endif

/* Of no power of two: the stacks of a block would share the same few lines of a cache. */
#define STACK_BYTES (((size_t)256 << 10) + 13 * 64)
#define WARPS_MAX   (GRID_THREADS_MAX / 32)
#define NONE        UINT32_MAX

dim3 threadIdx, blockIdx, blockDim, gridDim;

enum wait { WAIT_NONE, WAIT_PAUSE, WAIT_BLOCK, WAIT_WARP, WAIT_OVER };

typedef void *place[5]; /* of __builtin_setjmp */

struct stack {
    const void *p;
    size_t bytes;
};

struct fiber {
    uint8_t *stack;
    place at;
    bool begun;  /* it has a stack in use */
    bool waited; /* for the launch before, in this block */
    enum wait wait;
    uint64_t turn; /* of the barrier or exchange that is waited for */
    int line;
};

struct warp {
    enum grid_exchange kind;
    uint32_t arrived, mask;
    uint64_t turn; /* exchanges that are complete */
    grid_words brought[2][32]; /* by turn: nobody is two turns ahead of another */
};

struct grid {
    struct fiber fiber[GRID_THREADS_MAX];
    struct warp warp[WARPS_MAX];
    uint32_t n_thread, now, n_left, n_waiting;
    uint32_t n_passed, next; /* in this pass over the threads: those passed; what the scheduler runs */
    bool ran, came_further;  /* any thread of this pass */
    bool paused;             /* the running thread, before it went on */
    bool by_scheduler;       /* it was the scheduler that jumped to the running thread */
    uint64_t turn; /* barriers that are complete */
    place scheduler;
    struct stack caller; /* the scheduler's, as a sanitizer tells it */
    std::function<void()> kernel;
    dim3 size;
    uint64_t n_block, n_done; /* blocks, and those that have ended */
    bool has_begun, moved;    /* the next of them; anything since the last go_on */
    uint8_t *shared_room, *shared; /* the room ends before a page that cannot be read */
    size_t shared_bytes;
    bool backward;
};

static struct grid *block; /* the launch that runs, with its block at hand */
static std::vector<struct grid *> idle; /* those that can be used again */

[[noreturn]] static void fail(const char *what)
{
    fprintf(stderr, "grid: %s (block %u,%u,%u thread %u)\n", what, blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x);
    abort();
}

/* ---- Changing over ---- */

/* Apart from where a place is noted, as the compiler asks. */
[[noreturn, gnu::noinline]] static void go_to(place to)
{
    __builtin_longjmp(to, 1);
}

static bool may_run(const struct fiber *f, uint32_t i)
{
    switch (f->wait) {
    case WAIT_NONE:
    case WAIT_PAUSE: return true;
    case WAIT_BLOCK: return block->turn > f->turn;
    case WAIT_WARP: return block->warp[i / 32].turn > f->turn;
    case WAIT_OVER: return false;
    }
    return false;
}

/* The next thread of this pass that can run; NONE: the pass is over. */
static uint32_t next_thread(void)
{
    while (block->n_passed < block->n_thread) {
        const uint32_t k = block->n_passed++, i = block->backward ? block->n_thread - 1 - k : k;
        if (may_run(&block->fiber[i], i)) return i;
    }
    return NONE;
}

static void choose(uint32_t i, bool by_scheduler)
{
    struct fiber *f = &block->fiber[i];
    block->now = i;
    threadIdx.x = i;
    block->by_scheduler = by_scheduler;
    block->ran = true;
    block->paused = f->wait == WAIT_PAUSE;
    f->wait = WAIT_NONE;
}

/* At the begin of a fiber, and whenever it goes on. */
static void arrive(void)
{
    struct stack left = {};
    STACK_ENTER(left);
    if (block->by_scheduler) block->caller = left;
}

/* Jumps to the next thread or, when the pass is over or that thread has not begun, to the scheduler.
 * Returns `all` later, so that a caller can end with this call: each return after a jump is slow. */
[[gnu::noinline]] static const grid_words *give_way(const grid_words *all)
{
    struct fiber *f = &block->fiber[block->now];
    /* A thread that pauses again has not moved. */
    if (!block->paused || f->wait != WAIT_PAUSE) block->came_further = true;
    const uint32_t next = next_thread();
    if (__builtin_setjmp(f->at) == 0) {
        if (next != NONE && block->fiber[next].begun) {
            const struct stack its = {block->fiber[next].stack, STACK_BYTES};
            choose(next, false);
            STACK_LEAVE(its);
            go_to(block->fiber[next].at);
        }
        block->next = next;
        STACK_LEAVE(block->caller);
        go_to(block->scheduler);
    }
    arrive();
    return all;
}

/* A fiber lives on from block to block. */
[[noreturn]] static void run_kernels(void)
{
    arrive();
    for (;;) {
        block->kernel();
        if (!block->fiber[block->now].waited) fail("a kernel that has not called kernel_begin");
        block->fiber[block->now].wait = WAIT_OVER;
        block->n_left--;
        give_way(NULL);
    }
}

[[gnu::noinline]] static void go_on(uint32_t i)
{
    struct fiber *f = &block->fiber[i];
    const struct stack own = {f->stack, STACK_BYTES};
    choose(i, true);
    if (__builtin_setjmp(block->scheduler) != 0) {
        struct stack left;
        STACK_ENTER(left);
        return;
    }
    STACK_LEAVE(own);
    if (f->begun) go_to(f->at);
    f->begun = true;
    ucontext_t start;
    getcontext(&start);
    start.uc_stack.ss_sp = f->stack;
    start.uc_stack.ss_size = STACK_BYTES;
    start.uc_link = NULL;
    makecontext(&start, run_kernels, 0);
    setcontext(&start);
}

/* All threads that have not ended wait here: the barrier is complete. */
static void complete_barrier(void)
{
    int line = 0;
    for (uint32_t i = 0; i < block->n_thread; i++) {
        const struct fiber *f = &block->fiber[i];
        if (f->wait != WAIT_BLOCK) continue;
        if (line && f->line != line) fail("threads of a block wait at different barriers");
        line = f->line;
    }
    block->turn++;
    block->n_waiting = 0;
}

/* false: all threads that can run pause. */
static bool run_block(void)
{
    while (block->n_left > 0) {
        block->ran = block->came_further = false;
        block->n_passed = 0;
        for (uint32_t i = next_thread(); i != NONE; i = block->next) go_on(i);
        block->moved |= block->came_further;
        if (block->n_left > 0 && block->n_waiting == block->n_left)
            complete_barrier();
        else if (!block->ran)
            fail("a barrier or exchange that not all threads come to");
        else if (!block->came_further)
            return false;
    }
    return true;
}

/* ---- What threads do together ---- */

void grid_begin(void)
{
    block->fiber[block->now].waited = true;
}

void grid_barrier(int line)
{
    struct fiber *f = &block->fiber[block->now];
    f->wait = WAIT_BLOCK;
    f->turn = block->turn;
    f->line = line;
    block->n_waiting++;
    give_way(NULL);
}

void grid_pause(void)
{
    block->fiber[block->now].wait = WAIT_PAUSE;
    give_way(NULL);
}

uint32_t grid_lane(void)
{
    return block->now % 32;
}

const grid_words *grid_meet(enum grid_exchange kind, uint32_t mask, const void *mine, size_t bytes,
                            void (*join)(grid_words *of_lane))
{
    const uint32_t lane = grid_lane();
    struct warp *w = &block->warp[block->now / 32];
    struct fiber *f = &block->fiber[block->now];
    if (!(mask >> lane & 1)) fail("a lane is not in the mask of its own exchange");
    if (w->arrived == 0) {
        w->kind = kind;
        w->mask = mask;
    }
    if (w->kind != kind || w->mask != mask) fail("lanes of a warp meet at different exchanges");
    grid_words *all = w->brought[w->turn % 2];
    if (bytes > 0) memcpy(all[lane], mine, bytes);
    w->arrived |= 1u << lane;
    if (w->arrived == mask) {
        if (join) join(all);
        w->arrived = 0;
        w->turn++;
        return all;
    }
    f->wait = WAIT_WARP;
    f->turn = w->turn;
    return give_way(all);
}

/* ---- Shared memory ---- */

uint8_t *grid_shared(void)
{
    return block->shared;
}

/* Zero is no place. */
uint32_t grid_shared_address(const void *p)
{
    return (uint32_t)((const uint8_t *)p - block->shared_room) + 1024;
}

void *grid_shared_at(uint32_t address, size_t bytes)
{
    uint8_t *p = block->shared_room + address - 1024;
    if (p < block->shared || p + bytes > block->shared + block->shared_bytes)
        fail("a copy to shared memory that the launch did not ask for");
    return p;
}

/* ---- Launches ---- */

static void *map(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) fail("no memory for a block");
    return p;
}

static struct grid *open_grid(void)
{
    const size_t page = 4096, room = (GRID_SHARED_MAX + page - 1) / page * page;
    struct grid *g = new grid();
    g->shared_room = (uint8_t *)map(room + page);
    if (mprotect(g->shared_room + room, page, PROT_NONE) != 0) fail("no end of shared memory");
    uint8_t *stack = (uint8_t *)map(GRID_THREADS_MAX * STACK_BYTES);
    for (uint32_t i = 0; i < GRID_THREADS_MAX; i++) g->fiber[i].stack = stack + i * STACK_BYTES;
    return g;
}

/* As near to the end of the room as its alignment allows. */
static void begin_block(void)
{
    const size_t room = (GRID_SHARED_MAX + 4095) / 4096 * 4096;
    block->shared = block->shared_room + (room - block->shared_bytes) / 1024 * 1024;
    memset(block->shared, 0xff, block->shared_bytes);
    block->n_left = block->n_thread;
    block->n_waiting = 0;
    for (uint32_t i = 0; i < block->n_thread; i++)
        block->fiber[i].wait = WAIT_NONE, block->fiber[i].waited = false;
    for (uint32_t i = 0; i < WARPS_MAX; i++) block->warp[i].arrived = 0;
}

struct grid *grid_launch(dim3 size, uint32_t n_thread, size_t shared,
                         const std::function<void()> &kernel)
{
    const char *order = getenv("SAC_GRID_ORDER");
    if (n_thread == 0 || n_thread > GRID_THREADS_MAX || shared > GRID_SHARED_MAX)
        fail("a launch that no GPU can do");
    if (size.x == 0 || size.y == 0 || size.z == 0 || size.y > 65535 || size.z > 65535)
        fail("a grid that no GPU can run");
    struct grid *g = idle.empty() ? open_grid() : idle.back();
    if (!idle.empty()) idle.pop_back();
    g->backward = order && strcmp(order, "backward") == 0;
    g->kernel = kernel;
    g->size = size;
    g->n_thread = n_thread;
    g->shared_bytes = shared;
    g->n_block = (uint64_t)size.x * size.y * size.z;
    g->n_done = 0;
    g->has_begun = false;
    return g;
}

/* What kernels ask for by name is that of the launch that goes on. */
static void enter(struct grid *g)
{
    const uint64_t i = g->backward ? g->n_block - 1 - g->n_done : g->n_done;
    block = g;
    gridDim = g->size;
    blockDim = dim3(g->n_thread);
    threadIdx = dim3(0, 0, 0);
    blockIdx = dim3((unsigned)(i % g->size.x), (unsigned)(i / g->size.x % g->size.y),
                    (unsigned)(i / g->size.x / g->size.y));
}

enum grid_state grid_go_on(struct grid *g)
{
    g->moved = false;
    for (; g->n_done < g->n_block; g->n_done++) {
        enter(g);
        if (!g->has_begun) begin_block();
        g->has_begun = true;
        if (!run_block()) return g->moved ? GRID_MOVED : GRID_STUCK;
        g->has_begun = false;
    }
    idle.push_back(g);
    return GRID_DONE;
}
