/* subjects.h: the methods that an evaluation compares, as the command line names them:
 * "full,streaming:sink=4,window=1024,dense+quest:budget=512". */
#ifndef SAC_EVAL_SUBJECTS_H
#define SAC_EVAL_SUBJECTS_H

#include "base/status.h"

#include <stdint.h>

#define SUBJECT_NAME_MAX 160

struct subject {
    char name[SUBJECT_NAME_MAX];    /* as the user wrote it */
    char prefill[SUBJECT_NAME_MAX]; /* what the engine loads: "dense" */
    char decode[SUBJECT_NAME_MAX];  /* "streaming:sink=4,window=1024" */
    uint32_t prefill_i;             /* in the list of prefill methods */
};

struct subjects {
    struct subject item[SAC_METHODS_MAX];
    /* For sac_engine_params: a decode method for each subject, and each prefill method once. They
     * point into `item`. */
    const char *decode[SAC_METHODS_MAX], *prefill[SAC_METHODS_MAX];
    uint32_t n, n_prefill;
};

/* A comma parts methods unless what follows it is a "key=value" of the one before. "dense" alone is
 * dense prefill and full decode, a prefill method's
 * name that no decode method has that method and full decode. That every method and parameter
 * exists is checked here. */
sac_status subjects_parse(struct subjects *out, const char *text, sac_error *err);

#endif
