/* plot.c: see the header. Legends and colour bars are above the panel, where they can be as long as
 * the plot is wide and take nothing from it on a narrow page.
 *
 * Text widths are estimates, because no font is available: CHAR_W is a wide average of sans-serif
 * letters at the size of the style sheet, so estimates are rather too large. */
#include "eval/plot.h"

#include "eval/colour.h"
#include "eval/markup.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define LEFT          62.0 /* room for the labels of the y axis */
#define RIGHT         26.0
#define PANEL_H       240.0
#define LINE_H        18.0
#define CHAR_W        7.0
#define BELOW         46.0 /* room for the labels of the x axis */
#define ZERO_H        26.0 /* strip of zeros below a logarithmic axis */
#define NAME_MAX_CHAR 54u

/* ---- Style ---- */

static const char style[] =
    "svg{font:12px system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif}\n"
    "text{fill:var(--ink)}\n.tk{fill:var(--soft)}\n.m{text-anchor:middle}\n.e{text-anchor:end}\n"
    ".gr{stroke:var(--line)}\n.ax{stroke:var(--soft)}\n"
    ".cells rect{stroke:var(--page)}\n.cells path{shape-rendering:crispEdges}\n"
    ".none{fill:none;stroke:var(--line)!important}\n"
    ".ln{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round}\n"
    ".mk{fill:var(--c);stroke:var(--page);stroke-width:.8}\n"
    ".mk.hollow{fill:var(--page);stroke:var(--c);stroke-width:1.6}\n"
    ".bar{fill:var(--c);fill-opacity:.45;stroke:var(--c);stroke-width:1}\n"
    ".iv{fill:none;stroke:var(--c);stroke-width:1.2;opacity:.75}\n"
    ".ln.d1{stroke-dasharray:7 3}\n.ln.d2{stroke-dasharray:2 3}\n.ln.d3{stroke-dasharray:9 3 2 3}\n"
    ".ln.d4{stroke-dasharray:4 2}\n.ln.d5{stroke-dasharray:1 4}\n";

void plot_css(struct strbuf *out)
{
    strbuf_adds(out, style);
    for (unsigned i = 0; i < COLOUR_N_LEVEL; i++)
        strbuf_addf(out, ".q%u{fill:var(--q%u)}.i%u{fill:var(--i%u)}", i, i, i, i);
    for (unsigned i = 0; i < COLOUR_N_SERIES; i++) strbuf_addf(out, ".c%u{--c:var(--s%u)}", i, i);
    strbuf_adds(out, "\n");
}

void plot_theme_css(struct strbuf *out, bool dark)
{
    strbuf_adds(out, dark ? "--ink:#e8ebf0;--soft:#a3acba;--line:#343b47;"
                          : "--ink:#1b1f27;--soft:#555d6b;--line:#d9dde4;");
    colour_css(out, dark);
}

static double text_width(const char *s)
{
    double n = 0;
    for (; *s; s++) n += ((unsigned char)*s & 0xc0) != 0x80;
    return n * CHAR_W;
}

/* Writes at most NAME_MAX_CHAR characters of `name`. */
static const char *short_name(const char *name, char buf[4 * NAME_MAX_CHAR + 8])
{
    size_t at = 0, n_char = 0;
    const size_t n = strlen(name);
    while (at < n && n_char < NAME_MAX_CHAR) {
        const size_t len = markup_utf8(name + at, n - at);
        at += len ? len : 1;
        n_char++;
    }
    if (at == n) return name;
    snprintf(buf, 4 * NAME_MAX_CHAR + 8, "%.*s\xe2\x80\xa6", (int)at, name);
    return buf;
}

/* ---- Lines and marks ---- */

/* Computes each series' position in the legend; returns the legend's height. */
static double legend_place(const struct plot_axes *a, size_t i, double *out_x)
{
    double x = LEFT, y = 12;
    char buf[4 * NAME_MAX_CHAR + 8];
    for (size_t k = 0; k <= i; k++) {
        const double w = 34 + text_width(short_name(a->series[k].name, buf)) + 12;
        if (x > LEFT && x + w > PLOT_W) {
            x = LEFT;
            y += LINE_H;
        }
        *out_x = x;
        x += w;
    }
    return y;
}

/* Series beyond the last colour repeat the colours, with hollow marks. */
static void series_class(char buf[48], const char *first, const struct plot_series *s)
{
    snprintf(buf, 48, "%s c%u d%u%s", first, s->colour % COLOUR_N_SERIES, s->dash % SVG_N_MARK,
             s->colour < COLOUR_N_SERIES ? "" : " hollow");
}

