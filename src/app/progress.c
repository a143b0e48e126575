/* progress.c: see the header. Work that is over quickly shows no bar at all: a flash only disturbs.
 */
#include "app/progress.h"

#include "base/workers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define QUIET_US  300000 /* work shorter than this shows nothing */
#define REDRAW_US 100000
#define BAR_CELLS 30

void progress_begin(struct progress *p, const char *label)
{
    const char *term = getenv("TERM");
    *p = (struct progress){.label = label, .start_us = clock_us()};
    p->on = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
}

void progress_update(struct progress *p, double share)
{
    static const char full[] = "##############################";
    _Static_assert(sizeof full - 1 == BAR_CELLS, "one character a cell");
    const uint64_t now = clock_us();
    if (!p->on || now - p->start_us < QUIET_US || now - p->last_us < REDRAW_US) return;
    if (share < 0) share = 0;
    if (share > 1) share = 1;
    p->last_us = now;
    p->drawn = true;
    const double past = (double)(now - p->start_us) * 1e-6;
    fprintf(stderr, "\r%-8s [%-*.*s] %3.0f %%", p->label, BAR_CELLS, (int)(share * BAR_CELLS), full,
            share * 100);
    if (p->note[0]) fprintf(stderr, "  %s", p->note);
    /* Before some of the work is done, the guess would jump about. */
    if (share > 0.05) fprintf(stderr, "  %.0f s left ", past / share - past);
    fputs("\033[K", stderr);
    fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->drawn) fputs("\r\033[K", stderr);
    p->on = false;
}
