/* run.h: what the files of `saccade run` share: one answer, from the options to the report. */
#ifndef SAC_APP_RUN_H
#define SAC_APP_RUN_H

#include "app/generate.h"
#include "app/joined.h"
#include "app/options.h"
#include "app/reading_docs.h"
#include "app/setup.h"
#include "app/setup_sampling.h"
#include "app/structure.h"
#include "base/strbuf.h"
#include "eval/passages.h"
#include "eval/question.h"

#define RUN_COMMAND "run"

#define RUN_BETWEEN_FILES "\n\n" /* stands between two documents of -f */

enum run_format { RUN_TEXT, RUN_JSON, RUN_HTML }; /* in the order of -o */

struct run_options {
    const char *prompt, *system, *template_name, *template_file;
    const char *load_state, *save_state, *rows;
    struct option_list files, stop;
    const char *docs, *context, *store;
    int32_t n_predict;
    uint32_t n_probs;
    bool raw, as_is, escape, ignore_eos, quiet, show_reading;
    int format; /* enum run_format */
};

/* One answer from its command line on: everything that must be freed, in one place. */
struct run {
    struct run_options opt;
    struct setup setup;
    struct setup_sampling sampling;
    struct structure structure;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct strbuf text, template_text;
    const char *chat_template; /* NULL: the model's own */
    sac_model *model;
    sac_engine *engine;
    int32_t *tok; /* [n_tok], sac_free */
    size_t n_tok;
    struct question_rows rows; /* of --decode-rows; from run_answer on those in force */
    size_t n_document;         /* tokens before those that the question has a part in */
    size_t n_shared; /* tokens that other questions to the same documents begin with, too */
    uint32_t n_ctx;
    uint32_t n_loaded;                  /* tokens that came from a state */
    double ahead_ms;                    /* what was computed before the request took */
    size_t document_bytes;              /* of `text` in front of the question */
    size_t file_bytes[OPTION_LIST_MAX]; /* [files.n] of each document */
    struct passages passages;
    struct reading_docs reading; /* what these are passages of */
    struct generation gen;
    struct joined joined; /* of --docs */
    int32_t *head;        /* [n_head] what the prompt begins with; sac_free */
    size_t n_head;
};

/* ---- run_prompt.c ---- */

/* Documents, a blank line and the prompt, as one text: before the model is loaded. */
sac_status run_prompt_read(struct run *r, sac_error *err);
/* Its tokens, with room for those of --docs, the context that they need, and what other questions
 * have in common with them. */
sac_status run_prompt_encode(struct run *r, sac_error *err);

/* ---- run_answer.c ---- */

/* Documents that are saved for later need no question. */
bool run_answer_is_wanted(const struct run *r);
/* Creates the engine, computes and saves what was asked for, and streams the answer. */
sac_status run_answer(struct run *r, sac_error *err);

/* ---- run_report.c ---- */

/* What follows a streamed answer, or the object or page in its place. Returns the exit code. */
int run_report(struct run *r);

#endif
