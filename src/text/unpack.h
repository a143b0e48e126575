/* unpack.h: the content of compressed files and ZIP archives, through libarchive. Nothing is
 * written to disk: names of members are only compared. */
#ifndef SAC_TEXT_UNPACK_H
#define SAC_TEXT_UNPACK_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* Decompresses a gzip, zstd, xz or bzip2 file and appends the result. */
sac_status unpack_stream(struct strbuf *out, const char *bytes, size_t n, sac_error *err);

struct unpack_member {
    char *name;         /* owned */
    struct strbuf data; /* empty if not wanted */
    bool wanted;
};

/* Zeroed, it is empty. */
struct unpack_zip {
    struct unpack_member *member; /* [n] owned */
    size_t n, room;
};

/* Lists all members, and reads the data of those for which `wants` is true. The caller deinits
 * `out` even after errors. */
sac_status unpack_zip(struct unpack_zip *out, const char *bytes, size_t n,
                      bool (*wants)(const char *name), sac_error *err);
/* The first member of that name, NULL if there is none. */
const struct unpack_member *unpack_find(const struct unpack_zip *z, const char *name);
void unpack_zip_deinit(struct unpack_zip *z);

#endif
