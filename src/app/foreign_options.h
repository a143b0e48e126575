/* foreign_options.h: options of llama.cpp and vLLM that users type out of habit and that do not
 * exist here. */
#ifndef SAC_APP_FOREIGN_OPTIONS_H
#define SAC_APP_FOREIGN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum foreign_options_kind {
    FOREIGN_OPTIONS_SILENT, /* already the default: accepted silently */
    FOREIGN_OPTIONS_NOTED, /* has no meaning here: a note explains why, and the command continues */
    FOREIGN_OPTIONS_ERROR, /* not supported: a usage error */
};

struct foreign_option {
    const char *names; /* separated by blanks */
    enum foreign_options_kind kind;
    const char *value; /* possible values, separated by blanks; "": any; NULL: no value */
    const char *why;   /* NULL for FOREIGN_OPTIONS_SILENT */
};

/* NULL: not a known option of another program. */
const struct foreign_option *foreign_options_find(const char *name, size_t n);
/* Whether the next word is the option's value. */
bool foreign_options_takes(const struct foreign_option *h, const char *word);

#endif
