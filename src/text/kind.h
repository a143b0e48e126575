/* kind.h: detects the type of a file from its bytes. File names are ignored, except for HTML
 * without a head. */
#ifndef SAC_TEXT_KIND_H
#define SAC_TEXT_KIND_H

#include <stdbool.h>
#include <stddef.h>

enum kind {
    KIND_TEXT, /* no other format matched: text in some encoding, or an unknown binary format */
    KIND_PACKED,
    KIND_PDF,
    KIND_HTML,
    KIND_ZIP,     /* ZIP formats are distinguished by their members */
    KIND_NO_TEXT, /* not a text; `name` says what it is */
};

struct kind_found {
    enum kind kind;
    const char *name; /* "a PNG image"; NULL for KIND_TEXT */
    const char *hint; /* how to convert it to text, or NULL */
};

/* `path` is the name that the user gave. */
struct kind_found kind_find(const char *bytes, size_t n, const char *path);

#endif
