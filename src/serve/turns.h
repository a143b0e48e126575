/* turns.h: selects the answer to be computed next: the one with the highest priority; among equals,
 * that of the API key whose last turn was longest ago; for one key, the oldest. A client that sends
 * a hundred requests at once thus does not make others wait for all of them. For the engine's
 * thread only. */
#ifndef SAC_SERVE_TURNS_H
#define SAC_SERVE_TURNS_H

#include <stdint.h>

#define TURNS_MAX 1024u /* keys that are remembered; of more, those whose turn was last */

struct turns {
    struct turn {
        uint64_t key, tick; /* tick 0: the place is free */
    } turn[TURNS_MAX];
    uint64_t tick;
};

/* When the key had its last turn; 0: it had none that is known. */
uint64_t turns_last(const struct turns *t, uint64_t key);
void turns_take(struct turns *t, uint64_t key);

#endif
