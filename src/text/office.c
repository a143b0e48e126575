/* office.c: see the header. Sources of the formats: ECMA-376 part 1 (WordprocessingML), OASIS
 * OpenDocument 1.3 part 3. Only local names of elements are used: the strict and the usual DOCX
 * differ in their namespaces alone.
 *
 * In a DOCX, text is in `t` elements; the properties of a paragraph, which come first, mark it as a
 * heading or a list item. In an ODT, text is directly in `p`, `h` and their children. */
#include "text/office.h"

#include "text/limits.h"
#include "text/xmlwalk.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DOCX_BODY "word/document.xml"
#define ODT_BODY  "content.xml"

bool office_wants(const char *name)
{
    static const char *const names[] = {DOCX_BODY, "word/footnotes.xml", "word/endnotes.xml",
                                        ODT_BODY};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

struct reader {
    struct flow *f;
    unsigned text;  /* > 0: inside elements that hold text */
    unsigned cells; /* in the current row */
};

static bool is(const char *name, const char *what)
{
    return strcmp(name, what) == 0;
}

static void on_text(void *user, const char *s, size_t n)
{
    const struct reader *r = user;
    if (r->text) flow_text(r->f, s, n);
}

static void begin_row(struct reader *r)
{
    flow_line(r->f);
    r->cells = 0;
}

/* ---- DOCX ---- */

/* "Heading2" is level 2, "Title" level 1, others 0. */
static unsigned style_level(const char *style)
{
    if (strncmp(style, "Heading", 7) == 0 && isdigit((unsigned char)style[7]))
        return (unsigned)(style[7] - '0');
    return is(style, "Title") ? 1 : 0;
}

static void docx_style(struct reader *r, struct _xmlTextReader *at)
{
    char style[64];
    xmlwalk_attribute(style, sizeof style, at, "val");
    const unsigned level = style_level(style);
    if (level) flow_heading(r->f, level);
}

/* Writes the number of a note, before its text and at its reference. */
static void docx_note(struct reader *r, struct _xmlTextReader *at)
{
    char id[16], mark[24];
    xmlwalk_attribute(id, sizeof id, at, "id");
    const int n = snprintf(mark, sizeof mark, "[%s]", id);
    flow_text(r->f, mark, (size_t)n);
}

/* The list of notes also contains separators. */
static bool docx_is_separator(struct _xmlTextReader *at)
{
    char type[32];
    xmlwalk_attribute(type, sizeof type, at, "type");
    return type[0] != 0;
}

static bool docx_begin(void *user, struct _xmlTextReader *at, const char *name)
{
    struct reader *r = user;
    if (is(name, "moveFrom") || is(name, "Fallback") || is(name, "instrText")) return false;
    if (is(name, "footnote") || is(name, "endnote")) {
        if (docx_is_separator(at)) return false;
        flow_block(r->f);
        docx_note(r, at);
        flow_text(r->f, " ", 1);
    } else if (is(name, "footnoteReference") || is(name, "endnoteReference")) {
        docx_note(r, at);
    } else if (is(name, "t")) {
        r->text++;
    } else if (is(name, "tab")) {
        flow_text(r->f, " ", 1);
    } else if (is(name, "br") || is(name, "cr")) {
        flow_line(r->f);
    } else if (is(name, "lastRenderedPageBreak")) {
        flow_page(r->f);
    } else if (is(name, "pStyle")) {
        docx_style(r, at);
    } else if (is(name, "numPr")) {
        flow_item(r->f, "- ");
    } else if (is(name, "tr")) {
        begin_row(r);
    } else if (is(name, "tc")) {
        flow_cell_begin(r->f, r->cells++ == 0);
    }
    return true;
}

static void docx_end(void *user, const char *name)
{
    struct reader *r = user;
    if (is(name, "t"))
        r->text--;
    else if (is(name, "p") || is(name, "tbl"))
        flow_block(r->f);
    else if (is(name, "tr"))
        flow_line(r->f);
    else if (is(name, "tc"))
        flow_cell_end(r->f);
}

static sac_status docx_part(struct flow *f, const struct unpack_zip *zip, const char *name,
                            sac_error *err)
{
    struct reader r = {.f = f};
    const struct xmlwalk walk = {docx_begin, docx_end, on_text, &r};
    const struct unpack_member *m = unpack_find(zip, name);
    flow_block(f);
    return m ? xmlwalk_run(&walk, name, &m->data, err) : SAC_OK;
}

sac_status office_docx(struct flow *f, const struct unpack_zip *zip, sac_error *err)
{
    TRY(docx_part(f, zip, DOCX_BODY, err));
    TRY(docx_part(f, zip, "word/footnotes.xml", err));
    return docx_part(f, zip, "word/endnotes.xml", err);
}

/* ---- ODT ---- */

/* A numeric attribute, clamped to 1 to `most`. */
static unsigned number(struct _xmlTextReader *at, const char *name, unsigned most)
{
    char text[16];
    xmlwalk_attribute(text, sizeof text, at, name);
    const unsigned long n = strtoul(text, NULL, 10);
    return n < 1 ? 1 : n > most ? most : (unsigned)n;
}

static bool odt_begin(void *user, struct _xmlTextReader *at, const char *name)
{
    struct reader *r = user;
    if (is(name, "tracked-changes") || is(name, "annotation")) return false;
    if (is(name, "h") || is(name, "p")) {
        if (is(name, "h")) flow_heading(r->f, number(at, "outline-level", 6));
        r->text++;
    } else if (is(name, "list-item")) {
        flow_item(r->f, "- ");
    } else if (is(name, "s")) {
        for (unsigned n = number(at, "c", LIMITS_SPACES); n > 0; n--) flow_text(r->f, " ", 1);
    } else if (is(name, "tab")) {
        flow_text(r->f, " ", 1);
    } else if (is(name, "line-break")) {
        flow_line(r->f);
    } else if (is(name, "soft-page-break")) {
        flow_page(r->f);
    } else if (is(name, "note-citation")) {
        flow_text(r->f, " [", 2);
    } else if (is(name, "note-body")) {
        flow_text(r->f, ": ", 2);
        r->f->cell++; /* its paragraphs stay on the line */
    } else if (is(name, "table-row")) {
        begin_row(r);
    } else if (is(name, "table-cell")) {
        flow_cell_begin(r->f, r->cells++ == 0);
    }
    return true;
}

static void odt_end(void *user, const char *name)
{
    struct reader *r = user;
    if (is(name, "p") || is(name, "h")) {
        r->text--;
        flow_block(r->f);
    } else if (is(name, "list-item") || is(name, "table-row")) {
        flow_line(r->f);
    } else if (is(name, "note-body") || is(name, "table-cell")) {
        flow_cell_end(r->f);
    } else if (is(name, "note")) {
        flow_tight(r->f);
        flow_text(r->f, "]", 1);
    } else if (is(name, "table")) {
        flow_block(r->f);
    }
}

sac_status office_odt(struct flow *f, const struct unpack_zip *zip, sac_error *err)
{
    struct reader r = {.f = f};
    const struct xmlwalk walk = {odt_begin, odt_end, on_text, &r};
    const struct unpack_member *m = unpack_find(zip, ODT_BODY);
    return xmlwalk_run(&walk, ODT_BODY, &m->data, err);
}
