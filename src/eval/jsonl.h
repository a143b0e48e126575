/* jsonl.h: the data files of public suites, one JSON object per line, read as samples.
 *
 *     longbench: {"input", "context", "answers": [..], "all_classes": [..] or null, "dataset",
 *                 "_id", ..}
 *     ruler:     {"index", "input", "outputs": [..], "length", "answer_prefix"?, ..}
 *     loopserve: {"id", "type", "qpos", "metric", "classes"?, "turns": [{"segments": [{"sid",
 *                 "text"}], "question", "answers": [..], "support"?: [..], "max_new", "cut"?}]}
 *     needle:    {"needle", "question" or "retrieval_question", "answer" or
 *                 "gold_standard_answer", "keywords"?: [..]}, hidden in the command's haystack
 *
 * Fields that are not named here are ignored. Those that are named are checked, and a line that
 * breaks the format is an error that names file, line and field. */
#ifndef SAC_EVAL_JSONL_H
#define SAC_EVAL_JSONL_H

#include "eval/haystack.h"
#include "eval/task.h"

enum jsonl_format { JSONL_LONGBENCH, JSONL_RULER, JSONL_LOOPSERVE, JSONL_NEEDLE };

struct jsonl;

struct jsonl_params {
    enum jsonl_format format;
    const char *path; /* for messages, and RULER's task: ".../niah_single_1/validation.jsonl" */
    const char *text; /* the file */
    size_t n_bytes;
    const char *task;      /* RULER: instead of the name in the path; or NULL */
    const char *templates; /* LongBench: {"dataset": "... {context} ... {input} ..."}, or NULL for
                              our own wording */
};

/* Parses and checks every line, so that no answer is generated if a later line is invalid. */
sac_status jsonl_open(struct jsonl **out, const struct jsonl_params *params, sac_error *err);
void jsonl_close(struct jsonl *j);

size_t jsonl_count(const struct jsonl *j);
/* Task (data set) of sample `i`, and the position of its question ("" if it does not apply). */
void jsonl_cell(const struct jsonl *j, size_t i, struct task_cell *out);

struct jsonl_args {
    const struct jsonl *jsonl;
    const struct haystack *haystack; /* JSONL_NEEDLE, else NULL */
    uint64_t seed;
};

/* A task_source's `make`; `arg` is a struct jsonl_args and the cell's index is the sample. A sample
 * longer than the cell's ctx is cut in the middle (LongBench) or rejected (the others). */
sac_status jsonl_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err);

#endif
