/* flow.h: the output of document readers: words with white space between them, lines, paragraphs,
 * list items, table cells and pages become plain text.
 *
 * Invariants: a break is written only when text follows it, so the text neither begins nor ends
 * with one; a line never ends in a blank; a form feed appears only between pages. */
#ifndef SAC_TEXT_FLOW_H
#define SAC_TEXT_FLOW_H

#include "base/status.h"
#include "base/strbuf.h"

struct flow {
    struct strbuf out;
    size_t mark_at;  /* where the mark begins that nothing stands behind */
    unsigned breaks; /* newlines that wait: 0 to 2 */
    unsigned pages;  /* form feeds that wait */
    unsigned pre;    /* > 0: white space is kept */
    unsigned cell;   /* > 0: breaks are blanks */
    bool space;      /* white space waits */
    bool marked;
    bool over; /* more than LIMITS_TEXT_BYTES */
};

void flow_text(struct flow *f, const char *s, size_t n);
void flow_line(struct flow *f);  /* what follows stands in a new line */
void flow_block(struct flow *f); /* what follows stands behind a blank line */
void flow_page(struct flow *f);  /* what follows stands on the next page */
/* Text in front of what follows, in its line: "# ", "- ". Without anything behind it is dropped. */
void flow_mark(struct flow *f, const char *mark);
/* The same for an item of a list: it stands in the line behind what is before it. */
void flow_item(struct flow *f, const char *mark);
void flow_heading(struct flow *f, unsigned level);
/* A separator in front of all cells of a row but the first. */
void flow_cell_begin(struct flow *f, bool is_first);
void flow_cell_end(struct flow *f);
/* What follows stands right behind the text so far. */
void flow_tight(struct flow *f);

/* Ends the text; SAC_ERR_MEMORY or SAC_ERR_FORMAT if not all of it was written. */
sac_status flow_finish(struct flow *f, sac_error *err);

#endif
