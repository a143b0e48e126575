/* textfile.h: texts that the program writes as files, whole. */
#ifndef SAC_BASE_TEXTFILE_H
#define SAC_BASE_TEXTFILE_H

#include "base/status.h"

/* Makes the file, or empties it. SAC_ERR_IO with its name and the reason; what was written before
 * that stays. */
sac_status textfile_write(const char *path, const char *text, size_t n, sac_error *err);
/* The same for dir/name. */
sac_status textfile_write_in(const char *dir, const char *name, const char *text, size_t n,
                             sac_error *err);

#endif
