/* progress.h: a bar on stderr for long work; nothing when stderr is not a terminal. */
#ifndef SAC_APP_PROGRESS_H
#define SAC_APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *label; /* borrowed */
    char note[96];     /* shown behind the bar; may be changed between updates */
    bool on, drawn;
    uint64_t start_us, last_us;
};

void progress_begin(struct progress *p, const char *label);
/* Draws at most some times a second. `share` is 0 to 1. */
void progress_update(struct progress *p, double share);
/* Takes the bar away. */
void progress_end(struct progress *p);

#endif
