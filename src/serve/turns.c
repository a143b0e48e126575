/* turns.c: see the header. The table is scanned: there are few keys, and a turn lasts as long as a
 * prompt. */
#include "serve/turns.h"

#include <stddef.h>

static const struct turn *find(const struct turns *t, uint64_t key)
{
    for (size_t i = 0; i < TURNS_MAX && t->turn[i].tick; i++)
        if (t->turn[i].key == key) return &t->turn[i];
    return NULL;
}

uint64_t turns_last(const struct turns *t, uint64_t key)
{
    const struct turn *found = find(t, key);
    return found ? found->tick : 0;
}

void turns_take(struct turns *t, uint64_t key)
{
    size_t at = 0;
    for (size_t i = 0; i < TURNS_MAX; i++) {
        if (t->turn[i].tick < t->turn[at].tick) at = i;
        if (t->turn[i].tick && t->turn[i].key != key) continue;
        at = i;
        break;
    }
    t->turn[at] = (struct turn){.key = key, .tick = ++t->tick};
}
