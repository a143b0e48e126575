/* line.h: lines that a person types, with editing, history and completion on a terminal, or that
 * come from a pipe. A line that ends in a backslash continues in the next one; a paste of several
 * lines is one text. */
#ifndef SAC_APP_LINE_H
#define SAC_APP_LINE_H

#include "base/status.h"
#include "base/strbuf.h"
#include "eval/strlist.h"

struct line;

enum line_result {
    LINE_READ,        /* a text, without its final newline */
    LINE_END,         /* Ctrl-D, or the end of input */
    LINE_DROPPED,     /* Ctrl-C; the typed text is discarded */
    LINE_INTERRUPTED, /* Ctrl-C at an empty prompt */
};

/* Completes the last word of `before`, the text up to the cursor: candidates go to `out`, and
 * `*out_n_word` is the number of bytes that they replace. No blank is added after a candidate that
 * ends in '/', '=' or ':'. */
typedef void (*line_complete_fn)(void *user, const char *before, struct strlist *out,
                                 size_t *out_n_word);

/* Requires interrupt_install(). The history is in $XDG_STATE_HOME/saccade/history. */
sac_status line_open(struct line **out, line_complete_fn complete, void *user, sac_error *err);
void line_close(struct line *l);
bool line_is_terminal(const struct line *l);
enum line_result line_read(struct line *l, struct strbuf *out);

#endif
