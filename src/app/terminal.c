/* terminal.c: see the header. The width is asked each time: windows change theirs. */
#include "app/terminal.h"

#include <stdlib.h>
#include <sys/ioctl.h>

#define COLUMNS_WITHOUT 80u

unsigned terminal_columns(int fd)
{
    struct winsize size = {0};
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : COLUMNS_WITHOUT;
}

bool terminal_no_colour(void)
{
    const char *no = getenv("NO_COLOR");
    return no && *no;
}
