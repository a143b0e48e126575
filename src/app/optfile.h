/* optfile.h: a file of options, `--config FILE`: lines `name = value`; `#` begins a comment line.
 */
#ifndef SAC_APP_OPTFILE_H
#define SAC_APP_OPTFILE_H

#include "app/options.h"
#include "base/status.h"

/* Sets what the file names. SAC_ERR_ARG with "FILE:LINE: reason" at the first line that is wrong,
 * else what reading the file gives. Texts are borrowed from the file's, which lives until the next
 * one is read. */
sac_status optfile_read(const struct options *o, const char *path, sac_error *err);

#endif
