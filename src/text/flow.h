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
    size_t mark_at;  /* start of a mark without text after it */
    unsigned breaks; /* pending newlines: 0 to 2 */
    unsigned pages;  /* pending form feeds */
    unsigned pre;    /* > 0: white space is preserved */
    unsigned cell;   /* > 0: inside a table cell, where line breaks become blanks */
    bool space;      /* a blank is pending */
    bool marked;
    bool over; /* more than LIMITS_TEXT_BYTES */
};

void flow_text(struct flow *f, const char *s, size_t n);
void flow_line(struct flow *f);  /* starts a new line */
void flow_block(struct flow *f); /* starts a new paragraph */
void flow_page(struct flow *f);  /* starts a new page */
/* Writes a mark ("# ", "- ") before the next text of the same line. Without text it is dropped. */
void flow_mark(struct flow *f, const char *mark);
/* Starts a list item on a new line. */
void flow_item(struct flow *f, const char *mark);
void flow_heading(struct flow *f, unsigned level);
/* Separates cells: before each cell of a row except the first. */
void flow_cell_begin(struct flow *f, bool is_first);
void flow_cell_end(struct flow *f);
/* Suppresses white space before the next text. */
void flow_tight(struct flow *f);

/* Completes the text; SAC_ERR_MEMORY or SAC_ERR_FORMAT if it is truncated. */
sac_status flow_finish(struct flow *f, sac_error *err);

#endif
