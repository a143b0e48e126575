/* logfile.h: --log-file: what goes to stderr goes to a file as well. */
#ifndef SAC_APP_LOGFILE_H
#define SAC_APP_LOGFILE_H

#include "base/status.h"

/* Copies stderr to a new file until the process ends, except progress bars. */
sac_status logfile_open(const char *path, sac_error *err);

#endif
