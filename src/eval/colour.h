/* colour.h: the colours of plots, for a light and a dark page.
 *
 * A sequential map leads from near the page's own colour (nothing) to the far end of lightness
 * (much), so that a value has the same weight to the eye in both themes. Series have colours that
 * people with any of the common colour blindnesses tell apart; plots give them shapes as well. */
#ifndef SAC_EVAL_COLOUR_H
#define SAC_EVAL_COLOUR_H

#include "base/strbuf.h"

#include <stdbool.h>

struct colour {
    double r, g, b; /* sRGB, 0 to 1 */
};

#define COLOUR_N_LEVEL  32u /* steps of the sequential map */
#define COLOUR_N_SERIES 8u

/* Step `i` of the sequential map, 0: least. */
struct colour colour_level(unsigned i, bool dark);
/* The step of a share of 0 to 1; shares outside are clamped, NAN counts as 0. */
unsigned colour_level_of(double share);
struct colour colour_series(unsigned i, bool dark);
struct colour colour_page(bool dark);

/* WCAG contrast ratio, 1 to 21. */
double colour_contrast(struct colour a, struct colour b);
/* Black or white, whichever has more contrast with `back`. */
struct colour colour_ink(struct colour back);

/* The custom properties of one theme for a style sheet: --page; --q0 and up, the sequential map;
 * --i0 and up, ink on its steps; --s0 and up, the series. */
void colour_css(struct strbuf *out, bool dark);

#endif
