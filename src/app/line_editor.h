/* line_editor.h: lines that a person types, with editing, history and completion on a terminal, or
 * that come from a pipe. A line that ends in a backslash continues in the next one; a paste of
 * several lines is one text. */
#ifndef SAC_APP_LINE_EDITOR_H
#define SAC_APP_LINE_EDITOR_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/strlist.h"

struct line_editor;

enum line_editor_result {
    LINE_EDITOR_READ,        /* a text, without its final newline */
    LINE_EDITOR_END,         /* Ctrl-D, or the end of input */
    LINE_EDITOR_DROPPED,     /* Ctrl-C; the typed text is discarded */
    LINE_EDITOR_INTERRUPTED, /* Ctrl-C at an empty prompt */
};

/* Completes the last word of `before`, the text up to the cursor: candidates go to `out`, and
 * `*out_n_word` is the number of bytes that they replace. No blank is added after a candidate that
 * ends in '/', '=' or ':'. */
typedef void (*line_editor_complete_fn)(void *user, const char *before, struct strlist *out,
                                        size_t *out_n_word);

/* Requires interrupt_install(). The history is in $XDG_STATE_HOME/saccade/history. */
sac_status line_editor_open(struct line_editor **out, line_editor_complete_fn complete, void *user,
                            sac_error *err);
void line_editor_close(struct line_editor *l);
bool line_editor_is_terminal(const struct line_editor *l);
enum line_editor_result line_editor_read(struct line_editor *l, struct strbuf *out);

#endif
