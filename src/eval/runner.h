/* runner.h: asks a model every question of a task_source, with every method, and writes the answers
 * and their scores. */
#ifndef SAC_EVAL_RUNNER_H
#define SAC_EVAL_RUNNER_H

#include "eval/samples.h"
#include "eval/subjects.h"
#include "eval/task.h"

struct runner_progress {
    size_t n_done, n_cell;        /* cells: those before the first one in progress, all */
    const struct task_cell *cell; /* the first in progress */
    double share;                 /* of all work, 0 to 1 */
};
/* Called between steps; true requests a stop: SAC_ERR_CANCELLED. */
typedef bool (*runner_progress_fn)(void *user, const struct runner_progress *p);

struct runner_params {
    /* With the methods of `subjects`, two sequences for each sample in progress, and a pool large
     * enough for them: a step that finds no page is an error. */
    sac_engine *engine;
    uint32_t n_parallel; /* samples in progress at once, at least 1; with more, answers have no
                            times */
    const struct task_text *text;
    const struct task_source *source;
    const struct subjects *subjects;
    struct samples *samples;
    uint64_t seed;
    /* Rows of each prompt that a decode method serves, if it allows that */
    struct question_rows rows;
    bool gold_history; /* later turns see the expected answers instead of those given */
    bool record;       /* the engine can record: fill in mass_mean */
    runner_progress_fn on_progress; /* or NULL */
    void *user;
};

/* The time that the runner itself takes, to show its cost relative to the model. */
struct runner_times {
    double model_s, own_s;
};

/* Skips cells that the samples file has for all methods. Answers are greedy, and rows are written
 * in the order of cells, methods and turns; neither depends on n_parallel. After an error or a
 * stop, all completed answers have been written. */
sac_status runner_run(const struct runner_params *p, struct runner_times *out_times,
                      sac_error *err);

#endif
