/* passages_print.h: the passages that an answer read, for a terminal, for a pipe, and as a page. */
#ifndef SAC_APP_PASSAGES_PRINT_H
#define SAC_APP_PASSAGES_PRINT_H

#include "eval/passages.h"

enum passages_colours {
    PASSAGES_PLAIN = 0, /* brackets and per cent */
    PASSAGES_16,
    PASSAGES_256,
    PASSAGES_RGB,
};

/* What stdout shows, by --color, NO_COLOR, CLICOLOR_FORCE, COLORTERM and TERM. */
enum passages_colours passages_print_colours(void);

/* The document with its passages marked; long stretches between them are folded. Control characters
 * of the document are replaced: it cannot command the terminal. */
void passages_print_text(const struct passages *p, enum passages_colours colours,
                         struct strbuf *out);

/* A page of its own, with the question and the answer above the whole document. */
struct passages_page {
    const char *question; /* or NULL */
    const char *answer;
};
void passages_print_html(const struct passages *p, const struct passages_page *page,
                         struct strbuf *out);

#endif
