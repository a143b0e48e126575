/* dialects.h: the supported APIs; each is implemented in a file of its own. */
#ifndef SAC_SERVE_DIALECTS_H
#define SAC_SERVE_DIALECTS_H

#include "serve/reply.h"

extern const struct dialect openai_chat_dialect;
extern const struct dialect llamacpp_completion_dialect;
extern const struct dialect openai_completion_dialect;
extern const struct dialect openai_responses_dialect;
extern const struct dialect anthropic_messages_dialect;

/* /v1/documents */
extern const struct dialect document_add_dialect, document_list_dialect, document_remove_dialect;
/* /v1/embeddings, and llama.cpp's /embedding */
extern const struct dialect openai_embeddings_dialect, llamacpp_embedding_dialect;
/* /slots/ID */
extern const struct dialect slot_action_dialect;

#endif
