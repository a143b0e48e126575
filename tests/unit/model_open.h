/* model_open.h: smollm2-135m, the real model of the C tests, where `make model` puts it. */
#ifndef SAC_TESTS_UNIT_MODEL_OPEN_H
#define SAC_TESTS_UNIT_MODEL_OPEN_H

#include "saccade.h"

#include <stdio.h>
#include <stdlib.h>

#define MODEL_NAME "smollm2-135m"

static inline const char *model_path(char path[4096])
{
    const char *dir = getenv("SACCADE_MODELS"), *cache = getenv("XDG_CACHE_HOME");
    if (dir)
        snprintf(path, 4096, "%s/" MODEL_NAME ".gguf", dir);
    else if (cache)
        snprintf(path, 4096, "%s/saccade/models/" MODEL_NAME ".gguf", cache);
    else
        snprintf(path, 4096, "%s/.cache/saccade/models/" MODEL_NAME ".gguf", getenv("HOME"));
    return path;
}

/* NULL, and why on stderr, if it cannot be loaded. */
static inline sac_model *model_open(void)
{
    char path[4096];
    sac_model *model = NULL;
    sac_error err;
    const sac_model_params params = sac_model_params_default();
    if (sac_model_load(&model, model_path(path), &params, &err) != SAC_OK)
        fprintf(stderr, "%s (make model NAME=" MODEL_NAME ")\n", err.msg);
    return model;
}

#endif
