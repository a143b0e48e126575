/* report.c: see the header. The order here is the order of the page: what a reader asks first
 * stands first. A plot whose file is not there is left out, and the page says which file. */
#include "eval/report.h"

#include "base/mem.h"
#include "eval/markup.h"
#include "eval/report_data.h"
#include "eval/report_fidelity.h"
#include "eval/report_page.h"
#include "eval/report_scores.h"
#include "eval/report_series.h"
#include "eval/report_tasks.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* What run.json, or without it summary.json, says of the whole run: its plain members, as they are
 * called there. */
static void add_particulars(struct strbuf *out, const cJSON *summary)
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
                "methods. Every plot's data stands beside it.</p>\n",
                d->n_sample, d->n_fidelity, d->methods.n);
    if (d->cut)
        strbuf_adds(out,
                    "<p>The last line of samples.jsonl is not complete and was left out.</p>\n");
    if (d->run || d->summary) add_particulars(out, d->run ? d->run : d->summary);
}

static sac_status write_page(struct report_page *page, const struct report_data *d,
                             const struct report_map *map, sac_error *err)
{
    struct plot_series *series = NULL;
    TRY(report_series_make(&series, &d->methods, err));
    add_intro(&page->intro, d, page->dir);
    if (!d->summary && !d->run)
        report_page_missing(page, "Particulars of the run", "run.json is missing");
    sac_status status = report_scores_plot(page, d, err);
    if (status == SAC_OK) status = report_tasks_plots(page, d, series, err);
    if (status == SAC_OK) status = report_fidelity_plots(page, d, series, err);
    mem_free(series);
    bool has_reading = false;
    if (status == SAC_OK) status = report_reading_plots(page, map, &has_reading, err);
    if (status == SAC_OK && !has_reading && !d->has_samples && !d->has_fidelity && !d->summary)
        status = error_set(err, SAC_ERR_NOT_FOUND,
                           "%s holds no samples.jsonl, fidelity.json, summary.json or reading.sacr",
                           page->dir);
    if (status != SAC_OK) return status;
    struct strbuf html = {0};
    report_page_html(page, "Saccade: what was read, and was it right", &html);
    status = report_page_write(page->dir, "report.html", &html, err);
    strbuf_deinit(&html);
    return status;
}

sac_status report_write(const char *dir, const struct report_map *map, struct report_result *out,
                        sac_error *err)
{
    struct report_data data = {0};
    struct report_page page = {.dir = dir};
    sac_status status = report_data_load(&data, dir, err);
    if (status == SAC_OK) status = write_page(&page, &data, map, err);
    if (status == SAC_OK) {
        out->n_plot = page.n_plot;
        out->missing = page.missing;
        page.missing = (struct strbuf){0};
    }
    report_page_deinit(&page);
    report_data_deinit(&data);
    return status;
}
