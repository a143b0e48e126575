/* interrupt.h: Ctrl-C as a flag that long work checks between its pieces. */
#ifndef SAC_APP_INTERRUPT_H
#define SAC_APP_INTERRUPT_H

#include <stdbool.h>

/* From now on SIGINT only sets a flag; blocking reads return EINTR. */
void interrupt_install(void);
bool interrupt_pending(void);
bool interrupt_insists(void); /* it came twice */
void interrupt_clear(void);
/* From now on a change of the window's size wakes interrupt_wait_input's poll and is remembered
 * until it is asked for. */
void interrupt_watch_window(void);
bool interrupt_take_resize(void);
/* Waits until `fd` has something to read or has ended: true. False: Ctrl-C, also one that came just
 * before the wait. A changed window ends it, too: true, and
 * interrupt_take_resize tells. */
bool interrupt_wait_input(int fd);

#endif
