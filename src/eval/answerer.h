/* answerer.h: one method that answers the turns of a sample, in its own sequence.
 *
 * It starts on a fork of a sequence that has processed the first turn's prompt up to the rows that
 * the method serves. The engine's steps (sac_run) then compute its requests, together with those of
 * others; between two steps answers are collected and the next turns asked. All functions belong to
 * the engine's thread. */
#ifndef SAC_EVAL_ANSWERER_H
#define SAC_EVAL_ANSWERER_H

#include "base/strbuf.h"
#include "eval/runner.h"

/* A sample, shared by all its methods. */
struct asked {
    const struct task_cell *cell; /* borrowed, as what follows */
    const struct task_sample *sample;
    const int32_t *tok; /* [n_tok] the first turn's prompt */
    size_t n_tok;
    size_t question; /* the first token of the question */
    double read_ms;  /* time of the part of the prompt that methods share */
    sac_reads read;  /* of its rows */
};

struct answerer {
    const struct runner_params *p; /* borrowed, as what follows */
    const struct asked *asked;
    const struct subject *subject;
    struct question_rows rows; /* of prompts, which the method serves */
    bool is_begun, is_over;
    sac_seq seq;               /* started and not finished */
    struct sample_row *row;    /* [n_row] of the turns that are complete; owned */
    char **answer;             /* [n_row] their texts; owned */
    uint32_t n_row, n_written; /* rows already in the file: the runner's */
    /* Of the turn in work. */
    struct strbuf text;
    uint64_t id;            /* of the request */
    bool is_asked, is_done; /* the turn: in progress; answered, but not collected yet */
    size_t n_tok, n_kept;   /* of the prompt; of these, tokens that the sequence already had */
    uint32_t n_decode_row, n_predicted;
    uint64_t submit_us, first_us;
    sac_tier_stats tier; /* before it */
    sac_finish finish;
    sac_timings timings;
    sac_reads reads;
    sac_error error;
    double mass_sum;
    uint64_t n_mass;
};

/* A method without work. */
struct answerer answerer_of(const struct runner_params *p, const struct asked *asked,
                            const struct subject *subject);
/* How many of the first turn's tokens come before the rows that it serves. */
size_t answerer_shared(const struct answerer *w);
/* Asks the first turn on a fork of `shared`, which has computed answerer_shared tokens of it. */
sac_status answerer_begin(struct answerer *w, sac_seq shared, sac_error *err);
/* If the current turn's answer is complete, scores it. After the last turn it is finished. */
sac_status answerer_take(struct answerer *w, sac_error *err);
/* Asks the next turn, whose prompt contains the previous answers; none is in progress. */
sac_status answerer_ask_next(struct answerer *w, sac_error *err);
/* Receives a record of its sequence. */
void answerer_record(struct answerer *w, const sac_read_record *record);
/* Frees everything; a running request must have been cancelled (sac_cancel) and have ended. */
void answerer_deinit(struct answerer *w);

#endif
