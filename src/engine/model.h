/* model.h: a loaded model. Immutable after sac_model_load; shared by engines. */
#ifndef SAC_ENGINE_MODEL_H
#define SAC_ENGINE_MODEL_H

#include "model/tokenizer.h"
#include "model/weights.h"

struct sac_model {
    struct gguf *gguf; /* owned; embedding rows stay mapped */
    struct config config;
    struct weights weights;
    struct tokenizer *tokenizer; /* owned */
    char *name, *file_type;      /* owned, for sac_model_info */
    char *chat_template;         /* owned; NULL if the file has none */
    uint64_t n_params;
    uint64_t fingerprint; /* equal for models that compute the same keys and values */
};

#endif
