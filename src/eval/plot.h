/* plot.h: two kinds of plots: lines and marks over axes, and grids of coloured cells.
 *
 * All are PLOT_W wide and as high as they need, so that one column of a phone shows them without
 * shrinking their letters. Texts are borrowed for the call; scales arrive without their pixels. */
#ifndef SAC_EVAL_PLOT_H
#define SAC_EVAL_PLOT_H

#include "eval/scale.h"
#include "eval/svg.h"

#include <stddef.h>

#define PLOT_W 440.0

/* The texts of a plot. */
struct plot_words {
    const char *id, *title, *desc;
    const char *x_label, *y_label;
};

/* ---- Style ---- */

/* Rules for the classes of all plots; their colours are custom properties of the theme. */
void plot_css(struct strbuf *out);
/* The properties of a light or dark theme: those of colour.h, --ink, --soft and --line. */
void plot_theme_css(struct strbuf *out, bool dark);

typedef char plot_name[32];

/* ---- Lines, marks and bars ---- */

#define PLOT_NO_MARK 1000u

struct plot_series {
    const char *name;
    unsigned colour; /* of colour_series, modulo, the same for a family; further ones are hollow */
    unsigned mark;   /* of svg_mark, modulo, or PLOT_NO_MARK */
    unsigned dash;   /* of the line, modulo SVG_N_MARK; 0: none */
};

struct plot {
    struct svg svg;
    struct scale x, y;
    const struct plot_series *series; /* [n_series], borrowed until plot_end */
    size_t n_series;
    double bottom; /* of the panel */
};

struct plot_axes {
    struct plot_words words;
    struct scale x, y;  /* the wanted ends: see scale_round */
    const char *y_zero; /* label of the strip for zeros below a logarithmic axis; or NULL */
    /* [n_x_name] names instead of numbers: name i covers i to i + 1 of the x axis. */
    const plot_name *x_name;
    size_t n_x_name;
    const struct plot_series *series;
    size_t n_series;
};

struct plot plot_begin(struct strbuf *out, const struct plot_axes *axes);
/* A line through `n` points, without those that are not finite; with a mark at each if `marks`. */
void plot_line(struct plot *p, size_t series_i, const double *x, const double *y, size_t n,
               bool marks);
/* Point i belongs to series i: a line joins those of one colour, in ascending order of x. */
void plot_families(struct plot *p, const double *x, const double *y);
/* One mark with a tip that is shown under the pointer. */
void plot_point(struct plot *p, size_t series_i, double x, double y, const char *tip);
/* A bar from the bottom up to `y`. */
struct plot_span {
    double lo, hi; /* of x */
};
void plot_bar(struct plot *p, size_t series_i, struct plot_span x, double y, const char *tip);
/* A bar from `y_lo` to `y_hi` at `x`: an interval of confidence. */
void plot_interval(struct plot *p, size_t series_i, double x, double y_lo, double y_hi);
void plot_end(struct plot *p);

/* ---- Grids ---- */

struct plot_grid {
    struct plot_words words;
    size_t n_x, n_y;
    const double *value; /* [n_y, n_x], the top row first; NAN: an empty cell */
    const plot_name
        *x_name; /* [n_x]; as many as fit are written, or, if some are empty, all of them */
    const plot_name *y_name; /* [n_y] */
    struct scale colour;     /* the values of the lightest and the deepest colour */
    const char *colour_label;
    double cell_h; /* pixels */
    bool numbers;  /* write values into the cells if these are wide enough */
};

void plot_grid(struct strbuf *out, const struct plot_grid *g);

#endif
