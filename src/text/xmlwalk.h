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
    /* Each may be NULL. `begin` returns false to skip the element and its contents. */
    bool (*begin)(void *user, struct _xmlTextReader *at, const char *name);
    void (*end)(void *user, const char *name);
    void (*text)(void *user, const char *s, size_t n);
    void *user;
};

/* `what` is the part's name in messages. */
sac_status xmlwalk_run(const struct xmlwalk *w, const char *what, const struct strbuf *xml,
                       sac_error *err);
/* Reads an attribute by its local name, truncated to the buffer; "" if it is missing. */
void xmlwalk_attribute(char *out, size_t room, struct _xmlTextReader *at, const char *name);

#endif
