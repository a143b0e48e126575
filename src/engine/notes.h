/* notes.h: data about a document that context methods need in addition to its keys and values,
 * collected while it is computed: means of queries and keys before rotation, and the tokens to
 * which later rows attend. */
#ifndef SAC_ENGINE_NOTES_H
#define SAC_ENGINE_NOTES_H

#include "engine/engine.h"
#include "methods/context.h"

/* All layers of one document, one block of floats. */
struct notes {
    uint32_t n_tok, n_block; /* of the text */
    size_t n_float;
    float value[];
};

/* Rows of one sequence whose queries are observed. */
struct notes_watch {
    uint32_t seq_i;
    uint32_t begin, end;   /* positions whose mean query is wanted */
    float *query;          /* [n_layer, n_head, head_dim] sums of their queries */
    uint32_t first, every; /* rows first, first + every, .. are kept, n_sample of them; 0: none */
    uint32_t n_sample;
    float *sample; /* [n_layer, n_sample, n_head, head_dim] rotated */
    /* The first failure of a device to deliver rows; the notes are then unusable. */
    sac_status status;
    sac_error why;
};

/* Observes the batch's rows, after a layer has projected and rotated them. */
void notes_see(sac_engine *e, uint32_t layer);
/* Whether all rows so far were observed. */
sac_status notes_check(const struct notes_watch *w, sac_error *err);

/* Floats of all notes of a text. */
size_t notes_floats(const sac_engine *e, uint32_t n_tok);
/* Starts observing a document of n_tok tokens after a head, both in whole pages, which a sequence
 * will compute. */
sac_status notes_begin(struct notes_watch *w, sac_engine *e, uint32_t seq_i, uint32_t n_head,
                       uint32_t n_tok, sac_error *err);
/* Computes the notes and attaches them to the sequence. */
sac_status notes_make(struct notes_watch *w, sac_engine *e, sac_error *err);
/* Stops observing; also if notes_begin has failed. */
void notes_end(struct notes_watch *w, sac_engine *e);

/* The notes of one layer. */
struct context_note notes_layer(const sac_engine *e, const struct notes *n, uint32_t layer);

#endif
