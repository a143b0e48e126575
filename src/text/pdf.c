/* pdf.c: see the header. The text comes in reading order, so that columns are read one after the
 * other. pdftotext ends each page with a form feed; only those between pages are kept. */
#include "text/pdf.h"

#include "text/limits.h"
#include "text/subprocess.h"

#include <string.h>

static bool is_blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n\f", s[i])) return false;
    return true;
}

static size_t count_pages(const struct strbuf *text)
{
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) n += text->data[i] == '\f';
    return n;
}

/* Appends the pages without trailing empty lines. */
static void add_pages(struct strbuf *out, const char *s, size_t n)
{
    while (n > 0) {
        const char *end = memchr(s, '\f', n);
        const size_t whole = end ? (size_t)(end - s) : n;
        size_t len = whole;
        while (len > 0 && strchr(" \t\r\n", s[len - 1])) len--;
        strbuf_add(out, s, len);
        if (len > 0) strbuf_adds(out, "\n");
        s += end ? whole + 1 : whole;
        n -= end ? whole + 1 : whole;
        if (n > 0) strbuf_adds(out, "\f");
    }
}

/* Reports the first line of the program's error output. */
static sac_status refused(const struct subprocess *c, sac_error *err)
{
    if (strstr(c->told.data, "password"))
        return error_set(err, SAC_ERR_FORMAT, "it is encrypted: 'qpdf --decrypt' opens it");
    return error_set(err, SAC_ERR_FORMAT, "pdftotext cannot read it: %.*s",
                     (int)strcspn(c->told.data, "\r\n"), c->told.data);
}

sac_status pdf_text(struct strbuf *out, const char *bytes, size_t n, sac_error *err)
{
    static const char *const argv[] = {"pdftotext", "-enc", "UTF-8", "-", "-", NULL};
    const struct subprocess_limits limits = {LIMITS_CHILD_S, LIMITS_CHILD_MEMORY,
                                             LIMITS_TEXT_BYTES};
    struct subprocess c = {0};
    sac_status status = subprocess_run(&c, argv, bytes, n, &limits, err);
    if (status == SAC_ERR_NOT_FOUND)
        status = error_set(err, SAC_ERR_UNSUPPORTED,
                           "pdftotext, which reads PDF, is not installed: it is in the package "
                           "poppler-utils (Debian, Fedora) or poppler (Arch, Homebrew)");
    else if (status == SAC_OK && c.out.failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for a document");
    else if (status == SAC_OK && c.code != 0)
        status = refused(&c, err);
    else if (status == SAC_OK && is_blank(c.out.data, c.out.n))
        status = error_set(err, SAC_ERR_FORMAT,
                           "none of its %zu pages holds text: pictures of pages need text "
                           "recognition first, as by ocrmypdf",
                           count_pages(&c.out));
    if (status == SAC_OK) {
        add_pages(out, c.out.data, c.out.n);
        if (out->failed) status = error_set(err, SAC_ERR_MEMORY, "out of memory for a document");
    }
    subprocess_deinit(&c);
    return status;
}
