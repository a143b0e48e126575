/* logits.h: the output projection of the rows that need it, in full or for the largest logits. */
#ifndef SAC_ENGINE_LOGITS_H
#define SAC_ENGINE_LOGITS_H

#include "saccade.h"

#include "base/mem.h"
#include "ops/ops.h"

#define LOGITS_ROWS 64u /* rows of one projection: bounds the logits' memory */
#define LOGITS_TOP  64u /* maximum of a row's largest logits that are copied alone */

struct logits {
    float *x;      /* [LOGITS_ROWS, n_embd] normalised states; in the backend's memory, like y */
    float *y;      /* [LOGITS_ROWS, stride] */
    float *out;    /* the same in host memory: y, unless a device computes */
    size_t stride; /* n_vocab in whole groups of the output matrix */
    /* If a device computes, for rows that need a few of their largest logits: */
    struct op_top_item *top, *top_out; /* [LOGITS_ROWS, LOGITS_TOP] there and here */
    uint64_t *top_spare;               /* scratch on the device */
    int32_t *top_tok;                  /* [LOGITS_TOP] ascending tokens of a row */
    struct logits_row {
        uint32_t n_top, top_at; /* largest logits that are copied, 0: all; their index in top_out */
        bool is_blank;          /* the row of `out` is -INFINITY everywhere */
    } * row;                    /* [LOGITS_ROWS] */
    /* For a row whose logits are screened; [n_group] for all groups of the output. */
    float *most;            /* largest logit of a group, estimated or exact */
    uint8_t *is_exact;      /* whether the group was computed in full */
    uint32_t *list, *spare; /* the groups to compute next; scratch */
    float *value;
    uint32_t pause;      /* rows for which screening is still paused, because it did not pay */
    uint32_t last_pause; /* length of the last pause */
};

/* Lays out e->logits. */
void logits_plan(sac_engine *e, struct arena *a);

/* Computes the logits of the batch's rows that need them, in batch order, and passes each row to
 * `on_row`; if that is NULL nothing is computed. Needs the result of layer_run. This is the only
 * place of a step that waits for the backend: a failure is a device's, of this step or of earlier
 * ones that were not waited for, such as chunks of a prompt before its last. */
sac_status logits_run(sac_engine *e, sac_row_fn on_row, void *user, sac_error *err);
/* The part of it before the wait, for a step all of whose rows need their logits; at most
 * LOGITS_ROWS. */
void logits_queue(sac_engine *e);
/* Whether as many logits of a row are wanted as in the last step. */
bool logits_comes_so(const sac_engine *e, uint32_t row);
/* Waits for steps that were not waited for, so that everything they have read is counted. */
void logits_settle(sac_engine *e);

#endif
