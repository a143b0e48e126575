/* score.h: how an answer is scored, as the public suites define it.
 *
 * A score is 0 to 1. Text is UTF-8; case is folded in ASCII only, which is what the suites' English
 * sets need. Contract: texts are NUL terminated and not NULL; out of memory is SAC_ERR_MEMORY. */
#ifndef SAC_EVAL_SCORE_H
#define SAC_EVAL_SCORE_H

#include "base/status.h"
#include "eval/strlist.h"

enum metric {
    METRIC_ALL_MATCH,      /* RULER: share of the expected strings that the answer contains */
    METRIC_ANY_MATCH,      /* RULER's QA: 1 if it contains one of them */
    METRIC_EXACT,          /* SQuAD: equal after normalization, best of the references */
    METRIC_F1,             /* SQuAD, LongBench: word overlap after normalization */
    METRIC_ROUGE_L,        /* LongBench: F of Rouge-L as the Python package rouge computes it */
    METRIC_ROUGE_L_RECALL, /* LoopServe: longest common subsequence of words / reference words */
    METRIC_CLASSIFICATION, /* LongBench: 1 / class names found, if the true one is among them */
    METRIC_RETRIEVAL,      /* LongBench: share of the numbers in the answer that name the true
                              paragraph */
    METRIC_COUNT,          /* LongBench: share of the numbers in the answer that are the expected
                              one */
    METRIC_CODE,           /* LongBench: edit similarity of the first line of code */
    METRIC_N,
};

/* The metric's name in samples.jsonl: "all_match", "f1", ...; and back, METRIC_N for an unknown
 * name. */
const char *score_metric_name(enum metric metric);
enum metric score_metric_find(const char *name);

struct score_args {
    enum metric metric;
    const char *answer;
    const struct strlist *expected; /* at least one */
    const struct strlist *classes;  /* METRIC_CLASSIFICATION only, else NULL */
};

sac_status score_answer(double *out, const struct score_args *a, sac_error *err);

/* 2 LCS / (|a| + |b|) over bytes, in whole percent as fuzzywuzzy rounds: 0 to 1. */
sac_status score_edit_similarity(double *out, const char *a, const char *b, sac_error *err);
/* The first line after empty ones, as LongBench cuts the answers of its few-shot sets. In place. */
void score_keep_first_line(char *answer);

#endif
