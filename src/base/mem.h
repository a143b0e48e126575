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

/* For scratch memory that is used for one purpose after the other. */
static inline size_t mem_larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Zeroed memory for weights, KV pages and scratch, aligned to 2 MiB and backed by huge pages where
 * the system gives them: gathers from 4 KiB pages are up to three times slower. */
void *mem_map(size_t bytes);
void mem_unmap(void *p, size_t bytes);

/* For tests: the n-th allocation from now (1: the next) and all later ones fail; 0 switches this
 * off. */
void mem_fail_after(uint64_t n);
/* For tests: only the n-th allocation fails. */
void mem_fail_at(uint64_t n);
/* Number of allocations so far in the process; a step must not change it. */
uint64_t mem_count(void);
/* Blocks allocated and not freed, without maps. */
uint64_t mem_held(void);

/* ---- Arena: pieces of one block whose size the same code computes beforehand (design D9) ----
 *
 * First pass: `base` NULL, only `used` grows. Second pass over a block of that size: the same calls
 * hand out the pieces. */
struct arena {
    uint8_t *base;        /* borrowed; NULL while measuring */
    size_t used;          /* bytes handed out, multiple of 64 */
    size_t capacity;      /* bytes of `base` */
    struct arena *device; /* for pieces in device memory; NULL: they come from this arena */
};

/* `n * bytes` bytes, aligned to 64; NULL while measuring. Exceeding the capacity is a programming
 * error. */
void *arena_take(struct arena *a, size_t n, size_t bytes);
/* The same for tensors, which go to the device's arena if there is one. */
void *arena_take_tensor(struct arena *a, size_t n, size_t bytes);
/* Bytes handed out, including the device's arena. */
size_t arena_used(const struct arena *a);

#endif
