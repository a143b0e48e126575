/* passages_print.c: see the header. There are five levels of one colour, from amber to red, each
 * with its own text colour, which are distinguishable on light and dark terminals; numbers in
 * brackets say the same without colours. */
#include "app/passages_print.h"

#include "app/terminal.h"
#include "eval/markup.h"
#include "eval/report_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOLD_OVER 900u /* longer stretches without a passage are folded */
#define FOLD_KEEP 240u /* bytes kept at each end */

enum passages_colours passages_print_colours(void)
{
    const char *depth = getenv("COLORTERM"), *term = getenv("TERM");
    if (!terminal_wants_colour(STDOUT_FILENO)) return PASSAGES_PLAIN;
    if (depth && (strcmp(depth, "truecolor") == 0 || strcmp(depth, "24bit") == 0))
        return PASSAGES_RGB;
    return term && strstr(term, "256color") ? PASSAGES_256 : PASSAGES_16;
}

/* Replaces unprintable characters and invalid UTF-8 by '?'. C1 controls are valid UTF-8, and some
 * terminals obey them. */
static void add_clean(struct strbuf *out, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t len = markup_utf8(s + i, n - i);
        const unsigned char c = (unsigned char)s[i];
        const bool c1 = len == 2 && c == 0xc2 && (unsigned char)s[i + 1] < 0xa0;
        if (len == 0 || c1 || c == 0x7f || (c < 0x20 && c != '\n' && c != '\t'))
            strbuf_adds(out, c == '\r' || c == '\f' ? "" : "?");
        else
            strbuf_add(out, s + i, len);
        i += len ? len : 1;
    }
}

/* "12 %", or "12 %, page 3". */
static void add_label(struct strbuf *out, const struct passage *m, const char *gap)
{
    strbuf_addf(out, "%.0f%s%%", 100 * m->share, gap);
    if (m->page) strbuf_addf(out, ", page%s%u", gap, m->page);
}

static void begin_mark(struct strbuf *out, enum passages_colours colours, unsigned level,
                       const struct passage *m)
{
    static const unsigned rgb[PASSAGES_N_LEVEL] = {0, 0xffe9b0, 0xffc966, 0xf58a2c, 0xc2330f};
    static const unsigned indexed[PASSAGES_N_LEVEL] = {0, 223, 221, 208, 160};
    static const unsigned basic[PASSAGES_N_LEVEL] = {0, 47, 46, 43, 41};
    const bool white = level + 1 == PASSAGES_N_LEVEL;
    if (colours == PASSAGES_PLAIN) {
        strbuf_adds(out, "[");
        add_label(out, m, " ");
        strbuf_adds(out, ": ");
    } else if (colours == PASSAGES_RGB)
        strbuf_addf(out, "\x1b[%s;48;2;%u;%u;%um", white ? "38;2;255;255;255" : "38;2;0;0;0",
                    rgb[level] >> 16, rgb[level] >> 8 & 255, rgb[level] & 255);
    else if (colours == PASSAGES_256)
        strbuf_addf(out, "\x1b[38;5;%u;48;5;%um", white ? 231u : 16u, indexed[level]);
    else
        strbuf_addf(out, "\x1b[%u;%um", white ? 97u : 30u, basic[level]);
}

/* The background colour is switched off before each newline and on after it, or it would fill the
 * window to the right. */
static void add_marked(struct strbuf *out, enum passages_colours colours, const char *s,
                       const struct passage *m)
{
    const size_t n_all = m->end - m->begin;
    const unsigned level = passages_level(m->share);
    size_t n = n_all; /* without the line ends that follow, so that a label stays on its line */
    while (n > 0 && (s[n - 1] == '\n' || s[n - 1] == '\r' || s[n - 1] == '\f')) n--;
    begin_mark(out, colours, level, m);
    for (size_t i = 0; i < n;) {
        const char *end = memchr(s + i, '\n', n - i);
        const size_t len = end ? (size_t)(end - s) - i : n - i;
        add_clean(out, s + i, len);
        i += len;
        if (!end) break;
        strbuf_adds(out, colours == PASSAGES_PLAIN ? "\n" : "\x1b[0m\n");
        i++;
        if (i < n && colours != PASSAGES_PLAIN) begin_mark(out, colours, level, m);
    }
    strbuf_adds(out, colours == PASSAGES_PLAIN ? "]" : "\x1b[0m");
    if (colours != PASSAGES_PLAIN && m->page) strbuf_addf(out, " (page %u)", m->page);
    add_clean(out, s + n, n_all - n);
}

