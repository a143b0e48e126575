/* flow.c: see the header. */
#include "text/flow.h"

#include "text/limits.h"

#include <string.h>

static void put(struct flow *f, const char *s, size_t n)
{
    if (f->out.n + n > LIMITS_TEXT_BYTES)
        f->over = true;
    else
        strbuf_add(&f->out, s, n);
}

/* Writes pending white space before text. Page breaks before the first text are kept, so that page
 * numbers are right. */
static void flush(struct flow *f)
{
    const bool at_begin = f->out.n == 0;
    if (f->pages) {
        if (!at_begin) put(f, "\n", 1);
        for (; f->pages && !f->over; f->pages--) put(f, "\f", 1);
    } else if (f->breaks && !at_begin) {
        put(f, "\n\n", f->breaks);
    } else if (f->space && !at_begin && !f->marked) {
        put(f, " ", 1);
    }
    f->breaks = 0;
    f->space = false;
    f->marked = false;
}

/* Length of the white space at the beginning of `s`; a no-break space counts. */
static size_t blank(const char *s, size_t n)
{
    if (n > 1 && s[0] == '\xc2' && s[1] == '\xa0') return 2;
    return s[0] == ' ' || (s[0] >= '\t' && s[0] <= '\r') ? 1 : 0;
}

static void kept_text(struct flow *f, const char *s, size_t n)
{
    const size_t end = n > 0 && s[n - 1] == '\n' ? n - 1 : n;
    if (n == 0) return;
    flush(f);
    for (size_t i = 0; i < end; i++)
        if (s[i] != '\f' && s[i] != '\r') put(f, s + i, 1);
    if (end < n) f->breaks = 1; /* the last line may continue */
}

void flow_text(struct flow *f, const char *s, size_t n)
{
    if (f->pre && !f->cell) {
        kept_text(f, s, n);
        return;
    }
    for (size_t i = 0; i < n && !f->over;) {
        const size_t gap = blank(s + i, n - i);
        size_t len = 0;
        if (gap) {
            f->space = true;
            i += gap;
            continue;
        }
        while (i + len < n && !blank(s + i + len, n - i - len)) len++;
        flush(f);
        put(f, s + i, len);
        i += len;
    }
}

static void wait_breaks(struct flow *f, unsigned n)
{
    if (f->cell)
        f->space = true;
    else if (!f->marked && f->breaks < n)
        f->breaks = n;
}

void flow_line(struct flow *f)
{
    wait_breaks(f, 1);
}

void flow_block(struct flow *f)
{
    wait_breaks(f, 2);
}

void flow_page(struct flow *f)
{
    if (!f->cell) f->pages++;
}

void flow_mark(struct flow *f, const char *mark)
{
    if (f->marked) f->out.n = f->mark_at;
    f->marked = false;
    flush(f);
    f->mark_at = f->out.n;
    put(f, mark, strlen(mark));
    f->marked = true;
}

void flow_item(struct flow *f, const char *mark)
{
    if (f->cell) return;
    f->breaks = 1;
    flow_mark(f, mark);
}

void flow_heading(struct flow *f, unsigned level)
{
    static const char marks[] = "###### ";
    const unsigned most = sizeof marks - 2;
    if (f->cell) return;
    flow_block(f);
    flow_mark(f, marks + (level < 1 ? most - 1 : level > most ? 0 : most - level));
}

void flow_cell_begin(struct flow *f, bool is_first)
{
    if (f->cell++ == 0 && !is_first) {
        f->space = true;
        flow_text(f, "|", 1);
        f->space = true;
    }
}

void flow_cell_end(struct flow *f)
{
    if (f->cell > 0) f->cell--;
}

void flow_tight(struct flow *f)
{
    f->space = false;
}

sac_status flow_finish(struct flow *f, sac_error *err)
{
    if (f->marked) f->out.n = f->mark_at;
    strbuf_add(&f->out, "", 0);
    if (f->out.failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for a document");
    if (f->over)
        return error_set(err, SAC_ERR_FORMAT, "more than %zu MiB of text", LIMITS_TEXT_BYTES >> 20);
    while (f->out.n > 0 && blank(f->out.data + f->out.n - 1, 1)) f->out.n--;
    f->out.data[f->out.n] = 0;
    return SAC_OK;
}
