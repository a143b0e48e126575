/* terminal.c: see the header. The width is queried each time, because windows are resized. */
#include "app/terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define COLUMNS_WITHOUT 80u

unsigned terminal_columns(int fd)
{
    struct winsize size = {0};
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS_WITHOUT;
}

static enum terminal_colour chosen; /* of the process, which has one terminal */

void terminal_set_colour(enum terminal_colour colour)
{
    chosen = colour;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value && *value;
}

bool terminal_wants_colour(int fd)
{
    const char *force = getenv("CLICOLOR_FORCE"), *term = getenv("TERM");
    const bool forced = is_set("CLICOLOR_FORCE") && strcmp(force, "0") != 0;
    if (chosen != TERMINAL_AUTO) return chosen == TERMINAL_ALWAYS;
    if (is_set("NO_COLOR") || !is_set("TERM") || strcmp(term, "dumb") == 0) return false;
    return forced || isatty(fd);
}
