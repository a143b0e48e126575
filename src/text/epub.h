/* epub.h: the text of an EPUB: its chapters in the order of the book. */
#ifndef SAC_TEXT_EPUB_H
#define SAC_TEXT_EPUB_H

#include "text/flow.h"
#include "text/unpack.h"

/* Whether the extraction needs the member. */
bool epub_wants(const char *name);

sac_status epub_text(struct flow *f, const struct unpack_zip *zip, sac_error *err);

#endif
