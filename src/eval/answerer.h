/* answerer.h: one method that answers the turns of a sample, in a sequence of its own.
 *
 * It is begun on a fork of a sequence that has read the first turn's prompt up to the rows that the
 * method serves. The steps of the engine (sac_run) then compute its requests, beside those of any
 * others; between two steps answers are taken and next turns asked. All functions belong to the
 * engine's thread. */
#ifndef SAC_EVAL_ANSWERER_H
#define SAC_EVAL_ANSWERER_H

#include "base/strbuf.h"
#include "eval/runner.h"

/* A sample as all its methods meet it. */
struct asked {
    const struct task_cell *cell; /* borrowed, as what follows */
    const struct task_sample *sample;
    const int32_t *tok; /* [n_tok] the first turn's prompt */
    size_t n_tok;
    size_t question; /* the first token of the question */
    double read_ms;  /* what the part of the prompt took that methods share */
    sac_reads read;  /* of its rows */
};

struct answerer {
    const struct runner_params *p; /* borrowed, as what follows */
    const struct asked *asked;
    const struct subject *subject;
    struct question_rows rows; /* of prompts, which the method serves */
    bool is_begun, is_over;
    sac_seq seq;               /* while it is begun and not over */
    struct sample_row *row;    /* [n_row] of the turns that are complete; owned */
    char **answer;             /* [n_row] their texts; owned */
    uint32_t n_row, n_written; /* rows that are in the file: the runner's */
    /* Of the turn in work. */
    struct strbuf text;
    uint64_t id;            /* of the request */
    bool is_asked, is_done; /* the turn: is in work; has its answer, which was not taken yet */
    size_t n_tok, n_kept;   /* of the prompt; of these, tokens that the sequence had */
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

/* A method that has nothing to do yet. */
struct answerer answerer_of(const struct runner_params *p, const struct asked *asked,
                            const struct subject *subject);
/* How many of the first turn's tokens come before the rows that it serves. */
size_t answerer_shared(const struct answerer *w);
/* Asks the first turn on a fork of `shared`, which has computed answerer_shared tokens of it. */
sac_status answerer_begin(struct answerer *w, sac_seq shared, sac_error *err);
/* If the answer to the turn that was asked is complete: judges it. Behind the last turn it is over.
 */
sac_status answerer_take(struct answerer *w, sac_error *err);
/* Asks the next turn, whose prompt tells what was answered before; none is in work. */
sac_status answerer_ask_next(struct answerer *w, sac_error *err);
/* Takes a record of its sequence. */
void answerer_record(struct answerer *w, const sac_read_record *record);
/* Gives everything back; a request that runs must have been cancelled (sac_cancel) and have ended.
 */
void answerer_deinit(struct answerer *w);

#endif
