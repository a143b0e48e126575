/* terminal.h: properties of the terminal: its width, and whether it wants colours. */
#ifndef SAC_APP_TERMINAL_H
#define SAC_APP_TERMINAL_H

#include <stdbool.h>

/* Current width of the terminal at `fd`; 80 if unknown. */
unsigned terminal_columns(int fd);

/* --color, in the order of its choices. Overrides NO_COLOR and CLICOLOR_FORCE. */
enum terminal_colour { TERMINAL_AUTO, TERMINAL_ALWAYS, TERMINAL_NEVER };
void terminal_set_colour(enum terminal_colour colour);

/* Whether to use colours on `fd`: by --color, else NO_COLOR (unless empty), CLICOLOR_FORCE, and
 * whether it is a terminal that is not dumb. */
bool terminal_wants_colour(int fd);

#endif
