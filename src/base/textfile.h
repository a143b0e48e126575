/* textfile.h: writes whole text files. */
#ifndef SAC_BASE_TEXTFILE_H
#define SAC_BASE_TEXTFILE_H

#include "base/status.h"

/* Creates or truncates the file and writes the text. SAC_ERR_IO with its name and the reason; a
 * partial file may remain. */
sac_status textfile_write(const char *path, const char *text, size_t n, sac_error *err);
/* The same for dir/name. */
sac_status textfile_write_in(const char *dir, const char *name, const char *text, size_t n,
                             sac_error *err);

/* Whether a rename may replace `path`: it must not exist or be a regular file, since a rename would
 * remove a device or pipe. SAC_ERR_IO with its name. */
sac_status textfile_replaceable(const char *path, sac_error *err);

#endif
