/* passages_print.h: the passages that an answer read, for a terminal, for a pipe, and as a page. */
#ifndef SAC_APP_PASSAGES_PRINT_H
#define SAC_APP_PASSAGES_PRINT_H

#include "eval/passages.h"

enum passages_colours {
    PASSAGES_PLAIN = 0, /* brackets with percentages */
    PASSAGES_16,
    PASSAGES_256,
    PASSAGES_RGB,
};

/* What stdout supports, by --color, NO_COLOR, CLICOLOR_FORCE, COLORTERM and TERM. */
enum passages_colours passages_print_colours(void);

/* Prints the document with its passages marked, folding long stretches between them. Control
 * characters are replaced, so that a document cannot control the terminal. */
void passages_print_text(const struct passages *p, enum passages_colours colours,
                         struct strbuf *out);

/* An HTML page with the question, the answer and the whole document. */
struct passages_page {
    const char *question; /* or NULL */
    const char *answer;
};
void passages_print_html(const struct passages *p, const struct passages_page *page,
                         struct strbuf *out);

#endif
