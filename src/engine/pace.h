/* pace.h: how long steps take, and how many prompt rows one has time for beside decode rows. For
 * the engine's thread; nothing here fails. */
#ifndef SAC_ENGINE_PACE_H
#define SAC_ENGINE_PACE_H

#include "saccade.h"

#define PACE_LEAST_ROWS 16u /* of prompts in a step: a tile; fewer take as long */

enum { PACE_COSTS = 3 };

/* What prompt rows of one prefill method add to a step, as far as it is known. */
struct pace_line {
    double us[PACE_COSTS]; /* all together, each, and its attention: pace.c has the units */
    double var[PACE_COSTS][PACE_COSTS]; /* how well that is known: their covariance */
    bool is_known;
};

/* What steps with prompt rows take by what was foretold. */
struct pace_margin {
    double mean, spread; /* of the last ones, and how far they are away from that */
    double width;        /* as many spreads away is the 99th percentile; 0: nothing is known */
};

struct pace {
    double decode_us; /* of decode rows alone, the mean of the last steps */
    struct pace_line line[SAC_METHODS_MAX];
    struct pace_margin margin;
    uint32_t n, end;   /* of the last step's first prompt: rows, and the position behind them */
    double work;       /* of the last step's prompt rows: pace.c */
    uint64_t token_us; /* when the last step with decode rows was over; 0: never */
    double spent_us;   /* since then, for those who wait, when prompt rows are chosen */
    double debt_us;    /* by which tokens are late that have not been caught up with */
    uint32_t n_wait;   /* steps for which prompt rows have waited for that */
};

/* Whether tokens are late and prompt rows wait, so that this is caught up with. */
bool pace_waits(const sac_engine *e);
/* The decode rows of the batch are chosen: what their clients have waited already is known. */
void pace_begin(sac_engine *e);
/* Prompt rows that the batch has time for, if the sequence's come first; 0: they wait. */
uint32_t pace_rows(const sac_engine *e, uint32_t seq_i);
/* Whether others compute, who wait for tokens, as has been seen since there were n_step steps: rows
 * that pend have their share of these steps, and no steps of their own. */
bool pace_shares(const sac_engine *e, uint64_t n_step);
/* The batch has been computed from one time of the engine's clock to another. */
void pace_note(sac_engine *e, uint64_t start_us, uint64_t end_us);

#endif
