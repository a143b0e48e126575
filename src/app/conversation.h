/* conversation.h: what was said in a chat, and its file: {"messages": [{"role": ..., "content":
 * ...}]}, as chat APIs have it. The system message, if any, stands first; questions and answers
 * take turns behind it. */
#ifndef SAC_APP_CONVERSATION_H
#define SAC_APP_CONVERSATION_H

#include "base/status.h"

#include <stddef.h>

struct turn {
    const char *role;  /* "user" or "assistant" */
    char *text;        /* owned */
    size_t n_document; /* bytes of documents that `text` begins with, as far as that is known */
};

/* Zeroed, it is empty. */
struct conversation {
    char *system;       /* owned, or NULL */
    struct turn *turns; /* owned, [n_turn] */
    size_t n_turn, turn_room;
};

void conversation_deinit(struct conversation *c);

/* Copies `n` bytes of `text`, without a zero byte, none of them a document's. `role` is borrowed
 * for good. */
sac_status conversation_add(struct conversation *c, const char *role, const char *text, size_t n,
                            sac_error *err);
void conversation_drop_last(struct conversation *c);
void conversation_drop_turns(struct conversation *c);

/* The file is there whole or, after an error, as it was before. */
sac_status conversation_save(const struct conversation *c, const char *path, sac_error *err);
/* Reads a conversation of whole turns: the last one is an answer. Replaces what `c` held on SAC_OK
 * only. */
sac_status conversation_load(struct conversation *c, const char *path, sac_error *err);

#endif
