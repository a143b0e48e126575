/* heap.h: a binary heap of 64-bit keys, smallest first, each with a 64-bit value.
 * A push that finds no memory sets `failed` and drops the item: check once at the end. */
#ifndef SAC_MODEL_HEAP_H
#define SAC_MODEL_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_item {
    uint64_t key, value;
};

struct heap {
    struct heap_item *item; /* owned, [capacity] */
    size_t n, capacity;
    bool failed;
};

void heap_push(struct heap *h, struct heap_item item);
struct heap_item heap_pop(struct heap *h); /* n > 0 */
void heap_deinit(struct heap *h);

#endif
