/* round_robin.c: see the header. The table is scanned: there are few keys, and a turn lasts as long
 * as a prompt. */
#include "serve/round_robin.h"

#include <stddef.h>

static const struct round_robin_turn *find(const struct round_robin *t, uint64_t key)
{
    for (size_t i = 0; i < ROUND_ROBIN_MAX && t->turn[i].tick; i++)
        if (t->turn[i].key == key) return &t->turn[i];
    return NULL;
}

uint64_t round_robin_last(const struct round_robin *t, uint64_t key)
{
    const struct round_robin_turn *found = find(t, key);
    return found ? found->tick : 0;
}

void round_robin_take(struct round_robin *t, uint64_t key)
{
    size_t at = 0;
    for (size_t i = 0; i < ROUND_ROBIN_MAX; i++) {
        if (t->turn[i].tick < t->turn[at].tick) at = i;
        if (t->turn[i].tick && t->turn[i].key != key) continue;
        at = i;
        break;
    }
    t->turn[at] = (struct round_robin_turn){.key = key, .tick = ++t->tick};
}
