/* workers.c: the thread pool. A fork-join costs a few tenths of a microsecond while the threads
 * spin, which matters: a decode step of a small model has about 150 of them.
 *
 * Protocol. The caller sets `fn` and `arg`, opens the gate for the next generation and raises
 * `generation` with release order. A worker that sees the new value (acquire) marks itself as
 * inside in its own slot, checks whether the gate is still open for the generation that it saw,
 * runs `fn` if so, and marks itself as outside (release). The caller closes the gate when no work
 * is left, and waits for the workers that are inside (acquire). "I am inside, is it open?" and "It
 * is closed, is anyone inside?" are sequentially consistent, so one of the two sides sees the
 * other. A thread that gets no CPU, because there are more threads than free CPUs, is therefore not
 * waited for: the others take its work. Only workers_run, whose work is one piece per worker, waits
 * for all.
 *
 * After SPIN_LOOPS without work a worker sleeps on a futex of `generation`; `n_sleep` tells the
 * caller whether a wake call is needed. A worker that was late spins for a shorter time, because
 * CPUs are scarce then, and it may be spinning on the caller's. */
#include "base/workers.h"

#include "base/mem.h"
#include "base/thread.h"

#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_LOOPS  20000 /* about 0.3 ms: longer than the gap between two operations of a step */
#define SPIN_LEAST  300   /* for threads that were late repeatedly */
#define MAX_WORKERS 256

#define GATE_OPEN (1ull << 32)

#define LINE_PAD (64 - sizeof(_Atomic uint32_t)) /* two words never share a cache line */

/* Items of a worker that are not taken yet: begin in the low half, end in the high half. */
struct share {
    _Atomic uint64_t span;
    char pad[64 - sizeof(_Atomic uint64_t)];
};

/* State that only its worker writes. */
struct slot {
    _Atomic uint32_t inside; /* 1: may be running fn */
    _Atomic uint32_t done;   /* the last generation that it ran */
    char pad[64 - 2 * sizeof(_Atomic uint32_t)];
};

struct workers {
    _Atomic uint32_t generation;
    char pad0[LINE_PAD];
    _Atomic uint64_t gate; /* GATE_OPEN | generation, or closed */
    char pad1[64 - sizeof(_Atomic uint64_t)];
    _Atomic uint32_t n_sleep;
    char pad2[LINE_PAD];
    _Atomic uint32_t next_item;
    char pad3[LINE_PAD];
    workers_fn fn;
    void *arg;
    const void *queue; /* borrowed */
    _Atomic bool quit;
    uint32_t n, n_thread; /* workers including the caller; threads started */
    pthread_t thread[MAX_WORKERS];
    struct share share[MAX_WORKERS];
    struct slot slot[MAX_WORKERS];
};

struct worker_start {
    struct workers *w;
    uint32_t worker_i;
};

static void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static uint32_t wait_for_work(struct workers *w, uint32_t seen, uint32_t n_spin)
{
    for (uint32_t i = 0; i < n_spin; i++) {
        const uint32_t now = atomic_load_explicit(&w->generation, memory_order_acquire);
        if (now != seen) return now;
        cpu_relax();
    }
    /* Sequentially consistent: either the caller sees n_sleep > 0 and wakes us, or we see the new
     * generation here and the futex refuses to sleep. */
    atomic_fetch_add(&w->n_sleep, 1);
    uint32_t now;
    while ((now = atomic_load(&w->generation)) == seen) futex_wait(&w->generation, seen);
    atomic_fetch_sub(&w->n_sleep, 1);
    return now;
}

/* Runs the work of the generation unless it is over. */
static bool take_part(struct workers *w, uint32_t generation, uint32_t worker_i)
{
    struct slot *slot = &w->slot[worker_i];
    atomic_store(&slot->inside, 1);
    const bool is_open = atomic_load(&w->gate) == (GATE_OPEN | generation);
    if (is_open) {
        w->fn(w->arg, worker_i);
        atomic_store_explicit(&slot->done, generation, memory_order_release);
    }
    atomic_store_explicit(&slot->inside, 0, memory_order_release);
    return is_open;
}

