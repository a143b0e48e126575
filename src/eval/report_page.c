/* report_page.c: see the header. The theme is selected by radio buttons that the style sheet reads
 * (`:has`); they say "auto" until one is pressed. Printed pages are always light. The page's one
 * script, which saves figures, is allowed by its hash, so no other can run; without scripts the
 * page lacks only its buttons. */
#include "eval/report_page.h"

#include "base/mem.h"
#include "base/sha256.h"
#include "base/textfile.h"
#include "eval/colour.h"
#include "eval/markup.h"
#include "eval/report_save.h"

#include <assert.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#define HTML_ROWS 200u /* more rows are in the CSV only */

static void add_html(struct strbuf *out, const char *s)
{
    markup_html(out, s, strlen(s));
}

/* ---- Style ---- */

static const char style_base[] =
    "*{box-sizing:border-box}\n"
    "html{color-scheme:light;background:var(--page);color:var(--ink)}\n"
    "body{margin:0 auto;max-width:1180px;padding:1.2rem 1.2rem 4rem;"
    "font:16px/1.55 system-ui,-apple-system,\"Segoe UI\",\"DejaVu Sans\",sans-serif}\n"
    "h1{font-size:1.7rem;line-height:1.2;margin:.2rem 0 .3rem}\n"
    "h2{font-size:1.25rem;margin:0 0 .3rem;scroll-margin-top:1rem}\n"
    "p{margin:.3rem 0 .8rem;max-width:46rem}\na{color:var(--link)}\n"
    "header{display:flex;flex-wrap:wrap;gap:.5rem 2rem;justify-content:space-between;"
    "align-items:flex-start}\n"
    "section{border-top:1px solid var(--line);padding-top:1.4rem;margin-top:2rem}\n"
    "nav ul{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;margin:.8rem "
    "0}\n"
    ".theme{border:1px solid var(--line);border-radius:6px;padding:0;margin:0;display:inline-flex;"
    "overflow:hidden;font-size:.85rem}\n"
    ".theme "
    "legend,.sr{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}\n"
    ".theme input{position:absolute;opacity:0}\n"
    ".theme label{padding:.25rem .75rem;cursor:pointer}\n"
    ".theme input:checked+label{background:var(--ink);color:var(--page)}\n"
    ".theme input:focus-visible+label{outline:2px solid var(--link);outline-offset:-3px}\n";

static const char style_figures[] =
    ".fig{display:flex;flex-wrap:wrap;gap:1rem 1.6rem;align-items:flex-start}\n"
    "figure{flex:1 1 400px;max-width:560px;min-width:0;margin:0}\n"
    "figcaption{font-weight:600;font-size:.95rem;overflow-wrap:anywhere}\n"
    "svg{display:block;width:100%;height:auto}\n"
    ".data{flex:1 1 320px;min-width:0;max-height:330px;overflow:auto;"
    "border:1px solid var(--line);border-radius:6px}\n"
    "table{border-collapse:collapse;width:100%;font-size:.8rem;font-variant-numeric:tabular-nums}"
    "\n"
    "th,td{padding:.2rem .5rem;text-align:right;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}\n"
    "th{position:sticky;top:0;background:var(--page);border-bottom:2px solid var(--line)}\n"
    ".map td{text-align:center}.map th.t{min-width:5rem;overflow-wrap:anywhere}\n"
    ".t{text-align:left;white-space:normal;min-width:8rem}\n.note{font-size:.85rem;color:"
    "var(--soft);margin-top:.5rem}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;font-size:.9rem}\n"
    "dt{color:var(--soft)}\ndd{margin:0;overflow-wrap:anywhere}\n"
    ".three figure{flex:1 1 300px;max-width:363px}.three .data{flex-basis:100%}\n"
    ".choice{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.2rem 0 .8rem;font-size:.9rem}\n"
    ".choice select{font:inherit;max-width:100%;color:inherit;background:var(--page);"
    "border:1px solid var(--line);border-radius:5px;margin-left:.4rem;padding:.1rem .3rem}\n"
    ".save{display:flex;gap:.5rem;margin:.2rem 0 0}\n"
    ".save button{font:inherit;font-size:.75rem;padding:.05rem .5rem;color:var(--soft);"
    "background:none;border:1px solid var(--line);border-radius:5px;cursor:pointer}\n"
    "@media print{body{max-width:none}.theme,.save,nav{display:none}.data{max-height:none}"
    "section{break-inside:avoid}}\n";

static const char light_words[] = "--link:#0b57a4;";
static const char dark_words[] = "--link:#7fbcff;color-scheme:dark;";

