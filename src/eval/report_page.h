/* report_page.h: a report as a page: its frame and style sheet, and the figures in it.
 *
 * A figure is one or more drawings and one table. The table is written to three places: a file
 * NAME.csv beside the page, the page as JSON, and beside the drawings as a readable table. Texts
 * are borrowed for the call. Out of memory in a buffer is detected when the page is finished. */
#ifndef SAC_EVAL_REPORT_PAGE_H
#define SAC_EVAL_REPORT_PAGE_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/plot.h"
#include "eval/table.h"

struct report_page {
    const char *dir;       /* directory of the CSV files; borrowed */
    struct strbuf nav;     /* links to the figures */
    struct strbuf intro;   /* HTML above the first figure */
    struct strbuf body;    /* the figures */
    struct strbuf missing; /* plain lines: what was left out, and why */
    size_t n_plot;
};

/* A choice that a figure offers: a drawing is shown while its option is selected. */
struct report_choice {
    const char *label;
    const char *const *option; /* [n_option]; the first is selected initially */
    uint32_t n_option, at;     /* at: option of the next drawing */
};
#define REPORT_CHOICES 2u

struct report_figure {
    const char *name;     /* of the CSV file and the anchor: letters, digits, dashes */
    const char *title;    /* "Needle in a haystack" */
    const char *text;     /* what the figure shows, in sentences */
    struct strbuf panels; /* owned by the caller, from report_page_panel */
    struct table table;   /* owned by the caller */
    struct report_choice choice[REPORT_CHOICES]; /* without options there is no choice */
    bool three;                                  /* three drawings in a row instead of two */
    size_t n_panel;
};

/* Writes the head of a drawing, which is appended to f->panels until report_page_panel_end. The
 * drawing's id is put into `id`. `heading` is NULL for a figure's only drawing. */
void report_page_panel(struct report_figure *f, const char *heading, char id[64]);
void report_page_panel_end(struct report_figure *f);

/* Appends the figure to the page and writes its CSV. */
sac_status report_page_figure(struct report_page *p, const struct report_figure *f, sac_error *err);
/* Notes a plot that could not be made, and why. */
void report_page_missing(struct report_page *p, const char *title, const char *why);

/* A self-contained document of everything that the page has so far; `p` keeps its buffers. */
void report_page_html(const struct report_page *p, const char *title, struct strbuf *out);
void report_page_deinit(struct report_page *p);

/* The style sheet of both themes, which saccade's other pages use, too. */
void report_page_style(struct strbuf *out);
/* The three buttons that select the theme. */
void report_page_theme_choice(struct strbuf *out);

/* Writes a file of the report. */
sac_status report_page_write(const char *dir, const char *name, const struct strbuf *text,
                             sac_error *err);

#endif
