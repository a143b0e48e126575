/* optfile.h: a file of options, `--config FILE`: lines `name = value`; `#` begins a comment line.
 */
#ifndef SAC_APP_OPTFILE_H
#define SAC_APP_OPTFILE_H

#include "app/options.h"
#include "base/status.h"

/* Applies the options in a file. SAC_ERR_ARG with "FILE:LINE: reason" for an invalid line, or the
 * error of reading it. Values are borrowed from the file's text, which lives until the next
 * call. */
sac_status optfile_read(struct options *o, const char *path, sac_error *err);

#endif
