/* html.c: see the header. libxml2 makes a tree of any input; one walk writes it out. What a browser
 * hides is left out (scripts, styles, the attribute `hidden`, display:none), because a model should
 * not read what its user cannot see. Links keep their words and lose their targets.
 *
 * libxml2 truncates a document that is nested deeper than it allows: that is an error here, because
 * the rest would be missing. */
#include "text/html.h"

#include "text/charset.h"

#include <libxml/HTMLparser.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define DECLARED_NEAR 2048u /* prefix in which documents declare their encoding */

enum shape { INLINE, HIDDEN, BLOCK, LINE, BREAK, HEADING, ITEM, PRE, ROW, CELL, IMAGE };

static enum shape shape_of(const char *name)
{
    static const struct {
        const char *names; /* surrounded by blanks */
        enum shape shape;
    } shapes[] = {
        {" script style noscript template svg iframe object embed audio video canvas select "
         "datalist input button textarea map head ",
         HIDDEN},
        {" p div section article main header footer nav aside ul ol dl table blockquote figure "
         "figcaption form fieldset address details summary hr body center caption title ",
         BLOCK},
        {" dt dd legend option thead tbody tfoot ", LINE},
        {" br ", BREAK},
        {" h1 h2 h3 h4 h5 h6 ", HEADING},
        {" li ", ITEM},
        {" pre listing xmp ", PRE},
        {" tr ", ROW},
        {" td th ", CELL},
        {" img ", IMAGE},
    };
    char word[16];
    const int n = snprintf(word, sizeof word, " %s ", name);
    if (n < 0 || n >= (int)sizeof word) return INLINE;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strstr(shapes[i].names, word)) return shapes[i].shape;
    return INLINE;
}

static bool is_named(const xmlNode *node, const char *name)
{
    return node && node->type == XML_ELEMENT_NODE && strcmp((const char *)node->name, name) == 0;
}

static bool is_hidden(xmlNode *node)
{
    char tight[256];
    size_t n = 0;
    if (xmlHasProp(node, BAD_CAST "hidden")) return true;
    xmlChar *style = xmlGetProp(node, BAD_CAST "style");
    for (const xmlChar *at = style; at && *at && n + 1 < sizeof tight; at++)
        if (*at > ' ') tight[n++] = (char)(*at | 0x20); /* ':' and '-' are unchanged */
    tight[n] = 0;
    xmlFree(style);
    return strstr(tight, "display:none") != NULL;
}

static void write_alt(struct flow *f, xmlNode *node)
{
    xmlChar *alt = xmlGetProp(node, BAD_CAST "alt");
    if (alt && *alt) {
        flow_text(f, "[image: ", 8);
        flow_text(f, (const char *)alt, strlen((const char *)alt));
        flow_text(f, "]", 1);
    }
    xmlFree(alt);
}

/* "1. " in an ordered list, otherwise "- ". The list node counts its items, because counting
 * siblings would take quadratic time. */
static void write_item(struct flow *f, const xmlNode *node)
{
    char mark[24] = "- ";
    if (is_named(node->parent, "ol")) {
        const uintptr_t i = (uintptr_t)node->parent->_private + 1;
        node->parent->_private = (void *)i;
        snprintf(mark, sizeof mark, "%llu. ", (unsigned long long)i);
    }
    flow_item(f, mark);
}

static bool is_first_cell(const xmlNode *node)
{
    for (const xmlNode *at = node->prev; at; at = at->prev)
        if (is_named(at, "td") || is_named(at, "th")) return false;
    return true;
}

/* Whether a cell holds only inline text. Tables used for layout have paragraphs, lists and tables
 * in their cells, which are kept apart. */
static bool is_plain_cell(const xmlNode *cell)
{
    for (const xmlNode *at = cell->children; at; at = at->next)
        if (at->type == XML_ELEMENT_NODE && shape_of((const char *)at->name) != INLINE &&
            !is_named(at, "br") && !is_named(at, "img") &&
            !(is_named(at, "p") && !at->next && !at->prev))
            return false;
    return true;
}

static void enter(struct flow *f, xmlNode *node, enum shape shape)
{
    switch (shape) {
    case BLOCK: flow_block(f); break;
    case LINE:
    case BREAK:
    case ROW: flow_line(f); break;
    case HEADING: flow_heading(f, (unsigned)(node->name[1] - '0')); break;
    case ITEM: write_item(f, node); break;
    case PRE:
        flow_block(f);
        f->pre++;
        break;
    case CELL:
        if (is_plain_cell(node))
            flow_cell_begin(f, is_first_cell(node));
        else
            flow_block(f);
        break;
    case IMAGE: write_alt(f, node); break;
    case INLINE:
    case HIDDEN: break;
    }
}

