/* fidelity.h: how far a method, a KV type or another model file moves the next-token distribution
 * and the attention away from dense f16 attention, on real text, teacher-forced.
 *
 * The first ctx - n_score tokens are a prompt, the same for all. The last n_score are computed once
 * by the reference and once by each subject, one per step like an answer's tokens, or as prompt
 * rows; each predicts the next token. */
#ifndef SAC_EVAL_FIDELITY_H
#define SAC_EVAL_FIDELITY_H

#include "eval/reading.h"
#include "eval/subjects.h"
#include "eval/traffic.h"

/* Called between steps, with the share of all work done; true stops: SAC_ERR_CANCELLED. */
typedef bool (*fidelity_stop_fn)(void *user, double share);

struct fidelity_params {
    const sac_model *model;   /* of the reference */
    const sac_model *other;   /* of the subjects; the same, or one of the same shape */
    sac_engine_params engine; /* of the subjects; the reference has f16 and full attention */
    const struct subjects *subjects;
    const int32_t *tok;               /* [ctx + 1] */
    uint32_t ctx, n_score;            /* 0 < n_score < ctx */
    bool prompt_form;                 /* the scored tokens are prompt rows */
    bool timed;                       /* compute them once more, without recording */
    struct reading_writer *recording; /* receives what the subjects read; or NULL */
    fidelity_stop_fn stop;            /* or NULL */
    void *user;
};

/* Of the attention of one layer, means over scored tokens and KV heads. */
struct fidelity_attention {
    double mass;       /* dense softmax mass of what was read */
    double out_err;    /* relative L2 error compared with dense attention of the same queries and
                          keys */
    double out_left;   /* the part of it due to tokens left out, without rounding */
    double overlap;    /* overlap of the softmax masses with the reference's: sum over pages of the
                          smaller */
    double drift;      /* relative L2 distance of the output from the reference's output */
    double byte_ratio; /* bytes read, as in traffic, relative to those of the f16 reference */
    double page_share; /* share of the context's pages that were read, fully or partly */
    /* For methods that prove what they read, else 0: the proved mass, and the resulting bound of
     * out_left. */
    double mass_proved, out_bound;
};

struct fidelity_row {
    double kl_mean, kl_median, kl_p90, kl_p99, kl_max; /* of the distribution, in nats */
    double top1, top5; /* share of tokens with the same top-1; of the top-5 in common */
    double ppl, ppl_dense;
    double bypass;          /* share of the query heads for which a method read little and estimated
                               (lfps) */
    double share_read;      /* share of the tokens before the own page, in layers without a
                               window */
    struct traffic traffic; /* of the scored rows; NAN for prompt rows */
    double us_per_token;    /* of a step that computes one of them, median; NAN unless timed */
    double chosen;          /* choices_mean: tokens by score; NAN if nothing is selected so */
    struct fidelity_attention all;
    struct fidelity_attention *layer; /* [n_layer], owned */
    uint32_t n_layer;
    uint64_t n_proof, n_broken; /* proofs, and those contradicted by the exact masses and outputs */
};

/* The caller zeroes `out` [subjects->n], and frees it with fidelity_deinit in any case. */
sac_status fidelity_run(struct fidelity_row *out, const struct fidelity_params *p, sac_error *err);
void fidelity_deinit(struct fidelity_row *row);

#endif
