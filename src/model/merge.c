/* merge.c: merging by lowest key, implemented in two ways with the same result.
 *
 * A word of up to SHORT symbols keeps the keys of its pairs in an array that is scanned for the
 * minimum; a longer one keeps them in a heap, so that a megabyte without a space takes O(n log n).
 * Heap entries are not removed early. An entry is stale if one of its sides was swallowed or has
 * grown since, which shows in the sum of their lengths, because symbols only grow. */
#include "model/merge.h"

#include "base/mem.h"

#include <assert.h>
#include <string.h>

#define SHORT 32u /* for longer words the heap was faster */
#define END   UINT32_MAX

void merge_clear(struct merge *m)
{
    m->n = 0;
}

void merge_add(struct merge *m, struct merge_symbol s)
{
    assert(s.n > 0);
    if (m->n == m->capacity) {
        const size_t capacity = 2 * m->capacity + 64;
        struct merge_symbol *const grown = mem_realloc(m->symbol, capacity * sizeof *grown);
        if (!grown) {
            m->failed = true;
            return;
        }
        m->symbol = grown;
        m->capacity = capacity;
    }
    m->symbol[m->n++] = s;
}

static void run_short(struct merge *m)
{
    struct merge_symbol *const s = m->symbol;
    uint32_t key[SHORT], id[SHORT]; /* of the pair (i, i + 1) */
    size_t n_pair = m->n - 1;
    for (size_t i = 0; i < n_pair; i++) key[i] = m->pair(m->ctx, &s[i], &s[i + 1], &id[i]);
    for (;;) {
        size_t best = 0;
        for (size_t i = 1; i < n_pair; i++) {
            if (key[i] < key[best]) best = i;
        }
        if (n_pair == 0 || key[best] == MERGE_NONE) break;
        s[best].n += s[best + 1].n;
        s[best].id = id[best];
        n_pair--; /* symbol best + 1 and the pair on its right are removed */
        memmove(s + best + 1, s + best + 2, (n_pair - best) * sizeof *s);
        if (best < n_pair) {
            const size_t n_move = n_pair - best - 1;
            memmove(key + best + 1, key + best + 2, n_move * sizeof *key);
            memmove(id + best + 1, id + best + 2, n_move * sizeof *id);
            key[best] = m->pair(m->ctx, &s[best], &s[best + 1], &id[best]);
        }
        if (best > 0) key[best - 1] = m->pair(m->ctx, &s[best - 1], &s[best], &id[best - 1]);
    }
    m->n = n_pair + 1;
}

/* Pushes the pair (left, right) with its key and the left symbol's index in one number. */
static void push_pair(struct merge *m, uint32_t left, uint32_t right)
{
    if (left == END || right == END) return;
    const struct merge_symbol *const l = &m->symbol[left], *const r = &m->symbol[right];
    uint32_t id;
    const uint32_t key = m->pair(m->ctx, l, r, &id);
    if (key == MERGE_NONE) return;
    heap_push(&m->heap, (struct heap_item){(uint64_t)key << 32 | left,
                                           (uint64_t)right << 32 | (l->n + r->n)});
}

static void run_long(struct merge *m)
{
    struct merge_symbol *const s = m->symbol;
    m->heap.n = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        s[i].prev = i ? i - 1 : END;
        s[i].next = i + 1 < m->n ? i + 1 : END;
    }
    for (uint32_t i = 0; i + 1 < m->n; i++) push_pair(m, i, i + 1);
    while (m->heap.n) {
        const struct heap_item top = heap_pop(&m->heap);
        const uint32_t left = (uint32_t)top.key, right = (uint32_t)(top.value >> 32);
        struct merge_symbol *const l = &s[left], *const r = &s[right];
        if (l->n == 0 || r->n == 0 || l->n + r->n != (uint32_t)top.value) continue;
        assert(l->next == right);
        uint32_t id = 0;
        const uint32_t key = m->pair(m->ctx, l, r, &id);
        assert(key == (uint32_t)(top.key >> 32));
        (void)key;
        l->id = id;
        l->n += r->n;
        r->n = 0;
        l->next = r->next;
        if (r->next != END) s[r->next].prev = left;
        push_pair(m, l->prev, left);
        push_pair(m, left, l->next);
    }
    size_t n = 0;
    for (size_t i = 0; i < m->n; i++) {
        if (s[i].n) s[n++] = s[i];
    }
    m->n = n;
    m->failed |= m->heap.failed;
}

void merge_run(struct merge *m)
{
    assert(m->n <= END - 1);
    if (m->failed || m->n < 2) return;
    if (m->n <= SHORT) {
        run_short(m);
    } else {
        run_long(m);
    }
}

void merge_deinit(struct merge *m)
{
    mem_free(m->symbol);
    heap_deinit(&m->heap);
    *m = (struct merge){0};
}
