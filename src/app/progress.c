/* progress.c: see the header. Work that ends quickly shows no bar, because a flash only disturbs. A
 * line wider than the terminal would leave traces each time it is redrawn, so the note is shortened
 * first, then the time left, then the bar. */
#include "app/progress.h"

#include "app/terminal.h"
#include "base/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUIET_US  300000 /* shorter work shows no bar */
#define REDRAW_US 100000
#define BAR_CELLS 30
#define BAR_LINE  256

void progress_begin(struct progress *p, const char *label)
{
    const char *term = getenv("TERM");
    *p = (struct progress){.label = label, .start_us = clock_us()};
    p->on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

/* Draws at most `columns` one-byte columns. */
static void draw(const struct progress *p, double share, double left_s, char out[BAR_LINE],
                 size_t columns)
{
    static const char full[] = "##############################";
    _Static_assert(sizeof full - 1 == BAR_CELLS, "one character a cell");
    char left[32] = "";
    size_t cells = BAR_CELLS;
    const size_t bare = (size_t)snprintf(out, BAR_LINE, "%-8.24s [] 100 %%", p->label);
    if (left_s >= 0) snprintf(left, sizeof left, "  %.0f s left", left_s);
    if (columns > BAR_LINE - 1) columns = BAR_LINE - 1;
    const size_t n_note = p->note[0] ? strlen(p->note) + 2 : 0;
    const bool with_note = bare + cells + n_note + strlen(left) <= columns;
    if (!with_note && bare + cells + strlen(left) > columns && bare + strlen(left) + 4 > columns)
        left[0] = 0;
    if (!with_note && bare + cells + strlen(left) > columns)
        cells = columns > bare + strlen(left) ? columns - bare - strlen(left) : 0;
    const int n = snprintf(out, BAR_LINE, "%-8.24s [%-*.*s] %3.0f %%%s%s%s", p->label, (int)cells,
                           (int)(share * (double)cells), full, share * 100,
                           with_note && n_note ? "  " : "", with_note ? p->note : "", left);
    if (n >= 0 && (size_t)n > columns) out[columns] = 0;
}

void progress_update(struct progress *p, double share)
{
    const uint64_t now = clock_us();
    if (!p->on || now - p->start_us < QUIET_US || now - p->last_us < REDRAW_US) return;
    if (share < 0) share = 0;
    if (share > 1) share = 1;
    p->last_us = now;
    p->drawn = true;
    const double past = (double)(now - p->start_us) * 1e-6;
    char line[BAR_LINE];
    /* Early estimates of the remaining time vary too much to be shown. */
    draw(p, share, share > 0.05 ? past / share - past : -1, line,
         terminal_columns(STDERR_FILENO) - 1);
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->drawn) fputs("\r\033[K", stderr);
    p->on = p->drawn = false; /* once: later output on the terminal is not the bar */
}