static void draw_legend(struct svg *svg, const struct plot_axes *a)
{
    char class_name[48], buf[4 * NAME_MAX_CHAR + 8];
    for (size_t i = 0; i < a->n_series; i++) {
        double x = LEFT;
        const double y = legend_place(a, i, &x);
        series_class(class_name, "ln", &a->series[i]);
        svg_line(svg, class_name, x, y, x + 28, y);
        series_class(class_name, "mk", &a->series[i]);
        if (a->series[i].mark != PLOT_NO_MARK)
            svg_mark(svg, class_name, x + 14, y, a->series[i].mark, NULL);
        svg_text(svg, "tk", x + 34, y + 4, short_name(a->series[i].name, buf));
    }
}

static void draw_x_names_below(struct plot *p, const struct plot_axes *a)
{
    for (size_t i = 0; i < a->n_x_name; i++)
        svg_text(&p->svg, "tk m", scale_at(&p->x, (double)i + 0.5), p->bottom + 17, a->x_name[i]);
}

static void draw_x_axis(struct plot *p, const struct plot_axes *a, double top)
{
    double tick[SCALE_MAX_TICK];
    char label[32];
    const size_t n = a->x_name ? 0 : scale_ticks(&p->x, 6, tick);
    draw_x_names_below(p, a);
    for (size_t i = 0; i < n; i++) {
        const double x = scale_at(&p->x, tick[i]);
        scale_label(&p->x, tick[i], label);
        svg_line(&p->svg, "gr", x, top, x, p->bottom);
        svg_text(&p->svg, "tk m", x, p->bottom + 17, label);
    }
    svg_line(&p->svg, "ax", LEFT, p->bottom, PLOT_W - RIGHT, p->bottom);
    svg_text(&p->svg, "lb m", (LEFT + PLOT_W - RIGHT) / 2, p->bottom + 37, a->words.x_label);
}

static void draw_y_axis(struct plot *p, const struct plot_axes *a, double top)
{
    double tick[SCALE_MAX_TICK];
    char label[32];
    const size_t n = scale_ticks(&p->y, 6, tick);
    for (size_t i = 0; i < n; i++) {
        const double y = scale_at(&p->y, tick[i]);
        scale_label(&p->y, tick[i], label);
        svg_line(&p->svg, "gr", LEFT, y, PLOT_W - RIGHT, y);
        svg_text(&p->svg, "tk e", LEFT - 7, y + 4, label);
    }
    if (a->y_zero) {
        svg_line(&p->svg, "ax", LEFT, p->bottom - ZERO_H, PLOT_W - RIGHT, p->bottom - ZERO_H);
        svg_text(&p->svg, "tk e", LEFT - 7, p->bottom - ZERO_H / 2 + 4, a->y_zero);
    }
    svg_text_up(&p->svg, "lb m", 14, (top + p->bottom) / 2, a->words.y_label);
}

struct plot plot_begin(struct strbuf *out, const struct plot_axes *axes)
{
    double last_x = 0;
    const double legend = axes->n_series ? legend_place(axes, axes->n_series - 1, &last_x) : 0;
    const double top = legend + 18, bottom = top + PANEL_H;
    const struct plot_words *w = &axes->words;
    struct plot p = {
        .svg = svg_begin(out, PLOT_W, bottom + BELOW, w->id, w->title, w->desc),
        .x = axes->x,
        .y = axes->y,
        .series = axes->series,
        .n_series = axes->n_series,
        .bottom = bottom,
    };
    p.x.at_lo = LEFT;
    p.x.at_hi = PLOT_W - RIGHT;
    p.y.at_lo = bottom - (axes->y_zero ? ZERO_H : 0);
    p.y.at_hi = top;
    draw_legend(&p.svg, axes);
    draw_y_axis(&p, axes, top);
    draw_x_axis(&p, axes, top);
    return p;
}

/* Zeros of a logarithmic axis lie in the strip below it. */
static double place_y(const struct plot *p, double y)
{
    if (p->y.form != SCALE_LINEAR && !(y > 0)) return p->bottom - ZERO_H / 2;
    return scale_at(&p->y, y);
}

static bool is_drawn(const struct plot *p, double x, double y)
{
    return isfinite(x) && isfinite(y) && (p->x.form == SCALE_LINEAR || x > 0);
}

void plot_point(struct plot *p, size_t series_i, double x, double y, const char *tip)
{
    assert(series_i < p->n_series);
    char class_name[48];
    if (!is_drawn(p, x, y)) return;
    series_class(class_name, "mk", &p->series[series_i]);
    svg_mark(&p->svg, class_name, scale_at(&p->x, x), place_y(p, y), p->series[series_i].mark, tip);
}

