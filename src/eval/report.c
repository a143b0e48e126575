/* report.c: see the header. The order here is the order of the page: what a reader asks first comes
 * first. A plot whose file is missing is left out, and the page says which file. */
#include "eval/report.h"

#include "base/folder.h"
#include "base/mem.h"
#include "eval/markup.h"
#include "eval/report_data.h"
#include "eval/report_docs.h"
#include "eval/report_fidelity.h"
#include "eval/report_page.h"
#include "eval/report_scores.h"
#include "eval/report_series.h"
#include "eval/report_tasks.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Lists the plain members of run.json, or without it of summary.json, under their names. */
static void add_provenance(struct strbuf *out, const cJSON *summary)
{
    const cJSON *item;
    bool any = false;
    cJSON_ArrayForEach(item, summary)
    {
        char number[32];
        const char *text = cJSON_GetStringValue(item);
        if (cJSON_IsNumber(item)) {
            snprintf(number, sizeof number, "%.9g", item->valuedouble);
            text = number;
        }
        if (!text || !item->string) continue;
        if (!any) strbuf_adds(out, "<dl>\n");
        any = true;
        strbuf_adds(out, "<dt>");
        markup_html(out, item->string, strlen(item->string));
        strbuf_adds(out, "</dt><dd>");
        markup_html(out, text, strlen(text));
        strbuf_adds(out, "</dd>\n");
    }
    if (any) strbuf_adds(out, "</dl>\n");
}

static void add_intro(struct strbuf *out, const struct report_data *d, const char *dir)
{
    strbuf_adds(out, "<p>What attention methods read of <code>");
    markup_html(out, dir, strlen(dir));
    strbuf_addf(out,
                "</code>, and whether it was right: %zu samples and %zu rows of fidelity, of %zu "
                "methods; %zu answers over joined documents. Every plot's data stands beside "
                "it.</p>\n",
                d->n_sample, d->n_fidelity, d->methods.n, d->docs.n);
    if (d->cut)
        strbuf_adds(out,
                    "<p>The last line of samples.jsonl is not complete and was left out.</p>\n");
    if (d->docs.was_cut)
        strbuf_adds(out, "<p>The last line of docs.jsonl is not complete and was left out.</p>\n");
    if (d->run || d->summary) add_provenance(out, d->run ? d->run : d->summary);
}

static sac_status add_plots(struct report_page *page, const struct report_data *d, sac_error *err)
{
    struct plot_series *series = NULL;
    TRY(report_series_make(&series, &d->methods, err));
    sac_status status = report_scores_plot(page, d, err);
    if (status == SAC_OK) status = report_tasks_plots(page, d, series, err);
    if (status == SAC_OK) status = report_fidelity_plots(page, d, series, err);
    if (status == SAC_OK) status = report_docs_plots(page, &d->docs, err);
    mem_free(series);
    return status;
}

static sac_status write_html(const struct report_page *page, sac_error *err)
{
    struct strbuf html = {0};
    report_page_html(page, "Saccade: what was read, and was it right", &html);
    const sac_status status = report_page_write(page->dir, "report.html", &html, err);
    strbuf_deinit(&html);
    return status;
}

static sac_status write_page(struct report_page *page, const struct report_data *d,
                             const struct report_map *map, sac_error *err)
{
    add_intro(&page->intro, d, page->dir);
    if (!d->summary && !d->run)
        report_page_missing(page, "Particulars of the run", "run.json is missing");
    bool has_reading = false;
    TRY(add_plots(page, d, err));
    TRY(report_reading_plots(page, map, &has_reading, err));
    if (!has_reading && !d->has_samples && !d->has_fidelity && !d->summary && d->docs.n == 0)
        return error_set(err, SAC_ERR_NOT_FOUND,
                         "%s holds no samples.jsonl, fidelity.json, docs.jsonl, summary.json or "
                         "reading.sacr",
                         page->dir);
    return write_html(page, err);
}

static void hand_out(struct report_page *page, struct report_result *out)
{
    out->n_plot = page->n_plot;
    out->missing = page->missing;
    page->missing = (struct strbuf){0};
}

sac_status report_write(const char *dir, const struct report_map *map, struct report_result *out,
                        sac_error *err)
{
    struct report_data data = {0};
    struct report_page page = {.dir = dir};
    sac_status status = report_data_load(&data, dir, err);
    if (status == SAC_OK) status = write_page(&page, &data, map, err);
    if (status == SAC_OK) hand_out(&page, out);
    report_page_deinit(&page);
    report_data_deinit(&data);
    return status;
}

/* ---- Several directories ---- */

/* The last part of a path, without trailing slashes; `buf` may hold a copy. */
static const char *label_of(const char *dir, char buf[64])
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    size_t begin = n;
    while (begin > 0 && dir[begin - 1] != '/') begin--;
    snprintf(buf, 64, "%.*s", (int)(n - begin), dir + begin);
    return buf;
}

static void add_compared(struct strbuf *out, const struct report_data *one, const char *label)
{
    strbuf_adds(out, "<h3>");
    markup_html(out, label, strlen(label));
    strbuf_adds(out, "</h3>\n");
    if (one->run || one->summary)
        add_provenance(out, one->run ? one->run : one->summary);
    else
        strbuf_adds(out, "<p>It has no run.json: what made it is not known.</p>\n");
}

static sac_status gather(struct report_data *all, struct report_page *page, const char *dir,
                         sac_error *err)
{
    char label[64];
    struct report_data one = {0};
    sac_status status = report_data_load(&one, dir, err);
    if (status == SAC_OK && !one.has_samples && !one.has_fidelity && one.docs.n == 0)
        status = error_set(err, SAC_ERR_NOT_FOUND,
                           "%s holds no samples.jsonl, fidelity.json or docs.jsonl", dir);
    if (status == SAC_OK) status = report_data_append(all, &one, label_of(dir, label), err);
    if (status == SAC_OK) add_compared(&page->intro, &one, label);
    report_data_deinit(&one);
    return status;
}

static sac_status check_labels(const char *const *dir, size_t n_dir, sac_error *err)
{
    char a[64], b[64];
    for (size_t i = 0; i < n_dir; i++)
        for (size_t k = 0; k < i; k++)
            if (strcmp(label_of(dir[i], a), label_of(dir[k], b)) == 0)
                return error_set(err, SAC_ERR_ARG,
                                 "%s and %s have the same last name, by which a report tells them "
                                 "apart",
                                 dir[k], dir[i]);
    return SAC_OK;
}

sac_status report_compare(const char *out_dir, const char *const *dir, size_t n_dir,
                          struct report_result *out, sac_error *err)
{
    struct report_data all = {0};
    struct report_page page = {.dir = out_dir};
    TRY(check_labels(dir, n_dir, err));
    TRY(folder_make(out_dir, 0777, err));
    strbuf_addf(&page.intro,
                "<p>%zu evaluations side by side. Methods are told apart by the names "
                "of their folders.</p>\n",
                n_dir);
    sac_status status = SAC_OK;
    for (size_t i = 0; status == SAC_OK && i < n_dir; i++)
        status = gather(&all, &page, dir[i], err);
    if (status == SAC_OK) status = add_plots(&page, &all, err);
    if (status == SAC_OK) status = write_html(&page, err);
    if (status == SAC_OK) hand_out(&page, out);
    report_page_deinit(&page);
    report_data_deinit(&all);
    return status;
}
