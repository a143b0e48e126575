/* svg.h: a writer of SVG, inside HTML or as a file, of the few elements that plots are made of.
 *
 * Looks come from the page's style sheet through classes, so that one drawing serves both themes.
 * Contract: texts are escaped here; classes are literals of the caller. Coordinates are pixels of
 * the drawing, written with two decimals at most. Out of memory shows in the buffer. */
#ifndef SAC_EVAL_SVG_H
#define SAC_EVAL_SVG_H

#include "base/strbuf.h"

struct svg {
    struct strbuf *out; /* borrowed */
};

struct svg_rect {
    double x, y, w, h;
};

/* `id` makes the ids of title and description unique in the page; readers of the screen say both.
 */
struct svg svg_begin(struct strbuf *out, double w, double h, const char *id, const char *title,
                     const char *desc);
void svg_end(struct svg *s);
void svg_group(struct svg *s, const char *class_name);
void svg_group_end(struct svg *s);
void svg_line(struct svg *s, const char *class_name, double x1, double y1, double x2, double y2);
/* `tip` (or NULL) is shown while the pointer is over the element. */
void svg_rect(struct svg *s, const char *class_name, struct svg_rect r, const char *tip);
void svg_text(struct svg *s, const char *class_name, double x, double y, const char *text);
/* Text that reads upwards, centred at the position. */
void svg_text_up(struct svg *s, const char *class_name, double x, double y, const char *text);
/* A mark of one of SVG_N_MARK shapes. */
#define SVG_N_MARK 6u
void svg_mark(struct svg *s, const char *class_name, double x, double y, unsigned shape,
              const char *tip);

/* A path, point by point. */
void svg_path_begin(struct svg *s, const char *class_name);
void svg_move(struct svg *s, double x, double y);
void svg_draw(struct svg *s, double x, double y);
/* A closed rectangle of a path: many cells of one colour make one path. */
void svg_cell(struct svg *s, struct svg_rect r);
void svg_path_end(struct svg *s);

/* A coordinate as written in the file: "12", "3.5", "0.25"; never "-0". */
void svg_number(struct strbuf *out, double v);

#endif
