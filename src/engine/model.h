/* model.h: what a loaded model is made of. Immutable after sac_model_load; shared by engines. */
#ifndef SAC_ENGINE_MODEL_H
#define SAC_ENGINE_MODEL_H

#include "model/tokenizer.h"
#include "model/weights.h"

struct sac_model {
    struct gguf *gguf; /* owned; the embedding rows stay mapped */
    struct config config;
    struct weights weights;
    struct tokenizer *tokenizer; /* owned */
    char *name, *file_type;      /* owned texts for sac_model_info */
    char *chat_template;         /* owned, NULL if the file has none */
    uint64_t n_params;
    uint64_t fingerprint; /* equal for models that give a token the same keys and values */
};

#endif
