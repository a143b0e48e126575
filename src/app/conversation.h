/* conversation.h: the messages of a chat, and their file: {"messages": [{"role": ..., "content":
 * ...}]}, as in chat APIs. The system message, if any, is first; then questions and answers
 * alternate.
 *
 * A question's text begins with the documents that were added before it, each followed by a blank
 * line. Documents that wait for a question are in `next`. In the file, a message with documents has
 * their names and sizes in "documents", beside its content. */
#ifndef SAC_APP_CONVERSATION_H
#define SAC_APP_CONVERSATION_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct conversation_document {
    char *name;     /* owned, as the user typed it */
    size_t n;       /* bytes of the text, including the blank line */
    uint32_t n_tok; /* 0: not counted yet */
};

struct turn {
    const char *role;                       /* "user" or "assistant" */
    char *text;                             /* owned */
    struct conversation_document *document; /* owned, [n_document], in the order of the text */
    size_t n_document;
};

/* Zeroed, it is empty. */
struct conversation {
    char *system;       /* owned, or NULL */
    struct turn *turns; /* owned, [n_turn] */
    size_t n_turn, turn_room;
    struct turn next; /* documents for the next question; `text` is NULL without any */
};

void conversation_deinit(struct conversation *c);

/* Copies `n` bytes of `text`, which must not contain zero bytes, and `name`. */
sac_status conversation_add_document(struct conversation *c, const char *name, const char *text,
                                     size_t n, sac_error *err);
/* Total bytes of a turn's documents. */
size_t conversation_document_bytes(const struct turn *t);
/* Removes the last document of that name, or the last one if it is NULL. False: there is none. */
bool conversation_remove_document(struct conversation *c, const char *name);

/* Appends a user turn: the waiting documents and the question. */
sac_status conversation_ask(struct conversation *c, const char *question, sac_error *err);
/* Removes an unanswered question; its documents wait again. */
void conversation_unask(struct conversation *c);
sac_status conversation_answer(struct conversation *c, const char *text, size_t n, sac_error *err);
void conversation_drop_last(struct conversation *c);
/* Removes everything but the system message. */
void conversation_clear(struct conversation *c);

/* Writes the file completely or, after an error, leaves it unchanged. */
sac_status conversation_save(const struct conversation *c, const char *path, sac_error *err);
/* Loads a conversation, which must end with an answer. `c` changes only on SAC_OK. */
sac_status conversation_load(struct conversation *c, const char *path, sac_error *err);

#endif
