/* svg.c: see the header. Numbers are rounded to hundredths and lose trailing zeros: a block map has
 * ten thousand cells, and each digit of them enlarges the page. */
#include "eval/svg.h"

#include "eval/markup.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void svg_number(struct strbuf *out, double v)
{
    assert(isfinite(v) && fabs(v) < 1e12);
    const long long hundredths = llround(v * 100);
    const unsigned long long mag = (unsigned long long)llabs(hundredths);
    strbuf_addf(out, "%s%llu", hundredths < 0 ? "-" : "", mag / 100);
    if (mag % 10)
        strbuf_addf(out, ".%02llu", mag % 100);
    else if (mag % 100)
        strbuf_addf(out, ".%llu", mag % 100 / 10);
}

static void add_attr(struct svg *s, const char *name, double v)
{
    strbuf_addf(s->out, " %s=\"", name);
    svg_number(s->out, v);
    strbuf_adds(s->out, "\"");
}

static void open_element(struct svg *s, const char *name, const char *class_name)
{
    strbuf_addf(s->out, "<%s class=\"%s\"", name, class_name);
}

/* Closes an element that may have a tip. */
static void close_element(struct svg *s, const char *name, const char *tip)
{
    if (!tip) {
        strbuf_adds(s->out, "/>\n");
        return;
    }
    strbuf_adds(s->out, "><title>");
    markup_html(s->out, tip, strlen(tip));
    strbuf_addf(s->out, "</title></%s>\n", name);
}

struct svg svg_begin(struct strbuf *out, double w, double h, const char *id, const char *title,
                     const char *desc)
{
    struct svg s = {out};
    strbuf_adds(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ");
    svg_number(out, w);
    strbuf_adds(out, " ");
    svg_number(out, h);
    strbuf_addf(out, "\" role=\"img\" aria-labelledby=\"%s-t %s-d\">\n<title id=\"%s-t\">", id, id,
                id);
    markup_html(out, title, strlen(title));
    strbuf_addf(out, "</title><desc id=\"%s-d\">", id);
    markup_html(out, desc, strlen(desc));
    strbuf_adds(out, "</desc>\n");
    return s;
}

void svg_end(struct svg *s)
{
    strbuf_adds(s->out, "</svg>\n");
}

void svg_group(struct svg *s, const char *class_name)
{
    open_element(s, "g", class_name);
    strbuf_adds(s->out, ">\n");
}

void svg_group_end(struct svg *s)
{
    strbuf_adds(s->out, "</g>\n");
}

void svg_line(struct svg *s, const char *class_name, double x1, double y1, double x2, double y2)
{
    open_element(s, "line", class_name);
    add_attr(s, "x1", x1);
    add_attr(s, "y1", y1);
    add_attr(s, "x2", x2);
    add_attr(s, "y2", y2);
    close_element(s, "line", NULL);
}

void svg_rect(struct svg *s, const char *class_name, struct svg_rect r, const char *tip)
{
    open_element(s, "rect", class_name);
    add_attr(s, "x", r.x);
    add_attr(s, "y", r.y);
    add_attr(s, "width", r.w);
    add_attr(s, "height", r.h);
    close_element(s, "rect", tip);
}

void svg_text(struct svg *s, const char *class_name, double x, double y, const char *text)
{
    open_element(s, "text", class_name);
    add_attr(s, "x", x);
    add_attr(s, "y", y);
    strbuf_adds(s->out, ">");
    markup_html(s->out, text, strlen(text));
    strbuf_adds(s->out, "</text>\n");
}

void svg_text_up(struct svg *s, const char *class_name, double x, double y, const char *text)
{
    open_element(s, "text", class_name);
    strbuf_adds(s->out, " transform=\"translate(");
    svg_number(s->out, x);
    strbuf_adds(s->out, " ");
    svg_number(s->out, y);
    strbuf_adds(s->out, ") rotate(-90)\">");
    markup_html(s->out, text, strlen(text));
    strbuf_adds(s->out, "</text>\n");
}

static void add_point(struct svg *s, char command, double x, double y)
{
    strbuf_add(s->out, &command, 1);
    svg_number(s->out, x);
    strbuf_adds(s->out, " ");
    svg_number(s->out, y);
}

/* Circle, square, triangle, diamond, cross, triangle on its tip; of about equal area. */
void svg_mark(struct svg *s, const char *class_name, double x, double y, unsigned shape,
              const char *tip)
{
    static const char *const outline[SVG_N_MARK] = {
        "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
        "m-3.5-3.5h7v7h-7z",
        "m0-4.8l4.6 8h-9.2z",
        "m0-5l5 5l-5 5l-5-5z",
        "m-1.5-4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
        "m0 4.8l4.6-8h-9.2z",
    };
    open_element(s, "path", class_name);
    strbuf_adds(s->out, " d=\"");
    add_point(s, 'M', x, y);
    strbuf_adds(s->out, outline[shape % SVG_N_MARK]);
    strbuf_adds(s->out, "\"");
    close_element(s, "path", tip);
}

void svg_path_begin(struct svg *s, const char *class_name)
{
    open_element(s, "path", class_name);
    strbuf_adds(s->out, " d=\"");
}

void svg_move(struct svg *s, double x, double y)
{
    add_point(s, 'M', x, y);
}

void svg_draw(struct svg *s, double x, double y)
{
    add_point(s, 'L', x, y);
}

void svg_cell(struct svg *s, struct svg_rect r)
{
    add_point(s, 'M', r.x, r.y);
    strbuf_adds(s->out, "h");
    svg_number(s->out, r.w);
    strbuf_adds(s->out, "v");
    svg_number(s->out, r.h);
    strbuf_adds(s->out, "h");
    svg_number(s->out, -r.w);
    strbuf_adds(s->out, "z");
}

void svg_path_end(struct svg *s)
{
    strbuf_adds(s->out, "\"/>\n");
}
