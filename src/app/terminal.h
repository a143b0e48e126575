/* terminal.h: properties of the terminal: its width, and whether it wants colours. */
#ifndef SAC_APP_TERMINAL_H
#define SAC_APP_TERMINAL_H

#include <stdbool.h>

/* Columns of the terminal behind `fd` now; 80 where there is none or it does not say. */
unsigned terminal_columns(int fd);

/* What --color says; in the order of its choices. It beats NO_COLOR and CLICOLOR_FORCE. */
enum terminal_colour { TERMINAL_AUTO, TERMINAL_ALWAYS, TERMINAL_NEVER };
void terminal_set_colour(enum terminal_colour colour);

/* Are colours wanted on `fd`? By --color, else NO_COLOR (not if it is empty), CLICOLOR_FORCE, and
 * whether it is a terminal that is not dumb. */
bool terminal_wants_colour(int fd);

#endif