void report_page_style(struct strbuf *out)
{
    strbuf_adds(out, style_base);
    strbuf_adds(out, style_figures);
    plot_css(out);
    strbuf_addf(out, ":root{%s", light_words);
    plot_theme_css(out, false);
    strbuf_addf(out, "}\n@media screen{:root:has(#t-dark:checked){%s", dark_words);
    plot_theme_css(out, true);
    strbuf_addf(out,
                "}}\n@media screen and (prefers-color-scheme:dark){:root:has(#t-auto:checked){%s",
                dark_words);
    plot_theme_css(out, true);
    strbuf_adds(out, "}}\n");
}

void report_page_theme_choice(struct strbuf *out)
{
    static const char *const theme[] = {"auto", "light", "dark"};
    strbuf_adds(out, "<fieldset class=\"theme\"><legend>Colours of the page</legend>");
    for (size_t i = 0; i < sizeof theme / sizeof theme[0]; i++)
        strbuf_addf(out,
                    "<input type=\"radio\" name=\"theme\" id=\"t-%s\"%s><label for=\"t-%s\">%s"
                    "</label>",
                    theme[i], i == 0 ? " checked" : "", theme[i], theme[i]);
    strbuf_adds(out, "</fieldset>\n");
}

/* ---- Figures ---- */

void report_page_panel(struct report_figure *f, const char *heading, char id[64])
{
    snprintf(id, 64, "%s-%zu", f->name, f->n_panel++);
    strbuf_adds(&f->panels, "<figure");
    for (size_t i = 0; i < REPORT_CHOICES && f->choice[i].n_option; i++)
        strbuf_addf(&f->panels, i ? " c%zu-%u" : " class=\"c%zu-%u", i, f->choice[i].at);
    strbuf_adds(&f->panels, f->choice[0].n_option ? "\">" : ">");
    if (heading) {
        strbuf_adds(&f->panels, "<figcaption>");
        add_html(&f->panels, heading);
        strbuf_adds(&f->panels, "</figcaption>\n");
    }
}

void report_page_panel_end(struct report_figure *f)
{
    strbuf_adds(&f->panels, "</figure>\n");
}

sac_status report_page_write(const char *dir, const char *name, const struct strbuf *text,
                             sac_error *err)
{
    if (text->failed) return error_set(err, SAC_ERR_MEMORY, "out of memory for %s/%s", dir, name);
    return textfile_write_in(dir, name, text->data, text->n, err);
}

static sac_status write_csv(const struct report_page *p, const struct report_figure *f,
                            sac_error *err)
{
    struct strbuf csv = {0}, name = {0};
    table_csv(&f->table, &csv);
    strbuf_addf(&name, "%s.csv", f->name);
    sac_status status;
    if (f->table.failed || name.failed)
        status = error_set(err, SAC_ERR_MEMORY, "out of memory for the table of a plot");
    else
        status = report_page_write(p->dir, name.data, &csv, err);
    strbuf_deinit(&csv);
    strbuf_deinit(&name);
    return status;
}

/* Adds the lists of options, and style rules that hide what is not selected, so that no script is
 * needed. */
static void add_choices(const struct report_figure *f, struct strbuf *b)
{
    if (!f->choice[0].n_option) return;
    strbuf_adds(b, "<div class=\"choice\">\n");
    for (size_t i = 0; i < REPORT_CHOICES && f->choice[i].n_option; i++) {
        const struct report_choice *c = &f->choice[i];
        strbuf_addf(b, "<label>%s<select id=\"%s-c%zu\" autocomplete=\"off\">", c->label, f->name,
                    i);
        for (uint32_t k = 0; k < c->n_option; k++) {
            strbuf_adds(b, "<option>");
            add_html(b, c->option[k]);
            strbuf_adds(b, "</option>");
        }
        strbuf_adds(b, "</select></label>\n");
    }
    strbuf_adds(b, "</div>\n<style>\n");
    for (size_t i = 0; i < REPORT_CHOICES; i++)
        for (uint32_t k = 0; k < f->choice[i].n_option; k++)
            strbuf_addf(
                b, "section:has(#%s-c%zu>:nth-child(%u):not(:checked)) .c%zu-%u{display:none}\n",
                f->name, i, k + 1, i, k);
    strbuf_adds(b, "</style>\n");
}

