/* office.h: the text of DOCX and ODT: paragraphs, headings, list items, tables, notes, and the
 * pages as the program that saved the file had them. */
#ifndef SAC_TEXT_OFFICE_H
#define SAC_TEXT_OFFICE_H

#include "text/flow.h"
#include "text/unpack.h"

/* Whether the extraction needs the member. */
bool office_wants(const char *name);

/* Write a document to `f`, without text deleted under change tracking. */
sac_status office_docx(struct flow *f, const struct unpack_zip *zip, sac_error *err);
sac_status office_odt(struct flow *f, const struct unpack_zip *zip, sac_error *err);

#endif
