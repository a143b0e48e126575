/* page.h: the files of page/, embedded in the program by the build (cmake/embed.cmake). */
#ifndef SAC_SERVE_PAGE_H
#define SAC_SERVE_PAGE_H

#include <stddef.h>

struct page_file {
    const char *path; /* "/" for index.html, else "/NAME" */
    const char *type;
    const unsigned char *data;
    size_t n;
};

/* NULL: unknown path. */
const struct page_file *page_find(const char *path);

#endif
