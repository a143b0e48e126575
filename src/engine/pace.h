/* pace.h: how long steps take, and how many prompt rows fit in one in addition to decode rows. For
 * the engine's thread; nothing here fails. */
#ifndef SAC_ENGINE_PACE_H
#define SAC_ENGINE_PACE_H

#include "saccade.h"

#define PACE_LEAST_ROWS 16u /* minimum prompt rows of a step: a tile; fewer take as long */

enum { PACE_COSTS = 3 };

/* What prompt rows of one prefill method add to a step, as far as known. */
struct pace_line {
    double us[PACE_COSTS]; /* all together, each, and its attention: pace.c has the units */
    double var[PACE_COSTS][PACE_COSTS]; /* how certain that is: their covariance */
    bool is_known;
};

/* Duration of steps with prompt rows relative to the prediction. */
struct pace_margin {
    double mean, spread; /* of the last ones, and their spread around it */
    double width;        /* the 99th percentile, in spreads; 0: unknown */
};

struct pace {
    double decode_us; /* of decode rows alone, the mean of the last steps */
    struct pace_line line[SAC_METHODS_MAX];
    struct pace_margin margin;
    uint32_t n, end;   /* of the last step's first prompt: rows, and the position after them */
    double work;       /* of the last step's prompt rows: pace.c */
    uint64_t token_us; /* when the last step with decode rows was over; 0: never */
    double spent_us;   /* since then, for those who wait, when prompt rows are chosen */
    double debt_us;    /* time by which tokens are late and have not caught up */
    uint32_t n_wait;   /* steps for which prompt rows have waited for that */
};

/* Whether tokens are late and prompt rows wait so that they can catch up. */
bool pace_waits(const sac_engine *e);
/* The decode rows of the batch are selected: the time that their clients have already waited is
 * known. */
void pace_begin(sac_engine *e);
/* Prompt rows for which the batch has time, if the sequence's come first; 0: they wait. */
uint32_t pace_rows(const sac_engine *e, uint32_t seq_i);
/* Whether others compute and wait for tokens, as observed since there were n_step steps: pending
 * rows then have their share of these steps, and no steps of their own. */
bool pace_shares(const sac_engine *e, uint64_t n_step);
/* The batch has been computed from one time of the engine's clock to another. */
void pace_note(sac_engine *e, uint64_t start_us, uint64_t end_us);

#endif