void plot_line(struct plot *p, size_t series_i, const double *x, const double *y, size_t n,
               bool marks)
{
    assert(series_i < p->n_series);
    char class_name[48];
    size_t n_drawn = 0;
    series_class(class_name, "ln", &p->series[series_i]);
    svg_path_begin(&p->svg, class_name);
    for (size_t i = 0; i < n; i++) {
        if (!is_drawn(p, x[i], y[i])) continue;
        const double at_x = scale_at(&p->x, x[i]), at_y = place_y(p, y[i]);
        if (n_drawn++)
            svg_draw(&p->svg, at_x, at_y);
        else
            svg_move(&p->svg, at_x, at_y);
    }
    svg_path_end(&p->svg);
    for (size_t i = 0; i < n && marks; i++) {
        char tip[160], x_label[32], y_label[32];
        scale_label(&p->x, x[i], x_label);
        scale_label(&p->y, y[i], y_label);
        snprintf(tip, sizeof tip, "%.80s: %s, %s", p->series[series_i].name, x_label, y_label);
        plot_point(p, series_i, x[i], y[i], tip);
    }
}

void plot_families(struct plot *p, const double *x, const double *y)
{
    double line_x[64], line_y[64];
    for (size_t i = 0; i < p->n_series; i++) {
        size_t n = 0, n_before = 0;
        for (size_t k = 0; k < p->n_series && n < 64; k++) {
            if (p->series[k].colour != p->series[i].colour || !is_drawn(p, x[k], y[k])) continue;
            n_before += k < i;
            size_t at = n++;
            for (; at > 0 && line_x[at - 1] > x[k]; at--) {
                line_x[at] = line_x[at - 1];
                line_y[at] = line_y[at - 1];
            }
            line_x[at] = x[k];
            line_y[at] = y[k];
        }
        if (n_before == 0 && n > 1) plot_line(p, i, line_x, line_y, n, false);
    }
}

void plot_bar(struct plot *p, size_t series_i, struct plot_span x, double y, const char *tip)
{
    assert(series_i < p->n_series);
    char class_name[48];
    if (!is_drawn(p, x.lo, y)) return;
    series_class(class_name, "bar", &p->series[series_i]);
    const double left = scale_at(&p->x, x.lo), top = place_y(p, y);
    svg_rect(&p->svg, class_name,
             (struct svg_rect){left, top, scale_at(&p->x, x.hi) - left, p->bottom - top}, tip);
}

void plot_interval(struct plot *p, size_t series_i, double x, double y_lo, double y_hi)
{
    assert(series_i < p->n_series);
    char class_name[48];
    if (!is_drawn(p, x, y_lo) || !isfinite(y_hi)) return;
    series_class(class_name, "iv", &p->series[series_i]);
    const double at = scale_at(&p->x, x), lo = place_y(p, y_lo), hi = place_y(p, y_hi);
    svg_path_begin(&p->svg, class_name);
    svg_move(&p->svg, at, lo);
    svg_draw(&p->svg, at, hi);
    svg_move(&p->svg, at - 3, lo);
    svg_draw(&p->svg, at + 3, lo);
    svg_move(&p->svg, at - 3, hi);
    svg_draw(&p->svg, at + 3, hi);
    svg_path_end(&p->svg);
}

void plot_end(struct plot *p)
{
    svg_end(&p->svg);
}

/* ---- Grids ---- */

/* Grids with more cells are drawn as one path for each colour, without tips. */
#define N_CELL_TIPS 1500u
#define BAR_W       160.0
#define BAR_H       10.0
#define GRID_TOP    40.0

static unsigned level_of(const struct plot_grid *g, double v)
{
    struct scale s = g->colour;
    s.at_lo = 0;
    s.at_hi = 1;
    if (s.form != SCALE_LINEAR && !(v > s.lo)) return 0;
    return colour_level_of(scale_at(&s, v));
}

static void draw_colour_bar(struct svg *svg, const struct plot_grid *g)
{
    char class_name[16], lo[32], hi[32];
    scale_label(&g->colour, g->colour.lo, lo);
    scale_label(&g->colour, g->colour.hi, hi);
    const double x = PLOT_W - RIGHT - text_width(hi) - 6 - BAR_W;
    for (unsigned i = 0; i < COLOUR_N_LEVEL; i++) {
        snprintf(class_name, sizeof class_name, "q%u", i);
        const double w = BAR_W / COLOUR_N_LEVEL;
        svg_rect(svg, class_name, (struct svg_rect){x + i * w, 10, w, BAR_H}, NULL);
    }
    svg_text(svg, "tk e", x - 6, 19, lo);
    svg_text(svg, "tk", x + BAR_W + 6, 19, hi);
    svg_text(svg, "lb", LEFT, 19, g->colour_label);
}

/* The smallest step between names that leaves `room` for each; 1 if the caller has left some names
 * empty. */
