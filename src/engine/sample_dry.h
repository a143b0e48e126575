/* sample_dry.h: DRY, "don't repeat yourself": a token that would go on with a sequence which was
 * said before loses `multiplier * base^(n - allowed)` of its logit, n the length of that
 * sequence. Source: the proposal of p-e-w to text-generation-webui (pull request 5677, 2024). A
 * breaker ends every sequence and is never held back itself. Here a breaker is any single token
 * that holds one of the breaking texts; a text that is spread over two tokens breaks nothing.
 *
 * All memory is taken at create; a token costs time in proportion to the tokens that are looked at.
 */
#ifndef SAC_ENGINE_SAMPLE_DRY_H
#define SAC_ENGINE_SAMPLE_DRY_H

#include "base/status.h"

#include <stdbool.h>

#define SAMPLE_DRY_LAST_N_MAX (1 << 22)

struct sample_dry {
    float multiplier, base;
    uint32_t least; /* tokens that must be alike before anything is lost */
    uint32_t n_ring, n_held, next;
    int32_t *ring;      /* owned, [n_ring] the last tokens; NULL: off */
    int32_t *recent;    /* owned, [n_ring] the same, the last one first */
    uint32_t *match;    /* owned, [n_ring] how long what precedes a token is like the end */
    uint32_t *longest;  /* owned, [n_vocab] for a token; 0 outside of a call */
    uint64_t *breakers; /* owned, a bit for each token of the vocabulary */
    int32_t *tok;       /* owned, [n_ring] tokens that lose something, */
    float *loss;        /* owned, [n_ring] and what */
};

/* `d` is zeroed; without a multiplier it stays off. The caller deinits it after errors, too. */
sac_status sample_dry_init(struct sample_dry *d, const sac_sampling *params, const sac_model *model,
                           uint32_t n_vocab, sac_error *err);
void sample_dry_deinit(struct sample_dry *d);

void sample_dry_accept(struct sample_dry *d, int32_t tok);
/* Finds the tokens that lose something, each once; returns their number. */
uint32_t sample_dry_losses(struct sample_dry *d);

#endif