static void *worker_main(void *p)
{
    struct worker_start start = *(struct worker_start *)p;
    mem_free(p);
    struct workers *w = start.w;
    uint32_t seen = 0, n_spin = SPIN_LOOPS;
    for (;;) {
        const uint32_t now = wait_for_work(w, seen, n_spin);
        const bool is_late = now - seen > 1; /* more than one generation passed without it */
        seen = now;
        if (atomic_load_explicit(&w->quit, memory_order_relaxed)) return NULL;
        if (take_part(w, seen, start.worker_i))
            n_spin = SPIN_LOOPS;
        else if (is_late && n_spin > SPIN_LEAST)
            n_spin /= 2;
    }
}

uint32_t workers_default_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    const int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > MAX_WORKERS ? MAX_WORKERS : (uint32_t)n;
}

static void publish(struct workers *w)
{
    const uint32_t next = atomic_load_explicit(&w->generation, memory_order_relaxed) + 1;
    atomic_store(&w->gate, GATE_OPEN | next);
    atomic_store(&w->generation, next);
    if (atomic_load(&w->n_sleep) > 0) futex_wake_all(&w->generation);
}

sac_status workers_create(struct workers **out, uint32_t n, sac_error *err)
{
    if (n == 0) n = workers_default_count();
    if (n > MAX_WORKERS)
        return error_set(err, SAC_ERR_ARG, "%u threads asked for, at most %d are possible", n,
                         MAX_WORKERS);
    struct workers *w = mem_calloc(1, sizeof *w);
    if (!w) return error_set(err, SAC_ERR_MEMORY, "out of memory for the thread pool");
    w->n = n;
    for (uint32_t i = 1; i < n; i++) {
        struct worker_start *start = mem_alloc(sizeof *start);
        if (start) *start = (struct worker_start){.w = w, .worker_i = i};
        if (!start || !thread_start(&w->thread[i], worker_main, start)) {
            mem_free(start);
            workers_destroy(w);
            return error_set(err, SAC_ERR_MEMORY, "cannot start thread %u of %u", i + 1, n);
        }
        w->n_thread = i;
    }
    *out = w;
    return SAC_OK;
}

void workers_destroy(struct workers *w)
{
    if (!w) return;
    atomic_store_explicit(&w->quit, true, memory_order_relaxed);
    publish(w);
    for (uint32_t i = 1; i <= w->n_thread; i++) pthread_join(w->thread[i], NULL);
    mem_free(w);
}

uint32_t workers_count(const struct workers *w)
{
    return w ? w->n : 1;
}

void workers_use_queue(struct workers *w, const void *queue)
{
    w->queue = queue;
}

const void *workers_queue(const struct workers *w)
{
    return w->queue;
}

/* With more threads than free CPUs, the awaited thread must get to run now and then. */
static void wait_a_little(uint32_t *spins)
{
    cpu_relax();
    if (++*spins % 4096 == 0) sched_yield();
}

/* Runs fn on the caller and on all workers, or on those that arrive before the caller's call
 * returns. */
static void fork_join(struct workers *w, workers_fn fn, void *arg, bool needs_all)
{
    uint32_t spins = 0;
    assert(atomic_load(&w->gate) == 0);
    w->fn = fn;
    w->arg = arg;
    publish(w);
    const uint32_t generation = atomic_load_explicit(&w->generation, memory_order_relaxed);
    fn(arg, 0);
    for (uint32_t i = 1; needs_all && i < w->n; i++)
        while (atomic_load_explicit(&w->slot[i].done, memory_order_acquire) != generation)
            wait_a_little(&spins);
    atomic_store(&w->gate, 0);
    for (uint32_t i = 1; i < w->n; i++)
        while (atomic_load(&w->slot[i].inside)) wait_a_little(&spins);
}

