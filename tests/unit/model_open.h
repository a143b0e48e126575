/* model_open.h: the real models of the C tests, where `make model` puts them. */
#ifndef SAC_TESTS_UNIT_MODEL_OPEN_H
#define SAC_TESTS_UNIT_MODEL_OPEN_H

#include "saccade.h"

#include <stdio.h>
#include <stdlib.h>

#define MODEL_NAME "smollm2-135m" /* the one that CI has */

/* Where the program looks for `name`, too (app/models.c). */
static inline const char *model_path(char path[4096], const char *name)
{
    const char *own = getenv("SACCADE_MODELS"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    if (own && *own)
        snprintf(path, 4096, "%s/%s.gguf", own, name);
    else if (cache && *cache)
        snprintf(path, 4096, "%s/saccade/models/%s.gguf", cache, name);
    else
        snprintf(path, 4096, "%s/.cache/saccade/models/%s.gguf", home ? home : "", name);
    return path;
}

/* NULL, and why on stderr, if it cannot be loaded. */
static inline sac_model *model_open(void)
{
    char path[4096];
    sac_model *model = NULL;
    sac_error err;
    const sac_model_params params = sac_model_params_default();
    if (sac_model_load(&model, model_path(path, MODEL_NAME), &params, &err) != SAC_OK)
        fprintf(stderr, "%s (make model NAME=" MODEL_NAME ")\n", err.msg);
    return model;
}

#endif
