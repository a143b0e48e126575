/* report_reading.h: the plots that are made from reading.sacr, a recording of attention. */
#ifndef SAC_EVAL_REPORT_READING_H
#define SAC_EVAL_REPORT_READING_H

#include "eval/report_page.h"

#include <stdint.h>

#define REPORT_READING_ANY UINT32_MAX

/* Which prompt the block map shows. */
struct report_map {
    uint32_t sample; /* REPORT_READING_ANY: the first that has prompt rows */
    uint32_t layer;  /* ANY: four layers, from the first to the last */
    uint32_t head;   /* a KV head; ANY: mean over all */
};

/* `*out_found` is false if page->dir holds no recording. SAC_ERR_ARG when `map` asks for what the
 * recording does not have. */
sac_status report_reading_plots(struct report_page *page, const struct report_map *map,
                                bool *out_found, sac_error *err);

#endif