static size_t name_step(const plot_name *name, size_t n, double room, double cell)
{
    for (size_t i = 0; i < n; i++)
        if (!name[i][0]) return 1;
    return (size_t)fmax(1, ceil(room / cell));
}

static void draw_x_names(struct svg *svg, const struct plot_grid *g, double cell_w, double bottom)
{
    double widest = 0;
    for (size_t i = 0; i < g->n_x; i++) widest = fmax(widest, text_width(g->x_name[i]));
    const size_t step = name_step(g->x_name, g->n_x, widest + 8, cell_w);
    for (size_t i = 0; i < g->n_x; i += step)
        if (g->x_name[i][0])
            svg_text(svg, "tk m", LEFT + ((double)i + 0.5) * cell_w, bottom + 17, g->x_name[i]);
    svg_text(svg, "lb m", (LEFT + PLOT_W - RIGHT) / 2, bottom + 37, g->words.x_label);
}

static void draw_y_names(struct svg *svg, const struct plot_grid *g, double bottom)
{
    const size_t step = name_step(g->y_name, g->n_y, 14, g->cell_h);
    for (size_t i = 0; i < g->n_y; i += step)
        if (g->y_name[i][0])
            svg_text(svg, "tk e", LEFT - 7, GRID_TOP + ((double)i + 0.5) * g->cell_h + 4,
                     g->y_name[i]);
    svg_text_up(svg, "lb m", 14, (GRID_TOP + bottom) / 2, g->words.y_label);
}

static struct svg_rect cell_rect(const struct plot_grid *g, double cell_w, size_t y, size_t x)
{
    return (struct svg_rect){LEFT + (double)x * cell_w, GRID_TOP + (double)y * g->cell_h, cell_w,
                             g->cell_h};
}

static void draw_cell(struct svg *svg, const struct plot_grid *g, double cell_w, size_t y, size_t x)
{
    const double v = g->value[y * g->n_x + x];
    char class_name[16], label[32], tip[128];
    struct svg_rect r = cell_rect(g, cell_w, y, x);
    if (!isfinite(v)) {
        svg_rect(svg, "none", r, NULL);
        return;
    }
    snprintf(class_name, sizeof class_name, "q%u", level_of(g, v));
    struct scale form = g->colour;
    scale_label(&form, form.unit == SCALE_PERCENT ? round(1000 * v) / 1000 : v, label);
    snprintf(tip, sizeof tip, "%s, %s: %s", g->x_name[x], g->y_name[y], label);
    svg_rect(svg, class_name, r, tip);
    if (!g->numbers || text_width(label) > cell_w || g->cell_h < 14) return;
    snprintf(class_name, sizeof class_name, "m i%u", level_of(g, v));
    svg_text(svg, class_name, r.x + r.w / 2, r.y + r.h / 2 + 4, label);
}

/* Draws one path for each colour; adjacent cells of a row with the same colour are joined. */
static void draw_many_cells(struct svg *svg, const struct plot_grid *g, double cell_w)
{
    for (unsigned level = 0; level < COLOUR_N_LEVEL; level++) {
        char class_name[16];
        snprintf(class_name, sizeof class_name, "q%u", level);
        svg_path_begin(svg, class_name);
        for (size_t y = 0; y < g->n_y; y++) {
            const double *row = g->value + y * g->n_x;
            for (size_t x = 0, end; x < g->n_x; x = end) {
                end = x + 1;
                if (!isfinite(row[x]) || level_of(g, row[x]) != level) continue;
                while (end < g->n_x && isfinite(row[end]) && level_of(g, row[end]) == level) end++;
                struct svg_rect r = cell_rect(g, cell_w, y, x);
                r.w *= (double)(end - x);
                svg_cell(svg, r);
            }
        }
        svg_path_end(svg);
    }
}

void plot_grid(struct strbuf *out, const struct plot_grid *g)
{
    assert(g->n_x > 0 && g->n_y > 0 && g->cell_h > 0);
    const double cell_w = (PLOT_W - LEFT - RIGHT) / (double)g->n_x;
    const double bottom = GRID_TOP + g->cell_h * (double)g->n_y;
    const struct plot_words *w = &g->words;
    struct svg svg = svg_begin(out, PLOT_W, bottom + BELOW, w->id, w->title, w->desc);
    draw_colour_bar(&svg, g);
    svg_group(&svg, "cells");
    if (g->n_x * g->n_y > N_CELL_TIPS)
        draw_many_cells(&svg, g, cell_w);
    else
        for (size_t y = 0; y < g->n_y; y++)
            for (size_t x = 0; x < g->n_x; x++) draw_cell(&svg, g, cell_w, y, x);
    svg_group_end(&svg);
    draw_x_names(&svg, g, cell_w, bottom);
    draw_y_names(&svg, g, bottom);
    svg_end(&svg);
}
