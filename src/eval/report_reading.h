/* report_reading.h: plots of reading.sacr, a recording of attention. */
#ifndef SAC_EVAL_REPORT_READING_H
#define SAC_EVAL_REPORT_READING_H

#include "eval/report_page.h"

#include <stdint.h>

#define REPORT_READING_ANY UINT32_MAX

/* What the block map shows. */
struct report_map {
    uint32_t sample; /* REPORT_READING_ANY: the first sample that has prompt rows */
    uint32_t layer;  /* ANY: four layers, from the first to the last */
    uint32_t head;   /* a KV head; ANY: the mean over all */
};

/* `*out_found` is false if page->dir has no recording. SAC_ERR_ARG if the recording lacks what
 * `map` asks for. */
sac_status report_reading_plots(struct report_page *page, const struct report_map *map,
                                bool *out_found, sac_error *err);

#endif
