/* html.h: the text of HTML: what a browser would show, with Markdown's marks for headings and list
 * items and bars between the cells of tables. */
#ifndef SAC_TEXT_HTML_H
#define SAC_TEXT_HTML_H

#include "text/flow.h"

/* Writes a document to `f`. Its encoding is found in its bytes and in what it declares. */
sac_status html_text(struct flow *f, const char *bytes, size_t n, sac_error *err);

#endif
