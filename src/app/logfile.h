/* logfile.h: --log-file: what goes to stderr goes to a file as well. */
#ifndef SAC_APP_LOGFILE_H
#define SAC_APP_LOGFILE_H

#include "base/status.h"

/* From now on, up to the end of the process. The file is made anew. What is drawn over itself, a
 * progress bar, does not get there. */
sac_status logfile_open(const char *path, sac_error *err);

#endif
