/* folder.h: creates folders. */
#ifndef SAC_BASE_FOLDER_H
#define SAC_BASE_FOLDER_H

#include "base/status.h"

#include <sys/types.h>

/* Creates the folder and missing parents; an existing folder is unchanged. SAC_ERR_IO with its name
 * and the reason. */
sac_status folder_make(const char *path, mode_t mode, sac_error *err);

#endif
