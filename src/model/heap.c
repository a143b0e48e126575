/* heap.c: the binary heap behind merging long words and placing special tokens.
 *
 * Invariant: item[i].key >= item[(i - 1) / 2].key for all i > 0. Order among equal keys is not
 * defined: callers make their keys unique. */
#include "model/heap.h"

#include "base/mem.h"

#include <assert.h>

void heap_push(struct heap *h, struct heap_item item)
{
    if (h->n == h->capacity) {
        const size_t capacity = 2 * h->capacity + 64;
        struct heap_item *const grown = mem_realloc(h->item, capacity * sizeof *grown);
        if (!grown) {
            h->failed = true;
            return;
        }
        h->item = grown;
        h->capacity = capacity;
    }
    size_t i = h->n++;
    for (; i > 0 && h->item[(i - 1) / 2].key > item.key; i = (i - 1) / 2)
        h->item[i] = h->item[(i - 1) / 2];
    h->item[i] = item;
}

struct heap_item heap_pop(struct heap *h)
{
    assert(h->n > 0);
    const struct heap_item top = h->item[0], last = h->item[--h->n];
    size_t i = 0;
    for (size_t child = 1; child < h->n; child = 2 * i + 1) {
        if (child + 1 < h->n && h->item[child + 1].key < h->item[child].key) child++;
        if (h->item[child].key >= last.key) break;
        h->item[i] = h->item[child];
        i = child;
    }
    if (h->n) h->item[i] = last;
    return top;
}

void heap_deinit(struct heap *h)
{
    mem_free(h->item);
    *h = (struct heap){0};
}
