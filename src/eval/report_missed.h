/* report_missed.h: where in the text the attention mass lies, and how much of it was read or
 * missed, by layer and KV head: a figure of a report, filled record by record. */
#ifndef SAC_EVAL_REPORT_MISSED_H
#define SAC_EVAL_REPORT_MISSED_H

#include "eval/reading.h"
#include "eval/report_page.h"

#define REPORT_MISSED_GROUPS 4u  /* maximum pairs of context and method that are drawn */
#define REPORT_MISSED_HEADS  16u /* maximum KV heads of each that may be selected */

struct report_missed_group {
    uint32_t method, ctx;
    uint32_t n_page; /* of the longest record: the width of the text */
};

struct report_missed {
    const struct reading *in; /* borrowed; its shape and names */
    struct report_missed_group group[REPORT_MISSED_GROUPS];
    uint32_t n_group, n_left_out;
    struct report_missed_cell *cell; /* [n_group, n_layer, n_kv_head, bins] owned */
    uint32_t *n_record;              /* [n_group, n_layer, n_kv_head] owned */
};

/* In a first pass over the records: takes note of a record's group and size. */
void report_missed_see(struct report_missed *m, const struct reading_record *r);
/* Between the two passes: allocates the maps. */
sac_status report_missed_plan(struct report_missed *m, sac_error *err);
/* In a second pass: adds the same records. */
void report_missed_add(struct report_missed *m, const struct reading_record *r);
sac_status report_missed_plot(const struct report_missed *m, struct report_page *page,
                              sac_error *err);
void report_missed_deinit(struct report_missed *m);

#endif
