/* line.c: see the header. Line editing is libedit's.
 *
 * Characters are read by a function of ours and not by libedit's: that one retries a read that a
 * signal broke, so Ctrl-C would do nothing until the next key. libedit's own signal handling stays
 * off, since it would replace the program's handler for Ctrl-C. */
#include "app/line.h"

#include "app/interrupt.h"
#include "base/mem.h"

#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <wchar.h>

#define HISTORY_LINES 1000
#define BOLD(text)    "\1\033[1m\1" text "\1\033[0m\1" /* \1 encloses what takes no room */

struct line {
    EditLine *edit; /* NULL: stdin is no terminal */
    History *history;
    char history_path[1024]; /* "" if there is no place for it */
    bool more;               /* within a line that goes on */
    char prompt[2][32];      /* of a first line, and of one that goes on */
};

static char *prompt_of(EditLine *edit)
{
    void *data = NULL;
    el_get(edit, EL_CLIENTDATA, &data);
    struct line *l = data;
    return l->prompt[l->more];
}

/* One character; 0 at the end of input, -1 after Ctrl-C. */
static int read_char(EditLine *edit, wchar_t *out)
{
    mbstate_t state = {0};
    (void)edit;
    for (;;) {
        char byte;
        if (!interrupt_wait_input(STDIN_FILENO)) return -1;
        const ssize_t n = read(STDIN_FILENO, &byte, 1);
        if (n == 0) return 0;
        if (n < 0 && errno == EINTR && !interrupt_pending()) continue; /* the window's size */
        if (n < 0) return -1;
        const size_t used = mbrtowc(out, &byte, 1, &state);
        if (used == (size_t)-2) continue; /* the character has more bytes */
        if (used != (size_t)-1) return 1;
        state = (mbstate_t){0}; /* an invalid byte: as if it was not typed */
    }
}

/* Makes the folders of `path`, private to the user. */
static bool make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const int failed = mkdir(path, 0700) != 0 && errno != EEXIST;
        *slash = '/';
        if (failed) return false;
    }
    return true;
}

/* Without a home there is no history file, which is no reason not to chat. */
static void find_history(struct line *l)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    const size_t room = sizeof l->history_path;
    if (state && *state)
        n = snprintf(l->history_path, room, "%s/saccade/history", state);
    else if (home && *home)
        n = snprintf(l->history_path, room, "%s/.local/state/saccade/history", home);
    if (n < 0 || (size_t)n >= room || !make_folders(l->history_path)) l->history_path[0] = 0;
}

static sac_status open_terminal(struct line *l, sac_error *err)
{
    HistEvent event;
    /* Only the character type: numbers keep their point. Without a UTF-8 locale in the environment
     * C.UTF-8 is taken, for people do not only type ASCII. */
    const char *locale = setlocale(LC_CTYPE, "");
    if (!locale || MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
    l->edit = el_init("saccade", stdin, stdout, stderr);
    l->history = history_init();
    if (!l->edit || !l->history) return error_set(err, SAC_ERR_MEMORY, "no line editor");
    const char *no_colour = getenv("NO_COLOR");
    const bool bold = isatty(STDOUT_FILENO) && !(no_colour && *no_colour);
    snprintf(l->prompt[0], sizeof l->prompt[0], "%s", bold ? BOLD("> ") : "> ");
    snprintf(l->prompt[1], sizeof l->prompt[1], "%s", bold ? BOLD(". ") : ". ");
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    find_history(l);
    if (l->history_path[0]) history(l->history, &event, H_LOAD, l->history_path);
    el_set(l->edit, EL_CLIENTDATA, l);
    el_set(l->edit, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(l->edit, EL_EDITOR, "emacs");
    el_set(l->edit, EL_HIST, history, l->history);
    el_set(l->edit, EL_GETCFN, read_char);
    el_set(l->edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    return SAC_OK;
}

sac_status line_open(struct line **out, sac_error *err)
{
    struct line *l = mem_calloc(1, sizeof *l);
    if (!l) return error_set(err, SAC_ERR_MEMORY, "out of memory for the line editor");
    const sac_status status = isatty(STDIN_FILENO) ? open_terminal(l, err) : SAC_OK;
    if (status != SAC_OK) {
        line_close(l);
        return status;
    }
    *out = l;
    return SAC_OK;
}

void line_close(struct line *l)
{
    HistEvent event;
    if (!l) return;
    if (l->history && l->history_path[0]) history(l->history, &event, H_SAVE, l->history_path);
    if (l->history) history_end(l->history);
    if (l->edit) el_end(l->edit);
    mem_free(l);
}

bool line_is_terminal(const struct line *l)
{
    return l->edit != NULL;
}

/* Appends one physical line with its newline. */
static enum line_result read_part(struct line *l, struct strbuf *out)
{
    if (l->edit) {
        int n = 0;
        el_resize(l->edit);
        const char *part = el_gets(l->edit, &n);
        if (interrupt_pending()) return LINE_INTERRUPTED;
        if (!part || n <= 0) return LINE_END;
        strbuf_add(out, part, (size_t)n);
        return LINE_READ;
    }
    int c;
    errno = 0;
    while ((c = getchar()) != EOF) {
        const char byte = (char)c;
        strbuf_add(out, &byte, 1);
        if (c == '\n') return LINE_READ;
    }
    if (interrupt_pending()) return LINE_INTERRUPTED;
    return out->n ? LINE_READ : LINE_END; /* the last line may lack its newline */
}

enum line_result line_read(struct line *l, struct strbuf *out)
{
    HistEvent event;
    enum line_result result;
    strbuf_reset(out);
    l->more = false;
    for (;;) {
        const size_t before = out->n;
        result = read_part(l, out);
        if (result != LINE_READ) break;
        if (out->n > before && out->data[out->n - 1] == '\n') out->data[--out->n] = 0;
        l->more = out->n > before && out->data[out->n - 1] == '\\';
        if (!l->more) break;
        out->data[out->n - 1] = '\n';
    }
    if (result == LINE_READ && l->history && out->n)
        history(l->history, &event, H_ENTER, out->data);
    return result;
}