sac_status report_page_figure(struct report_page *p, const struct report_figure *f, sac_error *err)
{
    assert(f->n_panel > 0 && f->table.n_row > 0);
    TRY(write_csv(p, f, err));
    struct strbuf *b = &p->body;
    strbuf_addf(&p->nav, "<li><a href=\"#%s\">%s</a></li>\n", f->name, f->title);
    strbuf_addf(b, "<section aria-labelledby=\"%s\">\n<h2 id=\"%s\">", f->name, f->name);
    add_html(b, f->title);
    strbuf_adds(b, "</h2>\n<p>");
    add_html(b, f->text);
    strbuf_adds(b, "</p>\n");
    add_choices(f, b);
    strbuf_addf(b, "<div class=\"fig%s\">\n", f->three ? " three" : "");
    strbuf_add(b, f->panels.data, f->panels.n);
    strbuf_adds(b, "<div class=\"data\" tabindex=\"0\" role=\"region\" aria-label=\"Data: ");
    add_html(b, f->title);
    strbuf_adds(b, "\">\n");
    table_html(&f->table, HTML_ROWS, b);
    strbuf_adds(b, "</div></div>\n<p class=\"note\">");
    if (f->table.n_row > HTML_ROWS)
        strbuf_addf(b, "The table shows %u of %zu rows. ", HTML_ROWS, f->table.n_row);
    strbuf_addf(b,
                "All rows: <a href=\"%s.csv\">%s.csv</a>, and as JSON in this page's element "
                "<code>data-%s</code>.</p>\n<script type=\"application/json\" id=\"data-%s\">",
                f->name, f->name, f->name, f->name);
    table_json(&f->table, b);
    strbuf_adds(b, "</script>\n</section>\n");
    if (f->panels.failed) b->failed = true;
    p->n_plot++;
    return SAC_OK;
}

void report_page_missing(struct report_page *p, const char *title, const char *why)
{
    strbuf_addf(&p->missing, "%s: %s\n", title, why);
}

/* ---- The page ---- */

static void add_missing(const struct report_page *p, struct strbuf *out)
{
    if (p->missing.n == 0) return;
    strbuf_adds(out,
                "<section aria-labelledby=\"missing\"><h2 id=\"missing\">Not shown</h2>\n<ul>\n");
    for (const char *line = p->missing.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        strbuf_adds(out, "<li>");
        markup_html(out, line, (size_t)(end - line));
        strbuf_adds(out, "</li>\n");
    }
    strbuf_adds(out, "</ul></section>\n");
}

/* Adds the hash by which the page's policy allows the script. */
static void add_script_hash(struct strbuf *out)
{
    struct sha256 s;
    sac_error err;
    uint8_t hash[SHA256_BYTES];
    unsigned char text[4 * ((SHA256_BYTES + 2) / 3) + 1];
    if (sha256_open(&s, &err) != SAC_OK) {
        out->failed = true;
        return;
    }
    sha256_digest(&s, hash, NULL, report_save_js, strlen(report_save_js));
    sha256_close(&s);
    EVP_EncodeBlock(text, hash, SHA256_BYTES);
    strbuf_addf(out, "'sha256-%s'", (const char *)text);
}

void report_page_html(const struct report_page *p, const char *title, struct strbuf *out)
{
    strbuf_adds(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                     "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                     "style-src 'unsafe-inline'; img-src data:; script-src ");
    add_script_hash(out);
    strbuf_adds(
        out, "\">\n"
             "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>");
    add_html(out, title);
    strbuf_adds(out, "</title>\n<style>\n");
    report_page_style(out);
    strbuf_adds(out, "</style></head>\n<body>\n<header><h1>");
    add_html(out, title);
    strbuf_adds(out, "</h1>\n");
    report_page_theme_choice(out);
    strbuf_adds(out, "</header>\n<main>\n");
    if (p->intro.n) strbuf_add(out, p->intro.data, p->intro.n);
    if (p->nav.n) {
        strbuf_adds(out, "<nav aria-label=\"Plots\"><ul>\n");
        strbuf_add(out, p->nav.data, p->nav.n);
        strbuf_adds(out, "</ul></nav>\n");
    }
    if (p->body.n) strbuf_add(out, p->body.data, p->body.n);
    add_missing(p, out);
    strbuf_addf(out, "</main>\n<script>%s</script></body></html>\n", report_save_js);
    if (p->nav.failed || p->intro.failed || p->body.failed || p->missing.failed) out->failed = true;
}

void report_page_deinit(struct report_page *p)
{
    strbuf_deinit(&p->nav);
    strbuf_deinit(&p->intro);
    strbuf_deinit(&p->body);
    strbuf_deinit(&p->missing);
}
