/* doc_stats.h: data about a document that context methods need in addition to its keys and values,
 * collected while it is computed: means of queries and keys before rotation, and the tokens to
 * which later rows attend. */
#ifndef SAC_ENGINE_DOC_STATS_H
#define SAC_ENGINE_DOC_STATS_H

#include "engine/engine.h"
#include "methods/context.h"

/* All layers of one document, one block of floats. */
struct doc_stats {
    uint32_t n_tok, n_block; /* of the text */
    size_t n_float;
    float value[];
};

/* Rows of one sequence whose queries are observed. */
struct doc_stats_watch {
    uint32_t seq_i;
    uint32_t begin, end;   /* positions whose mean query is wanted */
    float *query;          /* [n_layer, n_head, head_dim] sums of their queries */
    uint32_t first, every; /* rows first, first + every, .. are kept, n_sample of them; 0: none */
    uint32_t n_sample;
    float *sample; /* [n_layer, n_sample, n_head, head_dim] rotated */
    /* The first failure of a device to deliver rows; the statistics are then unusable. */
    sac_status status;
    sac_error why;
};

/* Observes the batch's rows, after a layer has projected and rotated them. */
void doc_stats_see(sac_engine *e, uint32_t layer);
/* Whether all rows so far were observed. */
sac_status doc_stats_check(const struct doc_stats_watch *w, sac_error *err);

/* Floats of all statistics of a text. */
size_t doc_stats_floats(const sac_engine *e, uint32_t n_tok);
/* Starts observing a document of n_tok tokens after a head, both in whole pages, which a sequence
 * will compute. */
sac_status doc_stats_begin(struct doc_stats_watch *w, sac_engine *e, uint32_t seq_i,
                           uint32_t n_head, uint32_t n_tok, sac_error *err);
/* Computes the statistics and attaches them to the sequence. */
sac_status doc_stats_make(struct doc_stats_watch *w, sac_engine *e, sac_error *err);
/* Stops observing; also if doc_stats_begin has failed. */
void doc_stats_end(struct doc_stats_watch *w, sac_engine *e);

/* The statistics of one layer. */
struct context_stats doc_stats_layer(const sac_engine *e, const struct doc_stats *n,
                                     uint32_t layer);

#endif
