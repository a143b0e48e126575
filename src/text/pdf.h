/* pdf.h: the text of a PDF, by poppler's pdftotext where it is installed. */
#ifndef SAC_TEXT_PDF_H
#define SAC_TEXT_PDF_H

#include "base/status.h"
#include "base/strbuf.h"

/* Appends the pages, separated by form feeds. SAC_ERR_UNSUPPORTED: pdftotext is missing.
 * SAC_ERR_FORMAT: the file is damaged or encrypted, or its pages hold no text. */
sac_status pdf_text(struct strbuf *out, const char *bytes, size_t n, sac_error *err);

#endif
