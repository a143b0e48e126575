/* pace.h: how long steps take, and how many prompt rows fit in one in addition to decode rows. For
 * the engine's thread; nothing here fails. */
#ifndef SAC_ENGINE_PACE_H
#define SAC_ENGINE_PACE_H

#include "saccade.h"

#define PACE_LEAST_ROWS 16u /* minimum prompt rows of a step: a tile; fewer take as long */

enum { PACE_COSTS = 3 };

/* The cost of prompt rows of one prefill method. */
struct pace_line {
    double us[PACE_COSTS]; /* in microseconds: per step, per row, and of its attention (pace.c) */
    double var[PACE_COSTS][PACE_COSTS]; /* their covariance: how uncertain they are */
    bool is_known;
};

/* How far steps with prompt rows deviate from the prediction: measured / predicted time. */
struct pace_margin {
    double mean, spread; /* of the last steps; mean deviation from it */
    double width;        /* the 99th percentile, in mean deviations; 0: unknown */
};

struct pace {
    double decode_us; /* time of decode rows alone, averaged over the last steps */
    struct pace_line line[SAC_METHODS_MAX];
    struct pace_margin margin;
    uint32_t n, end;   /* of the first prompt in the last step: rows, and the position after them */
    double work;       /* of the last step's prompt rows, as in pace.c */
    uint64_t token_us; /* time of the last step with decode rows; 0: never */
    double spent_us;   /* time since then, when prompt rows are selected */
    double debt_us;    /* time by which tokens are behind the target */
    uint32_t n_wait;   /* steps for which prompt rows have waited to make up for it */
};

/* Whether tokens are late and prompt rows wait so that they can catch up. */
bool pace_waits(const sac_engine *e);
/* The decode rows of the batch are selected: the time that their clients have already waited is
 * known. */
void pace_begin(sac_engine *e);
/* How many prompt rows the batch has time for, if they are the sequence's; 0: they wait. */
uint32_t pace_rows(const sac_engine *e, uint32_t seq_i);
/* Whether others have computed and waited for tokens since there were n_step steps: pending rows
 * then share these steps, and get no steps of their own. */
bool pace_shares(const sac_engine *e, uint64_t n_step);
/* The batch was computed between two times of the engine's clock. */
void pace_note(sac_engine *e, uint64_t start_us, uint64_t end_us);

#endif
