/* runner.h: asks a model every question of a task_source, with every method, and writes what it
 * said and how right it was. */
#ifndef SAC_EVAL_RUNNER_H
#define SAC_EVAL_RUNNER_H

#include "eval/samples.h"
#include "eval/subjects.h"
#include "eval/task.h"

struct runner_progress {
    size_t n_done, n_cell;        /* cells: those before the first in work, all */
    const struct task_cell *cell; /* the first in work */
    double share;                 /* of all work, 0 to 1 */
};
/* Called between steps; true asks to stop: SAC_ERR_CANCELLED. */
typedef bool (*runner_progress_fn)(void *user, const struct runner_progress *p);

struct runner_params {
    /* With the methods of `subjects`, two sequences for each sample in work, and a pool that holds
     * these: a step that finds no page is an error. */
    sac_engine *engine;
    uint32_t n_parallel; /* samples in work at once, at least 1; with more no answer has times */
    const struct task_text *text;
    const struct task_source *source;
    const struct subjects *subjects;
    struct samples *samples;
    uint64_t seed;
    struct question_rows rows;      /* of each prompt that a decode method serves, where it may */
    bool gold_history;              /* later turns see the expected answers, not the given ones */
    bool record;                    /* the engine can record: fill mass_mean */
    runner_progress_fn on_progress; /* or NULL */
    void *user;
};

/* What the runner took itself, to show what it costs beside the model. */
struct runner_times {
    double model_s, own_s;
};

/* Cells that the samples file holds for all methods are passed over. Answers are greedy, and rows
 * are written in the order of cells, methods and turns: both do not depend on n_parallel. After an
 * error, or when it was stopped, all answers that are complete have been written. */
sac_status runner_run(const struct runner_params *p, struct runner_times *out_times,
                      sac_error *err);

#endif