static void leave(struct flow *f, const xmlNode *node, enum shape shape)
{
    if (shape == PRE) f->pre--;
    if (shape == CELL && is_plain_cell(node))
        flow_cell_end(f);
    else if (shape == BLOCK || shape == HEADING || shape == PRE || shape == CELL)
        flow_block(f);
    else if (shape == LINE || shape == ITEM || shape == ROW)
        flow_line(f);
}

/* Writes the beginning of a node; true: its children are next. */
static bool visit(struct flow *f, xmlNode *node)
{
    if (node->type == XML_TEXT_NODE || node->type == XML_CDATA_SECTION_NODE) {
        flow_text(f, (const char *)node->content, strlen((const char *)node->content));
        return false;
    }
    if (node->type != XML_ELEMENT_NODE) return false;
    const enum shape shape = shape_of((const char *)node->name);
    if (shape == HIDDEN || is_hidden(node)) return false;
    enter(f, node, shape);
    if (node->children) return true;
    leave(f, node, shape);
    return false;
}

static void walk(struct flow *f, xmlNode *root)
{
    xmlNode *node = root;
    while (node) {
        if (visit(f, node)) {
            node = node->children;
            continue;
        }
        while (node != root && !node->next) {
            node = node->parent;
            leave(f, node, shape_of((const char *)node->name));
        }
        node = node == root ? NULL : node->next;
    }
}

/* The encoding declared by "charset=" near the beginning, or NULL. */
static const char *declared(char out[40], const char *bytes, size_t n)
{
    const size_t near = n < DECLARED_NEAR ? n : DECLARED_NEAR;
    const char *at = n > 0 ? memmem(bytes, near, "charset=", 8) : NULL;
    if (!at) return NULL;
    const size_t left = near - (size_t)(at + 8 - bytes);
    snprintf(out, 40, "%.*s", (int)(left < 40 ? left : 39), at + 8);
    const size_t skip = strspn(out, "\"' ");
    memmove(out, out + skip, strlen(out + skip) + 1);
    out[strcspn(out, "\"' />;")] = 0;
    return out;
}

/* Writes the document's title. */
static void write_title(struct flow *f, xmlNode *root)
{
    for (xmlNode *head = root->children; head; head = head->next) {
        if (!is_named(head, "head")) continue;
        for (xmlNode *at = head->children; at; at = at->next) {
            if (!is_named(at, "title")) continue;
            xmlChar *title = xmlNodeGetContent(at);
            if (title) flow_text(f, (const char *)title, strlen((const char *)title));
            xmlFree(title);
            flow_block(f);
            return;
        }
    }
}

static sac_status parse(struct flow *f, const struct strbuf *utf8, sac_error *err)
{
    if (utf8->n > INT_MAX) return error_set(err, SAC_ERR_FORMAT, "HTML of more than 2 GiB");
    htmlParserCtxtPtr ctx = htmlNewParserCtxt();
    if (!ctx) return error_set(err, SAC_ERR_MEMORY, "out of memory for HTML");
    htmlDocPtr doc = htmlCtxtReadMemory(ctx, utf8->data, (int)utf8->n, NULL, "UTF-8",
                                        HTML_PARSE_RECOVER | HTML_PARSE_NOERROR |
                                            HTML_PARSE_NOWARNING | HTML_PARSE_NONET);
    const bool halted = ctx->disableSAX != 0;
    htmlFreeParserCtxt(ctx);
    xmlNode *root = doc ? xmlDocGetRootElement(doc) : NULL;
    sac_status status = SAC_OK;
    if (halted)
        status = error_set(err, SAC_ERR_FORMAT, "its HTML is nested too deep");
    else if (root) {
        write_title(f, root);
        walk(f, root);
    }
    xmlFreeDoc(doc);
    return status;
}

sac_status html_text(struct flow *f, const char *bytes, size_t n, sac_error *err)
{
    struct charset_found from;
    struct strbuf utf8 = {0};
    char said[40];
    TRY(charset_find(&from, bytes, n, declared(said, bytes, n), err));
    sac_status status = charset_convert(&utf8, bytes, n, &from, err);
    if (status == SAC_OK && utf8.n > 0) status = parse(f, &utf8, err);
    strbuf_deinit(&utf8);
    return status;
}
