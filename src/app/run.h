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

#define RUN_BETWEEN_FILES "\n\n" /* separates the documents of -f */

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

/* State of the command, and everything to free. */
struct run {
    struct run_options opt;
    struct setup setup;
    struct setup_sampling sampling;
    struct structure structure;
    sac_logit_bias bias[OPTION_LIST_MAX];
    struct strbuf text, template_text;
    const char *chat_template; /* NULL: the model's */
    sac_model *model;
    sac_engine *engine;
    int32_t *tok; /* owned (sac_free), [n_tok] */
    size_t n_tok;
    struct question_rows rows; /* as requested; during run_answer, as in force */
    size_t n_document;         /* tokens that do not depend on the question */
    size_t n_shared;           /* tokens that prompts with other questions share */
    uint32_t n_ctx;
    uint32_t n_loaded;                  /* tokens loaded from a saved state */
    double ahead_ms;                    /* time spent before the request */
    size_t document_bytes;              /* bytes of `text` before the question */
    size_t file_bytes[OPTION_LIST_MAX]; /* [files.n], of each document */
    struct passages passages;
    struct reading_docs reading; /* the texts of its passages */
    struct generation gen;
    struct joined joined; /* for --docs */
    int32_t *head;        /* owned (sac_free), [n_head]: the prompt's beginning */
    size_t n_head;
};

/* ---- run_prompt.c ---- */

/* Reads documents, a blank line and the prompt as one text, before the model is loaded. */
sac_status run_prompt_read(struct run *r, sac_error *err);
/* Encodes the prompt, with room for the tokens of --docs; determines the context length and what
 * other questions share. */
sac_status run_prompt_encode(struct run *r, sac_error *err);

/* ---- run_answer.c ---- */

/* Whether an answer is needed: documents that are only saved need no question. */
bool run_answer_is_wanted(const struct run *r);
/* Creates the engine, computes and saves what was requested, and streams the answer. */
sac_status run_answer(struct run *r, sac_error *err);

/* ---- run_report.c ---- */

/* Prints what follows a streamed answer, or JSON or HTML instead of it. Returns the exit code. */
int run_report(struct run *r);

#endif
