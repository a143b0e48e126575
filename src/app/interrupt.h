/* interrupt.h: Ctrl-C as a flag that long work checks between its pieces. */
#ifndef SAC_APP_INTERRUPT_H
#define SAC_APP_INTERRUPT_H

#include <stdbool.h>

/* Makes SIGINT set a flag; blocking reads return EINTR. */
void interrupt_install(void);
bool interrupt_pending(void);
bool interrupt_insists(void); /* Whether it came twice. */
void interrupt_clear(void);
/* Makes a change of the window's size end the wait of interrupt_wait_input; it is remembered until
 * interrupt_take_resize. */
void interrupt_watch_window(void);
bool interrupt_take_resize(void);
/* Waits until `fd` is readable or at its end: true. False: Ctrl-C, even just before the wait. A
 * changed window size also ends it: true, and interrupt_take_resize reports it. */
bool interrupt_wait_input(int fd);

#endif
