/* question.h: which rows of a prompt a decode method serves: those of the question, or the last
 * few.
 *
 * Published evaluations of decode methods process the documents densely and let the method serve
 * the question after them; a method that selects by the question must see it first. The methods
 * determine which applies (question_in_force), so every command has the same rule. */
#ifndef SAC_EVAL_QUESTION_H
#define SAC_EVAL_QUESTION_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Help text of the option in all commands. */
#define QUESTION_HELP                                                                              \
    "prompt rows that the decode method serves: the last N tokens, or those of the question "      \
    "after the documents (only the last one for methods that must see the question first: "        \
    "'saccade methods NAME')"

/* The argument of "--decode-rows". */
struct question_rows {
    bool all;   /* the tokens of the question; otherwise the last `n` of the prompt */
    uint32_t n; /* at least 1 */
};

/* "question", or a number from 1. */
sac_status question_parse(struct question_rows *out, const char *text, sac_error *err);
/* The rows that apply to a pair of methods, "NAME:key=value,...". Where the question's tokens are
 * requested, it is only the last token if the decode method needs the question in the prompt, or if
 * there is no decode method (full) and the prefill method is what is evaluated. */
struct question_rows question_in_force(struct question_rows wanted, const char *prefill,
                                       const char *decode);
/* "question" or "last", as written in outputs beside the number. */
const char *question_name(const struct question_rows *rows);

/* For a prompt of n_tok tokens whose question begins at token `begin`, the number of tokens before
 * the decode rows; at least the last token is a decode row. */
size_t question_rows_begin(const struct question_rows *rows, size_t n_tok, size_t begin);

/* The same prompt with another question. */
struct question_text {
    sac_status (*encode)(const void *arg, const char *question, int32_t **out_tok, size_t *out_n,
                         sac_error *err);
    const void *arg;
};
/* Reduces `*n`, a number of tokens of the prompt `tok`, to those with which the prompt with `other`
 * also begins. */
sac_status question_alike(size_t *n, const int32_t *tok, const struct question_text *text,
                          const char *other, sac_error *err);
/* The first token of a prompt `tok` [n_tok] to which the question contributes: from it on, prompts
 * with other questions have other tokens. It may also contain the end of a document. At most
 * n_tok. */
sac_status question_find(size_t *out, const int32_t *tok, size_t n_tok,
                         const struct question_text *text, sac_error *err);

#endif
