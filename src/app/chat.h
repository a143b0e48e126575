/* chat.h: what the files of `saccade chat` share: the conversation's session and how it is left.
 * chat.c asks and answers, chat_commands.c has the commands, chat_files.c documents and saved
 * conversations, chat_complete.c the completions of Tab. */
#ifndef SAC_APP_CHAT_H
#define SAC_APP_CHAT_H

#include "app/line_editor.h"
#include "app/session.h"

#include <stdio.h>

#define CHAT_COMMAND "chat"

struct chat {
    struct session s;
    struct line_editor *editor;
    bool quit;
    bool as_is; /* documents are taken byte for byte */
};

/* Answers the last turn. If nothing was generated, the question is dropped and its documents wait
 * for the next one. */
void chat_answer(struct chat *c);

/* ---- chat_commands.c ---- */

struct chat_command {
    const char *name, *arg;
    void (*run)(struct chat *c, const char *arg);
    const char *help;
};

/* The i-th command; NULL after the last. */
const struct chat_command *chat_commands_at(size_t i);
/* Runs a command line, "/name arguments". */
void chat_commands_run(struct chat *c, const char *text);
/* Whether the text begins with a command's name. */
bool chat_commands_known(const char *text);

/* ---- chat_files.c ---- */

/* Adds a document before the next question. If the context has no room, it suggests what to do
 * instead. Messages go to `told`. `arg` is "FILE", or "FILE N/M" for the N-th of M parts. */
sac_status chat_files_take(struct chat *c, const char *arg, FILE *told, sac_error *err);
void chat_files_drop(struct chat *c, const char *arg);
void chat_files_list(struct chat *c, const char *arg);
void chat_files_save(struct chat *c, const char *arg);
void chat_files_load(struct chat *c, const char *arg);
/* Appends `path`, with a leading ~ replaced by the home folder. */
void chat_files_expand(struct strbuf *out, const char *path);

/* ---- chat_complete.c ---- */

/* A line_editor_complete_fn; `chat` is a struct chat. */
void chat_complete(void *chat, const char *before, struct strlist *out, size_t *out_n_word);

#endif
