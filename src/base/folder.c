/* folder.c: see the header. Failures to create the folders above the last one are ignored: they may
 * exist and be unreadable for us. Only the last folder's failure is reported. */
#include "base/folder.h"

#include "base/strbuf.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

static void make_above(char *path, mode_t mode)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, mode);
        *slash = '/';
    }
}

sac_status folder_make(const char *path, mode_t mode, sac_error *err)
{
    struct strbuf copy = {0};
    struct stat is;
    strbuf_adds(&copy, path);
    if (copy.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for %s", path);
    if (copy.n) make_above(copy.data, mode); /* nothing is above "" */
    strbuf_deinit(&copy);
    int why = mkdir(path, mode) == 0 ? 0 : errno;
    if (why == EEXIST && stat(path, &is) == 0) why = S_ISDIR(is.st_mode) ? 0 : ENOTDIR;
    if (why == 0) return SAC_OK;
    return error_set(err, SAC_ERR_IO, "cannot make the folder %s: %s", path, strerror(why));
}
