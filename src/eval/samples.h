/* samples.h: the file samples.jsonl: one JSON object per turn and method, written as soon as it is
 * known, so that an interrupted evaluation can continue. */
#ifndef SAC_EVAL_SAMPLES_H
#define SAC_EVAL_SAMPLES_H

#include "eval/question.h"
#include "eval/subjects.h"
#include "eval/task.h"
#include "eval/traffic.h"

/* What a summary needs; NAN where it was not measured. */
struct sample_row {
    struct task_cell cell;
    char method[SUBJECT_NAME_MAX];
    uint32_t turn, prompt_n, predicted_n;
    struct question_rows rows; /* of the prompt that the decode method served: `n` in number, all of
                                  the question or the last */
    double score;
    double ttft_ms, prompt_per_s, predicted_per_s;
    double chosen;          /* choices_mean: tokens that one selection took by score */
    struct traffic traffic; /* of decode rows */
    double share_read;      /* tokens read / tokens before the own page, over decode rows */
    double planned_share;   /* pairs of a row and a key computed / those of dense attention, over
                               prompt rows */
    double mass_mean; /* softmax mass of what was read, over decode rows, layers and KV heads */
};

/* Texts, which only the file keeps. */
struct sample_text {
    const struct task_sample *sample;
    const char *answer;
    uint64_t seed;
};

struct samples;

/* Opens or creates the file; without a path (NULL) rows are kept in memory only. `run` names model
 * and settings: rows of another run are an error. A truncated last line is removed. */
sac_status samples_open(struct samples **out, const char *path, uint64_t run, sac_error *err);
void samples_close(struct samples *s);

/* The rows of the file, in its order. */
size_t samples_count(const struct samples *s);
const struct sample_row *samples_row(const struct samples *s, size_t i);
bool samples_has(const struct samples *s, const struct task_cell *cell, const char *method,
                 uint32_t turn);
/* Keeps a row; writes it to the file and flushes the file. */
sac_status samples_add(struct samples *s, const struct sample_row *row,
                       const struct sample_text *text, sac_error *err);

#endif
