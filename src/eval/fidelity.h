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

/* Called between steps with the share of the work that is done; true cancels: SAC_ERR_CANCELLED. */
typedef bool (*fidelity_stop_fn)(void *user, double share);

struct fidelity_params {
    const sac_model *model;   /* of the reference */
    const sac_model *other;   /* of the subjects; the same, or one of the same shape */
    sac_engine_params engine; /* of the subjects; the reference has f16 and full attention */
    const struct subjects *subjects;
    const int32_t *tok;    /* [ctx + 1] */
    uint32_t ctx, n_score; /* 0 < n_score < ctx */
    bool prompt_form;      /* the scored tokens are prompt rows */
    bool timed;            /* compute the scored tokens a second time, without recording */
    struct reading_writer *recording; /* receives what the subjects read; or NULL */
    fidelity_stop_fn stop;            /* or NULL */
    void *user;
};

/* Attention of one layer: means over scored tokens and KV heads. */
struct fidelity_attention {
    double mass;    /* dense softmax mass of what was read */
    double out_err; /* relative L2 distance of the output from dense attention over the same queries
                       and keys */
    double out_left;   /* the same due to the omitted tokens alone, without rounding */
    double overlap;    /* overlap of the softmax masses with the reference's: sum over pages of the
                          smaller */
    double drift;      /* relative L2 distance of the output from the reference's output */
    double byte_ratio; /* bytes read, as in traffic, divided by those of the f16 reference */
    double page_share; /* share of the context's pages that were read, fully or partly */
    /* Of methods that prove what they cover, else 0: the proved mass, and the bound of out_left
     * that follows. */
    double mass_proved, out_bound;
};

struct fidelity_row {
    /* KL divergence of the next-token distribution from the reference's, in nats */
    double kl_mean, kl_median, kl_p90, kl_p99, kl_max;
    double top1, top5; /* share of tokens with the same top-1; mean overlap of the top-5 */
    double ppl, ppl_dense;
    double bypass;     /* share of the query heads that a method bypassed (lfps) */
    double share_read; /* share of the tokens before the own page that was read, in layers without a
                          window */
    struct traffic traffic; /* of the scored rows; NAN for prompt rows */
    double us_per_token;    /* median time of a step that computes one of them; NAN unless timed */
    double chosen;          /* choices_mean; NAN if nothing is selected by score */
    struct fidelity_attention all;
    struct fidelity_attention *layer; /* [n_layer], owned */
    uint32_t n_layer;
    uint64_t n_proof, n_broken; /* proofs, and those contradicted by the exact masses and outputs */
};

/* The caller zeroes `out` [subjects->n], and frees it with fidelity_deinit in any case. */
sac_status fidelity_run(struct fidelity_row *out, const struct fidelity_params *p, sac_error *err);
void fidelity_deinit(struct fidelity_row *row);

#endif
