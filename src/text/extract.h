/* extract.h: the text of any document: called by all commands that read one.
 *
 * A form feed separates pages: those of a PDF, and those recorded in a DOCX or ODT. Plain text in
 * UTF-8 is taken byte for byte, its own form feeds included. */
#ifndef SAC_TEXT_EXTRACT_H
#define SAC_TEXT_EXTRACT_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* How a document was read. */
struct extract_info {
    const char *format; /* "PDF", "HTML", "text", ... */
    char encoding[40];  /* of plain text; otherwise "" */
    bool guessed;       /* the encoding was determined by statistics */
    size_t n_replace;   /* bytes that were not UTF-8 and became U+FFFD */
};

/* Appends the text of a file ("-": stdin) as valid UTF-8 without zero bytes; `out_info` may be
 * NULL. SAC_ERR_NOT_FOUND, SAC_ERR_IO: it cannot be read. SAC_ERR_FORMAT: it is not a text; the
 * message names its format. SAC_ERR_UNSUPPORTED: the program that reads this format is not
 * installed. */
sac_status extract_file(struct strbuf *out, const char *path, struct extract_info *out_info,
                        sac_error *err);
/* The same for bytes in memory; `name` is used in messages. */
sac_status extract_bytes(struct strbuf *out, const char *name, const struct strbuf *bytes,
                         struct extract_info *out_info, sac_error *err);

#endif
