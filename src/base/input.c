/* input.c: see the header. Reads to the end and trusts no size: stdin and pipes have none. */
#include "base/input.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

sac_status input_read_most(struct strbuf *out, const char *path, size_t most, sac_error *err)
{
    const bool is_stdin = strcmp(path, "-") == 0;
    FILE *f = is_stdin ? stdin : fopen(path, "rb");
    if (!f) return error_set(err, SAC_ERR_NOT_FOUND, "cannot open %s: %s", path, strerror(errno));
    char chunk[65536];
    size_t n;
    errno = 0;
    const size_t before = out->n;
    while (out->n - before <= most && !out->failed && (n = fread(chunk, 1, sizeof chunk, f)) > 0)
        strbuf_add(out, chunk, n);
    strbuf_add(out, "", 0); /* an empty file gives "", not NULL */
    const int failed = ferror(f) ? errno : 0;
    if (!is_stdin) fclose(f);
    if (failed) return error_set(err, SAC_ERR_IO, "cannot read %s: %s", path, strerror(failed));
    if (out->n - before > most)
        return error_set(err, SAC_ERR_FORMAT, "%s has more than %zu MiB", path, most >> 20);
    if (out->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for %s", path);
    return SAC_OK;
}

sac_status input_read(struct strbuf *out, const char *path, sac_error *err)
{
    return input_read_most(out, path, SIZE_MAX, err);
}
