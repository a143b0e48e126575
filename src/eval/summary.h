/* summary.h: from rows to published figures: means with bootstrap confidence intervals for each
 * group of samples and method, and paired differences from one of the methods. */
#ifndef SAC_EVAL_SUMMARY_H
#define SAC_EVAL_SUMMARY_H

#include "base/strbuf.h"
#include "eval/samples.h"

struct cJSON;

struct summary_mean {
    /* 95 % interval; NAN without a value, the interval also with only one */
    double mean, low, high;
    uint32_t n;
};

/* The mean of `value` [n], with percentiles 2.5 and 97.5 of the means of 2000 resamples drawn from
 * `seed`. SAC_ERR_MEMORY only. */
sac_status summary_bootstrap(struct summary_mean *out, const double *value, size_t n, uint64_t seed,
                             sac_error *err);

/* Values that belong together, for example of several questions about the same documents. */
struct summary_group {
    double sum;
    uint32_t n; /* 1 or more */
};

/* The same for the values of all groups; a resample draws whole groups. */
sac_status summary_bootstrap_groups(struct summary_mean *out, const struct summary_group *group,
                                    size_t n, uint64_t seed, sac_error *err);

/* All samples that share task, place, context and method. */
struct summary_row {
    char task[TASK_NAME_MAX], place[TASK_PLACE_MAX], method[SUBJECT_NAME_MAX];
    uint32_t ctx;
    struct summary_mean score;
    struct summary_mean diff; /* difference from `base`, over the samples that both have answered */
    char diff_to[SUBJECT_NAME_MAX]; /* "": the row is that method's, or nothing is paired */
    bool question_rows; /* decode rows of prompts: those of the question, or the last ones */
    /* Means, or NAN. */
    double n_decode_row; /* of a prompt */
    struct traffic traffic;
    double mass_mean, share_read, chosen, planned_share, ttft_ms, prompt_per_s, predicted_per_s;
};

struct summary {
    struct summary_row *row; /* [n], in the order of the file; owned */
    size_t n;
};

/* `base`: the method with which others are compared. */
sac_status summary_make(struct summary *out, const struct samples *samples, const char *base,
                        uint64_t seed, sac_error *err);
void summary_deinit(struct summary *s);

/* The list of rows; the caller owns it. NULL without memory. */
struct cJSON *summary_json(const struct summary *s);
/* A readable table. */
void summary_markdown(const struct summary *s, struct strbuf *out);

#endif
