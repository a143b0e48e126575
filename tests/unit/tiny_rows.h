/* tiny_rows.h: rows of a tiny model's sequence, computed to the end, and the logits of the last. */
#ifndef SAC_TESTS_UNIT_TINY_ROWS_H
#define SAC_TESTS_UNIT_TINY_ROWS_H

#include "must.h"
#include "tiny_model.h"

#include <string.h>

/* For sac_step: `user` is the float [TINY_VOCAB] that the logits go to. */
static inline void catch_row(void *user, const sac_row *row)
{
    memcpy(user, row->logits, TINY_VOCAB * sizeof(float));
}

static inline void compute_rows(sac_engine *e, sac_seq s, const int32_t *tok, size_t n,
                                sac_row_kind kind, float *logits)
{
    sac_error err;
    uint32_t n_row = 1;
    must(sac_seq_append(e, s, tok, n, kind, SAC_WANT_LAST, &err), &err);
    while (n_row) must(sac_step(e, catch_row, logits, &n_row, &err), &err);
}

#endif
