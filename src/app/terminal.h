/* terminal.h: what is asked of the terminal: its width, and whether it wants colours. */
#ifndef SAC_APP_TERMINAL_H
#define SAC_APP_TERMINAL_H

#include <stdbool.h>

/* Columns of the terminal behind `fd` now; 80 where there is none or it does not say. */
unsigned terminal_columns(int fd);

/* NO_COLOR is set and not empty. */
bool terminal_no_colour(void);

#endif
