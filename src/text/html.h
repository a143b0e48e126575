/* html.h: the text of HTML: what a browser would show, with Markdown's marks for headings and list
 * items and bars between the cells of tables. */
#ifndef SAC_TEXT_HTML_H
#define SAC_TEXT_HTML_H

#include "text/flow.h"

/* Writes a document to `f`. The encoding is determined from the bytes and the document's
 * declaration. */
sac_status html_text(struct flow *f, const char *bytes, size_t n, sac_error *err);

#endif