/* The next character boundary at or after `at`. */
static size_t character_border(const char *s, size_t n, size_t at)
{
    while (at < n && ((unsigned char)s[at] & 0xc0) == 0x80) at++;
    return at;
}

static void add_unmarked(struct strbuf *out, const char *s, size_t n)
{
    if (n <= FOLD_OVER) {
        add_clean(out, s, n);
        return;
    }
    const size_t head = character_border(s, n, FOLD_KEEP);
    const size_t tail = character_border(s, n, n - FOLD_KEEP);
    add_clean(out, s, head);
    strbuf_addf(out, "\n[... %zu bytes, hardly read ...]\n", tail - head);
    add_clean(out, s + tail, n - tail);
}

void passages_print_text(const struct passages *p, enum passages_colours colours,
                         struct strbuf *out)
{
    size_t at = 0;
    for (size_t i = 0; i < p->n; i++) {
        const struct passage *m = &p->item[i];
        if (passages_level(m->share) == 0) continue;
        add_unmarked(out, p->document + at, m->begin - at);
        add_marked(out, colours, p->document + m->begin, m);
        at = m->end;
    }
    add_unmarked(out, p->document + at, p->n_bytes - at);
    strbuf_adds(out, "\n");
}

/* ---- The page ---- */

static void add_html(struct strbuf *out, const char *s)
{
    markup_html(out, s, strlen(s));
}

/* The passage with the largest share; p->n: none is marked. */
static size_t strongest(const struct passages *p)
{
    size_t best = p->n;
    for (size_t i = 0; i < p->n; i++)
        if (passages_level(p->item[i].share) > 0 &&
            (best == p->n || p->item[i].share > p->item[best].share))
            best = i;
    return best;
}

static void add_document(const struct passages *p, struct strbuf *out)
{
    size_t at = 0;
    const size_t best = strongest(p);
    for (size_t i = 0; i < p->n; i++) {
        const struct passage *m = &p->item[i];
        const unsigned level = passages_level(m->share);
        if (level == 0) continue;
        markup_html(out, p->document + at, m->begin - at);
        strbuf_addf(out, "<mark class=\"r%u\"%s title=\"%.1f %% of the reading\">", level,
                    i == best ? " id=\"best\"" : "", 100 * m->share);
        markup_html(out, p->document + m->begin, m->end - m->begin);
        strbuf_adds(out, "<sup>");
        add_label(out, m, "&nbsp;");
        strbuf_adds(out, "</sup></mark>");
        at = m->end;
    }
    markup_html(out, p->document + at, p->n_bytes - at);
}

void passages_print_html(const struct passages *p, const struct passages_page *page,
                         struct strbuf *out)
{
    /* Steps of the reports' sequential colour map. */
    static const unsigned step[PASSAGES_N_LEVEL] = {0, 4, 10, 19, 28};
    strbuf_adds(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "style-src 'unsafe-inline'\">\n"
                     "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                     "<title>What the answer read</title>\n<style>\n");
    report_page_style(out);
    strbuf_adds(out, "body{max-width:52rem}.text{white-space:pre-wrap;overflow-wrap:anywhere}"
                     "mark{border-radius:3px;padding:.05em .15em}sup{font-size:.7em}\n");
    for (unsigned i = 1; i < PASSAGES_N_LEVEL; i++)
        strbuf_addf(out, ".r%u{background:var(--q%u);color:var(--i%u)}", i, step[i], step[i]);
    strbuf_adds(out, "\n</style></head>\n<body>\n<header><h1>What the answer read</h1>\n");
    report_page_theme_choice(out);
    strbuf_adds(out, "</header>\n<main>\n<dl>");
    if (page->question) {
        strbuf_adds(out, "<dt>question</dt><dd class=\"text\">");
        add_html(out, page->question);
        strbuf_adds(out, "</dd>\n");
    }
    strbuf_adds(out, "<dt>answer</dt><dd class=\"text\">");
    add_html(out, page->answer);
    strbuf_adds(out,
                "</dd></dl>\n<p>Marked passages held the most softmax mass while the answer was "
                "made, over its tokens, the upper layers and all heads, each mass squared. "
                "The first four tokens and the question are left out.</p>\n");
    strbuf_adds(out, strongest(p) < p->n
                         ? "<p><a href=\"#best\">To the passage that was read most</a></p>\n"
                         : "<p>No passage stands out.</p>\n");
    strbuf_adds(out, "<section aria-label=\"Document\" class=\"text\">");
    add_document(p, out);
    strbuf_adds(out, "</section>\n</main></body></html>\n");
}
