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

/* What an engine is made of, beside the options. */
struct session_plan {
    uint32_t n_ctx;
    char prefill[256], decode[256]; /* "": the library's choice */
    bool record;                    /* can tell what an answer read: more memory */
};

struct session {
    struct setup setup;
    struct setup_sampling sampling;
    struct structure structure;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct option_list stop;
    int32_t n_predict;
    bool ignore_eos, no_prefix_cache;
    const char *chat_template;              /* NULL: the model's own */
    struct question_rows rows_wanted, rows; /* of the prompt, for the decode method; in force */
    uint64_t n_asked; /* each answer draws with a seed of its own, so /regen differs */

    sac_model *model;
    sac_engine *engine;
    sac_seq seq;
    struct session_plan plan;
    struct conversation said;

    const char *docs, *context, *store; /* of a store, as `run` names them; NULL: none */
    struct joined joined;
    int32_t *doc_tok; /* [joined.n_tok] their tokens with the head, once they have been joined */
    bool has_doc_tok;
    bool chooses; /* the context method does so by the question */

    sac_timings timings;   /* of the last answer */
    uint32_t n_decode_row; /* of its prompt, computed as the answer's are */
    uint32_t answer_at;    /* tokens of the sequence before it; 0: it is not there any more */
};

/* With the model loaded and `plan.n_ctx` set (0: what the model was trained with). */
sac_status session_open(struct session *s, sac_error *err);
void session_close(struct session *s);

/* Tokens of the conversation with the documents that wait. */
sac_status session_count(struct session *s, size_t *out, sac_error *err);
/* Computes them ahead of the next question; Ctrl-C leaves the rest for later. */
sac_status session_read_ahead(struct session *s, sac_error *err);
/* Answers the last turn, which is the user's; the caller adds the answer. */
sac_status session_answer(struct session *s, struct generation *g, sac_error *err);

/* Makes the engine anew. On SAC_OK the plan is `plan`; if `*out_kept` is false the sequence could
 * not go over, `err` tells why, and the conversation is read again with the next question. On an
 * error everything is as it was. */
sac_status session_rebuild(struct session *s, const struct session_plan *plan, bool *out_kept,
                           sac_error *err);

/* What the last answer read of the documents: it is said again, token by token, with a recorder.
 * `docs` gets the documents; both are zeroed, and freed by the caller in any case. */
sac_status session_reading(struct session *s, struct reading_docs *docs, struct passages *out,
                           sac_error *err);

/* The sequence from and to a file. After a load that fails it is empty. */
sac_status session_save_state(struct session *s, const char *path, sac_error *err);
sac_status session_load_state(struct session *s, const char *path, sac_error *err);

#endif
