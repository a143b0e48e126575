/* folder.h: creates folders. */
#ifndef SAC_BASE_FOLDER_H
#define SAC_BASE_FOLDER_H

#include "base/status.h"

#include <sys/types.h>

/* Makes the folder, and those above it that are missing; one that is there stays as it is.
 * SAC_ERR_IO with its name and the reason. */
sac_status folder_make(const char *path, mode_t mode, sac_error *err);

#endif
