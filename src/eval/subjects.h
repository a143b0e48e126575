/* subjects.h: the methods that an evaluation compares, as the command line names them:
 * "full,streaming:sink=4,window=1024,dense+quest:budget=512", or every pair of two such lists. */
#ifndef SAC_EVAL_SUBJECTS_H
#define SAC_EVAL_SUBJECTS_H

#include "base/status.h"

#include <stdint.h>

#define SUBJECT_NAME_MAX 160

struct subject {
    char name[SUBJECT_NAME_MAX];  /* as the user wrote it */
    uint32_t prefill_i, decode_i; /* indices in the lists of methods */
};

struct subjects {
    struct subject *item; /* [n], owned */
    uint32_t n;
    /* For sac_engine_params, each method once: "dense", "streaming:sink=4,window=1024". They point
     * into `text`. */
    const char *prefill[SAC_METHODS_MAX], *decode[SAC_METHODS_MAX];
    uint32_t n_prefill, n_decode;
    char text[2 * SAC_METHODS_MAX][SUBJECT_NAME_MAX];
};

/* A comma separates methods unless a "key=value" of the previous one follows. "dense" alone is
 * dense prefill and full decode; a prefill method's name that no decode method has means that
 * method and full decode. Checks that every method and parameter exists. A struct subjects must not
 * be copied; free it with subjects_deinit, in any case. */
sac_status subjects_parse(struct subjects *out, const char *text, sac_error *err);
/* Each method of one list with each of the other; NULL: all methods of that kind. */
sac_status subjects_cross(struct subjects *out, const char *prefill, const char *decode,
                          sac_error *err);
/* Adds "PREFILL+DECODE", already checked, to zeroed subjects or those made so. */
sac_status subjects_add_pair(struct subjects *s, const char *prefill, const char *decode,
                             sac_error *err);
void subjects_deinit(struct subjects *s);

/* Information about the method of a specification "NAME:key=value,..."; false: there is none. */
bool subjects_method(sac_method_info *out, const char *kind, const char *spec);

#endif
