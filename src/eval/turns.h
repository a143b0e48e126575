/* turns.h: conversations over long texts after LoopServe's multi-turn benchmark (arXiv:2507.13681):
 * several turns, each with text and a question whose answer stands in this turn's text or an
 * earlier one's; the question at the begin, in the middle or at the end of its turn. */
#ifndef SAC_EVAL_TURNS_H
#define SAC_EVAL_TURNS_H

#include "eval/task.h"

struct turns_args {
    uint64_t seed;
};

/* The i-th task's name; NULL after the last. The first ones are kinds of questions; "like_" tasks
 * have the number of turns and the length of one of the benchmark's eleven sets. */
const char *turns_name(uint32_t i);
/* Mean tokens of the set after which a "like_" task is shaped; 0 for others. */
uint32_t turns_ctx(const char *name);
/* "begin", "middle", "end"; NULL after these. */
const char *turns_place(uint32_t i);

/* A task_source's `make`; `arg` is a struct turns_args. The three places of a sample hold the same
 * text, so only the position differs between them. */
sac_status turns_make(const void *arg, const struct task_text *t, const struct task_cell *cell,
                      struct task_sample *out, sac_error *err);

#endif
