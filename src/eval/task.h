/* task.h: one question with a known answer, before and while it meets a model.
 *
 * A cell says which sample of which task is wanted; a maker turns it into a sample: one or several
 * turns of a conversation, each with what the person says, how the answer is made to begin, and
 * what is expected. The same cell and seed give the same sample, whatever was made before. */
#ifndef SAC_EVAL_TASK_H
#define SAC_EVAL_TASK_H

#include "base/status.h"
#include "eval/score.h"
#include "eval/strlist.h"

#include <stdint.h>

#define TASK_TURN_MAX  8
#define TASK_NAME_MAX  64
#define TASK_PLACE_MAX 16

/* Names a sample; plain data. */
struct task_cell {
    char task[TASK_NAME_MAX];
    char place[TASK_PLACE_MAX]; /* where the question or the answer stands, "" where it is moot */
    uint32_t ctx;               /* tokens, the answer's included; 0: as the sample comes */
    double depth;               /* percent; negative: none */
    uint32_t index;             /* of the samples that differ in nothing else */
};

struct task_turn {
    char *user;         /* owned */
    size_t question_at; /* byte of `user` behind all documents: the question, or what stands there
                           in its place, is the rest */
    char *prefix;       /* what the answer begins with; owned, or NULL */
    struct strlist expected;
    uint32_t new_tok;
    bool first_line; /* judge the first line of the answer only */
};

struct task_sample {
    struct task_turn turn[TASK_TURN_MAX];
    uint32_t n_turn;
    enum metric metric;
    struct strlist classes; /* METRIC_CLASSIFICATION */
    bool raw;               /* continue the text: the suite wants no chat template here */
    uint32_t size;          /* units of length that were fitted */
};

void task_sample_deinit(struct task_sample *s);
/* The next turn, zeroed; the caller fills it. */
struct task_turn *task_add_turn(struct task_sample *s);

/* How text becomes tokens. */
struct task_text {
    const sac_model *model;    /* borrowed */
    const char *chat_template; /* NULL: the model's own */
    bool raw;                  /* no chat template */
};

/* The model's own template if it has one, else raw. */
struct task_text task_text_of(const sac_model *model);

/* A turn's prompt. */
struct task_prompt {
    const struct task_sample *sample; /* borrowed */
    uint32_t turn;
    const char *const *answer; /* [turn] of the turns before, borrowed */
    const int32_t *tok;        /* [n_tok] as task_encode gives them, borrowed */
    size_t n_tok;
};

/* Tokens up to where the answer of turn `turn` goes on; `answer` [turn] holds those of earlier
 * turns (without their prefixes). A BOS that the model wants is there once. `*out_tok` is owned by
 * the caller (sac_free). */
sac_status task_encode(const struct task_text *t, const struct task_sample *s, uint32_t turn,
                       const char *const *answer, int32_t **out_tok, size_t *out_n, sac_error *err);

/* The first token that what stands behind the turn's documents has a part in; n_tok at most. */
sac_status task_find_question(const struct task_text *t, const struct task_prompt *p, size_t *out,
                              sac_error *err);

/* Tokens that the whole sample takes when every answer is as long as it may be. */
sac_status task_length(const struct task_text *t, const struct task_sample *s, uint32_t *out_n,
                       sac_error *err);

/* A sample of `size` units (words, lines, documents: the task's business); more units are more
 * tokens. It draws from the same stream at each size. */
struct task_builder {
    sac_status (*build)(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
    const void *arg;
    uint32_t size_min, size_max; /* size_max 0: no limit */
};

/* The sample with the most units that fits `ctx` tokens. SAC_ERR_CONTEXT if the smallest does not.
 */
sac_status task_fit(const struct task_text *t, const struct task_builder *b, uint32_t ctx,
                    struct task_sample *out, sac_error *err);

/* What a command plans and the runner asks for, one cell at a time. */
struct task_source {
    sac_status (*make)(const void *arg, const struct task_text *t, const struct task_cell *cell,
                       struct task_sample *out, sac_error *err);
    const void *arg;
    const struct task_cell *cell; /* [n_cell] */
    size_t n_cell;
    bool single_turn; /* no sample has more than one */
};

#endif
