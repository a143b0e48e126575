/* textfile.h: writes whole text files. */
#ifndef SAC_BASE_TEXTFILE_H
#define SAC_BASE_TEXTFILE_H

#include "base/status.h"

/* Makes the file, or empties it. SAC_ERR_IO with its name and the reason; what was written before
 * that stays. */
sac_status textfile_write(const char *path, const char *text, size_t n, sac_error *err);
/* The same for dir/name. */
sac_status textfile_write_in(const char *dir, const char *name, const char *text, size_t n,
                             sac_error *err);

/* Whether a whole file may be put in the place of `path`: nothing is there, or a file. A device or
 * a pipe is not: a rename would remove it. SAC_ERR_IO with its name. */
sac_status textfile_replaceable(const char *path, sac_error *err);

#endif
