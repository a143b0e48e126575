/* jinja_format.h: printf-like and brace formatting of strings, as Python's `%` and `format`. */
#ifndef SAC_MODEL_JINJA_FORMAT_H
#define SAC_MODEL_JINJA_FORMAT_H

#include "model/jinja.h"

/* `format % arg`; a tuple supplies several values, a dict those of `%(name)s`. */
sac_status jinja_format_percent(struct jinja *j, struct jinja_value format, struct jinja_value arg,
                                struct jinja_value *out);
/* `format.format(...)` with {}, {0} and {name}, without specifications. */
sac_status jinja_format_braces(struct jinja *j, const struct jinja_call *c,
                               struct jinja_value *out);

#endif
