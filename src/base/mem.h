/* mem.h: the only place of malloc and anonymous mmap, so that leaks have one address and tests can
 * make any allocation fail.
 *
 * Contract: a NULL result means that memory ran out (or that a test made the allocation fail); the
 * caller reports SAC_ERR_MEMORY. Size 0 gives a valid pointer. Thread safe. */
#ifndef SAC_BASE_MEM_H
#define SAC_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t bytes);
void *mem_calloc(size_t n, size_t bytes); /* zeroed; NULL when the product overflows */
void *mem_realloc(void *old, size_t bytes);
void mem_free(void *p);
char *mem_strndup(const char *s, size_t n); /* NUL terminated copy */
char *mem_strdup(const char *s);

/* For plans whose pieces are used in turn. */
static inline size_t mem_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Zeroed memory for weights, KV pages and scratch, aligned to 2 MiB and backed by huge pages where
 * the system gives them: gathers from 4 KiB pages are up to three times slower. */
void *mem_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

/* Tests: the n-th allocation from now (1 is the next) and all after it fail; 0 switches it off. */
void mem_fail_after(uint64_t n);
/* The n-th alone fails: what comes then goes on with a hole in it. */
void mem_fail_at(uint64_t n);
/* Allocations so far in the process: a step must not change it. */
uint64_t mem_count(void);
/* Blocks that were handed out and not freed; maps are not among them. */
uint64_t mem_held(void);

/* ---- Arena: pieces of one block whose size the same code computes beforehand (design D9) ----
 *
 * First pass: `base` NULL, only `used` grows. Second pass over a block of that size: the same calls
 * hand out the pieces. */
struct arena {
    uint8_t *base;        /* borrowed; NULL while measuring */
    size_t used;          /* bytes handed out, multiple of 64 */
    size_t capacity;      /* bytes of `base` */
    struct arena *device; /* where pieces that a device computes on come from; NULL: from here */
};

/* `n * bytes` bytes aligned to 64; NULL while measuring. Beyond capacity is a programmer's
 * error. */
void *arena_take(struct arena *a, size_t n, size_t bytes);
/* The same for tensors. */
void *arena_take_tensor(struct arena *a, size_t n, size_t bytes);
/* Bytes handed out in all. */
size_t arena_used(const struct arena *a);

#endif
