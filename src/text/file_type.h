/* file_type.h: detects the type of a file from its bytes. File names are ignored, except for HTML
 * without a head. */
#ifndef SAC_TEXT_FILE_TYPE_H
#define SAC_TEXT_FILE_TYPE_H

#include <stdbool.h>
#include <stddef.h>

enum file_type {
    FILE_TYPE_TEXT, /* no other format matched: text in some encoding, or an unknown binary format
                     */
    FILE_TYPE_PACKED,
    FILE_TYPE_PDF,
    FILE_TYPE_HTML,
    FILE_TYPE_ZIP,     /* ZIP formats are distinguished by their members */
    FILE_TYPE_NO_TEXT, /* not a text; `name` says what it is */
};

struct file_type_found {
    enum file_type kind;
    const char *name; /* "a PNG image"; NULL for FILE_TYPE_TEXT */
    const char *hint; /* how to convert it to text, or NULL */
};

/* `path` is the name that the user gave. */
struct file_type_found file_type_find(const char *bytes, size_t n, const char *path);

#endif
