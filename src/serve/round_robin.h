/* round_robin.h: selects the answer to be computed next: the one with the highest priority; among
 * equals, that of the API key whose last turn was longest ago; for one key, the oldest. A client
 * that sends a hundred requests at once thus does not make others wait for all of them. For the
 * engine's thread only. */
#ifndef SAC_SERVE_ROUND_ROBIN_H
#define SAC_SERVE_ROUND_ROBIN_H

#include <stdint.h>

#define ROUND_ROBIN_MAX 1024u /* keys remembered, the most recently used */

struct round_robin {
    struct round_robin_turn {
        uint64_t key, tick; /* tick 0: unused entry */
    } turn[ROUND_ROBIN_MAX];
    uint64_t tick;
};

/* Time of the key's last turn; 0: none is known. */
uint64_t round_robin_last(const struct round_robin *t, uint64_t key);
void round_robin_take(struct round_robin *t, uint64_t key);

#endif
