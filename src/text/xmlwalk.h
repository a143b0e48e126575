/* xmlwalk.h: XML in one pass through libxml2's reader: elements by their local names, a handler for
 * begins, ends and texts. Document types are refused: none of these formats has one, and entities
 * are how small files become large. */
#ifndef SAC_TEXT_XMLWALK_H
#define SAC_TEXT_XMLWALK_H

#include "base/status.h"
#include "base/strbuf.h"

#include <stdbool.h>

/* libxml2's xmlTextReader. */
struct _xmlTextReader;

struct xmlwalk {
    /* Each may be NULL. `begin` says false to pass over the element with all that is in it. */
    bool (*begin)(void *user, struct _xmlTextReader *at, const char *name);
    void (*end)(void *user, const char *name);
    void (*text)(void *user, const char *s, size_t n);
    void *user;
};

/* `what` names the part in errors. */
sac_status xmlwalk_run(const struct xmlwalk *w, const char *what, const struct strbuf *xml,
                       sac_error *err);
/* An attribute by its local name, cut to its buffer; "" if there is none. */
void xmlwalk_attribute(char *out, size_t room, struct _xmlTextReader *at, const char *name);

#endif
