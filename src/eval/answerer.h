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
    const struct task_cell *cell; /* borrowed, like the following ones */
    const struct task_sample *sample;
    const int32_t *tok; /* [n_tok] the first turn's prompt */
    size_t n_tok;
    size_t question; /* the first token of the question */
    double read_ms;  /* time of the prompt's rows that all methods share */
    sac_reads read;  /* counters of these rows */
};

struct answerer {
    const struct runner_params *p; /* borrowed, like the following ones */
    const struct asked *asked;
    const struct subject *subject;
    struct question_rows rows; /* the rows of prompts that the method serves */
    bool is_begun, is_over;
    sac_seq seq;               /* of its own, until the last turn is finished */
    struct sample_row *row;    /* [n_row] of the completed turns; owned */
    char **answer;             /* [n_row] their texts; owned */
    uint32_t n_row, n_written; /* rows that the runner has written to the file */
    /* The turn in progress. */
    struct strbuf text;
    uint64_t id;            /* of the request */
    bool is_asked, is_done; /* the turn: in progress; answered, but not collected yet */
    size_t n_tok, n_kept;   /* of the prompt; of these, tokens that the sequence already had */
    uint32_t n_decode_row, n_predicted;
    uint64_t submit_us, first_us;
    sac_tier_stats tier; /* counters before the turn */
    sac_finish finish;
    sac_timings timings;
    sac_reads reads;
    sac_error error;
    double mass_sum;
    uint64_t n_mass;
};

/* A method that has not begun. */
struct answerer answerer_of(const struct runner_params *p, const struct asked *asked,
                            const struct subject *subject);
/* How many of the first turn's tokens come before the rows that the method serves. */
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
