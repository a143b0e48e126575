/* xmlwalk.c: see the header. libxml2 itself limits the depth, and the size of a single text. */
#include "text/xmlwalk.h"

#include <libxml/xmlreader.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct fault {
    char why[200];
    int line;
};

static void on_error(void *user, xmlErrorPtr e)
{
    struct fault *f = user;
    if (f->why[0] || !e || !e->message) return;
    snprintf(f->why, sizeof f->why, "%.*s", (int)strcspn(e->message, "\n"), e->message);
    f->line = e->line;
}

static void give_text(const struct xmlwalk *w, xmlTextReaderPtr r)
{
    const xmlChar *s = xmlTextReaderConstValue(r);
    if (s && w->text) w->text(w->user, (const char *)s, strlen((const char *)s));
}

/* Processes the current node; true: skip its children. */
static bool process_node(const struct xmlwalk *w, xmlTextReaderPtr r)
{
    const char *name = (const char *)xmlTextReaderConstLocalName(r);
    switch (xmlTextReaderNodeType(r)) {
    case XML_READER_TYPE_ELEMENT: {
        const bool is_empty = xmlTextReaderIsEmptyElement(r) == 1;
        if (w->begin && !w->begin(w->user, r, name)) return true;
        if (is_empty && w->end) w->end(w->user, name);
        return false;
    }
    case XML_READER_TYPE_END_ELEMENT:
        if (w->end) w->end(w->user, name);
        return false;
    case XML_READER_TYPE_TEXT:
    case XML_READER_TYPE_CDATA:
    case XML_READER_TYPE_SIGNIFICANT_WHITESPACE:
    case XML_READER_TYPE_WHITESPACE: give_text(w, r); return false;
    default: return false;
    }
}

sac_status xmlwalk_run(const struct xmlwalk *w, const char *what, const struct strbuf *xml,
                       sac_error *err)
{
    struct fault fault = {0};
    sac_status status = SAC_OK;
    if (xml->n == 0 || xml->n > INT_MAX)
        return error_set(err, SAC_ERR_FORMAT, "%s is %s", what, xml->n ? "too large" : "empty");
    xmlTextReaderPtr r = xmlReaderForMemory(xml->data, (int)xml->n, NULL, NULL,
                                            XML_PARSE_NONET | XML_PARSE_NOWARNING);
    if (!r) return error_set(err, SAC_ERR_MEMORY, "out of memory for %s", what);
    xmlTextReaderSetStructuredErrorHandler(r, on_error, &fault);
    int more = xmlTextReaderRead(r);
    while (more == 1 && status == SAC_OK) {
        if (xmlTextReaderNodeType(r) == XML_READER_TYPE_DOCUMENT_TYPE)
            status = error_set(err, SAC_ERR_FORMAT, "%s declares a document type", what);
        else
            more = process_node(w, r) ? xmlTextReaderNext(r) : xmlTextReaderRead(r);
    }
    xmlFreeTextReader(r);
    if (status == SAC_OK && more != 0)
        status = error_set(err, SAC_ERR_FORMAT, "%s is broken in line %d: %s", what, fault.line,
                           fault.why[0] ? fault.why : "no XML");
    return status;
}

void xmlwalk_attribute(char *out, size_t room, xmlTextReaderPtr at, const char *name)
{
    out[0] = 0;
    while (xmlTextReaderMoveToNextAttribute(at) == 1) {
        if (strcmp((const char *)xmlTextReaderConstLocalName(at), name) != 0) continue;
        const xmlChar *value = xmlTextReaderConstValue(at);
        snprintf(out, room, "%s", value ? (const char *)value : "");
        break;
    }
    xmlTextReaderMoveToElement(at);
}