void workers_run(struct workers *w, workers_fn fn, void *arg)
{
    if (w->n == 1)
        fn(arg, 0);
    else
        fork_join(w, fn, arg, true);
}

void workers_share(struct workers *w, workers_fn fn, void *arg)
{
    if (!w || w->n == 1)
        fn(arg, 0);
    else
        fork_join(w, fn, arg, false);
}

struct item_loop {
    struct workers *w;
    workers_item_fn fn;
    void *arg;
    uint32_t n_item;
};

static void item_loop_worker(void *p, uint32_t worker_i)
{
    const struct item_loop *loop = p;
    for (;;) {
        const uint32_t i = atomic_fetch_add_explicit(&loop->w->next_item, 1, memory_order_relaxed);
        if (i >= loop->n_item) return;
        loop->fn(loop->arg, i, worker_i);
    }
}

void workers_for(struct workers *w, uint32_t n_item, workers_item_fn fn, void *arg)
{
    assert(n_item <= UINT32_MAX - MAX_WORKERS);
    if (!w || w->n == 1 || n_item <= 1) {
        for (uint32_t i = 0; i < n_item; i++) fn(arg, i, 0);
        return;
    }
    struct item_loop loop = {.w = w, .fn = fn, .arg = arg, .n_item = n_item};
    atomic_store_explicit(&w->next_item, 0, memory_order_relaxed);
    workers_share(w, item_loop_worker, &loop);
}

struct span_loop {
    struct workers *w;
    workers_span_fn fn;
    void *arg;
    uint32_t step;
};

struct span {
    uint32_t begin, end;
};

static uint64_t span_pack(struct span s)
{
    return (uint64_t)s.end << 32 | s.begin;
}

/* Takes up to `step` items from one end of a share; an empty span: none are left. Relaxed order is
 * enough, because the fork and the join order the items' data. */
static struct span take_span(struct share *share, uint32_t step, bool from_end)
{
    uint64_t seen = atomic_load_explicit(&share->span, memory_order_relaxed);
    for (;;) {
        const struct span left = {(uint32_t)seen, (uint32_t)(seen >> 32)};
        if (left.begin == left.end) return left;
        const uint32_t n = left.end - left.begin < step ? left.end - left.begin : step;
        const struct span taken = from_end ? (struct span){left.end - n, left.end}
                                           : (struct span){left.begin, left.begin + n};
        const struct span rest =
            from_end ? (struct span){left.begin, taken.begin} : (struct span){taken.end, left.end};
        if (atomic_compare_exchange_weak_explicit(&share->span, &seen, span_pack(rest),
                                                  memory_order_relaxed, memory_order_relaxed))
            return taken;
    }
}

static void span_loop_worker(void *p, uint32_t worker_i)
{
    const struct span_loop *loop = p;
    const uint32_t n = loop->w->n;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t owner = (worker_i + k) % n;
        for (;;) {
            const struct span s = take_span(&loop->w->share[owner], loop->step, k > 0);
            if (s.begin == s.end) break;
            loop->fn(loop->arg, s.begin, s.end, worker_i);
        }
    }
}

void workers_for_span(struct workers *w, uint32_t n_item, uint32_t step, workers_span_fn fn,
                      void *arg)
{
    assert(step > 0);
    for (uint32_t i = 0; !w && i < n_item; i += step)
        fn(arg, i, n_item - i < step ? n_item : i + step, 0);
    if (!w) return;
    struct span_loop loop = {.w = w, .fn = fn, .arg = arg, .step = step};
    for (uint32_t i = 0; i < w->n; i++) {
        const struct span s = {(uint32_t)((uint64_t)n_item * i / w->n),
                               (uint32_t)((uint64_t)n_item * (i + 1) / w->n)};
        atomic_store_explicit(&w->share[i].span, span_pack(s), memory_order_relaxed);
    }
    if (n_item <= 1)
        span_loop_worker(&loop, 0);
    else
        workers_share(w, span_loop_worker, &loop);
}

uint64_t clock_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}
