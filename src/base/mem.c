/* mem.c: allocation with failure on demand, huge-page maps, and the two-pass arena.
 *
 * Invariant: every block that the engine owns is allocated here, so if `mem_count` does not change
 * during a step, the step allocated nothing. */
#include "base/mem.h"

#include "base/align.h"

#include "saccade.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static _Atomic uint64_t count;
static _Atomic uint64_t held;
static _Atomic uint64_t fail_at; /* allocations from this `count` on fail; 0: none */
static _Atomic bool fail_once;   /* only that allocation fails */

static int must_fail(void)
{
    const uint64_t c = atomic_fetch_add_explicit(&count, 1, memory_order_relaxed) + 1;
    const uint64_t f = atomic_load_explicit(&fail_at, memory_order_relaxed);
    return f != 0 && (c == f || (c > f && !atomic_load_explicit(&fail_once, memory_order_relaxed)));
}

static void arm(uint64_t n, bool once)
{
    atomic_store(&fail_once, once);
    atomic_store(&fail_at, n ? atomic_load(&count) + n : 0);
}

void mem_fail_after(uint64_t n)
{
    arm(n, false);
}

void mem_fail_at(uint64_t n)
{
    arm(n, true);
}

uint64_t mem_count(void)
{
    return atomic_load(&count);
}

uint64_t mem_held(void)
{
    return atomic_load(&held);
}

static void *hand_out(void *p)
{
    if (p) atomic_fetch_add_explicit(&held, 1, memory_order_relaxed);
    return p;
}

void *mem_alloc(size_t bytes)
{
    return must_fail() ? NULL : hand_out(malloc(bytes ? bytes : 1));
}

void *mem_calloc(size_t n, size_t bytes)
{
    /* calloc checks the product, too, but aborts under a sanitizer. */
    const bool overflows = bytes && n > SIZE_MAX / bytes;
    return must_fail() || overflows ? NULL : hand_out(calloc(n ? n : 1, bytes ? bytes : 1));
}

void *mem_realloc(void *old, size_t bytes)
{
    if (must_fail()) return NULL;
    void *p = realloc(old, bytes ? bytes : 1);
    return old ? p : hand_out(p);
}

void mem_free(void *p)
{
    if (p) atomic_fetch_sub_explicit(&held, 1, memory_order_relaxed);
    free(p);
}

char *mem_strndup(const char *s, size_t n)
{
    char *copy = mem_alloc(n + 1);
    if (!copy) return NULL;
    memcpy(copy, s, n);
    copy[n] = 0;
    return copy;
}

char *mem_strdup(const char *s)
{
    return mem_strndup(s, strlen(s));
}

void sac_free(void *owned)
{
    mem_free(owned);
}

static size_t round_huge(size_t bytes)
{
    return (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
}

void *mem_map(size_t bytes)
{
    if (must_fail() || bytes > SIZE_MAX / 2) return NULL;
    const size_t want = round_huge(bytes ? bytes : 1);
    /* mmap aligns to 4 KiB only, so map one huge page more and trim both ends. */
    uint8_t *raw = mmap(NULL, want + HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    uint8_t *p = (uint8_t *)(((uintptr_t)raw + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
    if (p > raw) munmap(raw, (size_t)(p - raw));
    const size_t tail = (size_t)(raw + want + HUGE_BYTES - (p + want));
    if (tail) munmap(p + want, tail);
    /* Advice only: without huge pages it is slower, not wrong. */
    (void)madvise(p, want, MADV_HUGEPAGE);
    return p;
}

void mem_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, round_huge(bytes ? bytes : 1));
}

void *arena_take(struct arena *a, size_t n, size_t bytes)
{
    assert(bytes == 0 || n <= SIZE_MAX / 2 / bytes);
    const size_t size = align_line(n * bytes);
    uint8_t *p = a->base ? a->base + a->used : NULL;
    a->used += size;
    assert(!a->base || a->used <= a->capacity);
    return p;
}

void *arena_take_tensor(struct arena *a, size_t n, size_t bytes)
{
    return arena_take(a->device ? a->device : a, n, bytes);
}

size_t arena_used(const struct arena *a)
{
    return a->used + (a->device ? a->device->used : 0);
}
