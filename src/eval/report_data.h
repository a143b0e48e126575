/* report_data.h: reads the files of an evaluation's directory into plain records.
 *
 * Contract: a missing file is no error; `has_` tells. A file that exists and breaks its format is
 * SAC_ERR_FORMAT with its name, its line if it has lines, and the field. Numbers that a record does
 * not hold are NAN. */
#ifndef SAC_EVAL_REPORT_DATA_H
#define SAC_EVAL_REPORT_DATA_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/docrow.h"
#include "eval/strlist.h"

#include <stdbool.h>
#include <stddef.h>

struct cJSON;

/* One line of samples.jsonl. */
struct report_sample {
    size_t task_i, method_i; /* indices into `tasks` and `methods` */
    double ctx, depth, score;
    double ttft_ms, prompt_per_s, predicted_per_s, share_read, bytes_share, bytes_per_token;
    double mass_mean;
    double n_decode_row;  /* decode rows of the prompt */
    double question_rows; /* 1: the rows of the question; 0: the last rows */
};

/* One row of fidelity.json. */
struct report_fidelity {
    size_t method_i;
    double ctx, share_read, bytes_share, bytes_per_token, mass_mean;
    double kl_mean, kl_median, kl_p90, kl_p99, top1, top5, ppl, ppl_dense, out_err_mean;
    double us_per_token; /* of a step that was timed */
    double *layer_err;   /* [n_layer] relative error of the attention output; owned */
    size_t n_layer;
};

struct report_data {
    struct strlist methods, tasks; /* in order of first appearance */
    struct report_sample *sample;  /* [n_sample] */
    size_t n_sample;
    struct report_fidelity *fidelity; /* [n_fidelity] */
    size_t n_fidelity;
    struct docrows docs;   /* of docs.jsonl */
    struct cJSON *summary; /* summary.json, or NULL */
    struct cJSON *run;     /* run.json, or NULL */
    bool has_samples, has_fidelity;
    bool cut; /* the last line of samples.jsonl was incomplete and is left out */
};

/* `data` is zeroed by the caller, and freed by report_data_deinit in any case. */
sac_status report_data_load(struct report_data *data, const char *dir, sac_error *err);
/* Appends the samples and rows of another directory to those of `data`; its methods become "NAME
 * [label]". `run` and `summary` are not moved. */
sac_status report_data_append(struct report_data *data, struct report_data *from, const char *label,
                              sac_error *err);
void report_data_deinit(struct report_data *data);

/* Ascending order, for qsort. */
int report_data_compare(const void *a, const void *b);
/* Reduces `v` [n] to its distinct finite numbers, ascending; returns their number. */
size_t report_data_distinct(double *v, size_t n);
/* The mean of the finite numbers; NAN if there are none. */
double report_data_mean(const double *v, size_t n);
/* The q-quantile (0 to 1) of ascending numbers, interpolated linearly; NAN if n is 0. */
double report_data_quantile(const double *rising, size_t n, double q);

#endif
