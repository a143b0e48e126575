/* report.h: one self-contained page of an evaluation, and a CSV for each of its plots.
 *
 * The page needs no network, and its content policy forbids it and every script but the one that
 * saves figures: hostile texts of prompts and answers could do nothing even if one got through
 * unescaped. */
#ifndef SAC_EVAL_REPORT_H
#define SAC_EVAL_REPORT_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/report_reading.h"

#include <stddef.h>

struct report_result {
    size_t n_plot;
    struct strbuf missing; /* one line for each plot that was left out; strbuf_deinit */
};

/* Reads what `dir` holds of samples.jsonl, fidelity.json, summary.json and reading.sacr, and writes
 * report.html and CSV files there; `map` says which prompt the block map shows. SAC_ERR_NOT_FOUND
 * when it holds none of them. */
sac_status report_write(const char *dir, const struct report_map *map, struct report_result *out,
                        sac_error *err);
/* The same for several directories in one page, in `out_dir`, which is created: methods are
 * distinguished by their directory's name. What was read of each prompt is only in the directories'
 * own reports. SAC_ERR_ARG: two have the same name. */
sac_status report_compare(const char *out_dir, const char *const *dir, size_t n_dir,
                          struct report_result *out, sac_error *err);

#endif
