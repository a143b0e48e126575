/* scale.h: from values to positions on a plot, and the round numbers that its axis shows.
 *
 * Contract: bounds are finite, and positive for a logarithmic scale. */
#ifndef SAC_EVAL_SCALE_H
#define SAC_EVAL_SCALE_H

#include <stdbool.h>
#include <stddef.h>

enum scale_form {
    SCALE_LINEAR, /* ticks at 1, 2 or 5 times a power of ten */
    SCALE_LOG10,  /* ticks at powers of ten; with 2 and 5 of each when there are few */
    SCALE_LOG2,   /* ticks at powers of two: contexts */
};

enum scale_unit {
    SCALE_PLAIN,
    SCALE_PERCENT, /* 0.25 is "25 %" */
    SCALE_TOKENS,  /* 4096 is "4K" */
    SCALE_MS,      /* 1500 is "1.5 s" */
};

struct scale {
    enum scale_form form;
    enum scale_unit unit;
    double lo, hi;       /* values at the ends */
    double at_lo, at_hi; /* their positions in pixels */
};

#define SCALE_MAX_TICK 16u

/* Extends the ends outwards to round numbers, so that the first and the last tick are the ends, and
 * apart if they are equal. */
void scale_round(struct scale *s, unsigned n_want);
double scale_at(const struct scale *s, double value);
/* About `n_want` round values between the ends, ascending; returns their number. */
size_t scale_ticks(const struct scale *s, unsigned n_want, double tick[SCALE_MAX_TICK]);
/* The text of a tick. */
void scale_label(const struct scale *s, double value, char buf[32]);

#endif
