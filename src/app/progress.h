/* progress.h: a bar on stderr for long work; nothing when stderr is not a terminal. */
#ifndef SAC_APP_PROGRESS_H
#define SAC_APP_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *label; /* borrowed */
    char note[96];     /* shown after the bar; may change between updates */
    bool on, drawn;
    uint64_t start_us, last_us;
};

void progress_begin(struct progress *p, const char *label);
/* Redraws at most a few times per second. `share` is from 0 to 1. */
void progress_update(struct progress *p, double share);
/* Removes the bar. */
void progress_end(struct progress *p);

#endif
