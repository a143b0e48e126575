/* fidelity.h: how far a method, a KV type or another model file takes the next-token distribution
 * and the attention away from dense f16 attention, on real text, teacher-forced.
 *
 * The first ctx - n_score tokens are a prompt, the same for all; the last n_score are computed once
 * by the reference and once by each subject, one per step as an answer's tokens are, or as prompt
 * rows, and each predicts the token behind it. */
#ifndef SAC_EVAL_FIDELITY_H
#define SAC_EVAL_FIDELITY_H

#include "eval/reading.h"
#include "eval/subjects.h"
#include "eval/traffic.h"

/* Asked between steps, with the share of all work done; true stops: SAC_ERR_CANCELLED. */
typedef bool (*fidelity_stop_fn)(void *user, double share);

struct fidelity_params {
    const sac_model *model;   /* of the reference */
    const sac_model *other;   /* of the subjects; the same, or one of the same shape */
    sac_engine_params engine; /* of the subjects; the reference has f16 and full attention */
    const struct subjects *subjects;
    const int32_t *tok;               /* [ctx + 1] */
    uint32_t ctx, n_score;            /* 0 < n_score < ctx */
    bool prompt_form;                 /* the scored tokens are prompt rows */
    bool timed;                       /* compute them once more, with nothing recorded */
    struct reading_writer *recording; /* gets what the subjects read; or NULL */
    fidelity_stop_fn stop;            /* or NULL */
    void *user;
};

/* Of the attention of one layer, means over scored tokens and KV heads. */
struct fidelity_attention {
    double mass;     /* dense softmax mass of what was read */
    double out_err;  /* relative L2 error against dense attention of the same queries and keys */
    double out_left; /* the part of it that tokens left out make, without rounding */
    double overlap;  /* of the softmax masses with the reference's: sum over pages of the smaller */
    double drift;    /* relative L2 distance of the output from the reference's output */
    double byte_ratio; /* bytes read, as traffic has them, over what the f16 reference read */
    double page_share; /* of the pages of the context, those read in whole or in part */
    /* Of methods that prove what they read, else 0: the mass that is proved, and the bound of
     * out_left that follows. */
    double mass_proved, out_bound;
};

struct fidelity_row {
    double kl_mean, kl_median, kl_p90, kl_p99, kl_max; /* of the distribution, in nats */
    double top1,
        top5; /* share of tokens with the same likeliest; of the five likeliest in common */
    double ppl, ppl_dense;
    double bypass; /* share of the query heads that a method read little for, and guessed (lfps) */
    double share_read;      /* of the tokens before the own page, in layers without a window */
    struct traffic traffic; /* of the scored rows; NAN for prompt rows */
    double us_per_token;    /* of a step that computes one of them, median; NAN unless timed */
    double chosen;          /* choices_mean: tokens by score; NAN where nothing is chosen so */
    struct fidelity_attention all;
    struct fidelity_attention *layer; /* [n_layer], owned */
    uint32_t n_layer;
    uint64_t n_proof, n_broken; /* proofs, and those that the exact masses and outputs contradict */
};

/* `out` [subjects->n] is zeroed by the caller and freed by fidelity_deinit in any case. */
sac_status fidelity_run(struct fidelity_row *out, const struct fidelity_params *p, sac_error *err);
void fidelity_deinit(struct fidelity_row *row);

#endif
