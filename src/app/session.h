/* session.h: a conversation and the engine's sequence that has computed it.
 *
 * Every turn renders the whole conversation, compares its tokens with those of the sequence, and
 * computes only what is new: the KV of a long document is computed once. An interrupted answer,
 * another system message, and a removed document are the same case: a shorter common prefix. Text
 * that is removed and comes back is found in the engine's index of pages.
 *
 * Documents of a store precede all of it. They are joined when the first question comes, because
 * some methods select by the question. Such methods join again for each question, and then what
 * follows the documents is recomputed, too.
 *
 * The engine may be created again with another context, other methods or a recorder: the sequence
 * is transferred as it is, if the new engine can continue it. */
#ifndef SAC_APP_SESSION_H
#define SAC_APP_SESSION_H

#include "app/conversation.h"
#include "app/generate.h"
#include "app/joined.h"
#include "app/reading_docs.h"
#include "app/setup.h"
#include "app/setup_sampling.h"
#include "app/structure.h"
#include "eval/passages.h"
#include "eval/question.h"

/* What determines an engine, besides the options. */
struct session_plan {
    uint32_t n_ctx;
    char prefill[256], decode[256]; /* "": the library's default */
    bool record;                    /* allows recording of attention, which needs more memory */
};

struct session {
    struct setup setup;
    struct setup_sampling sampling;
    struct structure structure;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct option_list stop;
    int32_t n_predict;
    bool ignore_eos, no_prefix_cache;
    const char *chat_template;              /* NULL: the model's */
    struct question_rows rows_wanted, rows; /* prompt rows for the decode method */
    uint64_t n_asked; /* gives each answer another seed, so that /regen differs */

    sac_model *model;
    sac_engine *engine;
    sac_seq seq;
    struct session_plan plan;
    struct conversation said;

    const char *docs, *context, *store; /* stored documents, as for `run`; NULL: none */
    struct joined joined;
    int32_t *doc_tok; /* [joined.n_tok], with the head, once they are joined */
    bool has_doc_tok;
    bool chooses; /* the context method depends on the question */

    sac_timings timings;   /* of the last answer */
    uint32_t n_decode_row; /* rows of its prompt that the decode method served */
    uint32_t answer_at;    /* tokens before it in the sequence; 0: no longer there */
};

/* Requires a loaded model and `plan.n_ctx` (0: the training length). */
sac_status session_open(struct session *s, sac_error *err);
void session_close(struct session *s);

/* Tokens of the conversation including the waiting documents. */
sac_status session_count(struct session *s, size_t *out, sac_error *err);
/* Computes the waiting documents before the question; Ctrl-C postpones the rest. */
sac_status session_read_ahead(struct session *s, sac_error *err);
/* Answers the last turn, which is the user's; the caller appends the answer. */
sac_status session_answer(struct session *s, struct generation *g, sac_error *err);

/* Recreates the engine for `plan`. SAC_OK with `*out_kept` false: the sequence could not be taken
 * over, for the reason in `err`, and will be recomputed with the next question. After an error
 * nothing has changed. */
sac_status session_rebuild(struct session *s, const struct session_plan *plan, bool *out_kept,
                           sac_error *err);

/* Records what the last answer reads of the documents by repeating it token by token. The caller
 * passes `docs` and `out` zeroed, and frees them in any case. */
sac_status session_reading(struct session *s, struct reading_docs *docs, struct passages *out,
                           sac_error *err);

/* Saves or loads the sequence. After a failed load it is empty. */
sac_status session_save_state(struct session *s, const char *path, sac_error *err);
sac_status session_load_state(struct session *s, const char *path, sac_error *err);

#endif
