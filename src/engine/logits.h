/* logits.h: the output projection of the rows that need it, in full or for the largest logits. */
#ifndef SAC_ENGINE_LOGITS_H
#define SAC_ENGINE_LOGITS_H

#include "saccade.h"

#include "base/mem.h"
#include "ops/ops.h"

#define LOGITS_ROWS 64u /* rows of one projection: bounds the logits' memory */
#define LOGITS_TOP  64u /* largest logits of a row, at most, that are copied from a device alone */

struct logits {
    float *x;      /* [LOGITS_ROWS, n_embd] normalized states; the backend's, like y */
    float *y;      /* [LOGITS_ROWS, stride] */
    float *out;    /* the same where the program reads them: y, unless a device computes */
    size_t stride; /* n_vocab in whole groups of the output matrix */
    /* If a device computes, for rows that need a few of their largest logits: */
    struct op_top_item *top, *top_out; /* [LOGITS_ROWS, LOGITS_TOP] there and here */
    uint64_t *top_spare;               /* room, there */
    int32_t *top_tok;                  /* [LOGITS_TOP] tokens of one row's, ascending */
    struct logits_row {
        uint32_t n_top, top_at; /* largest logits that are copied alone, 0: all are; in top_out */
        bool is_blank;          /* the row of `out` is -INFINITY throughout */
    } * row;                    /* [LOGITS_ROWS] */
    /* For one row whose logits are screened; all [n_group] groups of the output. */
    float *most;            /* of a group, approximate or exact */
    uint8_t *is_exact;      /* computed in full */
    uint32_t *list, *spare; /* the groups computed next; scratch */
    float *value;
    uint32_t pause;      /* further rows that are not screened, because it did not pay, */
    uint32_t last_pause; /* and their initial number */
};

/* Lays out e->logits. */
void logits_plan(sac_engine *e, struct arena *a);

/* Logits of the batch's rows that need them, in batch order; each row goes to `on_row` (which may
 * be NULL: then nothing is computed). Needs what layer_run left. The only place of a step that
 * waits for the backend: a failure is a device's, of this step or of an earlier one that was not
 * waited for, as chunks of a prompt are not except the last. */
sac_status logits_run(sac_engine *e, sac_row_fn on_row, void *user, sac_error *err);
/* The part of it before the wait, for a step all of whose rows need their logits: at most
 * LOGITS_ROWS. */
void logits_queue(sac_engine *e);
/* Whether as many of a row's logits are requested as of that row in the last step. */
bool logits_comes_so(const sac_engine *e, uint32_t row);
/* Waits for such steps, so that everything they have read is counted. */
void logits_settle(sac_engine *e);

#endif
