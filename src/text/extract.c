/* extract.c: see the header. Packed files are unpacked first. */
#include "text/extract.h"

#include "base/input.h"
#include "text/charset.h"
#include "text/epub.h"
#include "text/file_type.h"
#include "text/flow.h"
#include "text/html.h"
#include "text/limits.h"
#include "text/office.h"
#include "text/pdf.h"
#include "text/unpack.h"

#include <stdio.h>
#include <string.h>

static sac_status no_text(const struct file_type_found *kind, sac_error *err)
{
    return error_set(err, SAC_ERR_FORMAT, "%s, not a text%s%s", kind->name, kind->hint ? ": " : "",
                     kind->hint ? kind->hint : "");
}

/* ---- ZIP ---- */

static bool wants(const char *name)
{
    return office_wants(name) || epub_wants(name);
}

static bool has_type(const struct unpack_zip *zip, const char *type)
{
    const struct unpack_member *m = unpack_find(zip, "mimetype");
    const size_t n = strlen(type);
    return m && m->data.n >= n && memcmp(m->data.data, type, n) == 0;
}

/* Names archives that are recognised but hold no text. */
static sac_status other_zip(const struct unpack_zip *zip, sac_error *err)
{
    static const struct {
        const char *member, *name, *hint;
    } others[] = {{"xl/workbook.xml", "an XLSX spreadsheet", "export it as CSV"},
                  {"ppt/presentation.xml", "a PPTX presentation", "export it as PDF"},
                  {"content.xml", "an OpenDocument file without text", "export it as PDF or CSV"},
                  {"META-INF/MANIFEST.MF", "a Java archive", NULL}};
    struct file_type_found kind = {FILE_TYPE_NO_TEXT, "a ZIP archive",
                                   "unpack it and name the files in it"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (unpack_find(zip, others[i].member)) {
            kind.name = others[i].name;
            kind.hint = others[i].hint;
            break;
        }
    return no_text(&kind, err);
}

static sac_status zip_text(struct flow *f, const struct unpack_zip *zip, const char **out_format,
                           sac_error *err)
{
    if (unpack_find(zip, "word/document.xml")) {
        *out_format = "DOCX";
        return office_docx(f, zip, err);
    }
    if (has_type(zip, "application/vnd.oasis.opendocument.text") &&
        unpack_find(zip, "content.xml")) {
        *out_format = "ODT";
        return office_odt(f, zip, err);
    }
    if (has_type(zip, "application/epub+zip")) {
        *out_format = "EPUB";
        return epub_text(f, zip, err);
    }
    return other_zip(zip, err);
}

static sac_status read_zip(struct flow *f, const struct strbuf *bytes, const char **out_format,
                           sac_error *err)
{
    struct unpack_zip zip = {0};
    sac_status status = unpack_zip(&zip, bytes->data, bytes->n, wants, err);
    if (status == SAC_OK) status = zip_text(f, &zip, out_format, err);
    unpack_zip_deinit(&zip);
    return status;
}

/* ---- One document ---- */

static sac_status plain_text(struct strbuf *out, const struct strbuf *bytes,
                             struct extract_info *info, sac_error *err)
{
    struct charset_found from;
    TRY(charset_find(&from, bytes->data, bytes->n, NULL, err));
    snprintf(info->encoding, sizeof info->encoding, "%s", from.name);
    info->guessed = from.guessed;
    info->n_replace = from.n_replace;
    return charset_convert(out, bytes->data, bytes->n, &from, err);
}

/* Finishes `f` and appends its text. */
static sac_status take_flow(struct strbuf *out, struct flow *f, sac_status status, sac_error *err)
{
    if (status == SAC_OK) status = flow_finish(f, err);
    if (status == SAC_OK && f->out.n == 0)
        status = error_set(err, SAC_ERR_FORMAT, "there is no text in it");
    if (status == SAC_OK) strbuf_add(out, f->out.data, f->out.n);
    strbuf_deinit(&f->out);
    return status;
}

static sac_status read_kind(struct strbuf *out, const struct file_type_found *kind,
                            const struct strbuf *bytes, struct extract_info *info, sac_error *err)
{
    struct flow f = {0};
    switch (kind->kind) {
    case FILE_TYPE_TEXT: info->format = "text"; return plain_text(out, bytes, info, err);
    case FILE_TYPE_PDF: info->format = "PDF"; return pdf_text(out, bytes->data, bytes->n, err);
    case FILE_TYPE_HTML:
        info->format = "HTML";
        return take_flow(out, &f, html_text(&f, bytes->data, bytes->n, err), err);
    case FILE_TYPE_ZIP: return take_flow(out, &f, read_zip(&f, bytes, &info->format, err), err);
    case FILE_TYPE_PACKED:
        return error_set(err, SAC_ERR_FORMAT, "it is packed many times over, with %s", kind->name);
    case FILE_TYPE_NO_TEXT: break;
    }
    return no_text(kind, err);
}

static sac_status read_bytes(struct strbuf *out, const char *name, const struct strbuf *bytes,
                             struct extract_info *info, sac_error *err)
{
    struct file_type_found kind = file_type_find(bytes->data, bytes->n, name);
    struct strbuf unpacked = {0};
    if (kind.kind != FILE_TYPE_PACKED) return read_kind(out, &kind, bytes, info, err);
    sac_status status = unpack_stream(&unpacked, bytes->data, bytes->n, err);
    if (status != SAC_OK) {
        status = error_prefix(err, status, "packed with %s", kind.name);
    } else {
        kind = file_type_find(unpacked.data, unpacked.n, name);
        status = read_kind(out, &kind, &unpacked, info, err);
    }
    strbuf_deinit(&unpacked);
    return status;
}

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n\f", s[i])) return false;
    return true;
}

sac_status extract_bytes(struct strbuf *out, const char *name, const struct strbuf *bytes,
                         struct extract_info *out_info, sac_error *err)
{
    struct extract_info info = {0};
    const size_t before = out->n;
    strbuf_add(out, "", 0);
    sac_status status = read_bytes(out, name, bytes, &info, err);
    if (status != SAC_OK) status = error_prefix(err, status, "%s", name);
    if (status == SAC_OK && is_blank(out->data + before, out->n - before))
        status = error_set(err, SAC_ERR_FORMAT, "%s is empty", name);
    if (status == SAC_OK && out->failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for %s", name);
    if (out_info) *out_info = info;
    return status;
}

sac_status extract_file(struct strbuf *out, const char *path, struct extract_info *out_info,
                        sac_error *err)
{
    struct strbuf bytes = {0};
    sac_status status = input_read_most(&bytes, path, LIMITS_INPUT_BYTES, err);
    if (status == SAC_OK)
        status = extract_bytes(out, strcmp(path, "-") == 0 ? "stdin" : path, &bytes, out_info, err);
    strbuf_deinit(&bytes);
    return status;
}
