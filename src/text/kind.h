/* kind.h: detects the type of a file from its bytes. File names are ignored, except for HTML
 * without a head. */
#ifndef SAC_TEXT_KIND_H
#define SAC_TEXT_KIND_H

#include <stdbool.h>
#include <stddef.h>

enum kind {
    KIND_TEXT, /* nothing else was found: a text in some encoding, or bytes of an unknown kind */
    KIND_PACKED,
    KIND_PDF,
    KIND_HTML,
    KIND_ZIP,     /* DOCX, ODT and EPUB are told apart by their members */
    KIND_NO_TEXT, /* `name` says what it is */
};

struct kind_found {
    enum kind kind;
    const char *name; /* "a PNG image"; NULL for KIND_TEXT */
    const char *hint; /* what would make a text of it, or NULL */
};

/* `path` is what the user called the file. */
struct kind_found kind_find(const char *bytes, size_t n, const char *path);

#endif
