/* eval_run.h: what the commands of `saccade eval` that ask a model share: options, the run, its
 * output. A command parses options, plans cells, and passes them on. */
#ifndef SAC_APP_EVAL_RUN_H
#define SAC_APP_EVAL_RUN_H

#include "app/options.h"
#include "app/setup.h"
#include "base/strbuf.h"
#include "eval/haystack.h"
#include "eval/task.h"

struct eval_run {
    const char *command; /* "eval needle" */
    /* Options; texts are borrowed. */
    const char *methods, *ctx, *out, *haystack_file, *chat_template, *rows;
    uint32_t n_sample, n_parallel;
    int64_t seed;
    bool raw, gold_history, record, matrix, quiet, allow_idle;
    int format;
    struct setup setup;
    /* Filled while samples are planned. */
    struct haystack haystack;
    struct task_cell *cell; /* owned, [n_cell] */
    size_t n_cell, cell_room;
    struct strbuf identity; /* what distinguishes runs of one model */
};

/* Option tables for struct eval_run: of all commands, and of those with a haystack. */
extern const struct option_spec eval_run_specs[];
extern const struct option_spec eval_run_haystack_specs[];
/* For struct options, of evaluations that take --methods. */
extern const struct option_need eval_run_needs[];

struct eval_run eval_run_default(const char *command);
void eval_run_deinit(struct eval_run *r);

/* Refuses --decode, --prefill and their parameters, which --methods would override. Returns
 * OPTIONS_GO_ON or an exit code. */
int eval_run_list_only(const char *command, const struct setup *setup);

/* Prints the list of choices_add_whole, of rows below --sparse-min-ctx, to stderr, if it has any:
 * they are of dense attention. */
void eval_run_note_whole(const struct strbuf *list, const char *command, const struct setup *setup);

/* "4k,8192": lengths, 1k is 1,024; `otherwise` is the default. Returns OPTIONS_GO_ON or an exit
 * code. */
#define EVAL_CTX_MAX 32u
int eval_run_contexts(const struct eval_run *r, const char *otherwise, uint32_t ctx[EVAL_CTX_MAX],
                      uint32_t *out_n);
/* "10,50,90": per cent. */
int eval_run_depths(const struct eval_run *r, const char *text, double depth[EVAL_CTX_MAX],
                    uint32_t *out_n);
/* The next word of a comma-separated list; false: none. Advances `*at`. */
bool eval_run_word(const char **at, char *word, size_t bytes);

/* Reads --haystack, or generates prose from the seed. */
int eval_run_haystack(struct eval_run *r);
/* Plans one sample; and n_sample with different indices. */
int eval_run_plan_one(struct eval_run *r, const struct task_cell *cell);
int eval_run_plan(struct eval_run *r, const struct task_cell *cell);

/* Loads the model, runs all samples, prints and writes the results. `make` is called with `arg`. */
struct eval_maker {
    sac_status (*make)(const void *arg, const struct task_text *t, const struct task_cell *cell,
                       struct task_sample *out, sac_error *err);
    const void *arg;
    bool single_turn;
};
int eval_run_all(struct eval_run *r, const struct eval_maker *maker);

#endif
