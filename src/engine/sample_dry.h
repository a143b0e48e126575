/* sample_dry.h: DRY, "don't repeat yourself": a token that would continue a sequence that occurred
 * before loses `multiplier * base^(n - allowed)` of its logit, n being the length of that sequence.
 * Source: the proposal of p-e-w to text-generation-webui (pull request 5677, 2024). A breaker ends
 * every sequence and is never penalized itself. Here a breaker is any single token that contains
 * one of the breaking texts; a text that spans two tokens breaks nothing.
 *
 * All memory is allocated at create; a token costs time proportional to the number of tokens looked
 * at. */
#ifndef SAC_ENGINE_SAMPLE_DRY_H
#define SAC_ENGINE_SAMPLE_DRY_H

#include "base/status.h"

#include <stdbool.h>

#define SAMPLE_DRY_LAST_N_MAX (1 << 22)

struct sample_dry {
    float multiplier, base;
    uint32_t least; /* repeated tokens that are free of a penalty */
    uint32_t n_ring, n_held, next;
    int32_t *ring;      /* owned, [n_ring] the last tokens; NULL: off */
    int32_t *recent;    /* owned, [n_ring] the same, the newest first */
    uint32_t *match;    /* owned, [n_ring] length of the match between what precedes a token and
                           the end */
    uint32_t *longest;  /* owned, [n_vocab] longest match before a token; 0 outside of a call */
    uint64_t *breakers; /* owned, a bit for each token of the vocabulary */
    int32_t *tok;       /* owned, [n_ring] penalised tokens */
    float *loss;        /* owned, [n_ring] their penalties */
};

/* `d` is zeroed; without a multiplier it stays off. The caller calls sample_dry_deinit after
 * errors, too. */
sac_status sample_dry_init(struct sample_dry *d, const sac_sampling *params, const sac_model *model,
                           uint32_t n_vocab, sac_error *err);
void sample_dry_deinit(struct sample_dry *d);

void sample_dry_accept(struct sample_dry *d, int32_t tok);
/* Finds the penalised tokens, each once; returns their number. */
uint32_t sample_dry_losses(struct sample_dry *d);

#endif
