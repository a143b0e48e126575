/* task.h: one question with a known answer, before and while a model answers it.
 *
 * A cell names a sample of a task. A generator turns it into a sample: one or several turns of a
 * conversation, each with the user's text, the given start of the answer, and the expected answer.
 * The same cell and seed give the same sample, whatever was generated before. */
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
    /* Position of the question or the answer; "" if it does not apply */
    char place[TASK_PLACE_MAX];
    uint32_t ctx;   /* tokens, including the answer; 0: the sample's own length */
    double depth;   /* percent; negative: none */
    uint32_t index; /* number among samples that are otherwise alike */
};

struct task_turn {
    char *user; /* owned */
    /* Offset in `user` after all documents: the question begins here, or what takes its place */
    size_t question_at;
    char *prefix; /* given start of the answer; owned, or NULL */
    struct strlist expected;
    uint32_t new_tok;
    bool first_line; /* score only the first line of the answer */
};

struct task_sample {
    struct task_turn turn[TASK_TURN_MAX];
    uint32_t n_turn;
    enum metric metric;
    struct strlist classes; /* METRIC_CLASSIFICATION */
    bool raw;               /* the text is continued: the suite uses no chat template here */
    uint32_t size;          /* units of length, of a fitted sample */
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
    const char *const *answer; /* [turn] answers of the previous turns, borrowed */
    const int32_t *tok;        /* [n_tok] as task_encode returns them, borrowed */
    size_t n_tok;
};

/* The tokens up to where the answer of turn `turn` begins; `answer` [turn] has those of earlier
 * turns, without their prefixes. A BOS that the model wants occurs once. The caller owns `*out_tok`
 * (sac_free). */
sac_status task_encode(const struct task_text *t, const struct task_sample *s, uint32_t turn,
                       const char *const *answer, int32_t **out_tok, size_t *out_n, sac_error *err);

/* The first token to which the text after the turn's documents contributes; n_tok at most. */
sac_status task_find_question(const struct task_text *t, const struct task_prompt *p, size_t *out,
                              sac_error *err);

/* Tokens of the whole sample when every answer is as long as possible. */
sac_status task_length(const struct task_text *t, const struct task_sample *s, uint32_t *out_n,
                       sac_error *err);

/* Builds a sample of `size` units (words, lines, documents: the task's own); more units give more
 * tokens. It draws from the same stream for every size. */
struct task_builder {
    sac_status (*build)(const void *arg, uint32_t size, struct task_sample *out, sac_error *err);
    const void *arg;
    uint32_t size_min, size_max; /* size_max 0: no limit */
};

/* The sample with the most units that fits `ctx` tokens. SAC_ERR_CONTEXT if the smallest does
 * not. */
sac_status task_fit(const struct task_text *t, const struct task_builder *b, uint32_t ctx,
                    struct task_sample *out, sac_error *err);

/* What a command plans and the runner requests, one cell at a time. */
struct task_source {
    sac_status (*make)(const void *arg, const struct task_text *t, const struct task_cell *cell,
                       struct task_sample *out, sac_error *err);
    const void *arg;
    const struct task_cell *cell; /* [n_cell] */
    size_t n_cell;
    bool single_turn; /* no sample has more than one */
};

#endif
