/* textfile.c: see the header. A full disk can show when bytes are written or when the file is
 * closed, so both results are checked; the first failure gives the reason. Files are not replaced
 * atomically: callers that need this write another file and rename it. */
#include "base/textfile.h"

#include "base/strbuf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

sac_status textfile_write(const char *path, const char *text, size_t n, sac_error *err)
{
    FILE *f = fopen(path, "wb");
    if (!f) return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    errno = 0;
    const bool written = fwrite(text, 1, n, f) == n;
    const int why = errno;
    if (fclose(f) == 0 && written) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path, strerror(written ? errno : why));
}

sac_status textfile_write_in(const char *dir, const char *name, const char *text, size_t n,
                             sac_error *err)
{
    struct strbuf path = {0};
    strbuf_addf(&path, "%s/%s", dir, name);
    const sac_status status =
        path.failed ? error_set(err, SAC_ERR_MEMORY, "out of memory for %s/%s", dir, name)
                    : textfile_write(path.data, text, n, err);
    strbuf_deinit(&path);
    return status;
}

sac_status textfile_replaceable(const char *path, sac_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot write %s: %s", path,
                     S_ISDIR(st.st_mode) ? strerror(EISDIR) : "not a regular file");
}
