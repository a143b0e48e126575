/* source.h: a file that holds full pages, saved one after another, from which a tier reads those
 * that it needs. The file is not written, and stays open as long as a page refers to it, so it can
 * still be read after it was removed from its folder.
 *
 * Owners: whoever opened it, each page of a tier that lies in it, and each transfer from it hold
 * one reference each. All calls except opening are made under the tier's lock. */
#ifndef SAC_KV_SOURCE_H
#define SAC_KV_SOURCE_H

#include "base/status.h"

#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct source {
    int fd;        /* owned */
    off_t at;      /* offset of the first page */
    size_t stride; /* distance between pages, and the most bytes of a page */
    uint32_t n_ref;
    char name[]; /* name of the file for messages */
};

/* Duplicates the descriptor of an open file, which the caller may close; end with source_drop. */
sac_status source_open(struct source **out, FILE *file, const char *name, sac_error *err);
void source_hold(struct source *s);
void source_drop(struct source *s);

#endif
